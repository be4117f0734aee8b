//! `barnraise config`: prints example configurations, and checks a file without starting anything.
//!
//! It writes no files but those of the cache: pictures that were decoded, and a vocabulary.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use barnraise_learning::{DataShape, MemoryEstimate, ParameterLayout};
use barnraise_relay::server::{EXAMPLE as RELAY_EXAMPLE, RelayConfig};
use barnraise_relay::{Environment, TextSpan, read_config};
use bytesize::ByteSize;
use clap::{Args, Subcommand, ValueEnum};

use super::{
    BindError, ConfigError, Device, Invalid, RunConfig, as_written, check, description, located, warnings,
};
use crate::data::file::DataFile;
use crate::pretrained;

/// What an operator decides, at its defaults.
const RUN_EXAMPLE: &str = include_str!("../../run.example.toml");
/// A run with every key at its default, and an explanation of each.
const RUN_REFERENCE: &str = include_str!("../../run.reference.toml");
/// A run that trains on text.
const TEXT_EXAMPLE: &str = include_str!("../../text.example.toml");
/// A run that trains on pictures without labels.
const SWAV_EXAMPLE: &str = include_str!("../../swav.example.toml");

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
    /// Print an example file that explains its keys
    Example {
        /// Which example
        #[arg(long, default_value = "run")]
        kind: ExampleKind,
        /// Every key of a run, in place of what an operator decides
        #[arg(long)]
        all: bool,
    },
    /// Report the errors of a file, and values that may be unintended; nothing is started, and nothing written but the
    /// cache of the data
    Check {
        /// The file, as for `barnraise serve --config` or `barnraise relay --config`
        file: PathBuf,
        /// What the file configures
        #[arg(long, default_value = "run")]
        kind: FileKind,
    },
}

/// Examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExampleKind {
    /// What an operator decides of a run
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

/// Returns the text to print: the example, or the result of a successful check.
///
/// # Errors
/// All mistakes of the file, each with its line and the wanted value.
pub fn run(args: &ConfigArgs) -> anyhow::Result<String> {
    match &args.action {
        ConfigAction::Example { kind: ExampleKind::Run, all: true } => Ok(RUN_REFERENCE.to_owned()),
        ConfigAction::Example { kind, .. } => Ok(kind.text().to_owned()),
        ConfigAction::Check { file, kind: FileKind::Run } => check_run(file, &RunConfig::environment()?)
            .map_err(|mistakes| {
                let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
                let is_relays = RelayConfig::load(file).is_ok();
                let hint = if is_relays { "\nIt is good for a relay: `--kind relay`." } else { "" };
                anyhow!("{}{hint}", texts.join("\n"))
            }),
        ConfigAction::Check { file, kind: FileKind::Relay } => {
            let config = RelayConfig::load(file).map_err(|error| {
                let is_runs = RunConfig::load(file).is_ok();
                let hint = if is_runs { "\nIt is good for a run: leave `--kind relay` out." } else { "" };
                anyhow!("{error}{hint}")
            })?;
            let mut text = format!("{} is good for a relay.\n", file.display());
            let _ = writeln!(text, "  operator's page  http://{}", config.network.http);
            addresses(&mut text, &config.network.listen);
            Ok(text)
        }
    }
}

pub(super) fn check_run(path: &Path, environment: &Environment) -> Result<String, Vec<ConfigError>> {
    let text = read_config(path).map_err(|error| vec![error.into()])?;
    let config = RunConfig::read(&text, path, environment).map_err(|error| vec![error])?;
    let mut mistakes = check::mistakes(&config);
    if mistakes.is_empty() {
        mistakes.extend(beyond(&config));
    }
    if !mistakes.is_empty() {
        return Err(mistakes.into_iter().map(|it| located(it, &text, path, environment)).collect());
    }
    let mistakes = outside(&config);
    if !mistakes.is_empty() {
        return Err(mistakes.into_iter().map(|it| located(it, &text, path, environment)).collect());
    }
    match config.check_bound() {
        Ok(()) => Ok(said_of(&config, &text, path)),
        Err(BindError::Differs { mistakes }) => {
            Err(mistakes.into_iter().map(|it| located(it, &text, path, environment)).collect())
        }
        Err(error) => {
            let folder = format!("{:?}", config.storage.folder.display().to_string());
            Err(vec![located(Invalid::new("storage.folder", error, folder), &text, path, environment)])
        }
    }
}

/// Mistakes that would otherwise appear only when the run starts, as far as they can be found without its data.
fn beyond(config: &RunConfig) -> Vec<Invalid> {
    let mut mistakes = Vec::new();
    let data = DataShape::of(&description::samples(config));
    if let Err(error) = ParameterLayout::of(&config.model_spec(), data) {
        mistakes.push(Invalid::new("model.kind", error, as_written(&config.model.kind)));
    }
    let (is_built, feature) = match config.device.kind {
        Device::Cpu => (true, ""),
        Device::Wgpu => (cfg!(feature = "wgpu"), "wgpu"),
        Device::Cuda => (cfg!(feature = "cuda"), "cuda"),
    };
    if !is_built {
        let want = format!("another device: this program was built without the feature `{feature}`");
        mistakes.push(Invalid::new("device.kind", want, format!("\"{feature}\"")));
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
    if let Some(MemoryEstimate { backbone, contributor }) = description::memory(config) {
        let [backbone, contributor] = [backbone, contributor].map(ByteSize::b);
        let _ =
            writeln!(said, "  memory           about {backbone} here, and {contributor} of each contributor");
    }
    for warning in warnings(config) {
        let _ = writeln!(said, "warning: {warning}");
        if let Some(place) = TextSpan::of_key(text, warning.key) {
            let _ = writeln!(said, "{place}");
        }
    }
    said
}

fn addresses(said: &mut String, listen: &[libp2p::Multiaddr]) {
    for address in listen {
        let _ = writeln!(said, "  contributors     {address}");
    }
}

/// The key of data that are read to see whether they are good, and where they are. A text is not: it may be long. Nothing is
/// fetched.
fn read_here(config: &RunConfig) -> Option<(&'static str, String)> {
    let (data, cache) = (&config.data, config.data_cache());
    let shown = |path: &Path| path.display().to_string();
    if let Some(folder) = data.pictures.as_ref().and_then(|pictures| pictures.folder.as_ref()) {
        return Some(("data.pictures.folder", shown(folder)));
    }
    if let Some(folder) = &data.folder {
        return Some(("data.folder", shown(folder)));
    }
    let is_here = data.files().all(|(_, file)| file.is_here(&cache));
    let (key, file) = data.files().next().filter(|_| is_here && data.text.is_none())?;
    Some((key, file.to_string()))
}

/// Mistakes in the files that the configuration names and a starting run reads.
fn outside(config: &RunConfig) -> Vec<Invalid> {
    let mut mistakes = Vec::new();
    let mut opened = |key, path: &Path| {
        let path_text = format!("{:?}", path.display().to_string());
        match std::fs::File::open(path).and_then(|file| file.metadata()) {
            Ok(found) if found.is_file() => {}
            Ok(_) => mistakes.push(Invalid::new(key, "a file is wanted", path_text)),
            Err(error) => {
                mistakes.push(Invalid::new(
                    key,
                    format!("a file that can be read is wanted: {error}"),
                    path_text,
                ));
            }
        }
    };
    for (key, file) in config.data.files() {
        if let DataFile::Local(path) = file {
            opened(key, path);
        }
    }
    let secret = config.access.oidc.iter().filter_map(|oidc| oidc.client_secret_file.as_ref());
    secret.for_each(|path| opened("access.oidc.client_secret_file", path));
    if let Some(start_from) = &config.model.start_from
        && let Ok(Some(start)) = start_from.here()
        && let Err(error) = pretrained::content_hash(&start)
    {
        mistakes.push(Invalid::new("model.start_from", error, as_written(start_from)));
    }
    if mistakes.is_empty()
        && let Some((key, written)) = read_here(config)
        && let Err(error) = config.data_source().load(&config.data_cache())
    {
        mistakes.push(Invalid::new(key, error, format!("{written:?}")));
    }
    mistakes
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

    /// The example, with files that are there.
    fn text_example(folder: &Path) -> String {
        let file = folder.join("words.txt");
        std::fs::write(&file, "words").unwrap();
        let sources = ["/usr/share/dictd/gcide.dict.dz", "/usr/share/games/fortunes/definitions"];
        sources.iter().fold(TEXT_EXAMPLE.to_owned(), |text, source| {
            assert!(text.contains(source), "{source}");
            text.replace(source, &file.display().to_string())
        })
    }

    #[test]
    fn every_example_is_good() {
        let folder = tempfile::tempdir().unwrap();
        for text in [RUN_EXAMPLE, RUN_REFERENCE, &text_example(folder.path()), SWAV_EXAMPLE] {
            let said = checked(text, &[]).unwrap();
            assert!(said.contains("is good for the run"), "{said}");
        }
        RelayConfig::parse(ExampleKind::Relay.text(), Path::new("relay.toml"), &Environment::default())
            .unwrap();
    }

    #[test]
    fn files_that_are_named_have_to_be_there() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train-images-idx3-ubyte"), b"other pictures").unwrap();
        let text = format!("[data]\nfolder = {:?}", folder.path().display().to_string());
        let error = checked(&text, &[]).unwrap_err();
        for part in ["line 2, column 1: data.folder", "is another one: 14 bytes", "without data.folder"] {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
        let error = checked("[data]\nfolder = \"pictures\"", &[]).unwrap_err();
        assert!(error.contains("train-images-idx3-ubyte is not there"), "{error}");
        let text = text_example(folder.path()).replace("words.txt", "none.txt");
        let error = checked(&text, &[]).unwrap_err();
        assert!(error.contains("data.text.sources") && error.contains("none.txt"), "{error}");
        let secret = "[access]\nmode = \"allowlist\"\npage = \"https://barn.example\"\n[access.oidc]\n\
            issuer = \"https://id.example\"\nclient_id = \"barn\"\nclient_secret_file = \"no-secret\"";
        let error = checked(secret, &[]).unwrap_err();
        assert!(error.contains("line 7, column 1: access.oidc.client_secret_file"), "{error}");
    }

    #[test]
    fn what_the_folder_is_bound_to_is_compared() {
        let folder = tempfile::tempdir().unwrap();
        let storage = crate::storage::Storage::open(&folder.path().join("run")).unwrap();
        let text =
            format!("[storage]\nfolder = {:?}\n[model]\nseed = 2", folder.path().join("run").display());
        let config = RunConfig::parse(&text, Path::new("run.toml")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(config.bind(&storage)).unwrap();
        checked(&text, &[]).unwrap();
        let error = checked(&text.replace("seed = 2", "seed = 3"), &[]).unwrap_err();
        assert!(error.contains("line 4, column 1: model.seed = 3: the run in"), "{error}");
        assert!(error.contains("was begun with 2"), "{error}");
    }

    #[test]
    fn the_addresses_are_printed() {
        let text = "[network]\noperator = \"0.0.0.0:8082\"";
        let said = checked(text, &[]).unwrap();
        for part in [
            "http://127.0.0.1:8080",
            "operator's page  http://0.0.0.0:8082",
            "/ip4/127.0.0.1/udp/4001/quic-v1/webtransport",
            "warning: network.operator: everybody who can reach 0.0.0.0:8082",
            " 2 | operator = \"0.0.0.0:8082\"\n   | ^^^^^^^^",
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
        assert!(error.contains("model.kind") && error.contains("small_side"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let heads = text_example(folder.path()).replace("heads = 4", "heads = 5");
        let error = checked(&heads, &[]).unwrap_err();
        assert!(
            error.contains("model.kind = { albert = { embedding = 64") && error.contains("heads"),
            "{error}"
        );
    }

    #[test]
    fn a_file_of_the_other_kind_is_recognised() {
        let folder = tempfile::tempdir().unwrap();
        for (example, kind, hint) in [
            (RELAY_EXAMPLE, FileKind::Run, "It is good for a relay: `--kind relay`"),
            (RUN_EXAMPLE, FileKind::Relay, "It is good for a run"),
        ] {
            let file = folder.path().join("some.toml");
            std::fs::write(&file, example).unwrap();
            let checked = run(&ConfigArgs { action: ConfigAction::Check { file, kind } });
            let error = checked.unwrap_err().to_string();
            assert!(error.contains("unknown field") && error.contains(hint), "{error}");
        }
    }

    #[test]
    fn mistakes_are_reported_in_the_syntax_of_the_file() {
        let error = checked("[scheme.synchronous.schedule]\npeak = nan", &[]).unwrap_err();
        let schedule =
            "scheme.synchronous.schedule = { decay = { kind = \"constant\" }, peak = nan, warmup_steps = 0 }";
        assert!(error.contains(schedule), "{error}");
        for (text, want) in [
            ("[scheme.synchronous]\nmicro_batch_size = -1", "a whole number from 0 to 4294967295"),
            ("[scheme.synchronous]\nmicro_batch_size = \"64\"", "a whole number from 0 to 4294967295"),
            ("[model]\nseed = 1.5", "a whole number from 0 up"),
        ] {
            let error = checked(text, &[]).unwrap_err();
            assert!(error.contains(want) && !error.contains("u32") && !error.contains("u64"), "{error}");
        }
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
