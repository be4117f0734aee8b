//! Which run it is.

use serde::{Deserialize, Serialize};

const ID_CHARS_MAX: usize = 64;
const TITLE_CHARS_MAX: usize = 100;
const PURPOSE_CHARS_MAX: usize = 500;

/// Name and purpose of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// Short name, the same for as long as the run lives: lower-case letters, digits and dashes.
    pub run_id: String,
    /// One line for people.
    pub title: String,
    /// What the model is for and for whom, a sentence or two.
    pub purpose: String,
}

/// Why a run cannot be called so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It would not be safe in an address.
    #[error("1 to {ID_CHARS_MAX} lower-case letters, digits and dashes")]
    Id,
    /// Nothing to read, or too much.
    #[error("1 to {TITLE_CHARS_MAX} characters")]
    Title,
    /// Nothing to read, or too much.
    #[error("1 to {PURPOSE_CHARS_MAX} characters")]
    Purpose,
}

impl RunIdentity {
    /// Checks the characters of the id and the lengths of the texts.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn validate(&self) -> Result<(), IdentityError> {
        let id = &self.run_id;
        let is_known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if id.is_empty() || id.len() > ID_CHARS_MAX || !id.chars().all(is_known) {
            return Err(IdentityError::Id);
        }
        let is_text = |text: &str, max: usize| !text.trim().is_empty() && text.chars().count() <= max;
        match (is_text(&self.title, TITLE_CHARS_MAX), is_text(&self.purpose, PURPOSE_CHARS_MAX)) {
            (false, _) => Err(IdentityError::Title),
            (true, false) => Err(IdentityError::Purpose),
            (true, true) => Ok(()),
        }
    }
}
