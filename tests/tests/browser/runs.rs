//! Several runs at one address: the list, the way into one and back, and the code of a room.

use anyhow::{Context, Result, ensure};
use barnraise_tests::browser::{Graphics, Tab};

use super::looks::Looks;
use super::support::{LONG, QUICK, SOON, stop, test_run, turn};
use super::tabs::COUNT_WORKERS;

/// A run beside the quick one, which its visitors find by a code alone.
fn class() -> String {
    let run = QUICK.replace("id = \"quick\"", "id = \"class\"\n    title = \"The class's own\"");
    format!("{run}\n[network]\nlisted = false\n[access]\nmode = \"invitation\"\nroom = true\n")
}

#[tokio::test]
async fn a_kept_page_at_the_root_goes_to_the_list_once_there_is_a_server_to_name_it() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    test_run.add_run(&QUICK.replace("id = \"quick\"", "id = \"other\""))?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    let tab = Tab::open("kept-root", Graphics::NoAdapter, &format!("{page}/runs/")).await?;
    tab.until("!!navigator.serviceWorker.controller", SOON).await?;
    backbone.kill().await?;
    // As an installed app begins.
    tab.goto(&format!("{page}/")).await?;
    tab.until("doing() === 'unreachable' && location.pathname === '/'", SOON).await?;
    let backbone = test_run.backbone().await?;
    tab.until(
        "location.pathname === '/runs/' && document.querySelectorAll('#runs .card').length === 2",
        SOON,
    )
    .await?;

    // Of what was visited the list is known without one.
    tab.click("#runs .card:nth-child(2) a").await?;
    tab.until("location.pathname === '/run/other/' && doing() === 'idle'", SOON).await?;
    backbone.kill().await?;
    tab.goto(&format!("{page}/")).await?;
    tab.until(
        "location.pathname === '/runs/' && document.querySelectorAll('#runs .card').length === 1",
        SOON,
    )
    .await?;
    ensure!(tab.text("runs").await?.contains("an earlier visit"));
    tab.click("#runs .card a").await?;
    tab.until("location.pathname === '/run/other/' && doing() === 'unreachable'", SOON).await?;
    Ok(())
}

#[tokio::test]
async fn the_list_leads_to_a_run_and_back_and_a_code_leads_into_one_that_is_not_listed() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let other = QUICK.replace("id = \"quick\"", "id = \"other\"\n    title = \"The other one\"");
    test_run.add_run(&other)?;
    let class = test_run.add_run(&class())?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    let tab = Tab::open("runs", Graphics::NoAdapter, &format!("{page}/")).await?;
    tab.until("document.querySelectorAll('#runs .card').length === 2 && !element('room').hidden", SOON)
        .await?;
    ensure!(tab.read("location.pathname").await? == "/runs/", "the root leads to the list");
    ensure!(tab.read("element('main').hidden && element('live').hidden").await? == true, "no run is shown");
    ensure!(!tab.text("runs").await?.contains("class"), "it is not listed");
    let skips_to = tab.read("document.querySelector(document.querySelector('.skip').hash).hidden").await?;
    ensure!(skips_to == false, "the link over the head of the page leads to what is shown");

    tab.click("#runs .card:nth-child(2) a").await?;
    tab.until("location.pathname === '/run/other/' && text('title') === 'The other one'", SOON).await?;
    ensure!(tab.read("element('front').hidden").await? == true, "one run is shown");
    let download = tab.read("element('model-download').getAttribute('href')").await?;
    ensure!(download == "/run/other/api/model.safetensors", "{download}");
    tab.read("history.back()").await?;
    tab.until(
        "location.pathname === '/runs/' && document.querySelectorAll('#runs .card').length === 2",
        SOON,
    )
    .await?;

    // A run of several trains as one alone does.
    tab.goto(&format!("{page}/run/other/?autostart=1&device=cpu")).await?;
    tab.until("value('accepted') >= 1", LONG).await?;

    // Who has no invitation is led to the field for a code, as a run here takes some.
    tab.goto(&format!("{page}/run/class/")).await?;
    tab.until("!element('enter-code').hidden && text('invitation-text').includes('by invitation')", SOON)
        .await?;
    let code = test_run.run(&["invite", "--room", "--config", &class]).await?;
    tab.goto(&format!("{page}/runs/")).await?;
    tab.until("!element('room').hidden", SOON).await?;
    tab.until("!element('room').checkValidity()", SOON).await?;
    tab.read("element('room-code').value = '000-000'").await?;
    tab.click("#room button").await?;
    tab.until("text('room-said').includes('No run has this code')", SOON).await?;
    tab.read(&format!("element('room-code').value = '{}'", code.trim().to_lowercase())).await?;
    tab.click("#room button").await?;
    tab.until("location.pathname === '/run/class/' && text('title') === \"The class's own\"", SOON).await?;
    tab.until("doing() !== 'asking'", SOON).await?;
    tab.click("#toggle").await?;
    tab.until("value('accepted') >= 1", LONG).await?;

    // A link of an invitation from when the run was alone here; and one that nobody here knows.
    let link = test_run.run(&["invite", "--config", &class]).await?;
    let code = link.trim().split_once("#invitation=").context("a link")?.1.to_owned();
    tab.goto(&format!("{page}/#invitation={code}")).await?;
    let led = format!("location.pathname === '/run/class/' && location.hash === '#invitation={code}'");
    tab.until(&led, SOON).await?;
    tab.goto(&format!("{page}/#invitation=nonsense")).await?;
    tab.until("text('invited').includes('Choose the one that you were invited to')", SOON).await?;
    ensure!(tab.read("location.pathname").await? == "/runs/", "it is led nowhere");
    Ok(())
}

/// A run that is called something.
fn called(id: &str, title: &str) -> String {
    QUICK.replace("id = \"quick\"", &format!("id = \"{id}\"\n    title = \"{title}\""))
}

#[tokio::test]
async fn one_browser_computes_for_one_run_at_a_time_and_its_visitor_chooses() -> Result<()> {
    const WAITS: &str = "doing() === 'paused' && element('limits').dataset.reason === 'elsewhere'";
    let _turn = turn().await;
    let mut looks = Looks::begin().await?;
    let mut test_run = test_run(&called("quick", "The quick one"))?;
    test_run.add_run(&called("other", "The other one"))?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    let url = |id: &str| format!("{page}/run/{id}/?device=cpu");
    let tab = Tab::open("one-load", Graphics::NoAdapter, &format!("{}&autostart=1", url("other"))).await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    let first = tab.window().await?;

    // The second one says what the browser is doing, and does nothing.
    let second = tab.open_beside(&url("quick"), COUNT_WORKERS).await?;
    tab.until("doing() === 'idle' && text('title') === 'The quick one'", SOON).await?;
    tab.click("#toggle").await?;
    tab.until(&format!("{WAITS} && text('activity').includes('contributes to The other one')"), SOON).await?;
    ensure!(tab.read("workers").await? == 0, "it is not even loaded");
    looks.at(&tab, "other-run-at-work").await?;

    // Its visitor takes over: the first one stops, and says why.
    tab.click("#take-over").await?;
    tab.until("workers === 1 && value('accepted') >= 1 && element('take-over').hidden", LONG).await?;
    tab.turn_to(&first).await?;
    tab.until("doing() === 'idle' && element('toggle').dataset.contributing === 'false'", SOON).await?;
    tab.until("text('notice').includes('contribute to The quick one instead')", SOON).await?;
    looks.at(&tab, "stopped-for-another-run").await?;

    // Started again it waits, and begins by itself once the other one stops.
    let accepted = tab.number("accepted").await?;
    tab.click("#toggle").await?;
    tab.until(&format!("{WAITS} && text('activity').includes('contributes to The quick one')"), SOON).await?;
    tab.turn_to(&second).await?;
    stop(&tab).await?;
    tab.turn_to(&first).await?;
    tab.until(&format!("value('accepted') > {accepted} && element('notice').hidden"), LONG).await?;
    looks.end()
}
