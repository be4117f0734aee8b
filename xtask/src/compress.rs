//! Compressed siblings: `file.br` and `file.gz` beside `file`, made while building.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::asset_file::{Asset, write_if_new};

/// Base-2 logarithm of the window: 16 MiB, the largest that browsers must accept.
const BROTLI_WINDOW_LOG: u32 = 24;
const BROTLI_BUFFER_BYTES: usize = 64 * 1024;
/// Up to this size the best effort takes seconds: all but the training module. So a test that counts the bytes of the page
/// counts those of a visitor.
const SMALL_BYTES: usize = 2 * 1024 * 1024;

/// How long to look for a smaller file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// For what is large. Seconds for the training module, which becomes a quarter larger: for tests and one's own machine.
    Quick,
    /// Two minutes for the training module, once: for visitors.
    Best,
}

impl Effort {
    /// The effort for one asset where this one is asked for.
    fn on(self, asset: &Asset) -> Self {
        if asset.bytes.len() <= SMALL_BYTES { Self::Best } else { self }
    }

    fn brotli_quality(self) -> u32 {
        match self {
            Self::Quick => 9,
            Self::Best => 11,
        }
    }

    fn gzip_level(self) -> u32 {
        match self {
            Self::Quick => 6,
            Self::Best => 9,
        }
    }
}

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

/// Compresses what is worthwhile and not there yet, one thread per file and format. What was made
/// with the best effort stays when only a quick one is asked for.
pub(crate) fn write_siblings(web_root: &Path, assets: &[Asset], effort: Effort) -> Result<()> {
    // The names of what was compressed with the best effort, beside the folder that is served.
    let list = web_root.with_extension("best-effort");
    let best: BTreeSet<String> =
        fs::read_to_string(&list).unwrap_or_default().lines().map(str::to_owned).collect();
    let worthwhile: Vec<&Asset> = assets.iter().filter(|asset| is_worthwhile(&asset.path)).collect();
    thread::scope(|scope| {
        let mut running = Vec::new();
        for asset in &worthwhile {
            let [br, gz] = siblings(&web_root.join(&asset.path));
            // A hashed name says that the content is the same; an entry point is small.
            let effort = effort.on(asset);
            let keep = asset.path.contains('/') && (effort == Effort::Quick || best.contains(&asset.path));
            running.push(scope.spawn(move || write_compressed(&br, asset, keep, effort, brotli)));
            running.push(scope.spawn(move || write_compressed(&gz, asset, keep, effort, gzip)));
        }
        running.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow!("a thread that compressed an asset panicked"))?
        })
    })?;
    let is_best = |asset: &&&Asset| effort.on(asset) == Effort::Best || best.contains(&asset.path);
    let kept = worthwhile.iter().filter(is_best);
    let names: Vec<&str> = kept.map(|asset| asset.path.as_str()).collect();
    write_if_new(&list, names.join("\n").as_bytes()).map(|_| ())
}

type Compress = fn(&[u8], Effort) -> Result<Vec<u8>>;

fn write_compressed(
    path: &Path,
    asset: &Asset,
    keep: bool,
    effort: Effort,
    compress: Compress,
) -> Result<()> {
    if keep && path.is_file() {
        return Ok(());
    }
    let compressed =
        compress(&asset.bytes, effort).with_context(|| format!("cannot compress {}", path.display()))?;
    write_if_new(path, &compressed).map(|_| ())
}

fn brotli(bytes: &[u8], effort: Effort) -> Result<Vec<u8>> {
    let quality = effort.brotli_quality();
    let mut writer =
        brotli::CompressorWriter::new(Vec::new(), BROTLI_BUFFER_BYTES, quality, BROTLI_WINDOW_LOG);
    writer.write_all(bytes)?;
    Ok(writer.into_inner())
}

fn gzip(bytes: &[u8], effort: Effort) -> Result<Vec<u8>> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::new(effort.gzip_level()));
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
        for effort in [Effort::Quick, Effort::Best] {
            let (br, gz) = (brotli(&bytes, effort).unwrap(), gzip(&bytes, effort).unwrap());
            let mut plain = Vec::new();
            brotli::Decompressor::new(br.as_slice(), 4096).read_to_end(&mut plain).unwrap();
            assert_eq!(plain, bytes);
            plain.clear();
            flate2::read::GzDecoder::new(gz.as_slice()).read_to_end(&mut plain).unwrap();
            assert_eq!(plain, bytes);
        }
    }

    #[test]
    fn the_best_effort_replaces_a_quick_one_and_is_not_replaced_by_it() {
        let folder = tempfile::tempdir().unwrap();
        let web_root = folder.path().join("web");
        let text: Vec<u8> =
            (0..700_000u32).flat_map(|n| (n % 1009 * (n % 7)).to_string().into_bytes()).collect();
        assert!(text.len() > SMALL_BYTES, "{}", text.len());
        let asset = Asset { path: "assets/a.0123.txt".to_owned(), bytes: text };
        let size = |effort| {
            write_siblings(&web_root, std::slice::from_ref(&asset), effort).unwrap();
            fs::metadata(web_root.join("assets/a.0123.txt.br")).unwrap().len()
        };
        let quick = size(Effort::Quick);
        let best = size(Effort::Best);
        assert!(best < quick, "{best} bytes, {quick} bytes");
        assert_eq!(size(Effort::Quick), best);
    }

    #[test]
    fn only_what_is_not_compressed_already() {
        assert!(is_worthwhile("assets/peer_bg.0123.wasm"));
        assert!(is_worthwhile("index.html"));
        assert!(!is_worthwhile("assets/icon.0123.png"));
        assert!(!is_worthwhile("assets/LICENSE"));
    }
}
