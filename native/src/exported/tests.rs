#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;

use barnraise_learning::ParameterLayout;
use barnraise_learning::graph::ResolvedGraph;
use barnraise_protocol::TensorCodec;
use barnraise_protocol::dataset::{ImageShape, RatingShape, SampleKind, TokenShape};
use barnraise_protocol::run::model::operation::RotaryScaling;
use barnraise_protocol::run::model::presets::{Albert, Gpt, GptExperts, GptFamily, Norm, ResNet, Vit};
use barnraise_protocol::run::model::{Adapters, FirstWeights};
use barnraise_protocol::run::{ModelSpec, Preset};
use futures::executor::block_on;

use super::*;
use crate::data::text::train_tokenizer;
use crate::{fixture, pretrained};

const VOCABULARY: u32 = 40;
/// A text in the scripts of many people, with what a tokenizer may stumble over.
const TEXTS: [&str; 8] = [
    "It's 1913, and  they -- well...\tsaid: \"No!?\"\n\n",
    "Ein größerer Fluß; l'été à Noël, año 2024 — naïve café",
    "Всё счастливые семьи похожи друг на друга",
    "吾輩は猫である。名前はまだ無い。 三四郎",
    "كل عام وأنتم بخير ١٢٣",
    "सभी मनुष्यों को गौरव और अधिकार",
    "ἐν ἀρχῇ ἦν ὁ λόγος, שלום עולם",
    "👩‍👩‍👧 emoji ___ <masked> \u{0}a\u{0}\u{200b}b 𝔘𝔫𝔦 e\u{301}",
];

fn tokenizer() -> RunTokenizer {
    let text = TEXTS.join(" ").repeat(3);
    RunTokenizer::read(train_tokenizer([text.as_str()].into_iter(), 400).unwrap()).unwrap()
}

fn gpt(family: GptFamily) -> Preset {
    Preset::Gpt(Gpt { key_value_heads: 2, inner: 24, dropout: 0.1, ..Gpt::new(family, 16, 2, 4) })
}

/// Of the waves of a head one is longer by a part, one by all of the factor.
fn llama_3() -> Preset {
    let scaling =
        RotaryScaling { factor: 8.0, low_frequency: 0.25, high_frequency: 1.0, original_tokens: 16 };
    let new = Gpt::new(GptFamily::Llama, 16, 2, 2);
    Preset::Gpt(Gpt { inner: 24, theta: 100.0, rotary_scaling: Some(scaling), ..new })
}

fn qwen2() -> Preset {
    Preset::Gpt(Gpt {
        key_value_heads: 2,
        inner: 24,
        attention_bias: true,
        ..Gpt::new(GptFamily::Llama, 16, 2, 4)
    })
}

const ALBERT: Albert = Albert { embedding: 8, hidden: 16, heads: 2, inner: 24, layers: 3 };
const RESNET: ResNet = ResNet { norm: Norm::Batch, small_pictures: false, width: 8 };
const PICTURES: ImageShape = ImageShape { height: 40, width: 32, channels: 3 };

fn exported(preset: &Preset, tokenizer: Option<RunTokenizer>) -> ExportedModel {
    let mut run = fixture::run();
    run.model = preset.model(7);
    match preset {
        Preset::Gpt(_) | Preset::Albert(_) => {
            let size = tokenizer.as_ref().map_or(VOCABULARY, |file| file.tokenizer().size());
            run.data.manifest.samples =
                SampleKind::Tokens(TokenShape { length: 12, vocabulary: size, mask: Some(1) });
        }
        Preset::ResNet18(_) | Preset::ResNet50(_) | Preset::LeNet | Preset::Vit(_) => {
            let class_names = ["cat", "dog", "bird", "fish", "frog"].map(str::to_owned).into();
            run.data.manifest.samples = SampleKind::Images { shape: PICTURES, class_names };
        }
        Preset::MatrixFactorization { .. } => {
            run.data.manifest.samples = SampleKind::Ratings(RatingShape { n_users: 50, n_items: 40 });
        }
        _ => {}
    }
    let layout = ParameterLayout::of_run(&run).unwrap();
    let mut parameters = layout.initial_parameters(7);
    // No bias is zero and no scale one, so that each has to be in its place.
    for segment in layout.segments().iter().filter(|segment| segment.is_bias()) {
        let values = parameters[segment.range()].iter_mut().enumerate();
        values.for_each(|(index, value)| *value += (index * 7 % 11) as f32 / 40.0);
    }
    // Or the logits of a network that has not learned were far from each other, and 1e-4 little of them.
    for segment in layout.segments().iter().filter(|segment| segment.name == "fc.weight") {
        parameters[segment.range()].iter_mut().for_each(|value| *value *= 0.05);
    }
    ExportedModel { run, epoch: 300, loss: Some(1.5), parameters, tokenizer, columns: None, adapters: None }
}

fn write(model: &ExportedModel, folder: &Path) {
    write_folder(folder, &model.files("# A card\n\n## How to load it\n\nOtherwise.\n").unwrap()).unwrap();
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    for (name, preset, tokenizer) in [
        ("gpt2", gpt(GptFamily::Gpt2), Some(tokenizer())),
        ("llama", gpt(GptFamily::Llama), Some(tokenizer())),
        ("albert", Preset::Albert(ALBERT), Some(tokenizer())),
        ("resnet", Preset::ResNet50(RESNET), None),
        ("mlp", Preset::Mlp { hidden: vec![3] }, None),
    ] {
        let (model, folder) = (exported(&preset, tokenizer), folder.path().join(name));
        write(&model, &folder);
        let read = ExportedModel::read(&folder).unwrap();
        assert!(
            (read.run, read.epoch, read.loss, read.parameters)
                == (model.run, model.epoch, model.loss, model.parameters),
            "{name}"
        );
        let bytes = |file: &Option<RunTokenizer>| file.as_ref().map(|file| file.bytes().to_vec());
        assert_eq!(bytes(&read.tokenizer), bytes(&model.tokenizer));
        assert_eq!(read.tokenizer.is_some(), !["mlp", "resnet"].contains(&name));
        assert_eq!(folder.join(CONFIG_FILE).exists(), name != "mlp");
        assert_eq!(folder.join(PREPROCESSOR_FILE).exists(), name == "resnet");
        let card = fs::read_to_string(folder.join(CARD_FILE)).unwrap();
        assert!(
            card.starts_with("# A card\n\n## How to load it\n\n") && !card.contains("Otherwise"),
            "{card}"
        );
        assert_eq!(card.contains("from transformers import"), name != "mlp", "{card}");
    }
}

/// The values of a field of bytes in a message of Protocol Buffers.
fn field(message: &[u8], wanted: u64) -> Vec<&[u8]> {
    let (mut rest, mut found) = (message, Vec::new());
    let varint = |rest: &mut &[u8]| {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = rest[0];
            *rest = &rest[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    };
    while !rest.is_empty() {
        let tag = varint(&mut rest);
        match tag & 7 {
            0 => _ = varint(&mut rest),
            5 => rest = &rest[4..],
            _ => {
                let n_bytes = usize::try_from(varint(&mut rest)).unwrap();
                let (value, after) = rest.split_at(n_bytes);
                rest = after;
                if tag >> 3 == wanted {
                    found.push(value);
                }
            }
        }
    }
    found
}

/// `BARNRAISE_ONNX=/tmp/onnx` keeps the files for `native/tests/torch/onnx_files.py`.
#[test]
fn a_file_of_onnx_has_the_models_tensors_once() {
    let kept = std::env::var_os("BARNRAISE_ONNX").map(PathBuf::from);
    for (name, preset) in [
        ("gpt2", gpt(GptFamily::Gpt2)),
        ("llama", gpt(GptFamily::Llama)),
        ("llama3", llama_3()),
        ("albert", Preset::Albert(ALBERT)),
        ("resnet18", Preset::ResNet18(RESNET)),
        ("resnet50", Preset::ResNet50(ResNet { norm: Norm::Group(4), ..RESNET })),
        ("mlp", Preset::Mlp { hidden: vec![3] }),
        ("le-net", Preset::LeNet),
        ("vit", Preset::Vit(Vit { patch: 4, width: 16, layers: 2, heads: 2 })),
        ("ratings", Preset::MatrixFactorization { factors: 3 }),
    ] {
        let model = exported(&preset, None);
        let bytes = model.onnx().unwrap();
        let graph = field(&bytes, 7)[0];
        let tensors: Vec<_> =
            field(graph, 5).into_iter().map(|tensor| (field(tensor, 8)[0], field(tensor, 9)[0])).collect();
        for segment in ParameterLayout::of_run(&model.run).unwrap().segments() {
            let named = tensors.iter().filter(|(name, _)| *name == segment.name.as_bytes());
            let values: Vec<u8> =
                model.parameters[segment.range()].iter().flat_map(|value| value.to_le_bytes()).collect();
            let got: Vec<&[u8]> = named.map(|&(_, values)| values).collect();
            assert!(got == [values.as_slice()], "{name}: {}", segment.name);
        }
        if let Some(folder) = &kept {
            let folder = folder.join(name);
            write(&model, &folder);
            fs::write(folder.join("model.onnx"), bytes).unwrap();
        }
    }
}

#[test]
fn a_block_without_a_form_in_onnx_is_named() {
    let experts = Some(GptExperts { side: 2, dimensions: 1, active: 2 });
    let mixture = Gpt { experts, ..Gpt::new(GptFamily::Llama, 16, 2, 4) };
    let error = exported(&Preset::Gpt(mixture), None).onnx().unwrap_err().to_string();
    assert!(error.starts_with("block `model.layers.0.") && error.contains("experts"), "{error}");
}

/// In containers every program has the same process id.
#[test]
fn what_an_export_that_was_killed_left_is_in_no_later_one() {
    let root = tempfile::tempdir().unwrap();
    let left = root.path().join(format!("model.part-{}", std::process::id()));
    fs::create_dir(&left).unwrap();
    fs::write(left.join("left.txt"), "of another model").unwrap();
    let folder = root.path().join("model");
    write_folder(&folder, &[("config.json", b"{}".to_vec()), ("adapter/a.json", b"{}".to_vec())]).unwrap();
    assert!(folder.join("adapter/a.json").exists() && !folder.join("left.txt").exists());
    // A file is where a folder is wanted.
    let other = root.path().join("other");
    let files = [("adapter", b"{}".to_vec()), ("adapter/a.json", b"{}".to_vec())];
    assert!(matches!(write_folder(&other, &files), Err(ExportedError::Io { .. })));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "nothing of it is left");
}

/// What is written here is what a run can begin with.
#[test]
fn a_run_begins_with_an_exported_folder() {
    let root = tempfile::tempdir().unwrap();
    for (name, preset) in [
        ("gpt2", gpt(GptFamily::Gpt2)),
        ("llama", gpt(GptFamily::Llama)),
        ("llama-3", llama_3()),
        ("qwen2", qwen2()),
        ("resnet-18", Preset::ResNet18(RESNET)),
        ("resnet-50", Preset::ResNet50(RESNET)),
    ] {
        let (model, folder) = (exported(&preset, None), root.path().join(name));
        write(&model, &folder);
        let found = pretrained::preset(&folder).unwrap().unwrap();
        let spec = found.model(7);
        assert_eq!(spec.graph.blocks, model.run.model.graph.blocks, "{name}");
        let data = DataShape::of(&model.run.data.manifest.samples);
        let graph = ResolvedGraph::of_model(&spec, data).unwrap();
        let first = pretrained::first_values(&folder, &spec, &graph).unwrap();
        assert!(first.parameters == model.parameters && first.drawn.is_empty(), "{name}: {:?}", first.drawn);
    }
}

/// As `native/tests/torch/exported.py` says that `transformers` predicts, of the folders that this test writes: natural
/// logarithms of probabilities, to 1e-4. Of a text the token after six, or that in the place of a mask.
#[test]
fn transformers_predicts_the_same() {
    let kept = std::env::var_os("BARNRAISE_EXPORTED").map(PathBuf::from);
    let folder = tempfile::tempdir().unwrap();
    let folder = kept.as_deref().unwrap_or(folder.path());
    let pixels: Vec<u8> = (0..PICTURES.n_values()).map(|index| (index * index * 7 % 251) as u8).collect();
    let of_each = [
        ("gpt2", gpt(GptFamily::Gpt2), &OF_GPT2[..]),
        ("llama", gpt(GptFamily::Llama), &OF_LLAMA),
        ("llama-3", llama_3(), &OF_LLAMA_3),
        ("qwen2", qwen2(), &OF_QWEN2),
        ("albert", Preset::Albert(ALBERT), &OF_ALBERT),
        ("resnet18", Preset::ResNet18(RESNET), &OF_RESNET18),
        ("resnet50", Preset::ResNet50(ResNet { width: 4, ..RESNET }), &OF_RESNET50),
    ];
    // All of them before the script, which reads them together.
    for (name, preset, _) in &of_each {
        let folder = folder.join(name);
        let _ = fs::remove_dir_all(&folder);
        write(&exported(preset, None), &folder);
    }
    for (name, preset, want) in of_each {
        let trainer = ExportedModel::read(&folder.join(name)).unwrap().trainer().unwrap();
        let predicted = match preset {
            Preset::Gpt(_) => block_on(trainer.predict_next(&[2, 17, 5, 39, 11, 8])).unwrap(),
            Preset::Albert(_) => {
                let ids = [2, 17, 5, 39, 1, 8, 2, 17, 5, 39, 6, 8];
                block_on(trainer.fill(&ids, &[4])).unwrap()
            }
            _ => block_on(trainer.predict(&pixels, 1)).unwrap(),
        };
        assert_eq!(predicted.len(), want.len());
        for (id, (got, want)) in predicted.iter().map(|value| value.ln()).zip(want).enumerate() {
            assert!((got - want).abs() < 1e-4, "{name}, id {id}: {got} and {want}");
        }
    }
}

/// As `native/tests/torch/adapted.py` says that PEFT's adapters predict on the models of `native/tests/pretrained`, and as the
/// whole model does.
#[test]
fn peft_predicts_the_same() {
    let kept = std::env::var_os("BARNRAISE_ADAPTED").map(PathBuf::from);
    let root = tempfile::tempdir().unwrap();
    let root = kept.as_deref().unwrap_or(root.path());
    let of_each = [
        ("gpt2", ["c_attn", "mlp.c_fc"], &OF_ADAPTED_GPT2),
        ("llama", ["self_attn.q_proj", "mlp.down_proj"], &OF_ADAPTED_LLAMA),
    ];
    // Both of them before the script, which reads them together.
    for (name, targets, _) in of_each {
        let start = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pretrained").join(name);
        let targets = targets.map(str::to_owned).to_vec();
        let adapters =
            Adapters { codec: TensorCodec::F32, rank: 2, alpha: 3.0, targets, trained: Vec::new() };
        let mut run = exported(&gpt(GptFamily::Llama), None).run;
        let model = pretrained::preset(&start).unwrap().unwrap().model(1);
        run.model = ModelSpec { weights: FirstWeights::Frozen(adapters), ..model };
        let data = DataShape::of(&run.data.manifest.samples);
        let graph = ResolvedGraph::of_model(&run.model, data).unwrap();
        let first = pretrained::first_values(&start, &run.model, &graph).unwrap();
        let parameters: Vec<f32> =
            (0..first.parameters.len()).map(|at| (at * 37 % 101) as f32 / 250.0 - 0.2).collect();
        let adapters = AdapterFiles::of(&run, graph.layout(), &parameters).unwrap();
        let frozen = first.frozen.unwrap();
        let (merged, parameters) =
            barnraise_learning::merged(&run.model, data, &frozen, &parameters).unwrap();
        run.model = merged;
        let whole =
            ExportedModel { run, epoch: 1, loss: None, parameters, tokenizer: None, columns: None, adapters };
        let folder = root.join(name);
        let _ = fs::remove_dir_all(&folder);
        write(&whole, &folder);
        assert!(folder.join(ADAPTER_CONFIG_FILE).is_file() && folder.join(ADAPTER_TENSORS_FILE).is_file());
    }
    for (name, _, want) in of_each {
        let trainer = ExportedModel::read(&root.join(name)).unwrap().trainer().unwrap();
        let predicted = block_on(trainer.predict_next(&[2, 17, 5, 39, 11, 8])).unwrap();
        for (id, (got, want)) in predicted.iter().map(|value| value.ln()).zip(want).enumerate() {
            assert!((got - want).abs() < 1e-4, "{name}, id {id}: {got} and {want}");
        }
    }
}

const OF_GPT2: [f32; VOCABULARY as usize] = [
    -3.650_64, -3.580_96, -3.673_18, -3.718_38, -3.734_12, -3.731_89, -3.620_32, -3.587_29, -3.588_87,
    -3.847_62, -3.788_67, -3.705_80, -3.749_63, -3.744_57, -3.614_95, -3.682_39, -3.768_04, -3.664_51,
    -3.664_17, -3.665_09, -3.647_50, -3.691_03, -3.793_11, -3.826_36, -3.850_65, -3.700_26, -3.856_40,
    -3.503_34, -3.645_61, -3.674_34, -3.592_53, -3.820_67, -3.652_92, -3.716_95, -3.606_60, -3.664_41,
    -3.665_59, -3.743_60, -3.581_92, -3.675_47,
];
const OF_LLAMA: [f32; VOCABULARY as usize] = [
    -3.642_16, -3.706_49, -3.613_39, -3.700_06, -3.634_59, -3.691_91, -3.748_58, -3.560_13, -3.377_73,
    -3.757_72, -3.724_29, -3.633_17, -3.755_94, -3.665_71, -3.623_96, -3.666_61, -3.772_20, -3.786_65,
    -3.671_63, -3.787_59, -3.618_20, -3.675_51, -3.826_18, -3.702_22, -3.671_85, -3.707_91, -3.891_24,
    -3.708_28, -3.610_11, -3.767_05, -3.699_18, -3.607_57, -3.611_82, -3.752_49, -3.674_39, -3.782_36,
    -3.667_09, -3.820_36, -3.705_72, -3.686_46,
];

const OF_ALBERT: [f32; VOCABULARY as usize] = [
    -3.891_11, -3.726_17, -3.707_49, -3.438_78, -3.684_65, -3.687_51, -3.511_62, -3.719_63, -3.824_94,
    -3.647_11, -3.707_23, -3.800_36, -3.705_99, -3.673_05, -3.587_80, -3.657_30, -3.795_22, -3.607_21,
    -3.698_53, -3.761_92, -3.679_84, -3.749_39, -3.783_54, -3.638_31, -3.702_18, -3.551_82, -3.647_71,
    -3.758_18, -3.647_69, -3.772_69, -3.807_66, -3.633_71, -3.750_40, -3.942_54, -3.546_95, -3.767_55,
    -3.489_49, -3.589_19, -3.880_82, -3.611_63,
];
const OF_RESNET18: [f32; 5] = [-1.522_32, -1.615_68, -1.950_33, -1.963_99, -1.202_27];
const OF_RESNET50: [f32; 5] = [-11.073_53, -8.163_36, -0.196_69, -1.727_25, -7.630_52];

/// What `transformers` asks for beside the file.
#[test]
fn the_special_tokens_are_named_for_transformers() {
    let config = tokenizer().config(&exported(&gpt(GptFamily::Gpt2), None).run);
    assert_eq!(config["model_max_length"], 12);
    assert_eq!(
        (&config["eos_token"], &config["bos_token"]),
        (&"<end of text>".into(), &"<end of text>".into())
    );
    assert_eq!(
        (&config["mask_token"], &config["unk_token"]),
        (&"<masked token>".into(), &"<unknown token>".into())
    );
}

#[test]
fn a_text_is_written_as_it_comes_and_the_seed_decides() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("model");
    write(&exported(&gpt(GptFamily::Llama), Some(tokenizer())), &folder);
    let said = |seed| {
        let args = GenerateArgs { folder: folder.clone(), text: "It's ".into(), tokens: 9, seed };
        let mut output = Vec::new();
        generate(&args, &mut output).unwrap();
        String::from_utf8(output).unwrap()
    };
    assert!(said(1).starts_with("It's") && said(1).ends_with('\n') && said(1).len() > 10, "{}", said(1));
    assert_eq!(said(1), said(1));
    assert_ne!(said(1), said(2));
}

#[test]
fn other_folders_are_refused_by_the_name_of_the_file() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("model");
    let error = ExportedModel::read(&folder).unwrap_err().to_string();
    assert!(error.contains("barnraise.json"), "{error}");
    write(&exported(&gpt(GptFamily::Llama), Some(tokenizer())), &folder);
    let refused = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        let kept = fs::read(&path).unwrap();
        fs::write(&path, content).unwrap();
        let error = ExportedModel::read(&folder).unwrap_err().to_string();
        fs::write(&path, kept).unwrap();
        assert!(error.contains(name), "{error}");
        error
    };
    refused(RUN_FILE, b"{}");
    refused(TENSORS_FILE, b"{}");
    refused(TOKENIZER_FILE, br#"{"model": {"vocab": [["a", 0.0]]}}"#);
    // Tensors of another model.
    let other = exported(&gpt(GptFamily::Gpt2), None).files("").unwrap();
    let error = refused(TENSORS_FILE, &other[1].1);
    assert!(error.contains("the file has 28 tensors, the model has 20"), "{error}");
    let args = ExportArgs { from: JoinAddress::Page("https://barn.example".into()), run: None, folder };
    let exists = futures::executor::block_on(export(&args));
    assert!(matches!(exists, Err(ExportedError::Exists(_))));
    let pictures = root.path().join("pictures");
    write(&exported(&Preset::Mlp { hidden: Vec::new() }, None), &pictures);
    let args = GenerateArgs { folder: pictures, text: String::new(), tokens: 1, seed: 0 };
    assert!(matches!(generate(&args, &mut Vec::new()), Err(ExportedError::OtherKind { .. })));
}
const OF_LLAMA_3: [f32; VOCABULARY as usize] = [
    -3.670_67, -3.687_02, -3.599_29, -3.676_13, -3.636_65, -3.703_88, -3.767_62, -3.505_59, -3.392_43,
    -3.757_44, -3.748_13, -3.589_12, -3.792_30, -3.672_84, -3.635_59, -3.649_55, -3.794_96, -3.786_04,
    -3.653_98, -3.841_77, -3.606_17, -3.723_54, -3.789_54, -3.759_25, -3.710_95, -3.702_70, -3.855_01,
    -3.736_96, -3.652_96, -3.746_72, -3.683_79, -3.600_66, -3.638_87, -3.767_95, -3.660_93, -3.782_32,
    -3.614_79, -3.789_53, -3.681_87, -3.653_10,
];
const OF_QWEN2: [f32; VOCABULARY as usize] = [
    -3.665_06, -3.544_76, -3.586_84, -3.570_72, -3.644_88, -3.700_03, -3.668_27, -3.489_51, -3.556_63,
    -3.787_27, -3.842_64, -3.688_33, -3.830_32, -3.670_45, -3.642_01, -3.683_30, -3.764_39, -3.755_93,
    -3.773_93, -3.892_39, -3.578_58, -3.781_51, -3.614_06, -3.677_73, -3.820_98, -3.780_15, -3.842_06,
    -3.759_10, -3.747_85, -3.663_25, -3.742_22, -3.610_69, -3.730_83, -3.739_63, -3.577_57, -3.823_07,
    -3.563_05, -3.718_71, -3.565_12, -3.652_01,
];
const OF_ADAPTED_GPT2: [f32; VOCABULARY as usize] = [
    -3.209_11, -5.285_73, -3.620_55, -4.777_50, -3.248_38, -4.187_96, -5.073_86, -5.112_77, -3.821_04,
    -3.194_66, -4.468_01, -3.293_01, -7.023_36, -2.902_63, -3.767_90, -2.942_09, -4.753_79, -3.803_82,
    -2.364_88, -3.540_40, -3.825_09, -3.796_95, -3.909_12, -2.384_75, -5.207_89, -4.940_15, -5.378_97,
    -3.443_79, -4.216_01, -4.817_33, -2.024_51, -5.104_81, -3.962_39, -5.142_33, -4.396_78, -4.344_52,
    -3.882_65, -4.997_53, -5.639_80, -4.775_20,
];
const OF_ADAPTED_LLAMA: [f32; VOCABULARY as usize] = [
    -3.706_01, -4.061_41, -4.437_76, -4.304_18, -3.412_90, -2.773_73, -3.235_64, -4.307_15, -3.379_74,
    -5.767_56, -2.759_06, -3.631_98, -4.454_75, -4.373_97, -4.929_81, -3.613_24, -4.865_49, -3.044_96,
    -3.753_38, -4.095_07, -3.878_30, -2.553_91, -6.572_45, -3.178_56, -5.501_88, -4.236_96, -3.963_09,
    -3.842_15, -4.613_86, -3.210_38, -3.156_96, -3.992_79, -3.157_12, -3.439_83, -3.954_61, -4.976_95,
    -3.652_51, -4.037_74, -3.613_04, -3.867_51,
];
