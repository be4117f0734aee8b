//! Access tokens and signed requests: each refusal of DeDLOC appendix I.5 by name, and the bytes that are
//! signed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use barnraise_protocol::access::{
    self, AccessMode, AccessToken, Authority, Claims, KeyPair, Nonce, PublicKey, Refusal, RelayedRequest,
    RelayedResponse, RequestRefusal, ResponseRefusal, RevokedToken, Signature, SignedRequest, SignedResponse,
    TokenId, TokenRefusal, UnixTime,
};
use barnraise_protocol::framing;

const NOW: UnixTime = UnixTime(1_800_000_000);
const TOLERANCE: Duration = Duration::from_secs(30);
const NONCE: Nonce = Nonce([9; 16]);

fn pair(seed: u8) -> KeyPair {
    KeyPair::from_seed(&[seed; 32])
}

/// Signs the tokens.
fn moderator() -> KeyPair {
    pair(1)
}

fn authority() -> Authority {
    Authority { key: moderator().public(), run_id: "barn".into() }
}

/// A token of the run, good for an hour.
fn token_of(peer: &KeyPair) -> AccessToken {
    AccessToken::sign(&moderator(), claims(peer.public())).unwrap()
}

fn claims(peer: PublicKey) -> Claims {
    let (run_id, user) = ("barn".into(), "alice".into());
    Claims { run_id, user, peer, expires_at: NOW.after(3600), token_id: TokenId([5; 16]) }
}

/// Alice's request to Bob, as she would sign it after `change`.
fn request(change: impl FnOnce(&mut SignedRequest)) -> SignedRequest {
    let alice = pair(2);
    let payload = b"payload".to_vec();
    let mut request =
        SignedRequest::sign(&alice, token_of(&alice), pair(3).public(), NOW, NONCE, payload).unwrap();
    change(&mut request);
    let SignedRequest { token, receiver, time, nonce, payload, .. } = request;
    SignedRequest::sign(&alice, token, receiver, time, nonce, payload).unwrap()
}

fn response(change: impl FnOnce(&mut SignedResponse)) -> SignedResponse {
    let bob = pair(3);
    let mut response = SignedResponse::sign(&bob, token_of(&bob), NONCE, b"payload".to_vec()).unwrap();
    change(&mut response);
    let SignedResponse { token, nonce, payload, .. } = response;
    SignedResponse::sign(&bob, token, nonce, payload).unwrap()
}

#[test]
fn a_token_is_refused_for_each_thing_that_can_be_wrong_with_it() {
    let alice = pair(2);
    let sign = |change: fn(&mut Claims)| {
        let mut claims = claims(pair(2).public());
        change(&mut claims);
        AccessToken::sign(&moderator(), claims).unwrap()
    };
    let stranger = AccessToken::sign(&pair(8), claims(alice.public())).unwrap();
    let altered = {
        let mut token = token_of(&alice);
        token.claims.expires_at = NOW.after(7200);
        token
    };
    let expired_at = NOW;
    let other_run = TokenRefusal::Run { want: "barn".into(), got: "shed".into() };
    let sender = pair(4).public();
    let cases = [
        ("another authority's", stranger, alice.public(), Err(TokenRefusal::Signature)),
        ("changed after it was signed", altered, alice.public(), Err(TokenRefusal::Signature)),
        ("another run's", sign(|claims| claims.run_id = "shed".into()), alice.public(), Err(other_run)),
        (
            "expired this very second",
            sign(|claims| claims.expires_at = NOW),
            alice.public(),
            Err(TokenRefusal::Expired { expired_at, now: NOW }),
        ),
        ("good for another second", sign(|claims| claims.expires_at = NOW.after(1)), alice.public(), Ok(())),
        (
            "shown by somebody else",
            token_of(&alice),
            sender,
            Err(TokenRefusal::Peer { named: alice.public(), sender }),
        ),
        (
            "of a name too long",
            sign(|claims| claims.user = "x".repeat(129)),
            alice.public(),
            Err(TokenRefusal::UserTooLong { got: 129 }),
        ),
        ("of the longest name", sign(|claims| claims.user = "x".repeat(128)), alice.public(), Ok(())),
        ("good", token_of(&alice), alice.public(), Ok(())),
    ];
    for (what, token, sender, want) in cases {
        assert_eq!(token.verify_from(&authority(), sender, NOW), want, "{what}");
    }
}

#[test]
fn a_request_is_refused_in_each_case_of_the_paper() {
    let here = pair(3).public();
    let expired = || {
        let claims = Claims { expires_at: NOW, ..claims(pair(2).public()) };
        AccessToken::sign(&moderator(), claims).unwrap()
    };
    let early = NOW.after(31);
    let late = UnixTime(NOW.0 - 31);
    let clock = |sent_at| Err(RequestRefusal::Clock { sent_at, now: NOW, tolerance_s: 30 });
    let named = pair(4).public();
    let cases: Vec<(&str, SignedRequest, Result<(), RequestRefusal>)> = vec![
        (
            "token not of the authority",
            request(|r| r.token = AccessToken::sign(&pair(8), claims(pair(2).public())).unwrap()),
            Err(TokenRefusal::Signature.into()),
        ),
        (
            "token expired",
            request(|r| r.token = expired()),
            Err(TokenRefusal::Expired { expired_at: NOW, now: NOW }.into()),
        ),
        (
            "signed by another than the token's peer",
            request(|r| r.token = token_of(&pair(5))),
            Err(RequestRefusal::Signature),
        ),
        (
            "payload changed on the way",
            SignedRequest { payload: b"other".to_vec(), ..request(|_| {}) },
            Err(RequestRefusal::Signature),
        ),
        (
            "nonce changed on the way",
            SignedRequest { nonce: Nonce([1; 16]), ..request(|_| {}) },
            Err(RequestRefusal::Signature),
        ),
        ("clock ahead by more than N", request(|r| r.time = early), clock(early)),
        ("clock behind by more than N", request(|r| r.time = late), clock(late)),
        ("clock ahead by N", request(|r| r.time = NOW.after(30)), Ok(())),
        ("clock behind by N", request(|r| r.time = UnixTime(NOW.0 - 30)), Ok(())),
        (
            "for another receiver",
            request(|r| r.receiver = named),
            Err(RequestRefusal::Receiver { named, here }),
        ),
        ("good", request(|_| {}), Ok(())),
    ];
    for (what, request, want) in cases {
        assert_eq!(request.verify(&authority(), here, NOW, TOLERANCE), want, "{what}");
    }
}

#[test]
fn a_response_is_refused_in_each_case_of_the_paper() {
    let asked = pair(3).public();
    let sender = pair(6);
    let from_another = SignedResponse::sign(&sender, token_of(&sender), NONCE, b"payload".to_vec()).unwrap();
    let cases: Vec<(&str, SignedResponse, Result<(), ResponseRefusal>)> = vec![
        (
            "token not of the authority",
            response(|r| r.token = AccessToken::sign(&pair(8), claims(pair(3).public())).unwrap()),
            Err(TokenRefusal::Signature.into()),
        ),
        (
            "token expired",
            response(|r| {
                let claims = Claims { expires_at: NOW, ..claims(pair(3).public()) };
                r.token = AccessToken::sign(&moderator(), claims).unwrap();
            }),
            Err(TokenRefusal::Expired { expired_at: NOW, now: NOW }.into()),
        ),
        (
            "signed by another than the token's peer",
            response(|r| r.token = token_of(&pair(5))),
            Err(ResponseRefusal::Signature),
        ),
        (
            "payload changed on the way",
            SignedResponse { payload: b"other".to_vec(), ..response(|_| {}) },
            Err(ResponseRefusal::Signature),
        ),
        ("to another request", response(|r| r.nonce = Nonce([8; 16])), Err(ResponseRefusal::Nonce)),
        (
            "from another than was asked",
            from_another,
            Err(ResponseRefusal::Sender { asked, sender: sender.public() }),
        ),
        ("good", response(|_| {}), Ok(())),
    ];
    for (what, response, want) in cases {
        assert_eq!(response.verify(&authority(), asked, NONCE, NOW), want, "{what}");
    }
}

#[test]
fn what_is_signed_for_one_thing_is_good_for_no_other() {
    let alice = pair(2);
    let request = request(|_| {});
    let response = SignedResponse {
        token: request.token.clone(),
        nonce: request.nonce,
        payload: request.payload.clone(),
        signature: request.signature,
    };
    let refusal = response.verify(&authority(), alice.public(), NONCE, NOW);
    assert_eq!(refusal, Err(ResponseRefusal::Signature));
}

#[test]
fn the_signed_bytes_are_those_that_are_documented() {
    let token = token_of(&pair(2));
    let mut claims = b"barnraise access token 1\0\x04barn\x05alice".to_vec();
    claims.extend(pair(2).public().0);
    // 1_800_003_600 as a variable-length integer, least significant group first.
    claims.extend([0x90, 0xc0, 0xa7, 0xda, 0x06]);
    claims.extend([5; 16]);
    assert!(moderator().public().has_signed(&claims, &token.signature));
}

#[test]
fn a_token_is_kept_and_read_again() {
    let token = token_of(&pair(2));
    let bytes = token.encode().unwrap();
    assert_eq!(AccessToken::decode(&bytes).unwrap(), token);
    for cut in 0..bytes.len() {
        AccessToken::decode(&bytes[..cut]).unwrap_err();
    }
    let long = Claims { user: "x".repeat(1000), ..claims(pair(2).public()) };
    assert!(AccessToken::sign(&moderator(), long).is_err());
}

/// Round trip, and what becomes of it when bytes change on the way.
fn check<M>(message: &M)
where
    M: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let frame = framing::encode(message, access::MESSAGE_BYTES_MAX).unwrap();
    assert_eq!(&framing::decode::<M>(&frame, access::MESSAGE_BYTES_MAX).unwrap(), message);
    for at in 0..frame.len() {
        framing::decode::<M>(&frame[..at], access::MESSAGE_BYTES_MAX).unwrap_err();
        for flip in [1u8, 0x80, 0xff] {
            let mut mutated = frame.clone();
            mutated[at] ^= flip;
            let _ = framing::decode::<M>(&mutated, access::MESSAGE_BYTES_MAX);
        }
    }
}

#[test]
fn every_message_survives_its_way() {
    use access::{BackboneToContributor as Down, ContributorToBackbone as Up};
    let token = token_of(&pair(2));
    check(&Up::Present(Box::new(token.clone())));
    check(&Up::Redeem { code: "code".into() });
    check(&Up::Claim);
    check(&Up::Relay(Box::new(request(|_| {}))));
    check(&Up::Revoked { since: 7 });
    check(&Down::Admitted(NOW));
    check(&Down::Granted(Box::new(token.clone())));
    check(&Down::SignIn { url: "https://h/login?peer=p".into() });
    check(&Down::Relayed(Box::new(response(|_| {}))));
    let revoked = RevokedToken { token_id: TokenId([1; 16]), expires_at: UnixTime(u64::MAX) };
    check(&Down::Revoked { tokens: vec![revoked; access::REVOKED_MAX], next: u64::MAX });
    check(&RelayedRequest::Renew);
    check(&RelayedResponse::Renewed(Box::new(token)));
    let refusals = [
        Refusal::Needed { mode: AccessMode::Invitation },
        Refusal::Token(TokenRefusal::Revoked),
        Refusal::Request(RequestRefusal::NonceUsed),
        Refusal::NoInvitation,
        Refusal::InvitationUsedUp,
        Refusal::InvitationExpired { expired_at: NOW },
        Refusal::NotOnList { user: "eve".into() },
        Refusal::OtherWay { mode: AccessMode::Open, wanted: "invitation".into() },
        Refusal::Elsewhere { at: "/ip4/192.0.2.1/tcp/1".into() },
        Refusal::KeyKind,
        Refusal::Unavailable { reason: "x".into() },
    ];
    for refusal in refusals {
        check(&Down::Refused(refusal));
    }
}

#[test]
fn golden_bytes() {
    use access::{BackboneToContributor as Down, ContributorToBackbone as Up};
    let payload = |frame: Vec<u8>| frame[framing::HEADER_BYTES..].to_vec();
    let up = |message: &Up| payload(framing::encode(message, access::MESSAGE_BYTES_MAX).unwrap());
    let down = |message: &Down| payload(framing::encode(message, access::MESSAGE_BYTES_MAX).unwrap());
    assert_eq!(up(&Up::Redeem { code: "ab".into() }), [1, 2, b'a', b'b']);
    assert_eq!(up(&Up::Claim), [2]);
    assert_eq!(up(&Up::Revoked { since: 300 }), [4, 0xac, 2]);
    assert_eq!(down(&Down::Admitted(UnixTime(300))), [0, 0xac, 2]);
    assert_eq!(down(&Down::Refused(Refusal::NoInvitation)), [5, 3]);
    let claims = Claims {
        run_id: "r".into(),
        user: "u".into(),
        peer: PublicKey([2; 32]),
        expires_at: UnixTime(300),
        token_id: TokenId([3; 16]),
    };
    let token = AccessToken { claims, signature: Signature::from([4; 64]) };
    let bytes = [&[0, 1, b'r', 1, b'u'][..], &[2; 32], &[0xac, 2], &[3; 16], &[4; 64]].concat();
    assert_eq!(up(&Up::Present(Box::new(token))), bytes);
}
