//! What a host begins with: a backbone, the run, and whether it has room for experts of it.

use std::time::Duration;

use barnraise_learning::hosted::{HostedLayer, HostedLayerError};
use barnraise_learning::{ComputeDevice, ModelError};
use barnraise_protocol::ConversationError;
use barnraise_protocol::access::{AccessMode, KeyPair, PublicKey};
use barnraise_protocol::experts::{self, AnswerSigner};
use barnraise_protocol::framing::FrameError;
use barnraise_protocol::run::{self, RunDescription};
use barnraise_swarm::backoff::Backoff;
use barnraise_swarm::experts::leases::LeaseHolder;
use barnraise_swarm::experts::serving::ServingLimits;
use futures::channel::mpsc;

use super::super::device::ExpertDevice;
use super::super::requests::HeldRequests;
use super::super::state::HostState;
use crate::description::{self, DescriptionError};
use crate::platform::{Platform, PlatformError};
use crate::race::before;

/// Most parameters of all experts of one host: with optimizer, copy and gradient some 80 MB.
const PARAMETERS_MAX: usize = 1 << 22;
/// Most experts of one host.
const EXPERTS_MAX: usize = 16;
/// Most rows of a batch, times the parameters of an expert: a processor has it in some three seconds, and asks for its leases after.
const BATCH_PRODUCTS_MAX: usize = 1 << 31;
/// A request that is larger is computed alone, within the time of a lease.
const REQUEST_BATCHES_MAX: u32 = 2;
/// Timeout of the dial, and of the description.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Limits of requests: what a tab can spare.
const LIMITS: ServingLimits = ServingLimits {
    rows_max: 1024,
    request_rows_max: 16_384,
    batch_delay: Duration::from_millis(20),
    bytes_max: 128 * 1024 * 1024,
    requests_per_minute: 6000,
};

/// What a host is started with.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Of this host alone; its platform dials with the same.
    pub key: KeyPair,
    /// Where its experts compute.
    pub device: ComputeDevice,
}

/// Why a device hosts nothing of a run, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// It would have to know who may ask.
    #[error("this run is not open to all, and only hosts that are installed can serve such a run")]
    NotOpen,
    /// Its model is all with the trainers.
    #[error("the model of this run has no experts that peers host")]
    NoExperts,
    /// It would not fit.
    #[error("an expert of this run has {n_parameters} parameters, and a tab has room for {PARAMETERS_MAX}")]
    TooLarge {
        /// Of the largest expert.
        n_parameters: usize,
    },
    /// A run that cannot be trained.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// Likewise.
    #[error(transparent)]
    Layers(#[from] HostedLayerError),
    /// A backbone of another version.
    #[error(transparent)]
    Version(ConversationError),
    /// Its experts have other hosts now, or will.
    #[error("the graphics processor was lost")]
    DeviceLost,
    /// It was told to leave.
    #[error("{n_experts} experts were not handed over, and about a minute of what they learned is lost")]
    NotHandedOver {
        /// How many.
        n_experts: usize,
    },
    /// Something else in this process hosts already, or the network has ended.
    #[error(transparent)]
    Platform(#[from] PlatformError),
}

/// What may be tried again, or not.
enum ConnectError {
    Passing(String),
    Final(ConversationError),
}

pub(super) struct Begun<'a, P> {
    pub(super) state: HostState<'a, P>,
    pub(super) changed: mpsc::Receiver<()>,
    pub(super) device: ExpertDevice,
    pub(super) compute: ComputeDevice,
    /// Follows from the key.
    pub(super) seed: u64,
}

/// Connects, however long it takes.
pub(super) async fn begin<P: Platform>(
    platform: &P,
    config: HostConfig,
    mut on_problem: impl FnMut(String),
) -> Result<Begun<'_, P>, HostError> {
    let HostConfig { key, device } = config;
    let seed = key.public().seed();
    let mut backoff = Backoff::new(seed);
    let (run, backbone) = loop {
        match Box::pin(connected(platform)).await {
            Ok(connected) => break connected,
            Err(ConnectError::Final(error)) => return Err(HostError::Version(error)),
            Err(ConnectError::Passing(reason)) => on_problem(reason),
        }
        platform.sleep_until(platform.now() + backoff.next_delay()).await;
    };
    description::validate(&run)?;
    if run.access.mode != AccessMode::Open {
        return Err(HostError::NotOpen);
    }
    let layers = HostedLayer::of_run(&run)?;
    let n_parameters = layers.iter().map(|layer| layer.body.graph.layout().n_parameters()).max();
    let n_parameters = n_parameters.ok_or(HostError::NoExperts)?;
    let n_room = (PARAMETERS_MAX / n_parameters.max(1)).min(EXPERTS_MAX);
    if n_room == 0 {
        return Err(HostError::TooLarge { n_parameters });
    }
    let (compute, device) = (device.clone(), ExpertDevice::new(run.model.clone(), layers.clone(), device));
    let at_once = u32::try_from(BATCH_PRODUCTS_MAX / n_parameters.max(1)).unwrap_or(u32::MAX);
    let limits = ServingLimits {
        rows_max: LIMITS.rows_max.min(at_once),
        request_rows_max: LIMITS.request_rows_max.min(at_once.saturating_mul(REQUEST_BATCHES_MAX)),
        ..LIMITS
    };
    let requests = HeldRequests::new(limits, &layers);
    let model = experts::model_hash(&run).map_err(|error| HostedLayerError::from(ModelError::from(error)))?;
    let leases = LeaseHolder::new(n_room, [], seed);
    let (state, changed) = HostState::new(
        platform,
        (run, layers),
        (AnswerSigner { key, model }, n_room as u32),
        backbone,
        (requests, leases),
    );
    Ok(Begun { state, changed, device, compute, seed })
}

async fn connected<P: Platform>(platform: &P) -> Result<(RunDescription, Option<PublicKey>), ConnectError> {
    let connecting = async {
        platform.disconnect().await;
        let backbone = platform.connect().await.map_err(passing)?;
        let mut stream = platform.open(run::PROTOCOL).await.map_err(passing)?;
        let described = run::describe(&mut stream).await.map_err(|error| match error {
            error @ (ConversationError::Older(_) | ConversationError::Frame(FrameError::Version { .. })) => {
                ConnectError::Final(error)
            }
            error => passing(error),
        });
        Ok((described?, PublicKey::of_peer_id(&backbone)))
    };
    let timer = platform.sleep_until(platform.now() + CONNECT_TIMEOUT);
    let connected = before(timer, connecting).await;
    connected.unwrap_or_else(|| Err(passing(PlatformError::Timeout(CONNECT_TIMEOUT))))
}

fn passing(error: impl std::error::Error) -> ConnectError {
    ConnectError::Passing(error.to_string())
}
