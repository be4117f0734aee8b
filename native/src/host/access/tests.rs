//! The authority and the gate with a simulated clock, and the database with two concurrent users.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use barnraise_protocol::access::{
    AccessMode, AccessRefusal, AccessToken, Authority, ConvictedWork, KeyPair, Nonce, PublicKey,
    RelayedRequest, RelayedResponse, RequestRefusal, SignedRequest, TokenId, TokenRefusal, UnixTime,
};
use barnraise_protocol::{Sha256Hash, framing};
use barnraise_relay::{Node, NodeConfig};
use barnraise_swarm::PeerKey;
use barnraise_swarm::access::Policy;
use barnraise_swarm::random::SplitMix64;
use libp2p::PeerId;
use libp2p::identity::Keypair;
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio_util::sync::CancellationToken;

use super::store::{
    Entry, Identity, IdentityKind, InvitationTerms, IssuedToken, LoginOutcome, RedeemOutcome,
    RevocationTarget, Store,
};
use super::{Access, AccessAuthority, Exclusion, Gate, keep_gate_current};
use crate::config::AccessSection;
use crate::host::clock::WallClock;

const START: u64 = 1_800_000_000;
const HOUR: u64 = 3600;

/// An authority and its gate, with a clock that the test sets.
pub(super) struct AuthorityHarness {
    folder: tempfile::TempDir,
    now: Arc<AtomicU64>,
    pub(super) gate: Gate,
    pub(super) authority: AccessAuthority,
}

/// Of an invitation for contributors.
pub(super) fn terms(uses: u32, expires_at: UnixTime) -> InvitationTerms {
    InvitationTerms { uses, expires_at, may_host: false }
}

pub(super) fn pair(seed: u8) -> KeyPair {
    KeyPair::from_seed(&[seed; 32])
}

pub(super) fn peer_id(key: PublicKey) -> PeerId {
    PeerId::from_bytes(&key.to_peer_id()).unwrap()
}

pub(super) async fn world(mode: AccessMode) -> AuthorityHarness {
    let folder = tempfile::tempdir().unwrap();
    let now = Arc::new(AtomicU64::new(START));
    let clock: WallClock = {
        let now = Arc::clone(&now);
        Arc::new(move || UnixTime(now.load(Ordering::Relaxed)))
    };
    let here = pair(1).public();
    let authority = Authority { key: here, run_id: "barn".into() };
    let policy = Policy { mode, authority, clock_tolerance: Duration::from_secs(30) };
    let gate = Gate::new(policy.clone(), here, Arc::clone(&clock));
    let section = AccessSection {
        mode,
        page: Some("https://barn.example".into()),
        token_lifetime: Duration::from_secs(HOUR),
        ..AccessSection::default()
    };
    let store = Store::open(folder.path()).await.unwrap();
    AuthorityHarness {
        folder,
        now,
        gate,
        authority: AccessAuthority::new(pair(1), policy, &section, store, clock),
    }
}

impl AuthorityHarness {
    fn after(&self, seconds: u64) {
        self.now.store(START + seconds, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> UnixTime {
        self.authority.now()
    }

    pub(super) fn store(&self) -> &Store {
        self.authority.store()
    }

    pub(super) async fn invited(&self, seed: u8) -> AccessToken {
        let code = format!("code {seed}");
        self.store().invite(&code, terms(1, self.now().after(60)), self.now()).await.unwrap();
        let token = self.authority.redeem(pair(seed).public(), &code).await.unwrap();
        self.gate.present(peer_id(pair(seed).public()), &token).unwrap();
        token
    }

    async fn renew(&self, seed: u8, token: &AccessToken, nonce: u8) -> Result<AccessToken, AccessRefusal> {
        let payload = framing::encode(&RelayedRequest::Renew, 64).unwrap()[framing::HEADER_BYTES..].to_vec();
        let (asked, nonce) = (pair(1).public(), Nonce([nonce; 16]));
        let request =
            SignedRequest::sign(&pair(seed), token.clone(), asked, self.now(), nonce, payload).unwrap();
        self.gate.take_request(&request)?;
        let response = self.authority.answer(&request).await?;
        let authority = &self.gate.policy().authority;
        response.verify(authority, asked, nonce, self.now()).unwrap();
        match framing::decode_payload(&response.payload).unwrap() {
            RelayedResponse::Renewed(token) => Ok(*token),
            RelayedResponse::Refused(refusal) => Err(refusal),
        }
    }
}

#[tokio::test]
async fn access_lasts_as_long_as_its_token_and_a_renewal_goes_on_in_the_same_pass() {
    let world = world(AccessMode::Invitation).await;
    let token = world.invited(2).await;
    let peer = peer_id(pair(2).public());
    let mut pass = world.gate.check(peer).unwrap();
    world.after(HOUR * 2 / 3);
    let renewed = world.renew(2, &token, 1).await.unwrap();
    assert_eq!(renewed.claims.expires_at, UnixTime(START + HOUR * 2 / 3 + HOUR));
    world.gate.present(peer, &renewed).unwrap();
    // The end of the old token ends nothing.
    world.after(HOUR + 1);
    world.gate.on_timeout();
    assert!(world.gate.check(peer).is_ok());
    world.after(2 * HOUR);
    world.gate.on_timeout();
    assert!(matches!(
        pass.ended().await,
        Exclusion::Access(AccessRefusal::Token(TokenRefusal::Expired { .. }))
    ));
    assert!(world.gate.check(peer).is_err());
    assert_eq!(world.gate.n_admitted(), 0);
    let late = world.renew(2, &renewed, 2).await.unwrap_err();
    assert!(
        matches!(late, AccessRefusal::Request(RequestRefusal::Token(TokenRefusal::Expired { .. }))),
        "{late}"
    );
}

#[tokio::test]
async fn a_young_token_is_given_again_and_not_another_one() {
    let world = world(AccessMode::Invitation).await;
    let token = world.invited(2).await;
    for nonce in 0..9 {
        assert_eq!(world.renew(2, &token, nonce).await.unwrap(), token);
    }
    assert_eq!(world.store().tokens(world.now()).await.unwrap().len(), 1);
    assert!(matches!(
        world.renew(2, &token, 3).await.unwrap_err(),
        AccessRefusal::Request(RequestRefusal::NonceUsed)
    ));
}

#[tokio::test]
async fn a_token_has_the_role_of_its_invitation_also_once_it_is_renewed() {
    let world = world(AccessMode::Invitation).await;
    let contributor = world.invited(2).await;
    assert!(!contributor.claims.may_host && !world.gate.may_host(peer_id(pair(2).public())));
    let hosts = InvitationTerms { may_host: true, ..terms(2, UnixTime(START + HOUR)) };
    world.store().invite("host", hosts, world.now()).await.unwrap();
    let token = world.authority.redeem(pair(3).public(), "host").await.unwrap();
    let peer = peer_id(pair(3).public());
    world.gate.present(peer, &token).unwrap();
    assert!(token.claims.may_host && world.gate.may_host(peer));
    // The role of the last invitation counts, also for a peer that had a token without it.
    let promoted = world.authority.redeem(pair(2).public(), "host").await.unwrap();
    assert!(promoted.claims.may_host);
    world.after(HOUR * 2 / 3);
    for (seed, token) in [(3, token), (2, promoted)] {
        let renewed = world.renew(seed, &token, seed).await.unwrap();
        assert!(renewed.claims.may_host && renewed.claims.token_id != token.claims.token_id);
    }
}

/// The database has the role of the invitation, whatever token is asked for.
#[tokio::test]
async fn a_stored_token_has_the_role_of_its_invitation() {
    let world = world(AccessMode::Invitation).await;
    let (store, now) = (world.store(), world.now());
    for (seed, code, may_host) in [(2, "host", true), (3, "guest", false)] {
        let terms = InvitationTerms { may_host, ..terms(1, UnixTime(START + HOUR)) };
        store.invite(code, terms, now).await.unwrap();
        let asked = IssuedToken { may_host: !may_host, ..token_for(seed) };
        let redeemed = store.redeem(code, asked, now).await.unwrap();
        assert!(matches!(redeemed, RedeemOutcome::Yes(_)), "{redeemed:?}");
        let stored = store.token_of(pair(seed).public(), now).await.unwrap().unwrap();
        assert_eq!((stored.may_host, stored.token_id), (may_host, TokenId([seed; 16])), "{code}");
    }
}

#[tokio::test]
async fn the_list_says_who_may_host_when_a_token_is_renewed() {
    let world = world(AccessMode::Allowlist).await;
    let (store, issuer, name) = (world.store(), "https://id.example", IdentityKind::Name);
    let identity = Identity {
        issuer: issuer.into(),
        subject: "7".into(),
        name: "alice".into(),
        email: "alice@example.org".into(),
    };
    store.sign_in(pair(2).public(), &identity, world.now()).await.unwrap();
    store.allow(issuer, name, "alice", world.now()).await.unwrap();
    let claim = async || world.authority.claim(pair(2).public()).await.unwrap().unwrap().claims.may_host;
    assert!(!claim().await);
    store.set_may_host(issuer, name, "alice", true).await.unwrap();
    assert!(claim().await);
    // Another entry of the same person has no say in what this one gives.
    store.allow(issuer, IdentityKind::Email, "alice@example.org", world.now()).await.unwrap();
    assert!(claim().await);
    store.set_may_host(issuer, name, "alice", false).await.unwrap();
    assert!(!claim().await);
}

#[tokio::test]
async fn an_invitation_is_good_for_so_many_and_for_so_long() {
    let world = world(AccessMode::Invitation).await;
    let store = world.store();
    store.invite("two", terms(2, UnixTime(START + 100)), world.now()).await.unwrap();
    let redeem = async |seed: u8, code: &str| world.authority.redeem(pair(seed).public(), code).await;
    redeem(2, "two").await.unwrap();
    redeem(2, "two").await.unwrap();
    redeem(3, "two").await.unwrap();
    assert_eq!(redeem(4, "two").await.unwrap_err(), AccessRefusal::InvitationUsedUp);
    assert_eq!(redeem(4, "three").await.unwrap_err(), AccessRefusal::NoInvitation);
    store.invite("late", terms(1, UnixTime(START + 100)), world.now()).await.unwrap();
    world.after(100);
    let expired_at = UnixTime(START + 100);
    assert_eq!(redeem(4, "late").await.unwrap_err(), AccessRefusal::InvitationExpired { expired_at });
    // The database does not reveal codes.
    let code = b"a code that nobody guesses";
    let later = terms(1, UnixTime(START + 200));
    store.invite(std::str::from_utf8(code).unwrap(), later, world.now()).await.unwrap();
    assert!(!written(&world).windows(code.len()).any(|window| window == code));
    assert!(written(&world).windows(5).any(|window| window == b"guest"), "this is where it would stand");
}

/// All bytes of the database on disk.
fn written(world: &AuthorityHarness) -> Vec<u8> {
    let read = |name| std::fs::read(world.folder.path().join(name)).unwrap_or_default();
    [read("access.sqlite"), read("access.sqlite-wal")].concat()
}

/// The token that an invitation is redeemed for.
fn token_for(seed: u8) -> IssuedToken {
    let (user, invitation) = (format!("guest {seed}"), String::new());
    let (token_id, expires_at) = (TokenId([seed; 16]), UnixTime(START + HOUR));
    IssuedToken { token_id, user, peer: pair(seed).public(), expires_at, invitation, may_host: false }
}

/// The disk has space to change a row, and none for another one.
#[tokio::test]
async fn an_invitation_is_not_used_by_a_token_that_cannot_be_written() {
    let world = world(AccessMode::Invitation).await;
    world.store().invite("once", terms(1, UnixTime(START + 100)), world.now()).await.unwrap();
    let file = SqliteConnectOptions::new().filename(world.folder.path().join("access.sqlite"));
    let mut other = SqliteConnection::connect_with(&file).await.unwrap();
    let full = "CREATE TRIGGER full BEFORE INSERT ON tokens BEGIN SELECT RAISE(ABORT, 'no room'); END";
    sqlx::query(full).execute(&mut other).await.unwrap();
    for _ in 0..3 {
        let refused = world.authority.redeem(pair(2).public(), "once").await.unwrap_err();
        assert!(matches!(refused, AccessRefusal::Unavailable { .. }), "{refused}");
    }
    sqlx::query("DROP TRIGGER full").execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    let token = world.authority.redeem(pair(2).public(), "once").await.unwrap();
    assert_eq!(world.authority.redeem(pair(2).public(), "once").await.unwrap(), token);
    assert_eq!(
        world.authority.redeem(pair(3).public(), "once").await.unwrap_err(),
        AccessRefusal::InvitationUsedUp
    );
}

#[tokio::test]
async fn many_who_redeem_at_once_do_not_use_an_invitation_too_often() {
    let world = world(AccessMode::Invitation).await;
    let mut store = vec![world.store().clone()];
    // A second pool stands for another process.
    store.push(Store::open(world.folder.path()).await.unwrap());
    store[0].invite("seven", terms(7, UnixTime(START + 100)), UnixTime(START)).await.unwrap();
    let redeemed = (0..40u8).map(|seed| {
        let store = store[usize::from(seed) % 2].clone();
        tokio::spawn(async move { store.redeem("seven", token_for(seed), UnixTime(START)).await.unwrap() })
    });
    let redeemed = futures::future::join_all(redeemed.collect::<Vec<_>>()).await;
    let n_used =
        redeemed.iter().filter(|used| matches!(used.as_ref().unwrap(), RedeemOutcome::Yes(_))).count();
    assert_eq!(n_used, 7);
}

#[tokio::test]
async fn what_another_process_takes_back_ends_here() {
    let world = world(AccessMode::Invitation).await;
    let tokens = [world.invited(2).await, world.invited(3).await];
    let peer = peer_id(pair(2).public());
    let mut pass = world.gate.check(peer).unwrap();
    let operator = Store::open(world.folder.path()).await.unwrap();
    let whose = RevocationTarget::Peer(pair(2).public());
    assert_eq!(operator.revoke(&whose, false, world.now()).await.unwrap(), 1);
    assert_eq!(operator.revoke(&whose, false, world.now()).await.unwrap(), 0);
    // Before the gate hears of it, the authority knows.
    assert!(world.renew(2, &tokens[0], 1).await.is_err());
    let (revoked, next) = world.store().revoked_since(0, 512).await.unwrap();
    assert_eq!((revoked.len(), next), (1, 1));
    world.gate.on_revoked(&revoked);
    assert_eq!(pass.ended().await, TokenRefusal::Revoked.into());
    let again = world.gate.present(peer, &tokens[0]).unwrap_err();
    assert_eq!(again, TokenRefusal::Revoked.into());
    let code = world.authority.redeem(pair(2).public(), "code 2").await.unwrap_err();
    assert_eq!(code, TokenRefusal::Revoked.into());
    assert!(world.gate.check(peer_id(pair(3).public())).is_ok());
    assert_eq!(world.store().revoked_since(next, 512).await.unwrap(), (vec![], next));
}

#[tokio::test]
async fn an_invited_peer_comes_back_and_a_revoked_one_does_not() {
    let world = world(AccessMode::Invitation).await;
    world.store().invite("week", terms(2, UnixTime(START + 168 * HOUR)), world.now()).await.unwrap();
    let redeem = async |seed: u8| world.authority.redeem(pair(seed).public(), "week").await;
    redeem(2).await.unwrap();
    redeem(3).await.unwrap();
    world.store().revoke(&RevocationTarget::Peer(pair(3).public()), false, world.now()).await.unwrap();
    // Two days later all tokens have expired, and the invitation is used up for anybody else.
    world.after(48 * HOUR);
    world.store().forget_expired(world.now()).await.unwrap();
    redeem(2).await.unwrap();
    assert_eq!(redeem(3).await.unwrap_err(), TokenRefusal::Revoked.into());
    assert_eq!(redeem(4).await.unwrap_err(), AccessRefusal::InvitationUsedUp);
    world.after(168 * HOUR);
    world.store().forget_expired(world.now()).await.unwrap();
    assert!(redeem(2).await.is_err());
}

#[tokio::test]
async fn a_list_lets_in_whom_it_names_and_forgets_whom_it_does_not() {
    let world = world(AccessMode::Allowlist).await;
    let (store, issuer) = (world.store(), "https://id.example");
    let alice = Identity {
        issuer: issuer.into(),
        subject: "7".into(),
        name: "alice".into(),
        email: "alice@example.org".into(),
    };
    let peer = pair(2).public();
    assert_eq!(world.authority.claim(peer).await, Ok(None));
    let url = world.authority.login_url(peer).unwrap();
    assert!(url.starts_with(&format!("https://barn.example/login?peer={}&ticket=", peer_id(peer))), "{url}");
    store.sign_in(peer, &alice, world.now()).await.unwrap();
    let refused = AccessRefusal::NotOnList { user: "alice".into() };
    assert_eq!(world.authority.claim(peer).await.unwrap_err(), refused);
    for (kind, value) in [
        (IdentityKind::Name, "alice"),
        (IdentityKind::Email, "alice@example.org"),
        (IdentityKind::Subject, "7"),
    ] {
        assert!(store.allow(issuer, kind, value, world.now()).await.unwrap().is_new);
        assert!(!store.allow(issuer, kind, value, world.now()).await.unwrap().is_new);
        let token = world.authority.claim(peer).await.unwrap().unwrap();
        assert_eq!(token.claims.user, "alice");
        assert!(store.is_allowed(&alice).await.unwrap());
        // A person of the same name at another provider.
        let other = Identity { issuer: "https://other.example".into(), ..alice.clone() };
        assert!(!store.is_allowed(&other).await.unwrap());
        assert_eq!(store.disallow(issuer, kind, value, world.now()).await.unwrap(), Some(1));
        assert_eq!(store.disallow(issuer, kind, value, world.now()).await.unwrap(), None);
        assert_eq!(world.authority.claim(peer).await.unwrap_err(), refused);
        assert!(world.renew(2, &token, value.len() as u8).await.is_err());
    }
    let nameless = Identity { email: String::new(), ..alice.clone() };
    store.allow(issuer, IdentityKind::Email, "", world.now()).await.unwrap();
    assert!(!store.is_allowed(&nameless).await.unwrap());
}

#[tokio::test]
async fn one_identity_signs_in_for_so_many_keys() {
    let world = world(AccessMode::Allowlist).await;
    let identity = |subject: &str| Identity {
        issuer: "https://id.example".into(),
        subject: subject.into(),
        name: "alice".into(),
        email: String::new(),
    };
    let sign_in = async |seed: u8, subject: &str| {
        world.store().sign_in(pair(seed).public(), &identity(subject), world.now()).await.unwrap()
    };
    for seed in 0..64 {
        assert_eq!(sign_in(seed, "7").await, LoginOutcome::Yes);
    }
    assert_eq!(sign_in(64, "7").await, LoginOutcome::TooManyKeys);
    // It may confirm one of its keys again, and another identity has its own limit.
    assert_eq!(sign_in(63, "7").await, LoginOutcome::Yes);
    assert_eq!(sign_in(64, "8").await, LoginOutcome::Yes);
    // A bound key stays bound.
    assert_eq!(sign_in(63, "8").await, LoginOutcome::AnothersPeer);
    assert_eq!(sign_in(63, "7").await, LoginOutcome::Yes);
}

fn person(subject: &str, name: &str) -> Identity {
    Identity {
        issuer: "https://id.example".into(),
        subject: subject.into(),
        name: name.into(),
        email: format!("{name}@example.org"),
    }
}

#[tokio::test]
async fn a_revocation_lasts_until_the_list_names_its_person_again() {
    let world = world(AccessMode::Allowlist).await;
    let (store, issuer) = (world.store(), "https://id.example");
    let (alice, bob) = (person("7", "alice"), person("8", "bob"));
    let claim = async |seed: u8| world.authority.claim(pair(seed).public()).await;
    let revoked = || AccessRefusal::from(TokenRefusal::Revoked);
    for name in ["alice", "bob"] {
        store.allow(issuer, IdentityKind::Name, name, world.now()).await.unwrap();
    }
    for (seed, who) in [(2, &alice), (3, &alice), (4, &bob)] {
        store.sign_in(pair(seed).public(), who, world.now()).await.unwrap();
    }
    let token = claim(2).await.unwrap().unwrap();
    // The person is excluded with all keys, those without a token included, at any time of the clock.
    assert_eq!(store.revoke(&RevocationTarget::User("alice".into()), false, world.now()).await.unwrap(), 1);
    for seconds in [0, 48 * HOUR, 400 * 24 * HOUR] {
        world.after(seconds);
        store.forget_expired(world.now()).await.unwrap();
        assert_eq!((claim(2).await, claim(3).await), (Err(revoked()), Err(revoked())), "{seconds}");
    }
    world.now.store(START - 1000 * HOUR, Ordering::Relaxed);
    assert_eq!(claim(2).await, Err(revoked()), "a clock set back lifts nothing");
    let (gone, _) = store.revoked_since(0, 512).await.unwrap();
    world.gate.on_revoked(&gone);
    assert!(world.gate.present(peer_id(pair(2).public()), &token).is_err(), "nor the token that was revoked");
    world.after(0);
    // Another key, or another name at the provider, does not help.
    store.sign_in(pair(5).public(), &person("7", "alicia"), world.now()).await.unwrap();
    assert!(store.is_excluded(&person("7", "alicia")).await.unwrap());
    assert_eq!(claim(5).await, Err(revoked()));
    claim(4).await.unwrap().unwrap();
    // Somebody else on the list changes nothing; being named again does.
    assert!(!store.allow(issuer, IdentityKind::Name, "bob", world.now()).await.unwrap().is_back);
    assert_eq!(claim(2).await, Err(revoked()));
    let listed = store.allow(issuer, IdentityKind::Subject, "7", world.now()).await.unwrap();
    assert!(listed.is_new && listed.is_back);
    claim(2).await.unwrap().unwrap();
    claim(5).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_key_that_was_revoked_stays_out_and_its_persons_other_keys_do_not() {
    let world = world(AccessMode::Allowlist).await;
    let (store, issuer) = (world.store(), "https://id.example");
    store.allow(issuer, IdentityKind::Email, "alice@example.org", world.now()).await.unwrap();
    for seed in [2, 3] {
        store.sign_in(pair(seed).public(), &person("7", "alice"), world.now()).await.unwrap();
    }
    let token = world.authority.claim(pair(2).public()).await.unwrap().unwrap();
    // Long after its token has expired, too.
    world.after(48 * HOUR);
    store.forget_expired(world.now()).await.unwrap();
    store.revoke(&RevocationTarget::Peer(pair(2).public()), false, world.now()).await.unwrap();
    let refused = Err(TokenRefusal::Revoked.into());
    assert_eq!(world.authority.claim(pair(2).public()).await, refused);
    world.authority.claim(pair(3).public()).await.unwrap().unwrap();
    // With the clock set back the old token has not expired, but it gives no access.
    world.after(0);
    world.gate.on_revoked(&store.revoked_since(0, 512).await.unwrap().0);
    assert!(world.gate.present(peer_id(pair(2).public()), &token).is_err());
    // Removed from the list and added again.
    store.disallow(issuer, IdentityKind::Email, "alice@example.org", world.now()).await.unwrap();
    assert!(world.authority.claim(pair(3).public()).await.is_err());
    store.allow(issuer, IdentityKind::Email, "alice@example.org", world.now()).await.unwrap();
    world.authority.claim(pair(2).public()).await.unwrap().unwrap();
    world.authority.claim(pair(3).public()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_ticket_to_sign_in_is_of_one_peer_and_for_a_while() {
    let world = world(AccessMode::Allowlist).await;
    let peer = pair(2).public();
    let url = world.authority.login_url(peer).unwrap();
    let ticket = url.split_once("&ticket=").unwrap().1;
    assert!(world.authority.is_ticket(peer, ticket));
    assert!(!world.authority.is_ticket(pair(3).public(), ticket), "another peer's");
    assert!(!world.authority.is_ticket(peer, "") && !world.authority.is_ticket(peer, &ticket[1..]));
    world.after(HOUR);
    assert!(world.authority.is_ticket(peer, ticket));
    world.after(2 * HOUR);
    assert!(!world.authority.is_ticket(peer, ticket));
}

#[tokio::test]
async fn whom_the_operator_blocks_is_out_at_once_and_back_when_it_is_taken_back() {
    let world = world(AccessMode::Open).await;
    let (peer, other) = (peer_id(pair(2).public()), peer_id(pair(3).public()));
    let (mut pass, mut others) = (world.gate.check(peer).unwrap(), world.gate.check(other).unwrap());
    let blocked = [(PeerKey(peer.to_bytes()), "it floods".to_owned())];
    world.gate.set_blocked(blocked.into());
    let reason = Exclusion::Blocked("it floods".into());
    assert_eq!(pass.ended().await, reason);
    assert_eq!(world.gate.check(peer).unwrap_err(), reason);
    assert!(world.gate.check(other).is_ok());
    let is_out = |peer: PeerId| world.gate.is_excluded(&PeerKey(peer.to_bytes()));
    assert_eq!((is_out(peer), is_out(other)), (true, false), "nothing is asked of it either");
    assert!(futures::FutureExt::now_or_never(others.ended()).is_none());
    world.gate.set_blocked([].into());
    assert!(world.gate.check(peer).is_ok() && !is_out(peer));
    world.gate.convict(pair(3).public(), WORK);
    assert!(is_out(other), "a convicted peer is out, too");
}

#[cfg(unix)]
fn mode(path: &std::path::Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[cfg(unix)]
#[tokio::test]
async fn databases_with_people_in_them_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("made/run");
    for _ in 0..2 {
        let access = Store::open(&folder).await.unwrap();
        access.allow("https://id.example", IdentityKind::Name, "alice", UnixTime(START)).await.unwrap();
        let here = peer_id(pair(1).public());
        let given = crate::host::contributions::Store::open(&folder, None, "barn", here).await.unwrap();
        assert_eq!((mode(&folder), mode(&parent.path().join("made"))), (0o700, 0o700));
        for name in ["access.sqlite", "contributions.sqlite"] {
            for file in [name.to_owned(), format!("{name}-wal"), format!("{name}-shm")] {
                assert_eq!(mode(&folder.join(&file)), 0o600, "{file}");
            }
            // As an earlier version or a restored backup leaves it: the next start makes it private.
            std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(0o644)).unwrap();
        }
        access.close().await;
        drop(given);
    }
}

/// By the wrong clock all tokens have expired. Once it is right they have not: they can be renewed and revoked.
#[tokio::test]
async fn a_clock_that_was_ahead_has_nobody_forgotten() {
    let world = world(AccessMode::Invitation).await;
    let (one, other) = (world.invited(2).await, world.invited(3).await);
    world.after(400 * 24 * HOUR);
    world.store().forget_expired(world.now()).await.unwrap();
    world.after(0);
    world.renew(2, &one, 1).await.unwrap();
    let whose = RevocationTarget::User(other.claims.user.clone());
    assert_eq!(world.store().revoke(&whose, false, world.now()).await.unwrap(), 1);
    world.gate.on_revoked(&world.store().revoked_since(0, 512).await.unwrap().0);
    let again = world.gate.present(peer_id(pair(3).public()), &other).unwrap_err();
    assert_eq!(again, TokenRefusal::Revoked.into());
}

/// The clock jumps from a seed, by up to a year in both directions.
#[tokio::test]
async fn no_clock_revives_what_was_revoked_or_takes_a_request_twice() {
    for seed in 0..6 {
        let world = world(AccessMode::Invitation).await;
        let mut random = SplitMix64::new(seed);
        world.now.store(START, Ordering::Relaxed);
        let (token, kept) = (world.invited(2).await, world.invited(3).await);
        let used = world
            .store()
            .revoke(&RevocationTarget::Peer(pair(2).public()), false, world.now())
            .await
            .unwrap();
        assert_eq!(used, 1);
        world
            .store()
            .invite("open", terms(1000, UnixTime(START + 1000 * 24 * HOUR)), UnixTime(START))
            .await
            .unwrap();
        let renewal = {
            let payload =
                framing::encode(&RelayedRequest::Renew, 64).unwrap()[framing::HEADER_BYTES..].to_vec();
            let to = pair(1).public();
            SignedRequest::sign(&pair(3), kept.clone(), to, UnixTime(START), Nonce([7; 16]), payload).unwrap()
        };
        let mut n_taken = u32::from(world.gate.take_request(&renewal).is_ok());
        for turn in 0..60_u8 {
            let year = 365 * 24 * HOUR;
            let now = match random.below(4) {
                // At the start, near it, or anywhere.
                0 => START,
                1 => START + random.below(90) as u64,
                _ => START - year + random.below(2 * year as usize) as u64,
            };
            world.now.store(now, Ordering::Relaxed);
            world.store().forget_expired(world.now()).await.unwrap();
            world.gate.on_timeout();
            world.gate.on_revoked(&world.store().revoked_since(0, 512).await.unwrap().0);
            n_taken += u32::from(world.gate.take_request(&renewal).is_ok());
            // Others ask meanwhile, by this clock.
            if let Ok(another) = world.authority.redeem(pair(4).public(), "open").await {
                let _ = world.renew(4, &another, turn).await;
            }
            assert!(world.gate.present(peer_id(pair(2).public()), &token).is_err(), "seed {seed}");
            assert!(world.authority.redeem(pair(2).public(), "open").await.is_err(), "seed {seed}");
            assert!(world.renew(2, &token, turn).await.is_err(), "seed {seed}");
        }
        assert_eq!(n_taken, 1, "seed {seed}");
    }
}

#[tokio::test]
async fn a_token_is_young_until_half_of_its_lifetime_is_over() {
    let world = world(AccessMode::Invitation).await;
    let token = world.invited(2).await;
    world.after(HOUR / 2 - 1);
    assert_eq!(world.renew(2, &token, 1).await.unwrap(), token);
    world.after(HOUR / 2);
    assert_ne!(world.renew(2, &token, 2).await.unwrap(), token);
}

#[tokio::test]
async fn a_revocation_counts_the_tokens_that_had_not_expired() {
    let world = world(AccessMode::Invitation).await;
    for seed in [2, 3] {
        world.invited(seed).await;
    }
    for (seed, seconds, n_revoked) in [(2, HOUR - 1, 1), (3, HOUR, 0)] {
        world.after(seconds);
        let whose = RevocationTarget::Peer(pair(seed).public());
        assert_eq!(world.store().revoke(&whose, false, world.now()).await.unwrap(), n_revoked, "{seconds}");
    }
}

#[tokio::test]
async fn the_gate_lets_in_the_backbones_of_the_run_and_counts_those_with_a_token() {
    let world = world(AccessMode::Invitation).await;
    let backbone = peer_id(pair(9).public());
    assert!(world.gate.check(backbone).is_err());
    world.gate.set_backbones([pair(9).public()]);
    assert!(world.gate.check(backbone).is_ok());
    for (seed, n_admitted) in [(2, 1), (3, 2)] {
        world.invited(seed).await;
        assert_eq!(world.gate.n_admitted(), n_admitted);
    }
}

const WORK: ConvictedWork = ConvictedWork::Contribution { epoch: 7 };

#[tokio::test]
async fn a_convicted_peer_is_out_for_its_first_contribution_of_that_kind() {
    let world = world(AccessMode::Open).await;
    let (peer, other) = (peer_id(pair(2).public()), pair(3).public());
    assert!(world.gate.may_host(peer), "in an open run everybody may");
    let mut pass = world.gate.check(peer).unwrap();
    world.gate.convict(pair(2).public(), WORK);
    world.gate.convict(pair(2).public(), ConvictedWork::ExpertAnswer { n_steps: 9 });
    assert_eq!(world.gate.convicted(), [(PeerKey(peer.to_bytes()), WORK)]);
    assert!(world.gate.is_convicted(pair(2).public()) && !world.gate.is_convicted(other));
    let reason = Exclusion::from(TokenRefusal::Convicted(WORK));
    assert_eq!(pass.ended().await, reason);
    assert_eq!(world.gate.check(peer).unwrap_err(), reason);
    assert!(world.gate.check(peer_id(other)).is_ok());
}

#[tokio::test]
async fn the_database_tells_what_it_has_until_it_is_closed() {
    let world = world(AccessMode::Invitation).await;
    let (store, issuer) = (world.store(), "https://id.example");
    store.invite("code", terms(1, UnixTime(START + HOUR)), world.now()).await.unwrap();
    for (code, has) in [("code", true), ("other", false)] {
        assert_eq!(store.has_invitation(&Sha256Hash::of(code.as_bytes())).await.unwrap(), has, "{code}");
    }
    store.allow(issuer, IdentityKind::Email, "alice@example.org", world.now()).await.unwrap();
    let (kind, value) = ("email".to_owned(), "alice@example.org".to_owned());
    assert_eq!(store.allowed().await.unwrap(), [Entry { issuer: issuer.to_owned(), kind, value }]);
    assert!(!store.is_excluded(&person("8", "bob")).await.unwrap());
    assert!(store.issue(&token_for(2)).await.unwrap());
    store.revoke(&RevocationTarget::Peer(pair(2).public()), false, world.now()).await.unwrap();
    let another = IssuedToken { token_id: TokenId([9; 16]), ..token_for(2) };
    assert!(!store.issue(&another).await.unwrap(), "its peer is excluded");
    store.close().await;
    assert!(store.allowed().await.is_err());
}

#[tokio::test]
async fn the_gate_hears_by_itself_of_what_was_taken_back_and_what_expired() {
    let world = world(AccessMode::Invitation).await;
    for seed in [2, 3] {
        world.invited(seed).await;
    }
    let [mut revoked, mut expired] =
        [2, 3].map(|seed| world.gate.check(peer_id(pair(seed).public())).unwrap());
    let (gate, authority) = (world.gate.clone(), Some(world.authority.clone()));
    let access = Access { gate, authority, remote_authority: None, here: pair(1).public() };
    let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
    let shutdown = CancellationToken::new();
    let keeping = keep_gate_current(access, node, Duration::from_millis(10), shutdown.clone());
    let keeping = tokio::spawn(keeping);
    let whose = RevocationTarget::Peer(pair(2).public());
    world.store().revoke(&whose, false, world.now()).await.unwrap();
    assert_eq!(revoked.ended().await, TokenRefusal::Revoked.into());
    assert!(world.gate.check(peer_id(pair(3).public())).is_ok());
    world.after(2 * HOUR);
    assert!(matches!(
        expired.ended().await,
        Exclusion::Access(AccessRefusal::Token(TokenRefusal::Expired { .. }))
    ));
    shutdown.cancel();
    keeping.await.unwrap();
    assert!(world.store().allowed().await.is_err(), "the database is closed");
}

#[tokio::test]
async fn the_gate_says_which_tokens_the_authority_revoked() {
    let world = world(AccessMode::Invitation).await;
    let (revoked, kept) = (world.invited(2).await, world.invited(3).await);
    let said = || (world.gate.revoked(), [&revoked, &kept].map(|token| world.gate.has_revoked(token)));
    assert_eq!(said(), (Vec::new(), [false, false]));
    let whose = RevocationTarget::Peer(pair(2).public());
    world.store().revoke(&whose, false, world.now()).await.unwrap();
    world.gate.on_revoked(&world.store().revoked_since(0, 512).await.unwrap().0);
    assert_eq!(said(), (vec![revoked.claims.token_id], [true, false]));
}
