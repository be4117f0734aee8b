//! Which words stand in the blanks of a text, by the newest model that the web server has. What is typed stays here: the
//! vocabulary comes to the tab, not the text to the server.

use std::rc::Rc;

use barnraise_learning::Trainer;
use barnraise_learning::unigram::{Unigram, Vocabulary};
use barnraise_protocol::api::Models;
use barnraise_protocol::dataset::SampleKind;
use futures::lock::Mutex;

use crate::earlier::{download, load};
use crate::platform::fetch_status;

/// Guesses that are told of each blank.
const GUESSES: usize = 3;
/// Longest vocabulary, in bytes: as many pieces as there are ids.
const VOCABULARY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest list of models.
const MODELS_BYTES_MAX: usize = 64 * 1024;

/// A model of text with its vocabulary. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Filler {
    origin: String,
    loaded: Rc<Mutex<Loaded>>,
}

#[derive(Default)]
struct Loaded {
    vocabulary: Option<Unigram>,
    /// Its epoch, the length of its sequences, and itself.
    model: Option<(u64, usize, Trainer)>,
}

/// What was guessed: the epoch of the model, and pieces with their probabilities for each blank.
type Filled = (u64, Vec<Vec<(String, f32)>>);

impl Filler {
    /// `origin` is where the page came from: `https://host:port`.
    pub(crate) fn new(origin: String) -> Self {
        Self { origin, loaded: Rc::default() }
    }

    /// Fills the blanks of a text.
    pub(crate) async fn fill(&self, text: &str) -> Result<Filled, String> {
        let mut loaded = self.loaded.lock().await;
        if loaded.vocabulary.is_none() {
            loaded.vocabulary = Some(self.fetch_vocabulary().await?);
        }
        let newest = self.newest().await?;
        if loaded.model.as_ref().is_none_or(|(epoch, ..)| *epoch != newest) {
            loaded.model = Some(self.fetch_model().await?);
        }
        let Loaded { vocabulary: Some(unigram), model: Some((epoch, length, trainer)) } = &*loaded else {
            return Err("there is no model".into());
        };
        let blanked = unigram.encode_blanked(text, *length).map_err(|error| error.to_string())?;
        let guesses = trainer.fill(&blanked.ids, &blanked.blanks).await.map_err(|error| error.to_string())?;
        let rows = guesses.chunks_exact(usize::from(unigram.size()));
        Ok((*epoch, rows.map(|row| unigram.likeliest(row, GUESSES)).collect()))
    }

    async fn fetch_vocabulary(&self) -> Result<Unigram, String> {
        let url = format!("{}/api/tokenizer.json", self.origin);
        let bytes = download(&url, VOCABULARY_BYTES_MAX).await?;
        let vocabulary: Vocabulary = serde_json::from_slice(&bytes)
            .map_err(|error| format!("the vocabulary is not understood: {error}"))?;
        Unigram::new(vocabulary).map_err(|error| error.to_string())
    }

    async fn newest(&self) -> Result<u64, String> {
        let bytes = download(&format!("{}/api/models", self.origin), MODELS_BYTES_MAX).await?;
        let models: Models = serde_json::from_slice(&bytes)
            .map_err(|error| format!("the list of models is not understood: {error}"))?;
        models.latest.map(|model| model.epoch).ok_or_else(|| "no model was evaluated yet".to_owned())
    }

    async fn fetch_model(&self) -> Result<(u64, usize, Trainer), String> {
        let run = fetch_status(&self.origin).await?.run;
        let SampleKind::Tokens(tokens) = &run.manifest.samples else {
            return Err("this run does not learn from text".into());
        };
        let length = usize::from(tokens.length);
        let (epoch, trainer) = load(&run, &format!("{}/api/model.safetensors", self.origin)).await?;
        Ok((epoch, length, trainer))
    }
}
