//! The share of a data set that is never trained on.

use super::Invalid;

/// Of samples that are drawn by chance.
pub(super) fn default() -> f64 {
    0.1
}

/// Of a text, whose end it is.
pub(super) fn of_text() -> f64 {
    0.02
}

pub(super) fn check(key: &'static str, held_out: f64) -> Result<(), Invalid> {
    Invalid::check(key, held_out > 0.0 && held_out <= 0.5, "above 0 and at most 0.5", held_out)
}
