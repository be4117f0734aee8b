//! Draws a run in a terminal: rows in order, of which the least important are left out on a small screen. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::api::{Contributions, DeviceCount};
use barnraise_protocol::contribute::DeviceKind;
use bytesize::ByteSize;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Gauge, Sparkline, Widget};

use super::metrics::Metrics;
use super::state::{RunSnapshot, TopState};

/// Width of the names before values.
const NAME_WIDTH: u16 = 12;
/// Width of the figures before and behind a curve.
const FIGURE_WIDTH: u16 = 9;
const RANGE_WIDTH: u16 = 15;
/// Levels of a curve's height: those of the block characters it is drawn with, less one.
const LEVELS: f32 = 7.0;
/// Most reasons that are listed; a run has few.
const REASONS_MAX: usize = 6;

/// A frame: the data at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct TopView<'a> {
    /// The data.
    pub(super) state: &'a TopState,
    /// Time since the start.
    pub(super) now: Duration,
}

/// A row of the screen.
enum Row<'a> {
    Text(Line<'a>),
    Progress { ratio: f64, label: String },
    Curve { name: &'static str, figure: String, range: String, points: Vec<f32> },
}

/// A row and its rank: rows of the highest ranks are left out first.
struct Ranked<'a>(u8, Row<'a>);

impl Widget for TopView<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let mut rows = self.rows();
        let n_rows = usize::from(area.height);
        let mut ranks: Vec<u8> = rows.iter().map(|Ranked(rank, _)| *rank).collect();
        ranks.sort_unstable();
        // All ranks below the last one that fits, and the first rows of that one.
        let last = ranks.get(n_rows.saturating_sub(1)).copied().unwrap_or(u8::MAX);
        let mut left = n_rows.saturating_sub(ranks.iter().filter(|rank| **rank < last).count());
        rows.retain(|Ranked(rank, _)| {
            let stays = *rank < last || (*rank == last && left > 0);
            left -= usize::from(stays && *rank == last);
            stays
        });
        for (Ranked(_, row), place) in rows.into_iter().zip(area.rows()) {
            row.render(place, buffer);
        }
    }
}

impl TopView<'_> {
    fn rows(&self) -> Vec<Ranked<'_>> {
        let mut rows = vec![self.title(), self.status()];
        if let Some(run) = self.state.run() {
            rows.extend(progress(&run));
            rows.push(Ranked(3, named("devices", devices(run.devices))));
        }
        if let Some(contributions) = &self.state.contributions {
            rows.push(Ranked(3, named("given", given(contributions))));
            let refused = contributions.refused.iter().map(|it| (it.reason.clone(), it.n as f64)).collect();
            rows.push(Ranked(3, named("refused", reasons(&refused))));
        }
        if self.state.has_operator {
            rows.extend(self.operator());
        }
        if let Some(contributions) = &self.state.contributions {
            rows.extend(contributors(contributions));
        }
        rows.push(Ranked(8, Row::Text(Line::default())));
        rows.push(Ranked(7, Row::Text(Line::from("q quits").dim())));
        rows
    }

    fn title(&self) -> Ranked<'_> {
        let line = match self.state.run() {
            Some(run) => {
                Line::from(vec![run.title.to_owned().bold(), Span::from(format!("  {}", run.id)).dim()])
            }
            None => Line::from("barnraise top".bold()),
        };
        Ranked(0, Row::Text(line))
    }

    fn status(&self) -> Ranked<'_> {
        let trouble = self.state.trouble().map(ToString::to_string);
        let address = self.state.address();
        let paused = self.state.run().and_then(|run| run.paused);
        let (text, colour) = match (self.state.has_run(), self.state.stale(self.now)) {
            (false, _) => match trouble {
                Some(trouble) => (trouble, Color::Red),
                None => (format!("asking {address}"), Color::Yellow),
            },
            (true, Some(age)) => {
                let trouble = trouble.unwrap_or_default();
                (format!("stale: nothing heard for {} s  {trouble}", age.as_secs()), Color::Red)
            }
            (true, None) => match paused {
                Some(reason) => (format!("paused: {reason}  {address}"), Color::Yellow),
                None => (format!("live  {address}"), Color::Green),
            },
        };
        Ranked(0, Row::Text(Line::styled(text, Style::new().fg(colour))))
    }

    fn operator(&self) -> Vec<Ranked<'_>> {
        let Some(metrics) = self.state.metrics() else {
            let trouble = self.state.operator_trouble.as_ref();
            let text = trouble.map_or_else(|| "asking the operator's page".into(), ToString::to_string);
            return vec![Ranked(4, named("operator", text))];
        };
        let mut rows = vec![Ranked(4, named("links", links(metrics)))];
        rows.extend(experts(metrics).map(|text| Ranked(3, named("experts", text))));
        if let Some(rates) = self.state.rates() {
            let both = |received: f64, sent: f64| format!("{} in, {} out", rate(received), rate(sent));
            if metrics.sum("barnraise_averaging_bytes_total").is_some() {
                let text = both(rates.averaging_received, rates.averaging_sent);
                rows.push(Ranked(5, named("averages", text)));
            }
            rows.push(Ranked(4, named("network", both(rates.received, rates.sent))));
        }
        rows.push(Ranked(
            5,
            named("violations", reasons(&metrics.by("barnraise_violations_total", "reason"))),
        ));
        rows
    }
}

fn progress<'a>(run: &RunSnapshot<'_>) -> Vec<Ranked<'a>> {
    let progress = run.progress;
    let summary = format!(
        "step {}   {}   {} samples/s",
        thousands(progress.epoch),
        counted(progress.n_contributors.into(), "contributor"),
        thousands(progress.samples_per_second.max(0.0).round() as u64),
    );
    let (n_samples, target) = (progress.n_samples, u64::from(progress.target_batch_size));
    let ratio = (n_samples as f64 / target.max(1) as f64).clamp(0.0, 1.0);
    let label = format!("{} of {} samples", thousands(n_samples), thousands(target));
    let loss = progress.train_loss.map_or("-".into(), |loss| format!("{loss:.3}"));
    let accuracy = progress.test_accuracy.map_or("-".into(), |accuracy| format!("{:.1} %", accuracy * 100.0));
    let percent: VecDeque<f32> = run.accuracies.iter().map(|accuracy| accuracy * 100.0).collect();
    vec![
        Ranked(8, Row::Text(Line::default())),
        Ranked(1, Row::Text(Line::from(summary))),
        Ranked(1, Row::Progress { ratio, label }),
        Ranked(8, Row::Text(Line::default())),
        Ranked(2, curve("loss", loss, run.losses, 3)),
        Ranked(2, curve("accuracy", accuracy, &percent, 1)),
        Ranked(8, Row::Text(Line::default())),
    ]
}

fn curve<'a>(name: &'static str, figure: String, points: &VecDeque<f32>, digits: usize) -> Row<'a> {
    let (low, high) = bounds(points);
    let range = if points.is_empty() { String::new() } else { format!("{low:.digits$}..{high:.digits$}") };
    Row::Curve { name, figure, range, points: points.iter().copied().collect() }
}

fn bounds<'a>(points: impl IntoIterator<Item = &'a f32>) -> (f32, f32) {
    let start = (f32::INFINITY, f32::NEG_INFINITY);
    points.into_iter().fold(start, |(low, high), point| (low.min(*point), high.max(*point)))
}

impl Row<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        match self {
            Self::Text(line) => line.render(area, buffer),
            Self::Progress { ratio, label } => {
                let gauge = Gauge::default().ratio(ratio).label(label);
                gauge.gauge_style(Style::new().fg(Color::Cyan).bg(Color::DarkGray)).render(area, buffer);
            }
            Self::Curve { name, figure, range, points } => {
                let widths = [
                    Constraint::Length(NAME_WIDTH),
                    Constraint::Length(FIGURE_WIDTH),
                    Constraint::Min(4),
                    Constraint::Length(RANGE_WIDTH),
                ];
                let [at_name, at_figure, at_curve, at_range] = Layout::horizontal(widths).areas(area);
                Line::from(name).dim().render(at_name, buffer);
                Line::from(figure).bold().render(at_figure, buffer);
                Line::from(format!(" {range}")).dim().render(at_range, buffer);
                let heights = heights(&points, at_curve.width.into());
                let curve = Sparkline::default().data(heights).max(LEVELS as u64 + 1);
                curve.style(Style::new().fg(Color::Cyan)).render(at_curve, buffer);
            }
        }
    }
}

/// Heights from 1 to 8 of at most `width` points, evenly spaced, with the newest among them.
fn heights(points: &[f32], width: usize) -> Vec<u64> {
    let n_shown = points.len().min(width);
    let (low, high) = bounds(points);
    let span = (high - low).max(f32::MIN_POSITIVE);
    let shown = (1..=n_shown).filter_map(|n| points.get(n * points.len() / n_shown - 1));
    shown.map(|point| ((point - low) / span * LEVELS).round() as u64 + 1).collect()
}

fn named<'a>(name: &'static str, text: String) -> Row<'a> {
    let width = usize::from(NAME_WIDTH);
    Row::Text(Line::from(vec![Span::from(format!("{name:width$}")).dim(), Span::from(text)]))
}

fn devices(counts: &[DeviceCount]) -> String {
    let name = |device| match device {
        DeviceKind::BrowserWebGpu => "browser (WebGPU)",
        DeviceKind::BrowserCpu => "browser (CPU)",
        DeviceKind::NativeCpu => "native (CPU)",
        DeviceKind::NativeWgpu => "native (GPU)",
        DeviceKind::NativeCuda => "native (CUDA)",
    };
    let texts = counts.iter().map(|count| format!("{} {}", count.n_contributors, name(count.device)));
    listed(&texts.collect::<Vec<_>>())
}

fn given(contributions: &Contributions) -> String {
    let totals = contributions.totals;
    format!(
        "{} samples, {}, {}, by {}",
        thousands(totals.n_samples),
        counted(totals.n_contributions, "contribution"),
        ByteSize(totals.n_bytes).display().iec(),
        counted(contributions.n_contributors, "peer"),
    )
}

fn links(metrics: &Metrics) -> String {
    let averagings = metrics.by("barnraise_averagings_total", "outcome");
    if averagings.is_empty() {
        return "no averaging with other backbones yet".into();
    }
    let behind = metrics.sum("barnraise_epochs_behind").unwrap_or(0.0);
    let texts = averagings.iter().map(|(outcome, n)| format!("{outcome} {}", thousands(*n as u64)));
    let mut texts: Vec<String> = texts.collect();
    if behind > 0.0 {
        texts.push(format!("{} steps behind", thousands(behind as u64)));
    }
    listed(&texts)
}

/// Of a model with experts that peers host.
fn experts(metrics: &Metrics) -> Option<String> {
    let of = |name: &str| metrics.sum(name).map(|n| n as u64);
    let copies = match of("barnraise_expert_copies").unwrap_or_default() {
        0 => String::new(),
        n_copies => format!(" and {}", counted(n_copies, "replica")),
    };
    Some(format!(
        "{} of {}{copies} at {}, {} waiting",
        thousands(of("barnraise_experts_hosted")?),
        thousands(of("barnraise_expert_places")?),
        counted(of("barnraise_expert_hosts")?, "host"),
        counted(of("barnraise_expert_rows_waiting")?, "row"),
    ))
}

/// The non-zero counts, the most frequent first.
fn reasons(counts: &BTreeMap<String, f64>) -> String {
    let mut counts: Vec<_> = counts.iter().filter(|(_, n)| **n > 0.0).collect();
    counts.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let n_more = counts.len().saturating_sub(REASONS_MAX);
    let texts =
        counts.iter().take(REASONS_MAX).map(|(reason, n)| format!("{reason} {}", thousands(**n as u64)));
    let more = (n_more > 0).then(|| format!("{n_more} more"));
    listed(&texts.chain(more).collect::<Vec<_>>())
}

fn contributors<'a>(contributions: &Contributions) -> Vec<Ranked<'a>> {
    let mut rows = Vec::new();
    for (index, contributor) in contributions.contributors.iter().enumerate() {
        if index == 0 {
            rows.push(Ranked(8, Row::Text(Line::default())));
            let header = format!("{:16}{:>14}{:>8}{:>12}", "peer", "samples", "times", "last step");
            rows.push(Ranked(6, Row::Text(Line::from(header).add_modifier(Modifier::DIM))));
        }
        let line = format!(
            "{:16}{:>14}{:>8}{:>12}",
            short(&contributor.peer),
            thousands(contributor.totals.n_samples),
            thousands(contributor.totals.n_contributions),
            thousands(contributor.last_epoch),
        );
        rows.push(Ranked(6, Row::Text(Line::from(line))));
    }
    rows
}

fn listed(texts: &[String]) -> String {
    if texts.is_empty() { "none".into() } else { texts.join(", ") }
}

fn counted(n: u64, what: &str) -> String {
    format!("{} {what}{}", thousands(n), if n == 1 { "" } else { "s" })
}

fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", ByteSize(bytes_per_second as u64).display().iec())
}

/// Beginning and end of a peer id: ids of one kind of key begin alike.
fn short(peer: &str) -> String {
    let n_chars = peer.chars().count();
    if n_chars <= 14 {
        return peer.to_owned();
    }
    peer.chars().take(5).chain(['…']).chain(peer.chars().skip(n_chars - 8)).collect()
}

/// 1234567 as 1,234,567.
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let comma = |at: usize| at > 0 && (digits.len() - at).is_multiple_of(3);
    let parts =
        digits.char_indices().flat_map(|(at, digit)| comma(at).then_some(',').into_iter().chain([digit]));
    parts.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::state::TopEvent;
    use super::super::state::tests::{known, status as described, unreachable};
    use super::super::text;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn frame(state: &TopState, now: Duration, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| frame.render_widget(TopView { state, now }, frame.area())).unwrap();
        text(terminal.backend().buffer())
    }

    fn with_operator() -> TopState {
        let mut state = known();
        state.has_operator = true;
        let look = |n: u64| {
            TopEvent::Metrics(Metrics::parse(&format!(
                "barnraise_averagings_total{{outcome=\"averaged\"}} 12\n\
                 barnraise_averagings_total{{outcome=\"failed\"}} 1\n\
                 barnraise_averaging_bytes_total{{direction=\"sent\"}} {n}\n\
                 libp2p_bandwidth_bytes_total{{direction=\"Inbound\"}} {n}\n\
                 barnraise_violations_total{{reason=\"forged\"}} 3\nbarnraise_violations_total{{reason=\"busy\"}} 0\n"
            )))
        };
        state.on_event(SECOND, look(0));
        state.on_event(2 * SECOND, look(2048));
        state
    }

    #[test]
    fn all_of_it_fits_a_usual_terminal() {
        let shown = frame(&with_operator(), 2 * SECOND, 80, 24);
        for part in [
            "Telling garments apart  fashion-mnist\n",
            "live  http://127.0.0.1:8080\n",
            "step 20   3 contributors   1,235 samples/s\n",
            "512 of 1,024 samples",
            "loss        0.345    ",
            " 0.050..1.000\n",
            "accuracy    87.1 %   ",
            " 52.0..70.0\n",
            "devices     2 browser (WebGPU), 1 native (CPU)\n",
            "given       20,480 samples, 40 contributions, 5.0 MiB, by 2 peers\n",
            "refused     epoch 7\n",
            "links       averaged 12, failed 1\n",
            "averages    0 B/s in, 2.0 KiB/s out\n",
            "network     2.0 KiB/s in, 0 B/s out\n",
            "violations  forged 3\n",
            "12D3K…4kx6nXTN",
            "short ",
            "q quits\n",
        ] {
            assert!(shown.contains(part), "{part:?} is missing in:\n{shown}");
        }
        assert!(shown.lines().count() <= 24 && shown.contains('▁') && shown.contains('█'), "{shown}");
    }

    #[test]
    fn experts_are_shown_where_peers_host_them() {
        let mut state = with_operator();
        assert!(!frame(&state, 2 * SECOND, 80, 24).contains("experts"));
        state.on_event(
            2 * SECOND,
            TopEvent::Metrics(Metrics::parse(
                "barnraise_expert_places 1024\nbarnraise_experts_hosted 1000\nbarnraise_expert_hosts 1\n\
                 barnraise_expert_rows_waiting 32\n",
            )),
        );
        let shown = frame(&state, 2 * SECOND, 80, 24);
        assert!(shown.contains("experts     1,000 of 1,024 at 1 host, 32 rows waiting"), "{shown}");
        let copied = "barnraise_expert_places 8\nbarnraise_experts_hosted 8\nbarnraise_expert_copies 3\n\
                      barnraise_expert_hosts 2\nbarnraise_expert_rows_waiting 9000\n";
        state.on_event(3 * SECOND, TopEvent::Metrics(Metrics::parse(copied)));
        let shown = frame(&state, 3 * SECOND, 80, 24);
        assert!(shown.contains("8 of 8 and 3 replicas at 2 hosts, 9,000 rows waiting"), "{shown}");
    }

    #[test]
    fn a_small_terminal_shows_what_matters_most() {
        let shown = frame(&with_operator(), 2 * SECOND, 40, 15);
        for part in [
            "Telling garments apart",
            "live",
            "step 20",
            "512 of 1,024",
            "loss",
            "accuracy",
            "devices",
            "refused",
            "links",
        ] {
            assert!(shown.contains(part), "{part:?} is missing in:\n{shown}");
        }
        assert!(
            shown.lines().count() <= 15 && shown.lines().all(|line| line.chars().count() <= 40),
            "{shown}"
        );
        let tiny = frame(&with_operator(), 2 * SECOND, 20, 2);
        assert_eq!(tiny, "Telling garments apa\nlive  http://127.0.0\n");
        assert_eq!(frame(&known(), SECOND, 1, 1), "T\n");
    }

    #[test]
    fn without_an_operators_page_no_links_are_shown() {
        let shown = frame(&known(), SECOND, 80, 24);
        assert!(!shown.contains("links") && !shown.contains("violations"), "{shown}");
    }

    #[test]
    fn a_pause_is_said_with_its_reason() {
        let mut state = known();
        assert!(frame(&state, SECOND, 80, 24).contains("live  http://"));
        let mut status = described();
        status.paused = Some("new data".into());
        state.on_event(SECOND, TopEvent::Run(Box::new(status)));
        assert!(frame(&state, SECOND, 80, 24).contains("paused: new data"));
    }

    #[test]
    fn silence_and_trouble_are_said() {
        let mut state = TopState::new("http://h:1", true);
        assert!(frame(&state, SECOND, 80, 24).contains("asking http://h:1"));
        state.on_event(SECOND, TopEvent::Trouble(unreachable("http://h:1")));
        let shown = frame(&state, SECOND, 80, 24);
        assert!(
            shown.contains("cannot reach http://h:1") && shown.contains("asking the operator's page"),
            "{shown}"
        );
        let shown = frame(&known(), 31 * SECOND, 80, 24);
        assert!(shown.contains("stale: nothing heard for 30 s") && shown.contains("step 20"), "{shown}");
        state.on_event(SECOND, TopEvent::OperatorTrouble(unreachable("http://o:2")));
        assert!(frame(&state, SECOND, 80, 24).contains("operator    cannot reach http://o:2"));
    }

    #[test]
    fn a_curve_shows_its_newest_point_and_all_of_its_range() {
        assert_eq!(heights(&[0.0, 1.0, 2.0, 7.0], 4), [1, 2, 3, 8]);
        assert_eq!(heights(&[0.0, 1.0, 2.0, 7.0], 2), [2, 8]);
        assert_eq!(heights(&[3.0, 3.0], 8), [1, 1]);
        assert_eq!((heights(&[], 8), heights(&[1.0], 0)), (vec![], vec![]));
    }

    #[test]
    fn figures_are_readable() {
        let shown: Vec<String> = [0, 12, 1234, 1_234_567].map(thousands).into();
        assert_eq!(shown, ["0", "12", "1,234", "1,234,567"]);
        assert_eq!((counted(1, "peer"), counted(2, "peer")), ("1 peer".into(), "2 peers".into()));
        assert_eq!(short("12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"), "12D3K…4kx6nXTN");
    }
}
