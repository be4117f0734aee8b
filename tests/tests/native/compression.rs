//! A run whose gradients are sparse, and a contributor that is too old for it.

use barnraise_protocol::{ConversationError, run};
use barnraise_tests::client::Client;
use barnraise_tests::process::World;

use super::SMALL;

/// [`SMALL`] with one value in a hundred, after a warm-up, and the momentum with the contributors.
fn sparse() -> String {
    let sections = SMALL
        .replace(
            "gradient_codec = \"f32\"",
            "gradient_codec = { top-k = { density = 0.01, warmup_epochs = 4 } }",
        )
        .replace("momentum = 0.9 }", "momentum = 0.0 }");
    format!("{sections}\n[compression]\nmomentum = 0.9\n")
}

#[tokio::test]
async fn a_sparse_run_learns_and_goes_on_after_a_crash() {
    let mut world = World::new(&sparse()).unwrap();
    let backbone = world.backbone().await.unwrap();
    let joined = world.join(&[&backbone.page()]).unwrap();
    let shown = backbone.wait_for_epoch(12).await.unwrap();
    backbone.kill().await.unwrap();
    // From sparse entries of the journal.
    let backbone = world.backbone().await.unwrap();
    let resumed = backbone.status().await.unwrap();
    assert!(resumed.progress.epoch >= shown.epoch, "{resumed:?}");
    backbone.wait_for_epoch(30).await.unwrap();
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
    let status = backbone.status().await.unwrap();
    let losses: Vec<f32> = status.history.iter().filter_map(|point| point.train_loss).collect();
    let (first, last) = (losses[0], losses.iter().rev().take(5).sum::<f32>() / 5.0);
    println!("loss {first} at first, {last} at last");
    assert!(last < 0.7 * first, "{losses:?}");
}

#[tokio::test]
async fn a_contributor_of_an_older_version_is_told_which_one_is_wanted() {
    let mut world = World::new(SMALL).unwrap();
    let backbone = world.backbone().await.unwrap();
    let client = Client::connect(backbone.tcp().unwrap()).await.unwrap();
    for before in run::PROTOCOLS_BEFORE {
        let mut stream = client.open(before).await.unwrap();
        let refused = run::describe(&mut stream).await.unwrap_err();
        let ConversationError::Refused(reason) = refused else { panic!("{refused:?}") };
        assert!(reason.contains(run::PROTOCOL), "{reason}");
    }
}
