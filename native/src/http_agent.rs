//! The agent of every HTTP request that this program makes by itself: for data, and to the pages of runs.
//!
//! A server is trusted by the certificates of this system, as with any other program on it; where there are none, by
//! those of Mozilla. A proxy is that of the environment (`HTTPS_PROXY` and its like).

use std::sync::OnceLock;
use std::time::Duration;

use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Without a connection for so long a server is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// When a request is given up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// When it has taken this long.
    Whole(Duration),
    /// When no byte came for this long.
    Silence(Duration),
}

/// A new agent; an answer of another status than success is an error.
pub(crate) fn agent(patience: Patience) -> ureq::Agent {
    let tls = TlsConfig::builder().root_certs(root_certificates().clone()).build();
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .user_agent(concat!("barnraise/", env!("CARGO_PKG_VERSION")));
    let config = match patience {
        Patience::Whole(timeout) => config.timeout_global(Some(timeout)),
        Patience::Silence(timeout) => {
            config.timeout_connect(Some(CONNECT_TIMEOUT)).timeout_per_read(Some(timeout))
        }
    };
    config.build().into()
}

fn root_certificates() -> &'static RootCerts {
    static ROOTS: OnceLock<RootCerts> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs().certs;
        match found.is_empty() {
            true => RootCerts::WebPki,
            false => found.iter().map(|found| Certificate::from_der(found).to_owned()).into(),
        }
    })
}
