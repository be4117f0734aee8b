//! Operations on the network that are the same in every scheme, each with one outcome.
//!
//! Every outcome hands back the streams and partial transfers that the next attempt can use.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use barnraise_protocol::bulk::Partial;
use barnraise_protocol::contribute::{self, BackboneToContributor, ContributorToBackbone, Join};
use barnraise_protocol::dataset::{DataStream, DatasetError, Manifest, Samples, ShardEntry};
use barnraise_protocol::error::NewerThanRun;
use barnraise_protocol::run::{self, RunDescription};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::state::{self, EncodedState, PartialState};
use barnraise_protocol::streamed::StreamWindow;
use barnraise_protocol::{ConversationError, TensorCodec, framing};
use barnraise_swarm::shards::ShardSource;
use futures::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use super::access::{self, AccessTicket};
use super::frozen::is_frozen;
use super::model_cache::{self, OfflineCache};
use super::operation::{CountedStream, NetworkOperation, PEER_LIMITS};
use crate::error::OperationError;
use crate::platform::Platform;

/// Most attempts at a state that the backbone withdraws during the transfer.
const WITHDRAWN_MAX: u32 = 3;

/// Bytes transferred so far, and bytes in all.
pub(crate) type TransferProgress = Rc<Cell<(u64, u64)>>;

/// The contributor's half of a session, with the count of its bytes.
pub(crate) struct SessionWriter<P: Platform> {
    pub(crate) stream: WriteHalf<CountedStream<P>>,
    /// Bytes of its stream so far.
    pub(crate) moved: Rc<Cell<u64>>,
}

/// The backbone's half of a session.
pub(crate) type SessionReader<P> = ReadHalf<CountedStream<P>>;

/// Outcome of an operation; at most one is in progress.
pub(crate) enum NetOutcome<P: Platform> {
    Connected(Result<Connected<P>, OperationError>),
    State(Box<StateOutcome<P>>),
    /// An operation of the scheme.
    Scheme,
    Left,
    /// What an earlier visit cached, while no backbone answers.
    Offline(Box<OfflineCache>),
    /// The token was renewed, or the renewal will be retried.
    Renewed(Result<(), OperationError>),
}

/// Outcome of fetching parameters.
pub(crate) struct StateOutcome<P: Platform> {
    pub(crate) stream: Option<CountedStream<P>>,
    pub(crate) partial: Option<PartialState>,
    pub(crate) result: Result<EncodedState, OperationError>,
}

/// A new connection, with a session if one was requested.
pub(crate) struct Connected<P: Platform> {
    pub(crate) run: Box<RunDescription>,
    /// Peer id of the backbone in bytes, if it was dialled.
    pub(crate) backbone: Option<Vec<u8>>,
    pub(crate) session: Option<(SessionWriter<P>, SessionReader<P>, contribute::RunProgress)>,
}

/// Gets a new token, and presents it.
pub(crate) async fn renew<P: Platform>(
    mut operation: NetworkOperation<'_, P>,
    ticket: Rc<AccessTicket>,
    run: Rc<RunDescription>,
) -> NetOutcome<P> {
    NetOutcome::Renewed(access::renew(&mut operation, &ticket, &run).await)
}

/// Dials unless there is a connection, fetches the run's description, gains access, and joins if there is a `join`.
pub(crate) async fn connect<P: Platform>(
    mut operation: NetworkOperation<'_, P>,
    ticket: Rc<AccessTicket>,
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
        crate::description::validate(&run)?;
        access::enter(&mut operation, &ticket, &run, join.is_some()).await?;
        // A run without a server has no session.
        let join = join.filter(|_| run.sampled().is_none());
        let session = match join {
            Some(join) => {
                Some(self::join(&mut operation, Join { run_id: run.identity.run_id.clone(), ..join }).await?)
            }
            None => None,
        };
        Ok(Connected { run: Box::new(run), backbone, session })
    };
    NetOutcome::Connected(result.await)
}

/// The error of a failed `run` stream: [`OperationError::OlderRun`] if the backbone speaks the previous version.
async fn version_before<P: Platform>(
    operation: &mut NetworkOperation<'_, P>,
    error: OperationError,
) -> OperationError {
    let [.., theirs] = run::OLDER_PROTOCOLS;
    match operation.open(theirs).await {
        Ok(_) => NewerThanRun { ours: run::PROTOCOL.to_owned(), theirs: theirs.to_owned() }.into(),
        Err(_) => error,
    }
}

async fn join<P: Platform>(
    operation: &mut NetworkOperation<'_, P>,
    join: Join,
) -> Result<(SessionWriter<P>, SessionReader<P>, contribute::RunProgress), OperationError> {
    let mut stream = operation.open(contribute::PROTOCOL).await?;
    let moved = stream.moved();
    let greeting = async {
        let join = ContributorToBackbone::Join(join);
        framing::write(&mut stream, &join, contribute::MESSAGE_BYTES_MAX).await?;
        match framing::read(&mut stream, contribute::MESSAGE_BYTES_MAX).await? {
            BackboneToContributor::Welcome(progress) => Ok(progress),
            BackboneToContributor::Refused(refusal) => Err(ConversationError::from(refusal)),
            _ => Err(ConversationError::Unexpected("a session began with another message than a welcome")),
        }
    };
    let progress = operation.guard(&moved, greeting).await??;
    let (reader, stream) = stream.split();
    Ok((SessionWriter { stream, moved }, reader, progress))
}

/// Ends a session in order.
pub(crate) async fn leave<P: Platform>(
    mut operation: NetworkOperation<'_, P>,
    mut writer: SessionWriter<P>,
) -> NetOutcome<P> {
    let moved = Rc::clone(&writer.moved);
    // The backbone sees the end of the stream in either case.
    let _ = operation.guard(&moved, writer.stream.close()).await;
    NetOutcome::Left
}

/// Pulls the newest parameters, or the rest of `partial`: `n_parameters` values in `codec`. Caches them for the run
/// `keep`.
pub(crate) async fn fetch_state<P: Platform>(
    mut operation: NetworkOperation<'_, P>,
    mut stream: Option<CountedStream<P>>,
    mut partial: Option<PartialState>,
    (n_parameters, codec): (u64, TensorCodec),
    keep: Option<Rc<RunDescription>>,
    progress: TransferProgress,
) -> NetOutcome<P> {
    let platform = operation.platform;
    let mut n_withdrawn = 0;
    let result = loop {
        let fetch = operation.converse(&mut stream, state::PROTOCOL, async |stream| {
            let on_progress = |here, all| progress.set((here, all));
            state::fetch(stream, n_parameters, codec, &mut partial, on_progress).await
        });
        let result = fetch.await;
        // Withdrawn during the transfer in favour of newer ones, which are requested on another stream.
        n_withdrawn += 1;
        if result.as_ref().err().is_none_or(|error| !error.is_withdrawn()) || n_withdrawn >= WITHDRAWN_MAX {
            break result;
        }
    };
    if let (Ok(state), Some(run)) = (&result, &keep)
        && let Ok(file) = model_cache::encode(run, state)
    {
        platform.cache_model(file).await;
    }
    NetOutcome::State(Box::new(StateOutcome { stream, partial, result }))
}

/// Outcome of fetching a shard.
pub(crate) struct ShardOutcome<P: Platform> {
    pub(crate) id: ShardId,
    /// The connection on which it was fetched.
    pub(crate) link_id: u64,
    pub(crate) source: ShardSource,
    /// Stream to the backbone.
    pub(crate) stream: Option<CountedStream<P>>,
    pub(crate) partial: Option<Partial>,
    /// Shards that were evicted for this one; `None` if it is not cached.
    pub(crate) room: Option<Vec<u32>>,
    pub(crate) result: Result<FetchedShard, OperationError>,
}

/// A fetched shard.
pub(crate) struct FetchedShard {
    pub(crate) content: ShardContent,
    /// Encoded bytes; `None` if the shard was cached.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// What a shard holds.
pub(crate) enum ShardContent {
    Samples(Arc<Samples>),
    /// No samples: which shards of a stream there are.
    Window(StreamWindow),
    /// Encoded values of frozen weights.
    Frozen(Arc<[u8]>),
}

impl ShardContent {
    /// Checks and decodes the bytes of a shard.
    pub(crate) fn of(
        id: ShardId,
        bytes: &[u8],
        entry: &ShardEntry,
        manifest: &Manifest,
    ) -> Result<Self, DatasetError> {
        match is_frozen(id, manifest) {
            true => entry.check(bytes).map(|()| Self::Frozen(bytes.into())),
            false => Samples::decode(bytes, entry, manifest).map(|samples| Self::Samples(Arc::new(samples))),
        }
    }
}

/// A shard to fetch, and the partial transfer to resume.
pub(crate) struct ShardRequest<P: Platform> {
    pub(crate) id: ShardId,
    pub(crate) entry: ShardEntry,
    pub(crate) link_id: u64,
    pub(crate) source: ShardSource,
    pub(crate) stream: Option<CountedStream<P>>,
    pub(crate) partial: Option<Partial>,
    /// Shards to evict for it; `None` if it is not cached.
    pub(crate) room: Option<Vec<u32>>,
}

/// Pulls the window of a stream.
pub(crate) async fn fetch_window<P: Platform>(
    mut operation: NetworkOperation<'_, P>,
    (link_id, mut stream): (u64, Option<CountedStream<P>>),
    data: DataStream,
) -> ShardOutcome<P> {
    let fetch = operation
        .converse(&mut stream, shard::PROTOCOL, async |stream| shard::fetch_window(stream, &data).await);
    let window = fetch.await;
    let result = window.map(|window| FetchedShard { content: ShardContent::Window(window), bytes: None });
    let (id, source) = (ShardId::Window, ShardSource::Backbone);
    ShardOutcome { id, link_id, source, stream, partial: None, room: None, result }
}

/// Reads a shard from the cache, or pulls it and caches it if `room` says so. A damaged cached shard is pulled again.
pub(crate) async fn fetch_shard<P: Platform>(
    mut operation: NetworkOperation<'_, P>,
    request: ShardRequest<P>,
    (run, ticket): (Rc<RunDescription>, Rc<AccessTicket>),
    progress: TransferProgress,
) -> ShardOutcome<P> {
    let ShardRequest { id, entry, link_id, source, mut stream, mut partial, room } = request;
    let result = async {
        let manifest = &run.data.manifest;
        let cached = operation.platform.cached(entry.sha256).await;
        let cached = cached.and_then(|bytes| ShardContent::of(id, &bytes, &entry, manifest).ok());
        if let Some(content) = cached {
            return Ok(FetchedShard { content, bytes: None });
        }
        let n_bytes = u64::from(entry.n_bytes);
        let on_progress = |here| progress.set((here, n_bytes));
        on_progress(partial.as_ref().map_or(0, Partial::n_bytes));
        let bytes = match &source {
            ShardSource::Backbone => {
                let fetch = operation.converse(&mut stream, shard::PROTOCOL, async |stream| {
                    shard::fetch(stream, id, entry.transfer(), &mut partial, on_progress).await
                });
                fetch.await?
            }
            ShardSource::Peer(peer) => {
                access::present_to(&mut operation, &ticket, &run, peer).await?;
                let mut stream = operation.open_to(peer, shard::PROTOCOL).await?;
                let moved = stream.moved();
                let fetch = shard::fetch(&mut stream, id, entry.transfer(), &mut partial, on_progress);
                operation.guard_with(PEER_LIMITS, &moved, fetch).await??
            }
        };
        partial = None;
        let content = ShardContent::of(id, &bytes, &entry, manifest).map_err(ConversationError::from)?;
        if let Some(room) = &room {
            for evicted in room.iter().filter_map(|&shard| manifest.numbered(shard)) {
                operation.platform.evict(evicted.sha256).await;
            }
            operation.platform.cache(entry.sha256, &bytes).await;
        }
        Ok(FetchedShard { content, bytes: Some(bytes) })
    };
    let result = match (result.await, &source) {
        (Err(OperationError::Stalled), ShardSource::Peer(_)) => Err(OperationError::Slow),
        (result, _) => result,
    };
    ShardOutcome { id, link_id, source, stream, partial, room, result }
}

/// Reads the next message of a session; returns the reader with it.
pub(crate) async fn listen<P: Platform>(
    mut reader: SessionReader<P>,
) -> (SessionReader<P>, Result<BackboneToContributor, framing::FrameError>) {
    let message = framing::read(&mut reader, contribute::MESSAGE_BYTES_MAX).await;
    (reader, message)
}
