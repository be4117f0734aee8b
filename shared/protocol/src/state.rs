//! The `state` conversation: a contributor pulls the parameters of an epoch.

use serde::{Deserialize, Serialize};

use crate::bulk::Transfer;
use crate::codec::TensorCodec;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/state/1";

/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Contributor to backbone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContributorToBackbone {
    /// Send me the parameters of the newest epoch.
    GetLatest,
    /// Send me the parameters of this epoch: a transfer that was cut and goes on.
    GetEpoch(u64),
}

/// Backbone to contributor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackboneToContributor {
    /// The bytes that follow, once pulled.
    Found(StateHeader),
    /// Not served, with the reason.
    Refused(String),
}

/// What the pulled bytes are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHeader {
    /// Optimizer steps that led to these parameters.
    pub epoch: u64,
    /// Values after decoding.
    pub n_values: u64,
    /// How the values are encoded.
    pub codec: TensorCodec,
    /// Length and hash of the encoded bytes.
    pub transfer: Transfer,
}
