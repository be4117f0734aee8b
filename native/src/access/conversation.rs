//! The backbone's side of the `access` conversation.

use std::time::Duration;

use barnraise_protocol::access::{
    self, BackboneToContributor, ContributorToBackbone, MESSAGE_BYTES_MAX, PublicKey, REVOKED_MAX, Refusal,
    RequestRefusal, SignedRequest,
};
use barnraise_protocol::framing::{self, FrameError};
use barnraise_relay::{Node, Paced};
use barnraise_swarm::access::Policy;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Stream};

use super::{Access, AccessAuthority};
use crate::backbone::misdeeds;

/// How long another backbone may take to answer.
const RELAY_TIMEOUT: Duration = Duration::from_secs(10);

/// What a conversation needs.
pub(crate) struct Conversation {
    pub(crate) access: Access,
    /// Passes requests on.
    pub(crate) node: Node,
}

/// Answers questions on `stream` until the peer closes it.
///
/// # Errors
/// A broken stream, or silence.
pub(crate) async fn converse(
    conversation: &Conversation,
    peer: PeerId,
    stream: &mut Paced<Stream>,
) -> Result<(), FrameError> {
    let pace = stream.pace();
    loop {
        pace.wait();
        let question = match framing::read::<ContributorToBackbone, _>(stream, MESSAGE_BYTES_MAX).await {
            Err(FrameError::Closed) => return Ok(()),
            question => question?,
        };
        let speaker = speaker(peer, &question);
        let answer = match conversation.answer(peer, question).await {
            Ok(answer) => answer,
            Err(refusal) => {
                tracing::debug!(%peer, %refusal, "access refused");
                match (misdeeds::of_access(&refusal), speaker) {
                    (Some(misdeed), Some(speaker)) => conversation.node.report(speaker, misdeed),
                    (Some(misdeed), None) => conversation.node.count(misdeed),
                    (None, _) => {}
                }
                BackboneToContributor::Refused(refusal)
            }
        };
        pace.answer();
        framing::write(stream, &answer, MESSAGE_BYTES_MAX).await?;
    }
}

impl Conversation {
    async fn answer(
        &self,
        peer: PeerId,
        question: ContributorToBackbone,
    ) -> Result<BackboneToContributor, Refusal> {
        let gate = &self.access.gate;
        match question {
            ContributorToBackbone::Present(token) => {
                gate.present(peer, &token).map(BackboneToContributor::Admitted)
            }
            ContributorToBackbone::Redeem { code } => {
                if code.len() > access::CODE_BYTES_MAX {
                    return Err(Refusal::NoInvitation);
                }
                let token = self.authority("invitation")?.redeem(key_of(peer)?, &code).await?;
                gate.present(peer, &token)?;
                Ok(BackboneToContributor::Granted(Box::new(token)))
            }
            ContributorToBackbone::Claim => {
                let key = key_of(peer)?;
                let authority = self.authority("login")?;
                match authority.claim(key).await? {
                    Some(token) => {
                        gate.present(peer, &token)?;
                        Ok(BackboneToContributor::Granted(Box::new(token)))
                    }
                    None => {
                        let reason = || "this run has no page to sign in at".to_owned();
                        let url = authority.login_url(key);
                        let url = url.ok_or_else(|| Refusal::Unavailable { reason: reason() })?;
                        Ok(BackboneToContributor::SignIn { url })
                    }
                }
            }
            ContributorToBackbone::Relay(request) => self.relay(request).await,
            ContributorToBackbone::Revoked { since } => {
                let store = self.authority("question about revocations")?.store();
                let unavailable = |_| Refusal::Unavailable { reason: "the database does not answer".into() };
                let (tokens, next) = store.revoked_since(since, REVOKED_MAX).await.map_err(unavailable)?;
                Ok(BackboneToContributor::Revoked { tokens, next })
            }
        }
    }

    async fn relay(&self, request: Box<SignedRequest>) -> Result<BackboneToContributor, Refusal> {
        let Access { gate, authority, elsewhere, here } = &self.access;
        if let Some(authority) = authority {
            gate.take_request(&request)?;
            let response = authority.answer(&request).await?;
            return Ok(BackboneToContributor::Relayed(Box::new(response)));
        }
        let named = request.receiver;
        let Some(address) = elsewhere.as_ref().filter(|_| named == gate.policy().authority.key) else {
            return Err(RequestRefusal::Receiver { named, here: *here }.into());
        };
        // All but the nonce, so that what is forged goes no further; the authority checks it again.
        let Policy { authority, clock_tolerance, .. } = gate.policy();
        request.verify(authority, named, gate.now(), *clock_tolerance)?;
        let question = ContributorToBackbone::Relay(request);
        ask(&self.node, address, &question).await.map_err(|reason| Refusal::Unavailable { reason })
    }

    fn authority(&self, wanted: &str) -> Result<&AccessAuthority, Refusal> {
        let Access { gate, authority, elsewhere, .. } = &self.access;
        authority.as_ref().ok_or_else(|| match elsewhere {
            Some(address) => Refusal::Elsewhere { at: address.to_string() },
            None => Refusal::OtherWay { mode: gate.policy().mode, wanted: wanted.into() },
        })
    }
}

/// Asks another backbone, over a connection that may stand already.
pub(super) async fn ask(
    node: &Node,
    address: &Multiaddr,
    question: &ContributorToBackbone,
) -> Result<BackboneToContributor, String> {
    let asked = async {
        let peer = match address.iter().last() {
            Some(Protocol::P2p(peer)) => peer,
            _ => return Err(format!("{address} names no peer")),
        };
        node.dial(address.clone()).await.map_err(|error| error.to_string())?;
        let mut stream = node.open(peer, access::PROTOCOL).await.map_err(|error| error.to_string())?;
        let answer = access::ask(&mut stream, question).await.map_err(|error| error.to_string())?;
        // It is read whole; the other side sees the end of the stream either way.
        let _ = futures::AsyncWriteExt::close(&mut stream).await;
        Ok(answer)
    };
    let timeout = |_| format!("{address} did not answer in {} s", RELAY_TIMEOUT.as_secs());
    tokio::time::timeout(RELAY_TIMEOUT, asked).await.map_err(timeout)?
}

/// Whose fault it is if the question is refused: a request may be carried by somebody who did not make it.
fn speaker(peer: PeerId, question: &ContributorToBackbone) -> Option<PeerId> {
    match question {
        ContributorToBackbone::Relay(request) => {
            (PublicKey::of_peer_id(&peer.to_bytes()) == Some(request.token.claims.peer)).then_some(peer)
        }
        _ => Some(peer),
    }
}

fn key_of(peer: PeerId) -> Result<PublicKey, Refusal> {
    PublicKey::of_peer_id(&peer.to_bytes()).ok_or(Refusal::KeyKind)
}
