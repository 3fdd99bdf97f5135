//! A picture of a needle test: document length × depth, the share of exact answers in each cell.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::{EvalError, NeedleAnswer};

const CELL_WIDTH: i32 = 92;
const CELL_HEIGHT: i32 = 34;
const LEFT: i32 = 84;
const TOP: i32 = 64;
const BOTTOM: i32 = 92;

/// Exact answers and questions in a cell, by document length and needle number (0 is the shallowest).
type Cells = BTreeMap<(usize, usize), (usize, usize)>;

/// Draws `answers` as an SVG heat map; each cell says how many of its questions were answered exactly.
/// `depths` is how many needles each document has; answers come in the order [`crate::needle`] gives them.
///
/// # Errors
/// [`EvalError::Option`] without answers, [`EvalError::File`] when the picture cannot be written.
pub fn draw_needle_map(answers: &[NeedleAnswer], depths: usize, title: &str, path: &Path) -> Result<(), EvalError> {
    if answers.is_empty() || depths == 0 {
        return Err(EvalError::Option(
            "no needles were asked for: nothing to draw".to_owned(),
        ));
    }
    let mut cells = Cells::new();
    for (index, answer) in answers.iter().enumerate() {
        let cell = cells.entry((answer.context_tokens, index % depths)).or_default();
        cell.0 += usize::from(answer.correct);
        cell.1 += 1;
    }
    draw(&cells, depths, title, path).map_err(|error| EvalError::File {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

fn draw(cells: &Cells, depths: usize, title: &str, path: &Path) -> Result<(), Box<dyn Error>> {
    let mut lengths: Vec<usize> = cells.keys().map(|&(length, _)| length).collect();
    lengths.dedup();
    let right = LEFT + lengths.len() as i32 * CELL_WIDTH;
    let bottom = TOP + depths as i32 * CELL_HEIGHT;
    let width = (right + 24).max(420);
    let area = SVGBackend::new(path, (width as u32, (bottom + BOTTOM) as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let ink = RGBColor(0x22, 0x26, 0x2b);
    let text = |size: i32, horizontal, vertical, colour: RGBColor| {
        ("sans-serif", size)
            .into_font()
            .color(&colour)
            .pos(Pos::new(horizontal, vertical))
    };
    let label = text(13, HPos::Center, VPos::Center, ink);
    area.draw(&Text::new(
        title.to_owned(),
        (12, 12),
        text(16, HPos::Left, VPos::Top, ink),
    ))?;
    area.draw(&Text::new(
        "Needle's depth in the document (rows) × document length in tokens (columns)",
        (12, 36),
        text(12, HPos::Left, VPos::Top, ink),
    ))?;
    for depth in 0..depths {
        let share = 100.0 * (depth + 1) as f64 / (depths + 1) as f64;
        let y = TOP + depth as i32 * CELL_HEIGHT + CELL_HEIGHT / 2;
        area.draw(&Text::new(
            format!("{share:.0}% deep"),
            (LEFT - 10, y),
            text(13, HPos::Right, VPos::Center, ink),
        ))?;
    }
    for (column, length) in lengths.iter().enumerate() {
        let x = LEFT + column as i32 * CELL_WIDTH;
        for depth in 0..depths {
            let Some(&(correct, asked)) = cells.get(&(*length, depth)) else {
                continue;
            };
            let share = correct as f64 / asked as f64;
            let y = TOP + depth as i32 * CELL_HEIGHT;
            let corners = [(x + 1, y + 1), (x + CELL_WIDTH - 1, y + CELL_HEIGHT - 1)];
            area.draw(&Rectangle::new(corners, shade(share).filled()))?;
            let colour = if share > 0.55 { WHITE } else { ink };
            area.draw(&Text::new(
                format!("{correct}/{asked}"),
                (x + CELL_WIDTH / 2, y + CELL_HEIGHT / 2),
                text(13, HPos::Center, VPos::Center, colour),
            ))?;
        }
        area.draw(&Text::new(
            format!("{length}"),
            (x + CELL_WIDTH / 2, bottom + 16),
            label.clone(),
        ))?;
    }
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let x = LEFT + step * 56;
        area.draw(&Rectangle::new(
            [(x, bottom + 40), (x + 54, bottom + 54)],
            shade(share).filled(),
        ))?;
        let caption = format!("{:.0}%", share * 100.0);
        area.draw(&Text::new(caption, (x + 27, bottom + 64), label.clone()))?;
    }
    area.draw(&Text::new(
        "exact",
        (LEFT - 10, bottom + 47),
        text(13, HPos::Right, VPos::Center, ink),
    ))?;
    area.present()?;
    Ok(())
}

/// From pale (no answer right) to deep blue (all right): one hue, so that it reads without colour vision too.
fn shade(share: f64) -> RGBColor {
    let mix = |from: u8, to: u8| (f64::from(from) + (f64::from(to) - f64::from(from)) * share) as u8;
    RGBColor(mix(0xf3, 0x0b), mix(0xe4, 0x4f), mix(0xd7, 0x8c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_says_how_many_answers_were_exact() {
        let answer = |context_tokens, correct| NeedleAnswer {
            context_tokens,
            depth: 0.5,
            distance_tokens: 10,
            name: String::new(),
            expected: String::new(),
            answered: String::new(),
            correct,
        };
        // Two documents of 1000 tokens and one of 2000, two needles each.
        let answers = [
            answer(1000, true),
            answer(1000, false),
            answer(1000, true),
            answer(1000, true),
            answer(2000, false),
            answer(2000, true),
        ];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.svg");
        draw_needle_map(&answers, 2, "title", &path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for part in [
            "2/2", "1/2", "0/1", "1/1", "1000", "2000", "33% deep", "67% deep", "title",
        ] {
            assert!(svg.contains(part), "no {part}");
        }
        assert!(draw_needle_map(&[], 2, "title", &path).is_err());
    }
}
