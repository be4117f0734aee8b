//! A part that this member reduces: receives values from all members and sends them the average.
//!
//! One task owns all of it. Every queue has room for the whole part, whose length the group fixes. A chunk of the
//! average is encoded once and shared by all members. Buffers are reused: the next chunk is read into one whose values
//! have been added up.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use barnraise_protocol::average::{
    self, ChunkError, Finished, JoinRefusal, MESSAGE_BYTES_MAX, ReducerToMember,
};
use barnraise_protocol::bulk::BulkError;
use barnraise_protocol::framing;
use barnraise_swarm::Moment;
use barnraise_swarm::averaging::{
    MemberInput, Reduction, ReductionConfig, ReductionError, ReductionState, chunk, n_chunks,
};
use futures::channel::mpsc;
use futures::future::BoxFuture;
use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use futures::stream::{self, BoxStream, Fuse, SelectAll};
use futures::{FutureExt, Stream, StreamExt};

use crate::context::RoundContext;
use crate::error::ReduceError;
use crate::incoming::{JoiningMember, refuse};
use crate::platform::{self, Platform};

/// A message to a member that receives the average.
#[derive(Clone)]
enum Outgoing {
    /// Packed.
    Chunk(Arc<Vec<u8>>),
    Finished(Finished),
}

/// Index and values of a member's chunk, or why no more will come.
type Values = Result<(u32, Vec<f32>), ChunkError>;

/// An event of a member's stream.
enum StreamEvent {
    /// Values of the member at this position.
    Values(usize, Values),
    /// All was sent on it.
    Served,
}

/// A member's stream, read and written in one place: halves of a stream that different tasks poll may lose each
/// other's wake-ups.
struct MemberStream<'r> {
    member: usize,
    reading: Fuse<BoxStream<'r, Values>>,
    writing: Option<BoxFuture<'r, ()>>,
}

impl Stream for MemberStream<'_> {
    type Item = StreamEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        if let Some(writing) = &mut self.writing
            && writing.as_mut().poll(context).is_ready()
        {
            self.writing = None;
            return Poll::Ready(Some(StreamEvent::Served));
        }
        let read = self.reading.poll_next_unpin(context);
        match read {
            Poll::Ready(Some(values)) => Poll::Ready(Some(StreamEvent::Values(self.member, values))),
            Poll::Ready(None) if self.writing.is_none() => Poll::Ready(None),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

/// Most spare buffers.
const BUFFERS_MAX: usize = 32;

/// Spare buffers of values.
#[derive(Default)]
struct Buffers(Mutex<Vec<Vec<f32>>>);

impl Buffers {
    fn all(&self) -> MutexGuard<'_, Vec<Vec<f32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `n_values` arbitrary values.
    fn take(&self, n_values: usize) -> Vec<f32> {
        let mut buffer = self.all().pop().unwrap_or_default();
        buffer.resize(n_values, 0.0);
        buffer
    }

    fn take_back(&self, buffer: Vec<f32>) {
        let mut all = self.all();
        if all.len() < BUFFERS_MAX {
            all.push(buffer);
        }
    }
}

/// Averages `part` of this member's vector with the values of members that join; fills `mean` with the average.
pub(crate) async fn reduce<P: Platform>(
    round: &RoundContext<'_, P>,
    part: usize,
    attempt: u8,
    mean: &mut [f32],
    joining: &mut mpsc::Receiver<JoiningMember<P::Stream>>,
) -> Result<Finished, ReduceError> {
    let mut n_samples = round.group.n_samples();
    if attempt > 0 {
        // Its own reducer has vanished.
        n_samples[part] = 0;
    }
    let (window_chunks, patience) = (round.config.window_chunks, round.config.patience);
    let config = ReductionConfig { n_values: mean.len(), window_chunks, patience };
    let mut reduction = Reduction::new(round.platform.now(), config, &n_samples);
    reduction.on_joined(round.platform.now(), round.me, round.input);
    let buffers = Buffers::default();
    let mut members = Members::new(round, part, reduction.window_chunks(), &buffers);
    loop {
        take_own(round, part, &mut reduction);
        while let Some(due) = reduction.poll_mean() {
            let (codec, mut packed) = (round.group.codec(), Vec::new());
            average::pack_chunk(due.index, &due.values, codec, &mut packed)?;
            // As it travels, so that all members have the same bits.
            codec.decode_into(average::encoded(&packed), &mut mean[chunk(config.n_values, due.index)])?;
            members.send(Outgoing::Chunk(Arc::new(packed)));
            reduction.on_spare(due.values);
        }
        while let Some(spare) = reduction.poll_spare() {
            buffers.take_back(spare);
        }
        match reduction.state() {
            ReductionState::Going => {}
            ReductionState::Failed => return Err(ReduceError::NobodyLeft),
            ReductionState::Done(finished) => {
                // Of a reducer that has vanished no values are here.
                let is_all_here = attempt == 0 || round.group.members()[part].n_samples == 0;
                let finished = Finished { is_whole: finished.is_whole && is_all_here, ..finished };
                return Ok(members.finish(finished, joining).await);
            }
        }
        let deadline = reduction.next_deadline().unwrap_or(Moment::MAX);
        let late = round.platform.sleep_until(deadline).fuse();
        let mut late = std::pin::pin!(late);
        futures::select_biased! {
            came = members.links.select_next_some() => match came {
                StreamEvent::Values(member, values) => on_values(round, part, &mut reduction, member, values),
                StreamEvent::Served => members.n_served += 1,
            },
            joined = joining.select_next_some() => {
                let (member, input) = (joined.member, joined.input);
                if members.on_joined(joined) {
                    reduction.on_joined(round.platform.now(), member, input);
                }
            }
            () = late => reduction.on_timeout(round.platform.now()),
        }
    }
}

/// This member's own values, as far ahead as any member's may be.
fn take_own<P: Platform>(round: &RoundContext<'_, P>, part: usize, reduction: &mut Reduction) {
    let values = &round.values[round.group.part(part)];
    while let Some(index) = reduction.wanted_of(round.me) {
        let own = &values[chunk(values.len(), index)];
        if reduction.on_chunk(round.platform.now(), round.me, index, own).is_err() {
            break;
        }
    }
}

fn on_values<P: Platform>(
    round: &RoundContext<'_, P>,
    part: usize,
    reduction: &mut Reduction,
    member: usize,
    values: Values,
) {
    let now = round.platform.now();
    match values {
        Ok((index, values)) => match reduction.on_chunk(now, member, index, values) {
            // It was too late, which is no fault.
            Ok(()) | Err(ReductionError::NotAwaited) => {}
            Err(error) => {
                round.on_fault(part, member, error.into());
                reduction.on_lost(now, member);
            }
        },
        Err(error) => {
            if !is_cut(&error) {
                round.on_fault(part, member, error.into());
            }
            reduction.on_lost(now, member);
        }
    }
}

/// Whether a stream only ended early.
fn is_cut(error: &ChunkError) -> bool {
    matches!(error, ChunkError::Bulk(BulkError::Io(_)))
}

/// The members that have joined a part.
struct Members<'r, 'p, P: Platform> {
    round: &'r RoundContext<'p, P>,
    part: usize,
    window_chunks: u32,
    buffers: &'r Buffers,
    /// Messages sent so far, for members that join late; empty once all have joined.
    sent: Vec<Outgoing>,
    queues: BTreeMap<usize, mpsc::Sender<Outgoing>>,
    links: SelectAll<MemberStream<'r>>,
    n_links: usize,
    n_served: usize,
}

impl<'r, 'p, P: Platform> Members<'r, 'p, P> {
    fn new(round: &'r RoundContext<'p, P>, part: usize, window_chunks: u32, buffers: &'r Buffers) -> Self {
        Self {
            round,
            part,
            window_chunks,
            buffers,
            sent: Vec::new(),
            queues: BTreeMap::new(),
            links: SelectAll::new(),
            n_links: 0,
            n_served: 0,
        }
    }

    /// Whether it is the first stream of its member.
    fn on_joined(&mut self, joined: JoiningMember<P::Stream>) -> bool {
        let JoiningMember { member, input: MemberInput { n_samples, .. }, stream, back: _ } = joined;
        let round = self.round;
        let is_first = !self.queues.contains_key(&member);
        let (reading, writing): (BoxStream<'_, Values>, BoxFuture<'_, ()>) = if is_first {
            let (reader, writer) = stream.split();
            let n_values = round.group.part(self.part).len();
            // Room for all that is ever sent to it.
            let (mut queue, queued) = mpsc::channel(n_chunks(n_values) as usize + 1);
            for outgoing in &self.sent {
                let _ = queue.try_send(outgoing.clone());
            }
            self.queues.insert(member, queue);
            if self.have_all_joined() {
                self.sent = Vec::new();
            }
            let n_values = if n_samples > 0 { n_values } else { 0 };
            let reading = read(round, reader, n_values, self.buffers);
            (Box::pin(reading), Box::pin(write(round, writer, queued, self.window_chunks)))
        } else {
            (Box::pin(stream::empty()), Box::pin(refuse(round.platform, stream, JoinRefusal::Duplicate)))
        };
        self.n_links += 1;
        self.links.push(MemberStream { member, reading: reading.fuse(), writing: Some(writing) });
        is_first
    }

    fn send(&mut self, outgoing: Outgoing) {
        // The receiver of a member that is gone is dropped.
        self.queues.values_mut().for_each(|queue| drop(queue.try_send(outgoing.clone())));
        if !self.have_all_joined() {
            self.sent.push(outgoing);
        }
    }

    /// Whether every other member has joined.
    fn have_all_joined(&self) -> bool {
        self.queues.len() + 1 == self.round.group.members().len()
    }

    /// Completes when all members that joined have the rest of the average.
    async fn finish(
        mut self,
        finished: Finished,
        joining: &mut mpsc::Receiver<JoiningMember<P::Stream>>,
    ) -> Finished {
        self.send(Outgoing::Finished(finished));
        self.queues.values_mut().for_each(mpsc::Sender::disconnect);
        while self.n_served < self.n_links {
            futures::select_biased! {
                // Late values are read and ignored: a stream with unread bytes would be reset.
                came = self.links.select_next_some() => {
                    self.n_served += usize::from(matches!(came, StreamEvent::Served));
                }
                joined = joining.select_next_some() => {
                    self.on_joined(joined);
                    self.queues.values_mut().for_each(mpsc::Sender::disconnect);
                }
            }
        }
        finished
    }
}

/// Chunks of a member, in order, until the last one or an error.
fn read<'r, P: Platform, S: AsyncRead + Unpin + Send + 'r>(
    round: &'r RoundContext<'_, P>,
    reader: S,
    n_values: usize,
    buffers: &'r Buffers,
) -> impl Stream<Item = Values> + Send + 'r {
    let codec = round.group.codec();
    stream::unfold(Some((reader, 0, Vec::new())), move |state| async move {
        let (mut reader, index, mut bytes) = state.filter(|(_, index, _)| *index < n_chunks(n_values))?;
        let mut values = buffers.take(chunk(n_values, index).len());
        match average::read_chunk(&mut reader, index, &mut values, codec, &mut bytes).await {
            Ok(()) => {
                round.count_received(bytes.len());
                Some((Ok((index, values)), Some((reader, index + 1, bytes))))
            }
            Err(error) => Some((Err(error), None)),
        }
    })
}

/// Sends a member the messages queued for it. A member that reads nothing for longer than the patience is dropped.
async fn write<P: Platform, S: AsyncWrite + Unpin + Send>(
    round: &RoundContext<'_, P>,
    mut writer: S,
    mut queued: mpsc::Receiver<Outgoing>,
    window_chunks: u32,
) {
    let granted = ReducerToMember::Granted { window_chunks };
    let mut is_taken = within(round, framing::write(&mut writer, &granted, MESSAGE_BYTES_MAX)).await;
    while is_taken && let Some(outgoing) = queued.next().await {
        is_taken = match outgoing {
            Outgoing::Chunk(packed) => {
                round.count_sent(average::encoded(&packed).len());
                within(round, average::write_chunk(&mut writer, &packed)).await
            }
            Outgoing::Finished(finished) => {
                let finished = ReducerToMember::Finished(finished);
                within(round, framing::write(&mut writer, &finished, MESSAGE_BYTES_MAX)).await
            }
        };
    }
    if is_taken {
        within(round, writer.close()).await;
    }
}

/// Whether `writing` succeeds within the patience.
async fn within<P: Platform, T, E>(
    round: &RoundContext<'_, P>,
    writing: impl Future<Output = Result<T, E>> + Send,
) -> bool {
    matches!(platform::within(round.platform, round.config.patience, writing).await, Some(Ok(_)))
}
