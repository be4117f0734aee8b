//! Output of `barnraise join`: a status line on a terminal, plain lines elsewhere. It never decides
//! anything.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use barnraise_contributor::ContributorEvent;
use barnraise_protocol::contribute::RunProgress;
use barnraise_swarm::Moment;
use barnraise_swarm::activity::{Activity, Contribution, Interruption};
use barnraise_swarm::shards::ShardTraffic;
use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tracing_subscriber::fmt::MakeWriter;

/// Interval of status lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Interval of the spinner.
const SPIN_EVERY: Duration = Duration::from_millis(120);

/// The status display on standard error. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Display {
    bar: ProgressBar,
    is_terminal: bool,
    /// Whether lines go to the log.
    is_log: bool,
    shown: Arc<Mutex<DisplayState>>,
}

/// The latest events.
#[derive(Debug, Default)]
struct DisplayState {
    activity: Option<Activity>,
    given: Contribution,
    run: Option<RunProgress>,
    /// Parts averaged for the backbones, and bytes of gradients received for them.
    reduced: Option<(u64, u64)>,
    line_at: Option<Moment>,
    /// Why there is no connection, as it was printed: an outage is printed once for each reason.
    lost: Option<Interruption>,
}

impl Default for Display {
    fn default() -> Self {
        Self::new()
    }
}

impl Display {
    /// On standard error.
    pub fn new() -> Self {
        let is_terminal = io::stderr().is_terminal();
        let target = if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} [{bar:20}] {wide_msg}") {
            bar.set_style(style);
        }
        Self { bar, is_terminal, is_log: false, shown: Arc::default() }
    }

    /// In the log, for a process that serves.
    pub(crate) fn in_log() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self { bar, is_terminal: false, is_log: true, shown: Arc::default() }
    }

    /// Prints a permanent line.
    pub fn say(&self, line: &str) {
        if self.is_log {
            tracing::info!("{line}");
            return;
        }
        // A closed standard error is no reason to stop.
        self.bar.suspend(|| drop(writeln!(io::stderr(), "{line}")));
    }

    /// Removes the status line.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Shows an event of the time `now`.
    pub fn on_event(&self, event: &ContributorEvent, now: Moment) {
        match event {
            ContributorEvent::Described(run) => {
                self.say(&format!("{}: {}", run.identity.title, run.identity.purpose));
            }
            ContributorEvent::DeviceChanged { device_name, reason, .. } => {
                self.say(&format!("Going on with {device_name}: {reason}."));
            }
            ContributorEvent::Refused { refusal } => self.say(&format!("the backbone says: {refusal}")),
            ContributorEvent::Failed { message } => self.say(message),
            ContributorEvent::Activity(Activity::SigningIn { url }) => {
                self.update(event, now);
                self.say(&format!(
                    "This run is for those on its list. Sign in at {url}\nThis goes on by itself then."
                ));
            }
            ContributorEvent::Activity(_)
            | ContributorEvent::Contribution(_)
            | ContributorEvent::Progress(_) => self.update(event, now),
            ContributorEvent::Receipt(_)
            | ContributorEvent::Experts(_)
            | ContributorEvent::Prediction { .. }
            | ContributorEvent::Gallery { .. }
            | ContributorEvent::NoGallery { .. } => {}
        }
    }

    /// Shows how many parts this machine has averaged, and the bytes of gradients received for them.
    pub fn on_reduced(&self, n_parts: u64, n_bytes: u64) {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).reduced = Some((n_parts, n_bytes));
    }

    fn update(&self, event: &ContributorEvent, now: Moment) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = shown.take(event);
        if self.is_terminal {
            self.bar.enable_steady_tick(SPIN_EVERY);
            // The bar is the progress of the coming step, over all contributors.
            if let Some(run) = &shown.run {
                self.bar.set_length(run.target_batch_size.into());
                self.bar.set_position(run.n_samples.min(run.target_batch_size.into()));
            }
            self.bar.set_message(shown.line());
        } else if is_news
            || (shown.lost.is_none() && shown.line_at.is_some_and(|at| now.saturating_sub(at) >= LINE_EVERY))
        {
            shown.line_at = Some(now);
            let line = shown.written_line();
            drop(shown);
            self.say(&line);
        }
    }
}

impl DisplayState {
    /// Takes in an event. Returns whether it deserves its own line; the activities of every epoch do not.
    fn take(&mut self, event: &ContributorEvent) -> bool {
        match event {
            ContributorEvent::Activity(activity) => {
                let is_other = self.activity.as_ref().is_none_or(|known| kind(known) != kind(activity));
                let is_news = match activity {
                    Activity::Idle => false,
                    // One line for each outage, and one for each other reason.
                    Activity::Reconnecting { reason, .. } => {
                        self.lost.replace(reason.clone()).is_none_or(|told| told != *reason)
                    }
                    Activity::Connecting if self.lost.is_some() => false,
                    _ => self.lost.take().is_some() || is_other,
                };
                self.activity = Some(activity.clone());
                is_news
            }
            ContributorEvent::Contribution(given) => {
                let was_missed = self.given.steps_missed().is_some();
                self.given.clone_from(given);
                !was_missed && given.steps_missed().is_some()
            }
            ContributorEvent::Progress(run) => {
                self.run = Some(*run);
                false
            }
            _ => false,
        }
    }

    /// The status as a permanent line, without a count-down.
    fn written_line(&self) -> String {
        match &self.lost {
            Some(reason) => {
                format!(
                    "No connection ({reason}). It is tried again, less and less often, until there is one."
                )
            }
            None => self.line(),
        }
    }

    fn line(&self) -> String {
        let given = &self.given;
        let mut parts = vec![match &self.activity {
            Some(Activity::Idle) if given.n_samples_computed == 0 => "Starting".to_owned(),
            Some(activity) => sentence(activity),
            None => "Starting".to_owned(),
        }];
        if given.n_samples_computed > 0 {
            parts.push(format!(
                "{} samples accepted of {} computed",
                given.n_samples_accepted, given.n_samples_computed
            ));
            parts.push(format!("{:.0} samples/s", given.samples_per_second));
        }
        parts.extend(
            given.steps_missed().map(|n| format!("the last {n} steps were made without it, as too late")),
        );
        parts.extend(given.loss.map(|loss| format!("loss {loss:.3}")));
        if let Some(run) = &self.run {
            parts.push(format!("run at epoch {}", run.epoch));
            parts.extend(run.test_accuracy.map(|accuracy| format!("accuracy {:.1} %", accuracy * 100.0)));
            let others = run.n_contributors.saturating_sub(1);
            parts.extend((others > 0).then(|| format!("{others} others")));
        }
        parts.extend(data(&given.shards));
        parts.extend(self.reduced.map(|(n, bytes)| format!("{n} parts averaged, {}", ByteSize(bytes))));
        parts.join(" · ")
    }
}

/// A number for the kind of an activity; those that alternate within every epoch are one kind.
fn kind(activity: &Activity) -> u8 {
    match activity {
        Activity::Idle => 0,
        Activity::Connecting => 1,
        Activity::SigningIn { .. } => 6,
        Activity::Reconnecting { .. } => 2,
        Activity::FetchingModel { .. }
        | Activity::FetchingData { .. }
        | Activity::WarmingUp
        | Activity::Training { .. }
        | Activity::Sending { .. }
        | Activity::BeingChecked { n_left: 0, .. }
        | Activity::WaitingForOthers { .. }
        | Activity::WaitingForTurn { .. }
        | Activity::Averaging { .. } => 3,
        Activity::BeingChecked { .. } => 7,
        Activity::Stopping => 4,
        Activity::NotAdmitted { .. } | Activity::Broken { .. } => 5,
    }
}

fn sentence(activity: &Activity) -> String {
    let part = |bytes: &u64, total: &u64| format!("{} of {}", ByteSize(*bytes), ByteSize(*total));
    match activity {
        Activity::Idle => "Not contributing".to_owned(),
        Activity::Connecting => "Connecting to the backbone".to_owned(),
        Activity::SigningIn { .. } => "Waiting for somebody to sign in".to_owned(),
        Activity::Reconnecting { retry_in_ms, reason } => {
            format!("No connection ({reason}); trying again in {} s", retry_in_ms.div_ceil(1000))
        }
        Activity::FetchingModel { bytes, bytes_total } => {
            format!("Fetching the model, {}", part(bytes, bytes_total))
        }
        Activity::FetchingData { bytes, bytes_total } => {
            format!("Fetching training data, {}", part(bytes, bytes_total))
        }
        Activity::WarmingUp => "Warming up the device".to_owned(),
        Activity::Training { epoch } => format!("Training on epoch {epoch}"),
        Activity::Sending { epoch, bytes, bytes_total } => {
            format!("Sending the gradient of epoch {epoch}, {}", part(bytes, bytes_total))
        }
        Activity::BeingChecked { epoch, n_left: 0 } => {
            format!("The backbone computes the gradient of epoch {epoch} once more before it counts")
        }
        Activity::BeingChecked { n_left, .. } => format!(
            "This key is new here: the backbone computes its first contributions once more before they count, {n_left} to go"
        ),
        Activity::WaitingForOthers { epoch } => format!("Epoch {epoch} is done here; waiting for the others"),
        Activity::WaitingForTurn { round, .. } => {
            format!("Round {round} is trained by others; waiting for a turn")
        }
        Activity::Averaging { epoch } => format!("Averaging what others trained for round {epoch}"),
        Activity::Stopping => "Delivering what is finished".to_owned(),
        Activity::NotAdmitted { reason: Interruption::Sampled }
        | Activity::Broken { reason: Interruption::Sampled } => {
            "This run has no server; this machine becomes one of its participants".to_owned()
        }
        Activity::NotAdmitted { reason } | Activity::Broken { reason } => format!("Cannot go on: {reason}"),
    }
}

/// Where the shards came from, once a peer sent one.
fn data(shards: &ShardTraffic) -> Option<String> {
    let (peers, backbone) = (ByteSize(shards.bytes_from_peers), ByteSize(shards.bytes_from_backbone));
    let wrong = match shards.n_wrong {
        0 => String::new(),
        n_wrong => format!(", {n_wrong} shards refused"),
    };
    let is_worth_it = shards.bytes_from_peers > 0 || shards.n_wrong > 0;
    is_worth_it.then(|| format!("data: {peers} from peers, {backbone} from the backbone{wrong}"))
}

/// The totals of a contribution, in a sentence without its full stop.
pub fn summary(given: &Contribution) -> String {
    let data = data(&given.shards).map_or_else(String::new, |data| format!("; {data}"));
    let unanswered = match given.n_samples_unanswered {
        0 => String::new(),
        n_samples => format!("; {n_samples} samples had no answer and may count"),
    };
    format!(
        "{} samples were accepted in {} contributions ({} computed, {} refused), {} sent, {} received{unanswered}{data}",
        given.n_samples_accepted,
        given.n_accepted,
        given.n_samples_computed,
        given.n_refused,
        ByteSize(given.bytes_up),
        ByteSize(given.bytes_down),
    )
}

/// Writes log lines without breaking the status line.
impl<'a> MakeWriter<'a> for Display {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        LogWriter { bar: self.bar.clone() }
    }
}

/// Writes to standard error above the status line.
#[derive(Debug)]
pub struct LogWriter {
    bar: ProgressBar,
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bar.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_epoch_is_not_news_and_a_lost_connection_is() {
        let mut shown = DisplayState::default();
        let mut take = |activity| shown.take(&ContributorEvent::Activity(activity));
        assert!(take(Activity::Connecting));
        assert!(take(Activity::FetchingModel { bytes: 1, bytes_total: 2 }));
        assert!(!take(Activity::Training { epoch: 1 }));
        assert!(!take(Activity::WaitingForOthers { epoch: 1 }));
        let lost = |retry_in_ms| Activity::Reconnecting { retry_in_ms, reason: Interruption::Silent };
        assert!(take(lost(2000)));
        assert!(!take(lost(1000)));
    }

    #[test]
    fn an_outage_is_one_line_however_often_it_is_tried() {
        let mut shown = DisplayState::default();
        let mut lines = Vec::new();
        let mut happen = |activity| {
            if shown.take(&ContributorEvent::Activity(activity)) {
                lines.push(shown.written_line());
            }
        };
        let lost =
            |reason: &str| Activity::Reconnecting { retry_in_ms: 1000, reason: Interruption::other(reason) };
        for _ in 0..100 {
            happen(Activity::Connecting);
            happen(lost("no such host"));
        }
        for _ in 0..100 {
            happen(Activity::Connecting);
            happen(lost("refused"));
        }
        happen(Activity::Connecting);
        happen(Activity::Training { epoch: 1 });
        happen(lost("refused"));
        let again = "It is tried again, less and less often, until there is one.";
        let no = |reason: &str| format!("No connection ({reason}). {again}");
        assert_eq!(lines[1..3], [no("no such host"), no("refused")]);
        assert_eq!((lines.len(), &lines[4]), (5, &no("refused")), "{lines:#?}");
        assert!(lines[0].starts_with("Connecting") && lines[3].starts_with("Training"), "{lines:#?}");
    }

    #[test]
    fn that_the_run_goes_on_without_this_machine_is_news_once() {
        let mut shown = DisplayState::default();
        let mut missed = |n_steps_missed| {
            let is_news = shown.take(&ContributorEvent::Contribution(Contribution {
                n_steps_missed,
                ..Contribution::default()
            }));
            (is_news, shown.line().contains("steps were made without it"))
        };
        assert_eq!(missed(2), (false, false));
        assert_eq!(missed(3), (true, true));
        assert_eq!(missed(4), (false, true));
        assert_eq!(missed(0), (false, false));
        assert_eq!(missed(3), (true, true));
    }

    #[test]
    fn the_line_says_what_was_given() {
        let mut shown = DisplayState::default();
        shown.take(&ContributorEvent::Activity(Activity::Training { epoch: 7 }));
        let given = Contribution {
            n_samples_accepted: 128,
            n_samples_computed: 192,
            samples_per_second: 99.6,
            loss: Some(0.5),
            ..Contribution::default()
        };
        shown.take(&ContributorEvent::Contribution(given));
        assert_eq!(
            shown.line(),
            "Training on epoch 7 · 128 samples accepted of 192 computed · 100 samples/s · loss 0.500"
        );
        shown.reduced = Some((3, 2048));
        assert!(shown.line().ends_with(" · 3 parts averaged, 2.0 KiB"), "{}", shown.line());
        shown.reduced = None;
        let shards =
            ShardTraffic { bytes_from_peers: 2048, bytes_from_backbone: 512, n_failed: 1, n_wrong: 3 };
        shown.take(&ContributorEvent::Contribution(Contribution { shards, ..Contribution::default() }));
        let line = shown.line();
        assert!(
            line.ends_with("data: 2.0 KiB from peers, 512 B from the backbone, 3 shards refused"),
            "{line}"
        );
    }
}
