//! What a contributor is told, and what it tells. Plain data.

use barnraise_protocol::DisplayName;
pub use barnraise_swarm::activity::Event;
use barnraise_swarm::conduct::Conduct;

/// Room that a channel of commands should have.
pub const COMMANDS_MAX: usize = 16;

/// From the person. When the channel closes, finished work is delivered and [`crate::contribute`] ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Contribute until told otherwise.
    Start,
    /// Offer what is finished, then stop.
    Stop,
    /// Work like that from now on.
    Conduct(Conduct),
    /// How to be called where it is shown who gave what; a session under another name is begun anew.
    Name(Option<DisplayName>),
    /// Class probabilities of one image by the current model; answered by [`Event::Prediction`].
    Predict {
        /// Echoed.
        request: u32,
        /// `[height, width, channels]`.
        pixels: Vec<u8>,
    },
    /// The held-out samples to look at; answered by [`Event::Gallery`].
    LoadGallery,
    /// The device was asleep or its network is another one: try now what waits to be tried again.
    Woke,
}
