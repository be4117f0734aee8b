//! What the tests of this crate share: ways to write peers down, and a simplex method of their own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

pub(crate) mod simplex;

use barnraise_planning::{PairLimit, Peer, PeerId, Situation, Updates, Work};

pub(crate) fn id(number: usize) -> PeerId {
    PeerId((number as u32).to_be_bytes().to_vec())
}

/// Symmetric bandwidth, reachable, receives.
pub(crate) fn peer(number: usize, samples_per_s: f64, bytes_per_s: f64) -> Peer {
    Peer {
        id: id(number),
        samples_per_s,
        download_bytes_per_s: bytes_per_s,
        upload_bytes_per_s: bytes_per_s,
        is_reachable: true,
        receives: true,
    }
}

/// A CPU server that does nothing but average, and does not keep the model.
pub(crate) fn helper(number: usize, bytes_per_s: f64) -> Peer {
    Peer { receives: false, ..peer(number, 0.0, bytes_per_s) }
}

/// A vector of a million bytes and so many values that rounding to whole ones does not show.
pub(crate) fn work(target_batch_size: u64) -> Work {
    Work {
        vector_bytes: 1_000_000,
        n_values: 1 << 40,
        target_batch_size,
        part_values_min: 0,
        updates: Updates::Delayed,
    }
}

pub(crate) fn situation(peers: Vec<Peer>, limits: &[PairLimit], work: Work) -> Situation {
    Situation::new(peers, limits, work).unwrap()
}

pub(crate) fn is_close(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * a.abs().max(b.abs())
}
