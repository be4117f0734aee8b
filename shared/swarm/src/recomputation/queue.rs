//! Contributions that wait to be computed once more: by turns of the addresses that they come from, so that however many
//! keys one has, the others wait no longer for it than for one more contribution.

use std::collections::{BTreeMap, VecDeque};

use crate::round::AddressGroup;

/// That may wait of one address.
pub const PER_GROUP_MAX: usize = 2;

/// Waits by turns.
#[derive(Debug)]
pub struct FairQueue<T> {
    all_max: usize,
    n_waiting: usize,
    of_groups: BTreeMap<AddressGroup, VecDeque<T>>,
    /// Whose turn is next: of those with something that waits.
    turns: VecDeque<AddressGroup>,
}

impl<T> FairQueue<T> {
    /// For so many in all, one at least.
    pub fn new(all_max: usize) -> Self {
        let all_max = all_max.max(1);
        Self { all_max, n_waiting: 0, of_groups: BTreeMap::new(), turns: VecDeque::new() }
    }

    /// Whether there is a place for one more of `group`, if need be that of another address which has several.
    pub fn has_room(&self, group: AddressGroup) -> bool {
        let own = self.of_groups.get(&group).map_or(0, VecDeque::len);
        own < PER_GROUP_MAX && (self.n_waiting < self.all_max || (own == 0 && self.most().is_some()))
    }

    /// Waits; `Some` is one that gives way to it, or itself, where there is no place.
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

    /// The next one, and where it comes from.
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

    /// That wait.
    pub fn len(&self) -> usize {
        self.n_waiting
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.n_waiting == 0
    }

    /// An address of which several wait.
    fn most(&self) -> Option<AddressGroup> {
        let most = self.of_groups.iter().max_by_key(|(_, of_group)| of_group.len());
        most.filter(|(_, of_group)| of_group.len() > 1).map(|(&group, _)| group)
    }
}

#[cfg(test)]
mod tests;
