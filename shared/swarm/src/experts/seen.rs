//! What a trainer sees of the experts of its run: which there are, and what became lately of the rows that it had for them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use barnraise_protocol::experts::GridShape;
use serde::{Deserialize, Serialize};

use crate::{Moment, PeerKey};

/// What is called lately: the time of all slots.
pub const SEEN_TIME: Duration = Duration::from_secs(60);
const SLOTS: u32 = 6;
/// Most experts of a layer that are told one by one. The rows of others count in the sums alone.
pub const SEEN_EXPERTS_MAX: usize = 1024;
/// Most layers that are told.
pub const SEEN_LAYERS_MAX: usize = 64;
/// Most steps that are told: a page counts in JavaScript's numbers, and anybody may announce any number.
const STEPS_MAX: u64 = (1 << 53) - 1;
/// Most hosts that are counted.
const HOSTS_MAX: usize = 4096;

/// What a host of experts has done, for the person whose device it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostedWork {
    /// Experts that it serves.
    pub n_experts: u32,
    /// Experts that it has room for; 0 before the run is known.
    pub n_room: u32,
    /// Parameters of those that it serves.
    pub n_parameters: u64,
    /// Rows that experts have computed for others.
    pub n_forward: u64,
    /// Rows that they have learned from.
    pub n_backward: u64,
    /// Bytes from others.
    pub bytes_received: u64,
    /// Bytes to others.
    pub bytes_sent: u64,
}

/// An expert that is hosted, or was asked lately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertSeen {
    /// Its place on the grid, the last dimension the fastest.
    pub number: u32,
    /// Hosts that announce it; 0 where it is gone.
    pub n_hosts: u32,
    /// Optimizer steps that it has made, as it answered last; else by their announcements.
    pub n_steps: u64,
    /// Rows of this trainer that it answered lately.
    pub n_rows: u64,
    /// Rows that waited for its answer in vain.
    pub n_missed: u64,
}

/// A layer of experts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSeen {
    /// Sides of its grid.
    pub sides: Vec<u16>,
    /// Those of its experts that there are, by number.
    pub experts: Vec<ExpertSeen>,
}

/// All layers, and sums over [`SEEN_TIME`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertsSeen {
    /// By number.
    pub layers: Vec<LayerSeen>,
    /// Experts that answered.
    pub n_experts: u32,
    /// Machines that answered.
    pub n_hosts: u32,
    /// Rows that were answered, once for each expert.
    pub n_rows: u64,
    /// Rows that were not, because an expert did not answer or none was found.
    pub n_missed: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct ExpertTally {
    n_rows: u64,
    n_missed: u64,
    /// As it answered last.
    n_steps: Option<u64>,
}

#[derive(Debug, Default)]
struct Slot {
    began_at: Moment,
    /// By layer and number.
    experts: BTreeMap<(usize, u32), ExpertTally>,
    hosts: BTreeSet<PeerKey>,
    total: ExpertTally,
}

/// Counts rows.
#[derive(Debug)]
pub struct ExpertTallies {
    grids: Vec<GridShape>,
    /// The newest last.
    slots: VecDeque<Slot>,
}

impl ExpertTallies {
    /// Of a model with these grids.
    pub fn new(grids: Vec<GridShape>) -> Self {
        Self { grids, slots: VecDeque::new() }
    }

    /// An expert answered some rows.
    pub fn on_answered(&mut self, now: Moment, expert: (usize, u32), host: &PeerKey, n_rows: u64) {
        let slot = self.slot(now);
        slot.total.n_rows += n_rows;
        if slot.hosts.len() < HOSTS_MAX {
            slot.hosts.insert(host.clone());
        }
        if let Some(tally) = slot.tally(expert) {
            tally.n_rows += n_rows;
        }
    }

    /// An expert said how many steps it has made.
    pub fn on_steps(&mut self, now: Moment, expert: (usize, u32), n_steps: u64) {
        if let Some(tally) = self.slot(now).tally(expert) {
            tally.n_steps = Some(n_steps);
        }
    }

    /// Some rows waited for an expert in vain.
    pub fn on_missed(&mut self, now: Moment, expert: (usize, u32), n_rows: u64) {
        let slot = self.slot(now);
        slot.total.n_missed += n_rows;
        if let Some(tally) = slot.tally(expert) {
            tally.n_missed += n_rows;
        }
    }

    /// For some rows there was no expert to ask.
    pub fn on_none_found(&mut self, now: Moment, n_rows: u64) {
        self.slot(now).total.n_missed += n_rows;
    }

    /// What is seen now. `hosted` are the experts that are announced: layer, number, hosts and steps.
    pub fn seen(&mut self, now: Moment, hosted: impl Iterator<Item = (usize, u32, u32, u64)>) -> ExpertsSeen {
        self.forget(now);
        let mut experts: BTreeMap<(usize, u32), ExpertSeen> = BTreeMap::new();
        for (layer, number, n_hosts, n_steps) in hosted {
            let seen = experts.entry((layer, number)).or_default();
            *seen = ExpertSeen { number, n_hosts, n_steps: n_steps.min(STEPS_MAX), ..*seen };
        }
        let (mut total, mut hosts, mut answered) = (ExpertTally::default(), BTreeSet::new(), BTreeSet::new());
        for slot in &self.slots {
            total.n_rows += slot.total.n_rows;
            total.n_missed += slot.total.n_missed;
            hosts.extend(&slot.hosts);
            for (&place, tally) in &slot.experts {
                let seen = experts.entry(place).or_default();
                seen.number = place.1;
                seen.n_rows += tally.n_rows;
                seen.n_missed += tally.n_missed;
                seen.n_steps = tally.n_steps.map_or(seen.n_steps, |n_steps| n_steps.min(STEPS_MAX));
                answered.extend((tally.n_rows > 0).then_some(place));
            }
        }
        let layers = self.grids.iter().enumerate().take(SEEN_LAYERS_MAX).map(|(layer, grid)| {
            let of_layer = experts.range((layer, 0)..=(layer, u32::MAX)).map(|(_, seen)| *seen);
            LayerSeen { sides: grid.sides().to_vec(), experts: of_layer.take(SEEN_EXPERTS_MAX).collect() }
        });
        ExpertsSeen {
            layers: layers.collect(),
            n_experts: u32::try_from(answered.len()).unwrap_or(u32::MAX),
            n_hosts: u32::try_from(hosts.len()).unwrap_or(u32::MAX),
            n_rows: total.n_rows,
            n_missed: total.n_missed,
        }
    }

    /// The slot of now.
    fn slot(&mut self, now: Moment) -> &mut Slot {
        self.forget(now);
        let is_over = |slot: &Slot| now.saturating_sub(slot.began_at) >= SEEN_TIME / SLOTS;
        if self.slots.back().is_none_or(is_over) {
            self.slots.push_back(Slot { began_at: now, ..Slot::default() });
        }
        // One was pushed where there was none.
        let newest = self.slots.len().saturating_sub(1);
        &mut self.slots[newest]
    }

    fn forget(&mut self, now: Moment) {
        while self.slots.front().is_some_and(|slot| now.saturating_sub(slot.began_at) >= SEEN_TIME) {
            self.slots.pop_front();
        }
    }
}

impl Slot {
    /// The tally of an expert, while there is room for another one.
    fn tally(&mut self, expert: (usize, u32)) -> Option<&mut ExpertTally> {
        let has_room = self.experts.len() < SEEN_LAYERS_MAX * SEEN_EXPERTS_MAX;
        match self.experts.contains_key(&expert) || has_room {
            true => Some(self.experts.entry(expert).or_default()),
            false => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn host(number: u8) -> PeerKey {
        PeerKey(vec![number])
    }

    #[test]
    fn rows_count_for_a_minute_by_expert_and_in_all() {
        let grid = GridShape::new(&[2, 2]).unwrap();
        let mut tallies = ExpertTallies::new(vec![grid, grid]);
        tallies.on_answered(S, (0, 1), &host(1), 10);
        tallies.on_answered(2 * S, (0, 1), &host(2), 5);
        tallies.on_answered(30 * S, (1, 3), &host(1), 4);
        tallies.on_steps(30 * S, (0, 1), 90);
        tallies.on_missed(30 * S, (0, 2), 3);
        tallies.on_none_found(30 * S, 2);
        let hosted = || [(0, 0, 1, 70), (0, 1, 2, 80)].into_iter();
        let seen = tallies.seen(31 * S, hosted());
        assert_eq!((seen.n_experts, seen.n_hosts, seen.n_rows, seen.n_missed), (2, 2, 19, 5));
        let expert = |number, n_hosts, n_steps, n_rows, n_missed| ExpertSeen {
            number,
            n_hosts,
            n_steps,
            n_rows,
            n_missed,
        };
        assert_eq!(seen.layers[0].sides, [2, 2]);
        assert_eq!(
            seen.layers[0].experts,
            [expert(0, 1, 70, 0, 0), expert(1, 2, 90, 15, 0), expert(2, 0, 0, 0, 3)]
        );
        assert_eq!(seen.layers[1].experts, [expert(3, 0, 0, 4, 0)]);
        let later = tallies.seen(75 * S, hosted());
        assert_eq!((later.n_experts, later.n_hosts, later.n_rows, later.n_missed), (1, 1, 4, 5));
        let none = tallies.seen(1000 * S, std::iter::empty());
        assert_eq!((none.n_rows, none.n_missed, none.layers[0].experts.len()), (0, 0, 0));
    }

    #[test]
    fn a_large_grid_is_told_in_part_and_counted_in_full() {
        let mut tallies = ExpertTallies::new(vec![GridShape::new(&[64, 64]).unwrap()]);
        for number in 0..4096 {
            tallies.on_answered(S, (0, number), &host(1), 1);
        }
        let seen = tallies.seen(S, std::iter::once((0, 0, 1, u64::MAX)));
        assert_eq!((seen.n_rows, seen.layers[0].experts.len()), (4096, SEEN_EXPERTS_MAX));
        assert_eq!(seen.layers[0].experts[0].n_steps, STEPS_MAX);
    }

    #[test]
    fn rows_of_ten_seconds_are_counted_and_forgotten_together() {
        let mut tallies = ExpertTallies::new(vec![GridShape::new(&[4]).unwrap()]);
        let ms = Duration::from_millis;
        for (at, n_rows) in [(1000, 1), (10_999, 2), (11_000, 4), (20_999, 8)] {
            tallies.on_answered(ms(at), (0, 0), &host(1), n_rows);
            tallies.on_missed(ms(at), (0, 1), 3 * n_rows);
        }
        let counts = [60_999, 61_000, 70_999, 71_000].map(|at| {
            let seen = tallies.seen(ms(at), std::iter::empty());
            (seen.n_rows, seen.n_missed)
        });
        assert_eq!(counts, [(15, 45), (12, 36), (12, 36), (0, 0)]);
    }

    #[test]
    fn what_is_counted_takes_bounded_memory_and_sums_are_of_all() {
        let mut tallies = ExpertTallies::new(vec![GridShape::new(&[512, 512]).unwrap()]);
        for number in 0..5000_u32 {
            tallies.on_answered(S, (0, 7), &PeerKey(number.to_le_bytes().to_vec()), 1);
        }
        assert_eq!(tallies.seen(S, std::iter::empty()).n_hosts, 4096);
        let n_told = (SEEN_LAYERS_MAX * SEEN_EXPERTS_MAX) as u32;
        (0..n_told + 10).for_each(|number| tallies.on_answered(S, (0, number), &host(1), 1));
        tallies.on_steps(S, (0, n_told + 3), 1);
        tallies.on_missed(S, (0, n_told + 3), 1);
        tallies.on_answered(S, (0, 5), &host(1), 1);
        tallies.on_none_found(S, 6);
        let seen = tallies.seen(S, std::iter::empty());
        assert_eq!((seen.n_experts, seen.n_rows), (n_told, 5000 + u64::from(n_told) + 11));
        assert_eq!((seen.n_missed, seen.layers[0].experts[5].n_rows), (7, 2));
    }

    #[test]
    fn steps_that_nobody_makes_are_not_told() {
        let mut tallies = ExpertTallies::new(vec![GridShape::new(&[4]).unwrap()]);
        tallies.on_steps(S, (0, 1), u64::MAX);
        let seen = tallies.seen(S, std::iter::once((0, 2, 1, u64::MAX)));
        let steps: Vec<u64> = seen.layers[0].experts.iter().map(|expert| expert.n_steps).collect();
        assert_eq!(steps, [(1 << 53) - 1; 2]);
        let numbers: Vec<u32> = seen.layers[0].experts.iter().map(|expert| expert.number).collect();
        assert_eq!((seen.n_experts, numbers), (0, vec![1, 2]), "neither has answered a row");
    }
}
