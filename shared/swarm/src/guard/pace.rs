//! Timeouts of a stream, against a remote peer that is too slow in either direction.
//!
//! The remote peer sends requests and this side answers, any number of times. Each phase has its own bound: the
//! silence before a message, the message itself, and the transfer of its answer. Time that this side needs to compute
//! the answer does not count: deadlines are checked only while the driver waits for bytes.

use std::time::Duration;

use crate::Moment;

/// Timeouts and minimum speed of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaceLimits {
    /// Longest silence on a new stream.
    pub first_message: Duration,
    /// Longest silence between messages.
    pub idle: Duration,
    /// From the first byte of a message to its last.
    pub message: Duration,
    /// Longest time within an answer without any bytes.
    pub stall: Duration,
    /// Mean speed of an answer, once the time of `stall` has passed.
    pub bytes_per_second_min: u64,
}

/// The bound that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooSlow {
    /// No message on a new stream.
    #[error("no message on a new stream for {0:?}")]
    NoFirstMessage(Duration),
    /// No further message.
    #[error("no message for {0:?}")]
    Idle(Duration),
    /// A message that began and did not end in time.
    #[error("a message was incomplete after {0:?}")]
    Message(Duration),
    /// No bytes of an answer were moved in time.
    #[error("no bytes were transferred for {0:?}")]
    Stalled(Duration),
    /// An answer that moves too slowly.
    #[error("fewer than {0} bytes a second were transferred")]
    Transfer(u64),
}

#[derive(Debug, Clone, Copy)]
enum PacePhase {
    Silence { is_first: bool, since: Moment },
    Message { since: Moment },
    Answer { since: Moment, moved_at: Moment, n_bytes: u64 },
}

/// Timeouts of one stream.
#[derive(Debug)]
pub struct StreamPace {
    limits: PaceLimits,
    /// Both sides send at any time, so bytes written do not end the wait for bytes read.
    is_duplex: bool,
    phase: PacePhase,
}

impl StreamPace {
    /// A stream that was opened at `now`.
    pub fn new(limits: PaceLimits, now: Moment) -> Self {
        Self { limits, is_duplex: false, phase: PacePhase::Silence { is_first: true, since: now } }
    }

    /// A stream on which both sides send at any time. Only reads are timed.
    pub fn duplex(limits: PaceLimits, now: Moment) -> Self {
        Self { is_duplex: true, ..Self::new(limits, now) }
    }

    /// This side waits for the next message.
    pub fn on_wait(&mut self, now: Moment) {
        if !matches!(self.phase, PacePhase::Silence { .. }) {
            self.phase = PacePhase::Silence { is_first: false, since: now };
        }
    }

    /// An answer begins, or continues after a delay of this side.
    pub fn on_answer(&mut self, now: Moment) {
        self.phase = PacePhase::Answer { since: now, moved_at: now, n_bytes: 0 };
    }

    /// Bytes were read.
    pub fn on_read(&mut self, now: Moment, n_bytes: usize) {
        match &mut self.phase {
            phase @ PacePhase::Silence { .. } => *phase = PacePhase::Message { since: now },
            PacePhase::Message { .. } => {}
            PacePhase::Answer { .. } => self.on_moved(now, n_bytes),
        }
    }

    /// This side is about to write: it has received the whole message that it answers.
    pub fn on_writing(&mut self, now: Moment) {
        if !self.is_duplex && !matches!(self.phase, PacePhase::Answer { .. }) {
            self.on_answer(now);
        }
    }

    /// Bytes were written.
    pub fn on_written(&mut self, now: Moment, n_bytes: usize) {
        self.on_moved(now, n_bytes);
    }

    fn on_moved(&mut self, now: Moment, n_bytes: usize) {
        if let PacePhase::Answer { moved_at, n_bytes: moved, .. } = &mut self.phase
            && n_bytes > 0
        {
            *moved_at = now;
            *moved += n_bytes as u64;
        }
    }

    /// Deadline for the next bytes, and the bound that is exceeded then.
    pub fn deadline(&self) -> (Moment, TooSlow) {
        let limits = &self.limits;
        match self.phase {
            PacePhase::Silence { is_first: true, since } => {
                (since + limits.first_message, TooSlow::NoFirstMessage(limits.first_message))
            }
            PacePhase::Silence { is_first: false, since } => {
                (since + limits.idle, TooSlow::Idle(limits.idle))
            }
            PacePhase::Message { since } => (since + limits.message, TooSlow::Message(limits.message)),
            PacePhase::Answer { since, moved_at, n_bytes } => {
                let rate = limits.bytes_per_second_min.max(1);
                let stalls = (moved_at + limits.stall, TooSlow::Stalled(limits.stall));
                let lags = since + limits.stall + Duration::from_millis(n_bytes.saturating_mul(1000) / rate);
                if lags < stalls.0 { (lags, TooSlow::Transfer(limits.bytes_per_second_min)) } else { stalls }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PaceLimits = PaceLimits {
        first_message: Duration::from_secs(10),
        idle: Duration::from_secs(600),
        message: Duration::from_secs(7),
        stall: Duration::from_secs(15),
        bytes_per_second_min: 100,
    };

    const fn s(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_stream_on_which_nothing_was_said_goes_sooner_than_one_that_was_used() {
        let mut pace = StreamPace::new(LIMITS, s(1));
        assert_eq!(pace.deadline(), (s(11), TooSlow::NoFirstMessage(s(10))));
        pace.on_wait(s(5));
        assert_eq!(pace.deadline().0, s(11), "waiting again is no excuse");
        pace.on_read(s(6), 3);
        pace.on_writing(s(7));
        pace.on_wait(s(8));
        assert_eq!(pace.deadline(), (s(608), TooSlow::Idle(s(600))));
    }

    #[test]
    fn a_message_has_its_time_however_many_bytes_come() {
        let mut pace = StreamPace::new(LIMITS, s(0));
        for now in 2..9 {
            pace.on_read(s(now), 1);
        }
        assert_eq!(pace.deadline(), (s(9), TooSlow::Message(s(7))));
    }

    #[test]
    fn an_answer_stalls_or_lags() {
        let mut pace = StreamPace::new(LIMITS, s(0));
        pace.on_read(s(0), 5);
        pace.on_writing(s(1));
        assert_eq!(pace.deadline(), (s(16), TooSlow::Stalled(s(15))));
        pace.on_written(s(2), 0);
        assert_eq!(pace.deadline().0, s(16), "nothing moved");
        pace.on_written(s(2), 10_000);
        assert_eq!(pace.deadline(), (s(17), TooSlow::Stalled(s(15))));
        // A byte every second moves, and hardly: 10,000 bytes were good for 100 s.
        (3..116).for_each(|now| pace.on_read(s(now), 1));
        let (lags, why) = pace.deadline();
        assert_eq!((lags, why), (s(117) + Duration::from_millis(130), TooSlow::Transfer(100)));
        pace.on_written(s(116), 0);
        assert_eq!(pace.deadline().0, lags, "nothing is no progress");
        pace.on_answer(s(116));
        assert_eq!(pace.deadline().0, s(131), "what this side took is not on the other");
    }

    #[test]
    fn an_answer_lags_when_its_bytes_take_longer_than_the_slowest_link_and_a_stall() {
        let mut pace = StreamPace::new(LIMITS, s(0));
        pace.on_answer(s(10));
        // 1,000 bytes are good for 10 s: both bounds end at once, and the first bytes were 10 s late.
        pace.on_written(s(20), 1_000);
        assert_eq!(pace.deadline(), (s(35), TooSlow::Stalled(s(15))));
        pace.on_written(s(21), 1);
        assert_eq!(pace.deadline(), (s(35) + Duration::from_millis(10), TooSlow::Transfer(100)));
        pace.on_read(s(22), 1_099);
        assert_eq!(pace.deadline(), (s(37), TooSlow::Stalled(s(15))), "bytes of both directions count");
        pace.on_written(s(23), 0);
        assert_eq!(pace.deadline().0, s(37), "nothing is no progress");
        // What is about to be written is no new answer.
        pace.on_writing(s(30));
        assert_eq!(pace.deadline().0, s(37));
        let mut endless = StreamPace::new(PaceLimits { bytes_per_second_min: 0, ..LIMITS }, s(0));
        endless.on_answer(s(0));
        endless.on_written(s(1), 1);
        assert_eq!(endless.deadline().0, s(16), "no division by nothing");
    }

    #[test]
    fn a_duplex_stream_is_timed_by_its_reads_only() {
        let mut pace = StreamPace::duplex(LIMITS, s(0));
        pace.on_read(s(1), 1);
        pace.on_writing(s(2));
        pace.on_written(s(2), 100);
        assert_eq!(pace.deadline(), (s(8), TooSlow::Message(s(7))));
        pace.on_wait(s(3));
        assert_eq!(pace.deadline(), (s(603), TooSlow::Idle(s(600))));
    }
}
