//! An epoch on its aggregator: who contributes, when the gradients are due, which of them count, and
//! their mean (DeDLOC §3.1).
//!
//! Contributors accumulate at their own pace and report how many samples they have. Once reports and
//! contributions together reach the target batch size, the gradients are due; the round closes when
//! everybody who reported has delivered or the deadline passes, and the mean over all samples makes one
//! optimizer step. A contribution counts only after it was persisted, so that what a peer was told is
//! accepted survives a crash. A round with fewer samples than the target goes on; nothing is dropped.
//! Where peers are not trusted, [`crate::robust`] takes the place of the mean.
//!
//! In a run that anybody may join, keys cost nothing and addresses do. So what is shared there, seats, places for
//! transfers, the time for which others wait, the weight in a step, is shared by [`AddressGroup`] and not by key.

mod contribution;
#[cfg(test)]
mod fuzz;
mod operation;
mod quorum;
mod shares;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::contribute::{DeviceKind, Report};
use barnraise_protocol::gradient::{Accepted, Refusal};

use crate::robust::{Aggregate, Aggregation, Contributions, PeerOutcome};
use crate::{Moment, PeerKey};
use contribution::{InFlight, Standing};
pub use operation::{ContributorState, RoundLimits};
use quorum::Patience;
pub use shares::{AddressGroup, CONTRIBUTIONS_MAX, TRANSFER_BYTES_PER_SECOND_MIN};
use waiting::Waiting;

/// Most peers whose standing is remembered after they left.
const STANDINGS_MAX: usize = 10_000;

/// What a round needs to know of its run.
#[derive(Debug, Clone)]
pub struct RoundConfig {
    /// Samples of one optimizer step, over all contributors.
    pub target_batch_size: u32,
    /// Values of a gradient.
    pub n_parameters: usize,
    /// How gradients travel.
    pub codec: TensorCodec,
    /// How they may travel over slow links, too.
    pub slow_codec: Option<TensorCodec>,
    /// Samples of one pass. Of contributions with fewer, a peer has one or two in an epoch: what is left when
    /// gradients are due.
    pub micro_batch_size: u32,
    /// Most samples that one contribution may claim.
    pub contribution_samples_max: u32,
    /// Fastest speed that is believed of one peer.
    pub samples_per_second_max: u32,
    /// How long a round waits for who reported and does not deliver.
    pub collect_timeout: Duration,
    /// Most contributions that are being received or stored at once.
    pub in_flight_max: usize,
    /// Most contributors at once.
    pub contributors_max: usize,
    /// Whether anybody may take part: then what is shared is shared by address, and else by key.
    pub is_open: bool,
    /// How contributions become one gradient.
    pub aggregation: Aggregation,
    /// Largest Euclidean length of a gradient that counts. No honest gradient of a run that goes well comes near
    /// it; without it one finite value could be as large as floats get, and the sum of two no number.
    pub gradient_norm_max: f32,
}

/// What the driver does next.
#[derive(Debug, Clone, PartialEq)]
pub enum RoundAction {
    /// Store the contribution, then call [`AveragingRound::on_persisted`] or
    /// [`AveragingRound::on_persist_failed`].
    Persist {
        /// Which.
        ticket: Ticket,
        /// Its epoch.
        epoch: u64,
        /// Its place in the order in which the epoch's contributions are added up.
        sequence: u32,
        /// Where it comes from, to be stored with it: [`AveragingRound::restore`] wants it again.
        group: AddressGroup,
    },
    /// Tell its sender that it counts.
    Acknowledge(Ticket, Accepted),
    /// Tell its sender why it does not count.
    Refuse(Ticket, Refusal),
    /// Tell all contributors that the gradients of this epoch are due.
    RequestGradients(u64),
    /// Tell all contributors to compute on this epoch: it is new, or its round goes on.
    Announce(u64),
    /// Its transfer takes too long, or gives way to another: end it. It does not count.
    Abandon(Ticket),
    /// A contributor's seat is given to another: its session ends, and it is told why.
    Evict(PeerKey),
    /// Make one optimizer step, then call [`AveragingRound::on_stepped`].
    Step(MeanOfRound),
}

/// A contribution that is being received or stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The outcome of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct MeanOfRound {
    /// The epoch whose parameters were used.
    pub epoch: u64,
    /// One gradient of all contributions, `[n_parameters]`: their mean over samples, or what the run's
    /// [`Aggregation`] makes of them.
    pub gradient: Vec<f32>,
    /// Samples behind it.
    pub n_samples: u64,
    /// Sequence numbers of the contributions behind it, in the order in which they were added up.
    pub sequences: Vec<u32>,
    /// Mean loss of the samples; where peers are not trusted, the median peer's.
    pub loss: f32,
    /// How the gradient was made: who repeats the step needs the same.
    pub aggregation: Aggregation,
    /// How far off each peer was, where the aggregation looks.
    pub outcomes: Vec<PeerOutcome>,
}

/// Why a peer could not join or report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// No room.
    #[error("this backbone has {0} contributors and takes no more")]
    Full(usize),
    /// A report without a session.
    #[error("join the run before reporting")]
    NotJoined,
    /// More than one contribution can carry.
    #[error("{got} samples reported, one contribution carries at most {max}")]
    TooManySamples {
        /// Limit.
        max: u32,
        /// Reported.
        got: u32,
    },
}

#[derive(Debug)]
struct Contributor {
    device: DeviceKind,
    group: AddressGroup,
    /// Reported for the current epoch and not yet offered.
    outstanding: u32,
    samples_per_second: f32,
    /// An epoch waited for it in vain: until it says something, none does.
    is_silent: bool,
    /// Of its samples when gradients became due, and what came of them since.
    claimed: u32,
    delivered: u32,
    /// There was no place for what it offered, which is not its fault.
    was_put_off: bool,
    /// How often gradients were due, and none of it counted since.
    n_asked_in_vain: u32,
    /// The newest epoch for which something of it counted.
    counted_in: Option<u64>,
}

/// What peers that aggregate with this one have for the same step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// Samples.
    pub n_samples: u64,
    /// One of them found that there is enough: whatever is here is collected.
    pub is_closing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Accumulating,
    Collecting { deadline: Moment },
    Stepping,
}

/// The round of the current epoch. One object lives through all epochs of a run.
#[derive(Debug)]
pub struct AveragingRound {
    config: RoundConfig,
    epoch: u64,
    phase: Phase,
    contributors: BTreeMap<PeerKey, Contributor>,
    seats: shares::Seats,
    standings: BTreeMap<PeerKey, Standing>,
    in_flight: BTreeMap<Ticket, InFlight>,
    next_ticket: u64,
    /// Contributions of this epoch and of the one before: a repeated offer is told from a new one even
    /// when the acknowledgement was lost together with the news of the step.
    counted: BTreeSet<(PeerKey, u64)>,
    counted_before: BTreeSet<(PeerKey, u64)>,
    contributions: Contributions,
    elsewhere: Elsewhere,
    /// Of each peer.
    counted_samples: BTreeMap<PeerKey, u64>,
    /// Contributions of the epoch by who sent them.
    tallies: shares::Tallies,
    waiting: Waiting,
    patience: Patience,
    next_sequence: u32,
    sequences: Vec<u32>,
    /// No step is made until the operator says so ([`Self::pause`]).
    is_paused: bool,
    /// Contributions since then.
    taken_in_pause: usize,
    actions: VecDeque<RoundAction>,
}

impl AveragingRound {
    /// A round at `epoch`, empty.
    pub fn new(config: RoundConfig, epoch: u64) -> Self {
        let contributions = Contributions::new(config.aggregation, config.n_parameters);
        Self {
            config,
            epoch,
            phase: Phase::Accumulating,
            contributors: BTreeMap::new(),
            seats: shares::Seats::default(),
            standings: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next_ticket: 0,
            counted: BTreeSet::new(),
            counted_before: BTreeSet::new(),
            contributions,
            elsewhere: Elsewhere::default(),
            counted_samples: BTreeMap::new(),
            tallies: shares::Tallies::default(),
            waiting: Waiting::default(),
            patience: Patience::Unneeded,
            next_sequence: 0,
            sequences: Vec::new(),
            is_paused: false,
            taken_in_pause: 0,
            actions: VecDeque::new(),
        }
    }

    /// As it was made.
    pub fn config(&self) -> &RoundConfig {
        &self.config
    }

    /// The current epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Samples of the coming step: counted, on their way, and reported.
    pub fn n_samples(&self) -> u64 {
        self.contributions.n_samples() + self.n_in_flight_samples() + self.n_outstanding()
    }

    /// Whether there is enough for a step: what is reported is collected, or was.
    pub fn is_closing(&self) -> bool {
        match self.phase {
            Phase::Accumulating => false,
            Phase::Collecting { .. } => !self.is_paused,
            Phase::Stepping => true,
        }
    }

    /// What others have for the same step, who average with this peer. The step is then of what is collected here,
    /// which may be nothing.
    pub fn on_elsewhere(&mut self, now: Moment, elsewhere: Elsewhere) {
        if self.elsewhere != elsewhere {
            self.elsewhere = elsewhere;
            self.advance(now);
        }
    }

    /// Contributors with a session.
    pub fn n_contributors(&self) -> usize {
        self.contributors.len()
    }

    /// Sum of the contributors' speeds.
    pub fn samples_per_second(&self) -> f32 {
        // Not `sum`: that of nobody is -0.0.
        self.contributors.values().fold(0.0, |sum, contributor| sum + contributor.samples_per_second)
    }

    /// Device of each contributor.
    pub fn devices(&self) -> impl Iterator<Item = DeviceKind> + '_ {
        self.contributors.values().map(|contributor| contributor.device)
    }

    /// A peer opened a session. A second session of the same peer takes the place of the first.
    ///
    /// Where all seats are taken, one of the address that has the most may go to a peer of one that has fewer.
    pub fn on_join(
        &mut self,
        peer: PeerKey,
        device: DeviceKind,
        group: AddressGroup,
    ) -> Result<(), SessionError> {
        // Where contributors are known it does not matter where they come from.
        let group = if self.config.is_open { group } else { AddressGroup::UNKNOWN };
        let n = self.contributors.len();
        if n >= self.config.contributors_max && !self.contributors.contains_key(&peer) {
            let gone = self.seat_for(group).ok_or(SessionError::Full(n))?;
            self.unseat(&gone);
            self.actions.push_back(RoundAction::Evict(gone));
        }
        self.unseat(&peer);
        self.seats.take(group);
        self.contributors.insert(peer, Contributor::new(device, group));
        Ok(())
    }

    /// A session ended. What the peer had delivered still counts; what it only reported does not.
    pub fn on_leave(&mut self, now: Moment, peer: &PeerKey) {
        self.unseat(peer);
        self.advance(now);
    }

    fn unseat(&mut self, peer: &PeerKey) {
        self.note_leaving(peer);
        if let Some(gone) = self.contributors.remove(peer) {
            self.seats.give_back(gone.group);
        }
    }

    /// A contributor says how many samples it has accumulated. A report of another epoch is ignored: it
    /// crossed the announcement of the new one.
    pub fn on_report(&mut self, now: Moment, peer: &PeerKey, report: &Report) -> Result<(), SessionError> {
        let max = self.config.contribution_samples_max;
        let speed_max = self.config.samples_per_second_max as f32;
        let contributor = self.contributors.get_mut(peer).ok_or(SessionError::NotJoined)?;
        if report.n_samples > max {
            return Err(SessionError::TooManySamples { max, got: report.n_samples });
        }
        // A NaN becomes 0 by `max`.
        contributor.samples_per_second = report.samples_per_second.max(0.0).min(speed_max);
        contributor.is_silent &= report.n_samples == 0;
        let collecting = matches!(self.phase, Phase::Collecting { .. });
        let finished = collecting && contributor.outstanding == 0;
        if report.epoch == self.epoch && !finished {
            contributor.outstanding = report.n_samples;
            self.advance(now);
        }
        Ok(())
    }

    /// One gradient of what was counted so far; zeros while nothing was.
    ///
    /// The driver needs it only to repeat a step after a restart; else the round says when to step.
    pub fn mean(&self) -> MeanOfRound {
        let n_samples = self.contributions.n_samples();
        let Aggregate { gradient, loss, outcomes } = match n_samples {
            0 => Aggregate { gradient: vec![0.0; self.config.n_parameters], loss: 0.0, outcomes: Vec::new() },
            _ => self.contributions.aggregate(),
        };
        MeanOfRound {
            epoch: self.epoch,
            gradient,
            n_samples,
            sequences: self.sequences.clone(),
            loss,
            aggregation: self.config.aggregation,
            outcomes,
        }
    }

    /// Contributions become one gradient in another way from now on: a step that is repeated after a restart was
    /// made under the configuration of its time. Does nothing once the epoch has a contribution.
    pub fn aggregate_by(&mut self, aggregation: Aggregation) {
        if self.contributions.n_samples() == 0 && aggregation != self.config.aggregation {
            self.config.aggregation = aggregation;
            self.contributions = Contributions::new(aggregation, self.config.n_parameters);
        }
    }

    /// The optimizer step was made: contributors go on with the new epoch.
    pub fn on_stepped(&mut self, now: Moment) {
        self.begin(now, self.epoch + 1);
    }

    /// This peer has the parameters of another epoch from elsewhere: contributors go on with that. What was counted
    /// here is counted again by [`Self::restore`], if it is not in those parameters.
    pub fn on_moved(&mut self, now: Moment, epoch: u64) {
        let tickets: Vec<Ticket> = self.in_flight.keys().copied().collect();
        tickets.into_iter().for_each(|ticket| self.give_back(ticket));
        self.begin(now, epoch);
    }

    /// What was restored may be enough for a step.
    pub fn resume(&mut self, now: Moment) {
        self.advance(now);
    }

    /// There will be no step yet with what was collected: contributors go on with the same epoch.
    pub fn reopen(&mut self, now: Moment) {
        self.settle_claims(now);
        self.phase = Phase::Accumulating;
        self.announce();
        self.advance(now);
    }

    fn begin(&mut self, now: Moment, epoch: u64) {
        self.settle_claims(now);
        self.waiting.begin(now);
        self.epoch = epoch;
        self.phase = Phase::Accumulating;
        self.contributions.clear();
        self.tallies.clear();
        // Until they say what they have for this one.
        self.elsewhere = Elsewhere::default();
        self.counted_samples.clear();
        self.patience = Patience::Unneeded;
        self.next_sequence = 0;
        self.sequences.clear();
        self.counted_before = std::mem::take(&mut self.counted);
        for contributor in self.contributors.values_mut() {
            contributor.outstanding = 0;
        }
        self.announce();
        self.advance(now);
    }

    /// Ends the wait for peers that reported and do not deliver, or said nothing at all, and for transfers that take
    /// too long, once [`Self::next_deadline`] has passed.
    pub fn on_timeout(&mut self, now: Moment) {
        self.abandon_overdue(now);
        if self.is_paused {
            return;
        }
        match self.phase {
            Phase::Accumulating => {
                if self.loses_patience(now) {
                    self.advance(now);
                }
            }
            Phase::Collecting { deadline } => {
                self.give_up_waiting(now, now >= deadline);
                if now >= deadline {
                    // What is still being stored keeps the round open: look again later.
                    self.phase = Phase::Collecting { deadline: now + self.config.collect_timeout };
                }
                self.advance(now);
            }
            Phase::Stepping => {}
        }
    }

    /// When [`Self::on_timeout`] is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        let of_phase = match self.phase {
            _ if self.is_paused => None,
            Phase::Collecting { deadline } => {
                Some(self.waits_until().map_or(deadline, |at| at.min(deadline)))
            }
            Phase::Accumulating => match self.patience {
                Patience::Until(deadline) => Some(deadline),
                Patience::Unneeded | Patience::Over => None,
            },
            Phase::Stepping => None,
        };
        self.transfers_until().into_iter().chain(of_phase).min()
    }

    /// Whether there is something to do.
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// What to do next, until there is nothing.
    pub fn poll_action(&mut self) -> Option<RoundAction> {
        self.actions.pop_front()
    }

    fn n_outstanding(&self) -> u64 {
        self.contributors.values().map(|contributor| u64::from(contributor.outstanding)).sum()
    }

    fn n_in_flight_samples(&self) -> u64 {
        self.in_flight.values().map(|flight| u64::from(flight.offer.n_samples)).sum()
    }

    /// Makes every transition that the numbers allow.
    fn advance(&mut self, now: Moment) {
        if self.is_paused {
            return;
        }
        if self.phase == Phase::Accumulating && (self.is_enough(now) || self.elsewhere.is_closing) {
            self.phase = Phase::Collecting { deadline: now + self.config.collect_timeout };
            self.note_claims(now);
            self.actions.push_back(RoundAction::RequestGradients(self.epoch));
        }
        let Phase::Collecting { .. } = self.phase else { return };
        self.note_last(now);
        if self.n_outstanding() > 0 || !self.in_flight.is_empty() {
            return;
        }
        self.settle_claims(now);
        // All that is left of the claims is counted.
        if self.is_enough(now) || self.elsewhere.is_closing {
            self.phase = Phase::Stepping;
            self.actions.push_back(RoundAction::Step(self.mean()));
        } else {
            // Somebody left or stalled with samples that were counted on: the others make up for them.
            self.phase = Phase::Accumulating;
            // Elsewhere all reports go on counting until the step is made.
            let is_clipped = matches!(self.config.aggregation, Aggregation::CenteredClip { .. });
            if !is_clipped && self.is_among_strangers() {
                self.patience = Patience::Unneeded;
            }
            self.announce();
        }
    }

    /// What is remembered of a peer. One that left makes room for a new one.
    fn standing(&mut self, now: Moment, peer: &PeerKey) -> &mut Standing {
        if self.standings.len() >= STANDINGS_MAX && !self.standings.contains_key(peer) {
            let gone = self.standings.keys().find(|key| !self.contributors.contains_key(*key)).cloned();
            if let Some(gone) = gone {
                self.standings.remove(&gone);
            }
        }
        let fresh = Standing::new(now, self.config.contribution_samples_max);
        self.standings.entry(peer.clone()).or_insert(fresh)
    }
}
