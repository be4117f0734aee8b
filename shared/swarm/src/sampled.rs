//! A run without a server: each round a few peers train, and fewer average (MoDEST §3, algorithms 1 to 4).
//!
//! A round `k` has a sample of `s` trainers. They train what the aggregators of `k` push to them, and push the results to the
//! first `a` aggregators of the sample of `k + 1`. Each of those averages what came as soon as a fraction `sf` of the sample has
//! pushed, and pushes the average to the sample of `k + 1`. Nobody tells who is in a sample: each peer computes it from what it
//! knows ([`Registry`]), and asks the candidates whether they are live.
//!
//! What differs from the paper:
//!
//! - A peer says what it does: one without data of its own does not train. One that can be dialled aggregates. One that others reach
//!   through a relay alone aggregates where, of those that can be dialled, none answers: it is asked after them, and believed by those
//!   who asked them as well ([`relayed`]).
//! - A model is offered and then pulled, so that a stale one or a second average of a round costs no traffic.
//! - A peer tells of itself alone: it signs that it joined or left, and proves its activity by tokens. The receiver of `joined`
//!   does not estimate the round for it.
//! - Where a whole pass over the candidates finds fewer than `s`, `sf * s` of them are enough, as they are for aggregating; of
//!   the aggregators, one.
//! - A peer that is told of a round that too few peers have been near, or that its own time does not allow, ignores it
//!   ([`SampledSettings::round_leap`]).
//! - A model is taken only of a peer that can be in the sample that makes it, by what the receiver knows.
//! - Where aggregators bound what dishonest trainers do, trainers compare the averages of several aggregators ([`comparison`]), and
//!   take none that is far from all that they know ([`continuity`]).
//! - A peer that was silent for too long proves that it is active by another token, and signs another joined event only where its
//!   tokens are at their end.
//! - A peer that nobody can dial calls on aggregators now and then, which reach it on the connections that it made.
//! - A busy receiver says so, and is offered the model again: the sender that it pulls from may die, or it asks others first. One
//!   that was not reached is offered it once more: a connection may break, and with `sf` = 1 the round is over without that peer.
//! - A peer that has joined asks for more as long as it is told of members that it did not know: many join at once, and a view has
//!   room for some hundreds.
//! - An aggregator to which half of `sf * s` models came in the time of four rounds averages those: the sample may have been split.
//! - A round in which too many die is not the last: after a time of silence, with nobody known that is further, a peer goes on
//!   with the newest average that it has.
//!
//! Where models go among neighbours ([`ModelExchange`]), there are no samples: all train each round, and average with those whose models
//! come ([`neighbors`]). Registry, activity, offers and views are the same.
//!
//! A run that is not open has an authority, which signs who takes part (the paper assumes that somebody does). Each event carries the
//! access token of its peer; who has none, or one that has ended or was taken back, is in no registry, and is told of nobody.
//!
//! What is promised where keys cost nothing, and any number of them belongs to one attacker:
//!
//! - A peer that is in a run believes no round that is more than a leap beyond what time allows since it was active itself: four
//!   rounds in the mean time of one of late, or in that of the estimate, and never more than sixteen in that of the estimate, which
//!   it does as long as it was in one round at most, after silence, and where the run is a window ahead of it. So no number of
//!   peers moves it to the end of all rounds, or makes it sign such a round. A newcomer believes those it was introduced to, a window
//!   beyond where they were active.
//! - Within that, an attacker whose keys fill a sample leads the run as any sample does: it may be faster than honest peers, and
//!   its models count as theirs do.
//! - No peer that has answered is forgotten for one that only says that it exists, and strangers keep neither places for models from
//!   members nor a still run from going on.

mod aggregation;
mod calling;
mod collected;
mod comparison;
mod continuity;
#[cfg(test)]
mod fuzz;
mod joining;
mod limit;
mod neighbors;
mod pull;
mod registry;
mod relayed;
mod sampling;
#[cfg(test)]
mod tests;
mod topology;
mod training;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{AccessToken, Authority, KeyPair, PublicKey, TokenId, UnixTime};
use barnraise_protocol::run::{ModelAverage, ModelExchange, Sampled};
use barnraise_protocol::sampled::{
    ActivityProof, ActivityToken, Membership, ModelSketch, OfferTurn, PeerPrefix, PushEnd, ROUND_MAX,
    SampledRoles, SampledTask, View, ViewDigest,
};

use self::aggregation::Aggregation;
use self::calling::Calling;
pub use self::collected::CollectedModels;
use self::joining::Joining;
use self::limit::{RoundLimit, RoundPace};
use self::neighbors::Neighbors;
pub use self::neighbors::neighbor_models_max;
use self::pull::Pull;
pub use self::registry::Registry;
use self::relayed::Dialled;
use self::sampling::Sampling;
use self::training::{REPEATS_MAX, Training};
use crate::Moment;
use crate::random::SplitMix64;

/// See [`SampledPeer::some_rounds`].
const ROUNDS_WAITED: u32 = 4;

/// The parameters of a model, `[n_parameters]`, finite.
pub type SampledModel = Arc<[f32]>;

/// The parameters of the algorithm (MoDEST table 2), the same for all peers of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampledSettings {
    /// Trainers of a sample, `s`, above 0.
    pub sample_size: usize,
    /// Aggregators of a sample, `a`, 1 to `s`.
    pub n_aggregators: usize,
    /// Fraction of a sample whose models an aggregator waits for, `sf`, above 0.5 and at most 1.
    pub success_fraction: f32,
    /// A candidate that is silent for so long is not live, `Δt`.
    pub ping_timeout: Duration,
    /// Rounds after which an inactive peer is no candidate, `Δk`, at least 2.
    pub activity_window: u64,
    /// How long a round takes, until that was measured.
    pub round_estimate: Duration,
    /// How aggregators average. Where that bounds what dishonest trainers do, trainers compare what several aggregators offer.
    pub average: ModelAverage,
    /// Between whom models go. Where that is among neighbours, there are no samples.
    pub exchange: ModelExchange,
}

impl SampledSettings {
    /// As a run's description has them.
    pub fn of(scheme: &Sampled) -> Self {
        Self {
            sample_size: scheme.sample_size.into(),
            n_aggregators: scheme.n_aggregators.into(),
            success_fraction: scheme.success_fraction,
            ping_timeout: Duration::from_millis(scheme.ping_timeout_ms.into()),
            activity_window: scheme.activity_window.into(),
            round_estimate: Duration::from_millis(scheme.round_estimate_ms.into()),
            average: scheme.average,
            exchange: scheme.exchange,
        }
    }

    /// Whether dishonest aggregators are reckoned with.
    fn is_robust(&self) -> bool {
        self.average == ModelAverage::CenteredClip
    }

    /// Models that an aggregator waits for: `sf * s`, at least 1.
    pub fn models_wanted(&self) -> usize {
        let wanted = (f64::from(self.success_fraction) * self.sample_size as f64 - 1e-6).ceil();
        (wanted as usize).clamp(1, self.sample_size)
    }

    /// Rounds that the run may be further than those that [`Self::models_wanted`] peers have been active in. Rounds are lost where
    /// many peers die at once; a peer that lies about the round moves nobody out of the window of activity.
    pub fn round_leap(&self) -> u64 {
        (self.activity_window / 2).max(2)
    }
}

/// What this peer is, and where it is found.
#[derive(Debug, Clone)]
pub struct SampledIdentity {
    /// Signs what it tells of itself.
    pub key: KeyPair,
    /// Hash of the run's description.
    pub run: Sha256Hash,
    /// The last event's counter that this peer has ever signed in the run, or a later one; 0 for a new one.
    pub counter: u64,
    /// What it does for the run.
    pub roles: SampledRoles,
    /// Where others can dial it: binary multiaddresses.
    pub addresses: Vec<Vec<u8>>,
    /// Seed of its choices, another one for each start.
    pub seed: u64,
}

/// What the driver is to do. Each has its answer.
#[derive(Debug, Clone, PartialEq)]
pub enum SampledAction {
    /// Ask whether the peer is live: [`SampledPeer::on_pong`] or [`SampledPeer::on_unreachable`].
    Ping {
        /// The candidate.
        to: PublicKey,
        /// The round that is sampled.
        round: u64,
    },
    /// Tell the peer a view: [`SampledPeer::on_met`] or [`SampledPeer::on_not_met`]. The counter of this peer has to be on the
    /// disk before.
    Meet {
        /// An acquaintance.
        to: PublicKey,
        /// What it is told.
        view: View,
        /// What this peer knows.
        digest: ViewDigest,
    },
    /// Train the model on local data: [`SampledPeer::on_trained`] or [`SampledPeer::on_training_failed`].
    Train {
        /// The round.
        round: u64,
        /// Where it begins.
        model: SampledModel,
    },
    /// End the training in progress: it is overtaken. No answer.
    CancelTraining,
    /// Keep a model of a round for its average, and drop those of earlier rounds ([`CollectedModels`]). No answer.
    Collect {
        /// The round.
        round: u64,
        /// Of one of its trainers.
        model: SampledModel,
    },
    /// Average the models of a round that were collected, all with the same weight: [`SampledPeer::on_averaged`].
    Average {
        /// The round.
        round: u64,
    },
    /// Tell the sender of a wanted model, after its view, what comes next. Where that is a comparison, its sketch is to come:
    /// [`SampledPeer::on_sketch`]. Then there is another turn. No answer otherwise.
    Turn {
        /// The sender.
        to: PublicKey,
        /// What the model is for.
        task: SampledTask,
        /// What comes next.
        turn: OfferTurn,
    },
    /// Offer the peer a model: [`SampledPeer::on_pushed`]. With the digest of a peer that wants it,
    /// [`SampledPeer::view_beyond`] is what goes before the model.
    Push {
        /// A member of the sample.
        to: PublicKey,
        /// What it is to do.
        task: SampledTask,
        /// With this model.
        model: SampledModel,
    },
}

/// Why an offered model is not pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferRefusal {
    /// The task is overtaken, done, or not this peer's.
    Declined,
    /// The models that are pulled now are enough, unless one of them does not come; or it is not known yet whether another one is to send
    /// it.
    Busy,
}

/// How a push ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushOutcome {
    /// The peer has the model.
    Delivered,
    /// It has one already, or is further.
    Declined,
    /// It has none, and waits for those that others send: it is offered again, as one of them may die.
    Busy,
    /// It was not reached: it is offered once more.
    Failed,
}

impl From<PushEnd> for PushOutcome {
    fn from(end: PushEnd) -> Self {
        match end {
            PushEnd::Delivered => Self::Delivered,
            PushEnd::Declined => Self::Declined,
            PushEnd::Busy => Self::Busy,
        }
    }
}

/// One peer of a run in the sampled scheme. After each `on_*` the driver drains [`Self::poll_action`].
///
/// It never draws entropy or reads a clock, and computes nothing but sketches and distances: the driver trains and averages.
#[derive(Debug)]
pub struct SampledPeer {
    settings: SampledSettings,
    identity: SampledIdentity,
    /// Its access, in a run that is not open.
    approval: Option<Box<AccessToken>>,
    peer: PublicKey,
    random: SplitMix64,
    registry: Registry,
    joining: Joining,
    calling: Calling,
    training: Training,
    aggregation: Aggregation,
    neighbors: Neighbors,
    /// The newest average that came, or was made here, with its round.
    newest: Option<(u64, SampledModel)>,
    /// Whose view is under way, and until when no other one is asked for.
    view_from: Option<(PublicKey, Moment)>,
    /// When another peer came that takes this one for live.
    heard_at: Moment,
    /// Those that can be dialled, asked whether they are live.
    dialled: Dialled,
    /// The latest round for which one of them asked.
    pinged_round: u64,
    /// Round in which this peer was active last.
    active: Option<u64>,
    /// Measures how long a round takes.
    pace: RoundPace,
    /// How far the run can be by this peer's clock.
    limit: RoundLimit,
    /// Aggregators of a round whose averages are waited for, asked whether they are live.
    compared: Option<Sampling>,
    /// Seeds of comparisons so far.
    n_seeds: u64,
    actions: VecDeque<SampledAction>,
}

impl SampledPeer {
    /// A peer that knows nobody and takes no part yet.
    pub fn new(settings: SampledSettings, identity: SampledIdentity) -> Self {
        Self {
            peer: identity.key.public(),
            random: SplitMix64::new(identity.seed),
            registry: Registry::new(identity.run).of_peer(identity.key.public()),
            settings,
            identity,
            approval: None,
            joining: Joining::default(),
            calling: Calling::default(),
            training: Training::default(),
            aggregation: Aggregation::default(),
            neighbors: Neighbors::default(),
            newest: None,
            view_from: None,
            heard_at: Moment::ZERO,
            dialled: Dialled::default(),
            pinged_round: 0,
            active: None,
            pace: RoundPace::default(),
            limit: RoundLimit::default(),
            compared: None,
            n_seeds: 0,
            actions: VecDeque::new(),
        }
    }

    /// Before it joins: it has the model of a round, 0 for the first one. Unless it finds peers that are further, it begins the
    /// next round as an aggregator, once there are enough candidates.
    #[must_use]
    pub fn with_model(mut self, round: u64, model: SampledModel) -> Self {
        self.newest = Some((round, model));
        self.joining.begins();
        self
    }

    /// Before all else: the run is not open. Those alone take part whom its authority lets in. [`Self::on_approval`] is to come before
    /// this peer joins.
    #[must_use]
    pub fn by_approval(mut self, authority: Authority, now: UnixTime) -> Self {
        self.registry = self.registry.by_approval(authority, now);
        self
    }

    /// Before it joins: what an earlier process of it knew. Its own last event is in it, so that its counter goes on.
    #[must_use]
    pub fn with_view(mut self, view: &View) -> Self {
        self.registry.merge(view);
        self
    }

    /// All that it knows, as far as it fits into a view.
    pub fn view(&self) -> View {
        self.registry.view(&self.peer)
    }

    /// This peer's access, or that it lasts longer: others are told soon. In an open run there is none.
    pub fn on_approval(&mut self, now: Moment, approval: AccessToken) {
        if self.approval.as_deref() != Some(&approval) {
            self.approval = Some(Box::new(approval));
            self.on_timeout(now);
        }
    }

    /// The time of day: the access of others ends by it.
    pub fn on_clock(&mut self, now: UnixTime) {
        self.registry.on_clock(now);
    }

    /// The authority has taken back these tokens.
    pub fn on_revoked(&mut self, tokens: &[TokenId]) {
        self.registry.on_revoked(tokens);
    }

    /// A candidate is asked whether it is live for a round. Returns whether it answers.
    ///
    /// That others know this peer is shown by those alone that it knows, and by a round that it was not in yet and was not asked for
    /// before: neither a stranger's pings nor a member's repeated ones keep it from going on with a run that is still.
    pub fn on_ping(&mut self, now: Moment, from: PublicKey, round: u64) -> bool {
        self.on_time(now);
        let known = self.active.unwrap_or_default().max(self.pinged_round);
        let is_later = round > known && round <= self.round_offered_max();
        if is_later && self.registry.activity_of(&from).is_some() {
            (self.heard_at, self.pinged_round) = (now, round);
        }
        // A neighbour asks whether it is to wait.
        self.joining.is_member() && (!self.is_among_neighbors() || self.will_send(now, &from, round))
    }

    /// A candidate has answered.
    pub fn on_pong(&mut self, now: Moment, from: PublicKey, round: u64) {
        self.registry.on_heard(&from);
        for sampling in self.samplings() {
            if sampling.round == round {
                sampling.on_pong(now, from);
            }
        }
        self.go_on(now);
    }

    /// A candidate could not be reached.
    pub fn on_unreachable(&mut self, now: Moment, peer: PublicKey, round: u64) {
        for sampling in self.samplings() {
            if sampling.round == round {
                sampling.on_unreachable(now, peer);
            }
        }
        self.go_on(now);
    }

    /// A model is offered. Returns the digest of what this peer knows where it wants the model. Then come [`Self::on_view_before`]
    /// and [`Self::on_model`], or [`Self::on_transfer_failed`].
    ///
    /// The sender proves that it was active after that. One that can be in the sample by what is known already has the places of
    /// the sample; others share a few, until they have proven it.
    ///
    /// Where the view of another sender is under way, this peer asks for what the sender tells of itself alone: the members of a
    /// sample know much the same, and offer at the same time. A sender that does not send its view in time keeps out no other one,
    /// and one that is not expected none at all.
    ///
    /// # Errors
    /// It does not want the model, or not now.
    pub fn on_offer(
        &mut self,
        now: Moment,
        from: PublicKey,
        task: SampledTask,
    ) -> Result<ViewDigest, OfferRefusal> {
        self.on_time(now);
        let (is_mine, is_new) = match task {
            SampledTask::Train { .. } if self.is_among_neighbors() => (false, false),
            SampledTask::Aggregate { round } if self.is_among_neighbors() => {
                (true, self.is_missing(from, round))
            }
            SampledTask::Train { round } => (self.identity.roles.trains, round > self.training.round()),
            SampledTask::Aggregate { round } => {
                (self.identity.roles.is_aggregator(), self.aggregation.is_open_to(round, from))
            }
        };
        if !self.joining.is_member() || !is_mine || !is_new || task.round() > self.round_offered_max() {
            return Err(OfferRefusal::Declined);
        }
        let is_known = from == self.peer || self.registry.activity_of(&from).is_some();
        let mut is_expected = is_known && self.is_in_sample(from, task);
        if is_expected && !self.is_believed(now, from, task) {
            if !self.is_far(task.round()) {
                return Err(OfferRefusal::Busy);
            }
            // Its view may show that the run is there.
            is_expected = false;
        }
        is_expected &= !self.is_ahead(task.round());
        let pull = Pull { round: task.round(), since: now, is_expected };
        let patience = self.patience();
        let has_place = match task {
            // Its own average needs no proof.
            SampledTask::Train { .. } if self.settings.is_robust() && from == self.peer => true,
            SampledTask::Train { .. } => {
                let n_compared = self.is_compared(from, task).then_some(2 * self.settings.n_aggregators);
                self.training.pull(from, pull, (patience, n_compared))
            }
            SampledTask::Aggregate { .. } if self.is_among_neighbors() => self.pull_of_neighbor(from, pull),
            SampledTask::Aggregate { .. } => self.aggregation.pull(from, pull, &self.settings),
        };
        if !has_place {
            return Err(OfferRefusal::Busy);
        }
        let is_told = self.registry.is_approved(&from);
        if !is_told || self.view_from.is_some_and(|(_, until)| now < until) {
            return Ok(ViewDigest::of_everything());
        }
        if is_expected {
            self.view_from = Some((from, now + patience));
        }
        Ok(self.digest())
    }

    /// The view before a wanted model. Returns whether the sender has proven that it can have the model: only then its turn comes
    /// ([`SampledAction::Turn`]), and otherwise [`Self::on_transfer_failed`].
    #[must_use]
    pub fn on_view_before(&mut self, now: Moment, from: PublicKey, task: SampledTask, view: &View) -> bool {
        self.on_time(now);
        self.on_view(from, view);
        let is_plausible = self.joining.is_member()
            && self.is_plausible(from, task)
            && self.is_believed(now, from, task)
            && !self.is_ahead(task.round());
        if is_plausible {
            match task {
                SampledTask::Train { .. } => self.training.on_proven(from),
                SampledTask::Aggregate { .. } => {
                    self.aggregation.on_proven(from);
                    self.neighbors.on_proven(from);
                }
            }
            self.take_turn(now, from, task);
        }
        is_plausible
    }

    /// The sketch of a model that is compared.
    pub fn on_sketch(&mut self, now: Moment, from: PublicKey, task: SampledTask, sketch: ModelSketch) {
        if let Some(turn) = self.training.comparison.on_sketch(from, task.round(), sketch) {
            self.actions.push_back(SampledAction::Turn { to: from, task, turn });
        }
        self.go_on(now);
    }

    /// A view.
    fn on_view(&mut self, from: PublicKey, view: &View) {
        self.view_from.take_if(|(sender, _)| *sender == from);
        if !self.registry.is_approved(&from) {
            self.registry.merge_own(&from, view);
        }
        if self.registry.is_approved(&from) {
            self.registry.merge(view);
        }
    }

    /// A wanted model came (algorithm 4, `train` and `aggregate`). It is left aside where its sender was not active in the round
    /// before, by what it proves itself, where it cannot be in the sample, or where too few peers have been near that round.
    pub fn on_model(&mut self, now: Moment, from: PublicKey, task: SampledTask, model: SampledModel) {
        self.on_time(now);
        let is_chosen = self.is_chosen(now, from, task, &model);
        self.on_transfer_ended(from, task);
        if !self.joining.is_member() || !self.is_plausible(from, task) || !is_chosen {
            return self.go_on(now);
        }
        self.heard_at = now;
        self.registry.on_heard(&from);
        self.joining.on_progress(task.round(), self.settings.activity_window);
        match task {
            SampledTask::Train { round } => self.on_train(now, round, model),
            SampledTask::Aggregate { round } if self.is_among_neighbors() => {
                self.on_neighbor_model(from, round, model);
            }
            SampledTask::Aggregate { round } => self.on_aggregate(now, from, round, model),
        }
        self.go_on(now);
    }

    /// A wanted model did not come.
    pub fn on_transfer_failed(&mut self, now: Moment, from: PublicKey, task: SampledTask) {
        self.on_transfer_ended(from, task);
        self.go_on(now);
    }

    /// A push has ended. Where none of a task has reached anybody, the sample is drawn again.
    pub fn on_pushed(&mut self, now: Moment, to: PublicKey, task: SampledTask, outcome: PushOutcome) {
        // All repetitions together last four times as long as a receiver waits for others.
        let again = match task {
            SampledTask::Train { .. } if self.settings.is_robust() => self.comparison_times().again(),
            _ => self.settings.ping_timeout.max(self.some_rounds() / (REPEATS_MAX / 4)),
        };
        let again = now + again;
        let is_lost = match task {
            SampledTask::Aggregate { round } if self.is_among_neighbors() => {
                self.neighbors.on_pushed(round, to, (again, outcome));
                false
            }
            SampledTask::Train { round } => self.aggregation.on_pushed(round, to, (again, outcome)),
            SampledTask::Aggregate { round } => self.training.on_pushed(round, to, (again, outcome)),
        };
        if outcome == PushOutcome::Failed {
            self.on_unreachable(now, to, task.round());
        }
        if is_lost {
            // Not at once: those that answer pings and take nothing would be asked again and again.
            let later = Sampling::later(now, task.round(), self.settings.ping_timeout);
            match task {
                SampledTask::Train { .. } => self.aggregation.sample_again(later),
                SampledTask::Aggregate { .. } => self.training.sample_again(later),
            }
        }
        self.go_on(now);
    }

    /// What the owner of a digest lacks.
    pub fn view_beyond(&self, digest: &ViewDigest) -> View {
        self.registry.view_beyond(digest, &self.peer)
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Moment) {
        for sampling in self.samplings() {
            sampling.on_timeout(now);
        }
        self.retry_sampling(now);
        self.push_again(now);
        self.go_on_with_few(now);
        self.on_joining_timeout(now);
        self.call_if_due(now);
        self.go_on(now);
    }

    /// When to call [`Self::on_timeout`].
    pub fn next_deadline(&self) -> Option<Moment> {
        let samplings = [
            self.training.sampling(),
            self.aggregation.sampling(),
            self.compared.as_ref(),
            self.neighbors.sampling(),
        ];
        let samplings = samplings.into_iter().flatten().filter_map(Sampling::next_deadline);
        let pushes = self.training.pushes().and_then(|(_, pushes)| pushes.next_deadline());
        let pushes = pushes.into_iter().chain(self.aggregation.next_push());
        let compared = self.training.comparison.deadline(&self.comparison_times());
        let neighbors = self.neighbors.deadline(self.settings.round_estimate);
        let others =
            [self.enough_at(), self.joining_deadline(), self.calling.deadline(), compared, neighbors];
        samplings.chain(pushes).chain(others.into_iter().flatten()).min()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<SampledAction> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        let mut samplings = self.samplings();
        samplings.find_map(|sampling| {
            sampling.poll_ping().map(|to| SampledAction::Ping { to, round: sampling.round })
        })
    }

    /// Its key.
    pub fn peer(&self) -> PublicKey {
        self.peer
    }

    /// Who takes part, as far as it knows.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What it shows its access by, in a run that is not open.
    pub fn approval(&self) -> Option<&AccessToken> {
        self.approval.as_deref()
    }

    /// The counter of its last event, which outlasts the process.
    pub fn counter(&self) -> u64 {
        self.identity.counter
    }

    /// The newest average that it has, with its round.
    pub fn newest(&self) -> Option<(u64, &SampledModel)> {
        self.newest.as_ref().map(|(round, model)| (*round, model))
    }

    /// The run's round, as far as it knows.
    pub fn round(&self) -> u64 {
        self.registry.latest_round(self.round_max())
    }

    /// The round that it trains or aggregates in, last or now; 0 before the first.
    pub fn own_round(&self) -> u64 {
        self.training.round().max(self.aggregation.round())
    }

    /// Whether it trains now.
    pub fn is_training(&self) -> bool {
        self.training.is_computing()
    }

    /// The driver has dropped the models of a round that it collected.
    pub fn on_collected_lost(&mut self, round: u64) {
        self.aggregation.on_collected_lost(round);
        self.neighbors.on_collected_lost(round);
    }

    /// The round that it aggregates now.
    pub fn aggregated_round(&self) -> Option<u64> {
        let aggregated = self.aggregation.is_working().then_some(self.aggregation.round());
        aggregated.or_else(|| self.neighbors.averaged_round())
    }

    /// Whether it looks for aggregators of what it trained, or offers it to them or its neighbours.
    pub fn is_handing_in(&self) -> bool {
        self.training.sampling().is_some() || self.training.pushes().is_some() || self.neighbors.is_sending()
    }

    fn samplings(&mut self) -> impl Iterator<Item = &mut Sampling> {
        let samplings = [
            self.training.sampling_mut(),
            self.aggregation.sampling_mut(),
            self.dialled.sampling_mut(),
            self.compared.as_mut(),
            self.neighbors.sampling_mut(),
        ];
        samplings.into_iter().flatten()
    }

    /// What the completed samples, sums and steps allow next.
    fn go_on(&mut self, now: Moment) {
        self.on_time(now);
        self.compare(now);
        self.push_trained(now);
        self.average(now);
        self.exchange(now);
    }

    /// `UPDATEACTIVITY(i, k)`: this peer is active in a round, which it proves from now on.
    fn on_active(&mut self, now: Moment, round: u64) {
        if self.active.is_none_or(|last| last < round) {
            self.pace.on_active(now, round, self.settings.round_estimate);
            self.active = Some(round);
            self.limit.on_active(now, round);
        }
        match self.joining.token(round).filter(|_| self.is_registered()) {
            Some(token) => self.prove(round, token),
            // The chain is at its end, or the run is far ahead of it.
            None => self.join_again(now),
        }
    }

    fn prove(&mut self, round: u64, token: ActivityToken) {
        let proof = ActivityProof { peer: PeerPrefix::of(&self.peer), round, token };
        self.registry.merge(&View { memberships: Vec::new(), activity: vec![proof] });
    }

    /// How long a round takes: `Δt_S`.
    fn round_duration(&self) -> Duration {
        self.pace.mean().unwrap_or(self.settings.round_estimate)
    }

    /// As long as a round takes: a sender that is slower has not sent its model in time.
    fn patience(&self) -> Duration {
        self.round_duration().max(2 * self.settings.ping_timeout)
    }

    /// Some rounds' time, after which those that are missing are not waited for.
    fn some_rounds(&self) -> Duration {
        let round =
            self.round_duration().max(self.settings.round_estimate).max(2 * self.settings.ping_timeout);
        round.saturating_mul(ROUNDS_WAITED)
    }

    /// The round that as many peers have been near as a round takes; the latest one where there are fewer.
    fn round_of_many(&self) -> u64 {
        let round = self.registry.round_of(self.settings.models_wanted());
        round.map_or(self.round(), |round| round.min(self.round()))
    }

    /// Whether a round is beyond the next one, as far as this peer knows.
    fn is_far(&self, round: u64) -> bool {
        round > self.round_of_many().saturating_add(1)
    }

    /// The mean time of rounds of late says nothing where this peer was silent meanwhile, or made them without the others.
    fn on_time(&mut self, now: Moment) {
        let mean = self.pace.mean().filter(|_| self.joining.n_silences == 0 && !self.is_forgotten());
        self.limit.on_time(now, mean, self.settings.round_estimate);
        self.registry.believe(self.round_max());
    }

    /// Latest round that is believed: a leap beyond those that enough peers have been active in, and beyond what the run can have
    /// reached since this peer was in it. Among very few peers each is believed, as far as that goes.
    fn round_max(&self) -> u64 {
        let of_others = self.registry.round_of(self.settings.models_wanted());
        let believed = of_others.into_iter().chain(self.limit.round()).min();
        believed.map_or(ROUND_MAX, |round| round.saturating_add(self.settings.round_leap()).min(ROUND_MAX))
    }

    /// Latest round that is listened to. A peer that was not asked for long knows an older round.
    fn round_offered_max(&self) -> u64 {
        self.round_max().saturating_add(2 * self.settings.activity_window).min(ROUND_MAX)
    }

    fn is_plausible(&self, from: PublicKey, task: SampledTask) -> bool {
        let round = task.round();
        let since = match task {
            SampledTask::Train { .. } => round,
            SampledTask::Aggregate { .. } => round.saturating_sub(1),
        };
        round > 0
            && round <= self.round_max()
            && self.registry.activity_of(&from).is_some_and(|active| active >= since)
            && self.is_in_sample(from, task)
    }

    /// Whether the sender of a model can be in the sample that makes it, by what this peer knows: among the first `2 a` aggregators
    /// of the round, or the first `2 s` trainers of the round before, since views differ, and the first ones may not be live.
    /// With each silence twice as many are believed, as many may have died; and all where this peer was in no round yet and knows
    /// others by hearsay. Aggregators are compared with those of their kind: whether those that can be dialled are live, each peer
    /// sees for itself.
    ///
    /// Where there are no samples: whether it is a neighbour.
    fn is_in_sample(&self, from: PublicKey, task: SampledTask) -> bool {
        if from == self.peer || self.active.is_none() {
            return true;
        }
        if self.is_among_neighbors() {
            return self.is_near(&from, task.round());
        }
        let within = (self.settings.activity_window, self.round_max());
        let (place, n) = match task {
            SampledTask::Train { round } => {
                (self.aggregator_place(&from, round, within), self.settings.n_aggregators)
            }
            SampledTask::Aggregate { round } => {
                let round = round.saturating_sub(1);
                (self.registry.place(&from, round, within, |roles| roles.trains), self.settings.sample_size)
            }
        };
        place.is_some_and(|place| place < n.saturating_mul(2 << self.joining.n_silences.min(16)))
    }

    fn on_transfer_ended(&mut self, from: PublicKey, task: SampledTask) {
        self.view_from.take_if(|(sender, _)| *sender == from);
        match task {
            SampledTask::Train { round } => self.training.on_transfer_ended(from, round),
            SampledTask::Aggregate { round } => {
                self.aggregation.on_transfer_ended(from, round);
                self.neighbors.on_transfer_ended(from, round);
            }
        }
    }

    fn digest(&mut self) -> ViewDigest {
        self.registry.digest(self.random.next_u64())
    }

    /// `SAMPLE(k, s)`.
    fn trainers(&self, now: Moment, round: u64) -> Sampling {
        let n = (self.settings.sample_size, self.settings.models_wanted());
        let candidates = self.candidates(round, |roles| roles.trains);
        Sampling::new(now, self.peer, round, n, candidates, self.settings.ping_timeout)
    }

    /// Those with a role, in the order of the round.
    fn candidates(&self, round: u64, has_role: impl Fn(SampledRoles) -> bool) -> Vec<PublicKey> {
        let mut candidates = self.registry.candidates(round, self.settings.activity_window, self.round_max());
        candidates.retain(|candidate| {
            let joined = self.registry.membership(candidate).and_then(Membership::joined);
            joined.is_some_and(|joined| has_role(joined.roles))
        });
        candidates
    }

    /// Offers a model to a sample. What this peer offers itself takes no way.
    fn push(&mut self, now: Moment, sample: Vec<PublicKey>, task: SampledTask, model: &SampledModel) {
        for to in sample {
            if to != self.peer {
                self.actions.push_back(SampledAction::Push { to, task, model: model.clone() });
            } else if self.on_offer(now, to, task).is_ok() {
                self.on_model(now, to, task, model.clone());
                self.on_pushed(now, to, task, PushOutcome::Delivered);
            } else {
                self.on_pushed(now, to, task, PushOutcome::Declined);
            }
        }
    }

    /// Offers models again to those that were busy or not reached.
    fn push_again(&mut self, now: Moment) {
        let next = self.training.round().saturating_add(1);
        let of_trainer = self.training.pushes_mut().into_iter();
        let of_trainer =
            of_trainer.map(|(model, pushes)| (SampledTask::Aggregate { round: next }, model, pushes));
        let of_aggregator = self.aggregation.pushes_mut();
        let of_aggregator =
            of_aggregator.map(|(round, model, pushes)| (SampledTask::Train { round }, model, pushes));
        let of_neighbor = self.neighbors.pushes_mut();
        let of_neighbor =
            of_neighbor.map(|(round, model, pushes)| (SampledTask::Aggregate { round }, model, pushes));
        for (task, model, pushes) in of_trainer.chain(of_aggregator).chain(of_neighbor) {
            for to in pushes.take_due(now) {
                self.actions.push_back(SampledAction::Push { to, task, model: model.clone() });
            }
        }
    }

    /// Repeats what found too few: the network may be asynchronous (algorithm 1, line 21).
    fn retry_sampling(&mut self, now: Moment) {
        let is_due = |sampling: Option<&Sampling>| {
            sampling.and_then(Sampling::retry_at).is_some_and(|retry_at| retry_at <= now)
        };
        if is_due(self.training.sampling()) {
            self.sample_aggregators(now);
        }
        if is_due(self.aggregation.sampling()) {
            self.sample_trainers(now);
        }
    }
}
