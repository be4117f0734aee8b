//! Where frames of Yamux begin and end in one direction of a connection. Pure.

/// Of each frame.
pub(super) const HEADER_BYTES: usize = 12;
/// Kinds of frames that are looked at (Yamux, "Type Field").
pub(super) const DATA: u8 = 0;
pub(super) const WINDOW_UPDATE: u8 = 1;
pub(super) const GO_AWAY: u8 = 3;
/// A frame that opens a stream, one that says that no more comes, and one that ends it at once (Yamux, "Flag Field").
pub(super) const SYN: u16 = 1;
pub(super) const FIN: u16 = 4;
pub(super) const RST: u16 = 8;

/// No Yamux grants less at a time: it waits until half of a window was read, 128 KiB at least.
const GRANT_BYTES_MIN: u32 = 1024;

/// What stands before the body of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: u8,
    pub(super) flags: u16,
    pub(super) stream: u32,
    /// Bytes of the body, credit, or the reason of a farewell.
    pub(super) length: u32,
}

impl Header {
    fn read([_version, kind, flags @ .., s0, s1, s2, s3, l0, l1, l2, l3]: [u8; HEADER_BYTES]) -> Self {
        let [stream, length] = [[s0, s1, s2, s3], [l0, l1, l2, l3]].map(u32::from_be_bytes);
        Self { kind, flags: u16::from_be_bytes(flags), stream, length }
    }

    /// Bytes of the body: only data has one.
    pub(super) fn n_body(&self) -> usize {
        if self.kind == DATA { self.length as usize } else { 0 }
    }

    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether it says nothing that a stream could be waiting for, where `is_of_stream` that is there.
    pub(super) fn is_idle(&self, is_of_stream: bool) -> bool {
        match self.kind {
            DATA if self.length > 0 => false,
            DATA => !is_of_stream || self.flags == 0,
            WINDOW_UPDATE => !is_of_stream || (self.flags == 0 && self.length < GRANT_BYTES_MIN),
            _ => true,
        }
    }
}

/// Follows the bytes of one direction.
#[derive(Debug, Default)]
pub(super) struct Frames {
    header: [u8; HEADER_BYTES],
    n_header: usize,
    n_body: usize,
}

/// A part of what passed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FramePart {
    /// A frame begins.
    Header(Header),
    /// So many bytes of its body.
    Body(usize),
}

impl Frames {
    /// Whether the next byte begins a frame.
    pub(super) fn is_between(&self) -> bool {
        self.n_header == 0 && self.n_body == 0
    }

    /// Takes what comes next off `bytes`: `None` once there is nothing more to be known.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Option<FramePart> {
        if self.n_body > 0 {
            let n_bytes = self.n_body.min(bytes.len());
            *bytes = bytes.get(n_bytes..)?;
            self.n_body -= n_bytes;
            return (n_bytes > 0).then_some(FramePart::Body(n_bytes));
        }
        let room = self.header.get_mut(self.n_header..)?;
        let n_bytes = room.len().min(bytes.len());
        let (part, rest) = bytes.split_at(n_bytes);
        room.get_mut(..n_bytes)?.copy_from_slice(part);
        *bytes = rest;
        self.n_header += n_bytes;
        if self.n_header < HEADER_BYTES {
            return None;
        }
        let header = Header::read(self.header);
        (self.n_header, self.n_body) = (0, header.n_body());
        Some(FramePart::Header(header))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_the_bytes_are_cut() {
        let mut sent = vec![0, DATA, 0, 1, 0, 0, 0, 3, 0, 0, 0, 5];
        sent.extend([7; 5]);
        sent.extend([0, WINDOW_UPDATE, 0, 0, 0, 0, 0, 3, 0, 1, 0, 0]);
        sent.extend([0, DATA, 0, 4, 0, 0, 0, 3, 0, 0, 0, 0]);
        for cut in 1..=sent.len() {
            let (mut frames, mut headers, mut n_body) = (Frames::default(), Vec::new(), 0);
            for mut piece in sent.chunks(cut) {
                while let Some(part) = frames.next(&mut piece) {
                    match part {
                        FramePart::Header(header) => headers.push((header.kind, header.flags, header.length)),
                        FramePart::Body(n_bytes) => n_body += n_bytes,
                    }
                }
            }
            assert_eq!(headers, [(DATA, 1, 5), (WINDOW_UPDATE, 0, 65536), (DATA, 4, 0)], "cut by {cut}");
            assert!(n_body == 5 && frames.is_between());
        }
    }
}
