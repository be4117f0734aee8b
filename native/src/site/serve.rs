//! `barnraise serve`: a backbone for each configuration, and one listener for the pages of all.
//!
//! The runs start one after the other, so that they do not fetch the same data at once. The page is served once all
//! can be seen, and none makes a step before. Whatever ends one of them ends all.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::serve::ListenerExt;
use barnraise_protocol::access::AccessMode;
use barnraise_relay::Node;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Site, SiteRun, apart};
use crate::backbone::{self, Listening};
use crate::config::{NetworkSection, RunConfig};
use crate::http_listener::BoundedListener;
use crate::page::Page;
use crate::visitors::Visitors;

/// How long a shutdown waits for HTTP clients.
const GOODBYE_MAX: Duration = Duration::from_secs(3);
/// As the main thread of a process has it, on which a run alone is.
const STACK_BYTES: usize = 8 << 20;

/// What can be reached.
#[derive(Debug, Clone)]
pub struct Open {
    /// The page.
    pub http: SocketAddr,
    /// Each run, in the order of the configurations.
    pub runs: Vec<Listening>,
}

/// A run that can be seen. It goes on once it is told that the page is open.
pub struct Mounted {
    /// What the site shows.
    pub run: SiteRun,
    /// Which counts the misdeeds of visitors, where it is the first.
    pub node: Node,
    /// Called once the page is open.
    pub open: oneshot::Sender<()>,
    /// Hears when the run begins.
    pub begun: oneshot::Receiver<Listening>,
}

type Running = FuturesUnordered<Pin<Box<dyn Future<Output = anyhow::Result<()>>>>>;

/// Serves until `shutdown` is cancelled; `listening` is told once everything is up.
///
/// # Errors
/// Runs that cannot be together, and whatever ends one of them.
pub async fn serve(
    configs: Vec<RunConfig>,
    page: Page,
    listening: oneshot::Sender<Open>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    apart::check(&configs)?;
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
        let (page, shutdown) = (page.clone(), shutdown.clone());
        running.push(match is_alone {
            true => Box::pin(backbone::run(config, page, mounting, shutdown)),
            false => Box::pin(on_own_thread(config, page, mounting, shutdown)),
        });
        mounted.push(heard(&mut running, mounts).await?);
    }
    let (http, visitors) = open(&network, page, &mounted, &shutdown).await?;
    let mut runs = Vec::new();
    for run in mounted {
        // Whoever does not hear it has ended, and says why.
        let _ = run.open.send(());
        runs.push(heard(&mut running, run.begun).await?);
    }
    // Whoever asked may have stopped listening for the answer.
    let _ = listening.send(Open { http, runs });
    let mut ended = Ok(());
    while let Some(run) = running.next().await {
        shutdown.cancel();
        ended = ended.and(run);
    }
    say_goodbye(visitors).await?;
    ended
}

/// What a run says, or how it ended before.
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

/// A run beside others: neither of them waits while the other makes a step.
async fn on_own_thread(
    config: RunConfig,
    page: Page,
    mounting: oneshot::Sender<Mounted>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let (end, ended) = oneshot::channel();
    let (id, runtime) = (config.run.id.clone(), Handle::current());
    let run = move || {
        let ended = runtime.block_on(Box::pin(backbone::run(config, page, mounting, shutdown)));
        // Nobody waits any more where another run failed first.
        let _ = end.send(ended);
    };
    std::thread::Builder::new().name(format!("run {id}")).stack_size(STACK_BYTES).spawn(run)?;
    let ended = ended.await.unwrap_or_else(|_| Err(anyhow!("it panicked")));
    ended.with_context(|| format!("the run `{id}`"))
}

type Serving = JoinHandle<std::io::Result<()>>;

async fn open(
    network: &NetworkSection,
    page: Page,
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

/// Open event streams end with the runs; a client that never ends its request is cut off.
async fn say_goodbye(mut visitors: Serving) -> anyhow::Result<()> {
    match tokio::time::timeout(GOODBYE_MAX, &mut visitors).await {
        Ok(served) => Ok(served??),
        Err(_) => {
            visitors.abort();
            Ok(())
        }
    }
}
