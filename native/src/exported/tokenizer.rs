//! The tokenizer of a run beside its model: `tokenizer.json` as it is, and what `transformers` asks for besides.

use barnraise_learning::tokenizer::{Tokenizer, TokenizerError};
use barnraise_protocol::dataset::SampleKind;
use barnraise_protocol::run::RunDescription;
use serde_json::{Value, json};

/// A `tokenizer.json`, and what it says.
#[derive(Debug)]
pub(super) struct RunTokenizer {
    bytes: Vec<u8>,
    tokenizer: Tokenizer,
}

impl RunTokenizer {
    pub(super) fn read(bytes: Vec<u8>) -> Result<Self, TokenizerError> {
        Ok(Self { tokenizer: Tokenizer::read(&bytes)?, bytes })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The content of `tokenizer_config.json`.
    pub(super) fn config(&self, run: &RunDescription) -> Value {
        let length = match &run.data.manifest.samples {
            SampleKind::Tokens(tokens) => tokens.length,
            _ => 0,
        };
        let name = |id: Option<u32>| id.and_then(|id| self.tokenizer.name(id));
        let special = self.tokenizer.special();
        let separator = name(Some(special.separator));
        json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": length,
            "unk_token": name(special.unknown),
            "mask_token": name(special.mask),
            "bos_token": separator,
            "eos_token": separator,
            "clean_up_tokenization_spaces": false,
        })
    }
}
