//! Text cut into words, before a vocabulary is made of them or applied to them.

/// Prefix of a word that follows white space, as in SentencePiece.
pub const SPACE: char = '\u{2581}';
/// Longest word, in characters: a longer run is cut.
pub const WORD_CHARS_MAX: usize = 48;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Digit,
    Other,
}

impl Class {
    fn of(character: char) -> Self {
        match character {
            c if c.is_alphabetic() => Self::Letter,
            c if c.is_numeric() => Self::Digit,
            _ => Self::Other,
        }
    }
}

/// Calls `on_word` with each run of letters, of digits, and of the same other character, in order.
pub fn each(text: &str, mut on_word: impl FnMut(&str)) {
    let mut word = String::new();
    let mut n_chars = 0;
    let mut last = None;
    let mut is_after_space = true;
    for character in text.chars() {
        if character.is_whitespace() || character.is_control() {
            is_after_space = true;
            continue;
        }
        let class = Class::of(character);
        let goes_on = !is_after_space
            && n_chars < WORD_CHARS_MAX
            && last.is_some_and(|(before, c)| before == class && (class != Class::Other || c == character));
        if !goes_on {
            if !word.is_empty() {
                on_word(&word);
            }
            word.clear();
            n_chars = 0;
            if is_after_space {
                word.push(SPACE);
            }
        }
        word.push(character);
        n_chars += 1;
        last = Some((class, character));
        is_after_space = false;
    }
    if !word.is_empty() {
        on_word(&word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut words = Vec::new();
        each(text, |word| words.push(word.to_owned()));
        words
    }

    #[test]
    fn runs_of_a_kind_are_words_and_white_space_leaves_a_mark() {
        assert_eq!(words("It's 1913,\n\n  so -- \u{0}"), ["▁It", "'", "s", "▁1913", ",", "▁so", "▁--"]);
        assert_eq!(words("?!?"), ["▁?", "!", "?"]);
        assert_eq!(words(" \t"), Vec::<String>::new());
        let long = words(&"a".repeat(100));
        assert_eq!(long.iter().map(|word| word.chars().count()).collect::<Vec<_>>(), [49, 48, 4]);
    }
}
