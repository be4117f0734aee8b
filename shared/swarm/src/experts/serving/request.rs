//! What a host is asked for, what it allows, and what it decides.

use std::ops::Range;
use std::time::Duration;

use crate::experts::ExpertPass;
use crate::{AddressGroup, Moment, PeerKey};

/// What one host grants, all of it the owner's to choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServingLimits {
    /// Rows of a batch on the device, at least 1.
    pub rows_max: u32,
    /// Rows of one request. One with more than [`Self::rows_max`] is computed alone, one beyond this is refused.
    pub request_rows_max: u32,
    /// How long a batch may wait for more rows while the device has other work.
    pub batch_delay: Duration,
    /// Memory for requests and answers, from their admission until the last byte of the answer has left.
    pub bytes_max: u64,
    /// Requests of one client, in bursts of a minute's worth. An address has [`GROUP_CLIENTS`] times as many.
    pub requests_per_minute: u32,
}

/// An address counts as so many clients: a household, or a class room.
pub const GROUP_CLIENTS: u32 = 4;
/// Longest time that a client's request is held, also where it names a later deadline.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// What a request takes in memory beside its tensors, at the least.
pub const REQUEST_BYTES_MIN: u64 = 4096;
/// A request takes at most this fraction of [`ServingLimits::bytes_max`].
pub const REQUEST_PART: u64 = 4;

/// The session of a request's number is what is left of it, shifted to the right by so many bits.
pub const SESSION_SHIFT: u32 = 32;

/// Number of a request at this host, in the order of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey(pub u64);

/// Number of a batch at this host, in the order in which they are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId(pub u64);

/// The head of a request, before its tensors are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedRequest {
    /// Who asks.
    pub client: PeerKey,
    /// From where.
    pub group: AddressGroup,
    /// Which of the experts of this host.
    pub expert: u32,
    /// For what.
    pub pass: ExpertPass,
    /// Rows of its input.
    pub n_rows: u32,
    /// Memory that it takes together with its answer, as the driver keeps them.
    pub n_bytes: u64,
    /// The client's own number for it: its session in the upper half ([`SESSION_SHIFT`]), and a count that grows. A repeated
    /// request has the same one.
    pub request_id: u64,
    /// When the client no longer waits.
    pub deadline: Moment,
}

impl ServedRequest {
    /// Under which its number is remembered: the client, and the session of the number.
    pub(super) fn session(&self) -> PeerKey {
        let session = (self.request_id >> SESSION_SHIFT) as u32;
        PeerKey([&self.client.0[..], &session.to_be_bytes()].concat())
    }
}

/// Requests of one expert and one pass that are computed at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingBatch {
    /// Its number.
    pub id: BatchId,
    /// The expert.
    pub expert: u32,
    /// The pass.
    pub pass: ExpertPass,
    /// The requests, the first in turn first, with their rows within the batch: without gaps, from 0.
    pub parts: Vec<(RequestKey, Range<u32>)>,
}

impl ServingBatch {
    /// Rows of all parts.
    pub fn n_rows(&self) -> u32 {
        self.parts.last().map_or(0, |(_, rows)| rows.end)
    }
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServingAction {
    /// Give the batch to the device, behind those that it has: [`super::ExpertRuntime::on_computed`] or
    /// [`super::ExpertRuntime::on_failed`], in the same order.
    Compute(ServingBatch),
    /// Tell the client, and forget the request.
    Refuse {
        /// The request.
        key: RequestKey,
        /// Why.
        refusal: ServingRefusal,
    },
    /// Forget the request: nobody waits for it.
    Drop(RequestKey),
}

/// Why a request is not computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServingRefusal {
    /// The expert is not, or no longer, one of this host.
    #[error("the expert is not hosted here")]
    Unknown,
    /// Back-pressure.
    #[error("the host is busy: ask again in {retry_after:?}, or another host")]
    Busy {
        /// When there may be room, by the speed that was measured.
        retry_after: Duration,
    },
    /// The expert has stepped by this request before, or so many requests ago that it may have.
    #[error("the request was counted already")]
    Duplicate,
    /// The same request waits, or is computed.
    #[error("the request is in progress: ask again in {retry_after:?} whether it was counted")]
    InProgress {
        /// When it may be over.
        retry_after: Duration,
    },
    /// No rows, or too many.
    #[error("{got} rows, a request has 1 to {max}")]
    Rows {
        /// Limit.
        max: u32,
        /// Of the request.
        got: u32,
    },
    /// More memory than a request may take.
    #[error("{got} bytes, a request takes at most {max} with its answer")]
    TooLarge {
        /// Limit.
        max: u64,
        /// Of the request.
        got: u64,
    },
    /// The host leaves.
    #[error("the host is leaving: ask another one")]
    Draining,
    /// The device failed, or its result was not finite, with this request alone in its batch. A backward pass that
    /// failed was not counted.
    #[error("the expert failed to compute the request")]
    Failed,
}

/// What a host announces beside its experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServingLoad {
    /// Rows that wait or are computed.
    pub rows_waiting: u64,
    /// Moving mean of the device's speed; 0 until a batch was computed.
    pub rows_per_second: f64,
}
