//! Byzantine robustness: ten peers train together, two of them are dishonest. With CenteredClip the model is as good as
//! without them, with the mean it is not. Real gradients of a real model go through a backbone's collection round; no
//! wire, no clock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::time::Duration;

use barnraise_learning::{Batch, ComputeDevice, DataShape, Optimizer, OptimizerSpec, Trainer};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::{DeviceKind, Report};
use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::gradient::{ContributionRefusal, Offer};
use barnraise_protocol::run::{
    DecayDescription, LocalSteps, OptimizerDescription, Preset, ScheduleDescription,
};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::PeerKey;
use barnraise_swarm::collection::{CollectionAction, CollectionConfig, CollectionRound};
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::robust::{Aggregation, OUTLIER_ROUNDS, OutlierTracker};
use futures::executor::block_on;

const SEED: u64 = 20_261;
const SHAPE: ImageShape = ImageShape { height: 8, width: 8, channels: 1 };
const N_CLASSES: usize = 8;
const N_STEPS: u64 = 100;
/// Steps of a run whose learning rate decays to zero.
const N_STEPS_OF_A_WHOLE_RUN: u64 = 300;
const LEARNING_RATE: f32 = 0.01;
/// Samples of each peer in each epoch.
const SIZES: [u32; 10] = [8, 16, 24, 32, 48, 64, 96, 96, 40, 20];
const DISHONEST: [usize; 2] = [2, 7];
/// Most samples that a contribution may claim: the claim of a dishonest peer.
const SAMPLES_MAX: u32 = 8192;
const ROBUST: Aggregation = Aggregation::CenteredClip { places: 16 };
/// One percentage point of accuracy: more than robust aggregation costs, and less than the mean loses under attack.
const POINT: f32 = 0.01;

#[derive(Debug, Clone, Copy, PartialEq)]
enum GradientAttack {
    Nothing,
    /// The honest gradient times -10.
    SignFlip,
    /// The honest gradient times -1: its norm is inconspicuous.
    Turned,
    /// Finite, and so large that the weighted sum of two overflows in single precision.
    Huge,
    Random,
    Zero,
}

impl GradientAttack {
    fn gradient(self, honest: &[f32], random: &mut SplitMix64) -> Vec<f32> {
        let of = |honest: &f32| match self {
            Self::Nothing => *honest,
            Self::SignFlip => -10.0 * honest,
            Self::Turned => -honest,
            Self::Huge => 1e30,
            Self::Random => (uniform(random) - 0.5) * 20.0,
            Self::Zero => 0.0,
        };
        honest.iter().map(of).collect()
    }
}

/// In 0..1.
fn uniform(random: &mut SplitMix64) -> f32 {
    (random.next_u64() >> 40) as f32 / (1 << 24) as f32
}

/// Synthetic data set: each class has a picture; a sample is the faint picture under much noise.
struct NoisyPictures {
    pictures: Vec<Vec<f32>>,
    random: SplitMix64,
}

impl NoisyPictures {
    fn new(seed: u64) -> Self {
        let mut pictures = SplitMix64::new(SEED);
        let picture = |_| (0..SHAPE.n_values()).map(|_| uniform(&mut pictures)).collect();
        Self { pictures: (0..N_CLASSES).map(picture).collect(), random: SplitMix64::new(seed) }
    }

    fn samples(&mut self, n: usize) -> Batch {
        let mut batch = Batch::default();
        for _ in 0..n {
            let label = self.random.below(N_CLASSES);
            for &value in &self.pictures[label] {
                batch.images.push((255.0 * (0.33 * value + 0.67 * uniform(&mut self.random))) as u8);
            }
            batch.labels.push(label as u8);
        }
        batch
    }
}

fn peer(index: usize) -> PeerKey {
    PeerKey(vec![index as u8])
}

/// Target batch size that is reached exactly when every peer has delivered.
fn target(attack: GradientAttack, aggregation: Aggregation) -> u32 {
    let lies = |index: usize| attack != GradientAttack::Nothing && DISHONEST.contains(&index);
    if aggregation == Aggregation::Mean {
        return (0..SIZES.len()).filter(|&index| !lies(index)).map(|index| SIZES[index]).sum();
    }
    // Each counts up to the median.
    let claims = (0..SIZES.len()).map(|index| if lies(index) { SAMPLES_MAX } else { SIZES[index] });
    let mut claims: Vec<u32> = claims.collect();
    claims.sort_unstable();
    let median = claims[(claims.len() - 1) / 2];
    claims.into_iter().map(|n| n.min(median)).sum()
}

/// Samples of a local step: peers with few samples make one or two steps, others several times four.
const MICRO_BATCH: usize = 8;

struct RobustTraining {
    trainer: Trainer,
    learning_rate: f32,
    /// After so many steps the learning rate is 0.
    falls_over: Option<u64>,
    optimizer: Optimizer,
    parameters: Vec<f32>,
    round: CollectionRound,
    aggregation: Aggregation,
    task: NoisyPictures,
    random: SplitMix64,
    attack: GradientAttack,
    far_off: OutlierTracker,
    named: Vec<PeerKey>,
    refused: Vec<(usize, ContributionRefusal)>,
}

impl RobustTraining {
    fn new(attack: GradientAttack, aggregation: Aggregation, gradient_norm_max: f32) -> Self {
        let spec = Preset::Mlp { hidden: vec![32] }.model(5);
        let trainer = Trainer::new(
            &spec,
            DataShape::Images { shape: SHAPE, n_classes: N_CLASSES },
            ComputeDevice::cpu(),
        )
        .unwrap();
        let layout = trainer.layout();
        let config = CollectionConfig {
            target_batch_size: target(attack, aggregation),
            n_parameters: layout.n_parameters(),
            codec: TensorCodec::F32,
            slow_codec: None,
            micro_batch_size: 1,
            contribution_samples_max: SAMPLES_MAX,
            samples_per_second_max: SAMPLES_MAX,
            collect_timeout: Duration::from_secs(5),
            in_flight_max: SIZES.len(),
            contributors_max: SIZES.len(),
            is_open: false,
            aggregation,
            gradient_norm_max,
        };
        let mut round = CollectionRound::new(config, 0);
        for index in 0..SIZES.len() {
            round.on_join(peer(index), DeviceKind::NativeCpu, AddressGroup::UNKNOWN).unwrap();
        }
        Self {
            optimizer: Optimizer::new(OptimizerSpec::adam(), layout).unwrap(),
            learning_rate: LEARNING_RATE,
            falls_over: None,
            parameters: layout.initial_parameters(spec.seed),
            trainer,
            round,
            aggregation,
            task: NoisyPictures::new(SEED + 1),
            random: SplitMix64::new(SEED + 2),
            attack,
            far_off: OutlierTracker::default(),
            named: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Every peer makes local steps with a stateless optimizer: one trainer is enough for all.
    fn of_local_steps(attack: GradientAttack, aggregation: Aggregation) -> Self {
        let run = Self::new(attack, aggregation, f32::MAX);
        let spec = Preset::Mlp { hidden: vec![32] }.model(5);
        let optimizer =
            OptimizerDescription::SgdMomentum { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        let schedule = ScheduleDescription { peak: 0.1, warmup_epochs: 0, decay: DecayDescription::Constant };
        let steps = LocalSteps { steps: 4, optimizer, schedule };
        let outer = OptimizerSpec::SgdMomentum { momentum: 0.6, nesterov: true, weight_decay: 0.0 };
        let optimizer = Optimizer::new(outer, run.trainer.layout()).unwrap();
        let trainer = run.trainer.with_local_steps(&spec, &steps).unwrap();
        Self { trainer, optimizer, learning_rate: 1.0, ..run }
    }

    fn whole(attack: GradientAttack, aggregation: Aggregation) -> Self {
        Self { falls_over: Some(N_STEPS_OF_A_WHOLE_RUN), ..Self::new(attack, aggregation, f32::MAX) }
    }

    fn learning_rate(&self, epoch: u64) -> f32 {
        let gone = self.falls_over.map_or(0.0, |n_steps| epoch as f32 / n_steps as f32);
        self.learning_rate * (1.0 - gone)
    }

    fn is_dishonest(&self, index: usize) -> bool {
        self.attack != GradientAttack::Nothing && DISHONEST.contains(&index)
    }

    /// All peers report, then all deliver; the last one, which is honest, triggers the step. With robust aggregation the
    /// dishonest peers deliver before any report.
    fn epoch(&mut self, epoch: u64) {
        let now = Duration::from_secs(epoch + 1);
        self.trainer.load_parameters(&self.parameters).unwrap();
        let are_first = self.attack != GradientAttack::Nothing && self.aggregation == ROBUST;
        let early = DISHONEST.into_iter().filter(|_| are_first);
        early.for_each(|index| self.contribute(now, epoch, index));
        for (index, n_samples) in
            SIZES.into_iter().enumerate().filter(|(index, _)| !DISHONEST.contains(index))
        {
            let report = Report { epoch, contribution_id: u64::MAX, n_samples, samples_per_second: 50.0 };
            self.round.on_report(now, &peer(index), &report).unwrap();
        }
        for index in (0..SIZES.len()).filter(|index| !(are_first && DISHONEST.contains(index))) {
            self.contribute(now, epoch, index);
        }
        let mut is_stepped = false;
        while let Some(action) = self.round.poll_action() {
            match action {
                CollectionAction::Step(mean) => {
                    self.named.extend(self.far_off.on_round(&mean.outcomes));
                    let before = (self.optimizer.clone(), self.parameters.clone());
                    let rate = self.learning_rate(epoch);
                    let stepped = self.optimizer.step(&mut self.parameters, &mean.gradient, rate);
                    // Like the backbone: a step that is not finite changes nothing.
                    if stepped.is_err() {
                        (self.optimizer, self.parameters) = before;
                    }
                    self.round.on_stepped(now);
                    is_stepped = true;
                }
                CollectionAction::Refuse(ticket, refusal) => self.refused.push((ticket.0 as usize, refusal)),
                _ => {}
            }
        }
        assert!(is_stepped, "epoch {epoch}, seed {SEED}");
    }

    fn contribute(&mut self, now: Duration, epoch: u64, index: usize) {
        let samples = self.task.samples(SIZES[index] as usize);
        let mean = block_on(async {
            let images = samples.images.chunks(MICRO_BATCH * SHAPE.n_values());
            for (images, labels) in images.zip(samples.labels.chunks(MICRO_BATCH)) {
                let batch = Batch { images: images.to_vec(), labels: labels.to_vec() };
                self.trainer.accumulate(&batch).await.unwrap();
            }
            self.trainer.take_mean_gradient().await.unwrap().unwrap()
        });
        let (values, n_samples) = match self.is_dishonest(index) {
            true => (self.attack.gradient(&mean.values, &mut self.random), SAMPLES_MAX),
            false => (mean.values, SIZES[index]),
        };
        let offer = Offer {
            contribution_id: epoch,
            epoch,
            n_samples,
            loss: mean.loss,
            n_values: values.len() as u64,
            codec: TensorCodec::F32,
            transfer: Transfer::of(&vec![0; values.len() * 4]),
        };
        let ticket = self.round.on_offer(now, &peer(index), &offer).unwrap();
        self.round.on_gradient(now, ticket, values);
        self.round.on_persisted(now, ticket);
    }

    /// Accuracy on unseen samples after all steps.
    fn accuracy(&mut self) -> f32 {
        (0..self.falls_over.unwrap_or(N_STEPS)).for_each(|epoch| self.epoch(epoch));
        self.trainer.load_parameters(&self.parameters).unwrap();
        let unseen = NoisyPictures::new(SEED + 3).samples(2000);
        let evaluation = block_on(self.trainer.evaluate(&unseen.images, &unseen.labels)).unwrap();
        println!("seed {SEED}, {:?}: {:.2} %", self.attack, 100.0 * evaluation.accuracy);
        evaluation.accuracy
    }
}

fn clean() -> f32 {
    let accuracy = RobustTraining::new(GradientAttack::Nothing, Aggregation::Mean, f32::MAX).accuracy();
    assert!(accuracy > 0.9, "the task is learnt without an attack: {accuracy}");
    accuracy
}

/// Accuracy of both aggregations, without a limit on the norm.
fn against(attack: GradientAttack) -> (f32, f32, Vec<PeerKey>) {
    let mean = RobustTraining::new(attack, Aggregation::Mean, f32::MAX).accuracy();
    let mut robust = RobustTraining::new(attack, ROBUST, f32::MAX);
    (mean, robust.accuracy(), robust.named)
}

#[test]
fn sign_flipped_gradients_are_tolerated() {
    let (mean, robust, _) = against(GradientAttack::SignFlip);
    let clean = clean();
    assert!(robust > clean - POINT && mean < clean - POINT, "clean {clean}, mean {mean}, robust {robust}");
}

/// They slow down every step; the accuracy at the end of a whole run is as good.
#[test]
fn sign_flips_of_an_ordinary_norm_are_tolerated_in_the_end() {
    let clean = RobustTraining::whole(GradientAttack::Nothing, Aggregation::Mean).accuracy();
    let mean = RobustTraining::whole(GradientAttack::Turned, Aggregation::Mean).accuracy();
    let robust = RobustTraining::whole(GradientAttack::Turned, ROBUST).accuracy();
    assert!(robust > clean - POINT && mean < clean - POINT, "clean {clean}, mean {mean}, robust {robust}");
}

#[test]
fn huge_gradients_are_tolerated_and_their_senders_named() {
    let (mean, robust, named) = against(GradientAttack::Huge);
    let clean = clean();
    assert!(robust > clean - POINT && mean < clean - POINT, "clean {clean}, mean {mean}, robust {robust}");
    assert_eq!(named, DISHONEST.map(peer), "after {OUTLIER_ROUNDS} rounds");
}

#[test]
fn random_gradients_are_tolerated_and_their_senders_named() {
    let (mean, robust, named) = against(GradientAttack::Random);
    let clean = clean();
    assert!(robust > clean - POINT && mean < clean - POINT, "clean {clean}, mean {mean}, robust {robust}");
    assert_eq!(named, DISHONEST.map(peer), "after {OUTLIER_ROUNDS} rounds");
}

#[test]
fn peers_that_send_zeros_cost_nothing_however_many_samples_they_claim() {
    let (mean, robust, _) = against(GradientAttack::Zero);
    let clean = clean();
    println!("the mean shrinks, and Adam makes up for that: {mean}");
    assert!(robust > clean - POINT, "clean {clean}, robust {robust}");
}

#[test]
fn wrong_local_steps_are_tolerated_as_well() {
    let clean = RobustTraining::of_local_steps(GradientAttack::Nothing, Aggregation::Mean).accuracy();
    assert!(clean > 0.9, "the task is learnt without an attack: {clean}");
    for attack in [GradientAttack::Nothing, GradientAttack::SignFlip, GradientAttack::Random] {
        let robust = RobustTraining::of_local_steps(attack, ROBUST).accuracy();
        assert!(robust > clean - POINT, "{attack:?}: clean {clean}, robust {robust}");
    }
}

#[test]
fn without_an_attack_robust_aggregation_costs_nothing() {
    let robust = RobustTraining::new(GradientAttack::Nothing, ROBUST, 1e3).accuracy();
    let clean = clean();
    assert!((robust - clean).abs() < POINT, "clean {clean}, robust {robust}");
}

#[test]
fn the_mean_refuses_huge_gradients_with_a_reason() {
    let mut run = RobustTraining::new(GradientAttack::Huge, Aggregation::Mean, 1e3);
    let accuracy = run.accuracy();
    assert!((accuracy - clean()).abs() < POINT, "{accuracy}");
    assert_eq!(run.refused.len() as u64, N_STEPS * DISHONEST.len() as u64);
    let is_reason = |(_, refusal): &(usize, ContributionRefusal)| matches!(refusal, ContributionRefusal::Norm { max: 1e3, got } if *got > 1e30);
    assert!(run.refused.iter().all(is_reason), "{:?}", run.refused[0]);
}
