//! How a plan names peers.

use std::fmt;

/// The name of a peer: the bytes of its public key, or any other name that all peers use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub Vec<u8>);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The last bytes, since keys of one kind begin alike.
        let shown = self.0.len().saturating_sub(8);
        self.0[shown..].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
