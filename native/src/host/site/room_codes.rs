//! `GET /api/rooms/<code>`: finds the run of a room code, and the invitation behind it.
//!
//! Codes are short. Attempts are rate-limited, for each address and for all together. A wrong code takes as long as a
//! right one. No code is ever listed or logged.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use barnraise_protocol::api::Room;
use barnraise_swarm::guard::RateLimiter;

use super::SiteState;
use crate::host::access::rooms::RoomCode;
use crate::host::headers::no_store;
use crate::host::visitors::Visitor;

/// Attempts of one address in a minute: a class that comes at once, behind one router.
const PER_ADDRESS_AND_MINUTE: u32 = 40;
/// Attempts of all addresses in a minute. At this rate eight hours of attempts find a certain code with odds of 1 in 7,000.
const PER_MINUTE: u32 = 300;
/// Most addresses whose latest attempts are remembered.
const ADDRESSES_MAX: usize = 20_000;

/// Rate limit of attempts.
pub(super) struct RoomCodeLimiter {
    started: Instant,
    limiters: Mutex<(RateLimiter<IpAddr>, RateLimiter<()>)>,
}

impl Default for RoomCodeLimiter {
    fn default() -> Self {
        let each = RateLimiter::new(PER_ADDRESS_AND_MINUTE, ADDRESSES_MAX);
        Self { started: Instant::now(), limiters: Mutex::new((each, RateLimiter::new(PER_MINUTE, 2))) }
    }
}

impl RoomCodeLimiter {
    fn may_try(&self, now: Duration, visitor: Option<Visitor>) -> bool {
        let mut lately = self.limiters.lock().unwrap_or_else(PoisonError::into_inner);
        // An attempt beyond the limit of its address does not count for the limit of all.
        visitor.is_none_or(|Visitor(address)| lately.0.take(now, &address)) && lately.1.take(now, &())
    }
}

/// `GET /api/rooms/<code>`
pub(super) async fn room(
    State(site): State<Arc<SiteState>>,
    visitor: Option<Extension<Visitor>>,
    Path(code): Path<String>,
) -> Response {
    let visitor = visitor.map(|Extension(visitor)| visitor);
    if !site.code_limiter.may_try(site.code_limiter.started.elapsed(), visitor) {
        let text = "too many codes were tried, come again in a minute\n";
        return (StatusCode::TOO_MANY_REQUESTS, no_store(), [(header::RETRY_AFTER, "60")], text)
            .into_response();
    }
    let Ok(code) = code.parse::<RoomCode>() else { return unknown() };
    let mut found = None;
    // All runs are asked, so that the time does not depend on the code.
    for run in &site.runs().runs {
        let Some(rooms) = &run.rooms else { continue };
        match rooms.invitation(&code).await {
            Ok(invitation) => {
                let id = run.id();
                found = found.or(invitation.map(|invitation| Room { run: id, invitation }));
            }
            Err(error) => {
                // The error goes to the log only.
                tracing::warn!(%error, "a room cannot be looked for");
                let text = "the database does not answer, try again in a moment\n";
                return (StatusCode::SERVICE_UNAVAILABLE, no_store(), text).into_response();
            }
        }
    }
    found.map_or_else(unknown, |room| (no_store(), Json(room)).into_response())
}

fn unknown() -> Response {
    (StatusCode::NOT_FOUND, no_store(), "404: no room has this code\n").into_response()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn codes_are_tried_slowly_by_each_and_by_all() {
        let knocking = RoomCodeLimiter::default();
        let address = |idx: u32| Some(Visitor(IpAddr::V4(Ipv4Addr::from_bits(0xc633_6400 + idx))));
        let now = Duration::ZERO;
        let n_tries = |visitor: Option<Visitor>, n: u32| {
            (0..n).filter(|_| knocking.may_try(now, visitor)).count() as u32
        };
        assert_eq!(n_tries(address(0), 1000), PER_ADDRESS_AND_MINUTE);
        let n_others: u32 = (1..100).map(|idx| n_tries(address(idx), 5)).sum();
        assert_eq!(n_others, PER_MINUTE - PER_ADDRESS_AND_MINUTE);
        assert_eq!(n_tries(None, 1), 0, "from this machine");
    }
}
