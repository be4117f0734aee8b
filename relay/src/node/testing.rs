//! Swarms for tests of behaviours.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use futures::StreamExt as _;
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::swarm::{Config, NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, Swarm, Transport as _, noise, tcp, yamux};

/// A swarm over TCP with nothing but this behaviour.
pub(super) fn swarm<B: NetworkBehaviour>(keypair: &Keypair, behaviour: B) -> Swarm<B> {
    let transport = tcp::tokio::Transport::default()
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(keypair).unwrap())
        .multiplex(yamux::Config::default())
        .boxed();
    let config = Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60));
    Swarm::new(transport, behaviour, keypair.public().to_peer_id(), config)
}

/// Listens at an address of this machine; which that is.
pub(super) async fn listen<B: NetworkBehaviour>(swarm: &mut Swarm<B>) -> Multiaddr {
    swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
    loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            return address;
        }
    }
}
