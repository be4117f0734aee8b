//! The DTLS certificate of WebRTC: made once and kept, since addresses name it by its hash.
//!
//! Browsers trust it by that hash and never look at its dates, so it lasts. A file that cannot be used is
//! an error and left alone: with another certificate, every address that was written down would be wrong.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use libp2p_webrtc_utils::Fingerprint;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use webrtc::peer_connection::certificate::RTCCertificate;

use crate::certificates::{GenerateError, check_pem};
use crate::files;

/// Below the directory of the WebTransport certificates, which come and go.
const FOLDER: &str = "webrtc";
const FILE: &str = "certificate.pem";
/// What the library's reader wants before the key and the certificate, and compares with the clock: the year
/// 4147, as eight bytes.
const EXPIRES: &str = "-----BEGIN EXPIRES-----\nAAAAABAAAAA=\n-----END EXPIRES-----\n";

/// Why there is no certificate for WebRTC.
#[derive(Debug, thiserror::Error)]
pub enum WebRtcCertificateError {
    /// The file cannot be read or written.
    #[error("WebRTC certificate {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file does not hold a certificate and its key.
    #[error("WebRTC certificate {path}: {source}")]
    Broken {
        /// The file.
        path: PathBuf,
        /// What was wanted.
        source: GenerateError,
    },
    /// The library does not take it.
    #[error("WebRTC certificate {path}: {source}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: webrtc::Error,
    },
    /// A new one cannot be made.
    #[error("cannot make a certificate for WebRTC: {0}")]
    Make(#[from] rcgen::Error),
}

/// The certificate of a listener.
#[derive(Clone)]
pub(crate) struct Certificate {
    webrtc: RTCCertificate,
    fingerprint: Fingerprint,
}

impl Certificate {
    /// What its addresses say.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// As the library wants it.
    pub(super) fn of_webrtc(&self) -> RTCCertificate {
        self.webrtc.clone()
    }
}

/// Reads the certificate below `directory`, or makes one and writes it there (mode 0600). Blocks on the disk.
pub(crate) fn load_or_create(directory: &Path) -> Result<Certificate, WebRtcCertificateError> {
    let folder = directory.join(FOLDER);
    let path = folder.join(FILE);
    let io_error = |source| WebRtcCertificateError::Io { path: path.clone(), source };
    let text = match files::read_small(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = generate()?;
            files::create_private_directory(&folder).map_err(io_error)?;
            files::write_private(&path, text.as_bytes()).map_err(io_error)?;
            text
        }
        Err(error) => return Err(io_error(error)),
    };
    // Checked first: the library's own reader panics on some invalid files.
    check_pem(text.as_bytes())
        .map_err(|source| WebRtcCertificateError::Broken { path: path.clone(), source })?;
    let broken = |source| WebRtcCertificateError::Broken { path: path.clone(), source };
    let first = CertificateDer::from_pem_slice(text.as_bytes()).map_err(|error| broken(error.into()))?;
    // The tag with a space is the standard's, the one without the library's.
    let text = format!("{EXPIRES}\n{}", text.replace("PRIVATE KEY", "PRIVATE_KEY"));
    match RTCCertificate::from_pem(&text) {
        Ok(webrtc) => Ok(Certificate { webrtc, fingerprint: Fingerprint::from_certificate(&first) }),
        Err(source) => Err(WebRtcCertificateError::Refused { path, source }),
    }
}

impl fmt::Debug for Certificate {
    /// Without its key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Certificate").field(&self.fingerprint).finish()
    }
}

/// A key and its certificate in PEM, ECDSA with P-256 as every browser knows it.
fn generate() -> Result<String, WebRtcCertificateError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "barnraise");
    let certificate = params.self_signed(&key)?;
    Ok(format!("{}{}", key.serialize_pem(), certificate.pem()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_second_start_has_the_same_hash() {
        let directory = tempfile::tempdir().unwrap();
        let first = load_or_create(directory.path()).unwrap();
        let second = load_or_create(directory.path()).unwrap();
        assert_eq!(first.fingerprint(), second.fingerprint());
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        load_or_create(directory.path()).unwrap();
        let path = directory.path().join(FOLDER).join(FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_broken_file_is_named_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        load_or_create(directory.path()).unwrap();
        let path = directory.path().join(FOLDER).join(FILE);
        let whole = std::fs::read_to_string(&path).unwrap();
        let only_key = whole.split_inclusive("-----END PRIVATE KEY-----\n").next().unwrap().to_owned();
        let mixed = format!("{only_key}{}", rcgen_certificate());
        for broken in [String::new(), "no PEM".to_owned(), only_key, mixed, whole.replace('A', "")] {
            std::fs::write(&path, &broken).unwrap();
            let error = load_or_create(directory.path()).unwrap_err().to_string();
            assert!(error.contains("webrtc/certificate.pem"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), broken);
        }
    }

    /// Of another key.
    fn rcgen_certificate() -> String {
        let text = generate().unwrap();
        let begin = text.find("-----BEGIN CERTIFICATE-----").unwrap();
        text[begin..].to_owned()
    }
}
