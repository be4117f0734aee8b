//! Any bytes as a message of the `evidence` conversation, and as a piece of evidence: an error or what they say, never a
//! panic, and never more than is there.
#![no_main]

use barnraise_protocol::evidence::{Answer, Evidence, MESSAGE_BYTES_MAX, Request};
use barnraise_protocol::framing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    if let Ok(message) = framing::decode_payload::<Request>(payload) {
        let _ = framing::encode(&message, MESSAGE_BYTES_MAX);
    }
    if let Ok(message) = framing::decode_payload::<Answer>(payload) {
        let _ = framing::encode(&message, MESSAGE_BYTES_MAX);
    }
    if let Ok(evidence) = Evidence::decode(payload) {
        let _ = evidence.claim();
    }
});
