//! Means in a grid of groups: all whole results are equal to the last bit, and a member with a partial one knows it. The
//! exception is a reducer that dies between two members in the first round.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use barnraise_averaging::{Averaged, AveragingConfig, GridError, GridRounds, Platform};
use barnraise_planning::PeerId;
use barnraise_planning::groups::{Grid, groups};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::{self, CHUNK_VALUES, Join, MemberSet};
use barnraise_simulation::seeds;
use barnraise_swarm::Moment;
use barnraise_swarm::averaging::{GridPosition, GroupMember, grid_positions};
use barnraise_swarm::random::SplitMix64;

use crate::world::{AveragingSimulation, key};
use crate::{assert_close, config, values};

const SEED: u64 = 11;

type GridOutcome = Result<Averaged, GridError>;
/// Time and outcome of each peer.
type GridOutcomes = Rc<RefCell<Vec<Option<(Moment, GridOutcome)>>>>;

/// Members of a grid and the groups of its rounds.
struct GridPeers {
    members: Vec<GroupMember>,
    rounds: Vec<Vec<Vec<usize>>>,
    n_values: usize,
    codec: TensorCodec,
}

impl GridPeers {
    fn new(n_samples: &[u64], group_size: usize, n_values: usize) -> Self {
        let member = |(peer, &n_samples): (usize, &u64)| GroupMember {
            peer: key(peer),
            n_samples,
            receives: true,
            n_reduced: 1,
        };
        let everybody: Vec<PeerId> = (0..n_samples.len()).map(|peer| PeerId(key(peer).0)).collect();
        let position = |peer: PeerId| usize::from(peer.0[0]);
        let of_round = |round| {
            let groups = groups(&everybody, group_size, SEED, 7, round).into_iter();
            groups.map(|group| group.into_iter().map(position).collect()).collect()
        };
        let n_rounds = Grid::new(n_samples.len(), group_size).n_rounds();
        Self {
            members: n_samples.iter().enumerate().map(member).collect(),
            rounds: (0..n_rounds).map(of_round).collect(),
            n_values,
            codec: TensorCodec::F32,
        }
    }

    fn positions(&self, peer: usize) -> Vec<GridPosition> {
        grid_positions(b"epoch 7", &self.members, &self.rounds, peer, self.n_values, self.codec).unwrap()
    }

    /// The other members of a peer's group in a round.
    fn group_peers(&self, peer: usize, round: usize) -> Vec<usize> {
        let group = self.rounds[round].iter().find(|group| group.contains(&peer)).unwrap();
        group.iter().copied().filter(|other| *other != peer).collect()
    }

    fn start(&self, world: &AveragingSimulation) -> GridOutcomes {
        let outcomes: GridOutcomes = Rc::new(RefCell::new(vec![None; self.members.len()]));
        for peer in 0..self.members.len() {
            let (registry, platform) = (Arc::clone(&world.registries[peer]), Arc::clone(&world.peers[peer]));
            let (members, positions, outcomes) =
                (self.members.clone(), self.positions(peer), Rc::clone(&outcomes));
            let (codec, own) = (self.codec, values(peer, self.n_values));
            world.spawn(peer, async move {
                let rounds = GridRounds { members: &members, me: peer, positions: &positions, codec };
                let config: AveragingConfig = config();
                let outcome = rounds.average((&*registry, &*platform, &config), own).await;
                outcomes.borrow_mut()[peer] = Some((platform.now(), outcome));
            });
        }
        outcomes
    }

    /// The mean of the `counted` members in double precision.
    fn mean(&self, counted: &[usize]) -> Vec<f64> {
        let n_samples = |peer: usize| self.members[peer].n_samples as f64;
        let of_all: f64 = counted.iter().map(|&peer| n_samples(peer)).sum();
        let mut mean = vec![0.0; self.n_values];
        for &peer in counted {
            let own = values(peer, self.n_values);
            mean.iter_mut().zip(own).for_each(|(sum, v)| *sum += f64::from(v) * n_samples(peer) / of_all);
        }
        mean
    }
}

/// The peers with a whole result, and their results.
fn whole(outcomes: &GridOutcomes) -> (Vec<usize>, Vec<Averaged>) {
    let outcomes = outcomes.borrow();
    let whole = outcomes.iter().enumerate().filter_map(|(peer, outcome)| match outcome {
        Some((_, Ok(averaged))) => Some((peer, averaged.clone())),
        _ => None,
    });
    whole.unzip()
}

/// The outcome of a peer that was not killed: a whole result, or [`GridError::PartialMean`].
fn outcome(outcomes: &GridOutcomes, peer: usize) -> GridOutcome {
    let outcome = outcomes.borrow()[peer].clone();
    let (at, outcome) = outcome.unwrap_or_else(|| panic!("peer {peer} has no outcome"));
    assert!(matches!(outcome, Ok(_) | Err(GridError::PartialMean(_))), "peer {peer}: {outcome:?}");
    assert!(at <= config().deadline + Duration::from_secs(3), "peer {peer} took {at:?}");
    outcome
}

fn have_same_bits(of: &[Averaged]) -> bool {
    let bits = |averaged: &Averaged| averaged.values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    of.iter().all(|averaged| averaged.members() == of[0].members() && bits(averaged) == bits(&of[0]))
}

fn set(of: &[usize]) -> MemberSet {
    of.iter().copied().collect()
}

/// After a round for each axis all members have the mean of all, weighted by samples (DeDLOC appendix C), at any speeds.
#[test]
fn a_full_grid_gives_all_the_exact_mean_with_the_same_bits() {
    let uneven = |n: u64| (0..n).map(|peer| 1 + peer * 7 % 5).collect::<Vec<_>>();
    for (n_samples, group_size, n_values, codec, tolerance) in [
        (uneven(9), 3, 900, TensorCodec::F32, 1e-6),
        (uneven(27), 3, 90, TensorCodec::F32, 1e-6),
        (uneven(6), 3, 901, TensorCodec::F32, 1e-6),
        (uneven(4), 2, 3 * CHUNK_VALUES + 5, TensorCodec::F32, 1e-6),
        (uneven(8), 2, 1000, TensorCodec::F16, 4e-3),
        // Some have no samples; a group of the first round may consist of these.
        (vec![0, 3, 0, 0, 2, 0, 9, 0], 2, 400, TensorCodec::F32, 1e-6),
    ] {
        let peers = GridPeers { codec, ..GridPeers::new(&n_samples, group_size, n_values) };
        let mut world = AveragingSimulation::new(n_samples.len());
        let mut random = SplitMix64::new(n_values as u64);
        for peer in 0..n_samples.len() {
            world.set_speed(peer, 400_000 + random.next_u64() % 2_000_000);
        }
        let outcomes = peers.start(&world);
        world.run();
        let (those, averaged) = whole(&outcomes);
        let everybody: Vec<usize> = (0..n_samples.len()).collect();
        assert_eq!(those, everybody, "{n_samples:?}: {:?}", outcomes.borrow());
        assert!(have_same_bits(&averaged), "{n_samples:?}");
        let counted: Vec<usize> = everybody.into_iter().filter(|&peer| n_samples[peer] > 0).collect();
        assert_eq!(averaged[0].members(), set(&counted));
        assert_close(&averaged[0].values, &peers.mean(&counted), tolerance);
    }
}

/// No member has its values, so the mean is that of the others. The members of its group in the second round lack its
/// first group, and their results are partial.
#[test]
fn a_member_dead_from_the_beginning_leaves_its_later_groups_with_partial_means() {
    let peers = GridPeers::new(&[3, 1, 4, 1, 5, 9, 2, 6, 5], 3, 900);
    for dead in 0..9 {
        let mut world = AveragingSimulation::new(9);
        let outcomes = peers.start(&world);
        world.kill(dead)();
        world.run();
        let later_group = peers.group_peers(dead, 1);
        let (those, averaged) = whole(&outcomes);
        let want: Vec<usize> = (0..9).filter(|peer| *peer != dead && !later_group.contains(peer)).collect();
        assert_eq!(those, want, "without {dead}: {:?}", outcomes.borrow());
        assert!(have_same_bits(&averaged), "without {dead}");
        let others: Vec<usize> = (0..9).filter(|peer| *peer != dead).collect();
        assert_eq!(averaged[0].members(), set(&others));
        assert_close(&averaged[0].values, &peers.mean(&others), 1e-6);
        for peer in later_group {
            let Err(GridError::PartialMean(why)) = outcome(&outcomes, peer) else { panic!("peer {peer}") };
            assert_eq!((why.round, why.came), (1, why.expected), "its first group was whole: {why:?}");
        }
        for peer in peers.group_peers(dead, 0) {
            assert!(!averaged[0].members().contains(dead) && those.contains(&peer));
        }
    }
}

/// A member is killed at some time: all whole results are equal, and contain all members that were not killed.
#[test]
fn a_member_that_dies_during_the_rounds_leaves_no_two_means() {
    let peers = GridPeers::new(&[3, 1, 4, 1, 5, 9, 2, 6, 5], 3, 9000);
    let everybody: Vec<usize> = (0..9).collect();
    let (mut n_with, mut n_without, mut n_partly, mut n_torn) = (0, 0, 0, 0);
    for millis in 0..80 {
        let dead = usize::from(millis % 9_u16 == 0) + usize::from(millis) % 8;
        let mut world = AveragingSimulation::new(9);
        let outcomes = peers.start(&world);
        world.at(Duration::from_millis(millis.into()), world.kill(dead));
        world.run();
        let (those, averaged) = whole(&outcomes);
        for peer in everybody.iter().filter(|peer| **peer != dead) {
            let _ = outcome(&outcomes, *peer);
        }
        n_torn += usize::from(!have_same_bits(&averaged));
        let Some(first) = averaged.first() else { continue };
        for averaged in &averaged {
            let missing: Vec<usize> =
                everybody.iter().copied().filter(|&peer| !averaged.members().contains(peer)).collect();
            assert!(missing.iter().all(|peer| *peer == dead), "{missing:?}, {dead} after {millis} ms");
        }
        if first.members().contains(dead) {
            n_with += 1;
            n_partly += usize::from(those.len() < 8);
        } else {
            n_without += 1;
            let others: Vec<usize> = everybody.iter().copied().filter(|peer| *peer != dead).collect();
            assert_close(&first.values, &peers.mean(&others), 1e-6);
        }
    }
    println!(
        "{n_with} with the one that died, {n_partly} of them not for all, {n_without} without, {n_torn} torn"
    );
    assert!(n_with > 0 && n_without > 0 && n_partly > 0);
    assert!(n_torn <= 4, "{n_torn}");
}

/// Seven members in three by three cells: three have the mean of all, and the others know that theirs is partial.
#[test]
fn a_member_across_from_an_empty_cell_knows_that_its_mean_is_partial() {
    let peers = GridPeers::new(&[1, 2, 3, 4, 5, 6, 7], 3, 700);
    let mut world = AveragingSimulation::new(7);
    let outcomes = peers.start(&world);
    world.run();
    let (those, averaged) = whole(&outcomes);
    assert_eq!(those.len(), 3, "{:?}", outcomes.borrow());
    assert!(have_same_bits(&averaged));
    assert_close(&averaged[0].values, &peers.mean(&[0, 1, 2, 3, 4, 5, 6]), 1e-6);
    for peer in (0..7).filter(|peer| !those.contains(peer)) {
        let error = outcome(&outcomes, peer).unwrap_err();
        assert!(error.to_string().contains("in round 2 of the groups"), "{error}");
    }
}

#[test]
fn a_peer_without_any_other_has_no_mean() {
    let peers = GridPeers::new(&[1; 4], 2, 100);
    let mut world = AveragingSimulation::new(4);
    let outcomes = peers.start(&world);
    for silent in 1..4 {
        world.silence(silent)();
    }
    world.run();
    let Err(GridError::PartialMean(why)) = outcome(&outcomes, 0) else { panic!("there is nobody") };
    assert_eq!((why.round, why.came), (0, MemberSet::default()));
}

/// Members die and go silent at random, from a printed seed: all others end by the deadline.
#[test]
fn grids_end_under_random_faults() {
    let (mut n_whole, mut n_torn) = (0, 0);
    for seed in seeds(0..40) {
        let mut random = SplitMix64::new(seed);
        let mut below = |n: u64| random.next_u64() % n;
        let n_peers = 4 + below(9) as usize;
        let n_samples: Vec<u64> = (0..n_peers).map(|_| below(4)).collect();
        let n_samples = [n_samples, vec![5]].concat();
        let peers = GridPeers::new(&n_samples, 2 + below(3) as usize, 2000);
        let mut world = AveragingSimulation::new(n_samples.len());
        let mut hit = BTreeSet::new();
        for peer in 0..n_samples.len() {
            world.set_speed(peer, 50_000 + below(2_000_000));
            let at = Duration::from_millis(below(200));
            match below(24) {
                0 => world.at(at, world.kill(peer)),
                1 => world.at(at, world.silence(peer)),
                _ => continue,
            }
            hit.insert(peer);
        }
        let outcomes = peers.start(&world);
        world.run();
        for peer in (0..n_samples.len()).filter(|peer| !hit.contains(peer)) {
            println!("seed {seed}, peer {peer}");
            let _ = outcome(&outcomes, peer);
        }
        let (those, averaged) = whole(&outcomes);
        n_whole += usize::from(!those.is_empty());
        n_torn += usize::from(!have_same_bits(&averaged));
        for averaged in &averaged {
            assert!(averaged.values.iter().all(|value| (-1.0..=1.0).contains(value)), "seed {seed}");
            assert!(averaged.faults.is_empty(), "seed {seed}: {:?}", averaged.faults);
        }
        let is_any_hit = !hit.is_empty();
        assert!(is_any_hit || !those.is_empty(), "seed {seed}: no whole result without a fault");
    }
    println!("{n_whole} grids gave a mean, {n_torn} of them two");
    assert!(n_whole > 12, "{n_whole}");
    assert!(n_torn <= 3, "{n_torn}");
}

/// A member cannot claim more weight than the samples within its reach, nor hide whose they are.
#[test]
fn a_weight_beyond_the_reach_of_a_member_is_refused() {
    let peers = GridPeers::new(&[3, 1, 4, 1], 2, 400);
    for (round, more, is_behind_itself, want) in [
        (0, 1, true, "samples cannot be behind these values"),
        (1, 1, true, "samples cannot be behind these values"),
        (1, 0, false, "cannot be in what this member sends"),
    ] {
        let byzantine = peers.group_peers(0, round)[0];
        let group = peers.positions(0)[round].group.clone().unwrap();
        let n_samples = group.members()[group.position(&key(byzantine)).unwrap()].n_samples + more;
        let behind = set(&[if is_behind_itself { byzantine } else { 0 }]);
        let part = group.position(&key(0)).unwrap() as u16;
        let join = Join { group: group.id(), part, attempt: 0, n_samples, behind, is_whole: true };
        let mut world = AveragingSimulation::new(4);
        let outcomes = peers.start(&world);
        let (platform, answer) = (Arc::clone(&world.peers[byzantine]), Rc::new(RefCell::new(String::new())));
        let received = Rc::clone(&answer);
        world.spawn(byzantine, async move {
            let mut stream = platform.open(&key(0)).await.unwrap();
            let answered = average::join(&mut stream, join).await;
            *received.borrow_mut() = answered.map_or_else(|error| error.to_string(), |_| "taken".to_owned());
        });
        world.run();
        assert!(answer.borrow().contains(want), "{}", answer.borrow());
        assert_eq!(whole(&outcomes).0.len(), 4, "its honest stream was taken all the same");
    }
}
