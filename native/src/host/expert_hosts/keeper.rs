//! Keeps the newest checkpoints of other hosts' experts on this peer's disk: a host of experts does, and a backbone where there are
//! too few of them.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::checkpoints::{
    self, CheckpointAnswer, CheckpointError, CheckpointQuestion, CheckpointRefusal, ExpertCheckpoint,
};
use barnraise_protocol::experts::leases::Grantors;
use barnraise_relay::Paced;
use barnraise_swarm::Moment;
use barnraise_swarm::experts::checkpoints::{CheckpointShelf, OfferVerdict};
use barnraise_swarm::guard::PaceLimits;
use futures::{AsyncRead, AsyncWrite};
use object_store::path::Path as ObjectPath;

use super::layers::{HostedLayer, layer_of, name};
use crate::computing::compute;
use crate::storage::sealed::{self, ObjectKind};
use crate::storage::{Storage, StorageError};

const KIND: ObjectKind = ObjectKind { name: *b"expk", what: "kept expert", version: 1 };
const FOLDER: &str = "kept-experts";
/// The envelope and the header of a kept checkpoint are within its first bytes.
const HEADER_BYTES_MAX: u64 = 8192;
/// Limits on how slowly hosts may offer and take.
pub(crate) const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(30),
    message: Duration::from_secs(30),
    stall: Duration::from_secs(30),
    bytes_per_second_min: 1024,
};

/// The checkpoints of one run that this peer keeps.
pub(crate) struct CheckpointKeeper {
    run_id: String,
    layers: Vec<HostedLayer>,
    /// Whose grants make a lease; until it is known, no offer is believed.
    grantors: OnceLock<Grantors>,
    storage: Storage,
    run: Sha256Hash,
    shelf: Mutex<CheckpointShelf>,
    started: Instant,
}

/// What an offer has reserved, until it is stored.
struct IncomingCheckpoint<'k> {
    keeper: &'k CheckpointKeeper,
    place: ExpertPlace,
}

impl Drop for IncomingCheckpoint<'_> {
    fn drop(&mut self) {
        // Nothing, where it was stored.
        self.keeper.shelf().on_lost(&self.place);
    }
}

impl CheckpointKeeper {
    /// Opens what was kept before, of the run with this hash.
    ///
    /// # Errors
    /// The storage cannot be listed or read.
    pub(crate) async fn open(
        (run_id, run): (&str, Sha256Hash),
        layers: Vec<HostedLayer>,
        storage: Storage,
        bytes_max: u64,
    ) -> Result<Self, StorageError> {
        let folder = ObjectPath::from_iter([FOLDER.to_owned(), run.to_string()]);
        let mut kept = Vec::new();
        for object in storage.list(&folder).await? {
            let start = storage.get_start(&object.location, HEADER_BYTES_MAX).await?;
            let header = start.map(|start| sealed::peek_header::<ExpertCheckpoint>(KIND, &start));
            match header {
                Some(Ok(checkpoint)) if object.location.filename() == Some(&name(checkpoint.lease.place)) => {
                    kept.push(checkpoint);
                }
                // Others keep it too; its place is free for the next one.
                _ => storage.delete(&object.location).await?,
            }
        }
        let shelf = Mutex::new(CheckpointShelf::new(Moment::ZERO, bytes_max, kept));
        let (run_id, grantors, started) = (run_id.to_owned(), OnceLock::new(), Instant::now());
        Ok(Self { run_id, layers, grantors, storage, run, shelf, started })
    }

    /// The backbones whose grants make a lease are known.
    pub(crate) fn set_grantors(&self, grantors: &Grantors) {
        self.grantors.get_or_init(|| grantors.clone());
    }

    /// Whose grants make a lease, once that is known.
    pub(crate) fn grantors(&self) -> Option<&Grantors> {
        self.grantors.get()
    }

    fn shelf(&self) -> MutexGuard<'_, CheckpointShelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, place: ExpertPlace) -> ObjectPath {
        ObjectPath::from_iter([FOLDER.to_owned(), self.run.to_string(), name(place)])
    }

    /// Answers questions of a peer until it closes the stream.
    ///
    /// # Errors
    /// The stream failed, or what came is none of this conversation.
    pub(crate) async fn serve<S>(&self, peer: PublicKey, stream: &mut Paced<S>) -> Result<(), CheckpointError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let pace = stream.pace();
        loop {
            pace.wait();
            let Some(question) = checkpoints::receive(stream).await? else { return Ok(()) };
            pace.answer();
            let Some(place) = question.place(&self.run_id).filter(|place| self.has(*place)) else {
                checkpoints::reply(stream, &CheckpointAnswer::Refused(CheckpointRefusal::Unknown)).await?;
                continue;
            };
            match question {
                CheckpointQuestion::Offer { checkpoint, .. } => {
                    let answer = match self.on_offer(peer, stream, checkpoint).await {
                        Err(CheckpointError::Refused(refusal)) => CheckpointAnswer::Refused(refusal),
                        answer => answer?,
                    };
                    checkpoints::reply(stream, &answer).await?;
                }
                CheckpointQuestion::Newest { .. } => {
                    let newest = self.newest(&place);
                    checkpoints::reply(stream, &CheckpointAnswer::Found(newest)).await?;
                }
                CheckpointQuestion::Get { sha256, .. } => match self.read(place, sha256).await {
                    Some((transfer, bytes)) => checkpoints::send(stream, transfer, &bytes).await?,
                    None => {
                        let gone = CheckpointAnswer::Refused(CheckpointRefusal::Gone);
                        checkpoints::reply(stream, &gone).await?;
                    }
                },
            }
        }
    }

    fn has(&self, place: ExpertPlace) -> bool {
        layer_of(&self.layers, place).is_some()
    }

    async fn on_offer<S>(
        &self,
        peer: PublicKey,
        stream: &mut Paced<S>,
        checkpoint: ExpertCheckpoint,
    ) -> Result<CheckpointAnswer, CheckpointError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (place, transfer) = (checkpoint.lease.place, checkpoint.transfer);
        let is_own = checkpoint.lease.holder == peer;
        let is_lease = |grantors: &Grantors| checkpoint.is_valid(&self.run_id, grantors);
        if !is_own || !self.grantors.get().is_some_and(is_lease) {
            return Err(CheckpointRefusal::Lease.into());
        }
        let layer = layer_of(&self.layers, place).ok_or(CheckpointRefusal::Unknown)?;
        let bytes_max = layer.checkpoint_bytes_max();
        let verdict = self.shelf().on_offer(self.started.elapsed(), &checkpoint, bytes_max)?;
        let OfferVerdict::Wanted { evicted } = verdict else { return Ok(CheckpointAnswer::AlreadyKept) };
        let incoming = IncomingCheckpoint { keeper: self, place };
        for place in evicted {
            if let Err(error) = self.storage.delete(&self.path(place)).await {
                tracing::debug!(%error, "a kept checkpoint could not be deleted");
            }
        }
        let bytes = checkpoints::take_offered(stream, transfer, bytes_max).await?;
        let stored = self.store(checkpoint, bytes).await;
        drop(incoming);
        Ok(stored?)
    }

    /// Stores what came. A full disk is a refusal, and what was kept before stays.
    async fn store(
        &self,
        checkpoint: ExpertCheckpoint,
        bytes: Vec<u8>,
    ) -> Result<CheckpointAnswer, CheckpointRefusal> {
        let path = self.path(checkpoint.lease.place);
        let header = checkpoint.clone();
        let sealing = move || sealed::seal_parts(KIND, &header, &[&bytes]);
        let sealed = compute(usize::try_from(checkpoint.transfer.n_bytes).unwrap_or(usize::MAX), sealing);
        let sealed = sealed.await.map_err(|_| CheckpointRefusal::Full)?;
        self.storage.put(&path, sealed).await.map_err(|error| {
            tracing::warn!(%error, "a checkpoint of an expert could not be kept");
            CheckpointRefusal::Full
        })?;
        let now = self.started.elapsed();
        self.shelf().on_kept(now, checkpoint);
        Ok(CheckpointAnswer::Kept)
    }

    /// What is kept of an expert.
    pub(crate) fn newest(&self, place: &ExpertPlace) -> Option<ExpertCheckpoint> {
        self.shelf().newest(place).cloned()
    }

    /// The bytes of a checkpoint that is kept.
    pub(crate) async fn read(&self, place: ExpertPlace, sha256: Sha256Hash) -> Option<(Transfer, Arc<[u8]>)> {
        let transfer = self.shelf().with_hash(&place, &sha256).map(|kept| kept.transfer)?;
        let read = self.storage.get(&self.path(place), transfer.n_bytes + HEADER_BYTES_MAX).await;
        let opened = match read {
            Ok(Some(sealed)) => {
                let opening = move || {
                    let opened = sealed::open_parts::<ExpertCheckpoint>(KIND, &sealed);
                    opened.map(|(checkpoint, bytes)| (checkpoint.transfer, Arc::<[u8]>::from(bytes)))
                };
                compute(usize::try_from(transfer.n_bytes).unwrap_or(usize::MAX), opening).await.ok()
            }
            Ok(None) => None,
            // The disk may answer later.
            Err(_) => return None,
        };
        // A newer one may have come meanwhile.
        match opened {
            Some((got, bytes)) if got == transfer => Some((transfer, bytes)),
            Some(_) => None,
            None => {
                self.shelf().on_damaged(&place);
                None
            }
        }
    }
}

/// Refuses the first question of a peer.
///
/// # Errors
/// The stream failed, or what came is none of this conversation.
pub(crate) async fn refuse<S>(stream: &mut S, refusal: CheckpointRefusal) -> Result<(), CheckpointError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if checkpoints::receive(stream).await?.is_some() {
        checkpoints::reply(stream, &CheckpointAnswer::Refused(refusal)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use barnraise_learning::DataShape;
    use barnraise_protocol::access::{KeyPair, UnixTime};
    use barnraise_protocol::bulk::Partial;
    use barnraise_protocol::dataset::ImageShape;
    use barnraise_protocol::experts::checkpoints::OfferOutcome;
    use barnraise_protocol::experts::leases::{ExpertLease, LeaseGrant};
    use barnraise_protocol::experts::{ExpertUid, LayerId};
    use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

    use super::*;
    use crate::config::RunConfig;
    use crate::storage::simulated::SimulatedDisk;

    const RUN: Sha256Hash = Sha256Hash([5; 32]);
    const MODEL: &str = r#"
[run]
id = "barn"

[model.kind.graph]
name = "experts"
loss = "classification"
parts = [{ name = "expert", blocks = [{ name = "only", op = { dense = { units = 4 } } }] }]
blocks = [
    { name = "flat", op = "flatten" },
    { name = "first", op = { dense = { units = 4 } } },
    { name = "moe", op = { experts = { part = "expert", side = 8, active = 2 } } },
    { name = "fc", op = { dense = { units = "classes" } } },
]

[model.experts]
"#;

    fn layers() -> Vec<HostedLayer> {
        let config = RunConfig::parse(MODEL, Path::new("run.toml")).unwrap();
        let shape = ImageShape { height: 28, width: 28, channels: 1 };
        HostedLayer::of_model(&config.model_spec(), DataShape::Images { shape, n_classes: 10 }).unwrap()
    }

    fn key(at: u8) -> KeyPair {
        KeyPair::from_seed(&[at; 32])
    }

    fn place(index: u16) -> ExpertPlace {
        (LayerId(0), ExpertUid::new(&[index]).unwrap())
    }

    /// What the host 9 has of an expert, under a lease of the backbone 1.
    fn checkpoint(index: u16, term: u64, bytes: &[u8]) -> ExpertCheckpoint {
        let (place, holder) = (place(index), key(9).public());
        let grant = LeaseGrant::sign(&key(1), "barn", (place, holder, term), UnixTime(1)).unwrap();
        let lease = ExpertLease { place, holder, term, grants: vec![grant] };
        ExpertCheckpoint::sign(&key(9), "barn", (lease, 7, Transfer::of(bytes))).unwrap()
    }

    async fn keeper(disk: &SimulatedDisk) -> CheckpointKeeper {
        let storage = Storage::on(Arc::new(disk.clone()));
        let keeper = CheckpointKeeper::open(("barn", RUN), layers(), storage, 1 << 20).await.unwrap();
        keeper.set_grantors(&Grantors::new([key(1).public()]).unwrap());
        keeper
    }

    /// Holds a conversation of the peer with this key with the keeper.
    async fn with<T>(
        keeper: &CheckpointKeeper,
        peer: u8,
        conversation: impl AsyncFnOnce(&mut Compat<tokio::io::DuplexStream>) -> T,
    ) -> T {
        let (ours, theirs) = tokio::io::duplex(16 * 1024);
        let (mut ours, mut theirs) = (ours.compat(), Paced::new(theirs.compat(), PACE));
        let speaking = async {
            let said = conversation(&mut ours).await;
            drop(ours);
            said
        };
        let (said, served) = futures::join!(speaking, keeper.serve(key(peer).public(), &mut theirs));
        served.unwrap();
        said
    }

    async fn offer(
        keeper: &CheckpointKeeper,
        peer: u8,
        checkpoint: &ExpertCheckpoint,
        bytes: &[u8],
    ) -> Result<OfferOutcome, CheckpointRefusal> {
        let bytes = Arc::from(bytes);
        let offering =
            async |stream: &mut Compat<_>| checkpoints::offer(stream, "barn", checkpoint, &bytes).await;
        match with(keeper, peer, offering).await {
            Ok(outcome) => Ok(outcome),
            Err(CheckpointError::Refused(refusal)) => Err(refusal),
            Err(error) => panic!("{error}"),
        }
    }

    async fn taken(keeper: &CheckpointKeeper, index: u16) -> Option<Vec<u8>> {
        let taking = async |stream: &mut Compat<_>| {
            let newest = checkpoints::newest(stream, "barn", place(index)).await.unwrap()?;
            let mut partial = Partial::new(newest.transfer, 1 << 20).unwrap();
            Some(checkpoints::fetch(stream, "barn", place(index), &mut partial).await.unwrap())
        };
        with(keeper, 8, taking).await
    }

    #[tokio::test]
    async fn what_is_kept_is_there_for_the_next_host_also_after_a_restart() {
        let disk = SimulatedDisk::new(3);
        let kept = keeper(&disk).await;
        let (old, new) = (vec![1; 100_000], vec![2; 90_000]);
        assert_eq!(taken(&kept, 3).await, None);
        assert_eq!(offer(&kept, 9, &checkpoint(3, 5, &old), &old).await, Ok(OfferOutcome::Kept));
        assert_eq!(offer(&kept, 9, &checkpoint(3, 5, &old), &old).await, Ok(OfferOutcome::AlreadyKept));
        assert_eq!(taken(&kept, 3).await, Some(old.clone()));
        assert_eq!(offer(&kept, 9, &checkpoint(3, 6, &new), &new).await, Ok(OfferOutcome::Kept));
        assert_eq!(offer(&kept, 9, &checkpoint(3, 5, &old), &old).await, Ok(OfferOutcome::AlreadyKept));
        drop(kept);
        let again = keeper(&disk).await;
        assert_eq!(again.newest(&place(3)), Some(checkpoint(3, 6, &new)));
        assert_eq!(taken(&again, 3).await, Some(new));
    }

    #[tokio::test]
    async fn nothing_is_kept_for_a_peer_that_is_not_the_host() {
        let kept = keeper(&SimulatedDisk::new(3)).await;
        let bytes = vec![1; 1000];
        let good = checkpoint(3, 5, &bytes);
        assert_eq!(offer(&kept, 8, &good, &bytes).await, Err(CheckpointRefusal::Lease), "it is not its own");
        let mut forged = good.clone();
        forged.lease.term = 6;
        assert_eq!(offer(&kept, 9, &forged, &bytes).await, Err(CheckpointRefusal::Lease));
        let mut ungranted = good.clone();
        ungranted.lease.grants.clear();
        assert_eq!(offer(&kept, 9, &ungranted, &bytes).await, Err(CheckpointRefusal::Lease));
        assert_eq!(offer(&kept, 9, &checkpoint(8, 5, &bytes), &bytes).await, Err(CheckpointRefusal::Unknown));
        let max = layers()[0].checkpoint_bytes_max().min(1 << 20);
        let large = vec![1; max as usize + 1];
        let too_large = CheckpointRefusal::TooLarge { max, got: max + 1 };
        assert_eq!(offer(&kept, 9, &checkpoint(3, 5, &large), &large).await, Err(too_large));
        assert_eq!(kept.newest(&place(3)), None);
    }

    #[tokio::test]
    async fn a_full_disk_refuses_and_loses_nothing() {
        let disk = SimulatedDisk::new(3);
        let kept = keeper(&disk).await;
        let (old, new) = (vec![1; 10_000], vec![2; 100_000]);
        offer(&kept, 9, &checkpoint(3, 5, &old), &old).await.unwrap();
        disk.holds(disk.n_bytes_used() + 20_000);
        assert_eq!(offer(&kept, 9, &checkpoint(3, 6, &new), &new).await, Err(CheckpointRefusal::Full));
        assert_eq!(offer(&kept, 9, &checkpoint(4, 6, &new), &new).await, Err(CheckpointRefusal::Full));
        assert_eq!(taken(&kept, 3).await, Some(old.clone()));
        disk.holds(1 << 20);
        assert_eq!(offer(&kept, 9, &checkpoint(3, 6, &new), &new).await, Ok(OfferOutcome::Kept));
        // A stream that breaks in the middle leaves no trace either.
        let broken = async |stream: &mut Compat<_>| {
            let question =
                CheckpointQuestion::Offer { run_id: "barn".into(), checkpoint: checkpoint(3, 7, &old) };
            barnraise_protocol::framing::write(stream, &question, checkpoints::MESSAGE_BYTES_MAX)
                .await
                .unwrap();
        };
        let (ours, theirs) = tokio::io::duplex(16 * 1024);
        let (mut ours, mut theirs) = (ours.compat(), Paced::new(theirs.compat(), PACE));
        broken(&mut ours).await;
        drop(ours);
        kept.serve(key(9).public(), &mut theirs).await.unwrap_err();
        assert_eq!(taken(&kept, 3).await, Some(new));
        assert_eq!(offer(&kept, 9, &checkpoint(3, 7, &old), &old).await, Ok(OfferOutcome::Kept));
    }
}
