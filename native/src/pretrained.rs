//! Models that exist already, as the field has them: a folder with `config.json` and `model.safetensors`, or a file of
//! tensors alone. What they become is a preset and the values of a layout.
//!
//! Nothing in a file is trusted: lengths are compared before anything is allocated, and each tensor with the shape that it
//! is to have. Blocking: call it from a thread that may block.

mod architecture;
mod names;
mod start;
mod tensors;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use barnraise_learning::graph::ResolvedGraph;
use barnraise_learning::{FrozenError, FrozenWeights, ModelError};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::run::model::FirstWeights;
use barnraise_protocol::run::{ModelSpec, Preset};
use safetensors::SafeTensorError;

pub use self::architecture::ArchitectureError;
pub(crate) use self::names::resnet_name;
pub use self::start::{HubModel, StartError, StartFrom};
use self::tensors::PretrainedTensors;

/// Says of which kind a model is.
const CONFIG_FILE: &str = "config.json";
/// Largest [`CONFIG_FILE`], in bytes.
const CONFIG_BYTES_MAX: u64 = 1024 * 1024;
const TENSORS_FILE: &str = "model.safetensors";
const TOKENIZER_FILE: &str = "tokenizer.json";
/// Of a model whose tensors are in several files.
const INDEX_FILE: &str = "model.safetensors.index.json";
/// Largest [`INDEX_FILE`], in bytes.
const INDEX_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most files of one model.
const FILES_MAX: usize = 256;

/// Why a run cannot begin with a model.
#[derive(Debug, thiserror::Error)]
pub enum PretrainedError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file of JSON that is none, or another one.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// An index that names files outside its folder, or too many.
    #[error("{} must name 1 to {FILES_MAX} files beside it", .0.display())]
    Index(PathBuf),
    /// A kind of model that there is no preset for.
    #[error("{}: {source}", path.display())]
    Architecture {
        /// `config.json`
        path: PathBuf,
        /// What is wrong.
        source: ArchitectureError,
    },
    /// No file of tensors.
    #[error("{}: not a safetensors file: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: SafeTensorError,
    },
    /// The run's model has a tensor that the files do not have.
    #[error("{} has no tensor `{name}`, which the run's model needs", path.display())]
    NoTensor {
        /// Where it was looked for.
        path: PathBuf,
        /// Of the model.
        name: String,
    },
    /// A tensor of another model.
    #[error("tensor `{name}` of {} is {got}, f32, f16 or bf16 {want:?} is wanted", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// In both.
        name: String,
        /// Shape that the run's model needs.
        want: Vec<usize>,
        /// Type and shape in the file.
        got: String,
    },
    /// A NaN or an infinity.
    #[error("a value of `{name}` in {} is not finite", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// The run's model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The weights cannot be encoded.
    #[error(transparent)]
    Frozen(#[from] FrozenError),
}

/// What a run begins with.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstValues {
    /// What the run's description says of it.
    pub weights: FirstWeights,
    /// The flat vector, `[n_parameters]`.
    pub parameters: Vec<f32>,
    /// The weights that are not trained, where there are such.
    pub frozen: Option<FrozenWeights>,
    /// Tensors that no file has, or in another shape: their values are drawn.
    pub drawn: Vec<String>,
}

/// The preset that a folder's `config.json` describes; `None` where there is no such file.
///
/// # Errors
/// It cannot be read, or describes a model that there is no preset for.
pub fn preset(start: &Path) -> Result<Option<Preset>, PretrainedError> {
    let path = start.join(CONFIG_FILE);
    match path.is_file() {
        true => {
            let config = read_json(&path, CONFIG_BYTES_MAX)?;
            let preset = architecture::preset(&config);
            preset.map(Some).map_err(|source| PretrainedError::Architecture { path, source })
        }
        false => Ok(None),
    }
}

/// The tokenizer of a folder, where it has one.
pub fn tokenizer(start: &Path) -> Option<PathBuf> {
    Some(start.join(TOKENIZER_FILE)).filter(|path| path.is_file())
}

/// The values that a run of `model` on samples of this kind begins with: those of the files at `start` under the names of
/// the model's tensors.
///
/// The last block of a classifier may have another number of classes than in the file: it begins anew. Tables of tokens and
/// positions may be longer than the run needs.
///
/// # Errors
/// A file that cannot be read, or a tensor that is not there or has another shape.
pub fn first_values(
    start: &Path,
    model: &ModelSpec,
    graph: &ResolvedGraph,
) -> Result<FirstValues, PretrainedError> {
    let tensors = PretrainedTensors::open(&files(start)?)?;
    let mut drawn = Vec::new();
    let mut parameters = graph.layout().initial_parameters(model.seed);
    tensors.fill(graph, graph.layout(), &mut parameters, &mut drawn)?;
    let adapters = model.weights.adapters();
    let Some(adapters) = adapters else {
        let weights = FirstWeights::Given(hash_of(&parameters));
        return Ok(FirstValues { weights, parameters, frozen: None, drawn });
    };
    let mut frozen = graph.frozen().initial_parameters(model.seed);
    tensors.fill(graph, graph.frozen(), &mut frozen, &mut drawn)?;
    let frozen = FrozenWeights::encode(adapters.codec, &frozen)?;
    let weights = FirstWeights::Frozen(adapters.clone());
    Ok(FirstValues { weights, parameters, frozen: Some(frozen), drawn })
}

/// SHA-256 of the files that a run begins with, without their paths.
///
/// # Errors
/// A file that cannot be read.
pub fn content_hash(start: &Path) -> Result<Sha256Hash, PretrainedError> {
    let mut hashes = Vec::new();
    for path in files(start)? {
        let failed = |source| PretrainedError::Io { path: path.clone(), source };
        hashes.extend_from_slice(&Sha256Hash::of(&std::fs::read(&path).map_err(failed)?).0);
    }
    Ok(Sha256Hash::of(&hashes))
}

/// Of a flat vector, f32 in little-endian order.
fn hash_of(parameters: &[f32]) -> Sha256Hash {
    Sha256Hash::of(&barnraise_learning::tensor_file::value_bytes(parameters))
}

/// The files of tensors: `start` itself, or those of its folder.
fn files(start: &Path) -> Result<Vec<PathBuf>, PretrainedError> {
    let index = start.join(INDEX_FILE);
    if !index.is_file() {
        let is_folder = start.is_dir();
        return Ok(vec![if is_folder { start.join(TENSORS_FILE) } else { start.to_owned() }]);
    }
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, PathBuf>,
    }
    let Index { weight_map } = read_json(&index, INDEX_BYTES_MAX)?;
    let mut names: Vec<PathBuf> = weight_map.into_values().collect();
    names.sort_unstable();
    names.dedup();
    let is_beside = |name: &PathBuf| name.file_name().is_some_and(|file| file == name.as_os_str());
    match (1..=FILES_MAX).contains(&names.len()) && names.iter().all(is_beside) {
        true => Ok(names.iter().map(|name| start.join(name)).collect()),
        false => Err(PretrainedError::Index(index)),
    }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path, bytes_max: u64) -> Result<T, PretrainedError> {
    let failed = |source| PretrainedError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(bytes_max).read_to_end(&mut bytes).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|source| PretrainedError::Json { path: path.to_owned(), source })
}
