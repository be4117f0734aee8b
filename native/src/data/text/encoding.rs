//! Bytes as text: UTF-8, of which a small share may be something else, such as letters of an older encoding. These are
//! replaced.
//!
//! The share is that of a whole file, or of 32 KiB of one that is streamed, and never that of a line or a document: in a short
//! one a single letter is much.

/// One byte in this many may be invalid UTF-8.
const BYTES_PER_BAD_BYTE: usize = 1000;
/// Bytes of a stream of which the share is taken.
const WINDOW_BYTES: usize = 32 * 1024;
/// Of these may be invalid.
const WINDOW_BAD_BYTES: usize = WINDOW_BYTES / BYTES_PER_BAD_BYTE;

/// Why bytes are no text.
#[derive(Debug, thiserror::Error)]
pub enum EncodingError {
    /// Of a whole file.
    #[error("{n_bad} of {n_bytes} bytes are no UTF-8: it is no text, or in another encoding")]
    File {
        /// Invalid sequences.
        n_bad: usize,
        /// Bytes in total.
        n_bytes: usize,
    },
    /// Of a stream, of which a part is known.
    #[error(
        "more than {WINDOW_BAD_BYTES} of {WINDOW_BYTES} bytes are no UTF-8, the first of these is byte {first}: it is no \
        text, or in another encoding"
    )]
    Window {
        /// Its place, from 0, after decompression.
        first: u64,
    },
}

/// Decodes a whole file; a few invalid bytes are replaced.
pub(super) fn decode(bytes: &[u8]) -> Result<String, EncodingError> {
    let mut decoded = DecodedFile::default();
    let text = decoded.decode(bytes);
    decoded.check()?;
    Ok(text)
}

/// A file whose documents are decoded one by one.
#[derive(Debug, Default)]
pub(super) struct DecodedFile {
    n_bytes: usize,
    n_bad: usize,
}

impl DecodedFile {
    /// Replaces and counts what is invalid.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> String {
        self.n_bytes += bytes.len();
        self.n_bad += bytes.utf8_chunks().filter(|chunk| !chunk.invalid().is_empty()).count();
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// Before its end: whether too much is invalid even for a file of `n_bytes_max` bytes.
    pub(super) fn check_within(&self, n_bytes_max: u64) -> Result<(), EncodingError> {
        match self.n_bad as u64 > n_bytes_max / BYTES_PER_BAD_BYTE as u64 {
            true => Err(EncodingError::File { n_bad: self.n_bad, n_bytes: self.n_bytes }),
            false => Ok(()),
        }
    }

    /// After its end; what was replaced is logged.
    pub(super) fn check(&self) -> Result<(), EncodingError> {
        self.check_within(self.n_bytes as u64)?;
        let (n_bad, n_bytes) = (self.n_bad, self.n_bytes);
        if n_bad > 0 {
            tracing::warn!(n_bad, n_bytes, "bytes that are no UTF-8 were replaced");
        }
        Ok(())
    }
}

/// A pass over a file that is streamed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DecodedStream {
    /// Bytes of the present window, those that are invalid, and the place of the first of them.
    n_bytes: usize,
    n_bad: usize,
    first: u64,
    /// In all windows.
    n_replaced: u64,
}

impl DecodedStream {
    /// Replaces and counts what is invalid; `place` is that of `bytes` in the file. After an error none of them are counted: the
    /// same bytes are refused again.
    pub(super) fn decode(&mut self, bytes: &[u8], mut place: u64) -> Result<String, EncodingError> {
        let mut after = *self;
        for chunk in bytes.utf8_chunks() {
            let (n_valid, n_invalid) = (chunk.valid().len(), chunk.invalid().len());
            place += n_valid as u64;
            after.advance(n_valid);
            if n_invalid > 0 {
                if after.n_bad == 0 {
                    after.first = place;
                }
                after.n_bad += 1;
                after.n_replaced += 1;
                if after.n_bad > WINDOW_BAD_BYTES {
                    return Err(EncodingError::Window { first: after.first });
                }
                place += n_invalid as u64;
                after.advance(n_invalid);
            }
        }
        if self.n_replaced == 0 && after.n_replaced > 0 {
            tracing::warn!(first = after.first, "bytes that are no UTF-8 are replaced");
        }
        *self = after;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn advance(&mut self, n_bytes: usize) {
        self.n_bytes += n_bytes;
        if self.n_bytes >= WINDOW_BYTES {
            self.n_bytes %= WINDOW_BYTES;
            self.n_bad = 0;
        }
    }

    /// Invalid sequences that were replaced.
    pub(super) fn n_replaced(&self) -> u64 {
        self.n_replaced
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A letter of Latin-1 in a short line.
    const LINE: &[u8] = b"caf\xe9 noir\n";

    #[test]
    fn the_share_is_that_of_all_documents_and_not_of_a_short_one() {
        let mut decoded = DecodedFile::default();
        assert_eq!(decoded.decode(LINE), "caf\u{fffd} noir\n");
        assert!(decoded.check().is_err(), "so far it is one in ten");
        assert!(decoded.check_within(1000).is_ok(), "the file may have more");
        decoded.decode(&[b'a'; 2000]);
        assert!(decoded.check().is_ok());
        decoded.decode(LINE);
        decoded.decode(LINE);
        let error = decoded.check().unwrap_err().to_string();
        assert!(error.starts_with("3 of 2030 bytes"), "{error}");
    }

    #[test]
    fn a_stream_may_have_a_few_bad_bytes_in_each_window() {
        let mut decoded = DecodedStream::default();
        let good = vec![b'a'; WINDOW_BYTES];
        let mut place = 0;
        for _ in 0..3 {
            for _ in 0..WINDOW_BAD_BYTES {
                assert_eq!(decoded.decode(LINE, place).unwrap(), "caf\u{fffd} noir\n");
                place += LINE.len() as u64;
            }
            decoded.decode(&good, place).unwrap();
            place += good.len() as u64;
        }
        assert_eq!(decoded.n_replaced(), 3 * WINDOW_BAD_BYTES as u64);
    }

    #[test]
    fn what_is_no_text_is_refused_each_time_it_is_tried() {
        let mut decoded = DecodedStream::default();
        let place = LINE.len() as u64 * (WINDOW_BAD_BYTES as u64 - 1);
        for line in 0..WINDOW_BAD_BYTES as u64 {
            decoded.decode(LINE, line * LINE.len() as u64).unwrap();
        }
        for _ in 0..2 {
            let refused = decoded.decode(LINE, place + LINE.len() as u64);
            assert!(matches!(refused, Err(EncodingError::Window { first: 3 })), "{refused:?}");
        }
        let binary = DecodedStream::default().decode(&[0xff; 900], 40);
        assert!(matches!(binary, Err(EncodingError::Window { first: 40 })), "{binary:?}");
    }
}
