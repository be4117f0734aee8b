//! Runs on data of the operator's own that is neither pictures nor text, and a model that is taken out of its run.

use std::fmt::Write;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{SampleKind, TableTarget};
use barnraise_swarm::random::SplitMix64;
use barnraise_tests::process::TestRun;
use barnraise_tests::sentences;

const SCHEME: &str = r#"
[scheme.synchronous]
target_batch_size = 128
micro_batch_size = 32
optimizer = { kind = "adam" }
schedule = { peak = 0.01, warmup_steps = 2, decay = { kind = "constant" } }
[evaluation]
every_epochs = 2
"#;

/// Flowers of two kinds, which lengths and colour tell apart together.
fn flowers() -> String {
    let mut random = SplitMix64::new(3);
    let mut unit = move || random.below(1000) as f64 / 1000.0;
    let mut text = "petal;sepal;colour;kind\n".to_owned();
    for row in 0..1200 {
        let (petal, sepal) = (unit() * 6.0, unit() * 6.0);
        let colour = ["red", "white", "blue"][row % 3];
        let is_rose = (petal > sepal) == (colour == "red");
        let kind = if is_rose { "rose" } else { "daisy" };
        // A few lengths were not measured.
        let petal = if row % 97 == 5 { String::new() } else { format!("{petal:.2}") };
        writeln!(text, "{petal};{sepal:.2};{colour};{kind}").unwrap();
    }
    text
}

async fn learns(sections: &str, file: &str, text: &str, want: f32) -> SampleKind {
    let mut test_run = TestRun::new(&format!("{sections}{SCHEME}")).unwrap();
    test_run.write(file, text).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let samples = backbone.status().await.unwrap().run.data.manifest.samples;
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    let learned = backbone
        .wait_for("a good model", |progress| progress.test_accuracy.is_some_and(|accuracy| accuracy >= want));
    println!("{:?}", learned.await.unwrap());
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
    samples
}

#[tokio::test]
async fn a_run_tells_classes_of_a_table_apart() {
    let sections = r#"
[run]
id = "flowers"
[model]
kind = { mlp = { hidden = [32, 32] } }
[data]
shard_samples = 200
[data.table]
file = "flowers.csv"
target = "kind"
"#;
    let SampleKind::Rows(table) = learns(sections, "flowers.csv", &flowers(), 0.9).await else {
        panic!("no table")
    };
    assert_eq!(table.columns, ["petal", "sepal", "colour=blue", "colour=red", "colour=white"]);
    assert_eq!(table.target, TableTarget::Class(vec!["daisy".into(), "rose".into()]));
}

/// A server of one file, and its address.
fn serve(body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)).unwrap();
        }
    });
    address
}

#[tokio::test]
async fn a_file_is_fetched_and_is_the_stated_one_or_not_used() {
    let text = flowers();
    let hash = Sha256Hash::of(text.as_bytes());
    let address = serve(text.into_bytes());
    let run = |hash: Sha256Hash| {
        let sections = format!(
            "[run]\nid = \"flowers\"\n[model]\nkind = {{ mlp = {{ hidden = [32] }} }}\n[data.table]\n\
            file = {{ url = \"{address}/flowers.csv\", sha256 = \"{hash}\" }}\ntarget = \"kind\"\n"
        );
        TestRun::new(&format!("{sections}{SCHEME}")).unwrap()
    };
    let mut test_run = run(hash);
    let backbone = test_run.backbone().await.unwrap();
    let samples = backbone.status().await.unwrap().run.data.manifest.samples;
    assert!(matches!(samples, SampleKind::Rows(table) if table.columns.len() == 5));
    assert!(run(Sha256Hash::of(b"another")).backbone().await.is_err());
}

#[tokio::test]
async fn a_run_learns_who_likes_what() {
    let mut text = "user,item,rating\n".to_owned();
    for (user, item) in (0..60).flat_map(|user| (0..40).map(move |item| (user, item))) {
        if (user * 7 + item * 3) % 4 != 0 {
            let rating = 3.0 + if user % 2 == item % 2 { 1.5 } else { -1.5 };
            writeln!(text, "u{user},film {item},{rating}").unwrap();
        }
    }
    let sections = r#"
[run]
id = "films"
[model]
kind = { matrix-factorization = { factors = 4 } }
[data]
shard_samples = 500
[data.ratings]
file = "films.csv"
"#;
    let SampleKind::Ratings(of) = learns(sections, "films.csv", &text, 0.8).await else {
        panic!("no ratings")
    };
    assert_eq!((of.n_users, of.n_items), (60, 40));
}

#[tokio::test]
async fn a_model_is_exported_and_goes_on_with_a_text() {
    let run = "[run]\nid = \"rhymes\"\n";
    let mut test_run = TestRun::new(&format!("{run}{}{SCHEME}", sentences::RUN)).unwrap();
    test_run.write("house.txt", &sentences::text()).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    let learned = backbone
        .wait_for("a good model", |progress| progress.test_accuracy.is_some_and(|accuracy| accuracy >= 0.93));
    println!("{:?}", learned.await.unwrap());
    joined.interrupt().unwrap();
    joined.end().await.unwrap();
    let folder = test_run.folder().join("exported");
    let folder = folder.to_str().unwrap();
    let said = test_run.run(&["export", &backbone.page(), folder]).await.unwrap();
    assert!(said.contains("AutoModelForCausalLM") && said.contains("barnraise generate"), "{said}");
    for file in ["config.json", "model.safetensors", "tokenizer.json", "README.md", "barnraise.json"] {
        assert!(test_run.folder().join("exported").join(file).exists(), "{file}");
    }
    let said = test_run.run(&["generate", folder, "the rat ate", "--tokens", "90"]).await.unwrap();
    assert!(said.starts_with("the rat ate the malt. "), "{said}");
    let whole =
        sentences::SENTENCES.iter().filter(|sentence| said.matches(sentence.trim()).count() > 0).count();
    assert!(whole >= 2, "{said}");
    // Nothing is overwritten.
    assert!(test_run.run(&["export", &backbone.page(), folder]).await.is_err());
}
