//! Access to a run for a peer that takes part in it without contributing: a host of experts, or a participant of a run without a
//! server. It gains access, shows its token and renews it as a contributor does.

use std::rc::Rc;

use barnraise_protocol::access::AccessToken;
use barnraise_protocol::run::RunDescription;
use futures::channel::oneshot;

use crate::error::OperationError;
use crate::kit::access::{self, AccessTicket, Credentials};
use crate::kit::operation::NetworkOperation;
use crate::platform::Platform;

/// Why a peer has no access.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct RunAccessError(#[from] OperationError);

impl RunAccessError {
    /// Whether the run does not let this peer in, and a retry does not change that.
    pub fn is_final(&self) -> bool {
        self.0.is_final()
    }
}

/// The access of one peer to one run, at the backbone that its platform is connected to.
pub struct RunAccess<'a, P: Platform> {
    platform: &'a P,
    ticket: AccessTicket,
    run: RunDescription,
}

impl<'a, P: Platform> RunAccess<'a, P> {
    /// A peer that has not asked for access yet.
    pub fn new(platform: &'a P, credentials: Credentials, run: RunDescription) -> Self {
        Self { platform, ticket: AccessTicket::new(credentials), run }
    }

    /// Gains access, as the run's mode requires, or shows the token that gave it before. Waits for a person to sign in, where that
    /// is wanted: see [`Self::sign_in`].
    ///
    /// # Errors
    /// No access, or no answer.
    pub async fn enter(&self) -> Result<(), RunAccessError> {
        let (_going_on, cancelled) = oneshot::channel();
        let mut operation = NetworkOperation { platform: self.platform, meter: Rc::default(), cancelled };
        Ok(access::enter(&mut operation, &self.ticket, &self.run, true).await?)
    }

    /// Renews the token where it is time to, and gains access anew where it has expired.
    ///
    /// # Errors
    /// No access, or no answer; until the token expires it is good.
    pub async fn renew(&self) -> Result<(), RunAccessError> {
        let now = self.platform.unix_time();
        if self.token().is_none_or(|token| token.claims.expires_at <= now) {
            return self.enter().await;
        }
        if !self.ticket.is_old(now) {
            return Ok(());
        }
        let (_going_on, cancelled) = oneshot::channel();
        let mut operation = NetworkOperation { platform: self.platform, meter: Rc::default(), cancelled };
        Ok(access::renew(&mut operation, &self.ticket, &self.run).await?)
    }

    /// URL where a person has to sign in for this peer, while that is waited for.
    pub fn sign_in(&self) -> Option<String> {
        self.ticket.sign_in()
    }

    /// The token of this peer; none in an open run.
    pub fn token(&self) -> Option<AccessToken> {
        self.ticket.token()
    }
}
