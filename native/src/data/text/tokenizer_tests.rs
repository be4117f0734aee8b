#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

const TEXT: &str = "This is the cat that killed the rat that ate the malt that lay in the house; it's 1913, so naïve cats — \
    and rats — ate 42 malts, unless the farmer's cow tossed the dog. सभी मनुष्यों को गौरव. ";

fn trained() -> (Vec<u8>, Tokenizer) {
    let file = train([TEXT.repeat(50).as_str()].into_iter(), 200).unwrap();
    let tokenizer = Tokenizer::read(&file).unwrap();
    (file, tokenizer)
}

#[test]
fn runs_of_a_kind_are_words_and_white_space_leaves_a_mark() {
    let (_, tokenizer) = trained();
    let words = |text: &str| tokenizer.words(text).unwrap();
    assert_eq!(words("It's 1913,\n\n  so -- \u{0}"), ["▁It", "'", "s", "▁1913", ",", "▁so", "▁--"]);
    assert_eq!(words("?!? मनुष्यों e\u{301}t"), ["▁?!?", "▁मनुष्यों", "▁e\u{301}t"]);
    assert_eq!(words("a \u{2581}b"), ["▁a", "▁", "▁b"]);
    assert_eq!(words(" \t"), Vec::<String>::new());
}

#[test]
fn words_that_are_trained_on_have_an_end() {
    let cut = |word: &str| cut(word).map(|part| part.chars().count()).collect::<Vec<_>>();
    assert_eq!(cut(&"é".repeat(100)), [48, 48, 4]);
    assert_eq!(cut("word"), [4]);
    assert_eq!(cut(""), Vec::<usize>::new());
}

/// The trainer's maps are in another order each time.
#[test]
fn the_same_text_gives_the_same_file() {
    let (file, tokenizer) = trained();
    assert_eq!(trained().0, file);
    assert!(tokenizer.size() > 40 && tokenizer.size() <= 200, "{tokenizer:?}");
    let special = tokenizer.special();
    assert_eq!((special.separator, special.mask, &special.all[..]), (2, Some(1), &[0, 1, 2][..]));
    assert_eq!(SPECIAL_NAMES.map(str::to_owned).map(Some), [0, 1, 2].map(|id| tokenizer.name(id)));
}

#[test]
fn documents_are_spelt_with_a_separator_after_each() {
    let (_, tokenizer) = trained();
    let documents = ["the cat".to_owned(), TEXT.repeat(1000), "the rat ☃".to_owned()];
    let ids = encode_all(&tokenizer, &documents).unwrap();
    let parts: Vec<&[u32]> = ids.split(|&id| id == 2).collect();
    let [first, long, last, rest] = parts[..] else { panic!("{} parts", parts.len()) };
    assert_eq!((tokenizer.decode(first).unwrap().as_str(), rest), ("the cat", &[][..]));
    assert_eq!(last.last(), Some(&0), "a snowman is not known");
    // It is cut in pieces, which does not show.
    assert_eq!(tokenizer.decode(long).unwrap(), TEXT.repeat(1000).trim_end());
    let one = tokenizer.encode(TEXT).unwrap();
    assert_eq!(long, one.repeat(1000));
}

#[test]
fn a_kept_file_is_read_again_and_a_damaged_one_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = trained();
    let kept = |bytes: Option<Vec<u8>>| {
        let train = || bytes.ok_or_else(|| RunTokenizerError::Train("it was not kept".into()));
        cached(folder.path(), b"key", train).map(|(bytes, _)| bytes)
    };
    assert!(matches!(kept(None), Err(RunTokenizerError::Train(_))));
    assert_eq!(kept(Some(file.clone())).unwrap(), file);
    assert_eq!(kept(None).unwrap(), file);
    let path = std::fs::read_dir(folder.path().join("vocabularies")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&path, &file[..file.len() / 2]).unwrap();
    assert!(kept(None).is_err());
    assert_eq!(kept(Some(file.clone())).unwrap(), file);
}

#[test]
fn an_existing_file_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let error = existing(&path).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
    std::fs::write(&path, "{}").unwrap();
    let error = existing(&path).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json") && error.contains("missing field `model`"), "{error}");
    std::fs::write(&path, vec![b' '; FILE_BYTES_MAX + 1]).unwrap();
    assert!(matches!(
        existing(&path),
        Err(RunTokenizerError::Existing { source: TokenizerError::FileSize { .. }, .. })
    ));
}
