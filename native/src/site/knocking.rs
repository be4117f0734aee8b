//! `GET /api/rooms/<code>`: from the code of a room to the run that it lets in.
//!
//! Codes are short. How often anybody tries one is bounded, for each address and for all together; a wrong one costs as
//! much as a right one; and none is ever listed, or written to the log.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use barnraise_protocol::api::Room;
use barnraise_swarm::guard::RateLimiter;

use super::Shared;
use crate::access::rooms::RoomCode;
use crate::http::no_store;
use crate::visitors::Visitor;

/// Codes that one address may try in a minute: a class that comes at once, behind one router.
const PER_ADDRESS_AND_MINUTE: u32 = 40;
/// Codes that all may try. At this pace a code that is good for eight hours is found in one of 7,000 attempts to do so.
const PER_MINUTE: u32 = 300;
/// Addresses whose latest attempts are remembered.
const ADDRESSES_MAX: usize = 20_000;

/// How often codes are tried.
pub(super) struct Knocking {
    started: Instant,
    lately: Mutex<(RateLimiter<IpAddr>, RateLimiter<()>)>,
}

impl Default for Knocking {
    fn default() -> Self {
        let each = RateLimiter::new(PER_ADDRESS_AND_MINUTE, ADDRESSES_MAX);
        Self { started: Instant::now(), lately: Mutex::new((each, RateLimiter::new(PER_MINUTE, 2))) }
    }
}

impl Knocking {
    fn may_try(&self, now: Duration, visitor: Option<Visitor>) -> bool {
        let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
        // Who tries too often takes nothing from the others.
        visitor.is_none_or(|Visitor(address)| lately.0.take(now, &address)) && lately.1.take(now, &())
    }
}

/// `GET /api/rooms/<code>`
pub(super) async fn room(
    State(site): State<Arc<Shared>>,
    visitor: Option<Extension<Visitor>>,
    Path(code): Path<String>,
) -> Response {
    let visitor = visitor.map(|Extension(visitor)| visitor);
    if !site.knocking.may_try(site.knocking.started.elapsed(), visitor) {
        let text = "too many codes were tried, come again in a minute\n";
        return (StatusCode::TOO_MANY_REQUESTS, no_store(), [(header::RETRY_AFTER, "60")], text)
            .into_response();
    }
    let Ok(code) = code.parse::<RoomCode>() else { return unknown() };
    let mut found = None;
    // All of them, wherever it is found.
    for run in &site.runs {
        let Some(rooms) = &run.rooms else { continue };
        match rooms.invitation(&code).await {
            Ok(invitation) => {
                let id = run.http.status().run.run_id.clone();
                found = found.or(invitation.map(|invitation| Room { run: id, invitation }));
            }
            Err(error) => {
                // What went wrong inside is for the log, not for strangers.
                tracing::warn!(%error, "a room cannot be looked for");
                let text = "the database is not at hand, come again in a moment\n";
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
        let knocking = Knocking::default();
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
