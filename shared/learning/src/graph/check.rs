//! Bounds of a graph's options.

use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::run::model::Adapters;

use super::NAME_BYTES_MAX;
use super::error::{BlockProblem, GraphError};

/// Largest rank of an adapter.
const RANK_MAX: u32 = 1024;
/// Most names of blocks in adapters.
const NAMES_MAX: usize = 64;

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

/// Checks the options of adapters, but not which blocks they mean.
pub(super) fn adapters(adapters: &Adapters) -> Result<(), GraphError> {
    let Adapters { codec, rank, alpha, targets, trained } = adapters;
    let refused = |option, want, got| Err(GraphError::Adapters { option, want, got });
    if matches!(codec, TensorCodec::TopK(_)) {
        return Err(GraphError::FrozenCodec);
    }
    if !(1..=RANK_MAX).contains(rank) {
        return refused("rank", "1 to 1024", f64::from(*rank));
    }
    if !(0.001..=10_000.0).contains(alpha) {
        return refused("alpha", "0.001 to 10,000", f64::from(*alpha));
    }
    let n_names = targets.len() + trained.len();
    if !(1..=NAMES_MAX).contains(&n_names) {
        return refused("number of blocks", "1 to 64", n_names as f64);
    }
    match targets.iter().chain(trained).find(|name| name.is_empty() || name.len() > NAME_BYTES_MAX) {
        Some(name) => refused("length of a block's name", "1 to 64 bytes", name.len() as f64),
        None => Ok(()),
    }
}
