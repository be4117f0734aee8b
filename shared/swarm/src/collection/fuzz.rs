//! Any sequence of events from contributors, the disk, other backbones and an operator: no contribution counts
//! twice, a step has exactly the acknowledged contributions, and nothing is kept for ever.

use std::collections::{BTreeMap, BTreeSet};

use barnraise_fuzz::arbitrary::{self, Arbitrary};
use barnraise_fuzz::{fuzz, value};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::gradient::Offer;

use super::*;

const N: usize = 2;
const SAMPLES_MAX: u32 = 100;

#[derive(Debug, Arbitrary)]
struct CollectionCase {
    target: u8,
    micro: u8,
    n_in_flight: u8,
    n_contributors: u8,
    is_open: bool,
    aggregation: u8,
    operations: Vec<CollectionOperation>,
}

#[derive(Debug, Arbitrary)]
enum CollectionOperation {
    Join { peer: u8, group: u8 },
    Leave { peer: u8 },
    Report { peer: u8, n_samples: u8, is_late: bool, speed: f32 },
    Offer { peer: u8, id: u8, n_samples: u8, epoch: i8, shape: u8 },
    Gradient { which: u8, value: f32, is_long: bool },
    TransferFailed { which: u8 },
    Persisted { which: u8 },
    PersistFailed { which: u8 },
    Stepped,
    Reopen,
    Moved { epochs: i8 },
    Elsewhere { n_samples: u8, is_closing: bool },
    Pause,
    Unpause,
    Limit { n_contributors: u8, norm: f32, rate: u8 },
    Pass { millis: u16 },
    Timeout,
}

/// Stage of a ticket, as the driver knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TicketStage {
    Receiving,
    Storing { sequence: u32 },
    Over,
}

#[derive(Debug)]
struct TicketModel {
    peer: PeerKey,
    offer: Offer,
    values: Vec<f32>,
    /// Its bytes are on their way, even if the round no longer waits for them.
    is_coming: bool,
    stage: TicketStage,
}

/// A correct driver, with the invariants of the actions that it receives.
struct CollectionModel {
    round: CollectionRound,
    now: Moment,
    tickets: BTreeMap<Ticket, TicketModel>,
    joined: BTreeSet<PeerKey>,
    /// Acknowledged in this epoch and in the one before, by name.
    counted: BTreeSet<(PeerKey, u64)>,
    counted_before: BTreeSet<(PeerKey, u64)>,
    /// Of this epoch, in order: sequence, samples and values.
    contributions: Vec<(u32, u32, Vec<f32>)>,
    is_stepping: bool,
}

impl CollectionModel {
    fn new(case: &CollectionCase) -> Self {
        let aggregation = match case.aggregation % 3 {
            0 => Aggregation::Mean,
            1 => Aggregation::CenteredClip { places: 3 },
            _ => Aggregation::MeanOfAddresses { places: 3 },
        };
        let config = CollectionConfig {
            target_batch_size: 1 + u32::from(case.target),
            n_parameters: N,
            codec: TensorCodec::F32,
            slow_codec: None,
            micro_batch_size: 1 + u32::from(case.micro % 16),
            contribution_samples_max: SAMPLES_MAX,
            samples_per_second_max: 1000,
            collect_timeout: Duration::from_secs(1),
            in_flight_max: 1 + usize::from(case.n_in_flight % 4),
            contributors_max: usize::from(case.n_contributors % 6),
            is_open: case.is_open,
            aggregation,
            gradient_norm_max: 1e3,
        };
        Self {
            round: CollectionRound::new(config, 0),
            now: Moment::from_secs(1),
            tickets: BTreeMap::new(),
            joined: BTreeSet::new(),
            counted: BTreeSet::new(),
            counted_before: BTreeSet::new(),
            contributions: Vec::new(),
            is_stepping: false,
        }
    }

    fn on(&mut self, operation: &CollectionOperation) {
        let now = self.now;
        match *operation {
            CollectionOperation::Join { peer, group } => self.join(peer, AddressGroup(u64::from(group % 4))),
            CollectionOperation::Leave { peer } => {
                self.round.on_leave(now, &name(peer));
                self.joined.remove(&name(peer));
            }
            CollectionOperation::Report { peer, n_samples, is_late, speed } => {
                self.report(peer, n_samples, is_late, speed);
            }
            CollectionOperation::Offer { peer, id, n_samples, epoch, shape } => {
                self.offer(peer, id, n_samples, epoch, shape);
            }
            CollectionOperation::Gradient { which, value, is_long } => self.gradient(which, value, is_long),
            CollectionOperation::TransferFailed { which } => {
                if let Some(ticket) = self.pick(which, |stage| stage == TicketStage::Receiving) {
                    self.fail(ticket);
                }
            }
            CollectionOperation::Persisted { which } => {
                if let Some(ticket) = self.pick(which, |stage| matches!(stage, TicketStage::Storing { .. })) {
                    self.round.on_persisted(now, ticket);
                }
            }
            CollectionOperation::PersistFailed { which } => {
                if let Some(ticket) = self.pick(which, |stage| matches!(stage, TicketStage::Storing { .. })) {
                    self.round.on_persist_failed(now, ticket);
                }
            }
            CollectionOperation::Stepped => {
                if std::mem::take(&mut self.is_stepping) {
                    self.begin();
                    self.round.on_stepped(now);
                    self.offer_again();
                }
            }
            CollectionOperation::Reopen => {
                if std::mem::take(&mut self.is_stepping) {
                    self.round.reopen(now);
                }
            }
            CollectionOperation::Moved { epochs } => self.moved(epochs),
            CollectionOperation::Elsewhere { n_samples, is_closing } => {
                self.round
                    .on_other_aggregators(now, OtherAggregators { n_samples: n_samples.into(), is_closing });
            }
            CollectionOperation::Pause => self.round.pause(),
            CollectionOperation::Unpause => self.round.unpause(now),
            CollectionOperation::Limit { n_contributors, norm, rate } => {
                let limits = self.round.limits();
                let contributors_max = usize::from(n_contributors % 6);
                let samples_per_second_max = 1 + u32::from(rate);
                self.round.limit_by(CollectionLimits {
                    contributors_max,
                    samples_per_second_max,
                    gradient_norm_max: norm.abs(),
                    ..limits
                });
            }
            CollectionOperation::Pass { millis } => self.now += Duration::from_millis(millis.into()),
            CollectionOperation::Timeout => self.timeout(),
        }
        self.act();
        self.check();
    }

    fn join(&mut self, peer: u8, group: AddressGroup) {
        let is_new = !self.joined.contains(&name(peer));
        match self.round.on_join(name(peer), DeviceKind::NativeCpu, group) {
            Ok(()) => {
                self.joined.insert(name(peer));
            }
            Err(SessionError::Full(n)) => assert!(is_new && n >= self.round.config().contributors_max),
            Err(error) => panic!("{error}"),
        }
    }

    fn report(&mut self, peer: u8, n_samples: u8, is_late: bool, speed: f32) {
        let epoch = self.round.epoch().saturating_sub(u64::from(is_late));
        let report = Report {
            epoch,
            contribution_id: u64::MAX,
            n_samples: n_samples.into(),
            samples_per_second: speed,
        };
        let reported = self.round.on_report(self.now, &name(peer), &report);
        let may = self.joined.contains(&name(peer)) && u32::from(n_samples) <= SAMPLES_MAX;
        assert_eq!(reported.is_ok(), may, "{reported:?}");
    }

    fn offer(&mut self, peer: u8, id: u8, n_samples: u8, epoch: i8, shape: u8) {
        let good = Offer {
            contribution_id: u64::from(id % 8),
            epoch: self.round.epoch().saturating_add_signed(i64::from(epoch / 64)),
            n_samples: n_samples.into(),
            loss: 1.0,
            n_values: N as u64,
            codec: TensorCodec::F32,
            transfer: Transfer::of(&[0; 4 * N]),
        };
        let offer = match shape {
            0 => Offer { loss: f32::NAN, ..good },
            1 => Offer { n_values: u64::MAX, ..good },
            2 => Offer { codec: TensorCodec::F16, ..good },
            3 => Offer { transfer: Transfer { n_bytes: u64::MAX, ..good.transfer }, ..good },
            _ => good,
        };
        let Ok(ticket) = self.round.on_offer(self.now, &name(peer), &offer) else { return };
        let named = (name(peer), offer.contribution_id);
        assert!(
            !self.counted.contains(&named) && !self.counted_before.contains(&named),
            "{named:?} counts already"
        );
        assert!(self.joined.contains(&named.0) && offer.epoch == self.round.epoch() && !self.is_stepping);
        assert!(shape > 3 && (1..=SAMPLES_MAX).contains(&offer.n_samples), "{offer:?}");
        let (peer, values) = (named.0, Vec::new());
        let before = self.tickets.insert(
            ticket,
            TicketModel { peer, offer, values, is_coming: true, stage: TicketStage::Receiving },
        );
        assert!(before.is_none(), "{ticket:?} names two contributions");
    }

    /// An acknowledgement that was lost together with the news of the step.
    fn offer_again(&mut self) {
        let (epoch, n_samples, n_values) = (self.round.epoch(), 1, N as u64);
        let (loss, codec, transfer) = (1.0, TensorCodec::F32, Transfer::of(&[0; 4 * N]));
        for (peer, contribution_id) in &self.counted_before {
            let offer = Offer {
                contribution_id: *contribution_id,
                epoch,
                n_samples,
                loss,
                n_values,
                codec,
                transfer,
            };
            let offered = self.round.on_offer(self.now, peer, &offer);
            assert_eq!(offered, Err(ContributionRefusal::Duplicate { contribution_id: *contribution_id }));
        }
    }

    /// Its bytes are here, perhaps a moment after it was given up.
    fn gradient(&mut self, which: u8, value: f32, is_long: bool) {
        let coming: Vec<Ticket> =
            self.tickets.iter().filter(|(_, held)| held.is_coming).map(|(of, _)| *of).collect();
        let Some(ticket) = coming.get(usize::from(which) % coming.len().max(1)).copied() else { return };
        let values = vec![value; N + usize::from(is_long)];
        if let Some(held) = self.tickets.get_mut(&ticket) {
            (held.is_coming, held.values) = (false, values.clone());
            self.round.on_gradient(self.now, ticket, values);
        }
    }

    fn fail(&mut self, ticket: Ticket) {
        self.end(ticket);
        if let Some(held) = self.tickets.get_mut(&ticket) {
            held.is_coming = false;
        }
        self.round.on_transfer_failed(self.now, ticket);
    }

    fn moved(&mut self, epochs: i8) {
        let epoch = self.round.epoch().saturating_add_signed(i64::from(epochs));
        self.tickets.values_mut().for_each(|held| held.stage = TicketStage::Over);
        self.is_stepping = false;
        self.begin();
        self.round.on_moved(self.now, epoch);
    }

    fn begin(&mut self) {
        self.counted_before = std::mem::take(&mut self.counted);
        self.contributions.clear();
    }

    /// A driver calls again as long as the next deadline is over. Each call ends a wait, so that it comes to rest.
    fn timeout(&mut self) {
        const WAITS_MAX: usize = 2 * 8 + 2;
        for _ in 0..WAITS_MAX {
            self.round.on_timeout(self.now);
            self.act();
            if self.round.next_deadline().is_none_or(|at| at > self.now) {
                return;
            }
        }
        panic!("the driver never rests at {:?}: {:?}", self.now, self.round);
    }

    fn pick(&self, which: u8, is: impl Fn(TicketStage) -> bool) -> Option<Ticket> {
        let tickets: Vec<Ticket> =
            self.tickets.iter().filter(|(_, held)| is(held.stage)).map(|(of, _)| *of).collect();
        tickets.get(usize::from(which) % tickets.len().max(1)).copied()
    }

    fn end(&mut self, ticket: Ticket) -> TicketStage {
        let held = self.tickets.get_mut(&ticket).unwrap_or_else(|| panic!("{ticket:?} was given to nobody"));
        std::mem::replace(&mut held.stage, TicketStage::Over)
    }

    /// Executes all actions.
    fn act(&mut self) {
        while let Some(action) = self.round.poll_action() {
            match action {
                CollectionAction::Persist { ticket, epoch, sequence, .. } => {
                    assert_eq!(epoch, self.round.epoch());
                    assert_eq!(self.end(ticket), TicketStage::Receiving);
                    let is_new = |held: &TicketModel| held.stage != TicketStage::Storing { sequence };
                    assert!(self.tickets.values().all(is_new), "sequence {sequence} is given twice");
                    assert!(self.contributions.iter().all(|(of, ..)| *of != sequence));
                    self.tickets.get_mut(&ticket).unwrap().stage = TicketStage::Storing { sequence };
                }
                CollectionAction::Acknowledge(ticket, accepted) => self.acknowledged(ticket, accepted),
                CollectionAction::Refuse(ticket, _) => {
                    self.end(ticket);
                }
                CollectionAction::Abandon(ticket) => assert_eq!(self.end(ticket), TicketStage::Receiving),
                CollectionAction::Evict(peer) => assert!(self.joined.remove(&peer), "{peer:?} has no seat"),
                CollectionAction::RequestGradients(epoch) | CollectionAction::Announce(epoch) => {
                    assert_eq!(epoch, self.round.epoch());
                }
                CollectionAction::Step(mean) => self.step(&mean),
            }
        }
    }

    fn acknowledged(&mut self, ticket: Ticket, accepted: Accepted) {
        let TicketStage::Storing { sequence } = self.end(ticket) else { panic!("{ticket:?} was not stored") };
        let TicketModel { peer, offer, values, .. } = &self.tickets[&ticket];
        assert_eq!((accepted.contribution_id, accepted.n_samples), (offer.contribution_id, offer.n_samples));
        assert_eq!(accepted.epoch, self.round.epoch());
        let named = (peer.clone(), offer.contribution_id);
        assert!(!self.counted_before.contains(&named), "{named:?} counted in the epoch before");
        assert!(values.len() == N && values.iter().all(|value| value.is_finite()));
        self.contributions.push((sequence, offer.n_samples, values.clone()));
        assert!(self.counted.insert(named), "one contribution counts twice");
    }

    fn step(&mut self, mean: &CollectedMean) {
        assert!(!std::mem::replace(&mut self.is_stepping, true), "a step is being made");
        assert!(!self.round.is_paused());
        let n_samples: u64 = self.contributions.iter().map(|(_, n, _)| u64::from(*n)).sum();
        assert_eq!((mean.epoch, mean.n_samples), (self.round.epoch(), n_samples));
        let sequences: Vec<u32> = self.contributions.iter().map(|(sequence, ..)| *sequence).collect();
        assert_eq!(mean.sequences, sequences);
        assert!(mean.gradient.len() == N && mean.gradient.iter().all(|value| value.is_finite()), "{mean:?}");
        assert!(self.tickets.values().all(|held| held.stage == TicketStage::Over), "something is on its way");
        if mean.aggregation == Aggregation::Mean && n_samples > 0 {
            for (at, value) in mean.gradient.iter().enumerate() {
                let terms = || self.contributions.iter().map(|(_, n, of)| f64::from(*n) * f64::from(of[at]));
                let (want, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                let off = (f64::from(*value) * n_samples as f64 - want).abs();
                assert!(off <= 1e-4 * size + 1e-30, "{value} is not the mean of {:?}", self.contributions);
            }
        }
    }

    fn check(&self) {
        let n_counted: u64 = self.contributions.iter().map(|(_, n, _)| u64::from(*n)).sum();
        assert!(self.round.n_samples() >= n_counted);
        assert_eq!(self.round.contributors().map(|of| of.peer).collect::<BTreeSet<_>>(), self.joined);
        let open = self.tickets.values().filter(|held| held.stage != TicketStage::Over).count();
        assert_eq!(self.round.in_flight.len(), open, "what is on its way");
        assert!(open <= self.round.config().in_flight_max);
        let speed = self.round.samples_per_second();
        assert!(speed >= 0.0 && speed.is_finite());
        assert_eq!(self.round.is_closing() && !self.round.is_collecting(), self.is_stepping);
    }

    /// After all peers have left and all transfers have failed, new peers can still make a step.
    fn end_well(&mut self) {
        for ticket in self.tickets.keys().copied().collect::<Vec<_>>() {
            match self.tickets[&ticket].stage {
                TicketStage::Receiving => self.fail(ticket),
                TicketStage::Storing { .. } => self.round.on_persist_failed(self.now, ticket),
                TicketStage::Over => {}
            }
            self.act();
        }
        self.on(&CollectionOperation::Unpause);
        (0..8).for_each(|peer| self.on(&CollectionOperation::Leave { peer }));
        self.on(&CollectionOperation::Elsewhere { n_samples: 0, is_closing: false });
        self.on(&CollectionOperation::Limit { n_contributors: 5, norm: 1e3, rate: 255 });
        for round in 0..200_u8 {
            self.on(&CollectionOperation::Stepped);
            if self.round.epoch() > 0 && round > 100 && self.contributions.is_empty() {
                return;
            }
            self.on(&CollectionOperation::Pass { millis: 2000 });
            self.on(&CollectionOperation::Timeout);
            self.on(&CollectionOperation::Join { peer: round % 4, group: 0 });
            self.on(&CollectionOperation::Report {
                peer: round % 4,
                n_samples: 100,
                is_late: false,
                speed: 1.0,
            });
            for id in 0..8 {
                self.on(&CollectionOperation::Offer {
                    peer: round % 4,
                    id,
                    n_samples: 100,
                    epoch: 0,
                    shape: 9,
                });
                self.on(&CollectionOperation::Gradient { which: 0, value: 1.0, is_long: false });
                self.on(&CollectionOperation::Persisted { which: 0 });
            }
            if self.is_stepping {
                self.on(&CollectionOperation::Stepped);
                return;
            }
        }
        panic!("no step is made any more: {:?}", self.round);
    }
}

fn name(peer: u8) -> PeerKey {
    PeerKey(vec![peer % 8])
}

#[test]
fn collection_round() {
    fuzz!("collection_round", |input| {
        let Some(case) = value::<CollectionCase>(input) else { return };
        let mut world = CollectionModel::new(&case);
        case.operations.iter().take(200).for_each(|operation| world.on(operation));
        world.end_well();
    });
}
