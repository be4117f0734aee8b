//! HTTP visitors: the address of a visitor behind proxies, and a rate limit for each address.
//!
//! Any client can forge `X-Forwarded-For`. It is read only if the connection comes from a trusted proxy, from its end
//! up to the first address that is no trusted proxy. Behind a proxy that is not trusted, all visitors have the proxy's
//! address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
pub use barnraise_relay::{IpNetwork, NetworkError};
use barnraise_relay::{Node, TrustedProxies, Violation};
use barnraise_swarm::guard::RateLimiter;

/// Most addresses whose latest requests are remembered.
const ADDRESSES_MAX: usize = 20_000;
/// Longest time until a response begins.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Largest body that a request may announce: a confirmation of a login is the only one that is read.
const BODY_BYTES_MAX: u64 = 16 * 1024;
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// One year, for which browsers remember that the site has a certificate.
const HSTS: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// The network that an address stands for: the owner of one IPv6 address can use its whole /64.
pub fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// The address that a request counts for, among the request's extensions. Requests from this machine have none: they may
/// come from a proxy that is not named, with many visitors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visitor(pub IpAddr);

/// Slots for long requests, of which one visitor may have only some. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Seats {
    n_max: usize,
    n_of_one_max: usize,
    taken: Arc<Mutex<SeatCounts>>,
}

#[derive(Debug, Default)]
struct SeatCounts {
    n: usize,
    of: HashMap<IpAddr, usize>,
}

/// A slot, free again when it is dropped.
#[derive(Debug)]
pub struct Seat {
    seats: Seats,
    visitor: Option<Visitor>,
}

impl Seats {
    /// `n_max` slots in total, at most `n_of_one_max` for one visitor.
    #[must_use]
    pub fn new(n_max: usize, n_of_one_max: usize) -> Self {
        Self { n_max, n_of_one_max, taken: Arc::default() }
    }

    /// A slot; `None` where none is free for this visitor.
    #[must_use]
    pub fn take(&self, visitor: Option<Visitor>) -> Option<Seat> {
        let mut taken = self.lock();
        let own = visitor.and_then(|Visitor(address)| taken.of.get(&address).copied()).unwrap_or_default();
        if taken.n >= self.n_max || own >= self.n_of_one_max {
            return None;
        }
        taken.n += 1;
        if let Some(Visitor(address)) = visitor {
            taken.of.insert(address, own + 1);
        }
        Some(Seat { seats: self.clone(), visitor })
    }

    fn lock(&self) -> MutexGuard<'_, SeatCounts> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.lock();
        taken.n = taken.n.saturating_sub(1);
        let Some(Visitor(address)) = self.visitor else { return };
        if let Some(own) = taken.of.remove(&address)
            && own > 1
        {
            taken.of.insert(address, own - 1);
        }
    }
}

/// Rate limit of each address. Cheap to clone.
#[derive(Clone)]
pub struct Visitors {
    proxies: TrustedProxies,
    lately: Arc<Mutex<RateLimiter<IpAddr>>>,
    started: Instant,
    node: Option<Node>,
}

impl Visitors {
    /// At most `per_minute` requests of an address, in a burst as well; `node` counts further ones as violations.
    pub fn new(proxies: &[IpNetwork], per_minute: u32, node: Option<Node>) -> Self {
        let lately = Arc::new(Mutex::new(RateLimiter::new(per_minute, ADDRESSES_MAX)));
        Self { proxies: TrustedProxies::new(proxies), lately, started: Instant::now(), node }
    }

    /// Address of the visitor, behind trusted proxies.
    pub fn visitor(&self, remote: IpAddr, headers: &HeaderMap) -> IpAddr {
        self.proxies.visitor(remote, headers.get_all(FORWARDED_FOR).iter().map(HeaderValue::as_bytes))
    }

    fn may_ask(&self, visitor: IpAddr) -> bool {
        // This machine has no limit: the address may be that of a proxy that is not named, with all its visitors.
        if visitor.is_loopback() {
            return true;
        }
        let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
        lately.take(self.started.elapsed(), &source_of(visitor))
    }
}

/// Middleware of all routes: refuses requests that are too frequent or too large, and ends those that take too long.
pub async fn bound(State(visitors): State<Visitors>, request: Request, next: Next) -> Response {
    let remote = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let is_secure = remote.is_some_and(|remote| {
        let proto = request.headers().get(FORWARDED_PROTO);
        visitors.proxies.contains(remote) && proto.is_some_and(|proto| proto.as_bytes() == b"https")
    });
    let mut response = answer(&visitors, remote, request, next).await;
    if is_secure {
        // Only the proxy knows that there is a certificate; without one the header would be wrong.
        response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, HSTS);
    }
    response
}

async fn answer(visitors: &Visitors, remote: Option<IpAddr>, mut request: Request, next: Next) -> Response {
    let no_store = (header::CACHE_CONTROL, "no-store");
    let visitor = remote.map(|remote| visitors.visitor(remote, request.headers()));
    if visitor.is_some_and(|visitor| !visitors.may_ask(visitor)) {
        if let Some(node) = &visitors.node {
            node.count(Violation::RequestRate);
        }
        let text = "too many requests from your address, come again in a minute\n";
        return (StatusCode::TOO_MANY_REQUESTS, [no_store, (header::RETRY_AFTER, "60")], text)
            .into_response();
    }
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if announced.is_some_and(|text| text.parse::<u64>().map_or(true, |n_bytes| n_bytes > BODY_BYTES_MAX)) {
        return (StatusCode::PAYLOAD_TOO_LARGE, [no_store], "no such body is taken here\n").into_response();
    }
    if let Some(visitor) = visitor.filter(|visitor| !visitor.is_loopback()) {
        request.extensions_mut().insert(Visitor(source_of(visitor)));
    }
    match tokio::time::timeout(ANSWER_MAX, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let text = "the answer took too long, come again in a moment\n";
            (StatusCode::SERVICE_UNAVAILABLE, [no_store, (header::RETRY_AFTER, "10")], text).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn forwarded(values: &[&'static str]) -> HeaderMap {
        values.iter().map(|value| (FORWARDED_FOR, HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_forged_forwarded_for_is_ignored() {
        let closed = Visitors::new(&[], 60, None);
        let (proxy, visitor) = (ip("10.0.0.1"), ip("198.51.100.7"));
        let forged = forwarded(&["203.0.113.1"]);
        assert_eq!(closed.visitor(visitor, &forged), visitor);
        assert_eq!(closed.visitor(proxy, &forged), proxy, "closed by default");
        let open = Visitors::new(&["10.0.0.0/8".parse().unwrap()], 60, None);
        assert_eq!(open.visitor(visitor, &forged), visitor, "not from a proxy");
        assert_eq!(open.visitor(proxy, &forwarded(&["203.0.113.1, 198.51.100.7"])), visitor);
        assert_eq!(open.visitor(proxy, &forwarded(&["203.0.113.1", "198.51.100.7, 10.2.2.2"])), visitor);
        assert_eq!(open.visitor(proxy, &forwarded(&["198.51.100.7, nonsense"])), proxy);
        assert_eq!(open.visitor(proxy, &HeaderMap::new()), proxy);
        let mut headers = HeaderMap::new();
        headers.insert(FORWARDED_FOR, HeaderValue::from_bytes(b"\xff, 198.51.100.7").unwrap());
        assert_eq!(open.visitor(proxy, &headers), visitor, "what is no text hides nobody");
        let long: String = vec!["10.0.0.9"; 1000].join(",");
        let mut headers = HeaderMap::new();
        headers.insert(FORWARDED_FOR, HeaderValue::try_from(long).unwrap());
        assert_eq!(open.visitor(proxy, &headers), ip("10.0.0.9"));
    }

    #[test]
    fn one_visitor_does_not_take_all_seats() {
        let seats = Seats::new(3, 2);
        let (one, other) = (Some(Visitor(ip("198.51.100.7"))), Some(Visitor(ip("198.51.100.8"))));
        let first = seats.take(one).unwrap();
        let second = seats.take(one).unwrap();
        assert!(seats.take(one).is_none(), "it has its share");
        let third = seats.take(other).unwrap();
        assert!(seats.take(other).is_none() && seats.take(None).is_none(), "there are no more");
        drop(first);
        assert!(seats.take(one).is_some());
        let unknown = [seats.take(None)];
        assert!(unknown[0].is_some() && seats.take(one).is_none());
        drop(unknown);
        drop((second, third));
        assert!(seats.lock().of.is_empty(), "nobody who left is remembered");
    }

    #[test]
    fn each_address_has_its_own_minute() {
        let visitors = Visitors::new(&[], 2, None);
        let neighbours = [ip("2001:db8::1"), ip("2001:db8::ffff")];
        assert!(visitors.may_ask(neighbours[0]) && visitors.may_ask(neighbours[1]));
        assert!(!visitors.may_ask(neighbours[0]), "one /64 is one visitor");
        assert!(visitors.may_ask(ip("198.51.100.7")));
        assert!((0..100).all(|_| visitors.may_ask(ip("127.0.0.1"))));
    }
}
