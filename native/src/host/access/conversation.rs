//! The backbone's side of the `access` conversation.

use std::time::Duration;

use barnraise_protocol::access::{
    self, AccessError, AccessRefusal, BackboneToContributor, ContributorToBackbone, MESSAGE_BYTES_MAX,
    PublicKey, REVOKED_MAX, RequestRefusal, SignedRequest,
};
use barnraise_protocol::framing::{self, FrameError};
use barnraise_relay::{Node, NodeError, Paced};
use barnraise_swarm::access::Policy;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Stream};

use super::{Access, AccessAuthority};
use crate::net::violations;

/// Longest wait for another backbone's answer.
const RELAY_TIMEOUT: Duration = Duration::from_secs(10);

/// State that all `access` conversations share.
pub(crate) struct Conversation {
    pub(crate) access: Access,
    /// Relays requests to the authority, and reports violations.
    pub(crate) node: Node,
}

/// Answers questions on `stream` until the peer closes it.
///
/// # Errors
/// The stream broke, or the peer was silent for too long.
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
                match (violations::of_access(&refusal), speaker) {
                    (Some(violation), Some(speaker)) => conversation.node.report(speaker, violation),
                    (Some(violation), None) => conversation.node.count(violation),
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
    ) -> Result<BackboneToContributor, AccessRefusal> {
        let gate = &self.access.gate;
        match question {
            ContributorToBackbone::Present(token) => {
                gate.present(peer, &token).map(BackboneToContributor::Admitted)
            }
            ContributorToBackbone::Redeem { code } => {
                if code.len() > access::CODE_BYTES_MAX {
                    return Err(AccessRefusal::NoInvitation);
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
                        let url = url.ok_or_else(|| AccessRefusal::Unavailable { reason: reason() })?;
                        Ok(BackboneToContributor::SignIn { url })
                    }
                }
            }
            ContributorToBackbone::Relay(request) => self.relay(request).await,
            ContributorToBackbone::Revoked { .. } if self.access.authority.is_none() => {
                // For those with access alone: it costs the authority a question.
                gate.check(peer).map_err(|_| AccessRefusal::Needed { mode: gate.policy().mode })?;
                self.ask_authority(&question).await
            }
            ContributorToBackbone::Revoked { since } => {
                let store = self.authority("question about revocations")?.store();
                let unavailable =
                    |_| AccessRefusal::Unavailable { reason: "the database does not answer".into() };
                let (tokens, next) = store.revoked_since(since, REVOKED_MAX).await.map_err(unavailable)?;
                Ok(BackboneToContributor::Revoked { tokens, next })
            }
        }
    }

    async fn relay(&self, request: Box<SignedRequest>) -> Result<BackboneToContributor, AccessRefusal> {
        let Access { gate, authority, here, .. } = &self.access;
        if let Some(authority) = authority {
            gate.take_request(&request)?;
            let response = authority.answer(&request).await?;
            return Ok(BackboneToContributor::Relayed(Box::new(response)));
        }
        let named = request.receiver;
        if self.access.remote_authority.is_none() || named != gate.policy().authority.key {
            return Err(RequestRefusal::Receiver { named, here: *here }.into());
        }
        // Everything but the nonce is checked here, so that no forgery is relayed; the authority checks all of it again.
        let Policy { authority, clock_tolerance, .. } = gate.policy();
        request.verify(authority, named, gate.now(), *clock_tolerance)?;
        self.ask_authority(&ContributorToBackbone::Relay(request)).await
    }

    /// Asks the backbone that is the run's authority.
    async fn ask_authority(
        &self,
        question: &ContributorToBackbone,
    ) -> Result<BackboneToContributor, AccessRefusal> {
        let elsewhere = self.access.remote_authority.as_ref();
        let address = elsewhere.ok_or_else(|| AccessRefusal::Unavailable {
            reason: "this run has no authority that could be asked".into(),
        })?;
        let asked = ask(&self.node, address, question).await;
        asked.map_err(|error| AccessRefusal::Unavailable { reason: error.to_string() })
    }

    fn authority(&self, wanted: &str) -> Result<&AccessAuthority, AccessRefusal> {
        let Access { gate, authority, remote_authority: elsewhere, .. } = &self.access;
        authority.as_ref().ok_or_else(|| match elsewhere {
            Some(address) => AccessRefusal::Elsewhere { at: address.to_string() },
            None => AccessRefusal::OtherWay { mode: gate.policy().mode, wanted: wanted.into() },
        })
    }
}

/// Why another backbone did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("{0} names no peer")]
    NoPeer(Multiaddr),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("{0} did not answer in {timeout} s", timeout = RELAY_TIMEOUT.as_secs())]
    Timeout(Multiaddr),
}

/// Sends `question` to another backbone, over an existing connection where there is one.
pub(super) async fn ask(
    node: &Node,
    address: &Multiaddr,
    question: &ContributorToBackbone,
) -> Result<BackboneToContributor, AskError> {
    let asked = async {
        let peer = match address.iter().last() {
            Some(Protocol::P2p(peer)) => peer,
            _ => return Err(AskError::NoPeer(address.clone())),
        };
        node.dial(address.clone()).await?;
        let mut stream = node.open(peer, access::PROTOCOL).await?;
        let answer = access::ask(&mut stream, question).await?;
        // It is read whole; the other side sees the end of the stream either way.
        let _ = futures::AsyncWriteExt::close(&mut stream).await;
        Ok(answer)
    };
    tokio::time::timeout(RELAY_TIMEOUT, asked).await.map_err(|_| AskError::Timeout(address.clone()))?
}

/// The peer to blame if the question is refused; `None` for a relayed request, whose carrier did not make it.
fn speaker(peer: PeerId, question: &ContributorToBackbone) -> Option<PeerId> {
    match question {
        ContributorToBackbone::Relay(request) => {
            (PublicKey::of_peer_id(&peer.to_bytes()) == Some(request.token.claims.peer)).then_some(peer)
        }
        _ => Some(peer),
    }
}

fn key_of(peer: PeerId) -> Result<PublicKey, AccessRefusal> {
    PublicKey::of_peer_id(&peer.to_bytes()).ok_or(AccessRefusal::KeyKind)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::access::{AccessMode, Nonce};
    use barnraise_relay::NodeConfig;
    use barnraise_swarm::guard::PaceLimits;
    use libp2p::identity::Keypair;

    use super::super::tests::{AuthorityHarness, pair, peer_id, terms, world};
    use super::*;

    /// A backbone that is the authority, or asks the one at `remote_authority`.
    async fn conversation(
        world: &AuthorityHarness,
        is_authority: bool,
        remote_authority: Option<Multiaddr>,
    ) -> Conversation {
        let (gate, authority) = (world.gate.clone(), is_authority.then(|| world.authority.clone()));
        let access = Access { gate, authority, remote_authority, here: pair(8).public() };
        let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
        Conversation { access, node }
    }

    /// Where nobody listens.
    fn address() -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/1/p2p/{}", peer_id(pair(1).public())).parse().unwrap()
    }

    /// A request of peer 2 to this receiver.
    async fn request(world: &AuthorityHarness, receiver: PublicKey) -> ContributorToBackbone {
        let (token, now) = (world.invited(2).await, world.now());
        let request = SignedRequest::sign(&pair(2), token, receiver, now, Nonce([1; 16]), Vec::new());
        ContributorToBackbone::Relay(Box::new(request.unwrap()))
    }

    #[tokio::test]
    async fn a_code_of_the_greatest_length_is_looked_up_and_a_longer_one_is_not() {
        let world = world(AccessMode::Invitation).await;
        let conversation = conversation(&world, true, None).await;
        for (seed, n_bytes, is_granted) in
            [(2, access::CODE_BYTES_MAX, true), (3, access::CODE_BYTES_MAX + 1, false)]
        {
            let (peer, code, now) = (peer_id(pair(seed).public()), "c".repeat(n_bytes), world.now());
            world.store().invite(&code, terms(1, now.after(60)), now).await.unwrap();
            let answer = conversation.answer(peer, ContributorToBackbone::Redeem { code }).await;
            assert_eq!(answer.is_ok(), is_granted, "{answer:?}");
            assert_eq!(world.gate.check(peer).is_ok(), is_granted);
        }
        let asked = ContributorToBackbone::Revoked { since: 0 };
        let answer = conversation.answer(peer_id(pair(4).public()), asked).await.unwrap();
        assert_eq!(answer, BackboneToContributor::Revoked { tokens: Vec::new(), next: 0 });
    }

    #[tokio::test]
    async fn who_asks_another_backbone_than_the_authority_is_told_where_that_is() {
        let world = world(AccessMode::Invitation).await;
        let elsewhere = conversation(&world, false, Some(address())).await;
        let nowhere = conversation(&world, false, None).await;
        let (peer, mode) = (peer_id(pair(4).public()), AccessMode::Invitation);
        let redeem = || ContributorToBackbone::Redeem { code: "code".to_owned() };
        let told = elsewhere.answer(peer, redeem()).await.unwrap_err();
        assert_eq!(told, AccessRefusal::Elsewhere { at: address().to_string() });
        let told = nowhere.answer(peer, redeem()).await.unwrap_err();
        assert_eq!(told, AccessRefusal::OtherWay { mode, wanted: "invitation".to_owned() });
        let asked = ContributorToBackbone::Revoked { since: 0 };
        let told = elsewhere.answer(peer, asked).await.unwrap_err();
        assert_eq!(
            told,
            AccessRefusal::Needed { mode },
            "the authority is asked for those with access alone"
        );
    }

    #[tokio::test]
    async fn a_request_is_passed_on_to_the_authority_alone() {
        let (authority, other) = (pair(1).public(), pair(9).public());
        for (remote, receiver, is_passed_on) in
            [(Some(address()), authority, true), (Some(address()), other, false), (None, authority, false)]
        {
            let world = world(AccessMode::Invitation).await;
            let conversation = conversation(&world, false, remote).await;
            let question = request(&world, receiver).await;
            let told = conversation.answer(peer_id(pair(2).public()), question).await.unwrap_err();
            let here = pair(8).public();
            let refusal = AccessRefusal::from(RequestRefusal::Receiver { named: receiver, here });
            match is_passed_on {
                // And does not answer.
                true => assert!(matches!(told, AccessRefusal::Unavailable { .. }), "{told}"),
                false => assert_eq!(told, refusal),
            }
        }
    }

    #[tokio::test]
    async fn who_carries_a_request_is_not_blamed_for_it() {
        let world = world(AccessMode::Invitation).await;
        let question = request(&world, pair(1).public()).await;
        let [own, carrier] = [2, 3].map(|seed| peer_id(pair(seed).public()));
        assert_eq!((speaker(own, &question), speaker(carrier, &question)), (Some(own), None));
        assert_eq!(speaker(carrier, &ContributorToBackbone::Claim), Some(carrier));
    }

    #[tokio::test]
    async fn a_backbone_asks_another_one_which_answers_until_the_stream_ends() {
        let world = world(AccessMode::Invitation).await;
        world.store().invite("code", terms(1, world.now().after(60)), world.now()).await.unwrap();
        let here = pair(1).public();
        let access = Access {
            gate: world.gate.clone(),
            authority: Some(world.authority.clone()),
            remote_authority: None,
            here,
        };
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let config = NodeConfig { listen, ..NodeConfig::default() };
        let node = Node::start(Keypair::generate_ed25519(), config).await.unwrap();
        let address = node.addresses().into_iter().next().unwrap();
        let mut incoming = node.accept(access::PROTOCOL).unwrap();
        let answering = Conversation { access, node };
        let answered = tokio::spawn(async move {
            let long = Duration::from_secs(60);
            let limits = PaceLimits {
                first_message: long,
                idle: long,
                message: long,
                stall: long,
                bytes_per_second_min: 1,
            };
            let (peer, stream) = incoming.recv().await.unwrap();
            converse(&answering, peer, &mut Paced::new(stream, limits)).await
        });
        let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
        let redeem = ContributorToBackbone::Redeem { code: "code".to_owned() };
        let granted = ask(&node, &address, &redeem).await.unwrap();
        assert!(matches!(granted, BackboneToContributor::Granted(_)), "{granted:?}");
        assert!(world.gate.check(node.peer_id()).is_ok());
        answered.await.unwrap().unwrap();
        let nobody: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
        let error = ask(&node, &nobody, &redeem).await.unwrap_err();
        assert!(matches!(error, AskError::NoPeer(_)), "{error}");
    }
}
