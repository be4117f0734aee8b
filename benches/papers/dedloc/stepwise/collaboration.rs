//! Peers and a backbone in virtual time, driven by the state machines of a run.
//!
//! Time is in milliseconds. Messages take a while, batches take as long as the peer is slow, and gradients are real.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use barnraise_learning::Trainer;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::contribute::{DeviceKind, Report};
use barnraise_protocol::dataset::{ImageShape, Samples};
use barnraise_protocol::gradient::{Accepted, ContributionRefusal, Offer};
use barnraise_simulation::{Latency, Network, NodeId, Simulation};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::collection::{
    CollectedMean, CollectionAction, CollectionConfig, CollectionRound, Ticket,
};
use barnraise_swarm::contributor::{Contributor, ContributorAction};
use barnraise_swarm::robust::Aggregation;
use barnraise_swarm::session::Session;
use barnraise_swarm::{Moment, PeerKey};

use super::machine::{SimulatedTrainer, trainer};
use super::{Feed, MICRO_BATCH, SEEDS, TARGET};

/// Of each peer: how long a micro-batch takes it, and how long its gradient is on its way, in ms.
const PEERS: [(u64, u64); 8] =
    [(60, 60), (80, 400), (120, 100), (180, 150), (260, 80), (360, 500), (500, 300), (800, 200)];
/// These come after so many steps of a hundred, and these leave.
const COME: [(usize, u64); 2] = [(2, 33), (5, 40)];
const LEAVE: [(usize, u64); 2] = [(1, 66), (6, 75)];
const LATENCY_MS: u64 = 40;
const LATENCY: Latency = Latency::Constant(Duration::from_millis(LATENCY_MS));
const BACKBONE: NodeId = NodeId(PEERS.len());
const COLLECT_TIMEOUT: Duration = Duration::from_secs(5);
const SAMPLES_MAX: u32 = 2048;

/// A scheduled event, with its peer.
enum CollaborationEvent {
    Connect(usize),
    State(usize),
    Batch(usize),
    Report(usize, Report),
    Offered(usize),
    Received(Ticket),
    Answer(usize, Result<Accepted, ContributionRefusal>),
    Epoch(usize, u64),
    Due(usize, u64),
    Deadline,
}

struct SimulatedContributor {
    contributor: Contributor,
    link: Session,
    trainer: Trainer,
    feed: Feed,
    is_there: bool,
    is_busy: bool,
    /// Behind the gradient in the trainer.
    accumulated: Vec<Samples>,
    offered: Option<Offered>,
}

#[derive(Clone)]
struct Offered {
    offer: Offer,
    values: Vec<f32>,
    samples: Vec<Samples>,
}

/// One optimizer step.
pub(super) struct CollaborationStep {
    pub(super) loss: f64,
    pub(super) n_samples: u64,
    /// All of them.
    pub(super) samples: Vec<Samples>,
}

/// Peers, a backbone and the time.
pub(super) struct Collaboration {
    /// Its nodes are the peers, and then the backbone.
    simulation: Simulation<CollaborationEvent>,
    peers: Vec<SimulatedContributor>,
    round: CollectionRound,
    machine: SimulatedTrainer,
    flights: BTreeMap<Ticket, (usize, Offered)>,
    counted: Vec<Samples>,
    steps: Vec<CollaborationStep>,
    n_steps: u64,
    n_wanted: u64,
}

fn key(peer: usize) -> PeerKey {
    PeerKey(vec![peer as u8])
}

impl Collaboration {
    pub(super) fn new(shards: &Arc<Vec<Arc<Samples>>>, shape: ImageShape, n_steps: u64) -> Result<Self> {
        let machine = SimulatedTrainer::new(shape, n_steps)?;
        let peer = |index: usize| {
            Ok(SimulatedContributor {
                contributor: Contributor::new(0),
                link: Session::new(index as u64),
                trainer: trainer(shape)?,
                feed: Feed::new(shards, SEEDS[0] + index as u64),
                is_there: false,
                is_busy: false,
                accumulated: Vec::new(),
                offered: None,
            })
        };
        let config = CollectionConfig {
            target_batch_size: TARGET,
            n_parameters: machine.parameters().len(),
            codec: TensorCodec::F32,
            slow_codec: None,
            micro_batch_size: 1,
            contribution_samples_max: SAMPLES_MAX,
            samples_per_second_max: 1_000_000,
            collect_timeout: COLLECT_TIMEOUT,
            in_flight_max: PEERS.len(),
            contributors_max: PEERS.len(),
            is_open: false,
            aggregation: Aggregation::Mean,
            gradient_norm_max: 1e6,
        };
        let mut collaboration = Self {
            simulation: Simulation::new(SEEDS[0], Network::new(PEERS.len() + 1, LATENCY)),
            peers: (0..PEERS.len()).map(peer).collect::<Result<_>>()?,
            round: CollectionRound::new(config, 0),
            machine,
            flights: BTreeMap::new(),
            counted: Vec::new(),
            steps: Vec::new(),
            n_steps: 0,
            n_wanted: n_steps,
        };
        let is_late = |peer: usize| COME.iter().any(|(late, _)| *late == peer);
        for peer in (0..PEERS.len()).filter(|peer| !is_late(*peer)) {
            collaboration.start(peer)?;
        }
        Ok(collaboration)
    }

    /// The parameters by now.
    pub(super) fn machine(&self) -> &SimulatedTrainer {
        &self.machine
    }

    /// Accepted samples and batch time of each peer.
    pub(super) fn summary(&self) -> String {
        let of = |(index, peer): (usize, &SimulatedContributor)| {
            let tally = peer.contributor.sample_counts();
            format!("{} ({} ms a batch)", tally.n_samples_accepted, PEERS[index].0)
        };
        let each: Vec<String> = self.peers.iter().enumerate().map(of).collect();
        let seconds = self.now().as_secs_f64();
        format!("Samples of each peer in {seconds:.0} s of virtual time: {}\n", each.join(", "))
    }

    /// Goes on until the next optimizer step is made.
    pub(super) async fn step(&mut self) -> Result<CollaborationStep> {
        while self.steps.is_empty() {
            let event = self.simulation.next().context("nothing happens any more")?;
            self.on(event).await?;
            self.act()?;
        }
        Ok(self.steps.remove(0))
    }

    fn now(&self) -> Moment {
        self.simulation.now()
    }

    fn after(&mut self, delay_ms: u64, event: CollaborationEvent) {
        self.simulation.after(Duration::from_millis(delay_ms), event);
    }

    /// Sends a message to a peer.
    fn tell(&mut self, peer: usize, event: CollaborationEvent) {
        self.simulation.send(BACKBONE, NodeId(peer), event);
    }

    fn start(&mut self, peer: usize) -> Result<()> {
        let now = self.now();
        let one = &mut self.peers[peer];
        one.is_there = true;
        one.link.start(now);
        ensure!(
            one.contributor.next_action(&mut one.link, now) == ContributorAction::Connect,
            "a contributor that does not connect"
        );
        one.is_busy = true;
        self.after(LATENCY_MS, CollaborationEvent::Connect(peer));
        Ok(())
    }

    async fn on(&mut self, event: CollaborationEvent) -> Result<()> {
        let now = self.now();
        let peer = match event {
            CollaborationEvent::Report(peer, report) if self.peers[peer].is_there => {
                return Ok(self.round.on_report(now, &key(peer), &report)?);
            }
            CollaborationEvent::Offered(peer) if self.peers[peer].is_there => return self.offered(peer),
            CollaborationEvent::Received(ticket) => {
                let values = self.flights.get(&ticket).context("an unknown ticket")?.1.values.clone();
                self.round.on_gradient(now, ticket, values);
                return Ok(());
            }
            CollaborationEvent::Deadline => {
                self.round.on_timeout(now);
                return Ok(());
            }
            CollaborationEvent::Connect(peer)
            | CollaborationEvent::State(peer)
            | CollaborationEvent::Batch(peer)
            | CollaborationEvent::Answer(peer, _)
            | CollaborationEvent::Epoch(peer, _)
            | CollaborationEvent::Due(peer, _) => peer,
            CollaborationEvent::Report(..) | CollaborationEvent::Offered(_) => return Ok(()),
        };
        if self.peers[peer].is_there { self.on_peer(peer, event).await } else { Ok(()) }
    }

    async fn on_peer(&mut self, peer: usize, event: CollaborationEvent) -> Result<()> {
        let (now, epoch) = (self.now(), self.round.epoch());
        let one = &mut self.peers[peer];
        one.is_busy &= matches!(event, CollaborationEvent::Epoch(..) | CollaborationEvent::Due(..));
        match event {
            CollaborationEvent::Connect(_) => {
                self.round.on_join(key(peer), DeviceKind::NativeCpu, AddressGroup::UNKNOWN)?;
                one.link.on_connected(now);
                one.contributor.on_connected(SAMPLES_MAX, MICRO_BATCH as u32);
                one.contributor.on_epoch(epoch);
            }
            CollaborationEvent::State(_) => {
                one.trainer.load_parameters(self.machine.parameters())?;
                one.accumulated.clear();
                one.contributor.on_state(epoch);
            }
            CollaborationEvent::Batch(_) => {
                let samples = one.feed.take()?;
                one.trainer.accumulate_samples(&samples, 0).await?;
                one.accumulated.push(samples);
                let speed = 1000.0 * MICRO_BATCH as f32 / PEERS[peer].0 as f32;
                one.contributor.on_batch(MICRO_BATCH as u32, speed);
            }
            CollaborationEvent::Answer(_, answer) => one.contributor.on_answer(&one.link, now, &answer),
            CollaborationEvent::Epoch(_, epoch) => one.contributor.on_epoch(epoch),
            CollaborationEvent::Due(_, epoch) => one.contributor.on_due(epoch),
            CollaborationEvent::Report(..)
            | CollaborationEvent::Offered(_)
            | CollaborationEvent::Received(_)
            | CollaborationEvent::Deadline => {}
        }
        self.drive(peer).await
    }

    /// Does what the peer's state machine says.
    async fn drive(&mut self, peer: usize) -> Result<()> {
        let now = self.now();
        while !self.peers[peer].is_busy {
            let one = &mut self.peers[peer];
            // The backbone is never silent here.
            one.link.on_message(now);
            let (delay_ms, event) = match one.contributor.next_action(&mut one.link, now) {
                ContributorAction::FetchState => (3 * LATENCY_MS, CollaborationEvent::State(peer)),
                ContributorAction::ComputeBatch => (PEERS[peer].0, CollaborationEvent::Batch(peer)),
                ContributorAction::Offer => {
                    one.is_busy = true;
                    self.simulation.send(NodeId(peer), BACKBONE, CollaborationEvent::Offered(peer));
                    continue;
                }
                ContributorAction::SendReport(report) => {
                    self.simulation.send(NodeId(peer), BACKBONE, CollaborationEvent::Report(peer, report));
                    continue;
                }
                ContributorAction::TakeGradient { contribution_id, epoch, n_samples } => {
                    let gradient = one.trainer.take_mean_gradient().await?.context("no gradient to take")?;
                    ensure!(
                        gradient.n_samples == n_samples,
                        "{} samples, not {n_samples}",
                        gradient.n_samples
                    );
                    let offer = Offer {
                        contribution_id,
                        epoch,
                        n_samples,
                        loss: gradient.loss,
                        n_values: gradient.values.len() as u64,
                        codec: TensorCodec::F32,
                        transfer: Transfer::of(&TensorCodec::F32.encode(&gradient.values)?),
                    };
                    let samples = std::mem::take(&mut one.accumulated);
                    one.offered = Some(Offered { offer, values: gradient.values, samples });
                    continue;
                }
                ContributorAction::Wait(_) => return Ok(()),
                other => bail!("{other:?} of a contributor that goes on"),
            };
            self.peers[peer].is_busy = true;
            self.after(delay_ms, event);
        }
        Ok(())
    }

    fn offered(&mut self, peer: usize) -> Result<()> {
        let offered = self.peers[peer].offered.clone().context("nothing is offered")?;
        match self.round.on_offer(self.now(), &key(peer), &offered.offer) {
            Ok(ticket) => {
                self.flights.insert(ticket, (peer, offered));
                self.after(PEERS[peer].1, CollaborationEvent::Received(ticket));
            }
            Err(refusal) => self.tell(peer, CollaborationEvent::Answer(peer, Err(refusal))),
        }
        Ok(())
    }

    fn act(&mut self) -> Result<()> {
        while let Some(action) = self.round.poll_action() {
            match action {
                CollectionAction::Persist { ticket, .. } => self.round.on_persisted(self.now(), ticket),
                CollectionAction::Acknowledge(ticket, accepted) => {
                    let (peer, offered) = self.flights.remove(&ticket).context("an unknown ticket")?;
                    self.counted.extend(offered.samples);
                    self.tell(peer, CollaborationEvent::Answer(peer, Ok(accepted)));
                }
                CollectionAction::Refuse(ticket, refusal) => {
                    let (peer, _) = self.flights.remove(&ticket).context("an unknown ticket")?;
                    self.tell(peer, CollaborationEvent::Answer(peer, Err(refusal)));
                }
                CollectionAction::RequestGradients(epoch) => {
                    self.tell_all(|peer| CollaborationEvent::Due(peer, epoch));
                }
                CollectionAction::Announce(epoch) => {
                    self.tell_all(|peer| CollaborationEvent::Epoch(peer, epoch));
                }
                CollectionAction::Abandon(_) | CollectionAction::Evict(_) => {}
                CollectionAction::Step(mean) => self.make_step(&mean)?,
            }
        }
        if let Some(at) = self.round.next_deadline() {
            let wait = at.saturating_sub(self.now()).as_millis() as u64;
            self.after(wait, CollaborationEvent::Deadline);
        }
        Ok(())
    }

    fn make_step(&mut self, mean: &CollectedMean) -> Result<()> {
        self.machine.apply(&mean.gradient)?;
        let samples = std::mem::take(&mut self.counted);
        let n_counted: usize = samples.iter().map(|samples| samples.n_samples()).sum();
        ensure!(n_counted as u64 == mean.n_samples, "{n_counted} samples, the step has {}", mean.n_samples);
        self.steps.push(CollaborationStep { loss: f64::from(mean.loss), n_samples: mean.n_samples, samples });
        self.n_steps += 1;
        let is_now = |(_, percent): &&(usize, u64)| self.n_steps == self.n_wanted * percent / 100;
        let come: Vec<usize> = COME.iter().filter(is_now).map(|(peer, _)| *peer).collect();
        let leave: Vec<usize> = LEAVE.iter().filter(is_now).map(|(peer, _)| *peer).collect();
        for peer in leave {
            self.peers[peer].is_there = false;
            self.round.on_leave(self.now(), &key(peer));
        }
        self.round.on_stepped(self.now());
        come.into_iter().try_for_each(|peer| self.start(peer))
    }

    fn tell_all(&mut self, event: impl Fn(usize) -> CollaborationEvent) {
        for peer in 0..PEERS.len() {
            if self.peers[peer].is_there {
                self.tell(peer, event(peer));
            }
        }
    }
}
