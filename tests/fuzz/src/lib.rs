//! Fuzz targets that are ordinary tests: beside the code that they are of, private functions included.
//!
//! A target is a test in a module `fuzz`. `cargo test` gives it all inputs of its corpus, and changed ones by a seed that
//! is printed. `cargo xtask fuzz` has the members compiled with coverage counters and puts libFuzzer in the place of the
//! seed; what they depend on is the build of the tests. (bolero offers the same, and tells its engines apart by flags of
//! the compiler, with which all dependencies would be compiled once more.) Nothing here is part of what is shipped.
#![allow(clippy::panic, reason = "it is how a test fails")]

pub mod corpus;
#[cfg(fuzzing)]
mod libfuzzer;
mod mutation;

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::str::FromStr;

pub use arbitrary;
use arbitrary::{Arbitrary, Unstructured};

/// Changed inputs that a test tries after its corpus.
const N_CHANGED: usize = 1000;
/// Another number than [`N_CHANGED`].
const INPUTS_VARIABLE: &str = "BARNRAISE_FUZZ_INPUTS";
/// The seed of the changes, as it was printed.
const SEED_VARIABLE: &str = "BARNRAISE_FUZZ_SEED";

/// Runs the target of this name, `Fn(&[u8])`, which panics at a finding. Its corpus is that of the crate that calls this
/// ([`corpus::file`]).
#[macro_export]
macro_rules! fuzz {
    ($name:literal, $target:expr) => {
        $crate::run($name, ::core::env!("CARGO_MANIFEST_DIR"), $target)
    };
}

/// See [`fuzz!`].
pub fn run(name: &str, member: &str, target: impl Fn(&[u8]) + Send + Sync + 'static) {
    #[cfg(fuzzing)]
    if let Some(args) = libfuzzer::args() {
        libfuzzer::run(args, target);
    }
    let file = corpus::file(member.as_ref(), name);
    let corpus = corpus::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    for input in &corpus {
        check(name, "an input of its corpus", input, &target);
    }
    let seed = variable(SEED_VARIABLE).unwrap_or_else(|| fastrand::u64(..));
    println!("{name}: {} inputs of {}, then {SEED_VARIABLE}={seed}", corpus.len(), file.display());
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..variable(INPUTS_VARIABLE).unwrap_or(N_CHANGED) {
        let of = format!("a changed input ({SEED_VARIABLE}={seed})");
        check(name, &of, &mutation::changed(&mut random, &corpus), &target);
    }
}

/// What the bytes of an input stand for; none where they are too few.
pub fn value<'i, T: Arbitrary<'i>>(input: &'i [u8]) -> Option<T> {
    T::arbitrary_take_rest(Unstructured::new(input)).ok()
}

fn check(name: &str, of: &str, input: &[u8], target: &impl Fn(&[u8])) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        eprintln!("{name} failed on {of}; this line belongs into its corpus, with a comment:");
        eprintln!("{}", corpus::line(input));
        resume_unwind(panic);
    }
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} wants a number, `{text}` is none")))
}
