//! The clock of a test: the machine's, or one that goes on to the next moment at which anything happens.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use barnraise_swarm::Moment;
use tokio::task::LocalSet;

/// Virtual time.
#[derive(Default)]
struct Virtual {
    now: Moment,
    n_set: u64,
    /// By the time and a number, so that timers of one moment wake in order.
    timers: BTreeMap<(Moment, u64), Waker>,
}

thread_local! {
    static ORIGIN: Instant = Instant::now();
    static VIRTUAL: RefCell<Option<Virtual>> = const { RefCell::new(None) };
}

/// Since any origin.
pub(crate) fn now() -> Moment {
    VIRTUAL
        .with_borrow(|time| time.as_ref().map(|time| time.now))
        .unwrap_or_else(|| ORIGIN.with(Instant::elapsed))
}

/// Completes at `at`, and never before the next turn.
pub(crate) async fn sleep_until(at: Moment) {
    if VIRTUAL.with_borrow(Option::is_none) {
        let origin = ORIGIN.with(|origin| *origin);
        return tokio::time::sleep_until((origin + at).into()).await;
    }
    let mut timer = Timer { at, number: None };
    std::future::poll_fn(|context| timer.poll(context)).await;
}

struct Timer {
    at: Moment,
    number: Option<u64>,
}

impl Timer {
    fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        if now() >= self.at {
            return Poll::Ready(());
        }
        VIRTUAL.with_borrow_mut(|time| {
            let Some(time) = time else { return Poll::Ready(()) };
            let number = *self.number.get_or_insert_with(|| {
                time.n_set += 1;
                time.n_set
            });
            time.timers.insert((self.at, number), context.waker().clone());
            Poll::Pending
        })
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            // None once the world has ended.
            VIRTUAL.with_borrow_mut(|time| {
                time.as_mut().and_then(|time| time.timers.remove(&(self.at, number)))
            });
        }
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `main` in virtual time, with all that it spawns locally, until it ends.
pub(crate) fn in_virtual_time<T>(main: impl Future<Output = T>) -> T {
    VIRTUAL.set(Some(Virtual::default()));
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&flag));
    let tasks = LocalSet::new();
    let ended = {
        let mut running: Pin<&mut _> = pin!(tasks.run_until(main));
        loop {
            if let Poll::Ready(ended) = running.as_mut().poll(&mut Context::from_waker(&waker)) {
                break ended;
            }
            if !flag.0.swap(false, Ordering::Relaxed) {
                advance();
            }
        }
    };
    // Their timers go with them.
    drop(tasks);
    VIRTUAL.set(None);
    ended
}

/// Nobody has anything to do: the next moment.
fn advance() {
    let waker = VIRTUAL.with_borrow_mut(|time| {
        let time = time.as_mut().expect("virtual time");
        let ((at, _), waker) = time.timers.pop_first().expect("nobody waits, and nothing happens");
        time.now = time.now.max(at);
        waker
    });
    waker.wake();
}
