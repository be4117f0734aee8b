//! One file of the page, and how it is written.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// One file as it will be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asset {
    /// Below the web folder, with `/`.
    pub(crate) path: String,
    pub(crate) bytes: Vec<u8>,
}

/// Writes through a temporary name, so that a reader never sees half a file. Returns whether the
/// content was new.
pub(crate) fn write_if_new(path: &Path, bytes: &[u8]) -> Result<bool> {
    if fs::read(path).is_ok_and(|known| known == bytes) {
        return Ok(false);
    }
    let folder = path.parent().context("a file without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = folder.join(format!(".{name}.partial"));
    fs::write(&partial, bytes).with_context(|| format!("cannot write {}", partial.display()))?;
    fs::rename(&partial, path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(true)
}
