//! Fills the blanks of a text, or goes on with it, by a model of the web server or by the one that this browser cached.
//! The text never leaves the tab: the vocabulary is downloaded instead.

use std::rc::Rc;

use barnraise_contributor::decode_cached_model;
use barnraise_learning::unigram::{BlankError, Unigram, Vocabulary, VocabularyError};
use barnraise_learning::{ComputeDevice, Continuation, DataShape, Trainer};
use barnraise_protocol::api::Models;
use barnraise_protocol::dataset::{SampleKind, TokenShape};
use futures::lock::Mutex;
use gloo::timers::future::TimeoutFuture;
use web_time::Instant;

use crate::earlier::{LoadError, download, load};
use crate::platform::{ShardCache, fetch_status};

/// Most tokens that follow a text.
const TOKENS_MAX: u32 = 120;
/// Guesses per blank.
const GUESSES: usize = 3;
/// Longest vocabulary, in bytes: as many pieces as there are ids.
const VOCABULARY_BYTES_MAX: u32 = 16 * 1024 * 1024;
/// Longest list of models.
const MODELS_BYTES_MAX: usize = 64 * 1024;

/// Why nothing is said of a text. For people, without a full stop.
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
pub(crate) struct TextModels {
    origin: String,
    cache: Rc<ShardCache>,
    loaded: Rc<Mutex<LoadedTextModel>>,
}

#[derive(Default)]
struct LoadedTextModel {
    vocabulary: Option<Unigram>,
    model: Option<TextModel>,
    /// One from before, which was asked for last.
    earlier: Option<TextModel>,
}

/// A token that follows a text.
pub(crate) struct ContinuedToken {
    /// Of the model.
    pub(crate) epoch: u64,
    /// Empty at the end.
    pub(crate) text: String,
    /// So far.
    pub(crate) n_tokens: u32,
    /// That they took.
    pub(crate) seconds: f64,
    /// Whether none follows.
    pub(crate) is_end: bool,
}

struct TextModel {
    epoch: u64,
    /// Sequence length, and size of the vocabulary.
    shape: TokenShape,
    trainer: Trainer,
}

/// The epoch of the model, and for each blank the pieces with their probabilities.
type FilledBlanks = (u64, Vec<Vec<(String, f32)>>);

impl TextModels {
    /// `origin` is where the page came from: `https://host:port`.
    pub(crate) fn new(origin: String) -> Self {
        Self { cache: Rc::new(ShardCache::new(&origin)), origin, loaded: Rc::default() }
    }

    /// Fills the blanks of a text.
    pub(crate) async fn fill(&self, text: &str) -> Result<FilledBlanks, FillError> {
        let mut loaded = self.loaded.lock().await;
        let (unigram, model) = self.load(&mut loaded, None).await?;
        let length = usize::from(model.shape.length);
        let blanked = unigram.encode_with_blanks(text, length)?;
        let guesses = model.trainer.fill(&blanked.ids, &blanked.blanks).await.map_err(LoadError::from)?;
        let rows = guesses.chunks_exact(usize::from(unigram.size()));
        Ok((model.epoch, rows.map(|row| unigram.likeliest(row, GUESSES)).collect()))
    }

    /// Goes on with a text as long as it is `wanted`, by the newest model or that of an earlier epoch.
    pub(crate) async fn go_on(
        &self,
        epoch: Option<u64>,
        text: &str,
        wanted: impl Fn() -> bool,
        on_token: impl Fn(ContinuedToken),
    ) -> Result<(), FillError> {
        let mut loaded = self.loaded.lock().await;
        let (unigram, model) = self.load(&mut loaded, epoch).await?;
        let epoch = model.epoch;
        // Another continuation each time that somebody asks.
        let seed = js_sys::Date::now().to_bits();
        let mut continuation = Continuation::of(&unigram.encode(text), seed);
        let began = Instant::now();
        let mut n_tokens = 0;
        while wanted() {
            let id = match n_tokens < TOKENS_MAX {
                true => continuation.next(&model.trainer).await.map_err(LoadError::from)?,
                false => None,
            };
            let (is_end, text) = (id.is_none(), id.map(|id| unigram.text(id)).unwrap_or_default());
            n_tokens += u32::from(!is_end);
            let seconds = began.elapsed().as_secs_f64();
            on_token(ContinuedToken { epoch, text, n_tokens, seconds, is_end });
            if is_end {
                break;
            }
            // Messages of the page, and the contributor, get their turn.
            TimeoutFuture::new(0).await;
        }
        Ok(())
    }

    /// Loads vocabulary and model.
    async fn load<'a>(
        &self,
        loaded: &'a mut LoadedTextModel,
        epoch: Option<u64>,
    ) -> Result<(&'a Unigram, &'a TextModel), FillError> {
        match epoch {
            Some(epoch) => self.load_earlier(loaded, epoch).await?,
            None => {
                if let Err(error) = self.renew(loaded).await
                    && !self.restore(loaded).await
                {
                    return Err(error);
                }
            }
        }
        let LoadedTextModel { vocabulary, model, earlier } = loaded;
        let model = if epoch.is_some() { earlier } else { model };
        let (Some(unigram), Some(model)) = (vocabulary, model) else { return Err(FillError::NoModel) };
        match unigram.size() == model.shape.vocabulary {
            true => Ok((unigram, model)),
            false => Err(FillError::OtherVocabulary),
        }
    }

    async fn load_earlier(&self, loaded: &mut LoadedTextModel, epoch: u64) -> Result<(), FillError> {
        self.load_vocabulary(loaded).await?;
        if loaded.earlier.as_ref().is_none_or(|model| model.epoch != epoch) {
            loaded.earlier = Some(self.fetch_model(Some(epoch)).await?);
        }
        Ok(())
    }

    async fn load_vocabulary(&self, loaded: &mut LoadedTextModel) -> Result<(), FillError> {
        if loaded.vocabulary.is_none() {
            let url = format!("{}/api/tokenizer.json", self.origin);
            let bytes = download(&url, VOCABULARY_BYTES_MAX as usize).await.map_err(LoadError::from)?;
            loaded.vocabulary = Some(read_vocabulary(&bytes)?);
            self.cache.put_vocabulary(&bytes).await;
        }
        Ok(())
    }

    /// Loads the newest model of the web server, unless it is loaded.
    async fn renew(&self, loaded: &mut LoadedTextModel) -> Result<(), FillError> {
        self.load_vocabulary(loaded).await?;
        let newest = self.newest().await?;
        if loaded.model.as_ref().is_none_or(|model| model.epoch != newest) {
            loaded.model = Some(self.fetch_model(None).await?);
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

    async fn fetch_model(&self, epoch: Option<u64>) -> Result<TextModel, FillError> {
        let run = fetch_status(&self.origin).await.map_err(LoadError::from)?.run;
        let SampleKind::Tokens(shape) = &run.data.manifest.samples else {
            return Err(FillError::NotText);
        };
        let which = epoch.map(|epoch| format!("?epoch={epoch}")).unwrap_or_default();
        let loaded = load(&run, &format!("{}/api/model.safetensors{which}", self.origin)).await?;
        Ok(TextModel { epoch: loaded.epoch, shape: *shape, trainer: loaded.trainer })
    }
}

fn read_vocabulary(bytes: &[u8]) -> Result<Unigram, FillError> {
    let vocabulary: Vocabulary = serde_json::from_slice(bytes).map_err(FillError::VocabularyFile)?;
    Ok(Unigram::new(vocabulary)?)
}
