//! A contributor that computes has something of it accepted, or is told why not, in virtual time: contributors, their
//! connections and the backbone stand still for seconds at random moments, break, are throttled, paused and started.
//!
//! All that is here ships: the contributors' driver, the conversations on streams in memory, and the backbone's core with
//! its learner, journal and checkpoints. Time passes where somebody waits, and in each pass of a contributor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod backbone;
mod link;
mod peers;

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use barnraise_protocol::access::{AccessMode, KeyPair};
use barnraise_swarm::random::SplitMix64;
use tokio::task::LocalSet;
use tokio::time::Instant;

use self::backbone::{Backbone, Beside, Counted, Here, MICRO_BATCH, config};
use self::link::Link;
use self::peers::{Peer, Role};
use super::core::crash::number;

const N_SEEDS: u64 = 500;
/// How long there is trouble.
const TROUBLE: Duration = Duration::from_secs(40);
/// How often is looked.
const LOOK: Duration = Duration::from_millis(200);
const N_PEERS_MAX: u64 = 3;

/// How the contributors of a world fare while nothing befalls them.
#[derive(Debug, PartialEq, Eq)]
struct Pace {
    /// A pass at a contributor's own pace.
    pass_ms: Range<usize>,
    /// What a word of it may take.
    delay_ms_max: usize,
    /// Micro-batches of a step for each contributor.
    step_passes: u32,
    /// How long there is no trouble afterwards: something of each is accepted until then.
    calm: Duration,
}

/// All are alike, and nobody is left behind. To deliver takes a pass and a few words, and all may wait for one for about a
/// sixth of a step.
const ALIKE: Pace =
    Pace { pass_ms: 250..350, delay_ms_max: 20, step_passes: 6, calm: Duration::from_secs(40) };
/// To deliver takes up to 2.3 s, a pass and four words, which is longer than a step: the others save for it. To save for
/// waits of 78 ms, the first, of twice that and so on up to 2.5 s takes 80 s.
const FAR: Pace =
    Pace { pass_ms: 250..350, delay_ms_max: 500, step_passes: 3, calm: Duration::from_secs(160) };
/// A step of the fast ones may be made before a slow one has computed anything: it is told that it is missed.
const UNLIKE: Pace =
    Pace { pass_ms: 100..900, delay_ms_max: 100, step_passes: 6, calm: Duration::from_secs(40) };
/// World by world.
const PACES: [Pace; 4] = [UNLIKE, ALIKE, FAR, ALIKE];
/// So many times slower a throttled one becomes.
const SLOWER: Range<usize> = 10..101;
/// The longest that anything stands still.
const STALL_MS_MAX: usize = 15_000;
/// From one trouble to the next.
const PAUSE_MS_MAX: usize = 6000;

/// A world of contributors and a backbone.
struct World {
    backbone: Rc<Backbone>,
    peers: Vec<Rc<Peer>>,
    random: SplitMix64,
    pace: &'static Pace,
}

/// What came of it.
struct Outcome {
    counted: Counted,
    /// Moments in which something had to have come.
    n_checked: u64,
    /// Contributors that were slow once, of whom something was accepted since.
    n_restored: u64,
}

impl World {
    async fn start(seed: u64, beside: &Beside, here: Here) -> Self {
        let mut random = SplitMix64::new(seed);
        let n_peers = 1 + seed % N_PEERS_MAX;
        let is_open = (seed / N_PEERS_MAX).is_multiple_of(2);
        let mode = if is_open { AccessMode::Open } else { AccessMode::Invitation };
        let pace = &PACES[(seed % PACES.len() as u64) as usize];
        let target = pace.step_passes * MICRO_BATCH * n_peers as u32;
        let backbone = Backbone::start(beside, config(target, mode), here).await;
        let peer = |number: u64| {
            // No two of all worlds are the same.
            let mut key = [0; 32];
            key[..8].copy_from_slice(&(1 + seed).to_le_bytes());
            key[8] = number as u8;
            let role = if random.below(2) == 0 { Role::Tab } else { Role::Native };
            let pass = pace.pass_ms.start + random.below(pace.pass_ms.len());
            let link = Link::new(random.below(pace.delay_ms_max + 1), random.next_u64());
            let way = (link, Duration::from_millis(pass as u64));
            Peer::start(&backbone, KeyPair::from_seed(&key), (role, number), way, &mut random)
        };
        let peers = (0..n_peers).map(peer).collect();
        Self { backbone, peers, random, pace }
    }

    /// Until something of one is accepted that nothing befalls: the pass that it was at, the step that is under way, which
    /// may be made without it, and the next, both by itself; three waits for others; and the way there.
    fn accepted_within(&self, peer: &Peer) -> Duration {
        let step = self.pace.step_passes * self.peers.len() as u32 * peer.pass();
        let collect = self.backbone.config.averaging.collect_timeout;
        peer.pass() + 2 * step + 3 * collect + Duration::from_secs(2)
    }

    /// What befalls one of them, or the backbone, at random; until when.
    fn befall(&mut self) {
        let now = Instant::now();
        let random = &mut self.random;
        let whom = random.below(self.peers.len() + 1);
        let until = now + Duration::from_millis(100 + random.below(STALL_MS_MAX) as u64);
        let Some(peer) = self.peers.get(whom) else {
            self.backbone.core_halt.stand_until(until);
            if random.below(2) == 0 {
                self.backbone.streams_halt.stand_until(until);
            }
            // Those who notice say so, until they have a connection again.
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
            // It would rest for minutes.
            _ if peer.is_slowed() => {}
            _ => peer.work_for([100, 50, 25][random.below(3)]),
        }
    }

    /// Nothing is against anybody any more.
    fn calm_down(&self) {
        for peer in &self.peers {
            peer.slow(1);
            peer.show();
            peer.work_for(100);
            peer.want(true);
        }
    }

    /// That nobody waits for longer than stated without being told why; in how many cases something had to have come.
    fn check(&self, of: &str) -> u64 {
        let now = Instant::now();
        let mut n_checked = 0;
        for peer in &self.peers {
            // A slow one is missed, and told so.
            let is_like_others = *self.pace == ALIKE && peer.is_at_its_own_pace();
            let is_left_behind = peer.is_missed() && !is_like_others;
            if !peer.is_wanted.get() || peer.says_why_not() || is_left_behind {
                peer.trouble_until(now);
            }
            let within = self.accepted_within(peer);
            n_checked += u64::from(now >= peer.since.get() + within);
            let waited = now.saturating_duration_since(peer.accepted_at.get().max(peer.since.get()));
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

    async fn live(mut self, of: &str) -> Outcome {
        let began = Instant::now();
        let (mut next_trouble, mut is_calm, mut n_checked) = (began, false, 0);
        while began.elapsed() < TROUBLE + self.pace.calm {
            tokio::time::sleep(LOOK).await;
            let now = Instant::now();
            if began.elapsed() >= TROUBLE {
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
        Outcome { counted, n_checked, n_restored }
    }

    /// All hand in what they have, and nothing that they were told of is lost or twice there.
    async fn end(self, calm: Instant, of: &str) -> Counted {
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
    let beside = Beside::new();
    let (mut n_checked, mut n_restored, mut n_counted) = (0, 0, 0);
    for seed in first..first + n_seeds {
        let of = format!("STALL_SEED={seed} STALLS=1");
        let (here, recording) = beside.open();
        let paused = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let living = async { World::start(seed, &beside, here).await.live(&of).await };
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
