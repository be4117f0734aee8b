//! Signing in: three pages that bind an identity to a peer's key.
//!
//! `GET /login?peer=…&ticket=…` redirects the browser to the identity provider, which redirects it to
//! `GET /login/callback`. `POST /login/confirm` is the only request of the whole server that changes something. Only
//! the peer itself received the ticket, over a connection that attests its key: nobody can bind another peer. Before
//! the confirmation a page names the peer: a link from a stranger gives the stranger's key nothing until the person
//! who signed in has read the peer id and agreed. Pending logins are kept in memory, bounded, and tied to the browser
//! by a cookie. Where there are too many, the group of addresses with the most pending logins loses its
//! oldest.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Form, Query, State};
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{HeaderName, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use barnraise_protocol::access::PublicKey;
use libp2p::PeerId;
use serde::Deserialize;
use tokio::time::Instant;

use super::authority::FULL;
use super::provider::{Provider, ProviderError, Secrets};
use super::store::{Identity, LoginOutcome, StoreError};
use super::{AccessAuthority, AccessError, random};
use crate::config::AccessSection;
use crate::host::visitors::Visitor;
use crate::host::{hex, peer_id};

/// Redirect address of the provider, below the page's address.
pub const CALLBACK_PATH: &str = "/login/callback";
/// Name of the cookie that ties a login to a browser.
const COOKIE: &str = "barnraise_login";
/// Longest time from the first page to the confirmation.
const LOGIN_MAX: Duration = Duration::from_secs(600);
/// Most pending logins.
const LOGINS_MAX: usize = 1024;
/// Most pending logins of one group of addresses, which may be a school's.
const LOGINS_OF_GROUP_MAX: usize = 128;
/// Largest confirmation.
const FORM_BYTES_MAX: usize = 4096;

/// Style sheet of the login pages, which use nothing of the main page.
const STYLE_PATH: &str = "/login/style.css";
const STYLE: &str = include_str!("login.css");

/// Stricter than that of the main page: the form may be sent, and only the style sheet is loaded.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Signs people in. Cheap to clone.
#[derive(Clone)]
pub struct Login {
    authority: AccessAuthority,
    provider: Provider,
    /// Whether cookies travel over HTTPS only.
    is_secure: bool,
    /// Path below which browsers send the cookie.
    cookie_path: String,
    under_way: Arc<PendingLogins>,
}

/// All pending logins, by the provider's `state`, and after the callback by the number of the confirmation.
#[derive(Default)]
struct PendingLogins {
    logins: Mutex<LoginTable>,
}

#[derive(Default)]
struct LoginTable {
    logins: HashMap<String, PendingLogin>,
    n_begun: u64,
}

/// A login between its pages.
struct PendingLogin {
    /// Cookie of the browser that began it.
    cookie: String,
    peer: PublicKey,
    until: Instant,
    stage: LoginStage,
    slot: LoginSlot,
}

/// The group of addresses that a pending login counts for, and its age in comparison with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LoginSlot {
    /// `None` for browsers on this machine, and for all behind a proxy that is not trusted.
    group: Option<IpAddr>,
    number: u64,
}

enum LoginStage {
    /// The browser is at the provider.
    Away(Secrets),
    /// The person signed in and has not confirmed yet.
    Back(Identity),
}

/// Why a person is not signed in. Shown as a page.
#[derive(Debug, thiserror::Error)]
enum LoginError {
    #[error("This is no address to sign in at: it names no peer with an Ed25519 key.")]
    NoPeer,
    #[error(
        "This is not an address that the peer was given, or it is too old. Open the link that your own terminal or \
        tab shows now."
    )]
    NoTicket,
    #[error("Access to this run was taken back from you. Its operator can give it to you again.")]
    Excluded,
    #[error(
        "Somebody else has signed in for this peer, and it stays theirs. Start yours with a key of its own, and sign \
        in at the link that it shows."
    )]
    AnothersPeer,
    #[error("This login was begun in another browser, or too long ago. Begin again.")]
    Unknown,
    #[error("You did not sign in: {0}.")]
    Declined(String),
    #[error("{name} is not on the list of this run. Its operator can add you: {name} (subject {subject}).")]
    NotOnList { name: String, subject: String },
    #[error("You have signed in for too many keys already.")]
    TooManyKeys,
    #[error("You could not be signed in: {FULL}.")]
    Full,
    #[error("You could not be signed in. Its operator can see why in the log.")]
    Inside,
}

impl Login {
    /// The login of a run for those on its list; `None` where there is no provider, or no authority.
    ///
    /// # Errors
    /// The secret cannot be read, or an address is no web address.
    pub fn new(
        section: &AccessSection,
        authority: Option<&AccessAuthority>,
    ) -> Result<Option<Self>, AccessError> {
        let (Some(oidc), Some(authority)) = (&section.oidc, authority) else { return Ok(None) };
        let page = section.page.clone().unwrap_or_default();
        let secret = oidc.client_secret_file.as_ref().map(|path| {
            let read = std::fs::read_to_string(path);
            read.map_err(|source| AccessError::Secret { path: path.clone(), source })
        });
        let secret = secret.transpose()?.map(|secret| secret.trim().to_owned());
        let provider = Provider::new(oidc, secret, format!("{page}{CALLBACK_PATH}"));
        let provider = provider.map_err(|_| AccessError::Page { got: page.clone() })?;
        let is_secure = page.starts_with("https://");
        let (authority, cookie_path) = (authority.clone(), cookie_path(&page));
        Ok(Some(Self { authority, provider, is_secure, cookie_path, under_way: Arc::default() }))
    }

    /// The three routes, and the style sheet of their pages.
    pub fn routes(self) -> Router {
        Router::new()
            .route("/login", get(begin))
            .route(CALLBACK_PATH, get(come_back))
            .merge(style_route())
            .route("/login/confirm", post(confirm).layer(DefaultBodyLimit::max(FORM_BYTES_MAX)))
            .with_state(self)
    }

    fn set_cookie(&self, value: &str, max_age: Duration) -> Result<HeaderValue, LoginError> {
        let secure = if self.is_secure { "; Secure" } else { "" };
        // Lax, not Strict: the provider's redirect is a navigation from another site.
        let text = format!(
            "{COOKIE}={value}; Path={}; Max-Age={}; HttpOnly; SameSite=Lax{secure}",
            self.cookie_path,
            max_age.as_secs()
        );
        HeaderValue::try_from(text).map_err(|_| LoginError::Inside)
    }
}

impl PendingLogins {
    fn lock(&self) -> MutexGuard<'_, LoginTable> {
        let mut pending = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        pending.logins.retain(|_, login| login.until > now);
        pending
    }

    /// The slot of a new login.
    fn slot(&self, visitor: Option<Visitor>) -> LoginSlot {
        let mut pending = self.lock();
        pending.n_begun += 1;
        LoginSlot { group: visitor.map(|Visitor(address)| group_of(address)), number: pending.n_begun }
    }

    /// Refuses nobody: a group beyond its share, or else the largest group, loses its oldest login.
    fn put(&self, number: String, login: PendingLogin) {
        let mut pending = self.lock();
        let group = login.slot.group;
        pending.logins.insert(number, login);
        let own = pending.logins.values().filter(|login| login.slot.group == group).count();
        if group.is_some() && own > LOGINS_OF_GROUP_MAX {
            pending.give_up_oldest(group);
        } else if pending.logins.len() > LOGINS_MAX {
            let most = pending.largest_group();
            pending.give_up_oldest(most);
        }
    }

    /// Removes and returns a login; only the browser that began it finds it.
    fn take(&self, number: &str, headers: &HeaderMap) -> Result<PendingLogin, LoginError> {
        let cookie = cookie(headers).ok_or(LoginError::Unknown)?;
        let mut pending = self.lock();
        match pending.logins.get(number).is_some_and(|login| login.cookie == cookie) {
            true => pending.logins.remove(number).ok_or(LoginError::Unknown),
            false => Err(LoginError::Unknown),
        }
    }
}

impl LoginTable {
    fn largest_group(&self) -> Option<IpAddr> {
        let mut sizes: HashMap<Option<IpAddr>, usize> = HashMap::new();
        for login in self.logins.values() {
            *sizes.entry(login.slot.group).or_default() += 1;
        }
        // The address breaks ties, so that the choice is always the same.
        sizes.into_iter().max_by_key(|(group, n)| (*n, *group)).and_then(|(group, _)| group)
    }

    fn give_up_oldest(&mut self, group: Option<IpAddr>) {
        let of_group = self.logins.iter().filter(|(_, login)| login.slot.group == group);
        let oldest = of_group.min_by_key(|(_, login)| login.slot.number).map(|(number, _)| number.clone());
        if let Some(oldest) = oldest {
            self.logins.remove(&oldest);
        }
    }
}

/// The network that is likely one party's: a /24 of IPv4, a /48 of IPv6.
fn group_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() >> 8 << 8).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 80 << 80).into(),
    }
}

#[derive(Deserialize)]
struct BeginQuery {
    #[serde(default)]
    peer: String,
    #[serde(default)]
    ticket: String,
}

async fn begin(
    State(login): State<Login>,
    visitor: Option<Extension<Visitor>>,
    Query(begin): Query<BeginQuery>,
) -> Result<Response, LoginError> {
    let peer = begin.peer.parse::<PeerId>().ok();
    let peer = peer.and_then(|peer| PublicKey::of_peer_id(&peer.to_bytes())).ok_or(LoginError::NoPeer)?;
    if !login.authority.is_ticket(peer, &begin.ticket) {
        return Err(LoginError::NoTicket);
    }
    let slot = login.under_way.slot(visitor.map(|Extension(visitor)| visitor));
    let begun = login.provider.begin().await.map_err(inside)?;
    let cookie = hex(&random::<16>().map_err(inside)?);
    let set_cookie = login.set_cookie(&cookie, LOGIN_MAX)?;
    let until = Instant::now() + LOGIN_MAX;
    let stage = LoginStage::Away(begun.secrets);
    login.under_way.put(begun.state, PendingLogin { cookie, peer, until, stage, slot });
    let to = HeaderValue::try_from(begun.url).map_err(|_| LoginError::Inside)?;
    let headers = [(header::LOCATION, to), (header::SET_COOKIE, set_cookie), no_store()];
    Ok((StatusCode::SEE_OTHER, headers).into_response())
}

#[derive(Deserialize)]
struct CallbackQuery {
    #[serde(default)]
    state: String,
    code: Option<String>,
    error: Option<String>,
}

async fn come_back(
    State(login): State<Login>,
    headers: HeaderMap,
    Query(back): Query<CallbackQuery>,
) -> Result<Response, LoginError> {
    let PendingLogin { cookie, peer, until, stage, slot } = login.under_way.take(&back.state, &headers)?;
    let LoginStage::Away(secrets) = stage else { return Err(LoginError::Unknown) };
    let code = match (back.code, back.error) {
        (Some(code), None) => code,
        (_, error) => return Err(LoginError::Declined(error.unwrap_or_else(|| "no code came".into()))),
    };
    let identity = match login.provider.finish(code, secrets).await {
        Ok(identity) => identity,
        Err(error @ ProviderError::Refused(_)) => return Err(LoginError::Declined(error.to_string())),
        Err(error) => return Err(inside(error)),
    };
    let store = login.authority.store();
    if store.is_excluded(&identity).await.map_err(unstored)? {
        return Err(LoginError::Excluded);
    }
    if !store.is_allowed(&identity).await.map_err(unstored)? {
        let Identity { name, subject, .. } = identity;
        return Err(LoginError::NotOnList { name, subject });
    }
    let number = hex(&random::<16>().map_err(inside)?);
    let page = confirmation(&identity.name, peer, &number);
    let stage = LoginStage::Back(identity);
    login.under_way.put(number, PendingLogin { cookie, peer, until, stage, slot });
    Ok(page_response(StatusCode::OK, &page))
}

#[derive(Deserialize)]
struct Confirm {
    #[serde(default)]
    number: String,
}

async fn confirm(
    State(login): State<Login>,
    headers: HeaderMap,
    Form(confirm): Form<Confirm>,
) -> Result<Response, LoginError> {
    let PendingLogin { peer, stage, .. } = login.under_way.take(&confirm.number, &headers)?;
    let LoginStage::Back(identity) = stage else { return Err(LoginError::Unknown) };
    let store = login.authority.store();
    match store.sign_in(peer, &identity, login.authority.now()).await.map_err(unstored)? {
        LoginOutcome::Yes => {}
        LoginOutcome::TooManyKeys => return Err(LoginError::TooManyKeys),
        LoginOutcome::AnothersPeer => return Err(LoginError::AnothersPeer),
    }
    tracing::info!(user = identity.name, %peer, "signed in");
    let text = "<h1>Welcome</h1><p>This peer may take part now. It goes on by itself: you can close this \
        page.</p>";
    let mut response = page_response(StatusCode::OK, text);
    response.headers_mut().insert(header::SET_COOKIE, login.set_cookie("", Duration::ZERO)?);
    Ok(response)
}

fn confirmation(name: &str, peer: PublicKey, number: &str) -> String {
    let peer = peer_id(peer).map_or_else(|| peer.to_string(), |peer| peer.to_string());
    format!(
        "<h1>Is this your peer?</h1><p>You are signed in as <strong>{}</strong>. From now on this peer \
        takes part in your name:</p><p><code>{peer}</code></p><p>Say yes only if this is the peer id that \
        your own terminal or tab shows. If somebody sent you here, close this page.</p>\
        <form method=\"post\" action=\"confirm\"><input type=\"hidden\" name=\"number\" \
        value=\"{number}\"><button>Yes, it is mine</button></form>",
        escape(name)
    )
}

fn page_response(status: StatusCode, body: &str) -> Response {
    let html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
        content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
        <title>Barnraise: sign in</title><link rel=\"stylesheet\" href=\"{STYLE_PATH}\"><body><main>{body}</main></html>"
    );
    let policy = (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    (status, [policy, no_store()], Html(html)).into_response()
}

/// The style sheet alone.
pub(super) fn style_route<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route(STYLE_PATH, get(style))
}

async fn style() -> Response {
    let headers = [(header::CONTENT_TYPE, "text/css; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
    (headers, STYLE).into_response()
}

fn no_store() -> (HeaderName, HeaderValue) {
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

fn escape(text: &str) -> String {
    let escaped = |c| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        '\'' => "&#39;".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// Path of the login below the page's address, which may be that of one of several runs. With another path the browser
/// would not send the cookie, and nobody could sign in.
fn cookie_path(page: &str) -> String {
    let from_host = page.split_once("://").map_or(page, |(_, from_host)| from_host);
    from_host.split_once('/').map_or_else(|| "/login".to_owned(), |(_, run)| format!("/{run}/login"))
}

/// Logs an internal error. By value, for `map_err`.
#[allow(clippy::needless_pass_by_value)]
fn inside<E: std::fmt::Display>(error: E) -> LoginError {
    tracing::error!(%error, "a login failed");
    LoginError::Inside
}

/// The error for a database that cannot be read or written.
fn unstored(error: StoreError) -> LoginError {
    let is_full = error.is_full();
    let inside = inside(error);
    if is_full { LoginError::Full } else { inside }
}

impl IntoResponse for LoginError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::NoPeer | Self::NoTicket | Self::Unknown | Self::Declined(_) => StatusCode::BAD_REQUEST,
            Self::NotOnList { .. } | Self::Excluded | Self::TooManyKeys | Self::AnothersPeer => {
                StatusCode::FORBIDDEN
            }
            Self::Full => StatusCode::SERVICE_UNAVAILABLE,
            Self::Inside => StatusCode::BAD_GATEWAY,
        };
        page_response(status, &format!("<h1>Not signed in</h1><p>{}</p>", escape(&self.to_string())))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::body::Body;
    use axum::http::Request;
    use barnraise_protocol::access::{AccessMode, KeyPair};
    use serde_json::json;
    use tower::ServiceExt as _;

    use super::super::provider::tests::FakeProvider;
    use super::super::store::IdentityKind;
    use super::super::tests::{AuthorityHarness, pair, world};
    use super::*;
    use crate::config::OidcSection;

    fn of(address: &str) -> Option<Visitor> {
        Some(Visitor(address.parse().unwrap()))
    }

    /// Begins a login that waits for its confirmation.
    fn begin(under_way: &PendingLogins, from: &str, number: String, until: Instant) {
        begin_by(under_way, of(from), number, until);
    }

    fn begin_by(under_way: &PendingLogins, visitor: Option<Visitor>, number: String, until: Instant) {
        let slot = under_way.slot(visitor);
        let (cookie, peer) = ("c".to_owned(), KeyPair::from_seed(&[1; 32]).public());
        let (issuer, subject) = ("https://id.example".to_owned(), "7".to_owned());
        let stage =
            LoginStage::Back(Identity { issuer, name: subject.clone(), subject, email: String::new() });
        under_way.put(number, PendingLogin { cookie, peer, until, stage, slot });
    }

    fn comes_back(under_way: &PendingLogins, number: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("barnraise_login=c"));
        under_way.take(number, &headers).is_ok()
    }

    #[test]
    fn many_addresses_do_not_keep_others_from_signing_in() {
        let under_way = PendingLogins::default();
        let later = Instant::now() + LOGIN_MAX;
        begin(&under_way, "203.0.113.7", "first".to_owned(), later);
        // A flood from eight networks in turn.
        for round in 0..4 * LOGINS_MAX {
            begin(&under_way, &format!("198.51.{}.7", round % 8), format!("{round}"), later);
            assert!(under_way.lock().logins.len() <= LOGINS_MAX);
        }
        begin(&under_way, "203.0.113.7", "second".to_owned(), later);
        // A network of its own does not help a flood against those that have little.
        for round in 0..4 * LOGINS_MAX {
            begin(&under_way, "192.0.2.7", format!("again {round}"), later);
        }
        assert!(comes_back(&under_way, "first") && comes_back(&under_way, "second"));
    }

    #[test]
    fn a_group_has_its_share_and_what_is_over_makes_room() {
        let under_way = PendingLogins::default();
        let later = Instant::now() + LOGIN_MAX;
        for idx in 0..=LOGINS_OF_GROUP_MAX {
            begin(&under_way, &format!("198.51.100.{}", idx % 200), idx.to_string(), later);
        }
        assert_eq!(under_way.lock().logins.len(), LOGINS_OF_GROUP_MAX, "neighbours share");
        assert!(!comes_back(&under_way, "0") && comes_back(&under_way, "1"), "the oldest gave way");
        begin(&under_way, "203.0.113.7", "over".to_owned(), Instant::now());
        assert!(!comes_back(&under_way, "over"));
    }

    #[test]
    fn there_is_room_for_so_many_and_then_the_largest_group_gives_way() {
        let under_way = PendingLogins::default();
        let later = Instant::now() + LOGIN_MAX;
        for idx in 0..LOGINS_MAX {
            begin(&under_way, &format!("10.{}.{}.1", idx / 256, idx % 256), idx.to_string(), later);
        }
        assert_eq!(under_way.lock().logins.len(), LOGINS_MAX);
        begin(&under_way, "10.0.7.2", "one more".to_owned(), later);
        assert_eq!(under_way.lock().logins.len(), LOGINS_MAX);
        let come_back = ["7", "0", "8", "one more"].map(|number| comes_back(&under_way, number));
        assert_eq!(come_back, [false, true, true, true]);
    }

    #[test]
    fn those_whose_address_is_not_known_share_all_there_is() {
        let under_way = PendingLogins::default();
        let later = Instant::now() + LOGIN_MAX;
        for idx in 0..=LOGINS_OF_GROUP_MAX {
            begin_by(&under_way, None, idx.to_string(), later);
        }
        assert_eq!(under_way.lock().logins.len(), LOGINS_OF_GROUP_MAX + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_lasts_until_its_time_and_is_of_one_browser() {
        let under_way = PendingLogins::default();
        let now = Instant::now();
        for (number, until) in [("over", now), ("just", now + Duration::from_millis(1))] {
            begin(&under_way, "203.0.113.7", number.to_owned(), until);
        }
        assert!(!comes_back(&under_way, "over"));
        let mut headers = HeaderMap::new();
        assert!(under_way.take("just", &headers).is_err(), "without a cookie");
        headers.insert(header::COOKIE, HeaderValue::from_static("other=c; barnraise_login=d"));
        assert!(under_way.take("just", &headers).is_err(), "another browser's");
        headers.insert(header::COOKIE, HeaderValue::from_static("other=d; barnraise_login=c"));
        assert!(under_way.take("just", &headers).is_ok());
        assert!(!comes_back(&under_way, "just"), "a second time");
    }

    #[test]
    fn a_network_is_known_by_the_start_of_its_addresses() {
        for (address, group) in [
            ("198.51.100.7", "198.51.100.0"),
            ("::ffff:198.51.100.7", "198.51.100.0"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1::"),
        ] {
            let [address, group] = [address, group].map(|text| text.parse::<IpAddr>().unwrap());
            assert_eq!(group_of(address), group);
        }
    }

    fn login(world: &AuthorityHarness, page: &str) -> Login {
        login_at(world, page, "http://127.0.0.1:9")
    }

    /// The login of a run whose provider is `issuer`.
    fn login_at(world: &AuthorityHarness, page: &str, issuer: &str) -> Login {
        let (issuer, client_id) = (issuer.to_owned(), "barnraise".to_owned());
        let oidc = Some(OidcSection { issuer, client_id, client_secret_file: None });
        let section = AccessSection { page: Some(page.to_owned()), oidc, ..AccessSection::default() };
        Login::new(&section, Some(&world.authority)).unwrap().unwrap()
    }

    #[tokio::test]
    async fn the_cookie_is_for_the_login_alone_and_over_https_where_the_page_is() {
        let world = world(AccessMode::Allowlist).await;
        for (page, secure) in [("https://barn.example", "; Secure"), ("http://127.0.0.1:8080", "")] {
            let cookie = login(&world, page).set_cookie("c", LOGIN_MAX).unwrap();
            let want = format!("barnraise_login=c; Path=/login; Max-Age=600; HttpOnly; SameSite=Lax{secure}");
            assert_eq!(cookie.to_str().unwrap(), want);
        }
    }

    #[tokio::test]
    async fn each_page_refuses_whom_it_has_no_login_of() {
        let world = world(AccessMode::Allowlist).await;
        let routes = login(&world, "https://barn.example").routes();
        let url = world.authority.login_url(pair(2).public()).unwrap();
        let with_ticket = url.strip_prefix("https://barn.example").unwrap();
        let without = with_ticket.split_once("&ticket=").unwrap().0;
        for (method, path, status) in [
            ("GET", "/login", 400),
            ("GET", without, 400),
            // The provider is asked, and does not answer.
            ("GET", with_ticket, 502),
            ("GET", "/login/callback?state=1&code=2", 400),
            ("POST", "/login/confirm", 400),
            ("GET", STYLE_PATH, 200),
        ] {
            let request = Request::builder().method(method).uri(path);
            let request = request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
            let response = routes.clone().oneshot(request.body(Body::from("number=1")).unwrap()).await;
            let response = response.unwrap();
            assert_eq!(response.status().as_u16(), status, "{method} {path}");
            let is_page = status != 200;
            assert_eq!(response.headers().contains_key(header::CONTENT_SECURITY_POLICY), is_page, "{path}");
        }
    }

    /// What the browser of this cookie is answered: status, headers and page.
    async fn browse(
        routes: &Router,
        cookie: &str,
        method: &str,
        path: &str,
        form: String,
    ) -> (u16, HeaderMap, String) {
        let request = Request::builder().method(method).uri(path).header(header::COOKIE, cookie);
        let request = request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        let response = routes.clone().oneshot(request.body(Body::from(form)).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        (head.status.as_u16(), head.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn who_is_on_the_list_signs_in_and_others_are_told_that_they_are_not() {
        let world = world(AccessMode::Allowlist).await;
        let fake = FakeProvider::start().await;
        let page = "https://barn.example";
        let routes = login_at(&world, page, &fake.issuer).routes();
        let (peer, name) = (pair(2).public(), IdentityKind::Name);
        world.store().allow(&fake.issuer, name, "alice", world.now()).await.unwrap();
        for (who, is_listed) in [("bob", false), ("alice", true)] {
            let url = world.authority.login_url(peer).unwrap();
            let path = url.strip_prefix(page).unwrap();
            let (status, headers, _) = browse(&routes, "", "GET", path, String::new()).await;
            assert_eq!(status, 303);
            let cookie = headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap();
            let to = url::Url::parse(headers[header::LOCATION].to_str().unwrap()).unwrap();
            let asked: HashMap<String, String> = to.query_pairs().into_owned().collect();
            fake.say(&asked["nonce"], &json!({ "preferred_username": who }), None, json!({ "sub": "7" }));
            let back = format!("{CALLBACK_PATH}?code=code&state={}", asked["state"]);
            let (status, _, said) = browse(&routes, cookie, "GET", &back, String::new()).await;
            assert_eq!(status, if is_listed { 200 } else { 403 }, "{said}");
            assert!(said.contains(who), "{said}");
            assert_eq!(world.store().login(peer).await.unwrap(), None);
            if is_listed {
                let number = said.split("value=\"").nth(1).unwrap().split('"').next().unwrap();
                let form = format!("number={number}");
                let (status, _, said) = browse(&routes, cookie, "POST", "/login/confirm", form).await;
                assert_eq!(status, 200, "{said}");
            }
        }
        assert_eq!(world.store().login(peer).await.unwrap(), Some(("alice".to_owned(), true)));
        assert!(world.authority.claim(peer).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn the_pages_have_their_style_sheet() {
        let world = world(AccessMode::Allowlist).await;
        let routes = login(&world, "https://barn.example").routes();
        let (status, headers, said) = browse(&routes, "", "GET", STYLE_PATH, String::new()).await;
        assert_eq!((status, said.as_str()), (200, STYLE));
        assert_eq!(headers[header::CONTENT_TYPE], "text/css; charset=utf-8");
    }

    #[test]
    fn what_others_call_themselves_is_text_and_no_page() {
        assert_eq!(escape("<a b=\"c\">&'"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;");
        let peer = pair(2).public();
        let page = confirmation("<alice>", peer, "0123");
        let id = peer_id(peer).unwrap().to_string();
        for part in ["&lt;alice&gt;", "value=\"0123\"", &id] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    #[test]
    fn each_refusal_has_its_status() {
        let (name, subject) = ("alice".to_owned(), "7".to_owned());
        for (error, status) in [
            (LoginError::Declined("no".to_owned()), 400),
            (LoginError::NotOnList { name, subject }, 403),
            (LoginError::TooManyKeys, 403),
            (LoginError::Full, 503),
            (LoginError::Inside, 502),
        ] {
            let said = error.to_string();
            assert_eq!(error.into_response().status().as_u16(), status, "{said}");
        }
    }

    #[test]
    fn the_cookie_comes_back_to_a_run_among_several() {
        assert_eq!(cookie_path("https://barn.example"), "/login");
        assert_eq!(cookie_path("http://127.0.0.1:8080"), "/login");
        assert_eq!(cookie_path("https://barn.example/run/a"), "/run/a/login");
        // The redirect address of the provider is below the cookie's path.
        let callback = ["/run/a", CALLBACK_PATH].concat();
        assert!(callback.starts_with(&cookie_path("https://barn.example/run/a")), "{callback}");
    }
}
