//! Compressed siblings: `file.br` and `file.gz` beside `file`, made once at the highest effort.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::assets::{Asset, write_if_new};

const BROTLI_QUALITY: u32 = 11;
/// Base-2 logarithm of the window: 16 MiB, the largest that browsers must accept.
const BROTLI_WINDOW_LOG: u32 = 24;
const BROTLI_BUFFER_BYTES: usize = 64 * 1024;
const GZIP_LEVEL: u32 = 9;

/// Whether compression helps: images and archives are compressed already.
pub(crate) fn is_worthwhile(path: &str) -> bool {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    matches!(
        extension,
        "html" | "css" | "js" | "mjs" | "svg" | "json" | "webmanifest" | "txt" | "wasm" | "ico"
    )
}

/// Paths of the compressed siblings.
pub(crate) fn siblings(path: &Path) -> [PathBuf; 2] {
    let with = |suffix: &str| PathBuf::from(format!("{}.{suffix}", path.display()));
    [with("br"), with("gz")]
}

/// Compresses what is worthwhile and not there yet, one thread per file and format.
pub(crate) fn write_siblings(web_root: &Path, assets: &[Asset]) -> Result<()> {
    thread::scope(|scope| {
        let mut running = Vec::new();
        for asset in assets.iter().filter(|asset| is_worthwhile(&asset.path)) {
            let [br, gz] = siblings(&web_root.join(&asset.path));
            // A hashed name says that the content is the same; an entry point is small.
            let keep = asset.path.contains('/');
            running.push(scope.spawn(move || write_compressed(&br, &asset.bytes, keep, brotli)));
            running.push(scope.spawn(move || write_compressed(&gz, &asset.bytes, keep, gzip)));
        }
        running.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow!("a thread that compressed an asset panicked"))?
        })
    })
}

fn write_compressed(
    path: &Path,
    bytes: &[u8],
    keep: bool,
    compress: fn(&[u8]) -> Result<Vec<u8>>,
) -> Result<()> {
    if keep && fs::metadata(path).is_ok() {
        return Ok(());
    }
    let compressed = compress(bytes).with_context(|| format!("cannot compress {}", path.display()))?;
    write_if_new(path, &compressed).map(|_| ())
}

fn brotli(bytes: &[u8]) -> Result<Vec<u8>> {
    let compressed = Vec::new();
    let mut writer =
        brotli::CompressorWriter::new(compressed, BROTLI_BUFFER_BYTES, BROTLI_QUALITY, BROTLI_WINDOW_LOG);
    writer.write_all(bytes)?;
    Ok(writer.into_inner())
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL));
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_is_compressed_comes_back() {
        let bytes: Vec<u8> = (0..100_000u32).map(|index| (index.wrapping_mul(index) >> 7) as u8).collect();
        let mut plain = Vec::new();
        brotli::Decompressor::new(brotli(&bytes).unwrap().as_slice(), 4096).read_to_end(&mut plain).unwrap();
        assert_eq!(plain, bytes);
        plain.clear();
        flate2::read::GzDecoder::new(gzip(&bytes).unwrap().as_slice()).read_to_end(&mut plain).unwrap();
        assert_eq!(plain, bytes);
    }

    #[test]
    fn only_what_is_not_compressed_already() {
        assert!(is_worthwhile("assets/peer_bg.0123.wasm"));
        assert!(is_worthwhile("index.html"));
        assert!(!is_worthwhile("assets/icon.0123.png"));
        assert!(!is_worthwhile("assets/LICENSE"));
    }
}
