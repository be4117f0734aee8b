//! Resolves DNS names in addresses from untrusted peers, so that the address that was checked is the one dialled.
//!
//! A name may resolve to another address each time (DNS rebinding). So the resolved address replaces the name.

use std::net::IpAddr;
use std::time::Duration;

use barnraise_swarm::guard::RateLimiter;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Most names of one peer that are resolved.
const NAMES_MAX: usize = 4;
const LOOKUP_MAX: Duration = Duration::from_secs(5);
/// Peers that said who they are whose names are looked up at a time, and in a minute: they may say so as often as they like.
const PEERS_MAX: usize = 16;
const PEERS_PER_MINUTE: u32 = 120;

/// Names of identified peers that are being resolved.
pub(super) struct Lookups {
    running: JoinSet<(PeerId, Vec<Multiaddr>)>,
    rate: RateLimiter<()>,
    began: Instant,
}

impl Lookups {
    pub(super) fn new() -> Self {
        Self { running: JoinSet::new(), rate: RateLimiter::new(PEERS_PER_MINUTE, 1), began: Instant::now() }
    }

    /// Returns a peer's addresses at once where there is no name to resolve; else they come by [`Self::next`]. Where too
    /// many peers wait, the names are left out.
    pub(super) fn begin(&mut self, peer: PeerId, mut addresses: Vec<Multiaddr>) -> Option<Vec<Multiaddr>> {
        if !addresses.iter().any(is_name) {
            return Some(addresses);
        }
        if self.running.len() >= PEERS_MAX || !self.rate.take(self.began.elapsed(), &()) {
            addresses.retain(|address| !is_name(address));
            return Some(addresses);
        }
        self.running.spawn(async move { (peer, numbers(addresses).await) });
        None
    }

    /// The next peer with its resolved addresses; `None` while no lookup is under way.
    pub(super) async fn next(&mut self) -> Option<(PeerId, Vec<Multiaddr>)> {
        self.running.join_next().await?.ok()
    }
}

fn is_name(address: &Multiaddr) -> bool {
    let first = address.iter().next();
    matches!(first, Some(Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) | Protocol::Dnsaddr(_)))
}

/// Resolves the names in addresses. Names that do not resolve are left out, and so is `/dnsaddr`, which may lead to any
/// address.
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

    use futures::StreamExt as _;
    use libp2p::identify;
    use libp2p::identity::Keypair;
    use libp2p::swarm::NetworkBehaviour;

    use super::*;
    use crate::node::routing::{self, Kademlia, Routing};
    use crate::node::testing;
    use crate::{Node, NodeConfig};

    /// A node that announces only a name.
    #[derive(NetworkBehaviour)]
    struct Named {
        identify: identify::Behaviour,
        kademlia: Kademlia,
    }

    /// It listens on this machine; where.
    async fn named() -> Multiaddr {
        let keypair = Keypair::generate_ed25519();
        let here = keypair.public().to_peer_id();
        let says = identify::Config::new("/test/1".to_owned(), keypair.public()).with_hide_listen_addrs(true);
        let kademlia = routing::behaviour(here, Routing::Server);
        let behaviour = Named { identify: identify::Behaviour::new(says), kademlia };
        let mut swarm = testing::swarm(&keypair, behaviour);
        let address = testing::listen(&mut swarm).await;
        let name: Multiaddr = "/dns4/localhost".parse().unwrap();
        swarm.add_external_address(address.iter().skip(1).fold(name, Multiaddr::with));
        tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        });
        address.with_p2p(here).unwrap()
    }

    /// No node dials a name from another peer, so addresses in answers and searches are IP addresses.
    #[tokio::test]
    async fn a_peer_that_says_nothing_but_its_name_is_known_by_what_that_leads_to() {
        let address = named().await;
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let config = NodeConfig { listen, routing: Some(Routing::Client), ..NodeConfig::default() };
        let node = Node::start(Keypair::generate_ed25519(), config).await.unwrap();
        let peer = node.dial(address.clone()).await.unwrap();
        let known = async {
            loop {
                let contacts = node.contacts().await.unwrap();
                if !contacts.is_empty() {
                    return contacts;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let known = tokio::time::timeout(Duration::from_secs(60), known).await.unwrap();
        assert_eq!(known, [(peer, vec![address])]);
    }

    #[tokio::test]
    async fn who_says_its_name_all_the_time_has_it_looked_up_now_and_then() {
        let mut lookups = Lookups::new();
        let named: Vec<Multiaddr> =
            ["/ip4/192.0.2.1/tcp/1", "/dns4/localhost/tcp/1"].map(|text| text.parse().unwrap()).into();
        let mut n_begun = 0;
        for _ in 0..1000 {
            match lookups.begin(PeerId::random(), named.clone()) {
                None => n_begun += 1,
                Some(left) => assert_eq!(left, named[..1]),
            }
        }
        assert_eq!(n_begun, PEERS_MAX);
        for _ in 0..1000 {
            while lookups.next().await.is_some() {}
            n_begun += usize::from(lookups.begin(PeerId::random(), named.clone()).is_none());
        }
        assert!(n_begun < PEERS_PER_MINUTE as usize + 100, "{n_begun}");
    }

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
        let through = |relay: PeerId| format!("/ip4/127.0.0.1/tcp/4001/p2p/{relay}/p2p-circuit");
        let named = ["/dns4/localhost/tcp/22", &through(here.peer_id())];
        assert_eq!(here.within_reach(&bytes(&named)).await, want, "and it is not its own relay");
        let other = through(node.peer_id());
        assert_eq!(here.within_reach(&bytes(&[&other])).await, [other.parse().unwrap()]);
    }

    #[tokio::test]
    async fn few_names_of_a_peer_are_looked_up() {
        let names = vec!["/dns4/localhost/tcp/1".parse::<Multiaddr>().unwrap(); 100];
        assert!(numbers(names).await.len() <= NAMES_MAX);
    }
}
