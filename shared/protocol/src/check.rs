//! Deviation of a device's results from the reference. Plain data; nothing here computes.

use serde::{Deserialize, Serialize};

/// One comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckOutcome {
    /// Name of the compared quantity.
    pub name: String,
    /// Largest absolute difference, divided by the largest absolute value of the reference.
    pub deviation: f32,
    /// Largest deviation that passes.
    pub tolerance: f32,
}

impl CheckOutcome {
    /// Whether the deviation is a number within the tolerance. A NaN never is.
    pub fn passed(&self) -> bool {
        self.deviation <= self.tolerance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_deviation_never_passes() {
        let check = |deviation| CheckOutcome { name: "x".into(), deviation, tolerance: 1.0 };
        assert!(check(1.0).passed());
        assert!(!check(1.1).passed());
        assert!(!check(f32::NAN).passed());
    }
}
