//! Any bytes as a message of the `dht` conversation, in both directions: a message or an error, never a panic;
//! what was decoded survives the way back, and every check of it ends.
#![no_main]

use std::time::Duration;

use barnraise_protocol::dht::backbone::Backbone;
use barnraise_protocol::dht::progress::BackboneProgress;
use barnraise_protocol::dht::shards::Holder;
use barnraise_protocol::dht::{MESSAGE_BYTES_MAX, Name, NodeToPeer, PeerToNode, Record, UnixMillis};
use barnraise_protocol::framing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    if let Ok(question) = framing::decode_payload::<PeerToNode>(payload) {
        let _ = framing::encode(&question, MESSAGE_BYTES_MAX);
        let _ = question.check();
        if let PeerToNode::Store { records, .. } | PeerToNode::Put(records) = &question {
            records.iter().for_each(check);
        }
    }
    if let Ok(answer) = framing::decode_payload::<NodeToPeer>(payload) {
        let _ = framing::encode(&answer, MESSAGE_BYTES_MAX);
        if let Ok(found) = answer.found(&[Name::value(b"fuzz").key(), Name::dictionary(b"fuzz").key()]) {
            found.answers.iter().flat_map(|answer| &answer.records).for_each(check);
        }
    }
});

fn check(record: &Record) {
    let _ = record.check(UnixMillis(1_795_000_000_000), Duration::from_secs(3600));
    let _ = Backbone::read(record);
    let _ = BackboneProgress::read(record);
    let _ = Holder::read(record);
}
