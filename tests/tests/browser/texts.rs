//! A run that learns to go on with a text: a tab trains it, and goes on with what its visitor begins.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::sentences;
use serde_json::json;

use super::support::{LONG, SOON, contributor, stop, test_run, turn};

const RUN: &str = r#"
    [run]
    id = "rhymes"
    title = "Going on with short sentences"
    purpose = "A small network reads short sentences, and learns how they go on."
    [scheme.synchronous]
    target_batch_size = 128
    micro_batch_size = 32
    optimizer = { kind = "adam" }
    schedule = { peak = 0.01, warmup_steps = 5, decay = { kind = "constant" } }
    [storage]
    keep_models = ["3s"]
    [evaluation]
    every_epochs = 1
"#;

async fn typed(tab: &Tab, text: &str) -> Result<()> {
    let text = json!(text);
    let typing = format!(
        "void (element('fill-text').value = {text}, \
         element('fill-text').dispatchEvent(new Event('input', {{ bubbles: true }})))"
    );
    tab.read(&typing).await.map(|_| ())
}

#[tokio::test]
async fn a_tab_goes_on_with_a_text_as_it_is_typed() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&format!("{RUN}{}", sentences::RUN))?;
    test_run.write("house.txt", &sentences::text())?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "going-on", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accuracy') >= 0.93", LONG).await?;
    stop(&tab).await?;
    tab.until("!element('fill').hidden && text('fill-button') === 'Go on'", SOON).await?;
    ensure!(tab.read("element('try').hidden").await? == true, "there is nothing to draw");
    let asked = tab.read("element('fill-text').value").await?;
    ensure!(asked == "Once upon a time", "{asked}");

    // Nothing happens before the visitor asks.
    typed(&tab, "the rat ate").await?;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    ensure!(tab.read("element('continued').hidden").await? == true, "nobody asked");
    goes_on_with(&tab, " the malt. ").await?;
    tab.until("text('fill-epoch').includes(' a second.') && value('fill-epoch') > 0", SOON).await?;
    tab.until("text('fill-said') === 'It went on:'", SOON).await?;
    for (viewport, wider) in tab.pictures("gone-on").await? {
        ensure!(wider == 0, "the page is {wider} pixels wider than the {} window", viewport.name);
    }

    // Typing on is enough now. What it said before is gone.
    typed(&tab, "a dog ran").await?;
    tab.until("text('continued-begin') === 'a dog ran'", SOON).await?;
    tab.until("text('fill-said') === 'It went on:'", SOON).await?;
    goes_on_with(&tab, " in the sun. ").await?;

    let newest = tab.number("fill-epoch").await?;
    tab.until("!element('fill-earlier').hidden", SOON).await?;
    let went_on = format!("value('fill-epoch') < {newest} && text('fill-said') === 'It went on:'");
    let is_gone = "text('fill-said').startsWith('That does not work')";
    // A model of three seconds ago is soon no longer the one of three seconds ago, and then it is thrown away: the page
    // says so, and offers the next one.
    for _ in 0..5 {
        tab.click("#fill-earlier").await?;
        tab.until(&format!("({went_on}) || {is_gone}"), SOON).await?;
        if tab.read(&went_on).await? == true {
            break;
        }
        // The newest one again, and then the next.
        tab.click("#fill-earlier").await?;
        tab.until("element('fill-earlier').getAttribute('aria-pressed') === 'false'", SOON).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    tab.until(&went_on, SOON).await?;
    ensure!(tab.read("element('fill-earlier').getAttribute('aria-pressed')").await? == "true");
    Ok(())
}

/// What the weights are that stay as they are is downloaded once, in four bits a value.
#[tokio::test]
async fn a_tab_trains_adapters_beside_a_model_that_stays_as_it_is() -> Result<()> {
    let _turn = turn().await;
    let mut first = test_run(&format!("{RUN}{}", sentences::RUN))?;
    first.write("house.txt", &sentences::text())?;
    let backbone = first.backbone().await?;
    let peer = first.join(&[&backbone.page()])?;
    backbone.wait_for("a model", |progress| progress.test_accuracy.is_some_and(|share| share >= 0.8)).await?;
    let base = first.folder().join("base").display().to_string();
    first.run(&["export", &backbone.page(), &base]).await?;
    peer.kill().await?;
    backbone.terminate().await?;

    let data = "[data]\nshard_samples = 100\n[data.text]\nsequence_tokens = 32\nsources = [{ path = \"other.txt\" }]";
    let model = format!("[model]\nstart_from = {base:?}\nadapters = {{ rank = 4, codec = \"int4\" }}");
    let mut adapted = test_run(&format!("{RUN}{model}\n{data}\n"))?;
    adapted.write("other.txt", &sentences::of(sentences::OTHER_SENTENCES, 2000, 6))?;
    let backbone = adapted.backbone().await?;
    let known = backbone.wait_for("an evaluation", |progress| progress.test_accuracy.is_some()).await?;
    let before = known.test_accuracy.unwrap_or_default();
    ensure!(before < 0.75, "the model that was not adapted knows {before}");
    let tab = contributor(&backbone, "adapting", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accuracy') >= 0.88", LONG).await?;
    stop(&tab).await?;
    tab.until("!element('fill').hidden && text('fill-button') === 'Go on'", SOON).await?;
    typed(&tab, "the sun sat on the").await?;
    goes_on_with(&tab, " cat. ").await
}

/// Has the page go on with what is typed until what it says has these words: it is drawn by chance, another text each time.
async fn goes_on_with(tab: &Tab, words: &str) -> Result<()> {
    // What was said before stands there still, hidden, until there is something new.
    let has_words =
        format!("!element('continued').hidden && text('continued-text').includes({})", json!(words));
    for _ in 0..20 {
        let before = json!(tab.read("text('continued-text')").await?);
        tab.click("#fill-button").await?;
        tab.until(
            &format!("text('fill-said') !== 'It went on:' || text('continued-text') !== {before}"),
            SOON,
        )
        .await?;
        tab.until(&format!("({has_words}) || text('fill-said') === 'It went on:'"), SOON).await?;
        if tab.read(&has_words).await? == true {
            return Ok(());
        }
    }
    bail!("no text of twenty has `{words}`: {}", tab.read("text('continued-text')").await?)
}
