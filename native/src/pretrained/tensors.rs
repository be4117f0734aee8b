//! Tensors of files under the names of a model.
//!
//! A linear layer of PyTorch has its weight as `[out, in]`, ours and GPT-2's as `[in, out]`.

use std::path::{Path, PathBuf};

use barnraise_learning::ParameterLayout;
use barnraise_learning::graph::{ResolvedGraph, TensorPlace};
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::run::model::graph::Loss;
use barnraise_protocol::run::model::operation::Operation;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::{PretrainedError, resnet_name};

/// Before the names of some models' tensors, which files may leave out.
const PREFIXES: [&str; 2] = ["transformer.", "model."];
/// In the names of tensors that only adapters have.
const ADAPTERS: [&str; 2] = [".lora_A.", ".lora_B."];

/// All tensors of a model's files, which are in memory.
pub(super) struct PretrainedTensors {
    files: Vec<(PathBuf, Vec<u8>)>,
}

/// How a file has a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arrangement {
    /// Rows and columns the other way round.
    is_turned: bool,
    /// More rows than are needed may follow: tokens, positions.
    is_table: bool,
    /// It begins anew where the file has another number of classes.
    is_head: bool,
}

impl PretrainedTensors {
    /// Reads the files.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self, PretrainedError> {
        let read = |path: &PathBuf| {
            let bytes =
                std::fs::read(path).map_err(|source| PretrainedError::Io { path: path.clone(), source })?;
            SafeTensors::deserialize(&bytes)
                .map_err(|source| PretrainedError::Format { path: path.clone(), source })?;
            Ok((path.clone(), bytes))
        };
        let files: Result<Vec<_>, PretrainedError> = paths.iter().map(read).collect();
        Ok(Self { files: files? })
    }

    /// Puts the values of the files into a flat vector of `layout`. The names of tensors of a head that keeps its values are
    /// added to `drawn`.
    pub(super) fn fill(
        &self,
        graph: &ResolvedGraph,
        layout: &ParameterLayout,
        flat: &mut [f32],
        drawn: &mut Vec<String>,
    ) -> Result<(), PretrainedError> {
        for segment in layout.segments() {
            if ADAPTERS.iter().any(|part| segment.name.contains(part)) {
                continue;
            }
            let arrangement = Arrangement::of(graph, &segment.name);
            match self.values(&segment.name, &segment.shape, arrangement) {
                Ok(values) => flat[segment.range()].copy_from_slice(&values),
                Err(PretrainedError::NoTensor { .. } | PretrainedError::Tensor { .. })
                    if arrangement.is_head =>
                {
                    drawn.push(segment.name.clone());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The values of a tensor, in our order.
    fn values(
        &self,
        name: &str,
        shape: &[usize],
        arrangement: Arrangement,
    ) -> Result<Vec<f32>, PretrainedError> {
        let (path, tensor) = self.find(name)?;
        let want = match (arrangement.is_turned, shape) {
            (true, &[rows, columns]) => vec![columns, rows],
            _ => shape.to_vec(),
        };
        let got = tensor.shape();
        let is_longer = arrangement.is_table
            && got.len() == want.len()
            && got.first() >= want.first()
            && got.get(1..) == want.get(1..);
        let codec = match tensor.dtype() {
            Dtype::F32 => Some(TensorCodec::F32),
            Dtype::F16 => Some(TensorCodec::F16),
            Dtype::BF16 => None,
            _ => return Err(other_tensor(path, name, want, &tensor)),
        };
        if got != want && !is_longer {
            return Err(other_tensor(path, name, want, &tensor));
        }
        let n = want.iter().product();
        let not_finite = || PretrainedError::NotFinite { path: path.clone(), name: name.to_owned() };
        let values = match codec {
            Some(codec) => {
                let bytes = &tensor.data()[..codec.encoded_len(n)];
                codec.decode(bytes, n).map_err(|_| not_finite())?
            }
            None => bf16(&tensor.data()[..2 * n]).ok_or_else(not_finite)?,
        };
        Ok(match (arrangement.is_turned, shape) {
            (true, &[rows, columns]) => turned(&values, [columns, rows]),
            _ => values,
        })
    }

    fn find(&self, name: &str) -> Result<(&PathBuf, TensorView<'_>), PretrainedError> {
        let short = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
        let of_resnet = resnet_name(name);
        for name in [Some(name), short, Some(&of_resnet)].into_iter().flatten() {
            for (path, bytes) in &self.files {
                let file = SafeTensors::deserialize(bytes)
                    .map_err(|source| PretrainedError::Format { path: path.clone(), source })?;
                if let Ok(tensor) = file.tensor(name) {
                    return Ok((path, tensor));
                }
            }
        }
        let path = self.files.first().map(|(path, _)| path.clone()).unwrap_or_default();
        Err(PretrainedError::NoTensor { path, name: name.to_owned() })
    }
}

impl Arrangement {
    fn of(graph: &ResolvedGraph, name: &str) -> Self {
        let n_steps = graph.steps().len();
        let step = graph
            .steps()
            .iter()
            .enumerate()
            .find(|(_, step)| step.parameters.iter().any(|&place| graph.segment(place).name == name));
        let Some((index, step)) = step else {
            return Self { is_turned: false, is_table: false, is_head: false };
        };
        let is_weight = step.parameters.first().is_some_and(|&place| graph.segment(place).name == name);
        let is_classifier = *graph.loss() == Loss::Classification || *graph.loss() == Loss::Regression;
        let is_language = !is_classifier;
        let is_last = index + 1 == n_steps;
        Self {
            is_turned: is_weight && matches!(step.op, Operation::Dense(_)) && !is_gpt2(graph),
            is_table: is_weight && matches!(step.op, Operation::Embedding(_) | Operation::Positions(_))
                || is_weight && is_language && is_last,
            is_head: is_last && is_classifier,
        }
    }
}

/// Whether linear layers are GPT-2's `Conv1D`.
fn is_gpt2(graph: &ResolvedGraph) -> bool {
    let is_its = |place: &TensorPlace| graph.segment(*place).name == "transformer.wte.weight";
    graph.steps().iter().any(|step| step.parameters.iter().any(is_its))
}

fn other_tensor(path: &Path, name: &str, want: Vec<usize>, tensor: &TensorView<'_>) -> PretrainedError {
    let got = format!("{} {:?}", tensor.dtype(), tensor.shape());
    PretrainedError::Tensor { path: path.to_owned(), name: name.to_owned(), want, got }
}

/// The upper halves of single-precision numbers; `None` where one is not finite.
fn bf16(bytes: &[u8]) -> Option<Vec<f32>> {
    let (halves, _) = bytes.as_chunks::<2>();
    let value = |half: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16);
    let values: Vec<f32> = halves.iter().map(value).collect();
    values.iter().all(|value| value.is_finite()).then_some(values)
}

/// A matrix of `rows` by `columns`, the other way round.
fn turned(values: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    (0..rows * columns).map(|at| values[at % rows * columns + at / rows]).collect()
}
