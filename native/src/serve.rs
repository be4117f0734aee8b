//! `barnraise serve`: a backbone for each configuration, and one HTTP listener for the pages of all.
//!
//! The runs start one after the other, so that they do not fetch the same data at once. The page is served once all are
//! mounted, and no run makes a step before. The end of one run ends all.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::serve::ListenerExt;
use barnraise_protocol::access::AccessMode;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

mod args;
pub mod conflicts;

pub use self::args::ServeArgs;

use crate::config::{NetworkSection, RunConfig};
use crate::host::http_listener::BoundedListener;
use crate::host::page::PageSource;
use crate::host::run::{BackboneAddresses, Mounted, OpenedRun, RunSurroundings};
use crate::host::site::Site;
use crate::host::visitors::Visitors;
use crate::peer;
use crate::scheme::synchronous;

/// Longest wait of a shutdown for HTTP clients.
const GOODBYE_MAX: Duration = Duration::from_secs(3);
/// Stack of a run's thread: that of the main thread, which drives a single run.
const STACK_BYTES: usize = 8 << 20;

/// Addresses at which the process listens.
#[derive(Debug, Clone)]
pub struct ServingAddresses {
    /// The page.
    pub http: SocketAddr,
    /// Each run, in the order of the configurations.
    pub runs: Vec<BackboneAddresses>,
}

type Running = FuturesUnordered<Pin<Box<dyn Future<Output = anyhow::Result<()>>>>>;

/// Serves until `shutdown` is cancelled; `listening` receives the addresses once everything is up.
///
/// # Errors
/// The runs conflict, or one of them failed.
pub async fn serve(
    configs: Vec<RunConfig>,
    page: PageSource,
    listening: oneshot::Sender<ServingAddresses>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    conflicts::check(&configs)?;
    let network = configs.first().context("no run was asked for")?.network.clone();
    let is_alone = configs.len() == 1;
    let mut running = Running::new();
    let mut mounted = Vec::new();
    for config in configs {
        if !is_alone && config.access.mode != AccessMode::Open && config.access.page.is_none() {
            let run = &config.run.id;
            tracing::warn!(run, "without `page` in [access] its invitations do not lead to /run/{run}/");
        }
        let (mounting, mounts) = oneshot::channel();
        let around = RunSurroundings {
            page: page.clone(),
            contributor: peer::run_local_contributor,
            // A run that ends cancels its own; what the end of one means for the others is decided below.
            shutdown: shutdown.child_token(),
        };
        running.push(match is_alone {
            true => Box::pin(run(config, around, mounting)),
            false => Box::pin(on_own_thread(config, around, mounting)),
        });
        mounted.push(heard(&mut running, mounts).await?);
    }
    let (http, visitors) = open(&network, page, &mounted, &shutdown).await?;
    let mut runs = Vec::new();
    for run in mounted {
        // A run that does not receive it has ended, with an error of its own.
        let _ = run.open.send(());
        runs.push(heard(&mut running, run.begun).await?);
    }
    // The receiver may be dropped.
    let _ = listening.send(ServingAddresses { http, runs });
    let mut ended = Ok(());
    while let Some(run) = running.next().await {
        shutdown.cancel();
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

/// Runs a backbone until its shutdown. This is the one place that knows which schemes there are.
async fn run(
    config: RunConfig,
    around: RunSurroundings,
    mounting: oneshot::Sender<Mounted>,
) -> anyhow::Result<()> {
    let (opened, data) = OpenedRun::open(config, around).await?;
    Box::pin(synchronous::run(opened, data, mounting)).await
}

/// Drives one of several runs on its own thread, so that no run waits for a step of another.
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

type Serving = JoinHandle<std::io::Result<()>>;

async fn open(
    network: &NetworkSection,
    page: PageSource,
    mounted: &[Mounted],
    shutdown: &CancellationToken,
) -> anyhow::Result<(SocketAddr, Serving)> {
    let http = TcpListener::bind(network.http).await;
    let http = http.with_context(|| format!("the page cannot be served at {}", network.http))?;
    let address = http.local_addr()?;
    let node = mounted.first().map(|run| run.node.clone());
    let per_minute = network.http_requests_per_address_and_minute;
    let visitors = Visitors::new(&network.trusted_proxies, per_minute, node.clone());
    let runs = mounted.iter().map(|run| run.run.clone()).collect();
    let routes = Site::new(page, runs).with_visitors(visitors).routes();
    let http = BoundedListener::new(http, network.http_connections, network.http_timeout, node);
    let http = http.shared(&network.trusted_proxies).tap_io(|_| ());
    let stop = shutdown.clone();
    let visitors = tokio::spawn(async move {
        let routes = routes.into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(http, routes).with_graceful_shutdown(stop.cancelled_owned()).await
    });
    Ok((address, visitors))
}

/// Waits for open requests; event streams end with the runs, and other requests are aborted after a timeout.
async fn say_goodbye(mut visitors: Serving) -> anyhow::Result<()> {
    match tokio::time::timeout(GOODBYE_MAX, &mut visitors).await {
        Ok(served) => Ok(served??),
        Err(_) => {
            visitors.abort();
            Ok(())
        }
    }
}
