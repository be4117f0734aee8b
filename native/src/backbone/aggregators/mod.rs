//! The other peers that aggregate the same run: links to them, averagings with them, models from them.
//!
//! The core decides, by `barnraise_swarm::matchmaking`; here is what it needs of the network. Who is not
//! among the configured peers gets nothing.

mod average;
mod follow;
mod grid;
mod link;
mod reducers;
mod speed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use barnraise_averaging::{AverageError, Averaged, CheckError, GridError, Hub};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::bulk::Partial;
use barnraise_protocol::matchmaking::{Hello, MEMBERS_MAX, ModelVersion, Proposal, Reducer, Standing};
use barnraise_protocol::model::StepHeader;
use barnraise_protocol::run::RunDescription;
use barnraise_relay::dht::Dht;
use barnraise_relay::{Node, NodeError};
use barnraise_swarm::PeerKey;
use libp2p::{PeerId, Stream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tracing::Instrument as _;

use super::core::CoreEvent;
use super::places::Places;
use crate::config::{AggregatorsSection, RunConfig};
use crate::storage::checkpoint::{Checkpoint, Checkpoints};
use crate::storage::journal::Journal;

pub use average::NodePlatform;
pub(super) use average::{Task, propose};
pub use follow::FollowError;
pub(super) use grid::{Circumstances, group_size, sides, way};
pub use grid::{OwnGrid, Way};
pub use link::Links;
pub use reducers::Reducers;
pub use speed::{SpeedMeter, Speeds};

/// Proposals that may wait for a link.
const PROPOSALS_MAX: usize = 4;
/// Streams of one of them: a part of each member, and some more.
const STREAMS_PER_PEER: usize = 2 * MEMBERS_MAX + 8;
/// Streams of peers that are none of them, until they are told so.
const STRANGERS_MAX: usize = 32;

/// What is heard of the others.
#[derive(Debug)]
pub enum Heard {
    /// How one of them stands.
    Standing(Standing),
    /// What one of them proposes.
    Proposal(Proposal),
    /// Where contributors can dial one of them.
    Addresses(Vec<String>),
    /// One of them is gone.
    Gone,
    /// An averaging is over.
    Averaged(Proposal, Result<Arc<Averaged>, AveragingError>),
    /// A step that this peer did not make; it goes on once the sender is dropped.
    Step(StepHeader, Vec<u8>, oneshot::Sender<Result<ModelVersion, String>>),
    /// A model of another line, or of long after this peer's.
    Checkpoint(Box<Checkpoint>, oneshot::Sender<Result<ModelVersion, String>>),
    /// This peer has what the others have, or cannot have it for now.
    Followed(Result<(), FollowError>),
    /// Which model this peer has.
    WantModel(oneshot::Sender<ModelVersion>),
    /// Somebody needs a checkpoint of now; dropped once there is one.
    WantCheckpoint(oneshot::Sender<()>),
}

/// Why nothing came of an averaging.
#[derive(Debug, thiserror::Error)]
pub enum AveragingError {
    /// Of whole means.
    #[error(transparent)]
    Whole(#[from] AverageError),
    /// Of a grid of groups.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// What native peers averaged is not what it should be.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// Where to reach the others.
#[derive(Clone)]
struct Shared {
    node: Node,
    dht: Dht,
    run_id: String,
    hello: Hello,
    config: AggregatorsSection,
    checkpoint_every: u64,
    peers: Arc<BTreeSet<PeerId>>,
    core: mpsc::Sender<CoreEvent>,
    hub: Arc<Hub<Stream>>,
    platform: NodePlatform,
    links: Links,
    reducers: Reducers,
    speed: SpeedMeter,
    /// What came of a checkpoint whose donor left, until this peer has caught up: whoever is asked next, now or later,
    /// gives the rest.
    cut: Arc<Mutex<Option<Partial>>>,
}

/// What is stored, for others to ask for.
#[derive(Clone)]
pub struct Stored {
    /// Steps.
    pub journal: Journal,
    /// Models.
    pub checkpoints: Checkpoints,
}

/// The other peers that aggregate the run; it ends with the last sender of the core's events.
pub struct Aggregators {
    shared: Shared,
    standing: watch::Sender<Option<Standing>>,
    proposals: BTreeMap<PeerId, mpsc::Sender<Proposal>>,
}

impl Aggregators {
    /// Begins to look for them, and to answer them; `None` where the run has no others.
    ///
    /// # Errors
    /// The node accepts the conversations already.
    pub fn start(
        config: &RunConfig,
        description: &RunDescription,
        (node, dht): (Node, Dht),
        (reducers, speed): (Reducers, SpeedMeter),
        stored: &Stored,
        core: mpsc::Sender<CoreEvent>,
    ) -> Result<Option<Self>, NodeError> {
        let here = node.peer_id();
        let others: BTreeMap<_, _> = config.aggregators.peers().filter(|(peer, _)| *peer != here).collect();
        if others.is_empty() {
            return Ok(None);
        }
        let shared = Shared {
            platform: NodePlatform::new(node.clone()).with(reducers.clone()).measured_by(speed.clone()),
            node,
            dht,
            run_id: config.run.id.clone(),
            hello: Hello { run_id: config.run.id.clone(), recipe: recipe(config, description) },
            config: config.aggregators.clone(),
            checkpoint_every: config.storage.checkpoint_every_epochs,
            peers: Arc::new(others.keys().copied().collect()),
            core,
            hub: Arc::new(Hub::default()),
            links: Links::default(),
            reducers,
            speed,
            cut: Arc::default(),
        };
        let members = others.len() * STREAMS_PER_PEER;
        let places = Arc::new(Places::new(members, STREAMS_PER_PEER));
        let strangers = Arc::new(Places::new(STRANGERS_MAX, 1));
        link::accept(&shared, &places, &strangers)?;
        average::accept(&shared, &places)?;
        follow::accept(&shared, &places, stored)?;
        let (standing, told) = watch::channel(None);
        let mut proposals = BTreeMap::new();
        for (peer, address) in others {
            let (sender, proposed) = mpsc::channel(PROPOSALS_MAX);
            proposals.insert(peer, sender);
            tokio::spawn(link::keep(shared.clone(), peer, address, told.clone(), proposed));
        }
        Ok(Some(Self { shared, standing, proposals }))
    }

    /// How this peer stands, for all the others.
    pub fn tell(&self, standing: &Standing) {
        self.standing.send_if_modified(|told| {
            let is_new = told.as_ref() != Some(standing);
            *told = Some(*standing);
            is_new
        });
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

    /// Averages `values` as proposed and tells the core, unless it is given up before.
    pub fn average(&self, proposal: Proposal, way: Way, me: PeerKey, values: Vec<f32>) -> AbortHandle {
        let shared = self.shared.clone();
        let span = tracing::debug_span!("averaging", n_members = proposal.members.len());
        let group = match way {
            Way::Group(group) => group,
            Way::Grid(grid) => {
                let averaging = grid::average(shared, proposal, grid, me, values);
                return tokio::spawn(averaging.instrument(span)).abort_handle();
            }
        };
        shared.reducers.ask(&proposal, &group, &average::round(&proposal.model, proposal.nonce));
        let averaging = average::average(shared, proposal, Arc::new(group), me, values);
        tokio::spawn(averaging.instrument(span)).abort_handle()
    }

    /// Gets the model that `from` have, step by step or whole, and tells the core.
    pub fn follow(&self, model: ModelVersion, from: Vec<PeerKey>, n_parameters: usize) {
        tokio::spawn(follow::follow(self.shared.clone(), model, from, n_parameters));
    }

    /// How averages travel.
    pub fn config(&self) -> &AggregatorsSection {
        &self.shared.config
    }

    /// How fast the link of this machine is.
    pub fn speed(&self) -> &SpeedMeter {
        &self.shared.speed
    }

    /// Native peers that may be asked to average parts for `members`.
    pub fn reducers(&self, members: &[PeerKey]) -> Vec<Reducer> {
        self.shared.reducers.all(members)
    }

    /// Which of the others are told how this peer stands.
    pub fn links(&self) -> Links {
        self.shared.links.clone()
    }

    /// Whether others can dial this peer, as far as is known.
    pub fn is_reachable(&self) -> bool {
        self.shared.node.reachability() != barnraise_relay::Reachability::Private
    }
}

impl Shared {
    /// Tells the core; `false` where it has ended.
    async fn tell_core(&self, peer: PeerKey, heard: Heard) -> bool {
        self.core.send(CoreEvent::Aggregator { peer, heard }).await.is_ok()
    }

    fn me(&self) -> PeerKey {
        key(self.node.peer_id())
    }
}

fn key(peer: PeerId) -> PeerKey {
    PeerKey(peer.to_bytes())
}

/// Hash of all that makes a step of the same gradients another one.
fn recipe(config: &RunConfig, description: &RunDescription) -> Sha256Hash {
    let what = (
        (&description.model, description.n_parameters, description.target_batch_size),
        (&description.manifest, &config.run.optimizer, &config.run.schedule),
        (config.aggregators.codec, config.aggregators.reducers),
        (config.run.gradient_codec, config.run.slow_links, config.run.delayed_updates),
        (&description.local_steps, description.recomputed, config.storage.checkpoint_every_epochs),
    );
    Sha256Hash::of(format!("{what:?}").as_bytes())
}
