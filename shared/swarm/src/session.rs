//! State machine of a participant's session: whether it takes part, and whether the peer that it is connected to is
//! there.
//!
//! It is the same in every scheme. It decides when to dial, when a silent peer is given up, and when to leave. What is
//! done while the session is up is the scheme's ([`crate::contributor`] for the synchronous one).

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::Moment;
use crate::activity::Interruption;
use crate::backoff::Backoff;
use crate::rhythm::Rhythm;

/// A backbone that is silent for so long is taken for dead: it reports progress every second. Where the run has other
/// backbones, one that usually reports on time is given up sooner ([`Rhythm`]).
pub const SILENCE_MAX: Duration = Duration::from_secs(8);
/// How long a connection has to prove that it is alive, after the device woke up or changed its network.
pub const PROOF_MAX: Duration = Duration::from_secs(3);
/// How long a participant that is stopping tries to deliver its last work.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Command of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Nothing,
    Contribute,
    Stop { deadline: Moment },
}

#[derive(Debug, Clone, PartialEq)]
enum LinkState {
    Down {
        retry_at: Moment,
        reason: Option<Interruption>,
    },
    Up {
        rhythm: Rhythm,
        /// Until then the connection has to prove that it is alive.
        proof_by: Option<Moment>,
    },
}

/// What a driver does for the session before it asks the scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionAction {
    /// Dial, open the session and join; then `on_connected` or `on_disconnected`.
    Connect,
    /// Wait for an event or until this moment.
    Wait(Option<Moment>),
    /// Close the session, and tell it so (`on_left`): all work is delivered, or cannot be.
    Leave,
}

/// State of a participant's session.
#[derive(Debug)]
pub struct Session {
    wanted: Wanted,
    link: LinkState,
    backoff: Backoff,
    has_others: bool,
}

impl Session {
    /// A session that is not wanted yet. `seed` decides the jitter of reconnections.
    pub fn new(seed: u64) -> Self {
        Self {
            wanted: Wanted::Nothing,
            link: LinkState::Down { retry_at: Moment::ZERO, reason: None },
            backoff: Backoff::new(seed),
            has_others: false,
        }
    }

    /// While there is no connection: time of the next attempt, and the error of the last one.
    pub fn down(&self) -> Option<(Moment, Option<&Interruption>)> {
        match &self.link {
            LinkState::Down { retry_at, reason } => Some((*retry_at, reason.as_ref())),
            LinkState::Up { .. } => None,
        }
    }

    /// Whether the participant is stopping and delivers its last work.
    pub fn is_stopping(&self) -> bool {
        matches!(self.wanted, Wanted::Stop { .. })
    }

    /// Whether the session is up, and new work is begun in it.
    pub fn is_at_work(&self) -> bool {
        self.wanted == Wanted::Contribute && matches!(self.link, LinkState::Up { .. })
    }

    /// Take part from now on.
    pub fn start(&mut self, now: Moment) {
        self.wanted = Wanted::Contribute;
        if let LinkState::Down { retry_at, .. } = &mut self.link {
            *retry_at = now;
        }
    }

    /// Deliver the last work, then leave.
    pub fn stop(&mut self, now: Moment) {
        if self.wanted == Wanted::Contribute {
            self.wanted = Wanted::Stop { deadline: now + STOP_TIMEOUT };
        }
    }

    /// The session is open: the other side has let this peer in.
    pub fn on_connected(&mut self, now: Moment) {
        self.link = LinkState::Up { rhythm: Rhythm::new(now), proof_by: None };
        self.backoff.reset();
    }

    /// The connection broke or could not be made.
    pub fn on_disconnected(&mut self, now: Moment, reason: Interruption) {
        let retry_at = now + self.backoff.next_delay();
        self.link = LinkState::Down { retry_at, reason: Some(reason) };
    }

    /// The session was closed in order, and is no longer wanted.
    pub fn on_left(&mut self) {
        self.wanted = Wanted::Nothing;
        self.link = LinkState::Down { retry_at: Moment::ZERO, reason: None };
    }

    /// The device was asleep, or has changed its network: the backoff is reset, and a reconnection is tried at once.
    /// An open connection has [`PROOF_MAX`] to prove that it is alive. After a sleep (`was_asleep`) it is lost, since
    /// the other side has given it up. Returns whether there is no connection.
    pub fn on_woke(&mut self, now: Moment, was_asleep: bool) -> bool {
        self.backoff.reset();
        match &mut self.link {
            LinkState::Down { retry_at, .. } => *retry_at = now,
            LinkState::Up { proof_by, .. } if !was_asleep => *proof_by = Some(now + PROOF_MAX),
            LinkState::Up { .. } => {
                self.link = LinkState::Down { retry_at: now, reason: Some(Interruption::Asleep) };
            }
        }
        matches!(self.link, LinkState::Down { .. })
    }

    /// Begin a new session on the same connection: this peer's device or name has changed.
    pub fn rejoin(&mut self, now: Moment) {
        if matches!(self.link, LinkState::Up { .. }) {
            self.link = LinkState::Down { retry_at: now, reason: None };
        }
    }

    /// A message of the backbone was received.
    pub fn on_message(&mut self, now: Moment) {
        if let LinkState::Up { rhythm, proof_by } = &mut self.link {
            rhythm.on_message(now);
            *proof_by = None;
        }
    }

    /// Bytes of an incomplete message were received from the backbone.
    pub fn on_partial_message(&mut self, now: Moment) {
        if let LinkState::Up { rhythm, proof_by } = &mut self.link {
            rhythm.on_partial_message(now);
            *proof_by = None;
        }
    }

    /// This participant itself was stalled for so long until `now`, and could not receive anything.
    pub fn on_own_stall(&mut self, now: Moment, deaf: Duration) {
        if let LinkState::Up { rhythm, proof_by } = &mut self.link {
            rhythm.on_own_stall(now, deaf);
            *proof_by = proof_by.map(|by| by + deaf);
        }
    }

    /// Whether the run has other backbones to move to.
    pub fn set_others(&mut self, has_others: bool) {
        self.has_others = has_others;
    }

    /// Whether the backbone has been silent for too long.
    pub fn is_silent(&self, now: Moment) -> bool {
        self.silent_at().is_some_and(|at| at <= now)
    }

    /// When the backbone will have been silent for too long, if nothing more comes.
    pub fn silent_at(&self) -> Option<Moment> {
        let LinkState::Up { rhythm, proof_by } = &self.link else { return None };
        let at = match self.has_others {
            true => rhythm.silent_at(SILENCE_MAX),
            false => rhythm.last_received_at() + SILENCE_MAX,
        };
        Some(proof_by.map_or(at, |by| at.min(by)))
    }

    /// What the driver does for the session; `None` while it is up, and the scheme decides. `is_done` says whether no
    /// work is left to deliver.
    pub fn next_action(&mut self, now: Moment, is_done: bool) -> Option<SessionAction> {
        match self.wanted {
            Wanted::Nothing => return Some(SessionAction::Wait(None)),
            Wanted::Stop { deadline } if is_done || now >= deadline => return Some(SessionAction::Leave),
            Wanted::Stop { .. } | Wanted::Contribute => {}
        }
        if self.is_silent(now) {
            self.on_disconnected(now, Interruption::Silent);
        }
        match self.link {
            LinkState::Down { retry_at, .. } if now >= retry_at => Some(SessionAction::Connect),
            LinkState::Down { retry_at, .. } => Some(SessionAction::Wait(Some(retry_at))),
            LinkState::Up { .. } => None,
        }
    }
}
