//! Any bytes of a connection that is multiplexed.

use barnraise_fuzz::{fuzz, value};

use super::frames::{FramePart, Frames, HEADER_BYTES, Header};

/// Headers and bytes of bodies, piece after piece.
fn parts(pieces: &[&[u8]]) -> (Vec<Header>, usize) {
    let (mut frames, mut headers, mut n_body) = (Frames::default(), Vec::new(), 0);
    for piece in pieces {
        let mut rest = *piece;
        while let Some(part) = frames.next(&mut rest) {
            match part {
                FramePart::Header(header) => headers.push(header),
                FramePart::Body(n_bytes) => n_body += n_bytes,
            }
        }
        assert!(rest.is_empty(), "all of it is looked at");
    }
    (headers, n_body)
}

#[test]
fn muxer_frames() {
    fuzz!("muxer_frames", |input| {
        let Some((cut, bytes)) = value::<(u8, &[u8])>(input) else { return };
        let (one, other) = bytes.split_at(usize::from(cut).min(bytes.len()));
        let (headers, n_body) = parts(&[bytes]);
        assert_eq!(parts(&[one, other]), (headers.clone(), n_body), "however they are cut");
        let announced: usize = headers.iter().map(Header::n_body).sum();
        assert!(n_body <= announced && headers.len() * HEADER_BYTES + n_body <= bytes.len());
    });
}
