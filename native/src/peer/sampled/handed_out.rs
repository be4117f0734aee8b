//! Models that newcomers pull. A few are kept for slow readers, however many ask and however fast rounds are.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use barnraise_contributor::EncodedModel;
use barnraise_protocol::bulk::{ChunkSource, Transfer, Withdrawn, in_memory};

/// Models at a time; the oldest makes way for one more.
const KEPT_MAX: usize = 3;
/// A model is handed out for so long before a newer one is: a slow reader has that and as long again for each of the others.
const FRESH: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HandedOut(Mutex<VecDeque<HandedModel>>);

/// A model that is pulled. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct HandedModel {
    /// Its round.
    pub(super) epoch: u64,
    pub(super) transfer: Transfer,
    since: Instant,
    /// `None` once it has made way.
    bytes: Arc<Mutex<Option<Arc<[u8]>>>>,
}

impl HandedOut {
    /// One that is new enough for who asks for the newest.
    pub(super) fn fresh(&self, now: Instant) -> Option<HandedModel> {
        let kept = self.lock();
        kept.back().filter(|model| now.saturating_duration_since(model.since) < FRESH).cloned()
    }

    /// The newest of those that were handed out.
    pub(super) fn newest(&self) -> Option<HandedModel> {
        self.lock().back().cloned()
    }

    /// The model of a round, for who goes on with it.
    pub(super) fn of(&self, epoch: u64) -> Option<HandedModel> {
        self.lock().iter().rev().find(|model| model.epoch == epoch).cloned()
    }

    /// Hands out the newest model from now on.
    pub(super) fn add(&self, now: Instant, epoch: u64, (transfer, bytes): EncodedModel) -> HandedModel {
        let mut kept = self.lock();
        if let Some(known) = kept.back_mut().filter(|known| known.transfer == transfer) {
            known.since = now;
            return known.clone();
        }
        let model = HandedModel { epoch, transfer, since: now, bytes: Arc::new(Mutex::new(Some(bytes))) };
        kept.push_back(model.clone());
        while kept.len() > KEPT_MAX {
            if let Some(oldest) = kept.pop_front() {
                *oldest.lock() = None;
            }
        }
        model
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<HandedModel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HandedModel {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<[u8]>>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChunkSource for HandedModel {
    fn n_bytes(&self) -> u64 {
        self.transfer.n_bytes
    }

    async fn read(&self, range: Range<u64>) -> Result<Vec<u8>, Withdrawn> {
        let bytes = self.lock().clone();
        let gone = || Withdrawn::because("that model made way for newer ones".to_owned());
        in_memory(&bytes.ok_or_else(gone)?, range)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn encoded(byte: u8) -> EncodedModel {
        let bytes: Arc<[u8]> = Arc::new([byte; 8]);
        (Transfer::of(&bytes), bytes)
    }

    #[tokio::test]
    async fn who_asks_often_gets_the_same_and_slow_readers_keep_a_few() {
        let (handed_out, began) = (HandedOut::default(), Instant::now());
        assert!(handed_out.fresh(began).is_none());
        let first = handed_out.add(began, 1, encoded(1));
        assert_eq!(handed_out.fresh(began + FRESH / 2).map(|model| model.epoch), Some(1));
        assert!(handed_out.fresh(began + FRESH).is_none(), "a newer one is looked for");
        handed_out.add(began + FRESH, 2, encoded(1));
        assert_eq!(handed_out.fresh(began + FRESH).map(|model| model.epoch), Some(1), "it is the same model");

        for round in 3..=4 {
            handed_out.add(began + FRESH * u32::from(round), round.into(), encoded(round));
        }
        assert_eq!(first.read(0..8).await.unwrap(), [1; 8]);
        assert!(handed_out.of(1).is_some() && handed_out.of(2).is_none());
        handed_out.add(began + FRESH * 5, 5, encoded(5));
        assert!(first.read(0..8).await.is_err() && handed_out.of(1).is_none());
        assert_eq!(handed_out.of(3).unwrap().read(4..8).await.unwrap(), [3; 4]);
    }
}
