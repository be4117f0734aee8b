//! The page without its server, and the next version of it: what is kept is whole, right and of one build.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use barnraise_protocol::Sha256Hash;
use barnraise_tests::artifacts;
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::process::TestRun;

use super::support::{QUICK, SOON, contributor, stop, test_run, turn};

/// The service worker has what it keeps, and answers for the page.
const IS_KEPT: &str = "!!navigator.serviceWorker.controller";
/// Notes on the body what is kept of the training program.
const LOOK_AT_PROGRAM: &str = r"void (async () => {
    const cache = await caches.open('barnraise-program');
    const [request] = await cache.keys();
    const kept = request ? await (await cache.match(request)).arrayBuffer() : new ArrayBuffer(0);
    document.body.dataset.kept = kept.byteLength;
})()";

#[tokio::test]
async fn a_page_that_was_visited_opens_without_its_server_and_recovers() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = Tab::open("kept-page", Graphics::NoAdapter, &backbone.page()).await?;
    tab.until(IS_KEPT, SOON).await?;
    let style = "getComputedStyle(element('toggle')).borderRadius";
    let styled = tab.read(style).await?;
    backbone.kill().await?;
    tab.reload().await?;
    tab.until("doing() === 'unreachable' && text('activity').includes('Trying again')", SOON).await?;
    ensure!(tab.read(style).await? == styled, "with its style");
    tab.pictures("kept-page").await?;
    let _backbone = test_run.backbone().await?;
    tab.until("doing() === 'idle' && element('live').dataset.state === 'live'", SOON).await?;
    Ok(())
}

#[tokio::test]
async fn the_model_that_was_kept_answers_without_its_server() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "kept-model", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 1 && value('epoch') >= 3", SOON).await?;
    stop(&tab).await?;
    // Another visit, which asks what the model is by now. What is asked is kept before it answers.
    tab.goto(&format!("{}/?device=cpu", backbone.page())).await?;
    tab.until(&format!("doing() === 'idle' && {IS_KEPT}"), SOON).await?;
    tab.read(LOOK_AT_PROGRAM).await?;
    tab.until("Number(document.body.dataset.kept) > 1e6", SOON).await?;
    let (epoch, said) = ask_of_gallery(&tab).await?;
    ensure!(epoch >= 3.0 && !tab.text("prediction-epoch").await?.contains("kept"), "the newest: {epoch}");

    backbone.kill().await?;
    tab.reload().await?;
    tab.until("doing() === 'unreachable'", SOON).await?;
    ensure!(ask_of_gallery(&tab).await? == (epoch, said), "the same model says the same of the same picture");
    let line = tab.text("prediction-epoch").await?;
    ensure!(line.contains("as this browser kept it: the backbone cannot be reached"), "{line}");
    ensure!(tab.number("samples").await? == 0.0, "trying is not contributing");
    tab.pictures("kept-model").await?;
    Ok(())
}

/// Brings the model into the tab, and asks it about the first picture: its epoch, and what it says.
async fn ask_of_gallery(tab: &Tab) -> Result<(f64, String)> {
    tab.click("#load-model").await?;
    tab.until("document.querySelector('#gallery button')", SOON).await?;
    tab.click("#gallery button").await?;
    tab.until("value('prediction-epoch') >= 0 && text('prediction-epoch') !== ''", SOON).await?;
    Ok((tab.number("prediction-epoch").await?, tab.text("prediction").await?))
}

#[tokio::test]
async fn a_kept_program_that_is_broken_is_fetched_anew() -> Result<()> {
    const BREAK: &str = r"void (async () => {
        const cache = await caches.open('barnraise-program');
        const [request] = await cache.keys();
        const bytes = new Uint8Array(await (await cache.match(request)).arrayBuffer());
        bytes[bytes.length >> 1] ^= 1;
        await cache.put(request, new Response(bytes));
        document.body.dataset.broken = 'yes';
    })()";
    /// SHA-256 of what is kept, in hexadecimal.
    const HASH: &str = r"void (async () => {
        const cache = await caches.open('barnraise-program');
        const [request] = await cache.keys();
        const bytes = request ? await (await cache.match(request)).arrayBuffer() : new ArrayBuffer(0);
        const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
        document.body.dataset.hash = Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
    })()";
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "broken-program", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    tab.read(HASH).await?;
    let right = tab.until("document.body.dataset.hash", SOON).await?;
    tab.read(LOOK_AT_PROGRAM).await?;
    let n_bytes = tab.until("Number(document.body.dataset.kept)", SOON).await?;
    ensure!(n_bytes.as_u64() > Some(1_000_000), "{n_bytes} bytes are no training program");
    tab.read(BREAK).await?;
    tab.until("document.body.dataset.broken", SOON).await?;

    // What is broken is not used, and mended.
    tab.reload().await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    tab.read(HASH).await?;
    let mended = tab.until("document.body.dataset.hash", SOON).await?;
    ensure!(mended == right, "kept again as it should be: {mended}, not {right}");
    stop(&tab).await?;
    Ok(())
}

#[tokio::test]
async fn a_new_version_is_offered_and_taken_whole() -> Result<()> {
    let _turn = turn().await;
    let folder = tempfile::tempdir()?;
    copy(&artifacts::web_root()?, folder.path())?;
    let mut test_run = TestRun::new(QUICK)?.with_page(folder.path().to_owned());
    let backbone = test_run.backbone().await?;
    let tab = Tab::open("new-version", Graphics::NoAdapter, &backbone.page()).await?;
    tab.until(IS_KEPT, SOON).await?;
    let build = tab.read("document.body.dataset.build").await?;
    let build = build.as_str().context("the page names no build")?.to_owned();
    let next = "0123456789abcdef".repeat(4);
    publish(folder.path(), &build, &next)?;

    tab.read("void navigator.serviceWorker.getRegistration().then((found) => found.update())").await?;
    tab.until("!element('renewal').hidden", SOON).await?;
    ensure!(tab.read("document.body.dataset.build").await? == build.as_str(), "nothing changes by itself");
    ensure!(tab.read("document.documentElement.dataset.program ?? 'before'").await? == "before");
    tab.pictures("new-version").await?;
    tab.click("#reload").await?;
    tab.until(&format!("document.body.dataset.build === '{next}' && doing() === 'idle'"), SOON).await?;
    // One reload, and all of it is of the next build.
    let style = "getComputedStyle(document.documentElement).getPropertyValue('--of-build').trim()";
    for (what, found) in [("program", "document.documentElement.dataset.program"), ("style", style)] {
        let found = tab.read(found).await?;
        ensure!(found == "next", "the {what} is {found}");
    }
    // Nobody shows the old one: it is forgotten.
    // Noted only where it is another, as each note has the condition looked at.
    let only_next = format!(
        "void caches.keys().then((names) => {{ \
            const pages = names.filter((name) => name.startsWith('barnraise-page-')).join(' '); \
            if (document.body.dataset.pages !== pages) document.body.dataset.pages = pages; \
        }}), document.body.dataset.pages === 'barnraise-page-{next}'"
    );
    tab.until(&only_next, SOON).await?;
    ensure!(tab.read("element('renewal').hidden").await? == true);
    Ok(())
}

/// Another build of the page: a program and a style that differ, at addresses of their own. Those of before are gone from
/// the server, as after an update.
pub(super) fn publish(web_root: &Path, build: &str, next: &str) -> Result<()> {
    let [page, worker] = ["index.html", "service-worker.js"].map(|name| web_root.join(name));
    let before = std::fs::read_to_string(&page)?;
    let (mut after, mut script) = (before.replace(build, next), std::fs::read_to_string(&worker)?);
    let hash = |text: &str| Sha256Hash::of(text.as_bytes()).to_string();
    ensure!(script.contains(&hash(&before)), "the service worker does not name the page by its hash");
    for (name, extension, added) in [
        ("boot", "js", "document.documentElement.dataset.program = 'next';\n"),
        ("style", "css", ":root { --of-build: next; }\n"),
    ] {
        let [old, bytes, sha256] = part_of(&script, name, extension)?;
        let file = web_root.join(old.trim_start_matches('/'));
        let text = std::fs::read_to_string(&file)?;
        ensure!(hash(&text) == sha256 && text.len().to_string() == bytes, "{old} is another file");
        let text = format!("{added}{text}");
        let new = format!("/assets/{name}.{}.{extension}", &hash(&text)[..12]);
        std::fs::write(web_root.join(new.trim_start_matches('/')), &text)?;
        remove(&file)?;
        let [line, now] = [(&old, &bytes, &sha256), (&new, &text.len().to_string(), &hash(&text))]
            .map(|(address, bytes, sha256)| format!("[\"{address}\", \"{bytes}\", \"{sha256}\"]"));
        ensure!(script.contains(&line), "the service worker does not have {line}");
        (after, script) = (after.replace(&old, &new), script.replace(&line, &now));
    }
    let page_part = |text: &str| format!("\"{}\", \"{}\"", text.len(), hash(text));
    let script = script.replace(build, next).replace(&page_part(&before), &page_part(&after));
    ensure!(script.contains(&hash(&after)), "the service worker names the next page");
    for (path, text) in [(&page, after), (&worker, script)] {
        remove(path)?;
        std::fs::write(path, text)?;
    }
    Ok(())
}

/// What the service worker says of a part: its address, its bytes and its hash.
fn part_of(script: &str, name: &str, extension: &str) -> Result<[String; 3]> {
    let begin = format!("[\"/assets/{name}.");
    let mut lines = script.lines().map(str::trim).filter(|line| line.starts_with(&begin));
    let line = lines.find(|line| line.contains(&format!(".{extension}\"")));
    let line = line.with_context(|| format!("the service worker keeps no {name}"))?;
    let values: Vec<String> = line.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    values.try_into().map_err(|values| anyhow::anyhow!("{values:?} are not address, bytes and hash"))
}

/// A file, and what it is compressed to.
fn remove(path: &Path) -> Result<()> {
    for suffix in ["", ".br", ".gz"] {
        let file = format!("{}{suffix}", path.display());
        if Path::new(&file).exists() {
            std::fs::remove_file(file)?;
        }
    }
    Ok(())
}

pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            std::fs::copy(&path, &target)?;
        }
    }
    Ok(())
}
