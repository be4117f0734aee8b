#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::dataset::{SampleKind, TokenShape};
use barnraise_protocol::run::Preset;
use barnraise_protocol::run::model::presets::{Gpt, GptFamily};
use futures::executor::block_on;

use super::*;
use crate::data::text::train_tokenizer;
use crate::fixture;

const VOCABULARY: u16 = 40;
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

fn exported(preset: &Preset, tokenizer: Option<RunTokenizer>) -> ExportedModel {
    let mut run = fixture::run();
    run.model = preset.model(7);
    if matches!(preset, Preset::Gpt(_)) {
        let size = tokenizer.as_ref().map_or(VOCABULARY, |file| file.tokenizer().size());
        run.data.manifest.samples =
            SampleKind::Tokens(TokenShape { length: 12, vocabulary: size, mask: Some(1) });
    }
    let parameters = ParameterLayout::of_run(&run).unwrap().initial_parameters(7);
    ExportedModel { run, epoch: 300, parameters, tokenizer }
}

fn write(model: &ExportedModel, folder: &Path) {
    write_folder(folder, &model.files("# A card\n").unwrap()).unwrap();
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    for (name, preset, tokenizer) in [
        ("gpt2", gpt(GptFamily::Gpt2), Some(tokenizer())),
        ("llama", gpt(GptFamily::Llama), Some(tokenizer())),
        ("mlp", Preset::Mlp { hidden: vec![3] }, None),
    ] {
        let (model, folder) = (exported(&preset, tokenizer), folder.path().join(name));
        write(&model, &folder);
        let read = ExportedModel::read(&folder).unwrap();
        assert!(
            (read.run, read.epoch, read.parameters) == (model.run, model.epoch, model.parameters),
            "{name}"
        );
        let bytes = |file: &Option<RunTokenizer>| file.as_ref().map(|file| file.bytes().to_vec());
        assert_eq!(bytes(&read.tokenizer), bytes(&model.tokenizer));
        assert_eq!(read.tokenizer.is_some(), name != "mlp");
        assert_eq!(folder.join(CONFIG_FILE).exists(), name != "mlp");
        assert_eq!(fs::read_to_string(folder.join(CARD_FILE)).unwrap(), "# A card\n");
    }
}

/// As `native/tests/torch/exported.py` says that `transformers` predicts the token after these, of the folders that this test
/// writes: natural logarithms of probabilities, to 1e-4.
#[test]
fn transformers_predicts_the_same() {
    let kept = std::env::var_os("BARNRAISE_EXPORTED").map(PathBuf::from);
    let folder = tempfile::tempdir().unwrap();
    let folder = kept.as_deref().unwrap_or(folder.path());
    for (family, want) in [(GptFamily::Gpt2, &OF_GPT2), (GptFamily::Llama, &OF_LLAMA)] {
        let folder = folder.join(format!("{family:?}").to_lowercase());
        let _ = fs::remove_dir_all(&folder);
        write(&exported(&gpt(family), None), &folder);
        let trainer = ExportedModel::read(&folder).unwrap().trainer().unwrap();
        let predicted = block_on(trainer.predict_next(&[2, 17, 5, 39, 11, 8])).unwrap();
        for (id, (got, want)) in predicted.iter().map(|value| value.ln()).zip(want).enumerate() {
            assert!((got - want).abs() < 1e-4, "{family:?}, id {id}: {got} and {want}");
        }
    }
}

const OF_GPT2: [f32; VOCABULARY as usize] = [
    -3.748_38, -3.714_92, -3.621_84, -3.788_28, -3.545_63, -3.784_30, -3.666_49, -3.608_83, -3.545_92,
    -3.561_77, -3.673_69, -3.643_96, -3.662_03, -3.649_24, -3.652_16, -3.690_49, -3.712_07, -3.836_17,
    -3.716_07, -3.684_49, -3.690_73, -3.651_10, -3.810_30, -3.632_74, -3.746_03, -3.681_28, -3.729_90,
    -3.658_40, -3.612_52, -3.709_63, -3.654_51, -3.656_55, -3.706_33, -3.724_96, -3.701_74, -3.718_27,
    -3.773_84, -3.786_02, -3.845_47, -3.657_34,
];
const OF_LLAMA: [f32; VOCABULARY as usize] = [
    -3.650_97, -3.703_02, -3.616_08, -3.693_40, -3.643_80, -3.692_18, -3.748_87, -3.569_31, -3.411_84,
    -3.755_61, -3.720_87, -3.640_33, -3.746_01, -3.667_88, -3.631_86, -3.656_54, -3.766_04, -3.774_64,
    -3.682_30, -3.790_07, -3.628_15, -3.685_38, -3.799_23, -3.698_53, -3.671_72, -3.710_21, -3.869_44,
    -3.703_05, -3.628_50, -3.751_15, -3.708_85, -3.609_51, -3.618_64, -3.752_74, -3.673_04, -3.774_12,
    -3.661_44, -3.795_76, -3.693_27, -3.681_08,
];

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
    assert!(error.contains("model.embed_tokens.weight"), "{error}");
    let args = ExportArgs { from: "https://barn.example".into(), folder };
    assert!(matches!(export(&args), Err(ExportedError::Exists(_))));
    let args = ExportArgs { from: "barn.example".into(), folder: root.path().join("new") };
    assert!(matches!(export(&args), Err(ExportedError::Fetch(FetchError::Address(_)))));
    let pictures = root.path().join("pictures");
    write(&exported(&Preset::Mlp { hidden: Vec::new() }, None), &pictures);
    let args = GenerateArgs { folder: pictures, text: String::new(), tokens: 1, seed: 0 };
    assert!(matches!(generate(&args, &mut Vec::new()), Err(ExportedError::NoText(_))));
}
