//! The configuration of a run, as an operator writes it: TOML, typed and checked.
//!
//! Every key has a default, so a file says only what differs; `run.reference.toml` shows them all. An
//! unknown key is an error, because a misspelt one would otherwise do nothing. Relative folders are
//! relative to the file. Variables of the environment win over the file. Nothing here opens a socket or creates a
//! folder.

mod access;
mod adapters;
mod aggregators;
mod bound;
mod check;
pub mod command;
mod contributions;
mod conversations;
mod data;
mod description;
mod durations;
mod experts;
#[cfg(test)]
mod fuzz;
mod held_out;
mod hosting;
mod idx;
pub mod init;
mod license;
mod limits;
mod link_speed;
mod pictures;
mod run_texts;
mod scheme;
mod table;
mod telemetry;
mod text;
mod warnings;

use std::ffi::OsString;
use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use barnraise_learning::DeviceChoice;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::run::model::FirstWeights;
use barnraise_protocol::run::model::graph::Loss;
use barnraise_protocol::run::{ModelSpec, Preset};
use barnraise_relay::dht::DhtLimits;
use barnraise_relay::{
    ConfigFileError, Environment, EnvironmentError, IpNetwork, Located, NodeLimits, RelayLimits, TextSpan,
    parse_config, read_config,
};
use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};

pub use self::access::{AccessSection, OidcSection};
pub use self::adapters::AdaptersSection;
pub use self::aggregators::{AggregatorsSection, ReducersAllowed};
pub use self::bound::BindError;
pub use self::contributions::ContributionsSection;
pub use self::conversations::ConversationsSection;
pub use self::data::DataSection;
pub use self::experts::ExpertsSection;
pub use self::hosting::HostingSection;
pub use self::idx::IdxSection;
pub use self::limits::LimitsSection;
pub use self::link_speed::{LinkSpeed, LinkSpeedError};
pub use self::pictures::PicturesSection;
pub use self::scheme::{
    AggregationKind, LocalStepsSection, RecomputationSection, SampledSection, SchemeSection,
    SynchronousSection,
};
pub use self::table::{RatingsSection, TableSection};
pub use self::telemetry::TelemetrySection;
pub use self::text::{SourceSection, TextSection};
pub use self::warnings::{Warning, warnings};
use crate::data::DataSource;
use crate::data::sets::Sources;
use crate::data::shards::Sharding;
use crate::pretrained::{self, StartFrom};
use crate::storage::S3Url;
pub use barnraise_relay::Invalid;

/// A fixed value that is not set.
const NONE: &str = "(none)";
/// Keys whose value may be in a file that a variable of the environment names.
const SECRETS: &[&str] = &["contributions.database"];

/// Everything that `barnraise serve` needs to know.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// Name and purpose of the run.
    pub run: RunSection,
    /// What is computed.
    pub model: ModelSection,
    /// What is learned from.
    pub data: DataSection,
    /// How the parameters that several peers hold are kept in step.
    pub scheme: SchemeSection,
    /// Checkpoints, journal and identity.
    pub storage: StorageSection,
    /// Addresses of the backbone, and limits of the page.
    pub network: NetworkSection,
    /// Who may take part.
    pub access: AccessSection,
    /// Limits of connections.
    pub limits: LimitsSection,
    /// Limits of streams.
    pub conversations: ConversationsSection,
    /// Limits of the DHT node.
    pub dht: DhtLimits,
    /// The other aggregators of the run.
    pub aggregators: AggregatorsSection,
    /// Memory and database of contributions.
    pub contributions: ContributionsSection,
    /// The device of the backbone.
    pub device: DeviceSection,
    /// Experts that it hosts itself.
    pub hosting: HostingSection,
    /// Accuracy on the held-out test set.
    pub evaluation: EvaluationSection,
    /// The collector of traces.
    pub telemetry: TelemetrySection,
}

/// `[run]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunSection {
    /// Short name, the same for as long as the run lives: lower-case letters, digits and dashes.
    pub id: String,
    /// One line for people.
    pub title: String,
    /// Purpose of the model, and its users.
    pub purpose: String,
}

/// `[model]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSection {
    /// The network. With `start_from` a folder with a `config.json`, that one by default.
    pub kind: Preset,
    /// Seed of the initial weights and of the order of the samples.
    pub seed: u64,
    /// Weights to begin with: a folder with `config.json` and `model.safetensors`, or a file of tensors; of the latter also an
    /// address with its checksum, and of the hub's cache a model by its name.
    pub start_from: Option<StartFrom>,
    /// Low-rank adapters, which alone are trained; the weights of `start_from` stay as they are.
    pub adapters: Option<AdaptersSection>,
    /// How the model's experts train, where other peers host them (`barnraise experts`); without it they are parameters of the
    /// model as all others.
    pub experts: Option<ExpertsSection>,
    /// SPDX id of the model's licence; shown on the model's card only.
    pub license: Option<String>,
    /// Hash of the flat vector that the run begins with, once the files of `start_from` are read.
    #[serde(skip)]
    pub given: Option<Sha256Hash>,
}

/// `[storage]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageSection {
    /// Folder for checkpoints, journal and identity. One process at a time uses it.
    pub folder: PathBuf,
    /// An S3 store for checkpoints, models, journal and evidence, in place of the folder.
    pub objects: Option<S3Url>,
    /// Optimizer steps between two checkpoints.
    pub checkpoint_every_epochs: u64,
    /// Checkpoints kept, the newest ones.
    pub keep_checkpoints: usize,
    /// Approximate ages of the older models to keep for comparison: at most two files for each age.
    #[serde(with = "durations")]
    pub keep_models: Vec<Duration>,
}

/// `[network]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSection {
    /// Address of the page; of several runs in one process that of the first counts.
    pub http: SocketAddr,
    /// Whether the front page of several runs lists this one.
    pub listed: bool,
    /// Most HTTP connections at a time, readers of live events included. Default 32 for each contributor.
    pub http_connections: Option<usize>,
    /// A connection without an answer for this long is closed; a reader of live events is sent one at least every
    /// 15 seconds.
    #[serde(with = "humantime_serde")]
    pub http_timeout: Duration,
    /// Requests of one address in a minute, as many as that at once.
    pub http_requests_per_address_and_minute: u32,
    /// Proxies in front of the page, whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNetwork>,
    /// Address of `/healthz`, `/metrics` and `/addresses`, which need no password, and of `/admin`, which needs the
    /// operator's token. Not set: they are not served.
    pub operator: Option<SocketAddr>,
    /// Host names of that address, beside `localhost` and numeric addresses.
    pub operator_names: Vec<String>,
    /// libp2p addresses of the backbone.
    pub listen: Vec<Multiaddr>,
    /// Addresses that contributors are sent beside the discovered ones: a name, or a port that a
    /// router or a proxy forwards.
    pub announce: Vec<Multiaddr>,
    /// Relays to be reached through while nobody can dial the backbone itself, each with its peer id.
    pub relays: Vec<Multiaddr>,
    /// Bootstrap peers of the DHT, each with its peer id. Through any peer of that DHT contributors find the backbone
    /// by the run's id. The relays are bootstrap peers, too.
    pub dht_peers: Vec<Multiaddr>,
    /// Whether to ask the gateway to forward the ports (UPnP).
    pub upnp: bool,
    /// Most contributors at a time. The limits of connections follow from it.
    pub contributors_max: u32,
}

/// `[device]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceSection {
    /// Kind of device.
    pub kind: Device,
    /// Precision of gradient computations on it.
    pub precision: Precision,
    /// Whether the backbone also computes gradients, as a contributor to itself. If all aggregators of a run do, in
    /// [`AggregatorsSection`], it needs no machine that only aggregates.
    pub contributes: bool,
}

/// Kind of device that computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU through Vulkan, Metal or DirectX.
    Wgpu,
    /// An NVIDIA GPU; needs a binary built with the feature `cuda`.
    Cuda,
}

impl From<Device> for DeviceChoice {
    fn from(device: Device) -> Self {
        match device {
            Device::Cpu => Self::Cpu,
            Device::Wgpu => Self::Wgpu,
            Device::Cuda => Self::Cuda,
        }
    }
}

/// Precision of gradient computations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// Products and convolutions in f16, with a scaled loss; for devices that have it.
    F16,
    /// Products and convolutions in bf16; for devices that have it.
    Bf16,
}

impl From<Precision> for barnraise_learning::Precision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::Single,
            Precision::F16 => Self::F16,
            Precision::Bf16 => Self::Bf16,
        }
    }
}

/// `[evaluation]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluationSection {
    /// Optimizer steps between two evaluations.
    pub every_epochs: u64,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read or parsed.
    #[error(transparent)]
    File(#[from] ConfigFileError),
    /// An environment variable names no key.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// A value of the file is invalid.
    #[error("{}", Located { path, span: place.as_deref(), what: source })]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line and column of the value, if the file has it.
        place: Option<Box<TextSpan>>,
        /// The key, the wanted and the given value.
        source: Invalid,
    },
    /// A value of an environment variable is invalid.
    #[error("the variable {variable}: {source}")]
    InvalidVariable {
        /// Name of the variable.
        variable: String,
        /// The key, the wanted and the given value.
        source: Invalid,
    },
}

impl Default for RunSection {
    fn default() -> Self {
        Self {
            id: "fashion-mnist".into(),
            title: run_texts::PICTURES.title.into(),
            purpose: run_texts::PICTURES.purpose.into(),
        }
    }
}

impl Default for ModelSection {
    fn default() -> Self {
        Self {
            kind: Preset::LeNet,
            seed: 1,
            start_from: None,
            adapters: None,
            experts: None,
            license: None,
            given: None,
        }
    }
}

impl Default for StorageSection {
    fn default() -> Self {
        Self {
            folder: "fashion-mnist-run".into(),
            objects: None,
            checkpoint_every_epochs: 10,
            keep_checkpoints: 3,
            keep_models: [10 * 60, 60 * 60, 24 * 60 * 60].map(Duration::from_secs).into(),
        }
    }
}

impl Default for NetworkSection {
    fn default() -> Self {
        use libp2p::multiaddr::Protocol;
        let host = || Multiaddr::empty().with(Protocol::Ip4(Ipv4Addr::LOCALHOST));
        Self {
            http: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            listed: true,
            http_connections: None,
            http_timeout: Duration::from_secs(30),
            http_requests_per_address_and_minute: 3000,
            trusted_proxies: Vec::new(),
            operator: None,
            operator_names: Vec::new(),
            listen: vec![
                host().with(Protocol::Udp(4001)).with(Protocol::QuicV1).with(Protocol::WebTransport),
                host().with(Protocol::Udp(4002)).with(Protocol::QuicV1),
                host().with(Protocol::Udp(4003)).with(Protocol::WebRTCDirect),
                host().with(Protocol::Tcp(4001)),
                host().with(Protocol::Tcp(4002)).with(Protocol::Ws("/".into())),
            ],
            announce: Vec::new(),
            relays: Vec::new(),
            dht_peers: Vec::new(),
            upnp: true,
            contributors_max: 256,
        }
    }
}

impl Default for EvaluationSection {
    fn default() -> Self {
        Self { every_epochs: 5 }
    }
}

impl RunConfig {
    /// The configuration of `barnraise serve --dev`: the defaults, with all folders below `cache`.
    pub fn dev(cache: &Path) -> Self {
        let mut config = Self::default();
        config.data.cache = Some(cache.to_owned());
        config.storage.folder = cache.join("dev-run");
        config
    }

    /// The same with the values of the environment.
    ///
    /// # Errors
    /// A variable that is invalid.
    pub fn dev_in(cache: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        let dev = Self::dev(cache);
        match toml::Table::try_from(&dev) {
            Ok(table) if !environment.is_empty() => {
                let mut config: Self = environment.apply(&table)?;
                run_texts::suit(&mut config);
                config.checked("", Path::new("--dev"), environment)
            }
            // Every configuration can be serialised.
            _ => Ok(dev),
        }
    }

    /// Reads and checks a file, with the values of this process's environment in place of the file's. Its folders become
    /// relative to the file.
    ///
    /// # Errors
    /// The first mistake.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_in(path, &Self::environment()?)
    }

    /// The keys of a run in the environment of this process.
    ///
    /// # Errors
    /// A variable that names no key.
    pub fn environment() -> Result<Environment, EnvironmentError> {
        Environment::of_process(SECRETS)
    }

    /// The same as [`Self::load`], in another environment.
    ///
    /// # Errors
    /// The first mistake.
    pub fn load_in(path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        let text = read_config(path)?;
        Self::read(&text, path, environment)?.checked(&text, path, environment)
    }

    /// Parses a text and the environment; checks types and not values.
    fn read(text: &str, path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        let mut config: Self = parse_config(text, path)?;
        let mut table: toml::Table = parse_config(text, path)?;
        if !environment.is_empty() {
            config = environment.apply(&table)?;
            table = environment.apply(&table)?;
        }
        config.take_folders_from(path.parent().unwrap_or(Path::new("")));
        let names_kind = table.get("model").is_some_and(|model| model.get("kind").is_some());
        let taken = config.take_from_start(names_kind);
        taken.map_err(|mistake| located(mistake, text, path, environment))?;
        run_texts::suit(&mut config);
        Ok(config)
    }

    /// Takes what the folder of `start_from` has, where nothing else is named: the network that it describes, and its
    /// tokenizer.
    fn take_from_start(&mut self, names_kind: bool) -> Result<(), Invalid> {
        let Some(start_from) = &self.model.start_from else { return Ok(()) };
        let refused = |error: String| Invalid::new("model.start_from", error, as_written(start_from));
        // What is fetched is a file of tensors, which describes no network.
        let Some(start) = start_from.here().map_err(|error| refused(error.to_string()))? else {
            return Ok(());
        };
        if !names_kind {
            let preset = pretrained::preset(&start).map_err(|error| refused(error.to_string()))?;
            preset.into_iter().for_each(|preset| self.model.kind = preset);
        }
        if let Some(text) = &mut self.data.text
            && text.tokenizer.is_none()
        {
            text.tokenizer = pretrained::tokenizer(&start);
        }
        Ok(())
    }

    fn checked(self, text: &str, path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        let first = check::mistakes(&self).into_iter().next();
        first.map_or(Ok(self), |mistake| Err(located(mistake, text, path, environment)))
    }

    fn take_folders_from(&mut self, base: &Path) {
        self.data.take_from(base);
        self.model.start_from.iter_mut().for_each(|start| start.take_from(base));
        let secret = self.access.oidc.as_mut().and_then(|oidc| oidc.client_secret_file.as_mut());
        let folders = [&mut self.storage.folder].into_iter().chain(secret);
        folders.for_each(|folder| *folder = base.join(&*folder));
    }

    /// Reads and checks a text alone; `path` is named in errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let environment = Environment::default();
        Self::read(text, path, &environment)?.checked(text, path, &environment)
    }

    /// Checks all values beyond their types.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn validate(&self) -> Result<(), Invalid> {
        check::mistakes(self).into_iter().next().map_or(Ok(()), Err)
    }

    /// Limits of the node: those of the file, and what follows from `network.contributors_max`.
    pub fn node_limits(&self) -> NodeLimits {
        self.limits.of_node(self.network.contributors_max)
    }

    /// How much the backbone carries between others: hosts of experts and the browsers that ask them, where the model has
    /// such; aggregators and tabs, in a run without a server.
    pub fn relay_limits(&self) -> Option<RelayLimits> {
        let carries = self.model.experts.is_some() || matches!(self.scheme, SchemeSection::Sampled(_));
        carries.then(|| self.network.carried())
    }

    /// The synchronous scheme, if it is that.
    pub fn synchronous(&self) -> Option<&SynchronousSection> {
        match &self.scheme {
            SchemeSection::Synchronous(section) => Some(section),
            SchemeSection::Sampled(_) => None,
        }
    }

    /// The synchronous scheme, to change.
    pub fn synchronous_mut(&mut self) -> Option<&mut SynchronousSection> {
        match &mut self.scheme {
            SchemeSection::Synchronous(section) => Some(section),
            SchemeSection::Sampled(_) => None,
        }
    }

    /// Whether other machines can reach the run.
    fn is_public(&self) -> bool {
        let network = &self.network;
        network.announce.iter().any(warnings::is_from_elsewhere)
            || network.relays.iter().any(warnings::is_from_elsewhere)
            || network.listen.iter().any(warnings::is_from_elsewhere)
    }

    /// The model and its first weights; those of `start_from` are drawn until [`ModelSection::given`] is known.
    pub fn model_spec(&self) -> ModelSpec {
        let ModelSection { kind, seed, adapters, experts, given, .. } = &self.model;
        let graph = kind.graph();
        let weights = match (adapters, given) {
            (Some(adapters), _) => FirstWeights::Frozen(adapters.describe(&graph)),
            (None, Some(given)) => FirstWeights::Given(*given),
            (None, None) => FirstWeights::Drawn,
        };
        let hosted = experts.as_ref().map(ExpertsSection::describe);
        ModelSpec { graph, seed: *seed, weights, hosted }
    }

    /// How the training set is split into shards.
    pub fn sharding(&self) -> Sharding {
        Sharding { shard_samples: self.data.shard_samples, seed: self.model.seed }
    }

    /// Folder for downloads and encoded shards.
    pub fn data_cache(&self) -> PathBuf {
        self.data.cache.clone().unwrap_or_else(cache_folder)
    }

    /// Source of the training data.
    pub fn data_source(&self) -> DataSource {
        self.data.source(&self.data_cache(), self.model.seed, self.tells_classes())
    }

    /// Whether the model says which class something is of.
    fn tells_classes(&self) -> bool {
        self.model.kind.graph().loss == Loss::Classification
    }

    /// Where the files of the named set are.
    pub fn data_sources(&self) -> Sources {
        self.data.sources(&self.data_cache())
    }
}

/// A value in TOML syntax.
fn as_written<T: Serialize + Debug>(value: &T) -> String {
    let mut text = String::new();
    match value.serialize(toml::ser::ValueSerializer::new(&mut text)) {
        Ok(_) => text,
        // A number above those of TOML.
        Err(_) => format!("{value:?}"),
    }
}

/// A mistake with its location: a line of the file, or an environment variable.
fn located(source: Invalid, text: &str, path: &Path, environment: &Environment) -> ConfigError {
    match environment.variable_of(source.key) {
        Some(name) => ConfigError::InvalidVariable { variable: name.to_owned(), source },
        None => {
            let place = TextSpan::of_key(text, source.key).map(Box::new);
            ConfigError::Invalid { path: path.to_owned(), place, source }
        }
    }
}

/// `barnraise` in the user's cache folder: `$XDG_CACHE_HOME`, else `~/.cache`, else the system's
/// folder for temporary files.
pub fn cache_folder() -> PathBuf {
    cache_folder_from(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
}

fn cache_folder_from(xdg_cache_home: Option<OsString>, home: Option<OsString>) -> PathBuf {
    // A relative XDG_CACHE_HOME is to be ignored, says the XDG base directory specification.
    let xdg = xdg_cache_home.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.map(PathBuf::from).filter(|path| path.is_absolute()).map(|home| home.join(".cache"));
    xdg.or(home).unwrap_or_else(std::env::temp_dir).join("barnraise")
}

#[cfg(test)]
mod tests;
