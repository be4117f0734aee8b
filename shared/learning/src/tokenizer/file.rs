//! Reads a `tokenizer.json`.

use serde::Deserialize;
use serde_json::Value;
use tokenizers::tokenizer::{AddedToken, AddedVocabulary, ModelWrapper};

use super::error::TokenizerError;
use super::model::{self, CheckedModel, TOKEN_BYTES_MAX, TOKENS_MAX};
use super::steps::{Decoding, Normalization, PreTokenization};
use super::{FILE_BYTES_MAX, SpecialTokens, Tokenizer};

/// What ends a text, in the vocabularies of the field: the first one that is there. Only their letters count, and the slash of
/// `</s>`.
const SEPARATORS: [&str; 11] = [
    "endoftext",
    "/s",
    "eos",
    "endofsentence",
    "sep",
    "endofdocument",
    "eod",
    "eot",
    "eotid",
    "endofturn",
    "imend",
];
/// What masks a token.
const MASKS: [&str; 4] = ["[MASK]", "<mask>", "<|mask|>", "<masked token>"];
/// Most added tokens that an error names.
const NAMED_MAX: usize = 12;

/// The parts of the file that are used.
#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedTokenText>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    model: Value,
}

#[derive(Deserialize)]
struct AddedTokenText {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

impl Tokenizer {
    /// Reads and checks a `tokenizer.json`.
    ///
    /// # Errors
    /// A file that is too large, not understood or not usable; one without a token that ends a text.
    pub fn read(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let (max, got) = (FILE_BYTES_MAX, bytes.len());
        if got > max {
            return Err(TokenizerError::FileSize { max, got });
        }
        let file = serde_json::from_slice(bytes).map_err(|error| TokenizerError::Json(error.to_string()))?;
        let TokenizerFile { added_tokens, normalizer, pre_tokenizer, decoder, mut model } = file;
        let CheckedModel { model, unknown, size } = model::of(&mut model)?;
        let normalization = Normalization::of(&normalizer)?;
        let (added, size) = add(&added_tokens, &normalization, &model, size)?;
        if !(2..=TOKENS_MAX).contains(&size) {
            return Err(TokenizerError::Size { max: TOKENS_MAX, got: size });
        }
        let special = special(&added_tokens, unknown)?;
        let mask = added_tokens.iter().find(|text| special.mask == Some(text.id));
        let mask_strips = mask.map_or([false; 2], |text| [text.token.lstrip, text.token.rstrip]);
        let mut tokenizer = Self {
            added,
            normalization,
            pre_tokenization: PreTokenization::of(&pre_tokenizer)?,
            model,
            decoding: Decoding::of(&decoder)?,
            size: size as u32,
            special,
            mask_strips,
            anchor: None,
        };
        let letter = tokenizer.encode("a").ok().and_then(|ids| ids.last().copied());
        tokenizer.anchor = letter.filter(|id| tokenizer.special.all.binary_search(id).is_err());
        Ok(tokenizer)
    }
}

/// The added tokens, and the size of the vocabulary with them.
fn add(
    tokens: &[AddedTokenText],
    normalization: &Normalization,
    model: &ModelWrapper,
    mut size: usize,
) -> Result<(AddedVocabulary, usize), TokenizerError> {
    const PART: &str = "added_tokens";
    if tokens.len() > TOKENS_MAX {
        return Err(TokenizerError::Size { max: TOKENS_MAX, got: tokens.len() });
    }
    if tokens.iter().any(|text| !(1..=TOKEN_BYTES_MAX).contains(&text.token.content.len())) {
        return Err(TokenizerError::part(PART, format!("a token must have 1 to {TOKEN_BYTES_MAX} bytes")));
    }
    let mut added = AddedVocabulary::new();
    // What a text spells is text.
    added.set_encode_special_tokens(true);
    let longest = tokens.iter().map(|text| text.token.content.len()).max().unwrap_or_default();
    let run = normalization.run(longest);
    let all = tokens.iter().map(|text| text.token.clone());
    added.add_tokens(all, model, Some(&run)).map_err(|error| TokenizerError::part(PART, error))?;
    run.finish()?;
    let ids = added.get_vocab();
    for AddedTokenText { id, token } in tokens {
        // The library counts on from the model's tokens, and does not look at the id in the file.
        let got = ids.get(&token.content).copied();
        if got != Some(*id) {
            let (name, got) = (&token.content, got.unwrap_or_default());
            let reason = format!("`{name}` has id {id}, and would be {got} after the model's tokens");
            return Err(TokenizerError::part(PART, reason));
        }
        size = size.max(*id as usize + 1);
    }
    Ok((added, size))
}

fn special(tokens: &[AddedTokenText], unknown: Option<u32>) -> Result<SpecialTokens, TokenizerError> {
    let named = |name: &dyn Fn(&str) -> bool| tokens.iter().find(|text| name(&text.token.content));
    let mask = MASKS.iter().find_map(|mask| named(&|name| name == *mask)).map(|text| text.id);
    let separator =
        SEPARATORS.iter().find_map(|end| named(&|name| letters(name) == *end)).map(|text| text.id);
    let separator = separator.ok_or_else(|| {
        let names: Vec<&str> =
            tokens.iter().take(NAMED_MAX).map(|text| text.token.content.as_str()).collect();
        let got = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        TokenizerError::NoSeparator { got }
    })?;
    let flagged = tokens.iter().filter(|text| text.token.special).map(|text| text.id);
    let mut all: Vec<u32> = flagged.chain([separator]).chain(mask).chain(unknown).collect();
    all.sort_unstable();
    all.dedup();
    Ok(SpecialTokens { separator, mask, unknown, all })
}

/// What tells a name of a special token from others, however it is set in brackets.
fn letters(name: &str) -> String {
    let counts = |sign: &char| sign.is_ascii_alphabetic() || *sign == '/';
    name.chars().filter(counts).map(|sign| sign.to_ascii_lowercase()).collect()
}
