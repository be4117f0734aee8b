//! Work on many things, some of them at a time.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, anyhow};

/// As many lanes as there are processors.
pub(crate) fn one_each_processor() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Does `work` for each of `items`, which begin in their order, `n_lanes` at a time. Returns what came of them, in any order.
///
/// An error ends its lane; the others take what is left, and then the error is returned.
pub(crate) fn run<'i, T: Sync, R: Send>(
    n_lanes: usize,
    items: &'i [T],
    work: impl Fn(&'i T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let lane = || -> Result<Vec<R>> {
        let taken = std::iter::from_fn(|| items.get(next.fetch_add(1, Ordering::Relaxed)));
        taken.map(&work).collect()
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..n_lanes).map(|_| scope.spawn(lane)).collect();
        // All of them: the scope panics where one that panicked was not asked.
        lanes.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let outcomes = ends.into_iter().map(|end| end.map_err(|_| anyhow!("a lane panicked"))?);
    Ok(outcomes.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn each_is_done_once_and_an_error_ends_one_lane() {
        let items: Vec<usize> = (0..100).collect();
        let mut done = run(3, &items, |item| Ok(*item)).unwrap();
        done.sort_unstable();
        assert_eq!(done, items);
        let n_begun = AtomicUsize::new(0);
        let failed = run(2, &items, |item| {
            n_begun.fetch_add(1, Ordering::Relaxed);
            if *item == 7 {
                bail!("seven");
            }
            Ok(())
        });
        assert_eq!(failed.unwrap_err().to_string(), "seven");
        assert_eq!(n_begun.into_inner(), 100, "the other lane has taken what was left");
        assert!(run(2, &items, |_| -> Result<()> { panic!("a lane") }).is_err());
    }
}
