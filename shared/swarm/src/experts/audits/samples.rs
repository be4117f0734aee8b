//! The answers that a trainer keeps for its backbone: some of the last 90 seconds, at random.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Moment;
use crate::random::SplitMix64;

/// Bytes of all answers that are kept.
pub const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Of an older answer there is most often a newer checkpoint already, and no keeper has the one before it.
pub const ANSWER_AGE_MAX: Duration = Duration::from_secs(90);

/// What an answer takes beside its tensors.
const ENTRY_BYTES: usize = 1024;

/// Answers with what they take.
#[derive(Debug)]
pub struct AnswerSamples<T> {
    kept: VecDeque<SampledAnswer<T>>,
    n_bytes: usize,
    /// The next one that comes from then on is kept.
    next_at: Moment,
    random: SplitMix64,
}

#[derive(Debug)]
struct SampledAnswer<T> {
    at: Moment,
    n_bytes: usize,
    answer: T,
}

impl<T> AnswerSamples<T> {
    /// None yet. `seed` decides which ones it keeps: no host is to know it.
    pub fn new(seed: u64) -> Self {
        let random = SplitMix64::new(seed);
        Self { kept: VecDeque::new(), n_bytes: 0, next_at: Moment::ZERO, random }
    }

    /// Whether an answer of so many bytes that came now is to be kept. So many are that those of [`ANSWER_AGE_MAX`] take half of
    /// [`ANSWER_BYTES_MAX`].
    pub fn wants(&self, now: Moment, n_bytes: usize) -> bool {
        now >= self.next_at && n_bytes <= ANSWER_BYTES_MAX / 2
    }

    /// Keeps an answer that [is wanted](Self::wants). The oldest make room for it.
    pub fn keep(&mut self, now: Moment, n_bytes: usize, answer: T) {
        self.forget_old(now);
        let n_bytes = n_bytes + ENTRY_BYTES;
        self.n_bytes += n_bytes;
        self.kept.push_back(SampledAnswer { at: now, n_bytes, answer });
        while self.n_bytes > ANSWER_BYTES_MAX && self.kept.len() > 1 {
            self.drop_first();
        }
        let share = n_bytes as f64 / (ANSWER_BYTES_MAX / 2) as f64;
        // Between nothing and twice the mean: a host cannot count on it.
        let factor = self.random.below(2001) as f64 / 1000.0;
        self.next_at = now + ANSWER_AGE_MAX.mul_f64(share * factor);
    }

    /// Forgets those that are too old.
    pub fn forget_old(&mut self, now: Moment) {
        while self.kept.front().is_some_and(|kept| now.saturating_sub(kept.at) > ANSWER_AGE_MAX) {
            self.drop_first();
        }
    }

    /// All of them, the newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = &T> {
        self.kept.iter().rev().map(|kept| &kept.answer)
    }

    /// One at random.
    pub fn any(&mut self) -> Option<&T> {
        let at = self.random.below(self.kept.len());
        self.kept.get(at).map(|kept| &kept.answer)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Takes the first one out that is meant.
    pub fn take(&mut self, mut is_meant: impl FnMut(&T) -> bool) -> Option<T> {
        let at = self.kept.iter().position(|kept| is_meant(&kept.answer))?;
        let taken = self.kept.remove(at)?;
        self.n_bytes -= taken.n_bytes;
        Some(taken.answer)
    }

    fn drop_first(&mut self) {
        if let Some(dropped) = self.kept.pop_front() {
            self.n_bytes -= dropped.n_bytes;
        }
    }
}
