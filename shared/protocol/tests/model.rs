//! A model as data crosses the wire: golden bytes, round trip, and bytes of a hostile peer.

use std::fmt::Debug;

use barnraise_protocol::run::model::Size;
use barnraise_protocol::run::model::graph::{Block, Graph, Loss, Part, SwavLoss};
use barnraise_protocol::run::model::operation::{
    Attention, BatchNorm, ClassToken, Convolution, Cosine, Dense, Dropout, Embedding, Experts, GlobalPool,
    GroupNorm, Initial, LayerNorm, Operation, PartCall, PickToken, Pool, Positions, Repeat, Reshape, RmsNorm,
    Rotary, Route, Unembedding,
};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn graph() -> Graph {
    let attention = Attention {
        heads: 4,
        key_value_heads: 2,
        causal: true,
        rotary: Some(Rotary { theta: 1e4, scaling: None }),
        dropout: 0.0,
    };
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

fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, golden: &str) {
    let bytes = postcard::to_allocvec(value).unwrap();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.replace(' ', ""), "{value:?}");
    assert_eq!(&postcard::from_bytes::<T>(&bytes).unwrap(), value);
}

const TINY: Initial = Initial::Uniform(0.5);

#[test]
fn operations() {
    let pool = Pool { kernel: [2, 3], stride: [4, 5], padding: [6, 7] };
    let convolution = Convolution {
        maps: 300,
        kernel: [2, 3],
        stride: [4, 5],
        padding: [6, 7],
        dilation: [8, 9],
        groups: 10,
        bias: true,
        initial: Initial::He,
    };
    let rotary = Some(Rotary { theta: 10_000.0, scaling: None });
    let attention = Attention { heads: 4, key_value_heads: 2, causal: true, rotary, dropout: 0.5 };
    let experts = Experts {
        part: "p".into(),
        side: 32,
        dimensions: 2,
        active: 4,
        route: Route::Sample,
        capacity: 1.5,
        balance: 0.25,
        jitter: 0.125,
    };
    let golden = [
        (Operation::Part(PartCall { part: "p".into() }), "000170"),
        (Operation::Repeat(Repeat { part: "p".into(), times: 300, first: 2, share: true }), "010170ac020201"),
        (
            Operation::Dense(Dense { units: Size::Fixed(300), bias: true, initial: Initial::Lecun }),
            "0200ac020100",
        ),
        (Operation::Convolution(convolution), "03ac0202030405060708090a0101"),
        (Operation::MaxPool(pool.clone()), "04020304050607"),
        (Operation::AveragePool(pool), "05020304050607"),
        (Operation::GlobalPool(GlobalPool::Average), "0600"),
        (Operation::GlobalPool(GlobalPool::Max), "0601"),
        (
            Operation::BatchNorm(BatchNorm { epsilon: 0.5, momentum: 0.25, running: true }),
            "070000003f0000803e01",
        ),
        (Operation::GroupNorm(GroupNorm { groups: 300, epsilon: 0.5 }), "08ac020000003f"),
        (Operation::LayerNorm(LayerNorm { epsilon: 0.5, bias: true }), "090000003f01"),
        (Operation::RmsNorm(RmsNorm { epsilon: 0.5 }), "0a0000003f"),
        (Operation::Relu, "0b"),
        (Operation::Gelu, "0c"),
        (Operation::GeluTanh, "0d"),
        (Operation::Silu, "0e"),
        (Operation::Tanh, "0f"),
        (Operation::Sigmoid, "10"),
        (Operation::Softmax, "11"),
        (Operation::Dropout(Dropout { rate: 0.5 }), "120000003f"),
        (
            Operation::Embedding(Embedding { rows: Size::Vocabulary, width: 300, initial: TINY }),
            "1303ac02020000003f",
        ),
        (Operation::Unembedding(Unembedding { bias: true }), "1401"),
        (Operation::Positions(Positions { initial: TINY }), "15020000003f"),
        (Operation::ClassToken(ClassToken { initial: TINY }), "16020000003f"),
        (Operation::Attention(attention), "170402010100401c46000000003f"),
        (Operation::Add, "18"),
        (Operation::Multiply, "19"),
        (Operation::Concat, "1a"),
        (Operation::DotProduct, "1b"),
        (Operation::Bias, "1c"),
        (Operation::Flatten, "1d"),
        (Operation::Reshape(Reshape { shape: vec![3, 300] }), "1e0203ac02"),
        (Operation::ToTokens, "1f"),
        (Operation::MeanTokens, "20"),
        (Operation::PickToken(PickToken { index: 300 }), "21ac02"),
        (Operation::PickMasked, "22"),
        (Operation::UnitLength, "23"),
        (Operation::Cosine(Cosine { units: 300 }), "24ac02"),
        (Operation::Experts(experts), "250170200204010000c03f0000803e0000003e"),
    ];
    for (operation, golden) in golden {
        check(&operation, golden);
    }
}

#[test]
fn sizes() {
    let golden = [
        (Size::Fixed(300), "00ac02"),
        (Size::Classes, "01"),
        (Size::Targets, "02"),
        (Size::Vocabulary, "03"),
        (Size::Length, "04"),
        (Size::Users, "05"),
        (Size::Items, "06"),
    ];
    for (size, golden) in golden {
        check(&size, golden);
    }
}

#[test]
fn losses() {
    let swav = SwavLoss {
        features: "f".into(),
        small_crops: 4,
        small_side: 300,
        queue_samples: 301,
        queue_after: 302,
        frozen_epochs: 5,
    };
    let golden = [
        (Loss::Classification, "00"),
        (Loss::Regression, "01"),
        (Loss::CausalLanguageModel, "02"),
        (Loss::MaskedLanguageModel, "03"),
        (Loss::Swav(swav), "04 0166 04 ac02 ad02 ae02 05"),
    ];
    for (loss, golden) in golden {
        check(&loss, golden);
    }
}

#[test]
fn parts_and_blocks() {
    let part = Part { name: "p".into(), blocks: vec![Block::new("r", Operation::Relu)] };
    check(&part, "0170 01 0172 0b 00 00");
    check(&Block::new("a", Operation::Add).from(&["c", "input"]), "0161 18 02 0163 05696e707574 00");
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
