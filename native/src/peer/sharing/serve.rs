//! What others ask of this machine: shards, and before them, where the run has a list, whether they may have any.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::ConversationError;
use barnraise_protocol::access::{
    self, AccessMode, BackboneToContributor, ContributorToBackbone, MESSAGE_BYTES_MAX, Refusal,
};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_relay::{Misdeed, Node, NodeError, Paced};
use barnraise_swarm::guard::PaceLimits;
use futures::StreamExt;
use futures::future::Abortable;
use libp2p::{PeerId, Stream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::throttle::Throttled;
use super::{Shared, SharedRun};
use crate::access::{Exclusion, Pass};
use crate::backbone::misdeeds;
use crate::backbone::places::Places;

/// How slowly others may ask and listen.
const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(20),
    message: Duration::from_secs(10),
    stall: Duration::from_secs(15),
    bytes_per_second_min: 1024,
};
/// Each of those that are served at the same time gets so much at least: whoever gets less goes elsewhere.
const STREAM_BYTES_PER_SECOND: u64 = 64 * 1024;
/// Shards under way at the same time, at most.
const STREAMS_MAX: u64 = 8;
/// Of which to one peer.
const STREAMS_PER_PEER: usize = 2;
/// Peers that show a token at the same time.
const ACCESS_STREAMS_MAX: usize = 16;
/// How often what has expired is looked for.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);
/// How often the backbone is asked which tokens were taken back, in such seconds.
const REVOKED_EVERY: u32 = 10;
/// How long it may take to answer.
const REVOKED_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a peer is served no longer.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("access ended: {0}")]
    AccessEnded(Exclusion),
}

/// Serves everybody who comes, within bounds, until the handle is dropped.
pub(super) fn spawn(shared: Arc<Shared>, node: Node) -> Result<AbortOnDropHandle<()>, NodeError> {
    let (mut shards, mut tokens) = (node.accept(shard::PROTOCOL)?, node.accept(access::PROTOCOL)?);
    let n_streams = (shared.bytes_per_second / STREAM_BYTES_PER_SECOND).clamp(1, STREAMS_MAX) as usize;
    let takers = Arc::new(Places::new(n_streams, STREAMS_PER_PEER));
    let askers = Arc::new(Places::new(ACCESS_STREAMS_MAX, STREAMS_PER_PEER));
    Ok(super::spawn(async move {
        let mut tasks = JoinSet::new();
        loop {
            let (peer, stream, places, wants_shards) = tokio::select! {
                Some((peer, stream)) = shards.next() => (peer, stream, &takers, true),
                Some((peer, stream)) = tokens.next() => (peer, stream, &askers, false),
                Some(_) = tasks.join_next() => continue,
                else => return,
            };
            let Some((place, registration)) = Places::take(places, peer) else {
                tracing::debug!(%peer, "no place for another one who wants a shard");
                continue;
            };
            let (shared, node) = (shared.clone(), node.clone());
            let serving = async move {
                let ended = match wants_shards {
                    true => pass_on(shared, peer, stream).await,
                    false => let_in(&shared, peer, stream).await,
                };
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "somebody who wanted a shard is served no longer");
                    if let Some(misdeed) = error.misdeed() {
                        node.report(peer, misdeed);
                    }
                }
                drop(place);
            };
            tasks.spawn(Abortable::new(serving, registration));
        }
    }))
}

impl ServeError {
    /// What it says of the other side.
    fn misdeed(&self) -> Option<Misdeed> {
        match self {
            Self::Conversation(error) => misdeeds::of_conversation(error),
            Self::Frame(error) => Misdeed::of_frame(error),
            Self::AccessEnded(_) => None,
        }
    }
}

async fn pass_on(shared: Arc<Shared>, peer: PeerId, stream: Stream) -> Result<(), ServeError> {
    let run = shared.run.borrow().clone();
    let admitted = run.as_ref().map(|run| run.gate.check(peer));
    let (run, refusal, mut pass) = match (run, admitted) {
        (Some(run), Some(Ok(pass))) => (Some(run), String::new(), pass),
        (_, Some(Err(refusal))) => (None, refusal.to_string(), Pass::always()),
        (_, _) => (None, "this peer is in no run yet".to_owned(), Pass::always()),
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

async fn find(shared: &Shared, run: &SharedRun, id: ShardId) -> Result<(Transfer, Arc<[u8]>), String> {
    let entry = *id.entry(&run.manifest).ok_or("there is no such shard")?;
    let bytes = shared.read(entry).await.ok_or("that shard is not kept here")?;
    Ok((Transfer { n_bytes: entry.n_bytes.into(), sha256: entry.sha256 }, Arc::from(bytes)))
}

/// Whoever shows a token of the run's authority may have shards.
async fn let_in(shared: &Shared, peer: PeerId, stream: Stream) -> Result<(), ServeError> {
    let mut stream = Paced::new(stream, PACE);
    let pace = stream.pace();
    loop {
        pace.wait();
        let question = match framing::read(&mut stream, MESSAGE_BYTES_MAX).await {
            Err(FrameError::Closed) => return Ok(()),
            question => question?,
        };
        let run = shared.run.borrow().clone();
        let answer = match (question, run) {
            (ContributorToBackbone::Present(token), Some(run)) => run.gate.present(peer, &token),
            _ => Err(Refusal::Unavailable { reason: "this peer passes shards on, and nothing else".into() }),
        };
        let answer = answer.map_or_else(BackboneToContributor::Refused, BackboneToContributor::Admitted);
        pace.answer();
        framing::write(&mut stream, &answer, MESSAGE_BYTES_MAX).await?;
    }
}

/// Lets nobody in any longer whose token has expired or was taken back, as far as the backbone tells.
pub(super) async fn keep_gate(shared: Arc<Shared>, node: Node, backbone: PeerId) {
    let mut ticks = tokio::time::interval(EXPIRE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut n_ticks, mut since) = (0, 0);
    let mut known = shared.run().await;
    loop {
        ticks.tick().await;
        let run = shared.run().await;
        if !Arc::ptr_eq(&run, &known) {
            (known, since, n_ticks) = (run, 0, 0);
        }
        if known.gate.policy().mode == AccessMode::Open {
            continue;
        }
        known.gate.on_timeout();
        if n_ticks % REVOKED_EVERY == 0 {
            let asking = learn_revoked(&known, &node, backbone, &mut since);
            match tokio::time::timeout(REVOKED_TIMEOUT, asking).await {
                Ok(Ok(())) => {}
                // Until it answers, tokens stay good for as long as they say.
                Ok(Err(reason)) => tracing::debug!(reason, "revocations are not known"),
                Err(_) => tracing::debug!("revocations are not known: the backbone does not answer"),
            }
        }
        n_ticks += 1;
    }
}

async fn learn_revoked(
    run: &SharedRun,
    node: &Node,
    backbone: PeerId,
    since: &mut u64,
) -> Result<(), String> {
    let mut stream = node.open(backbone, access::PROTOCOL).await.map_err(|error| error.to_string())?;
    loop {
        let question = ContributorToBackbone::Revoked { since: *since };
        match access::ask(&mut stream, &question).await.map_err(|error| error.to_string())? {
            BackboneToContributor::Revoked { tokens, next } => {
                run.gate.on_revoked(&tokens);
                if tokens.is_empty() || next <= *since {
                    return Ok(());
                }
                *since = next;
            }
            other => return Err(format!("the backbone answered {other:?}")),
        }
    }
}
