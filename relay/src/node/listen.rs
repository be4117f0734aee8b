//! Checks around listening, and errors of the swarm in words.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, TcpListener};

use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{DialError, SwarmEvent};
use libp2p::{Multiaddr, TransportError};

use super::NodeError;
use super::network::NodeSwarmEvent;

/// libp2p shares TCP ports between processes (`SO_REUSEPORT`): a second node on the port of a first would
/// take half of its connections, and nobody would notice.
pub(super) fn check_free(address: &Multiaddr) -> io::Result<()> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next() {
        Some(Protocol::Ip4(ip)) => ip.into(),
        Some(Protocol::Ip6(ip)) => ip.into(),
        _ => return Ok(()),
    };
    match parts.next() {
        Some(Protocol::Tcp(port)) if port != 0 => TcpListener::bind((ip, port)).map(drop),
        _ => Ok(()),
    }
}

pub(super) fn check_listening(
    unbound: &mut HashMap<ListenerId, Multiaddr>,
    event: &NodeSwarmEvent,
) -> Result<(), NodeError> {
    match event {
        SwarmEvent::NewListenAddr { listener_id, .. } => {
            unbound.remove(listener_id);
        }
        SwarmEvent::ListenerError { listener_id, error } => {
            if let Some(address) = unbound.get(listener_id) {
                return Err(listen_error(address, causes(error)));
            }
        }
        SwarmEvent::ListenerClosed { listener_id, reason, .. } => {
            if let Some(address) = unbound.get(listener_id) {
                let reason = reason.as_ref().map_or_else(|error| causes(error), |()| "closed".to_owned());
                return Err(listen_error(address, reason));
            }
        }
        _ => {}
    }
    Ok(())
}

pub(super) fn listen_error(address: &Multiaddr, reason: String) -> NodeError {
    NodeError::Listen { address: address.clone(), reason }
}

pub(super) fn listen_reason(error: &TransportError<io::Error>) -> String {
    match error {
        TransportError::MultiaddrNotSupported(_) => "want /ip4|ip6/<ip>/tcp/<port>, …/tcp/<port>/ws, \
            …/udp/<port>/quic-v1, or, with a directory for certificates, …/udp/<port>/webrtc-direct \
            or …/udp/<port>/quic-v1/webtransport"
            .to_owned(),
        TransportError::Other(error) => causes(error),
    }
}

pub(super) fn dial_error(address: Multiaddr, error: &DialError) -> NodeError {
    let reason = match error {
        // Its own text repeats the address.
        DialError::Transport(errors) => {
            errors.iter().map(|(_, error)| causes(error)).collect::<Vec<_>>().join("; ")
        }
        error => causes(error),
    };
    NodeError::Dial { address, reason }
}

/// The error and what it came from, which libp2p leaves out of the error's own text.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        texts.push(cause.to_string());
        next = cause.source();
    }
    // Some have no text of their own, and some repeat their cause's.
    texts.retain(|text| !text.is_empty());
    texts.dedup_by(|cause, error| error.contains(cause.as_str()));
    texts.join(": ")
}
