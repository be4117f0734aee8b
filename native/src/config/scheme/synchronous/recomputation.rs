//! `[scheme.synchronous.recomputation]`: the backbone recomputes contributions to verify them.
//!
//! In an open run it is on by default: without it a single Byzantine peer could decide what the
//! model becomes.

use barnraise_protocol::access::AccessMode;
use barnraise_protocol::run::NotRecomputable;
use serde::{Deserialize, Serialize};

use super::{AggregationKind, SynchronousSection};
use crate::config::{Invalid, RunConfig};

const KEY: &str = "scheme.synchronous.recomputation";

/// `[scheme.synchronous.recomputation]`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecomputationSection {
    /// Share of all contributions that this backbone recomputes, 0 to 1, as far as its device keeps up. With 0
    /// it recomputes none.
    pub share: f64,
    /// Largest distance of a gradient from the recomputed one, relative to its norm: the difference between devices.
    pub tolerance: f32,
}

impl RecomputationSection {
    /// Default of an open run.
    const OPEN: Self = Self { share: 0.05, tolerance: 0.05 };
}

impl SynchronousSection {
    /// The recomputation in force in the run of `config`: that of the file, or the default of an open run if its
    /// gradients can be recomputed.
    pub fn recomputation_in(&self, config: &RunConfig) -> Option<RecomputationSection> {
        match self.recomputation {
            Some(section) => (section.share > 0.0).then_some(section),
            None => (config.access.mode == AccessMode::Open && self.check_recomputable(config).is_ok())
                .then_some(RecomputationSection::OPEN),
        }
    }

    fn check_recomputable(&self, config: &RunConfig) -> Result<(), NotRecomputable> {
        match config.model.experts {
            Some(_) => Err(NotRecomputable::HostedExperts),
            None => self.described(false).check_recomputable(&config.model.kind.graph()),
        }
    }

    /// Recomputation needs contributions that are reproducible gradients; and an open run needs some defence against
    /// Byzantine peers.
    pub(in super::super) fn validate_in(&self, config: &RunConfig) -> Result<(), Invalid> {
        if let Some(RecomputationSection { share, tolerance }) = self.recomputation {
            Invalid::check(KEY, (0.0..=1.0).contains(&share), "share = 0.0 to 1.0", share)?;
            let is_part = (0.0..1.0).contains(&tolerance);
            Invalid::check(KEY, is_part, "tolerance = 0.0 or more, and below 1.0", tolerance)?;
        }
        let is_defended = config.access.mode != AccessMode::Open
            || self.recomputation_in(config).is_some()
            || self.aggregation == AggregationKind::CenteredClip;
        let why_not = match (self.recomputation, self.check_recomputable(config)) {
            (None, Err(error)) => format!(" It is not on by itself here: {error}."),
            _ => String::new(),
        };
        let want = format!(
            "\"invitation\" or \"allowlist\" where others can reach the run and nothing is recomputed: one stranger could \
         decide the model. Or let contributions be recomputed ([scheme.synchronous.recomputation] with a share above 0), or set \
         scheme.synchronous.aggregation = \"centered-clip\".{why_not}"
        );
        Invalid::check("access.mode", is_defended || !config.is_public(), want, "\"open\"")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::run::GradientCodec;

    use super::*;

    fn in_force(config: &RunConfig) -> Option<RecomputationSection> {
        config.synchronous().unwrap().recomputation_in(config)
    }

    const OFF: Option<RecomputationSection> = Some(RecomputationSection { share: 0.0, tolerance: 0.05 });

    fn public(change: impl FnOnce(&mut RunConfig)) -> RunConfig {
        let mut config = RunConfig::default();
        config.network.listen = vec!["/ip4/0.0.0.0/udp/4001/quic-v1".parse().unwrap()];
        change(&mut config);
        config
    }

    #[test]
    fn an_open_run_recomputes_unless_it_is_told_not_to() {
        assert_eq!(in_force(&RunConfig::default()), Some(RecomputationSection::OPEN));
        assert_eq!(in_force(&RunConfig::dev(std::path::Path::new("/c"))), Some(RecomputationSection::OPEN));
        let deployed = include_str!("../../../../../deploy/config/run.toml");
        let deployed = RunConfig::parse(deployed, std::path::Path::new("run.toml")).unwrap();
        assert_eq!(in_force(&deployed), Some(RecomputationSection::OPEN));
        let mut config = RunConfig::default();
        config.synchronous_mut().unwrap().recomputation = OFF;
        assert_eq!((in_force(&config), config.validate()), (None, Ok(())), "on this machine alone");
        let mut config = RunConfig::default();
        config.access.mode = AccessMode::Invitation;
        assert_eq!(in_force(&config), None);
        let mut config = RunConfig::default();
        config.synchronous_mut().unwrap().gradient_codec = GradientCodec::Int4;
        assert_eq!((in_force(&config), config.validate()), (None, Ok(())));
    }

    #[test]
    fn a_public_open_run_has_a_defence() {
        assert_eq!(public(|_| ()).validate(), Ok(()));
        for change in [(|c| c.synchronous_mut().unwrap().recomputation = OFF) as fn(&mut RunConfig), |c| {
            c.synchronous_mut().unwrap().gradient_codec = GradientCodec::Int4;
        }] {
            let error = public(change).validate().unwrap_err();
            assert_eq!(error.key, "access.mode");
            for part in ["\"open\"", "invitation", "centered-clip", "scheme.synchronous.recomputation"] {
                assert!(error.to_string().contains(part), "{error}");
            }
            let bears = public(|config| {
                change(config);
                config.synchronous_mut().unwrap().aggregation = AggregationKind::CenteredClip;
            });
            assert_eq!(bears.validate(), Ok(()));
        }
        let relayed = |config: &mut RunConfig| {
            config.network.listen = RunConfig::default().network.listen;
            config.network.announce = vec!["/dns4/barn.example/tcp/4001".parse().unwrap()];
            config.synchronous_mut().unwrap().recomputation = OFF;
        };
        assert_eq!(public(relayed).validate().unwrap_err().key, "access.mode");
    }
}
