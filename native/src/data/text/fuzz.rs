//! Any bytes as an operator's text.

use barnraise_fuzz::fuzz;
use bytes::Bytes;

use super::encoding::decode;
use super::source::{json_lines, parquet_column};
use crate::data::parquet::ParquetFile;

const BYTES_MAX: u64 = 4096;
const VALUES_MAX: usize = 1000;

#[test]
fn parquet_file() {
    fuzz!("parquet_file", |bytes| {
        if let Ok(documents) = parquet_column(Bytes::copy_from_slice(bytes), "text", BYTES_MAX) {
            // What is no UTF-8 takes three bytes for each one, and is little.
            assert!(documents.iter().map(String::len).sum::<usize>() as u64 <= 3 * BYTES_MAX);
        }
        // Its other columns, as of a table.
        let Ok(file) = ParquetFile::open(Bytes::copy_from_slice(bytes)) else { return };
        for group in 0..file.groups().map_or(0, |groups| groups.len()) {
            for column in 0..file.names().len() {
                let Ok(mut values) = file.column(group, column) else { continue };
                let _ = (0..VALUES_MAX).find(|_| values.next().is_err());
            }
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
