//! A model as data crosses the wire: golden bytes, round trip, and bytes of a hostile peer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::run::model::Size;
use barnraise_protocol::run::model::graph::{Block, Graph, Loss, Part, SwavLoss};
use barnraise_protocol::run::model::operation::{
    Attention, Dense, Dropout, Embedding, Initial, Operation, Repeat, Rotary, Unembedding,
};
use proptest::prelude::*;

fn graph() -> Graph {
    let attention =
        Attention { heads: 4, key_value_heads: 2, causal: true, rotary: Some(Rotary { theta: 1e4 }) };
    let layer = vec![
        Block::new("qkv", Operation::Dense(Dense { units: 64.into(), bias: false, initial: Initial::He })),
        Block::new("attention", Operation::Attention(attention)),
        Block::new("dropout", Operation::Dropout(Dropout { rate: 0.125 })),
        Block::new("add", Operation::Add).from(&["dropout", "input"]),
    ];
    let embedding = Embedding { rows: Size::Vocabulary, width: 32, initial: Initial::Uniform(0.5) };
    let repeat = Repeat { part: "layer".to_owned(), times: 12, first: 0, share: false };
    let blocks = vec![
        Block::new("wte", Operation::Embedding(embedding)),
        Block::new("h", Operation::Repeat(repeat)),
        Block::new("head", Operation::Unembedding(Unembedding { bias: true })).sharing("wte"),
    ];
    let parts = vec![Part { name: "layer".to_owned(), blocks: layer }];
    Graph { name: "gpt".to_owned(), parts, blocks, loss: Loss::CausalLanguageModel }
}

#[test]
fn a_graph_has_its_golden_bytes() {
    let mut tiny = graph();
    tiny.parts.clear();
    tiny.blocks.remove(1);
    let bytes = postcard::to_allocvec(&tiny).unwrap();
    let want = [
        &b"\x03gpt\x00\x02\x03wte\x13\x03\x20\x02\x00\x00\x00\x3f\x00\x00"[..],
        &b"\x04head\x14\x01\x00\x01\x03wte\x02"[..],
    ];
    assert_eq!(bytes, want.concat());
}

#[test]
fn a_graph_comes_back_as_it_was_sent_and_repeats_cost_nothing() {
    let bytes = postcard::to_allocvec(&graph()).unwrap();
    assert_eq!(postcard::from_bytes::<Graph>(&bytes).unwrap(), graph());
    let mut deep = graph();
    let Operation::Repeat(repeat) = &mut deep.blocks[1].op else { panic!() };
    repeat.times = 120;
    assert_eq!(postcard::to_allocvec(&deep).unwrap().len(), bytes.len());
    assert!(bytes.len() < 150, "{}", bytes.len());
    let swav = SwavLoss {
        features: "pool".to_owned(),
        small_crops: 4,
        small_side: 12,
        queue_samples: 0,
        queue_after: 0,
        frozen_epochs: 1,
    };
    let crops = Graph { loss: Loss::Swav(swav), ..graph() };
    let bytes = postcard::to_allocvec(&crops).unwrap();
    assert_eq!(postcard::from_bytes::<Graph>(&bytes).unwrap(), crops);
}

proptest! {
    #[test]
    fn changed_bytes_never_panic(at in 0..140_usize, byte: u8, cut in 0..140_usize) {
        let mut bytes = postcard::to_allocvec(&graph()).unwrap();
        let n_bytes = bytes.len();
        bytes[at % n_bytes] = byte;
        let _ = postcard::from_bytes::<Graph>(&bytes);
        bytes.truncate(cut % n_bytes);
        let _ = postcard::from_bytes::<Graph>(&bytes);
    }
}
