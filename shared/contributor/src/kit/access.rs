//! Access of a contributor to a run that is not open: with a stored token, an invitation, or
//! a sign-in for its key; and the renewal of its token.
//!
//! Every token is verified before it is stored, so a backbone cannot forge one. The secret
//! key never leaves this peer.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use barnraise_protocol::access::{
    self, AccessDescription, AccessMode, AccessRefusal, AccessToken, BackboneToContributor,
    ContributorToBackbone, KeyPair, Nonce, PublicKey, RelayedRequest, RelayedResponse, SignedRequest,
    UnixTime,
};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::{ConversationError, Sha256Hash, framing};
use barnraise_swarm::PeerKey;

use super::operation::{CountedStream, NetworkOperation, PEER_LIMITS};
use crate::error::OperationError;
use crate::platform::Platform;

/// Interval between questions to the backbone whether the visitor has signed in.
const CLAIM_EVERY: Duration = Duration::from_secs(1);
/// A failed renewal is retried after one such part of the token's remaining lifetime, and after so many seconds at least.
const RETRY_PART: u64 = 8;
const RETRY_MIN_S: u64 = 1;

/// Credentials of a peer.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// The Ed25519 key of its peer id; without it only open runs admit it.
    pub key: Option<KeyPair>,
    /// The code of an invitation.
    pub invitation: Option<String>,
}

/// State of this peer's access: its credentials and its token.
#[derive(Debug)]
pub(crate) struct AccessTicket {
    credentials: Credentials,
    token: RefCell<Option<AccessToken>>,
    renew_at: Cell<Option<UnixTime>>,
    n_requests: Cell<u64>,
    /// URL of the sign-in that is waited for.
    sign_in: RefCell<Option<String>>,
}

impl AccessTicket {
    pub(crate) fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            token: RefCell::default(),
            renew_at: Cell::new(None),
            n_requests: Cell::new(0),
            sign_in: RefCell::default(),
        }
    }

    /// Whether it is time to renew the token.
    pub(crate) fn is_old(&self, now: UnixTime) -> bool {
        self.renew_at.get().is_some_and(|at| at <= now)
    }

    /// URL where the visitor has to sign in for this peer.
    pub(crate) fn sign_in(&self) -> Option<String> {
        self.sign_in.borrow().clone()
    }

    /// This peer's public key, where it has one.
    pub(crate) fn peer(&self) -> Option<PublicKey> {
        self.credentials.key.as_ref().map(KeyPair::public)
    }

    /// The key that signs this peer's commitments.
    pub(crate) fn signing_key(&self) -> Option<KeyPair> {
        self.credentials.key.clone()
    }

    /// The token that is presented now.
    pub(crate) fn token(&self) -> Option<AccessToken> {
        self.token.borrow().clone()
    }

    fn key(&self) -> Result<&KeyPair, OperationError> {
        self.credentials.key.as_ref().ok_or_else(|| ConversationError::from(AccessRefusal::KeyKind).into())
    }

    /// Stores the token that is presented from now on. It is renewed when two thirds of its lifetime are over.
    fn hold(&self, token: AccessToken, now: UnixTime) {
        let left = token.claims.expires_at.0.saturating_sub(now.0);
        self.renew_at.set(Some(now.after(left - left / 3)));
        self.token.replace(Some(token));
    }

    fn drop_token(&self) {
        self.renew_at.set(None);
        self.token.take();
    }

    /// Schedules another renewal after a failed one, if the token has not expired.
    fn retry(&self, now: UnixTime) {
        let expires_at = self.token.borrow().as_ref().map(|token| token.claims.expires_at);
        let left = expires_at.map_or(0, |at| at.0.saturating_sub(now.0));
        self.renew_at.set((left > 0).then(|| now.after((left / RETRY_PART).max(RETRY_MIN_S))));
    }
}

/// Gains access to the run, as its access mode requires. Waits for the visitor to sign in if it `may_wait`.
pub(crate) async fn enter<P: Platform>(
    operation: &mut NetworkOperation<'_, P>,
    ticket: &AccessTicket,
    run: &RunDescription,
    may_wait: bool,
) -> Result<(), OperationError> {
    let AccessDescription { mode, .. } = run.access;
    if mode == AccessMode::Open {
        return Ok(());
    }
    ticket.key()?;
    let mut stream = None;
    if show(operation, &mut stream, ticket, run).await? {
        return Ok(());
    }
    let token = match mode {
        AccessMode::Open => return Ok(()),
        AccessMode::Invitation => {
            let code = ticket.credentials.invitation.clone().ok_or(OperationError::NoInvitation)?;
            ask(operation, &mut stream, &ContributorToBackbone::Redeem { code }).await?
        }
        AccessMode::Allowlist => {
            let claimed = claim(operation, &mut stream, ticket, may_wait).await;
            ticket.sign_in.take();
            claimed?
        }
    };
    match token {
        BackboneToContributor::Granted(token) => keep(operation, ticket, run, *token).await,
        _ => Err(unexpected()),
    }
}

/// Presents the token in memory, or the one stored before a restart; `false` without a valid one.
async fn show<P: Platform>(
    operation: &mut NetworkOperation<'_, P>,
    stream: &mut Option<CountedStream<P>>,
    ticket: &AccessTicket,
    run: &RunDescription,
) -> Result<bool, OperationError> {
    let sender = ticket.key()?.public();
    let held = ticket.token.borrow().clone();
    let token = match held {
        Some(token) => Some(token),
        None => {
            let kept = operation.platform.kept_token(token_name(ticket, run)?).await;
            kept.and_then(|bytes| AccessToken::decode(&bytes).ok())
        }
    };
    let now = operation.platform.unix_time();
    let is_good = |token: &AccessToken| token.verify_from(&run.authority(), sender, now).is_ok();
    let Some(token) = token.filter(is_good) else {
        ticket.drop_token();
        return Ok(false);
    };
    match ask(operation, stream, &ContributorToBackbone::Present(Box::new(token.clone()))).await {
        Ok(BackboneToContributor::Admitted(_)) => {
            ticket.hold(token, now);
            Ok(true)
        }
        Ok(_) => Err(unexpected()),
        Err(OperationError::Conversation(ConversationError::Access(AccessRefusal::Token(_)))) => {
            ticket.drop_token();
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Presents the token to another contributor, before a request to it.
pub(crate) async fn present_to<P: Platform>(
    operation: &mut NetworkOperation<'_, P>,
    ticket: &AccessTicket,
    run: &RunDescription,
    peer: &PeerKey,
) -> Result<(), OperationError> {
    if run.access.mode == AccessMode::Open {
        return Ok(());
    }
    let token = ticket.token.borrow().clone();
    let token = token.ok_or(ConversationError::Access(AccessRefusal::Needed { mode: run.access.mode }))?;
    let mut stream = operation.open_to(peer, access::PROTOCOL).await?;
    let moved = stream.moved();
    let shown = ContributorToBackbone::Present(Box::new(token));
    let asking = access::ask(&mut stream, &shown);
    match operation.guard_with(PEER_LIMITS, &moved, asking).await?? {
        BackboneToContributor::Admitted(_) => Ok(()),
        _ => Err(unexpected()),
    }
}

/// Asks the backbone until the visitor has signed in.
async fn claim<P: Platform>(
    operation: &mut NetworkOperation<'_, P>,
    stream: &mut Option<CountedStream<P>>,
    ticket: &AccessTicket,
    may_wait: bool,
) -> Result<BackboneToContributor, OperationError> {
    loop {
        match ask(operation, stream, &ContributorToBackbone::Claim).await? {
            BackboneToContributor::SignIn { url } if may_wait => {
                ticket.sign_in.replace(Some(url));
                let platform = operation.platform;
                let pause = platform.sleep_until(platform.now() + CLAIM_EVERY);
                operation.guard(&Cell::new(0), pause).await?;
            }
            BackboneToContributor::SignIn { .. } => return Err(OperationError::NotSignedIn),
            answer => return Ok(answer),
        }
    }
}

/// Gets a new token before the old one expires, and presents it; other conversations continue.
pub(crate) async fn renew<P: Platform>(
    operation: &mut NetworkOperation<'_, P>,
    ticket: &AccessTicket,
    run: &RunDescription,
) -> Result<(), OperationError> {
    let renewed = try_renew(operation, ticket, run).await;
    if renewed.is_err() {
        ticket.retry(operation.platform.unix_time());
    }
    renewed
}

async fn try_renew<P: Platform>(
    operation: &mut NetworkOperation<'_, P>,
    ticket: &AccessTicket,
    run: &RunDescription,
) -> Result<(), OperationError> {
    let now = operation.platform.unix_time();
    let token = ticket.token.borrow().clone();
    let Some(token) = token else { return Ok(()) };
    let asked = run.access.authority;
    let (nonce, request) = request(ticket, token, asked, now)?;
    let mut stream = None;
    let answer = ask(operation, &mut stream, &ContributorToBackbone::Relay(Box::new(request))).await?;
    let BackboneToContributor::Relayed(response) = answer else { return Err(unexpected()) };
    response.verify(&run.authority(), asked, nonce, operation.platform.unix_time())?;
    let token = match framing::decode_payload(&response.payload)? {
        RelayedResponse::Renewed(token) => *token,
        RelayedResponse::Refused(refusal) => return Err(ConversationError::from(refusal).into()),
    };
    let shown = ContributorToBackbone::Present(Box::new(token.clone()));
    match ask(operation, &mut stream, &shown).await? {
        BackboneToContributor::Admitted(_) => keep(operation, ticket, run, token).await,
        _ => Err(unexpected()),
    }
}

/// A renewal request that any backbone may relay to the authority.
fn request(
    ticket: &AccessTicket,
    token: AccessToken,
    asked: access::PublicKey,
    now: UnixTime,
) -> Result<(Nonce, SignedRequest), OperationError> {
    let key = ticket.key()?;
    let number = ticket.n_requests.get();
    ticket.n_requests.set(number + 1);
    // The token differs after a restart, or the time does.
    let about = [&token.claims.token_id.0[..], &now.0.to_le_bytes(), &number.to_le_bytes()].concat();
    let nonce = Nonce(key.derive(&about));
    let payload = framing::encode(&RelayedRequest::Renew, access::signed::PAYLOAD_BYTES_MAX)?;
    let payload = payload[framing::HEADER_BYTES..].to_vec();
    let request = SignedRequest::sign(key, token, asked, now, nonce, payload);
    Ok((nonce, request.map_err(framing::FrameError::from)?))
}

/// Verifies a new token and stores it, in memory and for the next start.
async fn keep<P: Platform>(
    operation: &mut NetworkOperation<'_, P>,
    ticket: &AccessTicket,
    run: &RunDescription,
    token: AccessToken,
) -> Result<(), OperationError> {
    let now = operation.platform.unix_time();
    let verified = token.verify_from(&run.authority(), ticket.key()?.public(), now);
    verified.map_err(|refusal| ConversationError::from(AccessRefusal::Token(refusal)))?;
    if let Ok(bytes) = token.encode() {
        operation.platform.keep_token(token_name(ticket, run)?, &bytes).await;
    }
    ticket.hold(token, now);
    Ok(())
}

/// The name under which this peer's token for a run is stored.
fn token_name(ticket: &AccessTicket, run: &RunDescription) -> Result<Sha256Hash, OperationError> {
    let (peer, authority) = (ticket.key()?.public(), run.access.authority);
    let name =
        [&b"barnraise kept token 1\0"[..], &peer.0, &authority.0, run.identity.run_id.as_bytes()].concat();
    Ok(Sha256Hash::of(&name))
}

async fn ask<P: Platform>(
    operation: &mut NetworkOperation<'_, P>,
    stream: &mut Option<CountedStream<P>>,
    question: &ContributorToBackbone,
) -> Result<BackboneToContributor, OperationError> {
    operation.converse(stream, access::PROTOCOL, async |stream| access::ask(stream, question).await).await
}

fn unexpected() -> OperationError {
    ConversationError::Unexpected("a question about access was answered with another message").into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::access::{Claims, TokenId};

    use super::*;

    const NOW: UnixTime = UnixTime(1_000_000);

    fn token(expires_at: UnixTime) -> AccessToken {
        let (run_id, user) = ("barn".to_owned(), "alice".to_owned());
        let peer = KeyPair::from_seed(&[2; 32]).public();
        let claims = Claims { run_id, user, peer, expires_at, token_id: TokenId([1; 16]), may_host: false };
        AccessToken::sign(&KeyPair::from_seed(&[1; 32]), claims).unwrap()
    }

    #[test]
    fn a_token_is_renewed_with_a_third_of_its_time_to_spare_and_again_where_that_fails() {
        let ticket = AccessTicket::new(Credentials::default());
        assert!(!ticket.is_old(UnixTime(u64::MAX)), "there is none");
        ticket.hold(token(NOW.after(90)), NOW);
        assert!(!ticket.is_old(NOW.after(59)) && ticket.is_old(NOW.after(60)));
        ticket.retry(NOW.after(60));
        assert!(!ticket.is_old(NOW.after(62)) && ticket.is_old(NOW.after(63)));
        ticket.retry(NOW.after(89));
        assert!(ticket.is_old(NOW.after(90)));
        // An expired token is not renewed: the next connection gets another one.
        ticket.retry(NOW.after(90));
        assert!(!ticket.is_old(UnixTime(u64::MAX)));
    }

    #[test]
    fn no_two_requests_have_a_nonce_in_common() {
        let key = Some(KeyPair::from_seed(&[2; 32]));
        let ticket = AccessTicket::new(Credentials { key, invitation: None });
        let asked = KeyPair::from_seed(&[1; 32]).public();
        let nonce = |now| request(&ticket, token(NOW.after(90)), asked, now).unwrap().0;
        assert_ne!(nonce(NOW), nonce(NOW));
        assert_ne!(nonce(NOW), nonce(NOW.after(1)));
        let nobody = AccessTicket::new(Credentials::default());
        assert!(request(&nobody, token(NOW.after(90)), asked, NOW).is_err());
    }
}
