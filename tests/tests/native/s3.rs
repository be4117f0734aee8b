//! A run whose objects are in an S3 store, by a way that throttles and cuts connections.

use std::sync::atomic::Ordering;

use barnraise_tests::process::World;
use barnraise_tests::s3::{BadWay, S3};

use super::SMALL;

/// Of the way's faults.
const SEED: u64 = 14;

#[tokio::test]
async fn a_run_in_an_s3_store_loses_nothing_to_throttling_cuts_and_a_crash() {
    let store = S3::start("barn").await.unwrap();
    let way = BadWay::to(&store, 8, SEED).await.unwrap();
    let sections = SMALL.replace("[storage]\n", "[storage]\nobjects = \"s3://barn/run\"\n");
    assert_ne!(sections, SMALL);
    let environment = S3::environment(way.port);
    let mut world = World::new(&sections).unwrap().with_environment(&environment);
    let mut backbone = world.backbone().await.unwrap();
    let joined = world.join(&[&backbone.page()]).unwrap();
    // Behind a checkpoint, and from the journal alone.
    for epochs in [8, 3] {
        let epoch = backbone.wait_for_epoch(0).await.unwrap().epoch;
        let shown = backbone.wait_for_epoch(epoch + epochs).await.unwrap();
        backbone.kill().await.unwrap();
        backbone = world.backbone().await.unwrap();
        let resumed = backbone.status().await.unwrap();
        assert!(resumed.progress.epoch >= shown.epoch, "seed {SEED}: {resumed:?}");
    }
    let epoch = backbone.wait_for_epoch(0).await.unwrap().epoch;
    backbone.wait_for_epoch(epoch + 2).await.unwrap();
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "seed {SEED}: {given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "seed {SEED}: {given:?}");
    let faults = &way.faults;
    for (what, n) in
        [("throttled", &faults.n_throttled), ("lost", &faults.n_lost), ("unanswered", &faults.n_unanswered)]
    {
        assert!(n.load(Ordering::Relaxed) > 0, "seed {SEED}: {what}: {faults:?}");
    }
    // What lasts is there, and here is what is this machine's.
    for folder in ["journal", "checkpoints", "models"] {
        assert!(!world.storage().join(folder).exists(), "{folder}");
    }
    assert!(world.storage().join("identity.key").exists());
    assert!(backbone.terminate().await.unwrap().success());

    // Another backbone does not take it for its own.
    let other = World::new(&sections).unwrap();
    let error = other.with_environment(&environment).backbone().await.unwrap_err().to_string();
    assert!(error.contains("has the objects of the backbone 12D3KooW"), "{error}");
}
