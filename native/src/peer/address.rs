//! Resolves the address that a user gives to the multiaddresses that are dialled.

use std::time::Duration;

use barnraise_protocol::api::{Room, RunStatus, Runs};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use serde::de::DeserializeOwned;

use super::args::JoinAddress;
use crate::host::access::rooms::RoomCode;
use crate::http_agent::{Patience, agent};

/// Largest `/api/run`: a manifest of ten thousand shards and a full history fit.
const STATUS_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Timeout of the whole request, below the stall limit of the contributor, which waits for it.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses of one run that are tried.
pub(super) const ADDRESSES_MAX: usize = 8;

/// Why there is no address to dial.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddressError {
    /// There is no answer.
    #[error("cannot reach {url}: {reason}")]
    Unreachable { url: String, reason: String },
    /// The answer is an HTTP error.
    #[error("no run at {url}: it answered {status}")]
    NoRun { url: String, status: u16 },
    /// The address has several runs.
    #[error("several runs are at {page}: join one of them, {}", join_with(listed, page))]
    Several { page: String, listed: Vec<String> },
    /// No room has this code.
    #[error(
        "no room at {page} has this code: see that it is typed right, and not older than it was said to last"
    )]
    NoRoom { page: String },
    /// This version does not understand the answer.
    #[error("{url} is no backbone that this version understands: {reason}")]
    NotUnderstood { url: String, reason: String },
    /// A native peer can dial none of the listed addresses.
    #[error(
        "the run at {url} lists no address over QUIC, TCP, WebSocket or a relay with a peer id, only {listed:?}"
    )]
    NoneToDial { url: String, listed: Vec<String> },
    /// The request's task was cancelled.
    #[error("the request to {url} was given up")]
    Aborted { url: String },
}

impl AddressError {
    /// Whether the address itself seems wrong: a user who mistyped it should not wait for ever. Errors that a proxy or
    /// the network may cause while the run is down do not count.
    pub(super) fn is_mistake(&self) -> bool {
        match self {
            Self::NoRun { status, .. } => matches!(status, 400..500) && !matches!(status, 408 | 425 | 429),
            Self::Several { .. } | Self::NotUnderstood { .. } | Self::NoRoom { .. } => true,
            Self::Unreachable { .. } | Self::NoneToDial { .. } | Self::Aborted { .. } => false,
        }
    }
}

/// The addresses to dial now, resolved again for every connection: a restarted run may have moved.
pub(super) async fn resolve(address: &JoinAddress) -> Result<Vec<Multiaddr>, AddressError> {
    let page = match address {
        JoinAddress::Peer(address) => return Ok(vec![address.clone()]),
        JoinAddress::Here(addresses) => return Ok(addresses.clone()),
        JoinAddress::Page(page) => page,
    };
    let url = format!("{page}/api/run");
    let asked = url.clone();
    let fetched = tokio::task::spawn_blocking(move || fetch(asked)).await;
    let status: RunStatus = match fetched.map_err(|_| AddressError::Aborted { url: url.clone() })? {
        Err(no_run @ AddressError::NoRun { .. }) => return Err(several(page).await.unwrap_or(no_run)),
        fetched => fetched?,
    };
    let dialled = to_dial(&status.addresses);
    if dialled.is_empty() {
        let listed = status.addresses.into_iter().take(ADDRESSES_MAX).collect();
        return Err(AddressError::NoneToDial { url, listed });
    }
    Ok(dialled)
}

/// Address of the run that a room code belongs to, and the code of the invitation behind it. No error has the room
/// code.
///
/// - `page`: address of the list of runs, or of any run there
pub(super) async fn room(page: &str, code: RoomCode) -> Result<(JoinAddress, String), AddressError> {
    let site = page.rsplit_once("/run/").map_or(page, |(site, _)| site).to_owned();
    let url = format!("{site}/api/rooms/{code}");
    let fetched = tokio::task::spawn_blocking(move || fetch(url)).await;
    let shown = format!("{site}/api/rooms");
    match fetched.map_err(|_| AddressError::Aborted { url: shown.clone() })? {
        Ok(Room { run, invitation }) => Ok((JoinAddress::Page(format!("{site}/run/{run}")), invitation)),
        Err(AddressError::NoRun { status: 404, .. }) => Err(AddressError::NoRoom { page: site }),
        Err(AddressError::NoRun { status, .. }) => Err(AddressError::NoRun { url: shown, status }),
        Err(AddressError::Unreachable { reason, .. }) => {
            Err(AddressError::Unreachable { url: shown, reason })
        }
        Err(AddressError::NotUnderstood { reason, .. }) => {
            Err(AddressError::NotUnderstood { url: shown, reason })
        }
        Err(other) => Err(other),
    }
}

/// [`AddressError::Several`], if the page lists several runs.
async fn several(page: &str) -> Option<AddressError> {
    let url = format!("{page}/api/runs");
    let Runs { runs, .. } = tokio::task::spawn_blocking(move || fetch(url)).await.ok()?.ok()?;
    let listed = runs.into_iter().map(|run| run.id).collect();
    Some(AddressError::Several { page: page.to_owned(), listed })
}

fn join_with(listed: &[String], page: &str) -> String {
    if listed.is_empty() {
        return format!("as {page}/run/<id>; none of them is listed");
    }
    let addresses: Vec<String> = listed.iter().map(|id| format!("{page}/run/{id}")).collect();
    addresses.join(" or ")
}

fn fetch<T: DeserializeOwned>(url: String) -> Result<T, AddressError> {
    let unreachable = |reason: String| AddressError::Unreachable { url: url.clone(), reason };
    let body = match agent(Patience::Whole(STATUS_TIMEOUT)).get(&url).call() {
        Ok(response) => response.into_body().into_with_config().limit(STATUS_BYTES_MAX).read_to_vec(),
        Err(ureq::Error::StatusCode(status)) => return Err(AddressError::NoRun { url, status }),
        Err(error) => return Err(unreachable(error.to_string())),
    };
    let body = body.map_err(|error| unreachable(error.to_string()))?;
    serde_json::from_slice(&body)
        .map_err(|error| AddressError::NotUnderstood { url, reason: error.to_string() })
}

/// The addresses that a native peer dials, the best transport first: QUIC, TCP, WebSocket, then through a
/// relay.
pub(super) fn to_dial(listed: &[String]) -> Vec<Multiaddr> {
    let parsed = listed.iter().filter_map(|address| address.parse::<Multiaddr>().ok());
    let mut ranked: Vec<(u8, Multiaddr)> =
        parsed.filter_map(|address| rank(&address).map(|rank| (rank, address))).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, address)| address).take(ADDRESSES_MAX).collect()
}

fn rank(address: &Multiaddr) -> Option<u8> {
    use Protocol::{Dns, Dns4, Dns6, Ip4, Ip6, P2p, P2pCircuit, QuicV1, Tcp, Tls, Udp, Ws, Wss};
    let parts: Vec<Protocol<'_>> = address.iter().collect();
    let [Ip4(_) | Ip6(_) | Dns(_) | Dns4(_) | Dns6(_), path @ .., P2p(_)] = &parts[..] else { return None };
    match path {
        [Udp(_), QuicV1] => Some(0),
        [Tcp(_)] => Some(1),
        [Tcp(_), Ws(_) | Wss(_)] | [Tcp(_), Tls, Ws(_)] => Some(2),
        [.., P2p(_), P2pCircuit] => Some(3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    const PEER: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";

    #[test]
    fn the_best_transport_is_dialled_first_and_others_never() {
        let listed = [
            format!("/ip4/192.0.2.9/udp/4001/quic-v1/p2p/{PEER}/p2p-circuit/p2p/{PEER}"),
            format!("/ip4/192.0.2.1/udp/4001/quic-v1/webtransport/p2p/{PEER}"),
            format!("/ip4/192.0.2.1/tcp/4002/ws/p2p/{PEER}"),
            format!("/ip4/192.0.2.1/tcp/4001/p2p/{PEER}"),
            "/ip4/192.0.2.1/tcp/4001".to_owned(),
            format!("/dns/run.example/tcp/4001/p2p/{PEER}"),
            format!("/ip4/192.0.2.1/udp/4002/quic-v1/p2p/{PEER}"),
            "nonsense".to_owned(),
        ];
        let dialled: Vec<String> = to_dial(&listed).iter().map(Multiaddr::to_string).collect();
        assert_eq!(dialled, [6, 3, 5, 2, 0].map(|index: usize| listed[index].clone()));
        let many = vec![listed[3].clone(); 100];
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

    /// Text of the error, and whether the address is wrong.
    async fn refusal(answer: &'static str) -> (String, bool) {
        let error = resolve(&answering(answer)).await.unwrap_err();
        (error.to_string(), error.is_mistake())
    }

    #[tokio::test]
    async fn what_is_no_run_says_so() {
        let (error, is_mistake) =
            refusal("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
        assert!(error.contains("no run at") && error.contains("404") && is_mistake, "{error}");
        let (error, is_mistake) =
            refusal("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").await;
        assert!(error.contains("no backbone that this version understands") && is_mistake, "{error}");
    }

    #[tokio::test]
    async fn a_room_leads_to_its_run_and_its_code_is_in_no_message() {
        let ok = "HTTP/1.1 200 OK\r\ncontent-length: 34\r\nconnection: close\r\n\r\n\
            {\"run\":\"barn\",\"invitation\":\"0123\"}";
        let JoinAddress::Page(page) = answering(ok) else { unreachable!() };
        let (address, invitation) =
            room(&format!("{page}/run/other"), "K7M-4PQ".parse().unwrap()).await.unwrap();
        assert_eq!((address, invitation), (JoinAddress::Page(format!("{page}/run/barn")), "0123".to_owned()));
        for answer in [
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\n",
        ] {
            let JoinAddress::Page(page) = answering(answer) else { unreachable!() };
            let error = room(&page, "K7M-4PQ".parse().unwrap()).await.unwrap_err();
            assert_eq!(error.is_mistake(), answer.contains("404"), "{error}");
            assert!(!error.to_string().contains("4PQ"), "{error}");
        }
    }

    #[tokio::test]
    async fn what_may_pass_is_no_mistake() {
        for (answer, want) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\nconnection: close\r\n\r\n", "cannot reach"),
            ("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", "503"),
            ("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", "502"),
            ("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", "429"),
            ("HTTP/1.1 200 OK\r\n", "cannot reach"),
        ] {
            let (error, is_mistake) = refusal(answer).await;
            assert!(error.contains(want) && !is_mistake, "{answer}: {error}");
        }
        // A machine that boots before its network.
        let unknown = JoinAddress::Page("http://there-is-no-such-host.invalid".to_owned());
        let error = resolve(&unknown).await.unwrap_err();
        assert!(
            error.to_string().contains("there-is-no-such-host.invalid") && !error.is_mistake(),
            "{error}"
        );
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
