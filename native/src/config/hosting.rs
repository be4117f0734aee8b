//! `[hosting]`: experts that the backbone hosts beside its own work. How all experts of the run train is `[model.experts]`.

use barnraise_protocol::access::AccessMode;
use barnraise_swarm::experts::ANNOUNCED_MAX;
use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};

use super::{Invalid, RunConfig};

/// `[hosting]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostingSection {
    /// Experts that this backbone hosts at most, as `barnraise experts` does on another machine; 0 for none.
    pub experts: u32,
    /// Addresses at which trainers reach them, instead of ports of the system's choice.
    pub listen: Vec<Multiaddr>,
}

/// The first mistake of the section.
pub(super) fn validate(config: &RunConfig) -> Result<(), Invalid> {
    let HostingSection { experts, .. } = config.hosting;
    Invalid::check_range("hosting.experts", experts as usize, 0..=ANNOUNCED_MAX)?;
    let has_hosted = experts == 0 || config.model.experts.is_some();
    let want = "0, or [model.experts]: without it the experts are parameters of the model as all others";
    Invalid::check("hosting.experts", has_hosted, want, experts)?;
    let access = &config.access;
    let is_invited = access.mode != AccessMode::Invitation || access.authority.is_none();
    let want = "0, where another backbone invites to the run: `barnraise experts --invitation` hosts beside this one";
    Invalid::check("hosting.experts", experts == 0 || is_invited, want, experts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::*;

    const MODEL: &str = "[model]\nkind = { gpt = { experts = { side = 4, active = 2 } } }\n[model.experts]\n";

    #[test]
    fn a_backbone_hosts_experts_of_a_model_that_has_such() {
        let parse = |text: &str| RunConfig::parse(text, Path::new("run.toml"));
        let mut config = RunConfig::default();
        config.hosting.experts = 4;
        let error = validate(&config).unwrap_err().to_string();
        assert!(error.contains("hosting.experts") && error.contains("[model.experts]"), "{error}");
        config.model.experts = Some(crate::config::ExpertsSection::default());
        validate(&config).unwrap();
        config.access.mode = AccessMode::Invitation;
        validate(&config).unwrap();
        config.access.authority = Some("/ip4/192.0.2.1/tcp/4001".parse().unwrap());
        assert!(validate(&config).is_err(), "it can invite nobody");
        config.hosting.experts = u32::MAX;
        assert!(validate(&config).unwrap_err().to_string().contains("4096"));
        let text = format!("{MODEL}[hosting]\nexpert = 4\n");
        assert!(parse(&text).unwrap_err().to_string().contains("expert"), "a misspelt key");
    }
}
