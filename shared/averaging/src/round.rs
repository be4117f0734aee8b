//! One all-reduce round of one peer (DeDLOC §3.2): all parts concurrently, none of them after the deadline.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use barnraise_protocol::average::{Join, JoinRefusal};
use barnraise_protocol::codec::first_not_finite;
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::{Group, MemberInput};
use futures::channel::mpsc;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

use crate::config::{AveragingConfig, ConfigError};
use crate::context::RoundContext;
use crate::deliver::deliver;
use crate::error::{AttemptError, PartError};
use crate::incoming::{IncomingStream, JoiningMember, refuse};
use crate::outcome::{Averaged, PartOutcome};
use crate::platform::Platform;
use crate::reduce::reduce;

/// Why a round has no outcome.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AverageError {
    /// This peer is not in the group.
    #[error("this peer is not a member of the group")]
    NotAMember,
    /// A round with this name is under way.
    #[error("a round of this group is under way here")]
    Twice,
    /// The vector has another length than the group's.
    #[error("a vector of {got} values, the group averages {want}")]
    Length {
        /// Values of the group's vector.
        want: usize,
        /// Values that were given.
        got: usize,
    },
    /// A value that is not finite.
    #[error("value {0} is not finite")]
    NotFinite(usize),
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No part has values of more than one member.
    #[error("nothing was averaged: {0}")]
    NothingAveraged(PartError),
    /// No member was to reduce a part.
    #[error("nothing was averaged: there is no part of {n_values} values")]
    NoPart {
        /// Of the group's vector.
        n_values: usize,
    },
}

/// Averages `values`, `[n_values]` and finite, with the other members of `group`. `input` describes them where they are
/// not only this member's own. `streams` are the incoming streams of this round. The average takes the memory of `spare`,
/// which gets that of the values: allocating a vector each round costs as much as encrypting it.
///
/// # Errors
/// Where nothing was averaged, and where the arguments contradict one another.
pub(crate) async fn average<P: Platform>(
    platform: &P,
    config: &AveragingConfig,
    group: &Group,
    me: &PeerKey,
    (values, input): (Vec<f32>, Option<MemberInput>),
    spare: &mut Vec<f32>,
    streams: &mut mpsc::Receiver<IncomingStream<P::Stream>>,
) -> Result<Averaged, AverageError> {
    config.check()?;
    let me = group.position(me).ok_or(AverageError::NotAMember)?;
    let input = input.unwrap_or_else(|| group.own(me));
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
    // Every value is overwritten, by means or by this member's own values.
    means.resize(values.len(), 0.0);
    let round = RoundContext {
        platform,
        config,
        group,
        me,
        input,
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
    // A reducer that receives no average has no averaged part of others; its own part failed.
    let error = averaged.not_averaged().next().cloned();
    Err(error.map_or(AverageError::NoPart { n_values: group.n_values() }, AverageError::NothingAveraged))
}

type Streams<P> = HashMap<(usize, u8), mpsc::Sender<JoiningMember<<P as Platform>::Stream>>>;

async fn all_parts<P: Platform>(
    round: &RoundContext<'_, P>,
    means: &mut [f32],
    streams: &mut mpsc::Receiver<IncomingStream<P::Stream>>,
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
    let late = || PartOutcome::NotAveraged { error: PartError::Deadline };
    let outcomes: Vec<_> = outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(late)).collect();
    for (part, _) in outcomes.iter().enumerate().filter(|(_, of)| !matches!(of, PartOutcome::Averaged { .. }))
    {
        let range = round.group.part(part);
        means[range.clone()].copy_from_slice(&round.values[range]);
    }
    outcomes
}

/// A part that this peer reduces: its own in attempt 0, or as the standby reducer in attempt 1 where attempt 0 fails.
async fn reduced<P: Platform>(
    round: &RoundContext<'_, P>,
    part: usize,
    attempt: u8,
    mean: &mut [f32],
    mut joining: mpsc::Receiver<JoiningMember<P::Stream>>,
) -> PartOutcome {
    let mut errors: Vec<AttemptError> = Vec::new();
    if attempt > 0 {
        match deliver(round, part, 0, mean).await {
            Ok(finished) => {
                // Members that were cut off from the reducer wait for the average here.
                give_all_back(&mut joining).await;
                return round.outcome(finished, 0);
            }
            Err(error) => errors.push(error.into()),
        }
    }
    let reduced = reduce(round, part, attempt, mean, &mut joining).await;
    give_all_back(&mut joining).await;
    match reduced {
        Ok(finished) => round.outcome(finished, attempt),
        Err(error) => {
            errors.push(error.into());
            PartOutcome::NotAveraged { error: errors.into() }
        }
    }
}

async fn give_all_back<S>(joining: &mut mpsc::Receiver<JoiningMember<S>>) {
    joining.close();
    while let Some(late) = joining.next().await {
        give_back(late);
    }
}

/// A stream for a part that is averaged already is served when the round is over.
fn give_back<S>(late: JoiningMember<S>) {
    // The peer that opened it may be gone.
    let _ = late.back.send(late.stream);
}

/// A part that other members reduce.
async fn delivered<P: Platform>(round: &RoundContext<'_, P>, part: usize, mean: &mut [f32]) -> PartOutcome {
    let mut errors: Vec<AttemptError> = Vec::new();
    for attempt in 0..=1 {
        match deliver(round, part, attempt, mean).await {
            Ok(finished) => return round.outcome(finished, attempt),
            Err(error) => errors.push(error.into()),
        }
    }
    PartOutcome::NotAveraged { error: errors.into() }
}

/// Passes each stream to its part.
async fn sort<P: Platform>(
    round: &RoundContext<'_, P>,
    streams: &mut mpsc::Receiver<IncomingStream<P::Stream>>,
    mut queues: Streams<P>,
) {
    let mut refusing = FuturesUnordered::new();
    loop {
        let IncomingStream { peer, join, stream, back } = futures::select_biased! {
            () = refusing.select_next_some() => continue,
            opened = streams.next() => match opened {
                Some(opened) => opened,
                None => break,
            },
        };
        let part = usize::from(join.part);
        let Join { n_samples, behind, is_whole, .. } = join;
        let input = MemberInput { n_samples, behind, is_whole };
        let member = round.group.position(&peer).ok_or(JoinRefusal::NotAMember);
        let member = member.and_then(|member| round.group.check(member, &input).map(|()| member));
        let (refusal, stream) = match (member, queues.get_mut(&(part, join.attempt))) {
            (Err(refusal), _) => (refusal, stream),
            (_, None) => (JoinRefusal::NotReducer { part: join.part, attempt: join.attempt }, stream),
            (Ok(member), Some(queue)) => {
                match queue.try_send(JoiningMember { member, input, stream, back }) {
                    Ok(()) => continue,
                    Err(over) if over.is_disconnected() => {
                        give_back(over.into_inner());
                        continue;
                    }
                    Err(full) => (JoinRefusal::Busy, full.into_inner().stream),
                }
            }
        };
        // As many as there are members; further ones are dropped.
        if refusing.len() < round.group.members().len() {
            refusing.push(refuse(round.platform, stream, refusal));
        }
    }
    while refusing.next().await.is_some() {}
}
