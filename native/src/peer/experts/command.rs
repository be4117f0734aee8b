//! `barnraise experts show`, `drain`, `move`, `freeze` and `unfreeze`: the operator of a host on this machine. Blocks.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use barnraise_protocol::access::PublicKey;
use serde_json::json;

use super::super::args::{HostTarget, HostVerb};
use super::default_folder;
use super::view::{HandedOver, HostStage, HostView};
use crate::host::admin::address::noted_address;
use crate::host::admin::client::AdminClient;
use crate::host::admin::token::{TOKEN_FILE, read_token};

/// Interval at which a host is asked how a handover goes.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Carries out a command; returns the text to print.
///
/// # Errors
/// No host runs with this folder, or it refuses, with its reason.
pub fn operate(verb: HostVerb) -> anyhow::Result<String> {
    match verb {
        HostVerb::Show(target) => print(&target, &client(&target)?.get("/experts")?),
        HostVerb::Drain { limit, target } => drain(&target, limit),
        HostVerb::Move { layer, uid, to, limit, target } => {
            let client = client(&target)?;
            let body = json!({"layer": layer, "uid": uid, "limit_s": limit.as_secs(), "to": to.map(|to| to.to_string())});
            let mut view: HostView = client.send("POST", "/move", &body)?;
            while view.stage == HostStage::Moving {
                thread::sleep(LOOK_EVERY);
                view = client.get("/experts")?;
            }
            match view.handed_over {
                Some(HandedOver { n_taken: 1.., n_left: 0, last_taker }) => match (to, last_taker) {
                    (Some(to), Some(taker)) if PublicKey::of_peer_id(&to.to_bytes()) != Some(taker) => bail!(
                        "{to} has not taken the expert {uid} of layer {layer} within half a minute: another host has it, whose key is \
                         {taker}"
                    ),
                    _ => print(&target, &view),
                },
                _ => bail!("no other host has taken the expert {uid} of layer {layer}: it stays here"),
            }
        }
        HostVerb::Freeze { layer, target } => freeze(&target, layer, true),
        HostVerb::Unfreeze { layer, target } => freeze(&target, layer, false),
    }
}

fn drain(target: &HostTarget, limit: Duration) -> anyhow::Result<String> {
    let client = client(target)?;
    let mut view: HostView = client.send("POST", "/drain", &json!({"limit_s": limit.as_secs()}))?;
    while view.stage != HostStage::Drained {
        thread::sleep(LOOK_EVERY);
        view = client.get("/experts").context("the host has ended before it said how it was drained")?;
    }
    match view.handed_over {
        Some(HandedOver { n_left: n_left @ 1.., n_taken, .. }) => bail!(
            "{n_taken} experts have other hosts, and {n_left} have none: their states are on the disk of this host and \
             with their keepers"
        ),
        _ => print(target, &view),
    }
}

/// The API of a host.
fn client(target: &HostTarget) -> anyhow::Result<AdminClient> {
    let folder = target.folder.clone().unwrap_or_else(default_folder);
    let address = address(&folder)?;
    Ok(AdminClient::new(format!("http://{address}"), read_token(&folder.join(TOKEN_FILE))?))
}

fn freeze(target: &HostTarget, layer: u16, is_frozen: bool) -> anyhow::Result<String> {
    let body = json!({"layer": layer, "is_frozen": is_frozen});
    print(target, &client(target)?.send("POST", "/freeze", &body)?)
}

fn print(target: &HostTarget, view: &HostView) -> anyhow::Result<String> {
    Ok(if target.json { serde_json::to_string_pretty(view)? + "\n" } else { view.table() })
}

fn address(folder: &Path) -> anyhow::Result<std::net::SocketAddr> {
    let folder_shown = folder.display();
    let noted = noted_address(folder).with_context(|| {
        format!("no host of experts runs with the folder {folder_shown}: --folder names another")
    })?;
    let noted =
        noted.with_context(|| format!("the host with the folder {folder_shown} is starting or ending"))?;
    Ok(barnraise_relay::server::page_address(noted))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_host_that_does_not_run_is_named() {
        let folder = tempfile::tempdir().unwrap();
        drop(crate::storage::Storage::open(folder.path()).unwrap());
        let target = HostTarget { folder: Some(folder.path().to_owned()), json: false };
        let error = operate(HostVerb::Show(target)).unwrap_err().to_string();
        assert!(error.contains("no host of experts runs") && error.contains("--folder"), "{error}");
    }
}
