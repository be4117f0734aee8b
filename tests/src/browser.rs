//! Real Chromium for the tests: one browser, one profile and one ChromeDriver for each tab.
//!
//! A [`Tab`] drives the page and reads what it shows; a condition that does not come true in time
//! is an error with the page's own sentence, its console and a picture. Nothing here knows what a
//! gradient is, and nothing outlives its [`Tab`], not even after a panic.

mod driver;
mod layout;
mod page;
mod picture;
mod windows;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fantoccini::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use driver::{CdpCommand, Driver};
pub use picture::{DESKTOP, PHONE, Scheme, Viewport};
pub use windows::BrowserWindow;

/// A page of the browser's own.
const OTHER_PROCESS: &str = "chrome://version";

/// The compute devices that a tab sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Graphics {
    /// WebGPU on SwiftShader, an adapter in software: correct everywhere, fast nowhere.
    SoftwareAdapter,
    /// `navigator.gpu` is there and has no adapter, as on a machine without a graphics processor.
    NoAdapter,
}

/// A tab in a browser of its own, closed and its processes ended when dropped.
#[derive(Debug)]
pub struct Tab {
    name: String,
    client: Client,
    // Dropped after the client, and the driver before the profile that its browser writes to.
    _driver: Driver,
    _profile: TempDir,
}

impl Tab {
    /// Starts a browser with an empty profile and opens `url`. `name` is for messages and pictures.
    ///
    /// # Errors
    /// Where ChromeDriver or Chromium cannot be started, or the page cannot be fetched.
    pub async fn open(name: &str, graphics: Graphics, url: &str) -> Result<Self> {
        let (profile, driver, client) = match start(graphics).await {
            // Chromium itself crashed: no page was open yet.
            Err(error) => {
                eprintln!("{name}: {error:#}; once more");
                start(graphics).await.with_context(|| format!("{name}: no session with Chromium"))?
            }
            Ok(started) => started,
        };
        let tab = Self { name: name.to_owned(), client, _driver: driver, _profile: profile };
        tab.allow_scripts().await?;
        // As on a phone, where they lie over the page.
        tab.cdp("Emulation.setScrollbarsHidden", json!({ "hidden": true })).await?;
        tab.resize(DESKTOP).await?;
        tab.load(url).await?;
        Ok(tab)
    }

    /// The name that was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of the browser's main process.
    ///
    /// # Errors
    /// Where ChromeDriver does not say.
    pub fn process_id(&self) -> Result<u64> {
        let found = self.client.capabilities().and_then(|found| found.get("goog:processID"));
        found.and_then(Value::as_u64).context("ChromeDriver does not name the browser's process")
    }

    /// Loads `url` in this tab, in a process of its own: after a page of the browser, which is of another one. Where the next page of a
    /// site begins while a worker of the one before ends, Chromium 148 now and then fails a check of its own in that worker
    /// (SIGTRAP, once in 23 such pages on a busy machine), and the tab is lost.
    ///
    /// # Errors
    /// Where the page cannot be fetched.
    pub async fn goto(&self, url: &str) -> Result<()> {
        self.load(OTHER_PROCESS).await?;
        self.load(url).await
    }

    async fn load(&self, url: &str) -> Result<()> {
        self.client.goto(url).await.with_context(|| format!("{}: cannot open {url}", self.name))
    }

    /// Loads the page again.
    ///
    /// # Errors
    /// Where the page cannot be fetched.
    pub async fn reload(&self) -> Result<()> {
        self.client.refresh().await.with_context(|| format!("{}: cannot reload", self.name))
    }

    /// Sends a command of the Chrome DevTools Protocol to the page.
    ///
    /// # Errors
    /// Where Chromium refuses it.
    pub async fn cdp(&self, method: &'static str, parameters: Value) -> Result<Value> {
        let answer = self.client.issue_cmd(CdpCommand::new(method, parameters)).await;
        answer.with_context(|| format!("{}: {method}", self.name))
    }

    /// Closes the tab as a visitor does: at once, in any state.
    ///
    /// # Errors
    /// Where the browser is gone already.
    pub async fn close(self) -> Result<()> {
        self.client.close_window().await.with_context(|| format!("{}: cannot close", self.name))
    }

    /// Lines of the console since it was last asked for, workers included.
    pub async fn console(&self) -> Vec<String> {
        let answer = self.client.issue_cmd(driver::ConsoleCommand).await.unwrap_or_default();
        let entries = answer.as_array().cloned().unwrap_or_default();
        let line = |entry: &Value| {
            let part = |key| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            format!("{} {}", part("level"), part("message"))
        };
        entries.iter().map(line).collect()
    }
}

/// Starts a browser with an empty profile.
async fn start(graphics: Graphics) -> Result<(TempDir, Driver, Client)> {
    let profile = tempfile::Builder::new().prefix("barnraise-chromium-").tempdir()?;
    let driver = Driver::start().await?;
    let client = driver.session(capabilities(graphics, profile.path())).await?;
    Ok((profile, driver, client))
}

/// What is asked of ChromeDriver: the switches of Chromium that a test needs, and its console.
fn capabilities(graphics: Graphics, profile: &Path) -> Value {
    let mut args: Vec<String> = [
        "--headless=new",
        "--no-first-run",
        "--no-default-browser-check",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-default-apps",
        "--mute-audio",
        // A page may not call its own machine, where the tests' backbones are.
        "--allow-loopback-in-peer-connection",
    ]
    .map(String::from)
    .into();
    args.push(format!("--user-data-dir={}", profile.display()));
    if is_root() {
        // Chromium refuses its sandbox to root.
        args.push("--no-sandbox".into());
    }
    if graphics == Graphics::SoftwareAdapter {
        args.extend(["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"].map(String::from));
    }
    json!({
        "browserName": "chrome",
        "goog:loggingPrefs": { "browser": "ALL" },
        "goog:chromeOptions": { "binary": chromium(), "args": args },
    })
}

fn chromium() -> PathBuf {
    std::env::var_os("CHROME").map_or_else(|| "/usr/bin/chromium".into(), PathBuf::from)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    // The owner of our own entry in /proc; elsewhere the sandbox stays on.
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
