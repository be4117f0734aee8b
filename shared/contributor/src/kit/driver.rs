//! The loop of a participant: wait for anything, let session and scheme decide, start what they want.
//!
//! Completions are handled in the order in which they come.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::contribute::{BackboneToContributor, OTHER_BACKBONES_MAX};
use barnraise_protocol::framing::FrameError;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, Contribution, Interruption};
use barnraise_swarm::rhythm::OWN_STALL_MIN;
use barnraise_swarm::session::{STOP_TIMEOUT, SessionAction};
use futures::channel::mpsc;
use futures::future::{Fuse, FutureExt};
use futures::select_biased;
use futures::stream::StreamExt;

use super::background::BackgroundRequest;
use super::compute::ComputeOutcome;
use super::network::{self, NetOutcome, SessionReader, ShardOutcome};
use super::scheme::{SchemeParticipant, StartScheme};
use super::{Config, IDLE_LINK_MAX, Kit, NetKind, SessionMessage};
use crate::event::{ContributorCommand, ContributorEvent};
use crate::platform::Platform;

/// Interval between looks at a running operation.
const TICK: Duration = Duration::from_millis(200);
/// How long a computation on a lost device may take to report the loss.
const LOST_DEVICE_GRACE: Duration = Duration::from_secs(2);

/// Takes part as `commands` say until their channel closes; then delivers finished work. Each run's scheme begins with
/// `start_scheme`.
pub(crate) async fn drive<P: Platform>(
    platform: &P,
    config: Config,
    commands: mpsc::Receiver<ContributorCommand>,
    mut events: impl FnMut(ContributorEvent),
    start_scheme: StartScheme<P>,
) -> Contribution {
    let kit = Kit::new(platform, config, &mut events);
    let mut driver = Driver { kit, scheme: None, start_scheme, commands, is_closed: false };
    loop {
        driver.step();
        driver.publish(false);
        if driver.is_finished() {
            break;
        }
        driver.kit.arm_timer();
        let wake = driver.wait().await;
        driver.on_wake(wake);
    }
    driver.publish(true);
    platform.disconnect().await;
    driver.contribution()
}

/// A completed operation.
enum Wake<P: Platform> {
    Command(Option<ContributorCommand>),
    SessionMessage(SessionMessage<P>),
    Net(NetOutcome<P>),
    Compute(Box<ComputeOutcome>),
    Shard(Box<ShardOutcome<P>>),
    /// Something of the scheme.
    Beside,
    Timer,
}

/// The kit, and what the scheme of the run does with it.
pub(super) struct Driver<'a, P: Platform> {
    pub(super) kit: Kit<'a, P>,
    /// `None` until a run is described.
    pub(super) scheme: Option<Box<dyn SchemeParticipant<'a, P> + 'a>>,
    pub(super) start_scheme: StartScheme<P>,
    commands: mpsc::Receiver<ContributorCommand>,
    is_closed: bool,
}

impl<'a, P: Platform> Driver<'a, P> {
    /// Starts every operation that can be started now.
    fn step(&mut self) {
        self.kit.notice_silence();
        self.kit.start_shard();
        self.kit.start_prediction();
        if let Some(scheme) = &self.scheme {
            self.kit.start_trial(&**scheme);
        }
        self.kit.rejoin_as_changed();
        self.kit.start_renewal();
        while self.kit.is_free() && self.start_next() {}
        if self.kit.has_free_trainer()
            && let Some(scheme) = &mut self.scheme
        {
            if self.kit.net_kind.is_some() {
                // Unless it waits for others.
                self.kit.wait_until = None;
            }
            if let Err(error) = scheme.compute_meanwhile(&mut self.kit) {
                self.on_model_error(None, &error);
            }
        }
    }

    /// Starts what is next; returns whether the next one can be started at once.
    fn start_next(&mut self) -> bool {
        self.kit.wait_until = None;
        self.kit.is_starved = false;
        let started = match &mut self.scheme {
            Some(scheme) => scheme.start_next(&mut self.kit),
            None => {
                let action = self.kit.session.next_action(self.kit.platform.now(), true);
                Ok(action.is_some_and(|action| self.kit.start_for_session(action)))
            }
        };
        started.unwrap_or_else(|error| {
            self.on_model_error(None, &error);
            true
        })
    }

    /// Waits for the first completion. The session has priority over the operations that it may change.
    async fn wait(&mut self) -> Wake<P> {
        let kit = &mut self.kit;
        let mut beside = match &mut self.scheme {
            Some(scheme) if scheme.works_beside() => poll_fn(|context| scheme.poll_beside(context)).fuse(),
            _ => Fuse::terminated(),
        };
        select_biased! {
            command = self.commands.next() => Wake::Command(command),
            message = &mut kit.messages => Wake::SessionMessage(message),
            outcome = &mut kit.net => Wake::Net(outcome),
            outcome = &mut kit.shard => Wake::Shard(Box::new(outcome)),
            () = beside => Wake::Beside,
            () = &mut kit.timer => Wake::Timer,
            // It ends with the trainer that asks.
            () = &mut kit.experts => Wake::Timer,
            outcome = &mut kit.compute => Wake::Compute(Box::new(outcome)),
            complete => Wake::Command(None),
        }
    }

    fn on_wake(&mut self, wake: Wake<P>) {
        self.kit.notice_sleep();
        self.kit.notice_deafness();
        match wake {
            Wake::Command(Some(command)) => self.kit.on_command(command),
            Wake::Command(None) => {
                self.is_closed = true;
                self.kit.requests.clear();
                self.kit.stop();
            }
            Wake::SessionMessage((reader, message)) => self.on_message(reader, message),
            Wake::Net(outcome) => self.on_net(outcome),
            Wake::Compute(outcome) => self.on_compute(*outcome),
            Wake::Shard(outcome) => self.on_shard(*outcome),
            Wake::Beside => {
                if let Some(scheme) = &mut self.scheme {
                    scheme.on_beside(&mut self.kit);
                }
            }
            Wake::Timer => self.on_timer(),
        }
    }

    fn on_message(&mut self, reader: SessionReader<P>, message: Result<BackboneToContributor, FrameError>) {
        let kit = &mut self.kit;
        let now = kit.platform.now();
        let message = match message {
            Ok(message) => message,
            Err(error) => {
                kit.disconnect(Interruption::other(error));
                return;
            }
        };
        kit.messages = network::listen::<P>(reader).boxed_local().fuse();
        kit.session.on_message(now);
        match message {
            BackboneToContributor::Welcome(progress) | BackboneToContributor::Progress(progress) => {
                kit.tell(ContributorEvent::Progress(progress));
            }
            BackboneToContributor::Refused(refusal) => kit.tell(ContributorEvent::Refused { refusal }),
            BackboneToContributor::OtherBackbones(mut addresses) => {
                addresses.truncate(OTHER_BACKBONES_MAX);
                kit.has_other_backbones = !addresses.is_empty();
                kit.session.set_others(kit.has_other_backbones);
                kit.platform.set_other_backbones(addresses);
            }
            message => {
                if let Some(scheme) = &mut self.scheme {
                    scheme.on_message(message);
                }
            }
        }
    }

    fn on_timer(&mut self) {
        let kit = &mut self.kit;
        kit.timer_at = None;
        let now = kit.platform.now();
        if kit.stop_deadline.is_some_and(|deadline| now >= deadline) {
            kit.cancel_net();
        }
        if kit.compute_kind.is_some() && kit.device.is_lost() {
            let lost_at = *kit.lost_at.get_or_insert(now);
            if now.saturating_sub(lost_at) >= LOST_DEVICE_GRACE {
                // The computation will never end; it is dropped with all that it holds.
                kit.compute = Fuse::terminated();
                let kind = kit.compute_kind.take();
                self.on_device_lost(kind, "it stopped answering");
            }
        }
    }

    /// Ends contributing, for a reason that a retry cannot fix.
    pub(super) fn give_up(&mut self, reason: Interruption) {
        self.end_as(&reason.clone(), Activity::Broken { reason });
    }

    pub(super) fn end_as(&mut self, reason: &Interruption, end: Activity) {
        self.kit.fatal_error = Some(end);
        self.kit.drop_link();
        if let Some(scheme) = &mut self.scheme {
            scheme.on_end();
        }
        self.kit.session.stop(self.kit.platform.now());
        self.kit.fail_requests(reason);
    }

    fn is_finished(&self) -> bool {
        let kit = &self.kit;
        self.is_closed && kit.is_idle && kit.net_kind.is_none() && kit.compute_kind.is_none()
    }
}

impl<P: Platform> Kit<'_, P> {
    /// Whether neither network nor device is in use.
    fn is_free(&self) -> bool {
        self.net_kind.is_none() && self.has_free_trainer()
    }

    fn has_free_trainer(&self) -> bool {
        let is_parked = self.run.as_ref().is_some_and(|run| run.waiting_parameters.is_some());
        self.compute_kind.is_none() && !is_parked
    }

    /// Starts what the session wants before the scheme is asked. Returns whether the next thing can be started at once.
    pub(crate) fn start_for_session(&mut self, action: SessionAction) -> bool {
        match action {
            SessionAction::Connect => self.start_connect(true),
            SessionAction::Wait(until) => self.wait_until(until),
            SessionAction::Leave => {
                self.session.on_left();
                self.start_leave();
            }
        }
        action == SessionAction::Leave
    }

    /// Waits for an event or until this moment; without one, nothing is wanted of this participant.
    fn wait_until(&mut self, until: Option<Moment>) {
        if until.is_none() {
            self.is_idle = true;
            self.stop_deadline = None;
            if let Some(trainer) = self.run.as_mut().and_then(|run| run.trainer.as_mut()) {
                trainer.end_threads();
            }
            self.start_request_fetch();
            return;
        }
        // Silence that the session noticed ends the connection here too.
        if self.session.down().is_some() && self.link.is_some() {
            self.drop_link();
        }
        self.wait_until = until;
    }

    fn on_command(&mut self, command: ContributorCommand) {
        match command {
            ContributorCommand::Start => {
                self.fatal_error = None;
                self.stop_deadline = None;
                self.session.start(self.platform.now());
                self.is_idle = false;
            }
            ContributorCommand::Stop => self.stop(),
            ContributorCommand::Pacing(conduct) => self.pacer.set(conduct),
            ContributorCommand::Name(name) => self.name = name,
            ContributorCommand::OwnData(samples) => {
                self.own_data = samples.map(Arc::new);
                self.is_data_new = true;
            }
            ContributorCommand::Predict { request, pixels } => {
                self.push_request(BackgroundRequest::Predict { request, pixels, first_at: None });
            }
            ContributorCommand::LoadGallery => self.push_request(BackgroundRequest::Gallery),
            ContributorCommand::Woke => self.on_woke(false),
        }
    }

    fn stop(&mut self) {
        let now = self.platform.now();
        if self.is_idle {
            return;
        }
        self.session.stop(now);
        self.stop_deadline = Some(now + STOP_TIMEOUT);
        self.cancel_shard();
        // Finished work is still delivered; nothing new is fetched.
        if matches!(
            self.net_kind,
            Some(NetKind::Connect { is_joining: true } | NetKind::State { is_background: false })
        ) {
            self.cancel_net();
        }
    }

    /// Time in which this participant processed nothing does not count as silence of the backbone.
    fn notice_deafness(&mut self) {
        let now = self.platform.now();
        let Some(at) = self.timer_at else { return };
        let deaf = now.saturating_sub(at.max(self.deaf_until));
        if deaf >= OWN_STALL_MIN {
            self.deaf_until = now;
            self.session.on_own_stall(now, deaf);
        }
    }

    /// Drops a silent connection, with all its operations.
    fn notice_silence(&mut self) {
        if self.link.is_none() {
            return;
        }
        let now = self.platform.now();
        let bytes_heard = self.meter.down_from_backbone();
        if std::mem::replace(&mut self.bytes_received, bytes_heard) != bytes_heard {
            self.session.on_partial_message(now);
        }
        if self.session.is_silent(now) {
            self.disconnect(Interruption::Silent);
        }
    }

    /// Wakes for the next deadline, and every [`TICK`] while an operation is in progress.
    fn arm_timer(&mut self) {
        let now = self.platform.now();
        let is_busy = self.net_kind.is_some()
            || self.compute_kind.is_some()
            || self.shard_id.is_some()
            || self.published.is_behind
            || !self.is_idle;
        let tick = is_busy.then_some(now + TICK);
        let is_unused = self.is_idle && self.net_kind.is_none();
        let idle_link = self.link.as_ref().filter(|_| is_unused).map(|link| link.used_at + IDLE_LINK_MAX);
        let rest = self.pacer.rests_until(now);
        let away = self.experts_away.waits_until(now);
        let wanted = [self.wait_until, tick, idle_link, rest, away].into_iter().flatten().min();
        let Some(wanted) = wanted else { return };
        if self.timer_at.is_none_or(|at| wanted < at) {
            self.timer_at = Some(wanted);
            self.timer = self.platform.sleep_until(wanted).boxed_local().fuse();
        }
    }
}
