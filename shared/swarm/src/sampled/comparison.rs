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
/// Most keys that are known to have sent another model than that of their sketch, and most that were late.
const KEYS_MAX: usize = 64;
/// An average that is at most so many times as far from the others as the nearest one is as good.
const NEAR: f64 = 2.0;

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
    /// Those whose models did not come in time when they were chosen: the others come first where they are as near.
    late: BTreeSet<PublicKey>,
}

/// Those of one round.
#[derive(Debug)]
struct RoundOffers {
    /// When the first one came.
    since: Moment,
    /// Those whose averages are waited for: the live ones of the round, without this peer, once they were asked.
    expected: Option<BTreeSet<PublicKey>>,
    is_asked: bool,
    waiting: BTreeMap<PublicKey, Waiting>,
}

#[derive(Debug)]
struct Waiting {
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
    /// When those that wait are enough: all that are expected at once, most of them after a moment in which the others come, and others
    /// after some rounds' time.
    fn ready_at(&self, times: &ComparisonTimes) -> Option<Moment> {
        let since = self.waiting.values().map(|waiting| waiting.since).min()?;
        let few = self.since.saturating_add(times.few);
        let Some(expected) = &self.expected else { return Some(few) };
        let came = self.waiting.iter().filter(|(from, _)| expected.contains(from));
        let mut came: Vec<Moment> = came.map(|(_, waiting)| waiting.since).collect();
        came.sort_unstable();
        let most = came.get(expected.len() / 2).map(|at| *at + times.again());
        let all = came.last().filter(|_| came.len() == expected.len()).copied();
        // Nobody else is live.
        let any = expected.is_empty().then(|| since + times.again());
        [Some(few), most, all, any].into_iter().flatten().min()
    }

    /// How many are most of those that are expected.
    fn majority(&self) -> usize {
        self.expected.as_ref().map_or(0, BTreeSet::len) / 2 + 1
    }

    fn late_at(&self, times: &ComparisonTimes) -> Option<Moment> {
        self.waiting.values().map(|waiting| waiting.since + times.wait).min()
    }

    /// Of those that are expected, if all told a sketch, the one that is nearest to most of them. Where some are silent, dishonest ones may
    /// be most of the others: then the one that is nearest to `own`. None where most are silent, unless `are_few_enough`. Returns those
    /// that told one, too.
    fn nearest(
        &mut self,
        own: Option<&ModelSketch>,
        are_few_enough: bool,
        late: &BTreeSet<PublicKey>,
    ) -> (Option<(PublicKey, ModelSketch)>, Vec<PublicKey>) {
        let majority = self.majority();
        // Who is silent is told when its sketch comes.
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let told: Vec<(PublicKey, ModelSketch)> =
            waiting.filter_map(|(from, waiting)| Some((from, waiting.sketch?))).collect();
        let is_expected = |from: &PublicKey| self.expected.as_ref().is_some_and(|of| of.contains(from));
        let mut compared: Vec<&(PublicKey, ModelSketch)> =
            told.iter().filter(|(from, _)| is_expected(from)).collect();
        if compared.len() < majority && are_few_enough {
            compared = told.iter().collect();
        }
        let is_enough = compared.len() >= majority || are_few_enough;
        let are_all = self.expected.as_ref().is_some_and(|expected| expected.len() <= compared.len());
        let cost = |sketch: &ModelSketch| {
            let mut distances: Vec<f64> = compared.iter().map(|(_, other)| sketch.distance(other)).collect();
            distances.sort_unstable_by(f64::total_cmp);
            let radius = distances[majority.min(distances.len()) - 1];
            match own.map(|own| own.distance(sketch)) {
                Some(to_own) if !are_all => (to_own, radius),
                to_own => (radius, to_own.unwrap_or_default()),
            }
        };
        let costs: Vec<_> =
            compared.iter().filter(|_| is_enough).map(|told| (cost(&told.1), *told)).collect();
        let least = costs.iter().map(|((first, _), _)| *first).min_by(f64::total_cmp);
        let near = costs.iter().filter(|((first, _), _)| least.is_some_and(|least| *first <= NEAR * least));
        let best = near.min_by(|((first, then), (from, _)), ((other_first, other_then), (other, _))| {
            let by_cost = first.total_cmp(other_first).then(then.total_cmp(other_then));
            late.contains(from).cmp(&late.contains(other)).then(by_cost)
        });
        let best = best.map(|(_, (from, sketch))| (*from, sketch.clone()));
        (best, told.into_iter().map(|(from, _)| from).collect())
    }
}

impl Comparison {
    /// Whether an offer may be compared: not while a model of its round is chosen, unless that does not come in time.
    pub(super) fn is_open_to(&self, now: Moment, from: &PublicKey, round: u64, patience: Duration) -> bool {
        let is_busy = self.step.is_some_and(|(of, step)| of == round && !step.is_stale(now, patience));
        !is_busy && !self.liars.contains(from)
    }

    /// One more sender has proven itself. What is chosen of its round keeps it out, unless that does not come in time.
    pub(super) fn wait(
        &mut self,
        now: Moment,
        from: PublicKey,
        round: u64,
        times: &ComparisonTimes,
    ) -> Turns {
        if !self.is_open_to(now, &from, round, times.patience) {
            return vec![(from, round, OfferTurn::Busy)];
        }
        // What was chosen of it has not come.
        self.note_late(now, times.patience);
        self.step.take_if(|(of, _)| *of == round);
        let turns = self.make_place(round);
        let offers = self.rounds.entry(round).or_insert_with(|| RoundOffers {
            since: now,
            expected: None,
            is_asked: false,
            waiting: BTreeMap::new(),
        });
        offers.waiting.insert(from, Waiting { since: now, sketch: None });
        turns
    }

    /// For offers of a round, where there are many: a round of which nobody waits goes, or the latest, which those that lie say first.
    fn make_place(&mut self, round: u64) -> Turns {
        if self.rounds.len() < ROUNDS_MAX || self.rounds.contains_key(&round) {
            return Turns::new();
        }
        let compared = self.step.map(|(of, _)| of);
        let others = self.rounds.iter().filter(|(of, _)| Some(**of) != compared);
        let least = others.max_by_key(|(of, offers)| (offers.waiting.is_empty(), **of)).map(|(of, _)| *of);
        let gone = least.and_then(|of| self.rounds.remove_entry(&of));
        let turns = gone
            .into_iter()
            .flat_map(|(of, offers)| offers.waiting.into_keys().map(move |from| (from, of, OfferTurn::Busy)));
        turns.collect()
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

    /// Who was chosen and has not sent its model by now is late.
    fn note_late(&mut self, now: Moment, patience: Duration) {
        let Some((round, _)) = self.step.filter(|(_, step)| step.is_stale(now, patience)) else { return };
        for (from, _) in self.pulled.keys().filter(|(_, of)| *of == round) {
            note(&mut self.late, *from);
        }
    }

    /// A sender's stream has ended, with its model or without. Who was waited for until then is late.
    pub(super) fn end(&mut self, from: PublicKey, round: u64) {
        let is_waited = self.step.is_some_and(|(of, _)| of == round);
        if self.take_pulled(from, round).is_some() && is_waited {
            note(&mut self.late, from);
        }
        if let Some(offers) = self.rounds.get_mut(&round) {
            offers.waiting.remove(&from);
        }
    }

    /// What is pulled of a sender is not waited for any more. Returns what it must be.
    fn take_pulled(&mut self, from: PublicKey, round: u64) -> Option<Option<(u64, ModelSketch)>> {
        let pulled = self.pulled.remove(&(from, round))?;
        if !self.pulled.keys().any(|(_, of)| *of == round) {
            self.step.take_if(|(of, step)| *of == round && matches!(step, ComparisonStep::Pulling { .. }));
        }
        Some(pulled)
    }

    /// Whether a model that came is the one that was chosen; `None` where none of that sender was. Who sent another one is believed no more.
    pub(super) fn is_chosen(
        &mut self,
        (now, patience): (Moment, Duration),
        from: PublicKey,
        round: u64,
        model: &SampledModel,
    ) -> Option<bool> {
        self.note_late(now, patience);
        let is_in_time = self.step.is_some_and(|(of, step)| of == round && !step.is_stale(now, patience));
        let pulled = self.take_pulled(from, round)?;
        let is_same = pulled.is_none_or(|(seed, sketch)| ModelSketch::of(model, seed).is_of_same(&sketch));
        if !is_same {
            note(&mut self.liars, from);
        }
        if is_in_time {
            self.late.remove(&from);
        }
        Some(is_same)
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
        self.note_late(now, times.patience);
        if let Some((round, ComparisonStep::Comparing { seed, until })) = self.step {
            let waits = |offers: &RoundOffers| offers.waiting.values().any(|of| of.sketch.is_none());
            if until <= now || !self.rounds.get(&round).is_some_and(waits) {
                turns = self.choose((now, times.few), round, (seed, own(seed).as_ref()));
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
        others.filter_map(|(_, offers)| offers.late_at(times)).chain(ready).min()
    }

    /// The latest round that is offered and whose aggregators were not asked whether they are live: they are asked from now on.
    fn ask_live(&mut self) -> Option<u64> {
        let is_due = |offers: &RoundOffers| !offers.is_asked && !offers.waiting.is_empty();
        let (round, offers) = self.rounds.iter_mut().rev().find(|(_, offers)| is_due(offers))?;
        offers.is_asked = true;
        Some(*round)
    }

    /// These aggregators of a round are live.
    fn on_live(&mut self, round: u64, live: BTreeSet<PublicKey>) {
        if let Some(offers) = self.rounds.get_mut(&round) {
            offers.expected = Some(live);
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

    fn choose(
        &mut self,
        (now, few): (Moment, Duration),
        round: u64,
        (seed, own): (u64, Option<&ModelSketch>),
    ) -> Turns {
        let (offers, late) = (self.rounds.get_mut(&round), &self.late);
        let nearest = |offers: &mut RoundOffers| {
            let is_nobody_live = offers.expected.as_ref().is_some_and(BTreeSet::is_empty);
            offers.nearest(own, is_nobody_live || offers.since.saturating_add(few) <= now, late)
        };
        let (best, told) = offers.map(nearest).unwrap_or_default();
        self.step = best.as_ref().map(|_| (round, ComparisonStep::Pulling { since: now }));
        let chosen = best.map(|(from, sketch)| {
            self.pulled.insert((from, round), Some((seed, sketch)));
            from
        });
        let turn = |from| if Some(from) == chosen { OfferTurn::Pull } else { OfferTurn::Busy };
        told.into_iter().map(|from| (from, round, turn(from))).collect()
    }
}

/// Adds a key, where there is room.
fn note(keys: &mut BTreeSet<PublicKey>, key: PublicKey) {
    if keys.len() < KEYS_MAX {
        keys.insert(key);
    }
}

impl SampledPeer {
    /// Whether an average is compared with others before it is pulled. The first model of a run is had by one alone.
    pub(super) fn is_compared(&self, from: PublicKey, task: SampledTask) -> bool {
        let SampledTask::Train { round } = task else { return false };
        let is_first = round <= 1 && self.round_of_many() <= 1;
        if !self.settings.is_robust() || from == self.peer || is_first {
            return false;
        }
        // In a round those that can be dialled aggregate, or those that cannot; both where the run has stood still.
        let (kind, is_still) = (self.aggregates(&from), self.joining.is_run_still(round));
        let is_alike = |roles: SampledRoles| roles.is_aggregator() && (is_still || roles.aggregates == kind);
        self.settings.n_aggregators.min(self.candidates(round, is_alike).len()) >= COMPARED_MIN
    }

    /// What comes next for a sender that has proven that it can have a model.
    pub(super) fn take_turn(&mut self, now: Moment, from: PublicKey, task: SampledTask) {
        let round = task.round();
        if !self.is_compared(from, task) {
            self.actions.push_back(SampledAction::Turn { to: from, task, turn: OfferTurn::Pull });
            return;
        }
        let turns = match self.compares_next(round) {
            Ok(()) => self.training.comparison.wait(now, from, round, &self.comparison_times()),
            Err(refusal) => vec![(from, round, refusal)],
        };
        self.tell_turns(turns);
        self.compare(now);
    }

    /// Whether averages of a round are waited for: not of one that others train, and not now of one that most are not near. One dishonest
    /// peer would lead this one there by itself. Where the run is still, any round may be the next.
    fn compares_next(&self, round: u64) -> Result<(), OfferTurn> {
        if self.joining.n_silences > 0 {
            return Ok(());
        }
        let within = (self.settings.activity_window, self.round_max());
        let own = self.registry.place(&self.peer, round, within, |roles| roles.trains);
        if own.is_some_and(|own| own >= 2 * self.settings.sample_size) {
            return Err(OfferTurn::Declined);
        }
        // Its own view may show it soon.
        if self.is_far(round) { Err(OfferTurn::Busy) } else { Ok(()) }
    }

    /// What the averages that wait allow next.
    pub(super) fn compare(&mut self, now: Moment) {
        let (over, times) = (self.training.round(), self.comparison_times());
        let mut turns = self.training.comparison.dismiss(over);
        self.look_for_live(now);
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

    /// Asks the aggregators of a round that is offered whether they are live: those are waited for.
    fn look_for_live(&mut self, now: Moment) {
        if let Some(sampling) = &self.compared {
            let sample = sampling.sample().or_else(|| sampling.retry_at().map(|_| Vec::new()));
            if let Some(sample) = sample {
                // Its own average needs no offer.
                let live = sample.into_iter().filter(|live| *live != self.peer).collect();
                self.training.comparison.on_live(sampling.round, live);
                self.compared = None;
            }
        }
        if self.compared.is_none()
            && let Some(round) = self.training.comparison.ask_live()
        {
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
        // Two rounds' time: a dishonest one may be a round ahead of honest ones.
        let waits = (self.patience(), self.some_rounds() / 2);
        ComparisonTimes::new(self.settings.ping_timeout, self.round_duration(), waits)
    }

    /// Whether a model that came is the one whose sketch was told.
    pub(super) fn is_chosen(
        &mut self,
        now: Moment,
        from: PublicKey,
        task: SampledTask,
        model: &SampledModel,
    ) -> bool {
        match task {
            SampledTask::Train { round } => {
                let times = (now, self.patience());
                let chosen = self.training.comparison.is_chosen(times, from, round, model);
                chosen.unwrap_or_else(|| !self.is_compared(from, task))
            }
            SampledTask::Aggregate { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests;
