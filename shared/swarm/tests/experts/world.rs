//! Hosts whose devices take time, trainers whose batches go through layers of experts and back, and the delay between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::f64::consts::TAU;
use std::time::Duration;

use barnraise_simulation::{Latency, Network, Simulation};
use barnraise_swarm::experts::ExpertPass;
use barnraise_swarm::experts::calls::{
    CallAction, CallSettings, ExpertCalls, ExpertChoice, HostBook, HostBookLimits, SentCall,
};
use barnraise_swarm::experts::serving::{
    CountedState, ExpertRuntime, RequestKey, ServedRequest, ServingAction, ServingBatch, ServingLimits,
    ServingRefusal,
};
use barnraise_swarm::{AddressGroup, Moment, PeerKey};

/// Bytes of a request.
const REQUEST_BYTES: u64 = 64 << 10;
/// A connection to a host that is gone breaks after that.
const BREAKS_AFTER: Duration = Duration::from_millis(500);
const SETTINGS: CallSettings = CallSettings {
    input_values: 1,
    output_values: 1,
    request_rows_max: 1024,
    forward_time: Duration::from_secs(20),
    backward_time: Duration::from_secs(20),
};
const LIMITS: HostBookLimits = HostBookLimits { in_flight_max: 64, host_in_flight_max: 32 };

/// The model, and the machines that have it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorldShape {
    pub(crate) n_hosts: usize,
    pub(crate) n_layers: usize,
    /// Of each layer.
    pub(crate) n_experts: usize,
    /// Experts of a batch's layer. All its rows go to each.
    pub(crate) n_active: usize,
    /// Hosts of each expert.
    pub(crate) n_replicas: usize,
    /// Of a training batch.
    pub(crate) n_rows: u32,
    /// Of a batch on the device.
    pub(crate) rows_max: u32,
    /// Of a batch on the device, beside its rows.
    pub(crate) batch_time: Duration,
    pub(crate) forward_row_time: Duration,
    /// The forward pass once more, and twice as much for both gradients.
    pub(crate) backward_row_time: Duration,
}

impl Default for WorldShape {
    fn default() -> Self {
        Self {
            n_hosts: 4,
            n_layers: 4,
            n_experts: 16,
            n_active: 4,
            n_replicas: 2,
            n_rows: 32,
            rows_max: 128,
            batch_time: Duration::from_millis(1),
            forward_row_time: Duration::from_micros(250),
            backward_row_time: Duration::from_micros(750),
        }
    }
}

/// How long an answer is on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AnswerDelay {
    /// With this mean (Learning@home §4.1).
    Exponential(Duration),
    /// With this mean and standard deviation, never less than nothing.
    Normal(Duration, Duration),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct WorldOptions {
    pub(crate) n_trainers: usize,
    /// Batches of a trainer.
    pub(crate) n_in_flight: usize,
    pub(crate) delay: AnswerDelay,
    /// Probability that a request is computed and never answered.
    pub(crate) loss: f64,
    pub(crate) bytes_max: u64,
    pub(crate) shape: WorldShape,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            n_trainers: 64,
            n_in_flight: 2,
            delay: AnswerDelay::Exponential(Duration::ZERO),
            loss: 0.0,
            bytes_max: 1 << 30,
            shape: WorldShape::default(),
        }
    }
}

/// What has happened since the start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WorldReport {
    pub(crate) at: Moment,
    /// Passed all layers, both ways.
    pub(crate) n_batches: usize,
    pub(crate) n_busy: usize,
    n_hosts: usize,
    n_calls: usize,
    n_answered: usize,
    device_time: Duration,
    /// Part of the calls that was answered, in a difference of two.
    pub(crate) answered: f64,
    /// Part of the time in which the devices computed, in a difference of two.
    pub(crate) device_use: f64,
}

impl WorldReport {
    pub(crate) fn since(&self, before: &Self) -> Self {
        let n_calls = self.n_calls - before.n_calls;
        let n_answered = self.n_answered - before.n_answered;
        let device_time = self.device_time - before.device_time;
        Self {
            at: self.at - before.at,
            n_batches: self.n_batches - before.n_batches,
            n_busy: self.n_busy - before.n_busy,
            n_hosts: self.n_hosts,
            n_calls,
            n_answered,
            device_time,
            answered: n_answered as f64 / n_calls as f64,
            device_use: device_time.as_secs_f64() / (self.at - before.at).as_secs_f64() / self.n_hosts as f64,
        }
    }
}

/// Which request of which batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CallName {
    trainer: usize,
    batch: usize,
    layer: usize,
    request_id: u64,
}

#[derive(Debug)]
enum ExpertEvent {
    Asked { name: CallName, host: usize, sent: SentCall },
    Lost { name: CallName, host: usize },
    Computed { host: usize },
    Answered { name: CallName },
    Refused { name: CallName, refusal: ServingRefusal },
    Broken { name: CallName },
    WakeHost { host: usize },
    WakeTrainer { trainer: usize },
}

struct HostNode {
    runtime: ExpertRuntime,
    device: VecDeque<ServingBatch>,
    requests: BTreeMap<RequestKey, (CallName, ServedRequest)>,
    /// Steps that its experts have made: expert, trainer, id.
    steps: BTreeSet<(u32, PeerKey, u64)>,
    is_gone: bool,
    n_sent: usize,
    wakes_at: Option<Moment>,
}

/// A batch on its way: one set of calls for each layer that it has reached.
struct TrainingBatch {
    layers: Vec<ExpertCalls>,
    /// On its way back: the layer.
    back: Option<usize>,
}

struct TrainerNode {
    book: HostBook,
    batches: Vec<TrainingBatch>,
    /// Where each request is.
    asked: BTreeMap<u64, usize>,
    wakes_at: Option<Moment>,
}

pub(crate) struct ExpertWorld {
    options: WorldOptions,
    simulation: Simulation<ExpertEvent>,
    hosts: Vec<HostNode>,
    trainers: Vec<TrainerNode>,
    report: WorldReport,
}

fn host_key(host: usize) -> PeerKey {
    PeerKey(vec![b'h', host as u8])
}

fn trainer_key(trainer: usize) -> PeerKey {
    PeerKey(vec![b't', trainer as u8])
}

impl WorldShape {
    fn hosts(self, expert: usize) -> impl Iterator<Item = usize> {
        (0..self.n_replicas).map(move |replica| (expert + replica) % self.n_hosts)
    }
}

impl ExpertWorld {
    pub(crate) fn new(seed: u64, options: WorldOptions) -> Self {
        let shape = options.shape;
        let limits = ServingLimits {
            rows_max: shape.rows_max,
            request_rows_max: shape.rows_max.max(1024),
            batch_delay: Duration::from_millis(20),
            bytes_max: options.bytes_max,
            requests_per_minute: 100_000,
        };
        let hosts = (0..shape.n_hosts).map(|host| {
            let mut runtime = ExpertRuntime::new(limits);
            for expert in 0..(shape.n_layers * shape.n_experts) {
                if shape.hosts(expert).any(|one| one == host) {
                    runtime.on_expert_added(Moment::ZERO, expert as u32, &CountedState::default()).unwrap();
                }
            }
            let (device, requests, steps) = (VecDeque::new(), BTreeMap::new(), BTreeSet::new());
            HostNode { runtime, device, requests, steps, is_gone: false, n_sent: 0, wakes_at: None }
        });
        let trainers = (0..options.n_trainers).map(|trainer| TrainerNode {
            book: HostBook::new(LIMITS, 1, trainer as u64),
            batches: Vec::new(),
            asked: BTreeMap::new(),
            wakes_at: None,
        });
        let simulation = Simulation::new(seed, Network::new(0, Latency::Constant(Duration::ZERO)));
        let (hosts, trainers) = (hosts.collect(), trainers.collect());
        let report = WorldReport { n_hosts: shape.n_hosts, ..WorldReport::default() };
        let mut world = Self { options, simulation, hosts, trainers, report };
        for trainer in 0..options.n_trainers {
            for _ in 0..options.n_in_flight {
                let batch = world.new_batch();
                world.trainers[trainer].batches.push(batch);
            }
            world.drain_trainer(trainer);
        }
        world
    }

    pub(crate) fn run_until(&mut self, end: Moment) {
        while let Some(event) = self.simulation.next_until(end) {
            self.on(event);
        }
        self.report.at = end;
    }

    pub(crate) fn report(&self) -> WorldReport {
        self.report
    }

    /// Requests that were sent to a host.
    pub(crate) fn sent_to(&self, host: usize) -> usize {
        self.hosts[host].n_sent
    }

    /// A host is gone, without a word.
    pub(crate) fn kill(&mut self, host: usize) {
        self.hosts[host].is_gone = true;
        self.hosts[host].n_sent = 0;
        for (_, (name, _)) in std::mem::take(&mut self.hosts[host].requests) {
            self.simulation.after(BREAKS_AFTER, ExpertEvent::Broken { name });
        }
    }

    fn on(&mut self, event: ExpertEvent) {
        let now = self.simulation.now();
        match event {
            ExpertEvent::Asked { name, host, sent } => self.asked(name, host, &sent),
            ExpertEvent::Lost { name, host } => {
                let node = &mut self.hosts[host];
                let key = node.requests.iter().find(|(_, (other, _))| *other == name).map(|(key, _)| *key);
                if let Some(key) = key {
                    node.runtime.on_lost(now, key);
                }
                self.drain_host(host);
            }
            ExpertEvent::Computed { host } => self.computed(host),
            ExpertEvent::Answered { name } => {
                let CallName { trainer, batch, layer, request_id } = name;
                let node = &mut self.trainers[trainer];
                node.asked.remove(&request_id);
                if let Some(calls) = node.batches[batch].layers.get_mut(layer) {
                    // An answer that comes too late is nobody's.
                    let values = vec![1.0; self.options.shape.n_rows as usize];
                    let _ = calls.on_answer(now, &mut node.book, request_id, (&values, 0));
                }
                self.drain_trainer(trainer);
            }
            ExpertEvent::Refused { name, refusal } => {
                let CallName { trainer, batch, layer, request_id } = name;
                self.report.n_busy += usize::from(matches!(refusal, ServingRefusal::Busy { .. }));
                let node = &mut self.trainers[trainer];
                if let Some(calls) = node.batches[batch].layers.get_mut(layer) {
                    calls.on_refused(now, &mut node.book, request_id, refusal);
                }
                self.drain_trainer(trainer);
            }
            ExpertEvent::Broken { name } => {
                let CallName { trainer, batch, layer, request_id } = name;
                let node = &mut self.trainers[trainer];
                if let Some(calls) = node.batches[batch].layers.get_mut(layer) {
                    calls.on_broken(now, &mut node.book, request_id);
                }
                self.drain_trainer(trainer);
            }
            ExpertEvent::WakeHost { host } => {
                self.hosts[host].wakes_at = None;
                self.hosts[host].runtime.on_timeout(now);
                self.drain_host(host);
            }
            ExpertEvent::WakeTrainer { trainer } => {
                let node = &mut self.trainers[trainer];
                node.wakes_at = None;
                for calls in node.batches.iter_mut().flat_map(|batch| &mut batch.layers) {
                    calls.on_timeout(now, &mut node.book);
                }
                self.drain_trainer(trainer);
            }
        }
    }

    fn asked(&mut self, name: CallName, host: usize, sent: &SentCall) {
        let now = self.simulation.now();
        let node = &mut self.hosts[host];
        node.n_sent += 1;
        if node.is_gone {
            self.simulation.after(BREAKS_AFTER, ExpertEvent::Broken { name });
            return;
        }
        let request = ServedRequest {
            client: trainer_key(name.trainer),
            group: AddressGroup(name.trainer as u64),
            expert: sent.expert,
            pass: sent.pass,
            n_rows: self.options.shape.n_rows,
            n_bytes: REQUEST_BYTES,
            request_id: name.request_id,
            deadline: sent.until,
        };
        match node.runtime.on_request(now, request.clone()) {
            Ok(key) => {
                node.requests.insert(key, (name, request));
                node.runtime.on_received(now, key);
            }
            Err(refusal) => self.refuse(name, refusal),
        }
        self.drain_host(host);
    }

    fn refuse(&mut self, name: CallName, refusal: ServingRefusal) {
        let delay = self.delay();
        self.simulation.after(delay, ExpertEvent::Refused { name, refusal });
    }

    fn drain_host(&mut self, host: usize) {
        if self.hosts[host].is_gone {
            return;
        }
        while let Some(action) = self.hosts[host].runtime.poll_action() {
            match action {
                ServingAction::Compute(batch) => {
                    self.hosts[host].device.push_back(batch);
                    if self.hosts[host].device.len() == 1 {
                        self.compute(host);
                    }
                }
                ServingAction::Refuse { key, refusal } => {
                    let (name, _) = self.hosts[host].requests.remove(&key).unwrap();
                    self.refuse(name, refusal);
                }
                ServingAction::Drop(key) => _ = self.hosts[host].requests.remove(&key).unwrap(),
            }
        }
        let now = self.simulation.now();
        let node = &mut self.hosts[host];
        if let Some(at) = node.runtime.next_deadline()
            && node.wakes_at.is_none_or(|wakes_at| at < wakes_at)
        {
            node.wakes_at = Some(at);
            self.simulation.after(at.saturating_sub(now), ExpertEvent::WakeHost { host });
        }
    }

    /// The device begins with its first batch.
    fn compute(&mut self, host: usize) {
        let Some(batch) = self.hosts[host].device.front() else { return };
        let WorldShape { batch_time, forward_row_time, backward_row_time, .. } = self.options.shape;
        let row_time = match batch.pass {
            ExpertPass::Forward => forward_row_time,
            ExpertPass::Backward => backward_row_time,
        };
        let takes = batch_time + row_time * batch.n_rows();
        self.report.device_time += takes;
        self.simulation.after(takes, ExpertEvent::Computed { host });
    }

    fn computed(&mut self, host: usize) {
        let now = self.simulation.now();
        if self.hosts[host].is_gone {
            return;
        }
        let batch = self.hosts[host].device.pop_front().unwrap();
        self.hosts[host].runtime.on_computed(now, batch.id);
        for (key, _) in &batch.parts {
            let delay = self.delay();
            let is_lost = self.simulation.random.chance(self.options.loss);
            let node = &mut self.hosts[host];
            let (name, request) = node.requests.remove(key).unwrap();
            if batch.pass == ExpertPass::Backward {
                let step = (batch.expert, request.client, request.request_id);
                assert!(node.steps.insert(step), "an expert has stepped twice by one request");
            }
            node.runtime.on_answered(now, *key);
            if !is_lost {
                self.simulation.after(delay, ExpertEvent::Answered { name });
            }
        }
        self.compute(host);
        self.drain_host(host);
    }

    fn delay(&mut self) -> Duration {
        let random = &mut self.simulation.random;
        match self.options.delay {
            AnswerDelay::Exponential(mean) => random.exponential(mean),
            // Box and Muller 1958.
            AnswerDelay::Normal(mean, deviation) => {
                let mut uniform = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                let logarithm = -(1.0 - uniform()).ln();
                let standard = (2.0 * logarithm).sqrt() * (TAU * uniform()).cos();
                let seconds = mean.as_secs_f64() + deviation.as_secs_f64() * standard;
                Duration::from_secs_f64(seconds.max(0.0))
            }
        }
    }

    fn drain_trainer(&mut self, trainer: usize) {
        let now = self.simulation.now();
        let mut batch = 0;
        while batch < self.trainers[trainer].batches.len() {
            if self.drain_batch(trainer, batch) {
                // It has got further, which may have made room for those before it.
                batch = 0;
            } else {
                batch += 1;
            }
        }
        let node = &mut self.trainers[trainer];
        let calls = node.batches.iter().flat_map(|batch| &batch.layers);
        if let Some(at) = calls.filter_map(|calls| calls.next_deadline(now, &node.book)).min()
            && node.wakes_at.is_none_or(|wakes_at| at < wakes_at)
        {
            node.wakes_at = Some(at);
            self.simulation.after(at.saturating_sub(now), ExpertEvent::WakeTrainer { trainer });
        }
    }

    /// Returns whether a pass was over.
    fn drain_batch(&mut self, trainer: usize, batch: usize) -> bool {
        let now = self.simulation.now();
        let node = &mut self.trainers[trainer];
        let known = &mut node.batches[batch];
        let layer = known.back.unwrap_or(known.layers.len() - 1);
        let Some(action) = known.layers[layer].poll_action(now, &mut node.book) else { return false };
        let name = |request_id| CallName { trainer, batch, layer, request_id };
        match action {
            CallAction::Send(sent) => {
                let (name, host) = (name(sent.request_id), usize::from(sent.host.0[1]));
                node.asked.insert(sent.request_id, host);
                self.simulation.after(Duration::ZERO, ExpertEvent::Asked { name, host, sent });
            }
            CallAction::Cancel { request_id } => {
                if let Some(host) = node.asked.remove(&request_id) {
                    let name = name(request_id);
                    self.simulation.after(Duration::ZERO, ExpertEvent::Lost { name, host });
                }
            }
            CallAction::ForwardOver => {
                self.report.n_calls += known.layers[layer].n_calls();
                self.report.n_answered += known.layers[layer].answered().count();
                if known.layers.len() < self.options.shape.n_layers {
                    let calls = self.new_calls(layer + 1);
                    self.trainers[trainer].batches[batch].layers.push(calls);
                } else {
                    known.back = Some(layer);
                    known.layers[layer].on_gradients(
                        now,
                        &mut node.book,
                        &vec![1.0; self.options.shape.n_active],
                    );
                }
            }
            CallAction::BackwardOver if layer > 0 => {
                known.back = Some(layer - 1);
                known.layers[layer - 1].on_gradients(
                    now,
                    &mut node.book,
                    &vec![1.0; self.options.shape.n_active],
                );
            }
            CallAction::BackwardOver => {
                self.report.n_batches += 1;
                self.trainers[trainer].batches[batch] = self.new_batch();
            }
        }
        true
    }

    fn new_batch(&mut self) -> TrainingBatch {
        TrainingBatch { layers: vec![self.new_calls(0)], back: None }
    }

    /// Experts of a layer as a gating function chooses them that knows nothing yet, and their hosts in any order.
    fn new_calls(&mut self, layer: usize) -> ExpertCalls {
        let shape = self.options.shape;
        let WorldShape { n_experts, n_active, n_rows, .. } = shape;
        let random = &mut self.simulation.random;
        let mut experts: Vec<usize> = (0..n_experts).map(|expert| layer * n_experts + expert).collect();
        random.shuffle(&mut experts);
        let choices = experts.into_iter().take(n_active).map(|expert| {
            let mut hosts: Vec<PeerKey> = shape.hosts(expert).map(host_key).collect();
            random.shuffle(&mut hosts);
            ExpertChoice { expert: expert as u32, hosts, rows: (0..n_rows).collect() }
        });
        let choices = choices.collect();
        let settings =
            CallSettings { request_rows_max: SETTINGS.request_rows_max.max(n_rows as usize), ..SETTINGS };
        ExpertCalls::new(self.simulation.now(), settings, choices, &vec![1.0; n_rows as usize])
    }
}
