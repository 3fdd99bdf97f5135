//! Runs the operators of content streams that place letters.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Instant;

use super::cmap::Predefined;
use super::drawn::{Drawn, Glyph};
use super::file::{File, Refusal};
use super::font::{Font, Letter};
use super::object::{ContentToken, Dict, Object, Parser, Stream};
use super::rules::Path;
use super::strings::text_string;
use crate::Limits;

/// Deepest nesting of forms.
const FORM_DEPTH: usize = 24;

/// Maximum number of operands and operators in total.
const PARTS: u64 = 100_000_000;

/// Cost of drawing a form, in operands.
const FORM_PARTS: u64 = 200;

/// Maximum number of letters of one page.
const LETTERS: usize = 1 << 20;

/// Bytes per letter until its page is text.
const LETTER_BYTES: u64 = 256;

/// Maximum number of saved states of a page, and deepest nesting of marked content.
const SAVED: usize = 4096;

/// Maximum number of operands of one operator.
const OPERANDS: usize = 1 << 16;

/// Operators between two checks of the clock.
const CLOCK: u64 = 1 << 16;

pub(super) type Matrix = [f64; 6];

pub(super) const IDENTITY: Matrix = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0];

/// The matrix that applies `first` and then `second`.
pub(super) fn product(first: &Matrix, second: &Matrix) -> Matrix {
    let [a, b, c, d, e, f] = *first;
    let [g, h, i, j, k, l] = *second;
    [
        a * g + b * i,
        a * h + b * j,
        c * g + d * i,
        c * h + d * j,
        e * g + f * i + k,
        e * h + f * j + l,
    ]
}

#[derive(Debug, Clone)]
struct State {
    matrix: Matrix,
    font: Option<Rc<Font>>,
    size: f64,
    letter_space: f64,
    word_space: f64,
    scale: f64,
    leading: f64,
    rise: f64,
}

/// Marked content with replacement text, which is assigned to its first letter.
#[derive(Debug)]
enum Mark {
    Plain,
    Actual(Option<Rc<str>>),
}

/// Runs the pages of a file.
#[derive(Debug)]
pub(super) struct Interpreter<'a> {
    pub(super) file: &'a File,
    predefined: Predefined,
    fonts: HashMap<u32, Rc<Font>>,
    /// Replaces missing fonts.
    missing: Option<Rc<Font>>,
    resources: HashMap<usize, Rc<Dict>>,
    parts: u64,
    most_letters: usize,
    deadline: Instant,
    pub(super) drawn: Drawn,
}

/// A point after a matrix.
pub(super) fn transformed([a, b, c, d, e, f]: &Matrix, x: f64, y: f64) -> (f64, f64) {
    (a * x + c * y + e, b * x + d * y + f)
}

/// A stream of operators with its named resources.
struct Frame<'r> {
    resources: &'r Dict,
    /// Fonts of this frame by their names.
    fonts: HashMap<String, Rc<Font>>,
    state: State,
    saved: Vec<State>,
    /// Number of states saved beyond the limit.
    unsaved: usize,
    text: Matrix,
    line: Matrix,
    marks: Vec<Mark>,
    path: Path,
}

impl<'a> Interpreter<'a> {
    pub(super) fn new(file: &'a File, limits: &Limits) -> Self {
        Self {
            file,
            predefined: Predefined::default(),
            fonts: HashMap::new(),
            missing: None,
            resources: HashMap::new(),
            parts: PARTS,
            most_letters: limits.kept(LETTERS, LETTER_BYTES),
            deadline: Instant::now() + limits.time,
            drawn: Drawn::default(),
        }
    }

    /// Runs operators; letters are added to `drawn`.
    pub(super) fn run(&mut self, bytes: &[u8], resources: &Dict, matrix: Matrix) -> Result<(), Refusal> {
        self.run_within(bytes, resources, matrix, &mut HashSet::new())
    }

    fn run_within(
        &mut self,
        bytes: &[u8],
        resources: &Dict,
        matrix: Matrix,
        open: &mut HashSet<usize>,
    ) -> Result<(), Refusal> {
        let mut frame = Frame::new(resources, matrix);
        let mut parser = Parser::of_content(bytes);
        let mut operands: Vec<Object> = Vec::new();
        while let Some(part) = parser.part() {
            self.spend(1)?;
            match part {
                ContentToken::Operand(object) if operands.len() < OPERANDS => operands.push(object),
                ContentToken::Operand(_) => {}
                ContentToken::Operator(b"BI") => {
                    self.see_picture(&frame.state.matrix);
                    skip_picture(&mut parser);
                    operands.clear();
                }
                ContentToken::Operator(b"Do") => {
                    let name = operands.last().and_then(Object::name);
                    if let Some(name) = name {
                        self.draw(&frame, name, open)?;
                    }
                    operands.clear();
                }
                ContentToken::Operator(word) => {
                    self.operate(&mut frame, word, &operands)?;
                    operands.clear();
                }
            }
        }
        Ok(())
    }

    pub(super) fn spend(&mut self, parts: u64) -> Result<(), Refusal> {
        let before = self.parts;
        self.parts = before.saturating_sub(parts);
        let is_late = before / CLOCK != self.parts / CLOCK && Instant::now() > self.deadline;
        if self.parts == 0 || self.drawn.is_full(self.most_letters) {
            Err(Refusal::TooMuchWork)
        } else if is_late {
            Err(Refusal::Late)
        } else {
            Ok(())
        }
    }

    /// Draws a form, or notes a picture.
    fn draw(&mut self, frame: &Frame<'_>, name: &str, open: &mut HashSet<usize>) -> Result<(), Refusal> {
        let objects = self.file.get_dict(frame.resources, "XObject").unwrap_or_default();
        let Some(Object::Stream(stream)) = self.file.get(&objects, name) else {
            return Ok(());
        };
        match self.file.get_name(&stream.dict, "Subtype").as_deref() {
            Some("Form") => self.draw_form(&stream, frame.resources, frame.state.matrix, open),
            Some("Image") => {
                self.see_picture(&frame.state.matrix);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn see_picture(&mut self, matrix: &Matrix) {
        let [a, b, c, d, ..] = *matrix;
        let area = (a * d - b * c).abs().max(f64::MIN_POSITIVE);
        self.drawn.picture_area = self.drawn.picture_area.max(area);
    }

    pub(super) fn draw_form(
        &mut self,
        stream: &Stream,
        outer: &Dict,
        matrix: Matrix,
        open: &mut HashSet<usize>,
    ) -> Result<(), Refusal> {
        self.spend(FORM_PARTS)?;
        let id = stream.data.start;
        // A form that draws itself would never end.
        if open.len() >= FORM_DEPTH || !open.insert(id) {
            self.drawn.is_damaged = true;
            return Ok(());
        }
        let own = match self.file.get_numbers(&stream.dict, "Matrix").as_deref() {
            Some([a, b, c, d, e, f]) => [*a, *b, *c, *d, *e, *f],
            _ => IDENTITY,
        };
        let resources = match self.resources.get(&id) {
            Some(known) => Some(Rc::clone(known)),
            None => self.file.get_dict(&stream.dict, "Resources").map(|own| {
                let own = Rc::new(own);
                self.resources.insert(id, Rc::clone(&own));
                own
            }),
        };
        let result = match self.file.data(stream) {
            Ok(bytes) => {
                let resources = resources.as_deref().unwrap_or(outer);
                self.run_within(&bytes, resources, product(&own, &matrix), open)
            }
            Err(_) => {
                self.drawn.is_damaged = true;
                Ok(())
            }
        };
        open.remove(&id);
        result
    }

    fn operate(&mut self, frame: &mut Frame<'_>, word: &[u8], operands: &[Object]) -> Result<(), Refusal> {
        let number = |at: usize| operands.get(at).and_then(Object::number).unwrap_or(0.0);
        let state = &mut frame.state;
        match word {
            b"q" => frame.save(),
            b"Q" => frame.restore(),
            b"cm" => state.matrix = product(&std::array::from_fn(number), &state.matrix),
            b"BT" => (frame.text, frame.line) = (IDENTITY, IDENTITY),
            b"Tc" => state.letter_space = number(0),
            b"Tw" => state.word_space = number(0),
            b"Tz" => state.scale = number(0) / 100.0,
            b"TL" => state.leading = number(0),
            b"Ts" => state.rise = number(0),
            b"Tf" => {
                let font = operands
                    .first()
                    .and_then(Object::name)
                    .and_then(|name| self.font(frame, name));
                (frame.state.size, frame.state.font) = (number(1), font);
            }
            b"Td" => frame.move_line(number(0), number(1)),
            b"TD" => {
                state.leading = -number(1);
                frame.move_line(number(0), number(1));
            }
            b"Tm" => {
                frame.line = std::array::from_fn(number);
                frame.text = frame.line;
            }
            b"T*" => frame.next_line(),
            b"Tj" => self.show(frame, operands.first())?,
            b"'" => {
                frame.next_line();
                self.show(frame, operands.first())?;
            }
            b"\"" => {
                (state.word_space, state.letter_space) = (number(0), number(1));
                frame.next_line();
                self.show(frame, operands.get(2))?;
            }
            b"TJ" => {
                for item in operands.first().and_then(Object::array).unwrap_or_default() {
                    match item {
                        Object::Number(back) => frame.move_back(*back),
                        item => self.show(frame, Some(item))?,
                    }
                }
            }
            b"BMC" | b"BDC" => {
                let mark = self.mark(frame, operands.get(1));
                frame.marks.push(mark);
                frame.marks.truncate(SAVED);
            }
            b"EMC" => drop(frame.marks.pop()),
            _ => {
                self.drawn.curves += usize::from(matches!(word, b"c" | b"v" | b"y"));
                let (matrix, rules) = (&frame.state.matrix, &mut self.drawn.rules);
                frame.path.operate(word, operands, matrix, rules);
            }
        }
        Ok(())
    }

    /// The replacement text of marked content, from its properties.
    fn mark(&self, frame: &Frame<'_>, properties: Option<&Object>) -> Mark {
        let properties = match properties {
            Some(Object::Dict(dict)) => Some(dict.clone()),
            Some(Object::Name(name)) => {
                let all = self.file.get_dict(frame.resources, "Properties");
                all.and_then(|all| self.file.get_dict(&all, name))
            }
            _ => None,
        };
        let actual = properties.and_then(|dict| self.file.get(&dict, "ActualText"));
        match actual.as_ref().and_then(Object::text) {
            Some(text) => Mark::Actual(Some(text_string(text).into())),
            None => Mark::Plain,
        }
    }

    fn font(&mut self, frame: &mut Frame<'_>, name: &str) -> Option<Rc<Font>> {
        if let Some(font) = frame.fonts.get(name) {
            return Some(Rc::clone(font));
        }
        let fonts = self.file.get_dict(frame.resources, "Font")?;
        let number = match fonts.get(name)? {
            Object::Reference(number) => Some(*number),
            _ => None,
        };
        let known = number.and_then(|number| self.fonts.get(&number)).map(Rc::clone);
        let font = match known {
            Some(font) => font,
            None => {
                let dict = self.file.get_dict(&fonts, name)?;
                Rc::new(Font::read(self.file, &dict, &self.predefined))
            }
        };
        if let Some(number) = number {
            self.fonts.insert(number, Rc::clone(&font));
        }
        frame.fonts.insert(name.to_owned(), Rc::clone(&font));
        Some(font)
    }

    /// Places the letters of a string.
    fn show(&mut self, frame: &mut Frame<'_>, string: Option<&Object>) -> Result<(), Refusal> {
        let Some(bytes) = string.and_then(Object::text) else {
            return Ok(());
        };
        let font = match &frame.state.font {
            Some(font) => Rc::clone(font),
            None => Rc::clone(self.missing.get_or_insert_with(|| Rc::new(Font::missing(self.file)))),
        };
        self.spend(bytes.len() as u64)?;
        let drawn = &mut self.drawn;
        font.letters(self.file, bytes, &mut |letter| {
            if letter.text.is_none() {
                drawn.unknown += 1;
            }
            let text = frame.marked(letter.text.clone());
            let (left, right, base, size, turn) = frame.place(&letter, font.is_vertical);
            if let Some(text) = text
                && left.is_finite()
                && right.is_finite()
                && base.is_finite()
                && !drawn.is_full(self.most_letters)
            {
                drawn.text_bytes += text.len();
                drawn.glyphs.push(Glyph {
                    left,
                    right,
                    base,
                    size,
                    turn,
                    text,
                });
            }
        });
        // An error if the string had too many letters.
        self.spend(0)
    }
}

impl<'r> Frame<'r> {
    fn new(resources: &'r Dict, matrix: Matrix) -> Self {
        Self {
            resources,
            fonts: HashMap::new(),
            state: State {
                matrix,
                font: None,
                size: 1.0,
                letter_space: 0.0,
                word_space: 0.0,
                scale: 1.0,
                leading: 0.0,
                rise: 0.0,
            },
            saved: Vec::new(),
            unsaved: 0,
            text: IDENTITY,
            line: IDENTITY,
            marks: Vec::new(),
            path: Path::default(),
        }
    }

    fn save(&mut self) {
        if self.saved.len() < SAVED {
            self.saved.push(self.state.clone());
        } else {
            self.unsaved += 1;
        }
    }

    fn restore(&mut self) {
        if self.unsaved > 0 {
            self.unsaved -= 1;
        } else if let Some(state) = self.saved.pop() {
            self.state = state;
        }
    }

    fn move_line(&mut self, right: f64, up: f64) {
        self.line = product(&[1.0, 0.0, 0.0, 1.0, right, up], &self.line);
        self.text = self.line;
    }

    fn next_line(&mut self) {
        self.move_line(0.0, -self.state.leading);
    }

    /// Moves against the direction of the text, by thousandths of the size.
    fn move_back(&mut self, back: f64) {
        let by = -back / 1000.0 * self.state.size;
        if self.state.font.as_ref().is_some_and(|font| font.is_vertical) {
            self.advance(0.0, by);
        } else {
            self.advance(by * self.state.scale, 0.0);
        }
    }

    fn advance(&mut self, right: f64, up: f64) {
        self.text = product(&[1.0, 0.0, 0.0, 1.0, right, up], &self.text);
    }

    /// The text of a letter within marked contents.
    fn marked(&mut self, text: Option<Rc<str>>) -> Option<Rc<str>> {
        let actual = self.marks.iter_mut().find_map(|mark| match mark {
            Mark::Actual(text) => Some(text),
            Mark::Plain => None,
        });
        match actual {
            Some(actual) => Some(actual.take().unwrap_or_default()),
            None => text,
        }
    }

    /// The left and the right end of a letter, its line, its size and its direction; advances by its width.
    fn place(&mut self, letter: &Letter, is_vertical: bool) -> (f32, f32, f32, f32, i16) {
        let state = &self.state;
        let trm = product(&self.text, &state.matrix);
        let mut space = state.letter_space;
        if letter.is_space_code {
            space += state.word_space;
        }
        let width = f64::from(letter.advance) * state.size;
        let along = if is_vertical {
            [-trm[2], -trm[3]]
        } else {
            [trm[0] * state.scale, trm[1] * state.scale]
        };
        let signed = [along[0] * state.size, along[1] * state.size];
        let turn = signed[1].atan2(signed[0]);
        let (sin, cos) = turn.sin_cos();
        let rise = state.rise;
        let (x, y) = (trm[4] + trm[2] * rise, trm[5] + trm[3] * rise);
        let (left, mut base) = (x * cos + y * sin, y * cos - x * sin);
        let per_unit = length(along);
        let height = if is_vertical {
            length([trm[0], trm[1]])
        } else {
            length([trm[2], trm[3]])
        };
        let scale = if height > 0.0 { height } else { per_unit };
        let size = (scale * state.size.abs()).clamp(0.1, 1e6);
        let right = left + width.abs() * per_unit;
        if is_vertical {
            // Vertical letters hang from the middle of their tops.
            base -= f64::from(super::vertical::MIDDLE) * size;
            self.advance(0.0, -(width + space));
        } else {
            self.advance((width + space) * self.state.scale, 0.0);
        }
        let degrees = turn.to_degrees().round() as i16;
        (
            left as f32,
            right as f32,
            base as f32,
            size as f32,
            if degrees == -180 { 180 } else { degrees },
        )
    }
}

/// Length of a vector. `f64::hypot` would need glibc 2.35, and the archives run from 2.34 on.
fn length(vector: [f64; 2]) -> f64 {
    let [x, y] = vector.map(f64::abs);
    let (longer, shorter) = (x.max(y), x.min(y));
    if longer == 0.0 || longer.is_infinite() {
        return longer;
    }
    let share = shorter / longer;
    longer * (1.0 + share * share).sqrt()
}

/// Skips an inline picture.
fn skip_picture(parser: &mut Parser<'_>) {
    while let Some(part) = parser.part() {
        if matches!(part, ContentToken::Operator(b"ID")) {
            break;
        }
    }
    let bytes = parser.bytes;
    let is_text = |byte: &u8| matches!(byte, 9 | 10 | 13 | 32..=126);
    while parser.at < bytes.len() {
        let Some(found) = memchr::memmem::find(&bytes[parser.at..], b"EI") else {
            parser.at = bytes.len();
            return;
        };
        let at = parser.at + found;
        parser.at = at + 2;
        let is_apart = at == 0 || super::object::is_space(bytes[at - 1]);
        let behind = &bytes[at + 2..bytes.len().min(at + 12)];
        let is_end = behind.first().is_none_or(|byte| super::object::is_space(*byte));
        if is_apart && is_end && behind.iter().all(is_text) {
            return;
        }
    }
}
