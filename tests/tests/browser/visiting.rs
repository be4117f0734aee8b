//! A visitor who comes back, and one who tries the model.

use anyhow::{Context, Result, ensure};
use barnraise_tests::browser::{Graphics, Tab};
use serde_json::{Value, json};

use super::support::{LARGE_SHARDS, LONG, QUICK, SOON, contributor, stop, test_run, turn};

/// Training samples of Fashion-MNIST, and what a contributor may hold back of them.
const ONE_PASS: u32 = 60_000 + 4_000;

#[tokio::test]
async fn a_second_visit_finds_its_data_in_the_cache() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(LARGE_SHARDS)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "cache", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    let first = tab.number("bytes-down").await?;
    tab.until(&format!("value('samples') >= {ONE_PASS}"), LONG).await?;
    tab.reload().await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    let second = tab.number("bytes-down").await?;
    ensure!(second < first / 4.0, "{second} bytes down after {first} at the first visit");
    Ok(())
}

#[tokio::test]
async fn what_was_given_adds_up_over_visits_and_stands_on_the_leaderboard() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "giving", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 2", SOON).await?;
    let first = stop(&tab).await?;
    tab.until(&format!("value('given') === {first}"), SOON).await?;
    // Asked every few seconds; the tab knows its own place by its key.
    let own =
        "document.querySelector('#leader-rows [data-own=true]')?.cells[1].textContent.replace(/\\D/g, '')";
    tab.until(&format!("Number({own}) === {first}"), SOON).await?;
    for (viewport, wider) in tab.pictures("giving").await? {
        ensure!(wider == 0, "the page is {wider} pixels wider than the {} window", viewport.name);
    }
    tab.reload().await?;
    tab.until(&format!("value('given') >= {first} && !element('given').hidden"), SOON).await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    let both = first + stop(&tab).await?;
    tab.until(&format!("value('given') === {both}"), SOON).await?;
    ensure!(backbone.contributions(both).await?.n_contributors == 1, "it is the same peer at each visit");
    Ok(())
}

/// Keeps what the worker answers, to see more of it than the page shows.
pub(crate) const RECORD: &str = r"
    window.predictions = [];
    const Plain = window.Worker;
    window.Worker = class extends Plain {
        constructor(...args) {
            super(...args);
            this.addEventListener('message', ({ data }) => {
                const told = (data.messages ?? []).filter(({ event }) => event === 'prediction');
                window.predictions.push(...told);
            });
        }
    };
";

/// The newest answer, once the page shows it.
pub(crate) async fn answer(tab: &Tab, n_answers: usize) -> Result<Value> {
    tab.until(&format!("predictions.length >= {n_answers} && value('prediction-epoch') >= 0"), SOON).await?;
    tab.read("({ ...predictions.at(-1), probabilities: [...predictions.at(-1).probabilities] })").await
}

fn ensure_distribution(answer: &Value) -> Result<Vec<f64>> {
    let probabilities = answer["probabilities"].as_array().context("probabilities")?;
    let probabilities: Vec<f64> = probabilities.iter().filter_map(Value::as_f64).collect();
    ensure!(probabilities.len() == 10, "one for each class: {answer}");
    ensure!(probabilities.iter().all(|value| (0.0..=1.0).contains(value)), "{answer}");
    let sum: f64 = probabilities.iter().sum();
    ensure!((sum - 1.0).abs() < 1e-3, "the sum is {sum}: {answer}");
    Ok(probabilities)
}

#[tokio::test]
async fn the_model_can_be_tried_by_picking_and_by_drawing() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = Tab::open("trying", Graphics::NoAdapter, "about:blank").await?;
    tab.cdp("Page.addScriptToEvaluateOnNewDocument", json!({ "source": RECORD })).await?;
    tab.goto(&format!("{}/?device=cpu", backbone.page())).await?;

    // Before anything is trained the model knows nothing, and is asked without contributing.
    tab.until("doing() === 'idle'", SOON).await?;
    tab.click("#load-model").await?;
    tab.until("document.querySelector('#gallery button')", SOON).await?;
    tab.click("#gallery button").await?;
    let untrained = answer(&tab, 1).await?;
    ensure_distribution(&untrained)?;
    ensure!(untrained["epoch"] == 0, "nobody has trained it: {untrained}");
    ensure!(tab.number("samples").await? == 0.0, "trying is not contributing");

    // A garment drawn with the mouse: a shirt's outline.
    let shirt = [(-60, -80), (60, -80), (100, -30), (70, -10), (50, -30), (50, 90), (-50, 90), (-50, -30)];
    tab.draw("#sketch", &[&shirt[..], &[(-50, -30), (-70, -10), (-100, -30), (-60, -80)]]).await?;
    ensure_distribution(&answer(&tab, 2).await?)?;
    tab.pictures("drawn").await?;
    tab.click("#clear").await?;
    tab.until("text('prediction-epoch') === ''", SOON).await?;

    // A trained one knows most of what it is shown.
    tab.click("#toggle").await?;
    tab.until("value('accuracy') >= 0.7", LONG).await?;
    tab.click("#toggle").await?;
    tab.until("doing() === 'idle'", SOON).await?;
    let n_asked = 5;
    let mut n_right = 0;
    for idx in 1..=n_asked {
        let n_answers = tab.read("predictions.length").await?.as_u64().context("a count")?;
        tab.click(&format!("#gallery button:nth-child({idx})")).await?;
        let answer = answer(&tab, usize::try_from(n_answers)? + 1).await?;
        let probabilities = ensure_distribution(&answer)?;
        ensure!(answer["epoch"].as_u64() > Some(0), "{answer}");
        let label =
            tab.read("Number(document.querySelector('#gallery [aria-pressed=true]').dataset.label)").await?;
        let likeliest = (0..10).max_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]));
        n_right += u32::from(likeliest.map(|class| class as u64) == label.as_u64());
    }
    tab.pictures("picked").await?;
    ensure!(n_right >= 2, "{n_right} of {n_asked} are right at an accuracy of 0.7");
    Ok(())
}
