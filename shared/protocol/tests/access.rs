//! Access tokens and signed requests: each refusal of DeDLOC appendix I.5 by name, and the bytes that are
//! signed.

use std::time::Duration;

use barnraise_protocol::access::{
    self, AccessMode, AccessRefusal, AccessToken, Authority, Claims, ConvictedWork, KeyPair, Nonce,
    PublicKey, RelayedRequest, RelayedResponse, RequestRefusal, ResponseRefusal, RevokedToken, SignedRequest,
    SignedResponse, TokenId, TokenRefusal, UnixTime,
};

use crate::golden::{self, Message, hex};

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
    Claims { run_id, user, peer, expires_at: NOW.after(3600), token_id: TokenId([5; 16]), may_host: true }
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
            "presented by another peer",
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
    let mut claims = b"barnraise access token 2\0\x04barn\x05alice".to_vec();
    claims.extend(pair(2).public().0);
    // 1_800_003_600 as a variable-length integer, least significant group first.
    claims.extend([0x90, 0xc0, 0xa7, 0xda, 0x06]);
    claims.extend([5; 16]);
    claims.push(1);
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

fn check(message: &impl Message, golden: &str) {
    golden::check(message, access::MESSAGE_BYTES_MAX, golden);
}

/// Of the key of [`pair`] 2, signed by that of [`moderator`].
const TOKEN: &str = "046261726e05616c6963658139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b39490c0a7da060505050505050505050505050505050501a33ec95949a66b05920e2a04955cfb23d96959cd12b5078af552d8f627d7ef590f9c234e65b87dea67e2bc3065d06b356949b0cbb11c7c1e5b3438286935e209";
/// Of receiver, time, nonce and payload, with the signature of [`pair`] 2.
const REQUEST: &str = "ed4928c628d1c2c6eae90338905995612959273a5c63f93636c14614ac8737d180a4a7da0609090909090909090909090909090909077061796c6f61647c1c800544d8205de2122f03ece8f4986ae7c172f832bb985e63b3543ca0439a6c7beec761217c5d75b6fba6d7570f0438eac9e3342f08f1445b97997d51ee0e";
/// Of [`response`]: token, nonce, payload and signature.
const RESPONSE: &str = "046261726e05616c696365ed4928c628d1c2c6eae90338905995612959273a5c63f93636c14614ac8737d190c0a7da060505050505050505050505050505050501e436915610c3885efc1186bde1bef7eec8de27be3af796621811bdd848c05317b9ecd155e39fa8e991bd3bbb19f95e09d11bb5062969fed985eb85a66c94db0b09090909090909090909090909090909077061796c6f6164683f8fb3c667bd66b79a789c7d4c3825c468aaa770d509ed9246268fa2982f14e86351d85eadcf8c39c6711a0862b3ff4c280ecb05c47999cffd0bae86e07203";
/// 1,800,000,000 as a variable-length integer.
const NOW_HEX: &str = "80a4a7da06";

#[test]
fn questions() {
    use access::ContributorToBackbone as Up;
    let token = token_of(&pair(2));
    check(&Up::Present(Box::new(token)), &format!("00{TOKEN}"));
    check(&Up::Redeem { code: "code".into() }, "0104636f6465");
    check(&Up::Claim, "02");
    check(&Up::Relay(Box::new(request(|_| {}))), &format!("03{TOKEN}{REQUEST}"));
    check(&Up::Revoked { since: 300 }, "04ac02");
    check(&RelayedRequest::Renew, "00");
}

#[test]
fn answers() {
    use access::BackboneToContributor as Down;
    let token = token_of(&pair(2));
    check(&Down::Admitted(NOW), &format!("00{NOW_HEX}"));
    check(&Down::Granted(Box::new(token.clone())), &format!("01{TOKEN}"));
    check(&Down::SignIn { url: "https://h/".into() }, "020a68747470733a2f2f682f");
    check(&Down::Relayed(Box::new(response(|_| {}))), &format!("03{RESPONSE}"));
    let revoked = RevokedToken { token_id: TokenId([1; 16]), expires_at: UnixTime(u64::MAX) };
    let largest = "ffffffffffffffffff01";
    let one = format!("{}{largest}", "01".repeat(16));
    check(&Down::Revoked { tokens: vec![revoked], next: 300 }, &format!("0401{one}ac02"));
    let most = Down::Revoked { tokens: vec![revoked; access::REVOKED_MAX], next: u64::MAX };
    check(&most, &format!("048004{}{largest}", one.repeat(access::REVOKED_MAX)));
    check(&RelayedResponse::Renewed(Box::new(token)), &format!("00{TOKEN}"));
    check(&RelayedResponse::Refused(AccessRefusal::NoInvitation), "0103");
}

#[test]
fn refusals() {
    let here = PublicKey([0x11; 32]);
    let sender = PublicKey([0x22; 32]);
    let (ones, twos) = ("11".repeat(32), "22".repeat(32));
    let (token, asked) = (AccessRefusal::Token, AccessRefusal::Request);
    let (small, large) = (UnixTime(3), UnixTime(300));
    for (refusal, golden) in [
        (AccessRefusal::Needed { mode: AccessMode::Open }, "0000".to_owned()),
        (AccessRefusal::Needed { mode: AccessMode::Invitation }, "0001".into()),
        (AccessRefusal::Needed { mode: AccessMode::Allowlist }, "0002".into()),
        (token(TokenRefusal::Signature), "0100".into()),
        (token(TokenRefusal::Run { want: "a".into(), got: "bc".into() }), "01010161026263".into()),
        (token(TokenRefusal::Expired { expired_at: small, now: large }), "010203ac02".into()),
        (token(TokenRefusal::Peer { named: here, sender }), format!("0103{ones}{twos}")),
        (token(TokenRefusal::Revoked), "0104".into()),
        (token(TokenRefusal::UserTooLong { got: 300 }), "0105ac02".into()),
        (token(TokenRefusal::Convicted(ConvictedWork::Contribution { epoch: 300 })), "010600ac02".into()),
        (token(TokenRefusal::Convicted(ConvictedWork::ExpertAnswer { n_steps: 300 })), "010601ac02".into()),
        (asked(RequestRefusal::Token(TokenRefusal::Revoked)), "020004".into()),
        (asked(RequestRefusal::Signature), "0201".into()),
        (asked(RequestRefusal::Clock { sent_at: small, now: large, tolerance_s: 30 }), "020203ac021e".into()),
        (asked(RequestRefusal::NonceUsed), "0203".into()),
        (asked(RequestRefusal::Receiver { named: sender, here }), format!("0204{twos}{ones}")),
        (asked(RequestRefusal::TooMany { retry_in_s: 300 }), "0205ac02".into()),
        (AccessRefusal::NoInvitation, "03".into()),
        (AccessRefusal::InvitationUsedUp, "04".into()),
        (AccessRefusal::InvitationExpired { expired_at: large }, "05ac02".into()),
        (AccessRefusal::NotOnList { user: "eve".into() }, "0603657665".into()),
        (AccessRefusal::OtherWay { mode: AccessMode::Invitation, wanted: "x".into() }, "07010178".into()),
        (AccessRefusal::Elsewhere { at: "/a".into() }, "08022f61".into()),
        (AccessRefusal::KeyKind, "09".into()),
        (AccessRefusal::Unavailable { reason: "x".into() }, "0a0178".into()),
    ] {
        check(&access::BackboneToContributor::Refused(refusal), &format!("05{golden}"));
    }
}

/// The token as its peer stores it.
#[test]
fn a_token_that_was_kept_is_read() {
    let token = token_of(&pair(2));
    let kept = format!("0181000000{TOKEN}");
    assert_eq!(hex(&token.encode().unwrap()), kept);
}
