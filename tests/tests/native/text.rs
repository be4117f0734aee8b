//! A run that learns from text: files become tokens, and masked ones are guessed ever better.

use barnraise_learning::tokenizer::Tokenizer;
use barnraise_learning::{ComputeDevice, DataShape, Trainer};
use barnraise_protocol::dataset::{SampleKind, Samples};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::run::model::graph::Loss;
use barnraise_protocol::shard::ShardId;
use barnraise_tests::client::TestClient;
use barnraise_tests::process::{BackboneProcess, TestRun};

use super::model_file::{download, get};

const TEXT: &str = r#"
[run]
id = "rhymes"

[model]
kind = { albert = { embedding = 16, hidden = 32, heads = 2, inner = 64, layers = 2 } }

[data]
shard_samples = 100
shuffle_buffer_samples = 500

[data.text]
name = "Rhymes"
vocabulary = 100
sequence_tokens = 16
held_out = 0.05
sources = [{ path = "house.txt", weight = 2.0 }, { path = "farm.jsonl", field = "verse" }]

[scheme.synchronous]
target_batch_size = 64
micro_batch_size = 16
optimizer = { kind = "adam" }
schedule = { peak = 0.003, warmup_steps = 5, decay = { kind = "constant" } }

[evaluation]
every_epochs = 2
"#;

#[tokio::test]
async fn a_run_learns_from_text_of_two_files() {
    let mut test_run = TestRun::new(TEXT).unwrap();
    let house = "This is the cat that killed the rat that ate the malt that lay in the house. ";
    test_run.write("house.txt", &house.repeat(400)).unwrap();
    let animals = ["cow", "pig", "duck", "horse"].map(|animal| format!("and on that farm he had a {animal}"));
    let line = |n: usize| format!("{{\"verse\": \"Old MacDonald had a farm, {}.\"}}\n", animals[n % 4]);
    test_run.write("farm.jsonl", &(0..1000).map(line).collect::<String>()).unwrap();

    let backbone = test_run.backbone().await.unwrap();
    let run = backbone.status().await.unwrap().run;
    assert_eq!(run.model.graph.loss, Loss::MaskedLanguageModel);
    let SampleKind::Tokens(shape) = run.data.manifest.samples else {
        panic!("{:?}", run.data.manifest.samples)
    };
    let client = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    let bytes = client.shard(&run, ShardId::Numbered(0)).await.unwrap();
    let shard = Samples::decode(&bytes, &run.data.manifest.shards[0], &run.data.manifest).unwrap();
    let Samples::Tokens(tokens) = shard else { panic!("no text") };
    assert_eq!(tokens.sequences().count(), 100);

    let joined = test_run.join(&[&backbone.page()]).unwrap();
    // An untrained model has the loss of a uniform guess over the vocabulary.
    let begun = (shape.vocabulary as f32).ln();
    let is_better = |loss: Option<f32>| loss.is_some_and(|loss| loss < 0.8 * begun);
    let learned = backbone.wait_for("a lower loss and a better guess", |progress| {
        is_better(progress.train_loss) && progress.test_accuracy.is_some_and(|share| share > 0.1)
    });
    println!("{:?}", learned.await.unwrap());
    ensure_blanks_are_filled(&backbone, &run).await;
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
}

/// As a tab does it: with the tokenizer and the model that anybody may download.
async fn ensure_blanks_are_filled(backbone: &BackboneProcess, run: &RunDescription) {
    let tokenizer = Tokenizer::read(&get(backbone, "/api/tokenizer.json").await.unwrap()).unwrap();
    let SampleKind::Tokens(shape) = run.data.manifest.samples else {
        panic!("{:?}", run.data.manifest.samples)
    };
    assert_eq!(tokenizer.size(), shape.vocabulary);
    let data = DataShape::of(&run.data.manifest.samples);
    let file = download(backbone, "/api/model.safetensors", run).await;
    let mut trainer = Trainer::new(&run.model, data, ComputeDevice::cpu()).unwrap();
    trainer.load_parameters(&file.parameters).unwrap();
    let blanked = tokenizer.encode_with_blanks("the cat that ___ the", shape.length.into()).unwrap();
    let probabilities = trainer.fill(&blanked.ids, &blanked.blanks).await.unwrap();
    assert_eq!(probabilities.len(), shape.vocabulary as usize);
    let sum: f32 = probabilities.iter().sum();
    assert!((sum - 1.0).abs() < 1e-3, "{sum}");
    let likeliest = tokenizer.likeliest(&probabilities, 3);
    println!("{likeliest:?}");
    assert_eq!(likeliest.len(), 3);
    // Better than a guess of anything.
    assert!(likeliest[0].1 > 1.5 / (shape.vocabulary as f32), "{likeliest:?}");
}
