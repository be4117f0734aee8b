//! The sampled scheme (MoDEST §3): a run without a server.
//!
//! `barnraise serve` describes the run, hands out its data, holds the first model, aggregates as any participant that can be
//! dialled, and shows the newest average on the page. The run goes on where it is gone. It does not train: `barnraise join`
//! does ([`driver`] is that of both).

pub(crate) mod driver;
mod known;
pub(crate) mod trainer;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use barnraise_learning::{DataShape, ParameterLayout};
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::api::{HistoryPoint, RunStatus};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::RunProgress;
use barnraise_protocol::run::{RunDescription, Sampled, SignedRun, run_hash};
use barnraise_protocol::sampled::{
    self, AcceptorToDialler, Aggregates, MEMBER_ADDRESS_BYTES_MAX, MEMBER_ADDRESSES_MAX, SampledRoles,
};
use barnraise_protocol::state::StateHeader;
use barnraise_relay::{Node, NodeEvent, Paced};
use barnraise_swarm::history::History;
use barnraise_swarm::sampled::{SampledIdentity, SampledModel, SampledPeer, SampledSettings};
use barnraise_swarm::{Moment, PeerKey};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, Stream};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::driver::{DriverMeans, NewestModel, SampledDriver};
use self::known::KnownPeers;
use crate::computing::compute;
use crate::data::TrainingData;
use crate::host::access::AccessAuthority;
use crate::host::conversations::{self, AccessPolicy, Caller, RunServices, StreamError, StreamSlots, accept};
use crate::host::evaluator::{Evaluated, majority_accuracy};
use crate::host::events::EventSender;
use crate::host::metrics::RunMetrics;
use crate::host::operator::request::{OperatorError, OperatorHandle, OperatorRequest};
use crate::host::readiness::StartupStep;
use crate::host::run::{Credit, CreditCounters, Mounted, OpenedRun, RunHost, RunPage, RunStores};
use crate::host::states::{PublishedState, StateBytes, States};
use crate::host::status::StatusPublisher;
use crate::net::announced::{is_circuit, to_announce};
use crate::storage::checkpoint::{Checkpoint, Checkpoints};

/// Events that the driver has not handled.
const EVENTS_MAX: usize = 64;
/// Time after which what could not be stored is tried again.
const STORE_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// What a backbone does for the run.
const BACKBONE_ROLES: SampledRoles = SampledRoles { trains: false, aggregates: Aggregates::Dialled };
/// Interval of looks at this backbone's own access.
const APPROVED_EVERY: Duration = Duration::from_secs(10);
/// Interval of the status.
const STATUS_EVERY: Duration = Duration::from_millis(500);

/// Addresses at which others can dial this machine, for its membership.
pub(crate) fn own_addresses(node: &Node) -> Vec<Vec<u8>> {
    let without_peer = |address: Multiaddr| -> Multiaddr {
        address.into_iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect()
    };
    let direct = node.addresses().into_iter().filter(|address| !is_circuit(address));
    let mut addresses = to_announce(direct.map(without_peer).collect(), node.reachability());
    addresses.retain(|address| address.len() <= MEMBER_ADDRESS_BYTES_MAX);
    addresses.truncate(MEMBER_ADDRESSES_MAX);
    addresses
}

/// Waits until the addresses of a node may be other ones. Does not end where the node has stopped.
pub(crate) async fn addresses_changed(events: &mut broadcast::Receiver<NodeEvent>) {
    loop {
        match events.recv().await {
            // After missed events, too.
            Ok(NodeEvent::AddressesChanged) | Err(broadcast::error::RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Tells the run where this backbone can be dialled, as often as that is elsewhere. Does not end.
async fn tell_addresses(node: Node, driver: SampledDriver) {
    let mut events = node.events();
    loop {
        driver.on_own_change(BACKBONE_ROLES, own_addresses(&node));
        addresses_changed(&mut events).await;
    }
}

/// Drives a run until its shutdown. Its page is served elsewhere: `mounting` receives the routes.
///
/// # Errors
/// The run cannot be resumed, a background task failed, or a checkpoint cannot be written.
pub(crate) async fn run(
    opened: OpenedRun,
    data: TrainingData,
    mounting: oneshot::Sender<Mounted>,
) -> anyhow::Result<()> {
    let shape = DataShape::of(&opened.shards.manifest().samples);
    let layout = ParameterLayout::of(&opened.config.model_spec(), shape)?;
    let stores = opened.stores(&layout);
    let config = &opened.config;
    let loaded = stores.checkpoints.load_latest(&config.run.id, &config.model_spec()).await;
    let checkpoint = loaded.context("the run cannot be resumed")?.checkpoint;
    let (round, model, history) = match checkpoint {
        Some(checkpoint) => (checkpoint.epoch, checkpoint.parameters, checkpoint.history),
        None => (0, Arc::new(opened.first.parameters.clone()), Vec::new()),
    };
    opened.readiness.done(StartupStep::Checkpoint);
    let first = FirstModel { round, model, history: History::from(history) };
    let known = KnownPeers::new(opened.storage.clone());
    let host = Box::pin(RunHost::start(opened)).await?;
    Box::pin(serve(host, layout, (stores, known), first, data, mounting)).await
}

/// The model that the process begins with.
struct FirstModel {
    round: u64,
    model: Arc<Vec<f32>>,
    history: History,
}

async fn serve(
    mut host: RunHost,
    layout: ParameterLayout,
    (stores, known): (RunStores, KnownPeers),
    first: FirstModel,
    data: TrainingData,
    mounting: oneshot::Sender<Mounted>,
) -> anyhow::Result<()> {
    let RunStores { journal, checkpoints, disk_space } = stores;
    let description = host.config.describe(host.shards.manifest().clone(), host.access.describe());
    let description = Arc::new(description);
    barnraise_contributor::description::validate(&description).context("the run cannot be trained")?;
    let scheme = *description.sampled().context("the scheme is another one")?;
    let device = host.open_device().await?;
    let (state, states) = watch::channel(published(first.round, &first.model, &scheme).await?);
    let publisher =
        StatusPublisher::new(status(&host, &description, &layout, &first, majority_accuracy(&data.test)));
    let (metrics, registry) = RunMetrics::new(publisher.status().subscribe(), Some(disk_space.clone()));
    host.readiness.stores_in(&disk_space);
    // Nobody contributes gradients: the database has no contributions.
    let counters = CreditCounters { refused: Box::new(Default::default), caught_up: metrics.caught_up() };
    let Credit { store, recording, .. } = host.credit(&journal, 0, counters).await?;
    let (readable, following) = States::follow(states.clone(), 1);
    host.tasks.spawn(following);

    let driver = SampledDriver::new(
        DriverMeans {
            node: host.node.clone(),
            codec: scheme.state_codec,
            average: scheme.average,
            n_parameters: layout.n_parameters(),
            ping_timeout: SampledSettings::of(&scheme).ping_timeout,
            gate: host.access.gate.clone(),
            trainer: None,
        },
        peer(&host, &description, &scheme)?
            .with_view(&known.load().await?)
            .with_model(first.round, first.model.as_slice().into()),
    );
    let services = RunServices {
        described: Arc::new(SignedRun::by(&host.key, description.as_ref().clone())?),
        states: readable,
        shards: host.shards.clone(),
        access: host.access.clone(),
        node: host.node.clone(),
        conversations: host.config.conversations.clone(),
        metrics,
    };
    accept_all(&services, &driver, &mut host)?;
    host.keep_current();
    let of_data = (data.tokenizer.clone(), data.columns.as_ref());
    let shared = host.share_model(&description, layout, of_data).await?;
    let (publishing, models) = shared.map(|shared| (shared.publisher, shared.files)).unzip();
    let (events, heard) = mpsc::channel(EVENTS_MAX);
    host.evaluate(&description, (data, device.clone()), states, publishing, EventSender::new(events.clone()));
    host.keep_addresses(publisher.status().clone());
    let page = RunPage {
        description: description.clone(),
        status: publisher.status().subscribe(),
        events: publisher.events(),
        store,
        models,
        checkpoints: checkpoints.clone(),
        commands: OperatorHandle::new(events),
        registry: Arc::new(registry),
    };
    let core = SampledCore {
        node: host.node.clone(),
        every_rounds: host.config.storage.checkpoint_every_epochs,
        stored: first.round,
        store_at: Instant::now(),
        history: first.history,
        authority: host.access.authority.clone(),
        newest: driver.newest(),
        description,
        scheme,
        driver,
        checkpoints,
        known,
        publisher,
        state,
    };
    let shutdown = host.shutdown.clone();
    let driving = Box::pin(core.run(heard, shutdown));
    Box::pin(host.drive(page, (recording, device), mounting, driving, async {})).await
}

/// This backbone as a peer of the run.
fn peer(host: &RunHost, description: &RunDescription, scheme: &Sampled) -> anyhow::Result<SampledPeer> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed)
        .map_err(|error| anyhow::anyhow!("no peer can be chosen by chance: {error}"))?;
    let identity = SampledIdentity {
        key: host.key.clone(),
        run: run_hash(description)?,
        // It goes on with that of the view that was kept.
        counter: 0,
        roles: BACKBONE_ROLES,
        addresses: own_addresses(&host.node),
        seed: u64::from_le_bytes(seed),
    };
    let mut peer = SampledPeer::new(SampledSettings::of(scheme), identity);
    if let Some(authority) = &host.access.authority {
        peer = peer.by_approval(description.authority(), authority.now());
        peer.on_approval(Moment::ZERO, authority.own_token()?);
    }
    Ok(peer)
}

/// Tells the run that this backbone may still take part, long before its token expires. Does not end.
async fn keep_approved(authority: Option<AccessAuthority>, driver: SampledDriver) {
    let Some(authority) = authority else { return std::future::pending().await };
    // A clock may be set, and a machine may sleep.
    let mut looks = tokio::time::interval(APPROVED_EVERY);
    loop {
        looks.tick().await;
        let Ok(token) = authority.own_token() else { continue };
        let left = |until: UnixTime| until.0.saturating_sub(authority.now().0);
        let held = driver.look(|peer| peer.approval().map(|held| held.claims.expires_at));
        if held.is_none_or(|until| left(until) <= left(token.claims.expires_at) / 2) {
            driver.on_approval(token);
        }
    }
}

/// What the handlers of streams share.
#[derive(Clone)]
struct SampledServices {
    host: RunServices,
    driver: SampledDriver,
}

impl AsRef<RunServices> for SampledServices {
    fn as_ref(&self) -> &RunServices {
        &self.host
    }
}

fn accept_all(services: &RunServices, driver: &SampledDriver, host: &mut RunHost) -> anyhow::Result<()> {
    let slots = StreamSlots::new(&services.conversations, host.config.network.contributors_max);
    conversations::serve(services, &slots, &mut host.tasks)?;
    let services = SampledServices { host: services.clone(), driver: driver.clone() };
    // Members show each other their access in what they tell: one of another way into the run never showed it here.
    let answer = |services: SampledServices, mut caller: Caller, stream: Stream| async move {
        let peer = caller.peer;
        if services.host.access.gate.is_excluded(&PeerKey(peer.to_bytes())) {
            let mut stream = Paced::new(stream, services.host.conversations.pace());
            sampled::next_request(&mut stream).await?;
            return Ok(sampled::respond(&mut stream, &AcceptorToDialler::Declined).await?);
        }
        caller.while_admitted(services.driver.answer(peer, stream)).await?.map_err(StreamError::from)
    };
    accept(&services, &mut host.tasks, sampled::PROTOCOL, AccessPolicy::Open, &slots, answer)?;
    Ok(())
}

fn status(
    host: &RunHost,
    description: &RunDescription,
    layout: &ParameterLayout,
    first: &FirstModel,
    majority_accuracy: Option<f32>,
) -> RunStatus {
    RunStatus {
        run: description.clone(),
        n_parameters: layout.n_parameters() as u64,
        addresses: host.addresses.addresses.iter().map(Multiaddr::to_string).collect(),
        progress: progress(description, first.round, 0, &first.history),
        history: first.history.points().to_vec(),
        devices: Vec::new(),
        paused: None,
        majority_accuracy,
    }
}

/// How far a run is, as its page shows it.
pub(crate) fn progress(
    description: &RunDescription,
    round: u64,
    n_participants: usize,
    history: &History,
) -> RunProgress {
    RunProgress {
        epoch: round,
        n_samples: 0,
        target_batch_size: description.scheme.step_samples(),
        n_contributors: u32::try_from(n_participants).unwrap_or(u32::MAX),
        samples_per_second: 0.0,
        train_loss: None,
        test_accuracy: history.last_accuracy(),
    }
}

/// Participants that train, as far as this peer knows.
pub(crate) fn n_trainers(driver: &SampledDriver) -> usize {
    driver.look(|peer| {
        let trains =
            peer.registry().members().filter(|member| member.joined().is_some_and(|of| of.roles.trains));
        trains.count()
    })
}

/// An average as participants pull it.
async fn published(round: u64, model: &Arc<Vec<f32>>, scheme: &Sampled) -> anyhow::Result<PublishedState> {
    let (parameters, codec) = (model.clone(), scheme.state_codec);
    let n_bytes = size_of_val(parameters.as_slice());
    compute(n_bytes, move || {
        let bytes = StateBytes::of(&parameters, codec)?;
        let n_values = parameters.len() as u64;
        let header = StateHeader { epoch: round, n_values, codec, transfer: Transfer::of(&bytes) };
        Ok(PublishedState { header, bytes, parameters })
    })
    .await
}

/// An event of the core.
enum SampledEvent {
    Evaluated(Evaluated),
    Operator(OperatorRequest),
}

impl From<Evaluated> for SampledEvent {
    fn from(evaluated: Evaluated) -> Self {
        Self::Evaluated(evaluated)
    }
}

impl From<OperatorRequest> for SampledEvent {
    fn from(request: OperatorRequest) -> Self {
        Self::Operator(request)
    }
}

/// Follows the newest average: publishes, evaluates and stores it.
struct SampledCore {
    node: Node,
    description: Arc<RunDescription>,
    scheme: Sampled,
    driver: SampledDriver,
    /// In a run that is not open.
    authority: Option<AccessAuthority>,
    newest: watch::Receiver<NewestModel>,
    checkpoints: Checkpoints,
    known: KnownPeers,
    every_rounds: u64,
    /// Round of the newest checkpoint.
    stored: u64,
    /// No checkpoint is tried before.
    store_at: Instant,
    history: History,
    publisher: StatusPublisher,
    state: watch::Sender<PublishedState>,
}

impl SampledCore {
    async fn run(
        mut self,
        heard: mpsc::Receiver<SampledEvent>,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        let (driver, ended) = (self.driver.clone(), CancellationToken::new());
        let telling = tell_addresses(self.node.clone(), self.driver.clone());
        let approving = keep_approved(self.authority.clone(), self.driver.clone());
        let telling = async { tokio::join!(telling, approving) };
        let taking_part = async {
            driver.run(Vec::new(), shutdown).await;
            ended.cancel();
        };
        // Beside each other: others wait for what this peer does in a round, and not for its disk.
        tokio::join!(taking_part, self.follow(heard, &ended), ended.run_until_cancelled(telling));
        let stored = self.store().await;
        // That it has left, too, so that its counter goes on.
        self.known.keep(&self.driver).await.and(stored)
    }

    /// Follows the newest average until this peer has left.
    async fn follow(&mut self, mut heard: mpsc::Receiver<SampledEvent>, ended: &CancellationToken) {
        let mut ticks = tokio::time::interval(STATUS_EVERY);
        loop {
            tokio::select! {
                () = ended.cancelled() => return,
                Ok(()) = self.newest.changed() => self.on_average().await,
                Some(event) = heard.recv() => self.on_event(event),
                _ = ticks.tick() => {
                    self.publish();
                    self.keep().await;
                }
            }
        }
    }

    /// Stores what is due. A full disk ends no run: it is tried again, with what there is then.
    async fn keep(&mut self) {
        if let Err(error) = self.known.keep_changed(&self.driver).await {
            tracing::warn!(error = format!("{error:#}"), "the participants are not kept, for now");
        }
        let round = self.state.borrow().header.epoch;
        if round < self.stored.saturating_add(self.every_rounds) || Instant::now() < self.store_at {
            return;
        }
        self.store_at = Instant::now() + STORE_AGAIN_AFTER;
        match self.store().await {
            // Not before the next round that is due.
            Ok(()) => self.store_at = Instant::now(),
            Err(error) => tracing::warn!(round, error = format!("{error:#}"), "nothing is stored, for now"),
        }
    }

    async fn on_average(&mut self) {
        let Some((round, model)) = self.newest.borrow_and_update().clone() else { return };
        if round <= self.state.borrow().header.epoch {
            return;
        }
        let parameters = own_copy(&model).await;
        match published(round, &parameters, &self.scheme).await {
            Ok(state) => drop(self.state.send_replace(state)),
            // The next average is another one.
            Err(error) => {
                tracing::warn!(round, error = format!("{error:#}"), "an average cannot be published");
                return;
            }
        }
        let point = HistoryPoint { epoch: round, n_samples_total: 0, train_loss: None, test_accuracy: None };
        self.history.push(point);
        self.publisher.on_stepped(Some(point));
        self.keep().await;
    }

    fn on_event(&mut self, event: SampledEvent) {
        match event {
            SampledEvent::Evaluated(Evaluated { epoch, evaluation }) => {
                tracing::info!(
                    round = epoch,
                    accuracy = evaluation.accuracy,
                    loss = evaluation.loss,
                    "evaluated"
                );
                self.history.set_accuracy(epoch, evaluation.accuracy);
                self.publisher.on_new_history();
            }
            SampledEvent::Operator(request) => {
                // The client may be gone.
                let _ = request.answer.send(Err(OperatorError::NoServer));
            }
        }
    }

    fn publish(&mut self) {
        let round = self.state.borrow().header.epoch;
        let progress = progress(&self.description, round, n_trainers(&self.driver), &self.history);
        self.publisher.publish(progress, std::iter::empty(), None, &self.history);
    }

    async fn store(&mut self) -> anyhow::Result<()> {
        let (round, parameters) = {
            let state = self.state.borrow();
            (state.header.epoch, state.parameters.clone())
        };
        if round == self.stored {
            return Ok(());
        }
        let checkpoint = Checkpoint {
            run_id: self.description.identity.run_id.clone(),
            model: self.description.model.clone(),
            epoch: round,
            n_samples_total: 0,
            parameters,
            optimizer_state: Vec::new(),
            included: Default::default(),
            history: self.history.points().to_vec(),
        };
        self.checkpoints.save(checkpoint).await.context("a checkpoint cannot be written")?;
        self.stored = round;
        // Members as of this round: a process that begins with it believes no others.
        self.known.keep(&self.driver).await
    }
}

async fn own_copy(model: &SampledModel) -> Arc<Vec<f32>> {
    let model = model.clone();
    compute(size_of_val(&*model), move || Arc::new(model.to_vec())).await
}
