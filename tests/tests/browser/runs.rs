//! Several runs at one address: the list, the way into one and back, and the code of a room.

use anyhow::{Context, Result, ensure};
use barnraise_tests::browser::{Graphics, Tab};

use super::village::{LONG, QUICK, SOON, turn, world};

/// A run beside the quick one, which its visitors find by a code alone.
fn class() -> String {
    let run = QUICK.replace("id = \"quick\"", "id = \"class\"\n    title = \"The class's own\"");
    format!("{run}\n[network]\nlisted = false\n[access]\nmode = \"invitation\"\nroom = true\n")
}

#[tokio::test]
async fn the_list_leads_to_a_run_and_back_and_a_code_leads_into_one_that_is_not_listed() -> Result<()> {
    let _turn = turn().await;
    let mut world = world(QUICK)?;
    let other = QUICK.replace("id = \"quick\"", "id = \"other\"\n    title = \"The other one\"");
    world.beside(&other)?;
    let class = world.beside(&class())?;
    let backbone = world.backbone().await?;
    let page = backbone.page();
    let tab = Tab::open("runs", Graphics::NoAdapter, &format!("{page}/")).await?;
    tab.until("document.querySelectorAll('#runs .card').length === 2 && !element('room').hidden", SOON)
        .await?;
    ensure!(tab.read("location.pathname").await? == "/runs/", "the root leads to the list");
    ensure!(tab.read("element('main').hidden && element('live').hidden").await? == true, "no run is shown");
    ensure!(!tab.text("runs").await?.contains("class"), "it is not listed");

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

    let code = world.run(&["invite", "--room", "--config", &class]).await?;
    tab.goto(&format!("{page}/runs/")).await?;
    tab.until("!element('room').hidden", SOON).await?;
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
    let link = world.run(&["invite", "--config", &class]).await?;
    let code = link.trim().split_once("#invitation=").context("a link")?.1.to_owned();
    tab.goto(&format!("{page}/#invitation={code}")).await?;
    let led = format!("location.pathname === '/run/class/' && location.hash === '#invitation={code}'");
    tab.until(&led, SOON).await?;
    tab.goto(&format!("{page}/#invitation=nonsense")).await?;
    tab.until("text('invited').includes('Choose the one that you were invited to')", SOON).await?;
    ensure!(tab.read("location.pathname").await? == "/runs/", "it is led nowhere");
    Ok(())
}
