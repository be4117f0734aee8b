//! How log lines are written: for people, or as JSON for a collector. Which lines, `RUST_LOG` says.

use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer};

/// The filter without `RUST_LOG`. Yamux logs invalid frames of remotes as errors; they are counted as violations instead.
const FILTER_DEFAULT: &str = "info,libp2p_swarm=warn,libp2p_kad=error,webrtc=error,webrtc_dtls=error,webrtc_ice=error,webrtc_sctp=error,yamux=off";

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people, with colours where there is a terminal
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Writes log lines to `writer`.
pub fn log_layer<S, W>(format: LogFormat, writer: W, has_colours: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(FILTER_DEFAULT));
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    match format {
        LogFormat::Text => lines.with_ansi(has_colours).with_filter(filter).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_ansi(false).with_filter(filter).boxed(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat) -> String {
        let memory = Memory::default();
        let writer = memory.clone();
        let subscriber =
            tracing_subscriber::registry().with(log_layer(format, move || writer.clone(), false));
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!(epoch = 3, peer = "a \"peer\"", "stepped");
        });
        let bytes = memory.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_line_is_a_json_object_with_its_fields() {
        let line = logged(LogFormat::Json);
        assert_eq!(line.lines().count(), 1, "{line}");
        for part in ["{\"timestamp\":\"", "\"level\":\"ERROR\"", "\"message\":\"stepped\"", "\"epoch\":3"] {
            assert!(line.contains(part), "{part} is missing in {line}");
        }
        assert!(line.contains("\"peer\":\"a \\\"peer\\\"\"") && line.ends_with("}\n"), "{line}");
    }

    #[test]
    fn a_line_is_for_people() {
        let line = logged(LogFormat::Text);
        assert!(line.contains("ERROR") && line.contains("stepped epoch=3"), "{line}");
    }
}
