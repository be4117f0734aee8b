//! The seeds of a test. A failure names the one that repeats it.

use std::env;
use std::ops::Range;
use std::thread::panicking;

/// The first seed of a test instead of its own.
pub const SEED_VARIABLE: &str = "BARNRAISE_SIMULATION_SEED";

/// The seeds that a test runs with, one after the other. See [`seeds`].
#[derive(Debug)]
pub struct Seeds {
    left: Range<u64>,
    current: Option<u64>,
}

/// The seeds of a range. Where [`SEED_VARIABLE`] is set, as many from that seed on: the first repeats a failure.
///
/// # Panics
/// Where the variable is not a number.
#[allow(clippy::panic, reason = "it is how a test fails")]
pub fn seeds(range: Range<u64>) -> Seeds {
    let first = match env::var(SEED_VARIABLE) {
        Ok(text) => {
            text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE} is to be a number, and is {text:?}"))
        }
        Err(_) => range.start,
    };
    let n_seeds = range.end.saturating_sub(range.start);
    Seeds { left: first..first.saturating_add(n_seeds), current: None }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.current = self.left.next();
        self.current
    }
}

impl Drop for Seeds {
    fn drop(&mut self) {
        if let Some(seed) = self.current.filter(|_| panicking()) {
            eprintln!("seed {seed} failed: {SEED_VARIABLE}={seed} repeats it");
        }
    }
}
