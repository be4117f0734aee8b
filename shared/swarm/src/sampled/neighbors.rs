//! Rounds in which all peers train, and average with those whose models come: decentralized training as MoDEST is compared with
//! ([`ModelExchange`]).
//!
//! A peer that has trained round `k` sends its model to the receivers of that round, and averages it with the models of its senders
//! ([`Topology`]). That average is the one that it trains in round `k + 1`. Nobody has the model of the run: each has its own. A peer
//! without one waits until a neighbour sends its own.
//!
//! What the papers leave open, as their peers are always there:
//!
//! - A sender is asked whether it is live and will send. It is waited for as long as a round is estimated to take.
//! - Who was too slow for its neighbours hands in what it has trained with the round that they come to next, and goes on there. Nobody
//!   waits for one that is known to be slow.
//! - Peers that know others compute other graphs. So a model is taken also of one that is near its sender's place.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::run::ModelExchange;
use barnraise_protocol::sampled::{SampledRoles, SampledTask};

use super::pull::{Pull, Pulls};
use super::sampling::Sampling;
use super::topology::Topology;
use super::training::Pushes;
use super::{PushOutcome, SampledAction, SampledModel, SampledPeer};
use crate::Moment;

/// Models of earlier rounds that are still offered: a receiver may be behind.
const SENT_MAX: usize = 2;
/// Rounds that a peer is behind its neighbours, and still of theirs; and those of the latest round whose models are kept.
const LEAD_MAX: u64 = 2;
/// Those and the rounds themselves.
const CAME_MAX_ROUNDS: usize = LEAD_MAX as usize + 1;
/// Rounds by which what a peer knows of most others is old: views go from neighbour to neighbour.
const VIEWS_AGE_MAX: u64 = 8;
/// Pulls of senders that have not proven yet that they are neighbours.
const UNPROVEN_MAX: usize = 1;

/// Most models of its neighbours that a peer keeps: of some rounds, each twice as many as send at the mean, and as they may know others.
pub fn neighbor_models_max(exchange: ModelExchange) -> usize {
    CAME_MAX_ROUNDS * (2 * usize::from(exchange.n_receivers()) + 2)
}

/// What goes between this peer and its neighbours.
#[derive(Debug, Default)]
pub(super) struct Neighbors {
    pulls: Pulls,
    /// Models of others, by the round of whose average they are a part.
    came: BTreeMap<(u64, PublicKey), SampledModel>,
    step: ExchangeStep,
    sent: VecDeque<SentModel>,
    /// The last round that was averaged.
    averaged: u64,
    /// Receivers of some rounds that others asked about, each with the time that it is of: they may ask as often as they like.
    asked: Vec<(u64, Moment, Vec<PublicKey>)>,
}

/// A model that its receivers are offered.
#[derive(Debug)]
struct SentModel {
    round: u64,
    model: SampledModel,
    receivers: Vec<PublicKey>,
    pushes: Pushes,
}

#[derive(Debug, Default)]
enum ExchangeStep {
    /// It trains, or has no model yet.
    #[default]
    Idle,
    /// The models of its senders are waited for.
    Waiting(Box<AwaitedModels>),
    Averaging {
        round: u64,
    },
}

/// What a round is to be averaged of.
#[derive(Debug)]
struct AwaitedModels {
    round: u64,
    since: Moment,
    own: Option<SampledModel>,
    /// The senders whose models had not come, asked whether they will.
    sampling: Sampling,
}

impl Neighbors {
    /// Whether a sender's model of a round is missing: of one that is not averaged yet, or of the last `n_rounds` that are.
    fn is_open_to(&self, round: u64, from: PublicKey, n_rounds: u64) -> bool {
        round.saturating_add(n_rounds) > self.averaged && !self.came.contains_key(&(round, from))
    }

    fn pull(&mut self, from: PublicKey, pull: Pull, exchange: ModelExchange) -> bool {
        let n_max = neighbor_models_max(exchange).saturating_sub(self.came.len());
        self.pulls.take(from, pull, n_max, UNPROVEN_MAX)
    }

    pub(super) fn on_proven(&mut self, from: PublicKey) {
        self.pulls.on_proven(from);
    }

    pub(super) fn on_transfer_ended(&mut self, from: PublicKey, round: u64) {
        self.pulls.end(from, round);
    }

    pub(super) fn on_pushed(&mut self, round: u64, to: PublicKey, ended: (Moment, PushOutcome)) {
        if let Some(sent) = self.sent.iter_mut().find(|sent| sent.round == round) {
            sent.pushes.on_pushed(to, ended);
        }
        self.sent.retain(|sent| !sent.pushes.is_done());
    }

    /// Models that are offered, with the rounds of whose averages they are a part.
    pub(super) fn pushes_mut(&mut self) -> impl Iterator<Item = (u64, &SampledModel, &mut Pushes)> {
        self.sent.iter_mut().map(|sent| (sent.round, &sent.model, &mut sent.pushes))
    }

    pub(super) fn sampling(&self) -> Option<&Sampling> {
        self.waiting().map(|waiting| &waiting.sampling)
    }

    fn waiting(&self) -> Option<&AwaitedModels> {
        match &self.step {
            ExchangeStep::Waiting(waiting) => Some(waiting),
            _ => None,
        }
    }

    pub(super) fn sampling_mut(&mut self) -> Option<&mut Sampling> {
        match &mut self.step {
            ExchangeStep::Waiting(waiting) => Some(&mut waiting.sampling),
            _ => None,
        }
    }

    /// When it goes on without those that are missing, or offers a model again.
    pub(super) fn deadline(&self, patience: Duration) -> Option<Moment> {
        let waiting = self.waiting().map(|waiting| waiting.since.saturating_add(patience));
        let pushes = self.sent.iter().filter_map(|sent| sent.pushes.next_deadline());
        waiting.into_iter().chain(pushes).min()
    }

    /// Whether the model of the round that it waits for is offered still.
    pub(super) fn is_sending(&self) -> bool {
        let waits_for = self.waiting().map(|waiting| waiting.round);
        self.sent.iter().any(|sent| Some(sent.round) == waits_for)
    }

    /// The round that is averaged now.
    pub(super) fn averaged_round(&self) -> Option<u64> {
        match self.step {
            ExchangeStep::Averaging { round } => Some(round),
            _ => None,
        }
    }

    pub(super) fn on_collected_lost(&mut self, round: u64) {
        if self.averaged_round() == Some(round) {
            self.step = ExchangeStep::Idle;
        }
    }

    /// Latest round whose models came, and are not averaged.
    fn latest(&self) -> u64 {
        self.came.keys().next_back().map_or(0, |(round, _)| *round)
    }

    /// The round of most of the neighbours whose models came.
    fn round_of_most(&self) -> u64 {
        let latest: BTreeMap<PublicKey, u64> =
            self.came.keys().map(|(round, from)| (*from, *round)).collect();
        let mut rounds: Vec<u64> = latest.into_values().collect();
        rounds.sort_unstable();
        rounds.get(rounds.len().saturating_sub(1) / 2).copied().unwrap_or_default()
    }

    /// The round that a model is handed in with: the next one, or that which most neighbours come to where they are further.
    fn hand_in_round(&self, next: u64) -> u64 {
        let round = self.round_of_most();
        if round >= next.saturating_add(LEAD_MAX) { round.saturating_add(1) } else { next }
    }

    /// Takes no part any more.
    pub(super) fn end(&mut self) {
        *self = Self { averaged: self.averaged, ..Self::default() };
    }

    pub(super) fn averaged(&self) -> u64 {
        self.averaged
    }

    /// The round whose models are handed in next, where the last one that was trained is `trained`.
    fn next_round(&self, trained: u64) -> u64 {
        match self.step {
            ExchangeStep::Idle => trained.saturating_add(1),
            ExchangeStep::Waiting(ref waiting) => waiting.round.saturating_add(1),
            ExchangeStep::Averaging { round } => round.saturating_add(1),
        }
    }
}

impl SampledPeer {
    /// Whether all train, and average with their neighbours.
    pub(super) fn is_among_neighbors(&self) -> bool {
        self.settings.exchange.is_among_neighbors()
    }

    /// The graph in which the models go that become part of a round's averages.
    fn topology(&self, round: u64) -> Topology {
        let trained = round.saturating_sub(1);
        let mut peers = self.candidates(trained, SampledRoles::is_aggregator);
        if !peers.contains(&self.peer) && self.identity.roles.is_aggregator() {
            peers.push(self.peer);
        }
        Topology::new(self.settings.exchange, trained, &peers)
    }

    /// Those to whom this peer sends what becomes part of a round's averages. One that has no data waits for somebody.
    pub(super) fn receivers(&self, now: Moment, round: u64) -> Sampling {
        let round = self.neighbors.hand_in_round(round);
        let receivers = self.topology(round).receivers(&self.peer);
        match receivers.is_empty() && !self.identity.roles.trains {
            true => Sampling::later(now, round, self.settings.ping_timeout),
            false => Sampling::decided(now, round, receivers),
        }
    }

    /// Whether a peer may send this one what becomes part of a round's average.
    pub(super) fn is_near(&self, from: &PublicKey, round: u64) -> bool {
        self.topology(round).is_near(from, &self.peer)
    }

    /// Whether this peer has sent, or will send soon, what becomes part of another one's average.
    pub(super) fn will_send(&mut self, now: Moment, to: &PublicKey, round: u64) -> bool {
        if let Some(sent) = self.neighbors.sent.iter().find(|sent| sent.round == round) {
            return sent.receivers.contains(to);
        }
        let has_model = self.newest.is_some() || self.training.round() > 0;
        let next = self.neighbors.next_round(self.training.round());
        let is_slow = self.training.took() > self.settings.round_estimate;
        has_model
            && !is_slow
            && (next..=next.saturating_add(LEAD_MAX)).contains(&round)
            && self.is_receiver(now, to, round)
    }

    fn is_receiver(&mut self, now: Moment, to: &PublicKey, round: u64) -> bool {
        let is_fresh = |since: Moment| now < since.saturating_add(self.settings.ping_timeout);
        self.neighbors.asked.retain(|(_, since, _)| is_fresh(*since));
        if let Some((.., receivers)) = self.neighbors.asked.iter().find(|(of, ..)| *of == round) {
            return receivers.contains(to);
        }
        let receivers = self.topology(round).receivers(&self.peer);
        let is_receiver = receivers.contains(to);
        self.neighbors.asked.push((round, now, receivers));
        is_receiver
    }

    /// Whether an offered model is missing. Where nobody is waited for, one that is behind counts as well.
    pub(super) fn is_missing(&self, from: PublicKey, round: u64) -> bool {
        let n_rounds = match self.settings.exchange {
            ModelExchange::Gossip => self.settings.activity_window,
            _ => 0,
        };
        self.identity.roles.is_aggregator() && self.neighbors.is_open_to(round, from, n_rounds)
    }

    /// Whether there is a place for it.
    pub(super) fn pull_of_neighbor(&mut self, from: PublicKey, pull: Pull) -> bool {
        self.neighbors.pull(from, pull, self.settings.exchange)
    }

    /// Whether a neighbour is some rounds further than this peer, where most are not near: no single one leads it there.
    pub(super) fn is_ahead(&self, round: u64) -> bool {
        self.is_among_neighbors()
            && self.active.is_some()
            && round > self.reached().saturating_add(LEAD_MAX)
            && self.is_far(round.saturating_sub(VIEWS_AGE_MAX))
    }

    /// The last round that this peer has trained, or the average of.
    fn reached(&self) -> u64 {
        self.training.round().max(self.neighbors.averaged)
    }

    /// The model of a neighbour.
    pub(super) fn on_neighbor_model(&mut self, from: PublicKey, round: u64, model: SampledModel) {
        if self.is_missing(from, round) {
            self.neighbors.came.insert((round, from), model);
            let oldest = self.neighbors.round_of_most().saturating_sub(LEAD_MAX);
            self.neighbors.came = self.neighbors.came.split_off(&(oldest, PublicKey([0; 32])));
        }
    }

    /// Sends what was trained, and waits for the models of its own senders.
    pub(super) fn send_trained(
        &mut self,
        now: Moment,
        (round, receivers): (u64, Vec<PublicKey>),
        model: SampledModel,
    ) {
        let task = SampledTask::Aggregate { round };
        self.training.end();
        for to in &receivers {
            self.actions.push_back(SampledAction::Push { to: *to, task, model: model.clone() });
        }
        if !receivers.is_empty() {
            let pushes = Pushes::new(receivers.len());
            self.neighbors.sent.push_back(SentModel { round, model: model.clone(), receivers, pushes });
            while self.neighbors.sent.len() > SENT_MAX {
                self.neighbors.sent.pop_front();
            }
        }
        self.wait_for_senders(now, round, Some(model));
    }

    fn wait_for_senders(&mut self, now: Moment, round: u64, own: Option<SampledModel>) {
        let mut senders = match self.settings.exchange {
            ModelExchange::Gossip => Vec::new(),
            _ => self.topology(round).senders(&self.peer),
        };
        senders.retain(|sender| !self.neighbors.came.contains_key(&(round, *sender)));
        let n = (senders.len(), 0);
        let sampling = Sampling::new(now, self.peer, round, n, senders, self.settings.ping_timeout);
        self.neighbors.step =
            ExchangeStep::Waiting(Box::new(AwaitedModels { round, since: now, own, sampling }));
    }

    /// What the models that came allow next.
    pub(super) fn exchange(&mut self, now: Moment) {
        self.go_on_with_neighbors(now);
        let ExchangeStep::Waiting(waiting) = &mut self.neighbors.step else { return };
        let mut round = waiting.round;
        let has_come = |sender: &PublicKey| self.neighbors.came.contains_key(&(round, *sender));
        let is_complete = waiting.sampling.sample().is_some_and(|live| live.iter().all(has_come));
        if !is_complete && now < waiting.since.saturating_add(self.settings.round_estimate) {
            return;
        }
        let own = waiting.own.take();
        if self.settings.exchange == ModelExchange::Gossip {
            // Who is further has more experience, which counts from now on (as a model's age does in gossip learning).
            round = self.neighbors.latest().max(round);
        }
        let later = self.neighbors.came.split_off(&(round + 1, PublicKey([0; 32])));
        let mut came = std::mem::replace(&mut self.neighbors.came, later);
        if self.settings.exchange != ModelExchange::Gossip {
            came.retain(|(of, _), _| *of == round);
        }
        let models: Vec<SampledModel> = own.into_iter().chain(came.into_values()).collect();
        self.neighbors.step = match models.is_empty() {
            true => ExchangeStep::Idle,
            false => ExchangeStep::Averaging { round },
        };
        if !models.is_empty() {
            self.neighbors.averaged = round;
            self.actions.extend(models.into_iter().map(|model| SampledAction::Collect { round, model }));
            self.actions.push_back(SampledAction::Average { round });
        }
    }

    /// Without a model it takes those that come.
    fn go_on_with_neighbors(&mut self, now: Moment) {
        if self.neighbors.came.is_empty() {
            return;
        }
        let latest = self.neighbors.latest();
        let is_overtaken = latest > self.reached().saturating_add(LEAD_MAX);
        let waits = match self.neighbors.step {
            ExchangeStep::Waiting(_) => false,
            ExchangeStep::Averaging { .. } => is_overtaken,
            ExchangeStep::Idle => !self.training.is_busy(),
        };
        if waits && self.joining.is_member() {
            self.wait_for_senders(now, latest.max(self.neighbors.averaged.saturating_add(1)), None);
        }
    }

    /// The average with the neighbours is computed.
    pub(super) fn on_averaged_with_neighbors(&mut self, now: Moment, round: u64, average: &SampledModel) {
        if self.neighbors.averaged_round() == Some(round) {
            self.neighbors.step = ExchangeStep::Idle;
            match self.identity.roles.trains {
                true => self.on_train(now, round, average.clone()),
                false => self.pass_on(now, round, average.clone()),
            }
        }
        self.go_on(now);
    }

    /// Begins a round with this model, or goes on with it: as what was trained in the round before. One without data sends its average as it
    /// is.
    pub(super) fn pass_on(&mut self, now: Moment, round: u64, model: SampledModel) {
        let model = self.continued(round, model);
        self.on_active(now, round);
        self.training.compute(now, round, model.clone());
        self.on_trained(now, round, model);
    }

    /// Whether it waits for the models of its senders.
    pub(super) fn waits_for_senders(&self) -> bool {
        self.neighbors.waiting().is_some()
    }
}
