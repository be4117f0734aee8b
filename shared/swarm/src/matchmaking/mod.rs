//! Peers that aggregate a run together: how much they have, when they average, who proposes the group, and whose
//! model is followed by those who fell behind (DeDLOC §3.1, appendix B).
//!
//! Every peer tells every other how it stands ([`Standing`]). Those with the same model count together: once
//! they have the samples of a step, each collects what its contributors reported. Whoever of those that are ready
//! is first in an order that is another one for each epoch proposes the group, and the next in the order does where it does not. A
//! peer that averaged goes on with the new model; one that was left out sees that others did, and follows them
//! ([`Action::Follow`]). Of two models the one behind which there are more samples is followed, so partitions that heal agree
//! again. Nobody is needed: a peer that hears of no other makes its steps alone.
//!
//! Peers that have no samples and no contributors take part in no averaging, as long as there are few of them: the
//! others step without them, wait for them after it, and they follow. So one that has nothing to give holds nobody up,
//! and an averaging of one is none. A peer whose averaging others have ended gives it up and follows them; one whose
//! averaging nobody else takes part in tries again.
//!
//! An averaging in a grid of groups may leave a peer without the mean of all, where others have it. It makes no step of its
//! own then: it waits until those who still average are through, and follows ([`Matchmaking::on_not_whole`]). Where nobody
//! got there, all are one group the next time ([`Matchmaking::is_first_attempt`]). How large groups should be follows from
//! how often peers fail ([`FailureRate`]).
//!
//! It never averages, plans parts or moves a model: the driver does.

mod failures;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::matchmaking::{
    GROUP_SIZE_MIN, MEMBERS_MAX, ModelVersion, Proposal, REDUCERS_MAX, Ready, Standing,
};

use crate::{Moment, PeerKey};

pub use failures::FailureRate;

/// Averagings of one epoch that may fail before the others are given up for it, and attempts to follow.
const ATTEMPTS_MAX: u32 = 3;
/// Times the longest wait for it that a peer is not waited for again.
const STRAGGLERS_REST: u32 = 10;
/// Most peers without samples that get the steps of the others from them. Where there are more, all average: each sends
/// a part of the mean then, and nobody all of it to everybody.
const FOLLOWERS_MAX: usize = 3;
/// Such a part of [`MatchmakingConfig::gather`] an averaging has to end in that others have ended, and they have to begin
/// in.
const PATIENCE_PART: u32 = 3;

/// [`MatchmakingConfig::silence`] where nobody says otherwise.
pub const SILENCE: Duration = Duration::from_secs(10);
/// [`MatchmakingConfig::gather`] where nobody says otherwise.
pub const GATHER: Duration = Duration::from_secs(6);
/// [`MatchmakingConfig::retry`].
pub const RETRY: Duration = Duration::from_millis(500);

/// How long whom is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchmakingConfig {
    /// Samples of one step, over all contributors of all peers.
    pub target_batch_size: u64,
    /// A peer that says nothing for so long is not counted.
    pub silence: Duration,
    /// How long a peer that has collected waits for those that have not, and then for a proposal of each that
    /// should make one.
    pub gather: Duration,
    /// How soon a model is asked for again that could not be had.
    pub retry: Duration,
}

/// What the driver does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Plan the parts of a group of these peers, this one among them, send the proposal to the others, and give it to
    /// [`Matchmaking::on_proposal`] as well, or say [`Matchmaking::on_failed`].
    Propose {
        /// The model whose gradients are averaged.
        model: ModelVersion,
        /// In the order of their keys.
        members: Vec<(PeerKey, Standing)>,
    },
    /// Average by this proposal, and no longer by the one before if there is one; then say [`Matchmaking::on_stepped`] or [`Matchmaking::on_failed`].
    Average(Proposal),
    /// Give up what is averaged: nobody else averages it. Nothing is to be said.
    GiveUp,
    /// Step with what this peer collected, then say [`Matchmaking::on_stepped`].
    StepAlone,
    /// What was collected is not enough after all: go on accumulating. The peer is not ready any longer.
    Reopen,
    /// Give up what is averaged here, if anything is. Get the model that these peers have or are beyond: say [`Matchmaking::on_stepped`] at each model on the way, and
    /// then [`Matchmaking::on_followed`] or [`Matchmaking::on_failed`].
    Follow(Vec<PeerKey>),
}

/// Why a proposal is not taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// It came too early, too late, or second.
    #[error("this peer is not ready to average")]
    NotReady,
    /// Of another model.
    #[error("this peer has another model")]
    Model,
    /// This peer is not in it as it is.
    #[error("this peer is not a member with the samples that it has")]
    NotAMember,
    /// A loss that is no number.
    #[error("the loss is not finite")]
    Loss,
    /// Somebody is who was never introduced.
    #[error("a member is not known here")]
    Stranger,
    /// More than anybody lets in.
    #[error("{0} native peers are to average, at most {REDUCERS_MAX} may")]
    Reducers(usize),
    /// Groups in which nothing is averaged.
    #[error("groups of {0}, at least {GROUP_SIZE_MIN} average with each other")]
    GroupSize(u16),
    /// What those send cannot be compared from group to group.
    #[error("native peers are to average, which they do in one group of all only")]
    ReducersInGrid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Contributions are being counted.
    Gathering,
    /// Ready since then.
    Ready(Moment),
    /// The driver plans a group.
    Proposing,
    Averaging,
    Following,
}

/// What this peer averages with others.
#[derive(Debug)]
struct Averaging {
    nonce: u64,
    began: Moment,
    /// Who should as well.
    others: Vec<PeerKey>,
}

#[derive(Debug, Clone, Copy)]
struct Colleague {
    standing: Standing,
    heard_at: Moment,
}

/// One peer's view of all who aggregate.
#[derive(Debug)]
pub struct Matchmaking {
    config: MatchmakingConfig,
    me: PeerKey,
    own: Standing,
    phase: Phase,
    colleagues: BTreeMap<PeerKey, Colleague>,
    /// Have not caught up while they were waited for: not waited for again before that.
    stragglers: BTreeMap<PeerKey, Moment>,
    /// Averagings of this epoch that failed.
    n_failed: u32,
    /// Until when the others are given up, where they were too many.
    hopeless_until: Moment,
    /// Where the attempt to follow began.
    followed_from: ModelVersion,
    /// Attempts in a row to follow that failed.
    n_strayed: u32,
    /// After a failure nothing is done before that: whoever did better will have said so.
    not_before: Moment,
    averaging: Option<Averaging>,
    /// Others have had a better model since then than the one whose gradients are averaged here.
    overtaken_since: Option<Moment>,
    /// Until then those who still average are waited for: they may have the mean that this peer did not get.
    others_until: Moment,
    /// When time alone changes something.
    wake_at: Option<Moment>,
    actions: VecDeque<Action>,
}

impl Matchmaking {
    /// A peer that knows of no other; `own` is how it stands.
    #[must_use]
    pub fn new(config: MatchmakingConfig, me: PeerKey, own: Standing) -> Self {
        Self {
            config,
            me,
            own,
            phase: Phase::Gathering,
            colleagues: BTreeMap::new(),
            stragglers: BTreeMap::new(),
            n_failed: 0,
            hopeless_until: Moment::ZERO,
            followed_from: own.model,
            n_strayed: 0,
            not_before: Moment::ZERO,
            averaging: None,
            overtaken_since: None,
            others_until: Moment::ZERO,
            wake_at: None,
            actions: VecDeque::new(),
        }
    }

    /// How this peer stands.
    #[must_use]
    pub fn own(&self) -> &Standing {
        &self.own
    }

    /// What this peer's contributors have changed; model and readiness stay as they are.
    pub fn on_own(&mut self, now: Moment, own: Standing) {
        let Standing { model, ready, is_busy, .. } = self.own;
        self.own = Standing { model, ready, is_busy, ..own };
        self.advance(now);
    }

    /// This peer has collected: its gradient can be averaged.
    pub fn on_ready(&mut self, now: Moment, ready: Ready) {
        self.own.ready = Some(ready);
        self.own.is_closing = true;
        if self.phase == Phase::Gathering {
            self.phase = Phase::Ready(now);
        }
        self.advance(now);
    }

    /// Another peer says how it stands.
    pub fn on_standing(&mut self, now: Moment, peer: PeerKey, standing: Standing) {
        if peer != self.me && (self.colleagues.len() < MEMBERS_MAX - 1 || self.colleagues.contains_key(&peer))
        {
            self.colleagues.insert(peer, Colleague { standing: sane(standing), heard_at: now });
            self.advance(now);
        }
    }

    /// Another peer cannot be heard any longer.
    pub fn on_gone(&mut self, now: Moment, peer: &PeerKey) {
        self.colleagues.remove(peer);
        self.stragglers.remove(peer);
        self.advance(now);
    }

    /// Somebody proposes a group, possibly this peer itself. Where two propose at once, all go on with the one whose
    /// number is smaller, or neither would find its members.
    ///
    /// # Errors
    /// See [`ProposalError`]: nothing has changed then.
    pub fn on_proposal(&mut self, now: Moment, proposal: Proposal) -> Result<(), ProposalError> {
        let can_begin = match &self.averaging {
            Some(Averaging { nonce, began, .. }) if self.phase == Phase::Averaging => {
                proposal.nonce < *nonce && now < *began + self.config.gather / PATIENCE_PART
            }
            _ => matches!(self.phase, Phase::Ready(_) | Phase::Proposing),
        };
        let Some(ready) = self.own.ready.filter(|_| can_begin) else {
            return Err(ProposalError::NotReady);
        };
        if proposal.model != self.own.model {
            return Err(ProposalError::Model);
        }
        if !proposal.loss.is_finite() {
            return Err(ProposalError::Loss);
        }
        if proposal.reducers.len() > REDUCERS_MAX {
            return Err(ProposalError::Reducers(proposal.reducers.len()));
        }
        if proposal.group_size < GROUP_SIZE_MIN {
            return Err(ProposalError::GroupSize(proposal.group_size));
        }
        if !proposal.reducers.is_empty() && usize::from(proposal.group_size) < proposal.members.len() {
            return Err(ProposalError::ReducersInGrid);
        }
        let mut is_member = false;
        for member in &proposal.members {
            let peer = PeerKey(member.peer.clone());
            if peer == self.me {
                is_member = member.n_samples == ready.n_samples;
            } else if !self.colleagues.contains_key(&peer) {
                return Err(ProposalError::Stranger);
            }
        }
        if !is_member {
            return Err(ProposalError::NotAMember);
        }
        let members = proposal.members.iter().map(|member| PeerKey(member.peer.clone()));
        let others = members.filter(|member| *member != self.me).collect();
        self.averaging = Some(Averaging { nonce: proposal.nonce, began: now, others });
        self.phase = Phase::Averaging;
        self.own.is_busy = true;
        self.actions.push_back(Action::Average(proposal));
        Ok(())
    }

    /// This peer has a new model, by a step or from others; what it had collected is in it, or counts anew.
    pub fn on_stepped(&mut self, now: Moment, model: ModelVersion) {
        self.own = Standing { model, ready: None, is_closing: false, ..self.own };
        if self.phase != Phase::Following {
            self.phase = Phase::Gathering;
        }
        self.n_failed = 0;
        self.others_until = Moment::ZERO;
        self.advance(now);
    }

    /// This peer has the model that it was to follow to.
    pub fn on_followed(&mut self, now: Moment) {
        if self.own.model == self.followed_from {
            // Whoever said that there is a better one does not have it.
            return self.on_failed(now);
        }
        self.n_strayed = 0;
        self.phase = if self.own.ready.is_some() { Phase::Ready(now) } else { Phase::Gathering };
        self.advance(now);
    }

    /// Nothing came of the averaging, or of the attempt to follow.
    pub fn on_failed(&mut self, now: Moment) {
        match self.phase {
            Phase::Following => self.n_strayed += 1,
            _ => self.n_failed += 1,
        }
        self.hopeless_until = now + STRAGGLERS_REST * self.config.gather;
        self.not_before = now + self.config.retry;
        self.phase = match self.own.ready {
            Some(_) => Phase::Ready(now),
            None => Phase::Gathering,
        };
        self.advance(now);
    }

    /// The averaging gave this peer a mean that is not that of all. Others may have that one by `until` at the latest: a
    /// step without them would be one that they will not have.
    pub fn on_not_whole(&mut self, now: Moment, until: Moment) {
        self.others_until = until;
        self.on_failed(now);
    }

    /// Samples of others that count for the same step.
    #[must_use]
    pub fn n_samples_elsewhere(&self, now: Moment) -> u64 {
        self.companions(now).fold(0, |sum, (_, standing)| sum.saturating_add(n_samples(standing)))
    }

    /// Whether any of the others found that there is enough for a step, and is collecting it; or has collected it, where
    /// there is enough with what is here. That it collects may be over before it is told.
    #[must_use]
    pub fn is_closing_elsewhere(&self, now: Moment) -> bool {
        let here = n_samples(&self.own);
        let is_enough = here.saturating_add(self.n_samples_elsewhere(now)) >= self.config.target_batch_size;
        let has_collected = |standing: &Standing| standing.ready.is_some() && !standing.is_busy && is_enough;
        self.companions(now).any(|(_, standing)| is_collecting(standing) || has_collected(standing))
    }

    fn is_collecting_elsewhere(&self, now: Moment) -> bool {
        self.companions(now).any(|(_, standing)| is_collecting(standing))
    }

    /// Whether no averaging of this epoch failed here: the next one may be in a grid of groups, or have the help of peers
    /// that are not trusted.
    #[must_use]
    pub fn is_first_attempt(&self) -> bool {
        self.n_failed == 0
    }

    /// Everybody else who was heard of lately, whichever model they have.
    pub fn colleagues(&self, now: Moment) -> impl Iterator<Item = (&PeerKey, &Standing)> {
        let silence = self.config.silence;
        let heard = move |colleague: &Colleague| now.saturating_sub(colleague.heard_at) < silence;
        let heard = self.colleagues.iter().filter(move |(_, colleague)| heard(colleague));
        heard.map(|(peer, colleague)| (peer, &colleague.standing))
    }

    /// Time has passed; see [`Self::next_deadline`].
    pub fn on_timeout(&mut self, now: Moment) {
        self.advance(now);
    }

    /// When [`Self::on_timeout`] may have something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let heard = self.colleagues.values().map(|colleague| colleague.heard_at);
        let silent = heard.min().map(|at| at + self.config.silence);
        silent.into_iter().chain(self.wake_at).min()
    }

    /// What to do next, until there is nothing.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Those with the same model, as long as averaging with them is not hopeless.
    fn companions(&self, now: Moment) -> impl Iterator<Item = (&PeerKey, &Standing)> {
        let (model, is_hopeless) = (self.own.model, self.n_failed >= ATTEMPTS_MAX);
        self.colleagues(now).filter(move |(_, standing)| !is_hopeless && standing.model == model)
    }

    fn advance(&mut self, now: Moment) {
        self.make_progress(now);
        self.own.is_busy = matches!(self.phase, Phase::Averaging | Phase::Following);
    }

    fn make_progress(&mut self, now: Moment) {
        self.wake_at = None;
        self.colleagues.retain(|_, colleague| now.saturating_sub(colleague.heard_at) < self.config.silence);
        if self.n_failed >= ATTEMPTS_MAX && now >= self.hopeless_until {
            self.n_failed = 0;
        }
        if self.phase == Phase::Averaging && self.is_overtaken(now) {
            self.follow(now);
        } else if self.phase == Phase::Averaging && self.is_deserted(now) {
            self.actions.push_back(Action::GiveUp);
            return self.on_failed(now);
        }
        if matches!(self.phase, Phase::Proposing | Phase::Averaging | Phase::Following) {
            return;
        }
        (self.averaging, self.overtaken_since) = (None, None);
        if now < self.not_before {
            self.wake_at = Some(self.not_before);
            return;
        }
        if self.follow(now) {
            return;
        }
        if let (Phase::Ready(since), Some(ready)) = (self.phase, self.own.ready) {
            self.gather(now, since, ready);
        }
    }

    /// The best model of the others.
    fn best(&self, now: Moment) -> Option<ModelVersion> {
        self.colleagues(now).map(|(_, standing)| standing.model).max()
    }

    /// Whether others went on long enough ago from the model whose gradients are averaged here: what they ended either
    /// ends here soon, or never.
    fn is_overtaken(&mut self, now: Moment) -> bool {
        if self.best(now).is_none_or(|best| best <= self.own.model) {
            self.overtaken_since = None;
            return false;
        }
        let ends_at = *self.overtaken_since.get_or_insert(now) + self.config.gather / PATIENCE_PART;
        self.wake_at = Some(ends_at);
        now >= ends_at
    }

    /// Whether all who should average with this peer have the same model and do not, as each of them says.
    fn is_deserted(&self, now: Moment) -> bool {
        let Some(Averaging { began, others, .. }) = &self.averaging else { return false };
        let began_by = *began + self.config.gather / PATIENCE_PART;
        let is_elsewhere = |member: &PeerKey| {
            self.colleagues.get(member).is_some_and(|Colleague { standing, heard_at }| {
                standing.model == self.own.model && !standing.is_busy && *heard_at >= began_by
            })
        };
        now >= began_by && !others.is_empty() && others.iter().all(is_elsewhere)
    }

    /// Whether somebody's model is better than this peer's, and asked for.
    fn follow(&mut self, now: Moment) -> bool {
        let best = self.best(now);
        // A model that cannot be had does not keep this peer from its steps: it is tried in between.
        let gives_up = self.n_strayed >= ATTEMPTS_MAX && self.own.ready.is_some();
        let Some(best) = best.filter(|best| *best > self.own.model && !gives_up) else { return false };
        let has_it = |standing: &Standing| standing.model == best;
        let those = self.colleagues(now).filter(|(_, standing)| has_it(standing));
        let those = those.map(|(peer, _)| peer.clone()).collect();
        self.phase = Phase::Following;
        self.followed_from = self.own.model;
        self.actions.push_back(Action::Follow(those));
        true
    }

    fn gather(&mut self, now: Moment, since: Moment, ready: Ready) {
        let is_averaging = self.companions(now).any(|(_, standing)| standing.is_busy);
        if is_averaging && now < self.others_until {
            self.wake_at = Some(self.others_until);
            return;
        }
        let elsewhere = self.n_samples_elsewhere(now);
        let is_enough = ready.n_samples.saturating_add(elsewhere) >= self.config.target_batch_size;
        if !is_enough && !self.is_collecting_elsewhere(now) {
            self.reopen();
            return;
        }
        let is_led = self.is_led(now);
        if is_led && is_idle(&self.own) {
            // Those that have samples step: then they are followed.
            return;
        }
        let n_waits = now.saturating_sub(since).as_nanos() / self.config.gather.as_nanos().max(1);
        let n_waits = u32::try_from(n_waits).unwrap_or(u32::MAX - 1);
        let next = since + self.config.gather.saturating_mul(n_waits + 1);
        self.wake_at = Some(self.wake_at.map_or(next, |at| at.min(next)));
        let is_missing = |standing: &Standing| standing.ready.is_none() || standing.is_busy;
        // Whoever has nothing gets the step afterwards.
        let averages = |standing: &Standing| !(is_led && is_idle(standing));
        let is_whole = !self.companions(now).any(|(_, standing)| averages(standing) && is_missing(standing));
        let expected = self.expected(now);
        if n_waits == 0 && !(is_whole && expected.is_empty()) {
            return;
        }
        let again = now + STRAGGLERS_REST * self.config.gather;
        self.stragglers.extend(expected.into_iter().map(|peer| (peer, again)));
        let mut members: Vec<(PeerKey, Standing)> = self
            .companions(now)
            .filter(|(_, standing)| averages(standing) && !is_missing(standing))
            .map(|(peer, standing)| (peer.clone(), *standing))
            .collect();
        if members.is_empty() {
            // Others that average go on to a model that this peer follows to.
            if self.companions(now).any(|(_, standing)| averages(standing) && standing.is_busy) {
                return;
            }
            if ready.n_samples >= self.config.target_batch_size {
                self.actions.push_back(Action::StepAlone);
                self.phase = Phase::Averaging;
            } else if n_waits > 0 {
                // The others count for the step and do not come to it.
                self.reopen();
            }
            return;
        }
        members.push((self.me.clone(), self.own));
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        if self.leads(n_waits, &members) {
            self.phase = Phase::Proposing;
            self.actions.push_back(Action::Propose { model: self.own.model, members });
        }
    }

    fn reopen(&mut self) {
        self.own.ready = None;
        self.own.is_closing = false;
        self.phase = Phase::Gathering;
        self.actions.push_back(Action::Reopen);
    }

    /// Peers that are one step behind, and will be here soon: they finish the last averaging, or follow. One that was
    /// waited for in vain is not waited for again at once, so it costs others a small part of their time.
    fn expected(&self, now: Moment) -> Vec<PeerKey> {
        let is_behind = |standing: &Standing| standing.model.epoch + 1 == self.own.model.epoch;
        let rests = |peer: &PeerKey| self.stragglers.get(peer).is_some_and(|until| now < *until);
        let expected = self.colleagues(now).filter(|&(peer, standing)| is_behind(standing) && !rests(peer));
        expected.map(|(peer, _)| peer.clone()).collect()
    }

    /// Whether those with samples step by themselves, and the others, of whom there are few, follow them.
    fn is_led(&self, now: Moment) -> bool {
        let all = || self.companions(now).map(|(_, standing)| standing).chain([&self.own]);
        let n_idle = all().filter(|standing| is_idle(standing)).count();
        n_idle <= FOLLOWERS_MAX && all().any(|standing| !is_idle(standing))
    }

    /// Whether it is this peer's turn to propose: the first one's at once, the second one's after one more wait,
    /// and so on.
    fn leads(&self, n_waits: u32, members: &[(PeerKey, Standing)]) -> bool {
        let mut order: Vec<(Sha256Hash, &PeerKey)> =
            members.iter().map(|(peer, _)| (rank(&self.own.model, peer), peer)).collect();
        order.sort_unstable();
        let my_turn = order.iter().position(|(_, peer)| *peer == &self.me);
        my_turn.is_some_and(|turn| turn <= n_waits as usize)
    }
}

/// What a peer has for the step.
fn n_samples(standing: &Standing) -> u64 {
    standing.ready.map_or(standing.n_samples, |ready| ready.n_samples)
}

/// Whether a peer found that there is enough, and waits for what is reported.
fn is_collecting(standing: &Standing) -> bool {
    standing.is_closing && standing.ready.is_none()
}

/// Whether a peer has nothing for the step, and nobody who computes something for it.
fn is_idle(standing: &Standing) -> bool {
    n_samples(standing) == 0 && standing.n_contributors == 0
}

/// Another order of peers for every model.
fn rank(model: &ModelVersion, peer: &PeerKey) -> Sha256Hash {
    Sha256Hash::of(&[model.hash.0.as_slice(), &model.epoch.to_le_bytes(), &peer.0].concat())
}

/// Numbers that can be added up.
fn sane(standing: Standing) -> Standing {
    let speed = |value: f32| if value.is_finite() { value.max(0.0) } else { 0.0 };
    let ready = standing
        .ready
        .map(|ready| Ready { loss: if ready.loss.is_finite() { ready.loss } else { 0.0 }, ..ready });
    Standing {
        ready,
        samples_per_second: speed(standing.samples_per_second),
        download_bytes_per_s: speed(standing.download_bytes_per_s),
        upload_bytes_per_s: speed(standing.upload_bytes_per_s),
        ..standing
    }
}
