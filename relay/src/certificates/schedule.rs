//! Which certificate is served when: pure, the time is an argument.
//!
//! A certificate serves for one [`SERVICE_PERIOD`] and is published as the next one during the period
//! before that, so that an address which a client wrote down at any moment of one period still connects
//! until the end of the following one. Never makes a certificate and never reads a clock.

use std::time::{Duration, SystemTime};

use super::Certhash;

/// From `not_before` to `not_after`. Browsers refuse more than 14 days for a certificate that is
/// trusted by its hash (WebTransport, custom certificate requirements).
pub const CERTIFICATE_VALIDITY: Duration = Duration::from_secs(13 * DAY_S);
/// How long a certificate is valid before and after the period in which it is served: what a client's
/// clock may be wrong by, and the overlap of neighbours (twice this).
pub const VALIDITY_MARGIN: Duration = Duration::from_secs(DAY_S / 2);
/// How long one certificate is served.
pub const SERVICE_PERIOD: Duration = Duration::from_secs(12 * DAY_S);

const DAY_S: u64 = 24 * 60 * 60;
const _: () = assert!(CERTIFICATE_VALIDITY.as_secs() < 14 * DAY_S);
const _: () = assert!(
    SERVICE_PERIOD.as_secs() + 2 * VALIDITY_MARGIN.as_secs() == CERTIFICATE_VALIDITY.as_secs(),
    "a certificate is valid for the margin, the period and the margin"
);

/// One certificate, as the schedule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledCertificate {
    /// Its hash, as it stands in addresses.
    pub hash: Certhash,
    /// `not_before`.
    pub valid_from: SystemTime,
    /// `not_after`.
    pub valid_until: SystemTime,
}

impl ScheduledCertificate {
    /// When the listener begins to serve it.
    #[must_use]
    pub fn serves_from(&self) -> SystemTime {
        self.valid_from + VALIDITY_MARGIN
    }

    fn is_valid_at(&self, now: SystemTime) -> bool {
        self.valid_from <= now && now < self.valid_until
    }
}

/// What is served and published at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificatesAt {
    /// Served in the period before; a client with an older address still expects its hash.
    pub previous: Option<ScheduledCertificate>,
    /// Served now.
    pub current: ScheduledCertificate,
    /// Served after `current`, and published already.
    pub next: ScheduledCertificate,
}

/// Why a certificate has no place in a schedule.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Not made by this schedule's rules; a browser could refuse it.
    #[error("want a validity of {} s, got {got:?}", CERTIFICATE_VALIDITY.as_secs())]
    Validity {
        /// `None` where the end comes before the beginning.
        got: Option<Duration>,
    },
    /// Another certificate begins in the same second.
    #[error("another certificate serves from the same moment, {0:?}")]
    Duplicate(SystemTime),
}

/// All certificates known, oldest first.
#[derive(Clone, Debug, Default)]
pub struct CertificateSchedule {
    certificates: Vec<ScheduledCertificate>,
}

impl CertificateSchedule {
    /// Adds a certificate.
    ///
    /// # Errors
    /// One whose validity is not [`CERTIFICATE_VALIDITY`], or that begins with another one.
    pub fn insert(&mut self, certificate: ScheduledCertificate) -> Result<(), ScheduleError> {
        let got = certificate.valid_until.duration_since(certificate.valid_from).ok();
        if got != Some(CERTIFICATE_VALIDITY) {
            return Err(ScheduleError::Validity { got });
        }
        match self.certificates.binary_search_by_key(&certificate.valid_from, |other| other.valid_from) {
            Ok(_) => Err(ScheduleError::Duplicate(certificate.serves_from())),
            Err(place) => {
                self.certificates.insert(place, certificate);
                Ok(())
            }
        }
    }

    /// When the certificate that is missing at `now` serves from; `None` when nothing is missing.
    ///
    /// Ask again after each [`insert`](Self::insert): two are missing at the first start.
    #[must_use]
    pub fn missing(&self, now: SystemTime) -> Option<SystemTime> {
        let Some(current) = self.current(now) else { return Some(now) };
        let next_serves_from = current.serves_from() + SERVICE_PERIOD;
        let next = self.after(&current).filter(|next| next.serves_from() <= next_serves_from);
        next.is_none().then_some(next_serves_from)
    }

    /// The certificate to serve at `now`; `None` when no certificate is valid for it.
    #[must_use]
    pub fn current(&self, now: SystemTime) -> Option<ScheduledCertificate> {
        let due = self.certificates.iter().rev().find(|certificate| certificate.serves_from() <= now);
        due.copied().filter(|certificate| certificate.is_valid_at(now))
    }

    /// What is served and published at `now`; `None` while something is [`missing`](Self::missing).
    #[must_use]
    pub fn at(&self, now: SystemTime) -> Option<CertificatesAt> {
        let current = self.current(now)?;
        let next = self.after(&current)?;
        let before = self.certificates.iter().rev();
        let previous = before.copied().find(|certificate| certificate.valid_from < current.valid_from);
        Some(CertificatesAt { previous, current, next })
    }

    /// Removes and returns what is older than the previous certificate: no address names it any more.
    pub fn remove_stale(&mut self, now: SystemTime) -> Vec<ScheduledCertificate> {
        let Some(CertificatesAt { previous: Some(previous), .. }) = self.at(now) else { return Vec::new() };
        let n_stale = self.certificates.partition_point(|other| other.valid_from < previous.valid_from);
        self.certificates.drain(..n_stale).collect()
    }

    fn after(&self, current: &ScheduledCertificate) -> Option<ScheduledCertificate> {
        self.certificates.iter().copied().find(|certificate| certificate.valid_from > current.valid_from)
    }
}
