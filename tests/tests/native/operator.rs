//! What an operator has beside a run: a check of its configuration, a view in the terminal, readiness, traces.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use barnraise_tests::process::{HANG, TestRun};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::SMALL;

/// Batches of spans that may wait to be looked at.
const BATCHES_MAX: usize = 64;

/// A collector of traces, which takes all of them.
async fn collector() -> (String, mpsc::Receiver<Bytes>) {
    let (batches, taken) = mpsc::channel(BATCHES_MAX);
    let take = |State(batches): State<mpsc::Sender<Bytes>>, body: Bytes| async move {
        // Nobody has to look at all of them.
        let _ = batches.try_send(body);
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let routes = Router::new().route("/v1/traces", post(take)).with_state(batches);
    tokio::spawn(axum::serve(listener, routes).into_future());
    (address, taken)
}

fn names(batch: &[u8], name: &str) -> bool {
    batch.windows(name.len()).any(|part| part == name.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_watched_in_the_terminal_at_the_operators_port_and_by_its_traces() {
    let (otlp, mut batches) = collector().await;
    let sections =
        format!("{SMALL}\n[network]\noperator = \"127.0.0.1:0\"\n[telemetry]\notlp = \"{otlp}\"\n");
    let mut test_run = TestRun::new(&sections).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    assert_eq!(backbone.ready().await.unwrap(), ["ready\n", "ready\n"]);
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    backbone.wait_for_epoch(3).await.unwrap();

    let (page, operator) = (backbone.page(), backbone.operator().unwrap());
    let frame = test_run.run(&["top", "--once", &page, "--operator", &operator]).await.unwrap();
    for part in
        ["test-run", "1 contributor ", "of 256 samples", "loss", "1 native (CPU)", "given", "violations"]
    {
        assert!(frame.contains(part), "{part} is missing in:\n{frame}");
    }
    assert!(!frame.contains('\u{1b}'), "no control characters for a pipe");

    let mut missing = vec!["round", "step", "contribution"];
    while !missing.is_empty() {
        let batch = tokio::time::timeout(HANG, batches.recv()).await.unwrap().unwrap();
        missing.retain(|name| !names(&batch, name));
    }
    joined.interrupt().unwrap();
    assert!(joined.end().await.unwrap().status.success());
}

#[tokio::test]
async fn a_configuration_is_checked_before_it_is_used() {
    let mut test_run = TestRun::new(SMALL).unwrap();
    let good = test_run.storage().with_file_name("run.toml");
    let said = test_run.run(&["config", "check", good.to_str().unwrap()]).await.unwrap();
    assert!(said.contains("is good for the run `test-run`"), "{said}");
    let example = test_run.run(&["config", "example", "--all"]).await.unwrap();
    let bad = good.with_file_name("bad.toml");
    std::fs::write(&bad, example.replace("micro_batch_size = 64", "micro_batch_size = 0")).unwrap();
    let error = test_run.run(&["config", "check", bad.to_str().unwrap()]).await.unwrap_err();
    let error = format!("{error:?}");
    assert!(error.contains("bad.toml, line ") && error.contains("micro_batch_size = 0"), "{error}");
    assert!(!test_run.storage().exists(), "nothing was started");
}
