//! Whole rounds in virtual time: the averages, and the effect of members that stall, vanish or are Byzantine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods, missing_docs)]

mod bandwidth;
mod checked;
mod grid;
mod world;

use std::sync::Arc;
use std::time::Duration;

use barnraise_averaging::{AverageError, Averaged, AveragingConfig, PartOutcome, Platform};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::{self, CHUNK_VALUES, Join};
use barnraise_protocol::bulk;
use barnraise_simulation::seeds;
use barnraise_swarm::averaging::{Group, GroupMember, MemberInput};
use barnraise_swarm::random::SplitMix64;
use futures::{AsyncWriteExt, StreamExt};
use world::{AveragingSimulation, key};

const AT_ONCE: Duration = Duration::ZERO;

fn config() -> AveragingConfig {
    AveragingConfig {
        window_chunks: 4,
        patience: Duration::from_secs(10),
        reducer_timeout: Duration::from_secs(30),
        deadline: Duration::from_secs(120),
    }
}

/// Members in order, each with its samples and the number of values that it reduces.
fn group(members: &[(u64, usize)], codec: TensorCodec) -> Arc<Group> {
    let member = |(peer, &(n_samples, n_reduced)): (usize, &(u64, usize))| GroupMember {
        peer: key(peer),
        n_samples,
        receives: true,
        n_reduced: n_reduced as u64,
    };
    let n_values = members.iter().map(|(_, n_reduced)| n_reduced).sum();
    let members = members.iter().enumerate().map(member).collect();
    Arc::new(Group::new(b"epoch 7", members, n_values, codec).unwrap())
}

fn values(seed: usize, n_values: usize) -> Vec<f32> {
    let mut random = SplitMix64::new(seed as u64);
    (0..n_values).map(|_| (random.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// The mean of the `counted` members in double precision.
fn mean(group: &Group, counted: &[usize]) -> Vec<f64> {
    let n_samples = |member: usize| group.members()[member].n_samples as f64;
    let of_all: f64 = counted.iter().map(|&member| n_samples(member)).sum();
    let mut mean = vec![0.0; group.n_values()];
    for &member in counted {
        let values = values(member, group.n_values());
        mean.iter_mut().zip(values).for_each(|(sum, v)| *sum += f64::from(v) * n_samples(member) / of_all);
    }
    mean
}

fn assert_close(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= tolerance, "value {index}: {got}, not {want}");
    }
}

/// All of `peers` have averaged every part, with the same bits.
fn all_agree(world: &AveragingSimulation, peers: &[usize]) -> Arc<Averaged> {
    let (_, first) = world.outcome(peers[0]);
    let first = first.unwrap();
    for &peer in peers {
        let (_, averaged) = world.outcome(peer);
        let averaged = averaged.unwrap();
        assert!(averaged.is_complete(), "peer {peer}: {:?}", averaged.parts);
        let differs = |(one, other): (&f32, &f32)| one.to_bits() != other.to_bits();
        let index = averaged.values.iter().zip(&first.values).position(differs);
        assert_eq!(index, None, "peer {peer}: {:?}; peer {}: {:?}", averaged.parts, peers[0], first.parts);
    }
    first
}

fn start(world: &AveragingSimulation, group: &Arc<Group>) {
    for peer in 0..group.members().len() {
        world.average(peer, AT_ONCE, group, &config(), values(peer, group.n_values()));
    }
}

#[test]
fn every_member_gets_the_weighted_mean() {
    let c = CHUNK_VALUES;
    for members in [
        vec![(1, c), (1, c)],
        vec![(3, 2 * c + 5), (1, 1), (8, c - 1)],
        // The second and the last cannot be dialled; the third has no samples of its own.
        vec![(5, 3 * c), (2, 0), (0, 2 * c), (9, 0), (1, 7 * c), (4, 0)],
        vec![(4, 5), (2, 0)],
        vec![(1, 1); 9],
    ] {
        let group = group(&members, TensorCodec::F32);
        let mut world = AveragingSimulation::new(members.len());
        start(&world, &group);
        world.run();
        let everybody: Vec<usize> = (0..members.len()).collect();
        let averaged = all_agree(&world, &everybody);
        assert_close(&averaged.values, &mean(&group, &everybody), 1e-6);
        assert!(averaged.faults.is_empty(), "{:?}", averaged.faults);
    }
}

/// A member without values is not waited for: it may join in the middle, at the end, or after the round.
#[test]
fn a_member_without_values_gets_the_mean_whenever_it_joins() {
    let group = group(&[(3, 2 * CHUNK_VALUES), (1, CHUNK_VALUES), (0, 0)], TensorCodec::F32);
    for millis in (0..2000).step_by(40) {
        let mut world = AveragingSimulation::new(3);
        for (peer, start) in [(0, 0), (1, 0), (2, millis)] {
            let start = Duration::from_millis(start);
            world.average(peer, start, &group, &config(), values(peer, group.n_values()));
        }
        world.run();
        let averaged = all_agree(&world, &[0, 1, 2]);
        assert_close(&averaged.values, &mean(&group, &[0, 1]), 1e-6);
        assert_eq!(averaged.members(), [0, 1].into_iter().collect());
    }
}

#[test]
fn lossy_codecs_leave_all_members_with_the_same_bits() {
    for (codec, tolerance) in [(TensorCodec::F16, 1e-3), (TensorCodec::Int8, 2e-2)] {
        let group = group(&[(1, 70_000), (2, 1_000), (3, 0)], codec);
        let mut world = AveragingSimulation::new(3);
        start(&world, &group);
        world.run();
        let averaged = all_agree(&world, &[0, 1, 2]);
        assert_close(&averaged.values, &mean(&group, &[0, 1, 2]), tolerance);
    }
}

#[test]
fn members_may_begin_at_different_times() {
    let group = group(&[(1, 100), (1, 100), (2, 100)], TensorCodec::F32);
    let mut world = AveragingSimulation::new(3);
    for peer in 0..3 {
        let delay = Duration::from_secs(4 * peer as u64);
        world.average(peer, delay, &group, &config(), values(peer, 300));
    }
    world.run();
    all_agree(&world, &[0, 1, 2]);
}

#[test]
fn a_member_without_samples_that_wants_nothing_only_averages() {
    let members = vec![
        GroupMember { peer: key(0), n_samples: 3, receives: true, n_reduced: 0 },
        GroupMember { peer: key(1), n_samples: 0, receives: false, n_reduced: 300 },
        GroupMember { peer: key(2), n_samples: 1, receives: true, n_reduced: 0 },
        GroupMember { peer: key(3), n_samples: 0, receives: true, n_reduced: 0 },
    ];
    let group = Arc::new(Group::new(b"", members, 300, TensorCodec::F32).unwrap());
    let mut world = AveragingSimulation::new(4);
    start(&world, &group);
    world.run();
    let averaged = all_agree(&world, &[0, 2, 3]);
    assert_close(&averaged.values, &mean(&group, &[0, 2]), 1e-6);
    world.outcome(1).1.unwrap();
}

#[test]
fn a_member_that_stalls_costs_its_own_share_only() {
    let n = 24 * CHUNK_VALUES;
    let group = group(&[(1, n), (1, n), (2, 0)], TensorCodec::F32);
    let mut world = AveragingSimulation::new(3);
    start(&world, &group);
    // Each of its streams carries 256 KiB in a quarter of a second.
    world.at(Duration::from_millis(600), world.silence(2));
    world.run();
    let averaged = all_agree(&world, &[0, 1]);
    let PartOutcome::Averaged { finished, attempt: 0 } = averaged.parts[0] else {
        panic!("{:?}", averaged.parts);
    };
    assert_eq!(finished.members, [0, 1, 2].into_iter().collect());
    assert!((2..4).contains(&finished.n_samples), "{}", finished.n_samples);
    assert_close(&averaged.values[..CHUNK_VALUES], &mean(&group, &[0, 1, 2])[..CHUNK_VALUES], 1e-6);
    assert_close(&averaged.values[n - 9..n], &mean(&group, &[0, 1])[n - 9..n], 1e-6);
    for peer in [0, 1] {
        assert!(world.outcome(peer).0 < Duration::from_secs(40), "{:?}", world.outcome(peer).0);
    }
    assert!(matches!(world.outcome(2).1, Err(AverageError::NothingAveraged(_))));
}

#[test]
fn a_slow_member_is_waited_for_within_the_patience() {
    let n = 16 * CHUNK_VALUES;
    let group = group(&[(1, n), (1, n), (1, 0)], TensorCodec::F32);
    let mut world = AveragingSimulation::new(3);
    // A MiB for each part: 8 seconds.
    world.set_speed(2, 128 * 1024);
    start(&world, &group);
    world.run();
    let averaged = all_agree(&world, &[0, 1, 2]);
    assert_close(&averaged.values, &mean(&group, &[0, 1, 2]), 1e-6);
}

#[test]
fn a_member_too_slow_to_be_counted_still_gets_the_average() {
    let n = 16 * CHUNK_VALUES;
    let group = group(&[(1, n), (1, n), (1, 0)], TensorCodec::F32);
    let mut world = AveragingSimulation::new(3);
    world.set_speed(2, 40 * 1024);
    start(&world, &group);
    world.run();
    let averaged = all_agree(&world, &[0, 1, 2]);
    let last = 2 * n - 9..2 * n;
    assert_close(&averaged.values[last.clone()], &mean(&group, &[0, 1])[last], 1e-6);
}

#[test]
fn a_reducer_that_is_killed_costs_one_retry_of_its_part() {
    let n = 24 * CHUNK_VALUES;
    let group = group(&[(1, n), (1, n), (2, n), (1, 0)], TensorCodec::F32);
    let mut world = AveragingSimulation::new(4);
    start(&world, &group);
    world.at(Duration::from_millis(700), world.kill(0));
    world.run();
    let averaged = all_agree(&world, &[1, 2, 3]);
    let PartOutcome::Averaged { finished, attempt: 1 } = averaged.parts[0] else {
        panic!("{:?}", averaged.parts);
    };
    assert_eq!((finished.members, finished.n_samples), ([1, 2, 3].into_iter().collect(), 4));
    assert_close(&averaged.values[..n], &mean(&group, &[1, 2, 3])[..n], 1e-6);
    assert!(matches!(averaged.parts[1], PartOutcome::Averaged { attempt: 0, .. }));
}

#[test]
fn a_reducer_that_goes_silent_costs_one_retry_of_its_part() {
    let n = 24 * CHUNK_VALUES;
    let group = group(&[(1, n), (1, n), (2, n)], TensorCodec::F32);
    let mut world = AveragingSimulation::new(3);
    start(&world, &group);
    world.at(Duration::from_millis(700), world.silence(2));
    world.run();
    let averaged = all_agree(&world, &[0, 1]);
    assert!(matches!(averaged.parts[2], PartOutcome::Averaged { attempt: 1, .. }), "{:?}", averaged.parts);
    assert_close(&averaged.values[2 * n..], &mean(&group, &[0, 1])[2 * n..], 1e-6);
}

#[test]
fn a_member_that_missed_a_part_gets_it_from_the_standby_reducer() {
    let n = 4 * CHUNK_VALUES;
    let group = group(&[(1, n), (1, n), (2, 0)], TensorCodec::F32);
    let mut world = AveragingSimulation::new(3);
    // The third gets its averages slowly from the first, which dies when the second has all of its part.
    world.set_download(2, 64 * 1024);
    start(&world, &group);
    world.run();
    let whole = world.outcome(2).0;
    let mut world = AveragingSimulation::new(3);
    world.set_download(2, 64 * 1024);
    start(&world, &group);
    world.at(whole * 3 / 4, world.kill(0));
    world.run();
    all_agree(&world, &[1, 2]);
    let averaged = world.outcome(2).1.unwrap();
    assert!(matches!(averaged.parts[0], PartOutcome::Averaged { attempt: 1, .. }), "{:?}", averaged.parts);
}

/// The first and the third cannot reach each other. The second is the standby reducer of the first and has its part. The
/// third asks it while it still sends its own part, slowly.
#[test]
fn a_link_that_fails_costs_no_part() {
    let n = 24 * CHUNK_VALUES;
    let group = group(&[(1, n), (1, n), (2, 0)], TensorCodec::F32);
    let mut world = AveragingSimulation::new(3);
    world.set_speed(1, 40 * 1024);
    start(&world, &group);
    world.at(Duration::from_millis(600), world.part(0, 2));
    world.run();
    let averaged = all_agree(&world, &[0, 1, 2]);
    assert_close(&averaged.values[..9], &mean(&group, &[0, 1, 2])[..9], 1e-6);
    let attempt = |peer: usize| match world.outcome(peer).1.unwrap().parts[0] {
        PartOutcome::Averaged { attempt, .. } => Some(attempt),
        _ => None,
    };
    assert_eq!((attempt(0), attempt(1), attempt(2)), (Some(0), Some(0), Some(1)));
    assert!(world.outcome(1).0 > config().reducer_timeout, "it was asked when its round was over");
}

#[test]
fn a_member_alone_does_not_average() {
    let group = group(&[(1, 300), (1, 300), (1, 300)], TensorCodec::F32);
    let mut world = AveragingSimulation::new(3);
    world.average(1, AT_ONCE, &group, &config(), values(1, 900));
    for peer in [0, 2] {
        world.silence(peer)();
    }
    world.run();
    let (at, outcome) = world.outcome(1);
    assert!(matches!(outcome, Err(AverageError::NothingAveraged(_))), "{outcome:?}");
    assert!(at <= config().deadline);
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let group = group(&[(1, 2), (1, 2)], TensorCodec::F32);
    type IsWanted = fn(&AverageError) -> bool;
    let cases: [(usize, Vec<f32>, IsWanted); 3] = [
        (2, vec![0.0; 4], |error| matches!(error, AverageError::NotAMember)),
        (0, vec![0.0; 3], |error| matches!(error, AverageError::Length { want: 4, got: 3 })),
        (0, vec![0.0, f32::NAN, 0.0, 0.0], |error| matches!(error, AverageError::NotFinite(1))),
    ];
    for (peer, values, is_wanted) in cases {
        let mut world = AveragingSimulation::new(3);
        world.average(peer, AT_ONCE, &group, &config(), values);
        world.run();
        let error = world.outcome(peer).1.unwrap_err();
        assert!(is_wanted(&error), "{error:?}");
    }
}

/// The join message of a member for a part.
fn join(group: &Group, member: usize, part: u16, attempt: u8) -> Join {
    let MemberInput { n_samples, behind, is_whole } = group.own(member);
    Join { group: group.id(), part, attempt, n_samples, behind, is_whole }
}

/// Tampers with a chunk; returns the index to send it under.
type ChunkTampering = fn(index: u32, bytes: &mut Vec<u8>) -> u32;

#[test]
fn a_member_with_invalid_chunks_is_named_and_loses_its_share() {
    let n = 2 * CHUNK_VALUES;
    let tamperings: [(&str, ChunkTampering); 4] = [
        ("not finite", |index, bytes| {
            bytes[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
            index
        }),
        ("chunk", |index, _| index + 1),
        ("bytes", |index, bytes| {
            bytes.pop();
            index
        }),
        ("bytes", |index, bytes| {
            bytes.extend([0; 4]);
            index
        }),
    ];
    for (want, tamper) in tamperings {
        let group = group(&[(1, n), (1, n), (9, 0)], TensorCodec::F32);
        let mut world = AveragingSimulation::new(3);
        for peer in [0, 1] {
            world.average(peer, AT_ONCE, &group, &config(), values(peer, 2 * n));
        }
        for part in [0, 1] {
            let (byzantine, group) = (Arc::clone(&world.peers[2]), Arc::clone(&group));
            world.spawn(2, async move {
                let mut stream = byzantine.open(&key(part)).await.unwrap();
                let join = join(&group, 2, part as u16, 0);
                assert_eq!(average::join(&mut stream, join).await.unwrap(), 4);
                let mut bytes = vec![0; 4 * CHUNK_VALUES];
                let index = tamper(0, &mut bytes);
                // Its stream may be cut off in the middle.
                let _ = average::write_chunk(&mut stream, &bulk::packed(index, &bytes)).await;
                byzantine.sleep_until(byzantine.now() + config().deadline).await;
            });
        }
        world.run();
        let averaged = all_agree(&world, &[0, 1]);
        assert_close(&averaged.values, &mean(&group, &[0, 1]), 1e-6);
        assert_eq!(averaged.faults.len(), 1, "{:?}", averaged.faults);
        let fault = &averaged.faults[0];
        assert_eq!(fault.peer, key(2));
        assert!(fault.error.to_string().contains(want), "{}", fault.error);
    }
}

#[test]
fn strangers_and_duplicates_are_refused_with_the_reason() {
    let group = group(&[(1, 300), (1, 300), (1, 0)], TensorCodec::F32);
    let mut world = AveragingSimulation::new(4);
    start(&world, &group);
    let other = Arc::new(Group::new(b"another", group.members().to_vec(), 600, TensorCodec::F32).unwrap());
    let (answers, answered) = futures::channel::mpsc::unbounded();
    for (peer, group, part, attempt, want) in [
        (3, &group, 0, 0, "not a member"),
        (2, &group, 1, 0, "part 1 is not averaged here in attempt 0"),
        (2, &group, 700, 0, "part 700 is not averaged here"),
        (2, &group, 0, 3, "in attempt 3"),
        (2, &group, 0, 0, "joined the part before"),
        (2, &other, 0, 0, "no group of this name"),
    ] {
        let join = join(group, peer, part, attempt);
        let (platform, answers) = (Arc::clone(&world.peers[peer]), answers.clone());
        world.spawn(peer, async move {
            let mut stream = platform.open(&key(0)).await.unwrap();
            let answer = average::join(&mut stream, join).await;
            answers.unbounded_send((answer, want)).unwrap();
            let _ = stream.close().await;
        });
    }
    drop(answers);
    world.run();
    all_agree(&world, &[0, 1, 2]);
    let mut answered = futures::executor::block_on(answered.collect::<Vec<_>>()).into_iter();
    assert_eq!(answered.len(), 6);
    assert!(answered.all(|(answer, want)| match answer {
        Err(error) => error.to_string().contains(want),
        // Of the two streams of one member the first one was accepted.
        Ok(_) => want == "joined the part before",
    }));
}

/// Random faults of random members: every survivor ends by its deadline, and its average lies within the members' values.
#[test]
fn rounds_end_under_random_faults() {
    let (mut n_averaged, mut n_torn) = (0, 0);
    for seed in seeds(0..30) {
        let mut random = SplitMix64::new(seed);
        let mut below = |n: u64| random.next_u64() % n;
        let n_members = 3 + below(6) as usize;
        let members: Vec<(u64, usize)> = (0..n_members)
            .map(|_| (below(4), below(3) as usize * CHUNK_VALUES + below(50) as usize))
            .chain([(1, CHUNK_VALUES)])
            .collect();
        let group = group(&members, TensorCodec::F32);
        let mut world = AveragingSimulation::new(members.len());
        let mut hit = vec![];
        for (peer, _) in members.iter().enumerate() {
            world.set_speed(peer, 50_000 + below(2_000_000));
            let delay = Duration::from_millis(below(3000));
            world.average(peer, delay, &group, &config(), values(peer, group.n_values()));
            let at = Duration::from_millis(below(8000));
            match below(10) {
                0 => world.at(at, world.kill(peer)),
                1 => world.at(at, world.silence(peer)),
                _ => continue,
            }
            hit.push(peer);
        }
        world.run();
        let mut first: Option<Arc<Averaged>> = None;
        for peer in (0..members.len()).filter(|peer| !hit.contains(peer)) {
            let (at, outcome) = world.outcome(peer);
            assert!(at <= config().deadline + Duration::from_secs(3), "seed {seed}: peer {peer} took {at:?}");
            let Ok(averaged) = outcome else { continue };
            assert!(averaged.faults.is_empty(), "seed {seed}: {:?}", averaged.faults);
            assert!(averaged.values.iter().all(|value| (-1.0..=1.0).contains(value)), "seed {seed}");
            let first = first.get_or_insert_with(|| Arc::clone(&averaged));
            for part in 0..members.len() {
                let are_averaged =
                    [first, &averaged].map(|of| matches!(of.parts[part], PartOutcome::Averaged { .. }));
                if are_averaged == [true, true] {
                    n_averaged += 1;
                    let range = group.part(part);
                    n_torn += usize::from(first.values[range.clone()] != averaged.values[range]);
                }
            }
        }
    }
    println!("{n_averaged} averages of parts, {n_torn} of them differ between members");
    assert!(n_averaged > 500, "{n_averaged}");
    assert!(n_torn * 50 < n_averaged, "{n_torn} of {n_averaged}");
}
