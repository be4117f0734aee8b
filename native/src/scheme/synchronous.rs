//! The synchronous scheme (DeDLOC §3.1): all contributions to one target batch, one step, one model.
//!
//! This module only assembles a driver on the host; each part documents itself.

pub mod aggregators;
pub mod core;
mod learner;
mod ledger;
pub mod metrics;
mod operating;
mod progress;
pub mod recomputation;
#[cfg(test)]
mod stalls;
mod streams;

use std::sync::Arc;

use anyhow::Context;
use barnraise_learning::{ComputeDevice, ParameterLayout};
use barnraise_protocol::api::RunStatus;
use barnraise_protocol::commitment::STALENESS_EPOCHS_MAX;
use barnraise_protocol::contribute::RunProgress;
use barnraise_protocol::dht::progress::LocalProgress as Standing;
use barnraise_protocol::run::{RunDescription, SignedRun, Synchronous};
use barnraise_swarm::collection::CollectionRound;
use libp2p::Multiaddr;
use tokio::sync::{mpsc, oneshot, watch};

use self::aggregators::{Aggregators, Reducers, ServedStorage};
use self::core::{Core, CoreEvent, CoreStorage, EVENTS_MAX, Outputs};
use self::learner::Learner;
use self::ledger::SharedLedger;
use self::metrics::Metrics;
use self::progress::{ProgressAnnouncer, tell};
use self::recomputation::Standings;
use self::recomputation::exchange::poll_other_backbones;
use self::recomputation::queue::{RecomputationContext, Recomputing};
use self::streams::Services;
use crate::config::SynchronousSection;
use crate::data::TrainingData;
use crate::host::addresses::AddressGroups;
use crate::host::clock::system_clock;
use crate::host::contributions::{Issuer, NameRecorder, Recording, RefusalCounts, Store, WorkMeter};
use crate::host::conversations::RunServices;
use crate::host::evaluator::majority_accuracy;
use crate::host::events::EventSender;
use crate::host::evidence::EvidenceStore;
use crate::host::expert_hosts::service;
use crate::host::operator::request::OperatorHandle;
use crate::host::operator::state::OperatorStateStore;
use crate::host::readiness::StartupStep;
use crate::host::run::{
    BackboneAddresses, Credit, CreditCounters, Mounted, OpenedRun, RunHost, RunPage, RunStores,
};
use crate::host::sessions::SessionServices;
use crate::host::states::{PublishedState, States};
use crate::host::status::StatusPublisher;
use crate::net::speed::SpeedMeter;

/// Epochs whose parameters are kept: the newest; where contributions are recomputed or updates delayed, the one before;
/// and the earlier ones of which late work is accepted.
fn states_max(scheme: &Synchronous) -> usize {
    let before = scheme.recomputed || scheme.delayed_updates;
    let late = if scheme.local_steps.is_some() { STALENESS_EPOCHS_MAX } else { 0 };
    1 + usize::from(before) + late as usize
}

/// Drives a run until its shutdown. Its page is served elsewhere: `mounting` receives the routes, and training starts once
/// they are served.
///
/// # Errors
/// The run cannot be resumed, a background task failed, or the store would lose accepted work.
pub(crate) async fn run(
    opened: OpenedRun,
    scheme: SynchronousSection,
    data: TrainingData,
    mounting: oneshot::Sender<Mounted>,
) -> anyhow::Result<()> {
    let recovered = Recovered::of(&opened, scheme).await?;
    opened.readiness.done(StartupStep::Checkpoint);
    let host = Box::pin(RunHost::start(opened)).await?;
    let running = Box::pin(SynchronousRun::assemble(host, recovered, data)).await?;
    Box::pin(running.drive(mounting)).await
}

/// The model and the round of the last process, from checkpoint and journal.
struct Recovered {
    scheme: SynchronousSection,
    layout: ParameterLayout,
    evidence: EvidenceStore,
    standings: Standings,
    commands: OperatorStateStore,
    storing: CoreStorage,
    learner: Learner,
    round: CollectionRound,
}

impl Recovered {
    async fn of(opened: &OpenedRun, scheme: SynchronousSection) -> anyhow::Result<Self> {
        let config = &opened.config;
        let layout = learner::layout(config, opened.shards.manifest())?;
        let evidence =
            EvidenceStore::open(opened.storage.clone()).await.context("evidence cannot be read")?;
        let RunStores { journal, checkpoints, disk_space } = opened.stores(&layout);
        let checkpoint_every_epochs = config.storage.checkpoint_every_epochs;
        let storing = CoreStorage { journal, checkpoints, disk_space, checkpoint_every_epochs };
        let round = learner::round_config((config, &scheme), layout.n_parameters());
        let here = opened.keypair.public().to_peer_id();
        let has_others = config.aggregators.peers().any(|(peer, _)| peer != here);
        let stored = (&storing.checkpoints, &storing.journal);
        let first = opened.first.parameters.clone();
        let recovered = Learner::recover((config, &scheme), round, (&layout, first), stored, has_others);
        let (learner, round) = recovered.await.context("the run cannot be resumed")?;
        let standings = Standings::new(opened.storage.clone());
        let commands = OperatorStateStore::new(opened.storage.clone());
        Ok(Self { scheme, layout, evidence, standings, commands, storing, learner, round })
    }
}

/// What the parts of a driver share.
struct DriverParts {
    scheme: SynchronousSection,
    description: Arc<RunDescription>,
    device: ComputeDevice,
    metrics: Metrics,
    states: States,
    events: mpsc::Sender<CoreEvent>,
    store: Store,
    work: Arc<WorkMeter>,
    evidence: EvidenceStore,
}

/// A driver that is assembled, on its host.
struct SynchronousRun {
    host: RunHost,
    core: Core,
    heard: mpsc::Receiver<CoreEvent>,
    /// Dropped when the core has ended.
    services: Services,
    recording: Recording,
    page: RunPage,
    device: ComputeDevice,
}

impl SynchronousRun {
    async fn assemble(mut host: RunHost, recovered: Recovered, data: TrainingData) -> anyhow::Result<Self> {
        let Recovered { scheme, layout, evidence, standings, commands, storing, learner, round } = recovered;
        for known in evidence.convicted().await {
            host.access.gate.convict(known.peer, known.work);
        }
        let description = host.config.describe(host.shards.manifest().clone(), host.access.describe());
        let description = Arc::new(description);
        barnraise_contributor::description::validate(&description).context("the run cannot be trained")?;
        let device = host.open_device().await?;
        let majority = majority_accuracy(&data.test);
        let (outputs, state, status) = outputs(&learner, &description, &host.addresses, majority).await?;
        let metrics = Metrics::new(status.clone(), Some(storing.disk_space.clone()));
        host.readiness.stores_in(&storing.disk_space);
        let counters =
            CreditCounters { refused: refusals(&metrics), caught_up: metrics.of_run().caught_up() };
        let credit = host.credit(&storing.journal, learner.epoch(), counters).await?;
        let Credit { store, issuer, work, recording, crediting } = credit;
        let (events, heard) = mpsc::channel(EVENTS_MAX);
        let ledger = SharedLedger::restore(&description.data.manifest, &storing.journal, learner.epoch());
        let ledger = ledger.await.context("the journal cannot be read")?;
        let described = description.synchronous().context("the scheme is another one")?;
        let (states, following) = States::follow(state.clone(), states_max(described));
        host.tasks.spawn(following);
        let parts =
            DriverParts { scheme, description, device, metrics, states, events, store, work, evidence };
        let recomputing = parts.recompute(&mut host, standings).await?;
        let services = parts.services(&mut host, ledger, (issuer, recomputing));
        streams::serve(&services, host.config.network.contributors_max, &mut host.tasks)?;
        service::serve(services.as_ref(), &services.evidence, &mut host)
            .await
            .context("experts cannot be leased to hosts")?;
        let others = parts.coordinate(&mut host, &storing, outputs.stands.subscribe())?;
        host.keep_current();
        let of_data = (data.tokenizer.clone(), data.columns.as_ref());
        let models = host.share_model(&parts.description, layout, of_data).await?;
        let (publisher, models) = models.map(|shared| (shared.publisher, shared.files)).unzip();
        let operating = operating::resume(&host.config, commands, &host.access, &round, &storing).await?;
        let events = EventSender::new(parts.events.clone());
        host.evaluate(&parts.description, (data, parts.device.clone()), state, publisher, events);
        host.keep_addresses(outputs.status.status().clone());
        host.feed(status.clone(), operating.stream_weights());
        let page = RunPage {
            description: parts.description.clone(),
            status,
            events: outputs.status.events(),
            store: parts.store,
            models,
            checkpoints: storing.checkpoints.clone(),
            commands: OperatorHandle::new(parts.events),
            registry: parts.metrics.registry(),
        };
        let core = Core::new(parts.description, learner, round, storing, outputs, parts.metrics, crediting);
        let core = core.with_others(others).with_operator(operating);
        Ok(Self { host, core, heard, services, recording, page, device: parts.device })
    }

    async fn drive(self, mounting: oneshot::Sender<Mounted>) -> anyhow::Result<()> {
        let Self { host, core, heard, services, recording, page, device } = self;
        let shutdown = host.shutdown.clone().cancelled_owned();
        let ending = async {
            if let Some(recomputing) = &services.recomputing {
                recomputing.keep().await;
            }
            drop(services);
        };
        let driving = Box::pin(core.run(heard, shutdown));
        Box::pin(host.drive(page, (recording, device), mounting, driving, ending)).await
    }
}

impl DriverParts {
    /// Recomputes contributions, where the run asks for it.
    async fn recompute(
        &self,
        host: &mut RunHost,
        standings: Standings,
    ) -> anyhow::Result<Option<Recomputing>> {
        let Some(section) = self.scheme.recomputation_in(&host.config) else { return Ok(None) };
        let world = RecomputationContext {
            description: self.description.clone(),
            shards: host.shards.clone(),
            states: self.states.clone(),
            access: host.access.clone(),
            store: self.store.clone(),
            evidence: self.evidence.clone(),
            standings,
            metrics: self.metrics.clone(),
        };
        let recomputing = Recomputing::start(section, world, self.device.clone(), host.shutdown.clone());
        let (recomputing, working) = recomputing.await?;
        host.tasks.spawn(working);
        let here = host.node.peer_id();
        let others = host.config.aggregators.peers().map(|(peer, _)| peer).filter(|peer| *peer != here);
        let others = others.collect();
        let (access, node) = (host.access.clone(), host.node.clone());
        let asking = poll_other_backbones(recomputing.clone(), access, node, others, host.shutdown.clone());
        host.tasks.spawn(asking);
        Ok(Some(recomputing))
    }

    fn services(
        &self,
        host: &mut RunHost,
        ledger: SharedLedger,
        (issuer, recomputing): (Issuer, Option<Recomputing>),
    ) -> Services {
        let (names, recording) = NameRecorder::new(self.store.clone(), system_clock(), host.shutdown.clone());
        host.tasks.spawn(recording);
        Services {
            sessions: SessionServices {
                host: RunServices {
                    described: Arc::new(SignedRun {
                        run: self.description.as_ref().clone(),
                        signature: None,
                    }),
                    states: self.states.clone(),
                    shards: host.shards.clone(),
                    access: host.access.clone(),
                    node: host.node.clone(),
                    conversations: host.config.conversations.clone(),
                    metrics: self.metrics.of_run().clone(),
                },
                driver: EventSender::new(self.events.clone()),
                names,
                addresses: AddressGroups::new(&host.key),
            },
            ledger,
            core: self.events.clone(),
            metrics: self.metrics.clone(),
            issuer,
            work: self.work.clone(),
            recomputing,
            evidence: self.evidence.clone(),
        }
    }

    /// Links to the other aggregators, if the run has any, and this backbone's progress in the DHT.
    fn coordinate(
        &self,
        host: &mut RunHost,
        storing: &CoreStorage,
        stands: watch::Receiver<Standing>,
    ) -> anyhow::Result<Option<Aggregators>> {
        let (config, metrics) = (&host.config, &self.metrics);
        let stored =
            ServedStorage { journal: storing.journal.clone(), checkpoints: storing.checkpoints.clone() };
        let network = (host.node.clone(), host.dht.clone());
        let counted = (self.work.clone(), metrics.clone());
        let (reducers, accepting) = Reducers::start(config, &host.node, host.access.gate.clone(), counted)?;
        host.tasks.spawn(accepting);
        let aggregators = &config.aggregators;
        let speed = SpeedMeter::new(aggregators.download_per_second, aggregators.upload_per_second);
        let helpers = (reducers, speed.clone());
        let events = EventSender::new(self.events.clone());
        let others =
            Aggregators::start((config, &self.scheme), &self.description, network, helpers, &stored, events)?;
        let links = others.as_ref().map(Aggregators::links).unwrap_or_default();
        let telling =
            ProgressAnnouncer::new(config.run.id.clone(), host.key.clone(), aggregators, (links, speed));
        let telling = tell(host.dht.clone(), telling, stands, metrics.clone(), host.shutdown.clone());
        host.tasks.spawn(telling);
        Ok(others)
    }
}

/// Counts of refusals, for the database.
fn refusals(metrics: &Metrics) -> RefusalCounts {
    let metrics = metrics.clone();
    Box::new(move || metrics.refused())
}

async fn outputs(
    learner: &Learner,
    description: &RunDescription,
    here: &BackboneAddresses,
    majority_accuracy: Option<f32>,
) -> anyhow::Result<(Outputs, watch::Receiver<PublishedState>, watch::Receiver<RunStatus>)> {
    let (state, state_reader) = watch::channel(learner.publish(learner.epoch()).await?);
    let status = RunStatus {
        run: description.clone(),
        n_parameters: learner.n_parameters() as u64,
        addresses: here.addresses.iter().map(Multiaddr::to_string).collect(),
        progress: RunProgress {
            epoch: learner.epoch(),
            n_samples: 0,
            target_batch_size: description.scheme.step_samples(),
            n_contributors: 0,
            samples_per_second: 0.0,
            train_loss: learner.history().last().and_then(|point| point.train_loss),
            test_accuracy: learner.history().last_accuracy(),
        },
        history: learner.history().points().to_vec(),
        devices: Vec::new(),
        paused: None,
        majority_accuracy,
    };
    let status = StatusPublisher::new(status);
    let status_reader = status.status().subscribe();
    let (stands, _) = watch::channel(Standing {
        epoch: learner.epoch(),
        n_samples_total: learner.history().last().map_or(0, |point| point.n_samples_total),
        model: None,
        n_samples: 0,
        n_contributors: 0,
        samples_per_second: 0.0,
    });
    Ok((Outputs { state, status, stands }, state_reader, status_reader))
}
