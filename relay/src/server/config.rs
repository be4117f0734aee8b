//! The configuration of a relay, as an operator writes it: TOML, typed and checked. Every key has a default;
//! `relay.example.toml` shows them all. An unknown key is an error.

#[cfg(test)]
mod fuzz;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use serde::{Deserialize, Serialize};

use super::host::is_host_name;
use crate::config_file::{ConfigFileError, Invalid, Located, TextSpan, parse_config, read_config};
use crate::dht::DhtLimits;
use crate::environment::{Environment, EnvironmentError};
use crate::node::{NodeLimits, RelayLimits};
use crate::proxies::IpNetwork;

/// A file that explains every key.
pub const EXAMPLE: &str = include_str!("../../relay.example.toml");

/// Everything that `barnraise relay` needs to know.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelayConfig {
    /// Where it listens.
    pub network: NetworkSection,
    /// Folder of the key and the certificates.
    pub storage: StorageSection,
    /// Limits of connections.
    pub limits: NodeLimits,
    /// Limits of relayed connections.
    pub relay: RelayLimits,
    /// Limits of the DHT's storage and answers.
    pub dht: DhtLimits,
}

/// `[network]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSection {
    /// Of `/healthz`, `/metrics` and `/addresses`: for the operator, and without a password.
    pub http: SocketAddr,
    /// Host names accepted there, beside `localhost` and IP addresses.
    pub http_names: Vec<String>,
    /// libp2p addresses.
    pub listen: Vec<Multiaddr>,
    /// Addresses announced in addition to the discovered ones.
    pub announce: Vec<Multiaddr>,
    /// Proxies of WebSockets whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNetwork>,
    /// Whether to ask the gateway to pass the ports on.
    pub upnp: bool,
}

/// `[storage]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageSection {
    /// Of the key and the certificates; relative to the file.
    pub folder: PathBuf,
}

/// Why there is no usable configuration.
#[derive(Debug, thiserror::Error)]
pub enum RelayConfigError {
    /// The file cannot be read or is not understood.
    #[error(transparent)]
    File(#[from] ConfigFileError),
    /// A variable of the environment is no setting.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// A value that cannot work.
    #[error("{}", Located { path, span: span.as_deref(), what: source })]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Where the value stands, if the file has it.
        span: Option<Box<TextSpan>>,
        /// Which value, what was wanted, what came.
        source: Invalid,
    },
    /// A value of the environment that cannot work.
    #[error("the variable {variable}: {source}")]
    InvalidVariable {
        /// Its name.
        variable: String,
        /// Which value, what was wanted, what came.
        source: Invalid,
    },
}

impl Default for NetworkSection {
    fn default() -> Self {
        let host = || Multiaddr::empty().with(Protocol::Ip4(Ipv4Addr::UNSPECIFIED));
        Self {
            http: SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)),
            http_names: Vec::new(),
            listen: vec![
                host().with(Protocol::Udp(4101)).with(Protocol::QuicV1).with(Protocol::WebTransport),
                host().with(Protocol::Udp(4102)).with(Protocol::QuicV1),
                host().with(Protocol::Udp(4103)).with(Protocol::WebRTCDirect),
                host().with(Protocol::Tcp(4101)),
                host().with(Protocol::Tcp(4102)).with(Protocol::Ws("/".into())),
            ],
            announce: Vec::new(),
            trusted_proxies: Vec::new(),
            upnp: true,
        }
    }
}

impl Default for StorageSection {
    fn default() -> Self {
        Self { folder: "relay".into() }
    }
}

impl RelayConfig {
    /// Reads and checks a file, and what the environment says in its place; its folder becomes relative to where
    /// it lies.
    ///
    /// # Errors
    /// The file, the line and what was wanted there.
    pub fn load(path: &Path) -> Result<Self, RelayConfigError> {
        let environment = Environment::of_process(&[])?;
        let mut config = Self::parse(&read_config(path)?, path, &environment)?;
        config.storage.folder = path.parent().unwrap_or(Path::new("")).join(&config.storage.folder);
        Ok(config)
    }

    /// Reads and checks a text; `path` is named in errors.
    ///
    /// # Errors
    /// The line, or the variable, and what was wanted.
    pub fn parse(text: &str, path: &Path, environment: &Environment) -> Result<Self, RelayConfigError> {
        let mut config: Self = parse_config(text, path)?;
        if !environment.is_empty() {
            config = environment.apply(&parse_config(text, path)?)?;
        }
        let Err(source) = config.validate() else { return Ok(config) };
        Err(match environment.variable_of(source.key) {
            Some(name) => RelayConfigError::InvalidVariable { variable: name.to_owned(), source },
            None => {
                let place = TextSpan::of_key(text, source.key).map(Box::new);
                RelayConfigError::Invalid { path: path.to_owned(), span: place, source }
            }
        })
    }

    fn validate(&self) -> Result<(), Invalid> {
        let (listen, relay) = (&self.network.listen, &self.relay);
        Invalid::check("network.listen", !listen.is_empty(), "at least one address", "[]")?;
        for name in &self.network.http_names {
            let want = "each is a name without a port, such as \"relay.internal\"";
            Invalid::check("network.http_names", is_host_name(name), want, format!("{name:?}"))?;
        }
        self.limits.validate()?;
        self.dht.validate()?;
        let (bytes, duration) = (relay.circuit_bytes, relay.circuit_duration);
        Invalid::check("relay.circuit_bytes", bytes.as_u64() > 0, "more than nothing", bytes)?;
        Invalid::check("relay.circuit_duration", !duration.is_zero(), "more than nothing", "0s")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<RelayConfig, RelayConfigError> {
        RelayConfig::parse(text, Path::new("relay.toml"), &Environment::default())
    }

    #[test]
    fn the_example_is_the_defaults_and_shows_every_key() {
        assert_eq!(parse(EXAMPLE).unwrap(), RelayConfig::default());
        assert_eq!(parse("").unwrap(), RelayConfig::default());
        let keys = |table: &toml::Table| -> Vec<(String, String)> {
            let sections = table.iter().flat_map(|(name, section)| {
                let keys: Vec<String> = section.as_table().unwrap().keys().cloned().collect();
                keys.into_iter().map(|key| (name.clone(), key))
            });
            sections.collect()
        };
        let written = toml::Table::try_from(RelayConfig::default()).unwrap();
        assert_eq!(keys(&written), keys(&EXAMPLE.parse().unwrap()));
        assert!(EXAMPLE.contains("# memory = "), "the one key that is not set");
    }

    #[test]
    fn a_mistake_is_shown_with_what_was_wanted() {
        for (text, part) in [
            (
                "[network]\nlisten = []",
                "relay.toml, line 2, column 1: network.listen = []: at least one address",
            ),
            ("[network]\nhttp_names = [\"relay:8081\"]", "http_names = \"relay:8081\": each is a name"),
            ("[limits]\nconnection = 3", "connections_per_peer"),
            ("[relay]\ncircuit_bytes = \"0 B\"", "relay.circuit_bytes"),
            ("[limits]\nstreams_per_connection = 1", "limits.streams_per_connection = 1: 8 to 1000000"),
            ("[limits]\nhandshake_timeout = \"1h\"", "limits.handshake_timeout = 1h: 100ms to 5m"),
            ("[dht]\nrecords_per_owner = 0", "dht.records_per_owner = 0: 1 to 10000000"),
            ("[dht]\nmessage_timeout = \"1h\"", "dht.message_timeout = 1h: 1s to 10m"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_environment_wins_and_is_named_where_it_is_wrong() {
        let parse = |value: &str| {
            let variables = [("BARNRAISE__LIMITS__CONNECTIONS".into(), value.into())];
            let environment = Environment::of(variables, &[]).unwrap();
            RelayConfig::parse("[limits]\nconnections = 5", Path::new("relay.toml"), &environment)
        };
        assert_eq!(parse("77").unwrap().limits.connections, 77);
        let error = parse("0").unwrap_err().to_string();
        assert!(
            error.starts_with("the variable BARNRAISE__LIMITS__CONNECTIONS: limits.connections = 0"),
            "{error}"
        );
    }
}
