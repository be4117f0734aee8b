//! The `shard` conversation: a contributor pulls one shard of the training data.
//!
//! The requester asks, is told the transfer, and pulls its chunks ([`crate::bulk`]).

use serde::{Deserialize, Serialize};

use crate::bulk::Transfer;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/shard/1";

/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Which shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ShardId {
    /// Index into the manifest's shards.
    Train(u32),
    /// The held-out samples to look at.
    Gallery,
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
    /// Not here, with the reason.
    Refused(String),
}
