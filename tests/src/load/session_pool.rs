//! Many sessions: opens them, collects their failures, and configures a relay for them.

use std::time::Duration;

use anyhow::{Result, bail};
use futures::future::join_all;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use libp2p::Multiaddr;

use super::session::{LoadSession, SessionError, TransportKind};

/// Sessions that come about at the same time. libp2p's relay asks a destination at most ten questions at once
/// over one connection, and loses those beyond.
const OPENING_AT_ONCE: usize = 8;
/// After this many failures in a row a session gives up, as a visitor would.
const ATTEMPTS_MAX: usize = 4;
/// Before the next attempt, times the number of attempts so far.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Open sessions.
#[derive(Debug, Default)]
pub struct SessionPool {
    sessions: Vec<LoadSession>,
    /// Attempts that failed before one did not.
    failures: Vec<SessionError>,
}

/// The configuration of a relay on loopback that has room for `n_sessions` and a few more, all of which come
/// from one address.
#[must_use]
pub fn relay_toml(n_sessions: u32) -> String {
    // The node behind it, its tests of addresses, and sessions that come while other ones leave.
    let n_slots = n_sessions + 64;
    // One address, as all of the sessions have, gets half of them.
    let n_circuits = 2 * n_slots;
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
        connections = {n_slots}
        connections_per_address = {n_slots}
        connections_per_address_and_minute = 1000000
        streams_per_connection = {n_slots}

        [relay]
        circuits = {n_circuits}
        circuits_per_peer = {n_slots}
        circuits_per_address_and_minute = 1000000
        "#
    )
}

impl SessionPool {
    /// Opens `n_sessions` over `transport`.
    ///
    /// # Errors
    /// One of them gives up.
    pub async fn gather(
        transport: TransportKind,
        n_sessions: usize,
        relay: &[Multiaddr],
        circuit: &Multiaddr,
    ) -> Result<Self> {
        let Some(relay) = transport.of(relay) else { bail!("the relay has no address for {transport}") };
        let arrivals = stream::iter(0..n_sessions).map(|_| arrive(relay, circuit));
        let arrived: Vec<(LoadSession, Vec<SessionError>)> =
            arrivals.buffer_unordered(OPENING_AT_ONCE).try_collect().await?;
        let mut pool = Self::default();
        for (session, failures) in arrived {
            pool.sessions.push(session);
            pool.failures.extend(failures);
        }
        Ok(pool)
    }

    /// Joins both pools.
    #[must_use]
    pub fn joined_by(mut self, other: Self) -> Self {
        self.sessions.extend(other.sessions);
        self.failures.extend(other.failures);
        self
    }

    /// All sessions.
    #[must_use]
    pub fn sessions(&self) -> &[LoadSession] {
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
        self.sessions.iter().filter_map(LoadSession::ended).collect()
    }

    /// Heartbeats that each session received so far.
    #[must_use]
    pub fn heartbeats(&self) -> Vec<u64> {
        self.sessions.iter().map(LoadSession::n_heartbeats).collect()
    }

    /// `n_moving` sessions, spread over the pool, pull at once; returns the bytes that each received.
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
) -> Result<(LoadSession, Vec<SessionError>), SessionError> {
    let mut failures = Vec::new();
    loop {
        match Box::pin(LoadSession::open(relay, circuit)).await {
            Ok(session) => return Ok((session, failures)),
            Err(error) if failures.len() + 1 >= ATTEMPTS_MAX => return Err(error),
            Err(error) => failures.push(error),
        }
        tokio::time::sleep(RETRY_AFTER * failures.len() as u32).await;
    }
}
