//! Why a tab has no connection.

use std::time::Duration;

use barnraise_messages::TransportKind;
use barnraise_protocol::dht::DhtError;
use libp2p::swarm::DialError;
use libp2p::{PeerId, noise};
use libp2p_stream::OpenStreamError;

use crate::web::WebError;

/// Longest reason of a failed dial.
const REASON_CHARS_MAX: usize = 400;

/// Why a tab has no connection, or no stream. For people, without a full stop.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The key pair cannot be used.
    #[error(transparent)]
    Noise(#[from] noise::Error),
    /// The task that owns the swarm has ended.
    #[error("the network has stopped")]
    Stopped,
    /// The web server does not say where the backbone is.
    #[error(transparent)]
    Web(#[from] WebError),
    /// No run was described since the tab was opened.
    #[error("the run is not known yet")]
    UnknownRun,
    /// The backbone has sent no address of another one.
    #[error("no other backbone is known")]
    NoOtherBackbone,
    /// All addresses are those of native peers.
    #[error("none of the backbone's {n_addresses} addresses is for browsers")]
    NoAddress {
        /// Addresses that were listed.
        n_addresses: usize,
    },
    /// A peer of the DHT answers wrongly.
    #[error(transparent)]
    Dht(#[from] DhtError),
    /// A peer of the DHT has no record of the backbone.
    #[error("{asked} does not know where the backbone is")]
    NotInDht {
        /// The peer of the DHT.
        asked: PeerId,
    },
    /// Nobody answered in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// A dial that is still in progress when another transport has won.
    #[error("no answer in time")]
    Slow,
    /// A dial that was given up when another transport had won.
    #[error("another transport was faster")]
    Superseded,
    /// A dial failed.
    #[error("no connection: {}", reason(.0))]
    Dial(Box<DialError>),
    /// Every transport failed.
    #[error("{}", by_transport(.0))]
    Transports(Vec<(TransportKind, NetworkError)>),
    /// Two ways to the backbone failed.
    #[error("{first}; {second}")]
    Both {
        /// The way that was tried first.
        first: Box<NetworkError>,
        /// The other one.
        second: Box<NetworkError>,
    },
    /// There is no way to a peer, or each failed.
    #[error("{}", joined(.0))]
    Ways(Vec<NetworkError>),
    /// An attempt to reach a peer that failed just now.
    #[error("it could not be reached a moment ago")]
    FailedBefore,
    /// No stream on the connection.
    #[error(transparent)]
    Stream(#[from] OpenStreamError),
}

impl NetworkError {
    /// Two ways failed.
    pub(super) fn both(first: Self, second: Self) -> Self {
        Self::Both { first: Box::new(first), second: Box::new(second) }
    }
}

fn joined(failures: &[NetworkError]) -> String {
    match failures.is_empty() {
        true => "it has no address that a page can dial".to_owned(),
        false => failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    }
}

fn by_transport(failures: &[(TransportKind, NetworkError)]) -> String {
    let failures = failures.iter().map(|(transport, error)| format!("{transport}: {error}"));
    failures.collect::<Vec<_>>().join("; ")
}

/// The error in words that a person can act on.
fn reason(error: &DialError) -> String {
    let text = match error {
        DialError::Transport(failures) => {
            let failures = failures.iter().map(|(_, error)| causes(error));
            failures.collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    };
    text.chars().take(REASON_CHARS_MAX).collect()
}

/// The error and what it came from, which libp2p leaves out of the error's own text.
fn causes(error: &dyn std::error::Error) -> String {
    let mut texts: Vec<String> =
        std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect();
    // Some have no text of their own, and some repeat their cause's.
    texts.retain(|text| !text.is_empty());
    texts.dedup_by(|cause, error| error.contains(cause.as_str()));
    texts.join(": ")
}

#[cfg(feature = "tests")]
mod tests {
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    #[wasm_bindgen_test]
    fn an_error_is_reported_once_with_its_causes() {
        let inner = std::io::Error::other("the cable is out");
        let outer = std::io::Error::new(std::io::ErrorKind::NotConnected, inner);
        assert_eq!(causes(&outer), "the cable is out");
    }
}
