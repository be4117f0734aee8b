//! Serves shards to other peers, and in a closed run the `access` conversation before.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::access::{self, AccessMode};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::framing::FrameError;
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::{ConversationError, Refusal};
use barnraise_relay::tasks::{self, TaskSet};
use barnraise_relay::{Node, NodeError, Paced, Violation};
use barnraise_swarm::guard::PaceLimits;
use futures::future::Abortable;
use futures::{FutureExt, StreamExt};
use libp2p::{PeerId, Stream};
use tokio_util::task::AbortOnDropHandle;

use super::super::tokens::{GateKeeper, LOOK_EVERY, take_tokens};
use super::throttle::Throttled;
use super::{SharedRun, SharingState};
use crate::host::access::{Exclusion, Pass};
use crate::net::transfer_slots::TransferSlots;
use crate::net::violations;

/// Limits on how slowly peers may ask and read.
const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(20),
    message: Duration::from_secs(10),
    stall: Duration::from_secs(15),
    bytes_per_second_min: 1024,
};
/// Least upload rate of each concurrent stream: at a lower rate a peer gives up and asks another holder.
const STREAM_BYTES_PER_SECOND: u64 = 64 * 1024;
/// Most shards in transfer at a time.
const STREAMS_MAX: u64 = 8;
/// Most streams of one peer.
const STREAMS_PER_PEER: usize = 2;
/// Most `access` conversations at a time.
const ACCESS_STREAMS_MAX: usize = 16;

/// Why a stream of a peer ended.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("access ended: {0}")]
    AccessEnded(Exclusion),
}

/// Serves all peers, within bounds, until the handle is dropped.
pub(super) fn spawn(shared: Arc<SharingState>, node: Node) -> Result<AbortOnDropHandle<()>, NodeError> {
    let (mut shards, mut tokens) = (node.accept(shard::PROTOCOL)?, node.accept(access::PROTOCOL)?);
    let n_streams = (shared.bytes_per_second / STREAM_BYTES_PER_SECOND).clamp(1, STREAMS_MAX) as usize;
    let takers = Arc::new(TransferSlots::new(n_streams, STREAMS_PER_PEER));
    let askers = Arc::new(TransferSlots::new(ACCESS_STREAMS_MAX, STREAMS_PER_PEER));
    Ok(tasks::spawn("serving shards", async move {
        let serving = TaskSet::default();
        loop {
            let (peer, stream, slots, wants_shards) = tokio::select! {
                Some((peer, stream)) = shards.next() => (peer, stream, &takers, true),
                Some((peer, stream)) = tokens.next() => (peer, stream, &askers, false),
                else => return,
            };
            let Some((slot, registration)) = TransferSlots::take(slots, peer) else {
                tracing::debug!(%peer, "no free stream slot for a peer that wants a shard");
                continue;
            };
            let (shared, node) = (shared.clone(), node.clone());
            let conversation = async move {
                let ended = match wants_shards {
                    true => serve_shards(shared, peer, stream).await,
                    false => serve_access(&shared, (&node, peer), stream).await,
                };
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "a peer that wanted a shard is served no longer");
                    if let Some(violation) = error.violation() {
                        node.report(peer, violation);
                    }
                }
                drop(slot);
            };
            serving.spawn("serving a shard", Abortable::new(conversation, registration).map(drop));
        }
    }))
}

impl ServeError {
    /// The violation that the error proves, if any.
    fn violation(&self) -> Option<Violation> {
        match self {
            Self::Conversation(error) => violations::of_conversation(error),
            Self::Frame(error) => Violation::of_frame(error),
            Self::AccessEnded(_) => None,
        }
    }
}

async fn serve_shards(shared: Arc<SharingState>, peer: PeerId, stream: Stream) -> Result<(), ServeError> {
    let run = shared.run.borrow().clone();
    let admitted = run.as_ref().map(|run| run.gate.check(peer));
    let (run, refusal, mut pass) = match (run, admitted) {
        (Some(run), Some(Ok(pass))) => (Some(run), Refusal::NoShard, pass),
        (_, Some(Err(refusal))) => (None, Refusal::from(&refusal), Pass::always()),
        (_, _) => (None, Refusal::unavailable("this peer is in no run yet"), Pass::always()),
    };
    let stream = Paced::new(stream, PACE);
    let pace = &stream.pace();
    let mut stream = Throttled::new(stream, shared.clone());
    let (shared, run, refusal) = (&shared, &run, &refusal);
    let lookup = |id: ShardId| async move {
        let Some(run) = run else { return Err(refusal.clone()) };
        let found = find(shared, run, id).await;
        pace.answer();
        found
    };
    tokio::select! {
        served = shard::serve(&mut stream, lookup, || pace.wait()) => Ok(served?),
        reason = pass.ended() => Err(ServeError::AccessEnded(reason)),
    }
}

async fn find(shared: &SharingState, run: &SharedRun, id: ShardId) -> Result<(Transfer, Arc<[u8]>), Refusal> {
    let entry = *id.entry(&run.manifest).ok_or(Refusal::NoShard)?;
    let bytes =
        shared.read(entry).await.ok_or_else(|| Refusal::unavailable("that shard is not kept here"))?;
    Ok((entry.transfer(), Arc::from(bytes)))
}

/// Holds the `access` conversation: a peer that shows a token of the run's authority may fetch shards.
async fn serve_access(
    shared: &SharingState,
    (node, peer): (&Node, PeerId),
    stream: Stream,
) -> Result<(), ServeError> {
    let gate = || shared.run.borrow().as_ref().map(|run| run.gate.clone());
    Ok(take_tokens(gate, (node, peer), &mut Paced::new(stream, PACE)).await?)
}

/// Keeps the gate up to date: drops expired tokens, and those that the backbone says were revoked.
pub(super) async fn keep_gate(shared: Arc<SharingState>, node: Node, backbone: PeerId) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut keeper, mut known) = (GateKeeper::default(), shared.run().await);
    loop {
        ticks.tick().await;
        let run = shared.run().await;
        if !Arc::ptr_eq(&run, &known) {
            (known, keeper) = (run, GateKeeper::default());
        }
        if known.gate.policy().mode != AccessMode::Open {
            keeper.look(&known.gate, node.open(backbone, access::PROTOCOL)).await;
        }
    }
}
