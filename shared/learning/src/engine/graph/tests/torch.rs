//! Blocks and presets against PyTorch, torchvision and transformers: outputs, losses and gradients of
//! `tests/torch/golden.py`.

use barnraise_protocol::dataset::ImageShape;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::*;
use crate::data_shape::RowTarget;
use crate::engine::graph::{GraphTargets, InputValues};
use crate::graph::ValueShape;
use crate::parameters::STATISTICS_UNIT;
use crate::random::SplitMix64;
use barnraise_protocol::run::Preset;

/// Of the largest value: both compute in single precision and sum in another order.
const TOLERANCE: f32 = 1e-4;
/// Cases of the file.
const N_CASES: usize = 54;

/// Most values of a tensor's gradient in the file.
const GRADIENT_VALUES: usize = 160;

static GOLDEN: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torch/golden.safetensors"));

#[derive(Deserialize)]
struct Case {
    data: Data,
    graph: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Data {
    /// Channels, height, width and classes.
    Images([u16; 4]),
    /// Length, vocabulary and masked tokens.
    Tokens([usize; 3]),
    /// Users and items.
    Ratings([usize; 2]),
    /// Values and targets.
    Rows([usize; 2]),
}

#[derive(Deserialize)]
struct Short {
    preset: Preset,
}

impl Data {
    fn graph_data(&self) -> GraphData {
        match *self {
            Self::Images([channels, height, width, n_classes]) => {
                let shape = ImageShape { height, width, channels };
                GraphData::Images { shape, n_classes: n_classes.into() }
            }
            Self::Tokens([length, vocabulary, n_masked]) => {
                GraphData::Tokens { length, vocabulary, n_masked }
            }
            Self::Ratings([n_users, n_items]) => GraphData::Ratings { n_users, n_items },
            Self::Rows([n_values, n_targets]) => {
                GraphData::Rows { n_values, target: RowTarget::Values(n_targets) }
            }
        }
    }
}

/// `golden.py` draws the parameters in the same way.
fn drawn(name: &str, n: usize) -> Vec<f32> {
    let state = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut random = SplitMix64 { state };
    (0..n).map(|_| (0.4 * f64::from(random.next_signed_unit())) as f32).collect()
}

struct Golden<'a> {
    file: SafeTensors<'a>,
    case: &'a str,
}

impl Golden<'_> {
    fn find(&self, name: &str) -> Option<(Dtype, Vec<u32>)> {
        let tensor = self.file.tensor(&format!("{}/{name}", self.case)).ok()?;
        let words = tensor.data().chunks_exact(4);
        Some((tensor.dtype(), words.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()))
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let (_, words) = self.find(name).unwrap_or_else(|| panic!("{}: no {name}", self.case));
        words.into_iter().map(f32::from_bits).collect()
    }

    fn batch(&self, resolved: &ResolvedGraph) -> GraphBatch {
        let inputs =
            (0..resolved.inputs().len()).map(|index| match self.find(&format!("input{index}")).unwrap() {
                (Dtype::F32, words) => InputValues::Values(words.into_iter().map(f32::from_bits).collect()),
                (_, words) => InputValues::Ids(words),
            });
        let targets = match self.find("classes") {
            Some((_, classes)) => GraphTargets::Classes(classes),
            None => GraphTargets::Values(self.floats("values")),
        };
        let masked = self.find("masked").map(|(_, words)| words).unwrap_or_default();
        let n_samples = self.floats("losses").len();
        GraphBatch { n_samples, inputs: inputs.collect(), targets, masked, seeds: Vec::new() }
    }

    /// The largest deviations of losses and of the gradient by a tensor.
    fn check(&self, case: &Case) -> [f32; 2] {
        let graph = match toml::from_str::<Short>(&case.graph) {
            Ok(short) => short.preset.graph(),
            Err(_) => toml::from_str::<Graph>(&case.graph).unwrap_or_else(|error| panic!("{error}")),
        };
        let resolved = ResolvedGraph::of(&graph, case.data.graph_data())
            .unwrap_or_else(|error| panic!("{}: {error}", self.case));
        let layout = resolved.layout().clone();
        let segments = layout.trained();
        let mut flat: Vec<f32> =
            segments.iter().flat_map(|segment| drawn(&segment.name, segment.len)).collect();
        flat.extend_from_slice(&layout.initial_parameters(0)[layout.n_trained()..]);
        let batch = self.batch(&resolved);
        let mut engine = GraphEngine::new(Arc::new(resolved), ComputeDevice::cpu().burn(), &flat, None);
        self.check_output(&mut engine, &batch);
        let (values, gradient) = pass(&mut engine, &batch);
        let losses = &values[..values.len() / 2];
        let of_sample = losses.len() / batch.n_samples;
        let losses: Vec<f32> =
            losses.chunks(of_sample).map(|one| one.iter().sum::<f32>() / of_sample as f32).collect();
        let scale = gradient.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let mut worst = 0.0_f32;
        for segment in segments {
            let want = self.floats(&format!("gradient {}", segment.name));
            let got = &gradient[segment.range()];
            assert_eq!(want.len(), got.len().min(GRADIENT_VALUES), "{}: {}", self.case, segment.name);
            // The exact gradient of a bias before a normalization is zero: what is there are rounding errors, which are
            // compared with the whole gradient.
            let largest = want.iter().fold(1e-2 * scale, |largest, value| largest.max(value.abs()));
            for (got, want) in got.iter().zip(&want) {
                let off = (got - want).abs() / largest;
                assert!(off <= TOLERANCE, "{}: {off:e} of {}", self.case, segment.name);
                worst = worst.max(off);
            }
        }
        [deviation(&losses, &self.floats("losses")), worst]
    }

    /// The output is that of training in PyTorch: without batch normalization it is the same in evaluation.
    fn check_output(&self, engine: &mut GraphEngine, batch: &GraphBatch) {
        if engine.graph.statistics().is_empty() {
            let output = block_on(block_on(engine.outputs(batch))).unwrap();
            assert_near(self.case, &output, &self.floats("output"), TOLERANCE);
        }
    }
}

#[test]
fn blocks_and_presets_compute_what_pytorch_does() {
    let (_, metadata) = SafeTensors::read_metadata(GOLDEN).unwrap();
    let notes = metadata.metadata().as_ref().unwrap();
    assert_eq!(notes.len(), N_CASES);
    for (name, note) in notes {
        let case: Case = serde_json::from_str(note).unwrap();
        let golden = Golden { file: SafeTensors::deserialize(GOLDEN).unwrap(), case: name };
        let [losses, gradient] = golden.check(&case);
        println!("{name}: losses {losses:e}, gradients {gradient:e}");
        assert!(losses <= TOLERANCE, "{name}: losses {losses:e}");
    }
}

/// By running statistics, where a normalization is the identity but for weight and bias and epsilon.
#[test]
fn evaluation_uses_running_statistics_and_a_pass_observes_its_own() {
    let graph: Graph = toml::from_str(
        "name = \"bn\"\nloss = \"regression\"\nblocks = [{ name = \"bn\", op = { batch-norm = {} } }]",
    )
    .unwrap();
    let data = GraphData::Rows { n_values: 2, target: RowTarget::Values(2) };
    let mut engine = engine(&graph, data, 1);
    assert_eq!(engine.graph.output(), &ValueShape::Values(vec![2]));
    let batch = |values: &[f32]| GraphBatch {
        n_samples: values.len() / 2,
        inputs: vec![InputValues::Values(values.to_vec())],
        targets: GraphTargets::Values(vec![0.0; values.len()]),
        masked: Vec::new(),
        seeds: Vec::new(),
    };
    let statistics = |flat: [f32; 4]| [&[1.0, 1.0, 0.0, 0.0][..], &flat].concat();
    engine.load(&statistics([1.0, 2.0, 4.0, 9.0]));
    let output = block_on(block_on(engine.outputs(&batch(&[3.0, 5.0])))).unwrap();
    assert_near("evaluation", &output, &[1.0, 1.0], 1e-5);
    // Passes of two samples, with means of 2 and 1 and variances of 1, and of one, with means of 5 and 4: by a tenth to
    // the mean over samples, (2 * 2 + 5) / 3 and so on.
    pass_only(&mut engine, &batch(&[1.0, 0.0, 3.0, 2.0]));
    pass_only(&mut engine, &batch(&[5.0, 4.0]));
    let moves: Vec<f32> =
        block_on(engine.take()).unwrap()[4..].iter().map(|by| -10.0 * STATISTICS_UNIT * by).collect();
    assert_near("moves", &moves, &[3.0 - 1.0, 0.0, 2.0 / 3.0 - 4.0, 2.0 / 3.0 - 9.0], 1e-5);
    assert!(block_on(engine.take()).unwrap().is_empty());
    pass_only(&mut engine, &batch(&[5.0, 4.0]));
    engine.reset();
    let (_, gradient) = pass(&mut engine, &batch(&[1.0, 2.0, 1.0, 2.0]));
    assert_near("moves to", &gradient[4..6], &[0.0, 0.0], 1e-9);
    assert!(gradient[6] > 0.0, "what was observed before a reset is dropped");
}
