//! `barnraise serve`: a backbone for each configuration, and one HTTP listener for the pages of all.
//!
//! Runs that are named on the command line start one after the other, so that they do not fetch the same data at once.
//! The page is served once all are mounted, and no run makes a step before. The end of one run ends all. The runs of a
//! folder start and end with its files, each by itself ([`folder`]).

mod args;
pub mod conflicts;
mod folder;

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use barnraise_protocol::access::AccessMode;
use barnraise_relay::Node;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use self::args::{RunFolder, RunSource, ServeArgs};

use crate::config::{NetworkSection, RunConfig, SchemeSection};
use crate::host::page::PageSource;
use crate::host::run::{BackboneAddresses, Mounted, OpenedRun, RunSurroundings};
use crate::host::site::{self, Serving, Site};
use crate::peer;
use crate::scheme::{sampled, synchronous};

/// Longest wait of a shutdown for HTTP clients.
const GOODBYE_MAX: Duration = Duration::from_secs(3);
/// Stack of a run's thread.
const STACK_BYTES: usize = 8 << 20;

/// Addresses at which the process listens.
#[derive(Debug, Clone)]
pub struct ServingAddresses {
    /// The page.
    pub http: SocketAddr,
    /// Each run that was named, in the order of the configurations.
    pub runs: Vec<BackboneAddresses>,
}

/// Serves until `shutdown` is cancelled; `listening` receives the addresses once everything is up.
///
/// # Errors
/// The page cannot be served. Of runs that were named: they conflict, or one of them failed.
pub async fn serve(
    source: RunSource,
    page: PageSource,
    listening: oneshot::Sender<ServingAddresses>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let process = Process::new(page, shutdown);
    match source {
        RunSource::Named(configs) => serve_named(process, configs, listening).await,
        RunSource::Folder(runs) => folder::serve(process, &runs, listening).await,
    }
}

type Running = FuturesUnordered<Pin<Box<dyn Future<Output = anyhow::Result<()>>>>>;

async fn serve_named(
    process: Process,
    configs: Vec<RunConfig>,
    listening: oneshot::Sender<ServingAddresses>,
) -> anyhow::Result<()> {
    conflicts::check(&configs)?;
    let network = configs.first().context("no run was asked for")?.network.clone();
    let is_alone = configs.len() == 1;
    let mut running = Running::new();
    let (mut first, mut all_begun) = (None, Vec::new());
    for config in configs {
        warn_of(&config);
        if !is_alone {
            warn_of_invitations(&config);
        }
        let (mounting, mounted) = oneshot::channel();
        let (beginning, begun) = oneshot::channel();
        // The end of one run means that of the others, which is decided below.
        let stop = process.shutdown.child_token();
        running.push(Box::pin(process.host(config, stop, RunMilestones { mounting, beginning })));
        let node = heard(&mut running, mounted).await?;
        first.get_or_insert(node);
        all_begun.push(begun);
    }
    let (http, visitors) = process.open(&network, first).await?;
    let mut runs = Vec::new();
    for begun in all_begun {
        runs.push(heard(&mut running, begun).await?);
    }
    // The receiver may be dropped.
    let _ = listening.send(ServingAddresses { http, runs });
    let mut ended = Ok(());
    while let Some(run) = running.next().await {
        process.shutdown.cancel();
        ended = ended.and(run);
    }
    say_goodbye(visitors).await?;
    ended
}

/// The value that a run sends, or the error with which a run ended before.
async fn heard<T>(running: &mut Running, said: oneshot::Receiver<T>) -> anyhow::Result<T> {
    tokio::select! {
        biased;
        Ok(said) = said => Ok(said),
        Some(ended) = running.next() => {
            ended?;
            bail!("a run ended before all had begun")
        }
    }
}

/// What `barnraise config check` warns of, too.
fn warn_of(config: &RunConfig) {
    let run = &config.run.id;
    for warning in crate::config::warnings(config) {
        tracing::warn!(run, "{warning}");
    }
}

fn warn_of_invitations(config: &RunConfig) {
    if config.access.mode != AccessMode::Open && config.access.page.is_none() {
        let run = &config.run.id;
        tracing::warn!(run, "without `page` in [access] its invitations do not lead to /run/{run}/");
    }
}

/// What the runs of a process share.
struct Process {
    page: PageSource,
    site: Site,
    /// One run at a time loads its data and its model.
    starting: Arc<Semaphore>,
    /// Whether the page is served: no run begins before.
    is_open: watch::Sender<bool>,
    shutdown: CancellationToken,
}

/// Receivers of how far a run is; they may be dropped.
struct RunMilestones {
    /// Its page can be served; its node counts the violations of visitors.
    mounting: oneshot::Sender<Node>,
    /// It has begun, at these addresses.
    beginning: oneshot::Sender<BackboneAddresses>,
}

impl Process {
    fn new(page: PageSource, shutdown: CancellationToken) -> Self {
        let site = Site::new(&page, Vec::new());
        let starting = Arc::new(Semaphore::new(1));
        Self { page, site, starting, is_open: watch::channel(false).0, shutdown }
    }

    /// Drives a run from its start to its end; meanwhile it is on the site. `stop` ends it.
    fn host(
        &self,
        config: RunConfig,
        stop: CancellationToken,
        milestones: RunMilestones,
    ) -> impl Future<Output = anyhow::Result<()>> + use<> {
        let (site, mut is_open) = (self.site.clone(), self.is_open.subscribe());
        let starting = Arc::clone(&self.starting);
        let around = RunSurroundings {
            page: self.page.clone(),
            contributor: peer::run_local_contributor,
            local_host: peer::start_local_host,
            shutdown: stop,
        };
        async move {
            let id = config.run.id.clone();
            let turn = starting.acquire_owned().await?;
            let (mounting, mounts) = oneshot::channel();
            let mut running = pin!(on_own_thread(config, around, mounting));
            let Mounted { run, node, open, begun } = tokio::select! {
                biased;
                Ok(mounted) = mounts => mounted,
                ended = &mut running => return ended,
            };
            drop(turn);
            site.add(run);
            let RunMilestones { mounting, beginning } = milestones;
            let _ = mounting.send(node);
            let beginning = async move {
                if is_open.wait_for(|is_open| *is_open).await.is_ok() {
                    // A run that does not receive it has ended, with an error of its own.
                    let _ = open.send(());
                    if let Ok(addresses) = begun.await {
                        let _ = beginning.send(addresses);
                    }
                }
            };
            let (ended, ()) = tokio::join!(running, beginning);
            site.remove(&id);
            ended
        }
    }

    /// Serves the page; the runs begin.
    async fn open(
        &self,
        network: &NetworkSection,
        first: Option<Node>,
    ) -> anyhow::Result<(SocketAddr, Serving)> {
        let http = TcpListener::bind(network.http).await;
        let http = http.with_context(|| format!("the page cannot be served at {}", network.http))?;
        let address = http.local_addr()?;
        let visitors = site::serve(self.site.clone(), http, network, first, self.shutdown.clone());
        self.is_open.send_replace(true);
        Ok((address, visitors))
    }
}

/// Runs a backbone until its shutdown. This is the one place that knows the drivers.
async fn run(
    config: RunConfig,
    around: RunSurroundings,
    mounting: oneshot::Sender<Mounted>,
) -> anyhow::Result<()> {
    let (opened, data) = OpenedRun::open(config, around).await?;
    match opened.config.scheme.clone() {
        SchemeSection::Synchronous(scheme) => {
            Box::pin(synchronous::run(opened, scheme, data, mounting)).await
        }
        SchemeSection::Sampled(_) => Box::pin(sampled::run(opened, data, mounting)).await,
    }
}

/// Drives a run on its own thread, so that no run waits for a step of another.
async fn on_own_thread(
    config: RunConfig,
    around: RunSurroundings,
    mounting: oneshot::Sender<Mounted>,
) -> anyhow::Result<()> {
    let (end, ended) = oneshot::channel();
    let (id, runtime) = (config.run.id.clone(), Handle::current());
    let running = move || {
        let ended = runtime.block_on(Box::pin(run(config, around, mounting)));
        // The receiver is dropped where another run failed first.
        let _ = end.send(ended);
    };
    std::thread::Builder::new().name(format!("run {id}")).stack_size(STACK_BYTES).spawn(running)?;
    let ended = ended.await.unwrap_or_else(|_| Err(anyhow!("it panicked")));
    ended.with_context(|| format!("the run `{id}`"))
}

/// Waits for open requests; event streams end with the runs, and other requests are aborted after a timeout.
async fn say_goodbye(mut visitors: Serving) -> anyhow::Result<()> {
    match tokio::time::timeout(GOODBYE_MAX, &mut visitors).await {
        Ok(served) => Ok(served??),
        // Dropped, it ends.
        Err(_) => Ok(()),
    }
}
