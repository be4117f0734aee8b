//! Messages on a stream: a version byte, a length, and a postcard payload.
//!
//! ```text
//! +---------+----------------+-----------------+
//! | version | payload length | postcard        |
//! | u8      | u32, LE        | length bytes    |
//! +---------+----------------+-----------------+
//! ```
//!
//! The length is compared with the conversation's limit before anything is allocated. Tensors never
//! travel inside postcard: see [`crate::bulk`].

use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::PROTOCOL_VERSION;

/// Bytes in front of each payload.
pub const HEADER_BYTES: usize = 5;

/// Why a message could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The other side closed the stream between two messages.
    #[error("the stream was closed by the other side")]
    Closed,
    /// The other side speaks another version.
    #[error("this peer speaks protocol version {ours}, the other one {theirs}")]
    Version {
        /// [`PROTOCOL_VERSION`] of this build.
        ours: u8,
        /// What came.
        theirs: u8,
    },
    /// A payload over the conversation's limit.
    #[error("message of {got} bytes, at most {max} are allowed")]
    TooLong {
        /// Limit of the conversation.
        max: usize,
        /// Announced, or about to be sent.
        got: usize,
    },
    /// Fewer bytes than the header announced.
    #[error("message ends after {got} of {want} bytes")]
    Truncated {
        /// Announced.
        want: usize,
        /// Came.
        got: usize,
    },
    /// Bytes that are no message of the conversation.
    #[error("message cannot be decoded: {0}")]
    Payload(#[from] postcard::Error),
    /// Bytes after the message, inside its frame.
    #[error("message is followed by {0} bytes of no message")]
    TrailingBytes(usize),
    /// The stream failed.
    #[error("stream: {0}")]
    Io(#[from] std::io::Error),
}

/// A message with its header.
pub fn encode<M: Serialize>(message: &M, bytes_max: usize) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![PROTOCOL_VERSION, 0, 0, 0, 0];
    frame = postcard::to_extend(message, frame)?;
    let got = frame.len() - HEADER_BYTES;
    let length = u32::try_from(got).ok().filter(|_| got <= bytes_max);
    let length = length.ok_or(FrameError::TooLong { max: bytes_max, got })?;
    frame[1..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Payload length that a header announces, checked against `bytes_max`.
pub fn decode_header(header: [u8; HEADER_BYTES], bytes_max: usize) -> Result<usize, FrameError> {
    let [theirs, a, b, c, d] = header;
    if theirs != PROTOCOL_VERSION {
        return Err(FrameError::Version { ours: PROTOCOL_VERSION, theirs });
    }
    let got = u32::from_le_bytes([a, b, c, d]) as usize;
    if got > bytes_max {
        return Err(FrameError::TooLong { max: bytes_max, got });
    }
    Ok(got)
}

/// A message from its payload, which it must fill.
pub fn decode_payload<M: DeserializeOwned>(payload: &[u8]) -> Result<M, FrameError> {
    let (message, rest) = postcard::take_from_bytes(payload)?;
    if rest.is_empty() { Ok(message) } else { Err(FrameError::TrailingBytes(rest.len())) }
}

/// A message from a whole frame in memory.
pub fn decode<M: DeserializeOwned>(frame: &[u8], bytes_max: usize) -> Result<M, FrameError> {
    let Some((header, payload)) = frame.split_first_chunk() else {
        return Err(FrameError::Truncated { want: HEADER_BYTES, got: frame.len() });
    };
    let want = decode_header(*header, bytes_max)?;
    if payload.len() < want {
        return Err(FrameError::Truncated { want, got: payload.len() });
    }
    if payload.len() > want {
        return Err(FrameError::TrailingBytes(payload.len() - want));
    }
    decode_payload(payload)
}

/// Writes a message and flushes it.
pub async fn write<M, S>(stream: &mut S, message: &M, bytes_max: usize) -> Result<(), FrameError>
where
    M: Serialize,
    S: AsyncWrite + Unpin,
{
    let frame = encode(message, bytes_max)?;
    stream.write_all(&frame).await?;
    stream.flush().await?;
    Ok(())
}

/// Reads a message of at most `bytes_max` bytes.
///
/// # Errors
/// [`FrameError::Closed`] where the stream ended cleanly before the first byte of a message.
pub async fn read<M, S>(stream: &mut S, bytes_max: usize) -> Result<M, FrameError>
where
    M: DeserializeOwned,
    S: AsyncRead + Unpin,
{
    let mut header = [0; HEADER_BYTES];
    match read_full(stream, &mut header).await? {
        0 => return Err(FrameError::Closed),
        HEADER_BYTES => {}
        got => return Err(FrameError::Truncated { want: HEADER_BYTES, got }),
    }
    let want = decode_header(header, bytes_max)?;
    let mut payload = vec![0; want];
    match read_full(stream, &mut payload).await? {
        got if got == want => decode_payload(&payload),
        got => Err(FrameError::Truncated { want, got }),
    }
}

/// Fills `buffer`; fewer bytes than it holds mean that the stream ended.
async fn read_full<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]).await? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::executor::block_on;
    use futures::io::Cursor;
    use proptest::prelude::*;
    use tokio_util::compat::TokioAsyncReadCompatExt as _;

    use super::*;

    #[test]
    fn golden_bytes() {
        let frame = encode(&("barn", 300u32), 64).unwrap();
        assert_eq!(frame, [1, 7, 0, 0, 0, 4, b'b', b'a', b'r', b'n', 0xac, 0x02]);
        assert_eq!(decode::<(String, u32)>(&frame, 64).unwrap(), ("barn".to_owned(), 300));
    }

    #[test]
    fn another_version_is_named_with_ours() {
        let mut frame = encode(&7u32, 64).unwrap();
        frame[0] = 9;
        let error = decode::<u32>(&frame, 64).unwrap_err();
        assert_eq!(error.to_string(), "this peer speaks protocol version 1, the other one 9");
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_its_bytes_exist() {
        let header = [1, 0xff, 0xff, 0xff, 0xff];
        let error = block_on(read::<u32, _>(&mut Cursor::new(header), 1024)).unwrap_err();
        assert!(matches!(error, FrameError::TooLong { max: 1024, got: 0xffff_ffff }));
        assert!(matches!(encode(&[0u8; 64].as_slice(), 64), Err(FrameError::TooLong { max: 64, got: 65 })));
        let longest = encode(&[7u8; 63].as_slice(), 64).unwrap();
        assert_eq!(decode::<Vec<u8>>(&longest, 64).unwrap(), [7; 63]);
        assert!(matches!(decode::<Vec<u8>>(&longest, 63), Err(FrameError::TooLong { max: 63, got: 64 })));
    }

    #[test]
    fn the_end_of_a_stream_is_told_from_a_cut_message() {
        let frame = encode(&"hello", 64).unwrap();
        for cut in 0..frame.len() {
            let error = block_on(read::<String, _>(&mut Cursor::new(&frame[..cut]), 64)).unwrap_err();
            let whole = decode::<String>(&frame[..cut], 64);
            assert!(matches!(whole, Err(FrameError::Truncated { .. })), "cut at {cut}: {whole:?}");
            match cut {
                0 => assert!(matches!(error, FrameError::Closed)),
                _ => assert!(matches!(error, FrameError::Truncated { .. }), "cut at {cut}: {error}"),
            }
        }
    }

    #[test]
    fn bytes_after_a_message_are_refused() {
        let mut frame = encode(&1u8, 64).unwrap();
        frame[1] += 1;
        frame.push(0);
        assert!(matches!(decode::<u8>(&frame, 64), Err(FrameError::TrailingBytes(1))));
        let two_more = [encode(&1u8, 64).unwrap(), vec![0; 2]].concat();
        assert!(matches!(decode::<u8>(&two_more, 64), Err(FrameError::TrailingBytes(2))), "after its frame");
        let mut short = encode(&"hello", 64).unwrap();
        short[1] -= 1;
        assert!(matches!(decode::<String>(&short, 64), Err(FrameError::TrailingBytes(1))), "of what it says");
    }

    #[test]
    fn a_message_is_there_with_its_last_byte() {
        let (ours, theirs) = tokio::io::duplex(64);
        let (mut ours, mut theirs) = (ours.compat(), theirs.compat());
        for text in ["", "hello"] {
            write(&mut theirs, &text, 64).now_or_never().unwrap().unwrap();
            let read = read::<String, _>(&mut ours, 64).now_or_never();
            assert_eq!(read.expect("nothing more is waited for").unwrap(), text);
        }
    }

    proptest! {
        #[test]
        fn round_trip_through_a_stream(texts in proptest::collection::vec(".{0,40}", 0..8)) {
            let mut bytes = Vec::new();
            for text in &texts {
                block_on(write(&mut bytes, text, 4096)).unwrap();
            }
            let mut stream = Cursor::new(bytes);
            for text in &texts {
                prop_assert_eq!(&block_on(read::<String, _>(&mut stream, 4096)).unwrap(), text);
            }
            prop_assert!(matches!(block_on(read::<String, _>(&mut stream, 4096)), Err(FrameError::Closed)));
        }
    }
}
