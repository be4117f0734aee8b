//! What a tab computes on, and how right it is.

use anyhow::{Result, ensure};
use barnraise_protocol::api::DeviceCount;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::process::BackboneProcess;
use serde_json::json;

use super::support::{LONG, QUICK, SOON, contributor, test_run, turn, unhurried, until_devices};

/// The checks that ran, with those that fail.
const CHECKS: &str = r#"
    [...element("selfcheck").rows].map(({ dataset }) => ({
        name: dataset.name,
        passed: Number(dataset.deviation) <= Number(dataset.tolerance),
        deviation: dataset.deviation,
        tolerance: dataset.tolerance,
    }))
"#;

/// Every check passes on this tab's device, and what it computes is accepted.
async fn computes_right(tab: &Tab, device: &str) -> Result<()> {
    tab.until("element('selfcheck').rows.length > 0", LONG).await?;
    let checks = tab.read(CHECKS).await?;
    let checks = checks.as_array().cloned().unwrap_or_default();
    let failed: Vec<_> = checks.iter().filter(|check| check["passed"] != true).collect();
    ensure!(failed.is_empty(), "{}: {failed:?} of {}", tab.name(), checks.len());
    let gradient =
        checks.iter().filter(|check| check["name"].as_str().is_some_and(|of| of.contains("gradient")));
    ensure!(gradient.count() > 0, "{}: no gradient among {checks:?}", tab.name());
    ensure!(tab.read("element('device').dataset.device").await? == device, "{}", tab.text("device").await?);
    tab.until("value('accepted') >= 1", LONG).await?;
    ensure!(tab.number("refused").await? == 0.0, "refused: {}", tab.text("refusal").await?);
    tab.pictures(&format!("selfcheck-{}", tab.name())).await?;
    Ok(())
}

#[tokio::test]
async fn webgpu_computes_what_the_reference_computes() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&unhurried())?;
    let backbone = test_run.backbone().await?;
    let query = "selfcheck=1&device=webgpu";
    let tab = contributor(&backbone, "webgpu", Graphics::SoftwareAdapter, query).await?;
    computes_right(&tab, "browser-web-gpu").await
}

#[tokio::test]
async fn the_processor_computes_what_the_reference_computes() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&unhurried())?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "cpu", Graphics::NoAdapter, "selfcheck=1&device=cpu").await?;
    computes_right(&tab, "browser-cpu").await
}

/// Each batch is an optimizer step of the tab's own; the gradient comes back from the adapter for it.
#[tokio::test]
async fn a_tab_makes_local_steps_on_its_adapter() -> Result<()> {
    let _turn = turn().await;
    let local_steps = r#"[scheme.synchronous.local_steps]
    steps = 8
    optimizer = { kind = "sgd-momentum", momentum = 0.9 }
    schedule = { peak = 0.05 }
    [scheme.synchronous]
    gradient_codec = { top-k = { density = 0.01 } }"#;
    let mut test_run = test_run(&unhurried().replace("[scheme.synchronous]", local_steps))?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "local-steps", Graphics::SoftwareAdapter, "device=webgpu").await?;
    tab.until("value('accepted') >= 1", LONG).await?;
    ensure!(tab.read("element('device').dataset.device").await? == "browser-web-gpu");
    ensure!(tab.number("refused").await? == 0.0, "refused: {}", tab.text("refusal").await?);
    Ok(())
}

#[tokio::test]
async fn without_an_adapter_the_processor_computes_and_the_page_says_so() -> Result<()> {
    let _turn = turn().await;
    // Passes that are long enough for threads.
    let long = QUICK.replace("{ mlp = { hidden = [128] } }", "\"le-net\"").replace("size = 32", "size = 256");
    let mut test_run = test_run(&long)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "no-adapter", Graphics::NoAdapter, "").await?;
    tab.until("value('accepted') >= 1", LONG).await?;
    ensure!(tab.read("element('device').dataset.device").await? == "browser-cpu");
    let has_threads = tab.read("navigator.hardwareConcurrency >= 2").await? == true;
    let threads = if has_threads { "On the processor, with " } else { "On the processor" };
    tab.until(&format!("text('device').startsWith({})", json!(threads)), SOON).await?;
    // They end where the visitor does not let the tab work all the time, and go on with it.
    if has_threads {
        let less =
            "void (element('throttle').value = 50, element('throttle').dispatchEvent(new Event('input')))";
        tab.read(less).await?;
        tab.until("!text('device').includes(' threads')", SOON).await?;
        let accepted = tab.number("accepted").await?;
        tab.until(&format!("value('accepted') > {accepted}"), LONG).await?;
    }
    // A visitor who asks for WebGPU and nothing else is told why it is missing.
    let url = format!("{}/?autostart=1&device=webgpu", backbone.page());
    tab.goto(&url).await?;
    tab.until("doing() === 'broken' && text('activity').includes('WebGPU')", SOON).await?;
    tab.pictures("no-webgpu").await?;
    Ok(())
}

/// An adapter in software computes on the processor, with more to do: the tab finds that out by itself.
#[tokio::test]
async fn a_slow_adapter_is_left_to_rest_and_everyone_sees_it() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "slow-adapter", Graphics::SoftwareAdapter, "").await?;
    tab.until("value('accepted') >= 1", LONG).await?;
    ensure!(tab.read("element('device').dataset.device").await? == "browser-cpu");
    let line = tab.text("device").await?;
    ensure!(line.contains("faster here than this graphics adapter"), "{line}");
    ensure!(tab.read("element('notice').hidden").await? == true, "{}", tab.text("notice").await?);
    counted_as(&tab, &backbone, DeviceKind::BrowserCpu, "1 × browser on its processor").await
}

/// Everyone is told that the run has one contributor, which computes on `device`.
async fn counted_as(tab: &Tab, backbone: &BackboneProcess, device: DeviceKind, words: &str) -> Result<()> {
    tab.until(&format!("text('devices') === {}", json!(words)), SOON).await?;
    until_devices(backbone, &[DeviceCount { device, n_contributors: 1 }]).await
}

/// Whether each picture of the gallery still has its ink.
const GALLERY_IS_WHOLE: &str = r"
    [...document.querySelectorAll('#gallery canvas')].every((canvas) => {
        const context = canvas.getContext('2d');
        const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
        return !context.isContextLost() && data.some((value) => value > 0);
    })
";

#[tokio::test]
async fn a_lost_adapter_does_not_end_the_training() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "lost-adapter", Graphics::SoftwareAdapter, "device=webgpu").await?;
    tab.until("value('accepted') >= 1 && document.querySelector('#gallery canvas')", LONG).await?;
    ensure!(tab.read("element('device').dataset.device").await? == "browser-web-gpu");
    counted_as(&tab, &backbone, DeviceKind::BrowserWebGpu, "1 × browser with WebGPU").await?;
    tab.cdp("Browser.crashGpuProcess", json!({})).await?;
    tab.until("!element('notice').hidden && element('device').dataset.device === 'browser-cpu'", SOON)
        .await?;
    let (notice, line) = (tab.text("notice").await?, tab.text("device").await?);
    ensure!(notice == "The graphics processor stopped answering. The processor goes on.", "{notice}");
    ensure!(line.contains("as the graphics processor stopped answering"), "{line}");
    // What was accepted on the lost device stays counted.
    let accepted = tab.number("accepted").await?;
    tab.until(&format!("value('accepted') > {accepted}"), LONG).await?;
    counted_as(&tab, &backbone, DeviceKind::BrowserCpu, "1 × browser on its processor").await?;
    tab.until(GALLERY_IS_WHOLE, SOON).await?;
    tab.pictures("lost-adapter").await?;
    Ok(())
}

/// A worker for which the adapter is the faster one, as one in software never is, of a page that left the choice to it;
/// and minutes that are over when the test says. Notes what the page says of the adapter.
const PREFERS_ADAPTER: &str = r"
    const Plain = window.Worker;
    window.workers = 0;
    window.Worker = class extends Plain {
        constructor(...args) {
            super(...args);
            window.workers += 1;
        }
        postMessage(message, ...rest) {
            super.postMessage(message.type === 'hello' ? { ...message, device: 'web-gpu' } : message, ...rest);
        }
    };
    const wait = window.setTimeout;
    window.later = [];
    window.setTimeout = (act, ms, ...rest) =>
        ms >= 60000 ? -window.later.push(() => act(...rest)) : wait(act, ms, ...rest);
    window.said = [];
    document.addEventListener('DOMContentLoaded', () => {
        const notice = document.getElementById('notice');
        new MutationObserver(() => said.push(notice.textContent)).observe(notice, { childList: true });
    });
";

/// The browser has started its graphics process again.
const HAS_ADAPTER_AGAIN: &str = "window.isBack \
    || void navigator.gpu.requestAdapter().then((adapter) => { window.isBack = adapter !== null; })";

#[tokio::test]
async fn a_lost_adapter_is_tried_again_and_computes_again() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = Tab::open("adapter-again", Graphics::SoftwareAdapter, "about:blank").await?;
    tab.cdp("Page.addScriptToEvaluateOnNewDocument", json!({ "source": PREFERS_ADAPTER })).await?;
    tab.goto(&format!("{}/?autostart=1", backbone.page())).await?;
    let on_adapter = "element('device').dataset.device === 'browser-web-gpu'";
    tab.until(&format!("value('accepted') >= 1 && {on_adapter}"), LONG).await?;
    tab.cdp("Browser.crashGpuProcess", json!({})).await?;
    tab.until("said.some((notice) => notice.startsWith('The graphics processor stopped answering'))", SOON)
        .await?;
    tab.until(HAS_ADAPTER_AGAIN, SOON).await?;
    tab.read("void later.splice(0).forEach((act) => act())").await?;
    tab.until(&format!("workers === 2 && {on_adapter} && element('notice').hidden"), LONG).await?;
    let line = tab.text("device").await?;
    ensure!(line.contains("through WebGPU") && !line.contains("stopped answering"), "{line}");
    // What was accepted before stays counted, and the adapter adds to it.
    let accepted = tab.number("accepted").await?;
    ensure!(accepted >= 1.0, "{accepted}");
    tab.until(&format!("value('accepted') > {accepted} && {on_adapter}"), LONG).await?;
    ensure!(tab.read("workers").await? == 2, "once is enough");
    counted_as(&tab, &backbone, DeviceKind::BrowserWebGpu, "1 × browser with WebGPU").await
}
