//! The switch of a mutated crate: whether a mutant is the one that this process is to run.

use std::sync::LazyLock;

const NONE: usize = usize::MAX;
const REACH: usize = usize::MAX - 1;

static CHOSEN: LazyLock<usize> = LazyLock::new(|| match std::env::var("BARNRAISE_MUTANT").as_deref() {
    Ok("reach") => REACH,
    Ok(number) => number.parse().unwrap_or(NONE),
    Err(_) => NONE,
});

/// Whether the process is mutant `number`, a number that is always below the greatest two.
#[inline]
pub fn is(number: usize) -> bool {
    match *CHOSEN {
        REACH => {
            reach::note(number);
            false
        }
        chosen => chosen == number,
    }
}

mod reach {
    use std::collections::BTreeSet;
    use std::fs::{File, OpenOptions};
    use std::io::Write;
    use std::sync::Mutex;

    static SEEN: Mutex<(BTreeSet<usize>, Option<File>)> = Mutex::new((BTreeSet::new(), None));

    /// Writes each number once, at once: a test may end by a signal.
    #[cold]
    pub fn note(number: usize) {
        let mut seen = SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if seen.0.insert(number) {
            if seen.1.is_none() {
                let path = std::env::var_os("BARNRAISE_MUTANTS_REACHED").unwrap();
                seen.1 = Some(OpenOptions::new().create(true).append(true).open(path).unwrap());
            }
            writeln!(seen.1.as_mut().unwrap(), "{number}").unwrap();
        }
    }
}
