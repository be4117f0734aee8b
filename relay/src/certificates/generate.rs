//! Making a certificate and its key, and reading both back from a file.
//!
//! ECDSA with P-256, as browsers ask of a certificate that is trusted by its hash. The only place that
//! draws entropy for certificates; it neither reads a clock nor touches a disk.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::schedule::{CERTIFICATE_VALIDITY, ScheduledCertificate, VALIDITY_MARGIN};

/// Why a certificate could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The text has no certificate and private key in PEM.
    #[error("want a certificate and a private key in PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The key is unusable or belongs to another certificate.
    #[error("want an ECDSA P-256 key that belongs to the certificate: {0}")]
    Key(#[from] rustls::Error),
    /// The certificate is no X.509.
    #[error("want an X.509 certificate: {0}")]
    Certificate(String),
    /// The digest did not fit; a bug.
    #[error("cannot write the certificate's hash: {0}")]
    Hash(#[from] libp2p::multihash::Error),
}

/// A certificate that can be served.
#[derive(Clone, Debug)]
pub(crate) struct ServableCertificate {
    pub(crate) scheduled: ScheduledCertificate,
    pub(crate) key: Arc<CertifiedKey>,
}

/// Makes a certificate to be served from `serves_from` (whole seconds of it), and its file's text.
pub(crate) fn generate(serves_from: SystemTime) -> Result<(ServableCertificate, String), GenerateError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let valid_from = floor_to_second(serves_from - VALIDITY_MARGIN);
    let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "barnraise");
    params.not_before = OffsetDateTime::from(valid_from);
    params.not_after = OffsetDateTime::from(valid_from + CERTIFICATE_VALIDITY);
    let certificate = params.self_signed(&key)?;
    let text = format!("{}{}", certificate.pem(), key.serialize_pem());
    Ok((parse(text.as_bytes())?, text))
}

/// Reads what [`generate`] wrote.
pub(crate) fn parse(pem: &[u8]) -> Result<ServableCertificate, GenerateError> {
    let der = CertificateDer::from_pem_slice(pem)?;
    let private_key = PrivateKeyDer::from_pem_slice(pem)?;
    let key = rustls::crypto::ring::sign::any_ecdsa_type(&private_key)?;
    let scheduled = {
        let (_, parsed) =
            X509Certificate::from_der(&der).map_err(|error| GenerateError::Certificate(error.to_string()))?;
        ScheduledCertificate {
            hash: super::certhash(&der)?,
            valid_from: from_unix(parsed.validity().not_before.timestamp())?,
            valid_until: from_unix(parsed.validity().not_after.timestamp())?,
        }
    };
    let key = CertifiedKey::new(vec![der], key);
    key.keys_match()?;
    Ok(ServableCertificate { scheduled, key: Arc::new(key) })
}

fn floor_to_second(time: SystemTime) -> SystemTime {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since_epoch.as_secs())
}

fn from_unix(seconds: i64) -> Result<SystemTime, GenerateError> {
    u64::try_from(seconds)
        .ok()
        .and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)))
        .ok_or_else(|| GenerateError::Certificate(format!("a validity outside of this clock, {seconds} s")))
}
