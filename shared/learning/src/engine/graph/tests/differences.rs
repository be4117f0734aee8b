//! Gradients of blocks against central differences of the loss.

use barnraise_protocol::run::model::Size;
use barnraise_protocol::run::model::graph::{Block, Loss, Part};
use barnraise_protocol::run::model::operation::{
    Attention, BatchNorm, ClassToken, Convolution, Cosine, Dense, Dropout, Embedding, Experts, GlobalPool,
    GroupNorm, Initial, LayerNorm, Operation, PickToken, Pool, Positions, Repeat, Reshape, RmsNorm, Rotary,
    Route, Unembedding,
};

use super::*;
use crate::data_shape::RowTarget;
use crate::engine::graph::{GraphTargets, InputValues};
use crate::random::SplitMix64;

/// Central differences of a loss in single precision.
const TOLERANCE: f32 = 1e-2;
/// Step along a direction of norm 1.
const STEP: f32 = 1e-2;
const N_SAMPLES: usize = 6;

fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut random = SplitMix64 { state: seed };
    (0..n).map(|_| random.next_signed_unit()).collect()
}

fn block(name: &str, op: Operation) -> Block {
    Block::new(name, op)
}

fn dense(name: &str, units: u32) -> Block {
    block(name, Operation::Dense(Dense { units: units.into(), bias: true, initial: Initial::Lecun }))
}

/// Rows of 36 values, and two targets.
fn check(name: &str, blocks: Vec<Block>) {
    let data = GraphData::Rows { n_values: 36, target: RowTarget::Values(2) };
    let batch = GraphBatch {
        n_samples: N_SAMPLES,
        inputs: vec![InputValues::Values(values(N_SAMPLES * 36, 1))],
        targets: GraphTargets::Values(values(N_SAMPLES * 2, 2)),
        masked: Vec::new(),
        seeds: (0..N_SAMPLES as u64).collect(),
    };
    check_on(name, blocks, Loss::Regression, data, &batch);
}

/// The gradient of each tensor, along itself. In training mode, so that dropout and batch normalization are in it.
fn check_on(name: &str, blocks: Vec<Block>, loss: Loss, data: GraphData, batch: &GraphBatch) {
    let part = |name: &str, blocks| Part { name: name.to_owned(), blocks };
    let parts = vec![
        part("part", vec![dense("fc", 6), block("act", Operation::Tanh)]),
        part("maps", vec![block("conv", convolution(4, |_| {})), block("act", Operation::Tanh)]),
        part(
            "sequence",
            vec![
                dense("qkv", 12),
                block(
                    "attention",
                    Operation::Attention(Attention {
                        heads: 2,
                        key_value_heads: 0,
                        causal: false,
                        rotary: None,
                        dropout: 0.0,
                    }),
                ),
            ],
        ),
    ];
    let graph = Graph { name: name.to_owned(), parts, blocks, loss };
    let mut engine = engine(&graph, data, 11);
    let layout = engine.graph.layout().clone();
    let parameters = layout.initial_parameters(11);
    let (_, gradient) = pass(&mut engine, batch);
    let (mut got, mut want) = (Vec::new(), Vec::new());
    for segment in layout.trained() {
        let range = segment.range();
        let norm = gradient[range.clone()].iter().map(|value| value * value).sum::<f32>().sqrt();
        let losses = [STEP, -STEP].map(|step| {
            let mut moved = parameters.clone();
            for (value, slope) in moved[range.clone()].iter_mut().zip(&gradient[range.clone()]) {
                *value += step * slope / norm.max(1e-9);
            }
            engine.load(&moved);
            let values = block_on(block_on(engine.step(batch.clone(), Arithmetic::Single))).unwrap();
            let losses = &values[..values.len() / 2];
            let of_sample = losses.len() / batch.n_samples;
            losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / of_sample as f64
        });
        got.push(norm);
        want.push(((losses[0] - losses[1]) / f64::from(2.0 * STEP)) as f32);
    }
    assert_near(name, &got, &want, TOLERANCE);
}

fn convolution(maps: u32, change: impl FnOnce(&mut Convolution)) -> Operation {
    let mut options = Convolution {
        maps,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
        dilation: [1, 1],
        groups: 1,
        bias: true,
        initial: Initial::He,
    };
    change(&mut options);
    Operation::Convolution(options)
}

fn maps() -> Block {
    block("maps", Operation::Reshape(Reshape { shape: vec![4, 3, 3] }))
}

#[test]
fn convolutions() {
    let after = |op| {
        vec![
            maps(),
            block("conv", op),
            block("act", Operation::Silu),
            block("flat", Operation::Flatten),
            dense("fc", 2),
        ]
    };
    check("plain", after(convolution(4, |_| {})));
    check("stride", after(convolution(4, |c| c.stride = [2, 1])));
    check("groups", after(convolution(8, |c| c.groups = 4)));
    check("dilation", after(convolution(4, |c| (c.dilation, c.padding) = ([2, 2], [2, 2]))));
    check("without bias", after(convolution(4, |c| c.bias = false)));
}

#[test]
fn pooling() {
    let after = |op| {
        vec![
            maps(),
            block("conv", convolution(4, |_| {})),
            block("pool", op),
            block("flat", Operation::Flatten),
            dense("fc", 2),
        ]
    };
    let pool = |padding| Pool { kernel: [2, 2], stride: [1, 1], padding };
    check("maximum", after(Operation::MaxPool(pool([0, 0]))));
    check("padded mean", after(Operation::AveragePool(pool([1, 1]))));
    check("global mean", after(Operation::GlobalPool(GlobalPool::Average)));
    check("global maximum", after(Operation::GlobalPool(GlobalPool::Max)));
}

#[test]
fn normalizations() {
    let on_maps = |op| {
        vec![
            maps(),
            block("conv", convolution(4, |_| {})),
            block("norm", op),
            block("flat", Operation::Flatten),
            dense("fc", 2),
        ]
    };
    let batch = BatchNorm { epsilon: 1e-5, momentum: 0.1, running: true };
    check("batch", on_maps(Operation::BatchNorm(batch.clone())));
    check("group", on_maps(Operation::GroupNorm(GroupNorm { groups: 2, epsilon: 1e-5 })));
    let on_rows = |op| vec![dense("fc1", 8), block("norm", op), dense("fc2", 2)];
    check("batch of vectors", on_rows(Operation::BatchNorm(batch)));
    check("layer", on_rows(Operation::LayerNorm(LayerNorm { epsilon: 1e-5, bias: true })));
    check("layer without bias", on_rows(Operation::LayerNorm(LayerNorm { epsilon: 1e-5, bias: false })));
    check("root mean square", on_rows(Operation::RmsNorm(RmsNorm { epsilon: 1e-5 })));
}

#[test]
fn activations() {
    let all = [
        Operation::Gelu,
        Operation::GeluTanh,
        Operation::Silu,
        Operation::Tanh,
        Operation::Sigmoid,
        Operation::Softmax,
        Operation::UnitLength,
        Operation::Bias,
        Operation::Dropout(Dropout { rate: 0.25 }),
        Operation::Cosine(Cosine { units: 5 }),
    ];
    for op in all {
        check(&format!("{op:?}"), vec![dense("fc1", 6), block("x", op), dense("fc2", 2)]);
    }
}

#[test]
fn branches_and_shared_weights() {
    let joined = |op| {
        vec![
            dense("a", 6),
            dense("b", 6).from(&["input"]),
            block("join", op).from(&["a", "b", "a"]),
            dense("fc", 2),
        ]
    };
    check("add", joined(Operation::Add));
    check("multiply", joined(Operation::Multiply));
    check("concat", joined(Operation::Concat));
    let dot = vec![
        dense("a", 6),
        dense("b", 6).from(&["input"]),
        block("dot", Operation::DotProduct).from(&["a", "b"]),
        dense("fc", 2),
    ];
    check("dot product", dot);
    check("shared", vec![dense("a", 36), dense("b", 36).sharing("a"), dense("fc", 2)]);
    let repeat = |share| {
        let repeat = Repeat { part: "part".to_owned(), times: 3, first: 0, share };
        vec![dense("in", 6), block("h", Operation::Repeat(repeat)), dense("fc", 2)]
    };
    check("repeated", repeat(false));
    check("repeated and shared", repeat(true));
}

fn attention(heads: u32, key_value_heads: u32, causal: bool, rotary: bool) -> Operation {
    let rotary = rotary.then_some(Rotary { theta: 100.0, scaling: None });
    let dropout = if causal { 0.25 } else { 0.0 };
    Operation::Attention(Attention { heads, key_value_heads, causal, rotary, dropout })
}

#[test]
fn tokens() {
    let tokens = |middle: Vec<Block>, last: Operation| {
        let mut blocks = vec![block("tokens", Operation::Reshape(Reshape { shape: vec![6, 6] }))];
        blocks.extend(middle);
        blocks.extend([block("last", last), dense("fc", 2)]);
        blocks
    };
    let initial = Initial::Uniform(0.3);
    let first = || Operation::PickToken(PickToken { index: 0 });
    let positions = vec![
        block("class", Operation::ClassToken(ClassToken { initial })),
        block("at", Operation::Positions(Positions { initial })),
        dense("fc0", 4),
        block("act", Operation::Tanh),
    ];
    check("positions and class token", tokens(positions, first()));
    check("mean", tokens(vec![dense("fc0", 4), block("act", Operation::Tanh)], Operation::MeanTokens));
    for (heads, key_value_heads, causal, rotary) in
        [(2, 0, false, false), (2, 0, true, false), (4, 2, true, true), (4, 1, false, true)]
    {
        let groups = if key_value_heads == 0 { heads } else { key_value_heads };
        let packed = vec![
            dense("qkv", (heads + 2 * groups) * 4),
            block("attention", attention(heads, key_value_heads, causal, rotary)),
        ];
        let name = format!("{heads} heads, {groups} of keys, causal {causal}, rotary {rotary}");
        check(&name, tokens(packed, Operation::PickToken(PickToken { index: 3 })));
    }
}

#[test]
fn language_models() {
    let data = GraphData::Tokens { length: 6, vocabulary: 11, n_masked: 2 };
    let ids: Vec<u32> = (0..N_SAMPLES as u32 * 6).map(|at| (at * at + 3) % 11).collect();
    let initial = Initial::Uniform(0.5);
    let embedding = Embedding { rows: Size::Vocabulary, width: 8, initial };
    let model = |extra: Option<Operation>, bias| {
        let mut blocks = vec![
            block("wte", Operation::Embedding(embedding.clone())),
            block("wpe", Operation::Positions(Positions { initial })),
            dense("qkv", 24),
            block("attention", attention(2, 0, true, false)),
        ];
        blocks.extend(extra.map(|op| block("extra", op)));
        blocks.push(block("head", Operation::Unembedding(Unembedding { bias })).sharing("wte"));
        blocks
    };
    let batch = |classes, masked| GraphBatch {
        n_samples: N_SAMPLES,
        inputs: vec![InputValues::Ids(ids.clone())],
        targets: GraphTargets::Classes(classes),
        masked,
        seeds: Vec::new(),
    };
    let next: Vec<u32> = ids.chunks(6).flat_map(|sequence| &sequence[1..]).copied().collect();
    let causal = batch(next, Vec::new());
    check_on("causal", model(None, false), Loss::CausalLanguageModel, data, &causal);
    let at: Vec<u32> = (0..N_SAMPLES as u32).flat_map(|sample| [sample * 6 + 1, sample * 6 + 4]).collect();
    let masked = batch(at.iter().map(|&at| ids[at as usize]).collect(), at);
    let blocks = model(Some(Operation::PickMasked), true);
    check_on("masked", blocks, Loss::MaskedLanguageModel, data, &masked);
}

#[test]
fn ratings() {
    let data = GraphData::Ratings { n_users: 4, n_items: 5 };
    let batch = GraphBatch {
        n_samples: N_SAMPLES,
        inputs: vec![InputValues::Ids(vec![0, 1, 2, 3, 0, 1]), InputValues::Ids(vec![4, 3, 2, 1, 0, 0])],
        targets: GraphTargets::Values(vec![1.0, 2.0, 3.0, 4.0, 5.0, 3.0]),
        masked: Vec::new(),
        seeds: Vec::new(),
    };
    let graph = barnraise_protocol::run::Preset::MatrixFactorization { factors: 3 }.graph();
    check_on("ratings", graph.blocks, graph.loss, data, &batch);
}

/// Experts of every kind. All of them are active, or choices would change between the two sides of a difference.
#[test]
fn mixtures_of_experts() {
    let experts = |part: &str, change: fn(&mut Experts)| {
        let mut options = Experts {
            part: part.to_owned(),
            side: 2,
            dimensions: 2,
            active: 4,
            route: Route::Token,
            capacity: 0.0,
            balance: 0.0,
            jitter: 0.0,
        };
        change(&mut options);
        block("experts", Operation::Experts(options))
    };
    let tokens = || block("tokens", Operation::Reshape(Reshape { shape: vec![6, 6] }));
    let after = |first: Block, experts| {
        vec![dense("first", 36), first, experts, block("flat", Operation::Flatten), dense("fc", 2)]
    };
    let by_sample = |options: &mut Experts| options.route = Route::Sample;
    check("experts of tokens", after(tokens(), experts("part", |_| {})));
    check("jitter", after(tokens(), experts("part", |options| options.jitter = 0.25)));
    check("experts of samples", after(maps(), experts("maps", by_sample)));
    check("experts with attention", after(tokens(), experts("sequence", by_sample)));
}
