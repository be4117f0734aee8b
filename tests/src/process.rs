//! The real `barnraise` binary for the tests: a backbone that can be stopped, killed and started again
//! on the same ports, and native peers.
//!
//! Whatever is waited for is an event of the backbone or the end of a process; a limit only turns a hang
//! into an error with the log. Nothing outlives its handle, not even after a panic.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use barnraise_protocol::api::{LiveProgress, RunStatus};
use barnraise_protocol::contribute::Progress;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use toml::Table;

use crate::artifacts;
use crate::lan::Host;

/// After this long a test hangs: everything waited for here takes seconds at most.
pub const HANG: Duration = Duration::from_secs(180);
/// Lines of a log that an error shows.
const LOG_LINES: usize = 40;

/// The folder, configuration and ports of one run; it outlives the processes of its backbone.
#[derive(Debug)]
pub struct World {
    folder: TempDir,
    web_root: PathBuf,
    /// Known after the first start, and taken again.
    http: String,
    listen: Vec<String>,
    host: Option<Host>,
    n_processes: u32,
}

impl World {
    /// A run configured by `sections`: TOML as in `run.example.toml`, without the folders.
    ///
    /// # Errors
    /// Where the folder cannot be made.
    pub fn new(sections: &str) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("barnraise-test-").tempdir()?;
        let mut config: Table = sections.parse()?;
        // Shards are the same in all tests: cut once, kept between tests.
        set_folder(&mut config, "data", "cache", &cache()?);
        set_folder(&mut config, "storage", "folder", &folder.path().join("run"));
        std::fs::write(folder.path().join("run.toml"), config.to_string())?;
        Ok(Self {
            web_root: folder.path().join("no-page"),
            folder,
            http: "127.0.0.1:0".into(),
            listen: vec!["/ip4/127.0.0.1/tcp/0".into(), "/ip4/127.0.0.1/udp/0/quic-v1/webtransport".into()],
            host: None,
            n_processes: 0,
        })
    }

    /// The backbone listens on these addresses and no others.
    #[must_use]
    pub fn with_listen(mut self, listen: &[&str]) -> Self {
        self.listen = listen.iter().map(|&address| address.to_owned()).collect();
        self
    }

    /// The backbone runs on `host`: it listens there, and serves its page to the test through `window`.
    #[must_use]
    pub fn with_host(mut self, host: &Host, window: &str) -> Self {
        self.http = format!("{window}:0");
        self.listen = vec![
            format!("/ip4/{}/udp/4002/quic-v1", host.address),
            format!("/ip4/{}/tcp/4001", host.address),
        ];
        self.host = Some(host.clone());
        self
    }

    /// The page to serve; without it there is none.
    #[must_use]
    pub fn with_page(mut self, web_root: PathBuf) -> Self {
        self.web_root = web_root;
        self
    }

    /// The page is served here, and not at an address that is known after the first start.
    #[must_use]
    pub fn at(mut self, http: &str) -> Self {
        self.http = http.to_owned();
        self
    }

    /// Puts a file beside the configuration.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(std::fs::write(self.folder.path().join(name), text)?)
    }

    /// Runs `barnraise` with these arguments on this run's configuration until it ends; what it printed.
    ///
    /// # Errors
    /// Where it fails; its log is in the error.
    pub async fn command(&mut self, args: &[&str]) -> Result<String> {
        let mut args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        args.extend(["--config".into(), self.folder.path().join("run.toml").display().to_string()]);
        let mut process = self.process(None, "command", &args)?;
        let (output, status) = process.end().await?;
        ensure!(status.success(), process.error(&format!("{args:?}: {status}")));
        Ok(output)
    }

    /// Where the backbone keeps checkpoints, journal and identity.
    pub fn storage(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Starts the backbone and waits until it listens: on free ports the first time, then on the same.
    ///
    /// # Errors
    /// Where it does not come up; its log is in the error.
    pub async fn backbone(&mut self) -> Result<Backbone> {
        let mut args = vec!["serve".to_owned(), "--http".into(), self.http.clone()];
        args.extend(["--config".into(), self.folder.path().join("run.toml").display().to_string()]);
        args.extend(["--web-root".into(), self.web_root.display().to_string()]);
        for address in &self.listen {
            args.extend(["--listen".into(), address.clone()]);
        }
        let mut process = self.process(self.host.clone().as_ref(), "serve", &args)?;
        let mut page = None;
        let mut addresses: Vec<Multiaddr> = Vec::new();
        while page.is_none() {
            let line = process.line().await?;
            if let Some(rest) = line.strip_prefix("Open ") {
                page = rest.split('/').nth(2).map(str::to_owned);
            } else if let Some(address) = line.strip_prefix("  ") {
                addresses.push(address.parse()?);
            }
        }
        let http = page.context("no page was announced")?;
        self.http.clone_from(&http);
        self.listen = addresses.iter().map(listened).collect();
        Ok(Backbone { process, http, addresses })
    }

    /// Starts `barnraise join` with these arguments.
    ///
    /// # Errors
    /// Where the binary cannot be started.
    pub fn join(&mut self, args: &[&str]) -> Result<Joined> {
        let args: Vec<String> = ["join"].iter().chain(args).map(|&arg| arg.to_owned()).collect();
        Ok(Joined { process: self.process(None, "join", &args)? })
    }

    /// Likewise, on a host of its own.
    ///
    /// # Errors
    /// Where the binary cannot be started.
    pub fn join_from(&mut self, host: &Host, args: &[&str]) -> Result<Joined> {
        let args: Vec<String> = ["join"].iter().chain(args).map(|&arg| arg.to_owned()).collect();
        Ok(Joined { process: self.process(Some(host), "join", &args)? })
    }

    /// Starts a relay on `host` and waits until it listens.
    ///
    /// # Errors
    /// Where it does not come up; its log is in the error.
    pub async fn relay(&mut self, host: &Host) -> Result<Relay> {
        let config = self.folder.path().join("relay.toml");
        std::fs::write(&config, "[network]\nupnp = false\n")?;
        let args = ["relay".to_owned(), "--config".into(), config.display().to_string()];
        let mut process = self.process(Some(host), "relay", &args)?;
        let mut addresses: Vec<Multiaddr> = Vec::new();
        loop {
            let line = process.line().await?;
            match line.strip_prefix("  ") {
                Some(address) => addresses.push(address.parse()?),
                None if line.starts_with("The operator") => break,
                None => {}
            }
        }
        addresses.retain(|address| address.to_string().contains(&host.address));
        Ok(Relay { _process: process, addresses })
    }

    fn process(&mut self, host: Option<&Host>, name: &str, args: &[String]) -> Result<Process> {
        self.n_processes += 1;
        let log = self.folder.path().join(format!("{}-{name}.log", self.n_processes));
        let binary = artifacts::barnraise()?;
        let mut command = match host {
            None => Command::new(binary),
            Some(host) => {
                let [program, rest @ ..] = host.prefix();
                let mut command = Command::new(program);
                command.args(rest).arg(binary);
                command
            }
        };
        let mut child = command
            .args(args)
            .env("XDG_CACHE_HOME", cache()?)
            .env("RUST_LOG", "info")
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().context("no standard output")?;
        Ok(Process { child, output: BufReader::new(output).lines(), log })
    }
}

/// Kept between tests, in the target folder.
fn cache() -> Result<PathBuf> {
    let cache = artifacts::target_dir()?.join("test-cache");
    std::fs::create_dir_all(&cache)?;
    Ok(cache)
}

/// What was given to `--listen`: the address without what the node adds.
fn listened(address: &Multiaddr) -> String {
    let added = |part: &Protocol<'_>| matches!(part, Protocol::P2p(_) | Protocol::Certhash(_));
    address.iter().filter(|part| !added(part)).collect::<Multiaddr>().to_string()
}

/// A process with its output and its log; killed when dropped.
#[derive(Debug)]
struct Process {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Process {
    async fn line(&mut self) -> Result<String> {
        match tokio::time::timeout(HANG, self.output.next_line()).await {
            Ok(line) => line?.ok_or_else(|| self.error("it ended")),
            Err(_) => Err(self.error("it said nothing more")),
        }
    }

    fn signal(&self, name: &str) -> Result<()> {
        let id = self.child.id().context("the process has ended")?;
        let kill = std::process::Command::new("sh").args(["-c", &format!("kill -{name} {id}")]).status()?;
        ensure!(kill.success(), "kill -{name} {id}: {kill}");
        Ok(())
    }

    /// The rest of its output, and how it ended.
    async fn end(&mut self) -> Result<(String, ExitStatus)> {
        let mut text = String::new();
        let ended = async {
            while let Some(line) = self.output.next_line().await? {
                text.push_str(&line);
                text.push('\n');
            }
            self.child.wait().await
        };
        match tokio::time::timeout(HANG, ended).await {
            Ok(status) => Ok((text, status?)),
            Err(_) => Err(self.error("it did not end")),
        }
    }

    fn error(&self, what: &str) -> anyhow::Error {
        anyhow::anyhow!("{what}; its log ends with\n{}", tail(&self.log))
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// A running `barnraise serve`.
#[derive(Debug)]
pub struct Backbone {
    process: Process,
    http: String,
    addresses: Vec<Multiaddr>,
}

impl Backbone {
    /// Address of the page, without a slash at its end.
    pub fn page(&self) -> String {
        format!("http://{}", self.http)
    }

    /// Every address that it announced, peer id included.
    pub fn addresses(&self) -> &[Multiaddr] {
        &self.addresses
    }

    /// The TCP address, peer id included.
    ///
    /// # Errors
    /// Where it announced none.
    pub fn tcp(&self) -> Result<Multiaddr> {
        let is_tcp = |address: &&Multiaddr| {
            let parts: Vec<Protocol<'_>> = address.iter().collect();
            matches!(parts[..], [_, Protocol::Tcp(_), Protocol::P2p(_)])
        };
        self.addresses.iter().find(is_tcp).cloned().context("no TCP address was announced")
    }

    /// The address through a relay over QUIC, once there is one.
    ///
    /// # Errors
    /// Where none comes about.
    pub async fn circuit(&self) -> Result<String> {
        let circuit = async {
            loop {
                let addresses = self.status().await?.addresses;
                let is_circuit =
                    |address: &String| address.contains("/quic-v1/p2p/") && address.contains("/p2p-circuit/");
                match addresses.into_iter().find(is_circuit) {
                    Some(circuit) => return Ok(circuit),
                    // Nothing tells over HTTP that the addresses changed.
                    None => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        };
        match tokio::time::timeout(HANG, circuit).await {
            Ok(circuit) => circuit,
            Err(_) => Err(self.process.error("no relay took it in")),
        }
    }

    /// Everything that it wrote to its log so far.
    ///
    /// # Errors
    /// Where the log cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.process.log)?)
    }

    /// `GET /api/run`.
    ///
    /// # Errors
    /// Where there is no answer, or none that can be read.
    pub async fn status(&self) -> Result<RunStatus> {
        let mut stream = self.get("/api/run").await?;
        let mut text = String::new();
        tokio::time::timeout(HANG, stream.read_to_string(&mut text)).await??;
        let (_, body) = text.split_once("\r\n\r\n").context("an answer without a body")?;
        Ok(serde_json::from_str(body)?)
    }

    /// Listens to `/api/events` until `is_met`; `what` is named if that does not happen.
    ///
    /// # Errors
    /// Where the backbone ends or nothing of the kind happens.
    pub async fn wait_for(&self, what: &str, is_met: impl Fn(&Progress) -> bool) -> Result<Progress> {
        self.wait_for_event(what, |_, progress| is_met(progress)).await
    }

    /// `is_met` is told whether the event was published after the question.
    async fn wait_for_event(&self, what: &str, is_met: impl Fn(bool, &Progress) -> bool) -> Result<Progress> {
        let events = async {
            let mut lines = BufReader::new(self.get("/api/events").await?).lines();
            // The first one says what was published last, before it was asked for.
            let mut is_new = false;
            while let Some(line) = lines.next_line().await? {
                let Some(data) = line.strip_prefix("data:") else { continue };
                let live: LiveProgress = serde_json::from_str(data)?;
                if is_met(is_new, &live.progress) {
                    return Ok(live.progress);
                }
                is_new = true;
            }
            bail!("the events ended")
        };
        match tokio::time::timeout(HANG, events).await {
            Ok(result) => result.with_context(|| self.process.error(what).to_string()),
            Err(_) => Err(self.process.error(&format!("{what}: it did not happen"))),
        }
    }

    /// Waits until the run is at `epoch` or beyond.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub async fn wait_for_epoch(&self, epoch: u64) -> Result<Progress> {
        self.wait_for(&format!("epoch {epoch}"), |progress| progress.epoch >= epoch).await
    }

    /// Samples that the backbone has counted, steps and open round together, once nobody contributes.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub async fn samples_counted(&self) -> Result<u64> {
        let is_alone = |is_new, progress: &Progress| is_new && progress.n_contributors == 0;
        let alone = self.wait_for_event("everybody left", is_alone).await?;
        let status = self.status().await?;
        let stepped = status.history.last().map_or(0, |point| point.n_samples_total);
        ensure!(alone.epoch == status.progress.epoch, "the run went on with nobody contributing");
        Ok(stepped + status.progress.n_samples)
    }

    /// SIGTERM, and how it ended.
    ///
    /// # Errors
    /// Where it does not end.
    pub async fn terminate(mut self) -> Result<ExitStatus> {
        self.process.signal("TERM")?;
        Ok(self.process.end().await?.1)
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// Where it had ended before.
    pub async fn kill(mut self) -> Result<()> {
        self.process.signal("KILL")?;
        self.process.end().await?;
        Ok(())
    }

    /// HTTP/1.0, whose answers end with the connection: nothing to unpack.
    async fn get(&self, path: &str) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.http).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {}\r\n\r\n", self.http).as_bytes()).await?;
        Ok(stream)
    }
}

/// A running `barnraise relay`.
#[derive(Debug)]
pub struct Relay {
    _process: Process,
    addresses: Vec<Multiaddr>,
}

impl Relay {
    /// The QUIC address, peer id included.
    ///
    /// # Errors
    /// Where it announced none.
    pub fn quic(&self) -> Result<&Multiaddr> {
        let is_quic = |address: &&Multiaddr| {
            let parts: Vec<Protocol<'_>> = address.iter().collect();
            matches!(parts[..], [_, Protocol::Udp(_), Protocol::QuicV1, Protocol::P2p(_)])
        };
        self.addresses.iter().find(is_quic).context("no QUIC address was announced")
    }
}

/// A running `barnraise join`.
#[derive(Debug)]
pub struct Joined {
    process: Process,
}

/// How a `barnraise join` ended.
#[derive(Debug)]
pub struct Given {
    /// Of the process.
    pub status: ExitStatus,
    /// Samples that it said were accepted; 0 where it said nothing.
    pub n_samples: u64,
    /// The end of its log.
    pub log: String,
}

impl Joined {
    /// Ctrl-C.
    ///
    /// # Errors
    /// Where it had ended before.
    pub fn interrupt(&self) -> Result<()> {
        self.process.signal("INT")
    }

    /// What it logged so far.
    ///
    /// # Errors
    /// Where the log cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.process.log)?)
    }

    /// Waits until it has logged `text`.
    ///
    /// # Errors
    /// Where it never does.
    pub async fn wait_for_log(&self, text: &str) -> Result<()> {
        let logged = async {
            while !self.log()?.contains(text) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        };
        match tokio::time::timeout(HANG, logged).await {
            Ok(logged) => logged,
            Err(_) => Err(self.process.error(&format!("it never logged {text:?}"))),
        }
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// Where it does not end.
    pub async fn end(mut self) -> Result<Given> {
        let (output, status) = self.process.end().await?;
        let said = output.split_once(" samples were accepted").map_or("0", |(n_samples, _)| n_samples);
        let n_samples = said.parse().with_context(|| format!("what was given: {output:?}"))?;
        Ok(Given { status, n_samples, log: tail(&self.process.log) })
    }
}

fn set_folder(config: &mut Table, section: &str, key: &str, folder: &Path) {
    let section = config.entry(section).or_insert_with(|| Table::new().into());
    if let Some(section) = section.as_table_mut() {
        section.insert(key.into(), folder.display().to_string().into());
    }
}
