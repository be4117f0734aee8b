//! How this backbone stands, for whoever looks it up in the DHT.

use barnraise_protocol::dht::progress::Progress;

use super::{Core, Crowd};

impl Core {
    /// Its own contributors, and its model.
    pub(super) fn stands(&self) -> Progress {
        let Crowd { n_samples, n_contributors, samples_per_second } = self.here();
        let last = self.learner.history().last();
        let (n_samples_total, model) = match self.together.is_some() {
            true => {
                let model = self.model();
                (model.n_samples_total, Some(model.hash))
            }
            false => (last.map_or(0, |point| point.n_samples_total), None),
        };
        let epoch = self.learner.epoch();
        // Nobody is asked for a number that is none.
        let samples_per_second =
            if samples_per_second.is_finite() { samples_per_second.max(0.0) } else { 0.0 };
        Progress { epoch, n_samples_total, model, n_samples, n_contributors, samples_per_second }
    }
}
