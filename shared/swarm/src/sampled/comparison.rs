//! Which average of a round a trainer takes, where it does not take the first.
//!
//! The paper has all aggregators push their averages, and takes each for honest. A mean that a minority of dishonest trainers cannot
//! move helps little where one dishonest aggregator that is faster than the others gives all trainers what it likes. So in a run with
//! such a mean a trainer waits until most aggregators of the round have offered their averages, compares them by sketches, and pulls the one
//! that is nearest to most of them: a majority of honest ones has it within the distance that they have from each other. The hash
//! in an offer fixes the model before anybody knows the seed of the sketches, and what comes must have the sketch that was told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::sampled::{ModelSketch, OfferTurn, SampledRoles, SampledTask};

use super::{SampledAction, SampledModel, SampledPeer};
use crate::Moment;

/// Fewer aggregators do not show who of them lies.
const COMPARED_MIN: usize = 3;
/// An offer waits so long at most before it is to be repeated: streams on which nothing moves are closed.
const WAIT_MAX: Duration = Duration::from_secs(8);
/// Most rounds of which averages are offered at a time: that of the run, and what others say.
const ROUNDS_MAX: usize = 8;
/// Most keys that are known to have sent another model than that of their sketch.
const LIARS_MAX: usize = 64;

/// How long is waited for averages.
#[derive(Debug, Clone, Copy)]
pub(super) struct ComparisonTimes {
    /// Before an offer is to be repeated.
    wait: Duration,
    /// Before fewer than most are enough.
    few: Duration,
    /// Before what was chosen is not waited for.
    patience: Duration,
}

impl ComparisonTimes {
    /// - `patience`: for a model
    /// - `few`: of those who wait for others in vain
    pub(super) fn new(
        ping_timeout: Duration,
        round: Duration,
        (patience, few): (Duration, Duration),
    ) -> Self {
        Self { wait: (2 * ping_timeout).max(round / 8).min(WAIT_MAX), few, patience }
    }

    /// Time in which those who are as fast as others come, and interval after which an offer is repeated: most of the time it waits.
    pub(super) fn again(&self) -> Duration {
        self.wait / 2
    }
}

/// Averages that are offered, by their rounds.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    rounds: BTreeMap<u64, RoundOffers>,
    /// What is being done with those of a round.
    step: Option<(u64, ComparisonStep)>,
    /// What is pulled of a round, with the seed and the sketch that it must have; no sketch where there was nothing to compare with.
    pulled: BTreeMap<(PublicKey, u64), Option<(u64, ModelSketch)>>,
    liars: BTreeSet<PublicKey>,
}

/// Those of one round.
#[derive(Debug)]
struct RoundOffers {
    /// When the first one came.
    since: Moment,
    /// Aggregators that the round has, as far as this peer knows.
    n_expected: usize,
    /// They were asked whether they are live, and so many are.
    is_asked: bool,
    n_live: Option<usize>,
    waiting: BTreeMap<PublicKey, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// In the order of the round.
    place: usize,
    since: Moment,
    sketch: Option<ModelSketch>,
}

#[derive(Debug, Clone, Copy)]
enum ComparisonStep {
    /// Sketches are asked for.
    Comparing {
        seed: u64,
        until: Moment,
    },
    Pulling {
        since: Moment,
    },
}

impl ComparisonStep {
    fn is_stale(self, now: Moment, patience: Duration) -> bool {
        matches!(self, Self::Pulling { since } if since.saturating_add(patience) <= now)
    }
}

/// What senders are told of an offer of a round.
type Turns = Vec<(PublicKey, u64, OfferTurn)>;

impl RoundOffers {
    /// When those that wait are enough: all at once, most of them after a moment in which the others come, and fewer after some rounds'
    /// time.
    fn ready_at(&self, times: &ComparisonTimes) -> Option<Moment> {
        let mut came: Vec<Moment> = self.waiting.values().map(|waiting| waiting.since).collect();
        came.sort_unstable();
        let n_expected = self.n_live.unwrap_or(usize::MAX).min(self.n_expected);
        let most = came.get(n_expected / 2).map(|at| *at + times.again());
        let all = came.last().filter(|_| came.len() >= n_expected).copied();
        [Some(self.since.saturating_add(times.few)), most, all]
            .into_iter()
            .flatten()
            .min()
            .filter(|_| !came.is_empty())
    }

    /// From when on it is worth asking who is live: fewer than most have offered, and the others have had their time.
    fn is_short_at(&self, times: &ComparisonTimes) -> Option<Moment> {
        let is_short = !self.is_asked && self.waiting.len() <= self.n_expected / 2;
        self.waiting
            .values()
            .map(|waiting| waiting.since)
            .min()
            .filter(|_| is_short)
            .map(|at| at + times.again())
    }

    fn late_at(&self, times: &ComparisonTimes) -> Option<Moment> {
        self.waiting.values().map(|waiting| waiting.since + times.wait).min()
    }

    /// Of the first aggregators of the round that told a sketch, the one that is nearest to most; where two are, the one that is nearer to
    /// `own`. Returns those that told one, too.
    fn nearest(&mut self, own: Option<&ModelSketch>) -> (Option<(PublicKey, ModelSketch)>, Vec<PublicKey>) {
        // Who is silent is told when its sketch comes.
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let mut told: Vec<(usize, PublicKey, ModelSketch)> =
            waiting.filter_map(|(from, waiting)| Some((waiting.place, from, waiting.sketch?))).collect();
        told.sort_unstable_by_key(|(place, ..)| *place);
        let first = &told[..told.len().min(self.n_expected.max(1))];
        let cost = |(_, _, sketch): &(usize, PublicKey, ModelSketch)| {
            let mut distances: Vec<f64> = first.iter().map(|(.., other)| sketch.distance(other)).collect();
            distances.sort_unstable_by(f64::total_cmp);
            let to_own = own.map_or(0.0, |own| own.distance(sketch));
            (distances[first.len() / 2], to_own)
        };
        let best = first.iter().min_by(|one, two| {
            let ((radius, to_own), (other_radius, other_to_own)) = (cost(one), cost(two));
            radius.total_cmp(&other_radius).then(to_own.total_cmp(&other_to_own))
        });
        let best = best.map(|(_, from, sketch)| (*from, sketch.clone()));
        (best, told.into_iter().map(|(_, from, _)| from).collect())
    }
}

impl Comparison {
    /// Whether an offer may be compared: not while a model of its round is chosen, unless that does not come in time.
    pub(super) fn is_open_to(&self, now: Moment, from: &PublicKey, round: u64, patience: Duration) -> bool {
        let is_busy = self.step.is_some_and(|(of, step)| of == round && !step.is_stale(now, patience));
        let has_place = self.rounds.contains_key(&round) || self.rounds.len() < ROUNDS_MAX;
        !is_busy && has_place && !self.liars.contains(from)
    }

    /// One more sender has proven itself. `place` is that in the order of the round, which has `n_expected` aggregators.
    pub(super) fn wait(
        &mut self,
        now: Moment,
        from: PublicKey,
        (round, place): (u64, usize),
        n_expected: usize,
    ) -> Turns {
        let is_compared = matches!(self.step, Some((of, ComparisonStep::Comparing { .. })) if of == round);
        if is_compared {
            return vec![(from, round, OfferTurn::Busy)];
        }
        // What was chosen of it has not come.
        self.step.take_if(|(of, _)| *of == round);
        let offers = self.rounds.entry(round).or_insert_with(|| RoundOffers {
            since: now,
            n_expected,
            is_asked: false,
            n_live: None,
            waiting: BTreeMap::new(),
        });
        offers.n_expected = n_expected;
        offers.waiting.insert(from, Waiting { place, since: now, sketch: None });
        Turns::new()
    }

    /// A sketch that was asked for. Returns the sender's turn where it comes too late.
    pub(super) fn on_sketch(
        &mut self,
        from: PublicKey,
        round: u64,
        sketch: ModelSketch,
    ) -> Option<OfferTurn> {
        let is_asked = matches!(self.step, Some((of, ComparisonStep::Comparing { .. })) if of == round);
        let offers = self.rounds.get_mut(&round).filter(|_| is_asked);
        match offers.and_then(|offers| offers.waiting.get_mut(&from)) {
            Some(waiting) => {
                waiting.sketch = Some(sketch);
                None
            }
            None => Some(OfferTurn::Busy),
        }
    }

    /// A sender's stream has ended, with its model or without.
    pub(super) fn end(&mut self, from: PublicKey, round: u64) {
        let was_pulled = self.pulled.remove(&(from, round)).is_some();
        if let Some(offers) = self.rounds.get_mut(&round) {
            offers.waiting.remove(&from);
        }
        if was_pulled && !self.pulled.keys().any(|(_, of)| *of == round) {
            self.step.take_if(|(of, step)| *of == round && matches!(step, ComparisonStep::Pulling { .. }));
        }
    }

    /// Whether a model that came is the one that was chosen. Who sent another one is believed no more.
    pub(super) fn is_chosen(&mut self, from: PublicKey, round: u64, model: &SampledModel) -> bool {
        let Some(Some((seed, sketch))) = self.pulled.get(&(from, round)) else { return true };
        let is_same = ModelSketch::of(model, *seed).is_of_same(sketch);
        if !is_same && self.liars.len() < LIARS_MAX {
            self.liars.insert(from);
        }
        is_same
    }

    /// Rounds up to this one are over: those who wait are told.
    pub(super) fn dismiss(&mut self, round: u64) -> Turns {
        self.step.take_if(|(of, _)| *of <= round);
        let later = self.rounds.split_off(&(round + 1));
        let over = std::mem::replace(&mut self.rounds, later);
        let turns = over.into_iter().flat_map(|(round, offers)| {
            offers.waiting.into_keys().map(move |from| (from, round, OfferTurn::Declined))
        });
        turns.collect()
    }

    /// What is next.
    ///
    /// - `seed`: another one each time, which nobody could know
    /// - `own`: the sketch by a seed of an average that this peer knows
    pub(super) fn go_on(
        &mut self,
        now: Moment,
        times: &ComparisonTimes,
        seed: impl FnOnce() -> u64,
        own: impl FnOnce(u64) -> Option<ModelSketch>,
    ) -> Turns {
        let mut turns = Turns::new();
        if let Some((round, ComparisonStep::Comparing { seed, until })) = self.step {
            let waits = |offers: &RoundOffers| offers.waiting.values().any(|of| of.sketch.is_none());
            if until <= now || !self.rounds.get(&round).is_some_and(waits) {
                turns = self.choose(now, round, (seed, own(seed).as_ref()));
            }
        } else if let Some(round) =
            self.ready(now, times).filter(|(_, at)| *at <= now).map(|(of, _)| of).max()
        {
            turns = self.compare(now, times, round, seed);
        }
        let compared = self.step.map(|(round, _)| round);
        for (round, offers) in self.rounds.iter_mut().filter(|(round, _)| Some(**round) != compared) {
            let late = |_: &PublicKey, waiting: &mut Waiting| waiting.since + times.wait <= now;
            turns
                .extend(offers.waiting.extract_if(.., late).map(|(from, _)| (from, *round, OfferTurn::Busy)));
        }
        turns
    }

    /// When [`Self::go_on`] is due.
    pub(super) fn deadline(&self, times: &ComparisonTimes) -> Option<Moment> {
        let ready = match self.step {
            Some((_, ComparisonStep::Comparing { until, .. })) => Some(until),
            _ => self.ready(Moment::ZERO, times).map(|(_, at)| at).min(),
        };
        let others = self.rounds.iter().filter(|(round, _)| self.step.is_none_or(|(of, _)| of != **round));
        let others = others.flat_map(|(_, offers)| [offers.late_at(times), offers.is_short_at(times)]);
        others.flatten().chain(ready).min()
    }

    /// The latest round of which it is worth asking who of its aggregators is live: they are asked from now on.
    fn ask_live(&mut self, now: Moment, times: &ComparisonTimes) -> Option<u64> {
        let is_due = |offers: &RoundOffers| offers.is_short_at(times).is_some_and(|at| at <= now);
        let (round, offers) = self.rounds.iter_mut().rev().find(|(_, offers)| is_due(offers))?;
        offers.is_asked = true;
        Some(*round)
    }

    /// So many aggregators of a round are live.
    fn on_live(&mut self, round: u64, n_live: usize) {
        if let Some(offers) = self.rounds.get_mut(&round) {
            offers.n_live = Some(n_live.max(1));
        }
    }

    /// Rounds that may be compared next, each with the time from which there are enough. One that is pulled keeps out no later one.
    fn ready(&self, now: Moment, times: &ComparisonTimes) -> impl Iterator<Item = (u64, Moment)> {
        let pulled =
            self.step.filter(|(_, step)| !step.is_stale(now, times.patience)).map(|(round, _)| round);
        let open = self.rounds.iter().filter(move |(round, _)| pulled.is_none_or(|pulled| **round > pulled));
        open.filter_map(|(round, offers)| Some((*round, offers.ready_at(times)?)))
    }

    fn compare(
        &mut self,
        now: Moment,
        times: &ComparisonTimes,
        round: u64,
        seed: impl FnOnce() -> u64,
    ) -> Turns {
        let Some(offers) = self.rounds.get_mut(&round) else { return Turns::new() };
        if offers.waiting.len() == 1
            && let Some((from, _)) = offers.waiting.pop_first()
        {
            self.pulled.insert((from, round), None);
            self.step = Some((round, ComparisonStep::Pulling { since: now }));
            return vec![(from, round, OfferTurn::Pull)];
        }
        let seed = seed();
        self.step = Some((round, ComparisonStep::Comparing { seed, until: now + times.again() }));
        offers.waiting.keys().map(|from| (*from, round, OfferTurn::Compare { seed })).collect()
    }

    fn choose(&mut self, now: Moment, round: u64, (seed, own): (u64, Option<&ModelSketch>)) -> Turns {
        let offers = self.rounds.get_mut(&round);
        let (best, told) = offers.map(|offers| offers.nearest(own)).unwrap_or_default();
        self.step = best.as_ref().map(|_| (round, ComparisonStep::Pulling { since: now }));
        let chosen = best.map(|(from, sketch)| {
            self.pulled.insert((from, round), Some((seed, sketch)));
            from
        });
        let turn = |from| if Some(from) == chosen { OfferTurn::Pull } else { OfferTurn::Busy };
        told.into_iter().map(|from| (from, round, turn(from))).collect()
    }
}

impl SampledPeer {
    /// How many aggregators of a round offer their averages to be compared with that of `from`; `None` where it is compared with none. The
    /// first model is had by one alone.
    pub(super) fn n_compared(&self, from: PublicKey, task: SampledTask) -> Option<usize> {
        let SampledTask::Train { round } = task else { return None };
        if !self.settings.is_robust() || from == self.peer || round <= 1 {
            return None;
        }
        // In a round those that can be dialled aggregate, or those that cannot.
        let kind = self.aggregates(&from);
        let is_alike = |roles: SampledRoles| roles.is_aggregator() && roles.aggregates == kind;
        let n = self.candidates(round, is_alike).len().min(self.settings.n_aggregators);
        (n >= COMPARED_MIN).then_some(n)
    }

    /// What comes next for a sender that has proven that it can have a model.
    pub(super) fn take_turn(&mut self, now: Moment, from: PublicKey, task: SampledTask) {
        match self.n_compared(from, task) {
            None => self.actions.push_back(SampledAction::Turn { to: from, task, turn: OfferTurn::Pull }),
            Some(n) => {
                let within = (self.settings.activity_window, self.round_max());
                let place = self.aggregator_place(&from, task.round(), within).unwrap_or(usize::MAX);
                let turns = self.training.comparison.wait(now, from, (task.round(), place), n);
                self.tell_turns(turns);
                self.compare(now);
            }
        }
    }

    /// What the averages that wait allow next.
    pub(super) fn compare(&mut self, now: Moment) {
        let (over, times) = (self.training.round(), self.comparison_times());
        let mut turns = self.training.comparison.dismiss(over);
        self.look_for_live(now, &times);
        let n_seeds = &mut self.n_seeds;
        let identity = &self.identity;
        let seed = || {
            *n_seeds += 1;
            let of_start = [identity.seed, *n_seeds].map(u64::to_le_bytes).concat();
            let secret = identity.key.derive(&[&b"sketch"[..], &identity.run.0, &of_start].concat());
            u128::from_le_bytes(secret) as u64
        };
        let newest = &self.newest;
        let own = |seed| newest.as_ref().map(|(_, model)| ModelSketch::of(model, seed));
        turns.extend(self.training.comparison.go_on(now, &times, seed, own));
        self.tell_turns(turns);
    }

    /// Where fewer than most aggregators of a round have offered their averages, others may be dead: they are asked.
    fn look_for_live(&mut self, now: Moment, times: &ComparisonTimes) {
        if let Some(sampling) = &self.compared {
            let sample = sampling.sample().or_else(|| sampling.retry_at().map(|_| Vec::new()));
            if let Some(sample) = sample {
                self.training.comparison.on_live(sampling.round, sample.len());
                self.compared = None;
            }
        }
        if let Some(round) = self.training.comparison.ask_live(now, times) {
            self.compared = Some(self.aggregators(now, round));
        }
    }

    fn tell_turns(&mut self, turns: Turns) {
        let turns = turns.into_iter().map(|(to, round, turn)| {
            let task = SampledTask::Train { round };
            SampledAction::Turn { to, task, turn }
        });
        self.actions.extend(turns);
    }

    pub(super) fn comparison_times(&self) -> ComparisonTimes {
        let waits = (self.patience(), self.some_rounds());
        ComparisonTimes::new(self.settings.ping_timeout, self.round_duration(), waits)
    }

    /// Whether a model that came is the one whose sketch was told.
    pub(super) fn is_chosen(&mut self, from: PublicKey, task: SampledTask, model: &SampledModel) -> bool {
        match task {
            SampledTask::Train { round } => self.training.comparison.is_chosen(from, round, model),
            SampledTask::Aggregate { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests;
