//! Conversations with trainers: takes a request, waits for the device, answers.

use std::sync::Arc;
use std::time::Duration;

use barnraise_contributor::hosting::{served_request, wire_refusal};
use barnraise_learning::hosted::layer_of;
use barnraise_protocol::access::AccessRefusal;
use barnraise_protocol::experts::{self, ExpertRefusal, ExpertRequest, ExpertRequestError};
use barnraise_relay::tasks::{self, TaskSet};
use barnraise_relay::{Node, NodeError, Paced, Violation};
use barnraise_swarm::experts::serving::{RequestKey, ServedRequest};
use barnraise_swarm::guard::PaceLimits;
use barnraise_swarm::{AddressGroup, PeerKey};
use futures::future::Abortable;
use futures::{FutureExt, StreamExt};
use libp2p::{PeerId, Stream};
use tokio_util::task::AbortOnDropHandle;

use super::state::HostState;
use crate::host::access::Exclusion;
use crate::net::address_slots::AddressSlots;
use crate::net::transfer_slots::TransferSlots;

/// Requests at a time.
const STREAMS_MAX: usize = 1024;
/// Of one trainer.
const STREAMS_PER_PEER: usize = 64;
/// Requests of peers without access, which are refused.
const STRANGERS_MAX: usize = 64;
/// Of one of them.
const STREAMS_PER_STRANGER: usize = 4;
/// An address that has as many requests under way as it may asks again then.
const ADDRESS_BUSY_MS: u32 = 500;
/// Limits on how slowly trainers may send and read.
const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(10),
    message: Duration::from_secs(30),
    stall: Duration::from_secs(15),
    bytes_per_second_min: 1024,
};

/// Answers all trainers, within bounds, until the handle is dropped.
pub(super) fn spawn(node: &Node, state: &Arc<HostState>) -> Result<AbortOnDropHandle<()>, NodeError> {
    let mut streams = node.accept(experts::PROTOCOL)?;
    let members = Arc::new(TransferSlots::new(STREAMS_MAX, STREAMS_PER_PEER));
    let strangers = Arc::new(TransferSlots::new(STRANGERS_MAX, STREAMS_PER_STRANGER));
    let of_addresses = Arc::new(AddressSlots::new(STREAMS_MAX));
    let (node, state) = (node.clone(), state.clone());
    Ok(tasks::spawn("serving experts", async move {
        let serving = TaskSet::default();
        while let Some((peer, stream)) = streams.next().await {
            let admitted = state.gate.check(peer);
            let slots = if admitted.is_ok() { &members } else { &strangers };
            let Some((slot, registration)) = TransferSlots::take(slots, peer) else {
                tracing::debug!(%peer, "no free stream slot for a trainer");
                continue;
            };
            let (node, state, of_addresses) = (node.clone(), state.clone(), of_addresses.clone());
            let conversation = async move {
                let stream = Paced::new(stream, PACE);
                let answered = match admitted {
                    Ok(mut pass) => {
                        let group = state.groups.group_of(&node, peer).await;
                        match AddressSlots::take(&of_addresses, group) {
                            Some(_of_address) => tokio::select! {
                                answered = answer(&state, (peer, group), stream) => answered,
                                // It was refused between the head and the tensors, or nobody reads the answer.
                                _ = pass.ended() => Ok(()),
                            },
                            None => {
                                refuse(stream, ExpertRefusal::Busy { retry_after_ms: ADDRESS_BUSY_MS }).await
                            }
                        }
                    }
                    Err(exclusion) => refuse(stream, ExpertRefusal::NoAccess(access_of(exclusion))).await,
                };
                if let Err(error) = answered {
                    tracing::debug!(%peer, %error, "a request of a trainer ended");
                    if let ExpertRequestError::Frame(error) = &error
                        && let Some(violation) = Violation::of_frame(error)
                    {
                        node.report(peer, violation);
                    }
                }
                drop(slot);
            };
            serving.spawn("serving a request", Abortable::new(conversation, registration).map(drop));
        }
    }))
}

/// Frees what a request holds, however its conversation ends.
struct HeldRequest<'a> {
    state: &'a HostState,
    key: RequestKey,
}

impl Drop for HeldRequest<'_> {
    fn drop(&mut self) {
        self.state.on_over(self.key);
    }
}

/// Reads the head of a request, and refuses it.
async fn refuse(mut stream: Paced<Stream>, refusal: ExpertRefusal) -> Result<(), ExpertRequestError> {
    experts::receive(&mut stream).await?;
    experts::refuse(&mut stream, refusal).await
}

fn access_of(exclusion: Exclusion) -> AccessRefusal {
    match exclusion {
        Exclusion::Access(refusal) => refusal,
        // A host blocks nobody.
        Exclusion::Blocked(_) => AccessRefusal::Unavailable { reason: "this peer is blocked".into() },
    }
}

async fn answer(
    state: &HostState,
    from: (PeerId, AddressGroup),
    mut stream: Paced<Stream>,
) -> Result<(), ExpertRequestError> {
    let pace = stream.pace();
    let request = experts::receive(&mut stream).await?;
    let admitted = served(state, from, &request).and_then(|served| {
        let (expert, of) = (served.expert, (request.layer, served.group));
        let key = state.admit(served).map_err(|refusal| wire_refusal(&refusal))?;
        Ok((key, expert, of))
    });
    let (key, expert, of) = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => return experts::refuse(&mut stream, refusal).await,
    };
    let _held = HeldRequest { state, key };
    let bytes = experts::receive_tensors(&mut stream, &request).await?;
    let tensors = match request.decode(&bytes) {
        Ok(tensors) => tensors,
        Err(refusal) => return experts::refuse(&mut stream, refusal).await,
    };
    drop(bytes);
    let computed = state.on_received(key, of, tensors).await;
    pace.answer();
    match computed {
        Ok(Ok((n_steps, rows))) => {
            let version = state.version(&(request.layer, request.uid), expert, n_steps);
            let version = version.ok_or(ExpertRefusal::Unknown);
            match version.and_then(|version| request.answer(&state.signer, version, &rows)) {
                Ok(prepared) => experts::reply(&mut stream, &prepared).await,
                Err(refusal) => experts::refuse(&mut stream, refusal).await,
            }
        }
        Ok(Err(refusal)) => experts::refuse(&mut stream, wire_refusal(&refusal)).await,
        // The request was dropped: nobody waits for it.
        Err(_) => Ok(()),
    }
}

/// The request as the runtime takes it.
fn served(
    state: &HostState,
    (peer, group): (PeerId, AddressGroup),
    request: &ExpertRequest,
) -> Result<ServedRequest, ExpertRefusal> {
    let place = (request.layer, request.uid);
    let (Some(layer), Some(expert)) = (layer_of(&state.layers, place), state.number_of(&place)) else {
        return Err(ExpertRefusal::Unknown);
    };
    let client = PeerKey(peer.to_bytes());
    served_request((&state.run_id, layer, expert), (client, group, state.now()), request)
}
