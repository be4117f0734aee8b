//! Window and timeouts of a round, and what makes them contradict one another.

use std::time::Duration;

use barnraise_protocol::average::WINDOW_CHUNKS_MAX;

/// Window and timeouts of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AveragingConfig {
    /// Chunks that a member may be ahead of the average.
    pub window_chunks: u32,
    /// How long the others wait for a member in one part, and for a message to be written.
    pub patience: Duration,
    /// How long a reducer may be silent before its part goes to the standby reducer. Longer than the patience: an honest
    /// reducer is silent while it waits for members.
    pub reducer_timeout: Duration,
    /// Longest duration of a round.
    pub deadline: Duration,
}

impl Default for AveragingConfig {
    fn default() -> Self {
        Self {
            window_chunks: 32,
            patience: Duration::from_secs(10),
            reducer_timeout: Duration::from_secs(25),
            deadline: Duration::from_secs(120),
        }
    }
}

/// Why a configuration is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A window that cannot be granted.
    #[error("a window of 1 to {WINDOW_CHUNKS_MAX} chunks is possible, not {0}")]
    Window(u32),
    /// Times that contradict one another.
    #[error(
        "0 < patience ({patience:?}) < reducer timeout ({reducer:?}) < deadline ({deadline:?}) must hold"
    )]
    Times {
        /// [`AveragingConfig::patience`].
        patience: Duration,
        /// [`AveragingConfig::reducer_timeout`].
        reducer: Duration,
        /// [`AveragingConfig::deadline`].
        deadline: Duration,
    },
}

impl AveragingConfig {
    /// Checks the window and the order of the timeouts.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(1..=WINDOW_CHUNKS_MAX).contains(&self.window_chunks) {
            return Err(ConfigError::Window(self.window_chunks));
        }
        let (patience, reducer, deadline) = (self.patience, self.reducer_timeout, self.deadline);
        if patience.is_zero() || patience >= reducer || reducer >= deadline {
            return Err(ConfigError::Times { patience, reducer, deadline });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_contradict_one_another_are_refused() {
        assert_eq!(AveragingConfig::default().check(), Ok(()));
        let second = Duration::from_secs(1);
        for bad in [
            AveragingConfig { window_chunks: 0, ..AveragingConfig::default() },
            AveragingConfig { window_chunks: WINDOW_CHUNKS_MAX + 1, ..AveragingConfig::default() },
            AveragingConfig { patience: Duration::ZERO, ..AveragingConfig::default() },
            AveragingConfig {
                reducer_timeout: AveragingConfig::default().patience,
                ..AveragingConfig::default()
            },
            AveragingConfig { deadline: second, ..AveragingConfig::default() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
