//! Every state of the page, looked at: what it says, whether everybody can use it, and pictures of it.

use anyhow::{Context, Result, ensure};
use barnraise_tests::artifacts;
use barnraise_tests::browser::{DESKTOP, Graphics, PHONE, Tab};
use barnraise_tests::pause::Paused;
use barnraise_tests::process::BackboneProcess;
use barnraise_tests::provider;
use serde_json::{Value, json};

use super::looks::Looks;
use super::support::{LONG, QUICK, SOON, contributor, stop, test_run, turn};

const RHYMES: &str = r#"
    [run]
    id = "rhymes"
    title = "Guessing the missing word"
    purpose = "A small network reads an old rhyme and learns which words are missing from it."
    [model]
    kind = { albert = { embedding = 16, hidden = 32, heads = 2, inner = 64, layers = 2 } }
    [data]
    shard_samples = 100
    shuffle_buffer_samples = 500
    [data.text]
    name = "Rhymes"
    vocabulary = 100
    sequence_tokens = 16
    held_out = 0.05
    sources = [{ path = "house.txt" }]
    [scheme.synchronous]
    target_batch_size = 64
    micro_batch_size = 16
    optimizer = { kind = "adam" }
"#;

const ALIKE: &str = r#"
    [run]
    id = "alike"
    title = "Seeing which pictures are alike"
    purpose = "A small network looks at pieces of pictures, and learns which of them are of one picture."
    [model.kind.swav]
    trunk = { convolutions = [16, 32] }
    hidden = 32
    projection = 16
    prototypes = 16
    small_crops = 2
    small_side = 14
    queue_samples = 0
    queue_after = 0
    frozen_epochs = 10
    [scheme.synchronous]
    micro_batch_size = 256
    target_batch_size = 1024
    optimizer = { kind = "lars", momentum = 0.9, trust_coefficient = 0.01, weight_decay = 1e-6 }
"#;

/// Keeps the worker in reach, whether it was told to start, and what it said last of its contributions, to say in its place
/// what it seldom says. While there is a list `held`, the page hears the test alone, and the worker's messages wait in it.
const KEEP_WORKER: &str = r"
    const Plain = window.Worker;
    window.held = null;
    window.Worker = class extends Plain {
        constructor(...args) {
            super(...args);
            window.kept = this;
            // Before the page listens.
            this.addEventListener('message', (message) => {
                // Those of the test are not the browser's.
                if (window.held && message.isTrusted) {
                    message.stopImmediatePropagation();
                    window.held.push(message);
                    return;
                }
                for (const told of message.data.messages ?? []) {
                    if (told.event === 'contribution') window.contribution = told;
                }
            });
        }
        postMessage(message, ...rest) {
            super.postMessage(message, ...rest);
            this.isStarted ||= message.type === 'start';
        }
    };
";

/// Delivers what was held, in its order.
const DELIVER: &str = r"
    const held = window.held;
    window.held = null;
    for (const { data, ports } of held) kept.dispatchEvent(new MessageEvent('message', { data, ports }));
";

/// Nothing is asked or tried any more.
const LOOKED: &str = "doing() === 'idle' && element('preflight').dataset.state !== 'asking' \
    && text('preflight-data').includes('program')";

/// How often the card and the notices say that the run is by invitation.
const TOLD_ONCE: &str = "['activity', 'invitation-text', 'notice', 'load-note', 'prediction'] \
    .filter((id) => element(id).checkVisibility() && text(id).includes('by invitation')).length";

/// What a newcomer has to see without scrolling and does not: what is learned, how it goes, what it costs by the hour, and
/// the button.
const BELOW_THE_FOLD: &str = "['title', 'purpose', 'glance-accuracy', 'glance-cost', 'glance-cost-note', 'toggle'] \
    .filter((id) => scrollY + element(id).getBoundingClientRect().bottom > innerHeight)";

/// Looks at the first screen, which all that a newcomer asks has to fit.
async fn above_the_fold(tab: &Tab, state: &str) -> Result<()> {
    for viewport in [DESKTOP, PHONE] {
        tab.resize(viewport).await?;
        let below = tab.read(BELOW_THE_FOLD).await?;
        ensure!(below == json!([]), "below the first screen of a {}: {below}", viewport.name);
        tab.picture(&format!("fold-{state}-{}", viewport.name)).await?;
    }
    tab.resize(DESKTOP).await
}

/// From now on the page hears nothing of its worker but what the test says.
async fn hold_worker(tab: &Tab) -> Result<()> {
    tab.read("void (window.held = [])").await.map(drop)
}

/// The page hears what its worker said meanwhile, and all that it says from now on.
async fn release_worker(tab: &Tab) -> Result<()> {
    tab.run(DELIVER, Vec::new()).await.map(drop)
}

/// Delivers `message` to the page as if its worker had posted it.
async fn post_as_worker(tab: &Tab, message: Value) -> Result<()> {
    let script = "kept.dispatchEvent(new MessageEvent('message', { data: arguments[0] }))";
    tab.run(script, vec![message]).await.map(drop)
}

/// Opens or closes everything that a visitor can open.
async fn open_all(tab: &Tab, is_open: bool) -> Result<()> {
    let script = "document.querySelectorAll('details').forEach((part) => { part.open = arguments[0]; })";
    tab.run(script, vec![json!(is_open)]).await.map(drop)
}

#[tokio::test]
async fn a_visit_looks_right_from_the_first_moment_to_the_last() -> Result<()> {
    let _turn = turn().await;
    let mut looks = Looks::begin().await?;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = Tab::open("visit", Graphics::NoAdapter, "about:blank").await?;
    tab.cdp("Page.addScriptToEvaluateOnNewDocument", json!({ "source": KEEP_WORKER })).await?;
    arrive(&mut looks, &tab, &backbone).await?;
    take_part(&mut looks, &tab).await?;
    try_it(&mut looks, &tab).await?;
    be_refused(&mut looks, &tab).await?;

    backbone.kill().await?;
    tab.until("doing() === 'unreachable' && text('activity').includes('Trying again')", SOON).await?;
    looks.at(&tab, "unreachable").await?;
    tab.click("#toggle").await?;
    tab.until("doing() === 'reconnecting'", SOON).await?;
    looks.at(&tab, "reconnecting").await?;

    let worker_died =
        "window.died = kept; kept.dispatchEvent(new ErrorEvent('error', { message: 'out of memory' }))";
    // Twice it is started anew.
    for _ in 0..2 {
        tab.run(worker_died, Vec::new()).await?;
        // What is shown may still be of the one before.
        let anew = "kept !== died && kept.isStarted && ['connecting', 'reconnecting'].includes(doing())";
        tab.until(anew, SOON).await?;
    }
    tab.run(worker_died, Vec::new()).await?;
    tab.until("doing() === 'broken' && text('activity').includes('out of memory')", SOON).await?;
    looks.at(&tab, "broken").await?;
    looks.end()
}

/// From the first paint to the click.
async fn arrive(looks: &mut Looks, tab: &Tab, backbone: &BackboneProcess) -> Result<()> {
    let answers = json!({ "patterns": [{ "urlPattern": "*/api/*" }] });
    tab.cdp("Fetch.enable", answers).await?;
    tab.goto(&format!("{}/?device=cpu", backbone.page())).await?;
    tab.until("doing() === 'asking'", SOON).await?;
    looks.at(tab, "opened").await?;
    tab.cdp("Fetch.disable", json!({})).await?;
    tab.until(LOOKED, SOON).await?;
    above_the_fold(tab, "resting").await?;
    looks.at(tab, "resting").await?;
    looks.at_forced_colors(tab, "resting").await?;
    open_all(tab, true).await?;
    looks.at(tab, "all-open").await?;
    open_all(tab, false).await?;

    // The program is on its way for as long as nobody sends it.
    let paused = Paused::new(vec![backbone.pid()?])?;
    tab.click("#toggle").await?;
    tab.until("doing() === 'loading'", SOON).await?;
    looks.at(tab, "loading").await?;
    drop(paused);
    Ok(())
}

/// At work, while the others are waited for, and at rest again.
async fn take_part(looks: &mut Looks, tab: &Tab) -> Result<()> {
    tab.until("value('accuracy') >= 0.5 && document.querySelector('#gallery button')", LONG).await?;
    // What it costs by the hour is known before a minute of it was measured.
    tab.until("text('glance-cost-note').startsWith('an hour')", SOON).await?;
    above_the_fold(tab, "training").await?;
    tab.readme_picture().await?;
    looks.at(tab, "training").await?;
    open_all(tab, true).await?;
    tab.until("element('table-rows').rows.length > 1", SOON).await?;
    looks.at(tab, "training-all-open").await?;
    open_all(tab, false).await?;

    keep_waiting(tab).await?;
    looks.at(tab, "waiting-for-others").await?;
    let mut missed = tab.read("contribution").await?;
    missed["n_steps_missed"] = 3.into();
    post_as_worker(tab, missed).await?;
    tab.until("text('activity').includes('The last 3 steps were made without it')", SOON).await?;
    looks.at(tab, "too-late").await?;
    release_worker(tab).await?;
    let given = stop(tab).await?;
    ensure!(given > 0, "it took part");
    tab.until(&format!("value('given') === {given}"), SOON).await?;
    looks.at(tab, "stopped").await
}

/// Has the page hear that its tab waits for others, and nothing else of its worker: how long the looks take decides nothing.
async fn keep_waiting(tab: &Tab) -> Result<()> {
    hold_worker(tab).await?;
    let waiting = json!({ "type": "event", "event": "activity", "doing": "waiting-for-others", "epoch": 1 });
    post_as_worker(tab, waiting).await?;
    // The words follow.
    let said = "doing() === 'waiting-for-others' && text('activity').includes('Waiting for the others')";
    tab.until(said, SOON).await.map(drop)
}

async fn try_it(looks: &mut Looks, tab: &Tab) -> Result<()> {
    tab.click("#gallery button:nth-child(3)").await?;
    tab.until("value('prediction-epoch') >= 0", SOON).await?;
    looks.at(tab, "picked").await?;
    let shirt = [(-60, -80), (60, -80), (100, -30), (70, -10), (50, -30), (50, 90), (-50, 90), (-50, -30)];
    tab.draw("#sketch", &[&shirt[..], &[(-50, -30), (-70, -10), (-100, -30), (-60, -80)]]).await?;
    let answered = "!document.querySelector('#gallery [aria-pressed=true]') && value('prediction-epoch') >= 0 \
        && !text('prediction').includes('Looking')";
    tab.until(answered, SOON).await?;
    looks.at(tab, "drawn").await?;
    tab.click("#clear").await?;
    tab.until("text('prediction-epoch') === ''", SOON).await.map(drop)
}

/// What an honest tab is seldom told.
async fn be_refused(looks: &mut Looks, tab: &Tab) -> Result<()> {
    let refusal = "its norm of 1834.2 is more than twice the usual 12.6 of this run";
    hold_worker(tab).await?;
    let mut contribution = tab.read("contribution").await?;
    contribution["n_refused"] = 1.into();
    contribution["last_refusal"] = refusal.into();
    post_as_worker(tab, contribution).await?;
    tab.until("value('refused') === 1 && !element('refusal').hidden", SOON).await?;
    let notice = "The cache is full: what is fetched now is fetched again at the next visit.";
    post_as_worker(tab, json!({ "type": "failed", "message": notice })).await?;
    tab.until("!element('notice').hidden", SOON).await?;
    looks.at(tab, "refused").await?;
    release_worker(tab).await
}

#[tokio::test]
async fn who_cannot_take_part_is_told_so_in_good_shape() -> Result<()> {
    let _turn = turn().await;
    let mut looks = Looks::begin().await?;
    let mut test_run = test_run(&format!("{QUICK}\n[access]\nmode = \"invitation\"\n"))?;
    let backbone = test_run.backbone().await?;
    let tab = Tab::open("outside", Graphics::NoAdapter, &format!("{}/?device=cpu", backbone.page())).await?;
    tab.until(&format!("{LOOKED} && text('activity') === 'This tab watches the run.'"), SOON).await?;
    ensure!(tab.read(TOLD_ONCE).await? == 1, "{}", tab.text("main").await?);
    ensure!(tab.read("element('toggle').disabled && element('try').hidden").await? == true);
    ensure!(tab.read("element('enter-code').hidden").await? == true, "no run here takes codes");
    tab.until("value('epoch') >= 0 && element('accuracy-chart').checkVisibility()", SOON).await?;
    looks.at(&tab, "watching").await?;
    tab.goto(&format!("{}/?autostart=1&device=cpu", backbone.page())).await?;
    tab.until("doing() === 'broken' && text('activity').includes('by invitation')", SOON).await?;
    ensure!(tab.read(TOLD_ONCE).await? == 1, "{}", tab.text("main").await?);
    ensure!(tab.read("element('notice').hidden && element('try').hidden").await? == true);
    looks.at(&tab, "uninvited").await?;
    tab.goto(&format!("{}/?autostart=1&device=webgpu", backbone.page())).await?;
    tab.until("doing() === 'broken' && text('activity').includes('WebGPU')", SOON).await?;
    looks.at(&tab, "no-webgpu").await?;
    // The same machine by a name that browsers do not trust without HTTPS.
    tab.goto(&backbone.page().replace("127.0.0.1", "0.0.0.0")).await?;
    tab.until("doing() === 'unsupported' && text('classes').includes('Trouser')", SOON).await?;
    looks.at(&tab, "unsupported").await?;
    looks.end()
}

#[tokio::test]
async fn signing_in_looks_right_on_each_of_its_pages() -> Result<()> {
    let _turn = turn().await;
    let mut looks = Looks::begin().await?;
    let (test_run, _provider) = provider::listed(QUICK).await?;
    let mut test_run = test_run.with_page(artifacts::web_root()?);
    let backbone = test_run.backbone().await?;
    test_run.command(&["allow", "add", "alice"]).await?;
    let tab = contributor(&backbone, "signing-in", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("doing() === 'signing-in' && !element('sign-in').hidden", SOON).await?;
    looks.at(&tab, "signing-in").await?;

    let url = tab.read("element('sign-in-link').href").await?;
    tab.goto(url.as_str().context("an address")?).await?;
    tab.read("document.querySelector('[name=login]').value = 'alice'").await?;
    tab.read("document.querySelector('[name=password]').value = 'any'").await?;
    tab.click("button[type=submit]").await?;
    tab.until("document.body.textContent.includes('Continue')", SOON).await?;
    tab.click("button[type=submit]").await?;
    tab.until("document.body.textContent.includes('Is this your peer?')", SOON).await?;
    looks.at(&tab, "login-confirmation").await?;
    tab.click("form button").await?;
    tab.until("document.body.textContent.includes('may take part now')", SOON).await?;
    looks.at(&tab, "login-done").await?;
    tab.goto(&format!("{}/login/callback?code=none&state=none", backbone.page())).await?;
    tab.until("document.body.textContent.includes('Not signed in')", SOON).await?;
    looks.at(&tab, "login-failed").await?;
    looks.end()
}

#[tokio::test]
async fn runs_of_other_kinds_look_right_too() -> Result<()> {
    let _turn = turn().await;
    let mut looks = Looks::begin().await?;
    let mut rhymes = test_run(RHYMES)?;
    let house = "This is the cat that killed the rat that ate the malt that lay in the house. ";
    rhymes.write("house.txt", &house.repeat(400))?;
    let backbone = rhymes.backbone().await?;
    let tab = contributor(&backbone, "kinds", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 2 && value('accuracy') >= 0", LONG).await?;
    stop(&tab).await?;
    looks.at(&tab, "text").await?;
    drop(backbone);

    let mut alike = test_run(ALIKE)?;
    let backbone = alike.backbone().await?;
    tab.goto(&format!("{}/?device=cpu&selfcheck=1", backbone.page())).await?;
    tab.until("text('selfcheck-lead').includes('checks') && text('task') === 'Learns'", SOON).await?;
    looks.at(&tab, "without-labels").await?;
    looks.end()
}

#[tokio::test]
async fn a_run_that_its_operator_paused_says_so_to_everybody() -> Result<()> {
    let _turn = turn().await;
    let mut looks = Looks::begin().await?;
    let mut test_run = test_run(&format!("{QUICK}\n[network]\noperator = \"127.0.0.1:0\"\n"))?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "halted", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 1", LONG).await?;
    test_run.command(&["run", "pause", "--reason", "the data is looked at"]).await?;
    tab.until("doing() === 'halted' && text('activity').includes('goes on by itself')", SOON).await?;
    looks.at(&tab, "halted").await?;
    tab.click("#toggle").await?;
    tab.until("doing() === 'halted' && text('activity').includes('A tab that starts now waits')", SOON)
        .await?;
    tab.goto(&format!("{}/runs/", backbone.page())).await?;
    tab.until("text('runs').includes('This run is paused')", SOON).await?;
    looks.at(&tab, "halted-run-in-the-list").await?;
    // A visitor who comes meanwhile waits, and takes part when the run goes on.
    tab.goto(&format!("{}/?autostart=1&device=cpu", backbone.page())).await?;
    tab.until("doing() === 'halted' && text('activity').includes('goes on by itself')", SOON).await?;
    let paused = backbone.wait_for("who came", |progress| progress.n_contributors == 1).await?;
    test_run.command(&["run", "resume"]).await?;
    tab.until("doing() !== 'halted'", SOON).await?;
    backbone.wait_for_epoch(paused.epoch + 1).await?;
    looks.end()
}
