//! `barnraise experts`: this machine hosts experts of a run's model (Learning@home §3.3). Trainers find them in the DHT, have
//! them compute, and send gradients, by which they step here.
//!
//! What is computed next is decided in [`barnraise_swarm::experts::serving`]. Only the thread of the device has the experts.

mod announce;
mod answer;
mod device;
mod driver;
mod places;
mod state;
mod store;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use barnraise_learning::graph::{HostedBody, ResolvedGraph};
use barnraise_learning::{DataShape, DeviceChoice, open_device};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::AccessMode;
use barnraise_protocol::commitment::run_hash;
use barnraise_protocol::experts::{ExpertUid, GridShape, LayerId};
use barnraise_protocol::run::{self, RunDescription};
use libp2p::identity::Keypair;
use tokio_util::sync::CancellationToken;

use self::device::ExpertDevice;
use self::driver::ExpertHosting;
use self::store::ExpertStore;
use super::args::{CACHE_SIZE_DEFAULT, ExpertsArgs};
use super::cache::ShardCache;
use super::display::Display;
use super::platform::{ListenConfig, NativePlatform};
use crate::config::cache_folder;
use crate::host::access;
use crate::storage::Storage;

/// A layer of the model, and the grid that its experts stand on.
#[derive(Debug, Clone)]
struct HostedLayer {
    id: LayerId,
    grid: GridShape,
    body: Arc<HostedBody>,
}

/// Where an expert stands.
type ExpertPlace = (LayerId, ExpertUid);

/// Hosts experts until the user ends it.
///
/// # Errors
/// There is no run at the address, or one whose model has no experts that peers host; a device or a folder that cannot be
/// opened.
pub async fn run(args: ExpertsArgs, display: &Display) -> anyhow::Result<()> {
    let folder = args.folder.unwrap_or_else(default_folder);
    let storage = Storage::open(&folder).with_context(|| format!("the folder {}", folder.display()))?;
    let identity = args.identity.unwrap_or_else(|| folder.join("identity.key"));
    let identity = barnraise_relay::lock_keypair(&identity)?;
    let keypair: Keypair = identity.keypair.clone();
    let key = access::signing_key(&keypair).context("hosts of experts sign with an Ed25519 key")?;
    let choice = DeviceChoice::from(args.device);
    let device = open_device(choice).await.with_context(|| format!("--device {choice} was asked for"))?;
    display.say(&format!("Computing on {}, as peer {}.", device.name(), keypair.public().to_peer_id()));
    let leaving = CancellationToken::new();
    let leave = {
        let (display, leaving) = (display.clone(), leaving.clone());
        move || {
            display.say("Leaving: the experts are stored first. Once more to quit at once.");
            leaving.cancel();
        }
    };
    let _signals = barnraise_relay::signals::listen(leave)?;

    let cache = ShardCache::new(cache_folder().join("peer"), CACHE_SIZE_DEFAULT.as_u64());
    let doors = ListenConfig { listen: args.listen, relays: args.relay };
    let platform = NativePlatform::new(args.address.address, args.run, keypair, cache)
        .with_listen_config(doors)
        .hosting_experts(folder.join("certificates"));
    let (node, home) = platform.connect_home().await?;
    let described = run::describe(&mut node.open(home, run::PROTOCOL).await?).await?;
    barnraise_contributor::description::validate(&described).context("the run cannot be trained")?;
    let layers = layers(&described)?;
    let store = ExpertStore::new(storage, run_hash(&described)?);
    let mut expert_device = ExpertDevice::new(described.model.clone(), layers.clone(), device);
    let wanted = args.experts;
    let mut experts = store.places(&layers).await?;
    experts.truncate(wanted);
    let found = places::vacant((&node, home), &described, &layers, &experts, wanted - experts.len()).await?;
    experts.extend(found);
    for &place in &experts {
        let stored = store.load(place).await?;
        expert_device.add(place, stored)?;
    }
    let id = &described.identity.run_id;
    display.say(&match experts.len() {
        0 => format!("All experts of `{id}` have a host already."),
        n => format!("Hosting {n} experts of `{id}`: {}", shown(&experts)),
    });
    if !experts.is_empty() {
        let hosting = ExpertHosting { node: node.clone(), home, key, run: described, layers, store, display };
        hosting.serve(expert_device.start()?, leaving).await?;
    }
    node.shutdown().await;
    Ok(())
}

fn default_folder() -> PathBuf {
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
    if run.access.mode != AccessMode::Open {
        bail!("experts are hosted in open runs, and `{}` is not open", run.identity.run_id);
    }
    let graph = ResolvedGraph::of_model(&run.model, DataShape::of(&run.data.manifest.samples))?;
    let mut layers: Vec<HostedLayer> = Vec::new();
    for (grid, body) in graph.hosted() {
        let side = u16::try_from(grid.side)?;
        let grid = GridShape::new(&vec![side; grid.n_dimensions])?;
        layers.push(HostedLayer { id: LayerId(u16::try_from(body.layer)?), grid, body: body.clone() });
    }
    Ok(layers)
}

/// Name of an expert in a folder.
fn name((layer, uid): ExpertPlace) -> String {
    format!("{}-{uid}", layer.0)
}

/// A number that follows from a place, for everybody the same.
fn order_of(place: ExpertPlace, by: &[u8]) -> Sha256Hash {
    Sha256Hash::of(&[name(place).as_bytes(), by].concat())
}
