//! Parameters of the newest epochs, one copy of each for all readers.
//!
//! A reader holds one chunk at a time. One that is so slow that its epoch is dropped gets an error, and begins again with
//! the newest; an interrupted one continues where it was while its epoch is here.

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barnraise_protocol::bulk::{ChunkSource, Withdrawn, in_memory};
use barnraise_protocol::codec::{CodecError, first_not_finite};
use barnraise_protocol::state::StateHeader;
use barnraise_protocol::{Refusal, Sha256Hash, TensorCodec};
use tokio::sync::watch;

use crate::computing::ParameterBytes;

/// Parameters that participants can pull.
#[derive(Debug, Clone)]
pub struct PublishedState {
    /// Epoch, codec, length and hash.
    pub header: StateHeader,
    /// Encoded for the wire.
    pub bytes: StateBytes,
    /// `[n_parameters]`.
    pub parameters: Arc<Vec<f32>>,
}

/// Encoded parameters. In f32 they are the parameters as they are in memory, and take none of their own.
#[derive(Debug, Clone)]
pub enum StateBytes {
    /// In another codec.
    Encoded(Arc<[u8]>),
    /// In f32.
    Parameters(ParameterBytes),
}

impl StateBytes {
    /// Encodes `parameters`, `[n_parameters]`.
    ///
    /// # Errors
    /// A value that is not finite.
    pub fn of(parameters: &Arc<Vec<f32>>, codec: TensorCodec) -> Result<Self, CodecError> {
        if codec != TensorCodec::F32 {
            return Ok(Self::Encoded(codec.encode(parameters)?.into()));
        }
        match first_not_finite(parameters) {
            Some(index) => Err(CodecError::NotFinite { index }),
            None => Ok(Self::Parameters(ParameterBytes(parameters.clone()))),
        }
    }
}

impl Deref for StateBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Encoded(bytes) => bytes,
            Self::Parameters(parameters) => parameters.as_ref(),
        }
    }
}

/// Encoded parameters of an epoch.
#[derive(Debug, Clone)]
pub(crate) struct KeptState {
    /// Epoch, codec, length and hash.
    pub header: StateHeader,
    /// Encoded.
    pub bytes: StateBytes,
    /// Held by each reader.
    readers: Arc<()>,
}

/// The newest states. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct States {
    newest: watch::Receiver<PublishedState>,
    kept: Arc<Mutex<VecDeque<KeptState>>>,
    n_kept_max: usize,
}

/// A reader of one epoch's parameters. It keeps them alive for one epoch more than they are wanted, and not longer.
#[derive(Debug, Clone)]
pub(crate) struct StateReader {
    states: States,
    header: StateHeader,
    _reading: Arc<()>,
}

impl States {
    /// Returns them with the task that follows the published states until their sender is dropped. The parameters of the
    /// newest `n_kept_max` epochs are here, and while somebody reads them those of one epoch more.
    pub(crate) fn follow(
        newest: watch::Receiver<PublishedState>,
        n_kept_max: usize,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let states = Self { newest, kept: Arc::default(), n_kept_max };
        drop(states.note());
        let (following, mut newest) = (states.clone(), states.newest.clone());
        let follow = async move {
            while newest.changed().await.is_ok() {
                drop(following.note());
            }
        };
        (states, follow)
    }

    /// Adds the newest state: on each change, and before each lookup, so that none is missed.
    fn note(&self) -> MutexGuard<'_, VecDeque<KeptState>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = self.newest.borrow();
        let sha256 = newest.header.transfer.sha256;
        if kept.back().is_none_or(|known| known.header.transfer.sha256 != sha256) {
            let (header, bytes) = (newest.header.clone(), newest.bytes.clone());
            kept.push_back(KeptState { header, bytes, readers: Arc::default() });
        }
        let is_read = |state: &KeptState| Arc::strong_count(&state.readers) > 1;
        while kept.len() > self.n_kept_max + usize::from(kept.front().is_some_and(is_read)) {
            kept.pop_front();
        }
        kept
    }

    /// The state of an epoch with this hash.
    pub(crate) fn find(&self, epoch: u64, sha256: Sha256Hash) -> Option<KeptState> {
        let kept = self.note();
        let is_it =
            |state: &&KeptState| (state.header.epoch, state.header.transfer.sha256) == (epoch, sha256);
        kept.iter().rev().find(is_it).cloned()
    }

    /// A reader of the newest state, or of that of an epoch.
    ///
    /// # Errors
    /// The state is gone, with the reason.
    pub(crate) fn read(&self, epoch: Option<u64>) -> Result<(StateHeader, StateReader), Refusal> {
        let kept = self.note();
        let found = kept.iter().rev().find(|state| epoch.is_none_or(|epoch| state.header.epoch == epoch));
        let KeptState { header, readers, .. } = found.ok_or_else(|| self.gone(epoch))?;
        let read = StateReader { states: self.clone(), header: header.clone(), _reading: readers.clone() };
        Ok((header.clone(), read))
    }

    fn gone(&self, epoch: Option<u64>) -> Refusal {
        let newest = self.newest.borrow().header.epoch;
        Refusal::Stale { epoch: epoch.unwrap_or(newest), newest }
    }
}

impl ChunkSource for StateReader {
    fn n_bytes(&self) -> u64 {
        self.header.transfer.n_bytes
    }

    async fn read(&self, range: Range<u64>) -> Result<Vec<u8>, Withdrawn> {
        let StateHeader { epoch, transfer, .. } = &self.header;
        let state = self.states.find(*epoch, transfer.sha256);
        let gone = || Withdrawn::because(self.states.gone(Some(*epoch)).to_string());
        in_memory(&state.ok_or_else(gone)?.bytes, range)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::future::ready;

    use barnraise_protocol::bulk::Transfer;
    use barnraise_protocol::{ConversationError, state};
    use barnraise_relay::tasks;
    use futures::AsyncReadExt as _;
    use tokio_util::compat::TokioAsyncReadCompatExt as _;

    use super::*;

    const N_VALUES: usize = 200_000;
    const STATES_MAX: usize = 6;

    fn published(epoch: u64) -> PublishedState {
        let parameters = Arc::new(vec![epoch as f32; N_VALUES]);
        let bytes = StateBytes::of(&parameters, TensorCodec::F32).unwrap();
        let (codec, transfer) = (TensorCodec::F32, Transfer::of(&bytes));
        let header = StateHeader { epoch, n_values: N_VALUES as u64, codec, transfer };
        PublishedState { header, bytes, parameters }
    }

    /// Asks for the newest parameters, and for their first chunks, and reads nothing of them.
    async fn ask(stream: &mut (impl futures::AsyncRead + futures::AsyncWrite + Unpin)) -> StateHeader {
        use barnraise_protocol::bulk::Pull;
        use barnraise_protocol::framing;
        let request = state::ContributorToBackbone::GetLatest;
        framing::write(stream, &request, state::MESSAGE_BYTES_MAX).await.unwrap();
        let answer = framing::read(stream, state::MESSAGE_BYTES_MAX).await.unwrap();
        let state::BackboneToContributor::Found(header) = answer else { panic!("{answer:?}") };
        framing::write(stream, &Pull::Chunks { first: 0, count: 8 }, 64).await.unwrap();
        header
    }

    #[tokio::test]
    async fn slow_readers_hold_no_parameters_however_many_they_are() {
        let (publish, newest) = watch::channel(published(0));
        let (states, following) = States::follow(newest, STATES_MAX);
        let _following = tasks::spawn("states", following);
        let mut held = vec![Arc::downgrade(&publish.borrow().parameters)];
        let (mut readers, mut serving) = (Vec::new(), tokio::task::JoinSet::new());
        for epoch in 0..20u64 {
            if epoch > 0 {
                publish.send_replace(published(epoch));
                held.push(Arc::downgrade(&publish.borrow().parameters));
            }
            for _ in 0..10 {
                let (a, b) = tokio::io::duplex(1024);
                let (states, mut a, mut b) = (states.clone(), a.compat(), b.compat());
                serving.spawn(
                    async move { state::serve(&mut a, |epoch| ready(states.read(epoch)), || ()).await },
                );
                assert_eq!(ask(&mut b).await.epoch, epoch);
                readers.push(b);
            }
        }
        // Two hundred readers of twenty epochs are in the middle of a chunk, and few epochs are in memory.
        let n_held = held.iter().filter(|bytes| bytes.strong_count() > 0).count();
        assert_eq!(n_held, STATES_MAX + 1);
        // The first of them are told, the last go on.
        for (mut reader, is_here) in [(readers.remove(0), false), (readers.pop().unwrap(), true)] {
            let mut chunk = vec![0; 3 * (64 * 1024 + 12)];
            let read = reader.read_exact(&mut chunk).await;
            assert_eq!(read.is_ok(), is_here);
            let told = String::from_utf8_lossy(&chunk).contains("parameters of epoch 0 are gone");
            assert_eq!(told, !is_here);
        }
    }

    #[tokio::test]
    async fn a_download_that_is_cut_goes_on_after_a_step() {
        let (publish, newest) = watch::channel(published(0));
        let (states, following) = States::follow(newest, STATES_MAX);
        let _following = tasks::spawn("states", following);
        let mut partial = None;
        let (mut before, n_values) = (0, N_VALUES as u64);
        for (cut_after, n_steps) in [(300_000, 1), (600_000, 1), (u64::MAX, STATES_MAX as u64)] {
            let (a, b) = tokio::io::duplex(64 * 1024);
            let (mut a, mut b) = (a.compat(), b.compat());
            let serving = state::serve(&mut a, |epoch| ready(states.read(epoch)), || ());
            let mut first = None;
            let cut = tokio::sync::Notify::new();
            let fetching = async {
                let on_progress = |here, _| {
                    first.get_or_insert(here);
                    if here >= cut_after {
                        cut.notify_one();
                    }
                };
                state::fetch(&mut b, n_values, TensorCodec::F32, &mut partial, on_progress).await
            };
            let fetched: Option<Result<_, ConversationError>> = tokio::select! {
                biased;
                () = cut.notified() => None,
                fetched = fetching => Some(fetched),
                served = serving => panic!("{served:?}"),
            };
            assert_eq!(first, Some(before), "it goes on where it was");
            match fetched {
                Some(fetched) => assert_eq!(fetched.unwrap().epoch, 0),
                None => before = cut_after.next_multiple_of(64 * 1024),
            }
            for _ in 0..n_steps {
                let epoch = publish.borrow().header.epoch + 1;
                publish.send_replace(published(epoch));
                drop(states.note());
            }
        }
        // One that is gone is begun anew.
        assert!(states.read(Some(0)).unwrap_err().to_string().contains("are gone"));
        assert_eq!(states.read(None).unwrap().0.epoch, STATES_MAX as u64 + 2);
    }
}
