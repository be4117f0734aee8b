//! Conversations with trainers: takes a request, waits for the device, answers.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::experts::{self, ExpertRefusal, ExpertRequest, ExpertRequestError};
use barnraise_relay::tasks::{self, TaskSet};
use barnraise_relay::{Node, NodeError, Paced, Violation};
use barnraise_swarm::PeerKey;
use barnraise_swarm::experts::serving::{RequestKey, ServedRequest, ServingRefusal, WAIT_MAX};
use barnraise_swarm::guard::PaceLimits;
use futures::future::Abortable;
use futures::{FutureExt, StreamExt};
use libp2p::{PeerId, Stream};
use tokio_util::task::AbortOnDropHandle;

use super::state::HostState;
use crate::host::expert_hosts::layers::layer_of;
use crate::net::transfer_slots::TransferSlots;

/// Requests at a time.
const STREAMS_MAX: usize = 1024;
/// Of one trainer.
const STREAMS_PER_PEER: usize = 64;
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
    let slots = Arc::new(TransferSlots::new(STREAMS_MAX, STREAMS_PER_PEER));
    let (node, state) = (node.clone(), state.clone());
    Ok(tasks::spawn("serving experts", async move {
        let serving = TaskSet::default();
        while let Some((peer, stream)) = streams.next().await {
            let Some((slot, registration)) = TransferSlots::take(&slots, peer) else {
                tracing::debug!(%peer, "no free stream slot for a trainer");
                continue;
            };
            let (node, state) = (node.clone(), state.clone());
            let conversation = async move {
                if let Err(error) = answer(&node, &state, peer, stream).await {
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

async fn answer(
    node: &Node,
    state: &HostState,
    peer: PeerId,
    stream: Stream,
) -> Result<(), ExpertRequestError> {
    let mut stream = Paced::new(stream, PACE);
    let pace = stream.pace();
    let request = experts::receive(&mut stream).await?;
    let admitted = served(node, state, peer, &request).await;
    let admitted = admitted.and_then(|served| state.admit(served).map_err(|refusal| wire(&refusal)));
    let key = match admitted {
        Ok(key) => key,
        Err(refusal) => return experts::refuse(&mut stream, refusal).await,
    };
    let _held = HeldRequest { state, key };
    let bytes = experts::receive_tensors(&mut stream, &request).await?;
    let tensors = match request.decode(&bytes) {
        Ok(tensors) => tensors,
        Err(refusal) => return experts::refuse(&mut stream, refusal).await,
    };
    drop(bytes);
    let computed = state.on_received(key, tensors).await;
    pace.answer();
    match computed {
        Ok(Ok((n_steps, rows))) => match request.answer(n_steps, &rows) {
            Ok(prepared) => experts::reply(&mut stream, &prepared).await,
            Err(_) => experts::refuse(&mut stream, ExpertRefusal::NotFinite).await,
        },
        Ok(Err(refusal)) => experts::refuse(&mut stream, wire(&refusal)).await,
        // The request was dropped: nobody waits for it.
        Err(_) => Ok(()),
    }
}

/// The request as the runtime takes it.
async fn served(
    node: &Node,
    state: &HostState,
    peer: PeerId,
    request: &ExpertRequest,
) -> Result<ServedRequest, ExpertRefusal> {
    request.check()?;
    let place = (request.layer, request.uid);
    let (Some(layer), Some(expert)) = (layer_of(&state.layers, place), state.number_of(&place)) else {
        return Err(ExpertRefusal::Unknown);
    };
    if request.run_id != state.run_id {
        return Err(ExpertRefusal::Unknown);
    }
    for (want, got) in
        [(layer.body.n_values(), request.input_values), (layer.body.n_given(), request.output_values)]
    {
        if want as u64 != u64::from(got) {
            return Err(ExpertRefusal::Shape { want: want as u64, got: got.into() });
        }
    }
    let n_values = u64::from(request.input_values) + 2 * u64::from(request.output_values);
    Ok(ServedRequest {
        client: PeerKey(peer.to_bytes()),
        group: state.groups.group_of(node, peer).await,
        expert,
        pass: request.pass,
        n_rows: request.n_rows,
        // Decoded, in the batch, and encoded again.
        n_bytes: u64::from(request.n_rows).saturating_mul(n_values).saturating_mul(8),
        request_id: request.request_id,
        deadline: state.now() + WAIT_MAX,
    })
}

fn wire(refusal: &ServingRefusal) -> ExpertRefusal {
    let millis = |after: Duration| u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
    match *refusal {
        ServingRefusal::Unknown => ExpertRefusal::Unknown,
        ServingRefusal::Busy { retry_after } => ExpertRefusal::Busy { retry_after_ms: millis(retry_after) },
        ServingRefusal::Duplicate => ExpertRefusal::Duplicate,
        ServingRefusal::InProgress { retry_after } => {
            ExpertRefusal::InProgress { retry_after_ms: millis(retry_after) }
        }
        ServingRefusal::Rows { max, got } => ExpertRefusal::TooLarge { max: max.into(), got: got.into() },
        ServingRefusal::TooLarge { max, got } => ExpertRefusal::TooLarge { max, got },
        ServingRefusal::Draining => ExpertRefusal::Draining,
        ServingRefusal::Failed => ExpertRefusal::Failed,
    }
}
