//! Corpora in the repository: a text file for each target, `fuzz/NAME.hex` in the folder of its crate.
//!
//! A line is an input in hexadecimal digits, or a comment after `#`. What people put there stands above [`MARK`], what
//! `cargo xtask fuzz --keep` chose stands below.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The last line of what is written by hand.
pub const MARK: &str = "# Chosen by `cargo xtask fuzz --keep`, for what they reach.";

/// Why there is no corpus.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The file.
    #[error("no corpus ({0}); `cargo xtask fuzz --keep NAME` makes one")]
    File(#[from] io::Error),
    /// Something else than hexadecimal digits in pairs.
    #[error("line {number} is neither a comment nor hexadecimal digits in pairs")]
    Line {
        /// From 1.
        number: usize,
    },
    /// No input.
    #[error("a corpus without an input")]
    Empty,
}

/// Where the corpus of a target is.
pub fn file(member: &Path, name: &str) -> PathBuf {
    member.join("fuzz").join(format!("{name}.hex"))
}

/// All inputs of a corpus, at least one.
///
/// # Errors
/// See [`CorpusError`].
pub fn read(file: &Path) -> Result<Vec<Vec<u8>>, CorpusError> {
    inputs(&fs::read_to_string(file)?)
}

/// An input as a corpus has it.
pub fn line(input: &[u8]) -> String {
    input.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The part of a corpus that people wrote, with [`MARK`] at its end.
pub fn by_hand(text: &str) -> String {
    let by_hand = text.split_once(MARK).map_or(text, |(before, _)| before).trim_end();
    if by_hand.is_empty() { format!("{MARK}\n") } else { format!("{by_hand}\n{MARK}\n") }
}

fn inputs(text: &str) -> Result<Vec<Vec<u8>>, CorpusError> {
    let numbered = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let lines = numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let inputs: Result<Vec<_>, _> =
        lines.map(|(number, line)| input(line).ok_or(CorpusError::Line { number })).collect();
    inputs.and_then(|inputs| if inputs.is_empty() { Err(CorpusError::Empty) } else { Ok(inputs) })
}

fn input(line: &str) -> Option<Vec<u8>> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    let pairs = line.as_bytes().chunks(2);
    pairs.map(|pair| u8::try_from(16 * digit(pair.first()?)? + digit(pair.get(1)?)?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_inputs_and_what_is_none_is_named() {
        let (a, b) = (vec![0, 0x7f, 0xff], vec![0x0a]);
        let text = format!("# why\n{}\n\n{MARK}\n{}\n", line(&a), line(&b));
        assert_eq!(inputs(&text).unwrap(), [a, b]);
        for (text, number) in [("00\n0", 2), ("# x\n\n0g", 3), ("é", 1)] {
            let error = inputs(text).unwrap_err();
            assert!(matches!(error, CorpusError::Line { number: got } if got == number), "{text}: {error}");
        }
        assert!(matches!(inputs(MARK), Err(CorpusError::Empty)));
    }

    #[test]
    fn what_people_wrote_stays() {
        assert_eq!(by_hand(""), format!("{MARK}\n"));
        let text = format!("# a crash\n00ff\n{MARK}\n");
        assert_eq!(by_hand(&format!("{text}0102\n")), text);
        assert_eq!(by_hand("# a crash\n00ff\n"), text);
    }
}
