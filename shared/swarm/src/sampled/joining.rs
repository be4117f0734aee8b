//! Joining, leaving, and joining again after a time of silence (MoDEST §3.4 and §3.5, algorithm 2).

use std::collections::BTreeSet;
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::sampled::{
    ActivityChain, ActivityToken, Aggregates, JoinedEvent, MEMBER_ADDRESS_BYTES_MAX, MEMBER_ADDRESSES_MAX,
    Membership, MembershipEvent, REGISTERED_MAX, SampledRoles, VIEW_BYTES_MAX, View, ViewDigest,
};

use super::{SampledAction, SampledIdentity, SampledPeer};
use crate::Moment;

/// Peers that are asked for all that they know: one of them may be gone.
const ASKED: usize = 2;
/// Views that have room for all members that a peer can know, of 512 bytes each.
pub(super) const VIEWS_MAX: usize = REGISTERED_MAX * 512 / VIEW_BYTES_MAX;
/// Most members that are asked together after the first of them did not answer.
const ASKED_TOGETHER_MAX: usize = 64;
/// Rounds among which a peer that goes on with a run looks for one of its own.
const ROUNDS_LOOKED_AT: usize = 64;
/// Time between two joined events of a peer whose roles or addresses change again and again.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(30);

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
    /// Times that it still asks for more, of those who told of members that it did not know.
    n_more: usize,
    /// It has the model with which the run begins, or goes on after all peers were gone.
    begins: bool,
    /// It went on alone, as none of those whom it knew answered, and no model of another peer has come since.
    is_alone: bool,
    /// Times that the run seemed to be still, since something was heard of a later round.
    pub(super) n_silences: u32,
    /// It was still twice, and is taken for that until this round: what stopped it may stop the next one.
    still_until: u64,
    /// How far the run was known to be when it seemed to be still last.
    still_round: u64,
    /// When this peer told others of itself last.
    announced_at: Moment,
}

#[derive(Debug, Default)]
enum JoiningStep {
    #[default]
    Idle,
    /// Asks for the run's round first: a joined event says it. Where all are silent until then, more are asked.
    Asking { asked: BTreeSet<PublicKey>, open: BTreeSet<PublicKey>, until: Moment },
    /// Nobody answered.
    Waiting { until: Moment },
    /// Joined again after silence. If nothing is heard of a later round until then, this peer goes on with the run.
    Listening { until: Moment },
}

impl Joining {
    pub(super) fn is_member(&self) -> bool {
        self.chain.is_some()
    }

    /// Peers that its user introduced it to.
    pub(super) fn introduced(&self) -> &[PublicKey] {
        &self.introduced
    }

    pub(super) fn begins(&mut self) {
        self.begins = true;
    }

    /// A later round is heard of: the run is not still.
    pub(super) fn on_progress(&mut self, round: u64, window: u64) {
        if self.n_silences >= 2 {
            self.still_until = round.saturating_add(window);
        }
        (self.n_silences, self.is_alone) = (0, false);
    }

    /// Whether a second time of silence is over since, or was some rounds before this one. After one the run may go on among others.
    pub(super) fn is_run_still(&self, round: u64) -> bool {
        self.n_silences >= 2 || round <= self.still_until
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
        self.neighbors.end();
        self.joining.step = JoiningStep::Idle;
        self.end_calling();
        let told = self.acquaintances(&[]);
        self.sign(MembershipEvent::Left);
        self.tell(&told, 0);
        self.go_on(now);
    }

    /// What this peer does, and where others can dial it, from now on. A member tells that by another joined event, which replaces
    /// the one before at all who know it.
    ///
    /// - `addresses`: binary multiaddresses; those that are too long, or too many, are left aside
    pub fn on_own_change(&mut self, now: Moment, roles: SampledRoles, mut addresses: Vec<Vec<u8>>) {
        addresses.retain(|address| address.len() <= MEMBER_ADDRESS_BYTES_MAX);
        addresses.truncate(MEMBER_ADDRESSES_MAX);
        (self.identity.roles, self.identity.addresses) = (roles, addresses);
        self.on_timeout(now);
    }

    /// Another peer tells of itself. Returns what it lacks; `None` where it has not shown its access to a run that is not open. Anybody may come as often as it likes, so that what it tells of others, which
    /// no honest peer does, is not looked at.
    pub fn on_meet(
        &mut self,
        now: Moment,
        from: PublicKey,
        view: &View,
        digest: &ViewDigest,
    ) -> Option<View> {
        self.registry.merge_own(&from, view);
        if self.is_forgotten() {
            self.join_again(now);
        }
        // It may come after a restart, and goes on with the counter of what it told before.
        let is_approved = self.registry.is_approved(&from);
        let answer = is_approved.then(|| self.registry.view_for(Some(&from), digest, &self.peer));
        self.go_on(now);
        answer
    }

    /// The other peer's answer. As long as it tells of members that this one did not know, there may be more: a view has room for
    /// some hundreds of them, and others join at the same time. So it is where what they prove costs too much to be checked at once.
    pub fn on_met(&mut self, now: Moment, from: PublicKey, view: &View) {
        let may_ask = self.joining.is_member() && self.joining.n_more > 0;
        let n_known = self.registry.members().count();
        self.registry.merge(view);
        self.on_asked(now, from, true);
        // It went on with an old round before it heard of those who are further.
        if !matches!(self.joining.step, JoiningStep::Asking { .. }) && self.is_forgotten() {
            self.join_again(now);
        }
        if may_ask && (self.registry.members().count() > n_known || self.registry.lacks_activity(view)) {
            self.joining.n_more -= 1;
            self.tell(&[from], 1);
        }
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
            JoiningStep::Asking { until, .. } if *until <= now => self.ask_more(now),
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
            JoiningStep::Idle if self.renewed_at().is_some_and(|at| at <= now) => {
                self.announce(now);
                // A run is not still because this peer moved.
                self.joining.step = JoiningStep::Idle;
            }
            _ => {}
        }
    }

    pub(super) fn joining_deadline(&self) -> Option<Moment> {
        match &self.joining.step {
            JoiningStep::Idle => self.silent_at().into_iter().chain(self.renewed_at()).min(),
            JoiningStep::Asking { until, .. }
            | JoiningStep::Waiting { until }
            | JoiningStep::Listening { until } => Some(*until),
        }
    }

    /// Whether the others take this peer for inactive: it was in no sample for too long.
    pub(super) fn is_forgotten(&self) -> bool {
        let active = self.registry.activity_of(&self.peer);
        active.is_some_and(|round| round.saturating_add(self.settings.activity_window) <= self.round())
    }

    /// `Δk * Δt_S` after the last message: from then on the others may have forgotten this peer. A device that computes or is
    /// asked by nobody else is not forgotten.
    fn silent_at(&self) -> Option<Moment> {
        let window = u32::try_from(self.settings.activity_window).unwrap_or(u32::MAX);
        let silence = self.round_duration().max(self.settings.ping_timeout).saturating_mul(window);
        self.joining.is_member().then(|| self.heard_at.saturating_add(silence))
    }

    /// When a member whom the others do not know as it is tells of itself anew.
    fn renewed_at(&self) -> Option<Moment> {
        let is_known = !self.joining.is_member() || self.is_registered();
        (!is_known).then(|| self.joining.announced_at.saturating_add(RENEW_EVERY))
    }

    /// Asks some peers how far the run is; the first peer of a run knows.
    fn ask(&mut self, now: Moment) {
        let asked = self.acquaintances(&[]);
        if asked.is_empty() {
            return self.announce(now);
        }
        self.joining.answered.clear();
        let open: BTreeSet<PublicKey> = asked.iter().copied().collect();
        self.joining.step = JoiningStep::Asking { asked: open.clone(), open, until: self.answered_at(now) };
        self.tell(&asked, ASKED);
    }

    /// When those who are asked now should have answered.
    fn answered_at(&self, now: Moment) -> Moment {
        now + 2 * self.settings.ping_timeout
    }

    /// Nobody has answered so far: as many more of the members are asked, and once there are none, those who are only slow have until
    /// their conversations end.
    fn ask_more(&mut self, now: Moment) {
        let until = self.answered_at(now);
        let others = self.others();
        let JoiningStep::Asking { asked, open, until: at } = &mut self.joining.step else { return };
        let n_more = asked.len().min(ASKED_TOGETHER_MAX);
        let more: Vec<PublicKey> =
            others.into_iter().filter(|peer| !asked.contains(peer)).take(n_more).collect();
        if more.is_empty() && open.is_empty() {
            return self.on_no_answer(now);
        }
        *at = until;
        asked.extend(&more);
        open.extend(&more);
        self.tell(&more, ASKED);
    }

    fn on_asked(&mut self, now: Moment, peer: PublicKey, is_answer: bool) {
        let JoiningStep::Asking { open, .. } = &mut self.joining.step else { return };
        if open.remove(&peer) && is_answer {
            self.joining.answered.push(peer);
        }
        match (open.is_empty(), !self.joining.answered.is_empty()) {
            (true, true) => self.announce(now),
            (true, false) => self.ask_more(now),
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
        self.joining.is_alone = true;
        let held = self.newest.as_ref().map_or(0, |(round, _)| *round);
        if let Some(before) = held.checked_sub(self.settings.round_leap()) {
            self.registry.forget_before(before);
        }
        self.limit.begin(now, held);
        self.announce(now);
    }

    /// Whether the others know this peer by the event that its chain belongs to, and as it is: an earlier process may have told of a
    /// later one, and its roles or addresses may have changed since.
    pub(super) fn is_registered(&self) -> bool {
        let is_newest =
            |own: &&Membership| own.counter == self.identity.counter && own.approval == self.approval;
        let own = self.registry.membership(&self.peer).filter(is_newest);
        own.and_then(Membership::joined).is_some_and(|joined| {
            joined.roles == self.identity.roles && joined.addresses == self.identity.addresses
        })
    }

    /// `request join`: tells that this peer is active in the run's round, by a token of its chain, or by a joined event with another
    /// chain. Of some it asks once more who takes part: those who joined meanwhile were not in the answers so far.
    fn announce(&mut self, now: Moment) {
        self.believe_answers(now);
        let active = self.active.unwrap_or_default();
        let held = self.newest.as_ref().map_or(0, |(round, _)| *round);
        // After silence not that of a few: who repeats what one key says makes many of it.
        let is_led = self.joining.n_silences > 0 && !self.joining.is_alone;
        let known = if is_led { self.round_of_many() } else { self.round() };
        let round = known.max(active).max(held);
        self.limit.begin(now, round);
        self.joining.announced_at = now;
        match self.joining.token(round).filter(|_| self.is_registered()) {
            Some(token) => self.prove(round, token),
            None => self.sign_joined(round),
        }
        self.joining.step = match self.joining.n_silences {
            0 => JoiningStep::Idle,
            _ => JoiningStep::Listening { until: self.answered_at(now) },
        };
        self.joining.n_more = VIEWS_MAX;
        // Those who have just answered are live.
        let answered = self.joining.answered.clone();
        let told = self.acquaintances(&answered);
        self.tell(&told, ASKED);
        self.begin_calling(now);
        // Those who answered are in a later round: it waits for their models.
        if self.round_of_answers(|_| true).is_some_and(|answered| answered > round) {
            return;
        }
        if std::mem::take(&mut self.joining.begins)
            && let Some((_, model)) = self.newest.clone().filter(|(held, _)| *held == round)
        {
            let own = self.next_own_round(round).unwrap_or(round.saturating_add(1));
            self.resume(now, own, model);
        }
    }

    /// A peer that knows no round of its own, or one that it went on with alone, or whose run is still for the second time, believes
    /// those who answered: that the run is not further than those in the middle of them may be, by when they were active. Where it was
    /// in the run already, it believes those alone that its user introduced it to.
    fn believe_answers(&mut self, now: Moment) {
        self.on_time(now);
        let is_new = self.limit.round().is_none() || self.joining.is_alone;
        if !is_new && self.joining.n_silences < 2 {
            return;
        }
        if let Some(round) = self.round_of_answers(|peer| is_new || self.joining.introduced.contains(peer)) {
            self.limit.raise(now, round.saturating_add(self.settings.activity_window));
        }
    }

    /// When those in the middle of them who answered, and are believed, were active.
    fn round_of_answers(&self, is_believed: impl Fn(&PublicKey) -> bool) -> Option<u64> {
        let believed = self.joining.answered.iter().filter(|peer| is_believed(peer));
        let mut rounds: Vec<u64> = believed.filter_map(|peer| self.registry.activity_of(peer)).collect();
        rounds.sort_unstable();
        rounds.get(rounds.len().saturating_sub(1) / 2).copied()
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
        let SampledIdentity { key, run, counter, .. } = &self.identity;
        let signed = Membership::sign(key, *run, *counter, event, self.approval.clone());
        let memberships = signed.into_iter().collect();
        self.registry.merge(&View { memberships, activity: Vec::new() });
    }

    /// Tells some peers of this one. The first `n_asked` of them answer with what it lacks, the others with what they tell of
    /// themselves.
    pub(super) fn tell(&mut self, peers: &[PublicKey], n_asked: usize) {
        let shown = self.registry.membership(&self.peer).and_then(|own| own.approval.as_ref());
        if !self.joining.is_member() && shown != self.approval.as_ref() {
            // It has not joined yet, and answers are for those alone who show their access.
            self.sign(MembershipEvent::Left);
        }
        let view = match self.registry.membership(&self.peer) {
            Some(_) => self.registry.view_beyond(&ViewDigest::of_everything(), &self.peer),
            None => View::default(),
        };
        for (at, to) in peers.iter().enumerate() {
            let digest = if at < n_asked { self.digest() } else { ViewDigest::of_everything() };
            self.actions.push_back(SampledAction::Meet { to: *to, view: view.clone(), digest });
        }
    }

    /// `P`: as many members as a sample has, by chance, after those that it was told of and some `live` ones. One of these is among them
    /// in any case, and they come first: those that it was told of may be gone.
    fn acquaintances(&mut self, live: &[PublicKey]) -> Vec<PublicKey> {
        let mut known = self.joining.introduced.clone();
        known.retain(|peer| *peer != self.peer);
        let n_least = known.len() + usize::from(live.iter().any(|peer| !known.contains(peer)));
        let n_max = n_least.max(self.settings.sample_size);
        for other in live.iter().copied().chain(self.others()) {
            if known.len() >= n_max {
                break;
            }
            if !known.contains(&other) {
                known.push(other);
            }
        }
        known.sort_by_key(|peer| !live.contains(peer));
        known
    }

    /// All members but this one, in an order by chance.
    fn others(&mut self) -> Vec<PublicKey> {
        let members = self.registry.members().map(|membership| membership.peer);
        let mut others: Vec<PublicKey> = members.filter(|peer| *peer != self.peer).collect();
        self.random.shuffle(&mut others);
        others
    }

    /// The first round after this one, as far as rounds are believed, that this peer is an aggregator of.
    fn next_own_round(&self, round: u64) -> Option<u64> {
        if self.is_among_neighbors() {
            return Some(round.saturating_add(1));
        }
        let within = (self.settings.activity_window, self.round_max());
        (round.saturating_add(1)..=self.round_max()).take(ROUNDS_LOOKED_AT).find(|round| {
            let place = self.aggregator_place(&self.peer, *round, within);
            place.is_some_and(|place| place < self.settings.n_aggregators)
        })
    }

    /// Whether one that can be dialled is live, which goes on with the run itself. Twice that is believed.
    fn leaves_it_to_others(&self) -> bool {
        let is_dialled = |peer: &PublicKey| self.aggregates(peer) == Aggregates::Dialled;
        self.identity.roles.aggregates == Aggregates::Relayed
            && self.joining.n_silences <= 2
            && self.joining.answered.iter().any(is_dialled)
    }

    /// After silence, and nothing heard of a later round than this peer's: the round was lost with those who had it. Models that
    /// came are enough then. Without any, this peer goes on with the newest average that it has: at once where nobody has been
    /// active after that, and else when those who have were silent as well. Where they were not, the run goes on without this peer,
    /// and its average is an old one.
    fn go_on_with_run(&mut self, now: Moment) {
        let (round, round_max) = (self.round(), self.round_max());
        let still_round = std::mem::replace(&mut self.joining.still_round, round);
        let n_further = self.registry.n_active_in(still_round.saturating_add(1)..=round_max);
        // Fewer make no round, and could keep a run still by what they say.
        if n_further >= self.settings.models_wanted() {
            self.joining.n_silences = self.joining.n_silences.min(1);
        }
        if self.aggregation.sampling().is_some() || self.training.is_busy() || self.waits_for_senders() {
            return;
        }
        let round = round.max(self.own_round()).max(self.neighbors.averaged());
        let is_half = self.aggregation.short().is_some_and(|(n_models, _)| self.is_half(n_models));
        if is_half && self.aggregation.round() >= round {
            return self.sample_trainers(now);
        }
        let Some((of, average)) = self.newest.clone() else { return };
        if !self.identity.roles.is_aggregator()
            || self.leaves_it_to_others()
            || (of < round && self.joining.n_silences < 2)
        {
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
