//! Capabilities of this browser for the run, found out before anything large is fetched. Pure: [`crate::probe`] tries the
//! transports and asks the browser, [`crate::report`] has the texts.
//!
//! It does not choose the device or the connection: it informs the visitor, and names the transport
//! that the worker tries first.

mod address;
mod browser;

use barnraise_messages::TransportKind;

pub(crate) use address::{Address, RtcAddress};
pub(crate) use browser::BrowserIdentity;

/// All transports, the better ones first.
pub(crate) const TRANSPORTS: [TransportKind; 3] =
    [TransportKind::WebTransport, TransportKind::WebRtc, TransportKind::WebSocket];
/// Most addresses of one transport that are tried.
pub(crate) const ADDRESSES_PER_TRANSPORT_MAX: usize = 3;

/// A device with no more memory counts as small. Rounded by the browser.
pub(crate) const LITTLE_MEMORY_GIB: f64 = 2.0;

/// Bytes of a parameter in single precision.
const BYTES_PER_PARAMETER: u64 = 4;

/// Capabilities of this browser, found out before anything is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// The page came over HTTPS or from this machine.
    pub(crate) secure: bool,
    /// State of WebGPU.
    pub(crate) web_gpu: WebGpu,
}

/// WebGPU in this browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WebGpu {
    /// The browser has none, or none for a page that did not come over HTTPS.
    Absent,
    /// The browser has not answered yet.
    Asking,
    /// No adapter.
    NoAdapter,
    /// There is an adapter; the worker finds out how fast it is.
    Adapter,
}

/// Properties of the browser that are known without a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Surroundings {
    /// The browser and its system.
    pub(crate) browser: BrowserIdentity,
    /// The page was loaded over HTTPS: it may open encrypted connections only.
    pub(crate) is_encrypted: bool,
    /// Host and port of the page.
    pub(crate) host: String,
    /// The transports that the browser has.
    pub(crate) transports: Vec<TransportKind>,
    /// Rounded by the browser, and 8 at most; not every browser tells.
    pub(crate) memory_gib: Option<f64>,
    /// Threads that run at a time; not every browser tells.
    pub(crate) n_processors: Option<u32>,
    /// The browser lets the page store nothing.
    pub(crate) is_storage_blocked: bool,
}

/// The graphics processor that WebGPU offers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Adapter {
    /// In lower case, as `nvidia`; may be empty like the next two.
    pub(crate) vendor: String,
    /// Family of processors, as `ampere`.
    pub(crate) architecture: String,
    /// The driver's name of it.
    pub(crate) description: String,
    /// It is emulated on the CPU.
    pub(crate) is_software: bool,
    /// Largest buffer.
    pub(crate) buffer_bytes_max: u64,
    /// Largest part of a buffer that a shader sees at once.
    pub(crate) binding_bytes_max: u64,
    /// Shaders may compute in half precision.
    pub(crate) has_f16: bool,
}

/// Result of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// Connected after so many milliseconds.
    Works { after_ms: u32 },
    /// No answer in time.
    Silent,
    /// It failed; the browser's reason may be empty.
    Failed { reason: String },
}

/// Outcome of the attempts over one transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TransportOutcome {
    /// The backbone's addresses are not known yet, or attempts are in progress.
    Trying,
    /// It was tried.
    Tried(ProbeResult),
    /// This browser lacks the transport.
    NotInBrowser,
    /// The backbone does not offer it.
    NotOffered,
    /// The backbone offers it without encryption only, and the page was loaded over HTTPS.
    NotEncrypted,
    /// Not tried, as the tab was already computing.
    Left,
}

/// All findings.
#[derive(Debug, Default)]
pub(crate) struct Preflight {
    pub(crate) surroundings: Surroundings,
    /// `None` until the browser has answered, or without an adapter.
    pub(crate) adapter: Option<Adapter>,
    /// Compressed bytes of the training program, where the server tells.
    pub(crate) program_bytes: Option<u64>,
    /// Each transport in the order of preference, with its outcome and the number of attempts in progress.
    transports: Vec<(TransportKind, TransportOutcome, usize)>,
    is_begun: bool,
}

impl Preflight {
    /// Nothing was tried yet.
    pub(crate) fn new(surroundings: Surroundings) -> Self {
        let transports = TRANSPORTS.map(|transport| (transport, TransportOutcome::Trying, 0)).into();
        Self { surroundings, transports, ..Self::default() }
    }

    /// Takes the backbone's addresses; returns the attempts to start. Once per page; none if the tab is computing
    /// already.
    pub(crate) fn begin(&mut self, addresses: &[String], is_at_work: bool) -> Vec<(TransportKind, Address)> {
        if std::mem::replace(&mut self.is_begun, true) {
            return Vec::new();
        }
        if is_at_work {
            self.leave();
            return Vec::new();
        }
        let mut attempts = Vec::new();
        for (transport, outcome, n_running) in &mut self.transports {
            let transport = *transport;
            let listed = || {
                addresses
                    .iter()
                    .filter_map(|text| Address::read(text))
                    .filter(|it| it.transport() == transport)
            };
            let usable = listed().filter(|it| it.is_encrypted() || !self.surroundings.is_encrypted);
            let tried: Vec<_> =
                usable.take(ADDRESSES_PER_TRANSPORT_MAX).map(|address| (transport, address)).collect();
            *outcome = match (
                self.surroundings.transports.contains(&transport),
                listed().next(),
                tried.is_empty(),
            ) {
                (false, ..) => TransportOutcome::NotInBrowser,
                (true, None, _) => TransportOutcome::NotOffered,
                (true, Some(_), true) => TransportOutcome::NotEncrypted,
                (true, Some(_), false) => TransportOutcome::Trying,
            };
            if *outcome == TransportOutcome::Trying {
                *n_running = tried.len();
                attempts.extend(tried);
            }
        }
        attempts
    }

    /// An attempt ended. One success decides its transport; a failure counts once it is the last.
    pub(crate) fn on_tried(&mut self, transport: TransportKind, tried: ProbeResult) {
        let Some((_, outcome, n_running)) = self.transports.iter_mut().find(|(of, ..)| *of == transport)
        else {
            return;
        };
        *n_running = n_running.saturating_sub(1);
        let is_decided = matches!(tried, ProbeResult::Works { .. }) || *n_running == 0;
        if *outcome == TransportOutcome::Trying && is_decided {
            *outcome = TransportOutcome::Tried(tried);
        }
    }

    /// The tab starts to compute: transports that were not tried yet are skipped.
    pub(crate) fn leave(&mut self) {
        for (_, outcome, _) in &mut self.transports {
            if *outcome == TransportOutcome::Trying {
                *outcome = TransportOutcome::Left;
            }
        }
    }

    /// Bytes that a model of `n_parameters` needs in one buffer binding, and the adapter's limit, if that is less. Batches can be
    /// cut to fit; parameters and their gradient cannot.
    pub(crate) fn lacks(&self, n_parameters: u64) -> Option<(u64, u64)> {
        let adapter = self.adapter.as_ref()?;
        let granted = adapter.binding_bytes_max.min(adapter.buffer_bytes_max);
        let wanted = n_parameters.saturating_mul(BYTES_PER_PARAMETER);
        // An adapter that reports 0 has an unknown limit.
        (granted > 0 && wanted > granted).then_some((wanted, granted))
    }

    /// The outcome of each transport, the better ones first.
    pub(crate) fn transports(&self) -> impl Iterator<Item = (TransportKind, &TransportOutcome)> {
        self.transports.iter().map(|(transport, outcome, _)| (*transport, outcome))
    }

    /// The best transport that works.
    pub(crate) fn best_transport(&self) -> Option<TransportKind> {
        let works = |outcome: &TransportOutcome| {
            matches!(outcome, TransportOutcome::Tried(ProbeResult::Works { .. }))
        };
        self.transports().find(|(_, outcome)| works(outcome)).map(|(transport, _)| transport)
    }
}
