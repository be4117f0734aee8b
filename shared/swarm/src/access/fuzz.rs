//! Any sequence of tokens, revocations, requests and times: no peer has access without a valid token, and no request is
//! taken twice, however the clocks are set.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use barnraise_fuzz::arbitrary::{self, Arbitrary};
use barnraise_fuzz::{fuzz, value};
use barnraise_protocol::access::{Claims, KeyPair, Nonce, RequestRefusal, SignedRequest};

use super::*;

const N: u64 = 30;
/// The clock begins here.
const BEGIN: u64 = 1000;

#[derive(Debug, Arbitrary)]
struct AccessCase {
    mode: u8,
    n_peers_max: u8,
    n_requests_max: u8,
    n_of_peer_max: u8,
    operations: Vec<AccessOperation>,
}

#[derive(Debug, Arbitrary)]
enum AccessOperation {
    /// A peer shows a token.
    Token { sender: u8, token: Token },
    /// The authority takes one back.
    Revoke { id: u8 },
    /// The clock goes on.
    Pass { seconds: u8 },
    /// The clock is set back.
    SetBack { seconds: u8 },
    /// What the driver does every second.
    Timeout,
    /// A request comes.
    Request { token: Token, made: i8, nonce: u8, is_for_us: bool },
    /// An earlier request is repeated.
    Repeat { which: u8 },
}

/// A token among few, so that they come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Arbitrary)]
struct Token {
    peer: u8,
    id: u8,
    lasts: u8,
    is_good: bool,
}

impl Token {
    fn among_few(self) -> Self {
        let Self { peer, id, lasts, is_good } = self;
        Self { peer: peer % 5, id: id % 6, lasts: lasts % 8, is_good }
    }

    fn expires_at(self) -> UnixTime {
        UnixTime(BEGIN + 20 * u64::from(self.lasts))
    }

    fn id(self) -> TokenId {
        TokenId([self.id; 16])
    }

    /// Signed by the authority, or by somebody else where it is no good. Signatures take their time.
    fn signed(self) -> AccessToken {
        static SIGNED: Mutex<Vec<(Token, AccessToken)>> = Mutex::new(Vec::new());
        let mut signed = SIGNED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, token)) = signed.iter().find(|(token, _)| *token == self) {
            return token.clone();
        }
        let authority = pair(if self.is_good { 100 } else { 101 });
        let claims = Claims {
            run_id: "barn".into(),
            user: "alice".into(),
            peer: pair(self.peer).public(),
            expires_at: self.expires_at(),
            token_id: self.id(),
            may_host: false,
        };
        let token = AccessToken::sign(&authority, claims).unwrap();
        signed.push((self, token.clone()));
        token
    }
}

fn pair(name: u8) -> KeyPair {
    KeyPair::from_seed(&[name; 32])
}

fn peer(name: u8) -> PeerKey {
    PeerKey(pair(name).public().to_peer_id())
}

/// Reference model of access control.
struct AccessModel {
    admissions: Admissions,
    guard: RequestGuard,
    mode: AccessMode,
    now: u64,
    peers_max: usize,
    of_peer_max: usize,
    /// The token by which each peer is in.
    admitted: HashMap<u8, Token>,
    revoked: HashSet<u8>,
    /// Requests that came, and whether they were taken.
    requests: Vec<(Token, SignedRequest)>,
    taken: HashSet<(u8, u64, Nonce)>,
}

impl AccessModel {
    fn new(case: &AccessCase) -> Self {
        let mode =
            [AccessMode::Open, AccessMode::Invitation, AccessMode::Allowlist][usize::from(case.mode % 3)];
        let authority = Authority { key: pair(100).public(), run_id: "barn".into() };
        let policy = Policy { mode, authority, clock_tolerance: Duration::from_secs(N) };
        let peers_max = usize::from(case.n_peers_max % 5);
        let of_peer_max = 1 + usize::from(case.n_of_peer_max % 4);
        let requests_max = 1 + usize::from(case.n_requests_max % 8);
        let limits = RequestLimits { requests_max, requests_of_peer_max: of_peer_max };
        Self {
            admissions: Admissions::new(policy, peers_max),
            guard: RequestGuard::new(pair(200).public(), limits),
            mode,
            now: BEGIN,
            peers_max,
            of_peer_max,
            admitted: HashMap::new(),
            revoked: HashSet::new(),
            requests: Vec::new(),
            taken: HashSet::new(),
        }
    }

    fn is_good(&self, token: Token) -> bool {
        token.is_good && token.expires_at().0 > self.now && !self.revoked.contains(&token.id)
    }

    fn on(&mut self, operation: &AccessOperation) {
        match *operation {
            AccessOperation::Token { sender, token } => self.on_token(sender % 5, token.among_few()),
            AccessOperation::Revoke { id } => self.on_revoked(id % 6),
            AccessOperation::Pass { seconds } => self.now += u64::from(seconds),
            AccessOperation::SetBack { seconds } => {
                self.now = self.now.saturating_sub(u64::from(seconds)).max(BEGIN);
            }
            AccessOperation::Timeout => self.on_timeout(),
            AccessOperation::Request { token, made, nonce, is_for_us } => {
                let token = token.among_few();
                let made = UnixTime(self.now.saturating_add_signed(made.into()));
                let to = pair(if is_for_us { 200 } else { 201 }).public();
                let nonce = Nonce([nonce % 4; 16]);
                let key = pair(token.peer);
                let request = SignedRequest::sign(&key, token.signed(), to, made, nonce, Vec::new()).unwrap();
                self.requests.push((token, request));
                self.on_request(self.requests.len() - 1);
            }
            AccessOperation::Repeat { which } => {
                if !self.requests.is_empty() {
                    self.on_request(usize::from(which) % self.requests.len());
                }
            }
        }
        self.check();
    }

    fn on_token(&mut self, sender: u8, token: Token) {
        let got = self.admissions.on_token(UnixTime(self.now), &peer(sender), &token.signed());
        let is_in = self.admitted.contains_key(&sender);
        let has_room = is_in || self.admitted.len() < self.peers_max;
        let later = self.admitted.get(&sender).filter(|known| known.expires_at() > token.expires_at());
        match got {
            Ok(until) => {
                assert!(self.is_good(token) && sender == token.peer, "{token:?} of {sender}");
                assert_eq!(until, later.unwrap_or(&token).expires_at());
                if later.is_none() {
                    assert!(has_room, "{} peers, at most {}", self.admitted.len(), self.peers_max);
                    self.admitted.insert(sender, token);
                }
            }
            Err(refusal) => {
                assert!(!(self.is_good(token) && sender == token.peer && has_room), "{token:?}: {refusal}");
            }
        }
    }

    fn on_revoked(&mut self, id: u8) {
        let token = RevokedToken { token_id: TokenId([id; 16]), expires_at: UnixTime(0) };
        let ended = self.admissions.on_revoked(&[token]);
        self.revoked.insert(id);
        self.end(ended, |token, _| token.id == id);
    }

    fn on_timeout(&mut self) {
        let ended = self.admissions.on_timeout(UnixTime(self.now));
        self.end(ended, |token, now| token.expires_at().0 <= now);
    }

    /// Exactly the peers that had access by a token that ends are returned.
    fn end(&mut self, ended: Vec<EndedAccess>, ends: impl Fn(&Token, u64) -> bool) {
        let told: HashSet<PeerKey> = ended.into_iter().map(|ended| ended.peer).collect();
        let now = self.now;
        let gone: Vec<u8> =
            self.admitted.iter().filter(|(_, token)| ends(token, now)).map(|(of, _)| *of).collect();
        assert_eq!(told, gone.iter().map(|of| peer(*of)).collect());
        self.admitted.retain(|of, _| !gone.contains(of));
    }

    fn on_request(&mut self, index: usize) {
        let (token, request) = &self.requests[index];
        let name = (token.peer, request.time.0, request.nonce);
        let got = self.guard.on_request(UnixTime(self.now), &self.admissions, request);
        let is_in_time = request.time.0.abs_diff(self.now) <= N;
        if got.is_ok() {
            assert!(self.is_good(*token) && is_in_time && request.receiver == pair(200).public());
            assert!(self.taken.insert(name), "{name:?} was taken before");
        } else if let Err(RequestRefusal::NonceUsed) = got {
            assert!(!self.taken.is_empty(), "nothing was taken yet");
        }
    }

    fn check(&self) {
        assert_eq!(self.admissions.n_admitted(), self.admitted.len());
        for name in 0..5 {
            let is_in = self.admissions.check(UnixTime(self.now), &peer(name)).is_ok();
            let by = self.admitted.get(&name);
            let may = by.is_some_and(|token| self.is_good(*token));
            assert_eq!(is_in, may || self.mode == AccessMode::Open, "{name} by {by:?}");
        }
        assert!(self.guard.seen.values().all(|nonces| nonces.len() <= self.of_peer_max));
        let max = self.guard.limits.requests_max;
        assert!(self.guard.forget.len() <= max && self.guard.forgotten.len() <= max);
    }
}

#[test]
fn access_sequence() {
    fuzz!("access_sequence", |input| {
        let Some(case) = value::<AccessCase>(input) else { return };
        let mut world = AccessModel::new(&case);
        case.operations.iter().take(100).for_each(|operation| world.on(operation));
    });
}
