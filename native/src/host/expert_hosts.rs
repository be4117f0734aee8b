//! What a peer does for the hosts of experts: a backbone grants leases of places and checks what hosts answer, and hosts and
//! backbones keep checkpoints for each other.

mod answers;
mod auditing;
pub(crate) mod keeper;
mod leases;
pub(crate) mod service;
#[cfg(test)]
pub(crate) mod testing;

use barnraise_protocol::experts::ExpertPlace;

pub(crate) use self::answers::recomputed;

/// Name of an expert in a folder.
pub(crate) fn name((layer, uid): ExpertPlace) -> String {
    format!("{}-{uid}", layer.0)
}
