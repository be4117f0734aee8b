//! What a contributor does on the network, each an operation with one outcome.
//!
//! Every outcome hands back what the next attempt can go on with: streams, partial transfers.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use barnraise_protocol::bulk::{self, Partial};
use barnraise_protocol::contribute::{self, BackboneToContributor, ContributorToBackbone, Join, Report};
use barnraise_protocol::dataset::{Manifest, Samples, ShardEntry};
use barnraise_protocol::gradient::{self, Prepared, Refusal, Stage};
use barnraise_protocol::receipt::SignedReceipt;
use barnraise_protocol::run::{self, RunDescription};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::state::{self, PartialState, State};
use barnraise_protocol::{ConversationError, TensorCodec, framing};
use barnraise_swarm::Moment;
use barnraise_swarm::shards::Source;
use barnraise_swarm::uplink::Sent;
use futures::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use crate::access::{self, Ticket};
use crate::driver::Kept;
use crate::error::OperationError;
use crate::kept;
use crate::operation::{ONE_OF_MANY, Operation, Stream};
use crate::platform::Platform;

/// Parameters may be gone before they are here so often at a time.
const WITHDRAWN_MAX: u32 = 3;

/// Bytes that are here, and bytes in all.
pub(crate) type Progress = Rc<Cell<(u64, u64)>>;

/// Our half of a session, with the count of what moved on it.
pub(crate) struct SessionWriter<P: Platform> {
    stream: WriteHalf<Stream<P>>,
    moved: Rc<Cell<u64>>,
}

/// The backbone's half of a session.
pub(crate) type SessionReader<P> = ReadHalf<Stream<P>>;

/// What came of an operation, of which one at a time is under way.
pub(crate) enum NetOutcome<P: Platform> {
    Connected(Result<Connected<P>, OperationError>),
    State {
        stream: Option<Stream<P>>,
        partial: Option<PartialState>,
        result: Result<State, OperationError>,
    },
    Reported {
        writer: SessionWriter<P>,
        result: Result<(), OperationError>,
    },
    Answered {
        stream: Option<Stream<P>>,
        result: Result<Result<SignedReceipt, Refusal>, OperationError>,
        /// `None` where it was not asked for, or broke off.
        sent: Option<Sent>,
        /// The other side may have all of it: without an answer nobody knows whether it counts.
        may_count: bool,
    },
    Left,
    /// What an earlier visit kept, where no backbone answers.
    Kept(Box<Kept>),
    /// Access goes on, or it will be tried again.
    Renewed(Result<(), OperationError>),
}

/// A connection, with a session if one was asked for.
pub(crate) struct Connected<P: Platform> {
    pub(crate) run: Box<RunDescription>,
    /// Bytes of the backbone's peer id, where it was dialled.
    pub(crate) backbone: Option<Vec<u8>>,
    pub(crate) session: Option<(SessionWriter<P>, SessionReader<P>, contribute::Progress)>,
}

/// Gets a new token, and shows it.
pub(crate) async fn renew<P: Platform>(
    mut operation: Operation<'_, P>,
    ticket: Rc<Ticket>,
    run: Rc<RunDescription>,
) -> NetOutcome<P> {
    NetOutcome::Renewed(access::renew(&mut operation, &ticket, &run).await)
}

/// Dials unless there is a connection, asks what is trained, gets in, and joins if `join` says as what.
pub(crate) async fn connect<P: Platform>(
    mut operation: Operation<'_, P>,
    ticket: Rc<Ticket>,
    is_connected: bool,
    join: Option<Join>,
) -> NetOutcome<P> {
    let result = async {
        let mut backbone = None;
        if !is_connected {
            let platform = operation.platform;
            let dial = async {
                platform.disconnect().await;
                platform.connect().await
            };
            let dialled = operation.guard(&Cell::new(0), dial).await?;
            backbone = Some(dialled.map_err(OperationError::Connect)?);
        }
        let mut stream = None;
        let describe =
            operation.converse(&mut stream, run::PROTOCOL, async |stream| run::describe(stream).await);
        let described = describe.await;
        drop(stream);
        let run = match described {
            Err(error @ OperationError::Open { .. }) => {
                return Err(version_before(&mut operation, error).await);
            }
            described => described?,
        };
        crate::description::check_description(&run)?;
        access::enter(&mut operation, &ticket, &run, join.is_some()).await?;
        let session = match join {
            Some(join) => {
                Some(self::join(&mut operation, Join { run_id: run.run_id.clone(), ..join }).await?)
            }
            None => None,
        };
        Ok(Connected { run: Box::new(run), backbone, session })
    };
    NetOutcome::Connected(result.await)
}

/// Why no stream could be opened to ask what is trained: the backbone may be of the build before this one.
async fn version_before<P: Platform>(
    operation: &mut Operation<'_, P>,
    error: OperationError,
) -> OperationError {
    let [.., theirs] = run::PROTOCOLS_BEFORE;
    match operation.open(theirs).await {
        Ok(_) => OperationError::OlderRun { theirs },
        Err(_) => error,
    }
}

async fn join<P: Platform>(
    operation: &mut Operation<'_, P>,
    join: Join,
) -> Result<(SessionWriter<P>, SessionReader<P>, contribute::Progress), OperationError> {
    let mut stream = operation.open(contribute::PROTOCOL).await?;
    let moved = stream.moved();
    let greeting = async {
        let join = ContributorToBackbone::Join(join);
        framing::write(&mut stream, &join, contribute::MESSAGE_BYTES_MAX).await?;
        match framing::read(&mut stream, contribute::MESSAGE_BYTES_MAX).await? {
            BackboneToContributor::Welcome(progress) => Ok(progress),
            BackboneToContributor::Refused(reason) => Err(ConversationError::Refused(reason)),
            other => Err(ConversationError::Refused(format!("a session began with {other:?}"))),
        }
    };
    let progress = operation.guard(&moved, greeting).await??;
    let (reader, stream) = stream.split();
    Ok((SessionWriter { stream, moved }, reader, progress))
}

/// Sends a report.
pub(crate) async fn report<P: Platform>(
    mut operation: Operation<'_, P>,
    mut writer: SessionWriter<P>,
    report: Report,
) -> NetOutcome<P> {
    let moved = Rc::clone(&writer.moved);
    let message = ContributorToBackbone::Report(report);
    let write = framing::write(&mut writer.stream, &message, contribute::MESSAGE_BYTES_MAX);
    let result = match operation.guard(&moved, write).await {
        Ok(written) => written.map_err(OperationError::from),
        Err(error) => Err(error),
    };
    NetOutcome::Reported { writer, result }
}

/// Ends a session in order.
pub(crate) async fn leave<P: Platform>(
    mut operation: Operation<'_, P>,
    mut writer: SessionWriter<P>,
) -> NetOutcome<P> {
    let moved = Rc::clone(&writer.moved);
    // The other side sees the end of the stream either way.
    let _ = operation.guard(&moved, writer.stream.close()).await;
    NetOutcome::Left
}

/// Pulls the newest parameters, or the rest of `partial`: so many values, encoded so. Those of `keep` are kept.
pub(crate) async fn fetch_state<P: Platform>(
    mut operation: Operation<'_, P>,
    mut stream: Option<Stream<P>>,
    mut partial: Option<PartialState>,
    (n_parameters, codec): (u64, TensorCodec),
    keep: Option<Rc<RunDescription>>,
    progress: Progress,
) -> NetOutcome<P> {
    let platform = operation.platform;
    let mut n_withdrawn = 0;
    let result = loop {
        let fetch = operation.converse(&mut stream, state::PROTOCOL, async |stream| {
            let on_progress = |here, all| progress.set((here, all));
            state::fetch(stream, n_parameters, codec, &mut partial, on_progress).await
        });
        let result = fetch.await;
        // They made way for newer ones while they were on their way: those are asked for, on another stream.
        n_withdrawn += 1;
        if result.as_ref().err().is_none_or(|error| !error.is_withdrawn()) || n_withdrawn >= WITHDRAWN_MAX {
            break result;
        }
    };
    if let (Ok(state), Some(run)) = (&result, &keep)
        && let Ok(model) = kept::encode(run, state)
    {
        platform.keep_model(&model).await;
    }
    NetOutcome::State { stream, partial, result }
}

/// Offers a gradient and sends it. `checking` is told where the other side computes it once more before it counts, and
/// how many of this peer's it does so with in any case.
pub(crate) async fn offer<P: Platform>(
    mut operation: Operation<'_, P>,
    mut stream: Option<Stream<P>>,
    prepared: Rc<Prepared>,
    progress: Progress,
    checking: Rc<Cell<Option<u32>>>,
) -> NetOutcome<P> {
    let n_bytes = prepared.bytes.len() as u64;
    let platform = operation.platform;
    let (mut wanted, mut sent, mut may_count) = (None, None, false);
    let offer = operation.converse(&mut stream, gradient::PROTOCOL, async |stream| {
        let began = platform.now();
        // What is said to be sent may be all but the chunk that is on its way.
        let is_nearly_sent = |n_sent: u64| n_sent.saturating_add(bulk::CHUNK_BYTES as u64) >= n_bytes;
        let on_stage = |stage| match stage {
            Stage::Wanted => {
                wanted = Some(platform.now());
                may_count |= is_nearly_sent(0);
            }
            Stage::Sent(n_sent) => {
                progress.set((n_sent, n_bytes));
                may_count |= is_nearly_sent(n_sent);
            }
            Stage::Checking(n_left) => checking.set(Some(n_left)),
            Stage::Delivered => {
                let now = platform.now();
                sent = wanted.map(|wanted: Moment| Sent {
                    n_bytes,
                    took: now.saturating_sub(wanted),
                    round_trip: wanted.saturating_sub(began),
                });
            }
        };
        gradient::offer(stream, &prepared, on_stage).await
    });
    let result = offer.await;
    NetOutcome::Answered { stream, result, sent, may_count }
}

/// What came of fetching a shard.
pub(crate) struct ShardOutcome<P: Platform> {
    pub(crate) id: ShardId,
    /// The connection on which it was fetched.
    pub(crate) link_id: u64,
    pub(crate) source: Source,
    /// To the backbone.
    pub(crate) stream: Option<Stream<P>>,
    pub(crate) partial: Option<Partial>,
    /// Shards that made way for this one; `None` where it is not kept.
    pub(crate) room: Option<Vec<u32>>,
    pub(crate) result: Result<FetchedShard, OperationError>,
}

/// A shard that is here.
pub(crate) struct FetchedShard {
    pub(crate) samples: Arc<Samples>,
    /// As they came; `None` where they were here already.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// A shard to fetch, and what there is already.
pub(crate) struct ShardRequest<P: Platform> {
    pub(crate) id: ShardId,
    pub(crate) entry: ShardEntry,
    pub(crate) link_id: u64,
    pub(crate) source: Source,
    pub(crate) stream: Option<Stream<P>>,
    pub(crate) partial: Option<Partial>,
    /// Shards that make way for it; `None` where it is not to be kept.
    pub(crate) room: Option<Vec<u32>>,
}

/// Takes a shard from the cache, or pulls it and puts it there if it is to be kept. A cached one that is not what
/// its name says is pulled again.
pub(crate) async fn fetch_shard<P: Platform>(
    mut operation: Operation<'_, P>,
    request: ShardRequest<P>,
    (run, ticket): (Rc<RunDescription>, Rc<Ticket>),
    progress: Progress,
) -> ShardOutcome<P> {
    let ShardRequest { id, entry, link_id, source, mut stream, mut partial, room } = request;
    let result = async {
        if let Some(samples) = from_cache(&operation, &entry, &run.manifest).await {
            return Ok(FetchedShard { samples, bytes: None });
        }
        let n_bytes = u64::from(entry.n_bytes);
        let on_progress = |here| progress.set((here, n_bytes));
        on_progress(partial.as_ref().map_or(0, Partial::n_bytes));
        let bytes = match &source {
            Source::Backbone => {
                let fetch = operation.converse(&mut stream, shard::PROTOCOL, async |stream| {
                    shard::fetch(stream, id, &entry, &mut partial, on_progress).await
                });
                fetch.await?
            }
            Source::Peer(peer) => {
                access::show_to(&mut operation, &ticket, &run, peer).await?;
                let mut stream = operation.open_to(peer, shard::PROTOCOL).await?;
                let moved = stream.moved();
                let fetch = shard::fetch(&mut stream, id, &entry, &mut partial, on_progress);
                operation.guard_with(ONE_OF_MANY, &moved, fetch).await??
            }
        };
        partial = None;
        let shard = Samples::decode(&bytes, &entry, &run.manifest).map_err(ConversationError::from)?;
        if let Some(room) = &room {
            for evicted in room.iter().filter_map(|&shard| ShardId::Train(shard).entry(&run.manifest)) {
                operation.platform.forget(evicted.sha256).await;
            }
            operation.platform.cache(entry.sha256, &bytes).await;
        }
        Ok(FetchedShard { samples: Arc::new(shard), bytes: Some(bytes) })
    };
    let result = match (result.await, &source) {
        (Err(OperationError::Stalled), Source::Peer(_)) => Err(OperationError::Slow),
        (result, _) => result,
    };
    ShardOutcome { id, link_id, source, stream, partial, room, result }
}

async fn from_cache<P: Platform>(
    operation: &Operation<'_, P>,
    entry: &ShardEntry,
    manifest: &Manifest,
) -> Option<Arc<Samples>> {
    let bytes = operation.platform.cached(entry.sha256).await?;
    Samples::decode(&bytes, entry, manifest).ok().map(Arc::new)
}

/// The next message of a session, and the reader for the one after it.
pub(crate) async fn listen<P: Platform>(
    mut reader: SessionReader<P>,
) -> (SessionReader<P>, Result<BackboneToContributor, framing::FrameError>) {
    let message = framing::read(&mut reader, contribute::MESSAGE_BYTES_MAX).await;
    (reader, message)
}
