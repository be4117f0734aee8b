//! Files that may be compressed by gzip or Zstandard, which their first bytes tell.
//!
//! What comes out of a compressed file is as long as its author wanted: the caller bounds what it reads.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The content of a file.
pub(super) fn open(path: &Path) -> io::Result<Box<dyn Read + Send>> {
    content(BufReader::new(File::open(path)?))
}

/// The content of what may be compressed.
pub(super) fn content(mut packed: impl BufRead + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let magic = packed.fill_buf()?;
    Ok(if magic.starts_with(&GZIP_MAGIC) {
        Box::new(MultiGzDecoder::new(packed))
    } else if magic.starts_with(&ZSTD_MAGIC) {
        Box::new(zstd(packed))
    } else {
        Box::new(packed)
    })
}

/// Whether it is compressed.
pub(super) fn is_packed(packed: &mut impl BufRead) -> io::Result<bool> {
    let magic = packed.fill_buf()?;
    Ok(magic.starts_with(&GZIP_MAGIC) || magic.starts_with(&ZSTD_MAGIC))
}

/// All of it, of at most `bytes_max` bytes; none if it is longer.
pub(super) fn read_bounded(reader: impl Read, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    reader.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= bytes_max))
}

/// The name without the ending of a compressed file, in lower case.
pub(super) fn unpacked_name(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let packed = [".gz", ".zst"].into_iter().find_map(|ending| name.strip_suffix(ending));
    packed.map(str::to_owned).unwrap_or(name)
}

/// The content of frames of Zstandard, one behind the other.
pub(super) fn zstd<R: BufRead>(packed: R) -> ZstdFrames<R> {
    ZstdFrames { state: Some(FrameState::Between(packed)) }
}

/// See [`zstd`].
pub(super) struct ZstdFrames<R: BufRead> {
    /// None after an error.
    state: Option<FrameState<R>>,
}

enum FrameState<R: BufRead> {
    Between(R),
    Within(Box<StreamingDecoder<R, FrameDecoder>>),
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while let Some(state) = self.state.take() {
            match state {
                FrameState::Between(mut packed) => {
                    if packed.fill_buf()?.is_empty() {
                        self.state = Some(FrameState::Between(packed));
                        return Ok(0);
                    }
                    let frame = StreamingDecoder::new(packed).map_err(io::Error::other)?;
                    self.state = Some(FrameState::Within(Box::new(frame)));
                }
                FrameState::Within(mut frame) => match frame.read(buffer)? {
                    0 => self.state = Some(FrameState::Between(frame.into_inner())),
                    n_bytes => {
                        self.state = Some(FrameState::Within(frame));
                        return Ok(n_bytes);
                    }
                },
            }
        }
        Err(io::Error::other("nothing is read behind an error"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn unpacked(packed: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        content(io::Cursor::new(packed))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn each_compression_is_undone_in_one_piece_or_several() {
        let text = b"Old MacDonald had a farm. ".repeat(900);
        let zstd = compress_to_vec(&text[..], CompressionLevel::Fastest);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&text).unwrap();
        let gzip = gzip.finish().unwrap();
        assert!(zstd.len() < text.len() / 9 && gzip.len() < text.len() / 9);
        for packed in [&text, &zstd, &gzip] {
            assert_eq!(unpacked(packed.clone()).unwrap(), text);
        }
        for packed in [&zstd, &gzip] {
            assert_eq!(unpacked([&packed[..], packed].concat()).unwrap(), [&text[..], &text].concat());
            assert!(unpacked(packed[..packed.len() / 2].to_vec()).is_err());
            assert_eq!(read_bounded(content(io::Cursor::new(packed.clone())).unwrap(), 100).unwrap(), None);
        }
    }

    #[test]
    fn a_name_tells_what_is_inside() {
        for (name, want) in
            [("a/Rows.CSV.gz", "rows.csv"), ("rows.jsonl.zst", "rows.jsonl"), ("rows.csv", "rows.csv")]
        {
            assert_eq!(unpacked_name(Path::new(name)), want);
        }
    }
}
