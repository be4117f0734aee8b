//! Runs on a table and on ratings: a tab trains them, tells of rows that its visitor enters, and recommends films.

use anyhow::{Result, ensure};
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::tables::{self, SCHEME};
use serde_json::json;

use super::support::{LONG, SOON, contributor, stop, test_run, turn};

/// Sets a field as a visitor does.
async fn enter(tab: &Tab, field: &str, value: &str) -> Result<()> {
    let (field, value) = (json!(field), json!(value));
    let entering = format!(
        "void (element({field}).value = {value}, \
         element({field}).dispatchEvent(new Event('input', {{ bubbles: true }})))"
    );
    tab.read(&entering).await.map(|_| ())
}

/// The first line of the answer.
fn first(name: &str) -> String {
    format!(
        "element('row-answers').querySelector('li:not([hidden])')?.textContent.startsWith({})",
        json!(name)
    )
}

#[tokio::test]
async fn a_tab_tells_of_a_row_as_it_is_entered() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&format!("{}{SCHEME}", tables::FLOWERS))?;
    test_run.write("flowers.csv", &tables::flowers())?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "table", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accuracy') >= 0.9", LONG).await?;
    stop(&tab).await?;
    tab.until("!element('rows').hidden && element('row-0') !== null", SOON).await?;
    ensure!(
        tab.read("element('try').hidden && element('fill').hidden").await? == true,
        "another box is there"
    );
    // Nothing happens before the visitor asks.
    enter(&tab, "row-0", "5,5").await?;
    enter(&tab, "row-1", "0.5").await?;
    enter(&tab, "row-2", "red").await?;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    ensure!(tab.text("row-epoch").await?.is_empty(), "nobody asked");
    tab.click("#row-form button").await?;
    tab.until(&first("rose"), SOON).await?;
    for (viewport, wider) in tab.pictures("row").await? {
        ensure!(wider == 0, "the page is {wider} pixels wider than the {} window", viewport.name);
    }
    // Changing a field is enough now.
    enter(&tab, "row-2", "white").await?;
    tab.until(&first("daisy"), SOON).await?;
    enter(&tab, "row-0", "long").await?;
    tab.until("text('row-said').includes('a number is wanted')", SOON).await?;
    Ok(())
}

#[tokio::test]
async fn a_tab_recommends_what_somebody_with_the_same_taste_likes() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&format!("{}{SCHEME}", tables::FILMS))?;
    test_run.write("films.csv", &tables::films())?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "ratings", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accuracy') >= 0.8", LONG).await?;
    stop(&tab).await?;
    tab.until("!element('rows').hidden && !element('rate-form').hidden", SOON).await?;
    for (film, stars) in [("film 2", "4.5"), ("film 3", "1.5")] {
        enter(&tab, "rate-item", film).await?;
        enter(&tab, "rate-rating", stars).await?;
        tab.click("#rate-form button").await?;
        let listed = format!("element('rated').textContent.includes({})", json!(film));
        tab.until(&listed, SOON).await?;
    }
    let all_even = "[...element('row-answers').querySelectorAll('li:not([hidden]) > span:first-child')]\
        .map((name) => Number(name.textContent.slice(5)))";
    let even = format!("{all_even}.length === 10 && {all_even}.every((film) => film % 2 === 0)");
    tab.until(&even, SOON).await?;
    for (viewport, wider) in tab.pictures("recommended").await? {
        ensure!(wider == 0, "the page is {wider} pixels wider than the {} window", viewport.name);
    }
    tab.click("#rated button").await?;
    tab.until("!element('rated').textContent.includes('film 2')", SOON).await?;
    Ok(())
}
