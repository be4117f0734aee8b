//! Keeps a line of text from flickering. Pure: the time is an argument.

/// How long a text stays before one of another kind may take its place.
const SHOWN_MIN_MS: f64 = 700.0;

/// The text on show, and since when.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    kind: &'static str,
    since_ms: f64,
}

impl Hold {
    /// Whether a text of `kind` may be shown now; otherwise for how many milliseconds the one on
    /// show still stays. A text of the same kind may always take its place.
    pub(crate) fn admit(&mut self, now_ms: f64, kind: &'static str) -> Result<(), f64> {
        if self.kind == kind {
            return Ok(());
        }
        let remaining_ms = self.since_ms + SHOWN_MIN_MS - now_ms;
        if !self.kind.is_empty() && remaining_ms > 0.0 {
            return Err(remaining_ms);
        }
        (self.kind, self.since_ms) = (kind, now_ms);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_kind_waits_and_the_same_kind_does_not() {
        let mut hold = Hold::default();
        assert_eq!(hold.admit(0.0, "training"), Ok(()));
        assert_eq!(hold.admit(100.0, "sending"), Err(600.0));
        assert_eq!(hold.admit(200.0, "training"), Ok(()));
        assert_eq!(hold.admit(699.0, "waiting"), Err(1.0));
        assert_eq!(hold.admit(700.0, "waiting"), Ok(()));
        assert_eq!(hold.admit(1300.0, "training"), Err(100.0));
    }
}
