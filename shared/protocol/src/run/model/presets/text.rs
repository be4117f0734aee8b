//! Transformers for text.

use crate::run::model::Size;
use crate::run::model::graph::{Block, Graph, INPUT, Loss, Part};
use crate::run::model::operation::{
    Attention, Dropout, Embedding, Experts, Initial, Operation, Positions, Repeat, RmsNorm, Rotary, Route,
    Unembedding,
};

use super::{Albert, Gpt, GptExperts, dense, layer_norm, layers_of};

/// `0.02 * sqrt(3)`: the bound of a uniform distribution with the standard deviation that BERT and GPT-2 begin with.
pub(super) const NORMAL_002: f32 = 0.034_641_016;
/// Of ALBERT's normalizations. The paper has 1e-12, which single precision does not see.
const ALBERT_EPSILON: f32 = 1e-6;
/// Name of the part that is repeated.
const LAYER: &str = "layer";
/// Name of the part that is an expert.
const EXPERT: &str = "expert";
/// Weight of the loss that balances experts, as in Mixtral's configuration by default and in Fedus et al. 2021, about.
const BALANCE: f32 = 0.01;

fn add(name: &str, from: [&str; 2]) -> Block {
    Block::new(name, Operation::Add).from(&from)
}

fn embedding(name: &str, width: u32) -> Block {
    let initial = Initial::Uniform(NORMAL_002);
    Block::new(name, Operation::Embedding(Embedding { rows: Size::Vocabulary, width, initial }))
}

fn positions(name: &str) -> Block {
    Block::new(name, Operation::Positions(Positions { initial: Initial::Uniform(NORMAL_002) }))
}

fn unembedding(name: &str, bias: bool, table: &str) -> Block {
    Block::new(name, Operation::Unembedding(Unembedding { bias })).sharing(table)
}

fn layers(name: &str, times: u32, share: bool) -> Block {
    Block::new(name, Operation::Repeat(Repeat { part: LAYER.to_owned(), times, first: 0, share }))
}

/// Post-norm as in the paper; no segment embedding and no dropout.
pub(super) fn albert(options: Albert) -> Graph {
    let Albert { embedding: width, hidden, heads, inner, layers: times } = options;
    let linear = |name: &str, units: u32| dense(name, units, true, Initial::Lecun);
    let norm = |name: &str| layer_norm(name, ALBERT_EPSILON);
    let attention = Attention { heads, key_value_heads: 0, causal: false, rotary: None, dropout: 0.0 };
    let layer = vec![
        linear("attention.query", hidden).from(&[INPUT]),
        linear("attention.key", hidden).from(&[INPUT]),
        linear("attention.value", hidden).from(&[INPUT]),
        Block::new("attention", Operation::Attention(attention)).from(&[
            "attention.query",
            "attention.key",
            "attention.value",
        ]),
        linear("attention.dense", hidden),
        add("attention.add", ["attention.dense", INPUT]),
        norm("attention.LayerNorm"),
        linear("ffn", inner),
        Block::new("activation", Operation::Gelu),
        linear("ffn_output", hidden),
        add("add", ["ffn_output", "attention.LayerNorm"]),
        norm("full_layer_layer_norm"),
    ];
    let table = "albert.embeddings.word_embeddings";
    let blocks = vec![
        embedding(table, width),
        positions("albert.embeddings.position_embeddings"),
        norm("albert.embeddings.LayerNorm"),
        linear("albert.encoder.embedding_hidden_mapping_in", hidden),
        layers("albert.encoder.albert_layer_groups.0.albert_layers.0", times, true),
        Block::new("masked", Operation::PickMasked),
        linear("predictions.dense", width),
        Block::new("predictions.activation", Operation::Gelu),
        norm("predictions.LayerNorm"),
        unembedding("predictions", true, table),
    ];
    let parts = vec![Part { name: LAYER.to_owned(), blocks: layer }];
    let name = format!("ALBERT, one layer of {hidden} units applied {times} times");
    Graph { name, parts, blocks, loss: Loss::MaskedLanguageModel }
}

/// Units of the feed-forward part.
fn inner(options: Gpt) -> u32 {
    if options.inner == 0 { options.width.saturating_mul(4) } else { options.inner }
}

fn causal(options: Gpt, rotary: Option<Rotary>) -> Operation {
    let Gpt { heads, key_value_heads, dropout, .. } = options;
    Operation::Attention(Attention { heads, key_value_heads, causal: true, rotary, dropout })
}

/// A mixture of experts as a block.
fn mixture(name: &str, options: GptExperts) -> Block {
    let GptExperts { side, dimensions, active } = options;
    let (part, route) = (EXPERT.to_owned(), Route::Token);
    let op = Experts { part, side, dimensions, active, route, capacity: 0.0, balance: BALANCE, jitter: 0.0 };
    Block::new(name, Operation::Experts(op))
}

/// The parts of a transformer, and its name for people.
fn parts(family: &str, options: Gpt, expert: Vec<Block>, layer: Vec<Block>) -> (Vec<Part>, String) {
    let name = layers_of(family, options.layers, options.width);
    let part = |name: &str, blocks| Part { name: name.to_owned(), blocks };
    match options.experts {
        Some(GptExperts { side, dimensions, .. }) => {
            let n_experts = u64::from(side).saturating_pow(dimensions);
            (vec![part(EXPERT, expert), part(LAYER, layer)], format!("{name} and {n_experts} experts each"))
        }
        None => (vec![part(LAYER, layer)], name),
    }
}

/// Pre-norm; weights before a residual begin smaller by the root of the number of residuals. Heads of keys and values
/// are as many as those of queries.
pub(super) fn gpt2(options: Gpt) -> Graph {
    let options = Gpt { key_value_heads: 0, ..options };
    let Gpt { width, layers: times, dropout: rate, .. } = options;
    let linear = |name: &str, units: u32| dense(name, units, true, Initial::Uniform(NORMAL_002));
    let n_residuals = times.saturating_mul(2).max(1);
    let scaled = Initial::Uniform(NORMAL_002 / (n_residuals as f32).sqrt());
    let norm = |name: &str| layer_norm(name, options.epsilon);
    let dropout = |name: &str| (rate > 0.0).then(|| Block::new(name, Operation::Dropout(Dropout { rate })));
    let expert = vec![
        linear("c_fc", inner(options)),
        Block::new("act", Operation::GeluTanh),
        dense("c_proj", width, true, scaled),
    ];
    let feed_forward = match options.experts {
        Some(experts) => vec![mixture("mlp", experts)],
        None => vec![
            linear("mlp.c_fc", inner(options)),
            Block::new("mlp.act", Operation::GeluTanh),
            dense("mlp.c_proj", width, true, scaled),
        ],
    };
    let last = if options.experts.is_some() { "mlp" } else { "mlp.c_proj" };
    let before = [
        Some(norm("ln_1")),
        Some(linear("attn.c_attn", width.saturating_mul(3))),
        Some(Block::new("attn", causal(options, None))),
        Some(dense("attn.c_proj", width, true, scaled)),
        dropout("attn.resid_dropout"),
        Some(add("add_1", [if rate > 0.0 { "attn.resid_dropout" } else { "attn.c_proj" }, INPUT])),
        Some(norm("ln_2")),
    ];
    let after = [
        dropout("mlp.dropout"),
        Some(add("add_2", [if rate > 0.0 { "mlp.dropout" } else { last }, "add_1"])),
    ];
    let layer = before.into_iter().flatten().chain(feed_forward).chain(after.into_iter().flatten());
    let table = "transformer.wte";
    let blocks = [
        Some(embedding(table, width)),
        Some(positions("transformer.wpe")),
        dropout("transformer.drop"),
        Some(layers("transformer.h", times, false)),
        Some(norm("transformer.ln_f")),
        Some(unembedding("lm_head", false, table)),
    ];
    let (parts, name) = parts("GPT-2", options, expert, layer.collect());
    let blocks = blocks.into_iter().flatten().collect();
    Graph { name, parts, blocks, loss: Loss::CausalLanguageModel }
}

/// Pre-norm, SwiGLU, no biases but those of queries, keys and values where there are such.
pub(super) fn llama(options: Gpt) -> Graph {
    let Gpt { width, layers: times, heads, key_value_heads, epsilon, untied, .. } = options;
    let rotary = Rotary { theta: options.theta, scaling: options.rotary_scaling };
    let linear = |name: &str, units: u32| dense(name, units, false, Initial::Uniform(NORMAL_002));
    let attended = |name: &str, units: u32| {
        dense(name, units, options.attention_bias, Initial::Uniform(NORMAL_002)).from(&["input_layernorm"])
    };
    let norm = |name: &str| Block::new(name, Operation::RmsNorm(RmsNorm { epsilon }));
    // With no heads resolving refuses the attention.
    let head_width = width.checked_div(heads).unwrap_or(width);
    let n_key_value = if key_value_heads == 0 { heads } else { key_value_heads };
    let key_value = n_key_value.saturating_mul(head_width);
    let expert = vec![
        linear("w1", inner(options)),
        Block::new("act", Operation::Silu),
        linear("w3", inner(options)).from(&[INPUT]),
        Block::new("product", Operation::Multiply).from(&["act", "w3"]),
        linear("w2", width),
    ];
    let (feed_forward, last) = match options.experts {
        Some(experts) => (vec![mixture("block_sparse_moe", experts)], "block_sparse_moe"),
        None => (
            vec![
                linear("mlp.gate_proj", inner(options)),
                Block::new("mlp.act", Operation::Silu),
                linear("mlp.up_proj", inner(options)).from(&["post_attention_layernorm"]),
                Block::new("mlp.gate", Operation::Multiply).from(&["mlp.act", "mlp.up_proj"]),
                linear("mlp.down_proj", width),
            ],
            "mlp.down_proj",
        ),
    };
    let mut layer = vec![
        norm("input_layernorm"),
        attended("self_attn.q_proj", width),
        attended("self_attn.k_proj", key_value),
        attended("self_attn.v_proj", key_value),
        Block::new("self_attn", causal(options, Some(rotary))).from(&[
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
        ]),
        linear("self_attn.o_proj", width),
        add("add_1", ["self_attn.o_proj", INPUT]),
        norm("post_attention_layernorm"),
    ];
    layer.extend(feed_forward);
    layer.push(add("add_2", [last, "add_1"]));
    let table = "model.embed_tokens";
    let blocks = vec![
        embedding(table, width),
        layers("model.layers", times, false),
        norm("model.norm"),
        match untied {
            true => dense("lm_head", Size::Vocabulary, false, Initial::Uniform(NORMAL_002)),
            false => unembedding("lm_head", false, table),
        },
    ];
    let (parts, name) = parts("Llama", options, expert, layer);
    Graph { name, parts, blocks, loss: Loss::CausalLanguageModel }
}
