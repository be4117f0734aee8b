//! The `shard` conversation: a contributor pulls one shard of the training data, from a backbone or from another
//! contributor that keeps it (DeDLOC appendix H).
//!
//! The requester asks, gets the transfer, and pulls its chunks ([`crate::bulk`]). A stream carries any
//! number of requests, one after the other.

use std::sync::Arc;

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::bulk::{self, Partial, Transfer};
use crate::dataset::{DataStream, Manifest, ShardEntry};
use crate::error::ConversationError;
use crate::framing;
use crate::refusal::Refusal;
use crate::serving;
use crate::streamed::{StreamWindow, WINDOW_BYTES_MAX};

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/shard/6";

/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Which shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ShardId {
    /// Number in the manifest: first the training shards, then those of frozen weights.
    Numbered(u32),
    /// The held-out samples to look at.
    Gallery,
    /// Absolute number in a stream ([`crate::streamed`]).
    Streamed(u32),
    /// The window of a stream: no samples, but which shards there are.
    Window,
    /// How a file of anybody's becomes samples ([`Manifest::preprocessing`]).
    Preprocessing,
}

impl ShardId {
    /// The manifest's entry of this shard, if it has one. What belongs to a stream has none.
    pub fn entry(self, manifest: &Manifest) -> Option<&ShardEntry> {
        match self {
            Self::Numbered(number) => manifest.numbered(number),
            Self::Gallery => Some(&manifest.gallery),
            Self::Streamed(_) | Self::Window | Self::Preprocessing => None,
        }
    }

    /// The bytes that the manifest says are there. What belongs to a stream changes.
    pub fn transfer(self, manifest: &Manifest) -> Option<Transfer> {
        match self {
            Self::Preprocessing => manifest.preprocessing,
            other => other.entry(manifest).map(ShardEntry::transfer),
        }
    }
}

/// Contributor to backbone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContributorToBackbone {
    /// Send me this shard.
    Get(ShardId),
}

/// Backbone to contributor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackboneToContributor {
    /// The bytes that follow, once pulled.
    Found(Transfer),
    /// Not here.
    Refused(Refusal),
}

/// Pulls the bytes of one shard, going on where `partial` ended.
///
/// They are checked against `want`, which is of the manifest; on an error `partial` keeps what
/// arrived. `on_progress` gets the number of bytes that arrived so far.
pub async fn fetch<S>(
    stream: &mut S,
    id: ShardId,
    want: Transfer,
    partial: &mut Option<Partial>,
    on_progress: impl FnMut(u64),
) -> Result<Vec<u8>, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let found = ask(stream, id).await?;
    if found != want {
        let what = "bytes in that shard, or another hash,";
        return Err(ConversationError::Mismatch { what, want: want.n_bytes, got: found.n_bytes });
    }
    let partial = match partial {
        Some(partial) if partial.transfer() == want => partial,
        partial => partial.insert(Partial::new(want, want.n_bytes)?),
    };
    Ok(bulk::pull(stream, partial, on_progress).await?)
}

async fn ask<S>(stream: &mut S, id: ShardId) -> Result<Transfer, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &ContributorToBackbone::Get(id), MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        BackboneToContributor::Found(transfer) => Ok(transfer),
        BackboneToContributor::Refused(refusal) => Err(refusal.into()),
    }
}

/// Pulls the window of a stream.
///
/// # Errors
/// A stream that fails, a refusal, or a window that is not of `data`.
pub async fn fetch_window<S>(stream: &mut S, data: &DataStream) -> Result<StreamWindow, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let found = ask(stream, ShardId::Window).await?;
    let mut partial = Partial::new(found, WINDOW_BYTES_MAX)?;
    let bytes = bulk::pull(stream, &mut partial, |_| ()).await?;
    Ok(StreamWindow::decode(&bytes, data)?)
}

/// Serves shards on `stream` until the contributor closes it. `lookup` returns the compressed bytes of a
/// shard, or why there are none. `on_answered` is called after each answer.
pub async fn serve<S, F>(
    stream: &mut S,
    lookup: impl Fn(ShardId) -> F,
    on_answered: impl FnMut(),
) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Result<(Transfer, Arc<[u8]>), Refusal>>,
{
    let answered = move |ContributorToBackbone::Get(id)| {
        let found = lookup(id);
        async move {
            match found.await {
                Ok((transfer, bytes)) => (BackboneToContributor::Found(transfer), Some(bytes)),
                Err(refusal) => (BackboneToContributor::Refused(refusal), None),
            }
        }
    };
    serving::serve(stream, MESSAGE_BYTES_MAX, answered, on_answered).await
}
