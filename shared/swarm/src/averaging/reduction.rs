//! A part on the peer that averages it: whose values are here, what their mean is, and for whom nobody waits
//! any longer.
//!
//! Members send chunks in order, so the mean of a chunk is due when all of whom more is expected have sent it.
//! While somebody has, whoever has not is late: the time that others spend waiting for a member adds up over the
//! part, and when that exceeds the patience, nothing more is expected of it. A member that is slow all along,
//! one that stalls once and one that never comes are treated alike. Where nothing comes from anybody, nobody is ahead of
//! the others; for [`IDLE_PATIENCES`] times the patience that is borne, because those who have nothing to send wait too.
//!
//! Values are added up in the order of the members, because a sum of floats depends on it and groups that average the
//! same are to have the same bits. What comes before its turn is held until then.
//!
//! It never holds more chunks of a member than its window, nor more than [`HELD_VALUES_MAX`] values of all members
//! together, or a chunk of each where that is more: the window is smaller where there are many.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::average::{CHUNK_VALUES, Finished, MemberSet};

use super::group::{Brought, chunk, n_chunks};
use crate::Moment;

/// Most values that are held of a part: 64 MiB.
pub const HELD_VALUES_MAX: usize = 1 << 24;
/// Times the patience that a part waits in which nothing happens at all.
const IDLE_PATIENCES: u32 = 2;
/// Buffers that are kept for others to use.
const SPARES_MAX: usize = 16;

/// How a part is averaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReductionConfig {
    /// Values of the part.
    pub n_values: usize,
    /// Chunks that a member may be ahead of the mean, where there are not too many members; see
    /// [`Reduction::window_chunks`].
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
    brought: Brought,
    sending: Sending,
    /// How long others have waited for it.
    late: Duration,
    has_sent: bool,
}

/// A chunk of which some values are here: the sum, each value times its member's part of all samples.
#[derive(Debug, Default)]
pub(super) struct Sum {
    values: Vec<f32>,
    n_samples: u64,
    /// The member whose turn it is.
    next: usize,
    /// Values of members that come after that one.
    held: BTreeMap<usize, Vec<f32>>,
}

/// The averaging of one part.
#[derive(Debug)]
pub struct Reduction {
    config: ReductionConfig,
    senders: Vec<Sender>,
    n_samples_of_all: u64,
    /// Of the chunks from `n_done` on; not empty while somebody is waited for.
    pub(super) sums: VecDeque<Sum>,
    n_done: u32,
    means: VecDeque<ChunkOfMean>,
    /// Buffers whose values have been added.
    spares: Vec<Vec<f32>>,
    /// Samples behind each value that is averaged, added up over the values.
    n_samples_of_values: u128,
    /// Until when lateness is counted.
    counted_until: Moment,
    /// When the last chunk came, or it began.
    moved_at: Moment,
}

impl Reduction {
    /// The averaging of a part, from now on, among members that bring so many samples, or at most so many
    /// ([`Self::on_joined`]); one with none sends nothing.
    #[must_use]
    pub fn new(now: Moment, config: ReductionConfig, n_samples: &[u64]) -> Self {
        let sender = |(position, &n_samples): (usize, &u64)| {
            let sending = if n_samples > 0 { Sending::At(0) } else { Sending::Gone };
            let behind = if n_samples > 0 { MemberSet::from_iter([position]) } else { MemberSet::default() };
            let brought = Brought { n_samples, behind, is_whole: true };
            Sender { brought, sending, late: Duration::ZERO, has_sent: false }
        };
        let n_senders = n_samples.iter().filter(|n| **n > 0).count().max(1);
        let held = u32::try_from(HELD_VALUES_MAX / CHUNK_VALUES / n_senders).unwrap_or(u32::MAX);
        let window_chunks = config.window_chunks.min(held.max(1));
        Self {
            config: ReductionConfig { window_chunks, ..config },
            senders: n_samples.iter().enumerate().map(sender).collect(),
            n_samples_of_all: n_samples.iter().fold(0, |sum, n| sum.saturating_add(*n)),
            sums: VecDeque::new(),
            n_done: 0,
            means: VecDeque::new(),
            spares: Vec::new(),
            n_samples_of_values: 0,
            counted_until: now,
            moved_at: now,
        }
    }

    /// A member is here and says what it brings, which fits the group. One that brings nothing is not waited for.
    pub fn on_joined(&mut self, now: Moment, member: usize, brought: Brought) {
        let Some(sender) = self.senders.get_mut(member).filter(|sender| !sender.has_sent) else { return };
        sender.brought = brought;
        if brought.n_samples == 0 {
            self.on_lost(now, member);
        }
    }

    /// Chunks that a member may be ahead of the mean.
    #[must_use]
    pub fn window_chunks(&self) -> u32 {
        self.config.window_chunks
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

    /// Values of a member, `[n_values of the chunk]`, finite. Those that are given away are not copied.
    ///
    /// # Errors
    /// See [`ReductionError`]: the values do not count, and the member had better be let go.
    pub fn on_chunk<'v>(
        &mut self,
        now: Moment,
        member: usize,
        index: u32,
        values: impl Into<Cow<'v, [f32]>>,
    ) -> Result<(), ReductionError> {
        let values = values.into();
        let n_chunks = self.n_chunks();
        let sender = self.senders.get(member).ok_or(ReductionError::NotAwaited)?;
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
        let ahead = ahead as usize;
        while self.sums.len() <= ahead {
            self.sums.push_back(Sum::default());
        }
        // Up to this member, of whom this chunk is still expected.
        self.settle(ahead);
        self.senders[member].sending = Sending::At(want + 1);
        self.senders[member].has_sent = true;
        self.moved_at = self.moved_at.max(now);
        if self.sums[ahead].next == member {
            self.add(ahead, member, values);
            self.sums[ahead].next += 1;
            self.settle(ahead);
        } else {
            let values = match values {
                Cow::Owned(values) => values,
                Cow::Borrowed(values) => self.copied(values),
            };
            self.sums[ahead].held.insert(member, values);
        }
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
        let is_idle = self.idle_until().is_some_and(|until| now >= until);
        let too_late =
            |sender: &&mut Sender| sender.is_behind(n_done) && (is_idle || sender.late >= patience);
        self.senders.iter_mut().filter(too_late).for_each(|sender| sender.sending = Sending::Gone);
        self.advance();
    }

    /// When nobody is waited for any longer, as long as nobody is ahead of the others.
    fn idle_until(&self) -> Option<Moment> {
        self.sums.is_empty().then(|| self.moved_at + IDLE_PATIENCES * self.config.patience)
    }

    /// When [`Self::on_timeout`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let behind = self.senders.iter().filter(|sender| sender.is_behind(self.n_done));
        let left = behind.map(|sender| self.config.patience.saturating_sub(sender.late)).min()?;
        if self.n_done == self.n_chunks() {
            return None;
        }
        Some(self.idle_until().unwrap_or(self.counted_until + left))
    }

    /// A buffer that is not needed any longer, for chunks to come.
    pub fn poll_spare(&mut self) -> Option<Vec<f32>> {
        self.spares.pop()
    }

    /// Takes a buffer back, whatever is in it.
    pub fn on_spare(&mut self, spare: Vec<f32>) {
        if self.spares.len() < SPARES_MAX {
            self.spares.push(spare);
        }
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
        let senders = self.senders.iter().filter(|sender| sender.has_sent);
        let behind = senders.fold(MemberSet::default(), |all, sender| all.union(sender.brought.behind));
        let is_whole = self.senders.iter().all(|sender| sender.is_whole(n_chunks));
        let n_values = (self.config.n_values as u128).max(1);
        // Rounded down: that of all members only where all of their values are in it.
        let n_samples = u64::try_from(self.n_samples_of_values / n_values);
        let n_samples = n_samples.unwrap_or(u64::MAX);
        ReductionState::Done(Finished { members, n_samples, behind, is_whole })
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
        while !self.sums.is_empty() && !self.senders.iter().any(|sender| sender.is_behind(self.n_done)) {
            self.settle(0);
            let Some(sum) = self.sums.pop_front() else { break };
            self.n_samples_of_values += u128::from(sum.n_samples) * sum.values.len() as u128;
            let values = sum.into_mean(self.n_samples_of_all);
            self.means.push_back(ChunkOfMean { index: self.n_done, values });
            self.n_done += 1;
        }
    }

    /// Adds what is held of a chunk up to the first member of whom it is still expected.
    fn settle(&mut self, ahead: usize) {
        let index = self.n_done + ahead as u32;
        while let Some(sender) = self.senders.get(self.sums[ahead].next) {
            let next = self.sums[ahead].next;
            let is_expected = matches!(sender.sending, Sending::At(at) if at <= index);
            match self.sums[ahead].held.remove(&next) {
                Some(values) => self.add(ahead, next, Cow::Owned(values)),
                None if is_expected => break,
                None => {}
            }
            self.sums[ahead].next += 1;
        }
    }

    /// Weights are parts of all samples, so that no finite value becomes infinite on the way.
    fn add(&mut self, ahead: usize, member: usize, values: Cow<'_, [f32]>) {
        let n_samples = self.senders[member].brought.n_samples;
        let weight = (n_samples as f64 / self.n_samples_of_all as f64) as f32;
        if self.sums[ahead].values.is_empty() {
            let mut values = match values {
                Cow::Owned(values) => values,
                Cow::Borrowed(values) => self.copied(values),
            };
            values.iter_mut().for_each(|value| *value *= weight);
            self.sums[ahead].values = values;
        } else {
            let sums = self.sums[ahead].values.iter_mut();
            sums.zip(&*values).for_each(|(sum, value)| *sum += value * weight);
            if let Cow::Owned(spare) = values {
                self.on_spare(spare);
            }
        }
        let sum = &mut self.sums[ahead];
        sum.n_samples = sum.n_samples.saturating_add(n_samples);
    }

    fn copied(&mut self, values: &[f32]) -> Vec<f32> {
        let mut copy = self.spares.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(values);
        copy
    }
}

impl Sender {
    /// Whether chunk `n_done` is expected of it.
    fn is_behind(&self, n_done: u32) -> bool {
        self.sending == Sending::At(n_done)
    }

    /// Whether all that it has is in the mean, and all that others could have in what it has.
    fn is_whole(&self, n_chunks: u32) -> bool {
        self.brought.is_whole && (self.brought.n_samples == 0 || self.sending == Sending::At(n_chunks))
    }
}

impl Sum {
    fn into_mean(mut self, of_all: u64) -> Vec<f32> {
        if self.n_samples != of_all {
            let scale = (of_all as f64 / self.n_samples as f64) as f32;
            let bounded = |value: f32| value.clamp(f32::MIN, f32::MAX);
            self.values.iter_mut().for_each(|value| *value = bounded(*value * scale));
        }
        self.values
    }
}
