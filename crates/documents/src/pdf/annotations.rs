//! Values of form fields, and people's notes on pages.

use std::collections::HashSet;
use std::rc::Rc;

use super::content::{Interpreter, Matrix, product, transformed};
use super::drawn::Glyph;
use super::file::{File, Refusal};
use super::object::{Dict, Object, Stream};
use super::pages::Page;
use super::strings::text_string;

/// Maximum number of annotations of one page.
const ANNOTATIONS: usize = 10_000;

/// Deepest nesting of fields.
const FIELDS: usize = 16;

/// Kinds of annotations with a separate comment text.
const COMMENTED: [&str; 12] = [
    "Text",
    "Highlight",
    "Underline",
    "Squiggly",
    "StrikeOut",
    "Square",
    "Circle",
    "Polygon",
    "Ink",
    "Line",
    "Caret",
    "Stamp",
];

/// Adds the visible text of annotations to the page's letters; returns the comments without a place on it.
pub(super) fn draw(interpreter: &mut Interpreter<'_>, page: &Page) -> Result<Vec<String>, Refusal> {
    let file = interpreter.file;
    let mut comments = Vec::new();
    for annotation in file
        .get_array(&page.dict, "Annots")
        .unwrap_or_default()
        .iter()
        .take(ANNOTATIONS)
    {
        let annotation = file.resolved(annotation);
        let Some(annotation) = annotation.dict() else { continue };
        let kind = file.get_name(annotation, "Subtype").unwrap_or_default();
        if kind == "Popup" || kind == "Link" {
            continue;
        }
        let before = interpreter.drawn.glyphs.len();
        if let Some(stream) = appearance(file, annotation) {
            let matrix = product(&placed(file, annotation, &stream), &page.matrix);
            interpreter.draw_form(&stream, &page.resources, matrix, &mut HashSet::new())?;
        }
        let is_drawn = interpreter.drawn.glyphs.len() > before;
        if kind == "Widget" && !is_drawn {
            if let Some(value) = value(file, annotation) {
                write(interpreter, page, annotation, &value)?;
            }
        } else if kind == "FreeText" && !is_drawn {
            if let Some(text) = text_of(file, annotation, "Contents") {
                write(interpreter, page, annotation, &text)?;
            }
        } else if COMMENTED.contains(&kind.as_str()) {
            comments.extend(text_of(file, annotation, "Contents"));
        }
    }
    Ok(comments)
}

fn text_of(file: &File, dict: &Dict, key: &str) -> Option<String> {
    let text = file.get(dict, key)?.text().map(text_string)?;
    (!text.trim().is_empty()).then_some(text)
}

/// The form that draws an annotation in its current state.
fn appearance(file: &File, annotation: &Dict) -> Option<Rc<Stream>> {
    let looks = file.get_dict(annotation, "AP")?;
    match file.get(&looks, "N")? {
        Object::Stream(stream) => Some(stream),
        Object::Dict(states) => {
            let state = file.get_name(annotation, "AS")?;
            match file.get(&states, &state)? {
                Object::Stream(stream) => Some(stream),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The matrix from an appearance's space to the page's (ISO 32000-1, 12.5.5).
fn placed(file: &File, annotation: &Dict, stream: &Stream) -> Matrix {
    let corners = |numbers: Option<Vec<f64>>| match numbers.as_deref() {
        Some([a, b, c, d]) => [a.min(*c), b.min(*d), a.max(*c), b.max(*d)],
        _ => [0.0, 0.0, 1.0, 1.0],
    };
    let goal = corners(file.get_numbers(annotation, "Rect"));
    let from = corners(file.get_numbers(&stream.dict, "BBox"));
    let own = match file.get_numbers(&stream.dict, "Matrix").as_deref() {
        Some([a, b, c, d, e, f]) => [*a, *b, *c, *d, *e, *f],
        _ => super::content::IDENTITY,
    };
    let at = |x: f64, y: f64| transformed(&own, x, y);
    let points = [
        at(from[0], from[1]),
        at(from[2], from[1]),
        at(from[0], from[3]),
        at(from[2], from[3]),
    ];
    let least = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
    let (left, right) = (least(|point| point.0), most(|point| point.0));
    let (bottom, top) = (least(|point| point.1), most(|point| point.1));
    let ratio = |goal: f64, from: f64| if from > 0.0 { goal / from } else { 1.0 };
    let (x, y) = (
        ratio(goal[2] - goal[0], right - left),
        ratio(goal[3] - goal[1], top - bottom),
    );
    [x, 0.0, 0.0, y, goal[0] - left * x, goal[1] - bottom * y]
}

/// The text value of a field, its own or its parent's.
fn value(file: &File, annotation: &Dict) -> Option<String> {
    let mut field = annotation.clone();
    for _ in 0..FIELDS {
        match file.get(&field, "V") {
            Some(Object::Text(text)) => return Some(text_string(&text)).filter(|text| !text.trim().is_empty()),
            Some(Object::Array(items)) => {
                let items = items
                    .iter()
                    .filter_map(|item| file.resolved(item).text().map(text_string));
                return Some(items.collect::<Vec<_>>().join(", "));
            }
            Some(_) => return None,
            None => field = file.get_dict(&field, "Parent")?,
        }
    }
    None
}

/// Places text without an appearance at its annotation.
fn write(interpreter: &mut Interpreter<'_>, page: &Page, annotation: &Dict, text: &str) -> Result<(), Refusal> {
    let rectangle = interpreter.file.get_numbers(annotation, "Rect").unwrap_or_default();
    let [a, b, c, d] = rectangle[..] else { return Ok(()) };
    let lines: Vec<&str> = text.lines().collect();
    let height = (d - b).abs().max(1.0);
    let size = (height / lines.len().max(1) as f64 * 0.8).min(12.0);
    for (at, line) in lines.iter().enumerate() {
        interpreter.spend(line.len() as u64 + 1)?;
        let from_top = if lines.len() == 1 {
            (height + size) / 2.0
        } else {
            size * (at as f64 + 1.0)
        };
        let mut x = a.min(c) as f32;
        let point = product(
            &[1.0, 0.0, 0.0, 1.0, f64::from(x), b.max(d) - from_top + size * 0.2],
            &page.matrix,
        );
        x = point[4] as f32;
        for letter in line.chars() {
            let width = size as f32 * super::encoding::width_of("Helvetica", letter) / 1000.0;
            interpreter.drawn.glyphs.push(Glyph {
                left: x,
                right: x + width,
                base: point[5] as f32,
                size: size as f32,
                turn: 0,
                text: letter.to_string().into(),
            });
            x += width;
        }
    }
    Ok(())
}
