//! Checkpoints of a host's experts at other peers: gives them away, and takes the newest one of an expert that is new here.

use std::sync::Arc;
use std::time::Duration;

use barnraise_learning::hosted::{HostedLayer, layer_of};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{KeyPair, PublicKey};
use barnraise_protocol::bulk::{Partial, Transfer};
use barnraise_protocol::dht::checkpoints::{self as records, CheckpointRecord, RECORD_KEEPERS_MAX};
use barnraise_protocol::dht::{DhtRefusal, Record, UnixMillis};
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::checkpoints::{
    self, CheckpointError, CheckpointRefusal, CheckpointVersion, ExpertCheckpoint, OfferOutcome,
    transfer_time,
};
use barnraise_protocol::experts::leases::{ExpertLease, Grantors, KnownHost};
use barnraise_swarm::experts::checkpoints::COPIES;
use futures::io::{AsyncRead, AsyncWrite};
use futures::stream::{FuturesUnordered, StreamExt as _};

use super::stored::{StoredExpert, StoredExpertError};
use crate::platform::PlatformError;
use crate::race::before;

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

/// A peer that may keep checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keeper {
    /// Another host.
    Host(KnownHost),
    /// The host's backbone.
    Backbone,
}

/// Why a keeper was of no use.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// No stream.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// It refused, or the stream failed.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// It is gone, or slow.
    #[error("no answer in time")]
    Timeout,
}

/// Why it is not known which checkpoints an expert has.
#[derive(Debug, thiserror::Error)]
pub enum NewestError {
    /// The DHT was not searched.
    #[error("the DHT does not say who keeps its checkpoints: {0}")]
    LookUp(PlatformError),
    /// The backbone, which is one of the keepers.
    #[error("the backbone does not say which checkpoint it keeps: {0}")]
    Backbone(#[from] KeeperError),
    /// The backbone, which knows the others.
    #[error("the backbone does not say who keeps its checkpoints: {0}")]
    Keepers(PlatformError),
}

/// What did not go as it should, for the log.
#[derive(Debug, thiserror::Error)]
pub enum CopyTrouble<'a> {
    /// The backbone is away.
    #[error("nobody says who keeps the checkpoints of an expert: {0}")]
    NoKeepers(&'a PlatformError),
    /// A checkpoint is at fewer peers.
    #[error("a checkpoint of an expert was not kept by {0:?}: {1}")]
    NotKept(&'a Keeper, &'a KeeperError),
    /// Who wants it will ask the backbone.
    #[error("a checkpoint could not be announced in the DHT: {0}")]
    NotAnnounced(&'a PlatformError),
    /// Likewise.
    #[error("the DHT did not take the record of a checkpoint: {0}")]
    Refused(&'a DhtRefusal),
    /// Others may have it.
    #[error("a keeper of checkpoints, {0:?}, does not answer: {1}")]
    Silent(&'a Keeper, &'a KeeperError),
    /// Likewise.
    #[error("a checkpoint of an expert did not come from {0:?}: {1}")]
    NotFetched(&'a Keeper, &'a KeeperError),
    /// It is waited for.
    #[error("a newer checkpoint of an expert is known than can be had")]
    NewerKnown,
    /// What the holder of a lease has signed is no state of the expert.
    #[error("a checkpoint of an expert, by {0}, is of no use: an older one is taken: {1}")]
    Useless(PublicKey, &'a StoredExpertError),
}

/// What a host has of a run, and how it reaches those who keep checkpoints.
pub trait KeeperNetwork {
    /// A stream to a keeper.
    type Stream: AsyncRead + AsyncWrite + Unpin;

    /// The run.
    fn run_id(&self) -> &str;

    /// The layers whose experts are hosted.
    fn layers(&self) -> &[HostedLayer];

    /// Of this host.
    fn key(&self) -> &KeyPair;

    /// Whose grants make a lease, once that is known.
    fn grantors(&self) -> Option<Grantors>;

    /// For records.
    fn wall(&self) -> UnixMillis;

    /// Completes after `time` or soon after.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;

    /// Opens a stream of `expert-checkpoints`. Where the run is not open, a host has seen this one's token then.
    fn open_keeper(&self, keeper: &Keeper) -> impl Future<Output = Result<Self::Stream, PlatformError>>;

    /// The hosts that keep the checkpoints of an expert, the first one first, as the backbone says.
    fn keepers(&self, place: ExpertPlace) -> impl Future<Output = Result<Vec<KnownHost>, PlatformError>>;

    /// The backbone as others reach it, where that is known.
    fn backbone(&self) -> impl Future<Output = Option<KnownHost>>;

    /// What the DHT says of the checkpoints of an expert.
    fn checkpoint_records(
        &self,
        place: ExpertPlace,
    ) -> impl Future<Output = Result<Vec<Record>, PlatformError>>;

    /// Puts a record into the DHT.
    fn put_record(
        &self,
        record: Record,
    ) -> impl Future<Output = Result<Result<(), DhtRefusal>, PlatformError>>;

    /// The checkpoint of an expert that this host keeps for another one, if there is one.
    fn kept_here(&self, place: ExpertPlace) -> Option<ExpertCheckpoint> {
        let _ = place;
        None
    }

    /// Its bytes.
    fn read_kept(&self, place: ExpertPlace, sha256: Sha256Hash) -> impl Future<Output = Option<Vec<u8>>> {
        let _ = (place, sha256);
        std::future::ready(None)
    }

    /// Hashes what is given away.
    fn hashed(&self, bytes: Arc<[u8]>) -> impl Future<Output = Transfer> {
        std::future::ready(Transfer::of(&bytes))
    }

    /// [`StoredExpert::open_kept`].
    fn opened(
        &self,
        bytes: Vec<u8>,
        layer: &HostedLayer,
        version: CheckpointVersion,
    ) -> impl Future<Output = Result<StoredExpert, StoredExpertError>> {
        std::future::ready(StoredExpert::open_kept(&bytes, layer, version))
    }

    /// Something went wrong that the host lives with.
    fn on_trouble(&self, trouble: CopyTrouble<'_>) {
        let _ = trouble;
    }
}

/// What was stored, for its keepers.
#[derive(Debug, Clone)]
pub struct StoredCheckpoint {
    /// Under which it was made; it holds.
    pub lease: ExpertLease,
    /// Which state it is.
    pub version: CheckpointVersion,
    /// [`StoredExpert::seal`]
    pub bytes: Arc<[u8]>,
}

async fn within<N: KeeperNetwork, T>(
    network: &N,
    limit: Duration,
    work: impl Future<Output = Result<T, KeeperError>>,
) -> Result<T, KeeperError> {
    before(network.sleep(limit), work).await.unwrap_or(Err(KeeperError::Timeout))
}

/// Signs what was stored, and gives it to [`COPIES`] peers, hosts before the backbone, and tells the DHT. Returns how many keep it.
pub async fn give_stored<N: KeeperNetwork>(network: &N, stored: StoredCheckpoint) -> usize {
    let StoredCheckpoint { lease, version, bytes } = stored;
    let transfer = network.hashed(bytes.clone()).await;
    let signed = ExpertCheckpoint::sign(network.key(), network.run_id(), (lease, version.n_steps, transfer));
    match signed {
        Ok(checkpoint) => give(network, &checkpoint, &bytes).await,
        Err(_) => 0,
    }
}

async fn give<N: KeeperNetwork>(network: &N, checkpoint: &ExpertCheckpoint, bytes: &Arc<[u8]>) -> usize {
    let place = checkpoint.lease.place;
    let hosts = network.keepers(place).await.unwrap_or_else(|error| {
        network.on_trouble(CopyTrouble::NoKeepers(&error));
        Vec::new()
    });
    let candidates = hosts.into_iter().map(Keeper::Host).chain([Keeper::Backbone]);
    let mut keepers = Vec::new();
    for keeper in candidates {
        if keepers.len() >= COPIES {
            break;
        }
        let mut given = give_to(network, &keeper, checkpoint, bytes).await;
        // It takes one of this host at a time, and few of all hosts.
        for _ in 0..BUSY_TRIES {
            let Err(KeeperError::Checkpoint(CheckpointError::Refused(CheckpointRefusal::Busy))) = given
            else {
                break;
            };
            network.sleep(BUSY_PAUSE).await;
            given = give_to(network, &keeper, checkpoint, bytes).await;
        }
        match given {
            Ok(OfferOutcome::Kept | OfferOutcome::AlreadyKept) => keepers.push(keeper),
            Err(error) => network.on_trouble(CopyTrouble::NotKept(&keeper, &error)),
        }
    }
    if !keepers.is_empty() {
        announce(network, checkpoint, &keepers).await;
    }
    keepers.len()
}

async fn give_to<N: KeeperNetwork>(
    network: &N,
    keeper: &Keeper,
    checkpoint: &ExpertCheckpoint,
    bytes: &Arc<[u8]>,
) -> Result<OfferOutcome, KeeperError> {
    let opening = async { Ok(network.open_keeper(keeper).await?) };
    let mut stream = within(network, ASK_TIMEOUT, opening).await?;
    let offering = async { Ok(checkpoints::offer(&mut stream, network.run_id(), checkpoint, bytes).await?) };
    within(network, transfer_time(checkpoint.transfer.n_bytes), offering).await
}

/// Tells the DHT who keeps a checkpoint.
async fn announce<N: KeeperNetwork>(network: &N, checkpoint: &ExpertCheckpoint, keepers: &[Keeper]) {
    let mut known = Vec::new();
    for keeper in keepers.iter().take(RECORD_KEEPERS_MAX) {
        known.extend(match keeper {
            Keeper::Host(host) => Some(host.clone()),
            Keeper::Backbone => network.backbone().await,
        });
    }
    let record = CheckpointRecord { checkpoint: checkpoint.clone(), keepers: known };
    let expires_at = network.wall().after(records::LIFETIME);
    let put = match record.sign(network.key(), network.run_id(), expires_at) {
        Ok(record) => network.put_record(record).await,
        Err(refusal) => Ok(Err(refusal)),
    };
    match put {
        Ok(Ok(())) => {}
        Ok(Err(refusal)) => network.on_trouble(CopyTrouble::Refused(&refusal)),
        Err(error) => network.on_trouble(CopyTrouble::NotAnnounced(&error)),
    }
}

/// The newest state of an expert that other peers keep, if it is newer than `own`. Where one is known to be newer than all that
/// can be had, it is waited for a while. Those that are `refused` do not count, and those that turn out to be no state of this
/// expert neither: the next one does, so that nobody takes a place from the run by what it has signed.
///
/// # Errors
/// Neither the DHT nor the backbone says what there is: the expert may have learned much elsewhere.
pub async fn newest<N: KeeperNetwork>(
    network: &N,
    place: ExpertPlace,
    own: Option<CheckpointVersion>,
    mut refused: Vec<CheckpointVersion>,
) -> Result<Option<StoredExpert>, NewestError> {
    let mut found = None;
    let mut tried = Ok(());
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            network.sleep(PAUSE).await;
        }
        let newest_here = |found: &Option<StoredExpert>| {
            [own, found.as_ref().map(StoredExpert::version)].into_iter().flatten().max()
        };
        let records = match recorded(network, place).await {
            Ok(records) => records,
            Err(error) => {
                tried = Err(NewestError::LookUp(error));
                continue;
            }
        };
        let newest_wanted = |refused: &[CheckpointVersion]| {
            let versions = records.iter().map(|record| record.checkpoint.version());
            versions.filter(|version| !refused.contains(version)).max()
        };
        let versions = (newest_here(&found), newest_wanted(&refused));
        match from_keepers(network, place, &records, versions, &mut refused).await {
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
        network.on_trouble(CopyTrouble::NewerKnown);
    }
    tried.map(|()| found)
}

/// What the DHT says of an expert's checkpoints, by holders of leases alone; the newest first.
async fn recorded<N: KeeperNetwork>(
    network: &N,
    place: ExpertPlace,
) -> Result<Vec<CheckpointRecord>, PlatformError> {
    let Some(grantors) = network.grantors() else { return Ok(Vec::new()) };
    let found = network.checkpoint_records(place).await?;
    let records = found.iter().filter_map(CheckpointRecord::read);
    let mut records: Vec<CheckpointRecord> =
        records.filter(|record| record.verify(network.run_id(), place, &grantors)).collect();
    records.sort_by_key(|record| std::cmp::Reverse(record.checkpoint.version()));
    Ok(records)
}

/// The newest checkpoint that a keeper has, if it is newer than `than`. Where it is `wanted`, nobody else is waited for.
async fn from_keepers<N: KeeperNetwork>(
    network: &N,
    place: ExpertPlace,
    records: &[CheckpointRecord],
    (than, wanted): (Option<CheckpointVersion>, Option<CheckpointVersion>),
    refused: &mut Vec<CheckpointVersion>,
) -> Result<Option<StoredExpert>, NewestError> {
    let me = network.key().public();
    let mut keepers = vec![Keeper::Backbone];
    let counted = records.iter().filter(|record| !refused.contains(&record.checkpoint.version()));
    let of_records = counted.take(2).flat_map(|record| record.keepers.clone());
    let of_backbone = network.keepers(place).await.map_err(NewestError::Keepers)?;
    for host in of_records.chain(of_backbone).filter(|host| host.peer != me) {
        if !keepers.iter().any(|keeper| matches!(keeper, Keeper::Host(known) if known.peer == host.peer)) {
            keepers.push(Keeper::Host(host));
        }
    }
    let is_newer = |checkpoint: &ExpertCheckpoint| {
        let version = checkpoint.version();
        Some(version) > than && !refused.contains(&version) && is_believed(network, place, checkpoint)
    };
    let mut offers: Vec<(ExpertCheckpoint, Option<Keeper>)> = Vec::new();
    offers.extend(network.kept_here(place).filter(is_newer).map(|checkpoint| (checkpoint, None)));
    let asked = keepers.into_iter().map(|keeper| async {
        let answer = kept_by(network, &keeper, place).await;
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
            Err(error) => network.on_trouble(CopyTrouble::Silent(&keeper, &error)),
        }
    }
    // Those that are asked still would hold what they hold, and nobody looks after them.
    drop(answers);
    offers.sort_by_key(|(checkpoint, _)| std::cmp::Reverse(checkpoint.version()));
    let mut partial: Option<Partial> = None;
    for (checkpoint, keeper) in offers {
        let version = checkpoint.version();
        if refused.contains(&version) {
            continue;
        }
        let Some(layer) = layer_of(network.layers(), place) else { continue };
        let Some(bytes) = fetch(network, place, &checkpoint, keeper.as_ref(), &mut partial).await else {
            continue;
        };
        match network.opened(bytes, layer, version).await {
            Ok(stored) => return Ok(Some(stored)),
            Err(error) => {
                network.on_trouble(CopyTrouble::Useless(checkpoint.lease.holder, &error));
                refused.push(version);
            }
        }
    }
    Ok(None)
}

async fn kept_by<N: KeeperNetwork>(
    network: &N,
    keeper: &Keeper,
    place: ExpertPlace,
) -> Result<Option<ExpertCheckpoint>, KeeperError> {
    let asking = async {
        let mut stream = network.open_keeper(keeper).await?;
        Ok(checkpoints::newest(&mut stream, network.run_id(), place).await?)
    };
    within(network, ASK_TIMEOUT, asking).await
}

fn is_believed<N: KeeperNetwork>(network: &N, place: ExpertPlace, checkpoint: &ExpertCheckpoint) -> bool {
    let n_bytes = checkpoint.transfer.n_bytes;
    let is_of_layer = |layer: &HostedLayer| layer.is_checkpoint_size(n_bytes);
    checkpoint.lease.place == place
        && layer_of(network.layers(), place).is_some_and(is_of_layer)
        && network.grantors().is_some_and(|grantors| checkpoint.is_valid(network.run_id(), &grantors))
}

/// Pulls a checkpoint from a keeper, going on where another keeper of the same bytes was lost; or reads it, where it is kept here.
async fn fetch<N: KeeperNetwork>(
    network: &N,
    place: ExpertPlace,
    checkpoint: &ExpertCheckpoint,
    keeper: Option<&Keeper>,
    partial: &mut Option<Partial>,
) -> Option<Vec<u8>> {
    let transfer = checkpoint.transfer;
    let Some(keeper) = keeper else { return network.read_kept(place, transfer.sha256).await };
    let partial = match partial {
        Some(partial) if partial.transfer() == transfer => partial,
        partial => partial.insert(Partial::new(transfer, transfer.n_bytes).ok()?),
    };
    let fetching = async {
        let mut stream = network.open_keeper(keeper).await?;
        Ok(checkpoints::fetch(&mut stream, network.run_id(), place, partial).await?)
    };
    match within(network, ASK_TIMEOUT + transfer_time(transfer.n_bytes), fetching).await {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            network.on_trouble(CopyTrouble::NotFetched(keeper, &error));
            None
        }
    }
}
