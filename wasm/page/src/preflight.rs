//! What this browser can do for the run, found out before anything large is fetched. Pure: the driver in
//! [`probe`] tries the ways and asks the browser, [`words`] says it to people.
//!
//! It never decides what computes or how the backbone is reached: it tells the visitor, and names the way
//! that the worker begins with.

mod address;
mod browser;
pub(crate) mod probe;
mod rtc;
pub(crate) mod words;

use barnraise_messages::Way;
use barnraise_protocol::run::RunDescription;

pub(crate) use address::Address;
pub(crate) use browser::Browser;

/// The ways that there are, the better ones first.
pub(crate) const WAYS: [Way; 3] = [Way::WebTransport, Way::WebRtc, Way::WebSocket];
/// Most addresses of one way that are tried.
const ADDRESSES_PER_WAY_MAX: usize = 3;

/// A device with no more memory is spared. Rounded by the browser.
pub(crate) const LITTLE_MEMORY_GIB: f64 = 2.0;

/// In single precision.
const BYTES_PER_PARAMETER: u64 = 4;

/// What the browser says of itself without being asked twice.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Surroundings {
    /// Which browser, and on what.
    pub(crate) browser: Browser,
    /// The page came over HTTPS: it may open nothing that is not encrypted.
    pub(crate) is_encrypted: bool,
    /// Host and port of the page.
    pub(crate) host: String,
    /// The ways that the browser has.
    pub(crate) ways: Vec<Way>,
    /// Rounded by the browser, and 8 at most; not every browser tells.
    pub(crate) memory_gib: Option<f64>,
    /// Threads that run at a time; not every browser tells.
    pub(crate) n_processors: Option<u32>,
}

/// The graphics processor that WebGPU offers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Adapter {
    /// In lower case, as `nvidia`; may be empty, as the next two.
    pub(crate) vendor: String,
    /// Family of processors, as `ampere`.
    pub(crate) architecture: String,
    /// For people, in words of the driver.
    pub(crate) description: String,
    /// It computes on the processor.
    pub(crate) is_software: bool,
    /// Largest buffer.
    pub(crate) buffer_bytes_max: u64,
    /// Largest part of a buffer that a shader sees at once.
    pub(crate) binding_bytes_max: u64,
    /// Shaders may compute in half precision.
    pub(crate) has_f16: bool,
}

/// How one attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tried {
    /// The connection stood after so many milliseconds.
    Works { after_ms: u32 },
    /// Nothing came back in time.
    Silent,
    /// It was refused or broke, with what the browser says of it, which may be nothing.
    Failed { reason: String },
}

/// What is known of a way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The backbone's addresses are not known yet, or the way is being tried.
    Trying,
    /// It was tried.
    Tried(Tried),
    /// This browser has no such thing.
    NotInBrowser,
    /// The backbone does not offer it.
    NotOffered,
    /// The backbone offers it without encryption only, and the page came over HTTPS.
    NotEncrypted,
    /// The tab was at work before it could be tried.
    Left,
}

/// All that was found.
#[derive(Debug, Default)]
pub(crate) struct Preflight {
    pub(crate) surroundings: Surroundings,
    /// `None` until the browser has answered, and where it has none.
    pub(crate) adapter: Option<Adapter>,
    /// Bytes of the training program as they would be sent, where the server says.
    pub(crate) program_bytes: Option<u64>,
    /// Each of [`WAYS`] in their order, with the attempts under way.
    ways: Vec<(Way, Outcome, usize)>,
    is_begun: bool,
}

impl Preflight {
    /// Nothing was tried yet.
    pub(crate) fn new(surroundings: Surroundings) -> Self {
        let ways = WAYS.map(|way| (way, Outcome::Trying, 0)).into();
        Self { surroundings, ways, ..Self::default() }
    }

    /// The backbone said where it listens: what to try now, each for itself. Once for a page; nothing where
    /// the tab is at work already.
    pub(crate) fn begin(&mut self, addresses: &[String], is_at_work: bool) -> Vec<(Way, Address)> {
        if std::mem::replace(&mut self.is_begun, true) {
            return Vec::new();
        }
        if is_at_work {
            self.leave();
            return Vec::new();
        }
        let mut attempts = Vec::new();
        for (way, outcome, n_running) in &mut self.ways {
            let way = *way;
            let listed =
                || addresses.iter().filter_map(|text| Address::read(text)).filter(|it| it.way() == way);
            let usable = listed().filter(|it| it.is_encrypted() || !self.surroundings.is_encrypted);
            let tried: Vec<_> = usable.take(ADDRESSES_PER_WAY_MAX).map(|address| (way, address)).collect();
            *outcome = match (self.surroundings.ways.contains(&way), listed().next(), tried.is_empty()) {
                (false, ..) => Outcome::NotInBrowser,
                (true, None, _) => Outcome::NotOffered,
                (true, Some(_), true) => Outcome::NotEncrypted,
                (true, Some(_), false) => Outcome::Trying,
            };
            if *outcome == Outcome::Trying {
                *n_running = tried.len();
                attempts.extend(tried);
            }
        }
        attempts
    }

    /// An attempt ended. One that works is enough for its way; one that fails counts once it is the last.
    pub(crate) fn on_tried(&mut self, way: Way, tried: Tried) {
        let Some((_, outcome, n_running)) = self.ways.iter_mut().find(|(of, ..)| *of == way) else { return };
        *n_running = n_running.saturating_sub(1);
        let is_decided = matches!(tried, Tried::Works { .. }) || *n_running == 0;
        if *outcome == Outcome::Trying && is_decided {
            *outcome = Outcome::Tried(tried);
        }
    }

    /// The tab is at work: what was not tried yet is left.
    pub(crate) fn leave(&mut self) {
        for (_, outcome, _) in &mut self.ways {
            if *outcome == Outcome::Trying {
                *outcome = Outcome::Left;
            }
        }
    }

    /// Bytes that a shader would have to see at once for this run's model, and how many it sees here, where that is
    /// less. Batches are cut to what fits; parameters and their gradient cannot be.
    pub(crate) fn lacks(&self, run: &RunDescription) -> Option<(u64, u64)> {
        let adapter = self.adapter.as_ref()?;
        let granted = adapter.binding_bytes_max.min(adapter.buffer_bytes_max);
        let wanted = run.n_parameters.saturating_mul(BYTES_PER_PARAMETER);
        // An adapter that says nothing is not taken at its word.
        (granted > 0 && wanted > granted).then_some((wanted, granted))
    }

    /// What is known of each way, the better ones first.
    pub(crate) fn ways(&self) -> impl Iterator<Item = (Way, &Outcome)> {
        self.ways.iter().map(|(way, outcome, _)| (*way, outcome))
    }

    /// The best way that was seen to work.
    pub(crate) fn best_way(&self) -> Option<Way> {
        let works = |outcome: &Outcome| matches!(outcome, Outcome::Tried(Tried::Works { .. }));
        self.ways().find(|(_, outcome)| works(outcome)).map(|(way, _)| way)
    }
}

#[cfg(test)]
#[path = "preflight/tests.rs"]
mod tests;
