//! The identity provider: OpenID Connect with the authorization code flow, PKCE, state and nonce.
//!
//! An ID token counts only after `openidconnect` has checked its signature, issuer, audience, expiry and nonce.
//! Redirects of the provider's own endpoints are not followed.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use openidconnect::core::{CoreAuthenticationFlow, CoreClient, CoreProviderMetadata, CoreUserInfoClaims};
use openidconnect::{
    AccessTokenHash, AsyncHttpClient, AuthorizationCode, ClientId, ClientSecret, CsrfToken, EndpointMaybeSet,
    EndpointNotSet, EndpointSet, HttpRequest, HttpResponse, IssuerUrl, Nonce, OAuth2TokenResponse,
    PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, Scope, TokenResponse,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::store::Identity;
use crate::config::OidcSection;

/// Largest answer of the provider.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024;
/// Longest wait for an answer of the provider.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The provider's metadata and keys are fetched again after this.
const METADATA_MAX_AGE: Duration = Duration::from_secs(300);
/// Longest name, subject or address that is kept of an identity, in characters.
const NAME_CHARS_MAX: usize = 120;

/// Why a login at the provider failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProviderError {
    /// The provider cannot be reached, or its answer is malformed.
    #[error("the identity provider: {0}")]
    Provider(String),
    /// Its answer failed a check.
    #[error("the identity provider's answer is refused: {0}")]
    Refused(String),
}

/// An OpenID Connect provider and this run's registration with it. Cheap to clone.
#[derive(Clone)]
pub(super) struct Provider {
    registration: Arc<ClientRegistration>,
}

struct ClientRegistration {
    issuer: IssuerUrl,
    client_id: ClientId,
    client_secret: Option<ClientSecret>,
    redirect: RedirectUrl,
    http: Http,
    metadata: Mutex<Option<(Instant, CoreProviderMetadata)>>,
}

/// A login that has begun: `state` and `secrets` are compared with the callback.
#[derive(Debug)]
pub(super) struct AuthorizationRequest {
    /// Address that the browser is redirected to.
    pub(super) url: String,
    /// Returned by the callback (protection against CSRF).
    pub(super) state: String,
    pub(super) secrets: Secrets,
}

/// Nonce and PKCE verifier, known to this server only until the code is exchanged.
#[derive(Debug)]
pub(super) struct Secrets {
    nonce: Nonce,
    verifier: PkceCodeVerifier,
}

/// HTTP client for the provider's endpoints, with limits on time and size.
struct Http(ureq::Agent);

type OidcClient = CoreClient<
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;

impl Provider {
    /// A provider as configured. It is first contacted when a person signs in.
    ///
    /// # Errors
    /// An address is no URL.
    pub(super) fn new(
        section: &OidcSection,
        client_secret: Option<String>,
        redirect: String,
    ) -> Result<Self, ProviderError> {
        let no_url = |error: openidconnect::url::ParseError| ProviderError::Provider(error.to_string());
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("barnraise/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        let registration = ClientRegistration {
            issuer: IssuerUrl::new(section.issuer.clone()).map_err(no_url)?,
            client_id: ClientId::new(section.client_id.clone()),
            client_secret: client_secret.map(ClientSecret::new),
            redirect: RedirectUrl::new(redirect).map_err(no_url)?,
            http: Http(agent),
            metadata: Mutex::new(None),
        };
        Ok(Self { registration: Arc::new(registration) })
    }

    /// Begins a login.
    ///
    /// # Errors
    /// The provider does not answer.
    pub(super) async fn begin(&self) -> Result<AuthorizationRequest, ProviderError> {
        let client = self.client().await?;
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let (url, state, nonce) = client
            .authorize_url(
                CoreAuthenticationFlow::AuthorizationCode,
                CsrfToken::new_random,
                Nonce::new_random,
            )
            .add_scope(Scope::new("profile".into()))
            .add_scope(Scope::new("email".into()))
            .set_pkce_challenge(challenge)
            .url();
        let secrets = Secrets { nonce, verifier };
        Ok(AuthorizationRequest { url: url.into(), state: state.secret().clone(), secrets })
    }

    /// Exchanges `code` for the identity of the person who signed in.
    ///
    /// # Errors
    /// The provider does not answer, or its answer fails a check.
    pub(super) async fn finish(&self, code: String, secrets: Secrets) -> Result<Identity, ProviderError> {
        let finished = self.exchange(code, secrets).await;
        if matches!(finished, Err(ProviderError::Refused(_))) {
            // The provider may have new keys: the next login fetches them.
            self.registration.metadata.lock().await.take();
        }
        finished
    }

    async fn exchange(&self, code: String, secrets: Secrets) -> Result<Identity, ProviderError> {
        let Secrets { nonce, verifier } = secrets;
        let http = &self.registration.http;
        let client = self.client().await?;
        let exchange = client.exchange_code(AuthorizationCode::new(code)).map_err(failed)?;
        let tokens = exchange.set_pkce_verifier(verifier).request_async(http).await.map_err(failed)?;
        let id_token = tokens.id_token().ok_or_else(|| refused(&"it sent no ID token"))?;
        let checks = client.id_token_verifier();
        let claims = id_token.claims(&checks, &nonce).map_err(|error| refused(&error))?;
        if let Some(want) = claims.access_token_hash() {
            let algorithm = id_token.signing_alg().map_err(|error| refused(&error))?;
            let key = id_token.signing_key(&checks).map_err(|error| refused(&error))?;
            let got = AccessTokenHash::from_token(tokens.access_token(), algorithm, key);
            if got.map_err(|error| refused(&error))? != *want {
                return Err(refused(&"the access token belongs to another ID token"));
            }
        }
        let subject = claims.subject().clone();
        let mut name = claims.preferred_username().map(|name| name.as_str().to_owned());
        let mut email = claims.email().filter(|_| claims.email_verified() == Some(true));
        // Many providers give name and address only at their user info endpoint.
        let asked = match client.user_info(tokens.access_token().clone(), Some(subject.clone())) {
            Ok(question) if name.is_none() || email.is_none() => {
                let said: CoreUserInfoClaims = question.request_async(http).await.map_err(failed)?;
                Some(said)
            }
            _ => None,
        };
        if let Some(said) = &asked {
            name = name.or_else(|| said.preferred_username().map(|name| name.as_str().to_owned()));
            email = email.or_else(|| said.email().filter(|_| said.email_verified() == Some(true)));
        }
        identity(self.registration.issuer.as_str(), subject.as_str(), name, email.map(|email| email.as_str()))
    }

    async fn client(&self) -> Result<OidcClient, ProviderError> {
        let ClientRegistration { issuer, client_id, client_secret, redirect, metadata, .. } =
            &*self.registration;
        let mut metadata = metadata.lock().await;
        let known = metadata.as_ref().filter(|(at, _)| at.elapsed() < METADATA_MAX_AGE);
        let known = match known {
            Some((_, known)) => known.clone(),
            None => {
                let http = &self.registration.http;
                let said =
                    CoreProviderMetadata::discover_async(issuer.clone(), http).await.map_err(failed)?;
                metadata.insert((Instant::now(), said)).1.clone()
            }
        };
        let client = CoreClient::from_provider_metadata(known, client_id.clone(), client_secret.clone());
        Ok(client.set_redirect_uri(redirect.clone()))
    }
}

impl<'c> AsyncHttpClient<'c> for Http {
    type Error = std::io::Error;
    type Future = BoxFuture<'c, Result<HttpResponse, std::io::Error>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        let agent = self.0.clone();
        let ask = move || {
            let (head, body) = agent.run(request).map_err(std::io::Error::other)?.into_parts();
            let body = body.into_with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
            Ok(HttpResponse::from_parts(head, body.map_err(std::io::Error::other)?))
        };
        async { tokio::task::spawn_blocking(ask).await.map_err(std::io::Error::other)? }.boxed()
    }
}

fn identity(
    issuer: &str,
    subject: &str,
    name: Option<String>,
    email: Option<&str>,
) -> Result<Identity, ProviderError> {
    let name = name.filter(|name| !name.trim().is_empty()).unwrap_or_else(|| subject.to_owned());
    let email = email.unwrap_or_default().to_owned();
    for (what, text) in [("subject", subject), ("name", &name), ("address", &email)] {
        if text.chars().count() > NAME_CHARS_MAX || text.chars().any(char::is_control) {
            return Err(refused(&format!("a {what} of more than {NAME_CHARS_MAX} plain characters")));
        }
    }
    Ok(Identity { issuer: issuer.to_owned(), subject: subject.to_owned(), name, email })
}

fn refused(error: &dyn std::fmt::Display) -> ProviderError {
    ProviderError::Refused(error.to_string())
}

/// The error with all its causes.
fn failed(error: impl std::error::Error) -> ProviderError {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    ProviderError::Provider(text)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;
    use std::sync::Mutex as Lock;

    use axum::extract::State;
    use axum::http::{Uri, header};
    use axum::response::{IntoResponse, Response};
    use axum::{Json, Router};
    use bytes::Bytes;
    use openidconnect::core::{
        CoreEdDsaPrivateSigningKey, CoreIdToken, CoreIdTokenClaims, CoreJsonWebKeySet,
        CoreJwsSigningAlgorithm,
    };
    use openidconnect::{AccessToken, PrivateSigningKey as _};
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;

    const ISSUER: &str = "https://id.example";
    const CLIENT_ID: &str = "barnraise";
    const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";
    const USER_INFO_PATH: &str = "/userinfo";
    /// The access token that the provider gives.
    const ACCESS: &str = "access";

    /// A provider on this machine, with an answer for each path.
    pub(in crate::host::access) struct FakeProvider {
        pub(in crate::host::access) issuer: String,
        answers: Lock<BTreeMap<&'static str, Value>>,
        /// Paths that it was asked for.
        asked: Lock<Vec<String>>,
    }

    impl FakeProvider {
        pub(in crate::host::access) async fn start() -> Arc<Self> {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let issuer = format!("http://{}", listener.local_addr().unwrap());
            let at = |path: &str| format!("{issuer}{path}");
            let metadata = json!({
                "issuer": issuer,
                "authorization_endpoint": at("/authorize"),
                "token_endpoint": at("/token"),
                "userinfo_endpoint": at(USER_INFO_PATH),
                "jwks_uri": at("/jwks"),
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["EdDSA"],
            });
            let keys = CoreJsonWebKeySet::new(vec![key().as_verification_key()]);
            let keys = serde_json::to_value(keys).unwrap();
            let answers = Lock::new(BTreeMap::from([(DISCOVERY_PATH, metadata), ("/jwks", keys)]));
            let fake = Arc::new(Self { issuer, answers, asked: Lock::default() });
            let routes: Router = Router::new().fallback(answer).with_state(Arc::clone(&fake));
            tokio::spawn(async move { axum::serve(listener, routes).await });
            fake
        }

        /// A client of this provider.
        fn client(&self) -> Provider {
            let (issuer, client_id) = (self.issuer.clone(), CLIENT_ID.to_owned());
            let section = OidcSection { issuer, client_id, client_secret_file: None };
            Provider::new(&section, None, "https://barn.example/login/callback".to_owned()).unwrap()
        }

        /// Has the provider say this in its ID token, which belongs to the access token `of`, and as user info.
        pub(in crate::host::access) fn say(
            &self,
            nonce: &str,
            claims: &Value,
            of: Option<&str>,
            user_info: Value,
        ) {
            let mut all = json!({
                "iss": self.issuer,
                "aud": [CLIENT_ID],
                "exp": 4_000_000_000_u64,
                "iat": 1_700_000_000_u64,
                "sub": "7",
                "nonce": nonce,
            });
            all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
            let all: CoreIdTokenClaims = serde_json::from_value(all).unwrap();
            let of = of.map(|of| AccessToken::new(of.to_owned()));
            let signed = CoreIdToken::new(all, &key(), CoreJwsSigningAlgorithm::EdDsa, of.as_ref(), None);
            let id_token = signed.unwrap().to_string();
            let tokens = json!({ "access_token": ACCESS, "token_type": "Bearer", "id_token": id_token });
            self.answers.lock().unwrap().extend([("/token", tokens), (USER_INFO_PATH, user_info)]);
        }

        /// How often it was asked for `path` since the last call.
        fn n_asked(&self, path: &str) -> usize {
            let asked = std::mem::take(&mut *self.asked.lock().unwrap());
            asked.iter().filter(|asked| *asked == path).count()
        }
    }

    async fn answer(State(fake): State<Arc<FakeProvider>>, uri: Uri, _: Bytes) -> Response {
        fake.asked.lock().unwrap().push(uri.path().to_owned());
        let answer = fake.answers.lock().unwrap().get(uri.path()).cloned();
        ([(header::CONNECTION, "close")], Json(answer)).into_response()
    }

    /// The provider's key, all of whose bytes are 0.
    fn key() -> CoreEdDsaPrivateSigningKey {
        let (label, key) = ("PRIVATE KEY", format!("MC4CAQAwBQYDK2VwBCIEI{}", "A".repeat(43)));
        let pem = format!("-----BEGIN {label}-----\n{key}\n-----END {label}-----\n");
        CoreEdDsaPrivateSigningKey::from_ed25519_pem(&pem, None).unwrap()
    }

    /// A login at which the provider says this.
    async fn login(
        fake: &FakeProvider,
        client: &Provider,
        claims: &Value,
        of: Option<&str>,
        user_info: Value,
    ) -> Result<Identity, ProviderError> {
        let begun = client.begin().await.unwrap();
        fake.say(begun.secrets.nonce.secret(), claims, of, user_info);
        client.finish("code".to_owned(), begun.secrets).await
    }

    #[tokio::test]
    async fn name_and_address_come_from_the_user_info_where_the_id_token_lacks_them() {
        let fake = FakeProvider::start().await;
        let client = fake.client();
        let (alice, bob) = (("alice", "alice@example.org"), ("bob", "bob@example.org"));
        let name = || json!({ "preferred_username": alice.0 });
        let email = |is_verified: bool| json!({ "email": alice.1, "email_verified": is_verified });
        let both = json!({ "preferred_username": alice.0, "email": alice.1, "email_verified": true });
        let unsaid = json!({ "email": alice.1 });
        for (claims, is_verified, known, n_asked) in [
            (both, true, alice, 0),
            (name(), true, (alice.0, bob.1), 1),
            (name(), false, (alice.0, ""), 1),
            (email(true), true, (bob.0, alice.1), 1),
            (email(true), false, (bob.0, alice.1), 1),
            (email(false), true, bob, 1),
            (email(false), false, (bob.0, ""), 1),
            (unsaid, false, (bob.0, ""), 1),
            (json!({}), true, bob, 1),
        ] {
            let said = json!({
                "sub": "7",
                "preferred_username": bob.0,
                "email": bob.1,
                "email_verified": is_verified,
            });
            fake.n_asked(USER_INFO_PATH);
            let identity = login(&fake, &client, &claims, None, said).await.unwrap();
            assert_eq!((identity.name.as_str(), identity.email.as_str()), known, "{claims}");
            assert_eq!((&identity.issuer, identity.subject.as_str()), (&fake.issuer, "7"));
            assert_eq!(fake.n_asked(USER_INFO_PATH), n_asked, "{claims}");
        }
    }

    #[tokio::test]
    async fn an_id_token_of_another_login_or_another_access_token_is_refused() {
        let fake = FakeProvider::start().await;
        let client = fake.client();
        let as_it_is = || json!({});
        for (claims, of, is_refused) in [
            (as_it_is(), None, false),
            (as_it_is(), Some(ACCESS), false),
            (as_it_is(), Some("another"), true),
            (json!({ "nonce": "another" }), None, true),
            (json!({ "iss": ISSUER }), None, true),
            (json!({ "aud": ["another"] }), None, true),
            (json!({ "exp": 1_700_000_001_u64 }), None, true),
        ] {
            let finished = login(&fake, &client, &claims, of, json!({ "sub": "7" })).await;
            let (got, what) = (matches!(finished, Err(ProviderError::Refused(_))), format!("{finished:?}"));
            assert_eq!((got, finished.is_ok()), (is_refused, !is_refused), "{claims} of {of:?}: {what}");
        }
        let anothers = login(&fake, &client, &as_it_is(), None, json!({ "sub": "8" })).await;
        assert!(matches!(anothers, Err(ProviderError::Provider(_))), "{anothers:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_provider_says_of_itself_is_asked_for_again_after_a_while() {
        let fake = FakeProvider::start().await;
        let client = fake.client();
        let millisecond = Duration::from_millis(1);
        for (later, n_asked) in [
            (Duration::ZERO, 1),
            (Duration::ZERO, 0),
            (METADATA_MAX_AGE - millisecond, 0),
            (millisecond, 1),
            (METADATA_MAX_AGE - millisecond, 0),
            (METADATA_MAX_AGE, 1),
        ] {
            tokio::time::advance(later).await;
            client.begin().await.unwrap();
            assert_eq!(fake.n_asked(DISCOVERY_PATH), n_asked, "after {later:?}");
        }
    }

    #[test]
    fn an_identity_has_plain_texts_of_bounded_length() {
        let of = |subject: &str, name: &str, email: &str| {
            identity(ISSUER, subject, Some(name.to_owned()), Some(email))
        };
        let longest = "\u{e4}".repeat(NAME_CHARS_MAX);
        let known = of(&longest, &longest, &longest).unwrap();
        assert_eq!((&known.subject, &known.name, &known.email), (&longest, &longest, &longest));
        for wrong in [format!("{longest}a"), "two\nlines".to_owned()] {
            for refused in [of(&wrong, "a", "b"), of("a", &wrong, "b"), of("a", "b", &wrong)] {
                assert!(matches!(refused, Err(ProviderError::Refused(_))), "{refused:?}");
            }
        }
    }

    #[test]
    fn who_has_no_name_is_called_by_the_providers_identifier() {
        for (name, called) in [(None, "7"), (Some(" "), "7"), (Some("alice"), "alice")] {
            let known = identity(ISSUER, "7", name.map(str::to_owned), None).unwrap();
            assert_eq!(
                (known.issuer.as_str(), known.name.as_str(), known.email.as_str()),
                (ISSUER, called, "")
            );
        }
    }
}
