//! A model whose experts live on other processes: one serves, others host experts, another trains. A host is killed, and
//! training goes on; it comes back with what its experts had learned.

use barnraise_tests::process::{BackboneProcess, PeerProcess, TestRun};

/// Eight experts on a grid of one dimension, after the first layer. Without them the last layer sees the first one alone.
const HOSTED: &str = r#"
[run]
id = "hosted-experts"

[model.kind.graph]
name = "experts for garments"
loss = "classification"
parts = [{ name = "expert", blocks = [
    { name = "up", op = { dense = { units = 32, initial = "he" } } },
    { name = "act", op = "relu" },
    { name = "down", op = { dense = { units = 16 } } },
] }]
blocks = [
    { name = "flat", op = "flatten" },
    { name = "first", op = { dense = { units = 16, initial = "he" } } },
    { name = "act", op = "relu" },
    { name = "moe", op = { experts = { part = "expert", side = 8, active = 2 } } },
    { name = "sum", op = "add", from = ["moe", "act"] },
    { name = "fc", op = { dense = { units = "classes" } } },
]

[model.experts]
schedule = { peak = 0.003 }

[data]
shuffle_buffer_samples = 1000

[scheme.synchronous]
target_batch_size = 128
micro_batch_size = 32
schedule = { peak = 0.005 }

[evaluation]
every_epochs = 5
"#;

/// Waits until a process has said something.
async fn wait_for(peer: &PeerProcess, what: &str) -> String {
    let began = std::time::Instant::now();
    loop {
        let log = peer.log().unwrap();
        if log.contains(what) {
            return log;
        }
        assert!(began.elapsed() < barnraise_tests::process::HANG, "waited for {what:?}:\n{log}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Optimizer steps of all experts of a host, as it said last; 0 before.
fn steps(host: &PeerProcess) -> u64 {
    let log = host.log().unwrap();
    let said = log
        .lines()
        .rev()
        .find_map(|line| line.split(" steps in all").next()?.rsplit(' ').next()?.parse().ok());
    said.unwrap_or_default()
}

async fn accuracy_of(backbone: &BackboneProcess, want: f32) -> f32 {
    let reached = backbone
        .wait_for("a good model", |progress| progress.test_accuracy.is_some_and(|accuracy| accuracy >= want));
    reached.await.unwrap().test_accuracy.unwrap()
}

#[tokio::test]
async fn experts_on_other_processes_learn_and_are_missed_and_come_back() {
    let mut test_run = TestRun::new(HOSTED).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();
    let first = test_run.host_experts("first", &[&page, "--experts", "4"]).unwrap();
    wait_for(&first, "Hosting 4 experts").await;
    let second = test_run.host_experts("second", &[&page, "--experts", "4"]).unwrap();
    wait_for(&second, "Hosting 4 experts").await;
    let trainer = test_run.join(&[&page]).unwrap();
    let reached = accuracy_of(&backbone, 0.7).await;
    wait_for(&first, "learned from").await;
    wait_for(&second, "learned from").await;

    // One host is gone without a word: the others do its part.
    second.kill().await.unwrap();
    let epoch = backbone.status().await.unwrap().progress.epoch;
    backbone.wait_for_epoch(epoch + 10).await.unwrap();
    let without = accuracy_of(&backbone, reached - 0.1).await;

    // The other one leaves, and has stored what its experts learned.
    let before = steps(&first);
    first.interrupt().unwrap();
    wait_for(&first, "Leaving").await;
    trainer.kill().await.unwrap();
    first.kill().await.unwrap();
    let again = test_run.host_experts("first", &[&page, "--experts", "8"]).unwrap();
    wait_for(&again, "Hosting").await;
    let trainer = test_run.join(&[&page]).unwrap();
    wait_for(&again, "learned from").await;
    let epoch = backbone.status().await.unwrap().progress.epoch;
    backbone.wait_for_epoch(epoch + 10).await.unwrap();
    assert!(steps(&again) >= before, "{} steps after {before}", steps(&again));
    println!("accuracy {reached}, {without} with half of the experts");
    trainer.kill().await.unwrap();
    again.kill().await.unwrap();
}
