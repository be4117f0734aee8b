//! Fair shares of a bounded number of slots, so that no single key takes them all.

use std::collections::HashMap;
use std::hash::Hash;

/// A bounded number of slots, of which one key has at most as many as are left free (dynamic thresholds: Choudhury
/// and Hahne 1998).
///
/// A single key gets half of them; each further key gets half of the rest. Nothing is reserved, so there is no share
/// to configure.
#[derive(Clone, Debug)]
pub struct FairShares<K> {
    n_max: usize,
    n_taken: usize,
    of_keys: HashMap<K, usize>,
}

impl<K: Eq + Hash + Clone> FairShares<K> {
    /// `n_max` slots in all.
    pub fn new(n_max: usize) -> Self {
        Self { n_max, n_taken: 0, of_keys: HashMap::new() }
    }

    /// Whether there is a slot for `key`. `part` divides its share: with 2 it has at most half as many as are free.
    pub fn has_slot(&self, key: &K, part: usize) -> bool {
        let n_own = self.of_keys.get(key).copied().unwrap_or_default();
        n_own.saturating_mul(part) < self.n_max.saturating_sub(self.n_taken)
    }

    /// Takes a slot, if there is one for `key`.
    pub fn take(&mut self, key: &K) -> bool {
        let has_place = self.has_slot(key, 1);
        if has_place {
            self.occupy(key);
        }
        has_place
    }

    /// Takes a slot without a check.
    pub fn occupy(&mut self, key: &K) {
        self.n_taken += 1;
        *self.of_keys.entry(key.clone()).or_default() += 1;
    }

    /// Returns a slot of `key`.
    pub fn give_back(&mut self, key: &K) {
        let Some(n_own) = self.of_keys.get_mut(key) else { return };
        *n_own -= 1;
        self.n_taken -= 1;
        if *n_own == 0 {
            self.of_keys.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_key_takes_half_and_the_others_still_find_places() {
        let mut shares = FairShares::new(256);
        let mut all_of = |key| (0..1000).filter(|_| shares.take(&key)).count();
        assert_eq!([all_of("greedy"), all_of("second"), all_of("third")], [128, 64, 32]);
        for _ in 0..128 {
            shares.give_back(&"greedy");
        }
        assert!(shares.take(&"greedy"));
    }

    #[test]
    fn a_part_of_a_share_is_as_much_less() {
        let mut shares = FairShares::new(12);
        let mut n_taken = 0;
        while shares.has_slot(&"a", 3) {
            shares.occupy(&"a");
            n_taken += 1;
        }
        // Three times three are what is left.
        assert_eq!(n_taken, 3);
        assert!(shares.has_slot(&"a", 1) && shares.has_slot(&"b", 3));
    }

    #[test]
    fn a_single_place_is_anybodys() {
        let mut shares = FairShares::new(1);
        assert!(shares.take(&"a") && !shares.take(&"a") && !shares.take(&"b"));
        shares.give_back(&"a");
        assert!(shares.take(&"b"));
    }

    proptest! {
        #[test]
        fn what_is_given_back_is_there_again(taken in proptest::collection::vec(0..5_u8, 0..200), n_max in 0..50_usize) {
            let mut shares = FairShares::new(n_max);
            let held: Vec<u8> = taken.into_iter().filter(|key| shares.take(key)).collect();
            prop_assert!(held.len() <= n_max);
            held.iter().for_each(|key| shares.give_back(key));
            shares.give_back(&7);
            prop_assert!(shares.n_taken == 0 && shares.of_keys.is_empty());
        }
    }
}
