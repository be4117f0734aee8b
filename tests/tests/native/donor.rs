//! A backbone that gives its model to one that fell behind is killed in the middle of it.

use std::path::Path;
use std::time::Duration;

use barnraise_tests::byte_limit_proxy::ByteLimitProxy;
use barnraise_tests::process::{HANG, TestRun, metric};

use super::SMALL;
use super::aggregators::{agreed, leave, state, wait_for_link};

/// A model of some megabytes, whose journal does not reach back to its beginning: who is new needs a checkpoint.
fn sections() -> String {
    let large = SMALL.replace("hidden = [32]", "hidden = [512]");
    let sections =
        large.replace("checkpoint_every_epochs = 7", "checkpoint_every_epochs = 1\nkeep_checkpoints = 1");
    assert!(large != SMALL && sections != large);
    format!("{sections}\n[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n")
}

/// Until no step leads on from the model that everybody begins with.
async fn cut(storage: &Path) {
    let first = storage.join("journal/000000000000/commit");
    let gone = async {
        while first.exists() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let gone = tokio::time::timeout(HANG, gone).await;
    assert!(gone.is_ok(), "{} is still there", first.display());
}

#[tokio::test]
async fn when_a_donor_is_killed_another_one_gives_the_rest() {
    let sections = sections();
    let mut test_runs = [(); 2].map(|()| TestRun::new(&sections).unwrap());
    // Native peers cannot dial WebTransport: nobody comes to it but through the proxies.
    let mut behind =
        TestRun::new(&sections).unwrap().with_listen(&["/ip4/127.0.0.1/udp/0/quic-v1/webtransport"]);
    let behind_id = behind.command(&["id"]).await.unwrap().trim().to_owned();
    let [one, other] = &mut test_runs;
    let [one_id, other_id] = [one.command(&["id"]).await.unwrap(), other.command(&["id"]).await.unwrap()]
        .map(|id| id.trim().to_owned());
    let third = format!("/p2p/{behind_id}");
    one.aggregate_with(&[format!("/p2p/{other_id}"), third.clone()]).unwrap();
    let first = one.backbone().await.unwrap();
    other.aggregate_with(&[first.tcp().unwrap().to_string(), third]).unwrap();
    let second = other.backbone().await.unwrap();
    wait_for_link(&first, &other_id).await;
    wait_for_link(&second, &one_id).await;
    let joined = [one.join(&[&first.page()]).unwrap(), other.join(&[&second.page()]).unwrap()];
    first.wait_for_epoch(6).await.unwrap();
    leave(joined).await;
    agreed([&first, &second]).await;
    for test_run in &test_runs {
        cut(&test_run.storage()).await;
    }

    let status = first.status().await.unwrap();
    let epoch = status.progress.epoch;
    // A checkpoint is parameters and as many values of the optimizer: half of it may come of either.
    let half = 4 * status.n_parameters;
    let first_proxy = ByteLimitProxy::new(&first.tcp().unwrap(), half).await.unwrap();
    let second_proxy = ByteLimitProxy::new(&second.tcp().unwrap(), half).await.unwrap();
    let addresses = [&first_proxy, &second_proxy].map(|proxy| proxy.address().to_string());
    behind.aggregate_with(&addresses).unwrap();
    let follower = behind.backbone().await.unwrap();
    // The backbone that was found first sends the checkpoint.
    let is_first = tokio::select! {
        filled = first_proxy.filled() => filled.map(|()| true),
        filled = second_proxy.filled() => filled.map(|()| false),
    };
    let (one, other) = ((first, first_proxy), (second, second_proxy));
    let ((donor, proxy), (receiver, other_proxy)) =
        if is_first.unwrap() { (one, other) } else { (other, one) };
    // It has begun and cannot have finished, and nobody else has begun.
    assert!(proxy.passed() < half + half / 4, "{} bytes came of {}", proxy.passed(), 2 * half);
    assert!(other_proxy.passed() < half / 4, "{} bytes came from the other one", other_proxy.passed());
    assert_eq!(follower.status().await.unwrap().progress.epoch, 0);
    donor.kill().await.unwrap();
    drop(proxy);
    other_proxy.open();
    follower.wait_for_epoch(epoch).await.unwrap();

    let metrics = follower.metrics().await.unwrap();
    let followed =
        |what: &str| metric(&metrics, &format!("barnraise_models_followed_total{{what=\"{what}\"}}"));
    assert_eq!((followed("checkpoint").unwrap(), followed("step").unwrap()), (1.0, 0.0), "{metrics}");
    let log = follower.log().unwrap();
    assert!(log.contains("asks for the rest of a checkpoint"), "{log}");
    // Bytes in the buffers of the killed one came twice; a new start would be two halves.
    assert!(
        other_proxy.passed() < half + half / 2,
        "{} bytes came after {half} of {}",
        other_proxy.passed(),
        2 * half
    );
    // And it is the model: the follower still has it when it is asked by itself.
    follower.kill().await.unwrap();
    let mut behind = behind.with_listen(&["/ip4/127.0.0.1/tcp/0"]);
    let follower = behind.backbone().await.unwrap();
    assert!(state(&follower).await == state(&receiver).await);
}
