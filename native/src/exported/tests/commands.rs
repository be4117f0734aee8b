//! `barnraise predict` and `evaluate` on models whose answers are known.

use barnraise_protocol::columns::{Column, ColumnContent, RatingColumns, Scale, TableColumns};
use barnraise_protocol::dataset::{RatingShape, TableShape, TableTarget};
use image::{Rgb, RgbImage};
use serde_json::Value;

use super::*;
use crate::config::RunConfig;

/// A folder with a model and files beside it.
struct Bench {
    root: tempfile::TempDir,
}

impl Bench {
    /// The parameters are zeros but for those that `set` gives by the name of their tensor.
    fn new(
        preset: &Preset,
        samples: SampleKind,
        columns: Option<DataColumns>,
        set: impl Fn(&str, usize) -> f32,
    ) -> Self {
        let mut run = fixture::run();
        run.model = preset.model(7);
        run.data.manifest.samples = samples;
        let layout = ParameterLayout::of_run(&run).unwrap();
        let of = |segment: &barnraise_learning::ParameterSegment| {
            (0..segment.len).map(|index| set(&segment.name, index)).collect::<Vec<_>>()
        };
        let parameters = layout.segments().iter().flat_map(of).collect();
        let model = ExportedModel {
            run,
            epoch: 3,
            loss: Some(0.1),
            parameters,
            tokenizer: None,
            columns,
            adapters: None,
        };
        Self::of(&model)
    }

    fn of(model: &ExportedModel) -> Self {
        let bench = Self { root: tempfile::tempdir().unwrap() };
        write(model, &bench.path("model"));
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn picture(&self, name: &str, grey: u8) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        RgbImage::from_pixel(8, 4, Rgb([grey; 3])).save(&path).unwrap();
        path
    }

    fn predicted(&self, file: &Path, user: Option<&str>) -> Result<String, ExportedError> {
        let user = user.map(str::to_owned);
        let args = PredictArgs { folder: self.path("model"), file: file.to_owned(), user, top: 2 };
        let mut output = Vec::new();
        predict(&args, &mut output)?;
        Ok(String::from_utf8(output).unwrap())
    }

    fn args(&self, data: &[&Path], config: Option<PathBuf>) -> EvaluateArgs {
        let data = data.iter().map(|&path| path.to_owned()).collect();
        EvaluateArgs { folder: self.path("model"), data, config, json: true }
    }

    /// The metrics of the first suite: of the model, and of the baseline.
    fn evaluated(&self, args: &EvaluateArgs) -> impl Fn(&str) -> [f64; 2] + use<> {
        let said: Value = serde_json::from_str(&evaluate(args).unwrap()).unwrap();
        let metrics = said["suites"][0]["metrics"].clone();
        move |name| ["model", "baseline"].map(|who| metrics[name][who].as_f64().unwrap())
    }

    fn refused(&self, args: &EvaluateArgs) -> String {
        evaluate(args).unwrap_err().to_string()
    }
}

fn scale() -> Scale {
    Scale { mean: 0.0, deviation: 1.0 }
}

/// Says that what is red is a rose.
fn flowers() -> Bench {
    let words = ["red", "white"].map(|word| (word.to_owned(), scale())).into();
    let columns = TableColumns {
        target: "kind".into(),
        columns: vec![
            Column { name: "length".into(), content: ColumnContent::Number(scale()) },
            Column { name: "colour".into(), content: ColumnContent::Words(words) },
        ],
    };
    let target = TableTarget::Class(["daisy", "rose"].map(str::to_owned).into());
    let samples = SampleKind::Rows(TableShape { columns: columns.names(), target });
    // The weight is [inputs, classes].
    let set = |name: &str, index| if (name, index) == ("fc1.weight", 3) { 5.0 } else { 0.0 };
    Bench::new(&Preset::Mlp { hidden: Vec::new() }, samples, Some(DataColumns::Table(columns)), set)
}

#[test]
fn each_row_of_a_table_is_told_and_stays_what_it_was() {
    let bench = flowers();
    let file = bench.file("new.csv", "note;colour;length\nmine;red;1.5\n;white;\n;;3\n");
    let said = bench.predicted(&file, None).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "note,colour,length,predicted kind,probability");
    assert!(lines[1].starts_with("mine,red,1.5,rose,0.99"), "{said}");
    // Nothing speaks for either.
    assert!(lines[2].starts_with(",white,,") && lines[2].ends_with(",0.5"), "{said}");
    let error = bench.predicted(&bench.file("other.csv", "colour\nred\n"), None).unwrap_err().to_string();
    assert!(error.contains("no column \"length\""), "{error}");
}

#[test]
fn a_table_is_evaluated_beside_its_commonest_class() {
    let bench = flowers();
    let file =
        bench.file("held.csv", "length,colour,kind\n1,red,rose\n2,red,rose\n3,red,daisy\n4,red,rose\n");
    let metric = bench.evaluated(&bench.args(&[&file], None));
    assert_eq!(metric("accuracy"), [0.75, 0.75]);
    let (right, wrong) = ((1.0 + (-5.0_f64).exp()).ln(), (1.0 + 5.0_f64.exp()).ln());
    assert!((metric("loss")[0] - (3.0 * right + wrong) / 4.0).abs() < 1e-5);
    // Counted once more: 4 of 6 and 2 of 6.
    let baseline = (3.0 * 1.5_f64.ln() + 3.0_f64.ln()) / 4.0;
    assert!((metric("loss")[1] - baseline).abs() < 1e-9);
    let table = evaluate(&EvaluateArgs { json: false, ..bench.args(&[&file, &file], None) }).unwrap();
    assert_eq!(table.matches("held.csv, 4 samples\n").count(), 2, "{table}");
    assert!(bench.refused(&bench.args(&[], None)).contains("--config"));
}

/// The part of a run's own data that was held out, reached by the file of the run.
#[test]
fn the_file_of_a_run_leads_to_what_was_held_out() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..200).map(|n| format!("{n},{}\n", 3 * n)).collect();
    fs::write(folder.path().join("sizes.csv"), format!("length,size\n{rows}")).unwrap();
    let config = folder.path().join("run.toml");
    let dense = "{ name = \"fc\", op = { dense = { units = \"targets\" } } }";
    let model = format!("{{ name = \"linear\", loss = \"regression\", blocks = [{dense}] }}");
    let text = |target: &str| {
        format!(
            "[run]\nid = \"sizes\"\n[model]\nkind = {{ graph = {model} }}\n[data.table]\nfile = \"{}\"\ntarget = \
             \"{target}\"\n",
            folder.path().join("sizes.csv").display()
        )
    };
    fs::write(&config, text("size")).unwrap();
    let run = RunConfig::load(&config).unwrap();
    let data = run.data_source().load(folder.path()).unwrap();
    let Some(DataColumns::Table(columns)) = &data.columns else { panic!("no table") };
    let ColumnContent::Number(length) = columns.columns[0].content else { panic!("no number") };
    // Three times the length, which the model sees as deviations from its mean.
    let set = |name: &str, _| 3.0 * if name == "fc.weight" { length.deviation } else { length.mean } as f32;
    let bench = Bench::new(&run.model.kind, data.kind, data.columns.clone(), set);
    let metric = bench.evaluated(&bench.args(&[], Some(config.clone())));
    assert!(metric("mean_squared_error")[0] < 0.01 && metric("r_squared")[0] > 0.999);
    let [_, of_mean] = metric("mean_squared_error");
    assert!((of_mean.sqrt() - metric("root_mean_squared_error")[1]).abs() < 1e-9 && of_mean > 1000.0);
    // A mean that other rows have explains nothing, or a little less.
    assert!((-0.5..=0.0).contains(&metric("r_squared")[1]), "{:?}", metric("r_squared"));
    fs::write(&config, text("length")).unwrap();
    let said = bench.refused(&bench.args(&[], Some(config)));
    assert!(said.contains("run.toml") && said.contains("rows of the columns size"), "{said}");
}

#[test]
fn who_rates_gets_more_of_the_same() {
    let items = ["Alien", "Amélie", "Brazil", "Jaws"].map(str::to_owned).into();
    let range = [1.0, 5.0];
    let columns =
        RatingColumns { user: "who".into(), item: "film".into(), rating: "stars".into(), range, items };
    let samples = SampleKind::Ratings(RatingShape { n_users: 4, n_items: 4 });
    // Two kinds of users and two of films; a film of the same kind gets 4 or 5 stars, another 2 or 1.
    let set = |name: &str, index| match name {
        "user_factors.weight" => [1.0, -1.0, 1.0, -1.0][index],
        "item_factors.weight" => [2.0, -2.0, 1.0, -1.0][index],
        "mean.bias" => 3.0,
        _ => 0.0,
    };
    let preset = Preset::MatrixFactorization { factors: 1 };
    let bench = Bench::new(&preset, samples, Some(DataColumns::Ratings(columns)), set);
    let file = bench.file("mine.csv", "who,film,stars\nann,Alien,5\nbob,Amélie,5\nbob,Jaws,4\n");
    let said = bench.predicted(&file, None).unwrap();
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0], ["who", "film", "stars"]);
    let recommended: Vec<&[&str]> = lines[1..].iter().map(|line| &line[..2]).collect();
    assert_eq!(recommended, [["ann", "Brazil"], ["ann", "Jaws"], ["bob", "Brazil"], ["bob", "Alien"]]);
    let stars = |line: &[&str]| line[2].parse::<f32>().unwrap();
    assert!((stars(&lines[1]) - 4.0).abs() < 0.1 && (stars(&lines[4]) - 1.0).abs() < 0.2, "{said}");
    assert_eq!(bench.predicted(&file, Some("bob")).unwrap().lines().count(), 3);
    let error = bench.predicted(&file, Some("eve")).unwrap_err().to_string();
    assert!(error.contains("no rating in it is of \"eve\""), "{error}");
    let said = bench.refused(&bench.args(&[&file], None));
    assert!(said.contains("--config"), "{said}");
}

#[test]
fn pictures_are_told_and_evaluated_by_their_folders() {
    let shape = ImageShape { height: 2, width: 2, channels: 3 };
    let class_names = ["bright", "dark"].map(str::to_owned).into();
    // The brighter, the more it is of the first class.
    let set = |name: &str, index: usize| match name {
        "fc1.weight" if index.is_multiple_of(2) => 0.2,
        _ => 0.0,
    };
    let samples = SampleKind::Images { shape, class_names };
    let bench = Bench::new(&Preset::Mlp { hidden: Vec::new() }, samples, None, set);
    let black = bench.picture("dark/a.png", 0);
    bench.picture("dark/b.png", 250);
    let white = bench.picture("bright/c.png", 255);
    let said = bench.predicted(&white, None).unwrap();
    assert_eq!(said.lines().next(), Some("file,class,probability"));
    assert!(said.contains("c.png,bright,0.99"), "{said}");
    let said = bench.predicted(&bench.path("dark"), None).unwrap();
    assert!(said.contains("a.png,dark,0.8") && said.contains("b.png,bright,0.99"), "{said}");
    let metric = bench.evaluated(&bench.args(&[bench.root.path()], None));
    assert!(
        (metric("accuracy")[0] - 2.0 / 3.0).abs() < 1e-6 && (metric("accuracy")[1] - 2.0 / 3.0).abs() < 1e-6
    );
    fs::write(&black, "no picture").unwrap();
    assert!(matches!(bench.predicted(&black, None), Err(ExportedError::Picture { .. })));
    assert!(
        bench.predicted(&bench.path("dark"), None).unwrap().lines().count() == 2,
        "the broken one is left out"
    );
    fs::rename(bench.path("bright"), bench.path("light")).unwrap();
    let said = bench.refused(&bench.args(&[bench.root.path()], None));
    assert!(said.contains("no class \"light\"; folders of its classes are bright, dark"), "{said}");
}

#[test]
fn masked_words_are_guessed_and_a_text_is_evaluated() {
    let bench = Bench::of(&exported(&Preset::Albert(ALBERT), Some(tokenizer())));
    let file = bench.file("lines.txt", "a line without\nIt's ___, and ___\n");
    let said = bench.predicted(&file, None).unwrap();
    let mut lines = csv::Reader::from_reader(said.as_bytes());
    assert_eq!(lines.headers().unwrap(), ["line", "blank", "guess", "probability"].as_slice());
    let lines: Vec<_> = lines.records().map(|line| line.unwrap()).collect();
    let places: Vec<_> = lines.iter().map(|line| (line[0].to_owned(), line[1].to_owned())).collect();
    let want: Vec<_> = ["1", "1", "1", "2", "2", "2"].map(|blank| ("2".to_owned(), blank.to_owned())).into();
    assert_eq!(places, want);
    let shares: Vec<f32> = lines.iter().map(|line| line[3].parse().unwrap()).collect();
    assert!(shares.iter().all(|share| (0.0..1.0).contains(share)) && shares[0] >= shares[2], "{said}");
    let text = bench.file("more.txt", &TEXTS.join("\n"));
    let masked = bench.evaluated(&bench.args(&[&text], None));
    let goes_on = Bench::of(&exported(&gpt(GptFamily::Llama), Some(tokenizer())));
    let causal = goes_on.evaluated(&goes_on.args(&[&text], None));
    for metric in [&masked as &dyn Fn(&str) -> [f64; 2], &causal] {
        for who in 0..2 {
            assert!((metric("perplexity")[who] - metric("loss")[who].exp()).abs() < 1e-3);
        }
        assert!(metric("loss")[0] > metric("loss")[1], "nothing was learned: {:?}", metric("loss"));
    }
    // Most pieces of a text that is as strange are of one to three bytes.
    let per_byte = causal("bits_per_byte")[0] / causal("loss")[0] * std::f64::consts::LN_2;
    assert!((0.3..1.0).contains(&per_byte), "{per_byte}");
    let error = goes_on.predicted(&text, None).unwrap_err().to_string();
    assert!(error.contains("barnraise generate"), "{error}");
    let short = goes_on.file("short.txt", "It's");
    assert!(goes_on.refused(&goes_on.args(&[&short], None)).contains("12 tokens"));
}
