//! Values against a length or a share, with a line for each series.

use super::Picture;
use super::axis::Axis;
use super::canvas::{Anchor, Canvas, MARGIN, head_height, number, text_width};
use super::style::{DASHES, SERIES};
use crate::numbers::{percent, short, tokens};

const WIDTH: f64 = 680.0;
const PLOT_HEIGHT: f64 = 300.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 24.0;
/// Smallest ratio of the highest to the lowest value for a logarithmic axis.
const FAR_APART: f64 = 20.0;
const LENGTHS_FAR_APART: f64 = 6.0;

/// Lines over lengths in tokens, or over shares.
#[derive(Debug, Clone, PartialEq)]
pub struct LineChart {
    /// Subject of the picture.
    pub title: String,
    /// Conditions of the measurement.
    pub subtitle: String,
    /// Quantity on the x axis.
    pub x_label: String,
    /// Quantity on the y axis, with a unit.
    pub y_label: String,
    /// Scale of the axes.
    pub scale: Scale,
    /// The lines.
    pub series: Vec<Series>,
}

/// Scales of a line chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Values from zero. Values or lengths far apart have a logarithmic axis.
    Rates,
    /// Values from zero and lengths, both linear.
    Shares,
    /// Values from lowest to highest. Lengths far apart have a logarithmic axis.
    Values,
    /// Scores against shares, both from 0 to 1 in percent. Shares far apart have a logarithmic axis.
    ScoreOverShare,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name of the line in the legend.
    pub name: String,
    /// (tokens or share, value), in ascending order of the first.
    pub points: Vec<(f64, f64)>,
}

/// Axes and edges of the chart on the sheet.
struct Plot {
    x_axis: Axis,
    y_axis: Axis,
    y_ticks: Vec<f64>,
    /// Lengths of all points.
    lengths: Vec<f64>,
    top: f64,
    bottom: f64,
}

impl LineChart {
    /// Draws the lines without values that are not finite.
    pub fn draw(&self) -> Picture {
        let plot = Plot::new(self);
        let names: Vec<String> = self.series.iter().map(|series| series.name.clone()).collect();
        let legend = legend_rows(&names, WIDTH - LEFT - RIGHT);
        let mut canvas = Canvas::new(WIDTH, plot.bottom + 62.0 + 20.0 * legend.len() as f64);
        canvas.head(&self.title, &self.subtitle);
        plot.draw_axes(&mut canvas, self);
        for (place, series) in self.series.iter().enumerate() {
            series.draw(&mut canvas, &plot, place, self.scale);
        }
        for (row, entries) in legend.iter().enumerate() {
            let y = plot.bottom + 60.0 + 20.0 * row as f64;
            for (place, x) in entries {
                draw_entry(&mut canvas, *place, (LEFT + x, y), &names[*place]);
            }
        }
        canvas.finish(self.alt())
    }

    fn alt(&self) -> String {
        let series = self.series.iter().map(|series| {
            let points = series.points.iter().step_by(series.points.len().div_ceil(12).max(1));
            let points = points.map(|(x, y)| format!("{} at {}", self.scale.y_text(*y), self.scale.x_text(*x)));
            format!("{}: {}", series.name, points.collect::<Vec<_>>().join(", "))
        });
        format!(
            "{}. {} {} against {}. {}",
            self.title,
            self.subtitle,
            self.y_label,
            self.x_label,
            series.collect::<Vec<_>>().join("; ")
        )
    }
}

impl Scale {
    /// True if the x axis counts tokens; otherwise it shows shares.
    fn counts_tokens(self) -> bool {
        !matches!(self, Self::ScoreOverShare)
    }

    fn x_text(self, x: f64) -> String {
        if self.counts_tokens() { tokens(x) } else { percent(x) }
    }

    fn y_text(self, y: f64) -> String {
        match self {
            Self::ScoreOverShare => percent(y),
            Self::Rates | Self::Shares | Self::Values => short(y),
        }
    }
}

impl Series {
    /// The points whose length and value are finite.
    fn shown(&self) -> impl Iterator<Item = &(f64, f64)> + Clone {
        self.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite())
    }

    fn draw(&self, canvas: &mut Canvas, plot: &Plot, place: usize, scale: Scale) {
        let style = place % SERIES;
        let path: Vec<String> = self
            .shown()
            .map(|(x, y)| format!("{} {}", number(plot.x_of(*x)), number(plot.y_of(*y))))
            .collect();
        if path.len() > 1 {
            let data = format!("M{}", path.join("L"));
            canvas.path(&format!("curve s{style}"), &data, DASHES[style], "");
        }
        // Dense lines need only some markers to be distinguishable.
        let every = path.len().div_ceil(12).max(1);
        for (x, y) in self.shown().step_by(every) {
            let unit = if scale.counts_tokens() { " tokens" } else { "" };
            let tip = format!("{}, {}{unit}: {}", self.name, scale.x_text(*x), scale.y_text(*y));
            canvas.marker(place, plot.x_of(*x), plot.y_of(*y), &tip);
        }
    }
}

impl Plot {
    fn new(chart: &LineChart) -> Self {
        let points = || chart.series.iter().flat_map(Series::shown);
        let (xs, ys) = (points().map(|(x, _)| *x), points().map(|(_, y)| *y));
        let x_axis = match chart.scale {
            Scale::Shares => Axis::with_zero(xs.clone(), f64::INFINITY),
            Scale::Rates | Scale::Values => Axis::between(xs.clone(), LENGTHS_FAR_APART),
            Scale::ScoreOverShare => Axis::with_zero(xs.clone().chain([1.0]), FAR_APART).with_ticks().0,
        };
        let y_axis = match chart.scale {
            Scale::Rates => Axis::with_zero(ys, FAR_APART),
            Scale::Shares => Axis::with_zero(ys, f64::INFINITY),
            Scale::Values => Axis::between(ys, f64::INFINITY),
            Scale::ScoreOverShare => Axis::with_zero([0.0, 1.0].into_iter(), f64::INFINITY),
        };
        let (y_axis, y_ticks) = y_axis.with_ticks();
        let top = head_height(&chart.title, &chart.subtitle, WIDTH);
        Self {
            x_axis,
            y_axis,
            y_ticks,
            lengths: xs.collect(),
            top,
            bottom: top + PLOT_HEIGHT,
        }
    }

    fn x_of(&self, x: f64) -> f64 {
        LEFT + 10.0 + self.x_axis.place(x) * (WIDTH - LEFT - RIGHT - 20.0)
    }

    fn y_of(&self, y: f64) -> f64 {
        self.bottom - self.y_axis.place(y) * PLOT_HEIGHT
    }

    fn draw_axes(&self, canvas: &mut Canvas, chart: &LineChart) {
        let bottom = self.bottom;
        for tick in &self.y_ticks {
            let y = self.y_of(*tick);
            canvas.line("grid", (LEFT, y), (WIDTH - RIGHT, y), "");
            canvas.text("", LEFT - 8.0, y + 4.0, Anchor::End, &chart.scale.y_text(*tick));
        }
        canvas.line("axis", (LEFT, bottom), (WIDTH - RIGHT, bottom), "");
        let mut free_from = f64::NEG_INFINITY;
        let ticks = if chart.scale.counts_tokens() {
            x_ticks(self.lengths.clone(), &self.x_axis)
        } else {
            self.x_axis.with_ticks().1
        };
        for tick in ticks {
            let (x, name) = (self.x_of(tick), chart.scale.x_text(tick));
            canvas.line("axis", (x, bottom), (x, bottom + 5.0), "");
            let half = text_width(&name) / 2.0;
            if x - half >= free_from {
                canvas.text("", x, bottom + 19.0, Anchor::Middle, &name);
                free_from = x + half + 6.0;
            }
        }
        let (middle, below) = ((LEFT + WIDTH - RIGHT) / 2.0, bottom + 39.0);
        let label = if chart.scale.counts_tokens() {
            chart.x_label.clone()
        } else {
            format!("{}{}", chart.x_label, scale_of(&self.x_axis))
        };
        canvas.text("quiet", middle, below, Anchor::Middle, &label);
        let label = format!("{}{}", chart.y_label, scale_of(&self.y_axis));
        canvas.upright(MARGIN + 6.0, (self.top + bottom) / 2.0, &label);
    }
}

/// The end of an axis' label.
fn scale_of(axis: &Axis) -> &'static str {
    if axis.is_logarithmic() { ", logarithmic" } else { "" }
}

/// An entry of the legend: a piece of the line with its marker, and the name.
fn draw_entry(canvas: &mut Canvas, place: usize, (x, y): (f64, f64), name: &str) {
    let style = place % SERIES;
    let line = format!("M{} {}h34", number(x), number(y - 4.0));
    canvas.path(&format!("curve s{style}"), &line, DASHES[style], "");
    canvas.marker(place, x + 17.0, y - 4.0, "");
    let name = fitted(name, WIDTH - x - 42.0 - MARGIN);
    canvas.text("", x + 42.0, y, Anchor::Start, &name);
}

/// Lengths with a label on the axis: the measured lengths, or even steps if there are many.
fn x_ticks(mut lengths: Vec<f64>, axis: &Axis) -> Vec<f64> {
    lengths.sort_by(f64::total_cmp);
    lengths.dedup();
    if lengths.len() <= 10 {
        return lengths;
    }
    let (first, last) = (lengths[0], lengths[lengths.len() - 1]);
    if axis.is_logarithmic() {
        let powers = (0..64).map(|power| 2f64.powi(power));
        return powers.filter(|length| (first..=last).contains(length)).collect();
    }
    // Powers of two, so that the steps have short names.
    let step = 2f64.powf(((last - first) / 6.0).log2().ceil());
    let steps = (0..).map(|n| n as f64 * step).take_while(|length| *length <= last);
    steps.filter(|length| *length >= first).collect()
}

/// The legend's rows: index and x of each entry.
fn legend_rows(names: &[String], width: f64) -> Vec<Vec<(usize, f64)>> {
    let mut rows: Vec<Vec<(usize, f64)>> = Vec::new();
    let mut x = 0.0;
    for (place, name) in names.iter().enumerate() {
        let entry = 42.0 + text_width(name) + 18.0;
        match rows.last_mut() {
            Some(row) if x + entry <= width => row.push((place, x)),
            _ => {
                rows.push(vec![(place, 0.0)]);
                x = 0.0;
            }
        }
        x += entry;
    }
    rows
}

/// The text, or as much of it as fits.
pub(super) fn fitted(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for letter in text.chars() {
        if text_width(&short) + 24.0 > width {
            break;
        }
        short.push(letter);
    }
    short + "…"
}
