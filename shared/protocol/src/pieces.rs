//! Bytes in pieces. What is as large as a model takes the memory that others left in a tab only where it need not lie in one place; a
//! tab's memory never shrinks.

/// Bytes of each piece but the last: those of a chunk on the wire.
pub const PIECE_BYTES: usize = 64 * 1024;

/// Bytes that grow at the end, and are copied nowhere when they do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pieces(Vec<Vec<u8>>);

impl Pieces {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * PIECE_BYTES + last.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds bytes at the end.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.0.last().map_or(0, |last| PIECE_BYTES - last.len());
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            match self.0.last_mut().filter(|_| room > 0) {
                Some(last) => last.extend_from_slice(now),
                None => self.0.push(Vec::with_capacity(PIECE_BYTES)),
            }
            bytes = later;
        }
    }

    /// The bytes after the first `n`.
    #[must_use]
    pub fn after(self, n: usize) -> Self {
        let mut rest = Self::default();
        let mut skipped = 0;
        // A piece goes when it is copied.
        for piece in self.0 {
            let first = (n - skipped).min(piece.len());
            skipped += first;
            rest.push(&piece[first..]);
        }
        rest
    }

    /// The bytes, one piece after the other.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// Copies the bytes from `start` on to `to`; `None` where there are fewer.
    #[must_use]
    pub fn read(&self, mut start: usize, mut to: &mut [u8]) -> Option<()> {
        while !to.is_empty() {
            let here = self.0.get(start / PIECE_BYTES)?.get(start % PIECE_BYTES..)?;
            let n = here.len().min(to.len());
            if n == 0 {
                return None;
            }
            let (now, later) = to.split_at_mut(n);
            now.copy_from_slice(&here[..n]);
            (start, to) = (start + n, later);
        }
        Some(())
    }
}

impl From<&[u8]> for Pieces {
    fn from(bytes: &[u8]) -> Self {
        let mut pieces = Self::default();
        pieces.push(bytes);
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_any_place_however_they_came() {
        let bytes: Vec<u8> = (0..3 * PIECE_BYTES + 9).map(|at| (at % 251) as u8).collect();
        let mut grown = Pieces::default();
        bytes.chunks(40_000).for_each(|some| grown.push(some));
        assert_eq!(grown, Pieces::from(bytes.as_slice()));
        assert_eq!((grown.len(), grown.iter().count()), (bytes.len(), 4));
        assert_eq!(grown.iter().collect::<Vec<_>>().concat(), bytes);
        for n in [0, 7, PIECE_BYTES, PIECE_BYTES + 1, bytes.len(), bytes.len() + 1] {
            let rest = bytes.get(n..).unwrap_or_default();
            assert_eq!(grown.clone().after(n), Pieces::from(rest), "after {n}");
        }
        for range in [0..5, PIECE_BYTES - 3..2 * PIECE_BYTES + 3, bytes.len() - 1..bytes.len()] {
            let mut read = vec![0; range.len()];
            assert_eq!(grown.read(range.start, &mut read), Some(()));
            assert!(read == bytes[range]);
        }
    }

    #[test]
    fn nothing_is_read_past_the_end() {
        let pieces = Pieces::from(&[7; PIECE_BYTES][..]);
        for (start, n) in [(PIECE_BYTES, 1), (PIECE_BYTES - 1, 2), (usize::MAX, 1), (0, PIECE_BYTES + 1)] {
            assert_eq!(pieces.read(start, &mut vec![0; n]), None, "{n} from {start}");
        }
        assert_eq!(Pieces::default().read(0, &mut [0]), None);
        assert_eq!((Pieces::default().len(), Pieces::default().is_empty()), (0, true));
    }
}
