//! `barnraise serve`: a backbone from its configuration to its shutdown.
//!
//! This module only puts the parts together; each part says itself what it does.

mod addresses;
pub mod aggregators;
mod announce;
pub mod core;
mod evaluator;
mod identity;
mod learner;
mod ledger;
pub mod metrics;
pub(crate) mod misdeeds;
mod operating;
pub(crate) mod places;
mod progress;
mod recomputing;
#[cfg(test)]
mod stalls;
mod states;
mod streams;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use barnraise_learning::unigram::Vocabulary;
use barnraise_learning::{DataShape, LocalStepsError, ParameterLayout, open_device};
use barnraise_protocol::access::{AccessMode, KeyPair};
use barnraise_protocol::api::RunStatus;
use barnraise_protocol::contribute::Progress;
use barnraise_protocol::dataset::Manifest;
use barnraise_protocol::dht::progress::Progress as Standing;
use barnraise_protocol::run::RunDescription;
use barnraise_relay::dht::{Dht, DhtConfig};
use barnraise_relay::server::{HostNames, operator_routes_with};
use barnraise_relay::{Node, NodeConfig, Routing, warn_about_open_files};
use barnraise_swarm::PeerKey;
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::access::login::Login;
use crate::access::rooms::{RoomKey, Rooms};
use crate::access::{Access, keep_up, signing_key, system_clock};
use crate::admin::Run;
use crate::admin::kept::KeptStore;
use crate::config::RunConfig;
use crate::contributions::{Crediting, Issuer, KnownReceipts, Names, Recording, Store, WorkMeter};
use crate::data::shards::ShardStore;
use crate::http::HttpState;
use crate::models::{Facts, Keeper, ModelFiles, Publisher};
use crate::page::Page;
use crate::peer;
use crate::readiness::{OperatorPage, Part, Readiness};
use crate::recomputation::{EvidenceStore, Standings};
use crate::site::SiteRun;
use crate::site::serve::Mounted;
use crate::storage::checkpoint::{AGES, Checkpoints};
use crate::storage::journal::Journal;
use crate::storage::room::Room;
use crate::storage::{Storage, bound};
use addresses::Addresses;
use aggregators::{Aggregators, Reducers, SpeedMeter, Stored};
use announce::{Announcement, announce};
use core::{Core, EVENTS_MAX, Outputs, Storing, Together};
use evaluator::{Evaluator, evaluated_on};
pub use identity::identity;
use identity::own_keypair;
use learner::{Learner, PublishedState};
use ledger::SharedLedger;
use metrics::Metrics;
use progress::{Telling, tell};
use recomputing::exchange::ask_others;
use recomputing::{Recomputing, World};
use states::States;
use streams::Services;

/// Live progress that a slow reader may lag behind.
const LIVE_EVENTS: usize = 16;
/// An operator's connection lasts at least that long without an answer: going back to a checkpoint, or hashing one, takes
/// a while.
const OPERATOR_PATIENCE_MIN: Duration = Duration::from_secs(60);

/// Where a backbone can be reached.
#[derive(Debug, Clone)]
pub struct Listening {
    /// The run's id.
    pub run_id: String,
    /// `/healthz`, `/readyz`, `/metrics` and `/addresses`, where they are served.
    pub operator: Option<SocketAddr>,
    /// libp2p, peer id included.
    pub addresses: Vec<Multiaddr>,
}

/// Runs a backbone until `shutdown` is cancelled. Its page is not served here: `mounting` is told what there is to be
/// seen, and nothing is trained before it is.
///
/// # Errors
/// Whatever keeps it from starting, or a store that would lose accepted work.
pub async fn run(
    config: RunConfig,
    page: Page,
    mounting: oneshot::Sender<Mounted>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let readiness = Readiness::starting(shutdown.clone());
    let operator = operator_page(&config, &readiness, &shutdown).await?;
    let mut storage = Storage::open(&config.storage.folder)?;
    let keypair = own_keypair(&config.storage.folder, bound::read(&storage).await?.is_some())?;
    // Before anything else is there: what is not of this run is not replayed as if it were.
    config.clone().bind(&storage).await?;
    let folder = storage.clone();
    if let Some(url) = &config.storage.objects {
        storage = storage.in_s3(url, &keypair.public().to_peer_id().to_string()).await?;
    }
    // The folder is this process's from here on: what another one noted there is stale.
    operating::note_address(operator.as_ref().map(OperatorPage::address), &config.storage.folder)?;
    let (source, cache) = (config.data_source(), config.data_cache());
    let loaded = tokio::task::spawn_blocking(move || source.load(&cache));
    let dataset = loaded.await?.context("the data set cannot be had")?;
    let shards_in = Storage::open_shared(&config.data_cache().join("shards"))?;
    let shards = Arc::new(ShardStore::open(shards_in, &dataset, config.sharding()).await?);
    let layout = learner::layout(&config, shards.manifest())?;
    readiness.done(Part::Data);

    let evidence = EvidenceStore::open(storage.clone()).await.context("evidence cannot be read")?;
    let (objects, standings) = (storage.clone(), Standings::new(storage.clone()));
    let kept = KeptStore::new(storage.clone());
    let storing = Storing {
        journal: Journal::new(storage.clone()),
        checkpoints: Checkpoints::new(storage.clone(), config.storage.keep_checkpoints).aged(&AGES),
        room: Room::new(storage, folder, checkpoint_bytes(&layout)),
        checkpoint_every_epochs: config.storage.checkpoint_every_epochs,
    };
    let round = learner::round_config(&config, layout.n_parameters());
    let here = keypair.public().to_peer_id();
    let has_others = config.aggregators.peers().any(|(peer, _)| peer != here);
    let stored = (&storing.checkpoints, &storing.journal);
    let recovered = Learner::recover(&config, round, &layout, stored, has_others);
    let (mut learner, round) = recovered.await.context("the run cannot be resumed")?;
    readiness.done(Part::Checkpoint);

    let access = Access::open(&config, &keypair).await?;
    for known in evidence.convicted().await {
        access.gate.convict(known.peer, known.epoch);
    }
    let rooms = rooms(&config, &access)?;
    let invitations = access.authority.as_ref().map(|authority| authority.store().clone());
    let login = Login::new(&config.access, access.authority.as_ref())?;
    let signing_key = signing_key(&keypair)?;
    let node = start_node(&config, keypair).await?;
    let dht = Dht::start(node.clone(), DhtConfig::from(&config.dht))?;
    let here = Listening {
        run_id: config.run.id.clone(),
        operator: operator.as_ref().map(OperatorPage::address),
        addresses: node.addresses(),
    };

    let description = Arc::new(describe(&config, &access, shards.manifest(), &layout)?);
    let device = open_device(config.device.kind.into()).await?;
    let device = device.with_precision(config.device.precision.into()).context("device.precision")?;
    tracing::info!(device = device.name(), "evaluates on");
    let (outputs, state, status) = outputs(&learner, &description, &here)?;
    let events = outputs.events.clone();
    let metrics = Metrics::new(status.clone(), Some(storing.room.clone()));
    readiness.stores_in(&storing.room);
    let credit = credit(&config, node.peer_id(), signing_key.clone(), &storing.journal, &learner, &metrics);
    let Credit { store, issuer, work, recording, crediting } = credit.await?;
    let meter = work.clone();
    readiness.has(&store);
    let (core_events, heard) = mpsc::channel(EVENTS_MAX);
    let n_samples = description.manifest.n_samples();
    let ledger = SharedLedger::restore(n_samples, &storing.journal, learner.epoch());
    let ledger = ledger.await.context("the journal cannot be read")?;
    let states = States::follow(state.clone());
    let world = World {
        description: description.clone(),
        shards: shards.clone(),
        states: states.clone(),
        access: access.clone(),
        store: store.clone(),
        evidence: evidence.clone(),
        standings,
        metrics: metrics.clone(),
    };
    let recomputing = match config.recomputation() {
        Some(section) => Some(Recomputing::start(section, world, device.clone(), shutdown.clone()).await?),
        None => None,
    };
    if let Some(recomputing) = recomputing.clone() {
        let others = config.aggregators.peers().map(|(peer, _)| peer).filter(|peer| *peer != node.peer_id());
        let asking =
            ask_others(recomputing, access.clone(), node.clone(), others.collect(), shutdown.clone());
        tokio::spawn(asking);
    }
    let services = Services {
        description: description.clone(),
        states,
        ledger,
        shards,
        core: core_events.clone(),
        access: access.clone(),
        node: node.clone(),
        metrics: metrics.clone(),
        issuer,
        names: Names::start(store.clone(), system_clock()),
        work,
        conversations: config.conversations.clone(),
        addresses: Addresses::new(&signing_key),
        recomputing: recomputing.clone(),
        evidence,
    };
    streams::serve(&services, config.network.contributors_max)?;
    let stored = Stored { journal: storing.journal.clone(), checkpoints: storing.checkpoints.clone() };
    let network = (node.clone(), dht.clone());
    let reducers = Reducers::start(&config, &node, access.gate.clone(), (meter, metrics.clone()))?;
    let speed = SpeedMeter::new(config.aggregators.download_per_second, config.aggregators.upload_per_second);
    let helpers = (reducers, speed.clone());
    let others = Aggregators::start(&config, &description, network, helpers, &stored, core_events.clone())?;
    let links = others.as_ref().map(Aggregators::links).unwrap_or_default();
    let together = match others {
        Some(others) => {
            let me = PeerKey(node.peer_id().to_bytes());
            learner.was_alone(&me.0);
            Some(Together::new(others, &learner, me, config.run.target_batch_size)?)
        }
        None => None,
    };
    let keeping = keep_up(access, node.clone(), config.access.poll_interval, shutdown.clone());
    let keeping = tokio::spawn(keeping);
    let (run_id, known) = (config.run.id.clone(), config.network.dht_peers.clone());
    let telling = Telling::new(run_id.clone(), signing_key.clone(), &config.aggregators, (links, speed));
    let stands = outputs.stands.subscribe();
    let telling = tokio::spawn(tell(dht.clone(), telling, stands, metrics.clone(), shutdown.clone()));
    let announcement = Announcement { run_id, key: signing_key, known };
    let announcing = tokio::spawn(announce(node.clone(), dht, announcement, shutdown.clone()));
    let data = DataShape::of(&dataset.kind);
    let vocabulary = dataset.vocabulary.clone();
    let (test, reference) = evaluated_on(&config.run.model, dataset);
    let contributes_on = config.device.contributes.then(|| device.clone());
    let models = give_away(&config, &description, layout, objects, vocabulary.as_ref()).await?;
    let (publisher, model_files, keeping_models) = models.map_or((None, None, None), |models| {
        (Some(models.publisher), Some(models.files), Some(models.keeping))
    });
    let operating = operating::resume(&config, kept, &services.access, &round, &storing).await?;
    let admin = operator.as_ref().map(|_| {
        let run = Run {
            description: description.clone(),
            core: core_events.clone(),
            gate: services.access.gate.clone(),
            contributions: store.clone(),
            checkpoints: storing.checkpoints.clone(),
        };
        operating::admin(&config.storage.folder, run)
    });
    let admin = admin.transpose()?;
    let evaluator = Evaluator {
        test,
        reference,
        model: config.model_spec(),
        data,
        device,
        every_epochs: config.evaluation.every_epochs,
        publisher,
        clock: system_clock(),
    };
    let evaluating = tokio::task::spawn_blocking(move || evaluator.run(state, &core_events));
    let refreshing = tokio::spawn(refresh_addresses(node.clone(), outputs.status.clone(), shutdown.clone()));
    let http_state = HttpState::new(page, status, events.subscribe());
    let http_state = http_state.with_login(login).with_contributions(store).with_readiness(readiness.clone());
    let http = http_state.with_models(model_files);
    let run = SiteRun { http, is_listed: config.network.listed, rooms, invitations };
    drop(events);
    let (open, opened) = oneshot::channel();
    let (begin, begun) = oneshot::channel();
    let mounted = Mounted { run, node: node.clone(), open, begun };
    if mounting.send(mounted).is_err() || opened.await.is_err() {
        bail!("the page was not opened");
    }
    readiness.done(Part::Listeners);
    if let (Some(operator), Some(admin)) = (operator, admin) {
        operator.show(operator_routes_with(node.clone(), metrics.registry()).merge(admin.routes()));
    }
    // It outlives the core, whose last words it writes down.
    let stop_recording = CancellationToken::new();
    let recording = tokio::spawn(recording.run(stop_recording.clone().cancelled_owned()));
    let core = Core::new(description, learner, round, storing, outputs, metrics, crediting);
    let core = core.with(together).operated(operating);
    if let Some(device) = contributes_on {
        let keypair =
            barnraise_relay::load_or_create_keypair(&config.storage.folder.join("contributor.key"))?;
        peer::beside(&here.addresses, device, keypair)?;
    }
    // Whoever asked may have stopped listening for the answer.
    let _ = begin.send(here);

    let ended = core.run(heard, shutdown.cancelled()).await;
    shutdown.cancel();
    if let Some(recomputing) = recomputing {
        recomputing.keep().await;
    }
    if let Err(error) = operating::note_address(None, &config.storage.folder) {
        tracing::warn!(%error, "the operator's address could not be taken back");
    }
    stop_recording.cancel();
    drop(services);
    node.shutdown().await;
    refreshing.await?;
    keeping.await?;
    announcing.await?;
    telling.await?;
    recording.await?;
    evaluating.await.context("the evaluation thread failed")??;
    if let Some(keeping) = keeping_models {
        // The publisher went with the evaluator.
        keeping.await?;
    }
    ended.context("the run could not be stored")
}

/// About, with the moments of an optimizer that has two.
fn checkpoint_bytes(layout: &ParameterLayout) -> u64 {
    (layout.n_parameters() as u64).saturating_mul(3 * size_of::<f32>() as u64)
}

/// Where the run has them, and grants access itself.
fn rooms(config: &RunConfig, access: &Access) -> anyhow::Result<Option<Rooms>> {
    let Some(authority) = access.authority.as_ref().filter(|_| config.access.room) else { return Ok(None) };
    let key = RoomKey::load_or_create(&config.storage.folder)?;
    Ok(Some(Rooms::new(key, authority.store().clone(), system_clock())))
}

/// All that gives the model away.
struct GivingAway {
    publisher: Publisher,
    files: ModelFiles,
    keeping: tokio::task::JoinHandle<()>,
}

/// Only an open run does: in others the model is for those who take part.
async fn give_away(
    config: &RunConfig,
    description: &Arc<RunDescription>,
    layout: ParameterLayout,
    storage: Storage,
    vocabulary: Option<&Vocabulary>,
) -> anyhow::Result<Option<GivingAway>> {
    if config.access.mode != AccessMode::Open {
        return Ok(None);
    }
    let (run, license) = (Arc::clone(description), config.run.license.clone());
    let facts = Facts { run, layout: Arc::new(layout), license };
    let (keeper, kept) = Keeper::open(storage.clone(), &config.storage.keep_models).await?;
    let (publisher, latest) = Publisher::new(facts.clone());
    let keeping = tokio::spawn(keeper.run(latest.clone()));
    let files = ModelFiles::new(facts, latest, kept, storage, system_clock());
    let files = files.with_vocabulary(vocabulary)?;
    Ok(Some(GivingAway { publisher, files, keeping }))
}

/// All that gives credit for contributions.
struct Credit {
    store: Store,
    issuer: Issuer,
    work: Arc<WorkMeter>,
    recording: Recording,
    crediting: Crediting,
}

async fn credit(
    config: &RunConfig,
    here: PeerId,
    key: KeyPair,
    journal: &Journal,
    learner: &Learner,
    metrics: &Metrics,
) -> anyhow::Result<Credit> {
    let (folder, url) = (&config.storage.folder, config.contributions.database.as_deref());
    let store = Store::open(folder, url, &config.run.id, here).await?;
    let (issuer, work) = (Issuer::new(&config.run.id, key), Arc::new(WorkMeter::default()));
    let known = KnownReceipts::restore(journal, learner.epoch(), &issuer).await?;
    let (recording, recorder) = Recording::new(
        store.clone(),
        journal.clone(),
        issuer.clone(),
        learner.epoch(),
        Box::new({
            let metrics = metrics.clone();
            move || metrics.refused()
        }),
        Arc::clone(&work),
    )
    .await?;
    let recording = recording.marking(metrics.caught_up());
    let crediting = Crediting::new(issuer.clone(), known, recorder, Arc::clone(&work), system_clock());
    Ok(Credit { store, issuer, work, recording, crediting })
}

async fn operator_page(
    config: &RunConfig,
    readiness: &Readiness,
    stop: &CancellationToken,
) -> anyhow::Result<Option<OperatorPage>> {
    let Some(address) = config.network.operator else { return Ok(None) };
    let timeout = config.network.http_timeout.max(OPERATOR_PATIENCE_MIN);
    let names = HostNames::new("operator_names", &config.network.operator_names);
    OperatorPage::open(address, names, timeout, readiness.clone(), stop.clone()).await.map(Some)
}

async fn start_node(config: &RunConfig, keypair: Keypair) -> anyhow::Result<Node> {
    warn_about_open_files(config.limits.connections);
    let folder = &config.storage.folder;
    let node = NodeConfig {
        listen: config.network.listen.clone(),
        certificates_dir: Some(folder.join("certificates")),
        announce: config.network.announce.clone(),
        relays: config.network.relays.clone(),
        upnp: config.network.upnp,
        trusted_proxies: config.network.trusted_proxies.clone(),
        limits: config.limits.clone(),
        routing: Some(Routing::Server),
        ..NodeConfig::default()
    };
    Ok(Node::start(keypair, node).await?)
}

/// The run as contributors see it.
fn describe(
    config: &RunConfig,
    access: &Access,
    manifest: &Manifest,
    layout: &ParameterLayout,
) -> Result<RunDescription, LocalStepsError> {
    Ok(RunDescription {
        run_id: config.run.id.clone(),
        title: config.run.title.clone(),
        purpose: config.run.purpose.clone(),
        access: access.describe(),
        model: config.model_spec(),
        n_parameters: layout.n_parameters() as u64,
        target_batch_size: config.run.target_batch_size,
        micro_batch_size: config.run.micro_batch_size,
        shuffle_buffer_samples: config.run.shuffle_buffer_samples,
        gradient_codec: config.run.gradient_codec,
        slow_links: config.run.slow_links,
        compression: config.compression,
        delayed_updates: config.run.delayed_updates,
        local_steps: config.run.local_steps.map(|section| section.describe()).transpose()?,
        state_codec: config.run.state_codec,
        contribution_samples_max: config.contribution_samples_max(),
        recomputed: config.recomputation().is_some(),
        manifest: manifest.clone(),
    })
}

fn outputs(
    learner: &Learner,
    description: &RunDescription,
    here: &Listening,
) -> anyhow::Result<(Outputs, watch::Receiver<PublishedState>, watch::Receiver<RunStatus>)> {
    let (state, state_reader) = watch::channel(learner.publish()?);
    let status = RunStatus {
        run: description.clone(),
        addresses: here.addresses.iter().map(Multiaddr::to_string).collect(),
        progress: Progress {
            epoch: learner.epoch(),
            n_samples: 0,
            target_batch_size: description.target_batch_size,
            n_contributors: 0,
            samples_per_second: 0.0,
            train_loss: learner.history().last().and_then(|point| point.train_loss),
            test_accuracy: learner.history().last_accuracy(),
        },
        history: learner.history().points().to_vec(),
        devices: Vec::new(),
        paused: None,
    };
    let (status, status_reader) = watch::channel(status);
    let (events, _) = broadcast::channel(LIVE_EVENTS);
    let (stands, _) = watch::channel(Standing {
        epoch: learner.epoch(),
        n_samples_total: learner.history().last().map_or(0, |point| point.n_samples_total),
        model: None,
        n_samples: 0,
        n_contributors: 0,
        samples_per_second: 0.0,
    });
    Ok((Outputs { state, status, events, stands }, state_reader, status_reader))
}

/// Certificates rotate, and addresses with them: whoever asks over HTTP gets those of now.
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
            // Whoever missed events looks again, too.
            Some(Ok(_) | Err(broadcast::error::RecvError::Lagged(_))) => {}
            Some(Err(broadcast::error::RecvError::Closed)) | None => return,
        }
    }
}
