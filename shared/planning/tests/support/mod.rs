//! Helpers of this crate's tests: peers, workloads, and an independent simplex method.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

pub(crate) mod simplex;

use barnraise_planning::{MeasuredPeer, PairLimit, PeerId, PlanningProblem, RoundWorkload, Updates};

pub(crate) fn id(number: usize) -> PeerId {
    PeerId((number as u32).to_be_bytes().to_vec())
}

/// Symmetric bandwidth, reachable, receives.
pub(crate) fn peer(number: usize, samples_per_s: f64, bytes_per_s: f64) -> MeasuredPeer {
    MeasuredPeer {
        id: id(number),
        samples_per_s,
        download_bytes_per_s: bytes_per_s,
        upload_bytes_per_s: bytes_per_s,
        is_reachable: true,
        receives: true,
    }
}

/// A CPU server that only reduces, and does not keep the model.
pub(crate) fn helper(number: usize, bytes_per_s: f64) -> MeasuredPeer {
    MeasuredPeer { receives: false, ..peer(number, 0.0, bytes_per_s) }
}

/// A vector of a million bytes, with enough values that rounding parts does not matter.
pub(crate) fn work(target_batch_size: u64) -> RoundWorkload {
    RoundWorkload {
        vector_bytes: 1_000_000,
        n_values: 1 << 40,
        target_batch_size,
        part_values_min: 0,
        updates: Updates::Delayed,
    }
}

pub(crate) fn problem(
    peers: Vec<MeasuredPeer>,
    limits: &[PairLimit],
    work: RoundWorkload,
) -> PlanningProblem {
    PlanningProblem::new(peers, limits, work).unwrap()
}

pub(crate) fn is_close(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * a.abs().max(b.abs())
}
