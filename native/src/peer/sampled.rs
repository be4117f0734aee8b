//! A participant of a run without a server (MoDEST §3): it trains on its part of the data when it is in a sample, and
//! aggregates where others can dial it.
//!
//! The peer at the address is needed for the description, the data and the first acquaintances. From then on the run goes on
//! without it, and this participant describes the run to others.

mod handed_out;
mod held_out;
mod keeping;
mod page;
mod served;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use barnraise_contributor::{Credentials, EncodedModel, encode, shards_of};
use barnraise_learning::{ComputeDevice, DeviceError, ParameterLayout};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::access::{AccessMode, PublicKey};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::{self, ModelExchange, RunDescription, Sampled, run_hash};
use barnraise_protocol::sampled::{Aggregates, MEMBER_ADDRESS_BYTES_MAX, MEMBER_ADDRESSES_MAX, SampledRoles};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::state;
use barnraise_relay::{Node, Path};
use barnraise_swarm::Moment;
use barnraise_swarm::pacing::PacingSettings;
use barnraise_swarm::sampled::{SampledIdentity, SampledPeer, SampledSettings};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::handed_out::HandedOut;
use self::held_out::HeldOut;
use self::keeping::keep_all;
use self::page::{ShownPage, announce_run};
use self::served::{Served, answer};
use super::args::{JoinAddress, RunName};
use super::cache::ShardCache;
use super::display::Display;
use super::home::HomeBackbone;
use super::own_access::{AccessPurpose, OwnAccess};
use super::platform::{NativePlatform, reserve_at};
use super::sharing::Sharing;
use super::tokens::gate_of;
use crate::data::own;
use crate::host::access;
use crate::host::announce::Announcement;
use crate::host::evaluator::Evaluated;
use crate::net::announced::{is_circuit, reaches_as_far};
use crate::scheme::sampled::driver::{DriverMeans, SampledDriver};
use crate::scheme::sampled::trainer::{LocalData, LocalTrainer};
use crate::scheme::sampled::{addresses_changed, own_addresses};

/// Interval of what is said about the run.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Longest wait for a model that visitors can try before the first round.
const FIRST_MODEL_MAX: Duration = Duration::from_secs(30);
/// Interval of attempts to reach who grants access.
const AUTHORITY_EVERY: Duration = Duration::from_secs(5);

/// What `barnraise join` has for a run.
pub(super) struct Participation<'p> {
    pub(super) platform: &'p NativePlatform,
    /// Where the run is, and its name, where the address is of another peer of the DHT.
    pub(super) way: (JoinAddress, Option<RunName>),
    /// For a run that is not open.
    pub(super) credentials: Credentials,
    pub(super) key: &'p libp2p::identity::Keypair,
    pub(super) cache: ShardCache,
    /// A file or folder that is trained on in place of the run's data, and never sent.
    pub(super) data: Option<PathBuf>,
    /// A file or folder that the newest model is evaluated on.
    pub(super) test: Option<PathBuf>,
    /// Where the page of the run is shown.
    pub(super) page: Option<TcpListener>,
    pub(super) device: ComputeDevice,
    pub(super) pacing: PacingSettings,
    /// Passes shards on, as fast as the user allows.
    pub(super) sharing: Sharing,
    /// By which peers find the run where it shows the page.
    pub(super) relays: Vec<Multiaddr>,
    pub(super) seed: u64,
    pub(super) display: &'p Display,
    /// Cancelled when the user wants to leave.
    pub(super) leaving: CancellationToken,
}

impl<'p> Participation<'p> {
    /// Takes part until the user leaves. Returns how many rounds were trained here.
    ///
    /// # Errors
    /// The peer at the address does not describe the run or hand out its data, the model does not fit the device, or the run does not
    /// let this peer in, or not any longer.
    pub(super) async fn take_part(mut self) -> anyhow::Result<u64> {
        let http = self.page.take();
        // What is prepared ends with the node, at once: nobody knows this participant yet.
        let preparing = self.leaving.run_until_cancelled(Box::pin(self.prepare(http.is_some())));
        let Some(prepared) = preparing.await else { return Ok(0) };
        let PreparedParticipant { served, access, place, held_out, lost } = prepared?;
        let (own_access, home) = access;
        let (node, at) = (place.node.clone(), place.home);
        // Circuits lead through the backbone, and are of no use where it is gone.
        for address in node.addresses().into_iter().filter(|address| !is_circuit(address)) {
            self.display.say(&format!("Others can join through this machine: {address}"));
        }
        let (driver, served) = (served.driver.clone(), Arc::new(served));
        let answering = answer(&node, &served)?;
        let (judging, judged) = watch::channel(None);
        let hosting = http.map(|http| {
            let majority = held_out.as_ref().and_then(HeldOut::majority_accuracy);
            self.show(http, &node, (&served, &home), (majority, judged))
        });
        let hosting = or_never(hosting.transpose()?);
        let judging =
            or_never(held_out.as_ref().map(|held_out| held_out.keep(&driver, &judging, self.display)));
        let introduced = PublicKey::of_peer_id(&at.to_bytes()).into_iter().collect();
        let authority = served.described.run.authority().key;
        let saying = say(driver.clone(), self.display.clone());
        let telling = place.tell(driver.clone(), self.display.clone());
        let ended = tokio::select! {
            () = driver.run(introduced, self.leaving.clone()) => Ok(()),
            () = saying => Ok(()),
            () = telling => Ok(()),
            () = home.keep(&served.gate) => Ok(()),
            () = stay_with_authority(&home, &driver, authority) => Ok(()),
            ended = hosting => ended,
            ended = judging => ended,
            error = Box::pin(own_access.keep(&home, |token| driver.on_approval(token))) => {
                Err(anyhow::Error::from(error).context("this machine may not take part any longer"))
            }
            // Who answers and trains nothing would take another one's turns.
            Ok(lost) = lost => Err(anyhow::Error::from(lost).context("this machine trains no longer")),
        };
        drop(answering);
        node.shutdown().await;
        ended?;
        Ok(driver.n_trained())
    }

    /// Shows the page of the run, and is found by those who look for it. What is returned does not end, but with an error.
    fn show<'s>(
        &'s self,
        http: TcpListener,
        node: &Node,
        (served, home): (&'s Arc<Served>, &'s HomeBackbone),
        (majority_accuracy, judged): (Option<f32>, watch::Receiver<Option<Evaluated>>),
    ) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + use<'s, 'p>> {
        let Served { described, n_parameters, preprocessing, .. } = &**served;
        let described = &described.run;
        let model = (*n_parameters, majority_accuracy);
        let page = ShownPage::open(http, node, (described, model), preprocessing.clone())?;
        self.display.say(&format!("The page of the run is at {}", page.address()));
        let key = access::signing_key(self.key)?;
        let announcement =
            Announcement { run_id: described.identity.run_id.clone(), key, known: self.relays.clone() };
        let announcing = announce_run(node.clone(), announcement);
        let manifest = &described.data.manifest;
        Ok(async move {
            let keeping = keep_all(home, &self.cache, manifest, self.display);
            tokio::select! {
                () = page.keep(&served.driver, judged) => Ok(()),
                ended = keeping => ended,
                ended = announcing => ended,
            }
        })
    }

    /// Has the run described, and its data fetched.
    async fn prepare(&self, shows_page: bool) -> anyhow::Result<PreparedParticipant<'p>> {
        let (node, home) = self.platform.connect_home().await?;
        let signed = run::describe_signed(&mut node.open(home, run::PROTOCOL).await?).await?;
        ensure!(
            self.platform.is_wanted(home, &signed),
            "the peer that was found describes another run than the wanted one"
        );
        let described = &signed.run;
        barnraise_contributor::description::validate(described).context("the run cannot be trained")?;
        let scheme = *described.sampled().context("the run has another scheme now")?;
        ensure!(
            !shows_page || described.access.mode == AccessMode::Open,
            "--page is for an open run: who may take part in this one is for its backbone to say"
        );
        let key = access::signing_key(self.key).context("members of this run sign with an Ed25519 key")?;
        let (address, run) = self.way.clone();
        let backbone = HomeBackbone::new(node.clone(), home, address, run).of_any();
        let (credentials, purpose) = (self.credentials.clone(), (AccessPurpose::TakePart, self.display));
        let gaining =
            OwnAccess::gained((self.platform, &backbone), (credentials, described.clone()), purpose);
        let own_access = Box::pin(gaining).await?;
        let reads_files = self.data.is_some() || self.test.is_some();
        let preprocessing = match (described.data.manifest.preprocessing, shows_page || reads_files) {
            (Some(wanted), true) => {
                self.shard((&node, home), ShardId::Preprocessing, wanted).await?.map(Arc::from)
            }
            _ => None,
        };
        let samples = match &self.data {
            Some(path) => own_samples(("--data", path.clone()), described, preprocessing.clone()).await?,
            None => self.local_shards((&node, home), described, &scheme, key.public()).await?,
        };
        self.display.say(&format!(
            "`{}` has no server: this machine trains on {} samples that are its own, {}.",
            described.identity.run_id,
            samples.n_samples(),
            if scheme.exchange.is_among_neighbors() { "each round" } else { "when its turn comes" }
        ));
        let held_out = match &self.test {
            Some(path) => {
                let samples = own_samples(("--test", path.clone()), described, preprocessing.clone()).await?;
                Some(HeldOut::new(samples, described, self.device.clone())?)
            }
            None => None,
        };
        let data = LocalData { samples, is_own: self.data.is_some(), seed: self.seed };
        let (trainer, lost) = LocalTrainer::start(described, scheme, data, self.device.clone(), self.pacing)?;
        let n_parameters = ParameterLayout::of_run(described)?.n_parameters();
        // A visitor can try the model before this machine has come to one.
        let first = match shows_page {
            true => {
                let fetching = newest_model((&node, home), n_parameters, scheme.state_codec);
                tokio::time::timeout(FIRST_MODEL_MAX, fetching).await.ok().flatten()
            }
            false => None,
        };
        let mut place = OwnPlace::of(node.clone(), home, scheme.exchange).await;
        let (roles, addresses) = place.found().await;
        let identity = SampledIdentity {
            key,
            run: run_hash(described)?,
            // What was told before is remembered by the others.
            counter: 0,
            roles,
            addresses,
            seed: self.seed,
        };
        // The data may have taken their time.
        own_access.renew(&backbone).await?;
        let gate = gate_of(described, identity.key.public());
        let mut peer = SampledPeer::new(SampledSettings::of(&scheme), identity);
        if let Some(token) = own_access.token() {
            peer = peer.by_approval(described.authority(), gate.now());
            peer.on_approval(Moment::ZERO, token);
        }
        let means = DriverMeans {
            node,
            codec: scheme.state_codec,
            average: scheme.average,
            n_parameters,
            ping_timeout: SampledSettings::of(&scheme).ping_timeout,
            gate: gate.clone(),
            trainer: Some(trainer),
        };
        let handed_out = HandedOut::default();
        if let Some((round, encoded)) = first {
            handed_out.add(Instant::now(), round, encoded);
        }
        let served = Served {
            driver: SampledDriver::new(means, peer),
            described: signed,
            n_parameters,
            codec: scheme.state_codec,
            handed_out,
            gate,
            cache: self.cache.clone(),
            preprocessing,
            sharing: self.sharing.clone(),
        };
        Ok(PreparedParticipant { served, access: (own_access, backbone), place, held_out, lost })
    }

    /// The shards that are this participant's, by its key: from the cache, or from the peer at the address. A participant there
    /// has a few shards alone: of those, the first that it has.
    async fn local_shards(
        &self,
        at: (&Node, PeerId),
        run: &RunDescription,
        scheme: &Sampled,
        peer: PublicKey,
    ) -> anyhow::Result<Samples> {
        let manifest = &run.data.manifest;
        let mut samples: Option<Samples> = None;
        let mut n_shards = 0;
        for number in shards_of(peer, manifest.shards.len()) {
            if n_shards == scheme.local_shards {
                break;
            }
            let entry = *manifest.numbered(number).context("the run has no such shard")?;
            let found = self.shard(at, ShardId::Numbered(number), entry.transfer()).await?;
            let Some(bytes) = found else { continue };
            n_shards += 1;
            let of_manifest = manifest.clone();
            let shard =
                tokio::task::spawn_blocking(move || Samples::decode(&bytes, &entry, &of_manifest)).await??;
            match &mut samples {
                None => samples = Some(shard),
                Some(samples) => (0..shard.n_samples()).for_each(|index| samples.push(&shard, index)),
            }
        }
        samples.context("the peer at the address has no shard of the run's data")
    }

    /// The bytes of a shard: from the cache, or from the peer at the address, unless that one does not have it.
    async fn shard(
        &self,
        (node, home): (&Node, PeerId),
        id: ShardId,
        wanted: Transfer,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        keeping::shard(&self.cache, async || node.open(home, shard::PROTOCOL).await, (id, wanted)).await
    }
}

/// Does not end where there is nothing to do.
async fn or_never<T>(work: Option<impl Future<Output = T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

/// Data of the user's own, of an option of the command line, as samples of the run.
///
/// - `preprocessing`: how they become such, which the backbone knows, and participants that asked it
async fn own_samples(
    (option, path): (&'static str, PathBuf),
    run: &RunDescription,
    preprocessing: Option<Arc<[u8]>>,
) -> anyhow::Result<Samples> {
    let manifest = run.data.manifest.clone();
    if own::needs_preprocessing(&manifest.samples) {
        ensure!(manifest.preprocessing.is_some(), "the run does not say how files become samples");
        ensure!(
            preprocessing.is_some(),
            "the peer at the address does not have the run's tokenizer or columns, which {option} needs: join by the address of \
             its backbone once"
        );
    }
    let read = move || own::load(&path, &manifest, preprocessing.as_deref().unwrap_or_default());
    tokio::task::spawn_blocking(read).await?.with_context(|| format!("{option} does not fit the run"))
}

/// The newest model of the peer at the address, as it is handed on; `None` where there is none.
async fn newest_model(
    (node, home): (&Node, PeerId),
    n_parameters: usize,
    codec: TensorCodec,
) -> Option<(u64, EncodedModel)> {
    let mut stream = node.open(home, state::PROTOCOL).await.ok()?;
    match state::fetch(&mut stream, n_parameters as u64, codec, &mut None, |_, _| ()).await {
        Ok(state) => Some((state.epoch, encode(codec, &state.values().into()).ok()?)),
        Err(error) => {
            tracing::debug!(%error, "no model is had before the first round");
            None
        }
    }
}

/// A participant that knows its run and has its data, and takes no part yet.
struct PreparedParticipant<'p> {
    served: Served,
    /// Its own, and at whom.
    access: (OwnAccess<'p>, HomeBackbone),
    place: OwnPlace,
    held_out: Option<HeldOut>,
    /// Why its device computes no more.
    lost: oneshot::Receiver<DeviceError>,
}

/// Where others find this machine. It changes with its networks, and with what is found out about them.
struct OwnPlace {
    node: Node,
    /// The peer at the address.
    home: PeerId,
    exchange: ModelExchange,
    /// Where this machine dialled it; `None` where a relay carries for it.
    home_address: Option<Multiaddr>,
    /// The way through the peer at the address, once a place is reserved there.
    circuit: Option<Multiaddr>,
}

impl OwnPlace {
    async fn of(node: Node, home: PeerId, exchange: ModelExchange) -> Self {
        let home_address = match node.path(home).await {
            Ok(Some(Path::Direct { address, .. })) => Some(address),
            _ => None,
        };
        // A name may be one of a private network.
        let home_address = home_address
            .filter(|address| matches!(address.iter().next(), Some(Protocol::Ip4(_) | Protocol::Ip6(_))));
        Self { node, home, exchange, home_address, circuit: None }
    }

    /// What this machine does for the run, and at which addresses. Who aggregates is dialled by all others, as far away as the peer is
    /// through which this machine came.
    async fn found(&mut self) -> (SampledRoles, Vec<Vec<u8>>) {
        let mut addresses = own_addresses(&self.node);
        let aggregates = match &self.home_address {
            Some(home) => reaches_as_far(&addresses, home),
            None => !addresses.is_empty(),
        };
        // Browsers reach most machines no other way.
        let wants_circuit = aggregates || self.exchange.is_among_neighbors();
        if wants_circuit && self.circuit.is_none() {
            self.circuit = reserve_at(&self.node, self.home).await;
        }
        let circuit = self.circuit.as_ref().filter(|_| wants_circuit).map(Multiaddr::to_vec);
        let circuit = circuit.filter(|circuit| circuit.len() <= MEMBER_ADDRESS_BYTES_MAX);
        let aggregates = match circuit {
            _ if aggregates => Aggregates::Dialled,
            Some(_) => Aggregates::Relayed,
            None => Aggregates::Never,
        };
        if let Some(circuit) = circuit {
            // None of its own leads to one that a relay alone leads to.
            let n_own = if aggregates == Aggregates::Dialled { MEMBER_ADDRESSES_MAX - 1 } else { 0 };
            addresses.truncate(n_own);
            addresses.push(circuit);
        }
        (SampledRoles { trains: true, aggregates }, addresses)
    }

    /// Tells the run, as often as it is another place. Does not end.
    async fn tell(mut self, driver: SampledDriver, display: Display) {
        let mut events = self.node.events();
        let mut said = true;
        loop {
            let (roles, addresses) = self.found().await;
            if roles.is_aggregator() != said {
                said = roles.is_aggregator();
                display.say(match (said, self.exchange.is_among_neighbors()) {
                    (true, false) => "Other machines can dial this one now: it aggregates, too.",
                    (false, false) => {
                        "Other machines cannot dial this one: it trains, and does not aggregate."
                    }
                    (true, true) => "Other machines reach this one now: it takes part.",
                    (false, true) => {
                        "Other machines do not reach this one: no model comes to it, and it takes no part."
                    }
                });
            }
            driver.on_own_change(roles, addresses);
            addresses_changed(&mut events).await;
        }
    }
}

/// Has the backbone of a run that is not open asked about access as often as it is there, also where this machine came through another
/// participant. Does not end.
async fn stay_with_authority(home: &HomeBackbone, driver: &SampledDriver, authority: PublicKey) {
    let is_open = driver.look(|peer| peer.registry().is_open());
    loop {
        tokio::time::sleep(AUTHORITY_EVERY).await;
        let is_known = driver.look(|peer| peer.registry().membership(&authority).is_some());
        if is_open || !is_known || PublicKey::of_peer_id(&home.peer().to_bytes()) == Some(authority) {
            continue;
        }
        match driver.reach(authority).await {
            Ok(peer) => home.move_to(peer),
            Err(error) => tracing::debug!(%error, "the backbone that grants access is not reached"),
        }
    }
}

/// Says how the run goes, now and then.
async fn say(driver: SampledDriver, display: Display) {
    let mut ticks = tokio::time::interval(SAY_EVERY);
    let mut said = 0;
    loop {
        ticks.tick().await;
        let (round, n_members, is_training) =
            driver.look(|peer| (peer.own_round(), peer.registry().members().count(), peer.is_training()));
        if round > said {
            said = round;
            let doing = if is_training { "training" } else { "waiting for its next turn" };
            display.say(&format!("Round {round}, {n_members} participants known: this one is {doing}."));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_learning::{DeviceChoice, open_device};
    use libp2p::identity::Keypair;
    use tokio::net::TcpListener;

    use super::*;

    /// The page at the address takes the connection, and says nothing.
    #[tokio::test]
    async fn who_leaves_while_it_prepares_waits_for_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let page = format!("http://{}", listener.local_addr().unwrap());
        let (folder, key) = (tempfile::tempdir().unwrap(), Keypair::generate_ed25519());
        let cache = ShardCache::new(folder.path().to_owned(), 0);
        let way = (JoinAddress::Page(page), None);
        let platform = NativePlatform::new(way.0.clone(), None, key.clone(), cache.clone());
        let (display, leaving) = (Display::in_log(), CancellationToken::new());
        let participation = Participation {
            platform: &platform,
            way,
            credentials: Credentials::default(),
            key: &key,
            sharing: Sharing::new(cache.clone(), access::signing_key(&key).unwrap(), 0),
            cache,
            data: None,
            test: None,
            page: None,
            relays: Vec::new(),
            device: open_device(DeviceChoice::Cpu).await.unwrap(),
            pacing: PacingSettings::default(),
            seed: 0,
            display: &display,
            leaving: leaving.clone(),
        };
        let leaves = async {
            let (silent, _) = listener.accept().await.unwrap();
            leaving.cancel();
            silent
        };
        let (n_rounds, _silent) = tokio::join!(Box::pin(participation.take_part()), leaves);
        assert_eq!(n_rounds.unwrap(), 0);
    }
}
