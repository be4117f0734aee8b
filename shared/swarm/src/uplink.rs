//! Measures the speed of a contributor's uplink from its transfers.

use std::time::Duration;

/// The weight of earlier transfers is halved after this many bytes more. A link may pass small transfers faster than
/// it carries large ones, so many small ones must not outweigh a large one.
const HALVED_AFTER_BYTES: f64 = 262_144.0;
/// At least this part of a transfer's time counts as sending, not as waiting for answers.
const SENDING_MIN: f64 = 0.25;
/// Resolution of the clock.
const SECONDS_MIN: f64 = 1e-3;

/// A transfer that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Bytes.
    pub n_bytes: u64,
    /// From the request until the other side acknowledged the last byte.
    pub took: Duration,
    /// Round-trip time of the connection.
    pub round_trip: Duration,
}

/// Speed of an uplink: bytes by seconds, both exponentially decayed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Uplink {
    n_bytes: f64,
    seconds: f64,
}

impl Uplink {
    /// A transfer is over.
    pub fn on_sent(&mut self, sent: Sent) {
        let Sent { n_bytes, took, round_trip } = sent;
        let sending =
            took.saturating_sub(round_trip).max(took.mul_f64(SENDING_MIN)).as_secs_f64().max(SECONDS_MIN);
        let left = 0.5_f64.powf(n_bytes as f64 / HALVED_AFTER_BYTES);
        self.n_bytes = left * self.n_bytes + n_bytes as f64;
        self.seconds = left * self.seconds + sending;
    }

    /// Bytes per second; `None` before the first transfer.
    pub fn bytes_per_second(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.n_bytes / self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_wait_for_answers_is_left_out_but_for_what_cannot_be_waiting() {
        let speed = |took, round_trip| {
            let mut uplink = Uplink::default();
            uplink.on_sent(Sent { n_bytes: 10_000, took, round_trip });
            uplink.bytes_per_second().unwrap().round()
        };
        assert_eq!(Uplink::default().bytes_per_second(), None);
        assert_eq!(speed(100 * MS, 20 * MS), 125_000.0);
        assert_eq!(speed(100 * MS, 500 * MS), 400_000.0, "an answer that was late for another reason");
        assert_eq!(speed(Duration::ZERO, Duration::ZERO), 1e7, "a clock that stood still");
    }

    #[test]
    fn a_transfer_weighs_half_as_much_after_so_many_bytes_more() {
        let sent = |seconds| Sent {
            n_bytes: HALVED_AFTER_BYTES as u64,
            took: Duration::from_secs(seconds),
            round_trip: Duration::ZERO,
        };
        let mut uplink = Uplink::default();
        uplink.on_sent(sent(1));
        assert_eq!(uplink.bytes_per_second(), Some(262_144.0));
        uplink.on_sent(sent(2));
        assert_eq!(uplink.bytes_per_second(), Some(1.5 * 262_144.0 / 2.5));
        uplink.on_sent(sent(4));
        assert_eq!(uplink.bytes_per_second(), Some(1.75 * 262_144.0 / 5.25));
    }

    #[test]
    fn large_transfers_weigh_more_and_a_link_that_changes_is_noticed() {
        let mut uplink = Uplink::default();
        let small = Sent { n_bytes: 10_000, took: 100 * MS, round_trip: Duration::ZERO };
        uplink.on_sent(Sent { n_bytes: 1_000_000, took: 1000 * MS, ..small });
        uplink.on_sent(small);
        assert!(uplink.bytes_per_second().unwrap() > 800_000.0, "{uplink:?}");
        let slow = Sent { n_bytes: 100_000, took: 1000 * MS, ..small };
        (0..20).for_each(|_| uplink.on_sent(slow));
        assert!((uplink.bytes_per_second().unwrap() - 100_000.0).abs() < 2000.0, "{uplink:?}");
        (0..20).for_each(|_| uplink.on_sent(Sent { took: Duration::ZERO, ..small }));
        assert!(uplink.bytes_per_second().unwrap() < 200_000.0, "what a burst lets pass: {uplink:?}");
    }
}
