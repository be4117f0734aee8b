//! The one TLS provider of the process.

/// Installs ring as the process's rustls provider; call it first thing in `main`.
///
/// Libraries that don't name a provider take the installed one, and panic where two are linked and none is
/// installed. A second call changes nothing.
pub fn install_crypto_provider() {
    // Fails only where a provider is installed already: the first one stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
