//! Checkpoints of this host's experts at other peers: gives them away, and takes the newest one of an expert that is new here.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::access;
use barnraise_protocol::bulk::{Partial, Transfer};
use barnraise_protocol::dht::checkpoints::{self as records, CheckpointRecord, RECORD_KEEPERS_MAX};
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::checkpoints::{
    self, CheckpointError, CheckpointRefusal, CheckpointVersion, ExpertCheckpoint, OfferOutcome,
};
use barnraise_protocol::experts::leases::{ExpertLease, KnownHost};
use barnraise_relay::NodeError;
use barnraise_swarm::experts::checkpoints::COPIES;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use libp2p::Stream;

use super::super::find::now;
use super::super::home::{LookUpError, PresentError};
use super::super::platform::ConnectError;
use super::super::sharing::announce::put_all;
use super::leasing::{self, LeasingError};
use super::state::HostState;
use super::store::StoredExpert;
use crate::host::expert_hosts::keeper::transfer_time;
use crate::host::expert_hosts::layers::{HostedLayer, layer_of};
use crate::host::peer_id;
use crate::net::announced::open_announced;

/// Timeout of a question to a keeper, the dial included.
const ASK_TIMEOUT: Duration = Duration::from_secs(8);
/// A keeper that has others on their way is offered a checkpoint so many times more.
const BUSY_TRIES: u32 = 8;
/// Pause before that.
const BUSY_PAUSE: Duration = Duration::from_millis(500);
/// Where a newer checkpoint is known than one that a keeper has, the keepers are asked again so many times.
const ATTEMPTS: u32 = 3;
/// Pause before that.
const PAUSE: Duration = Duration::from_secs(4);

/// Why a keeper was of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeeperError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Present(#[from] PresentError),
    #[error("no answer in time")]
    Timeout,
    #[error("its key is no peer's")]
    Key,
}

/// What was stored, for its keepers.
#[derive(Debug)]
pub(super) struct StoredCheckpoint {
    pub(super) lease: ExpertLease,
    pub(super) version: CheckpointVersion,
    pub(super) bytes: Arc<[u8]>,
}

/// A peer that may keep checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Keeper {
    Host(KnownHost),
    Backbone,
}

async fn open(state: &HostState, keeper: &Keeper) -> Result<Stream, KeeperError> {
    match keeper {
        Keeper::Backbone => Ok(state.home.open(checkpoints::PROTOCOL).await?),
        Keeper::Host(host) => {
            let peer = peer_id(host.peer).ok_or(KeeperError::Key)?;
            let node = &state.home.node;
            state.home.present(open_announced(node, peer, &host.addresses, access::PROTOCOL)).await?;
            Ok(open_announced(node, peer, &host.addresses, checkpoints::PROTOCOL).await?)
        }
    }
}

/// Signs what was stored, and gives it to its keepers; returns how many have it.
pub(super) async fn give_stored(state: &HostState, stored: StoredCheckpoint) -> usize {
    let StoredCheckpoint { lease, version, bytes } = stored;
    let hashing = {
        let bytes = bytes.clone();
        move || Transfer::of(&bytes)
    };
    let transfer = crate::computing::compute(bytes.len(), hashing).await;
    match ExpertCheckpoint::sign(&state.key, &state.run_id, (lease, version.n_steps, transfer)) {
        Ok(checkpoint) => give(state, &checkpoint, &bytes).await,
        Err(_) => 0,
    }
}

/// Gives a checkpoint to [`COPIES`] peers, hosts before the backbone, and tells the DHT. Returns how many keep it.
async fn give(state: &HostState, checkpoint: &ExpertCheckpoint, bytes: &Arc<[u8]>) -> usize {
    let place = checkpoint.lease.place;
    let hosts = leasing::keepers(state, place).await.unwrap_or_else(|error| {
        tracing::debug!(%error, "nobody says who keeps the checkpoints of an expert");
        Vec::new()
    });
    let candidates = hosts.into_iter().map(Keeper::Host).chain([Keeper::Backbone]);
    let mut keepers = Vec::new();
    for keeper in candidates {
        if keepers.len() >= COPIES {
            break;
        }
        let mut given = give_to(state, &keeper, checkpoint, bytes).await;
        // It takes one of this host at a time, and few of all hosts.
        for _ in 0..BUSY_TRIES {
            let Err(KeeperError::Checkpoint(CheckpointError::Refused(CheckpointRefusal::Busy))) = given
            else {
                break;
            };
            tokio::time::sleep(BUSY_PAUSE).await;
            given = give_to(state, &keeper, checkpoint, bytes).await;
        }
        match given {
            Ok(OfferOutcome::Kept | OfferOutcome::AlreadyKept) => keepers.push(keeper),
            Err(error) => tracing::debug!(?keeper, %error, "a checkpoint of an expert was not kept"),
        }
    }
    if !keepers.is_empty() {
        announce(state, checkpoint, &keepers).await;
    }
    keepers.len()
}

async fn give_to(
    state: &HostState,
    keeper: &Keeper,
    checkpoint: &ExpertCheckpoint,
    bytes: &Arc<[u8]>,
) -> Result<OfferOutcome, KeeperError> {
    let opening = tokio::time::timeout(ASK_TIMEOUT, open(state, keeper));
    let mut stream = opening.await.map_err(|_| KeeperError::Timeout)??;
    let offering = checkpoints::offer(&mut stream, &state.run_id, checkpoint, bytes);
    let offered = tokio::time::timeout(transfer_time(checkpoint.transfer.n_bytes), offering).await;
    Ok(offered.map_err(|_| KeeperError::Timeout)??)
}

/// Tells the DHT who keeps a checkpoint.
async fn announce(state: &HostState, checkpoint: &ExpertCheckpoint, keepers: &[Keeper]) {
    let mut known = Vec::new();
    for keeper in keepers.iter().take(RECORD_KEEPERS_MAX) {
        known.push(match keeper {
            Keeper::Host(host) => host.clone(),
            Keeper::Backbone => {
                let addresses = state.home.addresses().await;
                let key = state.home.peer().to_bytes();
                let Some(key) = barnraise_protocol::access::PublicKey::of_peer_id(&key) else { continue };
                KnownHost::new(key, addresses)
            }
        });
    }
    let record = CheckpointRecord { checkpoint: checkpoint.clone(), keepers: known };
    let record = record.sign(&state.key, &state.run_id, now().after(records::LIFETIME));
    let put = match record {
        Ok(record) => put_all(&state.home.node, state.home.peer(), vec![record]).await,
        Err(refusal) => {
            tracing::warn!(%refusal, "the record of a checkpoint cannot be made");
            return;
        }
    };
    match put.map(|mut verdicts| verdicts.pop()) {
        Ok(Some(Err(refusal))) => {
            tracing::debug!(%refusal, "the DHT did not take the record of a checkpoint");
        }
        Err(error) => tracing::debug!(%error, "a checkpoint could not be announced in the DHT"),
        Ok(_) => {}
    }
}

/// The newest state of an expert that other peers keep, if it is newer than `own`. Where one is known to be newer than all that
/// can be had, it is waited for a while. Those that are `refused` do not count, and those that turn out to be no state of this
/// expert neither: the next one does, so that nobody takes a place from the run by what it has signed.
///
/// # Errors
/// Neither the DHT nor the backbone says what there is: the expert may have learned much elsewhere.
pub(super) async fn newest(
    state: &HostState,
    place: ExpertPlace,
    own: Option<CheckpointVersion>,
    mut refused: Vec<CheckpointVersion>,
) -> Result<Option<StoredExpert>, NewestError> {
    let mut found = None;
    let mut tried = Ok(());
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let newest_here = |found: &Option<StoredExpert>| {
            [own, found.as_ref().map(StoredExpert::version)].into_iter().flatten().max()
        };
        let records = match recorded(state, place).await {
            Ok(records) => records,
            Err(error) => {
                tried = Err(error.into());
                continue;
            }
        };
        let newest_wanted = |refused: &[CheckpointVersion]| {
            let versions = records.iter().map(|record| record.checkpoint.version());
            versions.filter(|version| !refused.contains(version)).max()
        };
        let versions = (newest_here(&found), newest_wanted(&refused));
        match from_keepers(state, place, &records, versions, &mut refused).await {
            Ok(Some(better)) => found = Some(better),
            Ok(None) => {}
            Err(error) => {
                tried = Err(error);
                continue;
            }
        }
        tried = Ok(());
        if newest_wanted(&refused) <= newest_here(&found) {
            break;
        }
        tracing::debug!(attempt, "a newer checkpoint of an expert is known than can be had");
    }
    tried.map(|()| found)
}

/// Why it is not known which checkpoints an expert has.
#[derive(Debug, thiserror::Error)]
pub(super) enum NewestError {
    #[error("the DHT does not say who keeps its checkpoints: {0}")]
    LookUp(#[from] LookUpError),
    #[error("the backbone does not say which checkpoint it keeps: {0}")]
    Backbone(#[from] KeeperError),
    #[error("the backbone does not say who keeps its checkpoints: {0}")]
    Keepers(#[from] LeasingError),
}

/// What the DHT says of an expert's checkpoints, by holders of leases alone; the newest first.
async fn recorded(state: &HostState, place: ExpertPlace) -> Result<Vec<CheckpointRecord>, LookUpError> {
    let Some(grantors) = state.keeper.grantors() else { return Ok(Vec::new()) };
    let found = state.home.look_up(records::key(&state.run_id, place)).await?;
    let records = found.iter().filter_map(CheckpointRecord::read);
    let mut records: Vec<CheckpointRecord> =
        records.filter(|record| record.verify(&state.run_id, place, grantors)).collect();
    records.sort_by_key(|record| std::cmp::Reverse(record.checkpoint.version()));
    Ok(records)
}

/// The newest checkpoint that a keeper has, if it is newer than `than`. Where it is `wanted`, nobody else is waited for.
async fn from_keepers(
    state: &HostState,
    place: ExpertPlace,
    records: &[CheckpointRecord],
    (than, wanted): (Option<CheckpointVersion>, Option<CheckpointVersion>),
    refused: &mut Vec<CheckpointVersion>,
) -> Result<Option<StoredExpert>, NewestError> {
    let me = state.key.public();
    let mut keepers = vec![Keeper::Backbone];
    let counted = records.iter().filter(|record| !refused.contains(&record.checkpoint.version()));
    let of_records = counted.take(2).flat_map(|record| record.keepers.clone());
    let of_backbone = leasing::keepers(state, place).await?;
    for host in of_records.chain(of_backbone).filter(|host| host.peer != me) {
        if !keepers.iter().any(|keeper| matches!(keeper, Keeper::Host(known) if known.peer == host.peer)) {
            keepers.push(Keeper::Host(host));
        }
    }
    let is_newer = |checkpoint: &ExpertCheckpoint| {
        let version = checkpoint.version();
        Some(version) > than && !refused.contains(&version) && is_believed(state, place, checkpoint)
    };
    let mut offers: Vec<(ExpertCheckpoint, Option<Keeper>)> = Vec::new();
    offers.extend(state.keeper.newest(&place).filter(is_newer).map(|checkpoint| (checkpoint, None)));
    let asked = keepers.into_iter().map(|keeper| async {
        let answer = kept_by(state, &keeper, place).await;
        (keeper, answer)
    });
    let mut answers: FuturesUnordered<_> = asked.collect();
    let is_wanted = |(checkpoint, _): &(ExpertCheckpoint, Option<Keeper>)| {
        wanted.is_some_and(|wanted| checkpoint.version() >= wanted)
    };
    // One that is gone is waited for only where none has what is wanted.
    while !offers.iter().any(is_wanted)
        && let Some((keeper, answer)) = answers.next().await
    {
        match answer {
            Ok(Some(checkpoint)) if is_newer(&checkpoint) => offers.push((checkpoint, Some(keeper))),
            Ok(_) => {}
            // Others may be gone, and this one is there.
            Err(error) if keeper == Keeper::Backbone => return Err(error.into()),
            Err(error) => tracing::debug!(?keeper, %error, "a keeper of checkpoints does not answer"),
        }
    }
    offers.sort_by_key(|(checkpoint, _)| std::cmp::Reverse(checkpoint.version()));
    let mut partial: Option<Partial> = None;
    for (checkpoint, keeper) in offers {
        let version = checkpoint.version();
        if refused.contains(&version) {
            continue;
        }
        let Some(layer) = layer_of(&state.layers, place) else { continue };
        let Some(bytes) = fetch(state, place, &checkpoint, keeper.as_ref(), &mut partial).await else {
            continue;
        };
        match StoredExpert::opened(bytes, layer.clone(), version).await {
            Ok(stored) => return Ok(Some(stored)),
            Err(error) => {
                let holder = checkpoint.lease.holder;
                tracing::warn!(%error, %holder, "a checkpoint of an expert is of no use: an older one is taken");
                refused.push(version);
            }
        }
    }
    Ok(None)
}

async fn kept_by(
    state: &HostState,
    keeper: &Keeper,
    place: ExpertPlace,
) -> Result<Option<ExpertCheckpoint>, KeeperError> {
    let asking = async {
        let mut stream = open(state, keeper).await?;
        Ok(checkpoints::newest(&mut stream, &state.run_id, place).await?)
    };
    tokio::time::timeout(ASK_TIMEOUT, asking).await.unwrap_or(Err(KeeperError::Timeout))
}

fn is_believed(state: &HostState, place: ExpertPlace, checkpoint: &ExpertCheckpoint) -> bool {
    let is_valid = |grantors| checkpoint.is_valid(&state.run_id, grantors);
    let n_bytes = checkpoint.transfer.n_bytes;
    let is_of_layer = |layer: &HostedLayer| {
        (layer.checkpoint_bytes_min()..=layer.checkpoint_bytes_max()).contains(&n_bytes)
    };
    checkpoint.lease.place == place
        && layer_of(&state.layers, place).is_some_and(is_of_layer)
        && state.keeper.grantors().is_some_and(is_valid)
}

/// Pulls a checkpoint from a keeper, going on where another keeper of the same bytes was lost; or reads it, where it is kept here.
async fn fetch(
    state: &HostState,
    place: ExpertPlace,
    checkpoint: &ExpertCheckpoint,
    keeper: Option<&Keeper>,
    partial: &mut Option<Partial>,
) -> Option<Vec<u8>> {
    let transfer = checkpoint.transfer;
    match keeper {
        None => state.keeper.read(place, transfer.sha256).await,
        Some(keeper) => {
            let partial = match partial {
                Some(partial) if partial.transfer() == transfer => partial,
                partial => partial.insert(Partial::new(transfer, transfer.n_bytes).ok()?),
            };
            let fetching = async {
                let mut stream = open(state, keeper).await?;
                Ok::<_, KeeperError>(checkpoints::fetch(&mut stream, &state.run_id, place, partial).await?)
            };
            let time = ASK_TIMEOUT + transfer_time(transfer.n_bytes);
            match tokio::time::timeout(time, fetching).await.unwrap_or(Err(KeeperError::Timeout)) {
                Ok(bytes) => Some(bytes),
                Err(error) => {
                    tracing::debug!(?keeper, %error, "a checkpoint of an expert did not come");
                    None
                }
            }
        }
    }
}
