//! Means by factors of low rank: two rounds, and what becomes of them when a member leaves in between.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use barnraise_averaging::{AverageError, Averaged, LowRankError, LowRankRound, Platform};
use barnraise_protocol::TensorCodec;
use barnraise_swarm::averaging::{Group, Member};
use barnraise_swarm::low_rank::{LowRank, Shape};

use crate::world::{World, key};
use crate::{config, values};

const N_VALUES: usize = 10 + 200 * 300 + 20;
const RANK: usize = 2;

/// Of each member: the mean, and what it owes once it counts.
type Outcome = Result<(Averaged, Vec<f32>), LowRankError>;
type Outcomes = Rc<RefCell<Vec<Option<Outcome>>>>;

fn plan() -> LowRank {
    LowRank::new(N_VALUES, &[Shape { offset: 10, n_rows: 200, n_columns: 300 }], RANK).unwrap()
}

/// The parts are equal.
fn group(n_samples: &[u64], codec: TensorCodec) -> Group {
    let n_values = plan().n_factor_values();
    let n = n_samples.len();
    let member = |(peer, &n_samples): (usize, &u64)| Member {
        peer: key(peer),
        n_samples,
        receives: true,
        n_reduced: ((peer + 1) * n_values / n - peer * n_values / n) as u64,
    };
    let members = n_samples.iter().enumerate().map(member).collect();
    Group::new(b"epoch 7", members, n_values, codec).unwrap()
}

fn spawn(world: &World, peer: usize, delay: Duration, group: &Group, start: &[f32], outcomes: &Outcomes) {
    let (hub, platform) = (Arc::clone(&world.hubs[peer]), Arc::clone(&world.peers[peer]));
    let (group, start, outcomes) = (group.clone(), start.to_vec(), Rc::clone(outcomes));
    let n_samples = group.members()[peer].n_samples;
    world.spawn(peer, async move {
        platform.sleep_until(platform.now() + delay).await;
        let (plan, config, me) = (plan(), config(), key(peer));
        let round = LowRankRound { group: &group, me: &me, plan: &plan, start: &start };
        let world = (&*hub, &*platform, &config);
        let outcome = match round.share(world, &values(peer, N_VALUES), n_samples).await {
            Ok(share) => {
                let owed = share.owed.clone();
                round.average(world, share).await.map(|averaged| (averaged, owed))
            }
            Err(error) => Err(error),
        };
        outcomes.borrow_mut()[peer] = Some(outcome);
    });
}

fn start_all(world: &World, group: &Group) -> Outcomes {
    let outcomes: Outcomes = Rc::new(RefCell::new(vec![None; group.members().len()]));
    for peer in 0..group.members().len() {
        spawn(world, peer, Duration::ZERO, group, &plan().first_start(), &outcomes);
    }
    outcomes
}

/// The mean of these members by the basis that they find with nobody else.
fn reference(group: &Group, members: &[usize]) -> Vec<f32> {
    let plan = plan();
    let n_samples = |member: usize| group.members()[member].n_samples as f32;
    let of_all: f32 = members.iter().map(|&member| n_samples(member)).sum();
    let mut mean = vec![0.0; N_VALUES];
    for &member in members {
        let share = n_samples(member) / of_all;
        mean.iter_mut().zip(values(member, N_VALUES)).for_each(|(mean, value)| *mean += share * value);
    }
    let mut basis = plan.basis(&mean, &plan.first_start());
    plan.orthonormalise_basis(&mut basis);
    plan.expand(&basis, &plan.factors(&mean, &basis))
}

fn distance(one: &[f32], other: &[f32]) -> f64 {
    assert_eq!(one.len(), other.len());
    let squares = one.iter().zip(other).map(|(one, other)| f64::from(one - other).powi(2));
    squares.sum::<f64>().sqrt()
}

/// Those who have the whole mean, all with the same bits; and one of them.
fn agreed(outcomes: &Outcomes) -> (Vec<usize>, Averaged) {
    let outcomes = outcomes.borrow();
    let whole = |(peer, outcome): (usize, &Option<Outcome>)| match outcome {
        Some(Ok((averaged, _))) if averaged.is_complete() => Some((peer, averaged.clone())),
        _ => None,
    };
    let whole: Vec<(usize, Averaged)> = outcomes.iter().enumerate().filter_map(whole).collect();
    let (_, first) = whole.first().cloned().unwrap_or_else(|| panic!("nobody has a mean: {outcomes:?}"));
    for (peer, averaged) in &whole {
        let differs = |(one, other): (&f32, &f32)| one.to_bits() != other.to_bits();
        let index = averaged.values.iter().zip(&first.values).position(differs);
        assert_eq!(index, None, "peer {peer} has another mean");
    }
    (whole.into_iter().map(|(peer, _)| peer).collect(), first)
}

#[test]
fn all_have_the_mean_of_the_factors_with_the_same_bits() {
    for (n_samples, codec, tolerance) in [
        (&[3, 1, 4][..], TensorCodec::F32, 1e-5),
        // The second only averages.
        (&[5, 0, 2], TensorCodec::F32, 1e-5),
        (&[1, 1], TensorCodec::F16, 5e-3),
    ] {
        let group = group(n_samples, codec);
        let mut world = World::new(n_samples.len());
        let outcomes = start_all(&world, &group);
        world.run();
        let (those, averaged) = agreed(&outcomes);
        let everybody: Vec<usize> = (0..n_samples.len()).collect();
        assert_eq!(those, everybody);
        let with_samples: Vec<usize> = everybody.iter().copied().filter(|&it| n_samples[it] > 0).collect();
        let want = reference(&group, &with_samples);
        let length = distance(&want, &vec![0.0; N_VALUES]);
        assert!(distance(&averaged.values, &want) < tolerance * length, "{n_samples:?}");
        let counted: Vec<usize> =
            everybody.iter().copied().filter(|&it| averaged.members().contains(it)).collect();
        assert_eq!(counted, with_samples);
        // Rank 2 of 200 by 300: a sixtieth of the values.
        let whole = (4 * N_VALUES * (n_samples.len() - 1)) as u64;
        assert!(averaged.n_bytes_sent > 0 && averaged.n_bytes_sent < whole / 20, "{}", averaged.n_bytes_sent);
    }
}

/// What all owe together, and what travelled, is what all gave.
#[test]
fn what_the_members_owe_is_what_the_mean_lacks() {
    let group = group(&[3, 1, 4], TensorCodec::F32);
    let mut world = World::new(3);
    let outcomes = start_all(&world, &group);
    world.run();
    let (_, averaged) = agreed(&outcomes);
    let outcomes = outcomes.borrow();
    let owed = outcomes.iter().map(|outcome| &outcome.as_ref().unwrap().as_ref().unwrap().1);
    let owed: Vec<&Vec<f32>> = owed.collect();
    let given: Vec<(f32, Vec<f32>)> =
        [3.0, 1.0, 4.0].into_iter().enumerate().map(|(peer, n)| (n, values(peer, N_VALUES))).collect();
    for index in 0..N_VALUES {
        let of_all: f32 = given.iter().map(|(n, values)| n * values[index]).sum();
        let all = 8.0 * averaged.values[index] + owed.iter().map(|owed| owed[index]).sum::<f32>();
        assert!((of_all - all).abs() < 1e-3, "value {index}: {all} of {of_all}");
    }
}

/// One that was away starts from elsewhere: the basis is another one, and everybody has it.
#[test]
fn another_start_breaks_nothing() {
    let group = group(&[2, 2, 2], TensorCodec::F32);
    let mut world = World::new(3);
    let outcomes: Outcomes = Rc::new(RefCell::new(vec![None; 3]));
    for peer in 0..3 {
        let start = match peer {
            2 => plan().next_start(&values(77, N_VALUES), &plan().first_start()),
            _ => plan().first_start(),
        };
        spawn(&world, peer, Duration::ZERO, &group, &start, &outcomes);
    }
    world.run();
    let (those, averaged) = agreed(&outcomes);
    assert_eq!(those, [0, 1, 2]);
    assert!(averaged.members().n_members() == 3);
}

/// Whenever one is killed, those who have a mean have the same one, and it says whose values are in it.
#[test]
fn who_is_killed_between_the_rounds_is_not_in_the_mean() {
    let (mut n_left_out, mut n_failed) = (0, 0);
    for millis in (0..1500).step_by(30) {
        let group = group(&[2, 3, 4], TensorCodec::F32);
        let mut world = World::new(3);
        (0..3).for_each(|peer| world.set_speed(peer, 4096));
        let outcomes = start_all(&world, &group);
        world.at(Duration::from_millis(millis), world.kill(1));
        world.run();
        let has_mean =
            |outcome: &Option<Outcome>| matches!(outcome, Some(Ok((averaged, _))) if averaged.is_complete());
        if !outcomes.borrow().iter().any(has_mean) {
            n_failed += 1;
            continue;
        }
        let (those, averaged) = agreed(&outcomes);
        assert!(those.contains(&0) == those.contains(&2), "{millis} ms: only {those:?}");
        if !averaged.members().contains(1) {
            n_left_out += 1;
            // A basis of two or of three: the values that travel whole are those of the two in any case.
            let (one, other) = (values(0, 10), values(2, 10));
            for index in 0..10 {
                let want = (2.0 * one[index] + 4.0 * other[index]) / 6.0;
                assert!((averaged.values[index] - want).abs() < 1e-5, "{millis} ms, value {index}");
            }
        }
    }
    assert!(n_left_out > 0, "it was never between the rounds");
    assert!(n_failed < 50, "nothing was ever averaged");
}

#[test]
fn alone_nobody_averages_factors() {
    let group = group(&[2, 2], TensorCodec::F32);
    let mut world = World::new(2);
    let outcomes: Outcomes = Rc::new(RefCell::new(vec![None; 2]));
    spawn(&world, 0, Duration::ZERO, &group, &plan().first_start(), &outcomes);
    world.run();
    let outcome = outcomes.borrow()[0].clone().unwrap();
    let why = outcome.unwrap_err();
    assert!(
        matches!(
            why,
            LowRankError::IncompleteBasis(_) | LowRankError::Basis(AverageError::NothingAveraged(_))
        ),
        "{why}"
    );
}
