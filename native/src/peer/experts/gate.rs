//! The gate of a host: who shows it a valid token of the run may ask its experts, and other hosts may give it checkpoints.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::access;
use barnraise_relay::tasks::{self, TaskSet};
use barnraise_relay::{Node, NodeError, Paced, Violation};
use barnraise_swarm::guard::PaceLimits;
use futures::future::Abortable;
use futures::{FutureExt, StreamExt};
use tokio_util::task::AbortOnDropHandle;

use super::super::tokens::take_tokens;
use super::state::HostState;
use crate::net::address_slots::AddressSlots;
use crate::net::transfer_slots::TransferSlots;

/// Peers that show their tokens at a time.
const STREAMS_MAX: usize = 64;
/// Of one peer.
const STREAMS_PER_PEER: usize = 2;
/// Limits on how slowly they may do it.
const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(10),
    message: Duration::from_secs(10),
    stall: Duration::from_secs(10),
    bytes_per_second_min: 1024,
};

/// Takes tokens, within bounds, until the handle is dropped.
pub(super) fn spawn(node: &Node, state: &Arc<HostState>) -> Result<AbortOnDropHandle<()>, NodeError> {
    let mut streams = node.accept(access::PROTOCOL)?;
    let slots = Arc::new(TransferSlots::new(STREAMS_MAX, STREAMS_PER_PEER));
    let of_addresses = Arc::new(AddressSlots::new(STREAMS_MAX));
    let (node, state) = (node.clone(), state.clone());
    Ok(tasks::spawn("taking tokens of trainers", async move {
        let serving = TaskSet::default();
        while let Some((peer, stream)) = streams.next().await {
            let Some((slot, registration)) = TransferSlots::take(&slots, peer) else { continue };
            let (node, state, of_addresses) = (node.clone(), state.clone(), of_addresses.clone());
            let conversation = async move {
                let group = state.groups.group_of(&node, peer).await;
                let Some(_of_address) = AddressSlots::take(&of_addresses, group) else { return };
                let mut stream = Paced::new(stream, PACE);
                let taken = take_tokens(|| Some(state.gate.clone()), (&node, peer), &mut stream).await;
                if let Err(error) = taken {
                    tracing::debug!(%peer, %error, "a peer that showed its token is heard no longer");
                    if let Some(violation) = Violation::of_frame(&error) {
                        node.report(peer, violation);
                    }
                }
                drop(slot);
            };
            serving.spawn("taking a token", Abortable::new(conversation, registration).map(drop));
        }
    }))
}

/// Keeps the gate up to date until the handle is dropped.
pub(super) fn spawn_keeping(state: Arc<HostState>) -> AbortOnDropHandle<()> {
    tasks::spawn("access of trainers", async move { state.home.keep(&state.gate).await })
}
