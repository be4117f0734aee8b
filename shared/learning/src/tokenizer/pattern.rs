//! Regular expressions of a file, which may be hostile: their length, their compiled size and their backtracking are
//! bounded.

use fancy_regex::{Regex, RegexBuilder};
use tokenizers::Offsets;
use tokenizers::tokenizer::pattern::Pattern;

use super::error::TokenizerError;

/// Longest expression, in bytes. Those of the field have some 500.
const PATTERN_BYTES_MAX: usize = 2048;
/// Most steps back of one search.
const BACKTRACKS_MAX: usize = 100_000;
/// Largest compiled part of an expression, in bytes.
const COMPILED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// An expression that gives up where it would take long.
#[derive(Debug)]
pub(super) struct BoundedRegex(Regex);

impl BoundedRegex {
    /// - `part`: where in the file, for the error
    pub(super) fn new(part: &'static str, pattern: &str) -> Result<Self, TokenizerError> {
        if pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX {
            let got = pattern.len();
            let reason = format!("a pattern has {got} bytes, 1 to {PATTERN_BYTES_MAX} are allowed");
            return Err(TokenizerError::part(part, reason));
        }
        let mut builder = RegexBuilder::new(pattern);
        builder.backtrack_limit(BACKTRACKS_MAX);
        builder.delegate_size_limit(COMPILED_BYTES_MAX).delegate_dfa_size_limit(COMPILED_BYTES_MAX);
        builder.build().map(Self).map_err(|error| TokenizerError::part(part, error))
    }

    /// Of a text that is meant literally.
    pub(super) fn literal(part: &'static str, text: &str) -> Result<Self, TokenizerError> {
        Self::new(part, &fancy_regex::escape(text))
    }
}

impl Pattern for &BoundedRegex {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        if inside.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let (mut parts, mut end) = (Vec::new(), 0);
        for found in self.0.find_iter(inside) {
            let found = found?;
            if end < found.start() {
                parts.push(((end, found.start()), false));
            }
            parts.push(((found.start(), found.end()), true));
            end = found.end();
        }
        if end < inside.len() {
            parts.push(((end, inside.len()), false));
        }
        Ok(parts)
    }
}
