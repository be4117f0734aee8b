//! The certificates of one node: kept in a directory, served to TLS, published in the node's addresses.
//!
//! Rotation interrupts nobody: connections that stand keep the certificate they began with. Never
//! deletes a file that it cannot read; such a file is set aside and replaced.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::generate::{self, GenerateError, ServableCertificate};
use super::schedule::{CertificateSchedule, ScheduleError};
use super::{Certhash, SERVICE_PERIOD};
use crate::{files, tasks};

/// Source of the time of day: the system's clock, or a test's.
pub type SystemClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The clock is asked at least this often, since the system may have slept or been set.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// Why there is no certificate to serve.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The directory or a file in it cannot be used.
    #[error("certificate store {path}: {source}")]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A certificate could not be made.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A new certificate does not fit the schedule; a bug, or a clock that jumps.
    #[error("a new certificate does not fit: {0}")]
    Schedule(#[from] ScheduleError),
    /// The clock says a time at which nothing can be valid.
    #[error("no certificate can be valid now, at {0:?} by the clock")]
    Clock(SystemTime),
}

/// The certificates of one node; cheap to clone.
#[derive(Clone)]
pub struct Certificates {
    inner: Arc<CertificateStore>,
}

struct CertificateStore {
    directory: PathBuf,
    clock: SystemClock,
    state: RwLock<CertificateState>,
    published: watch::Sender<Vec<Certhash>>,
}

#[derive(Default)]
struct CertificateState {
    schedule: CertificateSchedule,
    keys: BTreeMap<Certhash, Arc<CertifiedKey>>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = &self.inner.directory;
        f.debug_struct("Certificates").field("directory", directory).finish_non_exhaustive()
    }
}

impl Certificates {
    /// Reads `directory` (made where it does not exist) and makes what is missing. Blocks on the disk.
    ///
    /// # Errors
    /// A directory that cannot be read or written. A broken file in it is no error: it is logged, set
    /// aside and replaced.
    pub fn open(directory: impl Into<PathBuf>, clock: SystemClock) -> Result<Self, CertificateError> {
        let directory = directory.into();
        let io_error = |source| CertificateError::Io { path: directory.clone(), source };
        files::create_private_directory(&directory).map_err(io_error)?;
        let mut state = CertificateState::default();
        for entry in std::fs::read_dir(&directory).map_err(io_error)? {
            let path = entry.map_err(io_error)?.path();
            if path.extension().is_some_and(|extension| extension == "pem") {
                read_or_set_aside(&path, &mut state)?;
            }
        }
        let inner = CertificateStore {
            directory,
            clock,
            state: RwLock::new(state),
            published: watch::Sender::new(Vec::new()),
        };
        let certificates = Self { inner: Arc::new(inner) };
        certificates.refresh()?;
        Ok(certificates)
    }

    /// Makes what is missing at this moment, forgets what is stale, publishes. Blocks on the disk.
    ///
    /// # Errors
    /// A certificate that cannot be made or written; what was there is served on.
    pub fn refresh(&self) -> Result<(), CertificateError> {
        let now = (self.inner.clock)();
        // The current and the next one at the first start; more would be a schedule that never fills.
        for _ in 0..3 {
            let missing = self.read(|state| state.schedule.missing(now));
            let Some(serves_from) = missing else { break };
            self.add(serves_from)?;
        }
        let stale = self.write(|state| {
            let stale = state.schedule.remove_stale(now);
            for certificate in &stale {
                state.keys.remove(&certificate.hash);
            }
            stale
        });
        for certificate in stale {
            let path = self.path_of(certificate.serves_from());
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "a stale certificate stays on disk");
            }
        }
        let hashes = self.hashes_in_addresses();
        if hashes.is_empty() {
            return Err(CertificateError::Clock(now));
        }
        self.inner.published.send_if_modified(|published| {
            let is_new = *published != hashes;
            *published = hashes;
            is_new
        });
        Ok(())
    }

    /// Starts the task that refreshes whenever a certificate's period ends; it ends with the handle.
    #[must_use = "rotation stops when the handle is dropped"]
    pub fn spawn_rotation(&self) -> AbortOnDropHandle<()> {
        let certificates = self.clone();
        tasks::spawn("certificates", async move {
            loop {
                tokio::time::sleep(certificates.until_next_check()).await;
                let refreshing = certificates.clone();
                match tokio::task::spawn_blocking(move || refreshing.refresh()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::error!(%error, "certificates not refreshed, will try again"),
                    Err(error) => tracing::error!(%error, "the certificate refresh ended early"),
                }
            }
        })
    }

    /// The hashes that belong into the listener's addresses: the current certificate's and the next's.
    #[must_use]
    pub fn hashes_in_addresses(&self) -> Vec<Certhash> {
        let at = self.read(|state| state.schedule.at((self.inner.clock)()));
        at.map(|at| vec![at.current.hash, at.next.hash]).unwrap_or_default()
    }

    /// The hashes that the Noise handshake attests: those of the addresses now and one period before.
    ///
    /// All known hashes, whether or not the next certificate has been made already: in the moment between
    /// the end of a period and [`refresh`](Self::refresh), clients connect as ever.
    #[must_use]
    pub fn hashes_in_handshake(&self) -> HashSet<Certhash> {
        self.read(|state| state.keys.keys().copied().collect())
    }

    /// The published hashes, and every change of them.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Vec<Certhash>> {
        self.inner.published.subscribe()
    }

    /// What TLS asks for the certificate of each new connection.
    pub(crate) fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::new(self.clone())
    }

    fn until_next_check(&self) -> Duration {
        let now = (self.inner.clock)();
        let change = self.read(|state| state.schedule.at(now)).map(|at| at.next.serves_from());
        let until = change.and_then(|change| change.duration_since(now).ok()).unwrap_or(SERVICE_PERIOD);
        // A second more, so that the clock has surely passed the change.
        (until + Duration::from_secs(1)).min(CLOCK_CHECK_INTERVAL)
    }

    fn add(&self, serves_from: SystemTime) -> Result<(), CertificateError> {
        let (certificate, text) = generate::generate(serves_from)?;
        let path = self.path_of(certificate.scheduled.serves_from());
        // On disk first: a hash that is published must survive a restart.
        files::write_private(&path, text.as_bytes())
            .map_err(|source| CertificateError::Io { path: path.clone(), source })?;
        self.write(|state| state.insert(certificate))?;
        tracing::info!(path = %path.display(), "made a certificate");
        Ok(())
    }

    /// Named by the second from which the certificate is served.
    fn path_of(&self, serves_from: SystemTime) -> PathBuf {
        let since_epoch = serves_from.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.inner.directory.join(format!("certificate-{}.pem", since_epoch.as_secs()))
    }

    fn read<T>(&self, look: impl FnOnce(&CertificateState) -> T) -> T {
        look(&self.inner.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut CertificateState) -> T) -> T {
        change(&mut self.inner.state.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let now = (self.inner.clock)();
        self.read(|state| {
            let current = state.schedule.current(now)?;
            state.keys.get(&current.hash).cloned()
        })
    }
}

impl CertificateState {
    fn insert(&mut self, certificate: ServableCertificate) -> Result<(), ScheduleError> {
        self.schedule.insert(certificate.scheduled)?;
        self.keys.insert(certificate.scheduled.hash, certificate.key);
        Ok(())
    }
}

fn read_or_set_aside(path: &Path, state: &mut CertificateState) -> Result<(), CertificateError> {
    let io_error = |source| CertificateError::Io { path: path.to_owned(), source };
    let pem = match files::read_small(path) {
        Err(error) if error.kind() != io::ErrorKind::InvalidData => return Err(io_error(error)),
        read => read,
    };
    let problem = match pem.map(|pem| generate::parse(&pem)) {
        Ok(Ok(certificate)) => match state.insert(certificate) {
            Ok(()) => return Ok(()),
            Err(error) => error.to_string(),
        },
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    let aside = files::set_aside(path).map_err(io_error)?;
    tracing::warn!(path = %path.display(), aside = %aside.display(), problem, "broken certificate set aside");
    Ok(())
}
