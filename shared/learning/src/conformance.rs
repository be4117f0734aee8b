//! The same checks of a device everywhere: natively in a test, in a browser on WebGPU.
//!
//! Each check computes something on the device and on the CPU (or by another method) and reports
//! the deviation. Nothing is asserted here: the caller decides what a failure means.

pub use barnraise_protocol::check::CheckOutcome;
use barnraise_protocol::dataset::{
    ImageShape, LabelledImages, RatingShape, Ratings, RowTargets, Samples, TableRows, TokenSequences,
    TokenShape,
};
use barnraise_protocol::run::model::presets::{Albert, Gpt, GptFamily, Norm, ResNet, Swav, SwavTrunk, Vit};
use barnraise_protocol::run::{
    DecayDescription, LocalSteps, ModelSpec, OptimizerDescription, Preset, ScheduleDescription,
};

use crate::data_shape::{DataShape, RowTarget};
use crate::device::{ComputeDevice, Precision};
use crate::error::ModelError;
use crate::masking::EVALUATION_DRAW;
use crate::trainer::{MeanGradient, Trainer};

/// Gradients, losses and probabilities of another device: it sums in another order and its
/// exponentials differ in their last bits; through four layers of single precision (2^-24 each
/// operation, some hundred terms a sum) that stays well below a thousandth of the largest value.
const TOLERANCE_DEVICE: f32 = 1e-3;
/// The same device, the same samples, another grouping: only the order of the sums differs.
const TOLERANCE_GROUPING: f32 = 1e-4;
/// Products in f16 are rounded to 2^-11, those in bf16 to 2^-8. Where there is pooling, another of two nearly equal values
/// may be the largest, SwAV multiplies differences of scores by 20 before it assigns, and local steps add up.
const TOLERANCE_HALF: (f32, f32) = (0.2, 0.5);
/// Central differences of a loss with kinks (ReLU, pooling), in single precision logits.
const TOLERANCE_DIFFERENCES: f32 = 2e-2;
/// Step of the central differences, relative to a direction of norm 1.
const DIFFERENCE_STEP: f32 = 2e-3;

/// With group normalization, so that a gradient is of its samples.
const RESNET: ResNet = ResNet { norm: Norm::Group(2), small_pictures: true, width: 4 };
const SHAPE: ImageShape = ImageShape { height: 28, width: 28, channels: 1 };
const N_CLASSES: usize = 10;
const TOKENS: TokenShape = TokenShape { length: 16, vocabulary: 60, mask: Some(1) };
/// Ids of it that no sample has.
const N_SPECIAL: u32 = 3;
pub(crate) const N_SAMPLES: usize = 32;
/// Where the batch is cut in two for the accumulation check, unevenly.
const CUT: usize = 11;

/// Of a gradient on the tested device: `single` in single precision.
fn tolerance(tested: &Trainer, single: f32) -> f32 {
    match tested.device().precision() {
        Precision::Single => single,
        Precision::F16 => TOLERANCE_HALF.0,
        Precision::Bf16 => TOLERANCE_HALF.1,
    }
}

fn outcome(name: String, got: &[f32], want: &[f32], tolerance: f32) -> CheckOutcome {
    CheckOutcome { name, deviation: deviation(got, want), tolerance }
}

/// Runs every check on `device` with every architecture.
///
/// # Errors
/// A device that failed. A wrong result is not an error but an outcome that did not pass.
pub async fn run(device: &ComputeDevice) -> Result<Vec<CheckOutcome>, ModelError> {
    let mut outcomes = Vec::new();
    for (name, preset, data) in models() {
        // Balanced over the pictures of a pass, what SwAV computes is of that pass as a whole; and its targets, which
        // have no gradient, move with the parameters.
        let spec = preset.model(11);
        let is_of_samples = spec.graph.is_of_samples();
        let mut tested = Trainer::new(&spec, data, device.clone())?;
        let mut reference = Trainer::new(&spec, data, ComputeDevice::cpu())?;
        let samples = synthetic_samples(data);
        outcomes.extend(compare(name, &samples, &mut tested, &mut reference).await?);
        if is_of_samples {
            outcomes.extend(cut(name, &samples, &mut tested).await?);
            if let Samples::Images(images) = &samples {
                outcomes.push(probabilities(name, images, &tested, &reference).await?);
            }
            outcomes.push(differences(name, &samples, &mut reference).await?);
        }
        let tolerance = tolerance(&tested, TOLERANCE_DEVICE);
        let got = local_steps(tested, &spec, &samples).await?;
        let want = local_steps(reference, &spec, &samples).await?;
        outcomes.push(outcome(format!("{name}: local steps as on the CPU"), &got, &want, tolerance));
    }
    Ok(outcomes)
}

/// Every architecture, small, with a name and what it is of.
pub(crate) fn models() -> [(&'static str, Preset, DataShape); 10] {
    let images = DataShape::Images { shape: SHAPE, n_classes: N_CLASSES };
    let text = DataShape::Tokens(TOKENS);
    let table = DataShape::Rows { n_columns: 7, target: RowTarget::Class(3) };
    let ratings = DataShape::Ratings(RatingShape { n_users: 9, n_items: 6 });
    [
        ("LeNet", Preset::LeNet, images),
        ("MLP", Preset::Mlp { hidden: vec![64, 32] }, images),
        ("ResNet-18", Preset::ResNet18(RESNET), images),
        ("ViT", Preset::Vit(Vit { patch: 7, width: 16, layers: 2, heads: 2 }), images),
        ("ALBERT", albert(), text),
        ("GPT-2", gpt(GptFamily::Gpt2), text),
        ("Llama", gpt(GptFamily::Llama), text),
        ("SwAV", swav(), images),
        ("MLP of a table", Preset::Mlp { hidden: vec![16] }, table),
        ("Matrix factorization", Preset::MatrixFactorization { factors: 4 }, ratings),
    ]
}

/// The pseudo-gradient of a whole trajectory and of one that ends early.
pub(crate) async fn local_steps(
    trainer: Trainer,
    spec: &ModelSpec,
    samples: &Samples,
) -> Result<Vec<f32>, ModelError> {
    let steps = LocalSteps {
        steps: 3,
        optimizer: OptimizerDescription::SgdMomentum { momentum: 0.9, nesterov: true, weight_decay: 0.0 },
        schedule: ScheduleDescription { peak: 0.02, warmup_epochs: 0, decay: DecayDescription::Constant },
    };
    let mut trainer = trainer.with_local_steps(spec, &steps)?;
    let (head, tail) = (part(samples, 0..CUT), part(samples, CUT..N_SAMPLES));
    Ok(gradient(&mut trainer, &[&head, &tail, &head, &tail]).await?.values)
}

async fn compare(
    model: &str,
    all: &Samples,
    tested: &mut Trainer,
    reference: &mut Trainer,
) -> Result<Vec<CheckOutcome>, ModelError> {
    let want = gradient(reference, &[all]).await?;
    let whole = gradient(tested, &[all]).await?;
    let evaluation = tested.evaluate_samples(all).await?;

    let name = |check: &str| format!("{model}: {check}");
    let device = tolerance(tested, TOLERANCE_DEVICE);
    let grouping = tolerance(tested, TOLERANCE_GROUPING);
    Ok(vec![
        outcome(name("gradient as on the CPU"), &whole.values, &want.values, device),
        outcome(name("loss as on the CPU"), &[whole.loss], &[want.loss], device),
        outcome(name("loss of evaluation and step"), &[evaluation.loss], &[whole.loss], grouping),
    ])
}

/// Samples in two passes, and of two peers, against the same in one.
async fn cut(model: &str, all: &Samples, tested: &mut Trainer) -> Result<Vec<CheckOutcome>, ModelError> {
    let (head, tail) = (part(all, 0..CUT), part(all, CUT..N_SAMPLES));
    let whole = gradient(tested, &[all]).await?;
    let pieces = gradient(tested, &[&head, &tail]).await?;
    let parts = [gradient(tested, &[&head]).await?, gradient(tested, &[&tail]).await?];
    let name = |check: &str| format!("{model}: {check}");
    let grouping = tolerance(tested, TOLERANCE_GROUPING);
    Ok(vec![
        outcome(name("two micro-batches as one"), &pieces.values, &whole.values, grouping),
        outcome(name("two peers by their samples as one"), &weighted(&parts), &whole.values, grouping),
    ])
}

fn albert() -> Preset {
    Preset::Albert(Albert { embedding: 12, hidden: 24, heads: 3, inner: 32, layers: 2 })
}

/// Llama's has fewer heads of keys and values.
fn gpt(family: GptFamily) -> Preset {
    Preset::Gpt(Gpt { key_value_heads: 2, inner: 40, ..Gpt::new(family, 24, 2, 4) })
}

/// Without a queue, so that a pass gives what it gave before.
fn swav() -> Preset {
    Preset::Swav(Swav {
        trunk: SwavTrunk::Convolutions(vec![6, 8]),
        hidden: 24,
        projection: 8,
        prototypes: 12,
        small_crops: 2,
        small_side: 12,
        queue_samples: 0,
        queue_after: 0,
        frozen_epochs: 0,
    })
}

async fn probabilities(
    model: &str,
    images: &LabelledImages,
    tested: &Trainer,
    reference: &Trainer,
) -> Result<CheckOutcome, ModelError> {
    let got = tested.predict(&images.images, N_SAMPLES).await?;
    let want = reference.predict(&images.images, N_SAMPLES).await?;
    Ok(outcome(format!("{model}: probabilities as on the CPU"), &got, &want, TOLERANCE_DEVICE))
}

/// The gradient of each layer against central differences of the loss along it, on the CPU.
async fn differences(
    model: &str,
    samples: &Samples,
    trainer: &mut Trainer,
) -> Result<CheckOutcome, ModelError> {
    let parameters = trainer.layout().initial_parameters(11);
    let gradient = gradient(trainer, &[samples]).await?.values;
    let mut slopes = (Vec::new(), Vec::new());
    for segment in trainer.layout().clone().trained() {
        let range = segment.range();
        let norm = gradient[range.clone()].iter().map(|value| value * value).sum::<f32>().sqrt();
        let mut losses = [0.0; 2];
        for (loss, sign) in losses.iter_mut().zip([DIFFERENCE_STEP, -DIFFERENCE_STEP]) {
            let mut moved = parameters.clone();
            for (value, slope) in moved[range.clone()].iter_mut().zip(&gradient[range.clone()]) {
                *value += sign * slope / norm;
            }
            trainer.load_parameters(&moved)?;
            *loss = trainer.evaluate_samples(samples).await?.loss;
        }
        slopes.0.push(norm);
        slopes.1.push((losses[0] - losses[1]) / (2.0 * DIFFERENCE_STEP));
    }
    trainer.load_parameters(&parameters)?;
    let name = format!("{model}: gradient as finite differences of the loss");
    Ok(outcome(name, &slopes.0, &slopes.1, TOLERANCE_DIFFERENCES))
}

/// With the tokens masked as in an evaluation, so that losses can be compared.
pub(crate) async fn gradient(
    trainer: &mut Trainer,
    batches: &[&Samples],
) -> Result<MeanGradient, ModelError> {
    for samples in batches {
        trainer.accumulate_samples(samples, EVALUATION_DRAW).await?;
    }
    let taken = trainer.take_mean_gradient().await?;
    taken.ok_or(ModelError::BatchSize { max: N_SAMPLES, got: 0 })
}

fn weighted(parts: &[MeanGradient]) -> Vec<f32> {
    let n_samples: u32 = parts.iter().map(|part| part.n_samples).sum();
    let mut mean = vec![0.0; parts.first().map_or(0, |part| part.values.len())];
    for part in parts {
        let weight = part.n_samples as f32 / n_samples as f32;
        mean.iter_mut().zip(&part.values).for_each(|(sum, value)| *sum += weight * value);
    }
    mean
}

pub(crate) fn synthetic_samples(data: DataShape) -> Samples {
    match data {
        DataShape::Images { .. } => Samples::Images(blobs()),
        DataShape::Tokens(shape) => Samples::Tokens(progressions(shape)),
        DataShape::Rows { n_columns, .. } => Samples::Rows(sums(n_columns)),
        DataShape::Ratings(shape) => Samples::Ratings(tastes(shape)),
    }
}

/// Rows whose class is how large the sum of their values is.
fn sums(n_columns: usize) -> TableRows {
    let value = |at: usize| (at * 37 % 101) as f32 / 50.0 - 1.0;
    let values: Vec<f32> = (0..N_SAMPLES * n_columns).map(value).collect();
    let class = |sum: f32| u8::from(sum > -1.0) + u8::from(sum > 1.0);
    let classes = values.chunks_exact(n_columns).map(|row| class(row.iter().sum())).collect();
    TableRows { n_columns, values, targets: RowTargets::Classes(classes) }
}

/// Users like every other item.
fn tastes(RatingShape { n_users, n_items }: RatingShape) -> Ratings {
    let (users, items): (Vec<u32>, Vec<u32>) =
        (0..N_SAMPLES as u32).map(|at| (at * 5 % n_users, at % n_items)).unzip();
    let ratings = users.iter().zip(&items).map(|(user, item)| 2.0 + ((user + item) % 2 * 2) as f32).collect();
    Ratings { users, items, ratings }
}

/// Blobs whose place and brightness depend on the class, on a noisy ground.
fn blobs() -> LabelledImages {
    let mut batch = LabelledImages::default();
    let mut random = 12_345_u32;
    for sample in 0..N_SAMPLES {
        let label = (sample * 7 + 3) % N_CLASSES;
        let (row, column) = (4 + 2 * label, 24 - 2 * label);
        for pixel in 0..SHAPE.n_values() {
            let distance = (pixel / 28).abs_diff(row) + (pixel % 28).abs_diff(column);
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let noise = (random >> 26) as u8;
            batch.images.push(noise + if distance < 6 { 100 + 8 * label as u8 } else { 0 });
        }
        batch.labels.push(label as u8);
    }
    batch
}

/// Ids that rise by a step of the sequence's own, and begin again at the end of the vocabulary.
fn progressions(shape: TokenShape) -> TokenSequences {
    let n_words = (shape.vocabulary - N_SPECIAL) as usize;
    let length = usize::from(shape.length);
    let id = |sample: usize, place: usize| (sample * 5 + place * (1 + sample % 4)) % n_words;
    let ids = (0..N_SAMPLES * length).map(|at| N_SPECIAL + id(at / length, at % length) as u32).collect();
    TokenSequences { length: shape.length, ids }
}

fn part(samples: &Samples, range: std::ops::Range<usize>) -> Samples {
    let mut part = samples.none_of();
    range.for_each(|index| part.push(samples, index));
    part
}

/// Infinite where the lengths differ or a value is not finite.
pub(crate) fn deviation(got: &[f32], want: &[f32]) -> f32 {
    if got.len() != want.len() || got.iter().chain(want).any(|value| !value.is_finite()) {
        return f32::INFINITY;
    }
    let scale = want.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let worst = got.iter().zip(want).fold(0.0_f32, |worst, (a, b)| worst.max((a - b).abs()));
    if worst == 0.0 { 0.0 } else { worst / scale }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use futures::executor::block_on;

    use super::*;
    #[cfg(feature = "wgpu")]
    use crate::device::{DeviceChoice, DeviceError, open_device};

    fn assert_conforms(device: &ComputeDevice) {
        let outcomes = block_on(run(device)).unwrap();
        assert_eq!(outcomes.len(), 71);
        for outcome in &outcomes {
            println!("{}: {:e} of {:e}", outcome.name, outcome.deviation, outcome.tolerance);
        }
        let failed: Vec<_> = outcomes.iter().filter(|outcome| !outcome.passed()).collect();
        assert!(failed.is_empty(), "{failed:?}");
    }

    #[test]
    fn the_cpu_conforms() {
        for precision in [Precision::Single, Precision::F16, Precision::Bf16] {
            assert_conforms(&ComputeDevice::cpu().with_precision(precision).unwrap());
        }
    }

    /// Where the machine has a graphics adapter, software ones included.
    #[cfg(feature = "wgpu")]
    #[test]
    fn wgpu_conforms_where_there_is_an_adapter() {
        match block_on(open_device(DeviceChoice::Wgpu)) {
            Ok(device) => assert_conforms(&device),
            Err(error @ DeviceError::NoAdapter(_)) => {
                println!("SKIPPED: {error}: mesa-vulkan-drivers has one");
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_wrong_gradient_does_not_pass() {
        assert_eq!(deviation(&[1.0, 2.0], &[1.0, 4.0]), 0.5);
        assert_eq!(deviation(&[0.0], &[0.0]), 0.0);
        assert_eq!(deviation(&[1.0], &[1.0, 2.0]), f32::INFINITY);
        let outcome = super::outcome(String::new(), &[f32::NAN], &[1.0], 1e-3);
        assert!(!outcome.passed());
        let outcome = super::outcome(String::new(), &[1.1], &[1.0], 1e-3);
        assert!(!outcome.passed());
    }
}
