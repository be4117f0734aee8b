//! Checkpoints of a host's experts at other peers: gives them away, and takes the newest one of an expert that is new here, and those
//! of its other copies.

use std::collections::BTreeMap;
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
    self, CheckpointError, CheckpointRank, CheckpointRefusal, CheckpointVersion, ExpertCheckpoint,
    OfferOutcome, transfer_time,
};
use barnraise_protocol::experts::leases::{CopyHolder, ExpertLease, Grantors, KnownHost};
use barnraise_swarm::experts::checkpoints::KEEPERS_WANTED;
use futures::io::{AsyncRead, AsyncWrite};
use futures::stream::{FuturesUnordered, StreamExt as _};

use super::device::ExpertJob;
use super::stored::{CopyState, StoredExpert, StoredExpertError};
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

/// Longest time for all that the other copies of an expert have learned.
const COPIES_TIME_MAX: Duration = Duration::from_secs(120);

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
    /// Likewise.
    #[error("the backbone does not say who has its copies: {0}")]
    Holders(PlatformError),
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
    /// They are averaged another time.
    #[error("the other copies of an expert are not known: {0}")]
    NoCopies(&'a NewestError),
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

    /// The hosts that have copies of an expert now, as the backbone says.
    fn holders(&self, place: ExpertPlace) -> impl Future<Output = Result<Vec<CopyHolder>, PlatformError>>;

    /// The checkpoints of an expert's copies that this host keeps for others.
    fn kept_here(&self, place: ExpertPlace) -> Vec<ExpertCheckpoint> {
        let _ = place;
        Vec::new()
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

/// The last state of each other copy of an expert that was averaged.
pub type LastAveraged = BTreeMap<u8, CheckpointVersion>;

/// Which states of other copies a host has averaged its experts with.
#[derive(Debug, Default)]
pub struct AveragedCopies(BTreeMap<ExpertPlace, LastAveraged>);

impl AveragedCopies {
    /// Of one expert.
    pub fn of(&self, place: &ExpertPlace) -> LastAveraged {
        self.0.get(place).cloned().unwrap_or_default()
    }

    /// What [`other_copies`] gave for an expert with this number: the device is to average it with what is new. `None` where it has no
    /// other copies, and had none.
    pub fn job(
        &mut self,
        (place, expert): (ExpertPlace, u32),
        others: Option<Vec<CopyState>>,
    ) -> Option<ExpertJob> {
        let Some(mut others) = others else {
            return self.0.remove(&place).map(|_| ExpertJob::Average { expert, others: None });
        };
        let last = self.0.entry(place).or_default();
        // Another one may have come since these were asked for.
        others.retain(|other| is_new(last, other.copy, other.version));
        last.extend(others.iter().map(|other| (other.copy, other.version)));
        Some(ExpertJob::Average { expert, others: Some(others) })
    }

    /// This host has the expert no longer.
    pub fn on_removed(&mut self, place: &ExpertPlace) {
        self.0.remove(place);
    }
}

/// Whether a state of a copy is later than the last one that was averaged. Keepers have older ones, too.
fn is_new(last: &LastAveraged, copy: u8, version: CheckpointVersion) -> bool {
    last.get(&copy).is_none_or(|last| version > *last)
}

async fn within<N: KeeperNetwork, T>(
    network: &N,
    limit: Duration,
    work: impl Future<Output = Result<T, KeeperError>>,
) -> Result<T, KeeperError> {
    before(network.sleep(limit), work).await.unwrap_or(Err(KeeperError::Timeout))
}

/// Signs what was stored, and gives it to [`KEEPERS_WANTED`] peers, hosts before the backbone, and tells the DHT. Returns how many keep it.
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
        if keepers.len() >= KEEPERS_WANTED {
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

/// The newest state of an expert that other peers keep, if it is newer than `own`, which is one of the expert itself. Where one is known
/// to be newer than all that can be had, it is waited for a while. Those that are `refused` do not count, and those that turn out to be no
/// state of this expert neither: the next one does, so that nobody takes a place from the run by what it has signed.
///
/// # Errors
/// Neither the DHT nor the backbone says what there is: the expert may have learned much elsewhere.
pub async fn newest<N: KeeperNetwork>(
    network: &N,
    place: ExpertPlace,
    own: Option<CheckpointVersion>,
    mut refused: Vec<CheckpointVersion>,
) -> Result<Option<StoredExpert>, NewestError> {
    let mut found: Option<(CheckpointRank, StoredExpert)> = None;
    let mut tried = Ok(());
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            network.sleep(PAUSE).await;
        }
        let newest_here = |found: &Option<(CheckpointRank, StoredExpert)>| {
            let found = found.as_ref().map(|(rank, _)| *rank);
            [own.map(CheckpointRank::of_expert), found].into_iter().flatten().max()
        };
        let records = match recorded(network, place).await {
            Ok(records) => records,
            Err(error) => {
                tried = Err(NewestError::LookUp(error));
                continue;
            }
        };
        let newest_wanted = |refused: &[CheckpointVersion]| {
            let counted = records.iter().map(|record| &record.checkpoint);
            counted.filter(|made| !refused.contains(&made.version())).map(ExpertCheckpoint::rank).max()
        };
        let ranks = (newest_here(&found), newest_wanted(&refused));
        match from_keepers(network, place, &records, ranks, &mut refused).await {
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
    tried.map(|()| found.map(|(_, stored)| stored))
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
    records.sort_by_key(|record| std::cmp::Reverse(record.checkpoint.rank()));
    Ok(records)
}

/// What the other copies of an expert that have a host now have learned since they were `averaged`; `None` where there are no others.
/// `lease` is that of the copy here. What does not come within [`COPIES_TIME_MAX`] is averaged another time.
pub async fn other_copies<N: KeeperNetwork>(
    network: &N,
    lease: &ExpertLease,
    averaged: &LastAveraged,
) -> Option<Vec<CopyState>> {
    let mut found = Vec::new();
    let taking = take_copies(network, lease, averaged, &mut found);
    match before(network.sleep(COPIES_TIME_MAX), taking).await {
        Some(Ok(false)) => return None,
        Some(Ok(true)) | None => {}
        Some(Err(error)) => network.on_trouble(CopyTrouble::NoCopies(&error)),
    }
    Some(found)
}

/// Returns whether there are other copies.
async fn take_copies<N: KeeperNetwork>(
    network: &N,
    lease: &ExpertLease,
    averaged: &LastAveraged,
    found: &mut Vec<CopyState>,
) -> Result<bool, NewestError> {
    let place = lease.place;
    let mut others = network.holders(place).await.map_err(NewestError::Holders)?;
    others.retain(|other| other.copy != lease.copy && other.holder != lease.holder);
    if others.is_empty() {
        return Ok(false);
    }
    // What the holder of before has left is not one of the copies.
    let is_wanted = |made: &ExpertCheckpoint| {
        let of = CopyHolder { copy: made.lease.copy, holder: made.lease.holder };
        others.contains(&of) && is_new(averaged, of.copy, made.version())
    };
    let mut records = recorded(network, place).await.map_err(NewestError::LookUp)?;
    records.retain(|record| is_wanted(&record.checkpoint));
    let mut offers = offered(network, place, &records, is_wanted, |_| false).await?;
    let mut partial = None;
    for CopyHolder { copy, .. } in &others {
        let of_copy: Vec<_> = offers.extract_if(.., |(made, _)| made.lease.copy == *copy).collect();
        let newest = of_copy.first().map(|(made, _)| made.version());
        // Its keepers one after the other, and none of an older state.
        for (made, keeper) in of_copy.into_iter().filter(|(made, _)| Some(made.version()) == newest) {
            if let Some(taken) = taken(network, place, (&made, keeper.as_ref()), &mut partial).await {
                let parameters = taken.map(|stored| stored.state.parameters).unwrap_or_default();
                found.push(CopyState { copy: *copy, version: made.version(), parameters });
                break;
            }
        }
    }
    Ok(true)
}

/// A checkpoint, and the keeper that has it where it is not kept here.
type OfferedCheckpoint = (ExpertCheckpoint, Option<Keeper>);

/// The newest checkpoint that a keeper has, if it is newer than `than`. Where it is `wanted`, nobody else is waited for.
async fn from_keepers<N: KeeperNetwork>(
    network: &N,
    place: ExpertPlace,
    records: &[CheckpointRecord],
    (than, wanted): (Option<CheckpointRank>, Option<CheckpointRank>),
    refused: &mut Vec<CheckpointVersion>,
) -> Result<Option<(CheckpointRank, StoredExpert)>, NewestError> {
    let is_refused = |made: &ExpertCheckpoint| refused.contains(&made.version());
    let counted: Vec<CheckpointRecord> =
        records.iter().filter(|record| !is_refused(&record.checkpoint)).take(2).cloned().collect();
    let is_newer = |made: &ExpertCheckpoint| Some(made.rank()) > than && !is_refused(made);
    let is_enough = |made: &ExpertCheckpoint| wanted.is_some_and(|wanted| made.rank() >= wanted);
    let offers = offered(network, place, &counted, is_newer, is_enough).await?;
    let mut partial: Option<Partial> = None;
    for (checkpoint, keeper) in offers {
        let version = checkpoint.version();
        if refused.contains(&version) {
            continue;
        }
        match taken(network, place, (&checkpoint, keeper.as_ref()), &mut partial).await {
            Some(Ok(stored)) => return Ok(Some((checkpoint.rank(), stored))),
            Some(Err(_)) => refused.push(version),
            None => {}
        }
    }
    Ok(None)
}

/// The checkpoints of an expert's copies that `is_wanted` at its keepers, those of the records and those that the backbone names; the
/// newest first. Where one `is_enough`, nobody else is waited for.
async fn offered<N: KeeperNetwork>(
    network: &N,
    place: ExpertPlace,
    records: &[CheckpointRecord],
    is_wanted: impl Fn(&ExpertCheckpoint) -> bool,
    is_enough: impl Fn(&ExpertCheckpoint) -> bool,
) -> Result<Vec<OfferedCheckpoint>, NewestError> {
    let me = network.key().public();
    let mut keepers = vec![Keeper::Backbone];
    let of_records = records.iter().flat_map(|record| record.keepers.clone());
    let of_backbone = network.keepers(place).await.map_err(NewestError::Keepers)?;
    for host in of_records.chain(of_backbone).filter(|host| host.peer != me) {
        if !keepers.iter().any(|keeper| matches!(keeper, Keeper::Host(known) if known.peer == host.peer)) {
            keepers.push(Keeper::Host(host));
        }
    }
    let is_wanted = |made: &ExpertCheckpoint| is_wanted(made) && is_believed(network, place, made);
    let mut offers: Vec<OfferedCheckpoint> = Vec::new();
    offers.extend(network.kept_here(place).into_iter().filter(is_wanted).map(|made| (made, None)));
    let asked = keepers.into_iter().map(|keeper| async {
        let answer = kept_by(network, &keeper, place).await;
        (keeper, answer)
    });
    let mut answers: FuturesUnordered<_> = asked.collect();
    // One that is gone is waited for only where none has what is wanted.
    while !offers.iter().any(|(made, _)| is_enough(made))
        && let Some((keeper, answer)) = answers.next().await
    {
        match answer {
            Ok(kept) => {
                offers.extend(kept.into_iter().filter(is_wanted).map(|made| (made, Some(keeper.clone()))));
            }
            // Others may be gone, and this one is there.
            Err(error) if keeper == Keeper::Backbone => return Err(error.into()),
            Err(error) => network.on_trouble(CopyTrouble::Silent(&keeper, &error)),
        }
    }
    // Those that are asked still would hold what they hold, and nobody looks after them.
    drop(answers);
    offers.sort_by_key(|(made, _)| std::cmp::Reverse(made.rank()));
    Ok(offers)
}

/// The state of a checkpoint. `None` where it does not come; an error where it is of no use, at any keeper.
async fn taken<N: KeeperNetwork>(
    network: &N,
    place: ExpertPlace,
    (checkpoint, keeper): (&ExpertCheckpoint, Option<&Keeper>),
    partial: &mut Option<Partial>,
) -> Option<Result<StoredExpert, StoredExpertError>> {
    let layer = layer_of(network.layers(), place)?;
    let bytes = fetch(network, place, checkpoint, keeper, partial).await?;
    let opened = network.opened(bytes, layer, checkpoint.version()).await;
    Some(opened.inspect_err(|error| {
        network.on_trouble(CopyTrouble::Useless(checkpoint.lease.holder, error));
    }))
}

async fn kept_by<N: KeeperNetwork>(
    network: &N,
    keeper: &Keeper,
    place: ExpertPlace,
) -> Result<Vec<ExpertCheckpoint>, KeeperError> {
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
