//! Checks the host name of requests for an operator's page.
//!
//! No page of the web reads another site's answers, but a hostile one may have its own name lead to this machine once it
//! is loaded (DNS rebinding), and is the same site then. What it cannot do is to ask by another name than its own. So an
//! address in digits is always good, as no name leads there, and a name is good where the operator said so.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};

/// Longest name there is, in characters (RFC 1035 §3.1).
const NAME_CHARS_MAX: usize = 253;
/// Of a wrong name, so much is said again.
const SHOWN_CHARS_MAX: usize = 100;

/// The request is for another host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this page is asked for at an address in digits, as `localhost`, or by a name that `{key}` in [network] of the \
    configuration lists; the header `Host` says {got:?}"
)]
pub struct WrongHost {
    key: &'static str,
    got: String,
}

/// The names of a page. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HostNames {
    key: &'static str,
    names: Arc<[String]>,
}

impl HostNames {
    /// - `key`: the configuration key of these names, for the error
    /// - `names`: beside `localhost`
    #[must_use]
    pub fn new(key: &'static str, names: &[String]) -> Self {
        let names = names.iter().map(|name| without_dot(name).to_ascii_lowercase()).collect();
        Self { key, names }
    }

    /// Checks that a request is for this page. One without a host is: browsers always send one.
    ///
    /// # Errors
    /// The request names another host, or an invalid one.
    pub fn check(&self, request: &Request) -> Result<(), WrongHost> {
        let said = request.headers().get_all(header::HOST).iter();
        let said = said.map(|value| String::from_utf8_lossy(value.as_bytes()));
        let asked = request.uri().authority().map(|authority| Cow::Borrowed(authority.as_str()));
        match said.chain(asked).find(|host| !self.has(host)) {
            None => Ok(()),
            Some(host) => Err(WrongHost { key: self.key, got: host.chars().take(SHOWN_CHARS_MAX).collect() }),
        }
    }

    fn has(&self, host: &str) -> bool {
        let Some(name) = without_port(host) else { return false };
        let name = without_dot(name).to_ascii_lowercase();
        is_address(&name) || name == "localhost" || name.ends_with(".localhost") || self.names.contains(&name)
    }

    /// Wraps `routes`: requests by one of the names are answered, all others get [`WrongHost`].
    pub fn guard(self, routes: Router) -> Router {
        routes.layer(middleware::from_fn_with_state(self, refuse_others))
    }
}

/// Whether this can be listed: a name, without a port.
#[must_use]
pub fn is_host_name(name: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    (1..=NAME_CHARS_MAX).contains(&name.len()) && name.chars().all(known) && !name.starts_with('.')
}

/// Nothing where what stands behind the last colon is no port.
fn without_port(host: &str) -> Option<&str> {
    match host.rsplit_once(':') {
        // An address in brackets has colons of its own.
        Some((name, port)) if !host.ends_with(']') => {
            port.bytes().all(|digit| digit.is_ascii_digit()).then_some(name)
        }
        _ => Some(host),
    }
}

fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

fn is_address(host: &str) -> bool {
    let in_brackets = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    host.parse::<Ipv4Addr>().is_ok() || in_brackets.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok())
}

async fn refuse_others(State(names): State<HostNames>, request: Request, next: Next) -> Response {
    match names.check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            let no_store = [(header::CACHE_CONTROL, "no-store")];
            (StatusCode::MISDIRECTED_REQUEST, no_store, format!("{error}\n")).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::body::Body;

    use super::*;

    fn request_for(hosts: &[&str], uri: &str) -> Result<(), WrongHost> {
        let names = HostNames::new("http_names", &["Metrics.Example.org.".into()]);
        let request = hosts.iter().fold(Request::get(uri), |request, host| request.header("host", *host));
        names.check(&request.body(Body::empty()).unwrap())
    }

    #[test]
    fn addresses_and_names_that_were_listed_are_answered() {
        for host in [
            "127.0.0.1:8082",
            "127.0.0.1",
            "10.1.2.3:8082",
            "[::1]:8082",
            "[fd00::1]",
            "localhost:8082",
            "LocalHost",
            "localhost.:1",
            "run.localhost",
            "metrics.example.org:8082",
            "METRICS.example.ORG.",
        ] {
            assert_eq!(request_for(&[host], "/metrics"), Ok(()), "{host}");
        }
        assert_eq!(request_for(&[], "/metrics"), Ok(()), "no browser");
        assert_eq!(request_for(&["127.0.0.1"], "http://127.0.0.1:8082/metrics"), Ok(()));
    }

    #[test]
    fn a_request_for_another_site_is_told_what_is_wanted() {
        for host in [
            "evil.example:8082",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "evillocalhost",
            "metrics.example.org.evil.example",
            "localhost@evil.example",
            "evil.example@localhost",
            "127.0.0.1:8082, evil.example",
            "[::1].evil.example",
            "::1",
            "",
            "%6cocalhost",
        ] {
            let error = request_for(&[host], "/metrics").unwrap_err().to_string();
            assert!(error.contains("http_names") && error.contains(&format!("{host:?}")), "{error}");
        }
        assert!(request_for(&["localhost", "evil.example"], "/metrics").is_err(), "two of them");
        assert!(request_for(&["localhost"], "http://evil.example/metrics").is_err(), "as of a proxy");
        let long = request_for(&[&"x".repeat(5000)], "/metrics").unwrap_err().to_string();
        assert!(long.len() < 400, "{long}");
    }

    #[test]
    fn a_name_is_listed_without_a_port() {
        for good in ["backbone", "metrics.example.org", "a_b-c.internal."] {
            assert!(is_host_name(good), "{good}");
        }
        for wrong in ["", "host:8082", "http://host", "*", "*.example.org", ".example.org", "a b", "[::1]"] {
            assert!(!is_host_name(wrong), "{wrong}");
        }
        assert!(!is_host_name(&"x".repeat(254)));
    }
}
