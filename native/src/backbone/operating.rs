//! Puts the parts together by which a backbone is operated: what was said before, the admin API, and where it is found.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;
use barnraise_swarm::round::AveragingRound;

use super::core::Storing;
use super::core::operator::Operating;
use crate::access::{Access, system_clock};
use crate::admin::audit::Audit;
use crate::admin::kept::KeptStore;
use crate::admin::settings::Effective;
use crate::admin::token::TokenHash;
use crate::admin::{ADDRESS_FILE, Admin, Run};
use crate::config::RunConfig;

/// What the operator said before the last stop.
pub(super) async fn resume(
    config: &RunConfig,
    kept: KeptStore,
    access: &Access,
    round: &AveragingRound,
    storing: &Storing,
) -> anyhow::Result<Operating> {
    let here = access.here.to_peer_id();
    let n_others = config.aggregators.peers().filter(|(peer, _)| peer.to_bytes() != here).count();
    let file = Effective::of(&round.limits(), storing.checkpoint_every_epochs);
    Ok(Operating::resume(kept, access.gate.clone(), system_clock(), n_others, file).await?)
}

/// The admin API of a run.
pub(super) fn admin(folder: &Path, run: Run) -> anyhow::Result<Admin> {
    let token = TokenHash::load_or_create(folder)?;
    let audit = Audit::open(folder, system_clock())?;
    Ok(Admin::new(vec![run], token, audit))
}

/// Where the operator is served stands in the run's folder, for the commands that look for it; where nobody is served,
/// nothing does, not even what a crash left.
pub(super) fn note_address(address: Option<SocketAddr>, folder: &Path) -> anyhow::Result<()> {
    let file = folder.join(ADDRESS_FILE);
    let Some(address) = address else {
        return match std::fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("{}", file.display()))
            }
            _ => Ok(()),
        };
    };
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "the operator's address is plain HTTP and open to other machines: keep it inside");
    }
    std::fs::write(&file, format!("{address}\n")).with_context(|| format!("{}", file.display()))
}
