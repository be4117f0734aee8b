//! Joining, leaving, and joining again after a time of silence (MoDEST §3.4 and §3.5, algorithm 2).

use std::collections::BTreeSet;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::sampled::{
    ActivityChain, ActivityToken, JoinedEvent, Membership, MembershipEvent, View, ViewDigest,
};

use super::{SampledAction, SampledPeer};
use crate::Moment;

/// Peers that are asked for all that they know: one of them may be gone.
const ASKED: usize = 2;
/// Rounds among which a peer that goes on with a run looks for one of its own.
const ROUNDS_LOOKED_AT: usize = 64;

/// Whether this peer takes part, and who was told.
#[derive(Debug, Default)]
pub(super) struct Joining {
    /// Tokens of this peer's activity, once it has joined.
    chain: Option<ActivityChain>,
    /// Peers that it was told of, of which it may know nothing.
    introduced: Vec<PublicKey>,
    /// Those who answered when it asked last.
    answered: Vec<PublicKey>,
    step: JoiningStep,
    /// It has the model with which the run begins, or goes on after all peers were gone.
    begins: bool,
    /// Times that the run seemed to be still, since something was heard of a later round.
    pub(super) n_silences: u32,
}

#[derive(Debug, Default)]
enum JoiningStep {
    #[default]
    Idle,
    /// Asks for the run's round first: a joined event says it.
    Asking { open: BTreeSet<PublicKey>, until: Moment },
    /// Nobody answered.
    Waiting { until: Moment },
    /// Joined again after silence. If nothing is heard of a later round until then, this peer goes on with the run.
    Listening { until: Moment },
}

impl Joining {
    pub(super) fn is_member(&self) -> bool {
        self.chain.is_some()
    }

    pub(super) fn begins(&mut self) {
        self.begins = true;
    }

    /// A later round is heard of: the run is not still.
    pub(super) fn on_progress(&mut self) {
        self.n_silences = 0;
    }

    pub(super) fn token(&self, round: u64) -> Option<ActivityToken> {
        self.chain.as_ref().and_then(|chain| chain.token(round))
    }
}

impl SampledPeer {
    /// Joins through peers that it was told of. Without any it is the first.
    pub fn join(&mut self, now: Moment, introduced: Vec<PublicKey>) {
        self.joining.introduced = introduced;
        self.heard_at = now;
        self.ask(now);
    }

    /// Leaves: it tells some peers, trains and aggregates no more.
    pub fn leave(&mut self, now: Moment) {
        if self.joining.chain.take().is_none() {
            return;
        }
        if self.training.end() {
            self.actions.push_back(SampledAction::CancelTraining);
        }
        self.aggregation.end();
        self.joining.step = JoiningStep::Idle;
        let told = self.acquaintances();
        self.sign(MembershipEvent::Left);
        self.tell(&told, 0);
        self.go_on(now);
    }

    /// Another peer tells what it knows, itself first. Returns what it lacks.
    pub fn on_meet(&mut self, now: Moment, from: PublicKey, view: &View, digest: &ViewDigest) -> View {
        self.registry.merge(view);
        if self.is_forgotten() {
            self.join_again(now);
        }
        // It may come after a restart, and goes on with the counter of what it told before.
        let answer = self.registry.view_for(Some(&from), digest, &self.peer);
        self.go_on(now);
        answer
    }

    /// The other peer's answer.
    pub fn on_met(&mut self, now: Moment, from: PublicKey, view: &View) {
        self.registry.merge(view);
        self.on_asked(now, from, true);
        self.go_on(now);
    }

    /// The other peer was not reached.
    pub fn on_not_met(&mut self, now: Moment, peer: PublicKey) {
        self.on_asked(now, peer, false);
        self.go_on(now);
    }

    /// The chain of activity has ended, or the run is far ahead of it: another one begins with another joined event.
    pub(super) fn join_again(&mut self, now: Moment) {
        if self.joining.is_member() {
            self.announce(now);
        }
    }

    pub(super) fn on_joining_timeout(&mut self, now: Moment) {
        let has_answer = !self.joining.answered.is_empty();
        match &self.joining.step {
            JoiningStep::Asking { until, .. } if has_answer && *until <= now => self.announce(now),
            JoiningStep::Asking { until, .. } if *until <= now => self.on_no_answer(now),
            JoiningStep::Waiting { until } if *until <= now => self.ask(now),
            JoiningStep::Listening { until } if *until <= now => {
                self.joining.step = JoiningStep::Idle;
                self.go_on_with_run(now);
            }
            JoiningStep::Idle if self.silent_at().is_some_and(|at| at <= now) => {
                self.heard_at = now;
                self.joining.n_silences += 1;
                self.ask(now);
            }
            _ => {}
        }
    }

    pub(super) fn joining_deadline(&self) -> Option<Moment> {
        match &self.joining.step {
            JoiningStep::Idle => self.silent_at(),
            JoiningStep::Asking { until, .. }
            | JoiningStep::Waiting { until }
            | JoiningStep::Listening { until } => Some(*until),
        }
    }

    /// Whether the others take this peer for inactive: it was in no sample for too long.
    fn is_forgotten(&self) -> bool {
        let active = self.registry.activity_of(&self.peer);
        active.is_some_and(|round| round.saturating_add(self.settings.activity_window) <= self.round())
    }

    /// `Δk * Δt_S` after the last message: from then on the others may have forgotten this peer. A device that computes or is
    /// asked by nobody else is not forgotten.
    fn silent_at(&self) -> Option<Moment> {
        let window = u32::try_from(self.settings.activity_window).unwrap_or(u32::MAX);
        let silence = self.round_duration.max(self.settings.ping_timeout).saturating_mul(window);
        self.joining.is_member().then(|| self.heard_at.saturating_add(silence))
    }

    /// Asks some peers how far the run is; the first peer of a run knows.
    fn ask(&mut self, now: Moment) {
        let asked = self.acquaintances();
        if asked.is_empty() {
            return self.announce(now);
        }
        let until = now + 2 * self.settings.ping_timeout;
        self.joining.answered.clear();
        self.joining.step = JoiningStep::Asking { open: asked.iter().copied().collect(), until };
        self.tell(&asked, ASKED);
    }

    fn on_asked(&mut self, now: Moment, peer: PublicKey, is_answer: bool) {
        let JoiningStep::Asking { open, .. } = &mut self.joining.step else { return };
        if open.remove(&peer) && is_answer {
            self.joining.answered.push(peer);
        }
        match (open.is_empty(), !self.joining.answered.is_empty()) {
            (true, true) => self.announce(now),
            (true, false) => self.on_no_answer(now),
            (false, _) => {}
        }
    }

    /// All whom it knew are gone: with a model it begins alone, and without one it asks again.
    fn on_no_answer(&mut self, now: Moment) {
        match self.joining.begins {
            true => self.begin_alone(now),
            false => self.joining.step = JoiningStep::Waiting { until: now + self.settings.round_estimate },
        }
    }

    /// Goes on with a run of which nobody is left. Members that were last active so long before that nobody who joins would believe
    /// the model's round for them are forgotten; they join again where they are live.
    fn begin_alone(&mut self, now: Moment) {
        let held = self.newest.as_ref().map_or(0, |(round, _)| *round);
        if let Some(before) = held.checked_sub(self.settings.round_leap()) {
            self.registry.forget_before(before);
        }
        self.limit.begin(now, held);
        self.announce(now);
    }

    /// Whether the others know this peer by the event that its chain belongs to: an earlier process may have told of a later one.
    pub(super) fn is_registered(&self) -> bool {
        let own = self.registry.membership(&self.peer);
        own.is_some_and(|own| own.counter == self.identity.counter && own.joined().is_some())
    }

    /// `request join`: tells that this peer is active in the run's round, by a token of its chain, or by a joined event with another
    /// chain.
    fn announce(&mut self, now: Moment) {
        self.believe_answers(now);
        let active = self.active.unwrap_or_default();
        let held = self.newest.as_ref().map_or(0, |(round, _)| *round);
        let round = self.round().max(active).max(held);
        self.limit.begin(now, round);
        match self.joining.token(round).filter(|_| self.is_registered()) {
            Some(token) => self.prove(round, token),
            None => self.sign_joined(round),
        }
        self.joining.step = match self.joining.n_silences {
            0 => JoiningStep::Idle,
            _ => JoiningStep::Listening { until: now + 2 * self.settings.ping_timeout },
        };
        let told = self.acquaintances();
        self.tell(&told, 0);
        if std::mem::take(&mut self.joining.begins)
            && let Some((_, model)) = self.newest.clone().filter(|(held, _)| *held == round)
        {
            let own = self.next_own_round(round).unwrap_or(round.saturating_add(1));
            self.resume(now, own, model);
        }
    }

    /// A peer that knows no round of its own, or whose run is still for the second time, believes those who answered: that the run is
    /// not further than those in the middle of them may be, by when they were active. Where it was in the run already, it believes
    /// those alone that its user introduced it to.
    fn believe_answers(&mut self, now: Moment) {
        self.on_time(now);
        let is_new = self.limit.round().is_none();
        if !is_new && self.joining.n_silences < 2 {
            return;
        }
        let believed =
            self.joining.answered.iter().filter(|peer| is_new || self.joining.introduced.contains(peer));
        let mut rounds: Vec<u64> = believed.filter_map(|peer| self.registry.activity_of(peer)).collect();
        rounds.sort_unstable();
        if let Some(round) = rounds.get(rounds.len().saturating_sub(1) / 2) {
            self.limit.raise(now, round.saturating_add(self.settings.activity_window));
        }
    }

    pub(super) fn sign_joined(&mut self, round: u64) {
        // Others may remember an event that this peer has forgotten.
        let remembered = self.registry.membership(&self.peer).map_or(0, |membership| membership.counter);
        self.identity.counter = self.identity.counter.max(remembered);
        let counter = self.identity.counter + 1;
        let chain = ActivityChain::new(&self.identity.key, self.identity.run, counter, round);
        let joined = JoinedEvent {
            round,
            anchor: chain.anchor(),
            roles: self.identity.roles,
            addresses: self.identity.addresses.clone(),
        };
        self.joining.chain = Some(chain);
        self.sign(MembershipEvent::Joined(joined));
    }

    fn sign(&mut self, event: MembershipEvent) {
        self.identity.counter += 1;
        let signed = Membership::sign(&self.identity.key, self.identity.run, self.identity.counter, event);
        let memberships = signed.into_iter().collect();
        self.registry.merge(&View { memberships, activity: Vec::new() });
    }

    /// Tells some peers of this one. The first `n_asked` of them answer with what it lacks, the others with what they tell of
    /// themselves.
    fn tell(&mut self, peers: &[PublicKey], n_asked: usize) {
        let view = match self.registry.membership(&self.peer) {
            Some(_) => self.registry.view_beyond(&ViewDigest::of_everything(), &self.peer),
            None => View::default(),
        };
        for (at, to) in peers.iter().enumerate() {
            let digest = if at < n_asked { self.digest() } else { ViewDigest::of_everything() };
            self.actions.push_back(SampledAction::Meet { to: *to, view: view.clone(), digest });
        }
    }

    /// `P`: as many members as a sample has, by chance, those first that it was told of.
    fn acquaintances(&mut self) -> Vec<PublicKey> {
        let mut others: Vec<PublicKey> = self.registry.members().map(|membership| membership.peer).collect();
        self.random.shuffle(&mut others);
        let mut known = self.joining.introduced.clone();
        for other in others {
            if known.len() >= self.settings.sample_size.max(self.joining.introduced.len()) {
                break;
            }
            if !known.contains(&other) {
                known.push(other);
            }
        }
        known.retain(|peer| *peer != self.peer);
        known
    }

    /// The first round after this one, as far as rounds are believed, that this peer is an aggregator of.
    fn next_own_round(&self, round: u64) -> Option<u64> {
        let within = (self.settings.activity_window, self.round_max());
        (round.saturating_add(1)..=self.round_max()).take(ROUNDS_LOOKED_AT).find(|round| {
            let place = self.registry.place(&self.peer, *round, within, |roles| roles.aggregates);
            place.is_some_and(|place| place < self.settings.n_aggregators)
        })
    }

    /// After silence, and nothing heard of a later round than this peer's: the round was lost with those who had it. Models that
    /// came are enough then. Without any, this peer goes on with the newest average that it has: at once where nobody has been
    /// active after that, and else when those who have were silent as well.
    fn go_on_with_run(&mut self, now: Moment) {
        if self.aggregation.sampling().is_some() || self.training.sampling().is_some() || self.is_training() {
            return;
        }
        let round = self.round().max(self.own_round());
        if self.aggregation.is_short() && self.aggregation.round() >= round {
            return self.sample_trainers(now);
        }
        let Some((of, average)) = self.newest.clone() else { return };
        if !self.identity.roles.aggregates || (of < round && self.joining.n_silences < 2) {
            return;
        }
        // Others take a model of an aggregator of its round alone. Those of no round that is near wait for the others.
        match self.next_own_round(round) {
            Some(own) => self.resume(now, own, average),
            None if self.joining.n_silences > 2 => self.resume(now, round.saturating_add(1), average),
            None => {}
        }
    }
}
