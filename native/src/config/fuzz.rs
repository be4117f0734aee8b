//! Fuzzing: any text as the configuration of a run.

use barnraise_fuzz::fuzz;

use super::*;

#[test]
fn run_config() {
    fuzz!("run_config", |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let parse = |text: &str| RunConfig::parse(text, Path::new("run.toml"));
        if let Ok(config) = parse(text) {
            let written = toml::to_string(&config).unwrap();
            assert_eq!(parse(&written).unwrap(), config, "{written}");
        }
    });
}
