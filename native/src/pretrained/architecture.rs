//! `config.json` of `transformers` as a preset.

use std::fmt::Display;

use barnraise_protocol::dataset::SEQUENCE_TOKENS;
use barnraise_protocol::run::Preset;
use barnraise_protocol::run::model::operation::RotaryScaling;
use barnraise_protocol::run::model::presets::{Gpt, GptFamily, ResNet};
use serde::Deserialize;
use serde_json::Value;

/// Why a model has no preset.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ArchitectureError {
    /// Another kind.
    #[error("model_type {got} is not supported: gpt2, llama, mistral, qwen2 and resnet are")]
    Kind {
        /// What came.
        got: String,
    },
    /// A value that is missing, or of another type.
    #[error("{0}")]
    Value(String),
    /// A value that the preset does not have.
    #[error("{key} must be {want}, it is {got}")]
    Option {
        /// Its name.
        key: &'static str,
        /// What is supported.
        want: &'static str,
        /// What came.
        got: String,
    },
}

#[derive(Deserialize)]
struct Gpt2Config {
    n_embd: u32,
    n_layer: u32,
    n_head: u32,
    n_inner: Option<u32>,
    #[serde(default = "gelu")]
    activation_function: String,
    #[serde(default = "epsilon")]
    layer_norm_epsilon: f32,
    #[serde(default)]
    attn_pdrop: f32,
    #[serde(default)]
    resid_pdrop: f32,
    #[serde(default)]
    embd_pdrop: f32,
    #[serde(default)]
    scale_attn_by_inverse_layer_idx: bool,
}

#[derive(Deserialize)]
struct LlamaConfig {
    hidden_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    intermediate_size: u32,
    #[serde(default = "silu")]
    hidden_act: String,
    #[serde(default = "llama_epsilon")]
    rms_norm_eps: f32,
    rope_theta: Option<f32>,
    rope_scaling: Option<RopeParameters>,
    rope_parameters: Option<RopeParameters>,
    /// Of Mistral, and of Qwen 2 where it says so: a token sees so many before it.
    sliding_window: Option<u32>,
    #[serde(default)]
    use_sliding_window: Option<bool>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    attention_dropout: f32,
}

#[derive(Deserialize)]
struct RopeParameters {
    rope_theta: Option<f32>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<u32>,
}

#[derive(Deserialize)]
struct ResNetConfig {
    depths: Vec<u32>,
    hidden_sizes: Vec<u32>,
    embedding_size: u32,
    layer_type: String,
    #[serde(default)]
    downsample_in_first_stage: bool,
    #[serde(default)]
    downsample_in_bottleneck: bool,
}

fn gelu() -> String {
    "gelu_new".to_owned()
}

fn silu() -> String {
    "silu".to_owned()
}

fn epsilon() -> f32 {
    1e-5
}

fn llama_epsilon() -> f32 {
    1e-6
}

/// The preset that a configuration describes.
pub(super) fn preset(config: &Value) -> Result<Preset, ArchitectureError> {
    match config.get("model_type").and_then(Value::as_str) {
        Some("gpt2") => gpt2(&read(config)?).map(Preset::Gpt),
        Some("llama" | "mistral") => llama(&read(config)?).map(Preset::Gpt),
        Some("qwen2") => {
            let preset = llama(&read(config)?)?;
            Ok(Preset::Gpt(Gpt { attention_bias: true, ..preset }))
        }
        Some("resnet") => resnet(&read(config)?),
        got => Err(ArchitectureError::Kind { got: got.unwrap_or("(none)").to_owned() }),
    }
}

fn read<'de, T: Deserialize<'de>>(config: &'de Value) -> Result<T, ArchitectureError> {
    T::deserialize(config).map_err(|error| ArchitectureError::Value(error.to_string()))
}

fn check(
    key: &'static str,
    good: bool,
    want: &'static str,
    got: &dyn Display,
) -> Result<(), ArchitectureError> {
    if good { Ok(()) } else { Err(ArchitectureError::Option { key, want, got: got.to_string() }) }
}

fn gpt2(config: &Gpt2Config) -> Result<Gpt, ArchitectureError> {
    let activation = &config.activation_function;
    let is_tanh = matches!(&activation[..], "gelu_new" | "gelu_pytorch_tanh");
    check("activation_function", is_tanh, "gelu_new", activation)?;
    let scales = config.scale_attn_by_inverse_layer_idx;
    check("scale_attn_by_inverse_layer_idx", !scales, "false", &scales)?;
    let rates = [config.attn_pdrop, config.resid_pdrop, config.embd_pdrop];
    // A preset has one rate.
    let dropout = if rates.iter().all(|rate| *rate == rates[0]) { rates[0] } else { 0.0 };
    Ok(Gpt {
        inner: config.n_inner.unwrap_or(0),
        dropout,
        epsilon: config.layer_norm_epsilon,
        ..Gpt::new(GptFamily::Gpt2, config.n_embd, config.n_layer, config.n_head)
    })
}

fn llama(config: &LlamaConfig) -> Result<Gpt, ArchitectureError> {
    check("hidden_act", config.hidden_act == "silu", "silu", &config.hidden_act)?;
    check("attention_bias", !config.attention_bias, "false", &config.attention_bias)?;
    check("mlp_bias", !config.mlp_bias, "false", &config.mlp_bias)?;
    let heads = config.num_attention_heads;
    let width = config.hidden_size.checked_div(heads);
    if let Some(head_dim) = config.head_dim {
        check("head_dim", Some(head_dim) == width, "hidden_size / num_attention_heads", &head_dim)?;
    }
    if let Some(window) = config.sliding_window.filter(|_| config.use_sliding_window != Some(false)) {
        let longest = u32::from(*SEQUENCE_TOKENS.end());
        check(
            "sliding_window",
            window >= longest,
            "null, or longer than a sequence of 1024 tokens",
            &window,
        )?;
    }
    let rope = config.rope_parameters.as_ref().or(config.rope_scaling.as_ref());
    let rotary_scaling = rope.map(scaling).transpose()?.flatten();
    let theta = rope.and_then(|rope| rope.rope_theta).or(config.rope_theta);
    let new = Gpt::new(GptFamily::Llama, config.hidden_size, config.num_hidden_layers, heads);
    Ok(Gpt {
        key_value_heads: config.num_key_value_heads.unwrap_or(0),
        inner: config.intermediate_size,
        dropout: config.attention_dropout,
        epsilon: config.rms_norm_eps,
        theta: theta.unwrap_or(new.theta),
        rotary_scaling,
        untied: !config.tie_word_embeddings,
        ..new
    })
}

fn scaling(rope: &RopeParameters) -> Result<Option<RotaryScaling>, ArchitectureError> {
    match rope.rope_type.as_deref() {
        None | Some("default") => Ok(None),
        Some("llama3") => {
            let missing =
                |name| move || ArchitectureError::Value(format!("llama3's rotary embedding has no {name}"));
            let original_tokens = rope.original_max_position_embeddings;
            Ok(Some(RotaryScaling {
                factor: rope.factor.ok_or_else(missing("factor"))?,
                low_frequency: rope.low_freq_factor.ok_or_else(missing("low_freq_factor"))?,
                high_frequency: rope.high_freq_factor.ok_or_else(missing("high_freq_factor"))?,
                original_tokens: original_tokens.ok_or_else(missing("original_max_position_embeddings"))?,
            }))
        }
        Some(other) => Err(ArchitectureError::Option {
            key: "rope_type",
            want: "default or llama3",
            got: other.to_owned(),
        }),
    }
}

fn resnet(config: &ResNetConfig) -> Result<Preset, ArchitectureError> {
    let width = config.embedding_size;
    let first = config.downsample_in_first_stage;
    check("downsample_in_first_stage", !first, "false", &first)?;
    let in_bottleneck = config.downsample_in_bottleneck;
    check("downsample_in_bottleneck", !in_bottleneck, "false", &in_bottleneck)?;
    let options = ResNet { width, ..ResNet::default() };
    let (preset, expansion) = match (&config.layer_type[..], &config.depths[..]) {
        ("basic", [2, 2, 2, 2]) => (Preset::ResNet18(options), 1),
        ("bottleneck", [3, 4, 6, 3]) => (Preset::ResNet50(options), 4),
        _ => {
            let (want, got) = ("[2, 2, 2, 2] of basic or [3, 4, 6, 3] of bottleneck layers", &config.depths);
            let got = format!("{got:?} of {}", config.layer_type);
            return Err(ArchitectureError::Option { key: "depths", want, got });
        }
    };
    let sizes = [1, 2, 4, 8].map(|times: u32| width.saturating_mul(times * expansion));
    let want = "embedding_size times 1, 2, 4 and 8, and times 4 of bottleneck layers";
    check("hidden_sizes", config.hidden_sizes == sizes, want, &format!("{:?}", config.hidden_sizes))?;
    Ok(preset)
}
