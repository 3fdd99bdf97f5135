//! Turns the bytes of a PDF file into a document.

use super::bidi;
use super::columns::Order;
use super::content::Interpreter;
use super::drawn::{Drawn, Glyph};
use super::file::{File, Refusal};
use super::outline::{self, Chapter};
use super::pages::{Labels, Page, PageNumbers, Pages, contents};
use super::paragraphs::{Hyphens, Joint, TextLine, joints, parted};
use super::rules::Rules;
use super::running::Running;
use super::{annotations, grid, lines, vertical};
use crate::builder::{TextBuilder, title};
use crate::{Document, DocumentError, DocumentKind, Limits, PlaceKind};

/// Pages or ranges of pages named in a warning.
const NAMED_PAGES: usize = 10;

/// Longest text of one file in bytes: 10,000 pages have half of it.
const TEXT_BYTES: u64 = 64 << 20;

/// Fewest curves of a page with letters as shapes.
const LEAST_CURVES: usize = 100;

/// Maximum number of bytes of text beside a full-page picture, such as a number or a stamp.
const FEW_LETTERS: usize = 100;

/// A page as lines in reading order.
struct PageText {
    lines: Vec<TextLine>,
    comments: Vec<String>,
    height: f32,
    is_rtl: bool,
    /// Chapters that begin on the page, with their heights.
    chapters: Vec<(Chapter, f32)>,
}

/// Pages with missing content, from 1.
#[derive(Default)]
struct Missing {
    damaged: Vec<usize>,
    pictures: Vec<usize>,
    unknown: Vec<usize>,
    unknown_letters: usize,
}

/// The document of a file; called on a thread of [`guard`](crate::guard).
pub(crate) fn read(name: &str, bytes: Vec<u8>, limits: &Limits) -> Result<Document, DocumentError> {
    let refused = |refusal: Refusal| match refusal {
        Refusal::Locked => DocumentError::Encrypted {
            name: name.to_owned(),
            kind: DocumentKind::Pdf,
        },
        Refusal::TooMuch => DocumentError::TooMuchInside {
            name: name.to_owned(),
            limit_bytes: limits.expanded_bytes,
        },
        Refusal::TooMuchWork => DocumentError::TooMuchWork { name: name.to_owned() },
        Refusal::Late => DocumentError::TimedOut {
            name: name.to_owned(),
            limit: limits.time,
        },
        Refusal::Damaged(reason) => DocumentError::damaged(name, DocumentKind::Pdf, reason),
    };
    let file = File::open(bytes, limits).map_err(refused)?;
    let mut missing = Missing::default();
    let pages = read_pages(&file, limits, &mut missing).map_err(refused)?;
    if pages.is_empty() {
        return Err(DocumentError::damaged(name, DocumentKind::Pdf, "it has no pages"));
    }
    let count = pages.len();
    let labels = Labels::read(&file, &file.catalog().unwrap_or_default());
    let (text, places, running) = composed(pages, &labels);
    if text.is_empty() {
        return Err(if missing.damaged.len() == count {
            DocumentError::damaged(name, DocumentKind::Pdf, "no page of it can be parsed")
        } else {
            DocumentError::NoText {
                name: name.to_owned(),
                pages: count,
            }
        });
    }
    let warnings = missing.warnings(count).into_iter().chain(running.warning());
    Ok(Document {
        name: name.to_owned(),
        kind: DocumentKind::Pdf,
        text,
        places,
        warnings: warnings.collect(),
    })
}

/// Reads all pages, and gives them their chapters.
fn read_pages(file: &File, limits: &Limits, missing: &mut Missing) -> Result<Vec<PageText>, Refusal> {
    let mut interpreter = Interpreter::new(file, limits);
    let (mut texts, mut matrices) = (Vec::new(), Vec::new());
    let mut numbers = PageNumbers::new();
    let mut pages = Pages::new(file);
    let mut text_bytes = 0;
    while let Some(page) = pages.next()? {
        if let Some(object) = page.object {
            numbers.insert(object, texts.len());
        }
        let text = read_page(&mut interpreter, &page, texts.len() + 1, missing)?;
        text_bytes += text.lines.iter().map(|line| line.text.len() as u64).sum::<u64>();
        file.check()?;
        if text_bytes > limits.expanded_bytes.min(TEXT_BYTES) {
            return Err(Refusal::TooMuch);
        }
        matrices.push(page.matrix);
        texts.push(text);
    }
    for chapter in outline::read(file, &file.catalog().unwrap_or_default(), &numbers) {
        if let (Some(text), Some(matrix)) = (texts.get_mut(chapter.page), matrices.get(chapter.page)) {
            let height = chapter.top.map_or(f64::INFINITY, |top| matrix[3] * top + matrix[5]);
            text.chapters.push((chapter, height as f32));
        }
    }
    Ok(texts)
}

fn read_page(
    interpreter: &mut Interpreter<'_>,
    page: &Page,
    number: usize,
    missing: &mut Missing,
) -> Result<PageText, Refusal> {
    interpreter.drawn = Drawn::default();
    interpreter.spend(1)?;
    let (bytes, is_whole) = contents(interpreter.file, &page.dict);
    interpreter.run(&bytes, &page.resources, page.matrix)?;
    drop(bytes);
    let comments = annotations::draw(interpreter, page)?;
    let mut drawn = std::mem::take(&mut interpreter.drawn);
    vertical::turn(&mut drawn.glyphs);
    lines::level_accents(&mut drawn.glyphs);
    let is_rtl = is_rtl(&drawn.glyphs);
    let lines = lines_of(&drawn.glyphs, &drawn.rules, is_rtl);
    if drawn.is_damaged || !is_whole {
        missing.damaged.push(number);
    } else if drawn.unknown > 0 {
        missing.unknown.push(number);
        missing.unknown_letters += drawn.unknown;
    } else if is_picture(&drawn, &lines, page) {
        missing.pictures.push(number);
    }
    Ok(PageText {
        lines,
        comments,
        height: page.size.1,
        is_rtl,
        chapters: Vec::new(),
    })
}

/// True for a page whose words are a picture or shapes: it has no text, or little beside a full-page picture.
fn is_picture(drawn: &Drawn, lines: &[TextLine], page: &Page) -> bool {
    if lines.is_empty() {
        return drawn.picture_area > 0.0 || drawn.curves > LEAST_CURVES;
    }
    let letters: usize = lines.iter().map(|line| line.text.len()).sum();
    let area = f64::from(page.size.0) * f64::from(page.size.1);
    letters < FEW_LETTERS && drawn.picture_area > 0.5 * area
}

/// True if most letters of a page belong to scripts that run to the left.
fn is_rtl(glyphs: &[Glyph]) -> bool {
    let letters = glyphs
        .iter()
        .flat_map(|glyph| glyph.text.chars())
        .filter(|c| c.is_alphabetic());
    let (mut right, mut all) = (0usize, 0usize);
    for letter in letters {
        all += 1;
        right += usize::from(bidi::is_rtl(letter));
    }
    right * 2 > all
}

/// The lines of a page; lines in its usual direction come first.
fn lines_of(glyphs: &[Glyph], rules: &Rules, is_rtl: bool) -> Vec<TextLine> {
    let mut turns: Vec<(i16, Vec<u32>)> = Vec::new();
    for (at, glyph) in glyphs.iter().enumerate() {
        match turns.iter_mut().find(|(turn, _)| *turn == glyph.turn) {
            Some((_, chosen)) => chosen.push(at as u32),
            None => turns.push((glyph.turn, vec![at as u32])),
        }
    }
    turns.sort_by_key(|(_, chosen)| std::cmp::Reverse(chosen.len()));
    let mut out: Vec<TextLine> = Vec::new();
    for (_, chosen) in turns {
        let region = out.last().map_or(0, |line| line.region + 1);
        let (mut rows, rest) = grid::table_rows(glyphs, chosen, rules);
        let is_ruled = !rows.is_empty();
        rows.extend(lines::rows(glyphs, &rest));
        if is_ruled {
            rows.sort_by(|a, b| b.base.total_cmp(&a.base));
        }
        for line in Order::arrange(rows, is_rtl) {
            let (Some(left), Some(right)) = (
                line.row.segments.iter().map(|segment| segment.left).reduce(f32::min),
                line.row.segments.iter().map(|segment| segment.right).reduce(f32::max),
            ) else {
                continue;
            };
            let mut texts: Vec<String> = Vec::new();
            let mut column = 0;
            for part in &line.row.segments {
                let text = lines::text(part, glyphs, is_rtl);
                if text.is_empty() {
                    continue;
                }
                match texts.last_mut() {
                    // Lines of one cell.
                    Some(last) if column > 0 && part.column == column => {
                        last.push(' ');
                        last.push_str(&text);
                    }
                    _ => texts.push(text),
                }
                column = part.column;
            }
            if is_rtl {
                texts.reverse();
            }
            if texts.is_empty() {
                continue;
            }
            let is_row = line.is_table && texts.len() > 1 && !is_list_mark(&texts[0]);
            out.push(TextLine {
                text: texts.join(if is_row { " | " } else { " " }),
                left,
                right,
                base: line.row.base,
                size: line.row.size,
                region: region + line.region,
                is_table: is_row,
            });
        }
    }
    out
}

/// True for a list item's mark: a sign, a number or a letter.
fn is_list_mark(text: &str) -> bool {
    let bare = text.trim_matches(['(', ')', '.', '[', ']', ':']);
    let is_short = bare.chars().count() <= 1 || (bare.len() <= 3 && bare.bytes().all(|byte| byte.is_ascii_digit()));
    is_short && (bare.len() < text.len() || !bare.chars().any(char::is_alphanumeric))
}

/// The text of all pages, with places.
fn composed(mut pages: Vec<PageText>, labels: &Labels) -> (String, Vec<crate::DocumentPlace>, Running) {
    let mut running = Running::default();
    for (at, page) in pages.iter().enumerate() {
        running.look(at, &page.lines, page.height);
    }
    let mut hyphens = Hyphens::default();
    for (at, page) in pages.iter_mut().enumerate() {
        running.take_off(at, &mut page.lines, page.height);
        hyphens.ask(&page.lines);
    }
    for page in &pages {
        hyphens.count(&page.lines);
    }
    let mut builder = TextBuilder::default();
    for (at, page) in pages.into_iter().enumerate() {
        builder.end_line(2);
        builder.mark(PlaceKind::Page(at + 1));
        if let Some(label) = labels.label(at) {
            builder.mark(PlaceKind::Label(title(&label)));
        }
        add_page(&mut builder, page, &hyphens);
    }
    let (text, places) = builder.finish();
    (text, places, running)
}

fn add_page(builder: &mut TextBuilder, page: PageText, hyphens: &Hyphens) {
    let joints = joints(&page.lines, page.is_rtl);
    let mut chapters = page.chapters.into_iter().peekable();
    let mut text = String::new();
    for (line, joint) in page.lines.iter().zip(joints) {
        let is_chapter = chapters
            .peek()
            .is_some_and(|(_, top)| line.base <= top + 0.2 * line.size);
        let goes_on = joint == Joint::Flow || (joint == Joint::Line && parted(&text, &line.text).is_some());
        if goes_on && !is_chapter {
            hyphens.join(&mut text, &line.text);
            continue;
        }
        builder.flow(&std::mem::take(&mut text));
        builder.end_line(if joint == Joint::Paragraph { 2 } else { 1 });
        while let Some((chapter, _)) = chapters.next_if(|(_, top)| line.base <= top + 0.2 * line.size) {
            mark(builder, &chapter);
        }
        text.clone_from(&line.text);
    }
    builder.flow(&text);
    builder.end_line(2);
    for (chapter, _) in chapters {
        mark(builder, &chapter);
    }
    for comment in page.comments {
        builder.flow("[Note: ");
        builder.flow(comment.trim());
        builder.flow("]");
        builder.end_line(1);
    }
}

fn mark(builder: &mut TextBuilder, chapter: &Chapter) {
    let name = title(&chapter.title);
    if !name.is_empty() {
        builder.mark(if chapter.level == 0 {
            PlaceKind::Chapter(name)
        } else {
            PlaceKind::heading(&name, chapter.level)
        });
    }
}

impl Missing {
    fn warnings(&self, pages: usize) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.damaged.is_empty() {
            let (count, named) = (self.damaged.len(), named(&self.damaged));
            warnings.push(format!("{count} of {pages} pages could not be read whole: {named}"));
        }
        if !self.pictures.is_empty() {
            let (count, named) = (self.pictures.len(), named(&self.pictures));
            warnings.push(format!(
                "{count} of {pages} pages are pictures without text: {named}; make them searchable first, e.g. with ocrmypdf"
            ));
        }
        if !self.unknown.is_empty() {
            let named = named(&self.unknown);
            warnings.push(format!(
                "{} letters are left out, whose fonts do not tell what they are, on pages {named}",
                self.unknown_letters
            ));
        }
        warnings
    }
}

/// Pages as numbers and ranges.
fn named(pages: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for page in pages {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *page => *last = *page,
            _ => ranges.push((*page, *page)),
        }
    }
    let name = |(first, last): &(usize, usize)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}–{last}")
        }
    };
    let named: Vec<String> = ranges.iter().take(NAMED_PAGES).map(name).collect();
    let more = if ranges.len() > NAMED_PAGES { " and others" } else { "" };
    format!("{}{more}", named.join(", "))
}
