//! How fast the link is over which a contributor sends, by what it sent.

use std::time::Duration;

/// Of earlier transfers half is left in the measurement after so many bytes more. Many small ones, which a link may let
/// pass faster than it carries large ones, do not outweigh one of those.
const HALVED_AFTER_BYTES: f64 = 262_144.0;
/// At least this part of the time was not spent waiting for answers.
const SENDING_MIN: f64 = 0.25;
/// No clock is more exact.
const SECONDS_MIN: f64 = 1e-3;

/// A transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Bytes.
    pub n_bytes: u64,
    /// From when they were asked for until the other side had said that all were there.
    pub took: Duration,
    /// What a question and its answer take.
    pub round_trip: Duration,
}

/// Bytes per second of an uplink: all that was sent by the time that it took, and what is new weighs more.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Uplink {
    n_bytes: f64,
    seconds: f64,
}

impl Uplink {
    /// Something was sent.
    pub fn on_sent(&mut self, sent: Sent) {
        let Sent { n_bytes, took, round_trip } = sent;
        let sending =
            took.saturating_sub(round_trip).max(took.mul_f64(SENDING_MIN)).as_secs_f64().max(SECONDS_MIN);
        let left = 0.5_f64.powf(n_bytes as f64 / HALVED_AFTER_BYTES);
        self.n_bytes = left * self.n_bytes + n_bytes as f64;
        self.seconds = left * self.seconds + sending;
    }

    /// `None` before anything was sent.
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
