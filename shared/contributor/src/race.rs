//! Happy Eyeballs: attempts to reach the same peer, started in order with a short head start each (RFC 8305, section 5).

use std::pin::pin;

use futures::future::{Either, select};
use futures::stream::{FuturesUnordered, StreamExt};

/// Starts the attempts one after the other: the next once the one before it failed or had its head start.
/// Returns the index and the result of the first success; the other attempts are dropped.
///
/// - `attempts`: in the order of preference
/// - `head_start`: a timer after which the next attempt starts in parallel
///
/// # Errors
/// All failures, in the order in which they came.
pub async fn race<A, T, E, H>(
    attempts: impl IntoIterator<Item = A>,
    mut head_start: impl FnMut() -> H,
) -> Result<(usize, T), Vec<E>>
where
    A: Future<Output = Result<T, E>>,
    H: Future<Output = ()>,
{
    let mut waiting = attempts.into_iter().enumerate();
    let mut running = FuturesUnordered::new();
    let mut failures = Vec::new();
    loop {
        let next = waiting.next();
        let is_last = next.is_none();
        if let Some((index, attempt)) = next {
            running.push(async move { attempt.await.map(|won| (index, won)) });
        }
        let mut timer = pin!(head_start());
        loop {
            if running.is_empty() && is_last {
                return Err(failures);
            }
            let ended = if is_last {
                running.next().await
            } else {
                match select(running.next(), &mut timer).await {
                    Either::Left((ended, _)) => ended,
                    Either::Right(_) => break,
                }
            };
            match ended {
                Some(Ok(won)) => return Ok(won),
                Some(Err(failure)) => failures.push(failure),
                None => break,
            }
            if !is_last {
                break;
            }
        }
    }
}

/// What `work` gives; `None` where the timer is first.
pub(crate) async fn before<T>(timer: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    match select(pin!(work), pin!(timer)).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::{Ready, pending, ready};

    use futures::executor::block_on;
    use futures::future::{BoxFuture, FutureExt};

    use super::*;

    type Attempt = BoxFuture<'static, Result<&'static str, &'static str>>;

    fn now(result: Result<&'static str, &'static str>) -> Attempt {
        ready(result).boxed()
    }

    fn never() -> Ready<()> {
        ready(())
    }

    #[test]
    fn the_first_in_the_list_wins_while_it_answers() {
        let won = block_on(race([now(Ok("best")), now(Ok("next"))], pending));
        assert_eq!(won, Ok((0, "best")));
    }

    #[test]
    fn a_failure_starts_the_next_at_once() {
        let won = block_on(race([now(Err("closed")), now(Ok("next"))], pending));
        assert_eq!(won, Ok((1, "next")));
        let lost = block_on(race([now(Err("closed")), now(Err("blocked"))], pending));
        assert_eq!(lost, Err(vec!["closed", "blocked"]));
        let none: Result<(usize, ()), Vec<()>> = block_on(race(Vec::<Ready<Result<(), ()>>>::new(), pending));
        assert_eq!(none, Err(Vec::new()));
    }

    #[test]
    fn one_that_hangs_is_overtaken() {
        let won = block_on(race([pending().boxed(), pending().boxed(), now(Ok("last"))], never));
        assert_eq!(won, Ok((2, "last")));
    }

    #[test]
    fn a_late_one_still_wins_if_the_next_fails() {
        let turns = Cell::new(0);
        let started = RefCell::new(Vec::new());
        let slow = futures::future::poll_fn(|context| {
            started.borrow_mut().push("slow");
            turns.set(turns.get() + 1);
            if turns.get() > 3 {
                return std::task::Poll::Ready(Ok("slow"));
            }
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        });
        let attempts = [slow.boxed_local(), ready(Err("closed")).boxed_local()];
        assert_eq!(block_on(race(attempts, never)), Ok((0, "slow")));
    }
}
