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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::access::KeyPair;
    use barnraise_protocol::experts::leases::ExpertLease;
    use barnraise_protocol::experts::{ExpertUid, LayerId};

    use super::*;

    #[test]
    fn a_kept_checkpoint_begins_with_what_it_is() {
        let place = (LayerId(3), ExpertUid::new(&[1, 2]).unwrap());
        let key = KeyPair::from_seed(&[7; 32]);
        let lease = ExpertLease { place, holder: key.public(), term: 5, grants: Vec::new() };
        let checkpoint = ExpertCheckpoint::sign(&key, "barn", (lease, 9, Transfer::of(b"bytes"))).unwrap();
        let sealed = sealed::seal_parts(KIND, &checkpoint, &[b"bytes"]).unwrap();
        let start = &sealed[..sealed.len() - 5];
        assert_eq!(sealed::peek_header::<ExpertCheckpoint>(KIND, start).unwrap(), checkpoint);
        let (header, bytes) = sealed::open_parts::<ExpertCheckpoint>(KIND, &sealed).unwrap();
        assert_eq!((header, bytes), (checkpoint, &b"bytes"[..]));
    }
}
