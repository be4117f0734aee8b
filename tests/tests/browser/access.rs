//! Getting in: by the link of an invitation, and by signing in.

use anyhow::{Result, ensure};
use barnraise_tests::artifacts;
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::provider;

use super::support::{LONG, QUICK, SOON, contributor, test_run, turn};

#[tokio::test]
async fn an_invitations_link_lets_a_tab_in_and_it_stays_in() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&format!("{QUICK}\n[access]\nmode = \"invitation\"\n"))?;
    let backbone = test_run.backbone().await?;
    let uninvited = contributor(&backbone, "uninvited", Graphics::NoAdapter, "device=cpu").await?;
    uninvited.until("doing() === 'broken' && text('activity').includes('by invitation')", SOON).await?;
    // It sees what is trained all the same.
    uninvited.until("text('title') === 'Telling garments apart'", SOON).await?;

    let link = test_run.command(&["invite"]).await?;
    let code = link.trim().split_once('#').map_or("", |(_, fragment)| fragment);
    let page = backbone.page();
    let url = format!("{page}/?autostart=1&device=cpu#{code}");
    let invited = Tab::open("invited", Graphics::NoAdapter, &url).await?;
    invited.until("value('accepted') >= 1", LONG).await?;
    // The invitation is used up; what the browser kept gets it in again, without the link.
    invited.goto(&format!("{page}/?autostart=1&device=cpu&again")).await?;
    invited.until("value('accepted') >= 1", LONG).await?;
    uninvited.goto(&format!("{page}/?autostart=1&device=cpu&again#{code}")).await?;
    uninvited.until("doing() === 'broken' && text('activity').includes('as often as it may')", SOON).await?;
    Ok(())
}

#[tokio::test]
async fn a_tab_goes_on_once_its_visitor_has_signed_in() -> Result<()> {
    let _turn = turn().await;
    let (test_run, _provider) = provider::listed(QUICK).await?;
    let mut test_run = test_run.with_page(artifacts::web_root()?);
    let backbone = test_run.backbone().await?;
    test_run.command(&["allow", "add", "alice"]).await?;
    let tab = contributor(&backbone, "listed", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("doing() === 'signing-in' && !element('sign-in').hidden", SOON).await?;
    let url = tab.read("element('sign-in-link').href").await?;
    let url = url.as_str().unwrap_or_default();
    let peer = tab.text("sign-in-peer").await?;
    let here = format!("{}/login?peer={peer}&ticket=", backbone.page());
    ensure!(!peer.is_empty() && url.starts_with(&here), "{url}, {peer}");

    // In a page of its own, which is what the link opens.
    let login = Tab::open("login", Graphics::NoAdapter, url).await?;
    login.read("document.querySelector('[name=login]').value = 'alice'").await?;
    login.read("document.querySelector('[name=password]').value = 'any'").await?;
    login.click("button[type=submit]").await?;
    login.until("document.body.textContent.includes('Continue')", SOON).await?;
    login.click("button[type=submit]").await?;
    login.until(&format!("document.body.textContent.includes('{peer}')"), SOON).await?;
    login.click("form button").await?;
    login.until("document.body.textContent.includes('may take part now')", SOON).await?;

    tab.until("value('accepted') >= 1 && element('sign-in').hidden", LONG).await?;
    test_run.command(&["allow", "remove", "alice"]).await?;
    tab.until("doing() === 'broken' && text('activity').includes('alice is not on the list')", SOON).await?;
    Ok(())
}
