//! What `transformers` reads beside the tensors: `config.json`, and of pictures `preprocessor_config.json`. Pure.

use barnraise_learning::{PIXEL_MEAN, PIXEL_STD};
use barnraise_protocol::dataset::{ImageShape, SampleKind, TokenShape};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::run::model::presets::{Albert, Gpt, GptExperts, GptFamily, ResNet};
use serde_json::{Map, Value, json};

use super::architecture::{Architecture, ResNetDepth};

/// Added to the variance in layers of ALBERT.
const ALBERT_EPSILON: f64 = 1e-6;
/// Bilinear, in the numbers of Pillow.
const BILINEAR: u32 = 2;

/// The class of `transformers` that loads a folder by itself.
pub(super) fn auto_class(run: &RunDescription) -> Option<&'static str> {
    let architecture = Architecture::of(&run.model.graph).filter(Architecture::is_of_transformers)?;
    Some(match architecture {
        Architecture::Gpt(_) => "AutoModelForCausalLM",
        Architecture::Albert(_) => "AutoModelForMaskedLM",
        Architecture::ResNet(..) => "AutoModelForImageClassification",
    })
}

/// `config.json`; `None` where `transformers` has no such model.
///
/// - `separator`: the id that stands between documents of a text
pub(super) fn config(run: &RunDescription, separator: Option<u32>) -> Option<Value> {
    let architecture = Architecture::of(&run.model.graph).filter(Architecture::is_of_transformers)?;
    match (architecture, &run.data.manifest.samples) {
        (Architecture::Gpt(gpt), SampleKind::Tokens(tokens)) => Some(of_gpt(gpt, *tokens, separator)),
        (Architecture::Albert(albert), SampleKind::Tokens(tokens)) => {
            Some(of_albert(albert, *tokens, separator))
        }
        (Architecture::ResNet(depth, options), SampleKind::Images { shape, class_names }) => {
            Some(of_resnet(depth, options, *shape, class_names))
        }
        _ => None,
    }
}

/// `preprocessor_config.json` of pictures: how a photo becomes values. Data without photos has none.
pub(super) fn preprocessor(run: &RunDescription) -> Option<Value> {
    let SampleKind::Images { shape, .. } = run.data.manifest.samples else { return None };
    let each = |value: f32| vec![exact(value); shape.channels.into()];
    Some(json!({
        "image_processor_type": "ViTImageProcessor",
        "do_resize": true,
        "size": { "height": shape.height, "width": shape.width },
        "resample": BILINEAR,
        "do_rescale": true,
        "rescale_factor": 1.0 / 255.0,
        "do_normalize": true,
        "image_mean": each(PIXEL_MEAN),
        "image_std": each(PIXEL_STD),
    }))
}

/// The shortest number that is this one in single precision.
fn exact(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}

/// What configurations of text have in common.
fn of_text(tokens: TokenShape, separator: Option<u32>, is_tied: bool, more: Value) -> Value {
    let ends = json!({
        "vocab_size": tokens.vocabulary,
        "bos_token_id": separator,
        "eos_token_id": separator,
        "pad_token_id": null,
        "tie_word_embeddings": is_tied,
        "dtype": "float32",
    });
    let parts = [more, ends].into_iter().filter_map(|part| match part {
        Value::Object(part) => Some(part),
        _ => None,
    });
    parts.flatten().collect::<Map<_, _>>().into()
}

fn of_gpt(gpt: Gpt, tokens: TokenShape, separator: Option<u32>) -> Value {
    let Gpt {
        family,
        width,
        layers,
        heads,
        key_value_heads,
        inner,
        dropout,
        epsilon,
        theta,
        rotary_scaling,
        attention_bias,
        untied,
        experts,
    } = gpt;
    let mut config = match family {
        GptFamily::Gpt2 => json!({
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_positions": tokens.length,
            "n_embd": width,
            "n_layer": layers,
            "n_head": heads,
            "n_inner": inner,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": exact(epsilon),
            "resid_pdrop": dropout,
            "embd_pdrop": dropout,
            "attn_pdrop": dropout,
        }),
        GptFamily::Llama => json!({
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "max_position_embeddings": tokens.length,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": key_value_heads,
            "intermediate_size": inner,
            "hidden_act": "silu",
            "rms_norm_eps": exact(epsilon),
            "rope_theta": exact(theta),
            "attention_bias": false,
            "mlp_bias": false,
            "attention_dropout": dropout,
        }),
    };
    if let (Some(scaling), Value::Object(config)) = (rotary_scaling, &mut config) {
        let scaling = json!({
            "rope_type": "llama3",
            "rope_theta": exact(theta),
            "factor": exact(scaling.factor),
            "low_freq_factor": exact(scaling.low_frequency),
            "high_freq_factor": exact(scaling.high_frequency),
            "original_max_position_embeddings": scaling.original_tokens,
        });
        config.insert("rope_scaling".to_owned(), scaling);
    }
    if let (true, Value::Object(config)) = (attention_bias, &mut config) {
        // All of its kind have these biases.
        config.remove("attention_bias");
        config.insert("model_type".to_owned(), "qwen2".into());
        config.insert("architectures".to_owned(), json!(["Qwen2ForCausalLM"]));
    }
    if let (Some(GptExperts { side, active, .. }), Value::Object(config)) = (experts, &mut config) {
        config.insert("model_type".to_owned(), "mixtral".into());
        config.insert("architectures".to_owned(), json!(["MixtralForCausalLM"]));
        config.insert("num_local_experts".to_owned(), side.into());
        config.insert("num_experts_per_tok".to_owned(), active.into());
    }
    of_text(tokens, separator, !untied, config)
}

/// One layer that is applied several times, and one segment.
fn of_albert(albert: Albert, tokens: TokenShape, separator: Option<u32>) -> Value {
    let config = json!({
        "model_type": "albert",
        "architectures": ["AlbertForMaskedLM"],
        "max_position_embeddings": tokens.length,
        "type_vocab_size": 1,
        "embedding_size": albert.embedding,
        "hidden_size": albert.hidden,
        "num_attention_heads": albert.heads,
        "intermediate_size": albert.inner,
        "num_hidden_layers": albert.layers,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "hidden_act": "gelu",
        "layer_norm_eps": ALBERT_EPSILON,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.0,
    });
    of_text(tokens, separator, true, config)
}

fn of_resnet(depth: ResNetDepth, options: ResNet, shape: ImageShape, class_names: &[String]) -> Value {
    let (layer_type, depths, widening) = match depth {
        ResNetDepth::Of18 => ("basic", [2, 2, 2, 2], 1),
        ResNetDepth::Of50 => ("bottleneck", [3, 4, 6, 3], 4),
    };
    let width = u64::from(options.width);
    let sizes: Vec<u64> = (0..4).map(|stage| (width * widening) << stage).collect();
    let numbered = || class_names.iter().enumerate();
    let labels: Map<String, Value> =
        numbered().map(|(class, name)| (class.to_string(), name.as_str().into())).collect();
    let classes: Map<String, Value> = numbered().map(|(class, name)| (name.clone(), class.into())).collect();
    json!({
        "model_type": "resnet",
        "architectures": ["ResNetForImageClassification"],
        "num_channels": shape.channels,
        "embedding_size": width,
        "hidden_sizes": sizes,
        "depths": depths,
        "layer_type": layer_type,
        "hidden_act": "relu",
        "downsample_in_first_stage": false,
        "downsample_in_bottleneck": false,
        "id2label": labels,
        "label2id": classes,
        "dtype": "float32",
    })
}
