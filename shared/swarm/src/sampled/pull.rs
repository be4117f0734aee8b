//! Models that are pulled now, of one task.

use std::collections::BTreeMap;

use barnraise_protocol::access::PublicKey;

use crate::Moment;

/// A model that is pulled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pull {
    pub(super) round: u64,
    pub(super) since: Moment,
    /// Its sender can be in the sample by what was known, or has proven it since.
    pub(super) is_expected: bool,
}

/// Those of a task, by their senders: one of each.
#[derive(Debug, Default)]
pub(super) struct Pulls(BTreeMap<PublicKey, Pull>);

impl Pulls {
    /// Takes one more, where its sender has a place: `n_max` are for those that are expected, and `n_others` more for others.
    pub(super) fn take(&mut self, from: PublicKey, pull: Pull, n_max: usize, n_others: usize) -> bool {
        let n_expected = self.0.values().filter(|pull| pull.is_expected).count();
        let is_full = match pull.is_expected {
            true => n_expected >= n_max,
            // Those who have proven it since have taken a place of the others.
            false => self.0.len() - n_expected >= n_others || self.0.len() >= n_max + n_others,
        };
        if is_full || self.0.contains_key(&from) {
            return false;
        }
        self.0.insert(from, pull);
        true
    }

    /// Of a round.
    pub(super) fn of(&self, round: u64) -> impl Iterator<Item = &Pull> {
        self.0.values().filter(move |pull| pull.round == round)
    }

    pub(super) fn on_proven(&mut self, from: PublicKey) {
        if let Some(pull) = self.0.get_mut(&from) {
            pull.is_expected = true;
        }
    }

    pub(super) fn end(&mut self, from: PublicKey, round: u64) {
        if self.0.get(&from).is_some_and(|pull| pull.round == round) {
            self.0.remove(&from);
        }
    }
}

#[cfg(test)]
mod tests;
