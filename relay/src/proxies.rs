//! Trusted proxies, whose `X-Forwarded-For` gives a client's address.
//!
//! Any client can write `X-Forwarded-For` into a request. It is read only on connections from a proxy
//! that the configuration trusts, from its end, up to the first address that is no trusted proxy's.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Most addresses of one `X-Forwarded-For` that are read.
const HOPS_MAX: usize = 16;

/// A network prefix such as `10.0.0.0/8`, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IpNetwork {
    address: IpAddr,
    prefix: u8,
}

/// The text is no address or network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an address like 192.0.2.1, 10.0.0.0/8 or fd00::/8 is wanted, got {0:?}")]
pub struct NetworkError(String);

impl FromStr for IpNetwork {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let error = || NetworkError(text.chars().take(100).collect());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(bits), str::parse).map_err(|_| error())?;
        if prefix > bits { Err(error()) } else { Ok(Self { address, prefix }) }
    }
}

impl TryFrom<String> for IpNetwork {
    type Error = NetworkError;

    fn try_from(text: String) -> Result<Self, NetworkError> {
        text.parse()
    }
}

impl From<IpNetwork> for String {
    fn from(network: IpNetwork) -> Self {
        network.to_string()
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.prefix)
    }
}

impl IpNetwork {
    /// Whether it is a single address.
    #[must_use]
    pub fn is_everybody(&self) -> bool {
        self.prefix == 0
    }

    /// Whether the address is in the network.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let beyond = 32 - u32::from(self.prefix);
                own.to_bits().checked_shr(beyond) == other.to_bits().checked_shr(beyond)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let beyond = 128 - u32::from(self.prefix);
                own.to_bits().checked_shr(beyond) == other.to_bits().checked_shr(beyond)
            }
            _ => false,
        }
    }
}

/// The networks of trusted proxies; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Arc<[IpNetwork]>);

impl TrustedProxies {
    /// Trusts the proxies in these networks.
    #[must_use]
    pub fn new(networks: &[IpNetwork]) -> Self {
        Self(networks.into())
    }

    /// Whether a trusted proxy has this address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }

    /// The client's address, for a connection from `remote` whose request has these values of `X-Forwarded-For`.
    pub fn visitor<'a>(
        &self,
        remote: IpAddr,
        forwarded_for: impl DoubleEndedIterator<Item = &'a [u8]>,
    ) -> IpAddr {
        let mut visitor = remote.to_canonical();
        // A proxy may write its word behind any bytes that a visitor sent: those are no reason to leave it out.
        let hops = forwarded_for.rev().flat_map(|value| value.rsplit(|byte| *byte == b','));
        for hop in hops.take(HOPS_MAX) {
            if !self.contains(visitor) {
                break;
            }
            let address = std::str::from_utf8(hop).ok().and_then(|hop| hop.trim().parse::<IpAddr>().ok());
            // What is no address is nobody: the last one that is known answers for it.
            let Some(address) = address else { break };
            visitor = address.to_canonical();
        }
        visitor
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn networks_are_read_and_contain_what_begins_alike() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.1.2", "11.0.0.1"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("10.0.0.0/8", "::ffff:10.1.1.1", "::1"),
            ("fd00::/8", "fdab::1", "fe80::1"),
            ("0.0.0.0/0", "8.8.8.8", "::1"),
            ("::1", "::1", "::2"),
        ] {
            let network: IpNetwork = network.parse().unwrap();
            assert!(network.contains(ip(inside)), "{network} {inside}");
            assert!(!network.contains(ip(outside)), "{network} {outside}");
        }
        for wrong in ["", "10.0.0.0/33", "::/129", "10.0.0.0/", "host", "10.0.0.0/8/8", "10.0.0.0/-1"] {
            assert!(wrong.parse::<IpNetwork>().is_err(), "{wrong}");
        }
    }
}
