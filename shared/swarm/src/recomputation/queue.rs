//! Queue of contributions to recompute, round robin by address: an address with many keys delays the others by no more
//! than one contribution at a time.

use std::collections::{BTreeMap, VecDeque};

use crate::AddressGroup;

/// Most contributions of one address in the queue.
pub const PER_GROUP_MAX: usize = 2;

/// Round-robin queue by address.
#[derive(Debug)]
pub struct FairQueue<T> {
    all_max: usize,
    n_waiting: usize,
    of_groups: BTreeMap<AddressGroup, VecDeque<T>>,
    /// Addresses with queued contributions, in the order of their turns.
    turns: VecDeque<AddressGroup>,
}

impl<T> FairQueue<T> {
    /// For `all_max` contributions in all, at least one.
    pub fn new(all_max: usize) -> Self {
        let all_max = all_max.max(1);
        Self { all_max, n_waiting: 0, of_groups: BTreeMap::new(), turns: VecDeque::new() }
    }

    /// Whether one more of `group` can be queued, if need be in place of one of an address that has several.
    pub fn has_room(&self, group: AddressGroup) -> bool {
        let own = self.of_groups.get(&group).map_or(0, VecDeque::len);
        own < PER_GROUP_MAX && (self.n_waiting < self.all_max || (own == 0 && self.most().is_some()))
    }

    /// Queues `job`. Returns the job that was dropped for it, or `job` itself where the queue is full.
    pub fn push(&mut self, group: AddressGroup, job: T) -> Option<T> {
        if !self.has_room(group) {
            return Some(job);
        }
        let most = if self.n_waiting >= self.all_max { self.most() } else { None };
        let gives_way = most.and_then(|group| self.of_groups.get_mut(&group)?.pop_back());
        self.n_waiting -= usize::from(gives_way.is_some());
        let of_group = self.of_groups.entry(group).or_default();
        if of_group.is_empty() {
            self.turns.push_back(group);
        }
        of_group.push_back(job);
        self.n_waiting += 1;
        gives_way
    }

    /// The next job, and its address.
    pub fn pop(&mut self) -> Option<(AddressGroup, T)> {
        let group = self.turns.pop_front()?;
        let of_group = self.of_groups.get_mut(&group)?;
        let job = of_group.pop_front()?;
        self.n_waiting -= 1;
        if of_group.is_empty() {
            self.of_groups.remove(&group);
        } else {
            self.turns.push_back(group);
        }
        Some((group, job))
    }

    /// Number of queued jobs.
    pub fn len(&self) -> usize {
        self.n_waiting
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.n_waiting == 0
    }

    /// The address with the most jobs, if it has several.
    fn most(&self) -> Option<AddressGroup> {
        let most = self.of_groups.iter().max_by_key(|(_, of_group)| of_group.len());
        most.filter(|(_, of_group)| of_group.len() > 1).map(|(&group, _)| group)
    }
}

#[cfg(test)]
mod tests;
