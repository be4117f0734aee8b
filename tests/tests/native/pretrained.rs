//! A run that begins with the model of another one: all of it is trained, or adapters beside it.

use barnraise_protocol::run::RunDescription;
use barnraise_protocol::run::model::FirstWeights;
use barnraise_tests::process::{BackboneProcess, TestRun};
use barnraise_tests::sentences;

const SCHEME: &str = r#"
    [scheme.synchronous]
    target_batch_size = 64
    micro_batch_size = 16
    schedule = { peak = 0.01 }
    [evaluation]
    every_epochs = 5
"#;

/// What the second run learns.
fn other_text() -> String {
    sentences::of(sentences::OTHER_SENTENCES, 2000, 6)
}

/// Trains until the held-out accuracy is as wanted; returns it.
async fn learn(test_run: &mut TestRun, backbone: &BackboneProcess, want: f32) -> f32 {
    let counted_before = backbone.samples_counted().await.unwrap();
    let peer = test_run.join(&[&backbone.page()]).unwrap();
    let learned = backbone.wait_for("a good model", |progress| {
        let reached = progress.test_accuracy.is_some_and(|accuracy| accuracy >= want);
        // A run that goes on may have reached it before the peer is there.
        progress.n_contributors > 0 && progress.epoch > 0 && reached
    });
    let progress = learned.await.unwrap();
    peer.interrupt().unwrap();
    let given = peer.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    // Nothing that a backbone counted before it was killed is lost, either.
    assert_eq!(backbone.samples_counted().await.unwrap(), counted_before + given.n_samples, "{given:?}");
    progress.test_accuracy.unwrap()
}

/// The loss of an exported model on a text of its folder, as `barnraise evaluate` says it.
async fn loss_on(test_run: &mut TestRun, folder: &str, text: &str) -> f64 {
    let path = |name: &str| test_run.folder().join(name).display().to_string();
    let (folder, text) = (path(folder), path(text));
    let said = test_run.run(&["evaluate", &folder, &text, "--json"]).await.unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    said["suites"][0]["metrics"]["loss"]["model"].as_f64().unwrap()
}

async fn description(backbone: &BackboneProcess) -> RunDescription {
    backbone.status().await.unwrap().run
}

#[tokio::test]
async fn a_model_goes_on_in_another_run_and_adapters_beside_it_learn_another_text() {
    let mut first = TestRun::new(&format!("{}{SCHEME}", sentences::RUN)).unwrap();
    first.write("house.txt", &sentences::text()).unwrap();
    let backbone = first.backbone().await.unwrap();
    let reached = learn(&mut first, &backbone, 0.7).await;
    let base = first.folder().join("base").display().to_string();
    first.run(&["export", &backbone.page(), &base]).await.unwrap();
    backbone.terminate().await.unwrap();

    // All of it: the network and the tokenizer are those of the folder, and nothing is lost.
    let text = "[data]\nshard_samples = 100\n[data.text]\nsequence_tokens = 32\nsources = [{ path = \"house.txt\" }]\n";
    let begins = |more: &str, id: &str| {
        let sections =
            format!("[run]\nid = \"{id}\"\n[model]\nstart_from = \"{base}\"\n{more}{text}{SCHEME}");
        TestRun::new(&sections).unwrap()
    };
    let mut whole = begins("", "whole");
    whole.write("house.txt", &sentences::text()).unwrap();
    let backbone = whole.backbone().await.unwrap();
    let evaluated = backbone.wait_for("an evaluation", |progress| progress.test_accuracy.is_some());
    let accuracy = evaluated.await.unwrap().test_accuracy.unwrap();
    // Training went on until the peer had left.
    assert!(accuracy > reached - 0.05, "{accuracy} and {reached}");
    let run = description(&backbone).await;
    assert!(matches!(run.model.weights, FirstWeights::Given(_)), "{:?}", run.model.weights);
    backbone.terminate().await.unwrap();

    // Adapters on another text, with the weights in int8; a backbone that is killed goes on with the same ones.
    let mut adapted = begins("adapters = { rank = 4 }\n", "adapted");
    adapted.write("house.txt", &other_text()).unwrap();
    let backbone = adapted.backbone().await.unwrap();
    let run = description(&backbone).await;
    let FirstWeights::Frozen(adapters) = &run.model.weights else { panic!("{:?}", run.model.weights) };
    assert_eq!(adapters.targets, ["self_attn.q_proj", "self_attn.v_proj"]);
    assert!(!run.data.manifest.frozen.is_empty());
    let evaluated = backbone.wait_for("an evaluation", |progress| progress.test_accuracy.is_some());
    let before = evaluated.await.unwrap().test_accuracy.unwrap();
    learn(&mut adapted, &backbone, before + 0.05).await;
    backbone.kill().await.unwrap();
    let backbone = adapted.backbone().await.unwrap();
    assert_eq!(description(&backbone).await.data.manifest.frozen, run.data.manifest.frozen);
    learn(&mut adapted, &backbone, before + 0.1).await;
    let tuned = adapted.folder().join("tuned").display().to_string();
    adapted.run(&["export", &backbone.page(), &tuned]).await.unwrap();
    // Text that neither has seen, and the same commands for both: what is exported is one model.
    let unseen = sentences::of(sentences::OTHER_SENTENCES, 200, 7);
    adapted.write("unseen.txt", &unseen).unwrap();
    let (of_base, of_tuned) = (
        loss_on(&mut adapted, &base, "unseen.txt").await,
        loss_on(&mut adapted, "tuned", "unseen.txt").await,
    );
    assert!(of_tuned < 0.9 * of_base, "{of_tuned} and {of_base}");
    let said = adapted.run(&["generate", &tuned, "the", "--tokens", "5"]).await.unwrap();
    assert!(said.starts_with("the"), "{said}");
}
