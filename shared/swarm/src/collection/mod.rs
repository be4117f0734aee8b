//! Collection round: an aggregator collects the gradients of one epoch from its contributors and takes their mean
//! (DeDLOC §3.1).
//!
//! Contributors accumulate at their own pace and report how many samples they have. Once reports and
//! contributions together reach the target batch size, the gradients are due. The round closes when every
//! contributor that reported has delivered, or when the deadline passes; the mean over all samples makes one
//! optimizer step. A contribution is acknowledged only after it was persisted, so that it survives a crash.
//! A round with fewer samples than the target goes on; nothing is dropped.
//! Where peers are not trusted, [`crate::robust`] replaces the mean.
//!
//! In a run that anybody may join, keys cost nothing and addresses do. There, resources are shared by
//! [`AddressGroup`] and not by key: seats, transfer slots, waiting time and weight in a step.

mod collected;
mod contribution;
#[cfg(test)]
mod fuzz;
mod operation;
mod quorum;
mod shares;
mod stragglers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::Refusal;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::contribute::{DeviceKind, Report};
use barnraise_protocol::gradient::{Accepted, ContributionRefusal};

use crate::AddressGroup;
use crate::robust::{Aggregation, Contributions};
use crate::{Moment, PeerKey};
pub use collected::{Collected, CollectedMean};
pub use contribution::MeasuredGradient;
use contribution::{ClaimAllowance, InFlightContribution};
pub use operation::{CollectionLimits, ContributorState};
use quorum::Patience;
pub use shares::{CONTRIBUTIONS_MAX, TRANSFER_BYTES_PER_SECOND_MIN};
use stragglers::StragglerTracker;

/// Most peers whose claim allowance is remembered after they left.
const CLAIM_ALLOWANCES_MAX: usize = 10_000;

/// Settings of a round, from the run's configuration.
#[derive(Debug, Clone)]
pub struct CollectionConfig {
    /// Samples of one optimizer step, over all contributors.
    pub target_batch_size: u32,
    /// Values of a gradient.
    pub n_parameters: usize,
    /// Encoding of gradients.
    pub codec: TensorCodec,
    /// Encoding that is accepted as well, for slow links.
    pub slow_codec: Option<TensorCodec>,
    /// Samples of one pass. A peer may send only a few contributions with fewer samples in an epoch: the remainder
    /// when gradients are due.
    pub micro_batch_size: u32,
    /// Most samples that one contribution may claim.
    pub contribution_samples_max: u32,
    /// Fastest speed that is believed of one peer.
    pub samples_per_second_max: u32,
    /// How long a round waits for contributors that reported and have not delivered.
    pub collect_timeout: Duration,
    /// Most contributions that are being received or stored at once.
    pub in_flight_max: usize,
    /// Most contributors at once.
    pub contributors_max: usize,
    /// Whether anybody may take part: then resources are shared by address, otherwise by key.
    pub is_open: bool,
    /// How contributions become one gradient.
    pub aggregation: Aggregation,
    /// Largest Euclidean norm of a gradient that counts. No honest gradient of a healthy run comes near it.
    /// Without it a finite value could be so large that the sum of two overflows.
    pub gradient_norm_max: f32,
}

/// Next action of the round's driver.
#[derive(Debug, Clone, PartialEq)]
pub enum CollectionAction {
    /// Store the contribution, then call [`CollectionRound::on_persisted`] or
    /// [`CollectionRound::on_persist_failed`].
    Persist {
        /// The contribution.
        ticket: Ticket,
        /// Its epoch.
        epoch: u64,
        /// Its index in the order in which the epoch's contributions are summed.
        sequence: u32,
        /// Address group of its sender, to be stored with it for [`CollectionRound::restore`].
        group: AddressGroup,
    },
    /// Acknowledge it to its sender.
    Acknowledge(Ticket, Accepted),
    /// Refuse it to its sender.
    Refuse(Ticket, ContributionRefusal),
    /// Notify all contributors that the gradients of this epoch are due.
    RequestGradients(u64),
    /// Notify all contributors that they compute on this epoch: it is new, or its round goes on.
    Announce(u64),
    /// Cancel its transfer: it takes too long, or its slot is needed for another. It does not count.
    Abandon(Ticket),
    /// End the session of a contributor whose seat goes to another, with the reason.
    Evict(PeerKey),
    /// Make one optimizer step, then call [`CollectionRound::on_stepped`].
    Step(CollectedMean),
}

/// A contribution that is being received or stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Why a peer could not join or report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// All seats are taken.
    #[error("this backbone has {0} contributors and takes no more")]
    Full(usize),
    /// The peer has no session.
    #[error("join the run before reporting")]
    NotJoined,
    /// More samples than one contribution may have.
    #[error("{got} samples reported, one contribution carries at most {max}")]
    TooManySamples {
        /// Limit.
        max: u32,
        /// Reported.
        got: u32,
    },
}

impl From<SessionError> for Refusal {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Full(n) => Self::Full { n_contributors: n.try_into().unwrap_or(u32::MAX) },
            SessionError::NotJoined => Self::NotJoined,
            SessionError::TooManySamples { max, got } => Self::TooManySamples { max, got },
        }
    }
}

#[derive(Debug)]
struct ContributorSession {
    device: DeviceKind,
    group: AddressGroup,
    /// Reported for the current epoch and not yet offered.
    outstanding: u32,
    /// The last contribution that it offered: a report of that one has crossed the offer.
    offered: Option<u64>,
    samples_per_second: f32,
    /// An epoch waited for it in vain: no later one waits until it reports or offers.
    is_silent: bool,
    /// Its samples when gradients became due, and how many of them it has delivered since.
    claimed: u32,
    delivered: u32,
    /// Its offer was refused for lack of a transfer slot, which is not its fault.
    was_put_off: bool,
    /// How many times gradients were due since its last contribution that counted.
    n_unanswered_requests: u32,
    /// The newest epoch in which a contribution of it counted.
    counted_in: Option<u64>,
}

/// Samples that the other aggregators have for the same step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OtherAggregators {
    /// Samples.
    pub n_samples: u64,
    /// One of them has found that there are enough: this one collects what its contributors have.
    pub is_closing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CollectionPhase {
    Accumulating,
    Collecting { deadline: Moment },
    Stepping,
}

/// The round of the current epoch. One object lives through all epochs of a run.
#[derive(Debug)]
pub struct CollectionRound {
    config: CollectionConfig,
    epoch: u64,
    phase: CollectionPhase,
    contributors: BTreeMap<PeerKey, ContributorSession>,
    seats: shares::Seats,
    claim_allowances: BTreeMap<PeerKey, ClaimAllowance>,
    in_flight: BTreeMap<Ticket, InFlightContribution>,
    next_ticket: u64,
    /// Contributions of this epoch and of the one before. They tell a repeated offer from a new one even when the
    /// acknowledgement and the announcement of the step were both lost.
    counted: BTreeSet<(PeerKey, u64)>,
    counted_before: BTreeSet<(PeerKey, u64)>,
    contributions: Arc<Contributions>,
    /// The mean of the contributions is due, as the last action.
    is_mean_due: bool,
    other_aggregators: OtherAggregators,
    /// By peer.
    counted_samples: BTreeMap<PeerKey, u64>,
    /// Contributions of the epoch by peer and by address.
    counts: shares::EpochCounts,
    stragglers: StragglerTracker,
    patience: Patience,
    next_sequence: u32,
    sequences: Vec<u32>,
    /// No step is made until the operator resumes the run ([`Self::pause`]).
    is_paused: bool,
    /// The driver makes a step, or takes other parameters ([`Self::hold`]).
    is_held: bool,
    /// Contributions counted since the pause began.
    n_accepted_in_pause: usize,
    actions: VecDeque<CollectionAction>,
}

impl CollectionRound {
    /// A round at `epoch`, empty.
    pub fn new(config: CollectionConfig, epoch: u64) -> Self {
        let contributions = Arc::new(Contributions::new(config.aggregation, config.n_parameters));
        Self {
            config,
            epoch,
            phase: CollectionPhase::Accumulating,
            contributors: BTreeMap::new(),
            seats: shares::Seats::default(),
            claim_allowances: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next_ticket: 0,
            counted: BTreeSet::new(),
            counted_before: BTreeSet::new(),
            contributions,
            is_mean_due: false,
            other_aggregators: OtherAggregators::default(),
            counted_samples: BTreeMap::new(),
            counts: shares::EpochCounts::default(),
            stragglers: StragglerTracker::default(),
            patience: Patience::Unneeded,
            next_sequence: 0,
            sequences: Vec::new(),
            is_paused: false,
            is_held: false,
            n_accepted_in_pause: 0,
            actions: VecDeque::new(),
        }
    }

    /// Its settings.
    pub fn config(&self) -> &CollectionConfig {
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

    /// Whether there are enough samples for a step: they are being collected, or were.
    pub fn is_closing(&self) -> bool {
        match self.phase {
            CollectionPhase::Accumulating => false,
            CollectionPhase::Collecting { .. } => !self.is_paused,
            CollectionPhase::Stepping => true,
        }
    }

    /// The other aggregators' samples for the same step. This peer's part of the step has the samples collected here,
    /// which may be none.
    pub fn on_other_aggregators(&mut self, now: Moment, other_aggregators: OtherAggregators) {
        if self.other_aggregators != other_aggregators {
            self.other_aggregators = other_aggregators;
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

    /// A peer opened a session. A second session of the same peer replaces the first.
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
            self.actions.push_back(CollectionAction::Evict(gone));
        }
        self.unseat(&peer);
        self.seats.take(group);
        self.contributors.insert(peer, ContributorSession::new(device, group));
        Ok(())
    }

    /// A session ended. Samples that the peer delivered still count; samples that it only reported do not.
    pub fn on_leave(&mut self, now: Moment, peer: &PeerKey) {
        self.unseat(peer);
        self.advance(now);
    }

    fn unseat(&mut self, peer: &PeerKey) {
        self.record_departure(peer);
        if let Some(gone) = self.contributors.remove(peer) {
            self.seats.give_back(gone.group);
        }
    }

    /// A contributor reports how many samples it has accumulated. A report of another epoch is ignored: it
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
        let collecting = matches!(self.phase, CollectionPhase::Collecting { .. });
        let finished = collecting && contributor.outstanding == 0;
        let is_offered = contributor.offered.is_some_and(|offered| report.contribution_id <= offered);
        if report.epoch == self.epoch && !finished && !is_offered {
            contributor.outstanding = report.n_samples;
            self.advance(now);
        }
        Ok(())
    }

    /// Changes the aggregation rule: a step that is repeated after a restart needs the rule under which it was made.
    /// Does nothing once the epoch has a contribution.
    pub fn aggregate_by(&mut self, aggregation: Aggregation) {
        if self.contributions.n_samples() == 0 && aggregation != self.config.aggregation {
            self.config.aggregation = aggregation;
            self.contributions = Arc::new(Contributions::new(aggregation, self.config.n_parameters));
        }
    }

    /// The optimizer step was made: contributors continue with the new epoch.
    pub fn on_stepped(&mut self, now: Moment) {
        self.begin(now, self.epoch + 1);
    }

    /// This peer has fetched the parameters of another epoch: contributors continue with that one. Contributions that
    /// are not in those parameters are counted again by [`Self::restore`].
    pub fn on_moved(&mut self, now: Moment, epoch: u64) {
        let tickets: Vec<Ticket> = self.in_flight.keys().copied().collect();
        tickets.into_iter().for_each(|ticket| self.give_back(ticket));
        self.begin(now, epoch);
    }

    /// All contributions are restored: checks whether they suffice for a step.
    pub fn resume(&mut self, now: Moment) {
        self.advance(now);
    }

    /// The collected gradients make no step yet: contributors continue with the same epoch.
    pub fn reopen(&mut self, now: Moment) {
        self.settle_claims(now);
        self.is_mean_due = false;
        self.phase = CollectionPhase::Accumulating;
        self.announce();
        self.advance(now);
    }

    fn begin(&mut self, now: Moment, epoch: u64) {
        self.is_held = false;
        self.settle_claims(now);
        self.stragglers.begin(now);
        self.epoch = epoch;
        self.phase = CollectionPhase::Accumulating;
        self.is_mean_due = false;
        Arc::make_mut(&mut self.contributions).clear();
        self.counts.clear();
        // Until they report their samples for this epoch.
        self.other_aggregators = OtherAggregators::default();
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

    /// Once [`Self::next_deadline`] has passed: ends the wait for peers that have not delivered or not reported, and
    /// cancels transfers that take too long.
    pub fn on_timeout(&mut self, now: Moment) {
        self.abandon_overdue(now);
        if self.is_paused || self.is_held {
            return;
        }
        match self.phase {
            CollectionPhase::Accumulating => {
                if self.end_patience(now) {
                    self.advance(now);
                }
            }
            CollectionPhase::Collecting { deadline } => {
                self.give_up_waiting(now, now >= deadline);
                if now >= deadline {
                    // Contributions that are still being stored keep the round open: check again later.
                    self.phase = CollectionPhase::Collecting { deadline: now + self.config.collect_timeout };
                }
                self.advance(now);
            }
            CollectionPhase::Stepping => {}
        }
    }

    /// When [`Self::on_timeout`] is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        let of_phase = match self.phase {
            _ if self.is_paused || self.is_held => None,
            CollectionPhase::Collecting { deadline } => {
                Some(self.waits_until().map_or(deadline, |at| at.min(deadline)))
            }
            CollectionPhase::Accumulating => match self.patience {
                Patience::Until(deadline) => Some(deadline),
                Patience::Unneeded | Patience::Over => None,
            },
            CollectionPhase::Stepping => None,
        };
        self.transfers_until().into_iter().chain(of_phase).min()
    }

    /// Whether [`Self::poll_action`] has an action.
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty() || self.is_mean_due
    }

    /// Next action of the driver; `None` once there is none.
    pub fn poll_action(&mut self) -> Option<CollectionAction> {
        self.actions
            .pop_front()
            .or_else(|| self.poll_collected().map(|due| CollectionAction::Step(due.mean())))
    }

    /// The same, unless the next action stores something or makes a step: for a driver that does either already.
    pub fn poll_message(&mut self) -> Option<CollectionAction> {
        self.actions.pop_front_if(|action| !matches!(action, CollectionAction::Persist { .. }))
    }

    fn n_outstanding(&self) -> u64 {
        self.contributors.values().map(|contributor| u64::from(contributor.outstanding)).sum()
    }

    fn n_in_flight_samples(&self) -> u64 {
        self.in_flight.values().map(|flight| u64::from(flight.offer.n_samples)).sum()
    }

    /// Makes every transition that the sample counts allow.
    fn advance(&mut self, now: Moment) {
        if self.is_paused || self.is_held {
            return;
        }
        if self.phase == CollectionPhase::Accumulating
            && (self.is_enough(now) || self.other_aggregators.is_closing)
        {
            self.phase = CollectionPhase::Collecting { deadline: now + self.config.collect_timeout };
            self.record_claims(now);
            self.actions.push_back(CollectionAction::RequestGradients(self.epoch));
        }
        let CollectionPhase::Collecting { .. } = self.phase else { return };
        self.update_stragglers(now);
        if self.n_outstanding() > 0 || !self.in_flight.is_empty() {
            return;
        }
        self.settle_claims(now);
        // No claim is left: all samples are counted.
        if self.is_enough(now) || self.other_aggregators.is_closing {
            self.phase = CollectionPhase::Stepping;
            self.is_mean_due = true;
        } else {
            // A contributor left or stalled with samples that were expected: the others make up for them.
            self.phase = CollectionPhase::Accumulating;
            // Otherwise all reports count until the step is made.
            let is_clipped = matches!(self.config.aggregation, Aggregation::CenteredClip { .. });
            if !is_clipped && self.is_among_strangers() {
                self.patience = Patience::Unneeded;
            }
            self.announce();
        }
    }

    /// Claim allowance of a peer. Where there are too many, that of a peer that left is dropped.
    fn claim_allowance(&mut self, now: Moment, peer: &PeerKey) -> &mut ClaimAllowance {
        if self.claim_allowances.len() >= CLAIM_ALLOWANCES_MAX && !self.claim_allowances.contains_key(peer) {
            let gone =
                self.claim_allowances.keys().find(|key| !self.contributors.contains_key(*key)).cloned();
            if let Some(gone) = gone {
                self.claim_allowances.remove(&gone);
            }
        }
        let fresh = ClaimAllowance::new(now, self.config.contribution_samples_max);
        self.claim_allowances.entry(peer.clone()).or_insert(fresh)
    }
}
