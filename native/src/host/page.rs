//! The page's files, from a folder or embedded in the program.
//!
//! A program that was built with the feature `page` has the page inside. Embedded files are served like those of a
//! folder: compressed if the client accepts that, and as 304 if it has them already.

use std::path::PathBuf;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use tower_http::services::ServeDir;

/// Folder in which `cargo xtask build` puts the page, relative to the repository.
const FOLDER_DEFAULT: &str = "target/web";

#[cfg(feature = "page")]
const INSIDE: Option<&[File]> = Some(include!(concat!(env!("OUT_DIR"), "/page.rs")));
#[cfg(not(feature = "page"))]
const INSIDE: Option<&[File]> = None;

/// An embedded file of the page.
#[derive(Debug, PartialEq, Eq)]
pub struct File {
    /// Path below the root, without a leading slash.
    pub path: &'static str,
    /// Entity tag, derived from the content.
    pub tag: &'static str,
    /// Uncompressed content.
    pub plain: &'static [u8],
    /// Content compressed by Brotli.
    pub brotli: Option<&'static [u8]>,
    /// Content compressed by gzip, for older browsers.
    pub gzip: Option<&'static [u8]>,
}

/// Location of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageSource {
    /// A folder with `index.html` and its assets, compressed variants beside them. It may change while it is served.
    Folder(PathBuf),
    /// Files in the program, ordered by path.
    Inside(&'static [File]),
}

impl PageSource {
    /// The given folder; without one the embedded page, or else the folder of `cargo xtask build`.
    #[must_use]
    pub fn chosen(folder: Option<PathBuf>) -> Self {
        match (folder, INSIDE) {
            (Some(folder), _) => Self::Folder(folder),
            (None, Some(files)) => Self::Inside(files),
            (None, None) => Self::Folder(FOLDER_DEFAULT.into()),
        }
    }

    /// Routes of all files; `not_found` answers other paths.
    pub fn routes(&self, not_found: MethodRouter) -> Router {
        match self {
            Self::Folder(folder) => {
                let files = ServeDir::new(folder).precompressed_br().precompressed_gzip();
                Router::new().fallback_service(files.fallback(not_found))
            }
            Self::Inside(files) => {
                let mut routes = Router::new();
                for file in *files {
                    let send = get(send).with_state(file);
                    routes = routes.route(&format!("/{}", file.path), send.clone());
                    if file.path == "index.html" {
                        routes = routes.route("/", send);
                    }
                }
                routes.fallback_service(not_found)
            }
        }
    }
}

async fn send(State(file): State<&'static File>, uri: Uri, headers: HeaderMap) -> Response {
    let (encoding, bytes) = encoded(file, &headers);
    // Each encoding has its own tag.
    let tag =
        format!("\"{}{}\"", file.tag, encoding.map_or(String::new(), |encoding| format!("-{encoding}")));
    let Ok(tag) = HeaderValue::try_from(tag) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    if knows(&headers, &tag) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    let path = if uri.path() == "/" { "index.html" } else { uri.path() };
    let kind = mime_guess::from_path(path).first_raw().unwrap_or("application/octet-stream");
    let mut response = Body::from(Bytes::from_static(bytes)).into_response();
    let mut set = |name: HeaderName, value| drop(response.headers_mut().insert(name, value));
    set(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    set(header::ETAG, tag);
    if let Some(encoding) = encoding {
        set(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    response
}

/// The smallest encoding that the client accepts, and its bytes.
fn encoded(file: &'static File, headers: &HeaderMap) -> (Option<&'static str>, &'static [u8]) {
    match (file.brotli, file.gzip) {
        (Some(bytes), _) if accepts(headers, "br") => (Some("br"), bytes),
        (_, Some(bytes)) if accepts(headers, "gzip") => (Some("gzip"), bytes),
        _ => (None, file.plain),
    }
}

fn accepts(headers: &HeaderMap, encoding: &str) -> bool {
    let listed = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    listed.flat_map(|value| value.split(',')).any(|part| {
        let (name, quality) = part.split_once(';').unwrap_or((part, ""));
        let quality =
            quality.trim().strip_prefix("q=").and_then(|quality| quality.trim().parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case(encoding) && quality != Some(0.0)
    })
}

fn knows(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = known.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known).as_bytes() == tag.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_folder_that_is_named_wins() {
        assert_eq!(PageSource::chosen(Some("web".into())), PageSource::Folder("web".into()));
        assert_eq!(matches!(PageSource::chosen(None), PageSource::Inside(_)), cfg!(feature = "page"));
    }

    #[test]
    fn an_encoding_that_is_refused_is_not_sent() {
        let of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(value));
            accepts(&headers, "br")
        };
        for (value, good) in [
            ("br", true),
            ("gzip, BR ;q=0.5", true),
            ("br;q=0", false),
            ("gzip", false),
            ("brotli", false),
            ("", false),
        ] {
            assert_eq!(of(value), good, "{value}");
        }
    }
}
