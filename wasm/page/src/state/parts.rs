//! Parts of the page's state. Plain data.

use barnraise_messages::{ByteBuf, Interruption};
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::dataset::SampleKind;
use barnraise_protocol::error::OlderThanRun;
use serde::{Deserialize, Serialize};

/// A browser's message for a program that aborted, in lower case.
const TRAP: &str = "runtimeerror: unreachable";
/// What browsers and allocators say where memory ran out, in lower case.
const WORDS_OF_MEMORY: [&str; 5] =
    ["out of memory", "memory allocation", "could not allocate", "allocation failed", "rangeerror"];

/// Connection of the page to the backbone's web server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BackboneStatus {
    /// First request.
    Asking,
    /// Events arrive.
    Live,
    /// It does not answer.
    Lost { reason: BackboneLoss, retry_in_ms: u32 },
}

/// Why a request to the web server has no answer, or none that can be used. For people, without a full stop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    /// The server cannot be reached.
    #[error("no answer")]
    NoAnswer,
    /// It refused.
    #[error("it answered with status {0}")]
    Status(u16),
    /// The connection was lost before the end of the answer.
    #[error("its answer was cut short")]
    CutShort,
    /// The answer is not what this page knows.
    #[error("its answer makes no sense: {0}")]
    Unreadable(String),
}

impl AnswerError {
    /// Whether the server has no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        *self == Self::Status(404)
    }
}

/// Why the page hears nothing of the backbone. For people, without a full stop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BackboneLoss {
    /// The run's status cannot be had.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// The stream of events ended.
    #[error("the connection ended")]
    Ended,
    /// Of events nothing can be heard in this browser.
    #[error("this browser has no event streams")]
    NoEventStreams,
}

/// Why the worker is gone. For people, without a full stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum PeerLoss {
    /// The server has another build of the page, and no longer this one's training program.
    #[error("the server has a newer version of this page: reload it")]
    Outdated,
    /// The run speaks a newer version than this page.
    #[error(transparent)]
    OlderThanRun(#[from] OlderThanRun),
    /// Memory ran out, in the words of the browser or the worker.
    #[error("{0}")]
    OutOfMemory(String),
    /// Another reason, in the words of the browser or the worker.
    #[error("{0}")]
    Other(String),
}

impl PeerLoss {
    /// From the last words of a worker: browsers have no other sign of a crash. Read here, and nowhere else.
    pub(crate) fn of_words(words: &str) -> Self {
        let lower = words.to_ascii_lowercase();
        if WORDS_OF_MEMORY.iter().any(|sign| lower.contains(sign)) {
            Self::OutOfMemory(words.to_owned())
        } else if lower.contains(TRAP) {
            // A panic has a message; a failed allocation aborts without one.
            Self::OutOfMemory(format!("{words}, probably out of memory"))
        } else {
            Self::Other(words.to_owned())
        }
    }

    /// From the reason why a worker could not go on.
    pub(crate) fn of_interruption(reason: Interruption) -> Self {
        match reason {
            Interruption::OlderThanRun(versions) => Self::OlderThanRun(versions),
            reason => Self::of_words(&reason.to_string()),
        }
    }

    /// Whether only a reload of the page helps.
    pub(crate) fn is_of_version(&self) -> bool {
        matches!(self, Self::Outdated | Self::OlderThanRun(_))
    }

    /// Whether memory ran out.
    pub(crate) fn is_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_))
    }
}

/// State of the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WorkerState {
    /// Not started.
    Absent,
    /// The module is loading, or looks for a device.
    Loading { bytes: u64, bytes_total: Option<u64> },
    /// It runs.
    Ready { device: DeviceKind, device_name: String },
}

/// A picture that the visitor asked about.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Question {
    /// `[height, width, channels]`.
    pub(crate) pixels: Vec<u8>,
    /// Index in the gallery; `None` for a drawing.
    pub(crate) picked: Option<usize>,
    pub(super) asked_at_ms: f64,
    pub(super) is_open: bool,
    /// Why it has no answer, in the worker's words.
    pub(crate) failure: Option<String>,
}

impl Question {
    /// The picture.
    pub(crate) fn pixels(&self) -> &[u8] {
        &self.pixels
    }
}

/// Prediction of a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Prediction {
    /// Epoch of the model.
    pub(crate) epoch: u64,
    /// Classes and their probabilities, the likeliest first.
    pub(crate) ranking: Vec<(usize, f32)>,
}

impl Prediction {
    /// `probabilities` are `[n_classes]`.
    pub(crate) fn new(epoch: u64, probabilities: &[f32]) -> Self {
        let mut ranking: Vec<(usize, f32)> = probabilities.iter().copied().enumerate().collect();
        ranking.sort_by(|a, b| b.1.total_cmp(&a.1));
        Self { epoch, ranking }
    }
}

/// The wait for the held-out pictures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GalleryRequest {
    /// The worker was asked and has not answered.
    pub(super) is_open: bool,
    /// Why there are none, in the worker's words.
    pub(crate) failure: Option<String>,
}

/// Held-out pictures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gallery {
    /// `[n, height, width, channels]`.
    pub(crate) images: Vec<u8>,
    /// `[n]`.
    pub(crate) labels: Vec<u8>,
}

/// A file that the visitor chose to train on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OwnFile {
    /// It lies in no folder of a class.
    WithoutClass,
    /// The browser reads it now.
    Begun,
    /// A picture of a class, `[height, width, channels]`; `None` where it is none.
    Read { class: u8, pixels: Option<Vec<u8>> },
    /// The browser reads a table or texts now.
    FilesBegun { name: String, n_bytes: u64 },
    /// The contents of those files; `None` where the browser cannot read one.
    FilesRead(Option<Vec<Vec<u8>>>),
}

/// What the visitor chose to train on, as it is kept: pictures, or other files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnChoice {
    /// Of the run that it was made for: another one at the same address may have other classes.
    pub(crate) samples: SampleKind,
    /// `[n_samples, height, width, channels]`
    pub(crate) pixels: ByteBuf,
    /// `[n_samples]`
    pub(crate) labels: ByteBuf,
    /// What the files are called.
    pub(crate) name: String,
    /// Their contents.
    pub(crate) files: Vec<ByteBuf>,
}

/// What the browser has of an earlier visit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FoundOwn {
    /// A choice.
    Choice(Box<OwnChoice>),
    /// None.
    Nothing,
    /// It does not say.
    Unreadable,
}
