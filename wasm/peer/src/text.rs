//! Fills the blanks of a text with the newest model of the web server, or with the one that this browser cached.
//! The text never leaves the tab: the vocabulary is downloaded instead.

use std::rc::Rc;

use barnraise_contributor::decode_cached_model;
use barnraise_learning::unigram::{BlankError, Unigram, Vocabulary, VocabularyError};
use barnraise_learning::{ComputeDevice, DataShape, Trainer};
use barnraise_protocol::api::Models;
use barnraise_protocol::dataset::{SampleKind, TokenShape};
use futures::lock::Mutex;

use crate::earlier::{LoadError, download, load};
use crate::platform::{ShardCache, fetch_status};

/// Guesses per blank.
const GUESSES: usize = 3;
/// Longest vocabulary, in bytes: as many pieces as there are ids.
const VOCABULARY_BYTES_MAX: u32 = 16 * 1024 * 1024;
/// Longest list of models.
const MODELS_BYTES_MAX: usize = 64 * 1024;

/// Why the blanks of a text are not filled. For people, without a full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FillError {
    /// The model cannot be had.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The list of models is of another version.
    #[error("the list of models is not understood: {0}")]
    Models(#[source] serde_json::Error),
    /// The run has just begun.
    #[error("no model was evaluated yet")]
    NoneEvaluated,
    /// Neither the web server nor the cache has one.
    #[error("there is no model")]
    NoModel,
    /// The run learns from pictures.
    #[error("this run does not learn from text")]
    NotText,
    /// The vocabulary is of another version.
    #[error("the vocabulary is not understood: {0}")]
    VocabularyFile(#[source] serde_json::Error),
    /// The vocabulary is invalid.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// Model and vocabulary do not belong together.
    #[error("the model was made for another vocabulary")]
    OtherVocabulary,
    /// The text has no blank, too many, or too many pieces.
    #[error(transparent)]
    Text(#[from] BlankError),
}

/// A model of text with its vocabulary. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Filler {
    origin: String,
    cache: Rc<ShardCache>,
    loaded: Rc<Mutex<LoadedTextModel>>,
}

#[derive(Default)]
struct LoadedTextModel {
    vocabulary: Option<Unigram>,
    model: Option<TextModel>,
}

struct TextModel {
    epoch: u64,
    /// Sequence length, and size of the vocabulary.
    shape: TokenShape,
    trainer: Trainer,
}

/// The epoch of the model, and for each blank the pieces with their probabilities.
type FilledBlanks = (u64, Vec<Vec<(String, f32)>>);

impl Filler {
    /// `origin` is where the page came from: `https://host:port`.
    pub(crate) fn new(origin: String) -> Self {
        Self { cache: Rc::new(ShardCache::new(&origin)), origin, loaded: Rc::default() }
    }

    /// Fills the blanks of a text.
    pub(crate) async fn fill(&self, text: &str) -> Result<FilledBlanks, FillError> {
        let mut loaded = self.loaded.lock().await;
        let renewed = self.renew(&mut loaded).await;
        if let Err(error) = renewed
            && !self.restore(&mut loaded).await
        {
            return Err(error);
        }
        let LoadedTextModel { vocabulary: Some(unigram), model: Some(model) } = &*loaded else {
            return Err(FillError::NoModel);
        };
        if unigram.size() != model.shape.vocabulary {
            return Err(FillError::OtherVocabulary);
        }
        let length = usize::from(model.shape.length);
        let blanked = unigram.encode_with_blanks(text, length)?;
        let guesses = model.trainer.fill(&blanked.ids, &blanked.blanks).await.map_err(LoadError::from)?;
        let rows = guesses.chunks_exact(usize::from(unigram.size()));
        Ok((model.epoch, rows.map(|row| unigram.likeliest(row, GUESSES)).collect()))
    }

    /// Loads the newest model of the web server, unless it is loaded.
    async fn renew(&self, loaded: &mut LoadedTextModel) -> Result<(), FillError> {
        if loaded.vocabulary.is_none() {
            let url = format!("{}/api/tokenizer.json", self.origin);
            let bytes = download(&url, VOCABULARY_BYTES_MAX as usize).await.map_err(LoadError::from)?;
            loaded.vocabulary = Some(read_vocabulary(&bytes)?);
            self.cache.put_vocabulary(&bytes).await;
        }
        let newest = self.newest().await?;
        if loaded.model.as_ref().is_none_or(|model| model.epoch != newest) {
            loaded.model = Some(self.fetch_model().await?);
        }
        Ok(())
    }

    /// Falls back to a model that is loaded, or that this browser cached. Returns whether there is a model and a
    /// vocabulary.
    async fn restore(&self, loaded: &mut LoadedTextModel) -> bool {
        if loaded.vocabulary.is_none() {
            let cached = self.cache.vocabulary(VOCABULARY_BYTES_MAX).await;
            loaded.vocabulary = cached.and_then(|bytes| read_vocabulary(&bytes).ok());
        }
        if loaded.model.is_none() {
            loaded.model = self.cached_model().await;
        }
        loaded.vocabulary.is_some() && loaded.model.is_some()
    }

    /// The model that the contributor of this browser cached, if it is a text model.
    async fn cached_model(&self) -> Option<TextModel> {
        let (run, state) = decode_cached_model(&self.cache.model().await?)?;
        let SampleKind::Tokens(shape) = &run.data.manifest.samples else { return None };
        let data = DataShape::of(&run.data.manifest.samples);
        let mut trainer = Trainer::new(&run.model, data, ComputeDevice::cpu()).ok()?;
        trainer.load_parameters(&state.parameters).ok()?;
        Some(TextModel { epoch: state.epoch, shape: *shape, trainer })
    }

    async fn newest(&self) -> Result<u64, FillError> {
        let url = format!("{}/api/models", self.origin);
        let bytes = download(&url, MODELS_BYTES_MAX).await.map_err(LoadError::from)?;
        let models: Models = serde_json::from_slice(&bytes).map_err(FillError::Models)?;
        models.latest.map(|model| model.epoch).ok_or(FillError::NoneEvaluated)
    }

    async fn fetch_model(&self) -> Result<TextModel, FillError> {
        let run = fetch_status(&self.origin).await.map_err(LoadError::from)?.run;
        let SampleKind::Tokens(shape) = &run.data.manifest.samples else {
            return Err(FillError::NotText);
        };
        let (epoch, trainer) = load(&run, &format!("{}/api/model.safetensors", self.origin)).await?;
        Ok(TextModel { epoch, shape: *shape, trainer })
    }
}

fn read_vocabulary(bytes: &[u8]) -> Result<Unigram, FillError> {
    let vocabulary: Vocabulary = serde_json::from_slice(bytes).map_err(FillError::VocabularyFile)?;
    Ok(Unigram::new(vocabulary)?)
}
