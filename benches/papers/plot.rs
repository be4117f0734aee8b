//! Pictures of what was measured, as SVG. They show numbers that a table beside them has; nothing is computed here.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

const SIZE: (u32, u32) = (760, 440);
const FONT: &str = "sans-serif";
/// Told apart by those who see no red or green (Okabe and Ito).
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(240, 228, 66),
    RGBColor(90, 90, 90),
];
const GRID: RGBColor = RGBColor(220, 220, 220);
/// Of a group of bars, from 0 to 1; the rest is the gap to the next.
const GROUP_WIDTH: f64 = 0.8;
/// The highest value's distance from the upper edge.
const HEADROOM: f64 = 1.12;

/// Title and axis labels of a picture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Labels<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
}

/// Points of one name, by their x.
pub(crate) type PlotLine = (String, Vec<(f64, f64)>);
/// A name and one value for each group.
pub(crate) type Bars = (String, Vec<f64>);

/// Scale of the value axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AxisScale {
    /// From 0.
    Linear,
    /// From 1, each step upwards being a multiple.
    Logarithmic,
}

/// Draws lines into a file.
pub(crate) fn lines(path: &Path, labels: Labels<'_>, lines: &[PlotLine]) -> Result<()> {
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let (left, right) = bounds(points().map(|(x, _)| x));
    let (_, top) = bounds(points().map(|(_, y)| y));
    draw(path, |root| {
        let mut chart = builder(root, labels.title).build_cartesian_2d(left..right, 0.0..top * HEADROOM)?;
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .x_label_formatter(&plain)
            .y_label_formatter(&plain);
        mesh.x_desc(labels.x).y_desc(labels.y).draw()?;
        for (index, (name, points)) in lines.iter().enumerate() {
            let color = COLORS[index % COLORS.len()];
            let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
            let key = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2));
            chart.draw_series(line)?.label(name).legend(key);
        }
        let heights = lines.iter().filter_map(|(_, points)| Some((points.first()?.1, points.last()?.1)));
        legend(&mut chart, heights)
    })
}

/// Draws groups of bars into a file, one bar of each series in each group.
pub(crate) fn bars(
    path: &Path,
    labels: Labels<'_>,
    groups: &[String],
    series: &[Bars],
    scale: AxisScale,
) -> Result<()> {
    let (_, top) = bounds(series.iter().flat_map(|(_, values)| values.iter().copied()));
    let sides = -0.5..groups.len() as f64 - 0.5;
    draw(path, |root| {
        let mut builder = builder(root, labels.title);
        match scale {
            AxisScale::Linear => {
                let chart = builder.build_cartesian_2d(sides, 0.0..top * HEADROOM)?;
                draw_bars(chart, labels, groups, series, 0.0)
            }
            AxisScale::Logarithmic => {
                let chart = builder.build_cartesian_2d(sides, (1.0..top * 2.0).log_scale())?;
                draw_bars(chart, labels, groups, series, 1.0)
            }
        }
    })
}

fn draw_bars<'a, 'b: 'a, Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
    mut chart: Chart<'a, 'b, Y>,
    labels: Labels<'_>,
    groups: &[String],
    series: &[Bars],
    foot: f64,
) -> Result<()> {
    let name = |x: &f64| match (x - x.round()).abs() < 1e-6 && *x > -0.1 {
        true => groups.get(x.round() as usize).cloned().unwrap_or_default(),
        false => String::new(),
    };
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().light_line_style(TRANSPARENT).bold_line_style(GRID);
    mesh.x_labels(2 * groups.len() + 1).x_label_formatter(&name).y_label_formatter(&plain);
    mesh.x_desc(labels.x).y_desc(labels.y).draw()?;
    let width = GROUP_WIDTH / series.len() as f64;
    for (index, (name, values)) in series.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        let bar = |(group, value): (usize, &f64)| {
            let from = group as f64 - GROUP_WIDTH / 2.0 + index as f64 * width;
            Rectangle::new([(from, foot), (from + 0.95 * width, *value)], color.filled())
        };
        let key = move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled());
        chart.draw_series(values.iter().enumerate().map(bar))?.label(name).legend(key);
    }
    legend(&mut chart, series.iter().filter_map(|(_, values)| Some((*values.first()?, *values.last()?))))
}

type Chart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>;

/// Where there is less in the way: `heights` are those of each series at the left and at the right.
fn legend<'a, 'b: 'a, Y: Ranged<ValueType = f64>>(
    chart: &mut Chart<'a, 'b, Y>,
    heights: impl Iterator<Item = (f64, f64)>,
) -> Result<()> {
    let (left, right) = heights.fold((0.0_f64, 0.0_f64), |high, of| (high.0.max(of.0), high.1.max(of.1)));
    let corner = if left < right { SeriesLabelPosition::UpperLeft } else { SeriesLabelPosition::UpperRight };
    let mut key = chart.configure_series_labels();
    key.position(corner).background_style(WHITE.mix(0.85)).border_style(BLACK);
    Ok(key.draw()?)
}

/// Without digits that say nothing.
fn plain(value: &f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn builder<'a, 'b>(root: &'a Area<'b>, title: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(root);
    builder.caption(title, (FONT, 18)).margin(12).x_label_area_size(44).y_label_area_size(60);
    builder
}

fn draw(path: &Path, paint: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<()> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        paint(&root)?;
        root.present()?;
    }
    std::fs::write(path, text).with_context(|| format!("{}", path.display()))?;
    println!("Picture: {}", path.display());
    Ok(())
}

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}
