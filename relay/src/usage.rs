//! Metrics of relayed circuits: bytes and seconds of each, and why circuits end.
//!
//! libp2p's relay says when a circuit begins and ends, and not how much went through it. But each circuit has
//! one stream that the relay opens to its destination, and the first thing that is written on it is the name of
//! its protocol. So that name is looked for at the beginning of each stream that this node opens, and what
//! follows is counted. Nothing else is read, and nothing is delayed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p::metrics::Registry;
use libp2p::relay;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// What the dialling side of multistream-select 1.0 writes before it asks a destination to take a circuit.
const CIRCUIT_PREFIX: &[u8] = b"\x13/multistream/1.0.0\n\x21/libp2p/circuit/relay/0.2.0/stop\n";

type ByLabel = Family<[(&'static str, &'static str); 1], Counter>;

/// The counters; shared by all streams.
#[derive(Debug)]
pub(crate) struct Usage {
    n_open: Gauge,
    opened: Counter,
    ended: ByLabel,
    refused: ByLabel,
    to_destination: Counter,
    from_destination: Counter,
    circuit_bytes: Histogram,
    circuit_seconds: Histogram,
}

impl Usage {
    pub(crate) fn new(registry: &mut Registry) -> Arc<Self> {
        let registry = registry.sub_registry_with_prefix("barnraise_relay");
        let forwarded = Family::<[(&'static str, &'static str); 1], Counter>::default();
        let direction = |name| forwarded.get_or_create(&[("direction", name)]).clone();
        let zero = |name: &'static str, values: &[&'static str]| {
            let family = ByLabel::default();
            values.iter().for_each(|value| drop(family.get_or_create(&[(name, *value)])));
            family
        };
        let usage = Self {
            n_open: Gauge::default(),
            opened: Counter::default(),
            ended: zero("reason", &END_REASONS),
            refused: zero("reason", &REFUSAL_REASONS),
            to_destination: direction("to_destination"),
            from_destination: direction("from_destination"),
            // 1 KiB to 16 GiB, 1 s to 3 days.
            circuit_bytes: Histogram::new(exponential_buckets(1024.0, 4.0, 13)),
            circuit_seconds: Histogram::new(exponential_buckets(1.0, 4.0, 10)),
        };
        registry.register("circuits", "Circuits that are carried now", usage.n_open.clone());
        registry.register("circuits_opened", "Circuits that began", usage.opened.clone());
        registry.register("circuits_ended", "Circuits that ended, by reason", usage.ended.clone());
        registry.register("circuits_refused", "Circuits that were asked for in vain", usage.refused.clone());
        registry.register(
            "forwarded_bytes",
            "Forwarded for others, with the messages that open a circuit",
            forwarded,
        );
        registry.register(
            "circuit_bytes",
            "Of each circuit that was asked of its destination, both ways together",
            usage.circuit_bytes.clone(),
        );
        registry.register(
            "circuit_seconds",
            "From the question to the destination to the end",
            usage.circuit_seconds.clone(),
        );
        Arc::new(usage)
    }

    pub(crate) fn on_event(&self, event: &relay::Event) {
        match event {
            relay::Event::CircuitReqAccepted { .. } => {
                self.opened.inc();
                self.n_open.inc();
            }
            relay::Event::CircuitClosed { error, .. } => {
                self.n_open.dec();
                self.ended.get_or_create(&[("reason", end_reason(error.as_ref()))]).inc();
            }
            relay::Event::CircuitReqDenied { status, .. } => {
                self.refused.get_or_create(&[("reason", refusal_reason(status))]).inc();
            }
            _ => {}
        }
    }
}

/// What [`end_reason`] says: each is there from the start, at zero.
const END_REASONS: [&str; 5] = ["closed", "duration", "disconnected", "bytes", "broken"];
/// What [`refusal_reason`] says.
const REFUSAL_REASONS: [&str; 5] = ["limit", "no_reservation", "permission", "destination", "malformed"];

fn end_reason(error: Option<&io::Error>) -> &'static str {
    let Some(error) = error else { return "closed" };
    match error.kind() {
        io::ErrorKind::TimedOut => "duration",
        io::ErrorKind::ConnectionAborted => "disconnected",
        // libp2p has no kind for it; a test looks at whether the words are still these.
        io::ErrorKind::Other if error.to_string().contains("circuit bytes") => "bytes",
        _ => "broken",
    }
}

fn refusal_reason(status: &relay::StatusCode) -> &'static str {
    match status {
        relay::StatusCode::ResourceLimitExceeded => "limit",
        relay::StatusCode::NoReservation => "no_reservation",
        relay::StatusCode::PermissionDenied => "permission",
        relay::StatusCode::ConnectionFailed => "destination",
        _ => "malformed",
    }
}

/// A connection whose circuits are counted.
#[derive(Debug)]
pub(crate) struct MeteredMuxer<M> {
    inner: M,
    usage: Arc<Usage>,
}

impl<M> MeteredMuxer<M> {
    pub(crate) fn new(inner: M, usage: Arc<Usage>) -> Self {
        Self { inner, usage }
    }
}

impl<M: StreamMuxer + Unpin> StreamMuxer for MeteredMuxer<M>
where
    M::Substream: Unpin,
{
    type Substream = MeteredStream<M::Substream>;
    type Error = M::Error;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        let inner = ready!(Pin::new(&mut self.inner).poll_inbound(cx))?;
        Poll::Ready(Ok(MeteredStream { inner, meter: CircuitMeter::Off }))
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        let inner = ready!(Pin::new(&mut self.inner).poll_outbound(cx))?;
        let meter = CircuitMeter::Prefix { n_matched: 0, usage: Arc::clone(&self.usage) };
        Poll::Ready(Ok(MeteredStream { inner, meter }))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

/// A stream that may turn out to be a circuit.
#[derive(Debug)]
pub(crate) struct MeteredStream<S> {
    inner: S,
    meter: CircuitMeter,
}

#[derive(Debug)]
enum CircuitMeter {
    /// So much of the prefix was written.
    Prefix {
        n_matched: usize,
        usage: Arc<Usage>,
    },
    Circuit(Circuit),
    /// No circuit.
    Off,
}

/// Observed when it is dropped.
#[derive(Debug)]
struct Circuit {
    usage: Arc<Usage>,
    since: Instant,
    n_bytes: u64,
}

impl CircuitMeter {
    fn on_read(&mut self, n_bytes: usize) {
        if let Self::Circuit(circuit) = self {
            circuit.n_bytes += n_bytes as u64;
            circuit.usage.from_destination.inc_by(n_bytes as u64);
        }
    }

    fn on_written(&mut self, written: &[u8]) {
        match self {
            Self::Off => {}
            Self::Circuit(circuit) => {
                circuit.n_bytes += written.len() as u64;
                circuit.usage.to_destination.inc_by(written.len() as u64);
            }
            Self::Prefix { n_matched, usage } => {
                let left = CIRCUIT_PREFIX.get(*n_matched..).unwrap_or_default();
                let n_compared = left.len().min(written.len());
                let (begin, rest) = written.split_at(n_compared);
                if !left.starts_with(begin) {
                    *self = Self::Off;
                } else if n_compared < left.len() {
                    *n_matched += n_compared;
                } else {
                    let (usage, since) = (Arc::clone(usage), Instant::now());
                    *self = Self::Circuit(Circuit { usage, since, n_bytes: 0 });
                    self.on_written(rest);
                }
            }
        }
    }
}

impl Drop for Circuit {
    fn drop(&mut self) {
        self.usage.circuit_bytes.observe(self.n_bytes as f64);
        self.usage.circuit_seconds.observe(self.since.elapsed().as_secs_f64());
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let n_bytes = ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        self.meter.on_read(n_bytes);
        Poll::Ready(Ok(n_bytes))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let n_bytes = ready!(Pin::new(&mut self.inner).poll_write(cx, bytes))?;
        self.meter.on_written(bytes.get(..n_bytes).unwrap_or_default());
        Poll::Ready(Ok(n_bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is counted after these writes, in pieces.
    fn counted(writes: &[&[u8]]) -> Option<u64> {
        let mut meter = CircuitMeter::Prefix { n_matched: 0, usage: Usage::new(&mut Registry::default()) };
        writes.iter().for_each(|written| meter.on_written(written));
        match &meter {
            CircuitMeter::Circuit(circuit) => Some(circuit.n_bytes),
            _ => None,
        }
    }

    #[test]
    fn a_circuit_is_known_by_how_it_begins_in_whichever_pieces() {
        let (first, second) = CIRCUIT_PREFIX.split_at(20);
        let whole = [CIRCUIT_PREFIX, b"carried"].concat();
        assert_eq!(counted(&[&whole]), Some(7));
        assert_eq!(counted(&[first, second, b"carried"]), Some(7));
        assert_eq!(counted(&[first, b"", second]), Some(0));
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(counted(&bytes), Some(7));
    }

    #[test]
    fn nothing_else_is_counted() {
        assert_eq!(counted(&[CIRCUIT_PREFIX.split_last().map_or(&[][..], |(_, begin)| begin)]), None);
        assert_eq!(counted(&[b"\x13/multistream/1.0.0\n", b"\x11/ipfs/ping/1.0.0\n"]), None);
        assert_eq!(counted(&[b"x", CIRCUIT_PREFIX]), None);
    }
}
