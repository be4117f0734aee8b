//! Operations of a synchronous contributor on the network: reports, and offers of gradients.
//!
//! Every outcome hands back the streams that the next attempt can use.

use std::cell::Cell;
use std::rc::Rc;

use barnraise_protocol::bulk;
use barnraise_protocol::contribute::{self, ContributorToBackbone, Report};
use barnraise_protocol::framing;
use barnraise_protocol::gradient::{self, ContributionRefusal, OfferStage, PreparedContribution};
use barnraise_protocol::receipt::SignedReceipt;
use barnraise_swarm::Moment;
use barnraise_swarm::uplink::Sent;

use crate::error::OperationError;
use crate::kit::network::{SessionWriter, TransferProgress};
use crate::kit::operation::{CountedStream, NetworkOperation};
use crate::platform::Platform;

/// Outcome of an operation; at most one is in progress.
pub(super) enum Delivery<P: Platform> {
    Reported {
        writer: SessionWriter<P>,
        result: Result<(), OperationError>,
    },
    Answered {
        stream: Option<CountedStream<P>>,
        result: Result<Result<SignedReceipt, ContributionRefusal>, OperationError>,
        /// `None` if the backbone did not want it, or the transfer was cut.
        sent: Option<Sent>,
        /// Whether the backbone may have received all of it: without an answer it is unknown whether it counts.
        may_count: bool,
    },
}

/// Sends a report.
pub(super) async fn report<P: Platform>(
    mut operation: NetworkOperation<'_, P>,
    mut writer: SessionWriter<P>,
    report: Report,
) -> Delivery<P> {
    let moved = Rc::clone(&writer.moved);
    let message = ContributorToBackbone::Report(report);
    let write = framing::write(&mut writer.stream, &message, contribute::MESSAGE_BYTES_MAX);
    let result = match operation.guard(&moved, write).await {
        Ok(written) => written.map_err(OperationError::from),
        Err(error) => Err(error),
    };
    Delivery::Reported { writer, result }
}

/// Offers a gradient and sends it. `checking` is set while the backbone recomputes it, to the number of this peer's
/// contributions that it will still recompute in any case.
pub(super) async fn offer<P: Platform>(
    mut operation: NetworkOperation<'_, P>,
    mut stream: Option<CountedStream<P>>,
    prepared: Rc<PreparedContribution>,
    progress: TransferProgress,
    checking: Rc<Cell<Option<u32>>>,
) -> Delivery<P> {
    let n_bytes = prepared.bytes.len() as u64;
    let platform = operation.platform;
    let (mut wanted, mut sent, mut may_count) = (None, None, false);
    let offer = operation.converse(&mut stream, gradient::PROTOCOL, async |stream| {
        let began = platform.now();
        // The last chunk may be in flight and not counted as sent.
        let is_nearly_sent = |n_sent: u64| n_sent.saturating_add(bulk::CHUNK_BYTES as u64) >= n_bytes;
        let on_stage = |stage| match stage {
            OfferStage::Wanted => {
                wanted = Some(platform.now());
                may_count |= is_nearly_sent(0);
            }
            OfferStage::Sent(n_sent) => {
                progress.set((n_sent, n_bytes));
                may_count |= is_nearly_sent(n_sent);
            }
            OfferStage::Checking(n_left) => checking.set(Some(n_left)),
            OfferStage::Delivered => {
                let now = platform.now();
                sent = wanted.map(|wanted: Moment| Sent {
                    n_bytes,
                    took: now.saturating_sub(wanted),
                    round_trip: wanted.saturating_sub(began),
                });
            }
        };
        gradient::offer(stream, &prepared, on_stage).await
    });
    let result = offer.await;
    Delivery::Answered { stream, result, sent, may_count }
}
