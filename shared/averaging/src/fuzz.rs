//! The production round with one Byzantine member, which sends any bytes at any time, as a sender and as a reducer. Other
//! members are killed, go silent or lose each other. In all cases the honest members end by their deadline, their averages
//! are averages, and they blame no honest member.

#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use barnraise_fuzz::arbitrary::{self, Arbitrary};
use barnraise_fuzz::{fuzz, value};
use barnraise_protocol::average::{
    CHUNK_VALUES, Finished, Join, JoinRefusal, MESSAGE_BYTES_MAX, MemberSet, ReducerToMember,
};
use barnraise_protocol::{Sha256Hash, TensorCodec, bulk, framing};
use barnraise_simulation::StreamEnd;
use barnraise_swarm::averaging::{Group, GroupMember, chunk, n_chunks};
use futures::future::select;
use futures::io::{AsyncReadExt as _, AsyncWriteExt as _};

use self::world::{AveragingSimulation, SimulatedPlatform, key};
use crate::{Averaged, AveragingConfig, PartOutcome, Platform as _};

#[allow(dead_code, reason = "the simulations of whole rounds need more of it")]
#[path = "../tests/simulation/world.rs"]
mod world;

/// The Byzantine member; the others are honest.
const BYZANTINE: usize = 0;
const N_MEMBERS: usize = 4;
/// From this length on a part has one more chunk; shorter parts keep the test fast.
const LARGE: u8 = 240;
/// Most Byzantine messages of a stream, and most streams.
const MESSAGES_MAX: usize = 12;
const STREAMS_MAX: usize = 8;
/// Error of the codecs.
const TOLERANCE: f32 = 0.02;
/// Time after the deadline for messages under way.
const SLACK: Duration = Duration::from_secs(3);

#[derive(Debug, Arbitrary)]
struct AveragingCase<'i> {
    /// Samples of each member.
    weights: [u8; N_MEMBERS],
    /// Values that each member reduces, and one chunk more from [`LARGE`] on.
    parts: [u8; N_MEMBERS],
    codec: u8,
    window: u8,
    /// When each member begins.
    starts: [u16; N_MEMBERS],
    mishaps: [Option<InjectedFault>; 2],
    /// Streams that the Byzantine member opens.
    opened: Vec<ByzantineStream<'i>>,
    /// Its messages on the streams that others open to it, in this order.
    answers: Vec<Vec<ByzantineMessage<'i>>>,
}

/// A fault of an honest member.
#[derive(Debug, Arbitrary)]
struct InjectedFault {
    member: u8,
    at: u16,
    kind: InjectedFaultKind,
}

#[derive(Debug, Arbitrary)]
enum InjectedFaultKind {
    Killed,
    Silent,
    /// A partition between it and another member.
    Parted(u8),
    Slow(u16),
}

#[derive(Debug, Arbitrary)]
struct ByzantineStream<'i> {
    to: u8,
    at: u16,
    sayings: Vec<ByzantineMessage<'i>>,
}

#[derive(Debug, Arbitrary)]
enum ByzantineMessage<'i> {
    /// As an honest member would.
    JoinWell {
        part: u8,
        attempt: bool,
    },
    Join {
        part: u8,
        attempt: u8,
        n_samples: u8,
        behind: u8,
        is_whole: bool,
        is_other_group: bool,
    },
    Granted {
        window: u32,
    },
    Refused,
    Finished {
        members: u8,
        n_samples: u8,
        behind: u8,
        is_whole: bool,
    },
    /// Consecutive chunks of a part, all of one value.
    Chunks {
        part: u8,
        first: u8,
        n: u8,
        value: f32,
        cut: u8,
    },
    Bytes(&'i [u8]),
    Wait {
        millis: u16,
    },
    Close,
}

/// An operation on a stream.
enum StreamOperation {
    Write(Vec<u8>),
    Wait(Duration),
    Close,
}

fn members(bits: u8) -> MemberSet {
    (0..8).filter(|at| bits >> at & 1 == 1).collect()
}

impl ByzantineMessage<'_> {
    fn acts(&self, group: &Group) -> Vec<StreamOperation> {
        let message =
            |frame: Result<Vec<u8>, framing::FrameError>| vec![StreamOperation::Write(frame.unwrap())];
        let said = |message: ReducerToMember| framing::encode(&message, MESSAGE_BYTES_MAX);
        match *self {
            Self::JoinWell { part, attempt } => {
                let own = group.own(BYZANTINE);
                let join = Join {
                    group: group.id(),
                    part: u16::from(part) % N_MEMBERS as u16,
                    attempt: attempt.into(),
                    n_samples: own.n_samples,
                    behind: own.behind,
                    is_whole: own.is_whole,
                };
                message(framing::encode(&join, MESSAGE_BYTES_MAX))
            }
            Self::Join { part, attempt, n_samples, behind, is_whole, is_other_group } => {
                let (part, n_samples, behind) = (part.into(), n_samples.into(), members(behind));
                let group = if is_other_group { Sha256Hash([7; 32]) } else { group.id() };
                let join = Join { group, part, attempt, n_samples, behind, is_whole };
                message(framing::encode(&join, MESSAGE_BYTES_MAX))
            }
            Self::Granted { window } => message(said(ReducerToMember::Granted { window_chunks: window })),
            Self::Refused => message(said(ReducerToMember::Refused(JoinRefusal::Busy))),
            Self::Finished { members: of, n_samples, behind, is_whole } => {
                let (of, behind) = (members(of), members(behind));
                let finished = Finished { members: of, n_samples: n_samples.into(), behind, is_whole };
                message(said(ReducerToMember::Finished(finished)))
            }
            Self::Chunks { part, first, n, value, cut } => {
                let n_values = group.part(usize::from(part) % N_MEMBERS).len();
                let of = |index: u32| {
                    let n_values = chunk(n_values, index).len().saturating_sub(usize::from(cut / 64));
                    let values = vec![if value.is_finite() { value } else { f32::NAN }; n_values];
                    match group.codec().encode(&values) {
                        Ok(bytes) => StreamOperation::Write(bulk::packed(index, &bytes)),
                        Err(_) => StreamOperation::Write(bulk::packed(index, &vec![0xff; 4 * n_values])),
                    }
                };
                let first = u32::from(first % 4);
                let end = (first + u32::from(n % 4)).min(n_chunks(n_values) + 1);
                (first..end).map(of).collect()
            }
            Self::Bytes(bytes) => vec![StreamOperation::Write(bytes.to_vec())],
            Self::Wait { millis } => vec![StreamOperation::Wait(Duration::from_millis(millis.into()))],
            Self::Close => vec![StreamOperation::Close],
        }
    }
}

fn acts(sayings: &[ByzantineMessage<'_>], group: &Group) -> Vec<StreamOperation> {
    sayings.iter().take(MESSAGES_MAX).flat_map(|saying| saying.acts(group)).collect()
}

/// Runs `acts` on a stream, reads all that comes meanwhile, and drops the stream.
async fn send_byzantine(byzantine: &SimulatedPlatform, pipe: StreamEnd, acts: Vec<StreamOperation>) {
    let (mut reader, mut writer) = pipe.split();
    let mut ignored = [0; 4096];
    let reading = async { while reader.read(&mut ignored).await.is_ok_and(|n_bytes| n_bytes > 0) {} };
    let saying = async {
        for act in acts {
            let done = match act {
                StreamOperation::Write(bytes) => writer.write_all(&bytes).await,
                StreamOperation::Wait(time) => {
                    byzantine.sleep_until(byzantine.now() + time).await;
                    Ok(())
                }
                StreamOperation::Close => writer.close().await,
            };
            if done.is_err() {
                break;
            }
        }
    };
    let (reading, saying) = (std::pin::pin!(reading), std::pin::pin!(saying));
    if let futures::future::Either::Left((_, saying)) = select(reading, saying).await {
        saying.await;
    }
}

fn config(window: u8) -> AveragingConfig {
    AveragingConfig {
        window_chunks: 1 + u32::from(window % 3),
        patience: Duration::from_secs(10),
        reducer_timeout: Duration::from_secs(25),
        deadline: Duration::from_secs(60),
    }
}

fn group(case: &AveragingCase<'_>) -> Option<Arc<Group>> {
    let n_reduced = |n: u8| usize::from(n) + if n < LARGE { 0 } else { CHUNK_VALUES };
    let member = |peer: usize| GroupMember {
        peer: key(peer),
        n_samples: u64::from(case.weights[peer] % 8),
        receives: true,
        n_reduced: n_reduced(case.parts[peer]) as u64,
    };
    let n_values = case.parts.iter().map(|share| n_reduced(*share)).sum();
    let codec = [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8][usize::from(case.codec % 3)];
    let members = (0..N_MEMBERS).map(member).collect();
    Group::new(b"fuzz", members, n_values, codec).ok().map(Arc::new)
}

/// Every value of a member.
fn value_of(peer: usize) -> f32 {
    peer as f32
}

/// Starts the round and injects the faults; returns the honest members without a fault.
fn start_case(case: AveragingCase<'_>, group: &Arc<Group>, world: &AveragingSimulation) -> Vec<usize> {
    let mut unharmed: Vec<usize> = (BYZANTINE + 1..N_MEMBERS).collect();
    for mishap in case.mishaps.into_iter().flatten() {
        let honest = |number: u8| BYZANTINE + 1 + usize::from(number) % (N_MEMBERS - 1);
        let member = honest(mishap.member);
        let at = Duration::from_millis(mishap.at.into());
        match mishap.kind {
            InjectedFaultKind::Killed => world.at(at, world.kill(member)),
            InjectedFaultKind::Silent => world.at(at, world.silence(member)),
            InjectedFaultKind::Parted(other) if honest(other) != member => {
                world.at(at, world.part(member, honest(other)));
                continue;
            }
            InjectedFaultKind::Parted(_) => continue,
            InjectedFaultKind::Slow(speed) => {
                world.set_speed(member, 10_000 + u64::from(speed));
                continue;
            }
        }
        unharmed.retain(|peer| *peer != member);
    }
    for peer in BYZANTINE + 1..N_MEMBERS {
        let start = Duration::from_millis(u64::from(case.starts[peer]) / 8);
        let values = vec![value_of(peer); group.n_values()];
        world.average(peer, start, group, &config(case.window), values);
    }
    for opened in case.opened.into_iter().take(STREAMS_MAX) {
        let (byzantine, acts) = (Arc::clone(&world.peers[BYZANTINE]), acts(&opened.sayings, group));
        let to = key(BYZANTINE + 1 + usize::from(opened.to) % (N_MEMBERS - 1));
        let at = Duration::from_millis(opened.at.into());
        world.spawn(BYZANTINE, async move {
            byzantine.sleep_until(at).await;
            if let Ok(pipe) = byzantine.open(&to).await {
                send_byzantine(&byzantine, pipe, acts).await;
            }
        });
    }
    let answers = case.answers.iter().take(STREAMS_MAX).map(|sayings| acts(sayings, group));
    let answers: Rc<RefCell<VecDeque<Vec<StreamOperation>>>> = Rc::new(RefCell::new(answers.collect()));
    let byzantine = Arc::clone(&world.peers[BYZANTINE]);
    world.taking.borrow_mut()[BYZANTINE] = Rc::new(move |_, pipe| {
        let (byzantine, acts) =
            (Arc::clone(&byzantine), answers.borrow_mut().pop_front().unwrap_or_default());
        Box::pin(async move { send_byzantine(&byzantine, pipe, acts).await })
    });
    unharmed
}

/// Checks the result of an honest member without a fault.
fn check(group: &Group, peer: usize, averaged: &Averaged) {
    assert_eq!(averaged.values.len(), group.n_values());
    assert!(averaged.values.iter().all(|value| value.is_finite()), "a value that is not finite");
    assert!(averaged.faults.iter().all(|fault| fault.peer == key(BYZANTINE)), "{:?}", averaged.faults);
    for (part, outcome) in averaged.parts.iter().enumerate() {
        let values = &averaged.values[group.part(part)];
        let PartOutcome::Averaged { finished, attempt } = outcome else {
            assert!(values.iter().all(|value| *value == value_of(peer)), "its own values stand");
            continue;
        };
        let reducer = group.reducer(part, *attempt);
        // The mean of a Byzantine reducer is arbitrary.
        if reducer == Some(BYZANTINE) || finished.members.contains(BYZANTINE) {
            continue;
        }
        let honest = (0..N_MEMBERS).filter(|member| finished.members.contains(*member)).map(value_of);
        let (low, high) = honest.fold((f32::MAX, f32::MIN), |(low, high), of| (low.min(of), high.max(of)));
        let bounds = low - TOLERANCE..=high + TOLERANCE;
        assert!(values.iter().all(|value| bounds.contains(value)), "part {part} is no mean of {finished:?}");
        if finished.is_whole {
            let all = || group.members().iter().map(|member| member.n_samples as f32);
            let mean =
                all().enumerate().map(|(member, n)| value_of(member) * n).sum::<f32>() / all().sum::<f32>();
            assert!(
                values.iter().all(|value| (value - mean).abs() <= TOLERANCE),
                "part {part} is not {mean}"
            );
        }
    }
}

/// A reducer sends all members the same mean.
fn check_same(group: &Group, one: &Averaged, other: &Averaged) {
    for part in 0..N_MEMBERS {
        let (PartOutcome::Averaged { attempt, .. }, PartOutcome::Averaged { attempt: of_other, .. }) =
            (&one.parts[part], &other.parts[part])
        else {
            continue;
        };
        if attempt == of_other && group.reducer(part, *attempt) != Some(BYZANTINE) {
            let range = group.part(part);
            assert!(one.values[range.clone()] == other.values[range], "part {part} differs");
        }
    }
}

#[test]
fn averaging_driver() {
    fuzz!("averaging_driver", |input| {
        let Some(case) = value::<AveragingCase<'_>>(input) else { return };
        let Some(group) = group(&case) else { return };
        let latest = config(0).deadline + SLACK + Duration::from_millis(u64::from(u16::MAX) / 8);
        let mut world = AveragingSimulation::new(N_MEMBERS);
        let unharmed = start_case(case, &group, &world);
        world.run();
        let mut averages: Vec<Arc<Averaged>> = Vec::new();
        for peer in unharmed {
            let (at, outcome) = world.outcome(peer);
            assert!(at <= latest, "peer {peer} took {at:?}");
            if let Ok(averaged) = outcome {
                check(&group, peer, &averaged);
                averages.iter().for_each(|other| check_same(&group, other, &averaged));
                averages.push(averaged);
            }
        }
    });
}
