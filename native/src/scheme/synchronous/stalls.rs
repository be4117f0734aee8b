//! Simulation of stalls in virtual time: contributors, their connections and the backbone stall for seconds at random
//! moments, break, are throttled, paused and started. A contributor that computes has work accepted, or is told why not.
//!
//! It runs the production code: the contributors' driver, the protocols on streams in memory, and the backbone's core
//! with its learner, journal and checkpoints. Time passes in waits and in each pass of a contributor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod backbone;
mod link;
mod peers;

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use barnraise_protocol::access::{AccessMode, KeyPair};
use barnraise_simulation::VirtualNetwork;
use barnraise_swarm::Moment;
use barnraise_swarm::random::SplitMix64;
use tokio::task::LocalSet;

use self::backbone::{
    CountedSamples, MICRO_BATCH, SimulatedBackbone, SimulatedStorage, SimulationFixture, config,
};
use self::link::{StallableLink, network};
use self::peers::{ContributorRole, SimulatedContributor};
use super::core::crash::number;

const N_SEEDS: u64 = 100;
/// How long disturbances occur.
const TROUBLE: Duration = Duration::from_secs(40);
/// Interval between checks.
const LOOK: Duration = Duration::from_millis(200);
const N_PEERS_MAX: u64 = 3;

/// Speeds of the contributors of a simulation while they are undisturbed.
#[derive(Debug, PartialEq, Eq)]
struct ContributorPace {
    /// A pass at a contributor's own pace.
    pass_ms: Range<usize>,
    /// Longest delay of a message.
    delay_ms_max: usize,
    /// Micro-batches of a step for each contributor.
    step_passes: u32,
    /// Undisturbed time afterwards, within which work of each contributor is accepted.
    calm: Duration,
}

/// All contributors are alike, and none is left behind. A delivery takes a pass and a few messages, and all may wait for
/// one for about a sixth of a step.
const ALIKE: ContributorPace =
    ContributorPace { pass_ms: 250..350, delay_ms_max: 20, step_passes: 6, calm: Duration::from_secs(40) };
/// A delivery takes up to 2.3 s, a pass and four messages, which is longer than a step: the other contributors save
/// waiting time for it. To save for waits of 78 ms, the first, of twice that and so on up to 2.5 s takes 80 s.
const FAR: ContributorPace =
    ContributorPace { pass_ms: 250..350, delay_ms_max: 500, step_passes: 3, calm: Duration::from_secs(160) };
/// The fast contributors may complete a step before a slow one has computed anything: it is told that it missed it.
const UNLIKE: ContributorPace =
    ContributorPace { pass_ms: 100..900, delay_ms_max: 100, step_passes: 6, calm: Duration::from_secs(40) };
/// One for each simulation in turn.
const PACES: [ContributorPace; 4] = [UNLIKE, ALIKE, FAR, ALIKE];
/// Factor by which a throttled contributor is slower.
const SLOWER: Range<usize> = 10..101;
/// Longest stall.
const STALL_MS_MAX: usize = 15_000;
/// Longest time between two disturbances.
const PAUSE_MS_MAX: usize = 6000;

/// A simulation of contributors and a backbone.
struct StallSimulation {
    network: VirtualNetwork,
    backbone: Rc<SimulatedBackbone>,
    peers: Vec<Rc<SimulatedContributor>>,
    random: SplitMix64,
    pace: &'static ContributorPace,
}

/// Result of a simulation.
struct StallOutcome {
    counted: CountedSamples,
    /// Checks at which work had to have been accepted.
    n_checked: u64,
    /// Contributors that were slowed down and had work accepted afterwards.
    n_restored: u64,
}

impl StallSimulation {
    async fn start(seed: u64, beside: &SimulationFixture, here: SimulatedStorage) -> Self {
        let mut random = SplitMix64::new(seed);
        let n_peers = 1 + seed % N_PEERS_MAX;
        let is_open = (seed / N_PEERS_MAX).is_multiple_of(2);
        let mode = if is_open { AccessMode::Open } else { AccessMode::Invitation };
        let pace = &PACES[(seed % PACES.len() as u64) as usize];
        let target = pace.step_passes * MICRO_BATCH * n_peers as u32;
        let delays: Vec<u64> = (0..n_peers).map(|_| random.below(pace.delay_ms_max + 1) as u64).collect();
        let network = network(&delays, random.next_u64());
        let backbone = SimulatedBackbone::start(beside, &network, config(target, mode), here).await;
        let peer = |number: u64| {
            // Unique across all simulations.
            let mut key = [0; 32];
            key[..8].copy_from_slice(&(1 + seed).to_le_bytes());
            key[8] = number as u8;
            let role = if random.below(2) == 0 { ContributorRole::Tab } else { ContributorRole::Native };
            let pass = pace.pass_ms.start + random.below(pace.pass_ms.len());
            let path = (StallableLink::new(&network, number), Duration::from_millis(pass as u64));
            SimulatedContributor::start(
                &backbone,
                KeyPair::from_seed(&key),
                (role, number),
                path,
                &mut random,
            )
        };
        let peers = (0..n_peers).map(peer).collect();
        Self { network, backbone, peers, random, pace }
    }

    /// Time within which work of an undisturbed contributor is accepted: its present pass; the step in progress, which may
    /// be made without it, and the next, both by itself; three waits for other contributors; and the transfer.
    fn accepted_within(&self, peer: &SimulatedContributor) -> Duration {
        let step = self.pace.step_passes * self.peers.len() as u32 * peer.pass();
        let collect = self.backbone.config.synchronous().unwrap().collect_timeout;
        peer.pass() + 2 * step + 3 * collect + Duration::from_secs(2)
    }

    /// Disturbs a random contributor, or the backbone.
    fn befall(&mut self) {
        let now = self.network.now();
        let random = &mut self.random;
        let whom = random.below(self.peers.len() + 1);
        let until = now + Duration::from_millis(100 + random.below(STALL_MS_MAX) as u64);
        let Some(peer) = self.peers.get(whom) else {
            self.backbone.core_cpu.stop_until(until);
            if random.below(2) == 0 {
                self.backbone.streams_cpu.stop_until(until);
            }
            // Contributors that notice say so, until they are connected again.
            self.peers.iter().for_each(|peer| peer.trouble_until(until));
            return;
        };
        match random.below(6) {
            0 => peer.stall(until),
            1 => {
                peer.link.stall(until);
                peer.trouble_until(until);
            }
            2 => {
                peer.link.cut(until);
                peer.trouble_until(until);
            }
            3 if peer.is_slowed() => {
                peer.slow(1);
                peer.show();
            }
            3 => {
                peer.work_for(100);
                peer.slow((SLOWER.start + random.below(SLOWER.len())) as u32);
            }
            4 => peer.want(!peer.is_wanted.get()),
            // A slowed contributor would rest for minutes.
            _ if peer.is_slowed() => {}
            _ => peer.work_for([100, 50, 25][random.below(3)]),
        }
    }

    /// Ends all disturbances.
    fn calm_down(&self) {
        for peer in &self.peers {
            peer.slow(1);
            peer.show();
            peer.work_for(100);
            peer.want(true);
        }
    }

    /// Asserts that no contributor waits for longer than stated without being told why. Returns the number of contributors
    /// that had to have work accepted.
    fn check(&self, of: &str) -> u64 {
        let now = self.network.now();
        let mut n_checked = 0;
        for peer in &self.peers {
            // A slow contributor misses steps, and is told so.
            let is_like_others = *self.pace == ALIKE && peer.is_at_its_own_pace();
            let is_left_behind = peer.is_missed() && !is_like_others;
            if !peer.is_wanted.get() || peer.says_why_not() || is_left_behind {
                peer.trouble_until(now);
            }
            let within = self.accepted_within(peer);
            n_checked += u64::from(now >= peer.since.get() + within);
            let waited = now.saturating_sub(peer.accepted_at.get().max(peer.since.get()));
            assert!(
                waited <= within,
                "{of}: nothing of {} was accepted for {waited:?}, it says {:?} and {:?}",
                peer.id,
                peer.told.borrow(),
                peer.contribution.borrow(),
            );
        }
        n_checked
    }

    async fn live(mut self, of: &str) -> StallOutcome {
        let began = self.network.now();
        let (mut next_trouble, mut is_calm, mut n_checked) = (began, false, 0);
        while self.network.now().saturating_sub(began) < TROUBLE + self.pace.calm {
            self.network.sleep(LOOK).await;
            let now = self.network.now();
            if self.network.now().saturating_sub(began) >= TROUBLE {
                if !std::mem::replace(&mut is_calm, true) {
                    self.calm_down();
                }
            } else if now >= next_trouble {
                self.befall();
                next_trouble = now + Duration::from_millis(self.random.below(PAUSE_MS_MAX) as u64);
            }
            n_checked += self.check(of);
        }
        let n_restored = self.peers.iter().filter(|peer| peer.was_slowed.get()).count() as u64;
        let counted = self.end(began + TROUBLE, of).await;
        StallOutcome { counted, n_checked, n_restored }
    }

    /// All contributors deliver their work and end: no acknowledged contribution is lost or counted twice.
    async fn end(self, calm: Moment, of: &str) -> CountedSamples {
        for peer in &self.peers {
            let is_told = peer.is_missed() && *self.pace == UNLIKE;
            let is_fair = peer.accepted_at.get() > calm || is_told;
            assert!(is_fair, "{of}: in the end nothing of {} was accepted", peer.id);
            peer.end().await;
        }
        let counted = self.backbone.end(of).await;
        for peer in &self.peers {
            let mut told: BTreeMap<u64, u32> = BTreeMap::new();
            for receipt in &*peer.receipts.borrow() {
                let twice = told.insert(receipt.contribution_id, receipt.n_samples);
                assert_eq!(twice, None, "{of}: {} was told twice", peer.id);
            }
            let own =
                |(name, n): (&(Vec<u8>, u64), &u32)| (name.0 == peer.id.to_bytes()).then_some((name.1, *n));
            let own: BTreeMap<u64, u32> = counted.iter().filter_map(own).collect();
            for (id, n_samples) in &told {
                assert_eq!(own.get(id), Some(n_samples), "{of}: {id} of {} was acknowledged", peer.id);
            }
        }
        counted
    }
}

#[test]
fn who_computes_has_something_accepted_within_a_stated_time_or_is_told_why_not() {
    let (first, n_seeds) = (number("STALL_SEED", 0), number("STALLS", N_SEEDS));
    println!("{n_seeds} worlds from STALL_SEED={first}");
    let beside = SimulationFixture::new();
    let (mut n_checked, mut n_restored, mut n_counted) = (0, 0, 0);
    for seed in first..first + n_seeds {
        let of = format!("STALL_SEED={seed} STALLS=1");
        let (here, recording) = beside.open();
        let paused = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let living = async { StallSimulation::start(seed, &beside, here).await.live(&of).await };
        let outcome = LocalSet::new().block_on(&paused.unwrap(), living);
        beside.check_credit(recording, &outcome.counted, &of);
        n_checked += outcome.n_checked;
        n_restored += outcome.n_restored;
        n_counted += outcome.counted.len();
    }
    println!("{n_checked} moments, {n_restored} that were slow once, {n_counted} contributions");
    assert!(n_checked > n_seeds * 50, "{n_checked} moments in which something had to have come");
    assert!(n_restored > n_seeds / 4, "{n_restored} contributors were slow once");
}
