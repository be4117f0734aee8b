//! One round of one peer: all parts at once, none of them after the deadline.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use barnraise_protocol::average::{Finished, Join, MemberSet, Refusal, WINDOW_CHUNKS_MAX};
use barnraise_protocol::codec::first_not_finite;
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::{Brought, Group};
use barnraise_swarm::bandwidth::Bytes;
use futures::channel::mpsc;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

use crate::deliver::deliver;
use crate::hub::{Joining, Opened, refuse};
use crate::platform::Platform;
use crate::reduce::reduce;

/// Most faults of a round that are named; further ones are of the same members.
const FAULTS_MAX: usize = 64;

/// How long whom is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Chunks that a member may be ahead of the average.
    pub window_chunks: u32,
    /// How long the others wait for a member over one part, and for a message to leave.
    pub patience: Duration,
    /// How long a reducer may be silent until its part goes to the one that stands by. Longer than the patience:
    /// an honest reducer is silent as long as it waits for members.
    pub reducer_timeout: Duration,
    /// How long a round takes at most.
    pub deadline: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window_chunks: 32,
            patience: Duration::from_secs(10),
            reducer_timeout: Duration::from_secs(25),
            deadline: Duration::from_secs(120),
        }
    }
}

/// What is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A window that cannot be granted.
    #[error("a window of 1 to {WINDOW_CHUNKS_MAX} chunks is possible, not {0}")]
    Window(u32),
    /// Times that contradict one another.
    #[error(
        "0 < patience ({patience:?}) < reducer timeout ({reducer:?}) < deadline ({deadline:?}) must hold"
    )]
    Times {
        /// [`Config::patience`].
        patience: Duration,
        /// [`Config::reducer_timeout`].
        reducer: Duration,
        /// [`Config::deadline`].
        deadline: Duration,
    },
}

impl Config {
    /// Whether a round can be done like that.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(1..=WINDOW_CHUNKS_MAX).contains(&self.window_chunks) {
            return Err(ConfigError::Window(self.window_chunks));
        }
        let (patience, reducer, deadline) = (self.patience, self.reducer_timeout, self.deadline);
        if patience.is_zero() || patience >= reducer || reducer >= deadline {
            return Err(ConfigError::Times { patience, reducer, deadline });
        }
        Ok(())
    }
}

/// What became of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartOutcome {
    /// Averaged.
    Averaged {
        /// Whose values are in it.
        finished: Finished,
        /// 1 where its own reducer had vanished.
        attempt: u8,
    },
    /// Not averaged: this peer's own values stand.
    NotAveraged {
        /// What failed, attempt after attempt.
        why: String,
    },
    /// No values, or none that this peer wants.
    None,
}

/// A member did what no honest one does; its values do not count from there on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Who.
    pub peer: PeerKey,
    /// In which part.
    pub part: usize,
    /// What.
    pub why: String,
}

/// The outcome of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct Averaged {
    /// The average, `[n_values]`; in parts that were not averaged this peer's own values.
    pub values: Vec<f32>,
    /// Of each member's part.
    pub parts: Vec<PartOutcome>,
    /// What members did that no honest one does.
    pub faults: Vec<Fault>,
    /// Bytes of encoded values that this peer sent.
    pub n_bytes_sent: u64,
    /// Bytes of encoded values that this peer received.
    pub n_bytes_received: u64,
}

impl Averaged {
    /// Whose values are in any part of it: positions among all who average together, which in a grid are those of all
    /// its groups.
    #[must_use]
    pub fn members(&self) -> MemberSet {
        self.finished().fold(MemberSet::default(), |all, finished| all.union(finished.behind))
    }

    /// Whose values are in every part of it.
    #[must_use]
    pub fn members_of_all(&self) -> MemberSet {
        self.finished().fold(self.members(), |all, finished| all.intersection(finished.behind))
    }

    /// Whether all values of all members of the group are in every part of it, and were whole themselves.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_complete() && self.finished().all(|finished| finished.is_whole)
    }

    fn finished(&self) -> impl Iterator<Item = &Finished> {
        self.parts.iter().filter_map(|part| match part {
            PartOutcome::Averaged { finished, .. } => Some(finished),
            PartOutcome::NotAveraged { .. } | PartOutcome::None => None,
        })
    }

    /// Whether every part is averaged.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.not_averaged().next().is_none()
    }

    /// Why parts are not averaged, of each that is not.
    pub fn not_averaged(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            PartOutcome::NotAveraged { why } => Some(why.as_str()),
            PartOutcome::Averaged { .. } | PartOutcome::None => None,
        })
    }
}

/// Why a round has no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AverageError {
    /// Not in the group.
    #[error("this peer is not a member of the group")]
    NotAMember,
    /// Two rounds of one name.
    #[error("a round of this group is going on here")]
    Twice,
    /// Another vector than the group's.
    #[error("a vector of {got} values, the group averages {want}")]
    Length {
        /// Of the group.
        want: usize,
        /// Given.
        got: usize,
    },
    /// A value that is not finite.
    #[error("value {0} is not finite")]
    NotFinite(usize),
    /// Contradictory times.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No part has values of more than one member.
    #[error("nothing was averaged: {0}")]
    NothingAveraged(String),
}

/// What all parts of a round share.
pub(crate) struct Round<'p, P> {
    pub(crate) platform: &'p P,
    pub(crate) config: &'p Config,
    pub(crate) group: &'p Group,
    pub(crate) me: usize,
    /// What this member brings.
    pub(crate) brought: Brought,
    pub(crate) values: Vec<f32>,
    faults: Mutex<Vec<Fault>>,
    n_bytes_sent: AtomicU64,
    n_bytes_received: AtomicU64,
}

impl<P> Round<'_, P> {
    pub(crate) fn sends(&self) -> bool {
        self.brought.n_samples > 0
    }

    /// An average of one member's values is none, unless no other has any.
    fn outcome(&self, finished: Finished, attempt: u8) -> PartOutcome {
        let n_senders = self.group.members().iter().filter(|member| member.n_samples > 0).count();
        if finished.members.n_members() as usize >= n_senders.min(2) {
            return PartOutcome::Averaged { finished, attempt };
        }
        PartOutcome::NotAveraged { why: "the values of one member only came in time".to_owned() }
    }

    fn receives(&self) -> bool {
        self.group.members()[self.me].receives
    }

    pub(crate) fn on_fault(&self, part: usize, member: usize, why: &impl ToString) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.len() < FAULTS_MAX {
            let peer = self.group.members()[member].peer.clone();
            faults.push(Fault { peer, part, why: why.to_string() });
        }
    }
}

impl<P: Platform> Round<'_, P> {
    pub(crate) fn count_sent(&self, n_bytes: usize) {
        let sent = n_bytes as u64;
        self.n_bytes_sent.fetch_add(sent, Ordering::Relaxed);
        self.platform.on_moved(Bytes { sent, received: 0 });
    }

    pub(crate) fn count_received(&self, n_bytes: usize) {
        let received = n_bytes as u64;
        self.n_bytes_received.fetch_add(received, Ordering::Relaxed);
        self.platform.on_moved(Bytes { sent: 0, received });
    }
}

/// Averages `values`, `[n_values]` and finite, with the other members of `group`; `brought` says what is behind them, where
/// that is not only this member's own. `streams` are those that others open for this round. The average takes the memory
/// of `spare`, which gets that of the values: a vector that is new each round costs as much as encrypting it.
///
/// # Errors
/// Where nothing was averaged, whatever the reason, and where the arguments contradict one another.
pub(crate) async fn average<P: Platform>(
    platform: &P,
    config: &Config,
    group: &Group,
    me: &PeerKey,
    (values, brought): (Vec<f32>, Option<Brought>),
    spare: &mut Vec<f32>,
    streams: &mut mpsc::Receiver<Opened<P::Stream>>,
) -> Result<Averaged, AverageError> {
    config.check()?;
    let me = group.position(me).ok_or(AverageError::NotAMember)?;
    let brought = brought.unwrap_or_else(|| group.own(me));
    if values.len() != group.n_values() {
        return Err(AverageError::Length { want: group.n_values(), got: values.len() });
    }
    if let Some(index) = first_not_finite(&values) {
        return Err(AverageError::NotFinite(index));
    }
    let mut means = std::mem::take(spare);
    if means.capacity() < values.len() {
        means = vec![0.0; values.len()];
    }
    // What was there is written over, by means or by this member's own values.
    means.resize(values.len(), 0.0);
    let round = Round {
        platform,
        config,
        group,
        me,
        brought,
        values,
        faults: Mutex::default(),
        n_bytes_sent: AtomicU64::new(0),
        n_bytes_received: AtomicU64::new(0),
    };
    let parts = all_parts(&round, &mut means, streams).await;
    let averaged = Averaged {
        values: means,
        parts,
        faults: round.faults.into_inner().unwrap_or_else(PoisonError::into_inner),
        n_bytes_sent: round.n_bytes_sent.into_inner(),
        n_bytes_received: round.n_bytes_received.into_inner(),
    };
    *spare = round.values;
    check_averaged(group, averaged)
}

fn check_averaged(group: &Group, averaged: Averaged) -> Result<Averaged, AverageError> {
    if averaged.parts.iter().any(|part| matches!(part, PartOutcome::Averaged { .. })) {
        return Ok(averaged);
    }
    // Whoever wants no average has done its own part.
    let why = averaged.parts.iter().find_map(|part| match part {
        PartOutcome::NotAveraged { why } => Some(why.clone()),
        PartOutcome::Averaged { .. } | PartOutcome::None => None,
    });
    let n_values = group.n_values();
    Err(AverageError::NothingAveraged(
        why.unwrap_or_else(|| format!("there is no part of {n_values} values")),
    ))
}

type Streams<P> = HashMap<(usize, u8), mpsc::Sender<Joining<<P as Platform>::Stream>>>;

async fn all_parts<P: Platform>(
    round: &Round<'_, P>,
    means: &mut [f32],
    streams: &mut mpsc::Receiver<Opened<P::Stream>>,
) -> Vec<PartOutcome> {
    let n_members = round.group.members().len();
    let mut outcomes: Vec<Option<PartOutcome>> = vec![None; n_members];
    let mut tasks: FuturesUnordered<BoxFuture<'_, (usize, PartOutcome)>> = FuturesUnordered::new();
    let mut queues = Streams::<P>::new();
    let mut rest = &mut *means;
    for (part, outcome) in outcomes.iter_mut().enumerate() {
        let (mean, others) = rest.split_at_mut(round.group.part(part).len());
        rest = others;
        let attempt = u8::from(part != round.me);
        if mean.is_empty() {
            *outcome = Some(PartOutcome::None);
        } else if round.group.reducer(part, attempt) == Some(round.me) {
            // Room for every member's stream, and one more of each.
            let (queue, joining) = mpsc::channel(n_members);
            queues.insert((part, attempt), queue);
            tasks.push(Box::pin(async move { (part, reduced(round, part, attempt, mean, joining).await) }));
        } else if round.receives() {
            tasks.push(Box::pin(async move { (part, delivered(round, part, mean).await) }));
        } else {
            *outcome = Some(PartOutcome::None);
        }
    }
    let sort = sort(round, streams, queues).fuse();
    let deadline = round.platform.sleep_until(round.platform.now() + round.config.deadline).fuse();
    let (mut sort, mut deadline) = (std::pin::pin!(sort), std::pin::pin!(deadline));
    while !tasks.is_empty() {
        futures::select_biased! {
            (part, outcome) = tasks.select_next_some() => outcomes[part] = Some(outcome),
            () = deadline => break,
            () = sort => {}
        }
    }
    drop(tasks);
    let late = || PartOutcome::NotAveraged { why: "the deadline of the round passed".to_owned() };
    let outcomes: Vec<_> = outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(late)).collect();
    for (part, _) in outcomes.iter().enumerate().filter(|(_, of)| !matches!(of, PartOutcome::Averaged { .. }))
    {
        let range = round.group.part(part);
        means[range.clone()].copy_from_slice(&round.values[range]);
    }
    outcomes
}

/// A part of which this peer is the reducer in attempt 0, or in attempt 1 where that fails.
async fn reduced<P: Platform>(
    round: &Round<'_, P>,
    part: usize,
    attempt: u8,
    mean: &mut [f32],
    mut joining: mpsc::Receiver<Joining<P::Stream>>,
) -> PartOutcome {
    let mut why = String::new();
    if attempt > 0 {
        match deliver(round, part, 0, mean).await {
            Ok(finished) => {
                // Whoever was cut off from the reducer waits for the average here.
                give_all_back(&mut joining).await;
                return round.outcome(finished, 0);
            }
            Err(error) => why = format!("{error}; "),
        }
    }
    let reduced = reduce(round, part, attempt, mean, &mut joining).await;
    give_all_back(&mut joining).await;
    match reduced {
        Ok(finished) => round.outcome(finished, attempt),
        Err(error) => PartOutcome::NotAveraged { why: format!("{why}{error}") },
    }
}

async fn give_all_back<S>(joining: &mut mpsc::Receiver<Joining<S>>) {
    joining.close();
    while let Some(late) = joining.next().await {
        give_back(late);
    }
}

/// A stream for a part that is averaged already is served when the round is over.
fn give_back<S>(late: Joining<S>) {
    // Whoever opened it may be gone.
    let _ = late.back.send(late.stream);
}

/// A part that others average.
async fn delivered<P: Platform>(round: &Round<'_, P>, part: usize, mean: &mut [f32]) -> PartOutcome {
    let mut why = Vec::new();
    for attempt in 0..=1 {
        match deliver(round, part, attempt, mean).await {
            Ok(finished) => return round.outcome(finished, attempt),
            Err(error) => why.push(error.to_string()),
        }
    }
    PartOutcome::NotAveraged { why: why.join("; ") }
}

/// Hands streams to the part they are for.
async fn sort<P: Platform>(
    round: &Round<'_, P>,
    streams: &mut mpsc::Receiver<Opened<P::Stream>>,
    mut queues: Streams<P>,
) {
    let mut refusing = FuturesUnordered::new();
    loop {
        let Opened { peer, join, stream, back } = futures::select_biased! {
            () = refusing.select_next_some() => continue,
            opened = streams.next() => match opened {
                Some(opened) => opened,
                None => break,
            },
        };
        let part = usize::from(join.part);
        let Join { n_samples, behind, is_whole, .. } = join;
        let brought = Brought { n_samples, behind, is_whole };
        let member = round.group.position(&peer).ok_or(Refusal::NotAMember);
        let member = member.and_then(|member| round.group.check(member, &brought).map(|()| member));
        let (refusal, stream) = match (member, queues.get_mut(&(part, join.attempt))) {
            (Err(refusal), _) => (refusal, stream),
            (_, None) => (Refusal::NotReducer { part: join.part, attempt: join.attempt }, stream),
            (Ok(member), Some(queue)) => match queue.try_send(Joining { member, brought, stream, back }) {
                Ok(()) => continue,
                Err(over) if over.is_disconnected() => {
                    give_back(over.into_inner());
                    continue;
                }
                Err(full) => (Refusal::Busy, full.into_inner().stream),
            },
        };
        // As many as there are members; further ones are dropped.
        if refusing.len() < round.group.members().len() {
            refusing.push(refuse(round.platform, stream, refusal));
        }
    }
    while refusing.next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_contradict_one_another_are_refused() {
        assert_eq!(Config::default().check(), Ok(()));
        let second = Duration::from_secs(1);
        for bad in [
            Config { window_chunks: 0, ..Config::default() },
            Config { window_chunks: WINDOW_CHUNKS_MAX + 1, ..Config::default() },
            Config { patience: Duration::ZERO, ..Config::default() },
            Config { reducer_timeout: Config::default().patience, ..Config::default() },
            Config { deadline: second, ..Config::default() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
