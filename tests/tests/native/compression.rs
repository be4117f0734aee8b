//! A run whose gradients are sparse, one where slow links have a codec of their own, and a contributor that is too old.

use barnraise_protocol::{ConversationError, TensorCodec, run};
use barnraise_tests::client::{TestClient, n_parameters};
use barnraise_tests::process::TestRun;

use super::SMALL;
use super::credits::receipts;

/// [`SMALL`] with one value in a hundred, after a warm-up, and the momentum with the contributors.
fn sparse() -> String {
    let codec = "gradient_codec = { top-k = { density = 0.01, warmup_epochs = 4, momentum = 0.9 } }";
    let plain = SMALL.replace("momentum = 0.9 }", "momentum = 0.0 }");
    plain.replace("gradient_codec = \"f32\"", codec)
}

#[tokio::test]
async fn a_sparse_run_learns_and_goes_on_after_a_crash() {
    let mut test_run = TestRun::new(&sparse()).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    let shown = backbone.wait_for_epoch(12).await.unwrap();
    backbone.kill().await.unwrap();
    // From sparse entries of the journal.
    let backbone = test_run.backbone().await.unwrap();
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
async fn a_link_that_turns_out_to_be_fast_carries_whole_gradients() {
    let slow_links = "[scheme.synchronous.slow_links]\nbelow_bytes_per_second = 1\ncodec = \"int8\"\n\n[scheme.synchronous]";
    let mut test_run = TestRun::new(&SMALL.replace("[scheme.synchronous]", slow_links)).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let run = TestClient::connect(backbone.tcp().unwrap()).await.unwrap().describe().await.unwrap();
    let file = test_run.storage().with_file_name("receipts.jsonl");
    let joined = test_run.join(&[&backbone.page(), "--receipts", file.to_str().unwrap()]).unwrap();
    let shown = backbone.wait_for_epoch(4).await.unwrap();
    backbone.kill().await.unwrap();
    // From entries of both codecs in the journal.
    let backbone = test_run.backbone().await.unwrap();
    assert!(backbone.status().await.unwrap().progress.epoch >= shown.epoch);
    backbone.wait_for_epoch(8).await.unwrap();
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
    let n_bytes = |codec: TensorCodec| codec.encoded_len(n_parameters(&run).unwrap() as usize) as u64;
    let sent: Vec<u64> = receipts(&file).iter().map(|receipt| receipt.n_bytes).collect();
    assert_eq!(sent[0], n_bytes(TensorCodec::Int8), "nothing was sent before it");
    assert!(sent.len() > 4 && sent[1..].iter().all(|sent| *sent == n_bytes(TensorCodec::F32)), "{sent:?}");
}

#[tokio::test]
async fn a_contributor_of_an_older_version_is_told_which_one_is_wanted() {
    let mut test_run = TestRun::new(SMALL).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let client = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    for before in run::OLDER_PROTOCOLS {
        let mut stream = client.open(before).await.unwrap();
        let refused = run::describe(&mut stream).await.unwrap_err();
        assert!(matches!(refused, ConversationError::Older(_)), "{refused:?}");
        assert!(refused.to_string().contains(run::PROTOCOL), "{refused}");
    }
}
