//! Three backbones whose contributors are at some of them: as fast as one, and never more than a step apart.

use super::*;

/// A step takes seconds, and what backbones say to each other a small part of that.
const NEAR: Network = Network {
    message_ms: 10,
    averaging_ms: 30,
    contribution_ms: 1100,
    hangs_ms: Some(12_000),
    lost_proposals: 0,
};
/// How long the run stands when the backbone dies that all contribute to.
const STANDS_MAX: Duration = Duration::from_secs(5);
/// Until contributors of a backbone that died are at another one.
const MOVES_MS: u64 = 400;

/// Backbones with so many contributors each.
fn world(contributors: &[u32], seed: u64) -> World {
    let mut world = World::new(contributors.len(), seed);
    world.network = NEAR;
    for (of, &n_contributors) in contributors.iter().enumerate() {
        world.peers[of].n_contributors = n_contributors;
        // The first one is there already.
        (1..n_contributors).for_each(|_| world.after(0, Event::Contribute(of)));
    }
    world
}

impl World {
    fn epochs(&self) -> impl Iterator<Item = u64> + '_ {
        let alive = self.peers.iter().filter(|peer| peer.is_alive);
        alive.map(|peer| peer.matchmaking.own().model.epoch)
    }

    fn newest(&self) -> u64 {
        self.epochs().max().unwrap()
    }

    /// Lets time pass; most epochs that one was behind another, at any time.
    fn most_apart(&mut self, end: Moment) -> u64 {
        let mut most = 0;
        while self.now < end {
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
        for seed in 0..25 {
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

/// An averaging that one of its members never heard of would last for twelve seconds.
#[test]
fn an_averaging_that_some_do_not_take_part_in_holds_nobody_for_long() {
    for seed in 0..40 {
        for contributors in [[3, 0, 0], [1, 2, 0]] {
            let mut three = world(&contributors, seed);
            three.network.lost_proposals = 10;
            let mut newest = (three.newest(), three.now);
            while three.now < Duration::from_secs(60) {
                three.run_for(20);
                if three.newest() > newest.0 {
                    newest = (three.newest(), three.now);
                }
                let stood = three.now - newest.1;
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
    for seed in 0..100 {
        let mut world = world(&[3, 0, 0], seed);
        let mut active = 0;
        for _ in 0..5 {
            let pause = 4000 + world.below(4000);
            world.run_for(pause);
            let (epoch, killed_at) = (world.newest(), world.now);
            world.handle(Event::Kill(active));
            let n_contributors = std::mem::take(&mut world.peers[active].n_contributors);
            let away = 8000 + world.below(8000);
            world.after(away, Event::Restart(active));
            world.run_for(MOVES_MS);
            active = (active + 1) % 3;
            world.peers[active].n_contributors = n_contributors;
            (0..n_contributors).for_each(|_| world.after(0, Event::Contribute(active)));
            while world.newest() <= epoch {
                world.run_for(20);
                let stood = world.now - killed_at;
                assert!(stood < STANDS_MAX, "seed {seed}: {stood:?} after the kill at {killed_at:?}");
            }
            // Back where it is ready to take over again.
            world.run_for(16_000);
        }
        world.settle();
        assert!(world.lost().is_empty(), "seed {seed}");
    }
}
