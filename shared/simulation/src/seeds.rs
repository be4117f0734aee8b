//! The seeds of a test. A failure names the one that repeats it.

use std::env;
use std::ops::Range;
use std::thread::panicking;

/// The first seed of a test instead of its own.
pub const SEED_VARIABLE: &str = "BARNRAISE_SIMULATION_SEED";
/// The number of seeds of a test, where it has more: who runs the same test thousands of times has no time for all.
pub const N_SEEDS_VARIABLE: &str = "BARNRAISE_SIMULATION_SEEDS";

/// The seeds that a test runs with, one after the other. See [`seeds`].
#[derive(Debug)]
pub struct Seeds {
    left: Range<u64>,
    current: Option<u64>,
}

/// The seeds of a range. Where [`SEED_VARIABLE`] is set, as many from that seed on: the first repeats a failure. Where
/// [`N_SEEDS_VARIABLE`] is set, no more than it says.
///
/// # Panics
/// Where a variable is not a number.
pub fn seeds(range: Range<u64>) -> Seeds {
    let first = variable(SEED_VARIABLE).unwrap_or(range.start);
    let n_max = variable(N_SEEDS_VARIABLE).unwrap_or(u64::MAX);
    let n_seeds = range.end.saturating_sub(range.start).min(n_max);
    Seeds { left: first..first.saturating_add(n_seeds), current: None }
}

#[allow(clippy::panic, reason = "it is how a test fails")]
fn variable(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is to be a number, and is {text:?}")))
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
