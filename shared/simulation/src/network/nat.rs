//! Which node can dial which, by the address translators that they are behind.
//!
//! Kinds and outcomes are those of Ford, Srisuresh and Kegel (2005), sections 3 and 5; a translator that is restricted is so by
//! address and port, which is the common kind.

/// The address translator of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NatKind {
    /// It has none, or a forwarded port.
    #[default]
    Public,
    /// One mapping for all, through which all others come in once it exists.
    FullCone,
    /// One mapping for all, through which only those come in that it has sent to.
    Restricted,
    /// A mapping for each destination: its address for the others is not known before.
    Symmetric,
}

/// What it takes to connect to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dial {
    /// Its address.
    Direct,
    /// A relay that introduces both, who then dial each other at once.
    HolePunch,
    /// A relay that carries all bytes.
    Relay,
}

impl NatKind {
    /// What it takes a node behind `self` to connect to one behind `to`.
    pub fn dial(self, to: Self) -> Dial {
        match (self, to) {
            (_, Self::Public | Self::FullCone) => Dial::Direct,
            // The relay asks it to dial in the other direction.
            (Self::Public | Self::FullCone, Self::Restricted | Self::Symmetric)
            | (Self::Restricted, Self::Restricted) => Dial::HolePunch,
            (Self::Restricted | Self::Symmetric, Self::Symmetric) | (Self::Symmetric, Self::Restricted) => {
                Dial::Relay
            }
        }
    }
}
