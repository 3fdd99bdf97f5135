//! Bars made of parts.

use super::Picture;
use super::axis::Axis;
use super::canvas::{Anchor, Canvas, MARGIN, head_height, text_width};
use super::line_chart::fitted;

/// Series colours of the parts; the fourth is that of the mark.
const COLOURS: [usize; 7] = [0, 1, 2, 3, 5, 6, 7];
const PLOT_HEIGHT: f64 = 280.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 24.0;

/// Bars of bytes, part upon part.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    /// What is shown.
    pub title: String,
    /// Under what conditions.
    pub subtitle: String,
    /// What the bars are.
    pub x_label: String,
    /// Names of the parts, from the foot of a bar upwards.
    pub parts: Vec<String>,
    /// What the mark across a bar stands for, where bars have one.
    pub mark: Option<String>,
    /// The bars, from the left.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Its name on the axis.
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

impl Stack {
    /// Draws the bars; parts that no bar has are left out.
    pub fn draw(&self) -> Picture {
        let names = self.bars.iter().map(|bar| text_width(&bar.name));
        let slot = (names.fold(0.0, f64::max) + 14.0).max(76.0);
        let width = (LEFT + slot * self.bars.len() as f64 + RIGHT).max(520.0);
        let slot = (width - LEFT - RIGHT) / self.bars.len().max(1) as f64;
        let thick = (slot * 0.6).min(84.0);
        let most = self
            .bars
            .iter()
            .map(|bar| bar.total().max(bar.mark_bytes.unwrap_or(0)))
            .max()
            .unwrap_or(0);
        let (unit, unit_name) = unit_of(most);
        let in_unit = |bytes: u64| bytes as f64 / unit;
        let (axis, ticks) = Axis::of([0.0, in_unit(most)].into_iter(), f64::INFINITY).with_ticks();
        let parts: Vec<usize> = (0..self.parts.len())
            .filter(|part| {
                self.bars
                    .iter()
                    .any(|bar| bar.bytes.get(*part).is_some_and(|bytes| *bytes > 0))
            })
            .collect();
        let entries = parts.len() + usize::from(self.mark.is_some());
        let top = head_height(&self.title, &self.subtitle, width) + 8.0;
        let bottom = top + PLOT_HEIGHT;
        let mut canvas = Canvas::new(width, bottom + 56.0 + 20.0 * entries as f64);
        canvas.head(&self.title, &self.subtitle);
        let y_of = |value: f64| bottom - axis.place(value) * PLOT_HEIGHT;
        for tick in &ticks {
            let y = y_of(*tick);
            canvas.line("grid", (LEFT, y), (width - RIGHT, y), "");
            canvas.text("", LEFT - 8.0, y + 4.0, Anchor::End, &crate::numbers::short(*tick));
        }
        canvas.upright(MARGIN + 6.0, (top + bottom) / 2.0, unit_name);
        for (place, bar) in self.bars.iter().enumerate() {
            let centre = LEFT + slot * (place as f64 + 0.5);
            let mut below = 0;
            for &part in &parts {
                let bytes = bar.bytes.get(part).copied().unwrap_or(0);
                let (foot, head) = (y_of(in_unit(below)), y_of(in_unit(below + bytes)));
                below += bytes;
                let tip = format!(
                    "{}, {}: {}",
                    bar.name,
                    self.parts[part],
                    riffle_engine::human_bytes(bytes)
                );
                if foot - head >= 0.1 {
                    // A line of paper between parts tells them apart without their colours.
                    let gap = if foot - head > 3.0 { 1.0 } else { 0.0 };
                    let class = format!("f{}", COLOURS[part % COLOURS.len()]);
                    canvas.rectangle(&class, centre - thick / 2.0, head, thick, foot - head - gap, &tip);
                }
            }
            let marked = bar.mark_bytes.map_or(bottom, |bytes| y_of(in_unit(bytes)));
            if bar.mark_bytes.is_some() {
                canvas.line(
                    "curve s4",
                    (centre - thick * 0.65, marked),
                    (centre + thick * 0.65, marked),
                    "",
                );
            }
            let head = y_of(in_unit(bar.total()));
            // The total stands above its bar, out of the way of the mark.
            let base = if (head - 12.0..head + 4.0).contains(&marked) {
                marked - 6.0
            } else {
                head - 6.0
            };
            canvas.text(
                "strong",
                centre,
                base,
                Anchor::Middle,
                &riffle_engine::human_bytes(bar.total()),
            );
            canvas.text("", centre, bottom + 18.0, Anchor::Middle, &bar.name);
        }
        canvas.line("axis", (LEFT, bottom), (width - RIGHT, bottom), "");
        canvas.text(
            "quiet",
            (LEFT + width - RIGHT) / 2.0,
            bottom + 38.0,
            Anchor::Middle,
            &self.x_label,
        );
        // The legend in the order of the bars, from the top.
        let mut y = bottom + 60.0;
        if let Some(mark) = &self.mark {
            canvas.line("curve s4", (LEFT, y - 4.0), (LEFT + 22.0, y - 4.0), "");
            canvas.text(
                "",
                LEFT + 32.0,
                y,
                Anchor::Start,
                &fitted(mark, width - LEFT - 32.0 - MARGIN),
            );
            y += 20.0;
        }
        for part in parts.iter().rev() {
            canvas.rectangle(
                &format!("f{}", COLOURS[part % COLOURS.len()]),
                LEFT,
                y - 11.0,
                22.0,
                13.0,
                "",
            );
            let name = fitted(&self.parts[*part], width - LEFT - 32.0 - MARGIN);
            canvas.text("", LEFT + 32.0, y, Anchor::Start, &name);
            y += 20.0;
        }
        canvas.finish(self.alt())
    }

    fn alt(&self) -> String {
        let bars = self.bars.iter().map(|bar| {
            let parts = self.parts.iter().zip(&bar.bytes).filter(|(_, bytes)| **bytes > 0);
            let mut parts: Vec<String> = parts
                .map(|(part, bytes)| format!("{part} {}", riffle_engine::human_bytes(*bytes)))
                .collect();
            if let (Some(mark), Some(bytes)) = (&self.mark, bar.mark_bytes) {
                parts.push(format!("{mark} {}", riffle_engine::human_bytes(bytes)));
            }
            format!("{}: {}", bar.name, parts.join(", "))
        });
        let bars = bars.collect::<Vec<_>>().join("; ");
        format!("{}. {} By {}. {bars}", self.title, self.subtitle, self.x_label)
    }
}

fn unit_of(most: u64) -> (f64, &'static str) {
    match most {
        0..1_048_576 => (1024.0, "KiB"),
        1_048_576..1_073_741_824 => (1024.0 * 1024.0, "MiB"),
        _ => (1024.0 * 1024.0 * 1024.0, "GiB"),
    }
}
