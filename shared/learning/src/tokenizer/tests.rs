#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;

/// As `tests/tokenizers/make.py` wrote them.
const EXPECTED: &str = include_str!("../../tests/tokenizers/expected.json");
const FILES: [(&str, &str); 5] = [
    ("byte-fallback", include_str!("../../tests/tokenizers/byte-fallback.json")),
    ("byte-level", include_str!("../../tests/tokenizers/byte-level.json")),
    ("byte-level-split", include_str!("../../tests/tokenizers/byte-level-split.json")),
    ("unigram", include_str!("../../tests/tokenizers/unigram.json")),
    ("word-piece", include_str!("../../tests/tokenizers/word-piece.json")),
];

fn file(name: &str) -> Value {
    let (_, text) = FILES.iter().find(|(kind, _)| *kind == name).unwrap();
    serde_json::from_str(text).unwrap()
}

fn read(file: &Value) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::read(file.to_string().as_bytes())
}

fn tokenizer(name: &str) -> Tokenizer {
    read(&file(name)).unwrap()
}

fn texts() -> Vec<String> {
    let expected: Value = serde_json::from_str(EXPECTED).unwrap();
    serde_json::from_value(expected["texts"].clone()).unwrap()
}

#[test]
fn every_script_gives_the_ids_that_python_gives() {
    let expected: Value = serde_json::from_str(EXPECTED).unwrap();
    for (name, text) in FILES {
        let tokenizer = Tokenizer::read(text.as_bytes()).unwrap();
        let want = &expected["kinds"][name];
        assert_eq!(want["size"], tokenizer.size(), "{name}");
        let (ids, decoded) = (want["ids"].as_array().unwrap(), want["decoded"].as_array().unwrap());
        for ((text, ids), decoded) in texts().iter().zip(ids).zip(decoded) {
            let ids: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), decoded.as_str().unwrap(), "{name}: {text:?}");
        }
    }
}

#[test]
fn special_tokens_are_known_by_their_names() {
    let special = |name| tokenizer(name).special().clone();
    assert_eq!(
        special("word-piece"),
        SpecialTokens { separator: 3, mask: Some(4), unknown: Some(1), all: vec![0, 1, 2, 3, 4] }
    );
    assert_eq!(
        special("byte-level"),
        SpecialTokens { separator: 0, mask: None, unknown: None, all: vec![0] }
    );
    assert_eq!(
        special("unigram"),
        SpecialTokens { separator: 1, mask: Some(899), unknown: Some(0), all: vec![0, 1, 899] }
    );
    assert_eq!(special("byte-level-split").separator, 500);
    assert_eq!(special("byte-fallback").all, [0, 1, 2]);
    assert_eq!(tokenizer("word-piece").name(4).as_deref(), Some("[MASK]"));
}

/// As models of the field name what ends a text, the first one before names that other tokens of theirs have.
#[test]
fn the_end_of_a_text_is_known_by_its_letters() {
    for (names, want) in [
        (["<|im_end|>", "<|endoftext|>"], 1),
        (["<s>", "</s>"], 1),
        (["<|end_of_text|>", "<|eot_id|>"], 0),
        (["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"], 1),
        (["[CLS]", "[SEP]"], 1),
        (["<bos>", "<EOS>"], 1),
        (["<start_of_turn>", "<end_of_turn>"], 1),
    ] {
        let mut file = file("byte-level");
        let vocab = file["model"]["vocab"].as_object().unwrap().clone();
        let (first, mut next) = (file["added_tokens"][0].clone(), vocab.len());
        let ids = names.map(|name| match vocab.get(name) {
            Some(id) => id.clone(),
            None => {
                next += 1;
                json!(next - 1)
            }
        });
        let added = names.iter().zip(&ids).map(|(name, id)| {
            let mut token = first.clone();
            (token["content"], token["id"]) = (json!(name), id.clone());
            token
        });
        file["added_tokens"] = added.collect::<Vec<_>>().into();
        let special = read(&file).unwrap().special().clone();
        assert_eq!(json!(special.separator), ids[want], "{names:?}");
    }
}

/// As Llama 3, Qwen and Gemma have them.
#[test]
fn a_vocabulary_may_have_more_tokens_than_two_bytes_count() {
    let mut file = file("word-piece");
    let vocab = file["model"]["vocab"].as_object_mut().unwrap();
    let known = vocab.len();
    for id in known..150_000 {
        vocab.insert(format!("seldom{id}"), json!(id));
    }
    let tokenizer = read(&file).unwrap();
    assert_eq!(tokenizer.size(), 150_000);
    let ids = tokenizer.encode("seldom149999 the seldom70000").unwrap();
    assert_eq!((ids[0], ids[2]), (149_999, 70_000));
    assert_eq!(tokenizer.decode(&ids).unwrap(), "seldom149999 the seldom70000");
}

/// What a stream says, together, is the text after its prompt; and characters of several tokens are whole.
#[test]
fn a_text_is_said_token_by_token() {
    for (name, _) in FILES {
        let tokenizer = tokenizer(name);
        for text in texts() {
            let ids = tokenizer.encode(&text).unwrap();
            let all = tokenizer.decode(&ids).unwrap();
            for n_prompt in [0, 1, ids.len() / 2] {
                let (prompt, rest) = ids.split_at(n_prompt.min(ids.len()));
                let mut stream = TextStream::after(&tokenizer, prompt).unwrap();
                let said: String = rest.iter().map(|&id| stream.push(id).unwrap()).collect();
                let begun = tokenizer.decode(prompt).unwrap();
                if begun.ends_with(char::REPLACEMENT_CHARACTER) {
                    continue;
                }
                assert_eq!(format!("{begun}{said}"), all, "{name}, after {n_prompt}: {text:?}");
            }
        }
    }
}

#[test]
fn blanks_become_masks_and_the_text_is_repeated_to_the_end() {
    let tokenizer = tokenizer("word-piece");
    let of = |text: &str| tokenizer.encode(text).unwrap();
    let blanked = tokenizer.encode_with_blanks("the ___ of ___", 40).unwrap();
    let one = [of("the"), vec![4], of("of"), vec![4, 3]].concat();
    assert_eq!(blanked.ids, one.iter().copied().cycle().take(40).collect::<Vec<_>>());
    let blanks = [of("the").len(), of("the").len() + 1 + of("of").len()].map(|at| at as u32);
    assert_eq!(blanked.blanks, blanks);
    assert_eq!(tokenizer.encode_with_blanks("the", 8), Err(BlankError::Blanks { got: 0 }));
    assert_eq!(tokenizer.encode_with_blanks(&"___ ".repeat(9), 99), Err(BlankError::Blanks { got: 9 }));
    let long = format!("___ {}", "the ".repeat(8));
    let error = tokenizer.encode_with_blanks(&long, 8).unwrap_err();
    assert!(matches!(error, BlankError::Length { max: 8, got: 9.. }), "{error}");
    assert_eq!(tokenizer.encode_with_blanks("___", 1).unwrap().ids, [4]);
    let unmasked = self::tokenizer("byte-level");
    assert_eq!(unmasked.encode_with_blanks("a ___", 8), Err(BlankError::NoMask));
}

/// The mask of RoBERTa and ALBERT takes the space before it.
#[test]
fn a_mask_takes_the_white_space_that_its_file_says() {
    let tokenizer = tokenizer("unigram");
    let (mask, of) = (899, |text: &str| tokenizer.encode(text).unwrap());
    let want = [of("the"), vec![mask], of(" of")].concat();
    assert_eq!(tokenizer.encode_with_blanks("the   ___ of", want.len()).unwrap().ids, want);
}

#[test]
fn what_a_text_spells_is_text() {
    for (name, spelt) in [("word-piece", "[MASK] [SEP]"), ("byte-level", "<|endoftext|>")] {
        let tokenizer = tokenizer(name);
        let ids = tokenizer.encode(spelt).unwrap();
        assert!(ids.iter().all(|id| !tokenizer.special().all.contains(id)), "{name}: {ids:?}");
    }
    // Where the vocabulary of the model spells it as one piece, the mask is left out.
    let masked = tokenizer("unigram").encode("a<mask>b").unwrap();
    assert!(!masked.is_empty() && !masked.contains(&899), "{masked:?}");
}

#[test]
fn tokens_are_shown_as_people_read_them() {
    for (name, whole, part) in
        [("byte-level", "Ġthe", "ing"), ("word-piece", "the", "##ing"), ("unigram", "▁the", "ing")]
    {
        let tokenizer = tokenizer(name);
        let id = |want: &str| (0..tokenizer.size()).find(|&id| tokenizer.name(id).as_deref() == Some(want));
        let (Some(whole), Some(part)) = (id(whole), id(part)) else { panic!("{name} has no such tokens") };
        let mut probabilities = vec![0.0; tokenizer.size() as usize];
        probabilities[tokenizer.special().separator as usize] = 0.9;
        (probabilities[whole as usize], probabilities[part as usize]) = (0.06, 0.04);
        let shown = tokenizer.likeliest(&probabilities, 2);
        assert_eq!(shown, [("the".to_owned(), 0.06), ("-ing".to_owned(), 0.04)], "{name}");
        assert_eq!(
            (tokenizer.text(whole).as_str(), tokenizer.text(part).as_str()),
            (" the", "ing"),
            "{name}"
        );
    }
}

#[test]
fn a_document_is_cut_before_white_space() {
    let word = "word ".repeat(20_000);
    let cut: Vec<&str> = pieces(&word).collect();
    assert!(cut.len() > 3 && cut.concat() == word);
    assert!(cut.iter().all(|piece| piece.len() <= PIECE_BYTES_MAX));
    assert!(cut[1..].iter().all(|piece| piece.starts_with(' ')), "{:?}", &cut[1][..9]);
    let unbroken = "é".repeat(50_000);
    assert_eq!(pieces(&unbroken).collect::<String>(), unbroken);
    assert_eq!(pieces("").count(), 0);
    let tokenizer = tokenizer("byte-level");
    let whole = tokenizer.encode(&word[..PIECE_BYTES_MAX / 5 * 5]).unwrap();
    let parts: Vec<u32> = cut[..2].iter().flat_map(|piece| tokenizer.encode(piece).unwrap()).collect();
    assert_eq!(whole[..6000], parts[..6000]);
}

#[test]
fn a_prompt_is_the_end_of_a_text_without_its_last_space() {
    let tokenizer = tokenizer("byte-level");
    assert_eq!(tokenizer.encode_prompt("the house \n").unwrap(), tokenizer.encode("the house").unwrap());
    let long = "é".repeat(TEXT_BYTES_MAX);
    assert_eq!(tokenizer.encode_prompt(&long).unwrap(), tokenizer.encode(&long[..TEXT_BYTES_MAX]).unwrap());
}

/// Files of GPT-2 and BERT as the library's first versions wrote them do not name their model.
#[test]
fn models_without_a_type_are_known_by_their_fields() {
    for name in ["byte-level", "word-piece", "unigram"] {
        let mut untyped = file(name);
        untyped["model"].as_object_mut().unwrap().remove("type").unwrap();
        let text = "the house of 42";
        assert_eq!(read(&untyped).unwrap().encode(text), tokenizer(name).encode(text), "{name}");
    }
    let mut merged = file("byte-level");
    for merge in merged["model"]["merges"].as_array_mut().unwrap() {
        let pair = merge.as_array().unwrap();
        *merge = format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()).into();
    }
    merged["model"]["dropout"] = json!(0.5);
    assert_eq!(read(&merged).unwrap().encode("the house"), tokenizer("byte-level").encode("the house"));
}

#[test]
fn a_file_that_cannot_be_used_is_refused_with_what_is_wrong() {
    type Edit = fn(&mut Value);
    let cases: [(&str, &str, Edit); 26] = [
        ("byte-level", "ends a text", |f| f["added_tokens"] = json!([])),
        ("byte-level", "has id 7", |f| f["added_tokens"][0]["id"] = json!(7)),
        ("byte-level", "`model`", |f| f["model"]["type"] = json!("CharBPE")),
        ("byte-level", "merge 0", |f| f["model"]["merges"][0] = json!(["Ġ", "no such token"])),
        ("byte-level", "merge 0", |f| f["model"]["merges"][0] = json!("one")),
        ("byte-level", "merge 0", |f| f["model"]["merges"][0] = json!(["z", "z"])),
        // The library would cut "b" after its first byte.
        ("byte-level", "merge 0", |f| f["model"]["continuing_subword_prefix"] = json!("long prefix")),
        ("byte-level", "id 1 is of two", |f| f["model"]["vocab"]["one more"] = json!(1)),
        ("byte-level", "not a number below", |f| f["model"]["vocab"]["one more"] = json!(1e9)),
        ("byte-level", "513 bytes", |f| f["model"]["vocab"]["x".repeat(513)] = json!(900)),
        ("byte-level", "0 tokens", |f| f["model"]["vocab"] = json!({})),
        ("byte-level", "no list", |f| f["model"]["merges"] = json!(null)),
        ("unigram", "twice", |f| f["model"]["vocab"][5] = f["model"]["vocab"][6].clone()),
        ("unigram", "`model`", |f| f["model"]["unk_id"] = json!(4000)),
        ("unigram", "has no name", |f| f["model"]["vocab"][5] = json!([1, 1])),
        ("unigram", "leads out of itself", |f| {
            f["normalizer"]["normalizers"][0]["precompiled_charsmap"] = json!("AAAA");
        }),
        ("unigram", "1 to 2048", |f| {
            f["normalizer"]["normalizers"][1]["pattern"] = json!({ "Regex": "a".repeat(3000) });
        }),
        ("unigram", "at most 256", |f| {
            f["normalizer"]["normalizers"][1]["content"] = json!("a".repeat(300));
        }),
        ("unigram", "`Oracle` is not known", |f| f["normalizer"] = json!({ "type": "Oracle" })),
        ("unigram", "no `type`", |f| f["pre_tokenizer"] = json!({ "replacement": "▁" })),
        ("unigram", "above 0", |f| f["pre_tokenizer"] = json!({ "type": "FixedLength", "length": 0 })),
        ("unigram", "more than 32", |f| {
            let steps = vec![json!({ "type": "NFC" }); 40];
            f["normalizer"] = json!({ "type": "Sequence", "normalizers": steps });
        }),
        ("unigram", "more than two", |f| {
            let step = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true });
            f["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": vec![step; 3] });
        }),
        ("word-piece", "`unk_token`", |f| f["model"]["unk_token"] = json!("[NONE]")),
        ("word-piece", "at most 1000", |f| f["model"]["max_input_chars_per_word"] = json!(1_000_000)),
        ("word-piece", "1 to 512", |f| f["added_tokens"][0]["content"] = json!("")),
    ];
    for (name, want, edit) in cases {
        let mut edited = file(name);
        edit(&mut edited);
        let error = read(&edited).unwrap_err().to_string();
        assert!(error.contains(want), "{want} is missing in: {error}");
    }
    let size = FILE_BYTES_MAX + 1;
    assert_eq!(
        Tokenizer::read(&vec![b' '; size]).unwrap_err(),
        TokenizerError::FileSize { max: FILE_BYTES_MAX, got: size }
    );
    assert!(matches!(Tokenizer::read(b"{"), Err(TokenizerError::Json(_))));
    let mut huge = file("word-piece");
    huge["model"]["vocab"] =
        (0..1_100_000).map(|id| (format!("t{id}"), json!(id))).collect::<serde_json::Map<_, _>>().into();
    assert!(matches!(read(&huge), Err(TokenizerError::Size { got: 1_100_000, .. })));
}

/// Time of the processor that this thread has had so far, where the system tells: on a busy machine it waits most of the
/// time. Else the time since `began`.
fn processor_time(began: Instant) -> Duration {
    let Ok(stat) = std::fs::read_to_string("/proc/thread-self/stat") else { return began.elapsed() };
    // A thread's name may have spaces in it.
    let (_, behind_name) = stat.rsplit_once(')').unwrap();
    let of_program_and_system = behind_name.split_whitespace().skip(11).take(2);
    let n_ticks: u64 = of_program_and_system.map(|n_ticks| n_ticks.parse::<u64>().unwrap()).sum();
    // A hundred in a second.
    Duration::from_millis(10 * n_ticks)
}

/// What a hostile backbone could write: a text of a visitor is refused, or done within seconds.
#[test]
fn a_hostile_step_ends() {
    let regex = |pattern: &str| {
        let mut file = file("byte-level");
        file["pre_tokenizer"] = json!({
            "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false,
        });
        read(&file)
    };
    let text = "ab".repeat(TEXT_BYTES_MAX / 2);
    let began = Instant::now();
    let before = processor_time(began);
    for pattern in [
        r"(?:(?:a|b|ab)*)*(?!b)c",
        r"(a*b*)*\1c",
        r"(?:(?=[ab]*c)a)*(?!x)",
        r"(?=(?:[ab]*)*$)a",
        r"(?:a(?=[ab]*$)|b(?=[ab]*$))(?!x)",
        r"(?<=a)b(?!.*c)",
        r"[ab]*?c|[ab]*?d|(?=[ab]{1,2000}e)a",
    ] {
        let began = Instant::now();
        match regex(pattern) {
            Ok(tokenizer) => {
                let done = tokenizer.encode(&text).map(|ids| ids.len());
                println!("{pattern}: {done:?} after {:?}", began.elapsed());
            }
            Err(error) => println!("{pattern}: {error}"),
        }
    }
    let took = processor_time(began).saturating_sub(before);
    assert!(took < Duration::from_secs(60), "{took:?}");
    // Each step makes the text 128 times as long.
    let step = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "a".repeat(128) });
    let mut growing = file("byte-level");
    growing["normalizer"] = json!({ "type": "Sequence", "normalizers": vec![step.clone(); 20] });
    let error = read(&growing).unwrap().encode(&text).unwrap_err();
    assert!(matches!(error, TokenizerError::Text(_)), "{error}");
    growing["normalizer"] = Value::Null;
    growing["decoder"] = json!({ "type": "Sequence", "decoders": vec![step; 20] });
    let ids = tokenizer("byte-level").encode(&text).unwrap();
    assert!(matches!(read(&growing).unwrap().decode(&ids), Err(TokenizerError::Text(_))));
    // The library panics on both.
    growing["decoder"] = json!({ "type": "Strip", "content": "a", "start": 9, "stop": 9 });
    assert_eq!(read(&growing).unwrap().decode(&tokenizer("byte-level").encode("aa").unwrap()).unwrap(), "");
    growing["decoder"] = json!({ "type": "BPEDecoder", "suffix": "" });
    assert_eq!(read(&growing).unwrap().decode(&[]).unwrap(), "");
}
