//! Conversations of a host with trainers: takes a request, waits for the device, answers.

use std::rc::Rc;
use std::time::Duration;

use barnraise_learning::hosted::layer_of;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::experts::{self, ExpertRefusal, ExpertRequest, ExpertRequestError};
use barnraise_swarm::experts::serving::{RequestKey, ServedRequest};
use barnraise_swarm::{AddressGroup, PeerKey};

use super::copies::KeeperNetwork as _;
use super::requests::{served_request, wire_refusal};
use super::state::HostState;
use crate::kit::meter::Metered;
use crate::platform::Platform;
use crate::race::before;

/// Longest time until the head of a request is here.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time of its tensors, and of its answer: two MiB by half a Mbit/s.
const TENSORS_TIMEOUT: Duration = Duration::from_secs(35);

/// Frees what a request holds, however its conversation ends.
struct RequestGuard<'h, 'a, P: Platform> {
    state: &'h HostState<'a, P>,
    key: RequestKey,
}

impl<P: Platform> Drop for RequestGuard<'_, '_, P> {
    fn drop(&mut self) {
        self.state.on_over(self.key);
    }
}

/// Answers the one request of a stream. What fails is the trainer's to notice.
pub(super) async fn converse<P: Platform>(state: Rc<HostState<'_, P>>, peer: PeerKey, stream: P::Stream) {
    let mut stream = Metered::new(stream, Rc::clone(&state.meter)).with_peer();
    // A trainer that hangs up, or violates the protocol, asks once more or not.
    let _ = answer(&state, peer, &mut stream).await;
}

async fn answer<P: Platform>(
    state: &HostState<'_, P>,
    peer: PeerKey,
    stream: &mut Metered<P::Stream>,
) -> Result<(), ExpertRequestError> {
    let Some(request) = within(state, HEAD_TIMEOUT, experts::receive(stream)).await? else { return Ok(()) };
    let admitted = served(state, peer, &request).and_then(|served| {
        let (expert, of) = (served.expert, (request.layer, served.group));
        let key = state.admit(served).map_err(|refusal| wire_refusal(&refusal))?;
        Ok((key, expert, of))
    });
    let (key, expert, of) = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => return refuse(state, stream, refusal).await,
    };
    let _held = RequestGuard { state, key };
    let receiving = experts::receive_tensors(stream, &request);
    let Some(bytes) = within(state, TENSORS_TIMEOUT, receiving).await? else { return Ok(()) };
    let tensors = match request.decode(&bytes) {
        Ok(tensors) => tensors,
        Err(refusal) => return refuse(state, stream, refusal).await,
    };
    drop(bytes);
    // Where the request was dropped, nobody waits for it.
    let Ok(computed) = state.on_received(key, of, tensors).await else { return Ok(()) };
    match computed {
        Ok((n_steps, rows)) => {
            let version = state.version(&(request.layer, request.uid), expert, n_steps);
            let version = version.ok_or(ExpertRefusal::Unknown);
            match version.and_then(|version| request.answer(&state.signer, version, &rows)) {
                Ok(prepared) => {
                    within(state, TENSORS_TIMEOUT, experts::reply(stream, &prepared)).await?;
                    Ok(())
                }
                Err(refusal) => refuse(state, stream, refusal).await,
            }
        }
        Err(refusal) => refuse(state, stream, wire_refusal(&refusal)).await,
    }
}

async fn refuse<P: Platform>(
    state: &HostState<'_, P>,
    stream: &mut Metered<P::Stream>,
    refusal: ExpertRefusal,
) -> Result<(), ExpertRequestError> {
    within(state, HEAD_TIMEOUT, experts::refuse(stream, refusal)).await?;
    Ok(())
}

/// The request as the runtime takes it. All come through relays, so that the address says nothing: each peer is a group.
fn served<P: Platform>(
    state: &HostState<'_, P>,
    peer: PeerKey,
    request: &ExpertRequest,
) -> Result<ServedRequest, ExpertRefusal> {
    let place = (request.layer, request.uid);
    let (Some(layer), Some(expert)) = (layer_of(&state.layers, place), state.number_of(&place)) else {
        return Err(ExpertRefusal::Unknown);
    };
    let of_run = (&state.run.identity.run_id[..], layer, expert);
    let group = AddressGroup(Sha256Hash::of(&peer.0).number());
    served_request(of_run, (peer, group, state.platform.now()), request)
}

/// `None` where it takes too long.
async fn within<P: Platform, T>(
    state: &HostState<'_, P>,
    limit: Duration,
    work: impl Future<Output = Result<T, ExpertRequestError>>,
) -> Result<Option<T>, ExpertRequestError> {
    before(state.sleep(limit), work).await.transpose()
}
