//! The speed of this machine's link: as measured by averagings (`barnraise_swarm::bandwidth`), or as configured.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use barnraise_averaging::{AveragingConfig, in_flight};
use barnraise_swarm::averaging::Group;
use barnraise_swarm::bandwidth::{Bandwidth, Bytes, MeasuredBandwidth};
use barnraise_swarm::{Moment, PeerKey};

use crate::config::LinkSpeed;

/// Bytes per second that parts are planned by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speeds {
    /// What this machine can receive.
    pub download: u64,
    /// What it can send.
    pub upload: u64,
}

impl Speeds {
    /// Of a link that carries no averaging.
    pub const NONE: Self = Self { download: 0, upload: 0 };
}

/// Measures the link of this machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SpeedMeter(Arc<SpeedMeterInner>);

#[derive(Debug)]
struct SpeedMeterInner {
    download: LinkSpeed,
    upload: LinkSpeed,
    origin: Instant,
    bandwidth: Mutex<Bandwidth>,
}

impl SpeedMeter {
    /// A meter without measurements.
    #[must_use]
    pub fn new(download: LinkSpeed, upload: LinkSpeed) -> Self {
        let (origin, bandwidth) = (Instant::now(), Mutex::default());
        Self(Arc::new(SpeedMeterInner { download, upload, origin, bandwidth }))
    }

    /// The speeds that other aggregators are sent.
    #[must_use]
    pub fn speeds(&self) -> Speeds {
        let MeasuredBandwidth { sent, received } = self.measured();
        let speed = |said: LinkSpeed, measured: Option<u64>| match said {
            LinkSpeed::Auto => measured.unwrap_or(LinkSpeed::UNMEASURED.as_u64()),
            LinkSpeed::Fixed(speed) => speed.as_u64(),
        };
        Speeds { download: speed(self.0.download, received), upload: speed(self.0.upload, sent) }
    }

    /// The speeds that averagings have measured lately, also where others are configured.
    #[must_use]
    pub fn measured(&self) -> MeasuredBandwidth {
        self.bandwidth().measured(self.now())
    }

    /// An averaging begins, of one group or of several one after the other; the buffers of the first may still be full
    /// while the last one averages.
    pub(crate) fn begin<'g>(
        &self,
        config: &AveragingConfig,
        groups: impl IntoIterator<Item = &'g Group>,
        me: &PeerKey,
    ) -> SpeedMeasurement {
        let of_each = groups.into_iter().map(|group| in_flight(config, group, me));
        let in_flight = of_each.fold(Bytes::default(), |all, of| Bytes {
            sent: all.sent.saturating_add(of.sent),
            received: all.received.saturating_add(of.received),
        });
        self.bandwidth().on_begin(self.now(), in_flight);
        SpeedMeasurement { meter: self.clone(), in_flight, has_succeeded: false }
    }

    pub(crate) fn on_moved(&self, bytes: Bytes) {
        self.bandwidth().on_moved(self.now(), bytes);
    }

    fn bandwidth(&self) -> MutexGuard<'_, Bandwidth> {
        self.0.bandwidth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        self.0.origin.elapsed()
    }
}

/// An averaging in progress; dropped without [`Self::end`], it has failed.
pub(crate) struct SpeedMeasurement {
    meter: SpeedMeter,
    in_flight: Bytes,
    has_succeeded: bool,
}

impl SpeedMeasurement {
    /// The averaging ended.
    pub(crate) fn end(mut self, has_succeeded: bool) {
        self.has_succeeded = has_succeeded;
    }
}

impl Drop for SpeedMeasurement {
    fn drop(&mut self) {
        let before = self.meter.measured();
        let now = self.meter.now();
        self.meter.bandwidth().on_end(now, self.in_flight, self.has_succeeded);
        let MeasuredBandwidth { sent, received } = self.meter.measured();
        if (before.sent, before.received) != (sent, received) {
            tracing::info!(sent, received, "measured this machine's link, in bytes per second");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use barnraise_protocol::TensorCodec;
    use barnraise_protocol::average::CHUNK_VALUES;
    use barnraise_swarm::averaging::GroupMember;
    use bytesize::ByteSize;

    use super::*;

    fn me() -> PeerKey {
        PeerKey(vec![1])
    }

    /// Of this machine and another one, who average so many values each.
    fn group(n_reduced: u64) -> Group {
        let member =
            |peer: &PeerKey| GroupMember { peer: peer.clone(), n_samples: 1, receives: true, n_reduced };
        let members = [&me(), &PeerKey(vec![2])].map(member).into();
        Group::new(b"round", members, 2 * n_reduced as usize, TensorCodec::F32).unwrap()
    }

    /// A second in which four megabytes move each way.
    fn average(meter: &SpeedMeter) -> SpeedMeasurement {
        let measuring = meter.begin(&AveragingConfig::default(), [&group(10)], &me());
        move_in_a_second(meter);
        measuring
    }

    fn move_in_a_second(meter: &SpeedMeter) {
        let began = meter.now();
        for piece in 0..40 {
            let at = began + Duration::from_millis(25) * piece;
            meter.bandwidth().on_moved(at, Bytes { sent: 100_000, received: 100_000 });
        }
    }

    #[test]
    fn others_are_told_what_was_measured_or_what_is_written() {
        let meter = SpeedMeter::new(LinkSpeed::Auto, LinkSpeed::Fixed(ByteSize(1_234_567)));
        let guess = Speeds { download: LinkSpeed::UNMEASURED.as_u64(), upload: 1_234_567 };
        assert_eq!((meter.speeds(), meter.measured()), (guess, MeasuredBandwidth::default()));
        // One that nobody saw the end of.
        drop(average(&meter));
        assert_eq!((meter.speeds(), meter.measured()), (guess, MeasuredBandwidth::default()));
        average(&meter).end(true);
        assert_eq!(meter.speeds(), Speeds { download: 4_000_000, upload: 1_234_567 });
        assert_eq!(meter.measured(), MeasuredBandwidth { sent: Some(4_000_000), received: Some(4_000_000) });
        let meter = SpeedMeter::new(LinkSpeed::Fixed(ByteSize(5)), LinkSpeed::Auto);
        average(&meter).end(true);
        assert_eq!(meter.speeds(), Speeds { download: 5, upload: 4_000_000 });
    }

    #[test]
    fn what_a_grid_moves_is_measured_without_what_buffers_have_of_each_round() {
        let meter = SpeedMeter::new(LinkSpeed::Auto, LinkSpeed::Auto);
        let chunks = |n_chunks: u64| n_chunks * CHUNK_VALUES as u64;
        let groups = [group(chunks(4)), group(chunks(2))];
        let measuring = meter.begin(&AveragingConfig::default(), &groups, &me());
        // Values of the other one's part, and means of the own one: all fit into a window.
        assert_eq!(measuring.in_flight.sent, 2 * 4 * chunks(4 + 2));
        move_in_a_second(&meter);
        measuring.end(true);
        let sent = meter.measured().sent.unwrap();
        assert!((3_000_000..4_000_000).contains(&sent), "{sent}");
    }
}
