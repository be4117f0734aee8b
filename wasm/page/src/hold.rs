//! Debounces a line of text. Pure: the time is an argument.

/// Shortest time that a routine text stays before another one replaces it, so that it can be read.
const SHOWN_MIN_MS: f64 = 1500.0;

/// The kind of the current text, and since when it is shown.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    kind: &'static str,
    since_ms: f64,
    is_routine: bool,
}

impl Hold {
    /// `Ok` if a text of `kind` may be shown now, else the milliseconds to wait. A routine text waits for a routine text,
    /// of the same kind too: its numbers change several times a second. All others are shown at once.
    pub(crate) fn admit(&mut self, now_ms: f64, kind: &'static str, is_routine: bool) -> Result<(), f64> {
        if self.kind == kind && !is_routine {
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
        assert_eq!(hold.admit(100.0, "sending", true), Err(1400.0));
        assert_eq!(hold.admit(200.0, "training", true), Err(1300.0), "another step, of the same kind");
        assert_eq!(hold.admit(1499.0, "waiting", true), Err(1.0));
        assert_eq!(hold.admit(1500.0, "waiting", true), Ok(()));
        assert_eq!(hold.admit(2100.0, "training", true), Err(900.0));
    }

    #[test]
    fn progress_of_a_download_is_shown_as_it_comes() {
        let mut hold = Hold::default();
        assert_eq!(hold.admit(0.0, "loading", false), Ok(()));
        assert_eq!(hold.admit(100.0, "loading", false), Ok(()));
    }

    #[test]
    fn other_texts_are_shown_at_once_and_replaced_at_once() {
        let mut hold = Hold::default();
        assert_eq!(hold.admit(0.0, "training", true), Ok(()));
        assert_eq!(hold.admit(1.0, "reconnecting", false), Ok(()));
        assert_eq!(hold.admit(2.0, "training", true), Ok(()));
    }
}
