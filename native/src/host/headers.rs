//! Headers of the host's HTTP responses.

use axum::http::header::{self, HeaderName, HeaderValue};
use axum::response::Response;

/// Permissions of the page. `https:`, `ws:` and `wss:` in `connect-src` are for libp2p's
/// WebTransport and WebSocket addresses, whose hosts are known only at run time; `wasm-unsafe-eval`
/// allows WebAssembly to be compiled, and no other evaluation.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; \
    style-src 'self'; img-src 'self' data: blob:; connect-src 'self' https: ws: wss:; worker-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Content security policy of answers that are no pages.
const API_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

/// Browser features that the page never uses.
const PERMISSIONS_POLICY: &str = "accelerometer=(), camera=(), display-capture=(), geolocation=(), \
    gyroscope=(), hid=(), magnetometer=(), microphone=(), midi=(), payment=(), serial=(), usb=()";

/// Headers of every response.
const SECURITY_HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("permissions-policy"), PERMISSIONS_POLICY),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-embedder-policy"), "require-corp"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The header of responses that must not be cached.
pub(crate) fn no_store() -> [(HeaderName, &'static str); 1] {
    [(header::CACHE_CONTROL, "no-store")]
}

/// Security headers of an API without pages.
pub(crate) async fn api_headers(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(API_POLICY));
    security_headers(response).await
}

pub(crate) async fn security_headers(mut response: Response) -> Response {
    for (name, value) in SECURITY_HEADERS {
        // The login pages have a stricter policy of their own.
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
