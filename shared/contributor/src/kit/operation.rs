//! An operation on the network: bounded in time, and cancelled without losing its streams and partial transfers.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::channel::oneshot;
use futures::{FutureExt, select_biased};

use barnraise_swarm::PeerKey;

use super::meter::{Metered, TrafficMeter};
use crate::error::{OperationError, STALL_MAX};
use crate::platform::Platform;

/// Interval between checks of a transfer.
const STALL_CHECK: Duration = Duration::from_secs(3);

/// How slow the remote may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StallLimits {
    /// Longest time without a byte.
    stall: Duration,
    /// Interval between checks.
    check: Duration,
    /// Least average rate, measured after the first `stall`.
    bytes_per_second_min: u64,
}

/// Limits for the backbone, which has no substitute.
const BACKBONE_LIMITS: StallLimits =
    StallLimits { stall: STALL_MAX, check: STALL_CHECK, bytes_per_second_min: 0 };
/// Limits for one of many peers. The least rate is below half of what a peer that serves shards gives each client.
pub(crate) const PEER_LIMITS: StallLimits = StallLimits {
    stall: Duration::from_secs(5),
    check: Duration::from_secs(1),
    bytes_per_second_min: 24 * 1024,
};

impl StallLimits {
    /// For a conversation with one of many peers in which a model of `n_bytes` may come: it takes `longest` at most.
    pub(crate) fn of_model(n_bytes: u64, longest: Duration) -> Self {
        let bytes_per_second_min = n_bytes / longest.as_secs().max(1);
        Self { bytes_per_second_min, ..BACKBONE_LIMITS }
    }
}

/// A stream of the platform that counts its bytes.
pub(crate) type CountedStream<P> = Metered<<P as Platform>::Stream>;

/// Context of a network operation. Dropping the other end of `cancelled` cancels it.
pub(crate) struct NetworkOperation<'a, P> {
    pub(crate) platform: &'a P,
    pub(crate) meter: Rc<TrafficMeter>,
    pub(crate) cancelled: oneshot::Receiver<()>,
}

impl<P: Platform> NetworkOperation<'_, P> {
    /// Runs `work` until it is done or cancelled, or until `moved` has not changed for [`STALL_MAX`].
    pub(crate) async fn guard<T>(
        &mut self,
        moved: &Cell<u64>,
        work: impl Future<Output = T>,
    ) -> Result<T, OperationError> {
        self.guard_with(BACKBONE_LIMITS, moved, work).await
    }

    /// The same, with other limits.
    pub(crate) async fn guard_with<T>(
        &mut self,
        patience: StallLimits,
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
    pub(crate) async fn open(&mut self, protocol: &'static str) -> Result<CountedStream<P>, OperationError> {
        let platform = self.platform;
        let opened = self.guard(&Cell::new(0), platform.open(protocol)).await?;
        let stream = opened.map_err(|source| OperationError::Open { protocol, source })?;
        Ok(Metered::new(stream, Rc::clone(&self.meter)))
    }

    /// A new stream to a peer at the addresses that it announced.
    pub(crate) async fn open_announced(
        &mut self,
        peer: &PeerKey,
        addresses: &[Vec<u8>],
        protocol: &'static str,
    ) -> Result<CountedStream<P>, OperationError> {
        let platform = self.platform;
        let opening = platform.open_host(peer, addresses, protocol);
        let opened = self.guard_with(PEER_LIMITS, &Cell::new(0), opening).await?;
        let stream = opened.map_err(|source| OperationError::Open { protocol, source })?;
        Ok(Metered::new(stream, Rc::clone(&self.meter)).with_peer())
    }

    /// A new stream to another contributor.
    pub(crate) async fn open_to(
        &mut self,
        peer: &PeerKey,
        protocol: &'static str,
    ) -> Result<CountedStream<P>, OperationError> {
        let platform = self.platform;
        let opening = platform.open_to(peer, protocol);
        let opened = self.guard_with(PEER_LIMITS, &Cell::new(0), opening).await?;
        let stream = opened.map_err(|source| OperationError::Open { protocol, source })?;
        Ok(Metered::new(stream, Rc::clone(&self.meter)).with_peer())
    }

    /// Holds a conversation on the stream in `place`. Opens a stream where there is none, and opens it once more where
    /// an old one turns out to be cut. Afterwards `place` holds a stream that is fit for another conversation, or none.
    pub(crate) async fn converse<T, E>(
        &mut self,
        place: &mut Option<CountedStream<P>>,
        protocol: &'static str,
        mut conversation: impl AsyncFnMut(&mut CountedStream<P>) -> Result<T, E>,
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

async fn stalled<P: Platform>(platform: &P, patience: StallLimits, moved: &Cell<u64>) {
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
    use crate::platform::PlatformError;

    /// A clock that advances with `sleep_until` only.
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

        async fn connect(&self) -> Result<Vec<u8>, PlatformError> {
            Ok(Vec::new())
        }

        fn set_other_backbones(&self, _: Vec<String>) {}

        async fn disconnect(&self) {}

        async fn open(&self, _: &'static str) -> Result<Self::Stream, PlatformError> {
            pending().await
        }

        async fn cached(&self, _: Sha256Hash) -> Option<Vec<u8>> {
            None
        }

        async fn cache(&self, _: Sha256Hash, _: &[u8]) {}
    }

    fn operation(clock: &Clock) -> (NetworkOperation<'_, Clock>, oneshot::Sender<()>) {
        let (cancel, cancelled) = oneshot::channel();
        (NetworkOperation { platform: clock, meter: Rc::default(), cancelled }, cancel)
    }

    #[test]
    fn a_stalled_transfer_fails_and_a_moving_one_does_not() {
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
    fn one_of_many_peers_is_left_sooner_for_stalling_and_for_trickling() {
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
            (block_on(operation.guard_with(PEER_LIMITS, &moved, work)), clock.now())
        };
        assert!(trickle(2 * PEER_LIMITS.bytes_per_second_min).0.is_ok());
        let (nothing, after) = trickle(0);
        assert!(matches!(nothing, Err(OperationError::Stalled)) && after <= 2 * PEER_LIMITS.stall);
        let (little, after) = trickle(1024);
        assert!(
            matches!(little, Err(OperationError::Stalled)) && after <= 3 * PEER_LIMITS.stall,
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
