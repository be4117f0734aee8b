//! What belongs to the visitors: receipts that anybody can check, a card, a name, and the model itself, as it is now and
//! as it was before.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use barnraise_learning::tensor_file;
use barnraise_learning::{DataShape, ParameterLayout};
use barnraise_tests::browser::{Graphics, Tab};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::support::{LONG, QUICK, SOON, contributor, stop, test_run, turn};

/// Records the files that the page offers for download: text as text, pictures by their size.
const RECORD_FILES: &str = r"
    window.saved = {};
    const create = URL.createObjectURL;
    URL.createObjectURL = (blob) => {
        const keep = (what) => { window.saved[blob.type] = what; document.body.dataset.saved = blob.type; };
        if (blob.type === 'image/png') {
            createImageBitmap(blob).then((picture) => {
                const canvas = new OffscreenCanvas(picture.width, picture.height);
                const context = canvas.getContext('2d');
                context.drawImage(picture, 0, 0);
                const { data } = context.getImageData(0, 0, picture.width, picture.height);
                const colours = new Set();
                for (let at = 0; at < data.length; at += 4) colours.add(`${data[at]} ${data[at + 1]} ${data[at + 2]}`);
                keep({ width: picture.width, height: picture.height, n_colours: colours.size });
            });
        } else {
            blob.text().then(keep);
        }
        return create(blob);
    };
    // What a device has to share with would open a dialog of its own.
    delete Navigator.prototype.share;
";

/// A run whose models from seconds ago are kept.
fn with_models() -> String {
    format!("{QUICK}\n[storage]\nkeep_models = [\"3s\"]\n[evaluation]\nevery_epochs = 1\n")
}

/// A tab that contributes, and whose files can be looked at.
async fn recording_tab(url: &str, name: &str) -> Result<Tab> {
    let tab = Tab::open(name, Graphics::NoAdapter, "about:blank").await?;
    tab.cdp("Page.addScriptToEvaluateOnNewDocument", json!({ "source": RECORD_FILES })).await?;
    tab.goto(&format!("{url}/?autostart=1&device=cpu")).await?;
    Ok(tab)
}

#[tokio::test]
async fn receipts_are_a_file_that_the_command_line_checks() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = recording_tab(&backbone.page(), "receipts").await?;
    tab.until("value('accepted') >= 3", SOON).await?;
    let samples = stop(&tab).await?;
    let accepted = tab.number("accepted").await?;
    tab.until(&format!("value('receipts-note') === {accepted}"), SOON).await?;
    // They are still there at the next visit.
    tab.goto(&format!("{}/?device=cpu", backbone.page())).await?;
    tab.until(&format!("value('receipts-note') === {accepted} && !element('receipts').hidden"), SOON).await?;
    for (viewport, wider) in tab.pictures("belongings").await? {
        ensure!(wider == 0, "the page is {wider} pixels wider than the {} window", viewport.name);
    }
    tab.click("#receipts").await?;
    let lines = tab.until("saved['application/jsonl']", SOON).await?;
    let lines = lines.as_str().context("the file is text")?;
    ensure!(lines.lines().count() as f64 == accepted, "a line for each: {lines}");
    test_run.write("receipts.jsonl", lines)?;
    let file = test_run.storage().with_file_name("receipts.jsonl");
    let output = test_run.run(&["receipts", file.to_str().context("a path in Unicode")?]).await?;
    let want = format!("quick: {samples} samples in {accepted} contributions of ");
    ensure!(output.starts_with(&want) && output.lines().count() == 1, "{output} is not {want}");
    // One that was changed is not believed.
    test_run.write("receipts.jsonl", &lines.replacen("\"n_samples\":", "\"n_samples\":1", 1))?;
    let checked = test_run.run(&["receipts", file.to_str().context("a path in Unicode")?]).await;
    ensure!(checked.is_err(), "a forged receipt passes: {checked:?}");
    Ok(())
}

#[tokio::test]
async fn a_card_is_drawn_in_the_tab_with_the_place_of_this_peer() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = recording_tab(&backbone.page(), "card").await?;
    tab.until("value('accepted') >= 2 && value('accuracy') > 0", SOON).await?;
    stop(&tab).await?;
    tab.until("value('rank') === 1 && text('rank').includes('Place 1 of 1')", SOON).await?;
    tab.click("#share").await?;
    let card = tab.until("saved['image/png']", SOON).await?;
    ensure!(card["width"] == 1200 && card["height"] == 630, "{card}");
    // Paper alone would be one colour; text and a curve have edges.
    ensure!(card["n_colours"].as_u64() > Some(20), "{card}");
    tab.until("value('share-note') > 1000", SOON).await?;
    Ok(())
}

#[tokio::test]
async fn a_name_stands_on_the_leaderboard_until_it_is_taken_back() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "name", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    let type_in = |name: &str| {
        format!(
            "void (element('name').value = {}, element('name-form').closest('details').open = true, \
            element('name-form').requestSubmit())",
            json!(name)
        )
    };
    tab.read(&type_in("Ada\u{202e}")).await?;
    tab.until("text('name-note').includes('U+202E')", SOON).await?;
    tab.read(&type_in("<b>Ada</b>")).await?;
    let own = "document.querySelector('#leader-rows [data-own=true] .peer')";
    // Shown as text, markup included.
    tab.until(&format!("{own}?.textContent.includes('<b>Ada</b>') && !{own}.querySelector('b')"), LONG)
        .await?;
    tab.read(&type_in("")).await?;
    tab.until(&format!("{own}?.textContent === 'This tab'"), LONG).await?;
    Ok(())
}

const TEXT: &str = r#"
    [run]
    id = "rhymes"
    [model]
    kind = { albert = { embedding = 16, hidden = 32, heads = 2, inner = 64, layers = 2 } }
    [data]
    shard_samples = 100
    [data.text]
    name = "Rhymes"
    vocabulary = 100
    sequence_tokens = 16
    sources = [{ path = "house.txt" }]
    [scheme.synchronous]
    target_batch_size = 64
    micro_batch_size = 16
    [evaluation]
    every_epochs = 1
"#;

/// Passes connections on to a web server and records the browsers' bytes.
struct RecordingProxy {
    page: String,
    received: Arc<Mutex<Vec<u8>>>,
}

impl RecordingProxy {
    async fn before(page: &str) -> Result<Self> {
        let server = page.strip_prefix("http://").context("a page without encryption")?.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let recorded = Self { page: format!("http://{}", listener.local_addr()?), received: Arc::default() };
        let received = Arc::clone(&recorded.received);
        tokio::spawn(async move {
            while let Ok((browser, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let ((mut asking, mut heard), (mut answering, mut asked)) =
                    (browser.into_split(), server.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut answering, &mut heard).await });
                let received = Arc::clone(&received);
                tokio::spawn(async move {
                    let mut bytes = [0; 4096];
                    while let Ok(n_bytes @ 1..) = asking.read(&mut bytes).await {
                        received.lock().unwrap_or_else(PoisonError::into_inner).extend(&bytes[..n_bytes]);
                        if asked.write_all(&bytes[..n_bytes]).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Ok(recorded)
    }

    fn has_received(&self, words: &str) -> bool {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&received).contains(words)
    }
}

#[tokio::test]
async fn blanks_of_a_text_are_filled_in_the_tab_and_the_text_stays_there() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(TEXT)?;
    let house = "This is the cat that killed the rat that ate the malt that lay in the house. ";
    test_run.write("house.txt", &house.repeat(400))?;
    let backbone = test_run.backbone().await?;
    let recorded = RecordingProxy::before(&backbone.page()).await?;
    let tab = Tab::open("text", Graphics::NoAdapter, &format!("{}/?device=cpu", recorded.page)).await?;
    tab.until("!element('fill').hidden", SOON).await?;
    ensure!(tab.read("element('try').hidden").await? == true, "there is nothing to draw");
    let ask = |text: &str| {
        let text = json!(text);
        format!("void (element('fill-text').value = {text}, element('fill-form').requestSubmit())")
    };
    tab.read(&ask("the cat that ___ the ___ zqxjzqxj")).await?;
    tab.until("value('fill-epoch') >= 0 && element('fills').children.length === 2", SOON).await?;
    let guesses = tab.text("fills").await?;
    ensure!(guesses.matches('%').count() == 6, "three for each blank: {guesses}");
    for (viewport, wider) in tab.pictures("filled").await? {
        ensure!(wider == 0, "the page is {wider} pixels wider than the {} window", viewport.name);
    }
    tab.read(&ask("no blank")).await?;
    tab.until("text('fill-said').includes('0 blanks')", SOON).await?;
    ensure!(tab.number("samples").await? == 0.0, "trying is not contributing");
    ensure!(recorded.has_received("GET /api/"), "the page came this way");
    ensure!(!recorded.has_received("zqxjzqxj"), "the text left the tab");
    // A request with the text would have been recorded.
    tab.read("void fetch('/api/run?zqxjzqxj').then(() => { document.body.dataset.told = 'yes'; })").await?;
    tab.until("document.body.dataset.told", SOON).await?;
    ensure!(recorded.has_received("zqxjzqxj"), "nothing is recorded");
    Ok(())
}

#[tokio::test]
async fn blanks_are_filled_by_the_kept_model_while_there_is_no_backbone() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(TEXT)?;
    let house = "This is the cat that killed the rat that ate the malt that lay in the house. ";
    test_run.write("house.txt", &house.repeat(400))?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    let tab = contributor(&backbone, "kept-text", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 2 && !element('fill').hidden", LONG).await?;
    stop(&tab).await?;
    let ask = "void (element('fill-text').value = 'the cat that ___', element('fill-form').requestSubmit())";
    let answered = "value('fill-epoch') >= 0 && element('fills').children.length === 1";
    tab.read(ask).await?;
    tab.until(answered, SOON).await?;
    tab.until("!!navigator.serviceWorker.controller", SOON).await?;
    backbone.kill().await?;
    tab.goto(&format!("{page}/?device=cpu")).await?;
    tab.until("doing() === 'unreachable' && !element('fill').hidden", SOON).await?;
    tab.read(ask).await?;
    tab.until(&format!("{answered} && text('fill-epoch').includes('as this browser kept it')"), SOON).await?;
    tab.pictures("filled-without-backbone").await?;
    Ok(())
}

#[tokio::test]
async fn the_model_is_a_link_away_and_is_compared_with_what_it_was() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&with_models())?;
    let backbone = test_run.backbone().await?;
    let tab = recording_tab(&backbone.page(), "models").await?;
    tab.until("value('accuracy') >= 0.7", LONG).await?;
    stop(&tab).await?;
    tab.until("!element('model-file').hidden && value('model-note') > 0", SOON).await?;
    let link = tab.read(
        "({ href: element('model-download').href, is_file: element('model-download').download !== null })",
    );
    let link = link.await?;
    ensure!(link["is_file"] == true, "{link}");
    let url = link["href"].as_str().context("an address")?.to_owned();
    let got = tokio::task::spawn_blocking(move || ureq::get(&url).call()?.body_mut().read_to_vec()).await??;
    let run = backbone.status().await?.run;
    let layout = ParameterLayout::of(&run.model, DataShape::of(&run.data.manifest.samples))?;
    let file = tensor_file::read(&got, &layout)?;
    let accuracy: f32 = file.notes["test_accuracy"].parse()?;
    ensure!(accuracy >= 0.6, "the file is of a model with accuracy {accuracy}");

    tab.until("document.querySelector('#gallery button')", SOON).await?;
    tab.click("#gallery button").await?;
    tab.until("value('prediction-epoch') > 0", SOON).await?;
    tab.until("!element('compare').hidden", SOON).await?;
    tab.click("#compare").await?;
    tab.until("value('earlier-caption') >= 0 && !element('earlier').hidden", SOON).await?;
    let epochs = tab.read("[value('prediction-epoch'), value('earlier-caption')]").await?;
    ensure!(epochs[1].as_f64() < epochs[0].as_f64(), "now and before: {epochs}");
    let bars = "[...document.querySelectorAll('#earlier-bars li:not([hidden])')].map((bar) => Number(bar.dataset.value))";
    let shown = tab.read(bars).await?;
    let shown: Vec<f64> = shown.as_array().context("bars")?.iter().filter_map(|bar| bar.as_f64()).collect();
    ensure!(shown.len() == 3 && shown.iter().all(|share| (0.0..=1.0).contains(share)), "{shown:?}");
    for (viewport, wider) in tab.pictures("compared").await? {
        ensure!(wider == 0, "the page is {wider} pixels wider than the {} window", viewport.name);
    }
    tab.click("#compare").await?;
    tab.until("element('earlier').hidden", SOON).await?;
    Ok(())
}
