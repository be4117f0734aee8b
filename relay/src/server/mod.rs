//! `barnraise relay`: a small server through which peers find and reach each other.
//!
//! It keeps no run and sees no tensor: what it carries is encrypted between the two ends.

mod command;
mod config;
mod host;
mod http;

use std::net::SocketAddr;

use libp2p::Multiaddr;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use self::command::{CommandError, operator_page, page_address, run_file};
pub use self::config::{EXAMPLE, NetworkSection, RelayConfig, RelayConfigError};
pub use self::host::{HostNames, WrongHost, is_host_name};
pub use self::http::{operator_routes, operator_routes_with};
use crate::dht::{Dht, DhtConfig};
use crate::identity::{IdentityError, load_or_create_keypair};
use crate::node::{Node, NodeConfig, NodeError, Routing};
use crate::open_files::warn_about_open_files;

/// Where a relay can be reached.
#[derive(Debug, Clone)]
pub struct ServerAddresses {
    /// `/healthz`, `/readyz`, `/metrics` and `/addresses`.
    pub http: SocketAddr,
    /// libp2p, peer id included.
    pub addresses: Vec<Multiaddr>,
}

/// Why a relay ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// Its key cannot be had.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// It cannot listen.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The operator's address cannot be served.
    #[error("cannot serve http://{address}: {source}")]
    Http {
        /// Of the configuration.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Runs a relay until `shutdown` is cancelled; `listening` is told once everything is up. Needs a tokio
/// runtime and [`install_crypto_provider`](crate::install_crypto_provider).
///
/// # Errors
/// Any error that keeps the relay from starting.
pub async fn run(
    config: RelayConfig,
    listening: oneshot::Sender<ServerAddresses>,
    shutdown: CancellationToken,
) -> Result<(), RelayError> {
    warn_about_open_files(config.limits.connections);
    let folder = &config.storage.folder;
    let keypair = load_or_create_keypair(&folder.join("identity.key"))?;
    let address = config.network.http;
    let http_error = |source| RelayError::Http { address, source };
    let http = TcpListener::bind(address).await.map_err(http_error)?;
    let node = NodeConfig {
        listen: config.network.listen.clone(),
        announce: config.network.announce.clone(),
        certificates_dir: Some(folder.join("certificates")),
        limits: config.limits.clone(),
        trusted_proxies: config.network.trusted_proxies.clone(),
        upnp: config.network.upnp,
        relay_service: Some(config.relay.clone()),
        routing: Some(Routing::Server),
        ..NodeConfig::default()
    };
    let node = Node::start(keypair, node).await?;
    // Those who meet here find each other's runs.
    let _dht = Dht::start(node.clone(), DhtConfig::from(&config.dht))?;
    let here = ServerAddresses { http: http.local_addr().map_err(http_error)?, addresses: node.addresses() };
    // The receiver may have been dropped.
    let _ = listening.send(here);
    let names = HostNames::new("http_names", &config.network.http_names);
    let served = axum::serve(http, names.guard(operator_routes(node.clone())))
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await;
    node.shutdown().await;
    served.map_err(http_error)
}
