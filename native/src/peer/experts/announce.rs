//! Tells the DHT of this host's experts, through the backbone, which is a DHT peer.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::experts::AnnouncedExpert;
use barnraise_protocol::dht::{self, DhtError, Record};
use barnraise_relay::tasks;
use barnraise_relay::{Node, NodeError};
use barnraise_swarm::experts::{AnnouncerAction, ExpertAnnouncer};
use libp2p::PeerId;
use tokio_util::task::AbortOnDropHandle;

use super::super::find::now;
use super::state::HostState;
use crate::net::announced::to_announce;

/// Interval of looks at what has changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Timeout of a DHT request: the backbone waits for requests of its own.
const DHT_TIMEOUT: Duration = Duration::from_secs(20);

/// Why the DHT took no records.
#[derive(Debug, thiserror::Error)]
enum PutError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Dht(#[from] DhtError),
    #[error("the DHT does not answer within {DHT_TIMEOUT:?}")]
    Timeout,
}

/// Announces until the handle is dropped. Records expire by themselves.
pub(super) fn spawn(
    (node, home): (Node, PeerId),
    key: KeyPair,
    state: Arc<HostState>,
) -> AbortOnDropHandle<()> {
    tasks::spawn("announcing experts", async move {
        let [a, b, c, d, e, f, g, h, ..] = key.public().0;
        let seed = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let mut announcer = ExpertAnnouncer::new(key, state.run_id.clone(), Vec::new(), seed);
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            ticks.tick().await;
            let addresses = to_announce(node.addresses(), node.reachability());
            announcer.on_addresses(state.now(), addresses);
            let (n_waiting, n_steps) = state.standing();
            for (&(layer, uid), n_steps) in state.places.iter().zip(n_steps) {
                let n_waiting = u32::try_from(n_waiting).unwrap_or(u32::MAX);
                let expert = AnnouncedExpert { uid, n_waiting, n_steps };
                if let Err(error) = announcer.on_expert(state.now(), layer, expert) {
                    tracing::warn!(%error, "an expert is not announced");
                }
            }
            while let Ok(Some(AnnouncerAction::Put(records))) = announcer.poll_action(state.now(), now()) {
                if let Err(error) = put(&node, home, records).await {
                    tracing::debug!(%error, "experts could not be announced in the DHT");
                    announcer.on_put_failed(state.now());
                }
            }
        }
    })
}

async fn put(node: &Node, home: PeerId, records: Vec<Record>) -> Result<(), PutError> {
    let putting = async {
        let mut stream = node.open(home, dht::PROTOCOL).await?;
        for refusal in dht::put(&mut stream, records).await?.into_iter().filter_map(Result::err) {
            tracing::debug!(%refusal, "the DHT did not take a record of an expert");
        }
        Ok(())
    };
    tokio::time::timeout(DHT_TIMEOUT, putting).await.unwrap_or(Err(PutError::Timeout))
}
