//! `[scheme.sampled]`: a run without a server, in which each round a few peers train, and fewer average their models.

use std::time::Duration;

use barnraise_learning::{Decay, OptimizerSpec, ScheduleSpec};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::access::AccessMode;
use barnraise_protocol::run::{ModelAverage, ModelExchange, Sampled};
use serde::{Deserialize, Serialize};

use crate::config::{Invalid, RunConfig, as_written};

/// Least lifetime of access tokens, and in windows of activity.
const LIFETIME_MIN: Duration = Duration::from_secs(5 * 60);
const LIFETIME_MIN_WINDOWS: u32 = 2;

/// Neighbours among whom `centered-clip` bears a dishonest one.
const NEIGHBORS_MIN: u16 = 4;

/// `[scheme.sampled]`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SampledSection {
    /// Trainers of a round (MoDEST table 2, `s`).
    pub sample_size: u16,
    /// Aggregators of a round: one more than are expected to fail (`a`).
    pub n_aggregators: u16,
    /// Fraction of a sample whose models an aggregator waits for (`sf`).
    pub success_fraction: f32,
    /// How an aggregator makes one model of those of a sample, and whether trainers compare those of three or more aggregators.
    pub average: ModelAverage,
    /// Between whom models go: from sampled trainers to aggregators, or from all to their neighbours.
    pub exchange: ModelExchange,
    /// A peer that does not answer for so long is not live (`Δt`).
    #[serde(with = "humantime_serde")]
    pub ping_timeout: Duration,
    /// Rounds after which an inactive peer is asked no more: twice as many as it takes until each was in a sample (`Δk`).
    pub activity_window: u32,
    /// How long a round takes, until participants have measured it. No run makes more than eight rounds in that time.
    #[serde(with = "humantime_serde")]
    pub round_estimate: Duration,
    /// Samples in one forward and backward pass of a trainer, each of which is a step (`B`).
    pub micro_batch_size: u32,
    /// Passes of a trainer over its data in a round (`E`).
    pub local_passes: u32,
    /// Shards of the run's data that are a participant's.
    pub local_shards: u32,
    /// Codec of models.
    pub state_codec: TensorCodec,
    /// The optimizer of trainers, sgd-momentum or adam.
    pub optimizer: OptimizerSpec,
    /// Its learning rate; its steps are rounds.
    pub schedule: ScheduleSpec,
}

impl Default for SampledSection {
    fn default() -> Self {
        Self {
            sample_size: 4,
            n_aggregators: 2,
            success_fraction: 0.75,
            average: ModelAverage::Mean,
            exchange: ModelExchange::Sample,
            ping_timeout: Duration::from_secs(2),
            activity_window: 40,
            round_estimate: Duration::from_secs(10),
            micro_batch_size: 20,
            local_passes: 1,
            local_shards: 1,
            state_codec: TensorCodec::F32,
            optimizer: OptimizerSpec::SgdMomentum { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
            schedule: ScheduleSpec { peak: 0.05, warmup_steps: 0, decay: Decay::Constant },
        }
    }
}

impl SampledSection {
    /// As participants see it; nothing is checked.
    pub(super) fn describe(&self) -> Sampled {
        Sampled {
            sample_size: self.sample_size,
            n_aggregators: self.n_aggregators,
            success_fraction: self.success_fraction,
            average: self.average,
            exchange: self.exchange,
            ping_timeout_ms: millis(self.ping_timeout),
            activity_window: self.activity_window,
            round_estimate_ms: millis(self.round_estimate),
            micro_batch_size: self.micro_batch_size,
            local_passes: self.local_passes,
            local_shards: self.local_shards,
            state_codec: self.state_codec,
            optimizer: self.optimizer.into(),
            schedule: self.schedule.into(),
        }
    }

    /// What it cannot be combined with.
    pub(super) fn validate_in(&self, config: &RunConfig) -> Result<(), Invalid> {
        let access = &config.access;
        let (is_open, lifetime) = (access.mode == AccessMode::Open, access.token_lifetime);
        let elsewhere = access.authority.as_ref().filter(|_| !is_open);
        let want =
            "none with [scheme.sampled]: this backbone takes part itself, and lets itself and the others in";
        Invalid::check("access.authority", elsewhere.is_none(), want, as_written(&access.authority))?;
        // Access is renewed after two thirds of it. Within the last third, half a window, each is in a round and hears of it.
        let window = self.round_estimate.saturating_mul(self.activity_window);
        let is_long = is_open || lifetime >= LIFETIME_MIN.max(window.saturating_mul(LIFETIME_MIN_WINDOWS));
        let want = "5 minutes, and twice activity_window * round_estimate, or more with [scheme.sampled]: participants \
                    hear from each other that access was renewed";
        Invalid::check("access.token_lifetime", is_long, want, format!("{lifetime:?}"))?;
        let contributes = config.device.contributes;
        let want = "false with [scheme.sampled]: `barnraise join` beside it trains on this machine";
        Invalid::check("device.contributes", !contributes, want, contributes)?;
        let others = config.aggregators.peers().count();
        let want = "none with [scheme.sampled]: its aggregators find each other";
        Invalid::check("aggregators.peers", others == 0, want, others)
    }

    pub(super) fn bound_values(&self) -> [(&'static str, String); 1] {
        [("scheme.sampled.optimizer", as_written(&self.optimizer))]
    }

    pub(super) fn warning(&self) -> Option<(&'static str, &'static str)> {
        if self.exchange.is_among_neighbors() {
            let is_bounded =
                self.average == ModelAverage::Mean || self.exchange.n_receivers() >= NEIGHBORS_MIN;
            let about =
                "one dishonest neighbour of fewer than four moves what a participant averages as it likes";
            return (!is_bounded).then_some(("scheme.sampled.average", about));
        }
        let about = match self.n_aggregators {
            0..2 => {
                "where the only aggregator of a round fails, the run waits until participants notice its silence"
            }
            2 if self.average == ModelAverage::CenteredClip => {
                "trainers believe an aggregator that lies: they compare what aggregators offer where there are three or more"
            }
            _ => return None,
        };
        Some(("scheme.sampled.n_aggregators", about))
    }
}

/// What is out of range, participants refuse.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::path::Path;

    use super::*;
    use crate::config::SchemeSection;

    const REFERENCE: &str = include_str!("../../../run.reference.toml");

    /// The reference's section, in place of that of the synchronous scheme.
    fn example() -> String {
        let (_, section) = REFERENCE.split_once("# [scheme.sampled]\n").unwrap();
        let (section, _) = section.split_once("\n\n").unwrap();
        let is_key = |line: &&str| line.split(' ').nth(2) == Some("=");
        let keys: Vec<&str> =
            section.lines().filter(is_key).map(|line| line.trim_start_matches("# ")).collect();
        format!("[run]\nid = \"a\"\n\n[scheme.sampled]\n{}\n", keys.join("\n"))
    }

    fn parse(text: &str) -> Result<RunConfig, String> {
        RunConfig::parse(text, Path::new("run.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn the_reference_has_all_keys_with_their_defaults() {
        let config = parse(&example()).unwrap();
        assert_eq!(config.scheme, SchemeSection::Sampled(SampledSection::default()));
        let written = toml::to_string(&config).unwrap();
        assert_eq!(parse(&written).unwrap().scheme, config.scheme);
        let (_, section) = written.split_once("[scheme.sampled]\n").unwrap();
        let keys = section
            .lines()
            .take_while(|line| line.contains(" = "))
            .map(|line| line.split(' ').next().unwrap());
        for key in keys {
            assert!(example().contains(&format!("\n{key} = ")), "{key} is not in the reference");
        }
    }

    /// By invitation.
    fn with_access(line: &str) -> String {
        example() + "\n[access]\nmode = \"invitation\"\n" + line + "\n"
    }

    fn peer_id() -> libp2p::PeerId {
        libp2p::identity::Keypair::generate_ed25519().public().to_peer_id()
    }

    #[test]
    fn participants_may_need_access() {
        let config = parse(&with_access("")).unwrap();
        assert_eq!(config.access.mode, AccessMode::Invitation);
        assert!(parse(&with_access("token_lifetime = \"14m\"")).is_ok(), "twice 40 rounds of 10 seconds");
        let open = example() + "\n[access]\ntoken_lifetime = \"3s\"\n";
        assert!(parse(&open).is_ok(), "an open run has no tokens");
    }

    #[test]
    fn few_aggregators_are_warned_of() {
        use ModelAverage::{CenteredClip, Mean};
        let warned = |n_aggregators, average| {
            SampledSection { n_aggregators, average, ..Default::default() }.warning()
        };
        let alone =
            SampledSection { average: CenteredClip, exchange: ModelExchange::Gossip, ..Default::default() };
        assert!(alone.warning().is_some_and(|(key, _)| key == "scheme.sampled.average"));
        let among = |exchange| SampledSection { exchange, n_aggregators: 1, ..alone }.warning();
        assert!(among(ModelExchange::Epidemic(4)).is_none() && among(ModelExchange::Epidemic(3)).is_some());
        for (n_aggregators, average, part) in [(1, Mean, "silence"), (2, CenteredClip, "lies")] {
            assert!(warned(n_aggregators, average).is_some_and(|(_, about)| about.contains(part)));
        }
        assert!(warned(2, Mean).is_none() && warned(3, CenteredClip).is_none());
    }

    #[test]
    fn what_cannot_work_is_shown_with_its_key() {
        for (text, part) in [
            (example().replace("n_aggregators = 2", "n_aggregators = 5"), "scheme.sampled.n_aggregators"),
            (example().replace("\"sample\"", "{ regular = 3 }"), "scheme.sampled.exchange"),
            (example().replace("\"sample\"", "{ epidemic = 17 }"), "scheme.sampled.exchange"),
            (example().replace("\"sample\"", "\"ring\""), "unknown variant `ring`"),
            (example().replace("0.75", "0.5"), "above 0.5 and at most 1"),
            (example().replace("\"2s\"", "\"2h\""), "scheme.sampled.ping_timeout"),
            (example().replace("sample_size", "sample_sizes"), "unknown field"),
            (with_access("token_lifetime = \"13m\""), "access.token_lifetime"),
            (
                with_access(&format!("authority = \"/ip4/127.0.0.1/tcp/4001/p2p/{}\"", peer_id())),
                "access.authority",
            ),
            (example() + "\n[device]\ncontributes = true\n", "device.contributes"),
            (example() + "\n[scheme.synchronous]\nmicro_batch_size = 8\n", "one scheme is wanted"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(part), "{part} is wanted in: {error}");
        }
    }
}
