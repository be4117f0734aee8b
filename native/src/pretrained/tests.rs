#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use barnraise_learning::{ComputeDevice, DataShape, Trainer};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::dataset::{ImageShape, TokenShape};
use barnraise_protocol::run::model::Adapters;
use barnraise_protocol::run::model::presets::{Gpt, GptFamily, ResNet};
use futures::executor::block_on;

use super::*;

/// Shorter than the positions that the files have.
const TEXT: DataShape = DataShape::Tokens(TokenShape { length: 12, vocabulary: 40, mask: None });

/// What `native/tests/torch/pretrained.py` wrote.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pretrained").join(name)
}

fn first(start: &Path, spec: &ModelSpec, data: DataShape) -> Result<FirstValues, PretrainedError> {
    first_values(start, spec, &ResolvedGraph::of_model(spec, data).unwrap())
}

fn log_probabilities(spec: &ModelSpec, first: &FirstValues) -> Vec<f32> {
    let frozen = first.frozen.as_ref();
    let mut trainer = Trainer::with_frozen(spec, TEXT, frozen, ComputeDevice::cpu()).unwrap();
    trainer.load_parameters(&first.parameters).unwrap();
    let predicted = block_on(trainer.predict_next(&[2, 17, 5, 39, 11, 8])).unwrap();
    predicted.iter().map(|value| value.ln()).collect()
}

fn adapted(spec: &ModelSpec, target: &str) -> ModelSpec {
    let targets = vec![target.to_owned()];
    let adapters = Adapters { codec: TensorCodec::F32, rank: 2, alpha: 4.0, targets, trained: Vec::new() };
    ModelSpec { weights: FirstWeights::Frozen(adapters), ..spec.clone() }
}

#[test]
fn models_of_transformers_say_here_what_they_say_there() {
    for (name, want, target) in [
        ("gpt2", &OF_GPT2, "c_attn"),
        ("llama", &OF_LLAMA, "q_proj"),
        ("llama-3", &OF_LLAMA_3, "k_proj"),
        ("qwen2", &OF_QWEN2, "q_proj"),
    ] {
        let start = folder(name);
        let spec = preset(&start).unwrap().unwrap().model(1);
        let whole = first(&start, &spec, TEXT).unwrap();
        assert!(matches!(whole.weights, FirstWeights::Given(_)) && whole.drawn.is_empty());
        // As the file alone, when the configuration names the network.
        assert_eq!(first(&start.join(TENSORS_FILE), &spec, TEXT).unwrap(), whole);
        let adapted = adapted(&spec, target);
        let frozen = first(&start, &adapted, TEXT).unwrap();
        for (spec, first) in [(&spec, &whole), (&adapted, &frozen)] {
            let got = log_probabilities(spec, first);
            for (id, (got, want)) in got.iter().zip(want).enumerate() {
                assert!((got - want).abs() < 1e-4, "{name}, id {id}: {got} and {want}");
            }
        }
    }
    let llama = Gpt {
        key_value_heads: 2,
        inner: 12,
        epsilon: 1e-3,
        theta: 500.0,
        untied: true,
        ..Gpt::new(GptFamily::Llama, 8, 2, 4)
    };
    assert_eq!(preset(&folder("llama")).unwrap(), Some(Preset::Gpt(llama)));
    assert_eq!(preset(Path::new("/nowhere")).unwrap(), None);
}

/// Tables that were made longer than the tokenizer, as the field does, serve a run with fewer tokens; a shorter one does not.
#[test]
fn a_table_may_be_longer_than_the_run_needs_and_not_shorter() {
    let tokens = |vocabulary| DataShape::Tokens(TokenShape { length: 12, vocabulary, mask: None });
    let start = folder("llama");
    let spec = preset(&start).unwrap().unwrap().model(1);
    let (all, some) = (first(&start, &spec, tokens(40)).unwrap(), first(&start, &spec, tokens(36)).unwrap());
    assert_eq!(some.parameters[..36 * 8], all.parameters[..36 * 8]);
    // The last layer, turned: the logits of the tokens that are left.
    let head = &some.parameters[some.parameters.len() - 8 * 36..];
    let of_all = &all.parameters[all.parameters.len() - 8 * 40..];
    assert!(head.chunks(36).zip(of_all.chunks(40)).all(|(some, all)| some == &all[..36]));
    let refused = first(&start, &spec, tokens(41)).unwrap_err().to_string();
    assert!(
        refused.contains("`model.embed_tokens.weight`") && refused.contains("[41, 8] is wanted"),
        "{refused}"
    );
    let long = DataShape::Tokens(TokenShape { length: 17, vocabulary: 40, mask: None });
    let gpt2 = preset(&folder("gpt2")).unwrap().unwrap().model(1);
    let refused = first(&folder("gpt2"), &gpt2, long).unwrap_err().to_string();
    assert!(refused.contains("`transformer.wpe.weight`") && refused.contains("[16, 8]"), "{refused}");
}

#[test]
fn a_classifier_of_other_classes_begins_anew_and_says_so() {
    let data = |n_classes| {
        let shape = ImageShape { height: 12, width: 12, channels: 1 };
        DataShape::Images { shape, n_classes }
    };
    let spec = Preset::ResNet18(ResNet { small_pictures: true, width: 4, ..ResNet::default() }).model(1);
    let file = tempfile::NamedTempFile::new().unwrap();
    // As torchvision saves it, but for the last layer, which begins anew.
    let graph = ResolvedGraph::of_model(&spec, data(3)).unwrap();
    let mut parameters = graph.layout().initial_parameters(9);
    let bytes = [
        barnraise_learning::tensor_file::header(graph.layout(), &BTreeMap::new()).unwrap(),
        barnraise_learning::tensor_file::value_bytes(&parameters),
    ];
    fs::write(file.path(), bytes.concat()).unwrap();
    let got = first(file.path(), &spec, data(5)).unwrap();
    assert_eq!(got.drawn, ["fc.weight", "fc.bias"]);
    let fc = graph.layout().segments().iter().position(|segment| segment.name == "fc.weight").unwrap();
    let before = graph.layout().segments()[fc].offset;
    parameters.truncate(before);
    assert!(got.parameters[..before] == parameters, "all before the head is as in the file");
}

#[test]
fn what_is_no_such_model_is_refused_by_its_file_and_tensor() {
    let root = tempfile::tempdir().unwrap();
    let start = root.path().join("model");
    fs::create_dir(&start).unwrap();
    for name in [CONFIG_FILE, TENSORS_FILE] {
        fs::copy(folder("gpt2").join(name), start.join(name)).unwrap();
    }
    let spec = preset(&start).unwrap().unwrap().model(1);
    let refused = |spec: &ModelSpec| first(&start, spec, TEXT).unwrap_err().to_string();
    let wider = Preset::Gpt(Gpt::new(GptFamily::Gpt2, 16, 2, 2)).model(1);
    assert!(refused(&wider).contains("tensor `transformer.wte.weight`"), "{}", refused(&wider));
    let deeper = Preset::Gpt(Gpt::new(GptFamily::Gpt2, 8, 3, 2)).model(1);
    assert!(refused(&deeper).contains("no tensor `transformer.h.2.ln_1.weight`"), "{}", refused(&deeper));
    let good = fs::read(start.join(TENSORS_FILE)).unwrap();
    let hash = content_hash(&start).unwrap();
    let mut nan = good.clone();
    let n = nan.len();
    nan[n - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(start.join(TENSORS_FILE), nan).unwrap();
    assert!(refused(&spec).contains("is not finite"), "{}", refused(&spec));
    assert_ne!(content_hash(&start).unwrap(), hash);
    for broken in [&good[..n - 1], b"{}", b""] {
        fs::write(start.join(TENSORS_FILE), broken).unwrap();
        assert!(refused(&spec).contains("not a safetensors file"), "{}", refused(&spec));
    }
    fs::remove_file(start.join(TENSORS_FILE)).unwrap();
    assert!(refused(&spec).contains(TENSORS_FILE));
    let index = |files: &str| {
        fs::write(start.join(INDEX_FILE), format!("{{\"weight_map\": {{{files}}}}}")).unwrap();
        refused(&spec)
    };
    assert!(index("").contains("must name 1 to 256 files beside it"));
    assert!(index("\"a\": \"../a.safetensors\"").contains("beside it"));
    fs::write(start.join("part.safetensors"), &good).unwrap();
    fs::write(start.join(INDEX_FILE), "{\"weight_map\": {\"transformer.wte.weight\": \"part.safetensors\"}}")
        .unwrap();
    assert!(first(&start, &spec, TEXT).is_ok());
}

#[test]
fn configurations_without_a_preset_are_refused_by_their_value() {
    let root = tempfile::tempdir().unwrap();
    let refused = |name: &str, from: &str, to: &str| {
        let text = fs::read_to_string(folder(name).join(CONFIG_FILE)).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(root.path().join(CONFIG_FILE), text.replace(from, to)).unwrap();
        preset(root.path()).unwrap_err().to_string()
    };
    let said = refused("gpt2", "\"model_type\": \"gpt2\"", "\"model_type\": \"bert\"");
    assert!(
        said.ends_with("model_type bert is not supported: gpt2, llama, mistral, qwen2 and resnet are"),
        "{said}"
    );
    let said = refused("gpt2", "\"gelu_new\"", "\"relu\"");
    assert!(said.ends_with("activation_function must be gelu_new, it is relu"), "{said}");
    let said = refused("llama", "\"head_dim\": 2", "\"head_dim\": 4");
    assert!(said.contains("head_dim must be hidden_size / num_attention_heads"), "{said}");
    let said = refused("llama", "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"");
    assert!(said.contains("rope_type must be default or llama3, it is yarn"), "{said}");
    let said = refused("llama-3", "\"low_freq_factor\": 0.25", "\"factors\": 0.25");
    assert!(said.contains("has no low_freq_factor"), "{said}");
    let said =
        refused("llama", "\"model_type\": \"llama\"", "\"model_type\": \"mistral\", \"sliding_window\": 512");
    assert!(said.contains("sliding_window must be null"), "{said}");
    let said = refused("llama", "\"attention_bias\": false", "\"attention_bias\": true");
    assert!(said.contains("attention_bias must be false"), "{said}");
    let said = refused("llama", "\"hidden_size\": 8", "\"hidden_size\": \"wide\"");
    assert!(said.contains("invalid type"), "{said}");
}

const OF_GPT2: [f32; 40] = [
    -3.248_30, -5.213_48, -3.630_75, -4.760_80, -3.283_10, -4.199_29, -5.011_68, -5.151_42, -3.765_43,
    -3.196_53, -4.486_30, -3.336_13, -6.933_25, -2.816_38, -3.831_27, -2.975_71, -4.759_39, -3.814_12,
    -2.395_77, -3.565_64, -3.784_93, -3.775_72, -3.876_34, -2.343_00, -5.184_34, -5.002_65, -5.337_35,
    -3.430_54, -4.209_53, -4.844_26, -2.037_80, -5.087_72, -4.004_32, -5.121_55, -4.406_19, -4.304_45,
    -3.844_01, -4.989_00, -5.655_76, -4.761_55,
];
const OF_LLAMA: [f32; 40] = [
    -3.714_87, -3.864_36, -4.493_51, -4.315_61, -3.359_75, -2.875_07, -3.174_00, -4.335_83, -3.457_04,
    -5.752_43, -2.725_43, -3.565_46, -4.372_84, -4.454_44, -4.972_05, -3.508_37, -4.707_81, -3.017_77,
    -3.818_49, -4.165_77, -3.924_83, -2.593_05, -6.422_49, -3.304_75, -5.512_41, -4.189_15, -4.038_76,
    -3.698_65, -4.503_80, -3.119_77, -3.237_04, -4.042_22, -3.148_78, -3.426_05, -3.864_61, -4.931_51,
    -3.706_04, -4.101_47, -3.586_89, -3.907_84,
];
const OF_LLAMA_3: [f32; 40] = [
    -3.474_30, -3.787_53, -4.704_16, -4.568_56, -2.390_44, -4.614_30, -3.285_03, -4.028_28, -2.826_18,
    -3.039_54, -3.839_29, -5.793_52, -4.601_74, -3.883_69, -3.848_44, -4.770_15, -5.702_59, -2.849_40,
    -4.178_42, -5.074_42, -4.254_26, -4.263_60, -3.427_84, -4.816_34, -4.239_93, -3.550_80, -4.067_35,
    -5.243_17, -4.719_27, -3.688_80, -3.654_41, -2.249_98, -2.065_52, -5.704_22, -4.871_75, -4.181_28,
    -5.035_93, -5.080_36, -4.410_69, -4.022_39,
];
const OF_QWEN2: [f32; 40] = [
    -3.078_83, -3.540_53, -2.926_35, -4.285_86, -2.085_26, -4.470_96, -4.428_76, -4.547_49, -4.148_18,
    -4.494_98, -3.830_30, -4.139_06, -4.900_43, -4.921_33, -4.700_38, -5.167_37, -3.212_21, -3.401_25,
    -6.053_22, -5.208_63, -4.219_18, -4.099_40, -4.097_54, -5.068_35, -3.918_72, -4.868_36, -3.174_26,
    -2.867_72, -3.940_92, -2.351_36, -2.838_62, -4.309_34, -4.240_85, -2.990_02, -3.880_73, -3.775_47,
    -4.140_43, -5.636_11, -3.761_89, -5.138_25,
];
