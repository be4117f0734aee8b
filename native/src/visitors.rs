//! Who asks over HTTP, and how often: the address behind proxies, and a limit for each address.
//!
//! `X-Forwarded-For` is what anybody writes into a request. It is read only where the connection comes from a proxy
//! that the configuration trusts, from its end, up to the first address that no trusted proxy has. Without one, all
//! visitors of a proxy are that proxy.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use barnraise_relay::{Misdeed, Node, TrustedProxies};
pub use barnraise_relay::{Network, NetworkError};
use barnraise_swarm::guard::RateLimiter;

/// Addresses whose latest requests are remembered.
const ADDRESSES_MAX: usize = 20_000;
/// How long an answer may take to begin.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Largest body that a request may announce: a confirmation of a login is the only one that is read.
const BODY_BYTES_MAX: u64 = 16 * 1024;
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// A year: what browsers are to remember of an address that had a certificate.
const HSTS: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// Where a visitor comes from, as far as one who sends can choose: whoever has one address of IPv6 has its whole /64.
pub fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// Who asks, as far as it counts against a bound of each address: among the extensions of a request. One on this machine
/// is none, since it may be a proxy that is not named, and with it many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visitor(pub IpAddr);

/// Places for what takes long, of which one visitor has only some. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Seats {
    n_max: usize,
    n_of_one_max: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    n: usize,
    of: HashMap<IpAddr, usize>,
}

/// One of them; free when it is dropped.
#[derive(Debug)]
pub struct Seat {
    seats: Seats,
    visitor: Option<Visitor>,
}

impl Seats {
    /// So many in all, and so many for one visitor.
    #[must_use]
    pub fn new(n_max: usize, n_of_one_max: usize) -> Self {
        Self { n_max, n_of_one_max, taken: Arc::default() }
    }

    /// One of them; `None` where there is none for this visitor now.
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

    fn lock(&self) -> MutexGuard<'_, Taken> {
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

/// How often each address may ask. Cheap to clone.
#[derive(Clone)]
pub struct Visitors {
    proxies: TrustedProxies,
    lately: Arc<Mutex<RateLimiter<IpAddr>>>,
    started: Instant,
    node: Option<Node>,
}

impl Visitors {
    /// At most `per_minute` requests of an address, as many as that at once; those beyond are counted by `node`.
    pub fn new(proxies: &[Network], per_minute: u32, node: Option<Node>) -> Self {
        let lately = Arc::new(Mutex::new(RateLimiter::new(per_minute, ADDRESSES_MAX)));
        Self { proxies: TrustedProxies::new(proxies), lately, started: Instant::now(), node }
    }

    /// Who asks, behind the proxies that are trusted.
    pub fn visitor(&self, remote: IpAddr, headers: &HeaderMap) -> IpAddr {
        self.proxies.visitor(remote, headers.get_all(FORWARDED_FOR).iter().map(HeaderValue::as_bytes))
    }

    fn may_ask(&self, visitor: IpAddr) -> bool {
        // Who is on this machine has other ways to burden it; a proxy here that is not named is all its visitors.
        if visitor.is_loopback() {
            return true;
        }
        let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
        lately.take(self.started.elapsed(), &source_of(visitor))
    }
}

/// Around every route of the page: who asks too often, too much or for too long is told so.
pub async fn bound(State(visitors): State<Visitors>, request: Request, next: Next) -> Response {
    let remote = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let is_secure = remote.is_some_and(|remote| {
        let proto = request.headers().get(FORWARDED_PROTO);
        visitors.proxies.contains(remote) && proto.is_some_and(|proto| proto.as_bytes() == b"https")
    });
    let mut response = answer(&visitors, remote, request, next).await;
    if is_secure {
        // Only the proxy knows that there is a certificate: to others the header would promise what is not so.
        response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, HSTS);
    }
    response
}

async fn answer(visitors: &Visitors, remote: Option<IpAddr>, mut request: Request, next: Next) -> Response {
    let no_store = (header::CACHE_CONTROL, "no-store");
    let visitor = remote.map(|remote| visitors.visitor(remote, request.headers()));
    if visitor.is_some_and(|visitor| !visitors.may_ask(visitor)) {
        if let Some(node) = &visitors.node {
            node.count(Misdeed::RequestRate);
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
    fn what_a_visitor_writes_about_itself_is_believed_by_nobody() {
        let closed = Visitors::new(&[], 60, None);
        let (proxy, visitor) = (ip("10.0.0.1"), ip("198.51.100.7"));
        let lies = forwarded(&["203.0.113.1"]);
        assert_eq!(closed.visitor(visitor, &lies), visitor);
        assert_eq!(closed.visitor(proxy, &lies), proxy, "closed by default");
        let open = Visitors::new(&["10.0.0.0/8".parse().unwrap()], 60, None);
        assert_eq!(open.visitor(visitor, &lies), visitor, "not from a proxy");
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
