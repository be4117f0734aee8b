//! Numbers that follow from a seed, the same on every platform.

/// SplitMix64 (Steele, Lea, Flood 2014): integers only, the whole state is the seed.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix64 {
    pub(crate) state: u64,
}

impl SplitMix64 {
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[-1, 1)`, a multiple of 2^-23, so that both operations are exact.
    pub(crate) fn next_signed_unit(&mut self) -> f32 {
        let bits = (self.next_u64() >> 40) as f32;
        bits / 8_388_608.0 - 1.0
    }

    /// Uniform in `[0, 1)`, a multiple of 2^-24: exact as well.
    pub(crate) fn next_unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / 16_777_216.0
    }

    /// Below `n`, which is small beside 2^64, so that the bias of the product does not count.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }
}

/// Of a sample, the run's seed and a number of the draw: FNV-1a over the sample (Fowler, Noll, Vo), with seed and
/// draw mixed in by the generator itself.
pub(crate) fn state_of(sample: impl Iterator<Item = u8>, seed: u64, draw: u64) -> u64 {
    let hash = sample.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut random = SplitMix64 { state: seed };
    random.state = random.next_u64() ^ draw;
    random.state = random.next_u64() ^ hash;
    random.next_u64()
}
