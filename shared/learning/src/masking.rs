//! Masks tokens of sequences for masked language modelling (Devlin et al. 2019, §3.1).
//!
//! Each sequence has the same number of masked tokens, so that the mean over sequences is the mean over predictions.
//! The choice follows from the sequence, the run's seed and the number of the draw alone: every peer that computes a
//! sequence in an epoch computes the same gradient. Pure host code.

use barnraise_protocol::dataset::TokenShape;
use serde::{Deserialize, Serialize};

use crate::random::{SplitMix64, state_of};

/// Share of the tokens that are masked.
pub const MASKED_SHARE: f64 = 0.15;
/// Draw of held-out sequences: their tokens are always masked alike.
pub const EVALUATION_DRAW: u64 = u64::MAX;

/// Sequences with tokens masked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskedTokens {
    /// What the model sees, `[n_sequences, length]`.
    pub inputs: Vec<u32>,
    /// Positions in `inputs` of the tokens to predict, `[n_sequences, masked_per_sequence]`, rising.
    pub positions: Vec<u32>,
    /// The tokens to predict, in the order of `positions`.
    pub targets: Vec<u32>,
}

/// Masked tokens of a sequence: at least one.
pub fn masked_per_sequence(length: usize) -> usize {
    ((length as f64 * MASKED_SHARE).round() as usize).max(1)
}

impl MaskedTokens {
    /// Masks `ids`, `[n_sequences, length]`, by the token `mask`: of the chosen tokens 80 % become the mask, 10 % any token
    /// of the vocabulary, and 10 % stay.
    pub fn of(ids: &[u32], shape: TokenShape, mask: u32, seed: u64, draw: u64) -> Self {
        let length = usize::from(shape.length).max(1);
        let n_masked = masked_per_sequence(length);
        let n_sequences = ids.len() / length;
        let mut masked = Self {
            inputs: ids.to_vec(),
            positions: Vec::with_capacity(n_sequences * n_masked),
            targets: Vec::with_capacity(n_sequences * n_masked),
        };
        let n_tokens = (shape.vocabulary as usize).max(1);
        let mut order: Vec<usize> = Vec::with_capacity(length);
        for (index, sequence) in ids.chunks_exact(length).enumerate() {
            let bytes = sequence.iter().flat_map(|id| id.to_le_bytes());
            let mut random = SplitMix64 { state: state_of(bytes, seed, draw) };
            order.clear();
            order.extend(0..length);
            for place in 0..n_masked {
                order.swap(place, place + random.below(length - place));
            }
            order.truncate(n_masked);
            order.sort_unstable();
            for &place in &order {
                let at = index * length + place;
                masked.positions.push(at as u32);
                masked.targets.push(sequence[place]);
                match random.below(10) {
                    0 => masked.inputs[at] = random.below(n_tokens) as u32,
                    1 => {}
                    _ => masked.inputs[at] = mask,
                }
            }
        }
        masked
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use barnraise_protocol::Sha256Hash;

    use super::*;

    const MASK: u32 = 1;
    const SHAPE: TokenShape = TokenShape { length: 40, vocabulary: 500, mask: Some(MASK) };

    fn ids(n_sequences: usize) -> Vec<u32> {
        let mut random = SplitMix64 { state: 5 };
        (0..n_sequences * 40).map(|_| 3 + random.below(497) as u32).collect()
    }

    /// Who computes a contribution once more may be of another build than who made it.
    #[test]
    fn what_is_masked_is_the_same_everywhere() {
        let masked = MaskedTokens::of(&ids(50), SHAPE, MASK, 7, 3);
        let numbers = masked.inputs.iter().chain(&masked.targets).copied();
        let bytes: Vec<u8> = numbers.chain(masked.positions).flat_map(u32::to_le_bytes).collect();
        assert_eq!(
            Sha256Hash::of(&bytes).to_string(),
            "5390bfba159f392620c162451be06701c69e26236caeca0cf0739209d936a200"
        );
    }

    #[test]
    fn a_fixed_share_of_each_sequence_is_masked_in_the_proportions_of_the_paper() {
        let ids = ids(2000);
        let masked = MaskedTokens::of(&ids, SHAPE, MASK, 7, 3);
        assert_eq!(masked.positions.len(), 2000 * 6);
        let (mut n_masks, mut n_kept, mut n_others) = (0, 0, 0);
        for (&position, &target) in masked.positions.iter().zip(&masked.targets) {
            let position = position as usize;
            assert_eq!(ids[position], target);
            match masked.inputs[position] {
                MASK => n_masks += 1,
                id if id == target => n_kept += 1,
                id => {
                    assert!(id < SHAPE.vocabulary);
                    n_others += 1;
                }
            }
        }
        // 12,000 draws: a standard deviation is 0.4 % at most.
        for (n, want) in [(n_masks, 0.8), (n_kept, 0.1), (n_others, 0.1)] {
            let share = f64::from(n) / 12_000.0;
            assert!((share - want).abs() < 0.02, "{share}, {want} wanted");
        }
        let chosen: HashSet<u32> = masked.positions.iter().copied().collect();
        assert_eq!(chosen.len(), 2000 * 6);
        for (at, (before, after)) in ids.iter().zip(&masked.inputs).enumerate() {
            assert!(before == after || chosen.contains(&(at as u32)));
        }
        for sequence in masked.positions.chunks(6).enumerate() {
            assert!(sequence.1.iter().all(|&at| at as usize / 40 == sequence.0));
        }
    }

    #[test]
    fn the_choice_depends_on_sequence_seed_and_draw_alone() {
        let ids = ids(3);
        let all = MaskedTokens::of(&ids, SHAPE, MASK, 7, 3);
        assert_eq!(all, MaskedTokens::of(&ids, SHAPE, MASK, 7, 3));
        assert_ne!(all.positions, MaskedTokens::of(&ids, SHAPE, MASK, 8, 3).positions);
        assert_ne!(all.positions, MaskedTokens::of(&ids, SHAPE, MASK, 7, 4).positions);
        let last = MaskedTokens::of(&ids[80..], SHAPE, MASK, 7, 3);
        assert_eq!(last.inputs, all.inputs[80..]);
        assert_eq!(last.targets, all.targets[12..]);
    }

    #[test]
    fn short_sequences_have_one_guess() {
        assert_eq!(masked_per_sequence(4), 1);
        assert_eq!(masked_per_sequence(64), 10);
        let masked = MaskedTokens::of(
            &[3, 4, 5, 6],
            TokenShape { length: 4, vocabulary: 9, mask: Some(MASK) },
            MASK,
            1,
            1,
        );
        assert_eq!((masked.positions.len(), masked.targets.len()), (1, 1));
    }
}
