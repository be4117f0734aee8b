//! Any sequence of messages, losses, answers and hours: no round is trained or averaged twice at a peer, rounds only grow, no
//! more is asked for than a sample allows, and nobody is in a registry but by its own signature and, where the run is not open, with
//! access that has not ended.

use std::collections::BTreeSet;

use barnraise_fuzz::arbitrary::{self, Arbitrary};
use barnraise_fuzz::{fuzz, value};
use barnraise_protocol::access::Claims;
use barnraise_protocol::sampled::{Aggregates, JoinedEvent, MembershipEvent};

use super::*;

const RUN: Sha256Hash = Sha256Hash([5; 32]);
const N_PEERS: u8 = 5;
const SETTINGS: SampledSettings = SampledSettings {
    sample_size: 2,
    n_aggregators: 2,
    success_fraction: 1.0,
    ping_timeout: Duration::from_secs(1),
    activity_window: 4,
    round_estimate: Duration::from_secs(2),
    average: ModelAverage::Mean,
    exchange: ModelExchange::Sample,
};

/// Trainers compare averages.
const ROBUST: SampledSettings = SampledSettings {
    sample_size: 3,
    n_aggregators: 3,
    success_fraction: 0.6,
    // What is to be carried out waits for some seconds.
    ping_timeout: Duration::from_secs(4),
    round_estimate: Duration::from_secs(8),
    average: ModelAverage::CenteredClip,
    ..SETTINGS
};

/// Between whom models go where there are no samples.
const EXCHANGES: [ModelExchange; 4] = [
    ModelExchange::Exponential,
    ModelExchange::Regular(2),
    ModelExchange::Epidemic(2),
    ModelExchange::Gossip,
];

/// The settings of a number.
fn settings(kind: u8) -> SampledSettings {
    match kind % 6 {
        0 => SETTINGS,
        1 => ROBUST,
        among => SampledSettings { exchange: EXCHANGES[usize::from(among) - 2], ..SETTINGS },
    }
}

#[derive(Debug, Arbitrary)]
struct SampledCase {
    is_open: bool,
    kind: u8,
    operations: Vec<SampledOperation>,
}

#[derive(Debug, Arbitrary)]
enum SampledOperation {
    /// Does what one of the open actions asks for, if it can.
    Carry {
        which: u8,
    },
    /// Its message, or its answer, is lost.
    Lose {
        which: u8,
    },
    Pass {
        seconds: u8,
    },
    Leave {
        peer: u8,
    },
    Join {
        peer: u8,
        through: u8,
    },
    /// A peer sends what it likes.
    Offer {
        from: u8,
        to: u8,
        round: u64,
        is_training: bool,
        has_view: bool,
    },
    /// A peer tells a sketch that it was perhaps not asked for.
    Sketch {
        from: u8,
        to: u8,
        round: u64,
    },
    /// Of another peer, of another round, or not signed.
    Forge {
        to: u8,
        about: u8,
        round: u64,
        has_left: bool,
    },
    /// A peer's access lasts until so many seconds from now.
    Approve {
        peer: u8,
        seconds: u8,
    },
    /// A peer hears of a token that was taken back.
    Revoke {
        at: u8,
        token: u8,
    },
}

/// A peer's action that waits.
type OpenAction = (usize, SampledAction);

/// A model whose receiver wants it, and has not told its turn.
struct OpenPush {
    from: usize,
    to: usize,
    task: SampledTask,
    model: SampledModel,
}

struct SampledWorld {
    now: Moment,
    settings: SampledSettings,
    pushes: Vec<OpenPush>,
    is_open: bool,
    n_tokens: u8,
    /// Of which each peer has heard that they were taken back.
    revoked: Vec<BTreeSet<TokenId>>,
    peers: Vec<SampledPeer>,
    open: Vec<OpenAction>,
    trained: Vec<u64>,
    averaged: Vec<u64>,
    /// Round and number of the models that each has.
    collected: Vec<(u64, usize)>,
}

fn key(at: u8) -> KeyPair {
    KeyPair::from_seed(&[at + 1; 32])
}

fn authority() -> KeyPair {
    KeyPair::from_seed(&[100; 32])
}

fn approval(of: PublicKey, token: u8, expires_at: UnixTime) -> AccessToken {
    let (run_id, user) = ("barn".into(), "alice".into());
    let token_id = TokenId([token; 16]);
    let claims = Claims { run_id, user, peer: of, expires_at, token_id, may_host: false };
    AccessToken::sign(&authority(), claims).unwrap()
}

impl SampledWorld {
    fn new(is_open: bool, kind: u8) -> Self {
        let settings = settings(kind);
        let peers = (0..N_PEERS).map(|at| {
            let aggregates = match at {
                0..3 => Aggregates::Dialled,
                3 => Aggregates::Relayed,
                _ => Aggregates::Never,
            };
            let roles = SampledRoles { trains: true, aggregates };
            let addresses = Vec::new();
            let identity =
                SampledIdentity { key: key(at), run: RUN, counter: 0, roles, addresses, seed: at.into() };
            let mut peer = SampledPeer::new(settings, identity);
            if !is_open {
                let approval = approval(peer.peer(), at, UnixTime(50));
                let authority = Authority { key: authority().public(), run_id: "barn".into() };
                peer = peer.by_approval(authority, UnixTime(0));
                peer.on_approval(Moment::ZERO, approval);
            }
            if at == 0 { peer.with_model(0, Arc::new([0.0])) } else { peer }
        });
        let n = usize::from(N_PEERS);
        let peers = peers.collect();
        let mut world = Self {
            now: Moment::ZERO,
            settings,
            pushes: Vec::new(),
            is_open,
            n_tokens: N_PEERS,
            revoked: vec![BTreeSet::new(); n],
            peers,
            open: Vec::new(),
            trained: vec![0; n],
            averaged: vec![0; n],
            collected: vec![(0, 0); n],
        };
        world.peers[0].join(Moment::ZERO, Vec::new());
        world.drain();
        world
    }

    fn on(&mut self, operation: &SampledOperation) {
        let now = self.now;
        let at = |peer: u8| usize::from(peer % N_PEERS);
        match *operation {
            SampledOperation::Carry { which } => {
                if let Some((from, action)) = self.take(which) {
                    self.carry(from, action);
                }
            }
            SampledOperation::Lose { which } => {
                if let Some((from, action)) = self.take(which) {
                    self.lose(from, &action);
                }
            }
            SampledOperation::Pass { seconds } => {
                self.now += Duration::from_secs(seconds.into());
                let (now, unix) = (self.now, self.unix());
                for peer in &mut self.peers {
                    peer.on_clock(unix);
                    peer.on_timeout(now);
                }
            }
            SampledOperation::Leave { peer } => self.peers[at(peer)].leave(now),
            SampledOperation::Join { peer, through } => {
                let introduced = vec![self.peers[at(through)].peer()];
                self.peers[at(peer)].join(now, introduced);
            }
            SampledOperation::Offer { from, to, round, is_training, has_view } => {
                let (from, to) = (at(from), at(to));
                let task =
                    if is_training { SampledTask::Train { round } } else { SampledTask::Aggregate { round } };
                if self.offer((from, to), task, has_view) == Ok(true) {
                    self.pushes.push(OpenPush { from, to, task, model: Arc::new([1.0]) });
                }
            }
            SampledOperation::Sketch { from, to, round } => {
                let sender = self.peers[at(from)].peer();
                let sketch = ModelSketch::of(&[2.0], round);
                self.peers[at(to)].on_sketch(now, sender, SampledTask::Train { round }, sketch);
            }
            SampledOperation::Forge { to, about, round, has_left } => {
                self.forge(at(to), about, round, has_left);
            }
            SampledOperation::Approve { peer, seconds } => {
                if !self.is_open {
                    let until = self.unix().after(seconds.into());
                    self.n_tokens = self.n_tokens.wrapping_add(1);
                    let peer = &mut self.peers[at(peer)];
                    peer.on_approval(now, approval(peer.peer(), self.n_tokens, until));
                }
            }
            SampledOperation::Revoke { at: peer, token } => {
                let (peer, token_id) = (at(peer), TokenId([token; 16]));
                self.revoked[peer].insert(token_id);
                self.peers[peer].on_revoked(&[token_id]);
            }
        }
        self.drain();
        self.check();
    }

    fn unix(&self) -> UnixTime {
        UnixTime(self.now.as_secs())
    }

    fn take(&mut self, which: u8) -> Option<OpenAction> {
        let n_open = self.open.len();
        (n_open > 0).then(|| self.open.remove(usize::from(which) % n_open))
    }

    /// Returns whether the sender has proven enough, where the model is wanted.
    fn offer(
        &mut self,
        (from, to): (usize, usize),
        task: SampledTask,
        has_view: bool,
    ) -> Result<bool, OfferRefusal> {
        let (now, sender) = (self.now, self.peers[from].peer());
        let digest = self.peers[to].on_offer(now, sender, task)?;
        let digest = if has_view { digest } else { ViewDigest::of_everything() };
        let view = self.peers[from].view_beyond(&digest);
        let is_proven = self.peers[to].on_view_before(now, sender, task, &view);
        if !is_proven {
            self.peers[to].on_transfer_failed(now, sender, task);
        }
        Ok(is_proven)
    }

    /// `at` has told a sender its turn, or nobody hears it.
    fn turn(&mut self, at: usize, (sender, task): (PublicKey, SampledTask), turn: Option<OfferTurn>) {
        let now = self.now;
        let is_it = |push: &OpenPush, peers: &[SampledPeer]| {
            push.to == at && push.task == task && peers[push.from].peer() == sender
        };
        let Some(place) = self.pushes.iter().position(|push| is_it(push, &self.peers)) else { return };
        if let Some(OfferTurn::Compare { seed }) = turn {
            let sketch = ModelSketch::of(&self.pushes[place].model, seed);
            return self.peers[at].on_sketch(now, sender, task, sketch);
        }
        let OpenPush { from, model, .. } = self.pushes.remove(place);
        let outcome = match turn {
            Some(OfferTurn::Pull) => {
                self.peers[at].on_model(now, sender, task, model);
                PushOutcome::Delivered
            }
            refused => {
                self.peers[at].on_transfer_failed(now, sender, task);
                match refused {
                    Some(OfferTurn::Declined) => PushOutcome::Declined,
                    Some(_) => PushOutcome::Busy,
                    None => PushOutcome::Failed,
                }
            }
        };
        let to = self.peers[at].peer();
        self.peers[from].on_pushed(now, to, task, outcome);
    }

    fn carry(&mut self, from: usize, action: SampledAction) {
        let (now, sender) = (self.now, self.peers[from].peer());
        let at =
            |peers: &[SampledPeer], to: PublicKey| peers.iter().position(|peer| peer.peer() == to).unwrap();
        match action {
            SampledAction::Ping { to, round } => {
                let place = at(&self.peers, to);
                if self.peers[place].on_ping(now, sender, round) {
                    self.peers[from].on_pong(now, to, round);
                }
            }
            SampledAction::Meet { to, view, digest } => {
                let place = at(&self.peers, to);
                let answer = self.peers[place].on_meet(now, sender, &view, &digest);
                assert!(answer.is_some() || !self.is_open, "in an open run all are answered");
                match answer {
                    Some(answer) => self.peers[from].on_met(now, to, &answer),
                    None => self.peers[from].on_not_met(now, to),
                }
            }
            SampledAction::Train { round, model } => self.peers[from].on_trained(now, round, model),
            SampledAction::CancelTraining | SampledAction::Collect { .. } => {}
            SampledAction::Average { round } => {
                let average: SampledModel = Arc::new([1.0]);
                self.peers[from].on_averaged(now, round, &average);
            }
            SampledAction::Push { to, task, model } => {
                let place = at(&self.peers, to);
                let outcome = match self.offer((from, place), task, true) {
                    Ok(true) => return self.pushes.push(OpenPush { from, to: place, task, model }),
                    Ok(false) => PushOutcome::Failed,
                    Err(OfferRefusal::Declined) => PushOutcome::Declined,
                    Err(OfferRefusal::Busy) => PushOutcome::Busy,
                };
                self.peers[from].on_pushed(now, to, task, outcome);
            }
            SampledAction::Turn { to, task, turn } => self.turn(from, (to, task), Some(turn)),
        }
    }

    fn lose(&mut self, from: usize, action: &SampledAction) {
        let now = self.now;
        if let SampledAction::Turn { to, task, .. } = *action {
            return self.turn(from, (to, task), None);
        }
        let peer = &mut self.peers[from];
        match *action {
            SampledAction::Ping { to, round } => peer.on_unreachable(now, to, round),
            SampledAction::Meet { to, .. } => peer.on_not_met(now, to),
            SampledAction::Train { round, .. } => peer.on_training_failed(round),
            SampledAction::CancelTraining
            | SampledAction::Collect { .. }
            | SampledAction::Average { .. }
            | SampledAction::Turn { .. } => {}
            SampledAction::Push { to, task, .. } => peer.on_pushed(now, to, task, PushOutcome::Failed),
        }
    }

    /// A stranger signs for a peer, or claims its activity.
    fn forge(&mut self, to: usize, about: u8, round: u64, has_left: bool) {
        let about = self.peers[usize::from(about % N_PEERS)].peer();
        let token = ActivityToken([9; 16]);
        let roles = SampledRoles { trains: true, aggregates: Aggregates::Dialled };
        let event = match has_left {
            true => MembershipEvent::Left,
            false => {
                MembershipEvent::Joined(JoinedEvent { round, anchor: token, roles, addresses: Vec::new() })
            }
        };
        let approval = (!self.is_open).then(|| Box::new(approval(about, 0, UnixTime(u64::MAX))));
        let mut membership = Membership::sign(&key(99), RUN, u64::MAX, event, approval).unwrap();
        membership.peer = about;
        let activity = vec![ActivityProof { peer: PeerPrefix::of(&about), round, token }];
        let before = self.peers[to].registry().clone();
        let view = View { memberships: vec![membership], activity };
        self.peers[to].on_view(about, &view);
        assert_eq!(*self.peers[to].registry(), before, "what is forged changes nothing");
    }

    fn drain(&mut self) {
        for (at, peer) in self.peers.iter_mut().enumerate() {
            while let Some(action) = peer.poll_action() {
                match &action {
                    SampledAction::Train { round, .. } => {
                        assert!(*round > self.trained[at], "a round is trained once, and rounds grow");
                        self.trained[at] = *round;
                    }
                    SampledAction::Collect { round, .. } => {
                        let (of, n_models) = &mut self.collected[at];
                        assert!(*round >= *of && *round > self.averaged[at], "rounds grow");
                        *n_models = if round == of { *n_models + 1 } else { 1 };
                        *of = *round;
                    }
                    SampledAction::Average { round } => {
                        assert!(*round > self.averaged[at], "a round is averaged once, and rounds grow");
                        let (of, n_models) = self.collected[at];
                        assert_eq!(of, *round);
                        let most = match self.settings.exchange {
                            ModelExchange::Sample => 2 * self.settings.sample_size,
                            // Its own, and one whose sender proves late that it is a neighbour.
                            exchange => 2 + neighbor_models_max(exchange),
                        };
                        assert!((1..=most).contains(&n_models));
                        self.averaged[at] = *round;
                    }
                    SampledAction::Ping { to, .. }
                    | SampledAction::Meet { to, .. }
                    | SampledAction::Push { to, .. } => {
                        assert_ne!(*to, peer.peer(), "nobody sends to itself");
                    }
                    SampledAction::CancelTraining | SampledAction::Turn { .. } => {}
                }
                self.open.push((at, action));
            }
        }
        // What is not carried out for long is lost.
        let n_over = self.open.len().saturating_sub(64);
        for (at, action) in self.open.drain(..n_over).collect::<Vec<OpenAction>>() {
            self.lose(at, &action);
        }
        // Nor does a stream last for ever.
        while self.pushes.len() > 64 {
            let OpenPush { from, to, task, .. } = self.pushes[0];
            self.turn(to, (self.peers[from].peer(), task), None);
        }
    }

    fn check(&self) {
        let known: BTreeSet<PublicKey> = self.peers.iter().map(SampledPeer::peer).collect();
        let authority = Authority { key: authority().public(), run_id: "barn".into() };
        let authority = (!self.is_open).then_some(&authority);
        for (at, peer) in self.peers.iter().enumerate() {
            for membership in peer.registry().members() {
                membership.verify(RUN).unwrap();
                assert!(known.contains(&membership.peer));
                if membership.peer != peer.peer() {
                    membership.verify_approval(authority, self.unix()).unwrap();
                    let token_id = membership.approval.as_ref().map(|token| token.claims.token_id);
                    assert!(token_id.is_none_or(|token_id| !self.revoked[at].contains(&token_id)));
                }
            }
            if let Some((round, _)) = peer.newest() {
                assert!(round <= peer.own_round().max(peer.round()), "a model is of a round that was");
            }
        }
    }
}

#[test]
fn sampled_sequence() {
    fuzz!("sampled_sequence", |input| {
        let Some(case) = value::<SampledCase>(input) else { return };
        let mut world = SampledWorld::new(case.is_open, case.kind);
        case.operations.iter().take(200).for_each(|operation| world.on(operation));
    });
}

mod tests {
    use super::*;

    /// Operations by chance reach what the run is for.
    #[test]
    fn sequences_reach_later_rounds() {
        for (seed, kind) in (0..).zip([0, 0, 1, 1, 2, 3, 4, 5]) {
            let mut random = SplitMix64::new(seed);
            let mut world = SampledWorld::new(seed % 2 == 0, kind);
            for peer in 1..N_PEERS {
                world.on(&SampledOperation::Join { peer, through: 0 });
            }
            for at in 0..if kind == 1 { 9000 } else { 3000 } {
                if at % 1000 == 0 {
                    (0..N_PEERS).for_each(|peer| {
                        world.on(&SampledOperation::Approve { peer, seconds: u8::MAX });
                    });
                }
                let operation = match random.below(12) {
                    0 => SampledOperation::Pass { seconds: 1 },
                    1 => SampledOperation::Lose { which: random.below(256) as u8 },
                    _ => SampledOperation::Carry { which: random.below(256) as u8 },
                };
                world.on(&operation);
            }
            println!("{seed}: {:?}", world.trained);
            // Where there are no samples, one that others do not reach gets no model.
            let n_reached = if kind < 2 { N_PEERS } else { N_PEERS - 1 };
            let reached = &world.trained[..n_reached.into()];
            assert!(reached.iter().all(|round| *round > 10), "{seed}: {:?}", world.trained);
        }
    }
}
