//! A run of local steps with an outer optimizer, sparse on the wire, as a tab on a slow uplink wants it.

use barnraise_tests::process::TestRun;

use super::SMALL;

/// [`SMALL`] with ways of four steps, of which a hundredth is sent.
fn local() -> String {
    let local_steps = r#"[scheme.synchronous.local_steps]
steps = 4
optimizer = { kind = "sgd-momentum", momentum = 0.9 }
schedule = { peak = 0.05 }

[scheme.synchronous]"#;
    SMALL
        .replace("gradient_codec = \"f32\"", "gradient_codec = { top-k = { density = 0.05 } }")
        .replace("momentum = 0.9 }", "momentum = 0.6, nesterov = true }")
        .replace("peak = 0.05", "peak = 0.7")
        .replace("[scheme.synchronous]", local_steps)
}

#[tokio::test]
async fn a_run_of_local_steps_learns_and_goes_on_after_a_crash() {
    let mut test_run = TestRun::new(&local()).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    let shown = backbone.wait_for_epoch(10).await.unwrap();
    backbone.kill().await.unwrap();
    // From pseudo-gradients in the journal, and the velocity of the outer optimizer in the checkpoint.
    let backbone = test_run.backbone().await.unwrap();
    let resumed = backbone.status().await.unwrap();
    assert!(resumed.progress.epoch >= shown.epoch, "{resumed:?}");
    backbone.wait_for_epoch(25).await.unwrap();
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
    let status = backbone.status().await.unwrap();
    assert_eq!(status.run.synchronous().unwrap().local_steps.map(|local| local.steps), Some(4));
    let losses: Vec<f32> = status.history.iter().filter_map(|point| point.train_loss).collect();
    let (first, last) = (losses[0], losses.iter().rev().take(5).sum::<f32>() / 5.0);
    println!("loss {first} at first, {last} at last");
    assert!(last < 0.7 * first, "{losses:?}");
}
