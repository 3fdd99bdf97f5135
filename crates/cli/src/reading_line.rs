//! The line about a question's reading: its parts, its time, and faster or wider alternatives.

use std::ops::RangeInclusive;

use riffle_ask::{Beginning, FoundBy, Part};
use riffle_documents::{Document, PlaceKind};
use riffle_engine::TimeLeft;

use crate::commands::grouped;
use crate::progress::{PrefillDisplay, duration};
use crate::{console, shown};

/// Fewer tokens are read without this line.
const SAID_FROM_TOKENS: usize = 512;

/// Seconds from which the line names faster alternatives.
const LONG_SECONDS: f64 = 600.0;

/// Tokens of parts, to estimate their time.
const PARTS_TOKENS: usize = 8192;

/// Limit on the page ranges in one line.
const LISTED_RANGES: usize = 8;

/// Prints the line once, as soon as the time is known.
#[derive(Default)]
pub(crate) struct ReadingLine {
    waiting: Option<Reading>,
}

/// The parts of a reading.
struct Reading {
    text: String,
    tokens: usize,
    known_tokens: usize,
    text_tokens: usize,
    found_by: Option<FoundBy>,
}

impl ReadingLine {
    pub(crate) fn begin(&mut self, beginning: &Beginning<'_>) {
        if beginning.tokens + beginning.known_tokens < SAID_FROM_TOKENS || beginning.parts.is_empty() {
            return;
        }
        self.waiting = Some(Reading {
            text: described(beginning),
            tokens: beginning.tokens,
            known_tokens: beginning.known_tokens,
            text_tokens: beginning.text_tokens,
            found_by: beginning.found_by,
        });
        if beginning.tokens < SAID_FROM_TOKENS {
            self.say(None);
        }
    }

    /// Prints the line if the time is already known.
    pub(crate) fn say_when_known(&mut self, display: &PrefillDisplay) {
        let (forecast, elapsed_s) = display.forecast();
        if self.waiting.is_some()
            && let Some(left_s) = forecast.seconds()
        {
            self.say(Some((forecast, elapsed_s + left_s)));
        }
    }

    /// Prints the line if it was not printed yet.
    pub(crate) fn say(&mut self, forecast: Option<(&TimeLeft, f64)>) {
        if let Some(reading) = self.waiting.take() {
            console::note(reading.line(forecast));
        }
    }
}

impl Reading {
    fn line(&self, forecast: Option<(&TimeLeft, f64)>) -> String {
        let Self { text, tokens, .. } = self;
        let Some((forecast, total_s)) = forecast else {
            let known = if self.tokens < SAID_FROM_TOKENS {
                "; read before"
            } else {
                ""
            };
            return format!("{text}{known}{}", self.others(None));
        };
        let time = match self.known_tokens {
            0 => format!(", about {}", duration(total_s)),
            known => format!(
                ", {} of them read before, the other {} in about {}",
                grouped(known),
                grouped(*tokens),
                duration(total_s)
            ),
        };
        let later = if self.found_by.is_some() {
            ""
        } else {
            "; later questions at once"
        };
        let faster = if total_s > LONG_SECONDS && self.found_by.is_none() {
            let parts = forecast.seconds_for(0, PARTS_TOKENS.min(self.text_tokens));
            let parts = parts.map_or_else(String::new, |parts_s| format!(" in about {}", duration(parts_s)));
            format!("; --parts reads what the question needs{parts}")
        } else {
            String::new()
        };
        format!("{text}{time}{later}{faster}{}", self.others(Some(forecast)))
    }

    /// The alternatives, if parts were selected.
    fn others(&self, forecast: Option<&TimeLeft>) -> String {
        if self.found_by.is_none() {
            return String::new();
        }
        let whole = forecast.and_then(|forecast| forecast.seconds_for(0, self.text_tokens));
        let whole = whole.map_or_else(String::new, |whole_s| format!(" in about {}", duration(whole_s)));
        format!("\n--whole reads all of it{whole}; --pages and --chapter choose what is read")
    }
}

/// `reads 26,576 tokens (61 pages)`, or the parts of a longer text.
fn described(beginning: &Beginning<'_>) -> String {
    let tokens = beginning.tokens + beginning.known_tokens;
    let Beginning { documents, parts, .. } = beginning;
    let Some(found_by) = beginning.found_by else {
        let pages: usize = parts
            .iter()
            .map(|part| pages_of(&documents[part.document], part).count())
            .sum();
        let pages = match pages {
            0 => String::new(),
            1 => " (1 page)".to_owned(),
            pages => format!(" ({} pages)", grouped(pages)),
        };
        return format!("reads {} tokens{pages}", grouped(tokens));
    };
    let found_by = match found_by {
        FoundBy::Words => "words",
        FoundBy::WordsAndMeaning => "words and meaning",
    };
    let parts_count = match parts.len() {
        1 => "1 part".to_owned(),
        count => format!("{count} parts"),
    };
    format!(
        "of {} tokens reads {} that the question needs, in {parts_count}{}, found by {found_by}",
        grouped(beginning.text_tokens),
        grouped(tokens),
        places(documents, parts)
    )
}

/// The pages of parts, or their chapters in documents without pages.
fn places(documents: &[Document], parts: &[Part]) -> String {
    let is_one = parts.windows(2).all(|pair| pair[0].document == pair[1].document);
    if !is_one {
        let mut numbers: Vec<usize> = parts.iter().map(|part| part.document).collect();
        numbers.dedup();
        return format!(" of {} documents", numbers.len());
    }
    let Some(document) = parts.first().map(|part| &documents[part.document]) else {
        return String::new();
    };
    let mut pages: Vec<usize> = parts.iter().flat_map(|part| pages_of(document, part)).collect();
    pages.dedup();
    if pages.is_empty() {
        return String::new();
    }
    let ranges = ranges(&pages);
    let listed: Vec<String> = ranges
        .iter()
        .take(LISTED_RANGES)
        .map(|range| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}–{last}"),
        })
        .collect();
    let more = if ranges.len() > LISTED_RANGES { ", …" } else { "" };
    shown::shown(&format!(" (pages {}{more})", listed.join(", "))).into_owned()
}

/// Indices of a part's pages.
fn pages_of<'a>(document: &'a Document, part: &'a Part) -> impl Iterator<Item = usize> + 'a {
    let range = part.range();
    document.places.iter().filter_map(move |place| match place.kind {
        PlaceKind::Page(page) if place.range.start < range.end && range.start < place.range.end => Some(page),
        _ => None,
    })
}

/// Ranges of consecutive numbers.
fn ranges(numbers: &[usize]) -> Vec<RangeInclusive<usize>> {
    let mut ranges: Vec<RangeInclusive<usize>> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(last) if *last.end() + 1 == *number => *last = *last.start()..=*number,
            _ => ranges.push(*number..=*number),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use riffle_documents::{DocumentKind, DocumentPlace};

    use super::*;

    fn report() -> Document {
        let page = |number: usize| DocumentPlace {
            range: 10 * (number - 1)..10 * number,
            kind: PlaceKind::Page(number),
        };
        Document {
            name: "report.pdf".to_owned(),
            kind: DocumentKind::Pdf,
            text: "ten bytes\n".repeat(300),
            places: (1..=300).map(page).collect(),
            warnings: Vec::new(),
        }
    }

    fn part(start: usize, end: usize) -> Part {
        Part {
            document: 0,
            start,
            end,
        }
    }

    fn beginning<'a>(documents: &'a [Document], parts: &'a [Part], found_by: Option<FoundBy>) -> Beginning<'a> {
        Beginning {
            documents,
            parts,
            found_by,
            tokens: 26_000,
            known_tokens: 576,
            text_tokens: 170_793,
        }
    }

    #[test]
    fn a_text_that_is_read_whole_is_told_by_its_tokens_and_pages() {
        let documents = [report()];
        let parts = [part(0, 3000)];
        assert_eq!(
            described(&beginning(&documents, &parts, None)),
            "reads 26,576 tokens (300 pages)"
        );
    }

    #[test]
    fn parts_are_told_by_the_pages_that_they_stand_on() {
        let documents = [report()];
        let parts = [part(0, 10), part(15, 35), part(100, 110)];
        for (found_by, told) in [
            (FoundBy::Words, "words"),
            (FoundBy::WordsAndMeaning, "words and meaning"),
        ] {
            assert_eq!(
                described(&beginning(&documents, &parts, Some(found_by))),
                format!(
                    "of 170,793 tokens reads 26,576 that the question needs, in 3 parts (pages 1–4, 11), found by {told}"
                )
            );
        }
    }

    #[test]
    fn times_are_told_in_the_units_that_people_use() {
        let told = [40.4, 119.0, 121.0, 203.0, 596.0, 3000.0, 11_100.0, 45_807.0].map(duration);
        let expected = [
            "40 s",
            "119 s",
            "2 min 00 s",
            "3 min 20 s",
            "10 min",
            "50 min",
            "3 h 05 min",
            "12 h 43 min",
        ];
        assert_eq!(told, expected);
    }
}
