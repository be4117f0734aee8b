//! What a visitor downloads before training: everything that the page and its worker load.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use barnraise_tests::artifacts;

use crate::ratio::table;

/// The most that it may be (issue 2, point 11): 3.5 MB.
const BYTES_MAX: u64 = 3_500_000;

/// One file of the web folder.
struct ServedFile {
    path: String,
    n_bytes: u64,
    /// As sent: compressed with brotli where that was worthwhile.
    n_bytes_sent: u64,
}

/// `size`
pub(crate) fn print() -> Result<()> {
    let root = artifacts::web_root()?;
    let mut files = Vec::new();
    collect(&root, &root, &mut files)?;
    files.sort_by_key(|file| std::cmp::Reverse(file.n_bytes_sent));
    let mut rows = vec![["file", "bytes", "sent", "share of the limit"].map(String::from).to_vec()];
    let total = ServedFile {
        path: "everything".into(),
        n_bytes: files.iter().map(|file| file.n_bytes).sum(),
        n_bytes_sent: files.iter().map(|file| file.n_bytes_sent).sum(),
    };
    for file in files.iter().chain([&total]) {
        let share = file.n_bytes_sent as f64 / BYTES_MAX as f64;
        rows.push(vec![
            file.path.clone(),
            file.n_bytes.to_string(),
            file.n_bytes_sent.to_string(),
            format!("{share:.3}"),
        ]);
    }
    println!("{}", table(&rows));
    println!("limit: {BYTES_MAX} bytes");
    Ok(())
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<ServedFile>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let is_sibling = path.extension().is_some_and(|extension| extension == "br" || extension == "gz");
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if !is_sibling {
            let n_bytes = path.metadata()?.len();
            let compressed = PathBuf::from(format!("{}.br", path.display())).metadata();
            files.push(ServedFile {
                path: path.strip_prefix(root)?.display().to_string(),
                n_bytes,
                n_bytes_sent: compressed.map_or(n_bytes, |compressed| compressed.len()),
            });
        }
    }
    Ok(())
}
