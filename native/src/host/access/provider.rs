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
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const ISSUER: &str = "https://id.example";

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
