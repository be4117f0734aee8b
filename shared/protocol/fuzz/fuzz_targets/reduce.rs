//! Any bytes as a message of the conversation `reduce`, in both directions: a message or an error, never a panic; and what
//! was decoded survives the way back.
#![no_main]

use barnraise_protocol::framing;
use barnraise_protocol::reduce::{BackboneToReducer, MESSAGE_BYTES_MAX, Offer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    if let Ok(offer) = framing::decode_payload::<Offer>(payload) {
        let _ = offer.reducer.check();
        let _ = framing::encode(&offer, MESSAGE_BYTES_MAX);
    }
    if let Ok(message) = framing::decode_payload::<BackboneToReducer>(payload) {
        let _ = framing::encode(&message, MESSAGE_BYTES_MAX);
    }
});
