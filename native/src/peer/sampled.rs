//! A participant of a run without a server (MoDEST §3): it trains on its part of the data when it is in a sample, and
//! aggregates where others can dial it.
//!
//! The peer at the address is needed for the description, the data and the first acquaintances. From then on the run goes on
//! without it, and this participant describes the run to others.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use barnraise_contributor::{Credentials, shards_of};
use barnraise_learning::{ComputeDevice, DeviceError, ParameterLayout};
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::commitment::run_hash;
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::{self, ModelExchange, RunDescription, Sampled};
use barnraise_protocol::sampled::{
    self, Aggregates, MEMBER_ADDRESS_BYTES_MAX, MEMBER_ADDRESSES_MAX, SampledRoles,
};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::{self as protocol, ConversationError, Refusal};
use barnraise_relay::tasks::{self, TaskSet};
use barnraise_relay::{Node, NodeError, Paced, Path};
use barnraise_swarm::Moment;
use barnraise_swarm::guard::PaceLimits;
use barnraise_swarm::pacing::PacingSettings;
use barnraise_swarm::sampled::{SampledIdentity, SampledPeer, SampledSettings};
use futures::future::Abortable;
use futures::{FutureExt, StreamExt, stream};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Stream};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::args::{JoinAddress, RunName};
use super::cache::ShardCache;
use super::display::Display;
use super::home::HomeBackbone;
use super::own_access::{AccessPurpose, OwnAccess};
use super::platform::{NativePlatform, reserve_at};
use super::sharing::Sharing;
use super::tokens::{gate_of, take_tokens};
use crate::data::own;
use crate::host::access::{self, Gate, Pass};
use crate::net::announced::{is_circuit, reaches_as_far};
use crate::net::transfer_slots::TransferSlots;
use crate::net::violations;
use crate::scheme::sampled::driver::{DriverMeans, SampledDriver};
use crate::scheme::sampled::trainer::{LocalData, LocalTrainer};
use crate::scheme::sampled::{addresses_changed, own_addresses};

/// Streams of other participants at a time.
const STREAMS_MAX: usize = 256;
/// Of one of them: a ping, a view, a model for each task, and those of a broken connection.
const STREAMS_PER_PEER: usize = 8;
/// Interval of what is said about the run.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Interval of attempts to reach who grants access.
const AUTHORITY_EVERY: Duration = Duration::from_secs(5);
/// Of a peer that asks for the description or for shards.
const SERVE_PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(10),
    message: Duration::from_secs(10),
    stall: Duration::from_secs(15),
    bytes_per_second_min: 1024,
};

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
    pub(super) device: ComputeDevice,
    pub(super) pacing: PacingSettings,
    /// Passes shards on, as fast as the user allows.
    pub(super) sharing: Sharing,
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
    pub(super) async fn take_part(self) -> anyhow::Result<u64> {
        // What is prepared ends with the node, at once: nobody knows this participant yet.
        let preparing = self.leaving.run_until_cancelled(Box::pin(self.prepare()));
        let Some(prepared) = preparing.await else { return Ok(0) };
        let PreparedParticipant { described, access, place, driver, preprocessing, lost } = prepared?;
        let (own_access, home, gate) = access;
        let (node, at) = (place.node.clone(), place.home);
        // Circuits lead through the backbone, and are of no use where it is gone.
        for address in node.addresses().into_iter().filter(|address| !is_circuit(address)) {
            self.display.say(&format!("Others can join through this machine: {address}"));
        }
        let served = Arc::new(Served {
            driver: driver.clone(),
            described,
            gate: gate.clone(),
            cache: self.cache.clone(),
            preprocessing,
            sharing: self.sharing.clone(),
        });
        let answering = answer(&node, &served)?;
        let introduced = PublicKey::of_peer_id(&at.to_bytes()).into_iter().collect();
        let authority = served.described.authority().key;
        let saying = say(driver.clone(), self.display.clone());
        let telling = place.tell(driver.clone(), self.display.clone());
        let ended = tokio::select! {
            () = driver.run(introduced, self.leaving.clone()) => Ok(()),
            () = saying => Ok(()),
            () = telling => Ok(()),
            () = home.keep(&gate) => Ok(()),
            () = stay_with_authority(&home, &driver, authority) => Ok(()),
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

    /// Has the run described, and its data fetched.
    async fn prepare(&self) -> anyhow::Result<PreparedParticipant<'p>> {
        let (node, home) = self.platform.connect_home().await?;
        let described = run::describe(&mut node.open(home, run::PROTOCOL).await?).await?;
        barnraise_contributor::description::validate(&described).context("the run cannot be trained")?;
        let scheme = *described.sampled().context("the run has another scheme now")?;
        let key = access::signing_key(self.key).context("members of this run sign with an Ed25519 key")?;
        let (address, run) = self.way.clone();
        let backbone = HomeBackbone::new(node.clone(), home, address, run);
        let (credentials, purpose) = (self.credentials.clone(), (AccessPurpose::TakePart, self.display));
        let gaining =
            OwnAccess::gained((self.platform, &backbone), (credentials, described.clone()), purpose);
        let own_access = Box::pin(gaining).await?;
        let (samples, preprocessing) = match &self.data {
            Some(path) => self.own_samples((&node, home), path.clone(), &described).await?,
            None => (self.local_shards((&node, home), &described, &scheme, key.public()).await?, None),
        };
        self.display.say(&format!(
            "`{}` has no server: this machine trains on {} samples that are its own, {}.",
            described.identity.run_id,
            samples.n_samples(),
            if scheme.exchange.is_among_neighbors() { "each round" } else { "when its turn comes" }
        ));
        let data = LocalData { samples, is_own: self.data.is_some(), seed: self.seed };
        let (trainer, lost) =
            LocalTrainer::start(&described, scheme, data, self.device.clone(), self.pacing)?;
        let n_parameters = ParameterLayout::of_run(&described)?.n_parameters();
        let mut place = OwnPlace::of(node.clone(), home, scheme.exchange).await;
        let (roles, addresses) = place.found().await;
        let identity = SampledIdentity {
            key,
            run: run_hash(&described)?,
            // What was told before is remembered by the others.
            counter: 0,
            roles,
            addresses,
            seed: self.seed,
        };
        // The data may have taken their time.
        own_access.renew(&backbone).await?;
        let gate = gate_of(&described, identity.key.public());
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
        let driver = SampledDriver::new(means, peer);
        Ok(PreparedParticipant {
            described,
            access: (own_access, backbone, gate),
            place,
            driver,
            preprocessing,
            lost,
        })
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

    /// Data of the user's own, as samples of the run; and how they became such, which the backbone knows, and participants that asked
    /// it.
    async fn own_samples(
        &self,
        at: (&Node, PeerId),
        path: PathBuf,
        run: &RunDescription,
    ) -> anyhow::Result<(Samples, Option<Arc<[u8]>>)> {
        let manifest = run.data.manifest.clone();
        let mut preprocessing: Option<Arc<[u8]>> = None;
        if own::needs_preprocessing(&manifest.samples) {
            let wanted = manifest.preprocessing.context("the run does not say how files become samples")?;
            let found = self.shard(at, ShardId::Preprocessing, wanted).await?.context(
                "the peer at the address does not have the run's tokenizer or columns, which --data needs: join by the address \
                 of its backbone once",
            )?;
            preprocessing = Some(found.into());
        }
        let read = move || {
            let samples = own::load(&path, &manifest, preprocessing.as_deref().unwrap_or_default())?;
            Ok::<_, own::OwnDataError>((samples, preprocessing))
        };
        tokio::task::spawn_blocking(read).await?.context("--data does not fit the run")
    }

    /// The bytes of a shard: from the cache, or from the peer at the address, unless that one does not have it.
    async fn shard(
        &self,
        (node, home): (&Node, PeerId),
        id: ShardId,
        wanted: Transfer,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let cache = self.cache.clone();
        if let Some(bytes) = tokio::task::spawn_blocking(move || cache.get(wanted.sha256)).await? {
            return Ok(Some(bytes));
        }
        let mut stream = node.open(home, shard::PROTOCOL).await?;
        let bytes = match shard::fetch(&mut stream, id, wanted, &mut None, |_| ()).await {
            Err(ConversationError::Refused(Refusal::NoShard | Refusal::Unavailable { .. })) => {
                return Ok(None);
            }
            fetched => fetched?,
        };
        let (cache, kept) = (self.cache.clone(), bytes.clone());
        if let Err(error) = tokio::task::spawn_blocking(move || cache.put(wanted.sha256, &kept)).await? {
            tracing::debug!(%error, "a shard is not kept on disk");
        }
        Ok(Some(bytes))
    }
}

/// A participant that knows its run and has its data, and takes no part yet.
struct PreparedParticipant<'p> {
    described: RunDescription,
    /// Its own, at whom, and the gate to the shards that it passes on.
    access: (OwnAccess<'p>, HomeBackbone, Gate),
    place: OwnPlace,
    driver: SampledDriver,
    /// How its own data became samples.
    preprocessing: Option<Arc<[u8]>>,
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

/// Answers other participants until the handle is dropped.
fn answer(node: &Node, served: &Arc<Served>) -> Result<AbortOnDropHandle<()>, NodeError> {
    let (mut of_run, mut asked) = (node.accept(sampled::PROTOCOL)?, node.accept(run::PROTOCOL)?);
    let mut of_access = node.accept(protocol::access::PROTOCOL)?;
    let mut of_data = match served.sharing.serves() {
        true => node.accept(shard::PROTOCOL)?.left_stream(),
        false => stream::empty::<(PeerId, Stream)>().right_stream(),
    };
    let slots = Arc::new(TransferSlots::new(STREAMS_MAX, STREAMS_PER_PEER));
    let (node, served) = (node.clone(), served.clone());
    Ok(tasks::spawn("answering participants", async move {
        let answering = TaskSet::default();
        loop {
            let (peer, stream, protocol) = tokio::select! {
                Some((peer, stream)) = of_run.next() => (peer, stream, sampled::PROTOCOL),
                Some((peer, stream)) = asked.next() => (peer, stream, run::PROTOCOL),
                Some((peer, stream)) = of_access.next() => (peer, stream, protocol::access::PROTOCOL),
                Some((peer, stream)) = of_data.next() => (peer, stream, shard::PROTOCOL),
                else => return,
            };
            let Some((slot, registration)) = TransferSlots::take(&slots, peer) else {
                tracing::debug!(%peer, "no free stream slot for a participant");
                continue;
            };
            let (node, served) = (node.clone(), served.clone());
            let conversation = async move {
                let ended = match protocol {
                    sampled::PROTOCOL => served.driver.answer(peer, stream).await,
                    run::PROTOCOL => served.describe(stream).await,
                    shard::PROTOCOL => served.send_shards(peer, stream).await,
                    _ => served.let_in((&node, peer), stream).await,
                };
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "a conversation of the run ended");
                    if let Some(violation) = violations::of_conversation(&error) {
                        node.report(peer, violation);
                    }
                }
                drop(slot);
            };
            answering.spawn("answering a participant", Abortable::new(conversation, registration).map(drop));
        }
    }))
}

/// What others get of this participant.
struct Served {
    driver: SampledDriver,
    described: RunDescription,
    gate: Gate,
    cache: ShardCache,
    /// How data of one's own become samples, where that was asked for here.
    preprocessing: Option<Arc<[u8]>>,
    sharing: Sharing,
}

impl Served {
    async fn describe(&self, stream: Stream) -> Result<(), ConversationError> {
        run::answer(&mut Paced::new(stream, SERVE_PACE), &self.described).await
    }

    /// Who shows its access may fetch shards.
    async fn let_in(&self, from: (&Node, PeerId), stream: Stream) -> Result<(), ConversationError> {
        Ok(take_tokens(|| Some(self.gate.clone()), from, &mut Paced::new(stream, SERVE_PACE)).await?)
    }

    /// Shards of the run's data that are on this machine's disk, for those with access. Data of its own is no shard.
    async fn send_shards(&self, peer: PeerId, stream: Stream) -> Result<(), ConversationError> {
        let (refusal, mut pass) = match self.gate.check(peer) {
            Ok(pass) => (None, pass),
            Err(exclusion) => (Some(Refusal::from(&exclusion)), Pass::always()),
        };
        let stream = Paced::new(stream, SERVE_PACE);
        let pace = &stream.pace();
        let mut stream = self.sharing.throttled(stream);
        let refusal = &refusal;
        let lookup = |id: ShardId| async move {
            if let Some(refusal) = refusal {
                return Err(refusal.clone());
            }
            let transfer = id.transfer(&self.described.data.manifest).ok_or(Refusal::NoShard)?;
            if id == ShardId::Preprocessing {
                // In memory once for all who ask.
                let bytes = self.preprocessing.clone();
                pace.answer();
                let bytes = bytes.ok_or_else(|| Refusal::unavailable("that is not kept here"))?;
                return Ok((transfer, bytes));
            }
            let cache = self.cache.clone();
            let bytes = tokio::task::spawn_blocking(move || cache.get(transfer.sha256)).await.ok().flatten();
            let bytes = bytes.ok_or_else(|| Refusal::unavailable("that shard is not kept here"))?;
            pace.answer();
            Ok((transfer, Arc::from(bytes)))
        };
        tokio::select! {
            served = shard::serve(&mut stream, lookup, || pace.wait()) => served,
            _ = pass.ended() => Ok(()),
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
