//! When a tab works and how hard: what it is told by its visitor, and by a browser that speaks for a phone.

use anyhow::{Result, ensure};
use barnraise_tests::browser::{Graphics, PHONE, Tab};
use barnraise_tests::process::BackboneProcess;
use serde_json::json;

use super::support::{LONG, QUICK, SLOW, SOON, contributor, ensure_counted, samples, test_run, turn};

/// A battery, a link and a presence that the test decides about.
const SENSES: &str = r"
    window.battery = Object.assign(new EventTarget(), { charging: false, level: 0.8 });
    Object.defineProperty(navigator, 'getBattery', { value: async () => window.battery });
    window.link = Object.assign(new EventTarget(), { type: 'wifi', saveData: false });
    Object.defineProperty(navigator, 'connection', { value: window.link });
    window.IdleDetector = class extends EventTarget {
        userState = 'active';
        screenState = 'unlocked';
        static requestPermission() { return Promise.resolve('granted'); }
        start() { window.detector = this; return Promise.resolve(); }
    };
    window.hide = (hidden) => {
        Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
    };
";
const PHONES_NAME: &str = "Mozilla/5.0 (Linux; Android 15; K) AppleWebKit/537.36 (KHTML, like Gecko) \
    Chrome/150.0.0.0 Mobile Safari/537.36";
/// Why it pauses; nothing while it does not.
const REASON: &str = "element('limits').dataset.reason";

/// A tab with senses that the test decides about, on a computer.
async fn sensing(backbone: &BackboneProcess, name: &str) -> Result<Tab> {
    let tab = Tab::open(name, Graphics::NoAdapter, "about:blank").await?;
    tab.cdp("Page.addScriptToEvaluateOnNewDocument", json!({ "source": SENSES })).await?;
    tab.goto(&format!("{}/?device=cpu", backbone.page())).await?;
    Ok(tab)
}

/// As Lighthouse's mobile profile has it: 1.6 Mbit/s, in bytes, and far away.
fn phones_network() -> serde_json::Value {
    json!({ "offline": false, "latency": 150, "downloadThroughput": 200_000, "uploadThroughput": 93_750 })
}

/// The same on a phone.
async fn phone(backbone: &BackboneProcess, name: &str) -> Result<Tab> {
    let tab = Tab::open(name, Graphics::NoAdapter, "about:blank").await?;
    let screen =
        json!({ "width": PHONE.width, "height": PHONE.height, "deviceScaleFactor": 2, "mobile": true });
    tab.cdp("Emulation.setDeviceMetricsOverride", screen).await?;
    tab.cdp("Emulation.setTouchEmulationEnabled", json!({ "enabled": true, "maxTouchPoints": 5 })).await?;
    // The page's own thread is a phone's as well.
    tab.cdp("Emulation.setCPUThrottlingRate", json!({ "rate": 4 })).await?;
    tab.cdp("Network.enable", json!({})).await?;
    tab.cdp("Network.emulateNetworkConditions", phones_network()).await?;
    tab.cdp("Emulation.setUserAgentOverride", json!({ "userAgent": PHONES_NAME })).await?;
    tab.cdp("Page.addScriptToEvaluateOnNewDocument", json!({ "source": SENSES })).await?;
    tab.goto(&format!("{}/?device=cpu", backbone.page())).await?;
    Ok(tab)
}

/// Waits until the sentence says that it pauses for this reason, in these words.
async fn until_paused(tab: &Tab, reason: &str, words: &str) -> Result<()> {
    let condition = format!(
        "doing() === 'paused' && {REASON} === {} && text('activity').includes({})",
        json!(reason),
        json!(words)
    );
    tab.until(&condition, SOON).await.map(drop)
}

/// Waits until more is accepted than now.
async fn until_more(tab: &Tab) -> Result<()> {
    let accepted = tab.read("value('accepted') || 0").await?;
    tab.until(&format!("{REASON} === '' && value('accepted') > {accepted}"), LONG).await.map(drop)
}

/// Takes pictures, and makes sure that nobody has to scroll sideways.
async fn pictures(tab: &Tab, name: &str) -> Result<()> {
    for (viewport, wider) in tab.pictures(&format!("limits-{name}")).await? {
        ensure!(wider == 0, "{name}: {wider} px wider than a {} of {} px", viewport.name, viewport.width);
    }
    Ok(())
}

#[tokio::test]
async fn a_phone_waits_for_its_charger_and_goes_on_by_itself() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = phone(&backbone, "limits-phone").await?;
    tab.until("doing() === 'idle'", SOON).await?;
    let summary = tab.text("limits-summary").await?;
    ensure!(summary.contains("50 % of the time, while charging, 250 MB a day"), "{summary}");
    ensure!(tab.read("element('limits').dataset.gentle").await? == "true");
    tab.click("#toggle").await?;
    until_paused(&tab, "not-charging", "It goes on by itself when it is.").await?;
    // What computes is named once there is a worker.
    ensure!(tab.read("element('device').hidden").await? == true, "the training program waits as well");
    pictures(&tab, "not-charging").await?;

    tab.read("void (battery.charging = true, battery.dispatchEvent(new Event('chargingchange')))").await?;
    until_more(&tab).await?;
    ensure!(!tab.text("activity").await?.is_empty() && tab.number("refused").await? == 0.0);
    tab.read("void hide(true)").await?;
    tab.until(&format!("{REASON} === 'hidden' && doing() === 'paused'"), SOON).await?;
    tab.read("void hide(false)").await?;
    until_more(&tab).await?;

    tab.read("void (battery.level = 0.05, battery.dispatchEvent(new Event('levelchange')))").await?;
    until_paused(&tab, "battery-low", "the battery is at 5 %").await?;
    // What was computed until then was handed in.
    let told = samples(&tab).await?;
    ensure!(told > 0);
    ensure_counted(&backbone, told).await
}

#[tokio::test]
async fn mobile_data_hours_and_presence_are_respected() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = sensing(&backbone, "limits-senses").await?;
    tab.until("doing() === 'idle'", SOON).await?;
    tab.read("void (battery.charging = true, battery.dispatchEvent(new Event('chargingchange')))").await?;
    tab.click("#toggle").await?;
    until_more(&tab).await?;
    tab.read("void (link.type = 'cellular', link.dispatchEvent(new Event('change')))").await?;
    until_paused(&tab, "metered", "this is mobile data").await?;
    tab.read("void (link.saveData = true, link.dispatchEvent(new Event('change')))").await?;
    until_paused(&tab, "saves-data", "saves data").await?;
    tab.click("#limits-summary").await?;
    tab.click("#on-metered").await?;
    until_more(&tab).await?;

    tab.click("#only-away").await?;
    until_paused(&tab, "in-use", "you are using this device").await?;
    tab.read("void (detector.userState = 'idle', detector.dispatchEvent(new Event('change')))").await?;
    until_more(&tab).await?;
    tab.click("#only-away").await?;

    // Two hours from now, for an hour.
    let set = r"(() => {
        const clock = (hours) => new Date(Date.now() + hours * 3600000).toTimeString().slice(0, 5);
        for (const [id, hours] of [['hours-from', 2], ['hours-until', 3]]) {
            element(id).value = clock(hours);
            element(id).dispatchEvent(new Event('change'));
        }
    })()";
    tab.read(set).await?;
    tab.click("#scheduled").await?;
    until_paused(&tab, "hours", "these are not its hours").await?;
    pictures(&tab, "panel").await?;
    tab.click("#scheduled").await?;
    until_more(&tab).await
}

/// Today, as the page counts days.
const TODAY: &str = "Math.floor((Date.now() - new Date().getTimezoneOffset() * 60000) / 86400000)";

#[tokio::test]
async fn the_data_of_a_day_is_counted_over_reloads() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab =
        Tab::open("limits-cap", Graphics::NoAdapter, &format!("{}/?device=cpu", backbone.page())).await?;
    tab.until("doing() === 'idle'", SOON).await?;
    // Of fifty megabytes, most are used up already.
    let kept = format!(
        "void (localStorage.setItem('barnraise.settings', JSON.stringify({{ version: 1, cap_mb: 50, duty: 'x' }})), \
         localStorage.setItem('barnraise.usage', \
         JSON.stringify({{ day: {TODAY}, bytes: 45e6, is_waived: false }})))"
    );
    tab.read(&kept).await?;
    tab.reload().await?;
    tab.until("value('data-note') >= 45e6", SOON).await?;
    ensure!(tab.text("throttle-text").await? == "100 %", "what is no setting is as if nothing had been said");
    tab.click("#toggle").await?;
    tab.until(&format!("{REASON} === 'cap'"), LONG).await?;
    until_paused(&tab, "cap", "50 MB of data are used up").await?;
    pictures(&tab, "cap").await?;

    tab.reload().await?;
    tab.until("value('data-note') >= 50e6", SOON).await?;
    // It was contributing, and goes on by itself.
    until_paused(&tab, "cap", "goes on by itself tomorrow").await?;
    tab.click("#anyway").await?;
    until_more(&tab).await
}

#[tokio::test]
async fn a_throttle_slows_the_tab_down_and_is_remembered() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(SLOW)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "limits-throttle", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("doing() === 'training' && value('speed') > 0", LONG).await?;
    let full = tab.number("speed").await?;
    let set = "void (element('throttle').value = 20, element('throttle').dispatchEvent(new Event('input')))";
    tab.read(set).await?;
    tab.until("doing() === 'training' && text('activity').includes('20 % of the time')", SOON).await?;
    // Samples by time, rests included: a fifth on any machine; less than half is certain.
    tab.until(&format!("value('speed') > 0 && value('speed') < {}", 0.5 * full), LONG).await?;
    tab.reload().await?;
    tab.until("text('throttle-text') === '20 %' && element('throttle').value === '20'", SOON).await?;
    tab.click("#limits-summary").await?;
    tab.click("#limits-defaults").await?;
    tab.until("text('throttle-text') === '100 %'", SOON).await.map(drop)
}

#[tokio::test]
async fn a_visitor_pauses_goes_on_and_finishes() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(SLOW)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "limits-pause", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("Number(element('batch').getAttribute('value')) >= 500", SOON).await?;
    ensure!(tab.text("toggle").await? == "Finish this batch and stop");
    tab.click("#pause").await?;
    until_paused(&tab, "visitor", "Paused by you").await?;
    let at_pause = samples(&tab).await?;
    ensure!(at_pause >= 500, "{at_pause} of at least 500 samples were handed in at the pause");
    ensure!(tab.text("pause").await? == "Go on");
    pictures(&tab, "paused").await?;
    // A reload goes on with what was wished, and that was a pause.
    tab.reload().await?;
    until_paused(&tab, "visitor", "Paused by you").await?;
    ensure!(tab.read("element('device').hidden").await? == true, "nothing is loaded for a pause");
    tab.click("#pause").await?;
    tab.until("doing() === 'training'", SOON).await?;
    tab.click("#toggle").await?;
    tab.until("doing() === 'idle' && element('also').hidden", SOON).await?;
    ensure!(tab.number("refused").await? == 0.0);
    // Each of its two lives counts its own.
    let told = at_pause + samples(&tab).await?;
    ensure_counted(&backbone, told).await
}

/// The page hears of passes that take as long as the test says, for each sample, and its clock is ahead by as much as the
/// test says.
const HEAT: &str = r"
    window.perSample = 1;
    window.nPasses = 0;
    const Plain = window.Worker;
    window.Worker = class extends Plain {
        constructor(...args) {
            super(...args);
            // Before the page listens, and hears the same object.
            this.addEventListener('message', ({ data }) => {
                for (const told of data.messages ?? []) {
                    if (!told.pass) continue;
                    told.pass = { n_samples: 16, milliseconds: 16 * window.perSample };
                    window.nPasses += 1;
                }
            });
        }
    };
    window.ahead = 0;
    const now = performance.now.bind(performance);
    performance.now = () => now() + window.ahead;
";

/// Waits until the page has heard of so many more passes, or makes none any more.
async fn until_passes(tab: &Tab, n_more: u32) -> Result<()> {
    let heard = tab.read("nPasses").await?;
    tab.until(&format!("nPasses >= {heard} + {n_more} || {REASON} === 'hot'"), LONG).await.map(drop)
}

#[tokio::test]
async fn a_device_that_slows_down_as_a_hot_one_does_rests_and_goes_on() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = Tab::open("limits-heat", Graphics::NoAdapter, "about:blank").await?;
    tab.cdp("Page.addScriptToEvaluateOnNewDocument", json!({ "source": HEAT })).await?;
    tab.goto(&format!("{}/?device=cpu", backbone.page())).await?;
    tab.until("doing() === 'idle'", SOON).await?;
    tab.click("#limits-summary").await?;
    tab.click("#heeds-heat").await?;
    tab.until("element('limits').dataset.gentle === 'true'", SOON).await?;
    tab.click("#toggle").await?;
    // More than are looked at together.
    until_passes(&tab, 20).await?;
    tab.read("void (perSample = 3)").await?;
    until_passes(&tab, 20).await?;
    // Slow for longer than a moment.
    tab.read("void (ahead = 15000)").await?;
    until_paused(&tab, "hot", "this device has become much slower, as one does that is hot").await?;
    let activity = tab.text("activity").await?;
    ensure!(activity.contains("It goes on by itself after a rest of 3 more minutes"), "{activity}");
    ensure!(tab.number("refused").await? == 0.0, "what was computed until then was handed in");
    pictures(&tab, "hot").await?;

    // As fast as before, three minutes later.
    tab.read("void (perSample = 1, ahead += 180000)").await?;
    until_more(&tab).await?;
    until_passes(&tab, 20).await?;
    ensure!(tab.read(REASON).await? == "", "it is cool");
    Ok(())
}
