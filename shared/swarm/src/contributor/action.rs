//! What a contributor does next.

use barnraise_protocol::contribute::Report;

use crate::Moment;

/// What the driver does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Dial, open the session and join; then `on_connected` or `on_disconnected`.
    Connect,
    /// Pull the parameters of the newest epoch into the trainer, which forgets its gradient; then
    /// `on_state`, or `on_disconnected` if the stream broke.
    FetchState,
    /// Put the parameters into the trainer that came last and were left aside; then `on_state`.
    LoadState,
    /// One forward and backward pass, then `on_batch`.
    ComputeBatch,
    /// Send the report.
    SendReport(Report),
    /// Take the mean gradient from the trainer and encode it, then ask again.
    TakeGradient {
        /// The name under which it is offered.
        contribution_id: u64,
        /// The epoch that it counts for.
        epoch: u64,
        /// Samples behind it.
        n_samples: u32,
    },
    /// The epoch of the accumulated gradient is over: take it from the trainer, and put it into the next contribution
    /// or say that it is kept as it is (`on_kept`), then ask again.
    KeepLate {
        /// The epoch whose parameters were used.
        epoch: u64,
        /// Samples behind it.
        n_samples: u32,
    },
    /// Name what is kept as it is for an epoch, and say how much of it counts there (`on_late`), or forget it; then ask
    /// again.
    NameLate {
        /// The name under which it is offered.
        contribution_id: u64,
        /// The epoch that it counts for.
        epoch: u64,
    },
    /// Offer the gradient that was taken or named last; then `on_answer`, or `on_disconnected`.
    Offer,
    /// Nothing to do until something is heard or the moment comes.
    Wait(Option<Moment>),
    /// Close the session: all is delivered, or cannot be.
    Leave,
}
