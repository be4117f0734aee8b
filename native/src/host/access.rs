//! Who may take part in a run (DeDLOC appendix I.5): the gate before every conversation, and the authority behind it.
//!
//! `barnraise_swarm::access` and the database decide; this module has the clock, the connections and the tasks around
//! them. A peer is identified by its connection's handshake, never by its own claim.

mod authority;
pub mod command;
mod conversation;
mod gate;
#[cfg(feature = "operations")]
pub mod login;
#[cfg(feature = "operations")]
mod provider;
mod refresh;
pub mod rooms;
pub mod store;

use axum::Router;
use barnraise_protocol::access::{AccessDescription, Authority, ConvictedWork, KeyPair, PublicKey};
use barnraise_swarm::access::Policy;
use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;

pub use self::authority::AccessAuthority;
pub(crate) use self::conversation::{Conversation, converse};
pub use self::gate::{Exclusion, Gate, Pass};
pub(crate) use self::refresh::keep_gate_current;
use self::store::{RevocationTarget, Store, StoreError};
use crate::config::{AccessSection, RunConfig};
use crate::host::clock::system_clock;

/// Why the access control of a run cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The backbone's identity cannot sign tokens.
    #[error("the backbone's identity is no Ed25519 key: access tokens cannot be signed with it")]
    KeyKind,
    /// The configured address names no authority.
    #[error("access.authority = {address}: want an address that ends with /p2p/ and an Ed25519 peer id")]
    Authority {
        /// From the configuration.
        address: Multiaddr,
    },
    /// The system's random number generator failed.
    #[error("the system has no random bytes: {0}")]
    Entropy(getrandom::Error),
    /// The client secret of the identity provider cannot be read.
    #[error("access.oidc.client_secret_file = {}: {source}", path.display())]
    Secret {
        /// The file.
        path: std::path::PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// `access.page` is needed and is no web address.
    #[error("access.page: want the http:// or https:// address of the page, got {got:?}")]
    Page {
        /// From the configuration.
        got: String,
    },
}

/// The pages where people on the list of a run sign in; `None` where there is no provider, or no authority.
///
/// # Errors
/// The provider's secret cannot be read, or an address is no web address.
pub(crate) fn login_pages(
    section: &AccessSection,
    authority: Option<&AccessAuthority>,
) -> Result<Option<Router>, AccessError> {
    #[cfg(feature = "operations")]
    return Ok(login::Login::new(section, authority)?.map(login::Login::routes));
    #[cfg(not(feature = "operations"))]
    // A configuration that asks for them is refused.
    return Ok((section.oidc.as_ref()).zip(authority).and(None));
}

/// The style sheet of [`login_pages`].
pub(crate) fn login_style() -> Router {
    #[cfg(feature = "operations")]
    return login::style_route();
    #[cfg(not(feature = "operations"))]
    return Router::new();
}

/// Access control of a running backbone. Cheap to clone.
#[derive(Clone)]
pub struct Access {
    /// Checked before each conversation.
    pub gate: Gate,
    /// The authority, where this backbone is it.
    pub authority: Option<AccessAuthority>,
    /// Address of the authority, where another backbone is it.
    pub remote_authority: Option<Multiaddr>,
    /// Key of this backbone.
    pub here: PublicKey,
}

impl Access {
    /// Excludes a peer for good, for what it gave.
    pub async fn convict(&self, peer: PublicKey, work: ConvictedWork) {
        // The gate first: it must not wait for a disk.
        self.gate.convict(peer, work);
        let Some(authority) = &self.authority else { return };
        let revoked = authority.store().revoke(&RevocationTarget::Peer(peer), false, authority.now()).await;
        if let Err(error) = revoked {
            tracing::error!(%peer, %error, "the token of a convicted peer could not be revoked");
        }
    }

    /// Opens what `config` asks for, for a backbone with the identity `keypair`.
    ///
    /// # Errors
    /// The key, the address of the authority or the database cannot be used.
    pub async fn open(config: &RunConfig, keypair: &Keypair) -> Result<Self, AccessError> {
        let key = signing_key(keypair)?;
        let here = key.public();
        let section = &config.access;
        let run_id = config.run.id.clone();
        let elsewhere = section.authority.clone();
        let signs = elsewhere.as_ref().map_or(Ok(here), authority_key)?;
        let policy = Policy {
            mode: section.mode,
            authority: Authority { key: signs, run_id },
            clock_tolerance: section.clock_tolerance,
        };
        let clock = system_clock();
        let gate = Gate::new(policy.clone(), here, clock.clone());
        // An open run issues no tokens and needs no database.
        let is_authority = section.mode != barnraise_protocol::access::AccessMode::Open && signs == here;
        let authority = match is_authority {
            true => {
                let store = Store::open(&config.storage.folder).await?;
                Some(AccessAuthority::new(key, policy, section, store, clock))
            }
            false => None,
        };
        let elsewhere = elsewhere.filter(|_| signs != here);
        Ok(Self { gate, authority, remote_authority: elsewhere, here })
    }

    /// The part of the run's description that contributors receive.
    pub fn describe(&self) -> AccessDescription {
        let policy = self.gate.policy();
        AccessDescription { mode: policy.mode, authority: policy.authority.key }
    }
}

/// The libp2p identity as the key pair that signs tokens and requests.
///
/// # Errors
/// [`AccessError::KeyKind`].
pub fn signing_key(keypair: &Keypair) -> Result<KeyPair, AccessError> {
    let ed25519 = keypair.clone().try_into_ed25519().map_err(|_| AccessError::KeyKind)?;
    let seed: [u8; 32] = ed25519.secret().as_ref().try_into().map_err(|_| AccessError::KeyKind)?;
    Ok(KeyPair::from_seed(&seed))
}

fn authority_key(address: &Multiaddr) -> Result<PublicKey, AccessError> {
    let error = || AccessError::Authority { address: address.clone() };
    let Some(Protocol::P2p(peer)) = address.iter().last() else { return Err(error()) };
    PublicKey::of_peer_id(&peer.to_bytes()).ok_or_else(error)
}

/// `N` bytes of the system's random number generator.
fn random<const N: usize>() -> Result<[u8; N], AccessError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(AccessError::Entropy)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
