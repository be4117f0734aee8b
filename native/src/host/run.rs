//! A run on its host: what the driver of any scheme finds ready, and where its page goes.
//!
//! [`OpenedRun`] has identity, storage and data, from which a driver recovers its model. [`RunHost`] then has access
//! control, the node and the run's tasks. Neither knows the scheme: the driver brings the description, the status and
//! the counters.

mod credit;
mod hosting;
mod operating;
mod tasks;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use axum::Router;
use barnraise_learning::graph::ResolvedGraph;
use barnraise_learning::{ComputeDevice, DataShape, FrozenWeights, ParameterLayout, open_device};
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::api::{LiveProgress, RunStatus};
use barnraise_protocol::columns::DataColumns;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::run::model::FirstWeights;
use barnraise_relay::dht::{Dht, DhtConfig};
use barnraise_relay::server::operator_routes_with;
use barnraise_relay::webtransport::WebTransportConfig;
use barnraise_relay::{MetricsRegistry, Node, NodeConfig, Routing, warn_about_open_files};
use bytes::Bytes;
use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use tokio::runtime::Handle;
use tokio::sync::{broadcast, oneshot, watch};
use tokio_util::sync::CancellationToken;

pub(crate) use self::credit::{Credit, CreditCounters};
pub(crate) use self::hosting::{LocalHost, LocalHostSetup};
use self::operating::operator_page;
pub(crate) use self::tasks::RunTasks;
use crate::config::{RunConfig, SchemeSection};
use crate::data::TrainingData;
use crate::data::shards::ShardStore;
use crate::data::streamed::StreamFeed;
use crate::host::access::rooms::{RoomKey, Rooms};
use crate::host::access::{Access, keep_gate_current, login_pages, signing_key};
use crate::host::admin::address::note_address;
use crate::host::admin::{Admin, HostedRun};
use crate::host::announce::{Announcement, announce};
use crate::host::clock::system_clock;
use crate::host::contributions::{Recording, Store};
use crate::host::evaluator::{Evaluated, Evaluator, evaluated_on};
use crate::host::events::EventSender;
use crate::host::experts::{AskedExperts, HolderLookUp};
use crate::host::http::HttpState;
use crate::host::identity::own_keypair;
use crate::host::models::{ModelFiles, Publisher, SharedModel};
use crate::host::operator::request::OperatorHandle;
use crate::host::page::PageSource;
use crate::host::readiness::{OperatorPage, Readiness, StartupStep};
use crate::host::site::SiteRun;
use crate::host::states::PublishedState;
use crate::host::streaming;
use crate::pretrained::{self, FirstValues};
use crate::storage::checkpoint::{AGES, Checkpoints};
use crate::storage::disk_space::DiskSpace;
use crate::storage::journal::Journal;
use crate::storage::{Storage, bound};

/// Starts a contributor of this process to the backbone at one of the addresses.
pub(crate) type LocalContributor = fn(&[Multiaddr], ComputeDevice, Keypair) -> anyhow::Result<()>;

/// Where a backbone can be reached.
#[derive(Debug, Clone)]
pub struct BackboneAddresses {
    /// The run's id.
    pub run_id: String,
    /// `/healthz`, `/readyz`, `/metrics` and `/addresses`, where they are served.
    pub operator: Option<SocketAddr>,
    /// libp2p, peer id included.
    pub addresses: Vec<Multiaddr>,
}

/// A run that is ready to be served. It begins once the page is open.
pub struct Mounted {
    /// Its page and API.
    pub run: SiteRun,
    /// Its node; that of the first run counts the violations of visitors.
    pub node: Node,
    /// Sent to once the page is open.
    pub open: oneshot::Sender<()>,
    /// Receives the run's addresses when it begins.
    pub begun: oneshot::Receiver<BackboneAddresses>,
}

/// What a process brings to each of its runs.
#[derive(Clone)]
pub(crate) struct RunSurroundings {
    /// Files of the page.
    pub(crate) page: PageSource,
    /// For a backbone that contributes to itself.
    pub(crate) contributor: LocalContributor,
    /// For a backbone that hosts experts itself.
    pub(crate) local_host: LocalHost,
    /// Ends the run.
    pub(crate) shutdown: CancellationToken,
}

/// A run whose identity, storage and data are here.
pub(crate) struct OpenedRun {
    pub(crate) config: RunConfig,
    /// For all that lasts; in S3, where the run asks for it.
    pub(crate) storage: Storage,
    pub(crate) shards: Arc<ShardStore>,
    /// The weights that it begins with.
    pub(crate) first: FirstValues,
    pub(crate) readiness: Readiness,
    pub(crate) keypair: Keypair,
    /// Of data that are read while the run trains.
    feed: Option<StreamFeed>,
    /// A process served this run before.
    was_served: bool,
    /// The run's folder, whose disk may fill up.
    folder: Storage,
    operator: Option<OperatorPage>,
    around: RunSurroundings,
}

/// Where a driver stores contributions and models.
pub(crate) struct RunStores {
    pub(crate) journal: Journal,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) disk_space: DiskSpace,
}

impl OpenedRun {
    /// Opens the run's folder and loads its data, and the weights that it begins with.
    ///
    /// # Errors
    /// The folder is of another run or in use, or the data or the weights cannot be had.
    pub(crate) async fn open(
        mut config: RunConfig,
        around: RunSurroundings,
    ) -> anyhow::Result<(Self, TrainingData)> {
        let readiness = Readiness::starting(around.shutdown.clone());
        let operator = operator_page(&config, &readiness, &around.shutdown).await?;
        let folder = Storage::open(&config.storage.folder)?;
        let was_served = bound::read(&folder).await?.is_some();
        let keypair = own_keypair(&config.storage.folder, was_served)?;
        // First of all, so that nothing of another run is replayed.
        config.clone().bind(&folder).await?;
        let storage = match &config.storage.objects {
            #[cfg(feature = "operations")]
            Some(url) => folder.in_s3(url, &keypair.public().to_peer_id().to_string()).await?,
            // A program without `operations` refuses another configuration.
            _ => folder.clone(),
        };
        // The folder belongs to this process from here on: an address from before is stale.
        if let Err(error) = note_address(operator.as_ref().map(OperatorPage::address), &config.storage.folder)
        {
            // The run begins also where the disk is full; room is made later.
            tracing::warn!(
                error = format!("{error:#}"),
                "commands do not find the operator's page in this folder"
            );
        }
        let (source, cache) = (config.data_source(), config.data_cache());
        let streamed = source.streamed().cloned();
        let loaded = tokio::task::spawn_blocking(move || source.load(&cache));
        let data = loaded.await?.context("the data set cannot be had")?;
        config.bind_vocabulary(&folder, data.tokenizer.as_deref().unwrap_or_default()).await?;
        let shards_in = Storage::open_shared(&config.data_cache().join("shards"))?;
        let mut shards = ShardStore::open(shards_in, &data, config.sharding()).await?;
        let first = first_values(&config, &data).await.context("the weights of model.start_from")?;
        if let FirstWeights::Given(given) = first.weights {
            config.model.given = Some(given);
        }
        // In a run of another scheme nobody brings data.
        if matches!(config.scheme, SchemeSection::Sampled(_)) {
            shards = shards.with_preprocessing(&data)?;
        }
        if let Some(frozen) = &first.frozen {
            shards = shards.with_frozen(frozen.sized_shards()).await?;
        }
        let feed = match streamed {
            Some(settings) => Some(streaming::open(&storage, settings, &data).await?),
            None => None,
        };
        if let Some(feed) = &feed {
            shards = shards.with_stream(feed.shards().clone());
        }
        readiness.done(StartupStep::Data);
        let shards = Arc::new(shards);
        let opened = Self {
            config,
            storage,
            shards,
            first,
            readiness,
            keypair,
            feed,
            was_served,
            folder,
            operator,
            around,
        };
        Ok((opened, data))
    }

    /// The stores of a model with this layout.
    pub(crate) fn stores(&self, layout: &ParameterLayout) -> RunStores {
        let storage = &self.storage;
        let checkpoints = Checkpoints::new(storage.clone(), self.config.storage.keep_checkpoints);
        RunStores {
            journal: Journal::new(storage.clone()),
            checkpoints: checkpoints.aged(&AGES),
            disk_space: DiskSpace::new(storage.clone(), self.folder.clone(), checkpoint_bytes(layout)),
        }
    }
}

/// The weights that a run begins with: drawn, or those of `model.start_from`.
async fn first_values(config: &RunConfig, data: &TrainingData) -> anyhow::Result<FirstValues> {
    let spec = config.model_spec();
    let graph = ResolvedGraph::of_model(&spec, DataShape::of(&data.kind))?;
    let Some(start) = config.model.start_from.clone() else {
        let parameters = graph.layout().initial_parameters(spec.seed);
        return Ok(FirstValues { weights: spec.weights, parameters, frozen: None, drawn: Vec::new() });
    };
    let cache = config.data_cache();
    let read = move || {
        let start = start.local(&cache)?;
        anyhow::Ok(pretrained::first_values(&start, &spec, &graph)?)
    };
    let first = tokio::task::spawn_blocking(read).await??;
    if !first.drawn.is_empty() {
        let tensors = first.drawn.join(", ");
        tracing::info!(tensors, "begin anew: model.start_from does not have them in the shape of this run");
    }
    Ok(first)
}

/// A run on the network: its driver builds on this.
pub(crate) struct RunHost {
    pub(crate) config: RunConfig,
    pub(crate) shards: Arc<ShardStore>,
    /// The weights that its model does not train, where it has such.
    pub(crate) frozen: Option<FrozenWeights>,
    pub(crate) readiness: Readiness,
    pub(crate) access: Access,
    pub(crate) node: Node,
    pub(crate) dht: Dht,
    /// Signs tokens, receipts and records.
    pub(crate) key: KeyPair,
    pub(crate) addresses: BackboneAddresses,
    /// They end with the run; the first that fails ends it.
    pub(crate) tasks: RunTasks,
    pub(crate) shutdown: CancellationToken,
    /// Of data that are read while the run trains.
    feed: Option<StreamFeed>,
    /// A process served this run before.
    pub(crate) was_served: bool,
    /// Says which hosts have which experts, in a run whose model has such that peers host.
    pub(crate) holders: Option<HolderLookUp>,
    storage: Storage,
    operator: Option<OperatorPage>,
    /// Executes the operator's commands.
    admin: Option<Admin>,
    page: PageSource,
    contributor: LocalContributor,
    local_host: LocalHost,
    login: Option<Router>,
    rooms: Option<Rooms>,
}

/// What a driver shows of its run.
pub(crate) struct RunPage {
    pub(crate) description: Arc<RunDescription>,
    pub(crate) status: watch::Receiver<RunStatus>,
    pub(crate) events: broadcast::Receiver<LiveProgress>,
    pub(crate) store: Store,
    /// In a run that shares its model.
    pub(crate) models: Option<ModelFiles>,
    pub(crate) checkpoints: Checkpoints,
    /// Takes the operator's commands.
    pub(crate) commands: OperatorHandle,
    pub(crate) registry: Arc<MetricsRegistry>,
}

impl RunHost {
    /// Opens access control, and starts the node. No conversation is held before the driver accepts streams.
    pub(crate) async fn start(opened: OpenedRun) -> anyhow::Result<Self> {
        let OpenedRun {
            config,
            storage,
            shards,
            first,
            readiness,
            keypair,
            feed,
            was_served,
            operator,
            around,
            ..
        } = opened;
        let access = Access::open(&config, &keypair).await?;
        let rooms = rooms(&config, &access)?;
        let login = login_pages(&config.access, access.authority.as_ref())?;
        let key = signing_key(&keypair)?;
        let node = start_node(&config, keypair).await?;
        let dht = Dht::start(node.clone(), DhtConfig::from(&config.dht))?;
        let addresses = BackboneAddresses {
            run_id: config.run.id.clone(),
            operator: operator.as_ref().map(OperatorPage::address),
            addresses: node.addresses(),
        };
        let RunSurroundings { page, contributor, local_host, shutdown } = around;
        let tasks = RunTasks::default();
        Ok(Self {
            config,
            shards,
            frozen: first.frozen,
            readiness,
            access,
            node,
            dht,
            key,
            addresses,
            tasks,
            shutdown,
            feed,
            was_served,
            holders: None,
            storage,
            operator,
            admin: None,
            page,
            contributor,
            local_host,
            login,
            rooms,
        })
    }

    /// For all that lasts; in S3, where the run asks for it.
    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Opens the database of contributions, for a run that goes on from `epoch`.
    pub(crate) async fn credit(
        &self,
        journal: &Journal,
        epoch: u64,
        counters: CreditCounters,
    ) -> anyhow::Result<Credit> {
        let me = (self.node.peer_id(), self.key.clone());
        let credit = Credit::open(&self.config, me, (journal, epoch), counters).await?;
        self.readiness.has(&credit.store);
        Ok(credit)
    }

    /// Keeps the gate and the addresses in the DHT current until the run ends.
    pub(crate) fn keep_current(&mut self) {
        let (node, shutdown) = (&self.node, &self.shutdown);
        let poll_every = self.config.access.poll_interval;
        self.tasks.spawn(keep_gate_current(self.access.clone(), node.clone(), poll_every, shutdown.clone()));
        let (run_id, known) = (self.config.run.id.clone(), self.config.network.dht_peers.clone());
        let announcement = Announcement { run_id, key: self.key.clone(), known };
        self.tasks.spawn(announce(node.clone(), self.dht.clone(), announcement, shutdown.clone()));
    }

    /// Reads on where the data are a stream, as the run trains, with the weights of its sources.
    pub(crate) fn feed(
        &mut self,
        status: watch::Receiver<RunStatus>,
        weights: watch::Receiver<BTreeMap<String, f64>>,
    ) {
        let Some(feed) = self.feed.take() else { return };
        self.tasks.spawn(streaming::feed(feed, status, weights, self.shutdown.clone()));
    }

    /// Keeps the addresses in the run's status current: they change when certificates rotate.
    pub(crate) fn keep_addresses(&mut self, status: watch::Sender<RunStatus>) {
        self.tasks.spawn(refresh_addresses(self.node.clone(), status, self.shutdown.clone()));
    }

    /// Shares the model of an open run; in other runs it is for participants only.
    pub(crate) async fn share_model(
        &mut self,
        description: &Arc<RunDescription>,
        layout: ParameterLayout,
        of_data: (Option<Bytes>, Option<&DataColumns>),
    ) -> anyhow::Result<Option<SharedModel>> {
        let (config, shards) = (&self.config, Arc::clone(&self.shards));
        let shared = SharedModel::open(config, description, layout, &self.storage, of_data, shards).await?;
        Ok(shared.map(|(shared, keeping)| {
            self.tasks.spawn(keeping);
            shared
        }))
    }

    /// The configured device.
    ///
    /// # Errors
    /// This machine does not have it.
    pub(crate) async fn open_device(&self) -> anyhow::Result<ComputeDevice> {
        let device = open_device(self.config.device.kind.into()).await?;
        device.with_precision(self.config.device.precision.into()).context("device.precision")
    }

    /// Evaluates the published parameters on a thread of its own, until the driver has ended.
    pub(crate) fn evaluate(
        &mut self,
        run: &RunDescription,
        (data, device): (TrainingData, ComputeDevice),
        state: watch::Receiver<PublishedState>,
        publisher: Option<Publisher>,
        driver: EventSender<Evaluated>,
    ) {
        tracing::info!(device = device.name(), "evaluates on");
        let shape = DataShape::of(&data.kind);
        let (test, reference) = evaluated_on(&self.config.model.kind.graph().loss, data);
        let evaluator = Evaluator {
            test,
            reference,
            model: self.config.model_spec(),
            frozen: self.frozen.clone(),
            data: shape,
            device,
            every_epochs: self.config.evaluation.every_epochs,
            experts: run.model.hosted.is_some().then(|| AskedExperts {
                run: run.clone(),
                node: self.node.clone(),
                dht: self.dht.clone(),
                holders: self.holders.clone(),
                runtime: Handle::current(),
            }),
            publisher,
            clock: system_clock(),
        };
        self.tasks.spawn_blocking(move || {
            evaluator.run(state, &driver).context("the model could not be evaluated")
        });
    }

    /// Has the page served, begins, and waits for `driving`, which ends with the run's shutdown or before. Then comes
    /// `ending`, with which the driver's services end, and the host ends what is left.
    ///
    /// # Errors
    /// The page was not opened, the driver could not store the run, or a task failed.
    pub(crate) async fn drive<E: Into<anyhow::Error>>(
        mut self,
        page: RunPage,
        (recording, device): (Recording, ComputeDevice),
        mounting: oneshot::Sender<Mounted>,
        mut driving: impl Future<Output = Result<(), E>> + Unpin,
        ending: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        let begin = self.mount(page, mounting).await?;
        // It outlives the driver, to record its last contributions.
        let stop_recording = CancellationToken::new();
        self.tasks.spawn(recording.run(stop_recording.clone().cancelled_owned()));
        if self.config.device.contributes {
            self.contribute(device)?;
        }
        let hosting = hosting::start(&self).await?;
        // The receiver may be gone.
        let _ = begin.send(self.addresses.clone());
        let (ended, failure) = tokio::select! {
            ended = &mut driving => (ended, None),
            failure = self.tasks.failure() => {
                tracing::error!(error = format!("{failure:#}"), "the run ends: a part of it failed");
                self.shutdown.cancel();
                (driving.await, Some(failure))
            }
        };
        self.shutdown.cancel();
        ending.await;
        if let Some(hosting) = hosting {
            // Its leases and checkpoints go through this backbone: it is bounded by itself.
            let _ = hosting.await;
        }
        self.forget_address();
        stop_recording.cancel();
        let closed = self.close().await;
        ended.map_err(Into::into).context("the run could not be stored")?;
        failure.map_or(closed, Err)
    }

    /// Has the run's page and its operator's page served. Returns when they are; the receiver of the sender that is
    /// returned waits for the run to begin.
    ///
    /// # Errors
    /// The page is not opened: the process ends, or another run failed.
    async fn mount(
        &mut self,
        page: RunPage,
        mounting: oneshot::Sender<Mounted>,
    ) -> anyhow::Result<oneshot::Sender<BackboneAddresses>> {
        let admin = self.operator.as_ref().map(|_| {
            let run = HostedRun {
                description: page.description,
                operator: page.commands,
                gate: self.access.gate.clone(),
                contributions: page.store.clone(),
                checkpoints: page.checkpoints,
            };
            operating::admin(&self.config.storage.folder, run)
        });
        let admin = admin.transpose()?;
        let http = HttpState::new(self.page.clone(), page.status, page.events);
        let http = http.with_login(self.login.take()).with_contributions(page.store);
        let http = http.with_readiness(self.readiness.clone()).with_models(page.models);
        let (rooms, is_listed) = (self.rooms.take(), self.config.network.listed);
        let invitations = self.access.authority.as_ref().map(|authority| authority.store().clone());
        let run = SiteRun { http, is_listed, rooms, invitations };
        let (open, opened) = oneshot::channel();
        let (begin, begun) = oneshot::channel();
        let mounted = Mounted { run, node: self.node.clone(), open, begun };
        if mounting.send(mounted).is_err() || opened.await.is_err() {
            bail!("the page was not opened");
        }
        self.readiness.done(StartupStep::Listeners);
        if let (Some(operator), Some(admin)) = (&self.operator, &admin) {
            let routes = admin.clone().routes();
            operator.show(operator_routes_with(self.node.clone(), page.registry).merge(routes));
        }
        self.admin = admin;
        Ok(begin)
    }

    /// Starts a contributor of this process to this backbone.
    ///
    /// # Errors
    /// It has no key, or no address to dial.
    fn contribute(&self, device: ComputeDevice) -> anyhow::Result<()> {
        let key = self.config.storage.folder.join("contributor.key");
        let keypair = barnraise_relay::load_or_create_keypair(&key)?;
        (self.contributor)(&self.addresses.addresses, device, keypair)
    }

    /// Ends what the driver has left: the node and all tasks. The driver and its services are gone by then.
    ///
    /// # Errors
    /// A task failed.
    async fn close(mut self) -> anyhow::Result<()> {
        self.shutdown.cancel();
        if let Some(admin) = self.admin.take() {
            admin.finish().await;
        }
        self.node.shutdown().await;
        self.tasks.join().await
    }

    /// Takes the address of the admin API back: no command reaches the run any more.
    fn forget_address(&self) {
        if let Err(error) = note_address(None, &self.config.storage.folder) {
            tracing::warn!(%error, "the operator's address could not be taken back");
        }
    }
}

/// Approximate size, with two moments for each parameter.
fn checkpoint_bytes(layout: &ParameterLayout) -> u64 {
    (layout.n_parameters() as u64).saturating_mul(3 * size_of::<f32>() as u64)
}

/// Room codes, where the run has them and grants access itself.
fn rooms(config: &RunConfig, access: &Access) -> anyhow::Result<Option<Rooms>> {
    let Some(authority) = access.authority.as_ref().filter(|_| config.access.room) else { return Ok(None) };
    let key = RoomKey::load_or_create(&config.storage.folder)?;
    Ok(Some(Rooms::new(key, authority.store().clone(), system_clock())))
}

async fn start_node(config: &RunConfig, keypair: Keypair) -> anyhow::Result<Node> {
    let limits = config.node_limits();
    warn_about_open_files(limits.connections);
    let webtransport = WebTransportConfig {
        max_pending_handshakes: limits.pending_handshakes,
        ..WebTransportConfig::default()
    };
    let folder = &config.storage.folder;
    let node = NodeConfig {
        listen: config.network.listen.clone(),
        certificates_dir: Some(folder.join("certificates")),
        announce: config.network.announce.clone(),
        relays: config.network.relays.clone(),
        upnp: config.network.upnp,
        trusted_proxies: config.network.trusted_proxies.clone(),
        relay_service: config.relay_limits(),
        limits,
        webtransport,
        routing: Some(Routing::Server),
        ..NodeConfig::default()
    };
    Ok(Node::start(keypair, node).await?)
}

async fn refresh_addresses(node: Node, status: watch::Sender<RunStatus>, shutdown: CancellationToken) {
    let mut events = node.events();
    loop {
        let addresses: Vec<String> = node.addresses().iter().map(Multiaddr::to_string).collect();
        status.send_if_modified(|status| {
            let changed = status.addresses != addresses;
            status.addresses = addresses;
            changed
        });
        match shutdown.run_until_cancelled(events.recv()).await {
            // After missed events, too.
            Some(Ok(_) | Err(broadcast::error::RecvError::Lagged(_))) => {}
            Some(Err(broadcast::error::RecvError::Closed)) | None => return,
        }
    }
}
