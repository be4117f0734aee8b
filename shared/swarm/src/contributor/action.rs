//! Actions of a contributor.

use barnraise_protocol::contribute::Report;

use crate::Moment;

/// Next action of a contributor's driver.
#[derive(Debug, Clone, PartialEq)]
pub enum ContributorAction {
    /// Dial, open the session and join; then `on_connected`, or the session's `on_disconnected`.
    Connect,
    /// Pull the parameters of the newest epoch into the trainer, which forgets its gradient; then
    /// `on_state`, or the session's `on_disconnected` if the stream broke.
    FetchState,
    /// Load the newest fetched parameters into the trainer; then `on_state`.
    LoadState,
    /// One forward and backward pass, then `on_batch`.
    ComputeBatch,
    /// Send the report.
    SendReport(Report),
    /// Take the mean gradient from the trainer and encode it, then poll again.
    TakeGradient {
        /// The name under which it is offered.
        contribution_id: u64,
        /// The epoch that it counts for.
        epoch: u64,
        /// Samples behind it.
        n_samples: u32,
    },
    /// The epoch of the accumulated gradient is over: take it from the trainer, and add it to the next contribution or
    /// keep it by itself (`on_kept`), then poll again.
    KeepLate {
        /// The epoch whose parameters were used.
        epoch: u64,
        /// Samples behind it.
        n_samples: u32,
    },
    /// Prepare the stale gradient that was kept by itself for an epoch and report its weighted samples (`on_late`), or
    /// drop it; then poll again.
    NameLate {
        /// The name under which it is offered.
        contribution_id: u64,
        /// The epoch that it counts for.
        epoch: u64,
    },
    /// Offer the gradient that was taken or prepared last; then `on_answer`, or the session's `on_disconnected`.
    Offer,
    /// Wait for an event or until this moment.
    Wait(Option<Moment>),
    /// Close the session: all gradients are delivered, or cannot be.
    Leave,
}
