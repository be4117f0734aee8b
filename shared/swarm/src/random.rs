//! A small seeded generator for orders and jitter: splitmix64 (Steele, Lea and Flood 2014, fig. 17).
//!
//! Never used for anything that must be hard to guess.

use std::time::Duration;

/// The same seed gives the same numbers on every platform.
#[derive(Debug, Clone)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// Starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Uniform over all values.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`, 0 for an empty range. The bias, below `n / 2^64`, does not matter here.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// Uniform between nine tenths of an interval and all of it, in milliseconds: what many peers do in one interval is spread.
    pub fn jittered(&mut self, interval: Duration) -> Duration {
        let tenth_ms = (interval.as_millis() / 10) as usize;
        interval - Duration::from_millis(self.below(tenth_ms + 1) as u64)
    }

    /// Random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // The reference implementation's first outputs for the seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn an_interval_with_jitter_is_anything_between_nine_tenths_and_all_of_it() {
        let mut random = SplitMix64::new(7);
        let times: Vec<Duration> = (0..5000).map(|_| random.jittered(Duration::from_secs(2))).collect();
        assert_eq!(times.iter().min(), Some(&Duration::from_millis(1800)));
        assert_eq!(times.iter().max(), Some(&Duration::from_secs(2)));
        assert_eq!(random.jittered(Duration::from_millis(9)), Duration::from_millis(9));
    }

    #[test]
    fn any_order_may_come_and_the_old_one_too() {
        let orders = |n: usize| {
            let shuffled = (0..60).map(|seed| {
                let mut items: Vec<usize> = (0..n).collect();
                SplitMix64::new(seed).shuffle(&mut items);
                items
            });
            shuffled.collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!([0, 1, 2, 3].map(orders), [1, 1, 2, 6]);
    }

    #[test]
    fn shuffling_keeps_every_item_and_moves_most() {
        let mut items: Vec<usize> = (0..1000).collect();
        SplitMix64::new(7).shuffle(&mut items);
        let fixed = items.iter().enumerate().filter(|&(i, &item)| i == item).count();
        assert!(fixed < 20, "{fixed} of 1000 stayed where they were");
        items.sort_unstable();
        assert!(items.into_iter().eq(0..1000));
    }
}
