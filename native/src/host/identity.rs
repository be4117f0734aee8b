//! The identity of a backbone: a key pair in the run's folder, which is never replaced silently.

use std::path::Path;

use anyhow::{Context, bail};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

use crate::config::RunConfig;

const FILE: &str = "identity.key";

/// The peer id of the backbone with the configuration at `path`; its key is created if it does not exist.
///
/// # Errors
/// No configuration, or no key.
pub fn identity(path: &Path) -> anyhow::Result<PeerId> {
    let config = RunConfig::load(path)?;
    let keypair = barnraise_relay::load_or_create_keypair(&config.storage.folder.join(FILE))?;
    Ok(keypair.public().to_peer_id())
}

/// The identity of a backbone.
///
/// # Errors
/// The key cannot be read or created; or it is missing from the folder of a run that was begun with it. With a new key
/// it would be another backbone: the addresses, tokens and receipts that peers have are of the old key.
pub(crate) fn own_keypair(folder: &Path, was_begun: bool) -> anyhow::Result<Keypair> {
    let path = folder.join(FILE);
    if was_begun && !path.try_exists().with_context(|| format!("{}", path.display()))? {
        bail!(
            "{} is not there, and the run in this folder was begun with it: addresses, invitations, tokens and receipts \
             that others have are of that key. Take it from a backup; or, to go on as a backbone that nobody knows yet, \
             make a new one with `barnraise id --config <the run's file>`",
            path.display()
        );
    }
    Ok(barnraise_relay::load_or_create_keypair(&path)?)
}

/// Whether `address` is of the backbone whose run is in `folder`. Nothing is created.
///
/// # Errors
/// The key cannot be read.
pub(crate) fn is_own(folder: &Path, address: &Multiaddr) -> anyhow::Result<bool> {
    let path = folder.join(FILE);
    if !path.try_exists().with_context(|| format!("{}", path.display()))? {
        return Ok(false);
    }
    let here = barnraise_relay::load_or_create_keypair(&path)?.public().to_peer_id();
    Ok(address.iter().last() == Some(Protocol::P2p(here)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_identity_that_is_lost_is_not_made_anew_without_a_word() {
        let folder = tempfile::tempdir().unwrap();
        let first = own_keypair(folder.path(), false).unwrap().public();
        assert_eq!(own_keypair(folder.path(), true).unwrap().public(), first);
        std::fs::remove_file(folder.path().join(FILE)).unwrap();
        let error = own_keypair(folder.path(), true).unwrap_err().to_string();
        for part in ["identity.key is not there", "from a backup", "barnraise id --config"] {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
        assert!(!folder.path().join(FILE).exists());
        // As `barnraise id` makes it.
        barnraise_relay::load_or_create_keypair(&folder.path().join(FILE)).unwrap();
        assert_ne!(own_keypair(folder.path(), true).unwrap().public(), first);
    }

    #[test]
    fn an_address_is_own_by_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let at = |peer: PeerId| Multiaddr::empty().with(Protocol::P2p(peer));
        let other = at(Keypair::generate_ed25519().public().to_peer_id());
        assert!(!is_own(folder.path(), &other).unwrap());
        assert!(!folder.path().join(FILE).exists());
        let here = at(own_keypair(folder.path(), false).unwrap().public().to_peer_id());
        assert!(is_own(folder.path(), &here).unwrap() && !is_own(folder.path(), &other).unwrap());
    }
}
