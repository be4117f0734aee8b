//! `[scheme.synchronous.local_steps]`: local optimizer steps of contributors (DiLoCo).

use barnraise_learning::{OptimizerSpec, ScheduleSpec};
use barnraise_protocol::run::LocalSteps;
use serde::{Deserialize, Serialize};

/// `[scheme.synchronous.local_steps]`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalStepsSection {
    /// Most steps of one trajectory, of a micro-batch each; the next one begins at the parameters of the epoch again.
    pub steps: u32,
    /// The inner optimizer.
    pub optimizer: OptimizerSpec,
    /// Its learning rate, over the epochs of the run.
    pub schedule: ScheduleSpec,
}

impl LocalStepsSection {
    /// The part of the run's description that contributors receive; nothing is checked.
    pub fn describe(&self) -> LocalSteps {
        LocalSteps { steps: self.steps, optimizer: self.optimizer.into(), schedule: self.schedule.into() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::path::Path;

    use barnraise_learning::Decay;

    use super::*;
    use crate::config::RunConfig;

    const EXAMPLE: &str = include_str!("../../../../run.reference.toml");

    /// The example with its section on local steps switched on.
    fn example() -> String {
        let (before, section) = EXAMPLE.split_once("# [scheme.synchronous.local_steps]\n").unwrap();
        let (section, after) = section.split_once("\n\n").unwrap();
        let is_key = |line: &&str| line.split(' ').nth(2) == Some("=");
        let keys: Vec<&str> =
            section.lines().filter(is_key).map(|line| line.trim_start_matches("# ")).collect();
        format!("{before}[scheme.synchronous.local_steps]\n{}\n\n{after}", keys.join("\n"))
    }

    fn parse(text: &str) -> Result<RunConfig, String> {
        RunConfig::parse(text, Path::new("run.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn the_example_can_be_switched_on_and_reads_back() {
        let config = parse(&example()).unwrap();
        let schedule =
            ScheduleSpec { peak: 0.05, warmup_steps: 0, decay: Decay::Cosine { steps: 400, floor: 0.0 } };
        let want = LocalStepsSection { steps: 16, optimizer: OptimizerSpec::sgd_momentum(), schedule };
        assert_eq!(config.synchronous().unwrap().local_steps, Some(want));
        assert_eq!(parse(&toml::to_string(&config).unwrap()).unwrap().scheme, config.scheme);
    }

    #[test]
    fn what_cannot_work_is_shown_with_its_line() {
        for (from, to, part) in [
            ("steps = 16", "steps = 17", "steps = 1 to 16, which are the target batch size of 1024"),
            ("steps = 16", "steps = 0", "1 to 100000 are possible"),
            ("steps = 16", "", "missing field `steps`"),
            ("steps = 16", "step = 16", "unknown field `step`"),
            ("momentum = 0.9 }\nschedule", "momentum = 1.0 }\nschedule", "at least 0 and below 1"),
            (
                "{ kind = \"sgd-momentum\", momentum = 0.9 }\nschedule",
                "{ kind = \"lamb\" }\nschedule",
                "adam",
            ),
            ("peak = 0.05", "peak = -1.0", "above zero"),
        ] {
            let text = example();
            assert!(text.contains(from), "{from}");
            let error = parse(&text.replace(from, to)).unwrap_err();
            assert!(error.contains(part) && error.contains("line "), "{part} is missing in: {error}");
        }
    }
}
