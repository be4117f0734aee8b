//! Hides names on the leaderboard, and shows them again.
//!
//! Names are in the database of contributions and have no effect on training. The core never waits for that database, so
//! it has no part in this.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Path, State};
use axum::response::Response;
use libp2p::PeerId;
use serde_json::json;

use super::audited::with_audit;
use super::state::{Admin, HostedRun, PeerPath, audit_record, json_response};
use crate::host::operator::view::HiddenView;
use crate::host::problem::Problem;

/// `POST /admin/v1/runs/{run}/peers/{peer}/hide`
pub(super) async fn hide(
    State(admin): State<Admin>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    path: PeerPath,
) -> Result<Response, Problem> {
    decide(admin, caller, path, true).await
}

/// `POST /admin/v1/runs/{run}/peers/{peer}/unhide`
pub(super) async fn unhide(
    State(admin): State<Admin>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    path: PeerPath,
) -> Result<Response, Problem> {
    decide(admin, caller, path, false).await
}

/// Completes even if the client has disconnected meanwhile.
async fn decide(
    admin: Admin,
    caller: SocketAddr,
    path: PeerPath,
    is_hidden: bool,
) -> Result<Response, Problem> {
    let Path((id, peer)) = path?;
    let run = admin.run(&id)?.clone();
    let peer: PeerId = peer.parse().map_err(|_| Problem::Address("a peer id is wanted".into()))?;
    let verb = if is_hidden { "hide" } else { "unhide" };
    let record = audit_record(caller, verb, &id, json!({"peer": peer.to_string()}));
    let commands = admin.commands.clone();
    let done = commands.answer("name", async move {
        with_audit(&admin.audit, &record, write(&run, peer, is_hidden)).await?;
        admin.show(&run).await.map(|view| json_response(&view))
    });
    done.await.unwrap_or(Err(Problem::Inside))
}

async fn write(run: &HostedRun, peer: PeerId, is_hidden: bool) -> Result<(), Problem> {
    match run.contributions.set_hidden(peer, is_hidden).await {
        Ok(true) => {
            tracing::info!(%peer, is_hidden, "whether a name is shown was decided by the operator");
            Ok(())
        }
        Ok(false) if is_hidden => Err(Problem::NoContributor),
        Ok(false) => Err(Problem::NotHidden),
        Err(error) => {
            tracing::error!(%error, "a name cannot be hidden or shown");
            Err(Problem::Inside)
        }
    }
}

/// Peers with hidden names; `None` while the database does not answer.
pub(super) async fn hidden(run: &HostedRun) -> Option<Vec<HiddenView>> {
    let names = run.contributions.hidden_names().await.ok()?;
    Some(names.into_iter().map(|(peer, name)| HiddenView { peer, name }).collect())
}
