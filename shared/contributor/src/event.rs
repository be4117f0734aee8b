//! What a contributor is told, and what it tells. Plain data.

pub use barnraise_swarm::activity::Event;

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
