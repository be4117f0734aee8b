//! The contributions of one epoch until they are aggregated, in bounded memory.
//!
//! For the mean one sum is enough. For [`Aggregation::CenteredClip`] each peer has a slot of its own with the mean of
//! its contributions, so many small ones weigh as much as a large one. Peers beyond the slots share the one with the
//! fewest samples. Averaging within groups before a robust rule is the bucketing of Karimireddy, He and Jaggi 2022
//! ("Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing"). A Byzantine gradient in a shared slot spoils
//! that slot.

use std::collections::{BTreeMap, BTreeSet};

use super::addresses::AddressSums;
use super::clip::{Clipped, WeightedGradient, centered_clip};
use super::median::lower_median;
use super::{Aggregate, Aggregation, PeerOutcome};
use crate::AddressGroup;
use crate::PeerKey;

/// Contributions to an epoch so far.
#[derive(Debug, Clone)]
pub(crate) struct Contributions {
    n_parameters: usize,
    n_samples: u64,
    loss_sum: f64,
    accumulator: Accumulator,
}

#[derive(Debug, Clone)]
enum Accumulator {
    /// Sum over samples, `[n_parameters]`.
    Sum(Vec<f32>),
    Slots(GradientSlots),
    ByAddress(AddressSums),
}

#[derive(Debug, Clone)]
struct GradientSlots {
    n_max: usize,
    slots: Vec<GradientSlot>,
    slot_of: BTreeMap<SlotOwner, usize>,
    in_order: Vec<(PeerKey, usize)>,
    known: BTreeSet<PeerKey>,
}

/// Owner of a slot: an address, where that is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum SlotOwner {
    Address(AddressGroup),
    Peer(PeerKey),
}

#[derive(Debug, Clone)]
struct GradientSlot {
    /// `[n_parameters]`
    mean: Vec<f32>,
    n_samples: u64,
    loss_sum: f64,
    n_peers: u32,
}

impl Contributions {
    /// No contributions yet.
    pub(crate) fn new(aggregation: Aggregation, n_parameters: usize) -> Self {
        let kept = match aggregation {
            Aggregation::Mean => Accumulator::Sum(vec![0.0; n_parameters]),
            Aggregation::CenteredClip { places } => Accumulator::Slots(GradientSlots::new(places)),
            Aggregation::MeanOfAddresses { places } => Accumulator::ByAddress(AddressSums::new(places)),
        };
        Self { n_parameters, n_samples: 0, loss_sum: 0.0, accumulator: kept }
    }

    /// Samples so far.
    pub(crate) fn n_samples(&self) -> u64 {
        self.n_samples
    }

    /// Adds a contribution of `n_parameters` finite values.
    ///
    /// `group` is [`AddressGroup::UNKNOWN`] where slots belong to peers and not to addresses.
    pub(crate) fn add(
        &mut self,
        peer: &PeerKey,
        group: AddressGroup,
        n_samples: u32,
        loss: f32,
        values: &[f32],
    ) {
        self.n_samples += u64::from(n_samples);
        self.loss_sum += f64::from(loss) * f64::from(n_samples);
        match &mut self.accumulator {
            Accumulator::Sum(sum) => {
                let weight = n_samples as f32;
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
            }
            Accumulator::Slots(slots) => slots.add(peer, group, n_samples, loss, values),
            Accumulator::ByAddress(addresses) => addresses.add(group, n_samples, loss, values),
        }
    }

    /// Aggregates all contributions.
    pub(crate) fn aggregate(&self) -> Aggregate {
        let n = self.n_samples as f32;
        let mean = |gradient| {
            let loss = (self.loss_sum / self.n_samples as f64) as f32;
            Aggregate { gradient, loss, outcomes: Vec::new() }
        };
        match &self.accumulator {
            Accumulator::Sum(sum) => mean(sum.iter().map(|sum| sum / n).collect()),
            Accumulator::Slots(slots) if slots.slots.is_empty() => mean(vec![f32::NAN; self.n_parameters]),
            Accumulator::Slots(slots) => slots.aggregate(),
            Accumulator::ByAddress(addresses) => addresses.aggregate(self.n_parameters),
        }
    }

    /// The epoch is over.
    pub(crate) fn clear(&mut self) {
        self.n_samples = 0;
        self.loss_sum = 0.0;
        match &mut self.accumulator {
            Accumulator::Sum(sum) => sum.fill(0.0),
            Accumulator::Slots(slots) => {
                *slots = GradientSlots { n_max: slots.n_max, ..GradientSlots::new(1) }
            }
            Accumulator::ByAddress(addresses) => addresses.clear(),
        }
    }
}

impl GradientSlots {
    fn new(n_max: u32) -> Self {
        let n_max = n_max.max(1) as usize;
        let known = BTreeSet::new();
        Self { n_max, slots: Vec::new(), slot_of: BTreeMap::new(), in_order: Vec::new(), known }
    }

    fn add(&mut self, peer: &PeerKey, group: AddressGroup, n_samples: u32, loss: f32, values: &[f32]) {
        let voice = if group == AddressGroup::UNKNOWN {
            SlotOwner::Peer(peer.clone())
        } else {
            SlotOwner::Address(group)
        };
        let at = match self.slot_of.get(&voice) {
            Some(&at) => at,
            None => self.seat(voice, values),
        };
        if self.known.insert(peer.clone()) {
            self.in_order.push((peer.clone(), at));
            if let Some(slot) = self.slots.get_mut(at) {
                slot.n_peers += 1;
            }
        }
        let Some(slot) = self.slots.get_mut(at) else { return };
        slot.n_samples += u64::from(n_samples);
        slot.loss_sum += f64::from(loss) * f64::from(n_samples);
        let share = f64::from(n_samples) / slot.n_samples as f64;
        for (mean, &value) in slot.mean.iter_mut().zip(values) {
            // A convex combination, so it stays finite for values of any size.
            let before = f64::from(*mean);
            *mean = (before + (f64::from(value) - before) * share) as f32;
        }
    }

    /// Assigns a slot to an owner that has none yet.
    fn seat(&mut self, voice: SlotOwner, values: &[f32]) -> usize {
        let at = if self.slots.len() < self.n_max {
            self.slots.push(GradientSlot { mean: values.to_vec(), n_samples: 0, loss_sum: 0.0, n_peers: 0 });
            self.slots.len() - 1
        } else {
            let fewest = (0..self.slots.len()).min_by_key(|&at| self.slots[at].n_samples);
            fewest.unwrap_or_default()
        };
        self.slot_of.insert(voice, at);
        at
    }

    fn aggregate(&self) -> Aggregate {
        let members = self.slots.iter();
        let members = members.map(|GradientSlot { mean, n_samples, .. }| WeightedGradient {
            values: mean,
            n_samples: *n_samples,
        });
        let Clipped { values, outcomes } = centered_clip(&members.collect::<Vec<_>>());
        let of_peer = |(peer, at): &(PeerKey, usize)| {
            let at = *at;
            let is_shared = self.slots.get(at)?.n_peers > 1;
            Some(PeerOutcome { peer: peer.clone(), outcome: *outcomes.get(at)?, is_shared })
        };
        let mut losses: Vec<f64> =
            self.slots.iter().map(|slot| slot.loss_sum / slot.n_samples as f64).collect();
        Aggregate {
            gradient: values,
            loss: lower_median(&mut losses, f64::total_cmp).map_or(f32::NAN, |loss| loss as f32),
            outcomes: self.in_order.iter().filter_map(of_peer).collect(),
        }
    }
}
