//! A contribution as it is offered and as it is accepted: what commitments and receipts are of.

use serde::{Deserialize, Serialize};

use crate::bulk::Transfer;
use crate::codec::TensorCodec;

/// An offered contribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Number of the contribution, unique among those of the peer.
    pub contribution_id: u64,
    /// The epoch whose parameters were used.
    pub epoch: u64,
    /// Samples behind the mean: its weight.
    pub n_samples: u32,
    /// Mean loss of those samples.
    pub loss: f32,
    /// Values after decoding.
    pub n_values: u64,
    /// Codec of the values.
    pub codec: TensorCodec,
    /// Length and hash of the encoded bytes.
    pub transfer: Transfer,
}

/// An accepted contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Number in the offer.
    pub contribution_id: u64,
    /// Epoch that it counted for.
    pub epoch: u64,
    /// Samples that it counted for.
    pub n_samples: u32,
}
