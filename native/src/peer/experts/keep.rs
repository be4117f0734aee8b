//! Conversations with other hosts, whose checkpoints are kept here, and taken from here.

use std::sync::Arc;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::checkpoints::{self, CheckpointRefusal};
use barnraise_relay::tasks::{self, TaskSet};
use barnraise_relay::{Node, NodeError, Paced};
use futures::future::Abortable;
use futures::{FutureExt, StreamExt};
use tokio_util::task::AbortOnDropHandle;

use super::state::HostState;
use crate::host::expert_hosts::keeper::{self, PACE};
use crate::net::address_slots::AddressSlots;
use crate::net::transfer_slots::TransferSlots;
use crate::net::violations;

/// Conversations at a time.
const STREAMS_MAX: usize = 64;
/// Of one host.
const STREAMS_PER_PEER: usize = 4;

/// Answers all hosts, within bounds, until the handle is dropped.
pub(super) fn spawn(node: &Node, state: &Arc<HostState>) -> Result<AbortOnDropHandle<()>, NodeError> {
    let mut streams = node.accept(checkpoints::PROTOCOL)?;
    let slots = Arc::new(TransferSlots::new(STREAMS_MAX, STREAMS_PER_PEER));
    let of_addresses = Arc::new(AddressSlots::new(STREAMS_MAX));
    let (node, state) = (node.clone(), state.clone());
    Ok(tasks::spawn("keeping checkpoints", async move {
        let serving = TaskSet::default();
        while let Some((peer, stream)) = streams.next().await {
            let Some(key) = PublicKey::of_peer_id(&peer.to_bytes()) else { continue };
            let Some((slot, registration)) = TransferSlots::take(&slots, peer) else { continue };
            let (node, state) = (node.clone(), state.clone());
            let admitted = state.gate.check(peer).ok().filter(|_| state.gate.may_host(peer));
            let of_addresses = of_addresses.clone();
            let conversation = async move {
                let group = state.groups.group_of(&node, peer).await;
                let Some(_of_address) = AddressSlots::take(&of_addresses, group) else { return };
                let mut stream = Paced::new(stream, PACE);
                let served = match admitted {
                    Some(mut pass) => tokio::select! {
                        served = state.keeper.serve(key, &mut stream) => served,
                        _ = pass.ended() => Ok(()),
                    },
                    None => keeper::refuse(&mut stream, CheckpointRefusal::NoAccess).await,
                };
                if let Err(error) = served {
                    tracing::debug!(%peer, %error, "a host whose checkpoints are kept here is served no longer");
                    if let Some(violation) = violations::of_checkpoint(&error) {
                        node.report(peer, violation);
                    }
                }
                drop(slot);
            };
            serving.spawn("keeping a checkpoint", Abortable::new(conversation, registration).map(drop));
        }
    }))
}
