//! What runs: a backbone, a relay, a native peer, and what a test asks them over HTTP and by signals.

use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use barnraise_protocol::api::{Contributions, LiveProgress, RunStatus, Runs};
use barnraise_protocol::contribute::RunProgress;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::{HANG, OPERATOR_PAGE, Process, host_of, tail};

/// A running `barnraise serve`.
#[derive(Debug)]
pub struct BackboneProcess {
    pub(super) process: Process,
    pub(super) http: String,
    /// Where the run that is asked is: nothing, or `/run/<id>`.
    pub(super) base: String,
    pub(super) operator: Option<String>,
    pub(super) addresses: Vec<Multiaddr>,
}

impl BackboneProcess {
    /// A backbone that was started, once it has announced where it is.
    pub(crate) async fn listening(mut process: Process) -> Result<Self> {
        let (mut page, mut operator) = (None, None);
        let mut addresses: Vec<Multiaddr> = Vec::new();
        while page.is_none() {
            let line = process.line().await?;
            if let Some(rest) = line.strip_prefix("Open ") {
                page = host_of(rest);
            } else if let Some(rest) = line.strip_prefix(OPERATOR_PAGE) {
                operator = host_of(rest);
            } else if let Some(address) = line.strip_prefix("  ") {
                addresses.push(address.parse()?);
            }
        }
        let http = page.context("no page was announced")?;
        Ok(Self { process, http, base: String::new(), operator, addresses })
    }

    /// Address of the page, without a slash at its end.
    pub fn page(&self) -> String {
        format!("http://{}{}", self.http, self.base)
    }

    /// From now on what is asked is asked of this run, one of several.
    pub fn look_at(&mut self, run_id: &str) {
        self.base = format!("/run/{run_id}");
    }

    /// The status and the body of the answer to `GET path`.
    ///
    /// # Errors
    /// Where there is no answer.
    pub async fn answer(&self, path: &str) -> Result<(u16, String)> {
        let mut stream = get(&self.http, path).await?;
        let mut text = String::new();
        tokio::time::timeout(HANG, stream.read_to_string(&mut text)).await??;
        let (head, body) = text.split_once("\r\n\r\n").context("an answer without a body")?;
        let status = head.split(' ').nth(1).context("an answer without a status")?;
        Ok((status.parse()?, body.to_owned()))
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
        tcp_of(&self.addresses).cloned()
    }

    /// An address of it through a relay, once one took it in.
    ///
    /// # Errors
    /// Where none does.
    pub async fn circuit(&self) -> Result<String> {
        let is_circuit =
            |address: &str| address.contains("/quic-v1/p2p/") && address.contains("/p2p-circuit/");
        self.wait_for_address("through a relay", is_circuit).await
    }

    /// The first of its addresses that is as wanted, once there is one.
    ///
    /// # Errors
    /// Where there never is.
    pub async fn wait_for_address(&self, what: &str, is_wanted: impl Fn(&str) -> bool) -> Result<String> {
        let found = async {
            loop {
                let addresses = self.status().await?.addresses;
                match addresses.into_iter().find(|address| is_wanted(address)) {
                    Some(address) => return Ok(address),
                    // Nothing tells over HTTP that the addresses changed.
                    None => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        };
        match tokio::time::timeout(HANG, found).await {
            Ok(found) => found,
            Err(_) => Err(self.process.error(&format!("it has no address {what}"))),
        }
    }

    /// Waits until these runs are listed, in this order.
    ///
    /// # Errors
    /// Where they never are.
    pub async fn wait_for_runs(&self, ids: &[&str]) -> Result<()> {
        let listed = async {
            loop {
                let Runs { runs, .. } = serde_json::from_str(&self.answer("/api/runs").await?.1)?;
                if runs.iter().map(|run| run.id.as_str()).eq(ids.iter().copied()) {
                    return anyhow::Ok(());
                }
                // Nothing tells over HTTP that a run came or went.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        match tokio::time::timeout(HANG, listed).await {
            Ok(listed) => listed,
            Err(_) => Err(self.process.error(&format!("its runs are not {ids:?}"))),
        }
    }

    /// Waits until its log has this.
    ///
    /// # Errors
    /// Where it never has.
    pub async fn wait_for_log(&self, part: &str) -> Result<()> {
        let logged = async {
            while !self.log()?.contains(part) {
                // A file tells nobody that it grew.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(HANG, logged).await {
            Ok(logged) => logged,
            Err(_) => Err(self.process.error(&format!("it never logged {part:?}"))),
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
        Ok(serde_json::from_str(&read(&self.http, &format!("{}/api/run", self.base)).await?)?)
    }

    /// `GET /api/contributions`, once it says that `n_samples` were accepted.
    ///
    /// # Errors
    /// Where it never does.
    pub async fn contributions(&self, n_samples: u64) -> Result<Contributions> {
        let recorded = async {
            loop {
                let text = read(&self.http, &format!("{}/api/contributions", self.base)).await?;
                let contributions: Contributions = serde_json::from_str(&text).context(text)?;
                if contributions.totals.n_samples == n_samples {
                    return Ok(contributions);
                }
                // Nothing tells over HTTP that something was recorded.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        match tokio::time::timeout(HANG, recorded).await {
            Ok(recorded) => recorded,
            Err(_) => Err(self.process.error(&format!("{n_samples} samples were not recorded"))),
        }
    }

    /// Samples that `GET /api/contributions` says were accepted here, as far as they are recorded.
    ///
    /// # Errors
    /// No answer, or another one.
    pub async fn samples_credited(&self) -> Result<u64> {
        let text = read(&self.http, &format!("{}/api/contributions", self.base)).await?;
        Ok(serde_json::from_str::<Contributions>(&text).context(text)?.totals.n_samples)
    }

    /// The peer id of whom it has the most samples of, if anybody ever contributed.
    ///
    /// # Errors
    /// No answer, or another one.
    pub async fn leader(&self) -> Result<Option<String>> {
        let text = read(&self.http, &format!("{}/api/contributions", self.base)).await?;
        let contributions: Contributions = serde_json::from_str(&text).context(text)?;
        Ok(contributions.contributors.into_iter().next().map(|first| first.peer))
    }

    /// `GET /metrics` of the operator's page, with `[network] operator = "127.0.0.1:0"` in the configuration.
    ///
    /// # Errors
    /// Where there is no such page, or no answer.
    pub async fn metrics(&self) -> Result<String> {
        let operator = self.operator.as_deref().context("this backbone has no operator's page")?;
        read(operator, "/metrics").await
    }

    /// Address of the operator's page, without a slash at its end.
    ///
    /// # Errors
    /// Where there is no such page.
    pub fn operator(&self) -> Result<String> {
        let operator = self.operator.as_deref().context("this backbone has no operator's page")?;
        Ok(format!("http://{operator}"))
    }

    /// `GET /readyz` of the page and of the operator's page.
    ///
    /// # Errors
    /// Where one of them does not answer.
    pub async fn ready(&self) -> Result<[String; 2]> {
        let operator = self.operator.as_deref().context("this backbone has no operator's page")?;
        Ok([read(&self.http, &format!("{}/readyz", self.base)).await?, read(operator, "/readyz").await?])
    }

    /// The number of the process.
    ///
    /// # Errors
    /// Where it has ended.
    pub fn pid(&self) -> Result<u32> {
        self.process.child.id().context("the process has ended")
    }

    /// Listens to `/api/events` until `is_met`; `what` is named if that does not happen.
    ///
    /// # Errors
    /// Where the backbone ends or nothing of the kind happens.
    pub async fn wait_for(&self, what: &str, is_met: impl Fn(&RunProgress) -> bool) -> Result<RunProgress> {
        self.wait_for_event(what, |_, progress| is_met(progress)).await
    }

    /// `is_met` is told whether the event was published after the question.
    async fn wait_for_event(
        &self,
        what: &str,
        is_met: impl Fn(bool, &RunProgress) -> bool,
    ) -> Result<RunProgress> {
        let events = async {
            let mut lines =
                BufReader::new(get(&self.http, &format!("{}/api/events", self.base)).await?).lines();
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
    pub async fn wait_for_epoch(&self, epoch: u64) -> Result<RunProgress> {
        self.wait_for(&format!("epoch {epoch}"), |progress| progress.epoch >= epoch).await
    }

    /// Samples that the backbone has counted, steps and open round together, once nobody contributes.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub async fn samples_counted(&self) -> Result<u64> {
        let is_alone = |is_new, progress: &RunProgress| is_new && progress.n_contributors == 0;
        let alone = self.wait_for_event("everybody left", is_alone).await?;
        let status = self.status().await?;
        let stepped = status.history.last().map_or(0, |point| point.n_samples_total);
        // A step of what they gave last may have been under way.
        let is_at_rest = status.progress.epoch <= alone.epoch + 1;
        ensure!(is_at_rest, "the run went on with nobody contributing");
        Ok(stepped + status.progress.n_samples)
    }

    /// `GET /api/run` once nobody contributes and no step is under way: the epoch stays as it is.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub async fn status_at_rest(&self) -> Result<RunStatus> {
        // Samples that a step is being made of are shown until it is made.
        let is_at_rest = |is_new, progress: &RunProgress| {
            let is_stepping = progress.n_samples >= u64::from(progress.target_batch_size);
            is_new && progress.n_contributors == 0 && !is_stepping
        };
        self.wait_for_event("a run at rest", is_at_rest).await?;
        self.status().await
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
}

/// HTTP/1.0, whose answers end with the connection: nothing to unpack.
async fn get(host: &str, path: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(host).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {host}\r\n\r\n").as_bytes()).await?;
    Ok(stream)
}

/// The body of an answer that ends.
async fn read(host: &str, path: &str) -> Result<String> {
    let mut stream = get(host, path).await?;
    let mut text = String::new();
    tokio::time::timeout(HANG, stream.read_to_string(&mut text)).await??;
    let (_, body) = text.split_once("\r\n\r\n").context("an answer without a body")?;
    Ok(body.to_owned())
}

/// The status of a run as the page at this address, with a slash at its end, is told.
///
/// # Errors
/// Where nothing is there that answers with one.
pub async fn status_at(page: &str) -> Result<RunStatus> {
    let host = page.strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
    let status = read(host.context("http:// and a slash at the end are wanted")?, "/api/run").await?;
    Ok(serde_json::from_str(&status)?)
}

/// The value of a metric, its labels included in `name`; 0 where it is not there yet.
///
/// # Errors
/// Where the value is no number.
pub fn metric(metrics: &str, name: &str) -> Result<f64> {
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(Ok(0.0), |value| value.parse().with_context(|| format!("{name} {value}")))
}

fn tcp_of(addresses: &[Multiaddr]) -> Result<&Multiaddr> {
    let is_tcp = |address: &&Multiaddr| {
        let parts: Vec<Protocol<'_>> = address.iter().collect();
        matches!(parts[..], [_, Protocol::Tcp(_), Protocol::P2p(_)])
    };
    addresses.iter().find(is_tcp).context("no TCP address was announced")
}

/// A running `barnraise relay`.
#[derive(Debug)]
pub struct RelayProcess {
    pub(super) process: Process,
    pub(super) addresses: Vec<Multiaddr>,
    pub(super) operator: String,
}

impl RelayProcess {
    /// Every address that it announced, peer id included.
    pub fn addresses(&self) -> &[Multiaddr] {
        &self.addresses
    }

    /// `GET /metrics` of the operator's page.
    ///
    /// # Errors
    /// Where there is no answer.
    pub async fn metrics(&self) -> Result<String> {
        read(&self.operator, "/metrics").await
    }

    /// The number of the process.
    ///
    /// # Errors
    /// Where it has ended.
    pub fn pid(&self) -> Result<u32> {
        self.process.child.id().context("the process has ended")
    }

    /// The TCP address, peer id included.
    ///
    /// # Errors
    /// Where it announced none.
    pub fn tcp(&self) -> Result<&Multiaddr> {
        tcp_of(&self.addresses)
    }

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
pub struct PeerProcess {
    pub(crate) process: Process,
}

/// How a `barnraise join` ended.
#[derive(Debug)]
pub struct JoinOutcome {
    /// Of the process.
    pub status: ExitStatus,
    /// Samples that it said were accepted; 0 where it said nothing.
    pub n_samples: u64,
    /// Samples of which it said that they may count, unanswered.
    pub n_unanswered: u64,
    /// What it said at the end.
    pub said: String,
    /// The end of its log.
    pub log: String,
}

impl PeerProcess {
    /// Number of the process.
    ///
    /// # Errors
    /// Where it has ended.
    pub fn pid(&self) -> Result<u32> {
        self.process.child.id().context("the process has ended")
    }

    /// What a terminal sends that is closed; Ctrl-C where that is ignored, as under `nohup`.
    ///
    /// # Errors
    /// Where it had ended before.
    pub fn hang_up(&self) -> Result<()> {
        self.process.signal(if barnraise_relay::signals::hangup_is_ignored() { "INT" } else { "HUP" })
    }

    /// Ctrl-C.
    ///
    /// # Errors
    /// Where it had ended before.
    pub fn interrupt(&self) -> Result<()> {
        self.process.signal("INT")
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
        self.wait_for_log_where(text, |log| log.contains(text)).await
    }

    /// Waits until its log is as wanted.
    ///
    /// # Errors
    /// It hangs without that.
    pub async fn wait_for_log_where(&self, wanted: &str, is_wanted: impl Fn(&str) -> bool) -> Result<()> {
        let logged = async {
            while !is_wanted(&self.log()?) {
                // A file tells nobody that it grew.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        };
        match tokio::time::timeout(HANG, logged).await {
            Ok(logged) => logged,
            Err(_) => Err(self.process.error(&format!("it never logged {wanted:?}"))),
        }
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// Where it does not end.
    pub async fn end(mut self) -> Result<JoinOutcome> {
        let (output, status) = self.process.end().await?;
        let said = output.split_once(" samples were accepted").map_or("0", |(n_samples, _)| n_samples);
        let n_samples = said.parse().with_context(|| format!("what was given: {output:?}"))?;
        let unanswered = output.split_once(" samples had no answer").map_or("0", |(before, _)| before);
        let unanswered = unanswered.rsplit(' ').next().unwrap_or_default();
        let n_unanswered = unanswered.parse().with_context(|| format!("what had no answer: {output:?}"))?;
        Ok(JoinOutcome { status, n_samples, n_unanswered, said: output, log: tail(&self.process.log) })
    }
}
