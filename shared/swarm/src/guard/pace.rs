//! How slowly the other side of a conversation may be, whichever way the bytes go.
//!
//! The other side asks and this side answers, any number of times. Each part has its own bound: the silence
//! before a message, the message itself, and what moves for its answer. Time that this side needs to
//! find the answer is nobody's fault: deadlines are looked at while bytes are waited for, and at no other time.

use std::time::Duration;

use crate::Moment;

/// How slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaceLimits {
    /// A new stream may be silent for so long.
    pub first_message: Duration,
    /// One on which something was said already.
    pub idle: Duration,
    /// From the first byte of a message to its last.
    pub message: Duration,
    /// Nothing may move for so long within an answer.
    pub stall: Duration,
    /// On average over an answer, once the time of a stall has passed.
    pub bytes_per_second_min: u64,
}

/// Which bound was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooSlow {
    /// Nothing was said on a new stream.
    #[error("nothing was said on a new stream for {0:?}")]
    NoFirstMessage(Duration),
    /// Nothing more was said.
    #[error("nothing was said for {0:?}")]
    Idle(Duration),
    /// A message that began and does not end.
    #[error("a message was not whole after {0:?}")]
    Message(Duration),
    /// An answer that is not taken, or of which nothing comes.
    #[error("nothing moved for {0:?}")]
    Stalled(Duration),
    /// An answer that moves, and hardly.
    #[error("fewer than {0} bytes a second moved")]
    Transfer(u64),
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Silence { is_first: bool, since: Moment },
    Message { since: Moment },
    Answer { since: Moment, moved_at: Moment, n_bytes: u64 },
}

/// Of one stream.
#[derive(Debug)]
pub struct Pace {
    limits: PaceLimits,
    /// Both sides speak when they like: what is written says nothing of what is read.
    is_duplex: bool,
    phase: Phase,
}

impl Pace {
    /// A stream that was opened at `now`.
    pub fn new(limits: PaceLimits, now: Moment) -> Self {
        Self { limits, is_duplex: false, phase: Phase::Silence { is_first: true, since: now } }
    }

    /// The same, on which both sides speak when they like. Only what is read is timed.
    pub fn duplex(limits: PaceLimits, now: Moment) -> Self {
        Self { is_duplex: true, ..Self::new(limits, now) }
    }

    /// The next message is waited for.
    pub fn on_wait(&mut self, now: Moment) {
        if !matches!(self.phase, Phase::Silence { .. }) {
            self.phase = Phase::Silence { is_first: false, since: now };
        }
    }

    /// An answer begins, or goes on after this side took its time.
    pub fn on_answer(&mut self, now: Moment) {
        self.phase = Phase::Answer { since: now, moved_at: now, n_bytes: 0 };
    }

    /// Bytes came.
    pub fn on_read(&mut self, now: Moment, n_bytes: usize) {
        match &mut self.phase {
            phase @ Phase::Silence { .. } => *phase = Phase::Message { since: now },
            Phase::Message { .. } => {}
            Phase::Answer { .. } => self.on_moved(now, n_bytes),
        }
    }

    /// Something is about to be written: the message that is answered must have been whole.
    pub fn on_writing(&mut self, now: Moment) {
        if !self.is_duplex && !matches!(self.phase, Phase::Answer { .. }) {
            self.on_answer(now);
        }
    }

    /// Bytes went.
    pub fn on_written(&mut self, now: Moment, n_bytes: usize) {
        self.on_moved(now, n_bytes);
    }

    fn on_moved(&mut self, now: Moment, n_bytes: usize) {
        if let Phase::Answer { moved_at, n_bytes: moved, .. } = &mut self.phase
            && n_bytes > 0
        {
            *moved_at = now;
            *moved += n_bytes as u64;
        }
    }

    /// Until when bytes are waited for, and which bound is passed then.
    pub fn deadline(&self) -> (Moment, TooSlow) {
        let limits = &self.limits;
        match self.phase {
            Phase::Silence { is_first: true, since } => {
                (since + limits.first_message, TooSlow::NoFirstMessage(limits.first_message))
            }
            Phase::Silence { is_first: false, since } => (since + limits.idle, TooSlow::Idle(limits.idle)),
            Phase::Message { since } => (since + limits.message, TooSlow::Message(limits.message)),
            Phase::Answer { since, moved_at, n_bytes } => {
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
        let mut pace = Pace::new(LIMITS, s(1));
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
        let mut pace = Pace::new(LIMITS, s(0));
        for now in 2..9 {
            pace.on_read(s(now), 1);
        }
        assert_eq!(pace.deadline(), (s(9), TooSlow::Message(s(7))));
    }

    #[test]
    fn an_answer_stalls_or_lags() {
        let mut pace = Pace::new(LIMITS, s(0));
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
    fn whoever_speaks_when_it_likes_is_timed_by_what_it_says() {
        let mut pace = Pace::duplex(LIMITS, s(0));
        pace.on_read(s(1), 1);
        pace.on_writing(s(2));
        pace.on_written(s(2), 100);
        assert_eq!(pace.deadline(), (s(8), TooSlow::Message(s(7))));
        pace.on_wait(s(3));
        assert_eq!(pace.deadline(), (s(603), TooSlow::Idle(s(600))));
    }
}
