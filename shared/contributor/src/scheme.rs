//! Takes part in a run: the kit, and on it what the run's scheme asks for. It alone knows which schemes there are.

use barnraise_protocol::run::{RunDescription, Scheme};
use barnraise_swarm::activity::{Contribution, Interruption};
use futures::channel::mpsc;

use crate::event::{ContributorCommand, ContributorEvent};
use crate::kit::driver::drive;
use crate::kit::scheme::SchemeParticipant;
use crate::kit::{Config, Kit};
use crate::platform::Platform;
use crate::sampled::SampledParticipant;
use crate::synchronous::SynchronousParticipant;

/// Contributes as `commands` say until their channel closes; then delivers finished work.
pub async fn contribute<P: Platform>(
    platform: &P,
    config: Config,
    commands: mpsc::Receiver<ContributorCommand>,
    events: impl FnMut(ContributorEvent),
) -> Contribution {
    drive(platform, config, commands, events, start).await
}

fn start<'a, P: Platform>(
    kit: &Kit<'a, P>,
    run: &RunDescription,
) -> Result<Box<dyn SchemeParticipant<'a, P> + 'a>, Interruption> {
    Ok(match &run.scheme {
        Scheme::Synchronous(scheme) => Box::new(SynchronousParticipant::start(kit, run, scheme)?),
        Scheme::Sampled(scheme) => Box::new(SampledParticipant::start(kit, run, scheme)?),
    })
}
