//! What a file does before and after its model: normalizers, pre-tokenizers and decoders.
//!
//! Steps with a regular expression are computed here, by one that is bounded; so is a step of the library that panics on
//! what a file may say. The others are the library's. After each step the length of the text is compared with a limit.

use std::sync::OnceLock;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::tokenizer::pattern::{Invert, Pattern};
use tokenizers::tokenizer::{Decoder, NormalizedString, Normalizer, PreTokenizedString, PreTokenizer};
use tokenizers::{DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::charsmap;
use super::error::TokenizerError;
use super::pattern::BoundedRegex;

/// Most steps of a kind.
const STEPS_MAX: usize = 32;
/// Longest text that a step puts in, in bytes.
const CONTENT_BYTES_MAX: usize = 256;
/// How many times longer than before a text may be after all steps: U+FDFA is eighteen characters after NFKD.
const GROWTH_MAX: usize = 16;
/// And how many bytes are granted in addition.
const GROWTH_BYTES: usize = 1024;

const NORMALIZERS: [&str; 12] = [
    "BertNormalizer",
    "ByteLevel",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Precompiled",
    "Prepend",
    "Strip",
    "StripAccents",
];
const PRE_TOKENIZERS: [&str; 10] = [
    "BertPreTokenizer",
    "ByteLevel",
    "CharDelimiterSplit",
    "Digits",
    "FixedLength",
    "Metaspace",
    "Punctuation",
    "UnicodeScripts",
    "Whitespace",
    "WhitespaceSplit",
];
const DECODERS: [&str; 6] = ["BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "WordPiece"];

/// The text of a pattern in a file.
#[derive(Deserialize)]
enum PatternText {
    String(String),
    Regex(String),
}

impl PatternText {
    fn compile(&self, part: &'static str) -> Result<BoundedRegex, TokenizerError> {
        match self {
            Self::String(text) => BoundedRegex::literal(part, text),
            Self::Regex(pattern) => BoundedRegex::new(part, pattern),
        }
    }
}

#[derive(Deserialize)]
struct ReplaceText {
    pattern: PatternText,
    content: String,
}

#[derive(Deserialize)]
struct SplitText {
    pattern: PatternText,
    behavior: SplitDelimiterBehavior,
    invert: bool,
}

/// Replaces what matches.
struct Replace {
    pattern: BoundedRegex,
    content: String,
}

impl Replace {
    fn of(part: &'static str, value: &Value) -> Result<Self, TokenizerError> {
        let ReplaceText { pattern, content } = read(part, value)?;
        check_content(part, &content)?;
        Ok(Self { pattern: pattern.compile(part)?, content })
    }
}

enum NormalizerStep {
    Replace(Replace),
    Library(NormalizerWrapper),
}

/// Makes a text uniform before it is cut.
pub(super) struct Normalization(Vec<NormalizerStep>);

/// The normalization of one text: the library does not look at errors of normalizers.
pub(super) struct NormalizationRun<'a> {
    steps: &'a [NormalizerStep],
    bytes_max: usize,
    failed: OnceLock<TokenizerError>,
}

impl Normalization {
    pub(super) fn of(value: &Value) -> Result<Self, TokenizerError> {
        const PART: &str = "normalizer";
        let steps = flattened(PART, value, "normalizers")?.into_iter().map(|(kind, value)| match kind {
            "Replace" => Ok(NormalizerStep::Replace(Replace::of(PART, value)?)),
            _ => {
                known(PART, kind, &NORMALIZERS)?;
                match kind {
                    "Precompiled" => charsmap::check(&value["precompiled_charsmap"])?,
                    "Prepend" => check_content(PART, value["prepend"].as_str().unwrap_or_default())?,
                    _ => {}
                }
                Ok(NormalizerStep::Library(read(PART, value)?))
            }
        });
        Ok(Self(steps.collect::<Result<_, TokenizerError>>()?))
    }

    /// For a text of `n_bytes`.
    pub(super) fn run(&self, n_bytes: usize) -> NormalizationRun<'_> {
        NormalizationRun { steps: &self.0, bytes_max: grown(n_bytes), failed: OnceLock::new() }
    }
}

impl NormalizationRun<'_> {
    fn apply(&self, text: &mut NormalizedString) -> Result<(), TokenizerError> {
        for step in self.steps {
            let done = match step {
                NormalizerStep::Replace(step) => text.replace(&step.pattern, &step.content),
                NormalizerStep::Library(step) => step.normalize(text),
            };
            done.map_err(TokenizerError::text)?;
            check_length(text.get().len(), self.bytes_max)?;
        }
        Ok(())
    }

    /// Whether all went well.
    pub(super) fn finish(self) -> Result<(), TokenizerError> {
        self.failed.into_inner().map_or(Ok(()), Err)
    }
}

impl Normalizer for NormalizationRun<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        self.apply(text).inspect_err(|error| {
            let _ = self.failed.set(error.clone());
        })?;
        Ok(())
    }
}

enum PreTokenizerStep {
    Split { pattern: BoundedRegex, behavior: SplitDelimiterBehavior, is_inverted: bool },
    Library(PreTokenizerWrapper),
}

/// Cuts a text into words.
pub(super) struct PreTokenization(Vec<PreTokenizerStep>);

impl PreTokenization {
    pub(super) fn of(value: &Value) -> Result<Self, TokenizerError> {
        const PART: &str = "pre_tokenizer";
        let steps = flattened(PART, value, "pretokenizers")?;
        // Each doubles what is not ASCII.
        if steps.iter().filter(|(kind, _)| *kind == "ByteLevel").count() > 2 {
            return Err(TokenizerError::part(PART, "more than two steps make bytes of the text"));
        }
        let steps = steps.into_iter().map(|(kind, value)| match kind {
            "Split" => {
                let SplitText { pattern, behavior, invert } = read(PART, value)?;
                let pattern = pattern.compile(PART)?;
                Ok(PreTokenizerStep::Split { pattern, behavior, is_inverted: invert })
            }
            _ => {
                known(PART, kind, &PRE_TOKENIZERS)?;
                if kind == "FixedLength" && value["length"].as_u64().is_none_or(|length| length == 0) {
                    return Err(TokenizerError::part(PART, "a word must have a length above 0"));
                }
                Ok(PreTokenizerStep::Library(read(PART, value)?))
            }
        });
        Ok(Self(steps.collect::<Result<_, TokenizerError>>()?))
    }

    pub(super) fn apply(&self, text: &mut PreTokenizedString) -> Result<(), TokenizerError> {
        for step in &self.0 {
            let done = match step {
                PreTokenizerStep::Split { pattern, behavior, is_inverted } => {
                    text.split(|_, part| match is_inverted {
                        true => part.split(Invert(pattern), *behavior),
                        false => part.split(pattern, *behavior),
                    })
                }
                PreTokenizerStep::Library(step) => step.pre_tokenize(text),
            };
            done.map_err(TokenizerError::text)?;
        }
        Ok(())
    }
}

enum DecoderStep {
    Replace(Replace),
    Strip { content: char, start: usize, stop: usize },
    Library(DecoderWrapper),
}

/// Makes a text of tokens.
pub(super) struct Decoding(Vec<DecoderStep>);

impl Decoding {
    pub(super) fn of(value: &Value) -> Result<Self, TokenizerError> {
        const PART: &str = "decoder";
        let steps = flattened(PART, value, "decoders")?.into_iter().map(|(kind, value)| match kind {
            "Replace" => Ok(DecoderStep::Replace(Replace::of(PART, value)?)),
            "Strip" => {
                #[derive(Deserialize)]
                struct StripText {
                    content: char,
                    start: usize,
                    stop: usize,
                }
                let StripText { content, start, stop } = read(PART, value)?;
                Ok(DecoderStep::Strip { content, start, stop })
            }
            _ => {
                known(PART, kind, &DECODERS)?;
                Ok(DecoderStep::Library(read(PART, value)?))
            }
        });
        Ok(Self(steps.collect::<Result<_, TokenizerError>>()?))
    }

    pub(super) fn decode(&self, mut tokens: Vec<String>) -> Result<String, TokenizerError> {
        if self.0.is_empty() {
            return Ok(tokens.join(" "));
        }
        let length = |tokens: &[String]| tokens.iter().map(String::len).sum::<usize>();
        let bytes_max = grown(length(&tokens));
        for step in &self.0 {
            // The library's steps count on a token.
            if tokens.is_empty() {
                break;
            }
            tokens = match step {
                DecoderStep::Replace(step) => replaced(tokens, step)?,
                &DecoderStep::Strip { content, start, stop } => {
                    tokens.iter().map(|token| stripped(token, content, start, stop).to_owned()).collect()
                }
                DecoderStep::Library(step) => step.decode_chain(tokens).map_err(TokenizerError::text)?,
            };
            check_length(length(&tokens), bytes_max)?;
        }
        Ok(tokens.concat())
    }
}

fn replaced(tokens: Vec<String>, step: &Replace) -> Result<Vec<String>, TokenizerError> {
    let replaced = tokens.into_iter().map(|token| {
        let parts = (&step.pattern).find_matches(&token).map_err(TokenizerError::text)?;
        let parts = parts.into_iter().map(|((begin, end), is_match)| match is_match {
            true => step.content.as_str(),
            false => &token[begin..end],
        });
        Ok(parts.collect())
    });
    replaced.collect()
}

/// Without up to `start` characters `content` at the beginning, and up to `stop` at the end.
fn stripped(mut token: &str, content: char, start: usize, stop: usize) -> &str {
    for _ in 0..start {
        let Some(rest) = token.strip_prefix(content) else { break };
        token = rest;
    }
    for _ in 0..stop {
        let Some(rest) = token.strip_suffix(content) else { break };
        token = rest;
    }
    token
}

/// The steps of a part, with what kind each is: sequences of them are one list.
fn flattened<'a>(
    part: &'static str,
    value: &'a Value,
    key: &str,
) -> Result<Vec<(&'a str, &'a Value)>, TokenizerError> {
    let mut steps = Vec::new();
    let mut waiting = vec![value];
    while let Some(value) = waiting.pop() {
        if value.is_null() {
            continue;
        }
        match value["type"].as_str() {
            Some("Sequence") => {
                let inner = value[key].as_array();
                let inner = inner.ok_or_else(|| TokenizerError::part(part, format!("`{key}` is no list")))?;
                waiting.extend(inner.iter().rev());
            }
            Some(kind) => steps.push((kind, value)),
            None => return Err(TokenizerError::part(part, "a step has no `type`")),
        }
        if steps.len() > STEPS_MAX {
            return Err(TokenizerError::part(part, format!("more than {STEPS_MAX} steps")));
        }
    }
    Ok(steps)
}

fn known(part: &'static str, kind: &str, names: &[&str]) -> Result<(), TokenizerError> {
    match names.contains(&kind) {
        true => Ok(()),
        false => {
            let kind: String = kind.chars().take(40).collect();
            let reason =
                format!("`{kind}` is not known; there are Replace, Split, Sequence, {}", names.join(", "));
            Err(TokenizerError::part(part, reason))
        }
    }
}

fn read<T: DeserializeOwned>(part: &'static str, value: &Value) -> Result<T, TokenizerError> {
    serde_json::from_value(value.clone()).map_err(|error| TokenizerError::part(part, error))
}

fn check_content(part: &'static str, content: &str) -> Result<(), TokenizerError> {
    match content.len() <= CONTENT_BYTES_MAX {
        true => Ok(()),
        false => {
            let got = content.len();
            let reason = format!("a step puts in {got} bytes, at most {CONTENT_BYTES_MAX} are allowed");
            Err(TokenizerError::part(part, reason))
        }
    }
}

fn grown(n_bytes: usize) -> usize {
    GROWTH_MAX * n_bytes + GROWTH_BYTES
}

fn check_length(got: usize, max: usize) -> Result<(), TokenizerError> {
    match got <= max {
        true => Ok(()),
        false => Err(TokenizerError::text(format!("it becomes {got} bytes long, at most {max} are allowed"))),
    }
}
