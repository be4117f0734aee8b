//! Any bytes as a frame, header included.
#![no_main]

use barnraise_protocol::bulk::Pull;
use barnraise_protocol::framing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    let _ = framing::decode::<Pull>(frame, 64);
    let _ = framing::decode::<(String, Vec<u32>)>(frame, 4096);
});
