//! Parts of an untrusted reducer: it sends the mean, or the round does not count.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use barnraise_averaging::{Averaged, CheckError, CheckedRound, PartOutcome};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::CHUNK_VALUES;
use barnraise_swarm::averaging::{Group, GroupMember};

use crate::world::{AveragingSimulation, key};
use crate::{AT_ONCE, assert_close, config, mean, values};

const SEED: u64 = 77;
/// The untrusted reducer, without values of its own.
const HELPER: usize = 2;

type CheckedRoundOutcome = Result<(Vec<usize>, Averaged), CheckError>;
type CheckedRoundOutcomes = Rc<RefCell<Vec<Option<CheckedRoundOutcome>>>>;

/// Two members and a helper; each reduces a third of several chunks.
fn group(codec: TensorCodec) -> Arc<Group> {
    let n_reduced = 12 * CHUNK_VALUES as u64;
    let member = |peer: usize| GroupMember {
        peer: key(peer),
        n_samples: [3, 5, 0][peer],
        receives: peer != HELPER,
        n_reduced,
    };
    let members = (0..3).map(member).collect();
    Arc::new(Group::new(b"epoch 7", members, 3 * n_reduced as usize, codec).unwrap())
}

/// All average; `tamper` changes the mean that a member received before it is verified.
fn start(
    world: &AveragingSimulation,
    group: &Arc<Group>,
    tamper: fn(usize, &mut [f32]),
) -> CheckedRoundOutcomes {
    start_where(world, group, tamper, &[])
}

/// The same, where the members in `turned` say that they used the standby reducer.
fn start_where(
    world: &AveragingSimulation,
    group: &Arc<Group>,
    tamper: fn(usize, &mut [f32]),
    turned: &[usize],
) -> CheckedRoundOutcomes {
    let outcomes: CheckedRoundOutcomes = Rc::new(RefCell::new(vec![None, None]));
    world.average(HELPER, AT_ONCE, group, &config(), vec![0.0; group.n_values()]);
    for peer in 0..2 {
        let (registry, platform) = (Arc::clone(&world.registries[peer]), Arc::clone(&world.peers[peer]));
        let (group, outcomes) = (Arc::clone(group), Rc::clone(&outcomes));
        let has_turned = turned.contains(&peer);
        world.spawn(peer, async move {
            let (config, me, own) = (config(), key(peer), values(peer, group.n_values()));
            let averaged = registry.average(&*platform, &config, &group, &me, own.clone()).await.unwrap();
            let mut averaged = Averaged::clone(&averaged);
            tamper(peer, &mut averaged.values[group.part(HELPER)]);
            if has_turned && let PartOutcome::Averaged { attempt, .. } = &mut averaged.parts[HELPER] {
                *attempt = 1;
            }
            let round = CheckedRound { group: &group, me: &me, seed: SEED };
            let checked = round.check((&*registry, &*platform, &config), &own, &averaged).await;
            outcomes.borrow_mut()[peer] = Some(checked.map(|replaced| (replaced, averaged)));
        });
    }
    outcomes
}

fn outcome(outcomes: &CheckedRoundOutcomes, peer: usize) -> CheckedRoundOutcome {
    outcomes.borrow()[peer].clone().unwrap_or_else(|| panic!("peer {peer} has no outcome"))
}

#[test]
fn an_honest_helper_passes_with_every_codec() {
    for (codec, tolerance) in [(TensorCodec::F32, 1e-6), (TensorCodec::F16, 2e-3), (TensorCodec::Int8, 2e-2)]
    {
        let group = group(codec);
        let mut world = AveragingSimulation::new(3);
        let outcomes = start(&world, &group, |_, _| ());
        world.run();
        let (one, other) = (outcome(&outcomes, 0).unwrap(), outcome(&outcomes, 1).unwrap());
        assert!(one.0.is_empty() && other.0.is_empty(), "{:?} and {:?} were replaced", one.0, other.0);
        assert!(one.1.values == other.1.values, "{codec:?}: the members have different means");
        assert_close(&one.1.values, &mean(&group, &[0, 1]), tolerance);
        world.outcome(HELPER).1.unwrap();
    }
}

#[test]
fn a_wrong_mean_does_not_count_and_its_reducer_is_known() {
    let tamperings: [fn(usize, &mut [f32]); 3] = [
        |_, mean| mean.iter_mut().for_each(|value| *value = -*value),
        |_, mean| mean[12_345] += 1000.0,
        |_, mean| mean.fill(0.0),
    ];
    for (tamper, codec) in tamperings.into_iter().zip([TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8])
    {
        let mut world = AveragingSimulation::new(3);
        let outcomes = start(&world, &group(codec), tamper);
        world.run();
        for peer in 0..2 {
            let wrong = outcome(&outcomes, peer).unwrap_err();
            assert!(
                matches!(&wrong, CheckError::Wrong(liars) if *liars == [key(HELPER)]),
                "{codec:?}: {wrong}"
            );
        }
    }
}

#[test]
fn a_byzantine_reducer_that_refuses_some_is_known_by_the_others() {
    for (turned, dishonest) in [(vec![1], vec![key(HELPER)]), (vec![0, 1], Vec::new())] {
        let mut world = AveragingSimulation::new(3);
        let outcomes = start_where(&world, &group(TensorCodec::F32), |_, mean| mean.fill(0.0), &turned);
        world.run();
        for peer in 0..2 {
            let wrong = outcome(&outcomes, peer).unwrap_err();
            assert!(matches!(&wrong, CheckError::Wrong(liars) if *liars == dishonest), "{turned:?}: {wrong}");
        }
    }
}

#[test]
fn members_that_were_sent_different_means_find_out() {
    let mut world = AveragingSimulation::new(3);
    // They differ by a rounding error, which no projection shows.
    let outcomes = start(&world, &group(TensorCodec::F32), |peer, mean| {
        if peer == 1 {
            mean[5] = f32::from_bits(mean[5].to_bits() ^ 1);
        }
    });
    world.run();
    for peer in 0..2 {
        let error = outcome(&outcomes, peer).unwrap_err();
        assert!(matches!(error, CheckError::Average(_) | CheckError::NotAll(_)), "{error}");
    }
}

#[test]
fn a_helper_that_is_killed_costs_one_retry_of_its_part() {
    let group = group(TensorCodec::F32);
    let mut world = AveragingSimulation::new(3);
    let outcomes = start(&world, &group, |_, _| ());
    // Its part of a member takes three quarters of a second.
    world.at(Duration::from_millis(400), world.kill(HELPER));
    world.run();
    for peer in 0..2 {
        let (replaced, averaged) = outcome(&outcomes, peer).unwrap();
        assert_eq!(replaced, [HELPER]);
        assert_close(&averaged.values, &mean(&group, &[0, 1]), 1e-6);
    }
}
