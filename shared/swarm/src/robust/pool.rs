//! The contributions of one epoch until they are aggregated, in memory that is bounded beforehand.
//!
//! For the mean one sum is enough. For [`Aggregation::CenteredClip`] each peer has a place of its own, with the
//! mean of its contributions: who sends many small ones has one voice, as who sends a large one. Peers beyond
//! the places share the one with the fewest samples; averaging within groups before a robust rule is applied is
//! the bucketing of Karimireddy, He and Jaggi 2022 ("Byzantine-Robust Learning on Heterogeneous Datasets via
//! Bucketing"), and a lie in a shared place costs that place.

use std::collections::{BTreeMap, BTreeSet};

use super::addresses::Addresses;
use super::clip::{Clipped, Member, centered_clip};
use super::median::lower_median;
use super::{Aggregate, Aggregation, PeerOutcome};
use crate::PeerKey;
use crate::round::AddressGroup;

/// What was contributed to an epoch so far.
#[derive(Debug)]
pub(crate) struct Contributions {
    n_parameters: usize,
    n_samples: u64,
    loss_sum: f64,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    /// Sum over samples, `[n_parameters]`.
    Sum(Vec<f32>),
    Apart(Places),
    ByAddress(Addresses),
}

#[derive(Debug)]
struct Places {
    n_max: usize,
    places: Vec<Place>,
    place_of: BTreeMap<Voice, usize>,
    in_order: Vec<(PeerKey, usize)>,
    known: BTreeSet<PeerKey>,
}

/// Who has a place: an address, where that is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Voice {
    Address(AddressGroup),
    Peer(PeerKey),
}

#[derive(Debug)]
struct Place {
    /// `[n_parameters]`
    mean: Vec<f32>,
    n_samples: u64,
    loss_sum: f64,
    n_peers: u32,
}

impl Contributions {
    /// None yet.
    pub(crate) fn new(aggregation: Aggregation, n_parameters: usize) -> Self {
        let kept = match aggregation {
            Aggregation::Mean => Kept::Sum(vec![0.0; n_parameters]),
            Aggregation::CenteredClip { places } => Kept::Apart(Places::new(places)),
            Aggregation::MeanOfAddresses { places } => Kept::ByAddress(Addresses::new(places)),
        };
        Self { n_parameters, n_samples: 0, loss_sum: 0.0, kept }
    }

    /// Samples so far.
    pub(crate) fn n_samples(&self) -> u64 {
        self.n_samples
    }

    /// One more, of `n_parameters` finite values.
    ///
    /// [`AddressGroup::UNKNOWN`] where it does not matter where it comes from.
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
        match &mut self.kept {
            Kept::Sum(sum) => {
                let weight = n_samples as f32;
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
            }
            Kept::Apart(places) => places.add(peer, group, n_samples, loss, values),
            Kept::ByAddress(addresses) => addresses.add(group, n_samples, loss, values),
        }
    }

    /// One gradient of all.
    pub(crate) fn aggregate(&self) -> Aggregate {
        let n = self.n_samples as f32;
        let mean = |gradient| {
            let loss = (self.loss_sum / self.n_samples as f64) as f32;
            Aggregate { gradient, loss, outcomes: Vec::new() }
        };
        match &self.kept {
            Kept::Sum(sum) => mean(sum.iter().map(|sum| sum / n).collect()),
            Kept::Apart(places) if places.places.is_empty() => mean(vec![f32::NAN; self.n_parameters]),
            Kept::Apart(places) => places.aggregate(),
            Kept::ByAddress(addresses) => addresses.aggregate(self.n_parameters),
        }
    }

    /// The epoch is over.
    pub(crate) fn clear(&mut self) {
        self.n_samples = 0;
        self.loss_sum = 0.0;
        match &mut self.kept {
            Kept::Sum(sum) => sum.fill(0.0),
            Kept::Apart(places) => *places = Places { n_max: places.n_max, ..Places::new(1) },
            Kept::ByAddress(addresses) => addresses.clear(),
        }
    }
}

impl Places {
    fn new(n_max: u32) -> Self {
        let n_max = n_max.max(1) as usize;
        let known = BTreeSet::new();
        Self { n_max, places: Vec::new(), place_of: BTreeMap::new(), in_order: Vec::new(), known }
    }

    fn add(&mut self, peer: &PeerKey, group: AddressGroup, n_samples: u32, loss: f32, values: &[f32]) {
        let voice =
            if group == AddressGroup::UNKNOWN { Voice::Peer(peer.clone()) } else { Voice::Address(group) };
        let at = match self.place_of.get(&voice) {
            Some(&at) => at,
            None => self.seat(voice, values),
        };
        if self.known.insert(peer.clone()) {
            self.in_order.push((peer.clone(), at));
            if let Some(place) = self.places.get_mut(at) {
                place.n_peers += 1;
            }
        }
        let Some(place) = self.places.get_mut(at) else { return };
        place.n_samples += u64::from(n_samples);
        place.loss_sum += f64::from(loss) * f64::from(n_samples);
        let share = f64::from(n_samples) / place.n_samples as f64;
        for (mean, &value) in place.mean.iter_mut().zip(values) {
            // Between the two, so it stays finite, whatever their size.
            let before = f64::from(*mean);
            *mean = (before + (f64::from(value) - before) * share) as f32;
        }
    }

    /// A place for a voice that has none yet.
    fn seat(&mut self, voice: Voice, values: &[f32]) -> usize {
        let at = if self.places.len() < self.n_max {
            self.places.push(Place { mean: values.to_vec(), n_samples: 0, loss_sum: 0.0, n_peers: 0 });
            self.places.len() - 1
        } else {
            let fewest = (0..self.places.len()).min_by_key(|&at| self.places[at].n_samples);
            fewest.unwrap_or_default()
        };
        self.place_of.insert(voice, at);
        at
    }

    fn aggregate(&self) -> Aggregate {
        let members = self.places.iter();
        let members =
            members.map(|Place { mean, n_samples, .. }| Member { values: mean, n_samples: *n_samples });
        let Clipped { values, outcomes } = centered_clip(&members.collect::<Vec<_>>());
        let of_peer = |(peer, at): &(PeerKey, usize)| {
            let at = *at;
            let is_shared = self.places.get(at)?.n_peers > 1;
            Some(PeerOutcome { peer: peer.clone(), outcome: *outcomes.get(at)?, is_shared })
        };
        let mut losses: Vec<f64> =
            self.places.iter().map(|place| place.loss_sum / place.n_samples as f64).collect();
        Aggregate {
            gradient: values,
            loss: lower_median(&mut losses, f64::total_cmp).map_or(f32::NAN, |loss| loss as f32),
            outcomes: self.in_order.iter().filter_map(of_peer).collect(),
        }
    }
}
