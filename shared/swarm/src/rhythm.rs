//! Failure detector: learns how regularly another peer sends messages, and from it after which silence the peer is
//! taken for dead.
//!
//! A connection whose other end died shows no error for many seconds. A peer that sends a message every second is given
//! up sooner than one whose messages come irregularly over a link that stalls.

use std::time::Duration;

use crate::Moment;

/// A peer is taken for dead after this many times the longest recent silence.
const USUAL_TIMES: f64 = 2.0;
/// But not before `1 / MIN_PART` of the longest silence that any peer is allowed.
const MIN_PART: u32 = 4;
/// Decay of the longest silence per message: half of it is left after seventy messages.
const DECAY: f64 = 0.99;
/// With fewer messages than this the rhythm is unknown.
const MESSAGES_MIN: u32 = 4;

/// A peer whose own timer fires this much too late was stalled itself, as by a long computation on its only thread. It
/// could not receive anything meanwhile ([`Rhythm::on_deaf`]).
pub const OWN_STALL_MIN: Duration = Duration::from_millis(300);

/// Times of the messages of one peer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rhythm {
    heard_at: Moment,
    longest: Duration,
    n_messages: u32,
}

impl Rhythm {
    /// Starts with the first message, received at `now`.
    #[must_use]
    pub fn new(now: Moment) -> Self {
        Self { heard_at: now, longest: Duration::ZERO, n_messages: 1 }
    }

    /// A whole message was received.
    pub fn on_message(&mut self, now: Moment) {
        let silence = now.saturating_sub(self.heard_at);
        self.longest = self.longest.mul_f64(DECAY).max(silence);
        self.n_messages = self.n_messages.saturating_add(1);
        self.heard_at = self.heard_at.max(now);
    }

    /// Bytes were received that are no regular message: the peer is alive, but its rhythm is not updated.
    pub fn on_partial_message(&mut self, now: Moment) {
        self.heard_at = self.heard_at.max(now);
    }

    /// This peer itself was stalled for so long until `now`: that silence does not count against the other one.
    pub fn on_own_stall(&mut self, now: Moment, deaf: Duration) {
        self.heard_at = (self.heard_at + deaf).min(now.max(self.heard_at));
    }

    /// Time of the last bytes received.
    #[must_use]
    pub fn last_received_at(&self) -> Moment {
        self.heard_at
    }

    /// From when on the peer is taken for dead; no peer may be silent for longer than `silence_max`.
    #[must_use]
    pub fn silent_at(&self, silence_max: Duration) -> Moment {
        let usual = self.longest.mul_f64(USUAL_TIMES);
        let silence = if self.n_messages < MESSAGES_MIN { silence_max } else { usual };
        self.heard_at + silence.clamp(silence_max / MIN_PART, silence_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(10);

    fn spoken(gaps_ms: impl IntoIterator<Item = u64>) -> Rhythm {
        let mut now = Moment::from_secs(100);
        let mut rhythm = Rhythm::new(now);
        for gap_ms in gaps_ms {
            now += Duration::from_millis(gap_ms);
            rhythm.on_message(now);
        }
        rhythm
    }

    fn silence(rhythm: &Rhythm) -> Duration {
        rhythm.silent_at(MAX) - rhythm.last_received_at()
    }

    #[test]
    fn the_more_regularly_somebody_speaks_the_sooner_it_is_missed() {
        assert_eq!(silence(&spoken([])), MAX, "nothing is known of it");
        assert_eq!(silence(&spoken([20; 50])), MAX / 4, "never sooner than that");
        assert_eq!(silence(&spoken([1000; 50])), MAX / 4);
        assert_eq!(silence(&spoken([3000; 50])), Duration::from_secs(6));
        assert_eq!(silence(&spoken([60_000; 9])), MAX);
    }

    #[test]
    fn a_rhythm_is_known_after_so_many_messages_and_not_before() {
        // The first one begins it.
        assert_eq!(silence(&spoken([20; MESSAGES_MIN as usize - 2])), MAX);
        assert_eq!(silence(&spoken([20; MESSAGES_MIN as usize - 1])), MAX / 4);
    }

    #[test]
    fn a_long_silence_is_remembered_for_a_while() {
        let with_pause = |n_after| spoken([1000; 9].into_iter().chain([3000]).chain(vec![1000; n_after]));
        assert_eq!(silence(&with_pause(0)), Duration::from_secs(6));
        let later = silence(&with_pause(50));
        assert!(later > Duration::from_secs(3) && later < Duration::from_secs(4), "{later:?}");
        assert_eq!(silence(&with_pause(300)), MAX / 4);
    }

    #[test]
    fn a_peer_that_was_stalled_itself_does_not_blame_the_other() {
        let mut rhythm = spoken([1000; 50]);
        let now = rhythm.last_received_at() + Duration::from_secs(40);
        rhythm.on_own_stall(now, Duration::from_secs(39));
        assert!(rhythm.silent_at(MAX) > now);
        rhythm.on_message(now);
        assert_eq!(silence(&rhythm), MAX / 4, "nor was that a long silence");
        let heard_at = rhythm.last_received_at();
        rhythm.on_own_stall(heard_at, Duration::from_secs(5));
        assert_eq!(rhythm.last_received_at(), heard_at, "nobody was heard in what is to come");
    }
}
