//! Status events for the user interface: only changes, at a limited rate.

use barnraise_protocol::api::RefusalCount;
use barnraise_protocol::shard::ShardId;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, Contribution};
use std::time::Duration;

use super::{ComputeKind, Driver, NetKind};
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

impl<'a, P: Platform, F: FnMut(ContributorEvent)> Driver<'a, P, F> {
    /// Publishes changes, if enough time has passed since the last ones or it `is_final`.
    pub(super) fn publish(&mut self, is_final: bool) {
        let now = self.platform.now();
        self.published.is_behind = false;
        let activity = self.activity(now);
        let is_published = is_due(&mut self.published.activity, &activity, now, ACTIVITY_GAP, is_final);
        self.published.is_behind |= is_other(&self.published.activity, &activity);
        // The last count comes before an activity that ends it.
        let is_last = is_published
            && matches!(activity, Activity::Idle | Activity::NotAdmitted { .. } | Activity::Broken { .. });
        let contribution = self.contribution();
        let published = &mut self.published.contribution;
        if is_due(published, &contribution, now, CONTRIBUTION_GAP, is_final || is_last) {
            (self.events)(ContributorEvent::Contribution(contribution));
        } else {
            self.published.is_behind |= is_other(&self.published.contribution, &contribution);
        }
        if is_published {
            (self.events)(ContributorEvent::Activity(activity));
        }
    }

    /// What this peer has contributed.
    pub(super) fn contribution(&self) -> Contribution {
        let tally = self.contributor.sample_counts();
        let is_at_work = !self.is_idle && self.contributor.down().is_none();
        Contribution {
            n_samples_accepted: tally.n_samples_accepted,
            n_samples_computed: tally.n_samples_computed,
            n_accepted: tally.n_accepted,
            n_refused: tally.n_refused,
            refusals: tally.refusals.iter().map(|(kind, n)| refused(kind, *n)).collect(),
            last_refusal: tally.last_refusal.clone(),
            n_steps_missed: tally.n_steps_missed,
            samples_per_second: if is_at_work { self.speed.samples_per_second() } else { 0.0 },
            loss: self.loss,
            pass: self.pass,
            bytes_up: self.meter.up(),
            bytes_down: self.meter.down(),
            shards: self.run.as_ref().map(|run| run.exchange.traffic()).unwrap_or_default(),
        }
    }

    fn activity(&self, now: Moment) -> Activity {
        if let Some(end) = &self.fatal_error {
            return end.clone();
        }
        let (bytes, bytes_total) = self.net_progress.get();
        let working = match self.net_kind {
            Some(NetKind::Connect { .. }) => Some(match self.ticket.sign_in() {
                Some(url) => Activity::SigningIn { url },
                None => Activity::Connecting,
            }),
            Some(NetKind::State { .. }) => Some(Activity::FetchingModel { bytes, bytes_total }),
            Some(NetKind::Offer { epoch }) => Some(match self.checking.get() {
                Some(n_left) => Activity::BeingChecked { epoch, n_left },
                None => Activity::Sending { epoch, bytes, bytes_total },
            }),
            Some(NetKind::Report | NetKind::Renew | NetKind::Leave | NetKind::Offline) | None => None,
        };
        if self.is_idle {
            let gallery = (self.shard_id == Some(ShardId::Gallery)).then(|| self.fetching_data());
            return working.or(gallery).unwrap_or(Activity::Idle);
        }
        if self.contributor.is_stopping() || self.net_kind == Some(NetKind::Leave) {
            return Activity::Stopping;
        }
        working.unwrap_or_else(|| self.waiting_or_training(now))
    }

    fn waiting_or_training(&self, now: Moment) -> Activity {
        match self.contributor.down() {
            Some((retry_at, Some(reason))) => {
                let left = retry_at.saturating_sub(now).as_millis();
                let left = u32::try_from(left).unwrap_or(u32::MAX - COUNTDOWN_STEP_MS);
                let retry_in_ms = left.div_ceil(COUNTDOWN_STEP_MS) * COUNTDOWN_STEP_MS;
                return Activity::Reconnecting { retry_in_ms, reason: reason.clone() };
            }
            Some((_, None)) => return Activity::Connecting,
            None => {}
        }
        let epoch = self.contributor.run_epoch().unwrap_or_default();
        let is_warm = self.run.as_ref().is_some_and(|run| run.is_warm);
        if self.is_starved {
            self.fetching_data()
        } else if self.compute_kind == Some(ComputeKind::Trial)
            || (self.compute_kind == Some(ComputeKind::Batch) && !is_warm)
        {
            Activity::WarmingUp
        } else if self.wait_until.is_some() {
            Activity::WaitingForOthers { epoch }
        } else {
            Activity::Training { epoch }
        }
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
