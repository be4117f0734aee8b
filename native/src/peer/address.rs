//! From the address that a person gives to the multiaddresses that are dialled.

use std::time::Duration;

use barnraise_protocol::api::RunStatus;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

use crate::cli::JoinAddress;

/// Largest `/api/run`: a manifest of ten thousand shards and a full history fit.
const STATUS_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The whole request. Below the stall limit of the contributor, which waits for it.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses of one run that are tried.
pub(super) const ADDRESSES_MAX: usize = 8;

/// Why there is no address to dial.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddressError {
    /// No answer at all.
    #[error("cannot reach {url}: {reason}")]
    Unreachable { url: String, reason: String },
    /// Something answers, and it is no backbone.
    #[error("no run at {url}: it answered {status}")]
    NoRun { url: String, status: u16 },
    /// Something answers that this build does not understand.
    #[error("{url} is no backbone that this version understands: {reason}")]
    NotUnderstood { url: String, reason: String },
    /// No TCP address with a peer id among those listed.
    #[error("the run at {url} lists no address of the form /…/tcp/<port>/p2p/<peer id>, only {listed:?}")]
    NoneToDial { url: String, listed: Vec<String> },
    /// The request did not come to an end.
    #[error("the request to {url} was given up")]
    Aborted { url: String },
}

/// What to dial now; asked again for every connection, since a restarted run may have moved.
pub(super) async fn resolve(address: &JoinAddress) -> Result<Vec<Multiaddr>, AddressError> {
    let page = match address {
        JoinAddress::Peer(address) => return Ok(vec![address.clone()]),
        JoinAddress::Page(page) => page,
    };
    let url = format!("{page}/api/run");
    let asked = url.clone();
    let fetched = tokio::task::spawn_blocking(move || fetch(asked)).await;
    let status = fetched.map_err(|_| AddressError::Aborted { url: url.clone() })??;
    let dialled = to_dial(&status.addresses);
    if dialled.is_empty() {
        let listed = status.addresses.into_iter().take(ADDRESSES_MAX).collect();
        return Err(AddressError::NoneToDial { url, listed });
    }
    Ok(dialled)
}

fn fetch(url: String) -> Result<RunStatus, AddressError> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(STATUS_TIMEOUT))
        .user_agent(concat!("barnraise/", env!("CARGO_PKG_VERSION")))
        .build()
        .into();
    let unreachable = |reason: String| AddressError::Unreachable { url: url.clone(), reason };
    let body = match agent.get(&url).call() {
        Ok(response) => response.into_body().into_with_config().limit(STATUS_BYTES_MAX).read_to_vec(),
        Err(ureq::Error::StatusCode(status)) => return Err(AddressError::NoRun { url, status }),
        Err(error) => return Err(unreachable(error.to_string())),
    };
    let body = body.map_err(|error| unreachable(error.to_string()))?;
    serde_json::from_slice(&body)
        .map_err(|error| AddressError::NotUnderstood { url, reason: error.to_string() })
}

/// The addresses that a native peer dials: plain TCP with a peer id, in the order of the list.
fn to_dial(listed: &[String]) -> Vec<Multiaddr> {
    let parsed = listed.iter().filter_map(|address| address.parse::<Multiaddr>().ok());
    parsed.filter(is_tcp).take(ADDRESSES_MAX).collect()
}

fn is_tcp(address: &Multiaddr) -> bool {
    use Protocol::{Dns, Dns4, Dns6, Ip4, Ip6, P2p, Tcp};
    let parts: Vec<Protocol<'_>> = address.iter().collect();
    matches!(parts[..], [Ip4(_) | Ip6(_) | Dns(_) | Dns4(_) | Dns6(_), Tcp(_), P2p(_)])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    const PEER: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";

    #[test]
    fn tcp_with_a_peer_id_is_dialled_and_nothing_else() {
        let listed = [
            format!("/ip4/192.0.2.1/udp/4001/quic-v1/webtransport/p2p/{PEER}"),
            format!("/ip4/192.0.2.1/tcp/4001/p2p/{PEER}"),
            "/ip4/192.0.2.1/tcp/4001".to_owned(),
            format!("/ip4/192.0.2.1/tcp/4001/ws/p2p/{PEER}"),
            format!("/dns/run.example/tcp/4001/p2p/{PEER}"),
            "nonsense".to_owned(),
        ];
        let dialled: Vec<String> = to_dial(&listed).iter().map(Multiaddr::to_string).collect();
        assert_eq!(dialled, [listed[1].clone(), listed[4].clone()]);
        let many = vec![listed[1].clone(); 100];
        assert_eq!(to_dial(&many).len(), ADDRESSES_MAX);
    }

    /// A server that answers one request with `answer`; returns its page.
    fn answering(answer: &'static str) -> JoinAddress {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let page = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        JoinAddress::Page(page)
    }

    async fn refusal(answer: &'static str) -> String {
        resolve(&answering(answer)).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn what_is_no_run_says_so() {
        let error = refusal("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
        assert!(error.contains("no run at") && error.contains("404"), "{error}");
        let error = refusal("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").await;
        assert!(error.contains("no backbone that this version understands"), "{error}");
        let error = refusal("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\nconnection: close\r\n\r\n").await;
        assert!(error.contains("cannot reach"), "{error}");
    }

    #[tokio::test]
    async fn nobody_there_is_told_with_the_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let page = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let error = resolve(&JoinAddress::Page(page.clone())).await.unwrap_err().to_string();
        assert!(error.contains(&page), "{error}");
    }

    #[tokio::test]
    async fn a_multiaddress_is_taken_as_it_is() {
        let address: Multiaddr = format!("/ip4/127.0.0.1/tcp/1/p2p/{PEER}").parse().unwrap();
        assert_eq!(resolve(&JoinAddress::Peer(address.clone())).await.unwrap(), [address]);
    }
}
