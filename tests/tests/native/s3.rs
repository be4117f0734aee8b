//! A run whose objects are in an S3 store: through a proxy that throttles and cuts connections, in parts, and over HTTPS.

use std::sync::atomic::Ordering;

use barnraise_tests::process::TestRun;
use barnraise_tests::s3::{S3, UnreliableProxy};

use super::SMALL;

/// Seed of the proxy's faults.
const SEED: u64 = 14;

/// A run whose objects are there.
fn in_store() -> String {
    let sections = SMALL.replace("[storage]\n", "[storage]\nobjects = \"s3://barn/run\"\n");
    assert_ne!(sections, SMALL);
    sections
}

#[tokio::test]
async fn a_run_in_an_s3_store_loses_nothing_to_throttling_cuts_and_a_crash() {
    let store = S3::start("barn").await.unwrap();
    let proxy = UnreliableProxy::to(&store, 8, SEED).await.unwrap();
    let sections = in_store();
    let environment = S3::environment(proxy.port);
    let mut test_run = TestRun::new(&sections).unwrap().with_environment(&environment);
    let mut backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    // Behind a checkpoint, and from the journal alone.
    for epochs in [8, 3] {
        let epoch = backbone.wait_for_epoch(0).await.unwrap().epoch;
        let shown = backbone.wait_for_epoch(epoch + epochs).await.unwrap();
        backbone.kill().await.unwrap();
        backbone = test_run.backbone().await.unwrap();
        let resumed = backbone.status().await.unwrap();
        assert!(resumed.progress.epoch >= shown.epoch, "seed {SEED}: {resumed:?}");
    }
    let epoch = backbone.wait_for_epoch(0).await.unwrap().epoch;
    backbone.wait_for_epoch(epoch + 2).await.unwrap();
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "seed {SEED}: {given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "seed {SEED}: {given:?}");
    let faults = &proxy.faults;
    for (what, n) in
        [("throttled", &faults.n_throttled), ("lost", &faults.n_lost), ("unanswered", &faults.n_unanswered)]
    {
        assert!(n.load(Ordering::Relaxed) > 0, "seed {SEED}: {what}: {faults:?}");
    }
    // What lasts is there, and here is what is this machine's.
    for folder in ["journal", "checkpoints", "models"] {
        assert!(!test_run.storage().join(folder).exists(), "{folder}");
    }
    assert!(test_run.storage().join("identity.key").exists());
    assert!(backbone.terminate().await.unwrap().success());

    // Another backbone does not take it for its own.
    let other = TestRun::new(&sections).unwrap();
    let error = other.with_environment(&environment).backbone().await.unwrap_err().to_string();
    assert!(error.contains("has the objects of the backbone 12D3KooW"), "{error}");
}

#[tokio::test]
async fn a_large_object_goes_in_parts_through_a_proxy_that_cuts() {
    let store = S3::start("barn").await.unwrap();
    let proxy = UnreliableProxy::to(&store, 8, SEED).await.unwrap();
    // Its checkpoint is of 57 MB of parameters and as many of momentum; a part is of 64 MiB.
    let sections = in_store().replace("hidden = [32]", "hidden = [8192, 950]");
    let mut test_run = TestRun::new(&sections).unwrap().with_environment(&S3::environment(proxy.port));
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page(), "--samples", "256"]).unwrap();
    let shown = backbone.wait_for_epoch(1).await.unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "seed {SEED}: {given:?}");
    assert!(backbone.terminate().await.unwrap().success());
    let n_parts = proxy.faults.n_parts.load(Ordering::Relaxed);
    assert!(n_parts >= 2, "seed {SEED}: {n_parts} parts");
    let backbone = test_run.backbone().await.unwrap();
    let resumed = backbone.status().await.unwrap();
    assert!(resumed.progress.epoch >= shown.epoch, "seed {SEED}: {resumed:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "seed {SEED}");
    assert!(backbone.terminate().await.unwrap().success());
}

#[tokio::test]
async fn a_store_by_https_is_one_whose_authority_is_trusted() {
    let store = S3::start_with_tls("barn").await.unwrap();
    let authority = store.authority().unwrap().display().to_string();
    let stranger = TestRun::new(&in_store()).unwrap().with_environment(&store.environment_with_tls());
    let trusts = [("SSL_CERT_FILE".to_owned(), authority)];
    let mut test_run = TestRun::new(&in_store()).unwrap().with_environment(&store.environment_with_tls());
    test_run = test_run.with_environment(&trusts);
    let (refused, ()) = tokio::join!(async { { stranger }.backbone().await.map(drop) }, async {
        let backbone = test_run.backbone().await.unwrap();
        // With no bound on its samples: where all of them go into one step, there is no second.
        let joined = test_run.join(&[&backbone.page()]).unwrap();
        backbone.wait_for_epoch(2).await.unwrap();
        joined.interrupt().unwrap();
        assert!(joined.end().await.unwrap().status.success());
        assert!(backbone.terminate().await.unwrap().success());
    });
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}
