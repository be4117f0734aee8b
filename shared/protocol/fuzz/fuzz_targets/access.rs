//! Any bytes as a message of the `access` conversation, in both directions, and as a token that was kept:
//! a message or an error, never a panic; and what was decoded survives the way back.
#![no_main]

use barnraise_protocol::access::{AccessToken, BackboneToContributor, ContributorToBackbone, MESSAGE_BYTES_MAX};
use barnraise_protocol::framing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    if let Ok(message) = framing::decode_payload::<ContributorToBackbone>(payload) {
        let _ = framing::encode(&message, MESSAGE_BYTES_MAX);
    }
    if let Ok(message) = framing::decode_payload::<BackboneToContributor>(payload) {
        let _ = framing::encode(&message, MESSAGE_BYTES_MAX);
    }
    let _ = AccessToken::decode(payload);
});
