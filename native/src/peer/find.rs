//! Finds the backbones of a run through any peer of the DHT.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use barnraise_protocol::dht::backbone::{self, Backbone};
use barnraise_protocol::dht::{self, DhtError, Freshness, PROTOCOL, UnixMillis};
use barnraise_relay::{Node, NodeError};
use barnraise_swarm::dht::StorageLimits;
use libp2p::{Multiaddr, PeerId};

use super::address;

/// The whole search: the asked peer has requests of its own to wait for.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(20);

/// Why no backbone was found.
#[derive(Debug, thiserror::Error)]
pub(super) enum FindError {
    /// The peer that was given cannot be asked.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// It does not answer as a peer of the DHT does.
    #[error("{peer} was asked for the run `{run_id}`: {source}")]
    Ask { peer: PeerId, run_id: String, source: DhtError },
    /// It does not answer at all.
    #[error("{peer} was asked for the run `{run_id}` and did not answer within {SEARCH_TIMEOUT:?}")]
    Timeout { peer: PeerId, run_id: String },
    /// Nobody says that they are a backbone of the run, or none listens in a way that can be dialled.
    #[error("nobody is known as a backbone of the run `{run_id}`")]
    Nobody { run_id: String },
}

/// Where the backbones of a run are, as a peer that `node` is connected with finds them.
pub(super) async fn backbones(node: &Node, peer: PeerId, run_id: &str) -> Result<Vec<Multiaddr>, FindError> {
    let run_id = run_id.to_owned();
    let mut stream = node.open(peer, PROTOCOL).await?;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = UnixMillis(0).after(since_1970);
    let (keys, lifetime_max) = (vec![backbone::key(&run_id)], StorageLimits::default().lifetime_max);
    let asking = dht::get(&mut stream, keys, Freshness::Newest, now, lifetime_max);
    let records = match tokio::time::timeout(SEARCH_TIMEOUT, asking).await {
        Ok(Ok(records)) => records,
        Ok(Err(source)) => return Err(FindError::Ask { peer, run_id, source }),
        Err(_) => return Err(FindError::Timeout { peer, run_id }),
    };
    let listed: Vec<String> = records.iter().flatten().filter_map(Backbone::read).flat_map(listed).collect();
    match address::to_dial(&listed) {
        none if none.is_empty() => Err(FindError::Nobody { run_id }),
        addresses => Ok(addresses),
    }
}

/// The addresses of a backbone that end with the id of the key that signed them.
fn listed(backbone: Backbone) -> Vec<String> {
    let Ok(peer) = PeerId::from_bytes(&backbone.peer.to_peer_id()) else { return Vec::new() };
    let addresses = backbone.addresses.into_iter().filter_map(|bytes| Multiaddr::try_from(bytes).ok());
    addresses.filter_map(|address| address.with_p2p(peer).ok()).map(|address| address.to_string()).collect()
}
