//! Commands to a contributor, and its events. Plain data.

use barnraise_protocol::DisplayName;
use barnraise_protocol::dataset::Samples;
pub use barnraise_swarm::activity::ContributorEvent;
use barnraise_swarm::pacing::PacingSettings;

/// Capacity that a channel of commands should have.
pub const COMMANDS_MAX: usize = 16;

/// Sent by the user interface. When the channel closes, finished work is delivered and [`crate::contribute`] ends.
#[derive(Debug, Clone, PartialEq)]
pub enum ContributorCommand {
    /// Contribute until [`Self::Stop`].
    Start,
    /// Offer finished work, then stop.
    Stop,
    /// Change how hard the contributor works.
    Pacing(PacingSettings),
    /// Name on the leaderboard; a session under another name is restarted.
    Name(Option<DisplayName>),
    /// Train on these samples from the next [`Self::Start`] on, in runs where participants have data of their own, and never send
    /// them; `None` trains on the run's data again.
    OwnData(Option<Samples>),
    /// Class probabilities of one image by the current model; answered by [`ContributorEvent::Prediction`].
    Predict {
        /// Echoed.
        request: u32,
        /// `[height, width, channels]`.
        pixels: Vec<u8>,
    },
    /// Fetch the gallery of held-out samples; answered by [`ContributorEvent::Gallery`].
    LoadGallery,
    /// The device was asleep, or its network changed: retry now what waits for a retry.
    Woke,
}
