//! Lets those use an API that show its operator's token, and no web page.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use barnraise_swarm::guard::RateLimiter;

use super::token::TokenHash;
use crate::host::problem::Problem;
use crate::host::visitors::source_of;

/// Wrong tokens of one address in a minute; beyond that the answer is `429 Too Many Requests`.
const FAILURES_PER_MINUTE: u32 = 20;
/// Most addresses whose failures are counted.
const ADDRESSES_MAX: usize = 10_000;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(crate) struct TokenGuard {
    token: TokenHash,
    failures: Arc<Mutex<RateLimiter<IpAddr>>>,
    started: Instant,
}

impl TokenGuard {
    pub(crate) fn new(token: TokenHash) -> Self {
        let failures = Arc::new(Mutex::new(RateLimiter::new(FAILURES_PER_MINUTE, ADDRESSES_MAX)));
        Self { token, failures, started: Instant::now() }
    }

    fn check(&self, request: &Request) -> Result<(), Problem> {
        if is_of_a_page(request.headers()) {
            return Err(Problem::Origin);
        }
        let given = bearer(request.headers());
        if given.is_some_and(|token| self.token.is_of(token)) {
            return Ok(());
        }
        let from = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| source_of(info.0.ip()));
        if let Some(from) = from {
            if !self.may_fail(&from) {
                return Err(Problem::TooManyAttempts);
            }
            tracing::warn!(%from, has_token = given.is_some(), "refused at the admin API");
        }
        Err(if given.is_none() { Problem::NoToken } else { Problem::WrongToken })
    }

    /// Counts a request without the token; `false` where its address sent too many.
    fn may_fail(&self, from: &IpAddr) -> bool {
        let now = self.started.elapsed();
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).take(now, from)
    }
}

/// Refuses requests without the token.
pub(crate) async fn authenticate(State(guard): State<TokenGuard>, request: Request, next: Next) -> Response {
    match guard.check(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Whether a web page made the request: browsers send these headers then, and `none` for an address that was typed.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    headers.contains_key(header::ORIGIN) || site.is_some_and(|site| site != "none")
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
