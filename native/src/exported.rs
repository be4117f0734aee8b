//! A model outside its run: a folder in the layout of the field, which other programs load, and which this one uses.

mod fetch;
mod layout;
#[cfg(test)]
mod tests;
mod tokenizer;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use barnraise_learning::tokenizer::{self as learned, TextStream, TokenizerError};
use barnraise_learning::{ComputeDevice, Continuation, DataShape, ModelError, ParameterLayout, Trainer};
use barnraise_protocol::run::RunDescription;
use clap::Args;
use serde::{Deserialize, Serialize};

use self::fetch::FetchError;
use self::layout::LayoutError;
use self::tokenizer::RunTokenizer;

/// What the field does not name: the run, with the model's graph.
const RUN_FILE: &str = "barnraise.json";
const TENSORS_FILE: &str = "model.safetensors";
const CONFIG_FILE: &str = "config.json";
const TOKENIZER_FILE: &str = "tokenizer.json";
const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";
const CARD_FILE: &str = "README.md";
/// Largest file of a folder that is read, beside the tensors.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// `barnraise export`
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Address of the run's page, such as https://barn.example/run/garments
    #[arg(value_name = "ADDRESS")]
    pub from: String,
    /// A folder that does not exist yet
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
    #[error("{} exists already: name a folder that does not", .0.display())]
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
    /// The text cannot be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The model has no text.
    #[error("the model in {} is none of text", .0.display())]
    NoText(PathBuf),
}

/// A model with all that it takes to use it.
#[derive(Debug)]
struct ExportedModel {
    run: RunDescription,
    /// Optimizer steps made.
    epoch: u64,
    /// `[n_parameters]`
    parameters: Vec<f32>,
    /// Of a run of text.
    tokenizer: Option<RunTokenizer>,
}

/// Content of [`RUN_FILE`].
#[derive(Debug, Serialize, Deserialize)]
struct RunFile {
    epoch: u64,
    run: RunDescription,
}

/// Writes the newest model of a run into a folder; returns what to say of it.
///
/// # Errors
/// A run that cannot be reached or has no model yet, a folder that exists, a full disk. Nothing is left then.
pub fn export(args: &ExportArgs) -> Result<String, ExportedError> {
    if args.folder.exists() {
        return Err(ExportedError::Exists(args.folder.clone()));
    }
    let (model, card) = fetch::newest(&args.from)?;
    let files = model.files(&card)?;
    write_folder(&args.folder, &files)?;
    let folder = args.folder.display();
    let title = &model.run.identity.title;
    let mut said = format!("The model of “{title}” after {} steps is in {folder}.\n", model.epoch);
    if files.iter().any(|(name, _)| *name == CONFIG_FILE) {
        said.push_str(&format!("In Python: AutoModelForCausalLM.from_pretrained(\"{folder}\")\n"));
    }
    if model.tokenizer.is_some() {
        said.push_str(&format!("Here: barnraise generate {folder} \"Once upon a time\"\n"));
    }
    Ok(said)
}

/// Goes on with a text, token by token, and writes it to `output` as it comes.
///
/// # Errors
/// No exported folder, a model that does not go on with texts, an output that is closed.
pub fn generate(args: &GenerateArgs, output: &mut impl Write) -> Result<(), ExportedError> {
    let model = ExportedModel::read(&args.folder)?;
    let tokenizer = model.tokenizer.as_ref().ok_or_else(|| ExportedError::NoText(args.folder.clone()))?;
    let tokenizer = tokenizer.tokenizer();
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
    /// Name and content of each file of the folder.
    fn files(&self, card: &str) -> Result<Vec<(&'static str, Vec<u8>)>, ExportedError> {
        let json = |value: &serde_json::Value| serde_json::to_vec_pretty(value).unwrap_or_default();
        let run = RunFile { epoch: self.epoch, run: self.run.clone() };
        let run = serde_json::to_value(run).unwrap_or_default();
        let tensors = layout::tensors(&self.run, &self.parameters)?;
        let tensors = tensors.encode(self.epoch).map_err(of_layout(Path::new(TENSORS_FILE)))?;
        let mut files =
            vec![(RUN_FILE, json(&run)), (TENSORS_FILE, tensors), (CARD_FILE, card.as_bytes().to_vec())];
        let separator = self.tokenizer.as_ref().map(|file| file.tokenizer().special().separator);
        if let Some(config) = layout::config(&self.run, separator) {
            files.push((CONFIG_FILE, json(&config)));
        }
        if let Some(tokenizer) = &self.tokenizer {
            files.push((TOKENIZER_FILE, tokenizer.bytes().to_vec()));
            files.push((TOKENIZER_CONFIG_FILE, json(&tokenizer.config(&self.run))));
        }
        Ok(files)
    }

    fn read(folder: &Path) -> Result<Self, ExportedError> {
        let of = |name: &str| folder.join(name);
        let RunFile { epoch, run } = serde_json::from_slice(&read_file(&of(RUN_FILE), FILE_BYTES_MAX)?)
            .map_err(|error| ExportedError::File { path: of(RUN_FILE), reason: error.to_string() })?;
        let bytes_max = barnraise_learning::tensor_file::file_bytes_max(&ParameterLayout::of_run(&run)?);
        let tensors = read_file(&of(TENSORS_FILE), bytes_max as u64)?;
        let parameters = layout::parameters(&run, &tensors).map_err(of_layout(&of(TENSORS_FILE)))?;
        let path = of(TOKENIZER_FILE);
        let tokenizer = match path.exists() {
            true => {
                let read = RunTokenizer::read(read_file(&path, learned::FILE_BYTES_MAX as u64)?);
                Some(read.map_err(|error| ExportedError::File { path, reason: error.to_string() })?)
            }
            false => None,
        };
        Ok(Self { run, epoch, parameters, tokenizer })
    }

    fn trainer(&self) -> Result<Trainer, ModelError> {
        let data = DataShape::of(&self.run.data.manifest.samples);
        let mut trainer = Trainer::new(&self.run.model, data, ComputeDevice::cpu())?;
        trainer.load_parameters(&self.parameters)?;
        Ok(trainer)
    }
}

fn of_layout(path: &Path) -> impl Fn(LayoutError) -> ExportedError {
    move |error| match error {
        LayoutError::Model(error) => error.into(),
        other => ExportedError::File { path: path.to_owned(), reason: other.to_string() },
    }
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
    let mut part = folder.as_os_str().to_owned();
    part.push(format!(".part-{}", std::process::id()));
    let part = PathBuf::from(part);
    let written = (|| {
        fs::create_dir_all(&part).map_err(|error| (part.clone(), error))?;
        for (name, content) in files {
            let path = part.join(name);
            let write = || {
                let mut file = fs::File::create(&path)?;
                file.write_all(content)?;
                file.sync_all()
            };
            write().map_err(|error| (path.clone(), error))?;
        }
        fs::rename(&part, folder).map_err(|error| (folder.to_owned(), error))
    })();
    written.map_err(|(path, source)| {
        let _ = fs::remove_dir_all(&part);
        ExportedError::Io { path, source }
    })
}
