//! Progress of the run at this backbone, for its contributors, its page and the DHT.

use barnraise_protocol::contribute::{BackboneToContributor, RunProgress};
use barnraise_protocol::dht;
use barnraise_protocol::matchmaking::ModelVersion;

use super::{ContributorStatistics, Core};

impl Core {
    /// The DHT record: this backbone's own contributors, and its model.
    pub(super) fn stands(&self) -> dht::progress::LocalProgress {
        let ContributorStatistics { n_samples, n_contributors, samples_per_second } = self.here();
        // Not the learner's: it may have another backbone's model before that is stored.
        let ModelVersion { n_samples_total, epoch, hash } = self.model();
        let model = Some(hash);
        // A record with a number that is not finite would be refused.
        let samples_per_second =
            if samples_per_second.is_finite() { samples_per_second.max(0.0) } else { 0.0 };
        dht::progress::LocalProgress {
            epoch,
            n_samples_total,
            model,
            n_samples,
            n_contributors,
            samples_per_second,
        }
    }

    /// Statistics of this backbone's own contributors.
    pub(super) fn here(&self) -> ContributorStatistics {
        ContributorStatistics {
            n_samples: self.round.n_samples(),
            n_contributors: self.round.n_contributors().try_into().unwrap_or(u32::MAX),
            samples_per_second: self.round.samples_per_second(),
        }
    }

    pub(super) fn progress(&self) -> RunProgress {
        let last = self.learner.history().last();
        let here = self.here();
        let all = self.coordination.all(self.now(), here);
        RunProgress {
            epoch: self.round.epoch(),
            n_samples: all.n_samples,
            target_batch_size: self.description.scheme.step_samples(),
            n_contributors: all.n_contributors,
            samples_per_second: all.samples_per_second,
            train_loss: last.and_then(|point| point.train_loss),
            test_accuracy: self.learner.history().last_accuracy(),
        }
    }

    pub(super) fn publish_progress(&mut self) {
        self.put_progress_off();
        self.outputs.stands.send_replace(self.stands());
        if self.coordination.has_others() {
            self.metrics.on_heard_of(self.coordination.n_epochs_behind(self.now()));
        }
        let progress = self.progress();
        self.broadcast(&BackboneToContributor::Progress(progress));
        let (devices, paused) = (self.round.devices(), self.paused_for());
        self.outputs.status.publish(progress, devices, paused, self.learner.history());
    }
}
