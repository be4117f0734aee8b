//! Sets up log lines, which go to standard error, and traces where the configuration names a collector.

#[cfg(feature = "operations")]
mod traces;

use std::io::IsTerminal as _;

use barnraise_relay::{LogFormat, log_layer};
use tracing_subscriber::layer::SubscriberExt as _;

#[cfg(feature = "operations")]
pub use self::traces::Traces;
use crate::config::TelemetrySection;
use crate::peer::display::Display;

/// Installs the global subscriber of the process.
///
/// # Errors
/// The collector's address is invalid.
pub fn start(format: LogFormat, display: Display, telemetry: &TelemetrySection) -> anyhow::Result<Traces> {
    let lines = log_layer(format, display, std::io::stderr().is_terminal());
    Traces::start(tracing_subscriber::registry().with(lines), telemetry)
}

/// No traces: this program was built without `operations`, and a configuration that asks for them is refused.
#[cfg(not(feature = "operations"))]
#[derive(Debug)]
#[must_use]
pub struct Traces;

#[cfg(not(feature = "operations"))]
impl Traces {
    fn start(
        lines: impl tracing_subscriber::util::SubscriberInitExt,
        _: &TelemetrySection,
    ) -> anyhow::Result<Self> {
        lines.init();
        Ok(Self)
    }

    /// Nothing remains.
    pub fn finish(self) {}
}
