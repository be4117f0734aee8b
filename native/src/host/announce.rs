//! Publishes this backbone's addresses in the DHT, under its run's id.

use std::time::Duration;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::backbone::BackboneAnnouncement;
use barnraise_relay::dht::Dht;
use barnraise_relay::{Node, NodeEvent};
use libp2p::Multiaddr;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

/// Lifetime of the record: after a crash, peers are sent here no longer than this.
const LIFETIME: Duration = Duration::from_secs(600);
/// Interval at which the record is renewed.
const REFRESH: Duration = Duration::from_secs(180);
/// Delay before the next attempt when no other peer stored the record: this backbone is the first of the DHT, or alone.
const RETRY: Duration = Duration::from_secs(15);
/// Addresses often change several at a time: wait for the last change.
const SETTLE: Duration = Duration::from_secs(1);

/// Key of the record, and peers to join the DHT through.
pub(crate) struct Announcement {
    pub(crate) run_id: String,
    pub(crate) key: KeyPair,
    /// Peers of the DHT.
    pub(crate) known: Vec<Multiaddr>,
}

/// Publishes the node's addresses until `shutdown`.
pub(crate) async fn announce(node: Node, dht: Dht, what: Announcement, shutdown: CancellationToken) {
    let mut events = node.events();
    loop {
        for address in &what.known {
            if let Err(error) = node.dial(address.clone()).await {
                tracing::warn!(%error, "a peer of the DHT cannot be reached");
            }
        }
        let addresses = node.addresses().iter().map(Multiaddr::to_vec).collect::<Vec<_>>();
        let mut is_alone = false;
        let wait =
            match BackboneAnnouncement::sign(&what.key, &what.run_id, addresses, dht.now().after(LIFETIME)) {
                Ok(record) => match dht.store(vec![record]).await.pop() {
                    Some(Ok(n_replicas)) => {
                        tracing::debug!(n_replicas, "the DHT knows where this backbone is");
                        is_alone = n_replicas < 2;
                        if is_alone { RETRY } else { REFRESH }
                    }
                    Some(Err(refusal)) => {
                        tracing::warn!(%refusal, "the DHT does not keep where this backbone is");
                        RETRY
                    }
                    None => RETRY,
                },
                Err(error) => {
                    tracing::warn!(%error, "no record of this backbone can be made");
                    REFRESH
                }
            };
        let again = async {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = changed(&mut events, is_alone) => tokio::time::sleep(SETTLE).await,
            }
        };
        if shutdown.run_until_cancelled(again).await.is_none() {
            return;
        }
    }
}

/// Waits until the node's addresses change, or until a lone node meets a peer that can store its record.
async fn changed(events: &mut broadcast::Receiver<NodeEvent>, is_alone: bool) {
    loop {
        match events.recv().await {
            Ok(NodeEvent::AddressesChanged) | Err(RecvError::Lagged(_)) => return,
            Ok(NodeEvent::Routable(_)) if is_alone => return,
            Ok(_) => {}
            // The shutdown comes next.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
