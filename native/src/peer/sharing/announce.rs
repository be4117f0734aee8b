//! Holders of shards in the DHT: publishes this machine's record, and searches those of other peers. Both go through
//! the backbone, which is a DHT peer and searches on behalf of this machine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use barnraise_protocol::dht::record::Record;
use barnraise_protocol::dht::shards::{self, Holder, ShardSet};
use barnraise_protocol::dht::{self, DhtError, DhtRefusal, Freshness};
use barnraise_relay::{Node, NodeError};
use barnraise_swarm::PeerKey;
use barnraise_swarm::dht::StorageLimits;
use barnraise_swarm::shards::Survey;
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use super::super::find::now;
use super::{SharedRun, SharingState, SurveyResult, lock};
use crate::net::announced::{to_announce, to_dial};

/// Interval of searches while shards are wanted, and of updates of this machine's record.
const LOOK_EVERY: Duration = Duration::from_secs(4);
/// Interval of searches while none is wanted.
const LOOK_EVERY_IDLE: Duration = Duration::from_secs(60);
/// Lifetime of this machine's record.
const LIFETIME: Duration = Duration::from_secs(240);
/// Interval at which the record is renewed, well below its lifetime.
const REFRESH: Duration = Duration::from_secs(80);
/// Timeout of a DHT request: the backbone waits for requests of its own.
const DHT_TIMEOUT: Duration = Duration::from_secs(20);

/// Why the DHT was of no use.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum AnnounceError {
    /// The backbone cannot be reached.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The DHT took or gave no record.
    #[error(transparent)]
    Dht(#[from] DhtError),
    /// It does not answer.
    #[error("the DHT does not answer within {DHT_TIMEOUT:?}")]
    Timeout,
}

/// The record that was published last.
#[derive(Clone)]
pub(super) struct AnnouncedShards {
    run: Arc<SharedRun>,
    shards: ShardSet,
    addresses: Vec<Vec<u8>>,
    at: Instant,
}

/// Publishes this machine's shards and searches other holders, until it is dropped.
pub(super) async fn run(
    shared: Arc<SharingState>,
    node: Node,
    backbone: PeerId,
    said: Arc<Mutex<Option<AnnouncedShards>>>,
) {
    loop {
        let run = shared.run().await;
        let kept = shared.kept(&run).await;
        if shared.bytes_per_second > 0 {
            let addresses = to_announce(node.addresses(), node.reachability());
            let before = lock(&said).clone();
            if is_due(before.as_ref(), &run, &kept, &addresses) {
                let told = announce(&shared, &node, backbone, &run, (&kept, addresses)).await;
                match told {
                    Ok(now) => *lock(&said) = Some(now),
                    Err(error) => {
                        tracing::debug!(
                            %error,
                            "the shards of this machine could not be announced in the DHT"
                        );
                    }
                }
            }
        }
        match tokio::time::timeout(DHT_TIMEOUT, look(&shared, &node, backbone, &run)).await {
            Ok(Ok((holders, addresses))) => {
                tracing::debug!(
                    n_holders = holders.len(),
                    n_kept = kept.len(),
                    "searched the holders of shards"
                );
                let mut found = lock(&shared.found);
                // Another run may have begun meanwhile.
                if shared.run.borrow().as_ref().is_some_and(|current| Arc::ptr_eq(current, &run)) {
                    let here = PeerKey(node.peer_id().to_bytes());
                    *found = SurveyResult { survey: Some(Survey { here, kept, holders }), addresses };
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "the search for holders of shards failed"),
            Err(_) => tracing::debug!("the search for holders of shards failed: the DHT does not answer"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
        let _ = tokio::time::timeout(LOOK_EVERY_IDLE, shared.changed.notified()).await;
    }
}

/// Whether the record has to be published: it has changed, or is to be renewed.
fn is_due(
    said: Option<&AnnouncedShards>,
    run: &Arc<SharedRun>,
    kept: &ShardSet,
    addresses: &[Vec<u8>],
) -> bool {
    match said.filter(|said| Arc::ptr_eq(&said.run, run)) {
        // A peer without shards or addresses is of no use to others.
        None => !kept.is_empty() && !addresses.is_empty(),
        Some(said) => said.shards != *kept || said.addresses != addresses || said.at.elapsed() >= REFRESH,
    }
}

async fn announce(
    shared: &SharingState,
    node: &Node,
    backbone: PeerId,
    run: &Arc<SharedRun>,
    (kept, addresses): (&ShardSet, Vec<Vec<u8>>),
) -> Result<AnnouncedShards, AnnounceError> {
    let expires_at = now().after(LIFETIME);
    let of_run = (&run.run_id[..], &run.manifest);
    let record = Holder::sign(&shared.key, of_run, kept, addresses.clone(), expires_at);
    put(node, backbone, record.map_err(DhtError::from)?).await?;
    tracing::debug!(n_shards = kept.len(), "announced the shards of this machine in the DHT");
    Ok(AnnouncedShards { run: run.clone(), shards: kept.clone(), addresses, at: Instant::now() })
}

/// Replaces the published record by an empty one. A DHT deletes nothing, but the record that expires last counts.
pub(super) async fn withdraw(
    shared: &SharingState,
    node: &Node,
    backbone: PeerId,
    said: AnnouncedShards,
) -> Result<(), AnnounceError> {
    // Later than any record that was published or is in transit.
    let expires_at = now().after(LIFETIME + Duration::from_secs(1));
    let of_run = (&said.run.run_id[..], &said.run.manifest);
    let record = Holder::sign(&shared.key, of_run, &ShardSet::default(), [], expires_at);
    put(node, backbone, record.map_err(DhtError::from)?).await
}

async fn put(node: &Node, backbone: PeerId, record: Record) -> Result<(), AnnounceError> {
    match put_all(node, backbone, vec![record]).await?.pop() {
        Some(Err(refusal)) => Err(DhtError::from(refusal).into()),
        _ => Ok(()),
    }
}

/// Has the backbone put records into the DHT; of each whether it was taken.
pub(in super::super) async fn put_all(
    node: &Node,
    backbone: PeerId,
    records: Vec<Record>,
) -> Result<Vec<Result<(), DhtRefusal>>, AnnounceError> {
    let putting = async {
        let mut stream = node.open(backbone, dht::PROTOCOL).await?;
        Ok(dht::put(&mut stream, records).await?)
    };
    tokio::time::timeout(DHT_TIMEOUT, putting).await.unwrap_or(Err(AnnounceError::Timeout))
}

type Holders = (Vec<(PeerKey, ShardSet)>, HashMap<PeerId, Vec<Multiaddr>>);

/// All other holders of shards that this machine can dial.
async fn look(
    shared: &SharingState,
    node: &Node,
    backbone: PeerId,
    run: &SharedRun,
) -> Result<Holders, AnnounceError> {
    let mut stream = node.open(backbone, dht::PROTOCOL).await?;
    let keys = vec![shards::key(&run.run_id, &run.manifest)];
    let lifetime_max = StorageLimits::default().lifetime_max;
    let records = dht::get(&mut stream, keys, Freshness::Newest, now(), lifetime_max).await?;
    let (mut holders, mut peer_addresses) = (Vec::new(), HashMap::new());
    for holder in records.iter().flatten().filter_map(Holder::read) {
        let Some(peer) = crate::host::peer_id(holder.peer).filter(|_| holder.peer != shared.key.public())
        else {
            continue;
        };
        let addresses = to_dial(node, peer, &holder.addresses).await;
        if !addresses.is_empty() && !holder.shards.is_empty() {
            holders.push((PeerKey(peer.to_bytes()), holder.shards));
            peer_addresses.insert(peer, addresses);
        }
    }
    Ok((holders, peer_addresses))
}
