//! The other aggregators of the run: links to them, averagings with them, models from them.
//!
//! The core decides, by `barnraise_swarm::matchmaking`; this module is its network. Streams of peers that are not
//! configured as aggregators are refused.

mod average;
mod follow;
mod grid;
mod group;
mod link;
mod reducers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use barnraise_averaging::{AverageError, Averaged, CheckError, GridError, RoundRegistry};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::TensorCodec;
use barnraise_protocol::bulk::Partial;
use barnraise_protocol::matchmaking::{
    AggregatorStatus, Hello, MEMBERS_MAX, ModelVersion, Proposal, Reducer,
};
use barnraise_protocol::model::StepHeader;
use barnraise_protocol::run::RunDescription;
use barnraise_relay::Node;
use barnraise_relay::dht::Dht;
use barnraise_relay::tasks::TaskSet;
use barnraise_swarm::PeerKey;
use libp2p::{PeerId, Stream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tracing::Instrument as _;

use crate::config::{AggregatorsSection, RunConfig, SynchronousSection};
use crate::host::events::EventSender;
use crate::net::transfer_slots::TransferSlots;
use crate::storage::checkpoint::{Checkpoint, Checkpoints};
use crate::storage::journal::Journal;

use crate::net::platform::{NodePlatform, PeerAddresses};
use crate::net::speed::SpeedMeter;
pub(super) use average::{AveragingTask, propose};
pub use follow::{AdoptError, DonorError, FollowError};
pub(super) use grid::{GroupSizing, group_size, sides, topology};
pub use grid::{OwnGrid, Topology};
pub use link::Links;
pub use reducers::Reducers;

/// Proposals that may wait for a link.
const PROPOSALS_MAX: usize = 4;
/// Streams of one aggregator: a part of each member, and some more.
const STREAMS_PER_PEER: usize = 2 * MEMBERS_MAX + 8;
/// Streams of other peers, until they are refused.
const STRANGERS_MAX: usize = 32;

/// An event of the other aggregators.
#[derive(Debug)]
pub enum AggregatorEvent {
    /// The status of an aggregator: model, samples, speed.
    Standing(AggregatorStatus),
    /// An aggregator proposes an averaging.
    Proposal(Proposal),
    /// Addresses at which contributors can dial an aggregator.
    Addresses(Vec<String>),
    /// The link to an aggregator is gone.
    Gone,
    /// An averaging ended.
    Averaged(Proposal, Result<Arc<Averaged>, AveragingError>),
    /// A step to apply that this aggregator did not make; the sender receives the model after it.
    Step(StepHeader, Vec<u8>, oneshot::Sender<Result<ModelVersion, AdoptError>>),
    /// A model of another branch, or far ahead.
    Checkpoint(Box<Checkpoint>, oneshot::Sender<Result<ModelVersion, AdoptError>>),
    /// This aggregator has caught up with the others, or could not.
    Followed(Result<(), FollowError>),
    /// Asks for the version of this aggregator's model.
    WantModel(oneshot::Sender<ModelVersion>),
    /// Asks for a checkpoint of the present model; dropped once it is stored.
    WantCheckpoint(oneshot::Sender<()>),
}

/// Why an averaging failed.
#[derive(Debug, thiserror::Error)]
pub enum AveragingError {
    /// In one group of all members.
    #[error(transparent)]
    Whole(#[from] AverageError),
    /// In a grid of groups.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// A native peer sent a wrong mean.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// Network, configuration and state that the tasks of this module share.
#[derive(Clone)]
struct AggregationContext {
    node: Node,
    dht: Dht,
    run_id: String,
    hello: Hello,
    config: AggregatorsSection,
    average_codec: TensorCodec,
    checkpoint_every: u64,
    peers: Arc<BTreeSet<PeerId>>,
    core: EventSender<(PeerKey, AggregatorEvent)>,
    rounds: Arc<RoundRegistry<Stream>>,
    platform: NodePlatform,
    links: Links,
    reducers: Reducers,
    speed: SpeedMeter,
    /// The part of a checkpoint that came before its donor left: the next donor sends the rest.
    cut: Arc<Mutex<Option<Partial>>>,
}

/// Storage from which steps and models are served to the other aggregators.
#[derive(Clone)]
pub struct ServedStorage {
    /// Steps.
    pub journal: Journal,
    /// Models.
    pub checkpoints: Checkpoints,
}

/// Handle to the other aggregators. Its tasks end with it.
pub struct Aggregators {
    shared: AggregationContext,
    standing: watch::Sender<Option<AggregatorStatus>>,
    proposals: BTreeMap<PeerId, mpsc::Sender<Proposal>>,
    tasks: TaskSet,
}

impl Aggregators {
    /// Starts to connect to them, and to answer them; `None` where the run has no other aggregators.
    ///
    /// # Errors
    /// The node accepts the conversations already.
    pub fn start(
        (config, scheme): (&RunConfig, &SynchronousSection),
        description: &RunDescription,
        (node, dht): (Node, Dht),
        (reducers, speed): (Reducers, SpeedMeter),
        stored: &ServedStorage,
        core: EventSender<(PeerKey, AggregatorEvent)>,
    ) -> anyhow::Result<Option<Self>> {
        let here = node.peer_id();
        let others: BTreeMap<_, _> = config.aggregators.peers().filter(|(peer, _)| *peer != here).collect();
        if others.is_empty() {
            return Ok(None);
        }
        let known = reducers.clone();
        let addresses: PeerAddresses = Arc::new(move |peer| known.addresses(peer));
        let shared = AggregationContext {
            platform: NodePlatform::new(node.clone()).with_addresses(addresses).measured_by(speed.clone()),
            node,
            dht,
            run_id: config.run.id.clone(),
            hello: Hello { run_id: config.run.id.clone(), recipe: recipe(config, scheme, description)? },
            config: config.aggregators.clone(),
            average_codec: scheme.average_codec,
            checkpoint_every: config.storage.checkpoint_every_epochs,
            peers: Arc::new(others.keys().copied().collect()),
            core,
            rounds: Arc::new(RoundRegistry::default()),
            links: Links::default(),
            reducers,
            speed,
            cut: Arc::default(),
        };
        let members = others.len() * STREAMS_PER_PEER;
        let slots = Arc::new(TransferSlots::new(members, STREAMS_PER_PEER));
        let strangers = Arc::new(TransferSlots::new(STRANGERS_MAX, 1));
        let tasks = TaskSet::default();
        tasks.spawn("links of aggregators", link::accept(&shared, &slots, &strangers)?);
        tasks.spawn("averaging streams", average::accept(&shared, &slots)?);
        tasks.spawn("serving models", follow::accept(&shared, &slots, stored)?);
        let (standing, told) = watch::channel(None);
        let mut proposals = BTreeMap::new();
        for (peer, address) in others {
            let (sender, proposed) = mpsc::channel(PROPOSALS_MAX);
            proposals.insert(peer, sender);
            tasks.spawn("link", link::keep(shared.clone(), peer, address, told.clone(), proposed));
        }
        Ok(Some(Self { shared, standing, proposals, tasks }))
    }

    /// Sets the standing that is sent to the other aggregators.
    pub fn publish_standing(&self, standing: &AggregatorStatus) {
        self.standing.send_if_modified(|told| {
            let is_new = told.as_ref() != Some(standing);
            *told = Some(*standing);
            is_new
        });
    }

    /// The standing that is sent to the other aggregators, for tests.
    #[cfg(test)]
    pub(super) fn standing(&self) -> watch::Receiver<Option<AggregatorStatus>> {
        self.standing.subscribe()
    }

    /// Sends a proposal to its members. One whose link is down or does not keep up is left out of the averaging.
    pub fn propose(&self, proposal: &Proposal) {
        for member in &proposal.members {
            let link = PeerId::from_bytes(&member.peer).ok().and_then(|peer| self.proposals.get(&peer));
            if let Some(link) = link {
                let _ = link.try_send(proposal.clone());
            }
        }
    }

    /// Averages `values` as proposed and notifies the core, unless the task is aborted before.
    pub fn average(
        &self,
        proposal: Proposal,
        topology: Topology,
        me: PeerKey,
        values: Vec<f32>,
    ) -> AbortHandle {
        let shared = self.shared.clone();
        let span = tracing::debug_span!("averaging", n_members = proposal.members.len());
        let group = match topology {
            Topology::Group(group) => group,
            Topology::Grid(grid) => {
                let averaging = grid::average(shared, proposal, grid, me, values);
                return self.tasks.spawn("averaging", averaging.instrument(span));
            }
        };
        shared.reducers.ask(&proposal, &group, &group::round(&proposal.model, proposal.nonce));
        let averaging = average::average(shared, proposal, Arc::new(group), me, values);
        self.tasks.spawn("averaging", averaging.instrument(span))
    }

    /// Fetches the model that `from` have, step by step or as a checkpoint, and notifies the core.
    pub fn follow(&self, model: ModelVersion, from: Vec<PeerKey>, n_parameters: usize) {
        self.tasks.spawn("following", follow::follow(self.shared.clone(), model, from, n_parameters));
    }

    /// Configuration of averagings.
    pub fn config(&self) -> &AggregatorsSection {
        &self.shared.config
    }

    /// Codec of averages.
    pub fn average_codec(&self) -> TensorCodec {
        self.shared.average_codec
    }

    /// Measures the link of this machine.
    pub fn speed(&self) -> &SpeedMeter {
        &self.shared.speed
    }

    /// Native peers that may reduce parts for `members`.
    pub fn reducers(&self, members: &[PeerKey]) -> Vec<Reducer> {
        self.shared.reducers.all(members)
    }

    /// State of the links to the other aggregators.
    pub fn links(&self) -> Links {
        self.shared.links.clone()
    }

    /// Whether other peers can dial this one, as far as is known.
    pub fn is_reachable(&self) -> bool {
        self.shared.node.reachability() != barnraise_relay::Reachability::Private
    }
}

impl AggregationContext {
    /// Sends an event to the core; `false` where it has ended.
    async fn tell_core(&self, peer: PeerKey, heard: AggregatorEvent) -> bool {
        self.core.send((peer, heard)).await.is_ok()
    }

    fn me(&self) -> PeerKey {
        key(self.node.peer_id())
    }
}

fn key(peer: PeerId) -> PeerKey {
    PeerKey(peer.to_bytes())
}

/// Hash of the configuration that a step depends on, as JSON: aggregators average only if it is equal.
fn recipe(
    config: &RunConfig,
    section: &SynchronousSection,
    description: &RunDescription,
) -> serde_json::Result<Sha256Hash> {
    let scheme = section.describe(config);
    let what = (
        (&description.model, scheme.target_batch_size),
        (&description.data.manifest, scheme.optimizer, scheme.schedule),
        (section.average_codec, config.aggregators.reducers),
        (scheme.gradient_codec, scheme.slow_links, scheme.delayed_updates),
        (&scheme.local_steps, scheme.recomputed, config.storage.checkpoint_every_epochs),
    );
    Ok(Sha256Hash::of(&serde_json::to_vec(&what)?))
}
