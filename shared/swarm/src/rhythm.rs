//! How regularly another peer says something, and from when on its silence means that it is gone.
//!
//! A connection whose other end died without a word shows nothing for many seconds. A peer that says something
//! every second is missed sooner than one that is heard now and then over a link that stands still in between.

use std::time::Duration;

use crate::Moment;

/// A silence is none before so many times the longest one of late.
const USUAL_TIMES: f64 = 2.0;
/// Nor before such a part of the silence that nobody is granted.
const MIN_PART: u32 = 4;
/// With each word the longest silence before it counts for so much: half of it after seventy words.
const KEPT: f64 = 0.99;
/// Before so many words nothing is known of the rhythm.
const WORDS_MIN: u32 = 4;

/// One that comes so much later to its timer stood still itself, as in a long computation on the only thread, and heard
/// nothing meanwhile ([`Rhythm::on_deaf`]).
pub const DEAF_MIN: Duration = Duration::from_millis(300);

/// When somebody was heard.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rhythm {
    heard_at: Moment,
    longest: Duration,
    n_words: u32,
}

impl Rhythm {
    /// Of one that was heard for the first time.
    #[must_use]
    pub fn new(now: Moment) -> Self {
        Self { heard_at: now, longest: Duration::ZERO, n_words: 1 }
    }

    /// It said something.
    pub fn on_heard(&mut self, now: Moment) {
        let silence = now.saturating_sub(self.heard_at);
        self.longest = self.longest.mul_f64(KEPT).max(silence);
        self.n_words = self.n_words.saturating_add(1);
        self.heard_at = self.heard_at.max(now);
    }

    /// Something came of it that it did not say in its turn.
    pub fn on_sign(&mut self, now: Moment) {
        self.heard_at = self.heard_at.max(now);
    }

    /// Nothing could be heard for so long until now, which says nothing of the other side.
    pub fn on_deaf(&mut self, now: Moment, deaf: Duration) {
        self.heard_at = (self.heard_at + deaf).min(now.max(self.heard_at));
    }

    /// When it was heard last.
    #[must_use]
    pub fn heard_at(&self) -> Moment {
        self.heard_at
    }

    /// From when on it is gone, where nobody may be silent for longer than `silence_max`.
    #[must_use]
    pub fn silent_at(&self, silence_max: Duration) -> Moment {
        let usual = self.longest.mul_f64(USUAL_TIMES);
        let silence = if self.n_words < WORDS_MIN { silence_max } else { usual };
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
            rhythm.on_heard(now);
        }
        rhythm
    }

    fn silence(rhythm: &Rhythm) -> Duration {
        rhythm.silent_at(MAX) - rhythm.heard_at()
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
    fn a_long_silence_is_remembered_for_a_while() {
        let with_pause = |n_after| spoken([1000; 9].into_iter().chain([3000]).chain(vec![1000; n_after]));
        assert_eq!(silence(&with_pause(0)), Duration::from_secs(6));
        let later = silence(&with_pause(50));
        assert!(later > Duration::from_secs(3) && later < Duration::from_secs(4), "{later:?}");
        assert_eq!(silence(&with_pause(300)), MAX / 4);
    }

    #[test]
    fn whoever_heard_nothing_itself_does_not_blame_the_other() {
        let mut rhythm = spoken([1000; 50]);
        let now = rhythm.heard_at() + Duration::from_secs(40);
        rhythm.on_deaf(now, Duration::from_secs(39));
        assert!(rhythm.silent_at(MAX) > now);
        rhythm.on_heard(now);
        assert_eq!(silence(&rhythm), MAX / 4, "nor was that a long silence");
        let heard_at = rhythm.heard_at();
        rhythm.on_deaf(heard_at, Duration::from_secs(5));
        assert_eq!(rhythm.heard_at(), heard_at, "nobody was heard in what is to come");
    }
}
