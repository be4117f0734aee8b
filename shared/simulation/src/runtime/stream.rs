//! Streams in memory, whose bytes share the links of their ends and take the latency between them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures::io::{AsyncRead, AsyncWrite};

use super::{RuntimeEvent, VirtualNetwork};
use crate::network::NodeId;
use crate::simulation::Simulation;

/// Bytes of one direction that were written and not read yet.
const BUFFER_BYTES: usize = 32 * 1024;
/// Bytes of these that travel together.
const PIECE_BYTES: usize = 8 * 1024;

/// Names one direction of a stream.
type DirectionId = u64;

#[derive(Debug, Clone, Copy)]
pub(super) enum StreamEvent {
    /// Bytes have left the writer.
    Sent(DirectionId, usize),
    /// Bytes have come to the reader.
    Arrived(DirectionId, usize),
    /// The writer has written all.
    Finished(DirectionId),
    /// The writer learns that nobody reads any more.
    Refused(DirectionId),
}

#[derive(Debug)]
struct Direction {
    from: NodeId,
    to: NodeId,
    /// Written and not read: first those that have arrived, then those that travel.
    bytes: VecDeque<u8>,
    n_arrived: usize,
    n_travelling: usize,
    is_sending: bool,
    is_closed: bool,
    /// The reader is told that all was written, and knows it.
    is_end_sent: bool,
    is_end_here: bool,
    has_reader: bool,
    is_refused: bool,
    is_reset: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Direction {
    fn new(from: NodeId, to: NodeId) -> Self {
        Self {
            from,
            to,
            bytes: VecDeque::new(),
            n_arrived: 0,
            n_travelling: 0,
            is_sending: false,
            is_closed: false,
            is_end_sent: false,
            is_end_here: false,
            has_reader: true,
            is_refused: false,
            is_reset: false,
            reader: None,
            writer: None,
        }
    }

    fn wakers(&mut self) -> impl Iterator<Item = Waker> {
        [self.reader.take(), self.writer.take()].into_iter().flatten()
    }
}

/// All streams of a network.
#[derive(Debug, Default)]
pub(super) struct Streams {
    directions: BTreeMap<DirectionId, Direction>,
    n_opened: u64,
}

impl Streams {
    /// Both directions of a new stream: there, and back.
    pub(super) fn open(&mut self, from: NodeId, to: NodeId) -> [DirectionId; 2] {
        let first = self.n_opened;
        self.n_opened += 2;
        self.directions.insert(first, Direction::new(from, to));
        self.directions.insert(first + 1, Direction::new(to, from));
        [first, first + 1]
    }

    /// Breaks all streams between two nodes.
    pub(super) fn reset(&mut self, one: NodeId, other: NodeId) -> Vec<Waker> {
        let is_between = |direction: &&mut Direction| {
            [[one, other], [other, one]].contains(&[direction.from, direction.to])
        };
        let broken = self.directions.values_mut().filter(is_between);
        broken
            .flat_map(|direction| {
                direction.is_reset = true;
                direction.wakers()
            })
            .collect()
    }

    /// Those that can go on after an event.
    pub(super) fn on_event(
        &mut self,
        simulation: &mut Simulation<RuntimeEvent>,
        event: StreamEvent,
    ) -> Vec<Waker> {
        let (StreamEvent::Sent(id, _)
        | StreamEvent::Arrived(id, _)
        | StreamEvent::Finished(id)
        | StreamEvent::Refused(id)) = event;
        let Some(direction) = self.directions.get_mut(&id) else { return Vec::new() };
        match event {
            StreamEvent::Sent(_, n) => {
                direction.is_sending = false;
                direction.n_travelling += n;
                let arrived = RuntimeEvent::Stream(StreamEvent::Arrived(id, n));
                simulation.send_reliably(direction.from, direction.to, arrived);
            }
            StreamEvent::Arrived(_, n) => {
                direction.n_travelling -= n;
                direction.n_arrived += n;
            }
            StreamEvent::Finished(_) => direction.is_end_here = true,
            StreamEvent::Refused(_) => direction.is_refused = true,
        }
        let wakers = direction.wakers().collect();
        self.pump(simulation, id);
        wakers
    }

    /// Sends the next bytes, or says that there are no more.
    fn pump(&mut self, simulation: &mut Simulation<RuntimeEvent>, id: DirectionId) {
        let Some(direction) = self.directions.get_mut(&id) else { return };
        if direction.is_sending || direction.is_reset {
            return;
        }
        let n_unsent = direction.bytes.len() - direction.n_arrived - direction.n_travelling;
        if n_unsent > 0 {
            let n = n_unsent.min(PIECE_BYTES);
            direction.is_sending = true;
            let sent = RuntimeEvent::Stream(StreamEvent::Sent(id, n));
            simulation.upload(direction.from, direction.to, n as f64, sent);
        } else if direction.is_closed && !direction.is_end_sent {
            direction.is_end_sent = true;
            let finished = RuntimeEvent::Stream(StreamEvent::Finished(id));
            simulation.send_reliably(direction.from, direction.to, finished);
        }
    }

    fn read(
        &mut self,
        id: DirectionId,
        buffer: &mut [u8],
        waker: &Waker,
    ) -> (Poll<io::Result<usize>>, Option<Waker>) {
        let Some(direction) = self.directions.get_mut(&id) else { return (Poll::Ready(Ok(0)), None) };
        if direction.is_reset {
            return (Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())), None);
        }
        let n = direction.n_arrived.min(buffer.len());
        if n > 0 {
            for (to, from) in buffer.iter_mut().zip(direction.bytes.drain(..n)) {
                *to = from;
            }
            direction.n_arrived -= n;
            return (Poll::Ready(Ok(n)), direction.writer.take());
        }
        if direction.is_end_here || buffer.is_empty() {
            return (Poll::Ready(Ok(0)), None);
        }
        direction.reader = Some(waker.clone());
        (Poll::Pending, None)
    }

    fn write(
        &mut self,
        simulation: &mut Simulation<RuntimeEvent>,
        (id, bytes): (DirectionId, &[u8]),
        waker: &Waker,
    ) -> Poll<io::Result<usize>> {
        let Some(direction) = self.directions.get_mut(&id) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if direction.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if direction.is_refused || direction.is_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let n = (BUFFER_BYTES - direction.bytes.len()).min(bytes.len());
        if n == 0 && !bytes.is_empty() {
            direction.writer = Some(waker.clone());
            return Poll::Pending;
        }
        direction.bytes.extend(&bytes[..n]);
        self.pump(simulation, id);
        Poll::Ready(Ok(n))
    }

    fn close(&mut self, simulation: &mut Simulation<RuntimeEvent>, id: DirectionId) {
        if let Some(direction) = self.directions.get_mut(&id) {
            direction.is_closed = true;
        }
        self.pump(simulation, id);
    }

    /// An end was dropped: what was written still goes there, what comes is refused.
    fn drop_end(
        &mut self,
        simulation: &mut Simulation<RuntimeEvent>,
        reads: DirectionId,
        writes: DirectionId,
    ) {
        self.close(simulation, writes);
        let Some(direction) = self.directions.get_mut(&reads) else { return };
        direction.has_reader = false;
        let refused = RuntimeEvent::Stream(StreamEvent::Refused(reads));
        simulation.send_reliably(direction.to, direction.from, refused);
        let is_over =
            |id: DirectionId| self.directions.get(&id).is_none_or(|direction| !direction.has_reader);
        if is_over(reads) && is_over(writes) {
            self.directions.remove(&reads);
            self.directions.remove(&writes);
        }
    }
}

/// One end of a stream.
pub struct StreamEnd {
    network: VirtualNetwork,
    reads: DirectionId,
    writes: DirectionId,
}

impl StreamEnd {
    pub(super) fn new(network: VirtualNetwork, reads: DirectionId, writes: DirectionId) -> Self {
        Self { network, reads, writes }
    }
}

impl Drop for StreamEnd {
    fn drop(&mut self) {
        let (reads, writes) = (self.reads, self.writes);
        self.network.with(|shared| shared.streams.drop_end(&mut shared.simulation, reads, writes));
    }
}

impl AsyncRead for StreamEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let (read, writer) =
            self.network.with(|shared| shared.streams.read(self.reads, buffer, context.waker()));
        if let Some(writer) = writer {
            writer.wake();
        }
        read
    }
}

impl AsyncWrite for StreamEnd {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let writes = self.writes;
        self.network
            .with(|shared| shared.streams.write(&mut shared.simulation, (writes, bytes), context.waker()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.network.with(|shared| shared.streams.close(&mut shared.simulation, self.writes));
        Poll::Ready(Ok(()))
    }
}
