//! Mixes the sequences of several sources: each position draws a source by weight.

use barnraise_swarm::random::SplitMix64;

/// The sequences of a source.
pub(super) struct SourceSequences {
    /// `[n_sequences, length]`, at least one.
    pub(super) ids: Vec<u32>,
    /// Above zero.
    pub(super) weight: f64,
}

impl SourceSequences {
    pub(super) fn n_sequences(&self, length: u16) -> usize {
        self.ids.len() / usize::from(length).max(1)
    }
}

/// Draws `n` sequences. Those of a source come in a random order, which begins again after the last.
pub(super) fn mixed(sources: &[SourceSequences], length: u16, n: usize, seed: u64) -> Vec<u32> {
    let mut random = SplitMix64::new(seed);
    let total: f64 = sources.iter().map(|source| source.weight).sum();
    let mut orders: Vec<Vec<u32>> = vec![Vec::new(); sources.len()];
    let mut ids = Vec::with_capacity(n * usize::from(length));
    for _ in 0..n {
        let index = pick(sources, total, &mut random);
        let (Some(source), Some(order)) = (sources.get(index), orders.get_mut(index)) else { continue };
        if order.is_empty() {
            order.extend(0..source.n_sequences(length) as u32);
            random.shuffle(order);
        }
        let first = order.pop().unwrap_or_default() as usize * usize::from(length);
        ids.extend_from_slice(source.ids.get(first..first + usize::from(length)).unwrap_or_default());
    }
    ids
}

fn pick(sources: &[SourceSequences], total: f64, random: &mut SplitMix64) -> usize {
    // A double has 53 bits of precision.
    let mut place = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 * total;
    for (index, source) in sources.iter().enumerate() {
        place -= source.weight;
        if place < 0.0 {
            return index;
        }
    }
    sources.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(first: u32, n: u32, weight: f64) -> SourceSequences {
        SourceSequences { ids: (first..first + n).flat_map(|id| [id; 4]).collect(), weight }
    }

    #[test]
    fn sources_come_by_their_weights() {
        let sources = [source(0, 1000, 3.0), source(1000, 50, 1.0)];
        let ids = mixed(&sources, 4, 4000, 9);
        assert_eq!(ids.len(), 16_000);
        assert!(ids.chunks(4).all(|sequence| sequence.iter().all(|id| *id == sequence[0])));
        let n_small = ids.chunks(4).filter(|sequence| sequence[0] >= 1000).count();
        // A standard deviation is 27.
        assert!(n_small.abs_diff(1000) < 150, "{n_small}");
        // Of the small one all have come equally often, but for the pass that is not over.
        let count = |id| ids.chunks(4).filter(|sequence| sequence[0] == id).count();
        assert!((1000..1050).all(|id| count(id).abs_diff(n_small / 50) <= 1));
        assert_eq!(ids, mixed(&sources, 4, 4000, 9));
        assert_ne!(ids, mixed(&sources, 4, 4000, 10));
    }

    #[test]
    fn one_source_gives_each_sequence_once() {
        let mut ids = mixed(&[source(0, 100, 0.5)], 4, 100, 1);
        assert!(!ids.is_sorted());
        ids.sort_unstable();
        assert!(ids.into_iter().eq((0..100).flat_map(|id| [id; 4])));
    }
}
