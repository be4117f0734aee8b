//! Several uneven peers through the real backbone make the steps that one machine makes.

use barnraise_learning::{
    Batch, ComputeDevice, DataShape, Decay, Optimizer, OptimizerSpec, ParameterLayout, ScheduleSpec, Trainer,
};
use barnraise_native::config::RunConfig;
use barnraise_native::data::sets::{Dataset, FileSpecs};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::BackboneToContributor;
use barnraise_protocol::dataset::{ImageShape, LabelledImages};
use barnraise_protocol::gradient::Offer;
use barnraise_protocol::run::RunDescription;
use barnraise_tests::client::{ContributeSession, TestClient, n_parameters};
use barnraise_tests::process::TestRun;
use libp2p::Multiaddr;

use super::SMALL;
use super::aggregators::TwoAggregators;

const EPOCHS: u64 = 6;
/// Samples of each peer in each epoch, together the target, and of its micro-batches.
const PEERS: [(usize, usize); 3] = [(160, 32), (80, 40), (16, 5)];
/// Sums of floats depend on their order: that far a parameter may be from the one machine's after all
/// epochs. The parameters move by about 0.1 in that time.
const TOLERANCE: f32 = 2e-6;

#[tokio::test]
async fn uneven_peers_equal_one_machine() {
    let config: RunConfig = toml::from_str(SMALL).unwrap();
    compare(SMALL, config.synchronous().unwrap().optimizer, config.synchronous().unwrap().schedule).await;
}

#[tokio::test]
async fn uneven_peers_of_two_backbones_equal_one_machine() {
    let config: RunConfig = toml::from_str(SMALL).unwrap();
    let mut two = TwoAggregators::patient().await;
    let (one, other) = two.start().await;
    let at = [one.tcp().unwrap(), other.tcp().unwrap(), other.tcp().unwrap()];
    compare_at(&at, config.synchronous().unwrap().optimizer, config.synchronous().unwrap().schedule).await;
}

/// One local step of plain SGD from the parameters of the epoch, and an outer optimizer that goes where it leads to.
#[tokio::test]
async fn single_local_steps_equal_plain_sgd_on_one_machine() {
    let local_steps = r#"[scheme.synchronous.local_steps]
steps = 1
optimizer = { kind = "sgd-momentum", momentum = 0.0 }
schedule = { peak = 0.05, decay = { kind = "step", every = 3, factor = 0.5 } }

[scheme.synchronous]"#;
    let sections = SMALL
        .replace("momentum = 0.9", "momentum = 0.0")
        .replace("peak = 0.05", "peak = 1.0")
        .replace("[scheme.synchronous]", local_steps);
    let schedule = ScheduleSpec { peak: 0.05, warmup_steps: 0, decay: Decay::Step { every: 3, factor: 0.5 } };
    compare(&sections, OptimizerSpec::plain_sgd(), schedule).await;
}

/// A run of `sections` with `optimizer` on one machine that has all samples.
async fn compare(sections: &str, optimizer: OptimizerSpec, schedule: ScheduleSpec) {
    // It waits for each of the peers, however long that takes: a step without one of them is another one.
    let patient = sections.replace("collect_timeout = \"2s\"", "collect_timeout = \"100s\"");
    assert_ne!(patient, sections);
    let mut test_run = TestRun::new(&patient).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let at = backbone.tcp().unwrap();
    compare_at(&[at.clone(), at.clone(), at], optimizer, schedule).await;
}

/// The same with the peers at these backbones.
async fn compare_at(backbones: &[Multiaddr], optimizer: OptimizerSpec, schedule: ScheduleSpec) {
    let data = data();
    let mut peers = Vec::new();
    for (backbone, (n_samples, micro_batch)) in backbones.iter().zip(PEERS) {
        peers.push(EquivalencePeer::join(backbone, n_samples, micro_batch).await);
    }
    let run = peers[0].run.clone();
    let first = peers[0].client.state(&run).await.unwrap().parameters;
    let mut one_machine = OneMachine::new(&run, data.shape, optimizer, schedule);
    assert_eq!(first, one_machine.parameters, "the same seed gives the same weights");

    let mut at = 0;
    for epoch in 0..EPOCHS {
        let begin = at;
        for peer in &mut peers {
            peer.compute(epoch, &take(&data, at, peer.n_samples)).await;
            at += peer.n_samples;
        }
        // All at once, so that the first report does not reach the epoch's target alone.
        for peer in &mut peers {
            peer.deliver(epoch).await;
        }
        for peer in &mut peers {
            assert_eq!(peer.session.receive().await.unwrap(), BackboneToContributor::EpochStarted(epoch + 1));
        }
        one_machine.step(epoch, &take(&data, begin, at - begin)).await;
    }

    let state = peers[0].client.state(&run).await.unwrap();
    assert_eq!(state.epoch, EPOCHS);
    let far = |(a, b): (&f32, &f32)| (a - b).abs();
    let off = state.parameters.iter().zip(&one_machine.parameters).map(far).fold(0.0, f32::max);
    let moved = state.parameters.iter().zip(&first).map(far).fold(0.0, f32::max);
    assert!(off <= TOLERANCE, "off by {off}, at most {TOLERANCE} is wanted");
    assert!(moved > 1000.0 * TOLERANCE, "the parameters moved by {moved} only: nothing was shown");
}

fn data() -> Dataset {
    let sources = RunConfig::default().data_sources();
    Dataset::load(&sources, &FileSpecs::fashion_mnist()).unwrap()
}

fn take(data: &Dataset, begin: usize, n_samples: usize) -> LabelledImages {
    let n_values = data.shape.n_values();
    let end = begin + n_samples;
    LabelledImages {
        images: data.train.images[begin * n_values..end * n_values].to_vec(),
        labels: data.train.labels[begin..end].to_vec(),
    }
}

/// Adds the gradients of `samples`, `micro_batch` at a time.
async fn accumulate(trainer: &mut Trainer, samples: &LabelledImages, micro_batch: usize, shape: ImageShape) {
    let images = samples.images.chunks(micro_batch * shape.n_values());
    for (images, labels) in images.zip(samples.labels.chunks(micro_batch)) {
        let batch = Batch { images: images.to_vec(), labels: labels.to_vec() };
        trainer.accumulate(&batch).await.unwrap();
    }
}

fn trainer(run: &RunDescription) -> Trainer {
    Trainer::new(&run.model, DataShape::of(&run.data.manifest.samples), ComputeDevice::cpu()).unwrap()
}

struct EquivalencePeer {
    client: TestClient,
    run: RunDescription,
    session: ContributeSession,
    trainer: Trainer,
    n_samples: usize,
    micro_batch: usize,
}

impl EquivalencePeer {
    async fn join(address: &Multiaddr, n_samples: usize, micro_batch: usize) -> Self {
        let client = TestClient::connect(address.clone()).await.unwrap();
        let run = client.describe().await.unwrap();
        let mut session = client.join(&run.identity.run_id, "a test").await.unwrap();
        assert!(matches!(session.receive().await.unwrap(), BackboneToContributor::Welcome(_)));
        let trainer = match &run.synchronous().unwrap().local_steps {
            Some(steps) => trainer(&run).with_local_steps(&run.model, steps).unwrap(),
            None => trainer(&run),
        };
        Self { client, run, session, trainer, n_samples, micro_batch }
    }

    fn shape(&self) -> ImageShape {
        self.run.data.manifest.image_shape().unwrap()
    }

    async fn compute(&mut self, epoch: u64, samples: &LabelledImages) {
        let state = self.client.state(&self.run).await.unwrap();
        assert_eq!(state.epoch, epoch);
        self.trainer.load_parameters(&state.parameters).unwrap();
        self.trainer.on_epoch(epoch);
        let shape = self.shape();
        accumulate(&mut self.trainer, samples, self.micro_batch, shape).await;
        self.session.report(epoch, self.n_samples as u32).await.unwrap();
    }

    async fn deliver(&mut self, epoch: u64) {
        assert_eq!(self.session.receive().await.unwrap(), BackboneToContributor::GradientDue(epoch));
        let mean = self.trainer.take_mean_gradient().await.unwrap().unwrap();
        let codec = self.run.scheme.gradient_codec().encoding();
        let bytes = codec.encode(&mean.values).unwrap();
        let offer = Offer {
            contribution_id: epoch,
            epoch,
            n_samples: mean.n_samples,
            loss: mean.loss,
            n_values: n_parameters(&self.run).unwrap(),
            codec,
            transfer: Transfer::of(&bytes),
        };
        let receipt = self.client.offer(&offer, &bytes).await.unwrap().unwrap();
        assert_eq!(receipt.verify_for(&self.run.identity.run_id, self.client.key(), &offer), Ok(()));
    }
}

struct OneMachine {
    trainer: Trainer,
    shape: ImageShape,
    optimizer: Optimizer,
    schedule: ScheduleSpec,
    parameters: Vec<f32>,
}

impl OneMachine {
    fn new(run: &RunDescription, shape: ImageShape, spec: OptimizerSpec, schedule: ScheduleSpec) -> Self {
        let layout = ParameterLayout::of(&run.model, DataShape::of(&run.data.manifest.samples)).unwrap();
        Self {
            trainer: trainer(run),
            shape,
            optimizer: Optimizer::new(spec, &layout).unwrap(),
            schedule,
            parameters: layout.initial_parameters(run.model.seed),
        }
    }

    async fn step(&mut self, epoch: u64, samples: &LabelledImages) {
        self.trainer.load_parameters(&self.parameters).unwrap();
        accumulate(&mut self.trainer, samples, samples.labels.len(), self.shape).await;
        let mean = self.trainer.take_mean_gradient().await.unwrap().unwrap();
        let learning_rate = self.schedule.learning_rate(epoch);
        self.optimizer.step(&mut self.parameters, &mean.values, learning_rate).unwrap();
    }
}
