//! One ChromeDriver with the browser it starts, ended together.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder};
use http::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use url::{ParseError, Url};

/// What ChromeDriver prints before its port.
const STARTED: &str = "ChromeDriver was started successfully on port ";
/// What it prints where the port that it chose is taken.
const PORT_TAKEN: &str = "port not available";
/// So often is it started until it has one.
const STARTS_MAX: u32 = 5;
/// Longer than any start seen on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);

/// What was killed is gone by then.
const END_MAX: Duration = Duration::from_secs(60);

/// A running ChromeDriver. Dropping it ends it with all browsers that it started.
#[derive(Debug)]
pub(super) struct Driver {
    child: Child,
    port: u16,
    // Kept open: a driver that cannot print ends.
    output: Lines<BufReader<ChildStdout>>,
}

impl Driver {
    /// Starts one on a port of its choice, or of another choice where something else took that port between one
    /// version of IP and the other.
    pub(super) async fn start() -> Result<Self> {
        for _ in 1..STARTS_MAX {
            match Self::start_once().await {
                Err(error) if error.to_string().contains(PORT_TAKEN) => {}
                started => return started,
            }
        }
        Self::start_once().await
    }

    async fn start_once() -> Result<Self> {
        let program = std::env::var_os("CHROMEDRIVER").unwrap_or_else(|| "chromedriver".into());
        let mut child = Command::new(&program)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A group of its own, which its browsers stay in.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {} (set CHROMEDRIVER)", program.display()))?;
        let output = child.stdout.take().context("the output of ChromeDriver is not piped")?;
        let mut driver = Self { child, port: 0, output: BufReader::new(output).lines() };
        let port = tokio::time::timeout(START_MAX, driver.read_port()).await;
        driver.port = port.context("ChromeDriver did not start in time")??;
        Ok(driver)
    }

    async fn read_port(&mut self) -> Result<u16> {
        let mut printed = String::new();
        while let Some(line) = self.output.next_line().await? {
            if let Some(port) = line.strip_prefix(STARTED) {
                return port.trim_end_matches('.').parse().with_context(|| format!("a port in {line:?}"));
            }
            printed.push_str(&line);
        }
        bail!("ChromeDriver ended before it had a port: {printed}")
    }

    /// Starts a browser.
    pub(super) async fn session(&self, capabilities: Value) -> Result<Client> {
        let capabilities: Capabilities = serde_json::from_value(capabilities)?;
        let address = format!("http://127.0.0.1:{}", self.port);
        let mut builder = ClientBuilder::new(HttpConnector::new());
        Ok(builder.capabilities(capabilities).connect(&address).await?)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Not reaped yet, so the number is still its own.
        let Some(group) = self.child.id() else { return };
        let _ = std::process::Command::new("sh").args(["-c", &format!("kill -KILL -{group}")]).status();
        // The profile goes next, and nothing may write to it any more.
        let since = Instant::now();
        while since.elapsed() < END_MAX && is_alive(group) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Whether a process of the group runs, dead ones that nobody asked after aside.
fn is_alive(group: u32) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok()).any(|stat| {
        // `pid (name) state parent group …`; a name may hold anything.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let state = fields.next();
        let is_dead = matches!(state, Some("Z" | "X"));
        !is_dead && fields.nth(1).is_some_and(|of| of.parse() == Ok(group))
    })
}

/// A command of the Chrome DevTools Protocol, by way of ChromeDriver.
#[derive(Debug)]
pub(super) struct CdpCommand {
    method: &'static str,
    parameters: Value,
}

impl CdpCommand {
    pub(super) fn new(method: &'static str, parameters: Value) -> Self {
        Self { method, parameters }
    }
}

impl WebDriverCompatibleCommand for CdpCommand {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/goog/cdp/execute", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        let body = json!({ "cmd": self.method, "params": self.parameters });
        (Method::POST, Some(body.to_string()))
    }
}

/// Asks for the console's lines since the last time.
#[derive(Debug)]
pub(super) struct ConsoleCommand;

impl WebDriverCompatibleCommand for ConsoleCommand {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/se/log", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(json!({ "type": "browser" }).to_string()))
    }
}
