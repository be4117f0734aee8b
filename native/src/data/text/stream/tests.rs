#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::PathBuf;

use barnraise_protocol::dataset::Manifest;

use super::*;

const LENGTH: u16 = 16;

/// Two sources, of which each line tells which one it is.
fn settings(folder: &Path) -> StreamSettings {
    let source = |name: &str, word: &str, n_lines: u32, weight| {
        let lines =
            (0..n_lines).map(|n| format!("{{\"text\": \"the {word} number {n} of the {word}s is here\"}}\n"));
        let path: PathBuf = folder.join(name);
        std::fs::write(&path, lines.collect::<String>()).unwrap();
        TextSource { name: word.into(), file: path.into(), field: "text".into(), weight }
    };
    StreamSettings {
        text: TextSettings {
            name: "Animals".into(),
            sources: vec![source("a.jsonl", "dog", 4000, 3.0), source("b.jsonl", "cat", 200, 1.0)],
            tokenizer: None,
            vocabulary: 120,
            sequence_tokens: LENGTH,
            held_out: 0.1,
            seed: 5,
        },
        window_shards: 4,
        held_out_sequences: 8,
        shard_samples: NonZeroU32::new(50).unwrap(),
    }
}

/// The sequences of the next shards, as text.
fn shards(
    stream: &mut StreamReader,
    settings: &StreamSettings,
    data: &TrainingData,
    n: usize,
) -> Vec<Vec<String>> {
    let tokenizer = Tokenizer::read(data.tokenizer.as_ref().unwrap()).unwrap();
    let shard = |_| {
        let (bytes, entry) = stream.next_shard(settings).unwrap();
        let manifest = Manifest {
            name: String::new(),
            samples: data.kind.clone(),
            shards: Vec::new(),
            gallery: entry,
            frozen: Vec::new(),
            preprocessing: None,
            stream: data.stream,
        };
        let Samples::Tokens(tokens) = Samples::decode(&bytes, &entry, &manifest).unwrap() else { panic!() };
        assert_eq!(tokens.ids.len(), 50 * usize::from(LENGTH));
        tokens.sequences().map(|ids| tokenizer.decode(ids).unwrap()).collect()
    };
    (0..n).map(shard).collect()
}

#[test]
fn shards_follow_from_the_description_and_go_on_after_each() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path());
    let data = settings.load(folder.path()).unwrap();
    let file = data.tokenizer.clone().unwrap();
    let mut stream = settings.stream(&file, &StreamPosition::default()).unwrap();
    let mut all = Vec::new();
    for _ in 0..30 {
        all.extend(shards(&mut stream, &settings, &data, 1));
        // As after a restart.
        stream = settings.stream(&file, &stream.position()).unwrap();
    }
    let mut again = settings.stream(&file, &StreamPosition::default()).unwrap();
    assert_eq!(shards(&mut again, &settings, &data, 30), all);
    assert_eq!(settings.load(folder.path()).unwrap().stream, data.stream);
    let mut other = settings.clone();
    other.text.sources[0].weight = 2.0;
    assert_ne!(other.load(folder.path()).unwrap().stream, data.stream);
}

#[test]
fn sources_come_by_their_weights_and_begin_again() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path());
    let data = settings.load(folder.path()).unwrap();
    let mut stream = settings.stream(data.tokenizer.as_ref().unwrap(), &StreamPosition::default()).unwrap();
    let all: Vec<String> = shards(&mut stream, &settings, &data, 40).concat();
    let n_cats = all.iter().filter(|text| text.contains("cat")).count();
    // Of 2000 a quarter; a standard deviation is 19. The source has fewer sequences than that.
    assert!(n_cats.abs_diff(500) < 100, "{n_cats}");
    let mut cats: Vec<&String> = all.iter().filter(|text| text.contains("cat")).collect();
    cats.sort_unstable();
    cats.dedup();
    assert!(cats.len() < n_cats / 2, "{} of {n_cats}", cats.len());
}

#[test]
fn weights_that_change_are_those_of_the_next_shard() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path());
    let data = settings.load(folder.path()).unwrap();
    let file = data.tokenizer.clone().unwrap();
    let mut stream = settings.stream(&file, &StreamPosition::default()).unwrap();
    let before = shards(&mut stream, &settings, &data, 2);
    assert!(before.concat().iter().any(|text| text.contains("cat")));
    stream.set_weights(&settings, &[("cat".to_owned(), 0.0)].into());
    let dogs = shards(&mut stream, &settings, &data, 3);
    assert!(dogs.concat().iter().all(|text| !text.contains("cat")));
    // A restart in between goes on in the same way.
    let mut again = settings.stream(&file, &StreamPosition::default()).unwrap();
    assert_eq!(shards(&mut again, &settings, &data, 2), before);
    let mut again = settings.stream(&file, &again.position()).unwrap();
    again.set_weights(&settings, &[("cat".to_owned(), 0.0), ("dog".to_owned(), 9.0)].into());
    assert_eq!(shards(&mut again, &settings, &data, 3), dogs);
    again.set_weights(&settings, &settings.weights());
    assert!(shards(&mut again, &settings, &data, 2).concat().iter().any(|text| text.contains("cat")));
}

#[test]
fn held_out_sequences_are_never_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path());
    // Words that come in the first sequence of a source, and nowhere else.
    let path = folder.path().join("b.jsonl");
    let lines = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{{\"text\": \"the goat is a goat\"}}\n{lines}")).unwrap();
    let data = settings.load(folder.path()).unwrap();
    let Samples::Tokens(test) = &data.test else { panic!() };
    let tokenizer = Tokenizer::read(data.tokenizer.as_ref().unwrap()).unwrap();
    let held_out: Vec<String> = test.sequences().map(|ids| tokenizer.decode(ids).unwrap()).collect();
    assert_eq!(held_out.len(), 16);
    let mut stream = settings.stream(data.tokenizer.as_ref().unwrap(), &StreamPosition::default()).unwrap();
    let all = shards(&mut stream, &settings, &data, 40).concat();
    let has_goat = |text: &String| text.contains("goat");
    assert!(held_out.iter().any(has_goat) && !all.iter().any(has_goat));
}

#[test]
fn a_source_that_cannot_be_used_is_named_and_one_that_broke_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(folder.path());
    let data = settings.load(folder.path()).unwrap();
    let file = data.tokenizer.clone().unwrap();
    let mut want = settings.stream(&file, &StreamPosition::default()).unwrap();
    let mut broken = settings.stream(&file, &StreamPosition::default()).unwrap();
    let want = shards(&mut want, &settings, &data, 2);
    let (here, away) = (folder.path().join("b.jsonl"), folder.path().join("away"));
    std::fs::rename(&here, &away).unwrap();
    let error = broken.next_shard(&settings).unwrap_err().to_string();
    assert!(error.contains("b.jsonl"), "{error}");
    std::fs::rename(&away, &here).unwrap();
    assert_eq!(shards(&mut broken, &settings, &data, 2), want);
    settings.held_out_sequences = 5000;
    let mut short = settings.stream(&file, &StreamPosition::default()).unwrap();
    let error = short.next_shard(&settings).unwrap_err();
    assert!(matches!(error, TextError::TooShort { .. }), "{error}");
}
