//! What a scheme brings to the kit: how a participant takes part in runs of it.

use std::sync::Arc;
use std::task::{Context, Poll};

use barnraise_learning::{ComputeDevice, FrozenWeights, ModelError, Trainer};
use barnraise_protocol::contribute::{BackboneToContributor, RunProgress};
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::state::EncodedState;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, Interruption, SampleCounts};

use super::Kit;
use crate::error::OperationError;
use crate::platform::Platform;

/// What a participant draws its samples from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SampleSource {
    /// All shards of the run; as many samples at a time are kept as the run says.
    Run,
    /// These shards alone, with so many of their samples at a time.
    Shards(Vec<u32>, usize),
    /// Samples of the user's own: no shard is fetched.
    Own(Arc<Samples>),
}

/// The participant of one scheme. The driver calls it with the kit, on which it starts what it wants.
pub(crate) trait SchemeParticipant<'a, P: Platform> {
    /// The same run is described by a backbone with another access authority. Work stays.
    ///
    /// # Errors
    /// This peer cannot take part there.
    fn on_access(&mut self, run: &RunDescription) -> Result<(), Interruption>;

    /// A trainer of the run on a device, with the frozen weights that its model has.
    ///
    /// # Errors
    /// The model does not fit the device.
    fn trainer(
        &self,
        run: &RunDescription,
        frozen: Option<&FrozenWeights>,
        device: ComputeDevice,
    ) -> Result<Trainer, ModelError>;

    /// Starts what is next, where nothing else is in progress. Returns whether the next one can be started at once.
    ///
    /// # Errors
    /// Of the device, or of the parameters.
    fn start_next(&mut self, kit: &mut Kit<'a, P>) -> Result<bool, ModelError>;

    /// Computes, where that is of use, while an operation on the network is in progress.
    ///
    /// # Errors
    /// Of the device, or of the parameters.
    fn compute_meanwhile(&mut self, kit: &mut Kit<'a, P>) -> Result<(), ModelError>;

    /// Whether it goes on while no backbone answers.
    fn goes_on_alone(&self) -> bool {
        false
    }

    /// What it draws its samples from.
    fn sample_source(&self, run: &RunDescription) -> SampleSource {
        let _ = run;
        SampleSource::Run
    }

    /// A backbone is reached that holds no sessions.
    fn on_reached(&mut self, kit: &mut Kit<'a, P>) {
        let _ = kit;
    }

    /// Whether it works beside the operations of the kit.
    fn works_beside(&self) -> bool {
        false
    }

    /// Goes on with what it does beside them. Ready where it is to be asked what is next; then comes [`Self::on_beside`].
    fn poll_beside(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let _ = context;
        Poll::Pending
    }

    /// Something happened beside the operations of the kit.
    fn on_beside(&mut self, kit: &mut Kit<'a, P>) {
        let _ = kit;
    }

    /// The session is open.
    fn on_session(&mut self, run: &RunDescription, progress: RunProgress);

    /// A message of the session that is not the kit's.
    fn on_message(&mut self, message: BackboneToContributor);

    /// The participant came to another backbone of the run.
    fn on_moved(&mut self, now: Moment);

    /// Parameters were fetched: for the scheme, or for a background request.
    ///
    /// # Errors
    /// Those of [`Kit::load`].
    fn on_parameters(
        &mut self,
        kit: &mut Kit<'a, P>,
        state: EncodedState,
        is_background: bool,
    ) -> Result<(), ModelError>;

    /// A batch of so many samples is done.
    fn on_batch(&mut self, n_samples: u32, samples_per_second: f32);

    /// A computation that it started is done.
    ///
    /// # Errors
    /// The device is lost.
    fn on_computed(&mut self, kit: &mut Kit<'a, P>) -> Result<(), ModelError>;

    /// An operation on the network that it started is done.
    ///
    /// # Errors
    /// That of the operation.
    fn on_net(&mut self, kit: &mut Kit<'a, P>) -> Result<(), OperationError>;

    /// The computation that it started will never end.
    fn on_computation_lost(&mut self);

    /// The trainer was replaced: its parameters and its gradient are gone.
    fn on_trainer_lost(&mut self);

    /// Contributing ends for a reason that a retry cannot fix, or goes on in another run: all work is void.
    fn on_end(&mut self);

    /// What is shown while its operation on the network is in progress, of which so many bytes are transferred.
    fn activity(&self, bytes: (u64, u64)) -> Option<Activity>;

    /// What is shown while it waits for others.
    fn waiting(&self) -> Activity {
        Activity::WaitingForOthers { epoch: self.epoch() }
    }

    /// The epoch or round that the run is in, as far as it is known.
    fn epoch(&self) -> u64;

    /// Id of the next contribution.
    fn next_contribution_id(&self) -> u64;

    /// Samples and contributions so far.
    fn counts(&self) -> &SampleCounts;
}

/// Begins to take part in a run, by its scheme.
pub(crate) type StartScheme<P> =
    for<'a> fn(&Kit<'a, P>, &RunDescription) -> Result<Box<dyn SchemeParticipant<'a, P> + 'a>, Interruption>;
