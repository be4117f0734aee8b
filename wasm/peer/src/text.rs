//! Fills the blanks of a text, or goes on with it, by a model of the web server or by the one that this browser cached.
//! The text never leaves the tab: the tokenizer is downloaded instead.

use std::rc::Rc;

use barnraise_contributor::decode_cached_model;
use barnraise_learning::tokenizer::{
    BlankError, FILE_BYTES_MAX, TextStream, Tokenizer, TokenizerError, pieces,
};
use barnraise_learning::{Continuation, Trainer};
use barnraise_messages::ByteBuf;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{SampleKind, TokenSequences, TokenShape};
use futures::lock::Mutex;
use gloo::timers::future::TimeoutFuture;
use web_time::Instant;

use crate::earlier::{LoadError, ModelSource, download};
use crate::experts::TrialExperts;
use crate::platform::{ShardCache, fetch_status};
use crate::web::WebError;

/// Most tokens that follow a text.
const TOKENS_MAX: u32 = 120;
/// Most tokens of a visitor's own texts: 64 MiB.
const OWN_TOKENS_MAX: usize = 16 * 1024 * 1024;
/// Guesses per blank.
const GUESSES: usize = 3;

/// Why nothing is said of a text. For people, without a full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FillError {
    /// The model cannot be had.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Neither the web server nor the cache has one.
    #[error("there is no model")]
    NoModel,
    /// The run learns from pictures.
    #[error("this run does not learn from text")]
    NotText,
    /// The tokenizer is invalid, or not for this text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Model and tokenizer do not belong together.
    #[error("the model was made for another tokenizer")]
    OtherTokenizer,
    /// The text has no blank, too many, or too many pieces.
    #[error(transparent)]
    Text(#[from] BlankError),
}

/// Why texts of the visitor's own cannot be trained on. For people, without a full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnTextError {
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] FillError),
    /// The web server has another one than the run names.
    #[error("the backbone handed out another tokenizer than that of the run")]
    OtherTokenizer,
    /// Another encoding, or no text.
    #[error("not all of it is text in UTF-8")]
    NotUtf8(#[from] std::str::Utf8Error),
    /// Something else was chosen meanwhile. Nobody sees it.
    #[error("it is not wanted any longer")]
    NotWanted,
    /// More than there is memory for.
    #[error("a tab has no room for more than {OWN_TOKENS_MAX} tokens")]
    TooLong,
    /// Less than a sequence.
    #[error("{got} tokens, and {want} at least are needed")]
    TooShort {
        /// Of a sequence.
        want: usize,
        /// In all.
        got: usize,
    },
}

impl OwnTextError {
    /// What the web server did, if it is that.
    pub(crate) fn of_web(&self) -> Option<&WebError> {
        match self {
            Self::Tokenizer(FillError::Load(LoadError::Web(error))) => Some(error),
            _ => None,
        }
    }
}

/// A model of text with its tokenizer. Cheap to clone.
#[derive(Clone)]
pub(crate) struct TextModels {
    origin: String,
    cache: Rc<ShardCache>,
    experts: TrialExperts,
    loaded: Rc<Mutex<LoadedTextModel>>,
}

#[derive(Default)]
struct LoadedTextModel {
    tokenizer: Option<Tokenizer>,
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
    pub(crate) fn new(origin: String, experts: TrialExperts) -> Self {
        Self { cache: Rc::new(ShardCache::new(&origin)), origin, experts, loaded: Rc::default() }
    }

    /// Texts of the visitor's own, as sequences to train on, by the tokenizer with this hash. Blank ones are none.
    pub(crate) async fn sequences(
        &self,
        texts: &[ByteBuf],
        shape: TokenShape,
        tokenizer: Sha256Hash,
        wanted: impl Fn() -> bool,
    ) -> Result<TokenSequences, OwnTextError> {
        let tokenizer = self.tokenizer(tokenizer).await?;
        let mut ids = Vec::new();
        for text in texts {
            let text = std::str::from_utf8(text)?;
            if text.trim().is_empty() {
                continue;
            }
            for piece in pieces(text) {
                ids.extend(tokenizer.encode(piece).map_err(FillError::from)?);
                if !wanted() {
                    return Err(OwnTextError::NotWanted);
                }
                if ids.len() > OWN_TOKENS_MAX {
                    return Err(OwnTextError::TooLong);
                }
                // The contributor and the page's messages get their turn.
                TimeoutFuture::new(0).await;
            }
            ids.push(tokenizer.special().separator);
        }
        let want = usize::from(shape.length);
        if ids.len() < want {
            return Err(OwnTextError::TooShort { want, got: ids.len() });
        }
        ids.truncate(ids.len() / want * want);
        Ok(TokenSequences { length: shape.length, ids })
    }

    /// The tokenizer with this hash: the one that this browser cached, or that of the web server.
    async fn tokenizer(&self, wanted: Sha256Hash) -> Result<Tokenizer, OwnTextError> {
        let cached = self.cache.tokenizer(FILE_BYTES_MAX as u32).await;
        let bytes = match cached.filter(|bytes| Sha256Hash::of(bytes) == wanted) {
            Some(bytes) => bytes,
            None => self.fetched_tokenizer().await?,
        };
        if Sha256Hash::of(&bytes) != wanted {
            return Err(OwnTextError::OtherTokenizer);
        }
        Ok(Tokenizer::read(&bytes).map_err(FillError::from)?)
    }

    /// The `tokenizer.json` of the web server, which is cached.
    async fn fetched_tokenizer(&self) -> Result<Vec<u8>, FillError> {
        let url = format!("{}/api/tokenizer.json", self.origin);
        let bytes = download(&url, FILE_BYTES_MAX).await.map_err(LoadError::from)?;
        self.cache.put_tokenizer(&bytes).await;
        Ok(bytes)
    }

    /// Fills the blanks of a text.
    pub(crate) async fn fill(&self, text: &str) -> Result<FilledBlanks, FillError> {
        let mut loaded = self.loaded.lock().await;
        let (tokenizer, model) = self.load(&mut loaded, None).await?;
        let length = usize::from(model.shape.length);
        let blanked = tokenizer.encode_with_blanks(text, length)?;
        let asked = self.experts.watch(&model.trainer);
        let guesses = model.trainer.fill(&blanked.ids, &blanked.blanks).await.map_err(LoadError::from)?;
        asked.check().map_err(LoadError::from)?;
        let rows = guesses.chunks_exact(tokenizer.size() as usize);
        Ok((model.epoch, rows.map(|row| tokenizer.likeliest(row, GUESSES)).collect()))
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
        let (tokenizer, model) = self.load(&mut loaded, epoch).await?;
        let epoch = model.epoch;
        // Another continuation each time that somebody asks.
        let seed = js_sys::Date::now().to_bits();
        let prompt = tokenizer.encode_prompt(text)?;
        let mut continuation = Continuation::of(&prompt, tokenizer.special(), seed);
        let mut said = TextStream::after(tokenizer, &prompt)?;
        let began = Instant::now();
        let mut n_tokens = 0;
        while wanted() {
            let asked = self.experts.watch(&model.trainer);
            let id = match n_tokens < TOKENS_MAX {
                true => continuation.next(&model.trainer).await.map_err(LoadError::from)?,
                false => None,
            };
            if id.is_some() {
                asked.check().map_err(LoadError::from)?;
            }
            let text = id.map(|id| said.push(id)).transpose()?.unwrap_or_default();
            let is_end = id.is_none();
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

    /// Loads tokenizer and model.
    async fn load<'a>(
        &self,
        loaded: &'a mut LoadedTextModel,
        epoch: Option<u64>,
    ) -> Result<(&'a Tokenizer, &'a TextModel), FillError> {
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
        let LoadedTextModel { tokenizer, model, earlier } = loaded;
        let model = if epoch.is_some() { earlier } else { model };
        let (Some(tokenizer), Some(model)) = (tokenizer, model) else { return Err(FillError::NoModel) };
        match tokenizer.size() == model.shape.vocabulary {
            true => Ok((tokenizer, model)),
            false => Err(FillError::OtherTokenizer),
        }
    }

    async fn load_earlier(&self, loaded: &mut LoadedTextModel, epoch: u64) -> Result<(), FillError> {
        self.load_tokenizer(loaded).await?;
        if loaded.earlier.as_ref().is_none_or(|model| model.epoch != epoch) {
            loaded.earlier = Some(self.fetch_model(Some(epoch)).await?);
        }
        Ok(())
    }

    async fn load_tokenizer(&self, loaded: &mut LoadedTextModel) -> Result<(), FillError> {
        if loaded.tokenizer.is_none() {
            loaded.tokenizer = Some(Tokenizer::read(&self.fetched_tokenizer().await?)?);
        }
        Ok(())
    }

    /// Loads the newest model of the web server, unless it is loaded.
    async fn renew(&self, loaded: &mut LoadedTextModel) -> Result<(), FillError> {
        self.load_tokenizer(loaded).await?;
        let newest = self.source().newest().await?;
        if loaded.model.as_ref().is_none_or(|model| model.epoch != newest) {
            loaded.model = Some(self.fetch_model(None).await?);
        }
        Ok(())
    }

    /// Falls back to a model that is loaded, or that this browser cached. Returns whether there is a model and a
    /// tokenizer.
    async fn restore(&self, loaded: &mut LoadedTextModel) -> bool {
        if loaded.tokenizer.is_none() {
            let cached = self.cache.tokenizer(FILE_BYTES_MAX as u32).await;
            loaded.tokenizer = cached.and_then(|bytes| Tokenizer::read(&bytes).ok());
        }
        if loaded.model.is_none() {
            loaded.model = self.cached_model().await;
        }
        loaded.tokenizer.is_some() && loaded.model.is_some()
    }

    /// The model that the contributor of this browser cached, if it is a text model.
    async fn cached_model(&self) -> Option<TextModel> {
        let (run, state) = decode_cached_model(self.cache.model().await?)?;
        let SampleKind::Tokens(shape) = &run.data.manifest.samples else { return None };
        let mut trainer = self.source().untrained(&run).await.ok()?;
        trainer.load_epoch(&state).ok()?;
        Some(TextModel { epoch: state.epoch, shape: *shape, trainer })
    }

    fn source(&self) -> ModelSource<'_> {
        ModelSource { origin: &self.origin, cache: &self.cache, experts: Some(&self.experts) }
    }

    async fn fetch_model(&self, epoch: Option<u64>) -> Result<TextModel, FillError> {
        let run = fetch_status(&self.origin).await.map_err(LoadError::from)?.run;
        let SampleKind::Tokens(shape) = &run.data.manifest.samples else {
            return Err(FillError::NotText);
        };
        let loaded = self.source().load(&run, epoch).await?;
        Ok(TextModel { epoch: loaded.epoch, shape: *shape, trainer: loaded.trainer })
    }
}

#[cfg(feature = "tests")]
mod tests {
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    /// As `shared/learning/tests/tokenizers/make.py` wrote them; the native test compares the same.
    const EXPECTED: &str = include_str!("../../../shared/learning/tests/tokenizers/expected.json");
    const FILES: [(&str, &str); 5] = [
        ("byte-fallback", include_str!("../../../shared/learning/tests/tokenizers/byte-fallback.json")),
        ("byte-level", include_str!("../../../shared/learning/tests/tokenizers/byte-level.json")),
        ("byte-level-split", include_str!("../../../shared/learning/tests/tokenizers/byte-level-split.json")),
        ("unigram", include_str!("../../../shared/learning/tests/tokenizers/unigram.json")),
        ("word-piece", include_str!("../../../shared/learning/tests/tokenizers/word-piece.json")),
    ];

    #[wasm_bindgen_test]
    fn every_script_gives_the_ids_that_python_gives() {
        let expected: serde_json::Value = serde_json::from_str(EXPECTED).unwrap();
        let texts = expected["texts"].as_array().unwrap();
        for (name, file) in FILES {
            let tokenizer = Tokenizer::read(file.as_bytes()).unwrap();
            let want = &expected["kinds"][name];
            assert_eq!(want["size"], tokenizer.size(), "{name}");
            let (ids, decoded) = (want["ids"].as_array().unwrap(), want["decoded"].as_array().unwrap());
            for ((text, ids), decoded) in texts.iter().zip(ids).zip(decoded) {
                let (text, decoded) = (text.as_str().unwrap(), decoded.as_str().unwrap());
                let ids: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
                assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
                assert_eq!(tokenizer.decode(&ids).unwrap(), decoded, "{name}: {text:?}");
            }
        }
    }
}
