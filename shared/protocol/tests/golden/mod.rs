//! Golden bytes of messages.

use std::fmt::{Debug, Write as _};

use barnraise_protocol::PROTOCOL_VERSION;
use barnraise_protocol::framing::{self, HEADER_BYTES};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What can be sent and compared.
pub(crate) trait Message: Serialize + DeserializeOwned + PartialEq + Debug {}

impl<T: Serialize + DeserializeOwned + PartialEq + Debug> Message for T {}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Checks the header of a message, the bytes of its payload, its round trip, that no part of it is a message, and that changed
/// bytes never panic.
pub(crate) fn check<M: Message>(message: &M, bytes_max: usize, golden_payload: &str) {
    let frame = framing::encode(message, bytes_max).unwrap();
    let (header, payload) = frame.split_at(HEADER_BYTES);
    assert_eq!(hex(payload), golden_payload, "golden bytes of {message:?}");
    assert_eq!(header[0], PROTOCOL_VERSION);
    assert_eq!(header[1..], (payload.len() as u32).to_le_bytes(), "declared length of {message:?}");
    assert_eq!(&framing::decode::<M>(&frame, bytes_max).unwrap(), message);
    for at in 0..frame.len() {
        framing::decode::<M>(&frame[..at], bytes_max).unwrap_err();
        for flip in [1u8, 0x80, 0xff] {
            let mut mutated = frame.clone();
            mutated[at] ^= flip;
            let _ = framing::decode::<M>(&mutated, bytes_max);
        }
    }
}
