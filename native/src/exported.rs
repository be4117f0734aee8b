//! A model outside its run: a folder in the layout of the field, which other programs load, and which this one uses.

mod architecture;
mod card;
mod evaluate;
mod fetch;
mod field;
mod hub;
mod onnx;
mod peft;
mod predict;
#[cfg(test)]
mod tests;
mod tokenizer;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use barnraise_learning::graph::ResolvedGraph;
use barnraise_learning::tensor_file::{self, TensorFileError};
use barnraise_learning::tokenizer::{self as learned, TextStream, Tokenizer, TokenizerError};
use barnraise_learning::{ComputeDevice, Continuation, DataShape, ModelError, Trainer};
use barnraise_protocol::columns::{COLUMNS_BYTES_MAX, DataColumns};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::run::model::graph::Loss;
use clap::Args;
use serde::{Deserialize, Serialize};

pub use self::evaluate::{EvaluateArgs, evaluate};
use self::fetch::FetchError;
use self::field::FieldLayout;
use self::onnx::OnnxError;
use self::peft::AdapterFiles;
pub use self::predict::{PredictArgs, predict};
use self::tokenizer::RunTokenizer;
use crate::config::ConfigError;
use crate::data::{LoadError, columns};
use crate::part;
use crate::peer::args::{JoinAddress, RunName};

/// What the field does not name: the run, with the model's graph.
const RUN_FILE: &str = "barnraise.json";
const TENSORS_FILE: &str = "model.safetensors";
const CONFIG_FILE: &str = "config.json";
const TOKENIZER_FILE: &str = "tokenizer.json";
const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";
const PREPROCESSOR_FILE: &str = "preprocessor_config.json";
const COLUMNS_FILE: &str = "columns.json";
const ADAPTER_CONFIG_FILE: &str = "adapter/adapter_config.json";
const ADAPTER_TENSORS_FILE: &str = "adapter/adapter_model.safetensors";
const CARD_FILE: &str = "README.md";
/// Largest file of a folder that is read, beside the tensors.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// `barnraise export`
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The run: the address of its page, such as https://barn.example/run/garments, or a libp2p multiaddress with a peer id
    #[arg(value_name = "ADDRESS")]
    pub from: JoinAddress,
    /// The run's id, where the address is of another peer of the DHT, such as a relay; with the key of its authority, no
    /// other run is taken
    #[arg(long, value_name = "ID[@KEY]")]
    pub run: Option<RunName>,
    /// A folder that does not exist yet; with a name that ends in .onnx, a file for ONNX runtimes
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// `barnraise generate`
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// What `barnraise export` wrote
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// How the text begins
    #[arg(value_name = "TEXT", default_value = "")]
    pub text: String,
    /// Most tokens that follow
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub tokens: u32,
    /// The same seed gives the same text
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Why a model cannot be exported or used.
#[derive(Debug, thiserror::Error)]
pub enum ExportedError {
    /// The run's server.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// Nothing is overwritten.
    #[error("{} exists already: name one that does not", .0.display())]
    Exists(PathBuf),
    /// The disk.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file that is none of ours.
    #[error("{}: {reason}; `barnraise export` writes such folders", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The model cannot be computed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model has no form in ONNX.
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    /// The text cannot be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The file of a run.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data of a run, or a file like it.
    #[error(transparent)]
    Data(Box<LoadError>),
    /// Another command is for such models.
    #[error("the model in {} {does}: {want}", folder.display())]
    OtherKind {
        /// The model's.
        folder: PathBuf,
        /// What the model does.
        does: &'static str,
        /// What to do instead.
        want: &'static str,
    },
    /// Data of another run.
    #[error("{} is not the data that this model was trained on: {reason}", path.display())]
    OtherData {
        /// The data, or the run's file.
        path: PathBuf,
        /// How it differs.
        reason: String,
    },
    /// A picture that cannot be read.
    #[error("{}: {source}", path.display())]
    Picture {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: image::ImageError,
    },
    /// Neither the run's file nor any data.
    #[error("name what to evaluate on: files, or --config with the file of the run for its held-out part")]
    NothingToEvaluate,
    /// Nothing in a file.
    #[error("{} has nothing to predict: {want}", path.display())]
    Nothing {
        /// The file.
        path: PathBuf,
        /// What was wanted.
        want: String,
    },
}

impl From<LoadError> for ExportedError {
    fn from(error: LoadError) -> Self {
        Self::Data(Box::new(error))
    }
}

/// A model with all that it takes to use it.
#[derive(Debug)]
struct ExportedModel {
    run: RunDescription,
    /// Optimizer steps made.
    epoch: u64,
    /// Loss on the held-out samples of the run; `None` where it is no number.
    loss: Option<f32>,
    /// `[n_parameters]`
    parameters: Vec<f32>,
    /// Of a run of text.
    tokenizer: Option<RunTokenizer>,
    /// Of a run on a table or on ratings.
    columns: Option<DataColumns>,
    /// Of a run of adapters.
    adapters: Option<AdapterFiles>,
}

/// Content of [`RUN_FILE`].
#[derive(Debug, Serialize, Deserialize)]
struct RunFile {
    epoch: u64,
    loss: Option<f32>,
    run: RunDescription,
}

/// Writes the newest model of a run into a folder; returns what to say of it.
///
/// # Errors
/// A run that cannot be reached or has no model yet, a folder that exists, a full disk. Nothing is left then.
pub async fn export(args: &ExportArgs) -> Result<String, ExportedError> {
    if args.folder.exists() {
        return Err(ExportedError::Exists(args.folder.clone()));
    }
    let (model, card) = fetch::newest(&args.from, args.run.clone()).await?;
    // What the run has is the rest of the model.
    if model.run.model.hosted.is_some() {
        return Err(ModelError::UnreachableExperts.into());
    }
    if args.folder.extension().is_some_and(|extension| extension == "onnx") {
        return model.write_onnx(&args.folder);
    }
    let files = model.files(&card)?;
    write_folder(&args.folder, &files)?;
    let folder = args.folder.display();
    let title = &model.run.identity.title;
    let steps = if model.run.sampled().is_some() { "rounds" } else { "steps" };
    let mut said = format!("The model of “{title}” after {} {steps} is in {folder}.\n", model.epoch);
    if let Some(class) = hub::auto_class(&model.run) {
        said.push_str(&format!("In Python: {class}.from_pretrained(\"{folder}\")\n"));
    }
    let here = match model.run.model.graph.loss {
        Loss::CausalLanguageModel => format!("generate {folder} \"Once upon a time\""),
        Loss::Swav(_) => format!("evaluate {folder} --config FILE"),
        Loss::Classification | Loss::Regression | Loss::MaskedLanguageModel => {
            format!("predict {folder} FILE")
        }
    };
    said.push_str(&format!("Here: barnraise {here}\n"));
    Ok(said)
}

/// Goes on with a text, token by token, and writes it to `output` as it comes.
///
/// # Errors
/// No exported folder, a model that does not go on with texts, an output that is closed.
pub fn generate(args: &GenerateArgs, output: &mut impl Write) -> Result<(), ExportedError> {
    let model = ExportedModel::read(&args.folder)?;
    if model.run.model.graph.loss != Loss::CausalLanguageModel {
        let (folder, does) = (args.folder.clone(), "does not go on with texts");
        return Err(ExportedError::OtherKind { folder, does, want: "barnraise predict is for it" });
    }
    let tokenizer = model.tokenizer(&args.folder)?;
    let trainer = model.trainer()?;
    let prompt = tokenizer.encode_prompt(&args.text)?;
    let mut continuation = Continuation::of(&prompt, tokenizer.special(), args.seed);
    let mut text = TextStream::after(tokenizer, &prompt)?;
    let failed = |source| ExportedError::Io { path: "standard output".into(), source };
    let mut say =
        |text: &str| output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(failed);
    say(args.text.trim_end())?;
    for _ in 0..args.tokens {
        let Some(id) = futures::executor::block_on(continuation.next(&trainer))? else { break };
        say(&text.push(id)?)?;
    }
    say("\n")
}

impl ExportedModel {
    /// Writes one file of ONNX; returns what to say of it.
    fn write_onnx(&self, path: &Path) -> Result<String, ExportedError> {
        let bytes = self.onnx()?;
        part::write(path, &bytes).map_err(|source| ExportedError::Io { path: path.to_owned(), source })?;
        let (title, file) = (&self.run.identity.title, path.display());
        let loads = format!("In Python: onnxruntime.InferenceSession(\"{file}\")");
        Ok(format!("The model of “{title}” after {} steps is in {file}.\n{loads}\n", self.epoch))
    }

    fn onnx(&self) -> Result<Vec<u8>, ExportedError> {
        let data = DataShape::of(&self.run.data.manifest.samples);
        let graph = ResolvedGraph::of_model(&self.run.model, data)?;
        Ok(onnx::file(&graph, &self.run.model.graph.name, &self.parameters)?)
    }

    /// Name and content of each file of the folder. `card`: the run's.
    fn files(&self, card: &str) -> Result<Vec<(&'static str, Vec<u8>)>, ExportedError> {
        let json = |value: &serde_json::Value| serde_json::to_vec_pretty(value).unwrap_or_default();
        let run = RunFile { epoch: self.epoch, loss: self.loss, run: self.run.clone() };
        let run = serde_json::to_value(run).unwrap_or_default();
        let layout = self.layout()?;
        // `transformers` asks for the format.
        let notes = [("format", "pt".to_owned()), ("epoch", self.epoch.to_string())];
        let notes: BTreeMap<_, _> = notes.map(|(name, value)| (name.to_owned(), value)).into();
        let mut tensors = tensor_file::header(layout.file(), &notes)
            .map_err(of_file::<TensorFileError>(Path::new(TENSORS_FILE)))?;
        tensors.extend(tensor_file::value_bytes(&layout.to_file(&self.parameters)));
        let card = card::of_folder(card, &self.run, layout.file());
        let mut files = vec![(RUN_FILE, json(&run)), (TENSORS_FILE, tensors), (CARD_FILE, card.into_bytes())];
        let separator = self.tokenizer.as_ref().map(|file| file.tokenizer().special().separator);
        if let Some(config) = hub::config(&self.run, separator) {
            files.push((CONFIG_FILE, json(&config)));
            let preprocessor = hub::preprocessor(&self.run);
            files.extend(preprocessor.map(|preprocessor| (PREPROCESSOR_FILE, json(&preprocessor))));
        }
        if let Some(tokenizer) = &self.tokenizer {
            files.push((TOKENIZER_FILE, tokenizer.bytes().to_vec()));
            files.push((TOKENIZER_CONFIG_FILE, json(&tokenizer.config(&self.run))));
        }
        if let Some(columns) = &self.columns {
            files.push((COLUMNS_FILE, json(&serde_json::to_value(columns).unwrap_or_default())));
        }
        if let Some(AdapterFiles { config, tensors }) = &self.adapters {
            files.push((ADAPTER_CONFIG_FILE, json(config)));
            files.push((ADAPTER_TENSORS_FILE, tensors.clone()));
        }
        Ok(files)
    }

    fn read(folder: &Path) -> Result<Self, ExportedError> {
        let of = |name: &str| folder.join(name);
        let RunFile { epoch, loss, run } = serde_json::from_slice(&read_file(&of(RUN_FILE), FILE_BYTES_MAX)?)
            .map_err(of_file(&of(RUN_FILE)))?;
        let layout = FieldLayout::of(&run.model, DataShape::of(&run.data.manifest.samples))?;
        let bytes_max = tensor_file::file_bytes_max(layout.file());
        let tensors = read_file(&of(TENSORS_FILE), bytes_max as u64)?;
        let tensors = tensor_file::read(&tensors, layout.file()).map_err(of_file(&of(TENSORS_FILE)))?;
        let parameters = layout.of_file(&tensors.parameters);
        let optional = |name: &str, bytes_max: u64| match of(name).exists() {
            true => read_file(&of(name), bytes_max).map(Some),
            false => Ok(None),
        };
        let tokenizer = optional(TOKENIZER_FILE, learned::FILE_BYTES_MAX as u64)?.map(RunTokenizer::read);
        let tokenizer = tokenizer.transpose().map_err(of_file(&of(TOKENIZER_FILE)))?;
        let columns = optional(COLUMNS_FILE, COLUMNS_BYTES_MAX)?;
        let columns = columns.map(|bytes| columns::read(&bytes, &run.data.manifest.samples));
        let columns = columns.transpose().map_err(of_file(&of(COLUMNS_FILE)))?;
        Ok(Self { run, epoch, loss, parameters, tokenizer, columns, adapters: None })
    }

    fn layout(&self) -> Result<FieldLayout, ModelError> {
        FieldLayout::of(&self.run.model, DataShape::of(&self.run.data.manifest.samples))
    }

    fn trainer(&self) -> Result<Trainer, ModelError> {
        let data = DataShape::of(&self.run.data.manifest.samples);
        let mut trainer = Trainer::new(&self.run.model, data, ComputeDevice::cpu())?;
        trainer.load_parameters(&self.parameters)?;
        Ok(trainer)
    }

    /// The tokens of its text. `folder`: where it is from.
    fn tokenizer(&self, folder: &Path) -> Result<&Tokenizer, ExportedError> {
        let missing =
            || ExportedError::File { path: folder.join(TOKENIZER_FILE), reason: "it is missing".to_owned() };
        self.tokenizer.as_ref().map(RunTokenizer::tokenizer).ok_or_else(missing)
    }
}

/// An error of a file of the folder.
fn of_file<E: std::error::Error>(path: &Path) -> impl Fn(E) -> ExportedError {
    move |error| ExportedError::File { path: path.to_owned(), reason: error.to_string() }
}

fn read_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>, ExportedError> {
    let failed = |source| ExportedError::Io { path: path.to_owned(), source };
    let got = fs::metadata(path).map_err(failed)?.len();
    if got > bytes_max {
        let reason = format!("it has {got} bytes, at most {bytes_max} are expected");
        return Err(ExportedError::File { path: path.to_owned(), reason });
    }
    fs::read(path).map_err(failed)
}

/// Under another name until it is whole.
fn write_folder(folder: &Path, files: &[(&'static str, Vec<u8>)]) -> Result<(), ExportedError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ExportedError::Io { path, source }
    };
    let part = part::folder_beside(folder).map_err(failed(folder))?;
    for (name, content) in files {
        let path = part.path().join(name);
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(part.path()))?;
            let mut file = fs::File::create(&path)?;
            file.write_all(content)?;
            file.sync_all()
        };
        write().map_err(failed(&path))?;
    }
    part::persist_folder(part, folder).map_err(failed(folder))
}

/// The folder of a table or of ratings, without its columns.
fn no_columns(folder: &Path) -> ExportedError {
    ExportedError::File { path: folder.join(COLUMNS_FILE), reason: "it is missing".to_owned() }
}
