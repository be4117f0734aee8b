//! This machine hosts experts of a run's model (Learning@home §3.3): `barnraise experts`, and beside their own work
//! `barnraise join --host-experts` and a backbone with `[hosting]`. Trainers find the experts in the DHT, have them compute, and
//! send gradients, by which they step here.
//!
//! A host is a peer of its own, with its own key, in a process of its own or not.
//! What is computed next is decided in [`barnraise_swarm::experts::serving`], and which places of the grid are served in
//! [`barnraise_swarm::experts::leases`]. Only the thread of the device has the experts.

mod announce;
mod answer;
mod batches;
pub(crate) mod beside;
pub mod command;
mod control;
mod copies;
mod device;
mod driver;
mod gate;
mod handing;
mod keep;
mod leasing;
mod lost;
mod operating;
mod places;
mod saving;
mod state;
mod store;
mod view;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, bail};
use barnraise_contributor::Credentials;
use barnraise_contributor::hosting::ExpertDevice;
use barnraise_learning::hosted::HostedLayer;
use barnraise_learning::{ComputeDevice, DeviceChoice, open_device};
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::experts::{self, AnswerSigner, ExpertPlace, LayerId};
use barnraise_protocol::run::{self, RunDescription};
use barnraise_relay::Node;
use barnraise_swarm::backoff::Backoff;
use barnraise_swarm::experts::leases::LeaseHolder;
use futures::future::{self, Either};
use libp2p::PeerId;
use libp2p::identity::Keypair;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::control::HostControl;
use self::driver::ExpertHosting;
use self::operating::HostOperating;
use self::state::HostState;
use self::store::ExpertStore;
use super::args::{CACHE_SIZE_DEFAULT, HostArgs, JoinAddress, RunName};
use super::cache::ShardCache;
use super::display::Display;
use super::home::HomeBackbone;
use super::own_access::{AccessPurpose, OwnAccess};
use super::platform::{ConnectError, ListenConfig, NativePlatform};
use super::tokens::gate_of;
use super::{micros, resolve_link};
use crate::config::cache_folder;
use crate::host::access;
use crate::host::addresses::AddressGroups;
use crate::host::expert_hosts::keeper::CheckpointKeeper;
use crate::storage::Storage;

/// A host keeps so many checkpoints of others for each expert that it has room for: twice as many as it is asked to on average,
/// where all hosts have as much room.
const KEPT_PER_EXPERT: u64 = 4;

/// What a host is started with.
pub(crate) struct HostSetup {
    /// Where the run is.
    pub(crate) address: JoinAddress,
    /// Its name, where the address is of another peer of the DHT.
    pub(crate) run: Option<RunName>,
    /// The code of an invitation that lets it host.
    pub(crate) invitation: Option<String>,
    /// Experts that it hosts at most.
    pub(crate) n_room: u32,
    /// Where they compute.
    pub(crate) device: ComputeDevice,
    /// For the experts, the key of this host, and what its operator needs. One process uses it.
    pub(crate) folder: PathBuf,
    /// Key file, instead of the one in the folder.
    pub(crate) identity: Option<PathBuf>,
    /// Where trainers reach it.
    pub(crate) doors: ListenConfig,
    /// Where it serves its operator.
    pub(crate) operator: SocketAddr,
}

/// Hosts experts until the user ends it, or its operator has drained it.
///
/// # Errors
/// There is no run at the address, or one whose model has no experts that peers host; a device or a folder that cannot be
/// opened.
pub async fn run(args: HostArgs, display: &Display) -> anyhow::Result<()> {
    let choice = DeviceChoice::from(args.device);
    let device = open_device(choice).await.with_context(|| format!("--device {choice} was asked for"))?;
    let leaving = CancellationToken::new();
    let leave = {
        let (display, leaving) = (display.clone(), leaving.clone());
        move || {
            display.say("Leaving: the experts are stored first. Once more to quit at once.");
            leaving.cancel();
        }
    };
    let _signals = barnraise_relay::signals::listen(leave)?;
    let (address, invitation) = resolve_link(args.address, args.invitation, display).await?;
    let setup = HostSetup {
        address,
        run: args.run,
        invitation,
        n_room: u32::try_from(args.experts).unwrap_or(u32::MAX),
        device,
        folder: args.folder.unwrap_or_else(default_folder),
        identity: args.identity,
        doors: ListenConfig { listen: args.listen, relays: args.relay },
        operator: args.operator,
    };
    host(setup, display, leaving).await
}

/// Hosts experts until `leaving`, or until its operator has drained it.
///
/// # Errors
/// As of [`run`].
async fn host(setup: HostSetup, display: &Display, leaving: CancellationToken) -> anyhow::Result<()> {
    let HostSetup { address, run, invitation, n_room, device, folder, .. } = setup;
    let storage = Storage::open(&folder).with_context(|| format!("the folder {}", folder.display()))?;
    let identity = setup.identity.unwrap_or_else(|| folder.join("identity.key"));
    let identity = barnraise_relay::lock_keypair(&identity)?;
    let keypair: Keypair = identity.keypair.clone();
    let key = access::signing_key(&keypair).context("hosts of experts sign with an Ed25519 key")?;
    display.say(&format!("Hosting on {}, as peer {}.", device.name(), keypair.public().to_peer_id()));
    let cache = ShardCache::new(cache_folder().join("peer"), CACHE_SIZE_DEFAULT.as_u64());
    let platform = NativePlatform::new(address.clone(), run.clone(), keypair, cache)
        .with_listen_config(setup.doors)
        .hosting_experts(folder.join("certificates"));
    let connecting = Box::pin(connected(&platform, display));
    let Some(connected) = leaving.run_until_cancelled(connecting).await else { return Ok(()) };
    let (node, home) = connected?;
    let described = run::describe(&mut node.open(home, run::PROTOCOL).await?).await?;
    barnraise_contributor::description::validate(&described).context("the run cannot be trained")?;
    let home = HomeBackbone::new(node.clone(), home, address, run);
    layers(&described)?;
    let credentials = Credentials { key: Some(key.clone()), invitation };
    let purpose = (AccessPurpose::HostExperts, display);
    let gaining = OwnAccess::gained((&platform, &home), (credentials, described.clone()), purpose);
    let Some(own_access) = leaving.run_until_cancelled(Box::pin(gaining)).await else { return Ok(()) };
    let own_access = own_access?;
    let (state, store) = opened(&described, (storage, key, home), n_room).await?;
    let experts = ExpertDevice::new(described.model.clone(), state.layers.clone(), device.clone());
    let started = device::start(experts, device)?;
    let id = &described.identity.run_id;
    display.say(&format!("Room for {n_room} experts of `{id}`: asking the run which ones are wanted."));
    let (state, (control, requests)) = (Arc::new(state), HostControl::new());
    let operating = HostOperating::open(setup.operator, &folder, (state.clone(), control)).await?;
    let hosting = ExpertHosting { state: state.clone(), store, display };
    let mut serving = Box::pin(hosting.serve(started, requests, leaving.clone()));
    let keeping = Box::pin(own_access.keep(&state.home, drop));
    let served = match future::select(&mut serving, keeping).await {
        Either::Left((served, _)) => served,
        Either::Right((error, _)) => {
            display.say(&format!("This host may not take part any longer: {error}. Its experts are stored."));
            leaving.cancel();
            serving.await.and(Err(error.into()))
        }
    };
    operating.finish(&state).await;
    node.shutdown().await;
    served
}

/// A node that is connected to a backbone of the run. What may be temporary is tried again.
async fn connected(platform: &NativePlatform, display: &Display) -> Result<(Node, PeerId), ConnectError> {
    let (mut backoff, mut told) = (Backoff::new(micros()), None);
    loop {
        match platform.connect_home().await {
            Err(error) if !error.is_mistake() => {
                let reason = error.to_string();
                if told.as_ref() != Some(&reason) {
                    display.say(&format!("{reason}. It is tried again, less and less often."));
                    told = Some(reason);
                }
                tokio::time::sleep(backoff.next_delay()).await;
            }
            connected => return connected,
        }
    }
}

/// What a host of this run begins with.
async fn opened(
    described: &RunDescription,
    (storage, key, home): (Storage, KeyPair, HomeBackbone),
    n_room: u32,
) -> anyhow::Result<(HostState, ExpertStore)> {
    let layers = layers(described)?;
    let parameters = experts::parameters_hash(described)?;
    let run_id = described.identity.run_id.clone();
    let largest = layers.iter().map(HostedLayer::checkpoint_bytes_max).max().unwrap_or_default();
    let bytes_max = largest.saturating_mul(KEPT_PER_EXPERT).saturating_mul(n_room.into());
    let keeper =
        CheckpointKeeper::open((&run_id, parameters), layers.clone(), storage.clone(), bytes_max).await?;
    let store = ExpertStore::new(storage, parameters);
    let (own, frozen) = (store.places(&layers).await?, store.frozen().await?);
    let inner = batches::idle(frozen, &layers);
    let seed = key.public().seed();
    let state = HostState {
        run_id,
        groups: AddressGroups::new(&key),
        gate: gate_of(described, key.public()),
        signer: AnswerSigner { key, model: experts::model_hash(described)? },
        home,
        layers,
        keeper: Arc::new(keeper),
        leases: Mutex::new(LeaseHolder::new(n_room as usize, own, seed)),
        leases_changed: Notify::new(),
        inner: Mutex::new(inner),
        changed: Notify::new(),
        drained_heard: Notify::new(),
        n_room,
        started: Instant::now(),
    };
    Ok((state, store))
}

/// Folder of a host, where nobody names one.
pub(crate) fn default_folder() -> PathBuf {
    cache_folder().join("experts")
}

/// The first few places, for people.
fn shown(experts: &[ExpertPlace]) -> String {
    const SHOWN: usize = 8;
    let mut by_layer: BTreeMap<LayerId, Vec<String>> = BTreeMap::new();
    for (layer, uid) in experts.iter().take(SHOWN) {
        by_layer.entry(*layer).or_default().push(uid.to_string());
    }
    let layers = by_layer.iter().map(|(layer, uids)| format!("layer {}: {}", layer.0, uids.join(", ")));
    let more = if experts.len() > SHOWN { ", …" } else { "" };
    layers.collect::<Vec<_>>().join("; ") + more
}

/// The layers of a run's model whose experts peers host.
fn layers(run: &RunDescription) -> anyhow::Result<Vec<HostedLayer>> {
    if run.model.hosted.is_none() {
        bail!(
            "`{}` has no experts that peers host: its operator writes [model.experts] for that",
            run.identity.run_id
        );
    }
    Ok(HostedLayer::of_run(run)?)
}
