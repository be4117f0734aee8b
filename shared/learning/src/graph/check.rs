//! Bounds of a graph's options.

use super::error::BlockProblem;

/// Checks an integer, for each of several numbers of one option.
pub(super) fn integers(
    option: &'static str,
    got: &[u32],
    range: std::ops::RangeInclusive<u32>,
    want: &'static str,
) -> Result<(), BlockProblem> {
    match got.iter().find(|got| !range.contains(got)) {
        Some(&got) => Err(BlockProblem::Option { option, want, got: got.into() }),
        None => Ok(()),
    }
}

/// Checks that something holds of an integer.
pub(super) fn that(
    holds: bool,
    option: &'static str,
    got: u32,
    want: &'static str,
) -> Result<(), BlockProblem> {
    if holds { Ok(()) } else { Err(BlockProblem::Option { option, want, got: got.into() }) }
}

/// Checks a number with a fraction; one that is not finite is in no range.
pub(super) fn number(
    option: &'static str,
    got: f32,
    range: std::ops::RangeInclusive<f32>,
    want: &'static str,
) -> Result<(), BlockProblem> {
    match range.contains(&got) {
        true => Ok(()),
        false => Err(BlockProblem::Option { option, want, got: got.into() }),
    }
}

/// Checks what is added to a variance.
pub(super) fn epsilon(got: f32) -> Result<(), BlockProblem> {
    number("epsilon", got, 1e-12..=1.0, "1e-12 to 1")
}

/// Checks the share of values that dropout sets to zero.
pub(super) fn dropped(option: &'static str, got: f32) -> Result<(), BlockProblem> {
    number(option, got, 0.0..=0.95, "0 to 0.95")
}
