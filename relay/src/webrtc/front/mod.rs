//! The public socket, before the one that libp2p's listener reads.
//!
//! Datagrams pass both ways unchanged but for one list in the first of a handshake ([`client_hello`]). Each
//! client has a socket of its own towards the listener, by whose address the listener knows it. It keeps no
//! state of a connection but when something was heard, and none at all of a client that has not shown that it hears
//! what is sent to its address ([`challenge`]). One that never finishes a handshake makes room for others: of the
//! address that has most of these, the oldest.

mod challenge;
mod client_hello;
#[cfg(test)]
mod fuzz;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket as StdUdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use self::challenge::Challenge;
use crate::source::source_of;
use crate::tasks;

/// Clients at once; one more takes the place of one that has not finished its handshake.
const CLIENTS_MAX: usize = 1024;
/// Largest datagram: the listener's own limit.
const DATAGRAM_BYTES_MAX: usize = 8192;
/// Of a client that has finished its handshake: keep-alives come more often.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Of one that has not.
const HANDSHAKE_MAX: Duration = Duration::from_secs(15);
/// After the socket failed.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);

/// A bound socket; what it does ends when it is dropped.
#[derive(Debug)]
pub(super) struct Front {
    clients: Clients,
    address: SocketAddr,
    socket: Arc<UdpSocket>,
    challenge: Option<Challenge>,
    task: Option<AbortOnDropHandle<()>>,
}

type Clients = Arc<Mutex<HashMap<SocketAddr, FrontClient>>>;

#[derive(Debug)]
struct FrontClient {
    /// Where the listener takes it to be.
    alias: SocketAddr,
    inward: Arc<UdpSocket>,
    begun: Instant,
    is_established: Arc<AtomicBool>,
    _task: AbortOnDropHandle<()>,
}

impl Front {
    /// Takes a bound socket over. Needs a tokio runtime.
    pub(super) fn new(socket: StdUdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        let challenge = Challenge::new().map_err(|_| io::Error::other("the system has no random numbers"))?;
        let (clients, address) = (Clients::default(), socket.local_addr()?);
        Ok(Self { clients, address, socket, challenge: Some(challenge), task: None })
    }

    /// Where others reach it.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins to pass datagrams to the listener at `port` of this machine.
    pub(super) fn pass_to(&mut self, port: u16) {
        // A listener has one address, and is told of it once.
        let Some(challenge) = self.challenge.take() else { return };
        let pass = pass_in(Arc::clone(&self.socket), Arc::clone(&self.clients), challenge, port);
        self.task = Some(tasks::spawn("webrtc handshakes", pass));
    }

    /// The client that the listener takes to be at `alias`.
    pub(super) fn client(&self, alias: SocketAddr) -> Option<SocketAddr> {
        let clients = lock(&self.clients);
        clients.iter().find_map(|(address, client)| (client.alias == alias).then_some(*address))
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // The tasks of the clients hold the list, which holds them.
        lock(&self.clients).clear();
    }
}

async fn pass_in(socket: Arc<UdpSocket>, clients: Clients, challenge: Challenge, listener: u16) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let (mut n_greeted, begun) = (0, Instant::now());
    loop {
        let Ok((n_bytes, from)) = socket.recv_from(&mut buffer).await else {
            // Of one datagram, or of an interface that is down for now.
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            continue;
        };
        let Some(datagram) = buffer.get_mut(..n_bytes) else { continue };
        let known = lock(&clients).get(&from).map(|client| Arc::clone(&client.inward));
        let Some(inward) = known else {
            if challenge.is_answered(begun.elapsed(), from, datagram) {
                n_greeted += 1;
                // It greets again until it is heard.
                if let Err(error) = greet(&socket, &clients, from, alias(n_greeted), listener).await {
                    tracing::debug!(%from, %error, "no slot for a WebRTC client");
                }
            } else if let Some(question) = challenge.ask(begun.elapsed(), from, datagram) {
                // Where the socket has no room now, the client greets again.
                let _ = socket.try_send_to(&question, from);
            }
            continue;
        };
        if client_hello::is_dtls(datagram) {
            client_hello::put_known_group_first(datagram);
        }
        // What is not taken is lost, as on the way here.
        let _ = inward.send(datagram).await;
    }
}

/// An address of this machine for a client. The listener never again hears an address whose handshake did not
/// begin well, so that ports alone would be used up.
fn alias(n_greeted: u64) -> Ipv4Addr {
    const GREETED_PER_ADDRESS: u64 = 4096;
    // Elsewhere there is one such address.
    let number = if cfg!(target_os = "linux") { n_greeted / GREETED_PER_ADDRESS } else { 0 };
    let [.., high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, high, low, 1)
}

/// Opens a slot for a client.
async fn greet(
    socket: &Arc<UdpSocket>,
    clients: &Clients,
    from: SocketAddr,
    alias: Ipv4Addr,
    listener: u16,
) -> io::Result<Arc<UdpSocket>> {
    let inward = super::mux::bind((alias, 0).into())?;
    inward.connect((Ipv4Addr::LOCALHOST, listener)).await?;
    let (alias, inward) = (inward.local_addr()?, Arc::new(inward));
    let is_established = Arc::new(AtomicBool::new(false));
    let mut all = lock(clients);
    if all.len() >= CLIENTS_MAX {
        let unfinished = all.iter().filter(|(_, client)| !client.is_established.load(Ordering::Relaxed));
        let handshake_to_evict =
            handshake_to_evict(unfinished.map(|(address, client)| (*address, client.begun)));
        all.remove(&handshake_to_evict.ok_or_else(|| io::Error::other("every place is taken"))?);
    }
    let pass = pass_out(
        Arc::clone(socket),
        Arc::clone(clients),
        Arc::clone(&inward),
        Arc::clone(&is_established),
        from,
    );
    let task = tasks::spawn("webrtc front", pass);
    let client = FrontClient {
        alias,
        inward: Arc::clone(&inward),
        begun: Instant::now(),
        is_established,
        _task: task,
    };
    all.insert(from, client);
    Ok(inward)
}

/// Of clients in the middle of a handshake, the oldest of the address that has most of them.
fn handshake_to_evict(unfinished: impl Iterator<Item = (SocketAddr, Instant)>) -> Option<SocketAddr> {
    let mut of_sources: HashMap<IpAddr, (usize, Reverse<Instant>, SocketAddr)> = HashMap::new();
    for (address, begun) in unfinished {
        let of_source = of_sources.entry(source_of(address.ip())).or_insert((0, Reverse(begun), address));
        of_source.0 += 1;
        if begun < of_source.1.0 {
            (of_source.1, of_source.2) = (Reverse(begun), address);
        }
    }
    let most = of_sources.into_values().max_by_key(|(n_clients, oldest, _)| (*n_clients, *oldest));
    most.map(|(.., address)| address)
}

async fn pass_out(
    socket: Arc<UdpSocket>,
    clients: Clients,
    inward: Arc<UdpSocket>,
    is_established: Arc<AtomicBool>,
    to: SocketAddr,
) {
    /// Content type of records that only a finished handshake is followed by.
    const APPLICATION_DATA: u8 = 23;
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let mut patience = HANDSHAKE_MAX;
    let begun = Instant::now();
    loop {
        let received = tokio::time::timeout(patience, inward.recv(&mut buffer)).await;
        let is_late = patience == HANDSHAKE_MAX && begun.elapsed() > HANDSHAKE_MAX;
        // The listener is gone, has forgotten the client, or was never told who it is.
        let Ok(Ok(n_bytes)) = received else { break };
        if buffer.first() == Some(&APPLICATION_DATA) {
            is_established.store(true, Ordering::Relaxed);
            patience = IDLE_MAX;
        } else if is_late {
            break;
        }
        // A client that cannot be reached is forgotten in time.
        let _ = socket.send_to(&buffer[..n_bytes], to).await;
    }
    // Last: this drops the handle of this very task.
    lock(&clients).remove(&to);
}

fn lock<T>(clients: &Mutex<T>) -> MutexGuard<'_, T> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn who_begins_most_handshakes_makes_room_and_not_who_began_first() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let honest: SocketAddr = "198.51.100.7:1".parse().unwrap();
        let greedy = |port| SocketAddr::from(([203, 0, 113, 7], port));
        let unfinished = [(honest, at(0)), (greedy(1), at(2)), (greedy(2), at(1)), (greedy(3), at(3))];
        assert_eq!(handshake_to_evict(unfinished.into_iter()), Some(greedy(2)));
        assert_eq!(handshake_to_evict(unfinished.into_iter().take(2)), Some(honest), "one each: the oldest");
        let neighbours = ["[2001:db8::1]:1", "[2001:db8::2]:1"].map(|text| (text.parse().unwrap(), at(5)));
        let all = unfinished[..2].iter().copied().chain(neighbours);
        assert_ne!(handshake_to_evict(all), Some(honest), "a /64 is one address");
        assert_eq!(handshake_to_evict(std::iter::empty()), None);
    }
}
