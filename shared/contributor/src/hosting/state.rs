//! What the driver of a host shares with its conversations and with what it has under way.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use barnraise_learning::hosted::HostedLayer;
use barnraise_protocol::access::{KeyPair, PublicKey};
use barnraise_protocol::dht::checkpoints as records;
use barnraise_protocol::dht::experts::AnnouncedExpert;
use barnraise_protocol::dht::{self, DhtRefusal, Freshness, Record, UnixMillis};
use barnraise_protocol::experts::checkpoints::{self, CheckpointVersion};
use barnraise_protocol::experts::leases::{
    self, CopyHolder, ExpertLease, Grantors, KnownHost, LeaseAnswer, LeaseAsk, LeaseAskError, LeaseQuestion,
    LeasingHost,
};
use barnraise_protocol::experts::{AnswerSigner, ExpertPlace, ExpertTensors, LayerId};
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::dht::StorageLimits;
use barnraise_swarm::experts::leases::LeaseHolder;
use barnraise_swarm::experts::serving::{RequestKey, ServedRequest, ServingRefusal};
use barnraise_swarm::{AddressGroup, Moment, PeerKey};
use futures::channel::{mpsc, oneshot};
use futures::lock::Mutex;

use super::copies::{Keeper, KeeperNetwork};
use super::requests::{ExpertAnswer, HeldRequests};
use crate::kit::meter::{Metered, TrafficMeter};
use crate::platform::{Platform, PlatformError};
use crate::race::before;

/// Timeout of a question to the backbone, the dial included: it asks others before it answers.
const ASK_TIMEOUT: Duration = Duration::from_secs(12);
/// Timeout of a connection: the backbone may have moved, and be found by the DHT.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a question to the DHT, which the backbone searches.
const DHT_TIMEOUT: Duration = Duration::from_secs(20);

/// An expert that is served.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServedExpert {
    /// At the runtime and the device. No number is used twice.
    pub(super) number: u32,
    /// Under which it steps, as its driver knows.
    pub(super) term: u64,
    pub(super) n_steps: u64,
    pub(super) n_parameters: usize,
}

/// See the module.
pub(super) struct HostState<'a, P> {
    pub(super) platform: &'a P,
    pub(super) run: RunDescription,
    pub(super) layers: Vec<HostedLayer>,
    pub(super) signer: AnswerSigner,
    /// Experts that it hosts at most.
    pub(super) n_room: u32,
    pub(super) meter: Rc<TrafficMeter>,
    /// The key of the connected backbone. The task that finds the connection broken dials, and all others wait.
    backbone: Mutex<Option<PublicKey>>,
    /// Of the connection with it.
    n_connected: Cell<u64>,
    /// Questions that it has answered.
    n_answered: Cell<u64>,
    /// The one of this number may be dead: the next stream goes over another one.
    doubted: Cell<Option<u64>>,
    inner: RefCell<Inner>,
    /// Told when there may be something to do.
    changed: RefCell<mpsc::Sender<()>>,
}

/// What changes.
pub(super) struct Inner {
    pub(super) requests: HeldRequests,
    pub(super) leases: LeaseHolder,
    pub(super) experts: BTreeMap<ExpertPlace, ServedExpert>,
    /// Layers whose experts make no step at any host, as the backbone says.
    pub(super) frozen: BTreeSet<LayerId>,
    /// Whose grants make a lease, once the backbone has said so.
    pub(super) grantors: Option<Grantors>,
}

impl<'a, P: Platform> HostState<'a, P> {
    /// With what is told when it changes.
    pub(super) fn new(
        platform: &'a P,
        (run, layers): (RunDescription, Vec<HostedLayer>),
        (signer, n_room): (AnswerSigner, u32),
        backbone: Option<PublicKey>,
        (requests, leases): (HeldRequests, LeaseHolder),
    ) -> (Self, mpsc::Receiver<()>) {
        let inner =
            Inner { requests, leases, experts: BTreeMap::new(), frozen: BTreeSet::new(), grantors: None };
        let (changed, receiver) = mpsc::channel(1);
        let state = Self {
            platform,
            run,
            layers,
            signer,
            n_room,
            meter: Rc::default(),
            backbone: Mutex::new(backbone),
            n_connected: Cell::new(0),
            n_answered: Cell::new(0),
            doubted: Cell::new(None),
            inner: RefCell::new(inner),
            changed: RefCell::new(changed),
        };
        (state, receiver)
    }

    /// Does something with what changes, and lets the driver do what follows. It must not call itself.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Inner, Moment) -> T) -> T {
        let result = f(&mut self.inner.borrow_mut(), self.platform.now());
        // Where it is full, the driver will look anyhow.
        let _ = self.changed.borrow_mut().try_send(());
        result
    }

    /// The same by the driver itself, which needs not be told.
    pub(super) fn with_quietly<T>(&self, f: impl FnOnce(&mut Inner, Moment) -> T) -> T {
        f(&mut self.inner.borrow_mut(), self.platform.now())
    }

    /// Looks at what changes.
    pub(super) fn read<T>(&self, f: impl FnOnce(&Inner, Moment) -> T) -> T {
        f(&self.inner.borrow(), self.platform.now())
    }

    /// The lease of a place, while it holds.
    pub(super) fn lease(&self, place: &ExpertPlace) -> Option<ExpertLease> {
        self.read(|inner, now| inner.leases.lease(now, place).cloned())
    }

    fn served(&self, place: &ExpertPlace) -> Option<ServedExpert> {
        self.read(|inner, _| inner.experts.get(place).copied())
    }

    /// The number of an expert that is served here under a lease.
    pub(super) fn number_of(&self, place: &ExpertPlace) -> Option<u32> {
        self.read(|inner, now| {
            let number = inner.experts.get(place)?.number;
            inner.leases.holds(now, place).then_some(number)
        })
    }

    /// The version of what the expert of this number computed at a step. `None` where it is served here no longer: under the next
    /// lease the place may begin with another state, and no two states are ever signed under one version.
    pub(super) fn version(
        &self,
        place: &ExpertPlace,
        number: u32,
        n_steps: u64,
    ) -> Option<CheckpointVersion> {
        let lease = self.lease(place)?;
        let served = self.served(place)?;
        let is_same = served.number == number && served.term == lease.term;
        is_same.then_some(CheckpointVersion { term: served.term, n_steps })
    }

    /// Admits a request by its head.
    pub(super) fn admit(&self, request: ServedRequest) -> Result<RequestKey, ServingRefusal> {
        self.with(|inner, now| inner.requests.runtime.on_request(now, request))
    }

    /// The tensors of an admitted request are here. Its answer comes later.
    pub(super) fn on_received(
        &self,
        key: RequestKey,
        of: (LayerId, AddressGroup),
        tensors: ExpertTensors,
    ) -> oneshot::Receiver<ExpertAnswer> {
        self.with(|inner, now| inner.requests.on_received(now, key, of, tensors))
    }

    /// The conversation about a request is over.
    pub(super) fn on_over(&self, key: RequestKey) {
        self.with(|inner, now| inner.requests.on_over(now, key));
    }

    /// The experts that are served, with the rows that wait for each.
    pub(super) fn announced(&self) -> Vec<(LayerId, AnnouncedExpert)> {
        self.read(|inner, now| {
            let announced = |(&(layer, uid), expert): (&ExpertPlace, &ServedExpert)| {
                let n_waiting = inner.requests.runtime.expert_load(now, expert.number).n_waiting;
                (layer, AnnouncedExpert { uid, n_waiting, n_steps: expert.n_steps })
            };
            inner.experts.iter().map(announced).collect()
        })
    }

    /// The connection may be dead, as after a sleep.
    pub(super) fn doubt(&self) {
        self.doubted.set(Some(self.n_connected.get()));
    }

    /// A stream to the backbone, over a new connection where there is none that works.
    pub(super) async fn open(&self, protocol: &'static str) -> Result<Metered<P::Stream>, PlatformError> {
        let before = self.n_connected.get();
        if self.doubted.get() != Some(before)
            && let Ok(stream) = self.platform.open(protocol).await
        {
            return Ok(Metered::new(stream, Rc::clone(&self.meter)));
        }
        let mut backbone = self.backbone.lock().await;
        // Another task may have been here meanwhile.
        if self.n_connected.get() == before {
            self.platform.disconnect().await;
            *backbone = PublicKey::of_peer_id(&self.platform.connect().await?);
            self.n_connected.set(before + 1);
        }
        let stream = self.platform.open(protocol).await?;
        Ok(Metered::new(stream, Rc::clone(&self.meter)))
    }

    /// Connects with the backbone again, where it is gone.
    pub(super) async fn look(&self) -> Result<(), PlatformError> {
        self.in_time(LOOK_TIMEOUT, async { self.open(leases::PROTOCOL).await.map(drop) }).await
    }

    /// Does something with the backbone in time. Where nothing comes by then, and nothing else came, its connection may be dead.
    async fn in_time<T>(
        &self,
        limit: Duration,
        asking: impl Future<Output = Result<T, PlatformError>>,
    ) -> Result<T, PlatformError> {
        let (n_connected, n_answered) = (self.n_connected.get(), self.n_answered.get());
        let Some(answer) = before(self.sleep(limit), asking).await else {
            if self.n_answered.get() == n_answered {
                self.doubted.set(self.doubted.get().max(Some(n_connected)));
            }
            return Err(PlatformError::Timeout(limit));
        };
        self.n_answered.set(self.n_answered.get() + u64::from(answer.is_ok()));
        answer
    }

    /// Asks about leases.
    pub(super) async fn ask(&self, asks: Vec<LeaseAsk>, n_vacant: u8) -> Result<LeaseAnswer, LeasingError> {
        // Without addresses it is never chosen to keep other hosts' checkpoints: it has no disk.
        let host = LeasingHost::new(self.n_room, []);
        let run_id = self.run.identity.run_id.clone();
        self.question(&LeaseQuestion::Lease { run_id, host, asks, n_vacant }).await
    }

    async fn question(&self, question: &LeaseQuestion) -> Result<LeaseAnswer, LeasingError> {
        let asking = async {
            let mut stream = self.open(leases::PROTOCOL).await?;
            Ok(leases::ask(&mut stream, question, &self.signer.key.public()).await)
        };
        Ok(self.in_time(ASK_TIMEOUT, asking).await??)
    }

    /// Puts records into the DHT, through the backbone. Returns whether it took them.
    pub(super) async fn put(
        &self,
        records: Vec<Record>,
    ) -> Result<Vec<Result<(), DhtRefusal>>, PlatformError> {
        let putting = async {
            let mut stream = self.open(dht::PROTOCOL).await?;
            dht::put(&mut stream, records).await.map_err(PlatformError::network)
        };
        self.in_time(DHT_TIMEOUT, putting).await
    }
}

/// Why a question about leases has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum LeasingError {
    #[error(transparent)]
    Platform(#[from] PlatformError),
    #[error(transparent)]
    Ask(#[from] LeaseAskError),
}

impl<P: Platform> KeeperNetwork for HostState<'_, P> {
    type Stream = Metered<P::Stream>;

    fn run_id(&self) -> &str {
        &self.run.identity.run_id
    }

    fn layers(&self) -> &[HostedLayer] {
        &self.layers
    }

    fn key(&self) -> &KeyPair {
        &self.signer.key
    }

    fn grantors(&self) -> Option<Grantors> {
        self.read(|inner, _| inner.grantors.clone())
    }

    fn wall(&self) -> UnixMillis {
        UnixMillis(self.platform.unix_time().0.saturating_mul(1000))
    }

    async fn sleep(&self, time: Duration) {
        self.platform.sleep_until(self.platform.now() + time).await;
    }

    async fn open_keeper(&self, keeper: &Keeper) -> Result<Self::Stream, PlatformError> {
        let host = match keeper {
            Keeper::Backbone => return self.open(checkpoints::PROTOCOL).await,
            Keeper::Host(host) => host,
        };
        let peer = PeerKey(host.peer.to_peer_id());
        let opened = self.platform.open_host(&peer, &host.addresses, checkpoints::PROTOCOL).await?;
        Ok(Metered::new(opened, Rc::clone(&self.meter)).with_peer())
    }

    async fn keepers(&self, place: ExpertPlace) -> Result<Vec<KnownHost>, PlatformError> {
        let run_id = self.run.identity.run_id.clone();
        let asked = LeaseQuestion::Keepers { run_id, places: vec![place] };
        match self.question(&asked).await.map_err(PlatformError::network)? {
            LeaseAnswer::Keepers(mut keepers) => Ok(keepers.pop().unwrap_or_default()),
            _ => Err(PlatformError::network(LeaseAskError::Unexpected)),
        }
    }

    async fn holders(&self, place: ExpertPlace) -> Result<Vec<CopyHolder>, PlatformError> {
        let run_id = self.run.identity.run_id.clone();
        let asked = LeaseQuestion::Holders { run_id, places: vec![place] };
        match self.question(&asked).await.map_err(PlatformError::network)? {
            LeaseAnswer::Holders(mut holders) => Ok(holders.pop().unwrap_or_default()),
            _ => Err(PlatformError::network(LeaseAskError::Unexpected)),
        }
    }

    async fn backbone(&self) -> Option<KnownHost> {
        // Who reads the record is connected with a backbone, and asks it anyhow.
        let key = *self.backbone.lock().await;
        key.map(|key| KnownHost::new(key, []))
    }

    async fn checkpoint_records(&self, place: ExpertPlace) -> Result<Vec<Record>, PlatformError> {
        let asking = async {
            let mut stream = self.open(dht::PROTOCOL).await?;
            let keys = vec![records::key(&self.run.identity.run_id, place)];
            let lifetime_max = StorageLimits::default().lifetime_max;
            let found = dht::get(&mut stream, keys, Freshness::Newest, self.wall(), lifetime_max).await;
            Ok(found.map_err(PlatformError::network)?.into_iter().flatten().collect())
        };
        self.in_time(DHT_TIMEOUT, asking).await
    }

    async fn put_record(&self, record: Record) -> Result<Result<(), DhtRefusal>, PlatformError> {
        Ok(self.put(vec![record]).await?.pop().unwrap_or(Ok(())))
    }
}
