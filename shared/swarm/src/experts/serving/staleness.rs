//! How far an expert moves by gradients that it has overtaken: between an output and its gradient it makes the steps of other
//! trainers, and with many of them steps of full length diverge. As in staleness-aware asynchronous SGD (Zhang, Gupta, Lian and Liu
//! 2016) the learning rate is divided by the steps from the output on, the one that is made included.

/// Rows of a backward pass, and the steps behind the parameters that gave their output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputRows {
    /// Rows.
    pub n_rows: u32,
    /// As their trainer said.
    pub n_steps: u64,
}

/// What the learning rate of a step is multiplied with, above 0 and at most 1, of an expert with `n_steps`: the mean over the rows of
/// its batch. So a trainer that makes its gradients older than they are slows the others by its share of the rows at most.
pub fn step_factor(n_steps: u64, parts: &[OutputRows]) -> f32 {
    let n_rows: f64 = parts.iter().map(|part| f64::from(part.n_rows)).sum();
    let of_part = |part: &OutputRows| {
        // Another host may have made more steps than this one goes on from.
        let n_between = n_steps.saturating_sub(part.n_steps);
        f64::from(part.n_rows) / (1.0 + n_between as f64)
    };
    let sum: f64 = parts.iter().map(of_part).sum();
    if n_rows > 0.0 { (sum / n_rows) as f32 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(parts: &[(u32, u64)]) -> Vec<OutputRows> {
        parts.iter().map(|&(n_rows, n_steps)| OutputRows { n_rows, n_steps }).collect()
    }

    #[test]
    fn a_step_is_as_many_times_shorter_as_there_were_steps_since_the_output() {
        for (n_steps, factor) in [(100, 1.0), (101, 1.0), (u64::MAX, 1.0), (99, 0.5), (97, 0.25), (1, 0.01)] {
            assert!((step_factor(100, &rows(&[(8, n_steps)])) - factor).abs() < 1e-6, "{n_steps}");
        }
        assert!((step_factor(0, &[]) - 1.0).abs() < 1e-6);
        assert!(step_factor(u64::MAX, &rows(&[(1, 0)])) > 0.0);
    }

    #[test]
    fn who_lies_about_the_age_of_some_rows_slows_the_others_by_the_share_of_those() {
        let factor = step_factor(1_000_000, &rows(&[(90, 1_000_000), (10, 0)]));
        assert!((0.9..0.901).contains(&factor), "{factor}");
    }
}
