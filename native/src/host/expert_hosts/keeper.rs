//! Keeps the newest checkpoints of other hosts' experts, one of each copy, on this peer's disk: a host of experts does, and a backbone
//! where there are too few of them.
//!
//! A file is named after its place, copy and bytes, and never changes: who reads it while a newer one comes reads no mixture of both.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use barnraise_learning::hosted::{HostedLayer, layer_of};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{PublicKey, UnixTime};
use barnraise_protocol::bulk::{self, BulkError, ChunkSource, Withdrawn};
use barnraise_protocol::experts::checkpoints::{
    self, BYTES_PER_SECOND_MIN, CheckpointAnswer, CheckpointError, CheckpointQuestion, CheckpointRefusal,
    ExpertCheckpoint, transfer_time,
};
use barnraise_protocol::experts::leases::{ExpertLease, Grantors};
use barnraise_protocol::experts::{ExpertCopy, ExpertPlace};
use barnraise_protocol::hash::Hasher;
use barnraise_protocol::sealed::{self, ObjectKind};
use barnraise_relay::Paced;
use barnraise_swarm::Moment;
use barnraise_swarm::experts::checkpoints::{CheckpointShelf, OfferVerdict};
use barnraise_swarm::guard::PaceLimits;
use futures::{AsyncRead, AsyncWrite};
use object_store::path::Path as ObjectPath;

use super::name;
use crate::computing::compute;
use crate::host::clock::system_clock;
use crate::storage::{Storage, StorageError};

const KIND: ObjectKind = ObjectKind { name: *b"expk", what: "kept expert", version: 2 };
const FOLDER: &str = "kept-experts";
/// The envelope and the header of a kept checkpoint are within its first bytes.
const HEADER_BYTES_MAX: u64 = 8192;
/// Limits on how slowly hosts may offer and take.
pub(crate) const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(30),
    message: Duration::from_secs(30),
    stall: Duration::from_secs(30),
    bytes_per_second_min: BYTES_PER_SECOND_MIN,
};
/// Clocks of peers differ by so much.
const CLOCK_SKEW_MAX: u64 = 60;

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
    copy: ExpertCopy,
    /// The shelf has it, and what arrives for this copy now is another one.
    is_kept: bool,
}

impl Drop for IncomingCheckpoint<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.keeper.shelf().on_lost(&self.copy);
        }
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
        let mut kept: BTreeMap<ExpertCopy, ExpertCheckpoint> = BTreeMap::new();
        let mut n_other = 0;
        for object in storage.list(&folder).await? {
            let start = storage.get_start(&object.location, HEADER_BYTES_MAX).await?;
            let header = start.map(|start| sealed::peek_header::<ExpertCheckpoint>(KIND, &start));
            match header {
                Some(Ok((checkpoint, _)))
                    if object.location.filename() == Some(&file_name(&checkpoint))
                        && kept
                            .get(&checkpoint.lease.of())
                            .is_none_or(|other| other.version() < checkpoint.version()) =>
                {
                    // Two of one copy are there where the process ended before the older one was deleted.
                    if let Some(older) = kept.insert(checkpoint.lease.of(), checkpoint) {
                        storage.delete(&folder.clone().join(file_name(&older))).await?;
                    }
                }
                // What another version of this program wrote is for that version.
                Some(Err(error)) if error.is_version() => n_other += 1,
                // Others keep it too; its place is free for the next one.
                _ => storage.delete(&object.location).await?,
            }
        }
        if n_other > 0 {
            tracing::warn!(n_other, %folder, "checkpoints that another version of this program keeps stay as they are");
        }
        let kept = kept.into_values();
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

    fn path(&self, checkpoint: &ExpertCheckpoint) -> ObjectPath {
        ObjectPath::from_iter([FOLDER.to_owned(), self.run.to_string(), file_name(checkpoint)])
    }

    /// Deletes files that the shelf does not know any more.
    async fn delete(&self, checkpoints: &[ExpertCheckpoint]) {
        for checkpoint in checkpoints {
            if let Err(error) = self.storage.delete(&self.path(checkpoint)).await {
                tracing::debug!(%error, "a kept checkpoint could not be deleted");
            }
        }
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
                    let kept = self.kept(place);
                    checkpoints::reply(stream, &CheckpointAnswer::Found(kept)).await?;
                }
                CheckpointQuestion::Get { sha256, .. } => match self.opened(place, sha256).await {
                    Some(file) => {
                        let transfer = file.checkpoint.transfer;
                        checkpoints::reply(stream, &CheckpointAnswer::Sent(transfer)).await?;
                        let sending = bulk::serve_source(stream, &file);
                        let sent = tokio::time::timeout(transfer_time(transfer.n_bytes), sending).await;
                        sent.map_err(|_| too_slow())??;
                    }
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
        let (copy, transfer) = (checkpoint.lease.of(), checkpoint.transfer);
        let is_own = checkpoint.lease.holder == peer;
        let is_lease = |grantors: &Grantors| checkpoint.is_valid(&self.run_id, grantors);
        if !is_own || !self.grantors.get().is_some_and(is_lease) {
            return Err(CheckpointRefusal::Lease.into());
        }
        let layer = layer_of(&self.layers, copy.0).ok_or(CheckpointRefusal::Unknown)?;
        let (min, bytes_max) = (layer.checkpoint_bytes_min(), layer.checkpoint_bytes_max());
        if transfer.n_bytes < min {
            return Err(CheckpointRefusal::TooSmall { min, got: transfer.n_bytes }.into());
        }
        // A lease that is over keeps no file from being the oldest. That of an expert itself is followed by another one; a copy's is not.
        let is_kept = self.shelf().newest(&copy).is_some_and(|kept| kept.version() >= checkpoint.version());
        if !is_current(&checkpoint, system_clock()()) {
            if copy.1 > 0 {
                return Err(CheckpointRefusal::Lease.into());
            }
            if is_kept {
                return Ok(CheckpointAnswer::AlreadyKept);
            }
        }
        let verdict = self.shelf().on_offer(self.started.elapsed(), &checkpoint, bytes_max)?;
        let OfferVerdict::Wanted { .. } = verdict else { return Ok(CheckpointAnswer::AlreadyKept) };
        let mut incoming = IncomingCheckpoint { keeper: self, copy, is_kept: false };
        let taking = checkpoints::take_offered(stream, transfer, bytes_max);
        let bytes = tokio::time::timeout(transfer_time(transfer.n_bytes), taking).await;
        let bytes = bytes.map_err(|_| too_slow())??;
        self.store(&checkpoint, bytes).await?;
        incoming.is_kept = true;
        let gone = self.shelf().on_kept(self.started.elapsed(), checkpoint);
        // After the new one is here: a crash, or a full disk, costs none of them.
        self.delete(&gone).await;
        Ok(CheckpointAnswer::Kept)
    }

    /// Stores what came. A full disk is a refusal, and what was kept before stays.
    async fn store(&self, checkpoint: &ExpertCheckpoint, bytes: Vec<u8>) -> Result<(), CheckpointRefusal> {
        let path = self.path(checkpoint);
        let header = checkpoint.clone();
        let sealing = move || sealed::seal_parts(KIND, &header, &[&bytes]);
        let sealed = compute(usize::try_from(checkpoint.transfer.n_bytes).unwrap_or(usize::MAX), sealing);
        let sealed = sealed.await.map_err(|_| CheckpointRefusal::Full)?;
        self.storage.put(&path, sealed).await.map_err(|error| {
            tracing::warn!(%error, "a checkpoint of an expert could not be kept");
            CheckpointRefusal::Full
        })
    }

    /// What is kept of an expert: the newest checkpoint of each copy.
    pub(crate) fn kept(&self, place: ExpertPlace) -> Vec<ExpertCheckpoint> {
        self.shelf().of_place(place).cloned().collect()
    }

    /// All bytes of a checkpoint that is kept, for an expert of this peer.
    pub(crate) async fn read(&self, place: ExpertPlace, sha256: Sha256Hash) -> Option<Vec<u8>> {
        let checkpoint = self.shelf().with_hash(place, &sha256).cloned()?;
        let n_bytes = checkpoint.transfer.n_bytes;
        let sealed = match self.storage.get(&self.path(&checkpoint), n_bytes + HEADER_BYTES_MAX).await {
            Ok(sealed) => sealed,
            // The disk may answer later.
            Err(_) => return None,
        };
        let opening = move || {
            let sealed = sealed?;
            let (of_file, bytes) = sealed::open_parts::<ExpertCheckpoint>(KIND, &sealed).ok()?;
            (of_file.transfer.sha256 == sha256).then(|| bytes.to_vec())
        };
        let opened = compute(usize::try_from(n_bytes).unwrap_or(usize::MAX), opening).await;
        if opened.is_none() {
            self.on_damaged(&checkpoint);
        }
        opened
    }

    /// A checkpoint that is kept, to be read piece by piece.
    async fn opened(&self, place: ExpertPlace, sha256: Sha256Hash) -> Option<KeptFile<'_>> {
        let checkpoint = self.shelf().with_hash(place, &sha256).cloned()?;
        let start = self.storage.get_start(&self.path(&checkpoint), HEADER_BYTES_MAX).await.ok()?;
        let header = start.map(|start| sealed::peek_header::<ExpertCheckpoint>(KIND, &start));
        let Some(Ok((of_file, raw_at))) = header else {
            self.on_damaged(&checkpoint);
            return None;
        };
        if of_file.transfer != checkpoint.transfer {
            self.on_damaged(&checkpoint);
            return None;
        }
        Some(KeptFile { keeper: self, checkpoint, raw_at, hashed: Mutex::default() })
    }

    /// What is kept cannot be read: it is not offered any more, and the next one takes its place.
    fn on_damaged(&self, checkpoint: &ExpertCheckpoint) {
        let copy @ (place, _) = checkpoint.lease.of();
        let mut shelf = self.shelf();
        // A newer one may have come meanwhile.
        if shelf.with_hash(place, &checkpoint.transfer.sha256).is_some() {
            tracing::warn!(expert = %place.1, "a kept checkpoint is damaged");
            shelf.on_damaged(&copy);
        }
    }
}

/// The bytes of a checkpoint on the disk: a taker that is slow costs the memory of one chunk.
struct KeptFile<'k> {
    keeper: &'k CheckpointKeeper,
    checkpoint: ExpertCheckpoint,
    /// Where they begin in the file.
    raw_at: u64,
    /// Bytes that were read one after the other from the beginning, and their hash.
    hashed: Mutex<(u64, Hasher)>,
}

impl KeptFile<'_> {
    /// Damage shows once all bytes were read.
    fn on_read(&self, start: u64, bytes: &[u8]) {
        let mut hashed = self.hashed.lock().unwrap_or_else(PoisonError::into_inner);
        let (n_hashed, hasher) = &mut *hashed;
        if *n_hashed != start {
            return;
        }
        hasher.update(bytes);
        *n_hashed += bytes.len() as u64;
        let want = self.checkpoint.transfer;
        if *n_hashed == want.n_bytes && std::mem::take(hasher).finish() != want.sha256 {
            self.keeper.on_damaged(&self.checkpoint);
        }
    }
}

impl ChunkSource for KeptFile<'_> {
    fn n_bytes(&self) -> u64 {
        self.checkpoint.transfer.n_bytes
    }

    async fn read(&self, range: Range<u64>) -> Result<Vec<u8>, Withdrawn> {
        let n_bytes = range.end.saturating_sub(range.start);
        let of_file = self.raw_at + range.start..self.raw_at + range.end;
        let read = self.keeper.storage.get_range(&self.keeper.path(&self.checkpoint), of_file).await;
        match read {
            Ok(bytes) if bytes.len() as u64 == n_bytes => {
                self.on_read(range.start, &bytes);
                Ok(bytes.to_vec())
            }
            Ok(_) => {
                self.keeper.on_damaged(&self.checkpoint);
                Err(Withdrawn::because("the checkpoint is damaged here: ask another keeper"))
            }
            Err(_) => Err(Withdrawn::because("the checkpoint is not here any more: ask for the newest one")),
        }
    }
}

/// Copies may have the same bytes: who has one must not delete those of another.
fn file_name(checkpoint: &ExpertCheckpoint) -> String {
    let ExpertLease { place, copy, .. } = &checkpoint.lease;
    format!("{}-{copy}-{}", name(*place), checkpoint.transfer.sha256)
}

/// Whether the lease of a checkpoint may still hold, by one of its grants.
fn is_current(checkpoint: &ExpertCheckpoint, now: UnixTime) -> bool {
    let is_current = |at: u64| at.saturating_add(CLOCK_SKEW_MAX) > now.0;
    checkpoint.lease.grants.iter().any(|grant| is_current(grant.expires_at.0))
}

fn too_slow() -> CheckpointError {
    BulkError::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "the checkpoint came too slowly")).into()
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

    use std::sync::Arc;

    use barnraise_protocol::access::KeyPair;
    use barnraise_protocol::bulk::{Partial, Transfer};
    use barnraise_protocol::experts::checkpoints::OfferOutcome;
    use barnraise_protocol::experts::leases::LeaseGrant;
    use barnraise_protocol::experts::{ExpertUid, LayerId};
    use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

    use super::super::testing::layers;
    use super::*;
    use crate::storage::simulated::SimulatedDisk;

    const RUN: Sha256Hash = Sha256Hash([5; 32]);
    fn key(at: u8) -> KeyPair {
        KeyPair::from_seed(&[at; 32])
    }

    fn place(index: u16) -> ExpertPlace {
        (LayerId(0), ExpertUid::new(&[index]).unwrap())
    }

    /// What the host 9 has of an expert, under a lease of the backbone 1.
    fn checkpoint(index: u16, term: u64, bytes: &[u8]) -> ExpertCheckpoint {
        let (place, holder) = (place(index), key(9).public());
        let grant = LeaseGrant::sign(&key(1), "barn", ((place, 0), holder, term), UnixTime(1)).unwrap();
        let lease = ExpertLease { place, copy: 0, holder, term, grants: vec![grant] };
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
            let newest = checkpoints::newest(stream, "barn", place(index)).await.unwrap().pop()?;
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
        assert_eq!(again.kept(place(3)), [checkpoint(3, 6, &new)]);
        assert_eq!(taken(&again, 3).await, Some(new));
    }

    #[tokio::test]
    async fn a_copy_with_the_bytes_of_another_deletes_nothing_of_it() {
        let disk = SimulatedDisk::new(3);
        let kept = keeper(&disk).await;
        let (of_expert, other) = (vec![1; 100_000], vec![2; 100_000]);
        offer(&kept, 9, &checkpoint(3, 5, &of_expert), &of_expert).await.unwrap();
        let of_copy = |n_steps, bytes: &[u8], expires_at| {
            let (place, holder) = (place(3), key(9).public());
            let grant = LeaseGrant::sign(&key(1), "barn", ((place, 1), holder, 6), expires_at).unwrap();
            let lease = ExpertLease { place, copy: 1, holder, term: 6, grants: vec![grant] };
            ExpertCheckpoint::sign(&key(9), "barn", (lease, n_steps, Transfer::of(bytes))).unwrap()
        };
        let holds = UnixTime(u64::MAX / 2);
        offer(&kept, 9, &of_copy(1, &of_expert, holds), &of_expert).await.unwrap();
        offer(&kept, 9, &of_copy(2, &other, holds), &other).await.unwrap();
        // No lease follows that of a copy: one that is over has nothing kept.
        let over = offer(&kept, 9, &of_copy(3, &of_expert, UnixTime(1)), &of_expert).await;
        assert_eq!(over, Err(CheckpointRefusal::Lease));
        assert_eq!(files(&disk).await.len(), 2);
        let file = kept.opened(place(3), Transfer::of(&of_expert).sha256).await.unwrap();
        assert_eq!(file.read(0..10).await, Ok(vec![1; 10]));
    }

    async fn files(disk: &SimulatedDisk) -> Vec<String> {
        let listed = Storage::on(Arc::new(disk.clone())).list(&ObjectPath::from(FOLDER)).await.unwrap();
        listed.iter().filter_map(|file| Some(file.location.filename()?.to_owned())).collect()
    }

    #[tokio::test]
    async fn a_slow_taker_costs_the_memory_of_a_chunk_and_never_gets_a_mixture() {
        let disk = SimulatedDisk::new(3);
        let kept = keeper(&disk).await;
        let (old, new) = (vec![1; 100_000], vec![2; 100_000]);
        offer(&kept, 9, &checkpoint(3, 5, &old), &old).await.unwrap();
        let file = kept.opened(place(3), Transfer::of(&old).sha256).await.unwrap();
        assert_eq!(file.read(0..10).await, Ok(vec![1; 10]));
        assert_eq!(file.read(99_990..100_000).await, Ok(vec![1; 10]));
        assert_eq!(size_of_val(&file), size_of::<KeptFile<'_>>(), "it holds no bytes");
        offer(&kept, 9, &checkpoint(3, 6, &new), &new).await.unwrap();
        let gone = file.read(10..20).await.unwrap_err();
        assert!(gone.to_string().contains("ask for the newest"), "{gone}");
        assert_eq!(files(&disk).await, [file_name(&checkpoint(3, 6, &new))], "the one before is deleted");
        assert_eq!(taken(&kept, 3).await, Some(new));
    }

    #[tokio::test]
    async fn damage_shows_when_all_bytes_were_read_and_the_next_offer_mends_it() {
        let disk = SimulatedDisk::new(3);
        let kept = keeper(&disk).await;
        let bytes = vec![1; 100_000];
        let whole = checkpoint(3, 5, &bytes);
        offer(&kept, 9, &whole, &bytes).await.unwrap();
        let mut damaged = bytes.clone();
        damaged[70_000] ^= 1;
        let sealed = sealed::seal_parts(KIND, &whole, &[&damaged]).unwrap();
        kept.storage.put(&kept.path(&whole), sealed).await.unwrap();
        let taking = async |stream: &mut Compat<_>| {
            let mut partial = Partial::new(whole.transfer, 1 << 20).unwrap();
            checkpoints::fetch(stream, "barn", place(3), &mut partial).await
        };
        assert!(matches!(with(&kept, 8, taking).await, Err(CheckpointError::Bulk(BulkError::Hash { .. }))));
        assert_eq!(kept.kept(place(3)), []);
        assert_eq!(offer(&kept, 9, &whole, &bytes).await, Ok(OfferOutcome::Kept));
        assert_eq!(taken(&kept, 3).await, Some(bytes));
    }

    #[tokio::test]
    async fn what_another_version_of_the_program_keeps_stays_and_of_two_the_newer_one() {
        let disk = SimulatedDisk::new(3);
        let kept = keeper(&disk).await;
        let (old, new) = (checkpoint(3, 5, &[1; 1000]), checkpoint(3, 6, &[2; 1000]));
        for (made, bytes) in [(&old, vec![1; 1000]), (&new, vec![2; 1000])] {
            let sealed = sealed::seal_parts(KIND, made, &[&bytes]).unwrap();
            kept.storage.put(&kept.path(made), sealed).await.unwrap();
        }
        let newer = ObjectKind { version: KIND.version + 1, ..KIND };
        let other = kept.path(&checkpoint(4, 5, &[1; 1000]));
        kept.storage.put(&other, sealed::seal(newer, b"of another layout")).await.unwrap();
        kept.storage.put(&kept.path(&checkpoint(5, 5, &[1; 1000])), b"no envelope".to_vec()).await.unwrap();
        let again = keeper(&disk).await;
        assert_eq!(again.kept(place(3)), std::slice::from_ref(&new));
        assert_eq!(files(&disk).await, [file_name(&new), other.filename().unwrap().to_owned()]);
    }

    #[tokio::test]
    async fn a_lease_that_is_over_does_not_make_a_checkpoint_young_again() {
        let now = UnixTime(10_000);
        let made = checkpoint(3, 5, &[1; 1000]);
        assert!(!is_current(&made, now), "its grant has expired");
        let mut current = made;
        current.lease.grants[0].expires_at = UnixTime(now.0 - CLOCK_SKEW_MAX + 1);
        assert!(is_current(&current, now), "by the clock of the backbone it may hold");
        current.lease.grants.clear();
        assert!(!is_current(&current, now));
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
        let min = layers()[0].checkpoint_bytes_min();
        let small = vec![1; min as usize - 1];
        let too_small = CheckpointRefusal::TooSmall { min, got: min - 1 };
        assert_eq!(offer(&kept, 9, &checkpoint(3, 5, &small), &small).await, Err(too_small));
        let endless = (good.lease.clone(), u64::MAX, good.transfer);
        let endless = ExpertCheckpoint::sign(&key(9), "barn", endless).unwrap();
        assert_eq!(offer(&kept, 9, &endless, &bytes).await, Err(CheckpointRefusal::Lease), "none is newer");
        assert_eq!(kept.kept(place(3)), []);
    }

    #[tokio::test]
    async fn the_end_of_an_offer_that_was_kept_leaves_the_next_one_its_room() {
        let kept = keeper(&SimulatedDisk::new(3)).await;
        let next = checkpoint(3, 6, &[2; 1000]);
        let on_its_way = |is_kept| {
            let n_before = kept.shelf().n_bytes();
            let wanted = kept.shelf().on_offer(Moment::ZERO, &next, 1 << 20).unwrap();
            assert_eq!(wanted, OfferVerdict::Wanted { evicted: Vec::new() });
            drop(IncomingCheckpoint { keeper: &kept, copy: (place(3), 0), is_kept });
            kept.shelf().n_bytes() - n_before
        };
        assert_eq!((on_its_way(false), on_its_way(true)), (0, 1000));
        let refusal = kept.shelf().on_offer(Moment::ZERO, &next, 1 << 20);
        assert_eq!(refusal, Err(CheckpointRefusal::Busy), "it is still on its way");
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
