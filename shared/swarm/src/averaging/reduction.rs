//! The reducer of one part: sums the members' values, and drops members that are late.
//!
//! Members send chunks in order. The mean of a chunk is due when every member that is still expected has sent it.
//! While some member has sent a chunk, a member that has not is late. Its lateness adds up over the part; when that exceeds
//! the patience, nothing more is expected of it. So a member that is slow all along, one that stalls once and one that
//! never comes are treated alike. Where no member sends anything, none is ahead of the others. Then all are dropped after
//! [`IDLE_PATIENCES`] times the patience, because members without samples wait too.
//!
//! Values are added up in the order of the members: a sum of floats depends on the order, and groups that average the
//! same values must get the same bits. Values that arrive before their turn are held.
//!
//! It never holds more chunks of a member than its window, nor more than [`HELD_VALUES_MAX`] values of all members
//! together, or one chunk of each where that is more. So the window shrinks where there are many members.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::average::{CHUNK_VALUES, Finished, MemberSet};

use super::group::{MemberInput, chunk, n_chunks};
use crate::Moment;

/// Most values that are held of a part: 64 MiB.
pub const HELD_VALUES_MAX: usize = 1 << 24;
/// A part in which no chunk is pending waits for this many times the patience.
const IDLE_PATIENCES: u32 = 2;
/// Most spare buffers.
const SPARES_MAX: usize = 16;

/// Size, window and patience of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReductionConfig {
    /// Values of the part.
    pub n_values: usize,
    /// Chunks that a member may be ahead of the mean, where there are not too many members; see
    /// [`Reduction::window_chunks`].
    pub window_chunks: u32,
    /// How long the others wait for a member, in total over the part.
    pub patience: Duration,
}

/// State of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReductionState {
    /// Values are expected.
    Going,
    /// The whole part is averaged.
    Done(Finished),
    /// No member is left that could send the rest.
    Failed,
}

/// A chunk of the mean.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkOfMean {
    /// Index of the chunk in the part.
    pub index: u32,
    /// `[n_values of the chunk]`.
    pub values: Vec<f32>,
}

/// Why a chunk is refused; nothing more of its member is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReductionError {
    /// The member has nothing to send, or was dropped.
    #[error("no values are taken from this member any longer")]
    NotAwaited,
    /// The chunk is out of order.
    #[error("chunk {got} came, chunk {want} is next")]
    Order {
        /// The member's next chunk.
        want: u32,
        /// The chunk that came.
        got: u32,
    },
    /// The chunk has the wrong number of values.
    #[error("a chunk of {got} values, {want} belong there")]
    Length {
        /// Values of the chunk at that index.
        want: usize,
        /// Values that came.
        got: usize,
    },
    /// The chunk is beyond the member's window.
    #[error("chunk {got} came, at most chunk {max} was granted")]
    Window {
        /// Last chunk that was granted.
        max: u32,
        /// The chunk that came.
        got: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// Index of the next chunk; the number of chunks when all were sent.
    At(u32),
    /// Nothing more is expected.
    Gone,
}

#[derive(Debug)]
struct Sender {
    input: MemberInput,
    sending: Sending,
    /// Total time that others have waited for it.
    late: Duration,
    has_sent: bool,
}

/// A chunk that some members have sent: the sum of their values, weighted by their fraction of all samples.
#[derive(Debug, Default)]
pub(super) struct ChunkSum {
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
    /// The chunks from `n_done` on; not empty while a member is waited for.
    pub(super) sums: VecDeque<ChunkSum>,
    n_done: u32,
    means: VecDeque<ChunkOfMean>,
    /// Buffers whose values have been added.
    spares: Vec<Vec<f32>>,
    /// Samples behind each value that is averaged, added up over the values.
    n_samples_of_values: u128,
    /// Lateness is counted up to this time.
    counted_until: Moment,
    /// When the last chunk came, or the reduction began.
    moved_at: Moment,
}

impl Reduction {
    /// A reduction that begins at `now` among members with `n_samples`, `[n_members]`, or fewer ([`Self::on_joined`]). A
    /// member with 0 sends nothing.
    #[must_use]
    pub fn new(now: Moment, config: ReductionConfig, n_samples: &[u64]) -> Self {
        let sender = |(position, &n_samples): (usize, &u64)| {
            let sending = if n_samples > 0 { Sending::At(0) } else { Sending::Gone };
            let behind = if n_samples > 0 { MemberSet::from_iter([position]) } else { MemberSet::default() };
            let input = MemberInput { n_samples, behind, is_whole: true };
            Sender { input, sending, late: Duration::ZERO, has_sent: false }
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

    /// A member has joined with this input, which was checked against the group. A member without samples is not waited
    /// for.
    pub fn on_joined(&mut self, now: Moment, member: usize, input: MemberInput) {
        let Some(sender) = self.senders.get_mut(member).filter(|sender| !sender.has_sent) else { return };
        sender.input = input;
        if input.n_samples == 0 {
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

    /// The next chunk that a member may send; `None` if it may send none now.
    #[must_use]
    pub fn wanted_of(&self, member: usize) -> Option<u32> {
        match self.senders.get(member)?.sending {
            Sending::At(next) if next < self.n_chunks() && next - self.n_done < self.config.window_chunks => {
                Some(next)
            }
            _ => None,
        }
    }

    /// Values of a member, `[n_values of the chunk]`, finite. Owned values are not copied.
    ///
    /// # Errors
    /// See [`ReductionError`]: the values do not count, and the caller should drop the member.
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
            self.sums.push_back(ChunkSum::default());
        }
        // Adds held values up to this member, whose chunk is still expected.
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

    /// Nothing more comes from a member. The values that it has sent count.
    pub fn on_lost(&mut self, now: Moment, member: usize) {
        let n_chunks = self.n_chunks();
        if self.senders.get(member).is_some_and(|sender| sender.sending != Sending::At(n_chunks)) {
            self.count_lateness(now);
            self.senders[member].sending = Sending::Gone;
            self.advance();
        }
    }

    /// Drops members that are too late; see [`Self::next_deadline`].
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

    /// When all members are dropped, as long as none is ahead of the others.
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

    /// A spare buffer for a chunk to come.
    pub fn poll_spare(&mut self) -> Option<Vec<f32>> {
        self.spares.pop()
    }

    /// Takes a buffer back; its values do not matter.
    pub fn on_spare(&mut self, spare: Vec<f32>) {
        if self.spares.len() < SPARES_MAX {
            self.spares.push(spare);
        }
    }

    /// The next chunk of the mean, in order.
    pub fn poll_mean(&mut self) -> Option<ChunkOfMean> {
        self.means.pop_front()
    }

    /// The state of the reduction.
    #[must_use]
    pub fn state(&self) -> ReductionState {
        let n_chunks = self.n_chunks();
        let is_expected = |sender: &Sender| matches!(sender.sending, Sending::At(next) if next < n_chunks);
        if self.n_done < n_chunks {
            let is_going = self.senders.iter().any(is_expected);
            return if is_going { ReductionState::Going } else { ReductionState::Failed };
        }
        let has_sent = |(position, sender): (usize, &Sender)| sender.has_sent.then_some(position);
        let members = self.senders.iter().enumerate().filter_map(has_sent).collect();
        let senders = self.senders.iter().filter(|sender| sender.has_sent);
        let behind = senders.fold(MemberSet::default(), |all, sender| all.union(sender.input.behind));
        let is_whole = self.senders.iter().all(|sender| sender.is_whole(n_chunks));
        let n_values = (self.config.n_values as u128).max(1);
        // Rounded down, so that the samples of all members are reached only with all of their values.
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

    /// Takes the mean of each chunk that all expected members have sent.
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

    /// Adds the held values of a chunk up to the first member that is still expected.
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

    /// Weights are fractions of all samples, so that no sum of finite values overflows.
    fn add(&mut self, ahead: usize, member: usize, values: Cow<'_, [f32]>) {
        let n_samples = self.senders[member].input.n_samples;
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
    /// Whether it still has to send chunk `n_done`.
    fn is_behind(&self, n_done: u32) -> bool {
        self.sending == Sending::At(n_done)
    }

    /// Whether all its values are in the mean, and its input was whole.
    fn is_whole(&self, n_chunks: u32) -> bool {
        self.input.is_whole && (self.input.n_samples == 0 || self.sending == Sending::At(n_chunks))
    }
}

impl ChunkSum {
    fn into_mean(mut self, of_all: u64) -> Vec<f32> {
        if self.n_samples != of_all {
            let scale = (of_all as f64 / self.n_samples as f64) as f32;
            let bounded = |value: f32| value.clamp(f32::MIN, f32::MAX);
            self.values.iter_mut().for_each(|value| *value = bounded(*value * scale));
        }
        self.values
    }
}
