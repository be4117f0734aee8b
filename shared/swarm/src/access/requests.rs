//! Replay protection for signed requests: the nonces of the last `2 N` seconds (DeDLOC appendix I.5).
//!
//! Memory is bounded in total and by sender. When it is full a request is refused: forgetting a nonce early would
//! accept its request twice. For each forgotten request its time is kept: older requests of that sender are refused,
//! even if this clock was ahead and is set back.

use std::collections::{HashMap, VecDeque};

use barnraise_protocol::access::{Nonce, PublicKey, RequestRefusal, SignedRequest, UnixTime};

use super::Admissions;

/// Limits on remembered requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Requests of all senders.
    pub requests_max: usize,
    /// Requests of one sender.
    pub requests_of_peer_max: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { requests_max: 65_536, requests_of_peer_max: 64 }
    }
}

/// Accepts each signed request once.
#[derive(Debug)]
pub struct RequestGuard {
    here: PublicKey,
    pub(super) limits: RequestLimits,
    /// Nonces by sender, in the order in which they came.
    pub(super) seen: HashMap<PublicKey, Vec<Nonce>>,
    /// Requests by the time at which they are forgotten, the earliest first.
    pub(super) forget: VecDeque<Remembered>,
    /// Time of the newest forgotten request by sender: that one and older ones may have come before.
    pub(super) forgotten: HashMap<PublicKey, UnixTime>,
    /// The same for all senders that are not in `forgotten` any more.
    forgotten_of_others: UnixTime,
}

#[derive(Debug)]
pub(super) struct Remembered {
    until: UnixTime,
    sender: PublicKey,
    nonce: Nonce,
    made_at: UnixTime,
}

impl RequestGuard {
    /// For requests to `here`.
    pub fn new(here: PublicKey, limits: RequestLimits) -> Self {
        let (seen, forget) = (HashMap::new(), VecDeque::new());
        Self { here, limits, seen, forget, forgotten: HashMap::new(), forgotten_of_others: UnixTime(0) }
    }

    /// Checks a request that was received at `now`; an accepted one is remembered.
    ///
    /// # Errors
    /// The first check that fails. A request that fails another check than the nonce's leaves its nonce unused.
    pub fn on_request(
        &mut self,
        now: UnixTime,
        admissions: &Admissions,
        request: &SignedRequest,
    ) -> Result<(), RequestRefusal> {
        let policy = admissions.policy();
        request.verify(&policy.authority, self.here, now, policy.clock_tolerance)?;
        admissions.check_revoked(&request.token)?;
        self.forget_before(now);
        let sender = request.token.claims.peer;
        let nonces = self.seen.get(&sender).map_or(&[][..], Vec::as_slice);
        let forgotten = self.forgotten.get(&sender).copied().unwrap_or(self.forgotten_of_others);
        if nonces.contains(&request.nonce) || request.time <= forgotten {
            return Err(RequestRefusal::NonceUsed);
        }
        if nonces.len() >= self.limits.requests_of_peer_max || self.forget.len() >= self.limits.requests_max {
            let retry_in_s = self.forget.front().map_or(0, |first| first.until.0.saturating_sub(now.0));
            return Err(RequestRefusal::TooMany { retry_in_s });
        }
        // Until then the request itself is in time: made up to N ahead of our clock, taken up to N after.
        let until = now.after(2 * policy.clock_tolerance.as_secs() + 1);
        self.seen.entry(sender).or_default().push(request.nonce);
        self.forget.push_back(Remembered { until, sender, nonce: request.nonce, made_at: request.time });
        Ok(())
    }

    fn forget_before(&mut self, now: UnixTime) {
        while let Some(first) = self.forget.pop_front_if(|first| first.until <= now) {
            let Remembered { sender, nonce, made_at, .. } = first;
            let forgotten = self.forgotten.entry(sender).or_insert(made_at);
            *forgotten = made_at.max(*forgotten);
            if self.forgotten.len() > self.limits.requests_max {
                self.forget_sender();
            }
            let Some(nonces) = self.seen.get_mut(&sender) else { continue };
            nonces.retain(|seen| *seen != nonce);
            if nonces.is_empty() {
                self.seen.remove(&sender);
            }
        }
    }

    /// Forgets the sender whose newest request is the oldest.
    fn forget_sender(&mut self) {
        let oldest = self.forgotten.iter().min_by_key(|(_, made_at)| **made_at);
        if let Some((sender, made_at)) = oldest.map(|(sender, made_at)| (*sender, *made_at)) {
            self.forgotten.remove(&sender);
            self.forgotten_of_others = made_at.max(self.forgotten_of_others);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use barnraise_protocol::access::{
        AccessMode, AccessToken, Authority, Claims, KeyPair, RevokedToken, TokenId, TokenRefusal,
    };

    use super::super::Policy;
    use super::*;

    const NOW: UnixTime = UnixTime(1_000_000);
    const N: u64 = 30;

    fn pair(seed: u8) -> KeyPair {
        KeyPair::from_seed(&[seed; 32])
    }

    fn here() -> PublicKey {
        pair(1).public()
    }

    fn admissions() -> Admissions {
        let authority = Authority { key: here(), run_id: "barn".into() };
        let clock_tolerance = Duration::from_secs(N);
        Admissions::new(Policy { mode: AccessMode::Invitation, authority, clock_tolerance }, 10)
    }

    fn request(sender: u8, nonce: u8, time: UnixTime) -> SignedRequest {
        let (run_id, user) = ("barn".into(), "alice".into());
        let (peer, token_id) = (pair(sender).public(), TokenId([sender; 16]));
        let claims = Claims { run_id, user, peer, expires_at: NOW.after(10_000), token_id, may_host: false };
        let token = AccessToken::sign(&pair(1), claims).unwrap();
        SignedRequest::sign(&pair(sender), token, here(), time, Nonce([nonce; 16]), Vec::new()).unwrap()
    }

    #[test]
    fn each_refusal_and_what_is_remembered_of_it() {
        let mut guard = RequestGuard::new(here(), RequestLimits::default());
        let mut admissions = admissions();
        let elsewhere = pair(9).public();
        let mut misdirected = request(2, 7, NOW);
        misdirected.receiver = elsewhere;
        let revoked = [RevokedToken { token_id: TokenId([4; 16]), expires_at: NOW.after(10_000) }];
        admissions.on_revoked(&revoked);
        let old = UnixTime(NOW.0 - N - 1);
        // Time, request and result, one after the other on the same guard.
        let rows = [
            (0, request(2, 1, NOW), Ok(())),
            (0, request(2, 1, NOW), Err(RequestRefusal::NonceUsed)),
            (0, request(3, 1, NOW), Ok(())),
            (0, request(2, 2, NOW), Ok(())),
            (0, request(4, 1, NOW), Err(TokenRefusal::Revoked.into())),
            // Another receiver than was signed is another request than was signed.
            (0, misdirected, Err(RequestRefusal::Signature)),
            (0, request(2, 3, old), Err(RequestRefusal::Clock { sent_at: old, now: NOW, tolerance_s: N })),
            // It was never taken, so its nonce was never used.
            (0, request(2, 3, NOW), Ok(())),
            // Made by a clock that is N ahead: in time until 2 N later, and remembered until then.
            (0, request(2, 4, NOW.after(N)), Ok(())),
            (2 * N, request(2, 4, NOW.after(N)), Err(RequestRefusal::NonceUsed)),
            // Once all that was signed with it is too old, a nonce may come again.
            (2 * N + 1, request(2, 4, NOW.after(2 * N + 1)), Ok(())),
        ];
        for (index, (after, request, want)) in rows.into_iter().enumerate() {
            let got = guard.on_request(NOW.after(after), &admissions, &request);
            assert_eq!(got, want, "row {index}");
        }
    }

    #[test]
    fn no_request_is_ever_taken_twice_for_any_clock_of_its_sender() {
        let admissions = admissions();
        for ahead in 0..=2 * N {
            let made = UnixTime(NOW.0 - N + ahead);
            let mut guard = RequestGuard::new(here(), RequestLimits::default());
            let n_taken = (0..5 * N)
                .filter(|&after| {
                    guard.on_request(NOW.after(after), &admissions, &request(2, 1, made)).is_ok()
                })
                .count();
            assert_eq!(n_taken, 1, "made {} s from now", i64::try_from(ahead).unwrap() - 30);
        }
    }

    #[test]
    fn no_request_is_ever_taken_twice_for_any_change_of_this_clock() {
        let admissions = admissions();
        // Requests that two senders signed at various times; each is sent again and again.
        let of = |sender| (0..6).map(move |nonce| request(sender, nonce, NOW.after(100 * u64::from(nonce))));
        let signed: Vec<SignedRequest> = of(2).chain(of(3)).collect();
        let mut n_taken = 0;
        for seed in 0..20 {
            let mut random = crate::random::SplitMix64::new(seed);
            // So few that one of them has to give way to the other.
            let limits = RequestLimits { requests_max: 1 + random.below(3), requests_of_peer_max: 64 };
            let mut guard = RequestGuard::new(here(), limits);
            let mut times_taken = vec![0; signed.len()];
            let mut after = 300;
            for _ in 0..300 {
                // It goes on, and now and then it is set by up to ten minutes, in either direction.
                after = match random.below(4) {
                    0 => random.below(600) as u64,
                    _ => after + random.below(40) as u64,
                };
                let sent = random.below(signed.len());
                let taken = guard.on_request(NOW.after(after), &admissions, &signed[sent]);
                times_taken[sent] += u32::from(taken.is_ok());
            }
            assert!(times_taken.iter().all(|&n| n <= 1), "seed {seed}: {times_taken:?}");
            assert!(guard.forgotten.len() <= limits.requests_max);
            n_taken += times_taken.iter().sum::<u32>();
        }
        assert!(n_taken > 40, "{n_taken}");
    }

    #[test]
    fn a_forgotten_request_leaves_its_time_to_its_sender_alone_and_no_other_nonce() {
        let mut guard = RequestGuard::new(here(), RequestLimits::default());
        let admissions = admissions();
        let ahead = NOW.after(10 + N);
        let forgotten_at = 2 * N + 1;
        // Seconds since the first, request and result, one after the other on the same guard.
        let rows = [
            (0, request(2, 1, NOW), Ok(())),
            (10, request(2, 2, ahead), Ok(())),
            // The first one is forgotten, the second one is not.
            (forgotten_at, request(2, 2, ahead), Err(RequestRefusal::NonceUsed)),
            // This clock is set back: what may have come before is refused with any nonce.
            (0, request(2, 3, UnixTime(NOW.0 - 1)), Err(RequestRefusal::NonceUsed)),
            (0, request(2, 3, NOW), Err(RequestRefusal::NonceUsed)),
            (0, request(2, 3, NOW.after(1)), Ok(())),
            (0, request(3, 1, NOW), Ok(())),
        ];
        for (index, (after, request, want)) in rows.into_iter().enumerate() {
            let got = guard.on_request(NOW.after(after), &admissions, &request);
            assert_eq!(got, want, "row {index}");
        }
    }

    #[test]
    fn memory_is_bounded_and_nobody_takes_all_of_it() {
        let limits = RequestLimits { requests_max: 5, requests_of_peer_max: 3 };
        let mut guard = RequestGuard::new(here(), limits);
        let admissions = admissions();
        let mut take = |sender, nonce, after| {
            let now = NOW.after(after);
            guard.on_request(now, &admissions, &request(sender, nonce, now))
        };
        for nonce in 0..3 {
            take(2, nonce, 0).unwrap();
        }
        let retry_in_s = 2 * N + 1;
        assert_eq!(take(2, 3, 0), Err(RequestRefusal::TooMany { retry_in_s }));
        take(3, 0, 0).unwrap();
        take(5, 0, 0).unwrap();
        assert_eq!(take(6, 0, 1), Err(RequestRefusal::TooMany { retry_in_s: retry_in_s - 1 }));
        take(6, 0, retry_in_s).unwrap();
        assert_eq!((guard.seen.len(), guard.forget.len()), (1, 1));
    }
}
