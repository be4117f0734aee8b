//! Status events for the user interface: only changes, at a limited rate.

use barnraise_protocol::api::RefusalCount;
use barnraise_protocol::shard::ShardId;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, Contribution, SampleCounts};
use std::time::Duration;

use super::driver::Driver;
use super::{ComputeKind, Kit, NetKind};
use crate::event::ContributorEvent;
use crate::platform::Platform;

/// Shortest interval between two activities.
const ACTIVITY_GAP: Duration = Duration::from_millis(100);
/// Shortest interval between two [`Contribution`]s.
const CONTRIBUTION_GAP: Duration = Duration::from_millis(200);
/// A count-down is shown in whole seconds.
const COUNTDOWN_STEP_MS: u32 = 1000;

/// The last published values.
#[derive(Debug, Default)]
pub(super) struct Published {
    activity: Option<(Activity, Moment)>,
    contribution: Option<(Contribution, Moment)>,
    /// Whether a change is not published yet.
    pub(super) is_behind: bool,
}

impl<P: Platform> Driver<'_, P> {
    /// Publishes changes, if enough time has passed since the last ones or it `is_final`.
    pub(super) fn publish(&mut self, is_final: bool) {
        let now = self.kit.platform.now();
        let (activity, contribution) = (self.activity(now), self.contribution());
        let (published, events) = (&mut self.kit.published, &mut self.kit.events);
        published.is_behind = false;
        let is_published = is_due(&mut published.activity, &activity, now, ACTIVITY_GAP, is_final);
        published.is_behind |= is_other(&published.activity, &activity);
        if let Some(seen) = self.kit.seen.take() {
            events(ContributorEvent::Experts(seen));
        }
        // The last count comes before an activity that ends it.
        let is_last = is_published
            && matches!(activity, Activity::Idle | Activity::NotAdmitted { .. } | Activity::Broken { .. });
        let last = &mut published.contribution;
        if is_due(last, &contribution, now, CONTRIBUTION_GAP, is_final || is_last) {
            events(ContributorEvent::Contribution(contribution));
        } else {
            published.is_behind |= is_other(&published.contribution, &contribution);
        }
        if is_published {
            events(ContributorEvent::Activity(activity));
        }
    }

    /// What this peer has contributed.
    pub(super) fn contribution(&self) -> Contribution {
        let (kit, none) = (&self.kit, SampleCounts::default());
        let tally = self.scheme.as_ref().map_or(&none, |scheme| scheme.counts());
        let is_at_work = !kit.is_idle && (kit.session.down().is_none() || self.goes_on_alone());
        Contribution {
            n_samples_accepted: tally.n_samples_accepted,
            n_samples_computed: tally.n_samples_computed,
            n_samples_unanswered: tally.n_samples_unanswered,
            n_accepted: tally.n_accepted,
            n_refused: tally.n_refused,
            refusals: tally.refusals.iter().map(|(kind, n)| refused(kind, *n)).collect(),
            last_refusal: tally.last_refusal.clone(),
            n_steps_missed: tally.n_steps_missed,
            samples_per_second: if is_at_work { kit.speed.samples_per_second() } else { 0.0 },
            loss: kit.loss,
            pass: kit.pass,
            bytes_up: kit.meter.up(),
            bytes_down: kit.meter.down(),
            shards: kit.run.as_ref().map(|run| run.exchange.traffic()).unwrap_or_default(),
        }
    }

    /// Whether the scheme goes on while no backbone answers.
    fn goes_on_alone(&self) -> bool {
        let is_down = self.kit.session.down().is_some();
        is_down && self.scheme.as_ref().is_some_and(|scheme| scheme.goes_on_alone())
    }

    fn activity(&self, now: Moment) -> Activity {
        let kit = &self.kit;
        let is_alone = self.goes_on_alone();
        if let Some(end) = &kit.fatal_error {
            return end.clone();
        }
        let (bytes, bytes_total) = kit.net_progress.get();
        let working = match kit.net_kind {
            Some(NetKind::Connect { .. }) => match kit.ticket.sign_in() {
                Some(url) => Some(Activity::SigningIn { url }),
                None => (!is_alone).then_some(Activity::Connecting),
            },
            Some(NetKind::State { .. }) => Some(Activity::FetchingModel { bytes, bytes_total }),
            Some(NetKind::Scheme) => {
                self.scheme.as_ref().and_then(|scheme| scheme.activity((bytes, bytes_total)))
            }
            Some(NetKind::Renew | NetKind::Leave | NetKind::Offline) | None => None,
        };
        if kit.is_idle {
            let gallery = (kit.shard_id == Some(ShardId::Gallery)).then(|| kit.fetching_data());
            let frozen = (kit.shard_id.is_some() && kit.awaits_frozen()).then(|| kit.fetching_frozen());
            return working.or(frozen).or(gallery).unwrap_or(Activity::Idle);
        }
        if kit.session.is_stopping() || kit.net_kind == Some(NetKind::Leave) {
            return Activity::Stopping;
        }
        working.unwrap_or_else(|| match &self.scheme {
            Some(scheme) if is_alone => kit.waiting_or_at_work(scheme.epoch(), scheme.waiting()),
            Some(scheme) => kit.waiting_or_training(now, scheme.epoch(), scheme.waiting()),
            None => kit.waiting_or_training(now, 0, Activity::WaitingForOthers { epoch: 0 }),
        })
    }
}

impl<P: Platform> Kit<'_, P> {
    fn waiting_or_training(&self, now: Moment, epoch: u64, waiting: Activity) -> Activity {
        match self.session.down() {
            Some((retry_at, Some(reason))) => {
                let left = retry_at.saturating_sub(now).as_millis();
                let left = u32::try_from(left).unwrap_or(u32::MAX - COUNTDOWN_STEP_MS);
                let retry_in_ms = left.div_ceil(COUNTDOWN_STEP_MS) * COUNTDOWN_STEP_MS;
                return Activity::Reconnecting { retry_in_ms, reason: reason.clone() };
            }
            Some((_, None)) => return Activity::Connecting,
            None => {}
        }
        self.waiting_or_at_work(epoch, waiting)
    }

    fn waiting_or_at_work(&self, epoch: u64, waiting: Activity) -> Activity {
        let is_warm = self.run.as_ref().is_some_and(|run| run.is_warm);
        if self.awaits_frozen() {
            self.fetching_frozen()
        } else if self.is_starved {
            self.fetching_data()
        } else if self.compute_kind == Some(ComputeKind::Trial)
            || (self.compute_kind == Some(ComputeKind::Batch) && !is_warm)
        {
            Activity::WarmingUp
        } else if self.wait_until.is_some() {
            waiting
        } else {
            Activity::Training { epoch }
        }
    }

    /// Frozen weights are the greater part of a model.
    fn fetching_frozen(&self) -> Activity {
        let frozen = self.run.as_ref().and_then(|run| run.frozen.as_ref());
        let (bytes, bytes_total) =
            frozen.map_or((0, 0), |frozen| frozen.progress(self.shard_progress.get().0));
        Activity::FetchingModel { bytes, bytes_total }
    }

    fn fetching_data(&self) -> Activity {
        let (bytes, bytes_total) = self.shard_progress.get();
        Activity::FetchingData { bytes, bytes_total }
    }
}

fn refused(kind: &str, n: u64) -> RefusalCount {
    RefusalCount { reason: kind.to_owned(), n }
}

fn is_other<T: PartialEq>(published: &Option<(T, Moment)>, current: &T) -> bool {
    published.as_ref().is_none_or(|(published, _)| published != current)
}

/// Whether `current` is to be published now; then it is stored as published.
fn is_due<T: PartialEq + Clone>(
    published: &mut Option<(T, Moment)>,
    current: &T,
    now: Moment,
    gap: Duration,
    is_final: bool,
) -> bool {
    let is_early = published.as_ref().is_some_and(|(_, at)| now.saturating_sub(*at) < gap);
    if !is_other(published, current) || (is_early && !is_final) {
        return false;
    }
    *published = Some((current.clone(), now));
    true
}
