//! Descriptions of a peer that are refused.

use barnraise_protocol::run::model::graph::SwavLoss;
use barnraise_protocol::run::model::operation::{
    Attention, Convolution, Cosine, Dropout, Experts, GlobalPool, GroupNorm, LayerNorm, PickToken, Pool,
    Reshape, Rotary, RotaryScaling, Route, Unembedding,
};

use super::*;
use crate::graph::{BLOCKS_MAX, PARTS_MAX};

fn refusal(blocks: Vec<Block>, data: GraphData) -> String {
    ResolvedGraph::of(&graph(Vec::new(), blocks), data).unwrap_err().to_string()
}

fn one(op: Operation) -> Vec<Block> {
    vec![Block::new("x", op)]
}

fn convolution() -> Convolution {
    Convolution {
        maps: 4,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [0, 0],
        dilation: [1, 1],
        groups: 1,
        bias: true,
        initial: Initial::Lecun,
    }
}

#[test]
fn a_repetition_is_counted_before_it_is_expanded() {
    // Each part calls the one before it 4,096 times: 4096^64 blocks.
    let mut parts = vec![part("p0", vec![dense("fc", 4)])];
    for index in 1..PARTS_MAX {
        let inner = format!("p{}", index - 1);
        parts.push(part(&format!("p{index}"), vec![repeat("h", &inner, BLOCKS_MAX as u32, false)]));
    }
    let last = format!("p{}", PARTS_MAX - 1);
    let bomb = graph(parts.clone(), vec![call("all", &last)]);
    assert_eq!(ResolvedGraph::of(&bomb, ROWS), Err(GraphError::TooManyBlocks { max: BLOCKS_MAX }));
    parts.push(part("more", vec![dense("fc", 4)]));
    let many = ResolvedGraph::of(&graph(parts, vec![call("all", "p0")]), ROWS);
    assert_eq!(many, Err(GraphError::TooManyParts { max: PARTS_MAX, got: PARTS_MAX + 1 }));
    let long = graph(Vec::new(), (0..=BLOCKS_MAX).map(|at| dense(&format!("fc{at}"), 1)).collect());
    assert_eq!(ResolvedGraph::of(&long, ROWS), Err(GraphError::TooManyBlocks { max: BLOCKS_MAX }));
}

#[test]
fn the_deepest_nesting_is_computed() {
    let mut parts = vec![part("p0", vec![dense("f", 4)])];
    for index in 1..PARTS_MAX {
        parts.push(part(&format!("p{index}"), vec![call("p", &format!("p{}", index - 1))]));
    }
    let last = format!("p{}", PARTS_MAX - 1);
    assert!(ResolvedGraph::of(&graph(parts, vec![call("p", &last)]), ROWS).is_ok());
}

#[test]
fn names_are_resolved_before_them() {
    assert_eq!(
        refusal(vec![call("a", "b")], ROWS),
        "block `a`: `b` is no part, or none before the one that calls it"
    );
    let own = graph(vec![part("p", vec![call("a", "p")])], vec![call("a", "p")]);
    assert!(ResolvedGraph::of(&own, ROWS).unwrap_err().to_string().contains("`p` is no part"));
    let later = vec![dense("a", 4).from(&["b"]), dense("b", 4)];
    assert_eq!(refusal(later, ROWS), "block `a`: `b` is neither an input nor a block before it");
    let twice = vec![dense("a", 4), dense("a", 4)];
    assert_eq!(refusal(twice, ROWS), "block `a`: there are two blocks of this name");
    let hidden =
        graph(vec![part("h", vec![dense("fc", 4)])], vec![dense("h.0.fc", 4), repeat("h", "h", 1, false)]);
    assert!(ResolvedGraph::of(&hidden, ROWS).unwrap_err().to_string().contains("two blocks"));
    let unknown = vec![dense("a", 4).sharing("a")];
    assert_eq!(refusal(unknown, ROWS), "block `a`: `a`, whose weights it shares, is no block before it");
    assert!(refusal(vec![dense("a b", 4)], ROWS).contains("is no name"));
    assert!(refusal(vec![dense("", 4)], ROWS).contains("is no name"));
    assert_eq!(ResolvedGraph::of(&graph(Vec::new(), Vec::new()), ROWS), Err(GraphError::Empty));
    assert!(refusal(vec![dense("a", 4).from(&["input"; 17])], ROWS).contains("it has 17 inputs"));
    assert!(refusal(vec![repeat("a", "b", 0, false)], ROWS).contains("its times must be 1 to 4,096"));
}

#[test]
fn shapes_are_named() {
    let flat = one(Operation::Convolution(convolution()));
    assert_eq!(refusal(flat, ROWS), "block `x`: maps [channels, height, width] wanted, the input is [4]");
    let wide = Convolution { kernel: [31, 3], padding: [1, 1], ..convolution() };
    assert_eq!(
        refusal(one(Operation::Convolution(wide)), IMAGES),
        "block `x`: padded maps of at least 31 by 3 pixels wanted, the input is [1, 28, 28]"
    );
    let text = refusal(one(Operation::Relu), TEXT);
    assert_eq!(text, "block `x`: values wanted, the input is [16] of ids below 100");
    let sum = vec![dense("a", 3), Block::new("b", Operation::Add).from(&["a", "input"])];
    assert_eq!(refusal(sum, ROWS), "block `b`: [3], as of the first input, wanted, the input is [4]");
    let joined =
        vec![Block::new("a", Operation::ToTokens), Block::new("b", Operation::Concat).from(&["input", "a"])];
    let got = refusal(joined, IMAGES);
    assert!(got.contains("but for dimension 0, wanted, the input is [784, 1]"), "{got}");
    let shape = Reshape { shape: vec![3, 2] };
    assert_eq!(
        refusal(one(Operation::Reshape(shape)), ROWS),
        "block `x`: a shape of 4 values wanted, the input is [3, 2]"
    );
    let dot = vec![Block::new("x", Operation::DotProduct).from(&["input"])];
    assert_eq!(refusal(dot, ROWS), "block `x`: it has 1 inputs, 2 are wanted");
    let table = one(Operation::Unembedding(Unembedding { bias: false }));
    assert!(refusal(table, ROWS).contains("the data has no vocabulary"));
}

#[test]
fn options_are_bounded() {
    let refused = |op, data, want: &str| {
        let got = refusal(one(op), data);
        assert!(got.contains(want), "{got}");
    };
    let convolve = |change: fn(&mut Convolution)| {
        let mut options = convolution();
        change(&mut options);
        Operation::Convolution(options)
    };
    refused(convolve(|c| c.kernel = [0, 3]), IMAGES, "its kernel must be 1 to 1,024, it is 0");
    refused(convolve(|c| c.stride = [1, 0]), IMAGES, "its stride must be");
    refused(convolve(|c| c.dilation = [u32::MAX, 1]), IMAGES, "its dilation must be");
    refused(convolve(|c| c.padding = [u32::MAX, 1]), IMAGES, "its padding must be");
    refused(convolve(|c| c.groups = 0), IMAGES, "its groups must be a divisor");
    refused(convolve(|c| c.groups = 2), IMAGES, "its groups must be a divisor");
    refused(convolve(|c| c.maps = u32::MAX), IMAGES, "its maps must be");
    refused(convolve(|c| c.initial = Initial::Uniform(f32::NAN)), IMAGES, "its initial bound must be");
    let pool = Pool { kernel: [2, 2], stride: [2, 2], padding: [2, 0] };
    refused(Operation::MaxPool(pool), IMAGES, "its padding must be at most half of its kernel");
    refused(Operation::Dropout(Dropout { rate: f32::NAN }), ROWS, "its rate must be 0 to 0.95, it is NaN");
    refused(Operation::LayerNorm(LayerNorm { epsilon: 0.0, bias: true }), ROWS, "its epsilon must be");
    refused(Operation::GroupNorm(GroupNorm { groups: 3, epsilon: 1e-5 }), IMAGES, "its groups must be");
    refused(Operation::Cosine(Cosine { units: 0 }), ROWS, "its units must be");
    let tokens = |op| vec![Block::new("t", Operation::ToTokens), Block::new("x", op)];
    let pick = tokens(Operation::PickToken(PickToken { index: 784 }));
    assert!(refusal(pick, IMAGES).contains("its index must be below the length"));
    let attend = |heads, key_value_heads, rotary| {
        let attention = Attention { heads, key_value_heads, causal: false, rotary, dropout: 0.0 };
        let mut blocks = vec![Block::new("t", Operation::ToTokens), dense("qkv", 12)];
        blocks.push(Block::new("x", Operation::Attention(attention)));
        refusal(blocks, IMAGES)
    };
    assert!(attend(0, 0, None).contains("its heads must be 1 to 1,024"));
    assert!(attend(5, 0, None).contains("such that they divide the width"));
    assert!(attend(4, 3, None).contains("its key_value_heads must be a divisor"));
    assert!(attend(4, 0, Some(Rotary { theta: 1e4, scaling: None })).contains("an even width for rotary"));
    let endless = Rotary { theta: f32::INFINITY, scaling: None };
    assert!(attend(2, 0, Some(endless)).contains("its theta must be"));
    let scaling = RotaryScaling { factor: 8.0, low_frequency: 4.0, high_frequency: 4.0, original_tokens: 64 };
    let scaled = |scaling| Some(Rotary { theta: 1e4, scaling: Some(scaling) });
    assert!(attend(2, 0, scaled(scaling)).contains("its high_frequency must be above low_frequency"));
    let shorter = RotaryScaling { factor: 0.5, ..scaling };
    assert!(attend(2, 0, scaled(shorter)).contains("its factor must be"));
    let nowhere = RotaryScaling { high_frequency: 5.0, original_tokens: 0, ..scaling };
    assert!(attend(2, 0, scaled(nowhere)).contains("its original_tokens must be"));
    let dropped = Attention { heads: 1, key_value_heads: 0, causal: false, rotary: None, dropout: 1.0 };
    assert!(refusal(tokens(Operation::Attention(dropped)), IMAGES).contains("its dropout must be 0 to 0.95"));
    let wide = vec![dense("a", 1 << 24), dense("b", 1 << 24)];
    assert!(refusal(wide, ROWS).contains("the graph has more than 1073741824 parameters"));
}

#[test]
fn crops_need_features_of_one_shape_and_prototypes() {
    let swav = |blocks: Vec<Block>, features: &str| {
        let features = features.to_owned();
        let loss = SwavLoss {
            features,
            small_crops: 2,
            small_side: 12,
            queue_samples: 0,
            queue_after: 0,
            frozen_epochs: 0,
        };
        ResolvedGraph::of(&Graph { loss: Loss::Swav(loss), ..graph(Vec::new(), blocks) }, IMAGES)
    };
    let pool = || Block::new("pool", Operation::GlobalPool(GlobalPool::Average));
    let flatten = || Block::new("flat", Operation::Flatten);
    let prototypes = || Block::new("prototypes", Operation::Cosine(Cosine { units: 5 }));
    assert!(swav(vec![pool(), prototypes()], "pool").is_ok());
    let text = swav(vec![flatten(), prototypes()], "flat").unwrap_err().to_string();
    assert_eq!(text, "block `flat`: it gives [784] for a large crop and [144] for a small one");
    let text = swav(vec![pool(), dense("fc", 5)], "pool").unwrap_err().to_string();
    assert!(text.contains("the last block must be `cosine`"), "{text}");
    let text = swav(vec![pool(), prototypes()], "poll").unwrap_err().to_string();
    assert!(text.contains("`poll` is neither"), "{text}");
    let looks_back = vec![
        pool(),
        Block::new("again", Operation::GlobalPool(GlobalPool::Max)).from(&["input"]),
        Block::new("sum", Operation::Add).from(&["pool", "again"]),
        prototypes(),
    ];
    let text = swav(looks_back, "pool").unwrap_err().to_string();
    assert_eq!(text, "block `again`: it is after the features, and `input` is before them");
}

#[test]
fn experts_are_counted_before_they_are_expanded_and_look_at_one_input() {
    let experts = |change: &dyn Fn(&mut Experts)| {
        let mut options = Experts {
            part: "expert".into(),
            side: 4,
            dimensions: 2,
            active: 2,
            route: Route::Token,
            capacity: 0.0,
            balance: 0.01,
            jitter: 0.0,
        };
        change(&mut options);
        Block::new("moe", Operation::Experts(options))
    };
    let refused = |blocks: Vec<Block>, experts: Block| {
        let parts = vec![part("expert", blocks)];
        let blocks = vec![dense("first", 4), experts];
        ResolvedGraph::of(&graph(parts, blocks), ROWS).unwrap_err().to_string()
    };
    let one = || vec![dense("fc", 4)];
    let norm = BatchNorm { epsilon: 1e-5, momentum: 0.1, running: true };
    type Change<'a> = &'a dyn Fn(&mut Experts);
    let options: [(&str, Change<'_>); 8] = [
        (
            "its number of experts, side to the power of dimensions, must be at most 4,096, or experts \
          that peers host, it is 262144",
            &|e| {
                e.side = 512;
            },
        ),
        ("its side must be 1 to 512, it is 513", &|e| e.side = 513),
        ("its dimensions must be 1 to 4, it is 5", &|e| e.dimensions = 5),
        ("its active must be 1 to 64, and at most the number of experts, it is 17", &|e| e.active = 17),
        ("its capacity must be 0 to 1,000, it is NaN", &|e| e.capacity = f32::NAN),
        ("its balance must be 0 to 10, it is -1", &|e| e.balance = -1.0),
        ("its jitter must be 0 to 0.5, it is 1", &|e| e.jitter = 1.0),
        ("`nothing` is no part, or none before the one that calls it", &|e| e.part = "nothing".into()),
    ];
    for (want, change) in options {
        assert_eq!(refused(one(), experts(change)), format!("block `moe`: {want}"));
    }
    let want = "block `moe`: no part of experts may have `moe.experts.0.0.x`, which is a batch norm, a dropout, masked \
                tokens or experts again";
    for op in [Operation::BatchNorm(norm), Operation::Dropout(Dropout { rate: 0.5 })] {
        assert_eq!(refused(vec![Block::new("x", op)], experts(&|_| {})), want);
    }
    let reshaped = vec![Block::new("x", Operation::Reshape(Reshape { shape: vec![2, 2] }))];
    assert_eq!(
        refused(reshaped, experts(&|_| {})),
        "block `moe`: a vector [width] wanted, the input is [2, 2]"
    );
    assert_eq!(
        refused(one(), experts(&|_| {}).sharing("first")),
        "block `moe`: experts have no `shares`; a part that has them can be repeated with `share = true`"
    );
    // A bomb: 4,096 experts, each of 4,096 blocks.
    let many = part("many", vec![repeat("h", "expert", BLOCKS_MAX as u32, false)]);
    let bomb = experts(&|e| (e.part, e.side) = ("many".into(), 64));
    let bomb = graph(vec![part("expert", one()), many], vec![bomb]);
    assert_eq!(ResolvedGraph::of(&bomb, ROWS), Err(GraphError::TooManyBlocks { max: BLOCKS_MAX }));
}
