//! Any bytes as a message of the `contribute` conversation, in both directions: a message or an error, never a
//! panic; and what was decoded survives the way back.
#![no_main]

use barnraise_protocol::framing;
use barnraise_protocol::contribute::{BackboneToContributor, ContributorToBackbone, MESSAGE_BYTES_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    if let Ok(message) = framing::decode_payload::<ContributorToBackbone>(payload) {
        let _ = framing::encode(&message, MESSAGE_BYTES_MAX);
    }
    if let Ok(message) = framing::decode_payload::<BackboneToContributor>(payload) {
        let _ = framing::encode(&message, MESSAGE_BYTES_MAX);
    }
});
