//! Any bytes as a message of the conversations `matchmaking` and `model`, in both directions: a message or an error,
//! never a panic; and what was decoded survives the way back.
#![no_main]

use barnraise_protocol::framing;
use barnraise_protocol::matchmaking::{Answer, Hello, MESSAGE_BYTES_MAX, Message};
use barnraise_protocol::model;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    if let Ok(message) = framing::decode_payload::<Hello>(payload) {
        let _ = framing::encode(&message, MESSAGE_BYTES_MAX);
    }
    if let Ok(message) = framing::decode_payload::<Answer>(payload) {
        let _ = framing::encode(&message, MESSAGE_BYTES_MAX);
    }
    if let Ok(message) = framing::decode_payload::<Message>(payload) {
        let _ = framing::encode(&message, MESSAGE_BYTES_MAX);
    }
    if let Ok(message) = framing::decode_payload::<model::Request>(payload) {
        let _ = framing::encode(&message, model::MESSAGE_BYTES_MAX);
    }
    if let Ok(message) = framing::decode_payload::<model::Answer>(payload) {
        let _ = framing::encode(&message, model::MESSAGE_BYTES_MAX);
    }
});
