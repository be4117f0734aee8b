//! `tokenizer.json` as the `tokenizers` library reads it, with our vocabulary, and back.

use barnraise_learning::unigram::Vocabulary;
use barnraise_learning::words::{SPACE, WORD_CHARS_MAX};
use barnraise_protocol::dataset::{SEPARATOR_TOKEN, SPECIAL_TOKENS, SampleKind, UNKNOWN_TOKEN};
use barnraise_protocol::run::RunDescription;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::data::text::SPECIAL_NAMES;

/// Why a file is no vocabulary of ours.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenizerFileError {
    #[error("it is not understood: {0}")]
    Json(#[from] serde_json::Error),
    #[error("it begins with other special tokens")]
    SpecialTokens,
}

/// The part of the file that is read back.
#[derive(Deserialize)]
struct TokenizerFile {
    model: UnigramModel,
}

#[derive(Deserialize)]
struct UnigramModel {
    vocab: Vec<(String, f64)>,
}

/// The content of `tokenizer.json`: text is cut into words as `barnraise_learning::words` cuts it, and each word into the
/// likeliest pieces.
pub(super) fn file(vocabulary: &Vocabulary) -> Value {
    let special = SPECIAL_NAMES.iter().map(|name| json!([name, 0.0]));
    let pieces = vocabulary.pieces.iter().map(|(piece, score)| json!([piece, score]));
    let added = SPECIAL_NAMES.iter().enumerate().map(|(id, name)| {
        json!({
            "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    });
    let space = SPACE.to_string();
    let longest = WORD_CHARS_MAX - 1;
    // A run of letters, of digits, or of the same other character; longer ones are cut.
    let run = |class: &str| format!("[{class}]{{1,{WORD_CHARS_MAX}}}");
    let word = format!(
        "{space}?(?:{}|{}|([^\\p{{Alphabetic}}\\p{{N}}{space}])\\1{{0,{longest}}})",
        run("\\p{Alphabetic}"),
        run("\\p{N}")
    );
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Replace", "pattern": { "Regex": "[\\s\\p{Cc}]+" }, "content": " " },
            { "type": "Strip", "strip_left": true, "strip_right": true },
            { "type": "Replace", "pattern": { "Regex": "^(?=.)| " }, "content": space },
        ]},
        "pre_tokenizer": {
            "type": "Split", "pattern": { "Regex": word }, "behavior": "Isolated", "invert": false,
        },
        "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": space }, "content": " " },
            { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
        ]},
        "model": {
            "type": "Unigram", "unk_id": UNKNOWN_TOKEN, "byte_fallback": false,
            "vocab": special.chain(pieces).collect::<Vec<_>>(),
        },
    })
}

/// The content of `tokenizer_config.json`.
pub(super) fn config(run: &RunDescription) -> Value {
    let [unknown, mask, end] = SPECIAL_NAMES;
    debug_assert_eq!(SPECIAL_NAMES[usize::from(SEPARATOR_TOKEN)], end);
    let length = match &run.data.manifest.samples {
        SampleKind::Tokens(tokens) => tokens.length,
        _ => 0,
    };
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "unk_token": unknown,
        "mask_token": mask,
        "bos_token": end,
        "eos_token": end,
        "clean_up_tokenization_spaces": false,
    })
}

/// The vocabulary of a file that [`file`] made.
pub(super) fn read(bytes: &[u8]) -> Result<Vocabulary, TokenizerFileError> {
    let TokenizerFile { model } = serde_json::from_slice(bytes)?;
    let mut pieces = model.vocab;
    let special = usize::from(SPECIAL_TOKENS);
    let is_ours =
        pieces.len() > special && pieces.iter().zip(SPECIAL_NAMES).all(|((piece, _), name)| piece == name);
    if !is_ours {
        return Err(TokenizerFileError::SpecialTokens);
    }
    Ok(Vocabulary { pieces: pieces.split_off(special) })
}
