//! Bars made of parts.

use riffle_engine::human_bytes;

use super::Picture;
use super::axis::Axis;
use super::canvas::{Anchor, Area, Canvas, MARGIN, head_height, text_width};
use super::line_chart::fitted;
use crate::numbers::short;

/// Series colours of the parts; the fourth colour belongs to the mark.
const COLOURS: [usize; 7] = [0, 1, 2, 3, 5, 6, 7];
const PLOT_HEIGHT: f64 = 280.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 24.0;

/// Bars of bytes with stacked parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    /// Subject of the picture.
    pub title: String,
    /// Conditions of the measurement.
    pub subtitle: String,
    /// Meaning of the bars.
    pub x_label: String,
    /// Names of the parts, from the foot of a bar upwards.
    pub parts: Vec<String>,
    /// Meaning of the mark across a bar; `None` if bars have no mark.
    pub mark: Option<String>,
    /// The bars, from the left.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Name of the bar on the axis.
    pub name: String,
    /// Bytes of each part.
    pub bytes: Vec<u64>,
    /// Bytes of the mark.
    pub mark_bytes: Option<u64>,
}

impl Bar {
    fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

/// Edges and bar widths on the sheet, and the axis of bytes.
struct Plot {
    width: f64,
    top: f64,
    bottom: f64,
    /// Distance between the middles of neighbouring bars.
    slot: f64,
    /// Width of a bar.
    thick: f64,
    axis: Axis,
    ticks: Vec<f64>,
    unit: f64,
    unit_name: &'static str,
}

impl Stack {
    /// Draws the bars without parts that no bar has.
    pub fn draw(&self) -> Picture {
        let plot = Plot::new(self);
        let held = |part: &usize| {
            let mut bars = self.bars.iter();
            bars.any(|bar| bar.bytes.get(*part).is_some_and(|bytes| *bytes > 0))
        };
        let parts: Vec<usize> = (0..self.parts.len()).filter(held).collect();
        let entries = parts.len() + usize::from(self.mark.is_some());
        let mut canvas = Canvas::new(plot.width, plot.bottom + 56.0 + 20.0 * entries as f64);
        canvas.head(&self.title, &self.subtitle);
        plot.draw_scale(&mut canvas);
        for (place, bar) in self.bars.iter().enumerate() {
            let centre = LEFT + plot.slot * (place as f64 + 0.5);
            self.draw_parts(&mut canvas, &plot, bar, &parts, centre);
            plot.draw_totals(&mut canvas, bar, centre);
        }
        canvas.line("axis", (LEFT, plot.bottom), (plot.width - RIGHT, plot.bottom), "");
        let (middle, below) = ((LEFT + plot.width - RIGHT) / 2.0, plot.bottom + 38.0);
        canvas.text("quiet", middle, below, Anchor::Middle, &self.x_label);
        self.draw_legend(&mut canvas, &plot, &parts);
        canvas.finish(self.alt())
    }

    fn draw_parts(&self, canvas: &mut Canvas, plot: &Plot, bar: &Bar, parts: &[usize], centre: f64) {
        let mut below = 0;
        for &part in parts {
            let bytes = bar.bytes.get(part).copied().unwrap_or(0);
            let (foot, head) = (plot.y_of(below), plot.y_of(below + bytes));
            below += bytes;
            if foot - head < 0.1 {
                continue;
            }
            // A gap between parts separates them without colours.
            let gap = if foot - head > 3.0 { 1.0 } else { 0.0 };
            let area = Area {
                x: centre - plot.thick / 2.0,
                y: head,
                width: plot.thick,
                height: foot - head - gap,
            };
            let tip = format!("{}, {}: {}", bar.name, self.parts[part], human_bytes(bytes));
            canvas.rectangle(&colour(part), area, &tip);
        }
    }

    /// The legend in the order of the bars, from the top.
    fn draw_legend(&self, canvas: &mut Canvas, plot: &Plot, parts: &[usize]) {
        let mut y = plot.bottom + 60.0;
        let name = |canvas: &mut Canvas, y: f64, name: &str| {
            let name = fitted(name, plot.width - LEFT - 32.0 - MARGIN);
            canvas.text("", LEFT + 32.0, y, Anchor::Start, &name);
        };
        if let Some(mark) = &self.mark {
            canvas.line("curve s4", (LEFT, y - 4.0), (LEFT + 22.0, y - 4.0), "");
            name(canvas, y, mark);
            y += 20.0;
        }
        for part in parts.iter().rev() {
            let area = Area {
                x: LEFT,
                y: y - 11.0,
                width: 22.0,
                height: 13.0,
            };
            canvas.rectangle(&colour(*part), area, "");
            name(canvas, y, &self.parts[*part]);
            y += 20.0;
        }
    }

    fn alt(&self) -> String {
        let bars = self.bars.iter().map(|bar| {
            let parts = self.parts.iter().zip(&bar.bytes).filter(|(_, bytes)| **bytes > 0);
            let mut parts: Vec<String> = parts
                .map(|(part, bytes)| format!("{part} {}", human_bytes(*bytes)))
                .collect();
            if let (Some(mark), Some(bytes)) = (&self.mark, bar.mark_bytes) {
                parts.push(format!("{mark} {}", human_bytes(bytes)));
            }
            format!("{}: {}", bar.name, parts.join(", "))
        });
        let bars = bars.collect::<Vec<_>>().join("; ");
        format!("{}. {} By {}. {bars}", self.title, self.subtitle, self.x_label)
    }
}

impl Plot {
    fn new(stack: &Stack) -> Self {
        let names = stack.bars.iter().map(|bar| text_width(&bar.name));
        let slot = (names.fold(0.0, f64::max) + 14.0).max(76.0);
        let width = (LEFT + slot * stack.bars.len() as f64 + RIGHT).max(520.0);
        let slot = (width - LEFT - RIGHT) / stack.bars.len().max(1) as f64;
        let heights = stack
            .bars
            .iter()
            .map(|bar| bar.total().max(bar.mark_bytes.unwrap_or(0)));
        let most = heights.max().unwrap_or(0);
        let (unit, unit_name) = unit_of(most);
        let (axis, ticks) = Axis::with_zero([0.0, most as f64 / unit].into_iter(), f64::INFINITY).with_ticks();
        let top = head_height(&stack.title, &stack.subtitle, width) + 8.0;
        Self {
            width,
            top,
            bottom: top + PLOT_HEIGHT,
            slot,
            thick: (slot * 0.6).min(84.0),
            axis,
            ticks,
            unit,
            unit_name,
        }
    }

    fn y_of(&self, bytes: u64) -> f64 {
        self.y_of_units(bytes as f64 / self.unit)
    }

    fn y_of_units(&self, value: f64) -> f64 {
        self.bottom - self.axis.place(value) * PLOT_HEIGHT
    }

    fn draw_scale(&self, canvas: &mut Canvas) {
        for tick in &self.ticks {
            let y = self.y_of_units(*tick);
            canvas.line("grid", (LEFT, y), (self.width - RIGHT, y), "");
            canvas.text("", LEFT - 8.0, y + 4.0, Anchor::End, &short(*tick));
        }
        canvas.upright(MARGIN + 6.0, (self.top + self.bottom) / 2.0, self.unit_name);
    }

    /// A bar's mark, its total and its name.
    fn draw_totals(&self, canvas: &mut Canvas, bar: &Bar, centre: f64) {
        let marked = bar.mark_bytes.map_or(self.bottom, |bytes| self.y_of(bytes));
        if bar.mark_bytes.is_some() {
            let reach = self.thick * 0.65;
            canvas.line("curve s4", (centre - reach, marked), (centre + reach, marked), "");
        }
        let head = self.y_of(bar.total());
        // The total is above its bar and avoids the mark.
        let base = if (head - 12.0..head + 4.0).contains(&marked) {
            marked - 6.0
        } else {
            head - 6.0
        };
        canvas.text("strong", centre, base, Anchor::Middle, &human_bytes(bar.total()));
        canvas.text("", centre, self.bottom + 18.0, Anchor::Middle, &bar.name);
    }
}

/// The class of a part's colour.
fn colour(part: usize) -> String {
    format!("f{}", COLOURS[part % COLOURS.len()])
}

fn unit_of(most: u64) -> (f64, &'static str) {
    match most {
        0..1_048_576 => (1024.0, "KiB"),
        1_048_576..1_073_741_824 => (1024.0 * 1024.0, "MiB"),
        _ => (1024.0 * 1024.0 * 1024.0, "GiB"),
    }
}
