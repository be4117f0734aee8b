//! Experts that a backbone hosts beside its own work: a host of this process, with a key of its own, at the backbone's addresses.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use barnraise_learning::{ComputeDevice, open_device};
use barnraise_protocol::access::AccessMode;
use barnraise_relay::tasks;
use futures::future::BoxFuture;
use libp2p::Multiaddr;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::RunHost;
use crate::host::access::signing_key;
use crate::host::access::store::InvitationTerms;
use crate::host::hex;

/// Folder of the host, in that of the run.
const FOLDER: &str = "hosting";
/// The host redeems its invitation when it starts.
const INVITATION_LASTS: Duration = Duration::from_secs(600);

/// A host of this process.
pub(crate) struct LocalHostSetup {
    /// Of the backbone.
    pub(crate) addresses: Vec<Multiaddr>,
    /// Where it needs one.
    pub(crate) invitation: Option<String>,
    /// Experts at most.
    pub(crate) n_room: u32,
    /// Where trainers reach it; where it is empty, at ports of the system's choice.
    pub(crate) listen: Vec<Multiaddr>,
    pub(crate) folder: PathBuf,
    pub(crate) device: ComputeDevice,
    /// Has it hand its experts over, and end.
    pub(crate) leaving: CancellationToken,
}

/// Starts it; the future completes when it has ended.
pub(crate) type LocalHost = fn(LocalHostSetup) -> anyhow::Result<BoxFuture<'static, anyhow::Result<()>>>;

/// Starts the run's own host, where it has one, until the run's shutdown. The run goes on without it: what it could not do is
/// logged.
///
/// # Errors
/// There is no such device, its key or the database cannot be used, or the system starts no thread.
pub(super) async fn start(host: &RunHost) -> anyhow::Result<Option<AbortOnDropHandle<()>>> {
    let config = &host.config;
    if config.hosting.experts == 0 {
        return Ok(None);
    }
    let folder = config.storage.folder.join(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| format!("the folder {}", folder.display()))?;
    let setup = LocalHostSetup {
        addresses: host.addresses.addresses.clone(),
        invitation: invitation(host, &folder.join("identity.key")).await?,
        n_room: config.hosting.experts,
        listen: config.hosting.listen.clone(),
        folder,
        device: open_device(config.device.kind.into()).await?,
        leaving: host.shutdown.child_token(),
    };
    let ended = (host.local_host)(setup)?;
    Ok(Some(tasks::spawn("the run's own host of experts", async move {
        match ended.await {
            Ok(()) => tracing::info!("this backbone hosts no experts any more"),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "this backbone hosts no experts any more");
            }
        }
    })))
}

/// The code of an invitation for the run's own host, in a run by invitation: one use, unless it has access already.
async fn invitation(host: &RunHost, identity: &std::path::Path) -> anyhow::Result<Option<String>> {
    let Some(authority) = &host.access.authority else { return Ok(None) };
    if host.config.access.mode != AccessMode::Invitation {
        return Ok(None);
    }
    let peer = signing_key(&barnraise_relay::load_or_create_keypair(identity)?)?.public();
    let (store, now) = (authority.store(), authority.now());
    if store.token_of(peer, now).await?.is_some_and(|token| token.may_host) {
        return Ok(None);
    }
    let mut code = [0; 16];
    getrandom::fill(&mut code).map_err(|error| anyhow::anyhow!("no invitation can be made: {error}"))?;
    let code = hex(&code);
    let expires_at = now.after(INVITATION_LASTS.as_secs());
    store.invite(&code, InvitationTerms { uses: 1, expires_at, may_host: true }, now).await?;
    Ok(Some(code))
}
