//! Any bytes as an operator's text.

use std::io::Cursor;

use barnraise_fuzz::fuzz;

use super::source::parquet;
use super::source::{decode, json_lines};

const BYTES_MAX: u64 = 4096;

#[test]
fn parquet_file() {
    fuzz!("parquet_file", |bytes| {
        if let Ok(documents) = parquet::read(&mut Cursor::new(bytes), "text", BYTES_MAX) {
            // What is no UTF-8 takes three bytes for each one, and is little.
            assert!(documents.iter().map(String::len).sum::<usize>() as u64 <= 3 * BYTES_MAX);
        }
    });
}

#[test]
fn json_file() {
    fuzz!("json_file", |bytes| {
        let Ok(text) = decode(bytes) else { return };
        let Ok(documents) = json_lines(&text, "text") else { return };
        let lines: Vec<String> =
            documents.iter().map(|document| serde_json::json!({ "text": document }).to_string()).collect();
        assert_eq!(json_lines(&lines.join("\n"), "text").unwrap(), documents);
    });
}
