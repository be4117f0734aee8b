//! The swarm of a tab: it dials, and is reached through relays where it hosts experts or averages.

use std::time::Duration;

use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::swarm::NetworkBehaviour;
use libp2p::{Swarm, SwarmBuilder, Transport as _, identify, noise, ping, relay, yamux};
use libp2p_webtransport_websys as webtransport;

use super::NetworkError;
use super::incoming::IncomingBehaviour;
use crate::platform::rtc;

/// Protocol version that identify announces.
const IDENTIFY_PROTOCOL: &str = "/barnraise/1";
/// A connection without streams is closed after this; the contributor hangs up before.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// The protocols of a tab.
#[derive(NetworkBehaviour)]
pub struct Behaviour {
    /// Streams that the tab opens.
    pub streams: libp2p_stream::Behaviour,
    /// Streams that others open.
    pub(super) incoming: IncomingBehaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    /// For circuits to hosts that cannot be dialled from a page, and to the tab itself, where it hosts or averages.
    circuits: relay::client::Behaviour,
}

/// A swarm with all protocols of a tab, over all transports of a browser.
///
/// # Errors
/// A key pair that Noise does not take.
pub fn swarm(keypair: Keypair) -> Result<Swarm<Behaviour>, NetworkError> {
    let noise = noise::Config::new(&keypair)?;
    let builder = SwarmBuilder::with_existing_identity(keypair)
        .with_wasm_bindgen()
        .with_other_transport(|keypair| webtransport::Transport::new(webtransport::Config::new(keypair)));
    let builder = match builder {
        Ok(builder) => builder,
        Err(never) => match never {},
    };
    let builder = match builder.with_other_transport(rtc::RtcTransport::new) {
        Ok(builder) => builder,
        Err(never) => match never {},
    };
    let builder = builder.with_other_transport(|_| {
        libp2p_websocket_websys::Transport::default()
            .upgrade(Version::V1Lazy)
            .authenticate(noise)
            .multiplex(yamux::Config::default())
    });
    let builder = match builder {
        Ok(builder) => builder,
        Err(never) => match never {},
    };
    let builder = builder.with_relay_client(noise::Config::new, yamux::Config::default)?;
    let behaviour = builder.with_behaviour(|keypair, circuits| Behaviour {
        streams: libp2p_stream::Behaviour::new(),
        incoming: IncomingBehaviour::new(),
        identify: identify::Behaviour::new(identify::Config::new(
            IDENTIFY_PROTOCOL.to_owned(),
            keypair.public(),
        )),
        ping: ping::Behaviour::default(),
        circuits,
    });
    let builder = match behaviour {
        Ok(builder) => builder,
        Err(never) => match never {},
    };
    Ok(builder.with_swarm_config(|config| config.with_idle_connection_timeout(IDLE_TIMEOUT)).build())
}
