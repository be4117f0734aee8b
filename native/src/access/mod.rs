//! Who may take part in a run: the gate before every conversation, and the authority behind it.
//!
//! The decisions are `barnraise_swarm::access`'s and the database's; here are the clock, the connections
//! and the tasks around them. A peer is what its connection's handshake attests, never what it says.

mod authority;
pub mod command;
mod conversation;
mod follow;
mod gate;
pub mod login;
mod provider;
pub mod rooms;
pub mod store;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use barnraise_protocol::access::{AccessDescription, Authority, KeyPair, PublicKey, UnixTime};
use barnraise_swarm::access::Policy;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

pub use self::authority::AccessAuthority;
pub(crate) use self::conversation::{Conversation, converse};
pub(crate) use self::follow::keep_up;
pub use self::gate::{Exclusion, Gate, Pass};
use self::store::{Store, StoreError};
use crate::config::RunConfig;

/// Tells the time: seconds since 1970.
pub type WallClock = Arc<dyn Fn() -> UnixTime + Send + Sync>;

/// Why a run's access cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The backbone signs tokens with its identity.
    #[error("the backbone's identity is no Ed25519 key: access tokens cannot be signed with it")]
    KeyKind,
    /// The configured authority cannot be one.
    #[error("access.authority = {address}: want an address that ends with /p2p/ and an Ed25519 peer id")]
    Authority {
        /// From the configuration.
        address: Multiaddr,
    },
    /// No randomness to be had.
    #[error("the system has no random bytes: {0}")]
    Entropy(getrandom::Error),
    /// The secret of the identity provider.
    #[error("access.oidc.client_secret_file = {}: {source}", path.display())]
    Secret {
        /// The file.
        path: std::path::PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The page's address is needed and is none.
    #[error("access.page: want the http:// or https:// address of the page, got {got:?}")]
    Page {
        /// From the configuration.
        got: String,
    },
}

/// Everything about access that a running backbone holds. Cheap to clone.
#[derive(Clone)]
pub struct Access {
    /// Asked before each conversation.
    pub gate: Gate,
    /// Where tokens are made, if that is here.
    pub authority: Option<AccessAuthority>,
    /// Where they are made otherwise.
    pub elsewhere: Option<Multiaddr>,
    /// This backbone.
    pub here: PublicKey,
}

impl Access {
    /// As the configuration says, for a backbone with this identity.
    ///
    /// # Errors
    /// A key or a database that does not do.
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
        // An open run asks for nothing, so it keeps nothing.
        let is_authority = section.mode != barnraise_protocol::access::AccessMode::Open && signs == here;
        let authority = match is_authority {
            true => {
                let store = Store::open(&config.storage.folder).await?;
                Some(AccessAuthority::new(key, policy, section, store, clock))
            }
            false => None,
        };
        let elsewhere = elsewhere.filter(|_| signs != here);
        Ok(Self { gate, authority, elsewhere, here })
    }

    /// What contributors are told.
    pub fn describe(&self) -> AccessDescription {
        let policy = self.gate.policy();
        AccessDescription { mode: policy.mode, authority: policy.authority.key }
    }
}

/// The key pair with which libp2p's identity signs tokens and requests.
///
/// # Errors
/// [`AccessError::KeyKind`].
pub fn signing_key(keypair: &Keypair) -> Result<KeyPair, AccessError> {
    let ed25519 = keypair.clone().try_into_ed25519().map_err(|_| AccessError::KeyKind)?;
    let seed: [u8; 32] = ed25519.secret().as_ref().try_into().map_err(|_| AccessError::KeyKind)?;
    Ok(KeyPair::from_seed(&seed))
}

/// The peer id of a key.
pub(crate) fn peer_id(key: PublicKey) -> Option<PeerId> {
    PeerId::from_bytes(&key.to_peer_id()).ok()
}

fn authority_key(address: &Multiaddr) -> Result<PublicKey, AccessError> {
    let error = || AccessError::Authority { address: address.clone() };
    let Some(Protocol::P2p(peer)) = address.iter().last() else { return Err(error()) };
    PublicKey::of_peer_id(&peer.to_bytes()).ok_or_else(error)
}

/// The system's clock.
pub fn system_clock() -> WallClock {
    let since_1970 = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Arc::new(move || UnixTime(since_1970().as_secs()))
}

/// Bytes that nobody can guess.
fn random<const N: usize>() -> Result<[u8; N], AccessError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(AccessError::Entropy)?;
    Ok(bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
