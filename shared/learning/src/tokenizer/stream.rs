//! The text of tokens as they come: a character may be made of several tokens, and a token's text depends on those before.

use super::Tokenizer;
use super::error::TokenizerError;

/// Most tokens that are looked at once more for the next one, while a character begins among them.
const WINDOW_TOKENS: usize = 32;
/// Most of them in any case.
const WINDOW_TOKENS_MAX: usize = 4 * WINDOW_TOKENS;
/// Most tokens of one character.
const PENDING_MAX: usize = 8;

/// What tokens add to a text, one by one.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The newest tokens.
    ids: Vec<u32>,
    /// Their text, as far as it was said.
    said: String,
    /// Tokens since it was.
    n_pending: usize,
}

impl<'a> TextStream<'a> {
    /// After the tokens of `prompt`, whose text is known.
    ///
    /// # Errors
    /// As of [`Tokenizer::decode`].
    pub fn after(tokenizer: &'a Tokenizer, prompt: &[u32]) -> Result<Self, TokenizerError> {
        let mut stream =
            Self { tokenizer, ids: prompt.to_vec(), said: tokenizer.decode(prompt)?, n_pending: 0 };
        stream.shorten()?;
        Ok(stream)
    }

    /// What a token adds. Nothing, where a character of it is not whole yet.
    ///
    /// # Errors
    /// As of [`Tokenizer::decode`].
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        self.ids.push(id);
        self.n_pending += 1;
        let text = self.tokenizer.decode(&self.ids)?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && self.n_pending < PENDING_MAX {
            return Ok(String::new());
        }
        // Steps of a decoder may change what was said, such as a space before a full stop.
        let other = self.said.char_indices().zip(text.chars()).find(|((_, said), now)| said != now);
        let begin = other.map_or_else(|| self.said.len().min(text.len()), |((at, _), _)| at);
        let added = text[begin..].to_owned();
        self.said = text;
        self.n_pending = 0;
        self.shorten()?;
        Ok(added)
    }

    /// Forgets older tokens, such that the rest begins with a character: bytes in a row are one text or none.
    fn shorten(&mut self) -> Result<(), TokenizerError> {
        let n_ids = self.ids.len();
        if n_ids <= WINDOW_TOKENS {
            return Ok(());
        }
        let earliest = n_ids - WINDOW_TOKENS / 2;
        for begin in earliest..earliest + PENDING_MAX {
            let rest = self.tokenizer.decode(&self.ids[begin..])?;
            let is_whole = !rest.contains(char::REPLACEMENT_CHARACTER);
            if is_whole && self.said.ends_with(rest.trim_start()) || n_ids > WINDOW_TOKENS_MAX {
                self.ids.drain(..begin);
                self.said = rest;
                break;
            }
        }
        Ok(())
    }
}
