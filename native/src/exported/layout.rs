//! Tensors and configuration as PyTorch and `transformers` have them.
//!
//! A linear layer of PyTorch has its weight as `[out, in]`, ours and GPT-2's as `[in, out]`.

use std::collections::BTreeSet;

use barnraise_learning::graph::{ResolvedGraph, TensorPlace};
use barnraise_learning::{DataShape, ModelError, ParameterLayout};
use barnraise_protocol::dataset::{SampleKind, TokenShape};
use barnraise_protocol::run::model::graph::Graph;
use barnraise_protocol::run::model::operation::Operation;
use barnraise_protocol::run::model::presets::{Gpt, GptFamily};
use barnraise_protocol::run::{Preset, RunDescription};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::{Value, json};

/// Why the tensors cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub(super) enum LayoutError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("not a safetensors file: {0}")]
    Format(#[from] SafeTensorError),
    #[error("tensor `{name}` is {got}, f32 {want:?} is wanted")]
    Tensor { name: String, want: Vec<usize>, got: String },
    #[error("a value of `{name}` is not finite")]
    NotFinite { name: String },
}

/// Tensors by their names, row-major.
pub(super) struct NamedTensors(Vec<(String, Vec<usize>, Vec<u8>)>);

impl NamedTensors {
    /// As a safetensors file.
    pub(super) fn encode(&self, epoch: u64) -> Result<Vec<u8>, LayoutError> {
        let views = self.0.iter().map(|(name, shape, bytes)| {
            TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name.as_str(), view))
        });
        let views: Vec<_> = views.collect::<Result<_, _>>()?;
        // `transformers` asks for the format.
        let notes = [("format".to_owned(), "pt".to_owned()), ("epoch".to_owned(), epoch.to_string())];
        Ok(safetensors::serialize(views, Some(notes.into_iter().collect()))?)
    }
}

/// The flat parameters as tensors of the field.
pub(super) fn tensors(run: &RunDescription, parameters: &[f32]) -> Result<NamedTensors, ModelError> {
    let (layout, turned) = resolved(run)?;
    let named = layout.segments().iter().enumerate().map(|(index, segment)| {
        let values = &parameters[segment.range()];
        let (shape, values) = match (turned.contains(&index), &segment.shape[..]) {
            (true, &[rows, columns]) => (vec![columns, rows], transposed(values, [rows, columns])),
            (_, shape) => (shape.to_vec(), values.to_vec()),
        };
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        (segment.name.clone(), shape, bytes)
    });
    Ok(NamedTensors(named.collect()))
}

/// The flat parameters of a file that [`tensors`] made.
pub(super) fn parameters(run: &RunDescription, file: &[u8]) -> Result<Vec<f32>, LayoutError> {
    let (layout, turned) = resolved(run)?;
    let file = SafeTensors::deserialize(file)?;
    let mut flat = Vec::with_capacity(layout.n_parameters());
    for (index, segment) in layout.segments().iter().enumerate() {
        let tensor = file.tensor(&segment.name)?;
        let is_turned = turned.contains(&index);
        let want = match (is_turned, &segment.shape[..]) {
            (true, &[rows, columns]) => vec![columns, rows],
            (_, shape) => shape.to_vec(),
        };
        if (tensor.dtype(), tensor.shape()) != (Dtype::F32, &want[..]) {
            let got = format!("{} {:?}", tensor.dtype(), tensor.shape());
            return Err(LayoutError::Tensor { name: segment.name.clone(), want, got });
        }
        let (values, _) = tensor.data().as_chunks::<4>();
        let values: Vec<f32> = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if values.iter().any(|value| !value.is_finite()) {
            return Err(LayoutError::NotFinite { name: segment.name.clone() });
        }
        match (is_turned, &want[..]) {
            (true, &[rows, columns]) => flat.extend(transposed(&values, [rows, columns])),
            _ => flat.extend(values),
        }
    }
    Ok(flat)
}

/// The layout, and the segments that PyTorch has the other way round.
fn resolved(run: &RunDescription) -> Result<(ParameterLayout, BTreeSet<usize>), ModelError> {
    let graph = ResolvedGraph::of_model(&run.model, DataShape::of(&run.data.manifest.samples))?;
    let mut turned = BTreeSet::new();
    if !matches!(gpt_of(&run.model.graph), Some(Gpt { family: GptFamily::Gpt2, .. })) {
        for step in graph.steps() {
            if let (Operation::Dense(_), Some(&TensorPlace::Trained(weight))) =
                (&step.op, step.parameters.first())
            {
                turned.insert(weight);
            }
        }
    }
    Ok((graph.layout().clone(), turned))
}

fn transposed(values: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    (0..rows * columns).map(|at| values[at % rows * columns + at / rows]).collect()
}

/// `config.json` of `transformers`; `None` where it has no such model.
///
/// - `separator`: the id that stands between documents
pub(super) fn config(run: &RunDescription, separator: Option<u16>) -> Option<Value> {
    let SampleKind::Tokens(TokenShape { length, vocabulary, .. }) = run.data.manifest.samples else {
        return None;
    };
    let gpt = gpt_of(&run.model.graph)?;
    let Gpt { family, width, layers, heads, key_value_heads, inner, dropout, .. } = gpt;
    let ends = json!({
        "vocab_size": vocabulary,
        "bos_token_id": separator,
        "eos_token_id": separator,
        "tie_word_embeddings": !gpt.untied,
        "dtype": "float32",
    });
    let of_family = match family {
        GptFamily::Gpt2 => json!({
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_positions": length,
            "n_embd": width,
            "n_layer": layers,
            "n_head": heads,
            "n_inner": inner,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": shortest(gpt.epsilon),
            "resid_pdrop": dropout,
            "embd_pdrop": dropout,
            "attn_pdrop": dropout,
        }),
        GptFamily::Llama => json!({
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "max_position_embeddings": length,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": key_value_heads,
            "intermediate_size": inner,
            "hidden_act": "silu",
            "rms_norm_eps": shortest(gpt.epsilon),
            "rope_theta": shortest(gpt.theta),
            "attention_bias": false,
            "mlp_bias": false,
            "attention_dropout": dropout,
        }),
    };
    let (Value::Object(mut config), Value::Object(ends)) = (of_family, ends) else { return None };
    config.extend(ends);
    Some(Value::Object(config))
}

/// The number that a person would write for it.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}

/// The options of the preset that a graph is, all of them written out; `None` where it is another graph.
fn gpt_of(graph: &Graph) -> Option<Gpt> {
    let blocks = || graph.parts.iter().flat_map(|part| &part.blocks).chain(&graph.blocks);
    let found = |want: &str| blocks().find(|block| block.name == want).map(|block| &block.op);
    let attention = blocks().find_map(|block| match &block.op {
        Operation::Attention(options) => Some(options),
        _ => None,
    })?;
    let layers = blocks().find_map(|block| match &block.op {
        Operation::Repeat(repeat) => Some(repeat.times),
        _ => None,
    })?;
    [
        (GptFamily::Gpt2, "transformer.wte", "mlp.c_fc"),
        (GptFamily::Llama, "model.embed_tokens", "mlp.gate_proj"),
    ]
    .into_iter()
    .find_map(|(family, table, inner)| {
        let Operation::Embedding(table) = found(table)? else { return None };
        let Operation::Dense(inner) = found(inner)? else { return None };
        let barnraise_protocol::run::model::Size::Fixed(inner) = inner.units else { return None };
        let epsilon = match found("ln_1").or_else(|| found("input_layernorm"))? {
            Operation::LayerNorm(norm) => norm.epsilon,
            Operation::RmsNorm(norm) => norm.epsilon,
            _ => return None,
        };
        let heads = attention.heads;
        let key_value_heads = if attention.key_value_heads == 0 { heads } else { attention.key_value_heads };
        let width = table.width;
        let gpt = Gpt {
            key_value_heads,
            inner,
            dropout: attention.dropout,
            epsilon,
            theta: attention.rotary.map_or(10_000.0, |rotary| rotary.theta),
            untied: matches!(found("lm_head"), Some(Operation::Dense(_))),
            ..Gpt::new(family, width, layers, heads)
        };
        // The heads of keys may have been left out.
        let same = [gpt, Gpt { key_value_heads: 0, ..gpt }].into_iter().any(|gpt| {
            let preset = Preset::Gpt(gpt).graph();
            (preset.parts, preset.blocks, preset.loss)
                == (graph.parts.clone(), graph.blocks.clone(), graph.loss.clone())
        });
        same.then_some(gpt)
    })
}
