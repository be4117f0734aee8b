//! The real `barnraise` binary for the tests: a backbone that can be stopped, killed and started again
//! on the same ports, and native peers.
//!
//! Tests wait for an event of the backbone or the end of a process; a limit only turns a hang
//! into an error with the log. Nothing outlives its handle, not even after a panic.

mod running;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use toml::Table;

pub use self::running::{BackboneProcess, JoinOutcome, PeerProcess, RelayProcess, metric, status_at};
use crate::artifacts;
use crate::lan::LanHost;

/// After this long a test hangs: everything waited for here takes seconds at most.
pub const HANG: Duration = Duration::from_secs(180);
/// What a process says before the address of its operator's page.
const OPERATOR_PAGE: &str = "The operator's page: ";
/// What a process says whose port another one has, of this machine.
const PORT_TAKEN: &str = "Address already in use";
/// Lines of a log that an error shows.
const LOG_LINES: usize = 40;

/// The folder, configuration and ports of one run; it outlives the processes of its backbone.
#[derive(Debug)]
pub struct TestRun {
    folder: TempDir,
    web_root: PathBuf,
    /// Configurations of further runs in the same process.
    further_configs: Vec<PathBuf>,
    /// The process has the runs of this folder, and no other.
    run_folder: Option<PathBuf>,
    /// Address of the page; known after the first start, and used again.
    http: String,
    listen: Vec<String>,
    host: Option<LanHost>,
    log_level: &'static str,
    /// Environment of all processes, in addition to the test's own.
    environment: Vec<(String, String)>,
    n_processes: u32,
}

impl TestRun {
    /// A run configured by `sections`: TOML as in `run.example.toml`, without the folders. Nothing is recomputed unless
    /// they say so, so that tests of other things contribute what they like; [`Self::as_shipped`] is not so.
    ///
    /// # Errors
    /// Where the folder cannot be made.
    pub fn new(sections: &str) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("barnraise-test-").tempdir()?;
        let mut config: Table = sections.parse()?;
        recompute_nothing(&mut config);
        // Shards are the same in all tests: cut once, kept between tests.
        set_folder(&mut config, "data", "cache", &cache()?);
        set_folder(&mut config, "storage", "folder", &folder.path().join("run"));
        std::fs::write(folder.path().join("run.toml"), config.to_string())?;
        Ok(Self {
            web_root: folder.path().join("no-page"),
            further_configs: Vec::new(),
            run_folder: None,
            folder,
            http: "127.0.0.1:0".into(),
            listen: vec!["/ip4/127.0.0.1/tcp/0".into(), "/ip4/127.0.0.1/udp/0/quic-v1/webtransport".into()],
            host: None,
            log_level: "info",
            environment: Vec::new(),
            n_processes: 0,
        })
    }

    /// A run as its operator gets it who changes nothing, but for `sections`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn as_shipped(sections: &str) -> Result<Self> {
        let test_run = Self::new(sections)?;
        test_run.configure(recompute_by_default)?;
        Ok(test_run)
    }

    /// Adds a run to the process of the backbone, configured as this one is; where its configuration is.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn add_run(&mut self, sections: &str) -> Result<String> {
        let name = format!("beside-{}", self.further_configs.len());
        let file = self.folder.path().join(format!("{name}.toml"));
        self.write_config(&file, &name, sections)?;
        self.further_configs.push(file.clone());
        Ok(file.display().to_string())
    }

    /// The process of the backbone has the runs of a folder, which is empty.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn with_run_folder(mut self) -> Result<Self> {
        let folder = self.folder.path().join("runs");
        std::fs::create_dir(&folder)?;
        self.run_folder = Some(folder);
        Ok(self)
    }

    /// Writes the file of a run into the folder of runs, or again; where it is.
    ///
    /// # Errors
    /// Where there is no folder, or the file cannot be written.
    pub fn write_run(&self, name: &str, sections: &str) -> Result<PathBuf> {
        let folder = self.run_folder.as_ref().context("there is no folder of runs")?;
        let file = folder.join(format!("{name}.toml"));
        self.write_config(&file, name, sections)?;
        Ok(file)
    }

    fn write_config(&self, file: &Path, name: &str, sections: &str) -> Result<()> {
        let mut config: Table = sections.parse()?;
        recompute_nothing(&mut config);
        set_folder(&mut config, "data", "cache", &cache()?);
        set_folder(&mut config, "storage", "folder", &self.folder.path().join(name));
        Ok(std::fs::write(file, config.to_string())?)
    }

    /// Changes the configuration of the backbone that is started next.
    ///
    /// # Errors
    /// Where the file cannot be read or written.
    pub fn configure(&self, change: impl FnOnce(&mut Table)) -> Result<()> {
        let file = self.folder.path().join("run.toml");
        let mut config: Table = std::fs::read_to_string(&file)?.parse()?;
        change(&mut config);
        Ok(std::fs::write(file, config.to_string())?)
    }

    /// Adds other aggregators of the same run to the configuration.
    ///
    /// # Errors
    /// As [`Self::configure`].
    pub fn aggregate_with(&self, peers: &[String]) -> Result<()> {
        self.configure(|config| {
            let section = config.entry("aggregators").or_insert_with(|| Table::new().into());
            if let Some(section) = section.as_table_mut() {
                section.insert("peers".into(), peers.to_vec().into());
            }
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
    pub fn with_host(mut self, host: &LanHost, window: &str) -> Self {
        self.http = format!("{window}:0");
        self.listen = vec![
            format!("/ip4/{}/udp/4002/quic-v1", host.address),
            format!("/ip4/{}/tcp/4001", host.address),
        ];
        self.host = Some(host.clone());
        // Others can reach it.
        let _ = self.configure(recompute_by_default);
        self
    }

    /// All processes find these in their environment.
    #[must_use]
    pub fn with_environment(mut self, variables: &[(String, String)]) -> Self {
        self.environment.extend_from_slice(variables);
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

    /// The next backbone listens on other ports, and serves its page on another one too.
    ///
    /// # Errors
    /// Never, unless an address is none.
    pub fn on_other_ports(&mut self) -> Result<()> {
        let free = |address: &String| -> Result<String> {
            let address: Multiaddr = address.parse()?;
            let parts = address.iter().map(|part| match part {
                Protocol::Tcp(_) => Protocol::Tcp(0),
                Protocol::Udp(_) => Protocol::Udp(0),
                other => other,
            });
            Ok(parts.collect::<Multiaddr>().to_string())
        };
        self.listen = self.listen.iter().map(free).collect::<Result<_>>()?;
        self.http = "127.0.0.1:0".into();
        Ok(())
    }

    /// What its processes log, as `RUST_LOG` has it.
    #[must_use]
    pub fn with_log(mut self, level: &'static str) -> Self {
        self.log_level = level;
        self
    }

    /// What all processes of this run logged so far, those that have ended among them.
    ///
    /// # Errors
    /// Where a log cannot be read.
    pub fn logs(&self) -> Result<String> {
        let mut text = String::new();
        for entry in std::fs::read_dir(self.folder.path())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                text.push_str(&String::from_utf8_lossy(&std::fs::read(path)?));
            }
        }
        Ok(text)
    }

    /// The end of the log of the newest process.
    pub fn newest_log(&self) -> String {
        let of_newest = format!("{}-", self.n_processes);
        let files = std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten();
        let newest = files
            .map(|entry| entry.path())
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&of_newest)));
        newest.map_or_else(String::new, |log| tail(&log))
    }

    /// Keeps the folder on disk, for inspection.
    pub fn keep(self) -> PathBuf {
        self.folder.keep()
    }

    /// The folder with the configuration.
    pub fn folder(&self) -> &Path {
        self.folder.path()
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
        let config = self.folder.path().join("run.toml").display().to_string();
        self.run(&[args, &["--config", &config]].concat()).await
    }

    /// Runs `barnraise` with these arguments and no others until it ends; what it printed.
    ///
    /// # Errors
    /// Where it fails; its log is in the error.
    pub async fn run(&mut self, args: &[&str]) -> Result<String> {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let mut process = self.process(None, "command", &args)?;
        let (output, status) = process.end().await?;
        ensure!(status.success(), process.error(&format!("{args:?}: {status}")));
        Ok(output)
    }

    /// Where the backbone keeps checkpoints, journal and identity.
    pub fn storage(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Starts the backbone and waits until it listens: on free ports the first time, then on the same; of several runs
    /// only the page is. Where another program has got one of them meanwhile it waits for its end.
    ///
    /// # Errors
    /// Where it does not come up; its log is in the error.
    pub async fn backbone(&mut self) -> Result<BackboneProcess> {
        let until = Instant::now() + HANG;
        let backbone = loop {
            match BackboneProcess::listening(self.serve()?).await {
                Err(error) if error.to_string().contains(PORT_TAKEN) && Instant::now() < until => {
                    // Nothing tells that a port is free.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                started => break started?,
            }
        };
        self.http.clone_from(&backbone.http);
        // Several runs cannot share them.
        if self.further_configs.is_empty() && self.run_folder.is_none() {
            self.listen = backbone.addresses.iter().map(listened).collect();
        }
        Ok(backbone)
    }

    /// Starts the backbone and kills it so soon, wherever it is by then.
    ///
    /// # Errors
    /// It ended before by itself.
    pub async fn cut_start(&mut self, after: Duration) -> Result<()> {
        let mut process = self.serve()?;
        tokio::time::sleep(after).await;
        process.signal("KILL")?;
        process.end().await?;
        Ok(())
    }

    fn serve(&mut self) -> Result<Process> {
        let mut args = vec!["serve".to_owned(), "--http".into(), self.http.clone()];
        let first = self.run_folder.clone().unwrap_or_else(|| self.folder.path().join("run.toml"));
        for path in [&first].into_iter().chain(&self.further_configs) {
            args.extend(["--config".into(), path.display().to_string()]);
        }
        args.extend(["--web-root".into(), self.web_root.display().to_string()]);
        for address in &self.listen {
            args.extend(["--listen".into(), address.clone()]);
        }
        self.process(self.host.clone().as_ref(), "serve", &args)
    }

    /// Starts `barnraise join` with these arguments.
    ///
    /// # Errors
    /// Where the binary cannot be started.
    pub fn join(&mut self, args: &[&str]) -> Result<PeerProcess> {
        let args: Vec<String> = ["join"].iter().chain(args).map(|&arg| arg.to_owned()).collect();
        Ok(PeerProcess { process: self.process(None, "join", &args)? })
    }

    /// Starts `barnraise experts` with these arguments, and with a folder of this name for its experts.
    ///
    /// # Errors
    /// Where the binary cannot be started.
    pub fn host_experts(&mut self, name: &str, args: &[&str]) -> Result<PeerProcess> {
        let folder = self.folder.path().join(name).display().to_string();
        let args = ["experts"].iter().chain(args).map(|&arg| arg.to_owned());
        let args: Vec<String> = args.chain(["--folder".to_owned(), folder]).collect();
        Ok(PeerProcess { process: self.process(None, "experts", &args)? })
    }

    /// Likewise, on a host of its own.
    ///
    /// # Errors
    /// Where the binary cannot be started.
    pub fn join_from(&mut self, host: &LanHost, args: &[&str]) -> Result<PeerProcess> {
        let args: Vec<String> = ["join"].iter().chain(args).map(|&arg| arg.to_owned()).collect();
        Ok(PeerProcess { process: self.process(Some(host), "join", &args)? })
    }

    /// Starts a relay on `host` and waits until it listens.
    ///
    /// # Errors
    /// Where it does not come up; its log is in the error.
    pub async fn relay(&mut self, host: &LanHost) -> Result<RelayProcess> {
        let mut relay = self.start_relay(Some(host), "[network]\nupnp = false\n").await?;
        relay.addresses.retain(|address| address.to_string().contains(&host.address));
        Ok(relay)
    }

    /// Starts a relay on this machine, configured by `sections`: TOML as in `relay.example.toml`, without the
    /// folder.
    ///
    /// # Errors
    /// Where it does not come up; its log is in the error.
    pub async fn relay_here(&mut self, sections: &str) -> Result<RelayProcess> {
        self.start_relay(None, sections).await
    }

    async fn start_relay(&mut self, host: Option<&LanHost>, sections: &str) -> Result<RelayProcess> {
        let config = self.folder.path().join("relay.toml");
        std::fs::write(&config, sections)?;
        let args = ["relay".to_owned(), "--config".into(), config.display().to_string()];
        let mut process = self.process(host, "relay", &args)?;
        let mut addresses: Vec<Multiaddr> = Vec::new();
        let operator = loop {
            let line = process.line().await?;
            if let Some(address) = line.strip_prefix("  ") {
                addresses.push(address.parse()?);
            } else if let Some(rest) = line.strip_prefix(OPERATOR_PAGE) {
                break host_of(rest).context("no operator's page was announced")?;
            }
        };
        Ok(RelayProcess { process, addresses, operator })
    }

    fn process(&mut self, host: Option<&LanHost>, name: &str, args: &[String]) -> Result<Process> {
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
        command
            .args(args)
            .env("XDG_CACHE_HOME", cache()?)
            .env("RUST_LOG", self.log_level)
            .env("RUST_BACKTRACE", "0")
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        Process::start(command, log)
    }
}

/// Host and port of an address like `http://host:port/…`.
fn host_of(url: &str) -> Option<String> {
    url.split('/').nth(2).map(str::to_owned)
}

/// Kept between tests, in the target folder.
pub(crate) fn cache() -> Result<PathBuf> {
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
pub(crate) struct Process {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Process {
    /// Starts a command that writes its log to a new file.
    pub(crate) fn start(mut command: Command, log: PathBuf) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut child = command.kill_on_drop(true).spawn()?;
        let output = child.stdout.take().context("no standard output")?;
        Ok(Self { child, output: BufReader::new(output).lines(), log })
    }

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
    pub(crate) async fn end(&mut self) -> Result<(String, ExitStatus)> {
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

    pub(crate) fn error(&self, what: &str) -> anyhow::Error {
        anyhow::anyhow!("{what}; its log ends with\n{}", tail(&self.log))
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// Configures a run for tests that are not about recomputation.
fn recompute_nothing(config: &mut Table) {
    let scheme = config.entry("scheme").or_insert_with(|| Table::new().into());
    // Other schemes recompute nothing.
    let Some(scheme) = scheme.as_table_mut().filter(|scheme| !scheme.contains_key("sampled")) else { return };
    let scheme = scheme.entry("synchronous").or_insert_with(|| Table::new().into());
    if let Some(scheme) = scheme.as_table_mut()
        && !scheme.contains_key("recomputation")
    {
        let off = Table::from_iter([("share".to_owned(), 0.0.into()), ("tolerance".to_owned(), 0.05.into())]);
        scheme.insert("recomputation".into(), off.into());
    }
}

/// Takes [`recompute_nothing`] back.
fn recompute_by_default(config: &mut Table) {
    let scheme = config.get_mut("scheme").and_then(|scheme| scheme.get_mut("synchronous"));
    if let Some(scheme) = scheme.and_then(toml::Value::as_table_mut) {
        let is_off = scheme.get("recomputation").and_then(|section| section.get("share"))
            == Some(&toml::Value::Float(0.0));
        if is_off {
            scheme.remove("recomputation");
        }
    }
}

fn set_folder(config: &mut Table, section: &str, key: &str, folder: &Path) {
    let section = config.entry(section).or_insert_with(|| Table::new().into());
    if let Some(section) = section.as_table_mut() {
        section.insert(key.into(), folder.display().to_string().into());
    }
}
