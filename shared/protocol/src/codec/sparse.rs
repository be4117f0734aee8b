//! Sparse codec: the values that are not zero, and their positions.
//!
//! A count (u32), the values in blocks of int8, then the gaps between their positions in a Rice code (Golomb 1966;
//! Rice 1979): a gap `g` is `g >> b` ones, a zero, and the low `b` bits, least significant bit first. The
//! parameter `b` follows from the count and the number of values, so it is not sent. For positions at random this
//! is within 4 % of the entropy; at a density of 1 % it takes 8.1 bits each.
//!
//! Any bytes decode to rising positions. Each position is checked before its value is written.

use super::blocks::{self, Int8};
use super::{CodecError, max_magnitude, not_finite};

/// Bytes of the count before the values.
pub(super) const COUNT_BYTES: usize = 4;
/// Most low bits of a gap.
const LOW_BITS_MAX: u32 = 31;
/// Values that are compared with zero together: at a density of 1 % most of these groups are zeros.
const GROUP_VALUES: usize = 16;

/// Most bytes that `n_sent` of `n_values` values take, at any positions; monotone in `n_sent`.
pub(super) fn encoded_len_max(n_values: usize, n_sent: usize) -> usize {
    let n_bits = position_bits_max(n_values, n_sent, low_bits(n_values, n_sent));
    let n_bytes = usize::try_from(n_bits.div_ceil(8)).unwrap_or(usize::MAX);
    COUNT_BYTES.saturating_add(blocks::encoded_len::<Int8>(n_sent)).saturating_add(n_bytes)
}

/// The parameter for which [`position_bits_max`] is least.
fn low_bits(n_values: usize, n_sent: usize) -> u32 {
    let n_bits = |&low_bits: &u32| position_bits_max(n_values, n_sent, low_bits);
    (0..=LOW_BITS_MAX).min_by_key(n_bits).unwrap_or(0)
}

/// The gaps together are as long as the values that are not sent.
fn position_bits_max(n_values: usize, n_sent: usize, low_bits: u32) -> u64 {
    let (n_sent, n_skipped) = (n_sent as u64, n_values.saturating_sub(n_sent) as u64);
    n_sent.saturating_mul(u64::from(low_bits) + 1).saturating_add(n_skipped >> low_bits)
}

/// Encodes `values`, of which at most `n_sent_max` are not zero.
pub(super) fn encode(values: &[f32], n_sent_max: usize, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
    let (sent, gaps) = gather(values);
    let count = u32::try_from(sent.len()).ok().filter(|_| sent.len() <= n_sent_max);
    let count = count.ok_or(CodecError::TooDense { max: n_sent_max, got: sent.len() })?;
    let n_value_bytes = blocks::encoded_len::<Int8>(sent.len());
    bytes.clear();
    bytes.extend(count.to_le_bytes());
    bytes.resize(COUNT_BYTES + n_value_bytes, 0);
    if !blocks::encode::<Int8>(&sent, bytes.split_at_mut(COUNT_BYTES).1) {
        return Err(not_finite(values));
    }
    let mut writer = BitWriter { bytes, held: 0, n_held: 0 };
    let low_bits = low_bits(values.len(), sent.len());
    gaps.into_iter().for_each(|gap| writer.gap(gap, low_bits));
    writer.finish();
    Ok(())
}

/// The values that are not zero, and the number of zeros before each.
fn gather(values: &[f32]) -> (Vec<f32>, Vec<u64>) {
    let (mut sent, mut gaps) = (Vec::new(), Vec::new());
    let mut gap = 0;
    for group in values.chunks(GROUP_VALUES) {
        if max_magnitude(group) == 0 {
            gap += group.len() as u64;
            continue;
        }
        for &value in group {
            if value == 0.0 {
                gap += 1;
            } else {
                sent.push(value);
                gaps.push(gap);
                gap = 0;
            }
        }
    }
    (sent, gaps)
}

/// Decodes the sent values to their positions; all others are zero.
pub(super) fn decode(bytes: &[u8], values: &mut [f32]) -> Result<(), CodecError> {
    let n_values = values.len();
    let length = |min, n_sent| {
        let max = encoded_len_max(n_values, n_sent);
        CodecError::Length { n_values, min, max, got: bytes.len() }
    };
    let (count, rest) =
        bytes.split_first_chunk::<COUNT_BYTES>().ok_or_else(|| length(COUNT_BYTES, n_values))?;
    let n_sent = u32::from_le_bytes(*count) as usize;
    if n_sent > n_values {
        return Err(CodecError::TooDense { max: n_values, got: n_sent });
    }
    // These bytes did arrive, so at most four times as many are allocated.
    let n_level_bytes = blocks::encoded_len::<Int8>(n_sent);
    let Some((levels, gaps)) = rest.split_at_checked(n_level_bytes) else {
        return Err(length(COUNT_BYTES.saturating_add(n_level_bytes), n_sent));
    };
    let mut sent = vec![0.0; n_sent];
    if !blocks::decode::<Int8>(levels, &mut sent) {
        return Err(not_finite(&sent));
    }
    values.fill(0.0);
    let low_bits = low_bits(n_values, n_sent);
    let mut reader = BitReader { bytes: gaps, held: 0, n_held: 0 };
    let mut next = 0;
    for value in sent {
        let gap = match reader.gap(low_bits, (n_values - next) as u64) {
            Ok(gap) => gap,
            Err(GapError::Long) => return Err(CodecError::Position { n_values }),
            Err(GapError::Cut) => return Err(CodecError::Positions { n_sent }),
        };
        let at = usize::try_from(gap).ok().and_then(|gap| next.checked_add(gap));
        let place = at.and_then(|at| Some((at, values.get_mut(at)?)));
        let (at, place) = place.ok_or(CodecError::Position { n_values })?;
        *place = value;
        next = at + 1;
    }
    if reader.is_at_end() { Ok(()) } else { Err(CodecError::Positions { n_sent }) }
}

/// Bits, the first of them lowest in its byte.
struct BitWriter<'a> {
    bytes: &'a mut Vec<u8>,
    held: u64,
    /// Below 32 between two calls.
    n_held: u32,
}

impl BitWriter<'_> {
    /// At most 32 bits.
    fn put(&mut self, bits: u64, n_bits: u32) {
        self.held |= bits << self.n_held;
        self.n_held += n_bits;
        if self.n_held >= 32 {
            self.bytes.extend((self.held as u32).to_le_bytes());
            self.held >>= 32;
            self.n_held -= 32;
        }
    }

    fn gap(&mut self, gap: u64, low_bits: u32) {
        let mut n_ones = gap >> low_bits;
        while n_ones >= 31 {
            self.put((1 << 31) - 1, 31);
            n_ones -= 31;
        }
        // The zero that ends them is the bit above.
        self.put((1 << n_ones) - 1, n_ones as u32 + 1);
        self.put(gap & ((1 << low_bits) - 1), low_bits);
    }

    fn finish(self) {
        let n_bytes = self.n_held.div_ceil(8) as usize;
        self.bytes.extend(self.held.to_le_bytes().iter().take(n_bytes));
    }
}

/// Why a gap cannot be decoded.
enum GapError {
    /// It leads past the last value.
    Long,
    /// The bits end within it.
    Cut,
}

struct BitReader<'a> {
    bytes: &'a [u8],
    held: u64,
    n_held: u32,
}

impl BitReader<'_> {
    /// At least 32 bits are held then, unless fewer are left.
    fn fill(&mut self) {
        if self.n_held > 32 {
            return;
        }
        if let Some((four, rest)) = self.bytes.split_first_chunk::<4>() {
            self.held |= u64::from(u32::from_le_bytes(*four)) << self.n_held;
            self.n_held += 32;
            self.bytes = rest;
            return;
        }
        while let Some((&byte, rest)) = self.bytes.split_first()
            && self.n_held <= 32
        {
            self.held |= u64::from(byte) << self.n_held;
            self.n_held += 8;
            self.bytes = rest;
        }
    }

    fn skip(&mut self, n_bits: u32) -> Result<(), GapError> {
        self.n_held = self.n_held.checked_sub(n_bits).ok_or(GapError::Cut)?;
        // All 64 of them, where there are so many ones.
        self.held = self.held.checked_shr(n_bits).unwrap_or(0);
        Ok(())
    }

    /// A gap. More ones than one below `n_left` could have are not read.
    fn gap(&mut self, low_bits: u32, n_left: u64) -> Result<u64, GapError> {
        let mut n_ones = 0;
        loop {
            self.fill();
            let ones = self.held.trailing_ones().min(self.n_held);
            let has_zero = ones < self.n_held;
            n_ones += u64::from(ones);
            if n_ones > n_left >> low_bits {
                return Err(GapError::Long);
            }
            self.skip(ones)?;
            if has_zero {
                break;
            }
            if self.bytes.is_empty() {
                return Err(GapError::Cut);
            }
        }
        self.skip(1)?;
        self.fill();
        let low = self.held & ((1 << low_bits) - 1);
        self.skip(low_bits)?;
        Ok(n_ones << low_bits | low)
    }

    /// Nothing but the zeros that fill the last byte.
    fn is_at_end(&self) -> bool {
        self.bytes.is_empty() && self.n_held < 8 && self.held == 0
    }
}
