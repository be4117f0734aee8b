//! Experts (Learning@home §3): which ones compute what, and where a pass asks for those that other peers host.
//!
//! Knows no network.

mod port;

pub use self::port::{ExpertAnswers, ExpertCall, ExpertPort, WayBack};

/// Experts of each input of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Routes {
    n_active: usize,
    /// `[n_inputs, n_active]`, the best first; `None` where fewer are there.
    chosen: Vec<Option<u32>>,
}

impl Routes {
    /// `chosen` is `[n_inputs, n_active]`.
    pub(crate) fn of(n_active: usize, chosen: Vec<Option<u32>>) -> Self {
        Self { n_active, chosen }
    }

    /// The experts with the highest scores `Σ_i scores[i][u_i]`, where all are there; of equal ones the first on the grid. A
    /// score that is no number is the lowest.
    ///
    /// # Shapes
    /// - `scores`: `[n_inputs, n_dimensions * side]`
    pub(crate) fn best(scores: &[f32], side: usize, n_dimensions: usize, n_active: usize) -> Self {
        let n_experts = side.pow(u32::try_from(n_dimensions).unwrap_or(u32::MAX));
        let mut chosen = Vec::with_capacity(scores.len() / (side * n_dimensions).max(1) * n_active);
        for scores in scores.chunks_exact((side * n_dimensions).max(1)) {
            let mut best: Vec<(f32, usize)> = Vec::with_capacity(n_active + 1);
            for expert in 0..n_experts {
                let score = sum(scores, side, expert);
                let at = best.partition_point(|&(better, _)| better >= score);
                if at < n_active {
                    best.insert(at, (score, expert));
                    best.truncate(n_active);
                }
            }
            let found = best.iter().map(|&(_, expert)| u32::try_from(expert).ok());
            chosen.extend(found.chain(std::iter::repeat(None)).take(n_active));
        }
        Self { n_active, chosen }
    }

    /// Leaves out experts beyond their capacity: `capacity` times the mean over all `n_experts`, and one at least. First
    /// choices count before second ones, and among these the first inputs.
    pub(crate) fn limit(&mut self, n_experts: usize, capacity: f32) {
        let mean = self.chosen.len() as f32 / n_experts.max(1) as f32;
        let most = ((capacity * mean).ceil() as usize).max(1);
        let mut loads = vec![0_usize; n_experts];
        for choice in 0..self.n_active {
            for chosen in self.chosen.iter_mut().skip(choice).step_by(self.n_active.max(1)) {
                let load = chosen.and_then(|expert| loads.get_mut(expert as usize));
                match load {
                    Some(load) if *load < most => *load += 1,
                    _ => *chosen = None,
                }
            }
        }
    }

    /// Experts of an input at most.
    pub(crate) fn n_active(&self) -> usize {
        self.n_active
    }

    /// `[n_inputs, n_active]`.
    pub(crate) fn chosen(&self) -> &[Option<u32>] {
        &self.chosen
    }

    /// For each expert the positions in [`Self::chosen`] that have it.
    pub(crate) fn of_experts(&self, n_experts: usize) -> Vec<Vec<usize>> {
        let mut pairs = vec![Vec::new(); n_experts];
        for (pair, chosen) in self.chosen.iter().enumerate() {
            if let Some(pairs) = chosen.and_then(|expert| pairs.get_mut(expert as usize)) {
                pairs.push(pair);
            }
        }
        pairs
    }

    /// For each place of each dimension the share of the inputs' choices that are there, `[n_dimensions * side]`; each
    /// dimension sums to 1.
    pub(crate) fn shares(&self, side: usize, n_dimensions: usize) -> Vec<f32> {
        let mut shares = vec![0.0_f32; side * n_dimensions];
        let n_chosen = self.chosen.iter().flatten().count().max(1) as f32;
        for &expert in self.chosen.iter().flatten() {
            for at in places(expert as usize, side, n_dimensions) {
                shares[at] += 1.0 / n_chosen;
            }
        }
        shares
    }
}

/// Positions of an expert's places in the scores of all dimensions, which lie one after another.
pub(crate) fn places(expert: usize, side: usize, n_dimensions: usize) -> impl Iterator<Item = usize> {
    let mut stride = side.pow(u32::try_from(n_dimensions).unwrap_or(u32::MAX));
    (0..n_dimensions).map(move |dimension| {
        stride /= side.max(1);
        dimension * side + expert / stride.max(1) % side.max(1)
    })
}

/// The score of an expert.
fn sum(scores: &[f32], side: usize, expert: usize) -> f32 {
    let score: f32 = places(expert, side, scores.len() / side.max(1)).map(|at| scores[at]).sum();
    if score.is_nan() { f32::NEG_INFINITY } else { score }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_by_the_sum_of_their_scores() {
        // Two inputs on a grid of two by two: experts 0.0, 0.1, 1.0, 1.1.
        let scores = [1.0, 0.0, 0.0, 3.0, f32::NAN, 0.0, 2.0, 2.0];
        let all = Routes::best(&scores, 2, 2, 3);
        assert_eq!(all.chosen(), [Some(1), Some(3), Some(0), Some(2), Some(3), Some(0)]);
        let some = Routes::of(3, vec![Some(3), Some(0), None, Some(3), Some(0), None]);
        assert_eq!(some.of_experts(4), [vec![1, 4], vec![], vec![], vec![0, 3]]);
        let none = Routes::of(1, vec![None, None]);
        assert_eq!(none.shares(2, 2), [0.0; 4]);
        assert_eq!(some.shares(2, 2), [0.5; 4]);
        assert_eq!(places(3, 2, 2).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(places(5, 4, 1).collect::<Vec<_>>(), [1]);
        assert_eq!(places(6, 2, 3).collect::<Vec<_>>(), [1, 3, 4]);
    }

    #[test]
    fn first_choices_have_room_before_second_ones() {
        let scores = [2.0, 1.0, 2.0, 1.0, 1.0, 2.0];
        let mut routes = Routes::best(&scores, 2, 1, 2);
        assert_eq!(routes.chosen(), [Some(0), Some(1), Some(0), Some(1), Some(1), Some(0)]);
        // Six choices, two experts: two each.
        routes.limit(2, 0.5);
        assert_eq!(routes.chosen(), [Some(0), Some(1), Some(0), None, Some(1), None]);
        // One at least.
        routes.limit(2, 0.01);
        assert_eq!(routes.chosen(), [Some(0), None, None, None, Some(1), None]);
    }
}
