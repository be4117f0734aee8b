//! The certificates of the WebTransport listener: self-signed, trusted by their hash, short-lived.
//!
//! [`CertificateSchedule`] decides, [`Certificates`] makes, keeps and hands out. Nothing here answers for
//! who the node is: that is what the Noise handshake inside the session is for.

mod generate;
mod schedule;
#[cfg(test)]
mod schedule_tests;
mod store;
#[cfg(test)]
mod store_tests;

use sha2::{Digest as _, Sha256};

pub use self::generate::GenerateError;
pub use self::schedule::{
    CERTIFICATE_VALIDITY, CertificateSchedule, CertificatesAt, SERVICE_PERIOD, ScheduleError,
    ScheduledCertificate, VALIDITY_MARGIN,
};
pub use self::store::{CertificateError, Certificates, SystemClock};

/// The multihash of a certificate, as it stands in a `/certhash/…` of an address.
pub type Certhash = libp2p::multihash::Multihash<64>;

/// Code of sha2-256 in the multicodec table.
const SHA2_256: u64 = 0x12;

/// The sha2-256 multihash of a certificate in DER (libp2p WebTransport specification, addressing).
///
/// # Errors
/// Never in practice: a 32-byte digest fits the 64 bytes of a [`Certhash`].
pub(crate) fn certhash(der: &[u8]) -> Result<Certhash, libp2p::multihash::Error> {
    Certhash::wrap(SHA2_256, &Sha256::digest(der))
}

/// Whether a file holds a certificate and the ECDSA P-256 key that belongs to it.
pub(crate) fn check_pem(pem: &[u8]) -> Result<(), GenerateError> {
    generate::parse(pem).map(drop)
}
