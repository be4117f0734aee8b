//! Many sessions: how they gather, what becomes of them, and the relay that has room for them.

use std::time::Duration;

use anyhow::{Result, bail};
use futures::future::join_all;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use libp2p::Multiaddr;

use super::session::{Session, SessionError, Way};

/// Sessions that come about at the same time. libp2p's relay asks a destination at most ten questions at once
/// over one connection, and loses those beyond.
const OPENING_AT_ONCE: usize = 8;
/// After this many failures in a row somebody gives up, as a visitor would.
const ATTEMPTS_MAX: usize = 4;
/// Before the next attempt, times the number of attempts so far.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Sessions that stand.
#[derive(Debug, Default)]
pub struct Crowd {
    sessions: Vec<Session>,
    /// Attempts that failed before one did not.
    failures: Vec<SessionError>,
}

/// The configuration of a relay on loopback that has room for `n_sessions` and a few more, all of which come
/// from one address.
#[must_use]
pub fn relay_toml(n_sessions: u32) -> String {
    // The node behind it, its tests of addresses, and a way in for whoever comes while another one leaves.
    let n_places = n_sessions + 64;
    // One address, as all of a crowd have, gets half of them.
    let n_circuits = 2 * n_places;
    format!(
        r#"
        [network]
        http = "127.0.0.1:0"
        listen = [
            "/ip4/127.0.0.1/udp/0/quic-v1/webtransport",
            "/ip4/127.0.0.1/tcp/0/ws",
            "/ip4/127.0.0.1/tcp/0",
        ]
        upnp = false

        [limits]
        connections = {n_places}
        connections_per_address = {n_places}
        connections_per_address_and_minute = 1000000
        streams_per_connection = {n_places}

        [relay]
        circuits = {n_circuits}
        circuits_per_peer = {n_places}
        circuits_per_address_and_minute = 1000000
        "#
    )
}

impl Crowd {
    /// `n_sessions` come by `way`.
    ///
    /// # Errors
    /// One of them gives up.
    pub async fn gather(
        way: Way,
        n_sessions: usize,
        relay: &[Multiaddr],
        circuit: &Multiaddr,
    ) -> Result<Self> {
        let Some(relay) = way.of(relay) else { bail!("the relay has no address for {way}") };
        let arrivals = stream::iter(0..n_sessions).map(|_| arrive(relay, circuit));
        let arrived: Vec<(Session, Vec<SessionError>)> =
            arrivals.buffer_unordered(OPENING_AT_ONCE).try_collect().await?;
        let mut crowd = Self::default();
        for (session, failures) in arrived {
            crowd.sessions.push(session);
            crowd.failures.extend(failures);
        }
        Ok(crowd)
    }

    /// Both crowds as one.
    #[must_use]
    pub fn joined_by(mut self, other: Self) -> Self {
        self.sessions.extend(other.sessions);
        self.failures.extend(other.failures);
        self
    }

    /// Everybody.
    #[must_use]
    pub fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    /// Attempts that failed before one did not.
    #[must_use]
    pub fn failures(&self) -> &[SessionError] {
        &self.failures
    }

    /// Those that were dropped, with the reason.
    #[must_use]
    pub fn dropped(&self) -> Vec<SessionError> {
        self.sessions.iter().filter_map(Session::ended).collect()
    }

    /// Messages that everybody heard up to now.
    #[must_use]
    pub fn heartbeats(&self) -> Vec<u64> {
        self.sessions.iter().map(Session::n_heartbeats).collect()
    }

    /// `n_moving` of them, spread over the crowd, pull at once; the bytes that each got.
    ///
    /// # Errors
    /// A conversation of one of them broke.
    pub async fn pull(
        &self,
        n_moving: usize,
        bytes_per_second: u64,
        duration: Duration,
    ) -> Result<Vec<u64>, SessionError> {
        let every = (self.sessions.len() / n_moving.max(1)).max(1);
        let moving = self.sessions.iter().step_by(every).take(n_moving);
        let pulls = moving.map(|session| session.pull(bytes_per_second, duration));
        join_all(pulls).await.into_iter().collect()
    }
}

async fn arrive(
    relay: &Multiaddr,
    circuit: &Multiaddr,
) -> Result<(Session, Vec<SessionError>), SessionError> {
    let mut failures = Vec::new();
    loop {
        match Box::pin(Session::open(relay, circuit)).await {
            Ok(session) => return Ok((session, failures)),
            Err(error) if failures.len() + 1 >= ATTEMPTS_MAX => return Err(error),
            Err(error) => failures.push(error),
        }
        tokio::time::sleep(RETRY_AFTER * failures.len() as u32).await;
    }
}
