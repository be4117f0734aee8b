//! Progress of a run from the DHT: which backbone a peer joins, how a lagging backbone learns of it, and the output.

use std::time::Duration;

use barnraise_tests::client::TestClient;
use barnraise_tests::process::{BackboneProcess, HANG, TestRun, metric};

use super::SMALL;

const LOOK_EVERY: Duration = Duration::from_millis(250);

/// [`SMALL`] with an operator's page and `more`.
fn sections(more: &str) -> String {
    format!("{SMALL}\n[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n{more}")
}

/// What `barnraise progress` prints, once it is as wanted.
async fn progress(
    test_run: &mut TestRun,
    address: &str,
    run: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> String {
    let mut last = String::new();
    let looking = async {
        loop {
            let said = test_run.run(&["progress", address, "--run", run]).await;
            last = said.unwrap_or_else(|error| error.to_string());
            if is_wanted(&last) {
                return;
            }
            // Nothing tells who asks that a record came.
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let looked = tokio::time::timeout(HANG, looking).await;
    assert!(looked.is_ok(), "{last}");
    last
}

async fn wait_for_log(backbone: &BackboneProcess, words: &str) {
    let waiting = async {
        while !backbone.log().unwrap().contains(words) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let waited = tokio::time::timeout(HANG, waiting).await;
    assert!(waited.is_ok(), "`{words}` is not in the log: {}", backbone.log().unwrap());
}

/// Neither backbone is told where the other is: they find each other in the DHT. Who looks for the run goes where fewer
/// are.
#[tokio::test]
async fn a_run_is_joined_where_it_stands_best() {
    let mut meeting = TestRun::new(&SMALL.replace("test-run", "other-run")).unwrap();
    let meeting = meeting.backbone().await.unwrap();
    let known = meeting.tcp().unwrap().to_string();
    let sections = sections(&format!("dht_peers = [\"{known}\"]\n"));
    let (mut first, mut second) = (TestRun::new(&sections).unwrap(), TestRun::new(&sections).unwrap());
    let first_id = first.command(&["id"]).await.unwrap().trim().to_owned();
    let second_id = second.command(&["id"]).await.unwrap().trim().to_owned();
    first.aggregate_with(&[format!("/ip4/127.0.0.1/tcp/1/p2p/{second_id}")]).unwrap();
    let one = first.backbone().await.unwrap();
    let authority = one.status().await.unwrap().run.access.authority;
    second.aggregate_with(&[format!("/ip4/127.0.0.1/tcp/1/p2p/{first_id}")]).unwrap();
    second
        .configure(|config| {
            let authority = toml::Value::from(one.tcp().unwrap().to_string());
            config.insert(
                "access".into(),
                toml::Table::from_iter([("authority".to_owned(), authority)]).into(),
            );
        })
        .unwrap();
    let other = second.backbone().await.unwrap();
    wait_for_log(&other, &format!("averages with this aggregator peer={first_id}")).await;

    let at_one = first.join(&[&one.page()]).unwrap();
    one.wait_for_epoch(3).await.unwrap();
    at_one.interrupt().unwrap();
    assert!(at_one.end().await.unwrap().status.success());
    // Sits at the one and gives nothing: the records are of different times, and in a run that trains the other one's
    // would be of long ago.
    let sitting = TestClient::connect(one.tcp().unwrap()).await.unwrap();
    let _session = sitting.join("test-run", "a test").await.unwrap().discard_inbound();
    let run = format!("test-run@{authority}");
    let of = |text: &str, id: &str| text.lines().find(|line| line.starts_with(id)).map(str::to_owned);
    let epoch = |line: &str| line.split("  ").find(|part| part.starts_with("epoch ")).map(str::to_owned);
    let is_crowded = |text: &str| {
        let (Some(at_first), Some(at_second)) = (of(text, &first_id), of(text, &second_id)) else {
            return false;
        };
        at_first.contains("  1 contributors")
            && at_second.contains("  0 contributors")
            && epoch(&at_first) == epoch(&at_second)
            // From before a backbone knew its model.
            && !text.contains("model -")
    };
    let text = progress(&mut first, &known, &run, is_crowded).await;
    assert!(text.contains("2 up, epoch "), "{text}");

    let joined = second.join(&[&known, "--run", &run, "--samples", "600"]).unwrap();
    // Not in the outcome, which has the end of the log.
    joined.wait_for_log(&format!("this backbone was chosen peer={second_id}")).await.unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    let samples = "barnraise_samples_accepted_total";
    assert!(metric(&other.metrics().await.unwrap(), samples).unwrap() >= 600.0);

    // One that is down is not joined: who comes finds the other, though more are there.
    other.kill().await.unwrap();
    let joined = first.join(&[&known, "--run", &run, "--samples", "300"]).unwrap();
    joined.wait_for_log(&format!("this backbone was chosen peer={first_id}")).await.unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
}

#[tokio::test]
async fn a_backbone_without_links_learns_that_others_are_ahead() {
    let sections = sections("");
    let (mut first, mut second) = (TestRun::new(&sections).unwrap(), TestRun::new(&sections).unwrap());
    let one = first.backbone().await.unwrap();
    let joined = first.join(&[&one.page()]).unwrap();
    one.wait_for_epoch(5).await.unwrap();
    second.aggregate_with(&[one.tcp().unwrap().to_string()]).unwrap();
    // No link is made with one that trains otherwise.
    second
        .configure(|config| {
            config["scheme"]["synchronous"]["target_batch_size"] = 512.into();
            let network = config["network"].as_table_mut().unwrap();
            network.insert("dht_peers".into(), vec![one.tcp().unwrap().to_string()].into());
        })
        .unwrap();
    let other = second.backbone().await.unwrap();
    wait_for_log(&other, "this aggregator is ahead, as the DHT says, and no link leads to it").await;
    assert!(metric(&other.metrics().await.unwrap(), "barnraise_epochs_behind").unwrap() > 0.0);
    joined.interrupt().unwrap();
    assert!(joined.end().await.unwrap().status.success());
}
