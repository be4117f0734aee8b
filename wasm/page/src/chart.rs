//! Layout of a chart: its line, ticks and labels. Pure geometry: never touches the document.

/// The drawing area in CSS pixels; the margins hold the labels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Frame {
    /// Whole width.
    pub(crate) width: f64,
    /// Whole height.
    pub(crate) height: f64,
}

const LEFT: f64 = 50.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 26.0;

/// Range of the vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VerticalScale {
    /// From zero to a round number above the largest value.
    FromZero,
    /// A share: from 0 % to 100 %.
    Share,
}

/// A tick with its label.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tick {
    /// Pixels from the left or from the top.
    pub(crate) at: f64,
    /// Text.
    pub(crate) label: String,
}

/// A chart ready to be drawn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chart {
    /// SVG path of the curve; empty without points.
    pub(crate) line: String,
    /// SVG path of the area below it.
    pub(crate) area: String,
    /// Ticks of the horizontal axis.
    pub(crate) x_ticks: Vec<Tick>,
    /// Ticks of the vertical axis.
    pub(crate) y_ticks: Vec<Tick>,
    /// The newest point.
    pub(crate) newest: Option<(f64, f64)>,
    /// Left and right end of the grid lines.
    pub(crate) plot_x: (f64, f64),
    /// Top and bottom of the plot.
    pub(crate) plot_y: (f64, f64),
}

/// Lays out `points` (`(steps, value)`, ascending, finite) in `frame`.
pub(crate) fn layout(points: &[(f64, f64)], frame: Frame, scale: VerticalScale) -> Chart {
    let plot_x = (LEFT, (frame.width - RIGHT).max(LEFT + 1.0));
    let plot_y = (TOP, (frame.height - BOTTOM).max(TOP + 1.0));
    let x_max = points.last().map_or(0.0, |point| point.0).max(10.0);
    let (y_max, y_step) = match scale {
        VerticalScale::Share => (1.0, 0.25),
        VerticalScale::FromZero => {
            let largest = points.iter().map(|point| point.1).fold(0.0, f64::max);
            let step = round_step(largest.max(0.1), 4.0);
            (step * (largest.max(0.1) / step).ceil(), step)
        }
    };
    let to_x = |value: f64| plot_x.0 + value / x_max * (plot_x.1 - plot_x.0);
    let to_y = |value: f64| plot_y.1 - (value / y_max).clamp(0.0, 1.0) * (plot_y.1 - plot_y.0);
    let places: Vec<(f64, f64)> = points.iter().map(|&(x, y)| (to_x(x), to_y(y))).collect();
    let line = path(&places);
    let area = match places.as_slice() {
        // A single point has no area.
        [first, .., _] => format!("{line}V{:.1}H{:.1}Z", plot_y.1, first.0),
        _ => String::new(),
    };
    Chart {
        line,
        area,
        x_ticks: ticks(x_max, round_step(x_max, (frame.width / 110.0).clamp(2.0, 6.0)).max(1.0))
            .map(|value| Tick { at: to_x(value), label: crate::format::count(value.round() as u64) })
            .collect(),
        y_ticks: ticks(y_max, y_step)
            .map(|value| Tick { at: to_y(value), label: y_label(value, y_step, scale) })
            .collect(),
        newest: places.last().copied(),
        plot_x,
        plot_y,
    }
}

fn path(places: &[(f64, f64)]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(places.len() * 12);
    for (idx, (x, y)) in places.iter().enumerate() {
        let command = if idx == 0 { 'M' } else { 'L' };
        // Writing to a string cannot fail.
        let _ = write!(text, "{command}{x:.1} {y:.1}");
    }
    text
}

fn y_label(value: f64, step: f64, scale: VerticalScale) -> String {
    match scale {
        VerticalScale::Share => format!("{:.0} %", value * 100.0),
        // As many digits as tell neighbours apart.
        VerticalScale::FromZero => {
            let n_digits = (-step.log10().floor()).clamp(1.0, 6.0) as usize;
            format!("{value:.n_digits$}")
        }
    }
}

/// The smallest of 1, 2, 5 times a power of ten that gives at most `n_max` steps up to `max`.
fn round_step(max: f64, n_max: f64) -> f64 {
    let raw = max / n_max;
    let power = 10_f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= raw * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

fn ticks(max: f64, step: f64) -> impl Iterator<Item = f64> {
    let n = (max / step + 1e-9).floor().clamp(0.0, 20.0) as u32;
    (0..=n).map(move |idx| f64::from(idx) * step)
}

impl Chart {
    /// The inside of an `svg` element whose user unit is a CSS pixel. Numbers only: nothing that
    /// came from outside is in it.
    pub(crate) fn markup(&self) -> String {
        let ((left, right), (_, bottom)) = (self.plot_x, self.plot_y);
        let mut parts: Vec<String> = Vec::new();
        for tick in &self.y_ticks {
            let (y, label) = (tick.at, &tick.label);
            parts.push(format!("<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>"));
            parts.push(format!(
                "<text text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
                left - 8.0,
                y + 4.0
            ));
        }
        for (idx, tick) in self.x_ticks.iter().enumerate() {
            let (x, label) = (tick.at, &tick.label);
            let anchor = if idx + 1 == self.x_ticks.len() && right - x < 20.0 { "end" } else { "middle" };
            parts.push(format!(
                "<text text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>",
                bottom + 18.0
            ));
        }
        parts.push(format!(
            "<path class=\"area\" d=\"{}\"/><path class=\"line\" d=\"{}\"/>",
            self.area, self.line
        ));
        if let Some((x, y)) = self.newest {
            parts.push(format!("<circle class=\"newest\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>"));
        }
        parts.concat()
    }
}

/// Points scaled into a rectangle of this left, top, width and height: the largest value at the top, 0 at the bottom.
pub(crate) fn fit(points: &[(f64, f64)], place: (f64, f64, f64, f64)) -> Vec<(f64, f64)> {
    let (left, top, width, height) = place;
    let max = |values: fn(&(f64, f64)) -> f64| points.iter().map(values).fold(0.0, f64::max);
    let (x_max, y_max) = (max(|point| point.0).max(1.0), max(|point| point.1).max(1e-9));
    let to_place = |(x, y): &(f64, f64)| {
        (left + width * (x / x_max).clamp(0.0, 1.0), top + height * (1.0 - (y / y_max).clamp(0.0, 1.0)))
    };
    points.iter().map(to_place).collect()
}

/// Text alternative of the curve for screen readers, in these units: steps or rounds.
pub(crate) fn in_words(
    what: &str,
    points: &[(f64, f64)],
    (one, several): (&str, &str),
    show: impl Fn(f64) -> String,
) -> String {
    match points {
        [] => format!("{what}: nothing measured yet."),
        [only] => format!("{what}: {} at {one} {}.", show(only.1), only.0),
        [first, .., last] => format!(
            "{what}: from {} at {one} {} to {} at {one} {}. The table below has the {several} between.",
            show(first.1),
            first.0,
            show(last.1),
            last.0
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Frame = Frame { width: 400.0, height: 200.0 };

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn steps_are_round() {
        let steps = [(10.0, 4.0), (97.0, 3.0), (2.3, 4.0), (1e6, 4.0)].map(|(max, n)| round_step(max, n));
        assert_eq!(steps, [5.0, 50.0, 1.0, 500_000.0]);
    }

    #[test]
    fn the_line_spans_the_plot_and_never_leaves_it() {
        let points: Vec<(f64, f64)> = (0..=100).map(|x| (f64::from(x), 2.3 / f64::from(x + 1))).collect();
        let chart = layout(&points, FRAME, VerticalScale::FromZero);
        assert!(chart.line.starts_with("M50.0 "), "{}", chart.line);
        let newest = chart.newest.unwrap_or_default();
        assert_eq!(newest.0, chart.plot_x.1);
        assert!(newest.1 > chart.plot_y.0 && newest.1 < chart.plot_y.1);
        assert_eq!(labels(&chart.y_ticks), ["0.0", "1.0", "2.0", "3.0"]);
        assert_eq!(labels(&chart.x_ticks), ["0", "50", "100"]);
        assert!(chart.area.ends_with("V174.0H50.0Z"), "{}", chart.area);
    }

    #[test]
    fn shares_have_a_fixed_axis() {
        let chart = layout(&[(3.0, 1.7)], FRAME, VerticalScale::Share);
        assert_eq!(labels(&chart.y_ticks), ["0 %", "25 %", "50 %", "75 %", "100 %"]);
        assert_eq!(chart.newest.map(|place| place.1), Some(chart.plot_y.0));
        assert_eq!(chart.area, "");
    }

    #[test]
    fn nothing_yet_is_a_chart_with_axes() {
        for frame in [FRAME, Frame { width: 0.0, height: 0.0 }] {
            let chart = layout(&[], frame, VerticalScale::FromZero);
            assert_eq!((chart.line.as_str(), chart.area.as_str(), chart.newest), ("", "", None));
            assert!(chart.x_ticks.len() >= 2 && chart.y_ticks.len() >= 2);
        }
    }

    #[test]
    fn small_losses_have_distinct_labels() {
        let chart = layout(&[(1.0, 0.07), (2.0, 0.05)], FRAME, VerticalScale::FromZero);
        assert_eq!(labels(&chart.y_ticks), ["0.00", "0.05", "0.10"]);
    }

    #[test]
    fn markup_has_the_curve_and_every_label_once() {
        let chart = layout(&[(1.0, 0.2), (40.0, 0.8)], FRAME, VerticalScale::Share);
        let markup = chart.markup();
        assert_eq!(markup.matches("<text").count(), chart.x_ticks.len() + chart.y_ticks.len());
        assert_eq!(markup.matches("<circle").count(), 1);
        assert!(markup.contains(&chart.line));
        assert!(!layout(&[], FRAME, VerticalScale::Share).markup().contains("<circle"));
    }

    #[test]
    fn the_curve_in_words() {
        const ROUNDS: (&str, &str) = ("round", "rounds");
        let show = |value: f64| format!("{value:.1}");
        assert_eq!(in_words("Loss", &[], ROUNDS, show), "Loss: nothing measured yet.");
        assert_eq!(in_words("Loss", &[(1.0, 2.3)], ROUNDS, show), "Loss: 2.3 at round 1.");
        let text = in_words("Loss", &[(1.0, 2.3), (9.0, 0.4)], ROUNDS, show);
        assert!(text.starts_with("Loss: from 2.3 at round 1 to 0.4 at round 9."), "{text}");
    }
}
