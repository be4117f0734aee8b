//! Keeps a line of text from flickering. Pure: the time is an argument.

/// How long a text stays before one of another kind may take its place.
const SHOWN_MIN_MS: f64 = 700.0;

/// The text on show, and since when.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    kind: &'static str,
    since_ms: f64,
    is_routine: bool,
}

impl Hold {
    /// Whether a text of `kind` may be shown now; otherwise for how many milliseconds the one on
    /// show still stays. A text of the same kind may always take its place, and only routine waits
    /// for routine: news is shown at once.
    pub(crate) fn admit(&mut self, now_ms: f64, kind: &'static str, is_routine: bool) -> Result<(), f64> {
        if self.kind == kind {
            return Ok(());
        }
        let remaining_ms = self.since_ms + SHOWN_MIN_MS - now_ms;
        if self.is_routine && is_routine && remaining_ms > 0.0 {
            return Err(remaining_ms);
        }
        *self = Self { kind, since_ms: now_ms, is_routine };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routine_waits_for_routine() {
        let mut hold = Hold::default();
        assert_eq!(hold.admit(0.0, "training", true), Ok(()));
        assert_eq!(hold.admit(100.0, "sending", true), Err(600.0));
        assert_eq!(hold.admit(200.0, "training", true), Ok(()));
        assert_eq!(hold.admit(699.0, "waiting", true), Err(1.0));
        assert_eq!(hold.admit(700.0, "waiting", true), Ok(()));
        assert_eq!(hold.admit(1300.0, "training", true), Err(100.0));
    }

    #[test]
    fn news_is_shown_at_once_and_gives_way_at_once() {
        let mut hold = Hold::default();
        assert_eq!(hold.admit(0.0, "training", true), Ok(()));
        assert_eq!(hold.admit(1.0, "reconnecting", false), Ok(()));
        assert_eq!(hold.admit(2.0, "training", true), Ok(()));
    }
}
