//! Any text as the configuration of a relay.

use std::path::Path;

use barnraise_fuzz::fuzz;

use super::RelayConfig;
use crate::environment::Environment;

#[test]
fn relay_config() {
    fuzz!("relay_config", |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let parse = |text: &str| RelayConfig::parse(text, Path::new("relay.toml"), &Environment::default());
        if let Ok(config) = parse(text) {
            let written = toml::to_string(&config).unwrap();
            assert_eq!(parse(&written).unwrap(), config, "{written}");
        }
    });
}
