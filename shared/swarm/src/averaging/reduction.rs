//! A part on the peer that averages it: whose values are here, what their mean is, and for whom nobody waits
//! any longer.
//!
//! Members send chunks in order, so the mean of a chunk is due when all of whom more is expected have sent it.
//! While somebody has, whoever has not is late: the time that others spend waiting for a member adds up over the
//! part, and when that exceeds the patience, nothing more is expected of it. A member that is slow all along,
//! one that stalls once and one that never comes are treated alike.
//!
//! It never holds more chunks than its window.

use std::collections::VecDeque;
use std::time::Duration;

use barnraise_protocol::average::Finished;

use super::group::{chunk, n_chunks};
use crate::Moment;

/// How a part is averaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReductionConfig {
    /// Values of the part.
    pub n_values: usize,
    /// Chunks that a member may be ahead of the mean: what is held at most.
    pub window_chunks: u32,
    /// How long the others wait for a member, over the whole part and its beginning.
    pub patience: Duration,
}

/// How the averaging of a part stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReductionState {
    /// Values are expected.
    Going,
    /// All of it is averaged.
    Done(Finished),
    /// Nobody is left who could send the rest.
    Failed,
}

/// A piece of the average.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkOfMean {
    /// Which.
    pub index: u32,
    /// `[n_values of the chunk]`.
    pub values: Vec<f32>,
}

/// What a member did that ends its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReductionError {
    /// It has nothing to send here, or was let go.
    #[error("no values are taken from this member any longer")]
    NotAwaited,
    /// Out of order.
    #[error("chunk {got} came, chunk {want} is next")]
    Order {
        /// Next of this member.
        want: u32,
        /// Came.
        got: u32,
    },
    /// Another number of values than the chunk has.
    #[error("a chunk of {got} values, {want} belong there")]
    Length {
        /// At that place.
        want: usize,
        /// Came.
        got: usize,
    },
    /// Further ahead than it may be.
    #[error("chunk {got} came, at most chunk {max} was granted")]
    Window {
        /// Last one granted.
        max: u32,
        /// Came.
        got: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// The next chunk, which is the last one where it is the number of chunks.
    At(u32),
    /// Nothing more comes.
    Gone,
}

#[derive(Debug)]
struct Sender {
    n_samples: u64,
    sending: Sending,
    /// How long others have waited for it.
    late: Duration,
    has_sent: bool,
}

/// A chunk of which some values are here: the sum, each value times its member's part of all samples.
#[derive(Debug, Default)]
struct Sum {
    values: Vec<f32>,
    n_samples: u64,
}

/// The averaging of one part.
#[derive(Debug)]
pub struct Reduction {
    config: ReductionConfig,
    senders: Vec<Sender>,
    n_samples_of_all: u64,
    /// Of the chunks from `n_done` on; not empty while somebody is waited for.
    sums: VecDeque<Sum>,
    n_done: u32,
    means: VecDeque<ChunkOfMean>,
    /// Samples behind each value that is averaged, added up over the values.
    n_samples_of_values: u128,
    /// Until when lateness is counted.
    counted_until: Moment,
}

impl Reduction {
    /// The averaging of a part, from now on, among members with these numbers of samples; one with none sends
    /// nothing.
    #[must_use]
    pub fn new(now: Moment, config: ReductionConfig, n_samples: &[u64]) -> Self {
        let sender = |&n_samples: &u64| {
            let sending = if n_samples > 0 { Sending::At(0) } else { Sending::Gone };
            Sender { n_samples, sending, late: Duration::ZERO, has_sent: false }
        };
        Self {
            config,
            senders: n_samples.iter().map(sender).collect(),
            n_samples_of_all: n_samples.iter().fold(0, |sum, n| sum.saturating_add(*n)),
            sums: VecDeque::new(),
            n_done: 0,
            means: VecDeque::new(),
            n_samples_of_values: 0,
            counted_until: now,
        }
    }

    /// Chunks of the part.
    #[must_use]
    pub fn n_chunks(&self) -> u32 {
        n_chunks(self.config.n_values)
    }

    /// The chunk that a member may send next, if it may send one now.
    #[must_use]
    pub fn wanted_of(&self, member: usize) -> Option<u32> {
        match self.senders.get(member)?.sending {
            Sending::At(next) if next < self.n_chunks() && next - self.n_done < self.config.window_chunks => {
                Some(next)
            }
            _ => None,
        }
    }

    /// Values of a member, `[n_values of the chunk]`, finite.
    ///
    /// # Errors
    /// See [`ReductionError`]: the values do not count, and the member had better be let go.
    pub fn on_chunk(
        &mut self,
        now: Moment,
        member: usize,
        index: u32,
        values: &[f32],
    ) -> Result<(), ReductionError> {
        let n_chunks = self.n_chunks();
        let sender = self.senders.get(member).ok_or(ReductionError::NotAwaited)?;
        let n_samples = sender.n_samples;
        let want = match sender.sending {
            Sending::At(want) if want < n_chunks => want,
            _ => return Err(ReductionError::NotAwaited),
        };
        if index != want {
            return Err(ReductionError::Order { want, got: index });
        }
        let n_values = chunk(self.config.n_values, index).len();
        if values.len() != n_values {
            return Err(ReductionError::Length { want: n_values, got: values.len() });
        }
        // A member that has sent everything before is never behind what is done.
        let ahead = index - self.n_done;
        if ahead >= self.config.window_chunks {
            return Err(ReductionError::Window {
                max: self.n_done + self.config.window_chunks - 1,
                got: index,
            });
        }
        self.count_lateness(now);
        while self.sums.len() <= ahead as usize {
            self.sums.push_back(Sum::default());
        }
        self.sums[ahead as usize].add(values, n_samples, self.n_samples_of_all);
        self.senders[member].sending = Sending::At(want + 1);
        self.senders[member].has_sent = true;
        self.advance();
        Ok(())
    }

    /// Nothing more comes from a member. What is here of it counts.
    pub fn on_lost(&mut self, now: Moment, member: usize) {
        let n_chunks = self.n_chunks();
        if self.senders.get(member).is_some_and(|sender| sender.sending != Sending::At(n_chunks)) {
            self.count_lateness(now);
            self.senders[member].sending = Sending::Gone;
            self.advance();
        }
    }

    /// Lets go of those who are too late; see [`Self::next_deadline`].
    pub fn on_timeout(&mut self, now: Moment) {
        self.count_lateness(now);
        let (n_done, patience) = (self.n_done, self.config.patience);
        if n_done == self.n_chunks() {
            return;
        }
        let too_late = |sender: &&mut Sender| sender.is_behind(n_done) && sender.late >= patience;
        self.senders.iter_mut().filter(too_late).for_each(|sender| sender.sending = Sending::Gone);
        self.advance();
    }

    /// When [`Self::on_timeout`] has something to do. Nothing where nobody is ahead of the others: the round's
    /// own deadline ends that.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let behind = self.senders.iter().filter(|sender| sender.is_behind(self.n_done));
        let left = behind.map(|sender| self.config.patience.saturating_sub(sender.late)).min();
        left.filter(|_| !self.sums.is_empty()).map(|left| self.counted_until + left)
    }

    /// The next piece of the average, in order.
    pub fn poll_mean(&mut self) -> Option<ChunkOfMean> {
        self.means.pop_front()
    }

    /// How it stands.
    #[must_use]
    pub fn state(&self) -> ReductionState {
        let n_chunks = self.n_chunks();
        let is_expected = |sender: &Sender| matches!(sender.sending, Sending::At(next) if next < n_chunks);
        if self.n_done < n_chunks {
            let is_going = self.senders.iter().any(is_expected) || !self.sums.is_empty();
            return if is_going { ReductionState::Going } else { ReductionState::Failed };
        }
        let has_sent = |(position, sender): (usize, &Sender)| sender.has_sent.then_some(position);
        let members = self.senders.iter().enumerate().filter_map(has_sent).collect();
        let n_values = (self.config.n_values as u128).max(1);
        // Rounded down: that of all members only where all of their values are in it.
        let n_samples = u64::try_from(self.n_samples_of_values / n_values);
        ReductionState::Done(Finished { members, n_samples: n_samples.unwrap_or(u64::MAX) })
    }

    fn count_lateness(&mut self, now: Moment) {
        let passed = now.saturating_sub(self.counted_until);
        self.counted_until = self.counted_until.max(now);
        if !self.sums.is_empty() {
            let n_done = self.n_done;
            let behind = self.senders.iter_mut().filter(|sender| sender.is_behind(n_done));
            behind.for_each(|sender| sender.late += passed);
        }
    }

    /// Takes the mean of each chunk that all have sent of whom it is expected.
    fn advance(&mut self) {
        while !self.senders.iter().any(|sender| sender.is_behind(self.n_done))
            && let Some(sum) = self.sums.pop_front()
        {
            self.n_samples_of_values += u128::from(sum.n_samples) * sum.values.len() as u128;
            let values = sum.into_mean(self.n_samples_of_all);
            self.means.push_back(ChunkOfMean { index: self.n_done, values });
            self.n_done += 1;
        }
    }
}

impl Sender {
    /// Whether chunk `n_done` is expected of it.
    fn is_behind(&self, n_done: u32) -> bool {
        self.sending == Sending::At(n_done)
    }
}

impl Sum {
    /// Weights are parts of all samples, so that no finite value becomes infinite on the way.
    fn add(&mut self, values: &[f32], n_samples: u64, of_all: u64) {
        let weight = (n_samples as f64 / of_all as f64) as f32;
        if self.values.is_empty() {
            self.values = values.iter().map(|value| value * weight).collect();
        } else {
            self.values.iter_mut().zip(values).for_each(|(sum, value)| *sum += value * weight);
        }
        self.n_samples = self.n_samples.saturating_add(n_samples);
    }

    fn into_mean(mut self, of_all: u64) -> Vec<f32> {
        if self.n_samples != of_all {
            let scale = (of_all as f64 / self.n_samples as f64) as f32;
            let bounded = |value: f32| value.clamp(f32::MIN, f32::MAX);
            self.values.iter_mut().for_each(|value| *value = bounded(*value * scale));
        }
        self.values
    }
}
