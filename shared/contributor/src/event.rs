//! What a contributor is told, and what it tells. Plain data.

use barnraise_protocol::contribute::{DeviceKind, Progress};
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::activity::{Activity, Contribution};

/// Room that a channel of commands should have.
pub const COMMANDS_MAX: usize = 16;

/// From the person. When the channel closes, finished work is delivered and [`crate::contribute`] ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Contribute until told otherwise.
    Start,
    /// Offer what is finished, then stop.
    Stop,
    /// Class probabilities of one image by the current model; answered by [`Event::Prediction`].
    Predict {
        /// Echoed.
        request: u32,
        /// `[height, width, channels]`.
        pixels: Vec<u8>,
    },
    /// The held-out samples to look at; answered by [`Event::Gallery`].
    LoadGallery,
}

/// To the person.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// What is trained, once it is known and whenever it changes.
    Described(Box<RunDescription>),
    /// What the peer is doing, when that changes.
    Activity(Activity),
    /// What the peer has given; a few times a second at most.
    Contribution(Contribution),
    /// How the run stands.
    Progress(Progress),
    /// Answer to [`Command::Predict`].
    Prediction {
        /// Echo.
        request: u32,
        /// Epoch of the parameters used.
        epoch: u64,
        /// `[n_classes]`, sums to 1.
        probabilities: Vec<f32>,
    },
    /// Answer to [`Command::LoadGallery`].
    Gallery {
        /// `[n, height, width, channels]`.
        images: Vec<u8>,
        /// `[n]`.
        labels: Vec<u8>,
    },
    /// The device was lost and another one goes on.
    DeviceChanged {
        /// What computes now.
        device: DeviceKind,
        /// Its name for people.
        device_name: String,
        /// Why.
        reason: String,
    },
    /// Something was refused or could not be done; training, if any, goes on.
    Failed {
        /// What was wanted, and what went wrong.
        message: String,
    },
}
