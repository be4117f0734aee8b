#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write as _;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::data::resuming::tests::{CutAnswer, header_of, serving};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn file(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn read(path: &Path, cursor: SourceCursor) -> Vec<(TextPiece, SourceCursor)> {
    let mut source = LazySource::new(path.to_owned().into(), "text", cursor);
    std::iter::from_fn(|| source.next().unwrap().map(|piece| (piece, source.cursor()))).collect()
}

/// 100,000 bytes of text, with letters of several bytes.
fn text() -> String {
    (0..).flat_map(|n| [format!("wörd{n} "), "\n".repeat(n % 3)]).take(20_000).collect()
}

#[test]
fn a_text_comes_whole_in_pieces_and_goes_on_from_each() {
    let folder = tempfile::tempdir().unwrap();
    let text = text();
    let packed = gzip(text.as_bytes());
    for path in [file(&folder, "a.txt", text.as_bytes()), file(&folder, "a.txt.gz", &packed)] {
        let all = read(&path, SourceCursor::default());
        assert!(all.len() > 2 && all.iter().all(|(piece, _)| piece.text.len() <= PIECE_BYTES_MAX));
        let whole: String = all.iter().map(|(piece, _)| piece.text.as_str()).collect();
        assert_eq!(whole, text);
        for (place, (_, cursor)) in all.iter().enumerate() {
            assert_eq!(read(&path, *cursor), all[place + 1..], "after piece {place}");
        }
    }
}

#[test]
fn lines_come_with_their_ends_and_go_on_from_each_piece() {
    let folder = tempfile::tempdir().unwrap();
    let long = text();
    let lines =
        format!("{{\"text\": \"one\"}}\n\n{}\n{{\"text\": \"two\"}}", serde_json::json!({ "text": long }));
    for path in
        [file(&folder, "a.jsonl", lines.as_bytes()), file(&folder, "a.jsonl.gz", &gzip(lines.as_bytes()))]
    {
        let all = read(&path, SourceCursor::default());
        let mut documents = vec![String::new()];
        for (piece, _) in &all {
            documents.last_mut().unwrap().push_str(&piece.text);
            documents.extend(piece.ends_document.then(String::new));
        }
        assert_eq!(documents, ["one", long.as_str(), "two", ""]);
        for (place, (_, cursor)) in all.iter().enumerate() {
            assert_eq!(read(&path, *cursor), all[place + 1..], "after piece {place}");
        }
    }
}

#[test]
fn a_piece_ends_before_white_space_or_between_characters() {
    assert_eq!(end_of_piece(b"one two thr"), 7);
    assert_eq!(end_of_piece("onetwö".as_bytes()), 5);
    assert_eq!(end_of_piece("\u{1f600}".as_bytes()), 4);
}

#[test]
fn what_cannot_be_streamed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: PathBuf, cursor| LazySource::new(path.into(), "text", cursor).next().unwrap_err();
    let parquet = file(&folder, "a.txt", b"PAR1 and more");
    assert!(matches!(error(parquet, SourceCursor::default()), SourceError::StreamedParquet));
    assert!(matches!(error(folder.path().to_owned(), SourceCursor::default()), SourceError::NoFile));
    let line = file(&folder, "a.jsonl", b"{\"text\": \"one\"}\n{\"body\": \"two\"}\n");
    let mut source = LazySource::new(line.into(), "text", SourceCursor::default());
    source.next().unwrap().unwrap();
    for _ in 0..2 {
        assert!(matches!(source.next(), Err(SourceError::Line { line: 2, .. })), "it is not passed over");
    }
    let packed = file(&folder, "b.gz", &gzip(b"short"));
    let beyond = SourceCursor { n_bytes: 9, ..SourceCursor::default() };
    assert!(matches!(error(packed, beyond), SourceError::Shorter { want: 9, got: 5 }));
}

#[test]
fn a_letter_of_an_older_encoding_stops_no_source_and_what_is_no_text_does() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in
        [("a.jsonl", &b"{\"text\": \"caf\xe9\"}\n{\"text\": \"two\"}\n"[..]), ("a.txt", &b"caf\xe9 noir"[..])]
    {
        let all = read(&file(&folder, name, bytes), SourceCursor::default());
        assert!(all[0].0.text.starts_with("caf\u{fffd}"), "{all:?}");
    }
    let mut binary =
        LazySource::new(file(&folder, "b.txt", &[0xff; 900]).into(), "text", SourceCursor::default());
    let mut line =
        LazySource::new(file(&folder, "b.jsonl", b"{\"caf\xe9").into(), "text", SourceCursor::default());
    for _ in 0..50 {
        assert!(matches!(binary.next(), Err(SourceError::Encoding(_))));
        assert!(matches!(line.next(), Err(SourceError::Line { line: 1, .. })), "it is counted once");
    }
}

fn on_server(address: &str, content: &[u8]) -> FetchedFile {
    FetchedFile { url: address.parse().unwrap(), sha256: Sha256Hash::of(content) }
}

#[test]
fn what_a_server_sends_is_compared_at_its_end() {
    let hashed = |bytes: &[u8], want: &[u8]| {
        let answer = CutAnswer { body: bytes.into(), validator: None, n_bytes_max: bytes.len() };
        let (address, _) = serving(vec![answer]);
        let mut read = Vec::new();
        Hashed::open(&on_server(&address, want)).unwrap().read_to_end(&mut read).map(|_| read)
    };
    assert_eq!(hashed(b"a text", b"a text").unwrap(), b"a text");
    let error = hashed(b"another", b"a text").unwrap_err().to_string();
    assert!(error.contains(&Sha256Hash::of(b"another").to_string()), "{error}");
}

#[test]
fn a_source_on_a_server_goes_on_where_its_connection_broke() {
    let text = text();
    for bytes in [text.clone().into_bytes(), gzip(text.as_bytes())] {
        let n_bytes_max = bytes.len() / 3 + 1;
        let answer =
            CutAnswer { body: bytes.as_slice().into(), validator: Some("etag: \"one\""), n_bytes_max };
        let (address, requests) = serving(vec![answer; 3]);
        let file = DataFile::Fetched(Box::new(on_server(&address, &bytes)));
        let mut source = LazySource::new(file, "text", SourceCursor::default());
        let whole: String = std::iter::from_fn(|| source.next().unwrap()).map(|piece| piece.text).collect();
        assert_eq!(whole, text);
        let requests = requests.lock().unwrap();
        let n_whole = requests.iter().filter(|head| header_of(head, "range").is_none()).count();
        assert_eq!((requests.len(), n_whole), (3, 1), "the first byte is sent once");
    }
}
