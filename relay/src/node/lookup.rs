//! Addresses by name that strangers name, looked up, so that what is dialled is what was looked at.
//!
//! A name may lead to another address with each question (DNS rebinding). So what a name led to once takes its place.

use std::net::IpAddr;
use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

/// Names of one peer that are looked up.
const NAMES_MAX: usize = 4;
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// The same addresses, with numbers in the place of names. What leads nowhere is left out, and so is `/dnsaddr`, behind
/// which there may be any.
pub(super) async fn numbers(addresses: Vec<Multiaddr>) -> Vec<Multiaddr> {
    let (mut numbers, mut n_names) = (Vec::new(), 0);
    for address in addresses {
        let (name, is_wanted): (_, fn(&IpAddr) -> bool) = match address.iter().next() {
            Some(Protocol::Dns(name)) => (name.into_owned(), |_| true),
            Some(Protocol::Dns4(name)) => (name.into_owned(), IpAddr::is_ipv4),
            Some(Protocol::Dns6(name)) => (name.into_owned(), IpAddr::is_ipv6),
            Some(Protocol::Dnsaddr(_)) | None => continue,
            Some(_) => {
                numbers.push(address);
                continue;
            }
        };
        n_names += 1;
        if n_names > NAMES_MAX {
            continue;
        }
        let found = tokio::time::timeout(LOOKUP_MAX, tokio::net::lookup_host((name, 0))).await;
        let found = found.into_iter().flatten().flatten().map(|found| found.ip().to_canonical());
        let of_number = |ip| address.iter().skip(1).fold(Multiaddr::from(ip), Multiaddr::with);
        numbers.extend(found.filter(is_wanted).map(of_number));
    }
    numbers
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use libp2p::identity::Keypair;

    use super::*;
    use crate::{Node, NodeConfig};

    fn bytes(addresses: &[&str]) -> Vec<Vec<u8>> {
        addresses.iter().map(|address| address.parse::<Multiaddr>().unwrap().to_vec()).collect()
    }

    #[tokio::test]
    async fn a_name_that_leads_into_a_network_of_its_own_is_none_to_dial() {
        let named = bytes(&[
            "/dns4/localhost/tcp/22",
            "/dns/localhost/udp/53/quic-v1",
            "/dnsaddr/localhost",
            "/ip4/127.0.0.1/tcp/22",
            "/ip4/203.0.113.7/tcp/4001",
        ]);
        let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
        assert_eq!(node.within_reach(&named).await, ["/ip4/203.0.113.7/tcp/4001".parse().unwrap()]);
        // On one machine it is looked up, and its number is dialled.
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let config = NodeConfig { listen, ..NodeConfig::default() };
        let here = Node::start(Keypair::generate_ed25519(), config).await.unwrap();
        let want: Vec<Multiaddr> = vec!["/ip4/127.0.0.1/tcp/22".parse().unwrap()];
        assert_eq!(here.within_reach(&bytes(&["/dns4/localhost/tcp/22"])).await, want);
    }

    #[tokio::test]
    async fn few_names_of_a_peer_are_looked_up() {
        let names = vec!["/dns4/localhost/tcp/1".parse::<Multiaddr>().unwrap(); 100];
        assert!(numbers(names).await.len() <= NAMES_MAX);
    }
}
