//! `barnraise config`: examples to begin with, and what is wrong with a file before anything is started.
//!
//! It reads, and writes nothing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use barnraise_learning::{DataShape, ParameterLayout};
use barnraise_protocol::dataset::ImageShape;
use barnraise_relay::server::{EXAMPLE as RELAY_EXAMPLE, RelayConfig};
use barnraise_relay::{Environment, Place, read_config};
use clap::{Args, Subcommand, ValueEnum};

use super::{ConfigError, Device, Invalid, RunConfig, check, located, warnings};

/// A run with every key at its default, and why one would change it.
const RUN_EXAMPLE: &str = include_str!("../../run.example.toml");
/// A run that learns from text.
const TEXT_EXAMPLE: &str = include_str!("../../text.example.toml");
/// A run that learns from pictures without labels.
const SWAV_EXAMPLE: &str = include_str!("../../swav.example.toml");
/// Of Fashion-MNIST.
const IMAGES: DataShape =
    DataShape::Images { shape: ImageShape { height: 28, width: 28, channels: 1 }, n_classes: 10 };

/// `barnraise config`
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ConfigAction,
}

/// What to do with a configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigAction {
    /// Print a file that explains every key, to begin with
    Example {
        /// Of what
        #[arg(long, default_value = "run")]
        kind: ExampleKind,
    },
    /// Say what is wrong with a file, and what it may not mean; nothing is started or written
    Check {
        /// As `barnraise serve --config` or `barnraise relay --config` takes it
        file: PathBuf,
        /// What it is for
        #[arg(long, default_value = "run")]
        kind: FileKind,
    },
}

/// Examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExampleKind {
    /// Every key of a run
    Run,
    /// A run that learns from text
    Text,
    /// A run that learns from pictures without labels
    Swav,
    /// Every key of a relay
    Relay,
}

/// Files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FileKind {
    /// For `barnraise serve`
    Run,
    /// For `barnraise relay`
    Relay,
}

impl ExampleKind {
    /// The file.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Run => RUN_EXAMPLE,
            Self::Text => TEXT_EXAMPLE,
            Self::Swav => SWAV_EXAMPLE,
            Self::Relay => RELAY_EXAMPLE,
        }
    }
}

/// The example, or what is to be said of a file that works.
///
/// # Errors
/// All mistakes that were found, each with its place and what was wanted.
pub fn run(args: &ConfigArgs) -> anyhow::Result<String> {
    match &args.action {
        ConfigAction::Example { kind } => Ok(kind.text().to_owned()),
        ConfigAction::Check { file, kind: FileKind::Run } => check_run(file, &RunConfig::environment()?)
            .map_err(|mistakes| {
                let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
                anyhow!("{}", texts.join("\n"))
            }),
        ConfigAction::Check { file, kind: FileKind::Relay } => {
            let config = RelayConfig::load(file)?;
            let mut text = format!("{} is good for a relay.\n", file.display());
            let _ = writeln!(text, "  operator's page  http://{}", config.network.http);
            addresses(&mut text, &config.network.listen);
            Ok(text)
        }
    }
}

fn check_run(path: &Path, environment: &Environment) -> Result<String, Vec<ConfigError>> {
    let text = read_config(path).map_err(|error| vec![error.into()])?;
    let mut config = RunConfig::read(&text, path, environment).map_err(|error| vec![error])?;
    let mut mistakes = check::mistakes(&config);
    if mistakes.is_empty() {
        mistakes.extend(beyond(&config));
    }
    if !mistakes.is_empty() {
        return Err(mistakes.into_iter().map(|it| located(it, &text, path, environment)).collect());
    }
    config.take_folders_from(path.parent().unwrap_or(Path::new("")));
    Ok(said_of(&config, &text, path))
}

/// What would be found only when the run starts, as far as it can be known without its data.
fn beyond(config: &RunConfig) -> Vec<Invalid> {
    let mut mistakes = Vec::new();
    if config.data.text.is_none()
        && let Err(error) = ParameterLayout::of(&config.model_spec(), IMAGES)
    {
        mistakes.push(Invalid::new("run.model", error, format!("{:?}", config.run.model)));
    }
    if config.device.kind == Device::Cuda && !cfg!(feature = "cuda") {
        let want = "\"cpu\" or \"wgpu\": this program was built without the feature `cuda`";
        mistakes.push(Invalid::new("device.kind", want, "\"cuda\""));
    }
    mistakes
}

fn said_of(config: &RunConfig, text: &str, path: &Path) -> String {
    let mut said = format!("{} is good for the run `{}`.\n", path.display(), config.run.id);
    let _ = writeln!(said, "  page             http://{}", config.network.http);
    if let Some(operator) = config.network.operator {
        let _ = writeln!(said, "  operator's page  http://{operator}");
    }
    addresses(&mut said, &config.network.listen);
    let _ = writeln!(said, "  run's folder     {}", config.storage.folder.display());
    for warning in warnings(config) {
        let _ = writeln!(said, "warning: {warning}");
        if let Some(place) = Place::of_key(text, warning.key) {
            let _ = writeln!(said, "{place}");
        }
    }
    for missing in missing(config) {
        let _ = writeln!(said, "warning: {} is not there yet", missing.display());
    }
    said
}

fn addresses(said: &mut String, listen: &[libp2p::Multiaddr]) {
    for address in listen {
        let _ = writeln!(said, "  contributors     {address}");
    }
}

/// Files that are named and must be there when the run starts.
fn missing(config: &RunConfig) -> Vec<&Path> {
    let sources = config.data.text.iter().flat_map(|text| &text.sources).map(|source| &source.path);
    let secret = config.access.oidc.iter().filter_map(|oidc| oidc.client_secret_file.as_ref());
    let named = sources.chain(secret).chain(&config.data.folder).map(PathBuf::as_path);
    named.filter(|path| !path.exists()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn checked(text: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, text).unwrap();
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        let said = check_run(&path, &Environment::of(variables, &[]).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is written");
        said.map_err(|mistakes| mistakes.iter().map(|it| format!("{it}\n")).collect())
    }

    #[test]
    fn every_example_is_good() {
        for kind in [ExampleKind::Run, ExampleKind::Text, ExampleKind::Swav] {
            let said = checked(kind.text(), &[]).unwrap();
            assert!(said.contains("is good for the run"), "{said}");
        }
        RelayConfig::parse(ExampleKind::Relay.text(), Path::new("relay.toml"), &Environment::default())
            .unwrap();
    }

    #[test]
    fn where_it_listens_is_said_and_what_is_missing() {
        let text = "[network]\noperator = \"0.0.0.0:8082\"\n[data]\nfolder = \"pictures\"";
        let said = checked(text, &[]).unwrap();
        for part in [
            "http://127.0.0.1:8080",
            "operator's page  http://0.0.0.0:8082",
            "/ip4/127.0.0.1/udp/4001/quic-v1/webtransport",
            "warning: network.operator: whoever reaches 0.0.0.0:8082",
            " 2 | operator = \"0.0.0.0:8082\"\n   | ^^^^^^^^",
            "pictures is not there yet",
        ] {
            assert!(said.contains(part), "{part} is missing in: {said}");
        }
    }

    #[test]
    fn all_mistakes_come_at_once_each_with_its_line() {
        let error = checked("[run]\nid = \"A\"\n[network]\nlisten = []", &[]).unwrap_err();
        for part in
            ["line 2, column 1: run.id = \"A\"", " 2 | id = \"A\"", "line 4, column 1: network.listen"]
        {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
        let error = checked("[run]\nid = 3", &[]).unwrap_err();
        assert!(error.contains("line 2, column 6") && error.contains("expected a string"), "{error}");
    }

    #[test]
    fn what_would_be_found_when_it_starts_is_found() {
        let error = checked("[device]\nkind = \"cuda\"", &[]);
        assert_eq!(error.is_err(), !cfg!(feature = "cuda"));
        let error = checked(&SWAV_EXAMPLE.replace("small_side = 14", "small_side = 99"), &[]).unwrap_err();
        assert!(error.contains("run.model") && error.contains("small_side"), "{error}");
    }

    #[test]
    fn a_variable_that_is_wrong_is_named() {
        let error = checked("", &[("BARNRAISE__RUN__ID", "A")]).unwrap_err();
        assert!(error.starts_with("the variable BARNRAISE__RUN__ID: run.id = \"A\""), "{error}");
        let error = checked("", &[("BARNRAISE__RUN__IDS", "a")]).unwrap_err();
        assert!(error.starts_with("the variable BARNRAISE__RUN__IDS: unknown field"), "{error}");
        let said = checked("", &[("BARNRAISE__NETWORK__HTTP", "127.0.0.1:9")]).unwrap();
        assert!(said.contains("http://127.0.0.1:9"), "{said}");
    }
}
