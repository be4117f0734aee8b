//! Three backbones with any distribution of contributors: as fast as one backbone, and never more than a step apart.

use super::*;

/// Delays of a run whose steps take seconds, with much shorter messages between backbones.
const NEAR: NetworkDelays = NetworkDelays {
    message_ms: 10,
    averaging_ms: 30,
    contribution_ms: 1100,
    hangs_ms: Some(12_000),
    lost_proposals: 0,
    noticed_ms: (1, 1),
    config: SHIPPED,
};
/// Steps of half a second, so that the wait of the others dominates.
const QUICK: NetworkDelays = NetworkDelays { contribution_ms: 300, ..NEAR };
/// The default configuration.
const SHIPPED: MatchmakingConfig =
    MatchmakingConfig { target_batch_size: 100, silence: SILENCE, gather: GATHER, retry: RETRY };
/// Longest time without a step after the backbone of all contributors died.
const STALL_MAX: Duration = Duration::from_secs(5);
/// Time in which contributors of a dead backbone move to another one.
const MOVES_MS: u64 = 400;
/// Time until a silent death is noticed: [`barnraise_swarm::rhythm`] with a message every second.
const NOTICES_MS: usize = 2600;

/// Backbones with this many contributors each.
fn world(contributors: &[u32], seed: u64) -> MatchmakingSimulation {
    let mut world = MatchmakingSimulation::within(NEAR, contributors.len(), seed);
    for (of, &n_contributors) in contributors.iter().enumerate() {
        world.peers[of].n_contributors = n_contributors;
        // The first contributor exists already.
        (1..n_contributors).for_each(|_| world.after(0, MatchmakingEvent::Contribute(of)));
    }
    world
}

impl MatchmakingSimulation {
    fn epochs(&self) -> impl Iterator<Item = u64> + '_ {
        let alive = (0..self.peers.len()).filter(|of| self.is_alive(*of));
        alive.map(|of| self.peers[of].matchmaking.own().model.epoch)
    }

    fn newest(&self) -> u64 {
        self.epochs().max().unwrap()
    }

    /// Runs until `end`; returns the largest distance in epochs between two peers.
    fn most_apart(&mut self, end: Moment) -> u64 {
        let mut most = 0;
        while self.now() < end {
            self.run_for(5);
            most = most.max(self.newest() - self.epochs().min().unwrap());
        }
        most
    }
}

#[test]
fn wherever_the_contributors_are_three_are_as_fast_as_one_and_a_step_apart() {
    const MINUTE: Moment = Moment::from_secs(60);
    for contributors in [[3, 0, 0], [0, 0, 3], [1, 2, 0], [0, 2, 1], [1, 1, 1]] {
        let (mut of_one, mut of_three) = (0, 0);
        for seed in seeds(0..25) {
            let mut one = world(&[contributors.iter().sum()], seed);
            one.run_until(MINUTE);
            let mut three = world(&contributors, seed);
            let apart = three.most_apart(MINUTE);
            assert!(apart <= 1, "seed {seed}, {contributors:?}: {apart} steps apart");
            of_one += one.newest();
            of_three += three.newest();
            three.settle();
            assert!(three.lost().is_empty(), "seed {seed}, {contributors:?}");
        }
        assert!(10 * of_three >= 9 * of_one, "{contributors:?}: {of_three} steps, {of_one} of one backbone");
        println!("{contributors:?}: {of_three} steps, {of_one} of one backbone");
    }
}

/// An averaging whose proposal one member never received would last for twelve seconds.
#[test]
fn an_averaging_without_some_members_delays_no_peer_for_long() {
    for seed in seeds(0..40) {
        for contributors in [[3, 0, 0], [1, 2, 0]] {
            let mut three = world(&contributors, seed);
            three.delays.lost_proposals = 10;
            let mut newest = (three.newest(), three.now());
            while three.now() < Duration::from_secs(60) {
                three.run_for(20);
                if three.newest() > newest.0 {
                    newest = (three.newest(), three.now());
                }
                let stood = three.now() - newest.1;
                assert!(
                    stood < Duration::from_secs(6),
                    "seed {seed}, {contributors:?}: stands at {newest:?}"
                );
            }
            three.settle();
            assert!(three.lost().is_empty(), "seed {seed}, {contributors:?}");
        }
    }
}

#[test]
fn when_the_backbone_of_all_contributors_dies_the_others_go_on_within_seconds() {
    let longest = longest_stall(QUICK, [3, 0, 0], MOVES_MS);
    println!("connections break: the others stood for {longest:?} at most");
}

/// As over QUIC: neither the other backbones nor the contributors are notified.
#[test]
fn when_a_backbone_dies_silently_the_others_go_on_within_seconds() {
    let silent = NetworkDelays { noticed_ms: (NOTICES_MS / 2, NOTICES_MS), ..QUICK };
    for contributors in [[3, 0, 0], [1, 2, 0], [2, 1, 1]] {
        let longest = longest_stall(silent, contributors, NOTICES_MS as u64 + MOVES_MS);
        println!("{contributors:?}, nothing breaks: the others stood for {longest:?} at most");
    }
}

/// Repeatedly kills the active backbone, whose contributors then move to the next one. Returns the longest time without a
/// step. No contribution is lost.
fn longest_stall(delays: NetworkDelays, contributors: [u32; 3], moves_ms: u64) -> Duration {
    let mut longest = Duration::ZERO;
    for seed in seeds(0..40) {
        let mut world = world(&contributors, seed);
        world.delays = delays;
        let mut active = 0;
        for _ in 0..5 {
            let pause = 4000 + world.below(4000);
            world.run_for(pause);
            let (epoch, killed_at) = (world.newest(), world.now());
            world.handle(MatchmakingEvent::Kill(active));
            let n_contributors = std::mem::take(&mut world.peers[active].n_contributors);
            let away = 8000 + world.below(8000);
            world.after(away, MatchmakingEvent::Restart(active));
            let killed = active;
            active = (active + 1) % 3;
            let (mut has_moved, mut epoch) = (false, epoch.min(world.newest()));
            let mut stepped_at = killed_at;
            while world.now() < killed_at + Duration::from_secs(8) {
                if !has_moved && world.now() >= killed_at + at(moves_ms) {
                    has_moved = true;
                    let n_there = world.peers[active].n_contributors;
                    world.peers[active].n_contributors += n_contributors;
                    let first = u32::from(n_there == 0);
                    (first..=n_contributors)
                        .for_each(|_| world.after(0, MatchmakingEvent::Contribute(active)));
                }
                world.run_for(20);
                if world.newest() > epoch {
                    (epoch, stepped_at) = (world.newest(), world.now());
                }
                let stood = world.now() - stepped_at;
                longest = longest.max(stood);
                assert!(
                    stood < STALL_MAX,
                    "seed {seed}, {contributors:?}: {stood:?} after {killed} was killed at {killed_at:?}"
                );
            }
            // Until the killed backbone is ready to take over again.
            world.run_for(16_000);
        }
        world.settle();
        assert!(world.lost().is_empty(), "seed {seed}");
    }
    longest
}
