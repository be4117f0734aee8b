//! Hosts that compute and train experts, trainers that share a trunk, and what is between them, in virtual time.
//!
//! Both sides are those of real runs: a trainer's search, calls and passes, a host's requests and device. A key-value map stands
//! for the DHT, and a list for the leases. Computing takes no virtual time.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use barnraise_contributor::hosting::{
    ExpertDevice, ExpertJob, HeldRequests, JobDone, StoredExpert, served_request, wire_refusal,
};
use barnraise_contributor::{ExpertNetwork, ExpertService, PlatformError};
use barnraise_learning::experts::ExpertPort;
use barnraise_learning::hosted::{HostedLayer, layer_of};
use barnraise_learning::{
    ComputeDevice, DataShape, Evaluation, MeanGradient, Optimizer, OptimizerSpec, Trainer,
};
use barnraise_protocol::access::{KeyPair, UnixTime};
use barnraise_protocol::dataset::{LabelledImages, Samples};
use barnraise_protocol::dht::experts::AnnouncedExpert;
use barnraise_protocol::dht::{Record, RecordKey, UnixMillis};
use barnraise_protocol::experts::checkpoints::CheckpointVersion;
use barnraise_protocol::experts::leases::{CopyHolder, ExpertLease};
use barnraise_protocol::experts::{
    self, AnswerSigner, ExpertPlace, ExpertRefusal, ExpertRequestError, model_hash,
};
use barnraise_protocol::run::RunDescription;
use barnraise_simulation::{Latency, Network, NodeId, Runtime, StreamEnd, Tasks, VirtualNetwork};
use barnraise_swarm::experts::checkpoints::OFFER_INTERVAL;
use barnraise_swarm::experts::serving::{RequestKey, ServingLimits};
use barnraise_swarm::experts::{AnnouncerAction, ExpertAnnouncer};
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::{AddressGroup, Moment, PeerKey};
use futures::StreamExt;
use futures::channel::mpsc;
use futures::future::select;

/// As of `barnraise experts`, but for the requests of a minute: in virtual time trainers ask faster than any computes.
const LIMITS: ServingLimits = ServingLimits {
    rows_max: 4096,
    request_rows_max: 16_384,
    batch_delay: Duration::from_millis(20),
    bytes_max: 512 * 1024 * 1024,
    requests_per_minute: 60_000,
};
/// Machines with experts.
const N_HOSTS: usize = 10;
/// In such a time a share of the hosts is killed, each at a time of its own.
const KILLED_IN: Duration = Duration::from_secs(600);
/// From the loss of a host until others have its experts: the longest of a simulation with the leases of real runs
/// (`shared/swarm/tests/expert_hosts.rs`).
const AWAY: Duration = Duration::from_secs(45);
/// The wall clock at the beginning, in seconds.
const WALL: u64 = 1_000_000_000;
/// Until the announcements of the hosts are there.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(5);
/// A host looks so often whether all is over.
const LOOK_EVERY: Duration = Duration::from_secs(20);

/// What is between trainers and experts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conditions {
    pub(super) n_trainers: usize,
    /// Mean of the exponential time that each answer of an expert takes.
    pub(super) delay: Duration,
    /// Probability that an expert does not respond to a request.
    pub(super) failure: f64,
    /// Share of the hosts that is killed in each ten minutes.
    pub(super) killed: f64,
}

/// What is trained on, and for how long.
pub(super) struct Training {
    pub(super) run: Rc<RunDescription>,
    pub(super) train: Rc<LabelledImages>,
    /// Held out.
    pub(super) test: Rc<Samples>,
    /// Of a pass.
    pub(super) batch: usize,
    /// Batches whose gradients count.
    pub(super) n_batches: usize,
    /// From one evaluation to the next, in batches.
    pub(super) evaluate_every: usize,
    pub(super) learning_rate: f32,
}

/// How good the model is after so many batches.
pub(super) type Curve = Vec<(usize, Evaluation)>;

/// What came of a training.
pub(super) struct Trained {
    pub(super) curve: Curve,
    /// How long it took in virtual time.
    pub(super) time: Duration,
}

struct Host {
    node: NodeId,
    signer: AnswerSigner,
    requests: RefCell<HeldRequests>,
    changed: mpsc::Sender<()>,
    /// Its experts are with it until then no longer, and come back as of their last checkpoints.
    away_until: Cell<Option<Moment>>,
    /// Of its leases.
    term: Cell<u64>,
}

/// A host, and what tells it that it has something to do.
type WokenHost = (Rc<Host>, mpsc::Receiver<()>);

/// Parameters that all trainers have, and how they move (DeDLOC's large batches, without its network).
struct Trunk {
    parameters: Vec<f32>,
    optimizer: Optimizer,
    epoch: u64,
    /// Sum of the gradients of this epoch, each times its samples.
    gradient: Vec<f32>,
    n_samples: usize,
    n_batches: usize,
}

struct ConvergenceWorld {
    training: Training,
    conditions: Conditions,
    layers: Vec<HostedLayer>,
    shape: DataShape,
    network: VirtualNetwork,
    tasks: Tasks,
    hosts: Vec<Rc<Host>>,
    /// Place and number of the host that has it.
    holders: BTreeMap<ExpertPlace, usize>,
    directory: RefCell<HashMap<RecordKey, Vec<Record>>>,
    trunk: RefCell<Trunk>,
    curve: RefCell<Curve>,
    evaluate: mpsc::Sender<usize>,
    /// When all batches were over.
    trained_at: Cell<Option<Moment>>,
    /// Whether the last evaluation is over, too, or something has failed.
    is_over: Cell<bool>,
    error: RefCell<Option<anyhow::Error>>,
}

/// Trains in these conditions.
pub(super) fn train(training: Training, conditions: Conditions, seed: u64) -> Result<Trained> {
    let n_nodes = N_HOSTS + conditions.n_trainers + 1;
    let mut runtime = Runtime::new(seed, Network::new(n_nodes, Latency::Constant(Duration::ZERO)));
    let (evaluate, to_evaluate) = mpsc::channel(training.n_batches / training.evaluate_every + 2);
    let (world, hosts) = ConvergenceWorld::new(training, conditions, &runtime, evaluate)?;
    for (host, changed) in hosts {
        let (computing, announcing) = (Rc::clone(&world), Rc::clone(&world));
        let node = host.node;
        let announced = Rc::clone(&host);
        world.spawn(node, async move { computing.compute(&host, changed).await });
        world.spawn(node, async move { announcing.announce(&announced).await });
    }
    for number in 0..conditions.n_trainers {
        let of_trainer = Rc::clone(&world);
        let node = NodeId(N_HOSTS + number);
        world.spawn(node, async move { of_trainer.train(number, seed).await });
    }
    let killer = Rc::clone(&world);
    world.spawn(NodeId(n_nodes - 1), async move { killer.kill_hosts().await });
    let evaluator = Rc::clone(&world);
    world.spawn(NodeId(n_nodes - 1), async move { evaluator.evaluate(to_evaluate).await });
    runtime.run();
    if let Some(error) = world.error.take() {
        return Err(error);
    }
    match world.trained_at.get() {
        Some(at) if world.is_over.get() => {
            Ok(Trained { curve: world.curve.take(), time: at.saturating_sub(ANNOUNCED_AFTER) })
        }
        _ => bail!("nothing goes on after {} batches", world.trunk.borrow().n_batches),
    }
}

impl ConvergenceWorld {
    /// With its hosts.
    fn new(
        training: Training,
        conditions: Conditions,
        runtime: &Runtime,
        evaluate: mpsc::Sender<usize>,
    ) -> Result<(Rc<Self>, Vec<WokenHost>)> {
        let run = Rc::clone(&training.run);
        let layers = HostedLayer::of_run(&run)?;
        let shape = DataShape::of(&run.data.manifest.samples);
        let places = layers.iter().flat_map(|layer| {
            (0..layer.grid.n_places()).filter_map(|number| Some((layer.id, layer.grid.uid(number)?)))
        });
        let holders: BTreeMap<ExpertPlace, usize> =
            places.enumerate().map(|(number, place)| (place, number % N_HOSTS)).collect();
        let mut hosts = Vec::new();
        for number in 0..N_HOSTS {
            let key = KeyPair::from_seed(&[number as u8 + 1; 32]);
            let signer = AnswerSigner { key, model: model_hash(&run)? };
            let (changed, receiver) = mpsc::channel(1);
            let requests = RefCell::new(HeldRequests::new(LIMITS, &layers));
            let (away_until, term) = (Cell::default(), Cell::new(1));
            let host = Host { node: NodeId(number), signer, requests, changed, away_until, term };
            hosts.push((Rc::new(host), receiver));
        }
        let trainer = Trainer::new(&run.model, shape, ComputeDevice::cpu())?;
        let parameters = trainer.layout().initial_parameters(run.model.seed);
        let trunk = Trunk {
            gradient: vec![0.0; parameters.len()],
            parameters,
            optimizer: Optimizer::new(OptimizerSpec::adam(), trainer.layout())?,
            epoch: 0,
            n_samples: 0,
            n_batches: 0,
        };
        let world = Self {
            training,
            conditions,
            layers,
            shape,
            network: runtime.network().clone(),
            tasks: runtime.tasks().clone(),
            hosts: hosts.iter().map(|(host, _)| Rc::clone(host)).collect(),
            holders,
            directory: RefCell::default(),
            trunk: RefCell::new(trunk),
            curve: RefCell::default(),
            evaluate,
            trained_at: Cell::default(),
            is_over: Cell::new(false),
            error: RefCell::default(),
        };
        Ok((Rc::new(world), hosts))
    }

    /// Starts a task, whose error ends all.
    fn spawn(self: &Rc<Self>, node: NodeId, task: impl Future<Output = Result<()>> + 'static) {
        let world = Rc::clone(self);
        self.tasks.spawn(node, async move {
            if let Err(error) = task.await {
                world.error.borrow_mut().get_or_insert(error);
                world.is_over.set(true);
            }
        });
    }

    fn is_trained(&self) -> bool {
        self.is_over.get() || self.trained_at.get().is_some()
    }

    fn wall(&self) -> UnixMillis {
        UnixMillis(WALL * 1000 + u64::try_from(self.network.now().as_millis()).unwrap_or(u64::MAX))
    }

    /// The number of an expert at its host, also of the device.
    fn expert(&self, (layer, uid): &ExpertPlace) -> Option<u32> {
        let of_layer = layer_of(&self.layers, (*layer, *uid))?;
        let before: u64 =
            self.layers.iter().take(usize::from(layer.0)).map(|layer| layer.grid.n_places()).sum();
        u32::try_from(before + of_layer.grid.number(uid)?).ok()
    }

    /// Hosts its experts: computes what is asked.
    async fn compute(self: Rc<Self>, host: &Host, mut changed: mpsc::Receiver<()>) -> Result<()> {
        let model = self.training.run.model.clone();
        let mut device = ExpertDevice::new(model, self.layers.clone(), ComputeDevice::cpu());
        let mut kept = BTreeMap::new();
        self.host_all(host, &mut device, &kept).await?;
        // Of use to a host that is killed.
        let mut keep_at =
            if self.conditions.killed > 0.0 { self.network.now() + OFFER_INTERVAL } else { Moment::MAX };
        while !self.is_over.get() {
            if let Some(until) = host.away_until.get() {
                self.network.sleep_until(until).await;
                host.term.update(|term| term + 1);
                self.host_all(host, &mut device, &kept).await?;
                host.away_until.set(None);
            }
            if keep_at <= self.network.now() {
                keep_at += OFFER_INTERVAL;
                for expert in self.experts_of(host) {
                    let stored = device.work(ExpertJob::Store { expert }).await;
                    let Some(JobDone::Store { state, .. }) = stored else { bail!("no expert was stored") };
                    let counted = host.requests.borrow().runtime.counted(expert).unwrap_or_default();
                    kept.insert(expert, StoredExpert { term: host.term.get(), state, counted });
                }
            }
            loop {
                let batch = {
                    let mut requests = host.requests.borrow_mut();
                    requests.runtime.on_timeout(self.network.now());
                    requests.next_batch()
                };
                let Some(batch) = batch else { break };
                let job = host.requests.borrow().job(batch, false);
                let Some(JobDone::Computed { batch, result }) = device.work(job).await else {
                    bail!("a batch was not computed")
                };
                host.requests.borrow_mut().on_computed(self.network.now(), &batch, result)?;
            }
            let next = host.requests.borrow().runtime.next_deadline();
            let at = next.unwrap_or(Moment::MAX).min(self.network.now() + LOOK_EVERY).min(keep_at);
            select(changed.next(), pin!(self.network.sleep_until(at))).await;
        }
        Ok(())
    }

    /// The numbers of its experts.
    fn experts_of(&self, host: &Host) -> Vec<u32> {
        let places = self.holders.iter().filter(|(_, holder)| **holder == host.node.0);
        places.filter_map(|(place, _)| self.expert(place)).collect()
    }

    /// Has a device all experts of a host: as they were kept, or anew.
    async fn host_all(
        &self,
        host: &Host,
        device: &mut ExpertDevice,
        kept: &BTreeMap<u32, StoredExpert>,
    ) -> Result<()> {
        let (holder, term) = (host.signer.key.public(), host.term.get());
        for (place, _) in self.holders.iter().filter(|(_, holder)| **holder == host.node.0) {
            let expert = self.expert(place).context("a place")?;
            if device.work(ExpertJob::Remove { expert }).await.is_some() {
                host.requests.borrow_mut().runtime.on_expert_removed(self.network.now(), expert);
            }
            let lease = ExpertLease { place: *place, copy: 0, holder, term, grants: Vec::new() };
            let stored = kept.get(&expert).cloned();
            let added = device.work(ExpertJob::Add { expert, lease, stored }).await;
            let Some(JobDone::Added { result, .. }) = added else { bail!("no expert was added") };
            let (counted, _) = result?;
            host.requests.borrow_mut().runtime.on_expert_added(self.network.now(), expert, &counted)?;
        }
        Ok(())
    }

    /// Kills hosts, until all is over.
    async fn kill_hosts(self: Rc<Self>) -> Result<()> {
        let n_killed = (self.conditions.killed * N_HOSTS as f64).round() as usize;
        while n_killed > 0 && !self.is_over.get() {
            let began = self.network.now();
            let mut killed: Vec<(Moment, usize)> = self.network.draw(|random| {
                let mut hosts: Vec<usize> = (0..N_HOSTS).collect();
                random.shuffle(&mut hosts);
                let at = |host| (began + random.duration(Duration::ZERO..KILLED_IN), host);
                hosts.into_iter().take(n_killed).map(at).collect()
            });
            killed.sort_unstable();
            for (at, number) in killed {
                while self.network.now() < at && !self.is_over.get() {
                    self.network.sleep_until(at.min(self.network.now() + LOOK_EVERY)).await;
                }
                let host = &self.hosts[number];
                host.away_until.set(Some(self.network.now() + AWAY));
                for trainer in 0..=self.conditions.n_trainers {
                    self.network.reset(NodeId(N_HOSTS + trainer), host.node);
                }
                host.wake();
            }
            while self.network.now() < began + KILLED_IN && !self.is_over.get() {
                self.network.sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    }

    /// Says in the directory what a host has.
    async fn announce(self: Rc<Self>, host: &Host) -> Result<()> {
        let run_id = self.training.run.identity.run_id.clone();
        let address = vec![vec![host.node.0 as u8]];
        let mut announcer =
            ExpertAnnouncer::new(host.signer.key.clone(), run_id, address, host.node.0 as u64);
        for ((layer, uid), _) in self.holders.iter().filter(|(_, holder)| **holder == host.node.0) {
            let expert = AnnouncedExpert { uid: *uid, n_waiting: 0, n_steps: 0 };
            announcer.on_expert(self.network.now(), *layer, expert)?;
        }
        while !self.is_over.get() {
            while let Some(AnnouncerAction::Put(records)) =
                announcer.poll_action(self.network.now(), self.wall())?
            {
                self.put(records);
            }
            let at = announcer.next_deadline().unwrap_or(Moment::MAX).min(self.network.now() + LOOK_EVERY);
            self.network.sleep_until(at).await;
        }
        Ok(())
    }

    fn put(&self, records: Vec<Record>) {
        let mut directory = self.directory.borrow_mut();
        for record in records {
            let kept = directory.entry(record.name.key()).or_default();
            kept.retain(|other| other.subkey != record.subkey);
            kept.push(record);
        }
    }

    /// Passes over batches of its own, one after the other, until all is over.
    async fn train(self: Rc<Self>, number: usize, seed: u64) -> Result<()> {
        self.network.sleep(ANNOUNCED_AFTER).await;
        let mut trainer = self.trainer(number, true)?;
        let mut random = SplitMix64::new(seed << 16 | number as u64);
        while !self.is_trained() {
            let epoch = {
                let trunk = self.trunk.borrow();
                trainer.load_parameters(&trunk.parameters)?;
                trunk.epoch
            };
            // Until the trunk moves, its gradients add up here.
            while !self.is_trained() && self.trunk.borrow().epoch == epoch {
                let batch = self.batch(&mut random);
                trainer.accumulate_samples(&batch, epoch).await?;
                let gradient = trainer.take_mean_gradient().await?.context("no gradient of a batch")?;
                self.on_gradient(epoch, &gradient)?;
            }
        }
        Ok(())
    }

    fn trainer(self: &Rc<Self>, number: usize, is_training: bool) -> Result<Trainer> {
        let node = NodeId(N_HOSTS + number);
        let network = TrainerNetwork { world: Rc::clone(self), node, is_training };
        let service = ExpertService::new(network, &self.training.run, (number as u64, 0))?;
        let (port, calls) = ExpertPort::new();
        self.tasks.spawn(node, service.context("a model without experts")?.serve(calls));
        Ok(Trainer::new(&self.training.run.model, self.shape, ComputeDevice::cpu())?.with_experts(port))
    }

    fn batch(&self, random: &mut SplitMix64) -> Samples {
        let all = &self.training.train;
        let n_values = all.images.len() / all.labels.len().max(1);
        let mut batch = LabelledImages { images: Vec::new(), labels: Vec::new() };
        for _ in 0..self.training.batch {
            let sample = random.below(all.labels.len());
            batch.images.extend_from_slice(&all.images[sample * n_values..(sample + 1) * n_values]);
            batch.labels.push(all.labels[sample]);
        }
        Samples::Images(batch)
    }

    fn on_gradient(&self, epoch: u64, gradient: &MeanGradient) -> Result<()> {
        let mut trunk = self.trunk.borrow_mut();
        if trunk.epoch != epoch || self.is_trained() {
            return Ok(());
        }
        let weight = gradient.n_samples as f32;
        trunk.gradient.iter_mut().zip(&gradient.values).for_each(|(sum, value)| *sum += weight * value);
        trunk.n_samples += gradient.n_samples as usize;
        trunk.n_batches += 1;
        let Training { n_batches, evaluate_every, learning_rate, batch, .. } = self.training;
        if trunk.n_batches.is_multiple_of(evaluate_every) || trunk.n_batches == n_batches {
            self.evaluate.clone().try_send(trunk.n_batches)?;
        }
        if trunk.n_batches == n_batches {
            self.trained_at.set(Some(self.network.now()));
        }
        if trunk.n_samples >= self.conditions.n_trainers * batch {
            let Trunk { parameters, optimizer, gradient, n_samples, epoch, .. } = &mut *trunk;
            gradient.iter_mut().for_each(|value| *value /= *n_samples as f32);
            optimizer.step(parameters, gradient, learning_rate)?;
            gradient.fill(0.0);
            (*n_samples, *epoch) = (0, *epoch + 1);
        }
        Ok(())
    }

    /// Tells how good the model is, whose experts answer it at once and always.
    async fn evaluate(self: Rc<Self>, mut wanted: mpsc::Receiver<usize>) -> Result<()> {
        self.network.sleep(ANNOUNCED_AFTER).await;
        let mut trainer = self.trainer(self.conditions.n_trainers, false)?;
        while !self.is_over.get()
            && let Some(n_batches) = wanted.next().await
        {
            trainer.load_parameters(&self.trunk.borrow().parameters)?;
            let evaluation = trainer.evaluate_samples(&self.training.test).await?;
            self.curve.borrow_mut().push((n_batches, evaluation));
            if n_batches == self.training.n_batches {
                self.is_over.set(true);
            }
        }
        Ok(())
    }

    /// A host answers a request, or does not.
    async fn converse(
        &self,
        host: &Host,
        (client, is_training): (NodeId, bool),
        mut stream: StreamEnd,
    ) -> Result<(), ExpertRequestError> {
        let request = experts::receive(&mut stream).await?;
        let place = (request.layer, request.uid);
        let admitted = match (layer_of(&self.layers, place), self.expert(&place)) {
            (Some(layer), Some(expert)) => {
                let (now, peer) = (self.network.now(), PeerKey(vec![client.0 as u8]));
                let group = AddressGroup(client.0 as u64);
                let run_id = &self.training.run.identity.run_id;
                served_request((run_id, layer, expert), (peer, group, now), &request).and_then(|served| {
                    let key = host.requests.borrow_mut().runtime.on_request(now, served);
                    Ok((key.map_err(|refusal| wire_refusal(&refusal))?, group))
                })
            }
            _ => Err(ExpertRefusal::Unknown),
        };
        let (key, group) = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => return experts::refuse(&mut stream, refusal).await,
        };
        let _held = AdmittedRequest { world: self, host, key };
        let bytes = experts::receive_tensors(&mut stream, &request).await?;
        let tensors = match request.decode(&bytes) {
            Ok(tensors) => tensors,
            Err(refusal) => return experts::refuse(&mut stream, refusal).await,
        };
        if is_training && self.network.draw(|random| random.chance(self.conditions.failure)) {
            // The trainer that waits for it goes away at last.
            let _ = experts::receive(&mut stream).await;
            return Ok(());
        }
        let (now, of) = (self.network.now(), (request.layer, group));
        let answer = host.requests.borrow_mut().on_received(now, key, of, tensors);
        host.wake();
        let Ok(computed) = answer.await else { return Ok(()) };
        if is_training {
            let late = self.network.draw(|random| random.exponential(self.conditions.delay));
            self.network.sleep(late).await;
        }
        let answered = computed.map_err(|refusal| wire_refusal(&refusal)).and_then(|(n_steps, rows)| {
            request.answer(&host.signer, CheckpointVersion { term: host.term.get(), n_steps }, &rows)
        });
        match answered {
            Ok(prepared) => experts::reply(&mut stream, &prepared).await,
            Err(refusal) => experts::refuse(&mut stream, refusal).await,
        }
    }
}

impl Host {
    fn wake(&self) {
        // One that is full wakes it as well.
        let _ = self.changed.clone().try_send(());
    }
}

/// Frees what a request holds, however its conversation ends.
struct AdmittedRequest<'a> {
    world: &'a ConvergenceWorld,
    host: &'a Host,
    key: RequestKey,
}

impl Drop for AdmittedRequest<'_> {
    fn drop(&mut self) {
        self.host.requests.borrow_mut().on_over(self.world.network.now(), self.key);
        self.host.wake();
    }
}

/// What a trainer's search and calls reach.
#[derive(Clone)]
struct TrainerNetwork {
    world: Rc<ConvergenceWorld>,
    node: NodeId,
    /// Otherwise experts answer at once.
    is_training: bool,
}

impl ExpertNetwork for TrainerNetwork {
    type Stream = StreamEnd;
    type BackboneStream = StreamEnd;

    fn now(&self) -> Moment {
        self.world.network.now()
    }

    fn unix_time(&self) -> UnixTime {
        UnixTime(self.world.wall().0 / 1000)
    }

    async fn sleep_until(&self, at: Moment) {
        self.world.network.sleep_until(at).await;
    }

    async fn look_up(&self, keys: Vec<RecordKey>) -> Result<Vec<Vec<Record>>, PlatformError> {
        let directory = self.world.directory.borrow();
        Ok(keys.iter().map(|key| directory.get(key).cloned().unwrap_or_default()).collect())
    }

    async fn holders(
        &self,
        _: &str,
        places: Vec<ExpertPlace>,
    ) -> Result<Vec<Vec<CopyHolder>>, PlatformError> {
        let world = &self.world;
        let holder = |place| Some(world.hosts[*world.holders.get(place)?].signer.key.public());
        let holders =
            |place| holder(place).map(|holder| CopyHolder { copy: 0, holder }).into_iter().collect();
        Ok(places.iter().map(holders).collect())
    }

    async fn open_audit(&self) -> Result<StreamEnd, PlatformError> {
        Err(PlatformError::NotConnected)
    }

    async fn open_host(&self, host: &PeerKey, _: &[Vec<u8>]) -> Result<StreamEnd, PlatformError> {
        let is_host = |known: &&Rc<Host>| known.signer.key.public().to_peer_id() == host.0;
        let host = self.world.hosts.iter().find(is_host).ok_or(PlatformError::NotConnected)?;
        if host.away_until.get().is_some() {
            return Err(PlatformError::NotConnected);
        }
        let (ours, theirs) = self.world.network.stream(self.node, host.node);
        let (world, known, of) = (Rc::clone(&self.world), Rc::clone(host), (self.node, self.is_training));
        self.world.tasks.spawn(host.node, async move {
            // A trainer that goes away has decided so.
            let _ = world.converse(&known, of, theirs).await;
        });
        Ok(ours)
    }
}
