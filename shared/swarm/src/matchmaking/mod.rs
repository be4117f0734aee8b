//! Group formation among the aggregators of a run (DeDLOC §3.1, appendix B): when they average, who proposes the
//! group, and which model a peer downloads that fell behind.
//!
//! Every aggregator sends its [`AggregatorStatus`] to every other. The samples of aggregators at the same model are added up. Once
//! they reach the target batch size, each aggregator collects the gradients that its contributors reported. One of those
//! that are ready proposes the group. The order of proposers changes with each epoch; where the first one does not
//! propose, the second one does. A peer that averaged continues with the new model. A peer that was left out sees that
//! others have a newer model, and follows them ([`MatchmakingAction::Follow`]). Of two models, peers follow the one with
//! more samples, so the sides of a partition agree again once it heals. No peer is indispensable: one that knows of no
//! other makes its steps alone.
//!
//! An idle aggregator has no samples and no contributors. Few idle aggregators take no part in averaging: the other
//! aggregators step without them and wait for them afterwards, while they follow. So an idle aggregator delays nobody,
//! and a single busy one needs no averaging. A peer gives up its averaging and follows where other peers have finished
//! it. Where no other member takes part in its averaging, it tries again.
//!
//! Averaging in a grid of groups may leave a peer with a partial mean, while others have the mean of all members. Such a
//! peer makes no step of its own. It waits until the others have finished, and follows ([`Matchmaking::on_partial_mean`]).
//! Where no peer has the mean of all, the next attempt is one group ([`Matchmaking::is_first_attempt`]). The group size
//! follows from how often peers fail ([`FailureRate`]).
//!
//! It never averages, plans parts or moves a model: the driver does.

mod failures;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::matchmaking::{
    AggregatorStatus, GROUP_SIZE_MIN, MEMBERS_MAX, ModelVersion, Proposal, REDUCERS_MAX, Ready,
};

use crate::{Moment, PeerKey};

pub use failures::FailureRate;

/// Failed averagings of one epoch after which a peer steps without the others, and failed attempts to follow after which
/// it makes a step of its own.
const ATTEMPTS_MAX: u32 = 3;
/// A peer at most so many steps behind follows within a moment, and is waited for. With 1, a peer that is met when it is
/// two behind would stay so for as long as the others step as fast as it follows.
const CATCH_UP_EPOCHS_MAX: u64 = 3;
/// A straggler is not waited for again during this many times [`MatchmakingConfig::gather`].
const STRAGGLERS_REST: u32 = 10;
/// Most idle peers that follow instead of averaging. Where there are more, all peers average: then each sends one part of
/// the mean, and no peer sends all of it to everybody.
const FOLLOWERS_MAX: usize = 3;
/// [`MatchmakingConfig::gather`] divided by this: how long an averaging may last after other peers have finished it, and
/// how long members may take to begin it.
const PATIENCE_PART: u32 = 3;

/// Default of [`MatchmakingConfig::silence`].
pub const SILENCE: Duration = Duration::from_secs(10);
/// Default of [`MatchmakingConfig::gather`].
pub const GATHER: Duration = Duration::from_secs(6);
/// Default of [`MatchmakingConfig::retry`].
pub const RETRY: Duration = Duration::from_millis(500);

/// Batch size and timeouts of matchmaking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchmakingConfig {
    /// Samples of one step, over all contributors of all peers.
    pub target_batch_size: u64,
    /// A peer that sends nothing for this long is not counted.
    pub silence: Duration,
    /// How long a peer that has collected waits for those that have not, and then for the proposal of each peer whose
    /// turn it is.
    pub gather: Duration,
    /// Pause after a failed averaging or a failed attempt to follow.
    pub retry: Duration,
}

/// A task for the driver.
#[derive(Debug, Clone, PartialEq)]
pub enum MatchmakingAction {
    /// Plan the parts of a group of these peers, this one among them, send the proposal to the others, and give it to
    /// [`Matchmaking::on_proposal`] as well, or call [`Matchmaking::on_failed`].
    Propose {
        /// The model whose gradients are averaged.
        model: ModelVersion,
        /// In the order of their keys.
        members: Vec<(PeerKey, AggregatorStatus)>,
    },
    /// Average by this proposal, in place of an earlier one. Then call [`Matchmaking::on_stepped`] or
    /// [`Matchmaking::on_failed`].
    Average(Proposal),
    /// Cancel the averaging: no other member takes part in it. No call is expected.
    GiveUp,
    /// Step with the gradient that this peer collected, then call [`Matchmaking::on_stepped`].
    StepAlone,
    /// The collected samples are not enough after all: go on accumulating. The peer is not ready any longer.
    Reopen,
    /// Cancel any averaging. Download the model of these peers, or a newer one. Call [`Matchmaking::on_stepped`] at each
    /// model on the way, and then [`Matchmaking::on_followed`] or [`Matchmaking::on_failed`].
    Follow(Vec<PeerKey>),
}

/// Why a proposal is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// The proposal came too early, too late, or after another one.
    #[error("this peer is not ready to average")]
    NotReady,
    /// The proposal is for another model.
    #[error("this peer has another model")]
    Model,
    /// This peer is not a member, or is one with another number of samples.
    #[error("this peer is not a member with the samples that it has")]
    NotAMember,
    /// The loss is not finite.
    #[error("the loss is not finite")]
    Loss,
    /// This peer has no [`AggregatorStatus`] of a member.
    #[error("a member is not known here")]
    UnknownMember,
    /// Too many reducers.
    #[error("{0} native reducers were proposed, at most {REDUCERS_MAX} are allowed")]
    Reducers(usize),
    /// Groups below [`GROUP_SIZE_MIN`] average nothing.
    #[error("groups of {0} were proposed, a group has at least {GROUP_SIZE_MIN} members")]
    GroupSize(u16),
    /// The means of reducers cannot be compared across groups.
    #[error("native reducers were proposed in a grid of groups, they need a single group")]
    ReducersInGrid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MatchmakingPhase {
    /// Contributors report samples.
    Gathering,
    /// Collected at this time.
    Ready(Moment),
    /// The driver plans a group.
    Proposing,
    Averaging,
    Following,
}

/// The averaging that this peer takes part in.
#[derive(Debug)]
struct Averaging {
    nonce: u64,
    began: Moment,
    /// Members other than this peer.
    others: Vec<PeerKey>,
}

#[derive(Debug, Clone, Copy)]
struct KnownPeer {
    status: AggregatorStatus,
    received_at: Moment,
}

/// One peer's view of the aggregators of a run.
#[derive(Debug)]
pub struct Matchmaking {
    config: MatchmakingConfig,
    me: PeerKey,
    own: AggregatorStatus,
    phase: MatchmakingPhase,
    known_peers: BTreeMap<PeerKey, KnownPeer>,
    /// Peers that did not catch up in time, and until when nobody waits for them again.
    stragglers: BTreeMap<PeerKey, Moment>,
    /// Failed averagings of this epoch.
    n_failed: u32,
    /// After [`ATTEMPTS_MAX`] failures this peer steps without the others until this time.
    backoff_until: Moment,
    /// Model at which the attempt to follow began.
    followed_from: ModelVersion,
    /// Consecutive failed attempts to follow.
    n_sync_failures: u32,
    /// Pause after a failure, in which the statuses of more successful peers arrive.
    not_before: Moment,
    averaging: Option<Averaging>,
    /// Since when others have had a newer model than the one whose gradients are averaged here.
    overtaken_since: Option<Moment>,
    /// This peer waits until then for peers that still average: they may get the mean that it did not get.
    await_others_until: Moment,
    /// When [`Matchmaking::on_timeout`] is due, apart from silent peers.
    wake_at: Option<Moment>,
    actions: VecDeque<MatchmakingAction>,
}

impl Matchmaking {
    /// A peer that knows of no other; `own` is its own status.
    #[must_use]
    pub fn new(config: MatchmakingConfig, me: PeerKey, own: AggregatorStatus) -> Self {
        Self {
            config,
            me,
            own,
            phase: MatchmakingPhase::Gathering,
            known_peers: BTreeMap::new(),
            stragglers: BTreeMap::new(),
            n_failed: 0,
            backoff_until: Moment::ZERO,
            followed_from: own.model,
            n_sync_failures: 0,
            not_before: Moment::ZERO,
            averaging: None,
            overtaken_since: None,
            await_others_until: Moment::ZERO,
            wake_at: None,
            actions: VecDeque::new(),
        }
    }

    /// Its batch size and timeouts.
    #[must_use]
    pub fn config(&self) -> &MatchmakingConfig {
        &self.config
    }

    /// This peer's own status.
    #[must_use]
    pub fn own(&self) -> &AggregatorStatus {
        &self.own
    }

    /// Updates this peer's own status, except for its model and its readiness.
    pub fn on_own_status(&mut self, now: Moment, own: AggregatorStatus) {
        let AggregatorStatus { model, ready, is_busy, .. } = self.own;
        self.own = AggregatorStatus { model, ready, is_busy, ..own };
        self.advance(now);
    }

    /// This peer has collected; its gradient can be averaged.
    pub fn on_ready(&mut self, now: Moment, ready: Ready) {
        self.own.ready = Some(ready);
        self.own.is_closing = true;
        if self.phase == MatchmakingPhase::Gathering {
            self.phase = MatchmakingPhase::Ready(now);
        }
        self.advance(now);
    }

    /// Another peer sent its status.
    pub fn on_status(&mut self, now: Moment, peer: PeerKey, status: AggregatorStatus) {
        if peer != self.me
            && (self.known_peers.len() < MEMBERS_MAX - 1 || self.known_peers.contains_key(&peer))
        {
            self.known_peers.insert(peer, KnownPeer { status: sanitized(status), received_at: now });
            self.advance(now);
        }
    }

    /// Another peer is disconnected.
    pub fn on_gone(&mut self, now: Moment, peer: &PeerKey) {
        self.known_peers.remove(peer);
        self.stragglers.remove(peer);
        self.advance(now);
    }

    /// A peer proposes a group, possibly this peer itself. Of two concurrent proposals all members take the one with the
    /// smaller nonce; otherwise neither group would be complete.
    ///
    /// # Errors
    /// See [`ProposalError`]; the state is unchanged then.
    pub fn on_proposal(&mut self, now: Moment, proposal: Proposal) -> Result<(), ProposalError> {
        let can_begin = match &self.averaging {
            Some(Averaging { nonce, began, .. }) if self.phase == MatchmakingPhase::Averaging => {
                proposal.nonce < *nonce && now < *began + self.config.gather / PATIENCE_PART
            }
            _ => matches!(self.phase, MatchmakingPhase::Ready(_) | MatchmakingPhase::Proposing),
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
            } else if !self.known_peers.contains_key(&peer) {
                return Err(ProposalError::UnknownMember);
            }
        }
        if !is_member {
            return Err(ProposalError::NotAMember);
        }
        let members = proposal.members.iter().map(|member| PeerKey(member.peer.clone()));
        let others = members.filter(|member| *member != self.me).collect();
        self.averaging = Some(Averaging { nonce: proposal.nonce, began: now, others });
        self.phase = MatchmakingPhase::Averaging;
        self.own.is_busy = true;
        self.actions.push_back(MatchmakingAction::Average(proposal));
        Ok(())
    }

    /// This peer has a new model, by a step or from others. Its collected samples are in it, or count for the next step.
    pub fn on_stepped(&mut self, now: Moment, model: ModelVersion) {
        self.own = AggregatorStatus { model, ready: None, is_closing: false, ..self.own };
        if self.phase != MatchmakingPhase::Following {
            self.phase = MatchmakingPhase::Gathering;
        }
        self.n_failed = 0;
        self.await_others_until = Moment::ZERO;
        self.advance(now);
    }

    /// This peer has downloaded the model that it was to follow.
    pub fn on_followed(&mut self, now: Moment) {
        if self.own.model == self.followed_from {
            // The peer that announced a newer model does not have it.
            return self.on_failed(now);
        }
        self.n_sync_failures = 0;
        self.phase =
            if self.own.ready.is_some() { MatchmakingPhase::Ready(now) } else { MatchmakingPhase::Gathering };
        self.advance(now);
    }

    /// The averaging, or the attempt to follow, failed.
    pub fn on_failed(&mut self, now: Moment) {
        match self.phase {
            MatchmakingPhase::Following => self.n_sync_failures += 1,
            _ => self.n_failed += 1,
        }
        self.backoff_until = now + STRAGGLERS_REST * self.config.gather;
        self.not_before = now + self.config.retry;
        self.phase = match self.own.ready {
            Some(_) => MatchmakingPhase::Ready(now),
            None => MatchmakingPhase::Gathering,
        };
        self.advance(now);
    }

    /// The averaging gave this peer a partial mean. Other members may get the mean of all by `until`; a step with the
    /// partial mean would diverge from theirs.
    pub fn on_partial_mean(&mut self, now: Moment, until: Moment) {
        self.await_others_until = until;
        self.on_failed(now);
    }

    /// Samples that other aggregators have for the same step.
    #[must_use]
    pub fn n_samples_elsewhere(&self, now: Moment) -> u64 {
        self.peers_at_same_model(now).fold(0, |sum, (_, status)| sum.saturating_add(n_samples(status)))
    }

    /// Whether another aggregator collects for this step, or has collected and the samples here complete the batch.
    /// Collecting may be over before this peer is told of it.
    #[must_use]
    pub fn is_closing_elsewhere(&self, now: Moment) -> bool {
        let here = n_samples(&self.own);
        let is_enough = here.saturating_add(self.n_samples_elsewhere(now)) >= self.config.target_batch_size;
        let has_collected =
            |status: &AggregatorStatus| status.ready.is_some() && !status.is_busy && is_enough;
        self.peers_at_same_model(now).any(|(_, status)| is_collecting(status) || has_collected(status))
    }

    fn is_collecting_elsewhere(&self, now: Moment) -> bool {
        self.peers_at_same_model(now).any(|(_, status)| is_collecting(status))
    }

    /// Whether no averaging of this epoch failed here. Only the first attempt may use a grid of groups or untrusted
    /// reducers.
    #[must_use]
    pub fn is_first_attempt(&self) -> bool {
        self.n_failed == 0
    }

    /// Aggregators whose status is recent, at any model.
    pub fn known_peers(&self, now: Moment) -> impl Iterator<Item = (&PeerKey, &AggregatorStatus)> {
        let silence = self.config.silence;
        let is_recent = move |known: &KnownPeer| now.saturating_sub(known.received_at) < silence;
        let recent = self.known_peers.iter().filter(move |(_, known)| is_recent(known));
        recent.map(|(peer, known)| (peer, &known.status))
    }

    /// Time has passed; see [`Self::next_deadline`].
    pub fn on_timeout(&mut self, now: Moment) {
        self.advance(now);
    }

    /// When [`Self::on_timeout`] may have something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let received = self.known_peers.values().map(|known| known.received_at);
        let silent = received.min().map(|at| at + self.config.silence);
        silent.into_iter().chain(self.wake_at).min()
    }

    /// The next task; `None` when there is none.
    pub fn poll_action(&mut self) -> Option<MatchmakingAction> {
        self.actions.pop_front()
    }

    /// Aggregators at this peer's model; none while it steps without the others.
    fn peers_at_same_model(&self, now: Moment) -> impl Iterator<Item = (&PeerKey, &AggregatorStatus)> {
        let (model, steps_alone) = (self.own.model, self.n_failed >= ATTEMPTS_MAX);
        self.known_peers(now).filter(move |(_, status)| !steps_alone && status.model == model)
    }

    fn advance(&mut self, now: Moment) {
        self.make_progress(now);
        self.own.is_busy = matches!(self.phase, MatchmakingPhase::Averaging | MatchmakingPhase::Following);
    }

    fn make_progress(&mut self, now: Moment) {
        self.wake_at = None;
        self.known_peers.retain(|_, known| now.saturating_sub(known.received_at) < self.config.silence);
        if self.n_failed >= ATTEMPTS_MAX && now >= self.backoff_until {
            self.n_failed = 0;
        }
        if self.phase == MatchmakingPhase::Averaging && self.is_overtaken(now) {
            self.follow(now);
        } else if self.phase == MatchmakingPhase::Averaging && self.is_abandoned(now) {
            self.actions.push_back(MatchmakingAction::GiveUp);
            return self.on_failed(now);
        }
        if matches!(
            self.phase,
            MatchmakingPhase::Proposing | MatchmakingPhase::Averaging | MatchmakingPhase::Following
        ) {
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
        if let (MatchmakingPhase::Ready(since), Some(ready)) = (self.phase, self.own.ready) {
            self.gather(now, since, ready);
        }
    }

    /// The best model of the others.
    fn best(&self, now: Moment) -> Option<ModelVersion> {
        self.known_peers(now).map(|(_, status)| status.model).max()
    }

    /// Whether others have had a newer model for so long that the averaging here will not finish any more.
    fn is_overtaken(&mut self, now: Moment) -> bool {
        if self.best(now).is_none_or(|best| best <= self.own.model) {
            self.overtaken_since = None;
            return false;
        }
        let ends_at = *self.overtaken_since.get_or_insert(now) + self.config.gather / PATIENCE_PART;
        self.wake_at = Some(ends_at);
        now >= ends_at
    }

    /// Whether all other members are at the same model and say that they do not average.
    fn is_abandoned(&self, now: Moment) -> bool {
        let Some(Averaging { began, others, .. }) = &self.averaging else { return false };
        let began_by = *began + self.config.gather / PATIENCE_PART;
        let is_elsewhere = |member: &PeerKey| {
            self.known_peers.get(member).is_some_and(|KnownPeer { status, received_at }| {
                status.model == self.own.model && !status.is_busy && *received_at >= began_by
            })
        };
        now >= began_by && !others.is_empty() && others.iter().all(is_elsewhere)
    }

    /// Follows the best model of the others if it is newer than this peer's. Returns whether it does.
    fn follow(&mut self, now: Moment) -> bool {
        let best = self.best(now);
        // A model that no peer delivers does not block this peer's own steps.
        let gives_up = self.n_sync_failures >= ATTEMPTS_MAX && self.own.ready.is_some();
        let Some(best) = best.filter(|best| *best > self.own.model && !gives_up) else { return false };
        let has_it = |status: &AggregatorStatus| status.model == best;
        let donors = self.known_peers(now).filter(|(_, status)| has_it(status));
        let donors = donors.map(|(peer, _)| peer.clone()).collect();
        self.phase = MatchmakingPhase::Following;
        self.followed_from = self.own.model;
        self.actions.push_back(MatchmakingAction::Follow(donors));
        true
    }

    fn gather(&mut self, now: Moment, since: Moment, ready: Ready) {
        let is_averaging = self.peers_at_same_model(now).any(|(_, status)| status.is_busy);
        if is_averaging && now < self.await_others_until {
            self.wake_at = Some(self.await_others_until);
            return;
        }
        let elsewhere = self.n_samples_elsewhere(now);
        let is_enough = ready.n_samples.saturating_add(elsewhere) >= self.config.target_batch_size;
        if !is_enough && !self.is_collecting_elsewhere(now) {
            self.reopen();
            return;
        }
        let idle_follow = self.idle_peers_follow(now);
        if idle_follow && is_idle(&self.own) {
            // The peers with samples step; this peer follows them.
            return;
        }
        let n_waits = now.saturating_sub(since).as_nanos() / self.config.gather.as_nanos().max(1);
        let n_waits = u32::try_from(n_waits).unwrap_or(u32::MAX - 1);
        let next = since + self.config.gather.saturating_mul(n_waits + 1);
        self.wake_at = Some(self.wake_at.map_or(next, |at| at.min(next)));
        let is_missing = |status: &AggregatorStatus| status.ready.is_none() || status.is_busy;
        // Idle peers get the step afterwards.
        let averages = |status: &AggregatorStatus| !(idle_follow && is_idle(status));
        let is_whole =
            !self.peers_at_same_model(now).any(|(_, status)| averages(status) && is_missing(status));
        let expected = self.expected(now);
        if n_waits == 0 && !(is_whole && expected.is_empty()) {
            return;
        }
        let again = now + STRAGGLERS_REST * self.config.gather;
        self.stragglers.extend(expected.into_iter().map(|peer| (peer, again)));
        let mut members: Vec<(PeerKey, AggregatorStatus)> = self
            .peers_at_same_model(now)
            .filter(|(_, status)| averages(status) && !is_missing(status))
            .map(|(peer, status)| (peer.clone(), *status))
            .collect();
        if members.is_empty() {
            // The others average already, and this peer will follow them.
            if self.peers_at_same_model(now).any(|(_, status)| averages(status) && status.is_busy) {
                return;
            }
            if ready.n_samples >= self.config.target_batch_size {
                self.actions.push_back(MatchmakingAction::StepAlone);
                self.phase = MatchmakingPhase::Averaging;
            } else if n_waits > 0 {
                // The samples of the others are counted, but they do not join.
                self.reopen();
            }
            return;
        }
        members.push((self.me.clone(), self.own));
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        if self.is_proposer(n_waits, &members) {
            self.phase = MatchmakingPhase::Proposing;
            self.actions.push_back(MatchmakingAction::Propose { model: self.own.model, members });
        }
    }

    fn reopen(&mut self) {
        self.own.ready = None;
        self.own.is_closing = false;
        self.phase = MatchmakingPhase::Gathering;
        self.actions.push_back(MatchmakingAction::Reopen);
    }

    /// Peers a few steps behind, which are about to catch up: they finish the last averaging, or follow. A straggler is not
    /// among them, so that it delays the others seldom.
    fn expected(&self, now: Moment) -> Vec<PeerKey> {
        let is_behind = |status: &AggregatorStatus| {
            let n_behind = self.own.model.epoch.saturating_sub(status.model.epoch);
            (1..=CATCH_UP_EPOCHS_MAX).contains(&n_behind)
        };
        let rests = |peer: &PeerKey| self.stragglers.get(peer).is_some_and(|until| now < *until);
        let expected = self.known_peers(now).filter(|&(peer, status)| is_behind(status) && !rests(peer));
        expected.map(|(peer, _)| peer.clone()).collect()
    }

    /// Whether the peers with samples step without the idle ones, which are few.
    fn idle_peers_follow(&self, now: Moment) -> bool {
        let all = || self.peers_at_same_model(now).map(|(_, status)| status).chain([&self.own]);
        let n_idle = all().filter(|status| is_idle(status)).count();
        n_idle <= FOLLOWERS_MAX && all().any(|status| !is_idle(status))
    }

    /// Whether it is this peer's turn to propose: the first one's at once, the second one's after one more wait,
    /// and so on.
    fn is_proposer(&self, n_waits: u32, members: &[(PeerKey, AggregatorStatus)]) -> bool {
        let mut order: Vec<(Sha256Hash, &PeerKey)> =
            members.iter().map(|(peer, _)| (rank(&self.own.model, peer), peer)).collect();
        order.sort_unstable();
        let my_turn = order.iter().position(|(_, peer)| *peer == &self.me);
        my_turn.is_some_and(|turn| turn <= n_waits as usize)
    }
}

/// Samples of a peer for the step.
fn n_samples(status: &AggregatorStatus) -> u64 {
    status.ready.map_or(status.n_samples, |ready| ready.n_samples)
}

/// Whether a peer waits for the gradients that its contributors reported.
fn is_collecting(status: &AggregatorStatus) -> bool {
    status.is_closing && status.ready.is_none()
}

/// Whether a peer has neither samples nor contributors.
fn is_idle(status: &AggregatorStatus) -> bool {
    n_samples(status) == 0 && status.n_contributors == 0
}

/// Position of a peer among the proposers; a new order for every model.
fn rank(model: &ModelVersion, peer: &PeerKey) -> Sha256Hash {
    Sha256Hash::of(&[model.hash.0.as_slice(), &model.epoch.to_le_bytes(), &peer.0].concat())
}

/// Replaces numbers that are not finite or negative.
fn sanitized(status: AggregatorStatus) -> AggregatorStatus {
    let speed = |value: f32| if value.is_finite() { value.max(0.0) } else { 0.0 };
    let ready = status
        .ready
        .map(|ready| Ready { loss: if ready.loss.is_finite() { ready.loss } else { 0.0 }, ..ready });
    AggregatorStatus {
        ready,
        samples_per_second: speed(status.samples_per_second),
        download_bytes_per_s: speed(status.download_bytes_per_s),
        upload_bytes_per_s: speed(status.upload_bytes_per_s),
        ..status
    }
}
