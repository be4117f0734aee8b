//! The data that is shown of a run, and its age. Pure: times are arguments.

use std::collections::VecDeque;
use std::time::Duration;

use barnraise_protocol::api::{Contributions, DeviceCount, HistoryPoint, LiveProgress, RunStatus};
use barnraise_protocol::contribute::RunProgress;

use super::error::AskError;
use super::metrics::Metrics;

/// Silence after which the data is stale: a backbone sends two events a second.
const STALE_AFTER: Duration = Duration::from_secs(6);
/// Most points of a curve.
const POINTS_MAX: usize = 512;

/// An answer of the page or the operator's page, or an error.
#[derive(Debug)]
pub(super) enum TopEvent {
    /// The whole status of the run.
    Run(Box<RunStatus>),
    /// A live event.
    Live(LiveProgress),
    /// Totals of the contributors.
    Contributions(Contributions),
    /// Metrics of the operator's page.
    Metrics(Metrics),
    /// Why a request to the page failed.
    Trouble(AskError),
    /// Why a request to the operator's page failed.
    OperatorTrouble(AskError),
}

/// The data of a run, as far as it was received.
#[derive(Debug)]
pub(super) struct TopState {
    address: String,
    /// Whether the operator's page is polled.
    pub(super) has_operator: bool,
    run: Option<WatchedRun>,
    trouble: Option<AskError>,
    /// `None` where the backbone records no contributions.
    pub(super) contributions: Option<Contributions>,
    metrics: Option<(Duration, Metrics)>,
    rates: Option<Rates>,
    pub(super) operator_trouble: Option<AskError>,
}

#[derive(Debug)]
struct WatchedRun {
    at: Duration,
    title: String,
    id: String,
    progress: RunProgress,
    devices: Vec<DeviceCount>,
    paused: Option<String>,
    losses: VecDeque<f32>,
    accuracies: VecDeque<f32>,
    newest_loss: u64,
    newest_accuracy: u64,
}

/// Bytes per second between the last two reads of the counters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rates {
    pub(super) received: f64,
    pub(super) sent: f64,
    /// Traffic of averaging with other backbones.
    pub(super) averaging_received: f64,
    pub(super) averaging_sent: f64,
}

/// The present data of the run, for a view.
#[derive(Debug)]
pub(super) struct RunSnapshot<'a> {
    pub(super) title: &'a str,
    pub(super) id: &'a str,
    pub(super) progress: RunProgress,
    pub(super) devices: &'a [DeviceCount],
    /// Why it is paused, by its operator or for a full disk.
    pub(super) paused: Option<&'a str>,
    pub(super) losses: &'a VecDeque<f32>,
    pub(super) accuracies: &'a VecDeque<f32>,
}

impl TopState {
    /// Without any data yet.
    pub(super) fn new(address: &str, has_operator: bool) -> Self {
        Self {
            address: address.to_owned(),
            has_operator,
            run: None,
            trouble: None,
            contributions: None,
            metrics: None,
            rates: None,
            operator_trouble: None,
        }
    }

    /// Takes in an event.
    pub(super) fn on_event(&mut self, now: Duration, heard: TopEvent) {
        match heard {
            TopEvent::Run(status) => self.on_run(now, *status),
            TopEvent::Live(live) => self.on_live(now, &live),
            TopEvent::Contributions(contributions) => self.contributions = Some(contributions),
            TopEvent::Metrics(metrics) => self.on_metrics(now, metrics),
            TopEvent::Trouble(error) => self.trouble = Some(error),
            TopEvent::OperatorTrouble(error) => {
                self.operator_trouble = Some(error);
                // A rate across the gap would be wrong for both sides of it.
                (self.metrics, self.rates) = (None, None);
            }
        }
    }

    fn on_run(&mut self, now: Duration, status: RunStatus) {
        let RunStatus { run, progress, history, devices, paused, .. } = status;
        let mut known = WatchedRun {
            at: now,
            title: run.identity.title,
            id: run.identity.run_id,
            progress,
            devices,
            paused,
            losses: VecDeque::new(),
            accuracies: VecDeque::new(),
            newest_loss: 0,
            newest_accuracy: 0,
        };
        history.iter().for_each(|point| known.on_point(point));
        self.run = Some(known);
        self.trouble = None;
    }

    /// Takes in a live event; it is ignored before the first status.
    fn on_live(&mut self, now: Duration, live: &LiveProgress) {
        let Some(known) = &mut self.run else { return };
        known.at = now;
        known.progress = live.progress;
        known.devices.clone_from(&live.devices);
        known.paused.clone_from(&live.paused);
        live.steps.iter().for_each(|point| known.on_point(point));
        if let Some(evaluation) = live.evaluation {
            known.on_accuracy(evaluation.epoch, evaluation.test_accuracy);
        }
        self.trouble = None;
    }

    fn on_metrics(&mut self, now: Duration, metrics: Metrics) {
        self.rates = self.metrics.as_ref().and_then(|(before, old)| {
            let seconds = now.saturating_sub(*before).as_secs_f64();
            // A lower counter than before means that the backbone restarted.
            let rate = |name: &str, direction: &str| {
                let of = |metrics: &Metrics| metrics.sum_where(name, "direction", direction);
                ((of(&metrics) - of(old)) / seconds).max(0.0)
            };
            (seconds > 0.0).then(|| Rates {
                received: rate("libp2p_bandwidth_bytes_total", "Inbound"),
                sent: rate("libp2p_bandwidth_bytes_total", "Outbound"),
                averaging_received: rate("barnraise_averaging_bytes_total", "received"),
                averaging_sent: rate("barnraise_averaging_bytes_total", "sent"),
            })
        });
        self.metrics = Some((now, metrics));
        self.operator_trouble = None;
    }

    /// Address of the page.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Whether a status was ever received.
    pub(super) fn has_run(&self) -> bool {
        self.run.is_some()
    }

    /// The run as of the last event.
    pub(super) fn run(&self) -> Option<RunSnapshot<'_>> {
        self.run.as_ref().map(|known| RunSnapshot {
            title: &known.title,
            id: &known.id,
            progress: known.progress,
            devices: &known.devices,
            paused: known.paused.as_deref(),
            losses: &known.losses,
            accuracies: &known.accuracies,
        })
    }

    /// Time since the last event, if the data is stale.
    pub(super) fn stale(&self, now: Duration) -> Option<Duration> {
        let age = now.saturating_sub(self.run.as_ref()?.at);
        (age >= STALE_AFTER).then_some(age)
    }

    /// Why the last request failed.
    pub(super) fn trouble(&self) -> Option<&AskError> {
        self.trouble.as_ref()
    }

    /// The latest metrics of the operator's page.
    pub(super) fn metrics(&self) -> Option<&Metrics> {
        self.metrics.as_ref().map(|(_, metrics)| metrics)
    }

    /// Rates between the last two reads of the metrics.
    pub(super) fn rates(&self) -> Option<Rates> {
        self.rates
    }
}

impl WatchedRun {
    fn on_point(&mut self, point: &HistoryPoint) {
        if let Some(loss) = point.train_loss.filter(|loss| loss.is_finite())
            && point.epoch > self.newest_loss
        {
            self.newest_loss = point.epoch;
            push(&mut self.losses, loss);
        }
        if let Some(accuracy) = point.test_accuracy {
            self.on_accuracy(point.epoch, accuracy);
        }
    }

    fn on_accuracy(&mut self, epoch: u64, accuracy: f32) {
        if epoch > self.newest_accuracy && accuracy.is_finite() {
            self.newest_accuracy = epoch;
            push(&mut self.accuracies, accuracy);
        }
    }
}

fn push(points: &mut VecDeque<f32>, point: f32) {
    if points.len() >= POINTS_MAX {
        points.pop_front();
    }
    points.push_back(point);
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::api::{AcceptedTotals, EvaluationPoint, RefusalCount};
    use barnraise_protocol::contribute::DeviceKind;
    use barnraise_protocol::run::RunDescription;

    use super::*;
    use crate::fixture;

    const SECOND: Duration = Duration::from_secs(1);

    pub(in super::super) fn unreachable(url: &str) -> AskError {
        AskError::unreachable(url, ureq::Error::HostNotFound)
    }

    pub(in super::super) fn progress(epoch: u64) -> RunProgress {
        RunProgress {
            epoch,
            n_samples: 512,
            target_batch_size: 1024,
            n_contributors: 3,
            samples_per_second: 1234.5,
            train_loss: Some(0.345),
            test_accuracy: Some(0.871),
        }
    }

    fn description() -> RunDescription {
        let mut run = fixture::run();
        run.identity.run_id = "fashion-mnist".into();
        run.identity.title = "Telling garments apart".into();
        run
    }

    fn point(epoch: u64) -> HistoryPoint {
        let test_accuracy = epoch.is_multiple_of(2).then_some(0.5 + epoch as f32 / 100.0);
        HistoryPoint {
            epoch,
            n_samples_total: epoch * 1024,
            train_loss: Some(1.0 / epoch as f32),
            test_accuracy,
        }
    }

    pub(in super::super) fn status() -> RunStatus {
        let device = |device, n_contributors| DeviceCount { device, n_contributors };
        RunStatus {
            run: description(),
            n_parameters: 2,
            addresses: vec![],
            progress: progress(20),
            history: (1..=20).map(point).collect(),
            devices: vec![device(DeviceKind::BrowserWebGpu, 2), device(DeviceKind::NativeCpu, 1)],
            paused: None,
            majority_accuracy: None,
        }
    }

    pub(in super::super) fn contributions() -> Contributions {
        let given = AcceptedTotals { n_contributions: 40, n_samples: 20_480, n_bytes: 5 << 20, seconds: 60 };
        let contributor = |peer: &str| {
            let mut totals = serde_json::to_value(given).unwrap();
            totals["peer"] = peer.into();
            totals["last_epoch"] = 20.into();
            serde_json::from_value(totals).unwrap()
        };
        Contributions {
            totals: given,
            n_contributors: 2,
            contributors: vec![
                contributor("12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"),
                contributor("short"),
            ],
            refused: vec![
                RefusalCount { reason: "epoch".into(), n: 7 },
                RefusalCount { reason: "norm".into(), n: 0 },
            ],
            ..Contributions::default()
        }
    }

    pub(in super::super) fn known() -> TopState {
        let mut state = TopState::new("http://127.0.0.1:8080", false);
        state.on_event(SECOND, TopEvent::Run(Box::new(status())));
        state.on_event(SECOND, TopEvent::Contributions(contributions()));
        state
    }

    #[test]
    fn points_are_taken_in_once_and_in_order() {
        let mut state = known();
        let live = LiveProgress {
            progress: progress(22),
            steps: vec![point(20), point(21), point(22)],
            evaluation: Some(EvaluationPoint { epoch: 22, test_accuracy: 0.9 }),
            devices: vec![],
            paused: Some("new data".into()),
        };
        state.on_event(2 * SECOND, TopEvent::Live(live));
        let run = state.run().unwrap();
        assert_eq!((run.losses.len(), run.accuracies.len(), run.progress.epoch), (22, 11, 22));
        assert!(run.devices.is_empty());
        assert_eq!(run.paused, Some("new data"));
    }

    #[test]
    fn a_curve_is_bounded() {
        let mut points = VecDeque::new();
        (0..2000).for_each(|n| push(&mut points, n as f32));
        assert_eq!((points.len(), points.back().copied()), (POINTS_MAX, Some(1999.0)));
    }

    #[test]
    fn silence_is_noticed_and_forgotten_when_it_ends() {
        let mut state = known();
        assert_eq!(state.stale(3 * SECOND), None);
        state.on_event(4 * SECOND, TopEvent::Trouble(unreachable("it")));
        assert_eq!(state.stale(21 * SECOND), Some(20 * SECOND));
        assert!(matches!(state.trouble(), Some(AskError::Unreachable { url, .. }) if url == "it"));
        assert_eq!(state.run().unwrap().progress.epoch, 20, "what was known is still shown");
        state.on_event(22 * SECOND, TopEvent::Run(Box::new(status())));
        assert!(state.stale(23 * SECOND).is_none() && state.trouble().is_none());
    }

    #[test]
    fn changes_before_the_run_is_known_wait_for_it() {
        let mut state = TopState::new("http://h", false);
        let live = LiveProgress {
            progress: progress(1),
            steps: vec![],
            evaluation: None,
            devices: vec![],
            paused: None,
        };
        state.on_event(SECOND, TopEvent::Live(live));
        assert!(!state.has_run() && state.stale(100 * SECOND).is_none());
    }

    #[test]
    fn rates_are_between_two_looks_and_never_below_zero() {
        let bytes = |n: u64| {
            let text = format!(
                "libp2p_bandwidth_bytes_total{{protocols=\"a\",direction=\"Inbound\"}} {n}\n\
                 libp2p_bandwidth_bytes_total{{protocols=\"b\",direction=\"Inbound\"}} {n}\n\
                 barnraise_averaging_bytes_total{{direction=\"sent\"}} {n}\n"
            );
            TopEvent::Metrics(Metrics::parse(&text))
        };
        let mut state = known();
        state.on_event(SECOND, bytes(100));
        assert_eq!(state.rates(), None);
        state.on_event(3 * SECOND, bytes(300));
        let rates = state.rates().unwrap();
        assert_eq!((rates.received, rates.sent, rates.averaging_sent), (200.0, 0.0, 100.0));
        state.on_event(4 * SECOND, bytes(0));
        assert_eq!(state.rates().unwrap().received, 0.0);
        state.on_event(5 * SECOND, TopEvent::OperatorTrouble(unreachable("it")));
        assert!(state.rates().is_none() && state.metrics().is_none());
    }
}
