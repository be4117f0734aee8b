//! One thing at a time on the network: bounded in time, and cancelled without losing what it holds.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::channel::oneshot;
use futures::{FutureExt, select_biased};

use barnraise_swarm::PeerKey;

use crate::error::OperationError;
use crate::meter::{Meter, Metered};
use crate::platform::Platform;

/// A transfer that moves no byte for so long is given up.
pub const STALL_MAX: Duration = Duration::from_secs(15);
/// How often a transfer is looked at.
const STALL_CHECK: Duration = Duration::from_secs(3);

/// How slow the other side may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Nothing may move for so long.
    stall: Duration,
    /// How often is looked.
    check: Duration,
    /// On average, once the time of a stall has passed.
    bytes_per_second_min: u64,
}

/// For whom there is no other.
const BACKBONE: Patience = Patience { stall: STALL_MAX, check: STALL_CHECK, bytes_per_second_min: 0 };
/// For one of many: less than half of what a peer that passes shards on gives each of those it serves.
pub(crate) const ONE_OF_MANY: Patience = Patience {
    stall: Duration::from_secs(5),
    check: Duration::from_secs(1),
    bytes_per_second_min: 24 * 1024,
};

/// A stream of the platform's, counted.
pub(crate) type Stream<P> = Metered<<P as Platform>::Stream>;

/// What an operation works with. Dropping the other end of `cancelled` cancels it.
pub(crate) struct Operation<'a, P> {
    pub(crate) platform: &'a P,
    pub(crate) meter: Rc<Meter>,
    pub(crate) cancelled: oneshot::Receiver<()>,
}

impl<P: Platform> Operation<'_, P> {
    /// Runs `work` until it is done, cancelled, or `moved` has not changed for [`STALL_MAX`].
    pub(crate) async fn guard<T>(
        &mut self,
        moved: &Cell<u64>,
        work: impl Future<Output = T>,
    ) -> Result<T, OperationError> {
        self.guard_with(BACKBONE, moved, work).await
    }

    /// The same, with a patience of its own.
    pub(crate) async fn guard_with<T>(
        &mut self,
        patience: Patience,
        moved: &Cell<u64>,
        work: impl Future<Output = T>,
    ) -> Result<T, OperationError> {
        let platform = self.platform;
        let mut stalled = pin!(stalled(platform, patience, moved).fuse());
        let mut work = pin!(work.fuse());
        // The sender is only ever dropped: an answer of either kind cancels.
        let mut cancelled = pin!((&mut self.cancelled).map(|_| ()).fuse());
        select_biased! {
            done = work => Ok(done),
            () = cancelled => Err(OperationError::Cancelled),
            () = stalled => Err(OperationError::Stalled),
        }
    }

    /// A new stream.
    pub(crate) async fn open(&mut self, protocol: &'static str) -> Result<Stream<P>, OperationError> {
        let platform = self.platform;
        let opened = self.guard(&Cell::new(0), platform.open(protocol)).await?;
        let stream = opened.map_err(|reason| OperationError::Open { protocol, reason })?;
        Ok(Metered::new(stream, Rc::clone(&self.meter)))
    }

    /// A new stream to another contributor.
    pub(crate) async fn open_to(
        &mut self,
        peer: &PeerKey,
        protocol: &'static str,
    ) -> Result<Stream<P>, OperationError> {
        let platform = self.platform;
        let opening = platform.open_to(peer, protocol);
        let opened = self.guard_with(ONE_OF_MANY, &Cell::new(0), opening).await?;
        let stream = opened.map_err(|reason| OperationError::Open { protocol, reason })?;
        Ok(Metered::new(stream, Rc::clone(&self.meter)).of_peer())
    }

    /// Holds a conversation on the stream in `place`, which is opened where there is none and opened
    /// again, once, where an old one turns out to be cut. Afterwards `place` holds a stream that is fit
    /// for another conversation, or none.
    pub(crate) async fn converse<T, E>(
        &mut self,
        place: &mut Option<Stream<P>>,
        protocol: &'static str,
        mut conversation: impl AsyncFnMut(&mut Stream<P>) -> Result<T, E>,
    ) -> Result<T, OperationError>
    where
        OperationError: From<E>,
    {
        loop {
            let taken = place.take();
            let is_old = taken.is_some();
            let mut stream = match taken {
                Some(stream) => stream,
                None => self.open(protocol).await?,
            };
            let moved = stream.moved();
            let result = self.guard(&moved, conversation(&mut stream)).await?;
            match result.map_err(OperationError::from) {
                Err(error) if is_old && error.is_cut() => {}
                result => {
                    if result.as_ref().err().is_none_or(OperationError::is_refusal) {
                        *place = Some(stream);
                    }
                    return result;
                }
            }
        }
    }
}

async fn stalled<P: Platform>(platform: &P, patience: Patience, moved: &Cell<u64>) {
    let (before, began) = (moved.get(), platform.now());
    let (mut seen, mut seen_at) = (before, began);
    loop {
        platform.sleep_until(platform.now() + patience.check).await;
        let now = platform.now();
        if moved.get() != seen {
            (seen, seen_at) = (moved.get(), now);
        } else if now.saturating_sub(seen_at) >= patience.stall {
            return;
        }
        let late = now.saturating_sub(began + patience.stall).as_secs();
        if seen.saturating_sub(before) < late.saturating_mul(patience.bytes_per_second_min) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::future::pending;

    use barnraise_learning::DeviceChoice;
    use barnraise_protocol::Sha256Hash;
    use barnraise_protocol::access::UnixTime;
    use barnraise_protocol::contribute::DeviceKind;
    use barnraise_swarm::Moment;
    use futures::executor::block_on;
    use futures::io::Cursor;

    use super::*;

    /// Time passes when somebody sleeps.
    #[derive(Default)]
    struct Clock(Cell<Moment>);

    impl Platform for Clock {
        type Stream = Cursor<Vec<u8>>;

        fn now(&self) -> Moment {
            self.0.get()
        }

        fn unix_time(&self) -> UnixTime {
            UnixTime(self.0.get().as_secs())
        }

        fn device_kind(&self, _: DeviceChoice) -> DeviceKind {
            DeviceKind::NativeCpu
        }

        async fn sleep_until(&self, at: Moment) {
            self.0.set(at);
            self.yield_now().await;
        }

        async fn yield_now(&self) {
            let mut is_ready = false;
            std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                match std::mem::replace(&mut is_ready, true) {
                    true => std::task::Poll::Ready(()),
                    false => std::task::Poll::Pending,
                }
            })
            .await;
        }

        async fn connect(&self) -> Result<Vec<u8>, String> {
            Ok(Vec::new())
        }

        fn elsewhere(&self, _: Vec<String>) {}

        async fn disconnect(&self) {}

        async fn open(&self, _: &'static str) -> Result<Self::Stream, String> {
            pending().await
        }

        async fn cached(&self, _: Sha256Hash) -> Option<Vec<u8>> {
            None
        }

        async fn cache(&self, _: Sha256Hash, _: &[u8]) {}
    }

    fn operation(clock: &Clock) -> (Operation<'_, Clock>, oneshot::Sender<()>) {
        let (cancel, cancelled) = oneshot::channel();
        (Operation { platform: clock, meter: Rc::default(), cancelled }, cancel)
    }

    #[test]
    fn what_stands_still_is_given_up_and_what_moves_is_not() {
        let clock = Clock::default();
        let (mut operation, _cancel) = operation(&clock);
        let opened = block_on(operation.open("/nobody/answers"));
        assert!(matches!(opened, Err(OperationError::Stalled)));
        assert!(clock.now() >= STALL_MAX && clock.now() < STALL_MAX + 2 * STALL_CHECK, "{:?}", clock.now());

        let moved = Cell::new(0);
        let slow = async {
            for _ in 0..10 {
                clock.sleep_until(clock.now() + STALL_MAX / 2).await;
                moved.set(moved.get() + 1);
            }
        };
        block_on(operation.guard(&moved, slow)).unwrap();
        assert!(clock.now() > 4 * STALL_MAX);
    }

    #[test]
    fn one_of_many_is_left_for_being_slow_sooner_and_for_trickling() {
        let trickle = |bytes_per_second: u64| {
            let clock = Clock::default();
            let (mut operation, _cancel) = operation(&clock);
            let moved = Cell::new(0);
            let work = async {
                for _ in 0..60 {
                    clock.sleep_until(clock.now() + Duration::from_secs(1)).await;
                    moved.set(moved.get() + bytes_per_second);
                }
            };
            (block_on(operation.guard_with(ONE_OF_MANY, &moved, work)), clock.now())
        };
        assert!(trickle(2 * ONE_OF_MANY.bytes_per_second_min).0.is_ok());
        let (nothing, after) = trickle(0);
        assert!(matches!(nothing, Err(OperationError::Stalled)) && after <= 2 * ONE_OF_MANY.stall);
        let (little, after) = trickle(1024);
        assert!(
            matches!(little, Err(OperationError::Stalled)) && after <= 3 * ONE_OF_MANY.stall,
            "{after:?}"
        );
    }

    #[test]
    fn dropping_the_other_end_cancels() {
        let clock = Clock::default();
        let (mut operation, cancel) = operation(&clock);
        drop(cancel);
        let cancelled = block_on(operation.guard(&Cell::new(0), pending::<()>()));
        assert!(matches!(cancelled, Err(OperationError::Cancelled)));
    }
}
