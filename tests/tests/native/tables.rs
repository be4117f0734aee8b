//! Runs on data of the operator's own that is neither pictures nor text, and a model that is taken out of its run.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{SampleKind, TableTarget};
use barnraise_tests::process::{BackboneProcess, TestRun};
use barnraise_tests::sentences;
use barnraise_tests::tables::{self, SCHEME};

/// A run that has learned, and still runs.
struct Learned {
    test_run: TestRun,
    backbone: BackboneProcess,
    samples: SampleKind,
}

impl Learned {
    /// What a program says of the exported model; `exported` in `args` is its folder.
    async fn run(&mut self, args: &[&str]) -> String {
        let folder = self.test_run.folder().join("exported");
        let of = self.test_run.folder().to_owned();
        let path = |name: &str| of.join(name).display().to_string();
        if !folder.exists() {
            self.test_run.run(&["export", &self.backbone.page(), &path("exported")]).await.unwrap();
        }
        let args: Vec<String> = args
            .iter()
            .map(
                |&arg| if arg.contains("exported") || arg.contains('.') { path(arg) } else { arg.to_owned() },
            )
            .collect();
        self.test_run.run(&args.iter().map(String::as_str).collect::<Vec<_>>()).await.unwrap()
    }
}

async fn learns(sections: &str, file: &str, text: &str, want: f32) -> Learned {
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
    Learned { test_run, backbone, samples }
}

#[tokio::test]
async fn a_run_tells_classes_of_a_table_apart() {
    let mut learned = learns(tables::FLOWERS, "flowers.csv", &tables::flowers(), 0.9).await;
    let SampleKind::Rows(table) = &learned.samples else { panic!("no table") };
    assert_eq!(table.columns, ["petal", "sepal", "colour=blue", "colour=red", "colour=white"]);
    assert_eq!(table.target, TableTarget::Class(vec!["daisy".into(), "rose".into()]));
    // Flowers that nobody has seen, read as those that were trained on.
    learned.test_run.write("new.csv", "petal;sepal;colour\n5.5;0.5;red\n5.5;0.5;white\n").unwrap();
    let said = learned.run(&["predict", "exported", "new.csv"]).await;
    let told: Vec<&str> = said.lines().skip(1).filter_map(|line| line.split(',').nth(3)).collect();
    assert_eq!(told, ["rose", "daisy"], "{said}");
    let said = learned.run(&["evaluate", "exported", "--config", "run.toml"]).await;
    assert!(
        said.contains("Held-out part of flowers, 120 samples") && said.contains("commonest class"),
        "{said}"
    );
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
    let text = tables::flowers();
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
    let mut learned = learns(tables::FILMS, "films.csv", &tables::films(), 0.8).await;
    let SampleKind::Ratings(of) = &learned.samples else { panic!("no ratings") };
    assert_eq!((of.n_users, of.n_items), (60, 40));
    // Somebody who is no user of the run likes films with even numbers.
    learned.test_run.write("mine.csv", "item,rating\nfilm 2,4.5\nfilm 3,1.5\nfilm 8,4.5\n").unwrap();
    let said = learned.run(&["predict", "exported", "mine.csv"]).await;
    let films: Vec<u32> =
        said.lines().skip(1).filter_map(|line| line.split(',').nth(1)?[5..].parse().ok()).collect();
    assert!(films.len() == 10 && films.iter().all(|film| film % 2 == 0 && ![2, 8].contains(film)), "{said}");
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
    let said = test_run.run(&["generate", folder, "the rat ate", "--tokens", "300"]).await.unwrap();
    assert!(said.starts_with("the rat ate "), "{said}");
    let whole =
        sentences::SENTENCES.iter().filter(|sentence| said.matches(sentence.trim()).count() > 0).count();
    assert!(whole >= 2, "{said}");
    // Nothing is overwritten.
    assert!(test_run.run(&["export", &backbone.page(), folder]).await.is_err());
}
