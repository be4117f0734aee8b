//! Changes to inputs of a corpus, as libFuzzer makes them.

use fastrand::Rng;

/// Changes of one input, at most.
const N_CHANGES_MAX: usize = 8;
/// Bytes that are inserted or overwritten at once, at most.
const RUN_BYTES_MAX: usize = 16;
/// What lengths and counters go wrong at.
const INTERESTING: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

/// An input like those of the corpus, which is not empty.
pub(crate) fn changed(random: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut input = any(random, corpus).to_vec();
    for _ in 0..random.usize(1..=N_CHANGES_MAX) {
        change(random, &mut input, corpus);
    }
    input
}

fn any<'c>(random: &mut Rng, corpus: &'c [Vec<u8>]) -> &'c [u8] {
    &corpus[random.usize(..corpus.len())]
}

fn change(random: &mut Rng, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    let at = random.usize(..=input.len());
    let end = input.len().min(at + random.usize(1..=RUN_BYTES_MAX));
    match random.u8(..7) {
        0 => input.truncate(at),
        1 => drop(input.drain(at..end)),
        2 => {
            let of = any(random, corpus);
            let from = random.usize(..=of.len());
            let to = of.len().min(from + random.usize(1..=4 * RUN_BYTES_MAX));
            input.splice(at..at, of[from..to].iter().copied());
        }
        3 => {
            let inserted: Vec<u8> = (0..random.usize(1..=RUN_BYTES_MAX)).map(|_| random.u8(..)).collect();
            input.splice(at..at, inserted);
        }
        4 => input[at..end].iter_mut().for_each(|byte| *byte = random.u8(..)),
        5 => input[at..end].iter_mut().take(1).for_each(|byte| *byte ^= 1 << random.u8(..8)),
        _ => {
            let interesting = INTERESTING[random.usize(..INTERESTING.len())];
            input[at..end].iter_mut().take(random.usize(1..=8)).for_each(|byte| *byte = interesting);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_changes_and_they_differ_among_each_other() {
        let corpus = [vec![7; 40], vec![9; 30]];
        let all = |seed| -> Vec<Vec<u8>> {
            let mut random = Rng::with_seed(seed);
            (0..200).map(|_| changed(&mut random, &corpus)).collect()
        };
        assert_eq!(all(3), all(3));
        assert_ne!(all(3), all(4));
        assert!(all(3).into_iter().collect::<HashSet<_>>().len() > 150);
    }
}
