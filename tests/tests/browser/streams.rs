//! A run on a stream: a tab goes on with each window that comes, also where all that it had is gone.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use barnraise_protocol::shard;
use barnraise_protocol::streamed::{GRACE_SHARDS_MIN, StreamWindow};
use barnraise_tests::browser::Graphics;
use barnraise_tests::client::TestClient;
use barnraise_tests::pause::{Paused, descendants};
use barnraise_tests::process::{BackboneProcess, metric};
use barnraise_tests::sentences;

use super::support::{LONG, contributor, ensure_counted, stop, test_run, turn};

const RUN: &str = r#"
    [run]
    id = "streamed"
    title = "Going on with a stream of sentences"
    [model]
    kind = { gpt = { family = "llama", width = 16, layers = 1, heads = 2, key_value_heads = 2 } }
    [data]
    shard_samples = 50
    shuffle_buffer_samples = 150
    [data.text]
    name = "Rhymes"
    vocabulary = 100
    sequence_tokens = 16
    stream = { window_shards = 8, held_out_sequences = 16 }
    sources = [{ path = "house.txt" }, { path = "garden.txt", weight = 0.5 }]
    [scheme.synchronous]
    target_batch_size = 64
    micro_batch_size = 16
    optimizer = { kind = "adam" }
    schedule = { peak = 0.003, warmup_steps = 5, decay = { kind = "constant" } }
    [scheme.synchronous.recomputation]
    share = 0.5
    tolerance = 0.02
    [network]
    operator = "127.0.0.1:0"
    upnp = false
"#;

async fn window(backbone: &BackboneProcess) -> Result<StreamWindow> {
    let data = backbone.status().await?.run.data.manifest.stream.context("the data are no stream")?;
    let client = TestClient::connect(backbone.tcp()?).await?;
    let mut stream = client.open(shard::PROTOCOL).await?;
    Ok(shard::fetch_window(&mut stream, &data).await?)
}

/// Waits until the window has moved so far.
async fn until_moved(backbone: &BackboneProcess, is_there: impl Fn(&StreamWindow) -> bool) -> Result<()> {
    let left = async {
        while !is_there(&window(backbone).await?) {
            // The window moves with the steps, and nothing tells of it.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    };
    tokio::time::timeout(LONG, left).await.context("the window does not move")?
}

#[tokio::test]
async fn a_tab_goes_on_with_a_stream_also_after_all_of_its_shards_are_gone() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(RUN)?;
    test_run.write("house.txt", &sentences::text())?;
    test_run.write("garden.txt", &sentences::of(sentences::OTHER_SENTENCES, 2000, 6))?;
    let backbone = test_run.backbone().await?;
    let first = window(&backbone).await?;
    let tab = contributor(&backbone, "streamed", Graphics::NoAdapter, "device=cpu").await?;
    // So many steps are nineteen shards: none of the first eight is in the window.
    tab.until("value('accepted') >= 1 && value('epoch') >= 15", LONG).await?;
    // They are made beside the steps.
    until_moved(&backbone, |window| window.first_drawn > first.end()).await?;
    let recomputed = "barnraise_contributions_recomputed_total{outcome=\"same\"}";
    ensure!(metric(&backbone.metrics().await?, recomputed)? > 0.0, "its samples are not those that it names");

    // It stands still while another peer takes the run on, until nothing is kept of what it has.
    let paused = Paused::new(descendants(u32::try_from(tab.process_id()?)?, "--type=renderer")?)?;
    let end = window(&backbone).await?.end();
    let joined = test_run.join(&[&backbone.page()])?;
    // No shard is kept any more that was there before.
    until_moved(&backbone, |window| window.oldest() >= end + GRACE_SHARDS_MIN / 4).await?;
    joined.interrupt()?;
    let given = joined.end().await?;
    ensure!(given.status.success(), "{given:?}");
    let epoch = backbone.status().await?.progress.epoch;
    drop(paused);
    tab.until(&format!("value('epoch') >= {epoch} + 3 && doing() === 'training'"), LONG).await?;
    ensure!(tab.read("element('notice').hidden").await? == true, "{}", tab.text("notice").await?);
    let told = stop(&tab).await?;
    ensure_counted(&backbone, told + given.n_samples).await?;
    let log = backbone.log()?;
    ensure!(!log.contains("convicted"), "{log}");
    Ok(())
}
