//! Parts of a document by their pages and chapters.

use std::ops::Range;

use crate::{Document, PlaceKind};

/// Maximum number of titles and labels listed in one error.
const LISTED: usize = 12;

/// A chapter or a headed part of a document, with the parts below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section<'a> {
    /// Title of the section.
    pub title: &'a str,
    /// Depth: 0 for chapters, from 1 for headings.
    pub level: usize,
    /// Byte range of the text, up to the next section that is not below this one.
    pub range: Range<usize>,
}

/// The reason a document has no such part: one line with the existing parts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The document's kind has no pages.
    #[error("{name}: a {kind} document has no pages; choose by chapter, or read all of it")]
    NoPages {
        /// The document.
        name: String,
        /// Kind of the document.
        kind: crate::DocumentKind,
    },
    /// A page that does not exist.
    #[error("{name}: there is no page {page}; it has pages 1 to {count}")]
    NoSuchPage {
        /// The document.
        name: String,
        /// The requested page.
        page: usize,
        /// Pages of the document.
        count: usize,
    },
    /// A label that no page has.
    #[error("{name}: no page is labelled {label:?}; its labels are {}", listed(.labels))]
    NoSuchLabel {
        /// The document.
        name: String,
        /// The requested label.
        label: String,
        /// Labels of the document's pages, in order.
        labels: Vec<String>,
    },
    /// The last page is before the first.
    #[error("{name}: page {first} stands behind page {last}; give the first page first")]
    Backwards {
        /// The document.
        name: String,
        /// The first requested page.
        first: usize,
        /// The last requested page.
        last: usize,
    },
    /// The pages hold no text.
    #[error("{name}: pages {first} to {last} hold no text; choose others")]
    NoText {
        /// The document.
        name: String,
        /// First page.
        first: usize,
        /// Last page.
        last: usize,
    },
    /// The document has no chapters and no headings.
    #[error("{name}: it names no chapters; choose by pages, or read all of it")]
    NoChapters {
        /// The document.
        name: String,
    },
    /// A title that no chapter has.
    #[error("{name}: no chapter is called {title:?}; its chapters are {}", listed(.titles))]
    NoSuchChapter {
        /// The document.
        name: String,
        /// The requested words.
        title: String,
        /// Titles of the document, in order.
        titles: Vec<String>,
    },
    /// Words that occur in several chapters' titles.
    #[error("{name}: several chapters match {title:?}: {}; give more of the title", listed(.titles))]
    SeveralChapters {
        /// The document.
        name: String,
        /// The requested words.
        title: String,
        /// Matching titles, in order.
        titles: Vec<String>,
    },
}

impl Document {
    /// Number of pages; 0 for kinds without pages.
    pub fn page_count(&self) -> usize {
        self.pages().map(|(page, _)| page).last().unwrap_or(0)
    }

    /// Bytes of pages `first` to `last`, both included, counted from 1.
    ///
    /// # Errors
    /// [`PlaceError`] for pages that do not exist or have no text.
    pub fn pages_range(&self, first: usize, last: usize) -> Result<Range<usize>, PlaceError> {
        let name = || self.name.clone();
        let count = self.page_count();
        if count == 0 {
            return Err(PlaceError::NoPages {
                name: name(),
                kind: self.kind,
            });
        }
        if let Some(page) = [first, last].into_iter().find(|page| !(1..=count).contains(page)) {
            return Err(PlaceError::NoSuchPage {
                name: name(),
                page,
                count,
            });
        }
        if first > last {
            return Err(PlaceError::Backwards {
                name: name(),
                first,
                last,
            });
        }
        let mut chosen = self.pages().filter(|(page, _)| (first..=last).contains(page));
        let start = chosen.next().map_or(0..0, |(_, range)| range);
        let end = chosen.last().map_or(start.end, |(_, range)| range.end);
        let range = start.start..end;
        if self.text[range.clone()].trim().is_empty() {
            return Err(PlaceError::NoText {
                name: name(),
                first,
                last,
            });
        }
        Ok(range)
    }

    /// Bytes of the pages from label `first` to label `last`, both included. A page without a label uses its number.
    ///
    /// # Errors
    /// [`PlaceError`] for labels that do not exist, and for pages without text.
    pub fn labelled_pages_range(&self, first: &str, last: &str) -> Result<Range<usize>, PlaceError> {
        let labels = self.page_labels();
        if labels.is_empty() {
            return self.pages_range(1, 1);
        }
        let page = |label: &str| {
            let found = labels.iter().position(|known| known == label);
            let found = found.or_else(|| labels.iter().position(|known| known.eq_ignore_ascii_case(label)));
            found.map(|at| at + 1).ok_or_else(|| PlaceError::NoSuchLabel {
                name: self.name.clone(),
                label: label.to_owned(),
                labels: labels.clone(),
            })
        };
        self.pages_range(page(first)?, page(last)?)
    }

    /// Labels of all pages in order, such as `iv`; otherwise the page's number.
    pub fn page_labels(&self) -> Vec<String> {
        let mut labels: Vec<String> = Vec::new();
        for place in &self.places {
            match &place.kind {
                PlaceKind::Page(page) => labels.push(page.to_string()),
                PlaceKind::Label(label) => {
                    if let Some(last) = labels.last_mut() {
                        last.clone_from(label);
                    }
                }
                _ => {}
            }
        }
        labels
    }

    /// Chapters and headed parts in order, each with the parts below it.
    pub fn sections(&self) -> Vec<Section<'_>> {
        let mut sections: Vec<Section<'_>> = Vec::new();
        // Open sections, by index.
        let mut open: Vec<usize> = Vec::new();
        for place in &self.places {
            let (title, level) = match &place.kind {
                PlaceKind::Chapter(title) => (title, 0),
                PlaceKind::Heading { title, level } => (title, *level),
                _ => continue,
            };
            let start = place.range.start;
            while let Some(last) = open.pop_if(|at| sections[*at].level >= level) {
                sections[last].range.end = start;
            }
            open.push(sections.len());
            sections.push(Section {
                title,
                level,
                range: start..self.text.len(),
            });
        }
        sections
    }

    /// Bytes of the chapter or headed part with a title. Case is ignored. A complete match takes precedence over a
    /// title that starts with these words, and such a title over one that contains them. Of several matches, the
    /// section above the others counts.
    ///
    /// # Errors
    /// [`PlaceError`] with the existing titles, or with the matching ones.
    pub fn chapter_range(&self, title: &str) -> Result<Range<usize>, PlaceError> {
        let sections = self.sections();
        let name = || self.name.clone();
        let titles = |sections: &[&Section<'_>]| sections.iter().map(|section| section.title.to_owned()).collect();
        if sections.is_empty() {
            return Err(PlaceError::NoChapters { name: name() });
        }
        let wanted = folded(title);
        let rank = |section: &Section<'_>| match folded(section.title) {
            title if title == wanted => 0,
            title if title.starts_with(&wanted) => 1,
            title if title.contains(&wanted) => 2,
            _ => 3,
        };
        let order = |section: &Section<'_>| (rank(section), section.level);
        let best = sections.iter().map(order).min().unwrap_or((3, 0));
        if best.0 == 3 || wanted.is_empty() {
            let chapters: Vec<_> = sections.iter().filter(|section| section.level == 0).collect();
            let all = if chapters.is_empty() {
                sections.iter().collect()
            } else {
                chapters
            };
            return Err(PlaceError::NoSuchChapter {
                name: name(),
                title: title.to_owned(),
                titles: titles(&all),
            });
        }
        let found: Vec<_> = sections.iter().filter(|section| order(section) == best).collect();
        match found[..] {
            [one] => Ok(one.range.clone()),
            _ => Err(PlaceError::SeveralChapters {
                name: name(),
                title: title.to_owned(),
                titles: titles(&found),
            }),
        }
    }

    fn pages(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        self.places.iter().filter_map(|place| match place.kind {
            PlaceKind::Page(page) => Some((page, place.range.clone())),
            _ => None,
        })
    }
}

fn folded(title: &str) -> String {
    title.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// The first names of a list, and the number of the others.
fn listed(names: &[String]) -> String {
    let first: Vec<String> = names.iter().take(LISTED).map(|name| format!("{name:?}")).collect();
    let more = match names.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(" and {more} others"),
    };
    format!("{}{more}", first.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DocumentKind;
    use crate::builder::TextBuilder;

    fn book() -> Document {
        let mut builder = TextBuilder::default();
        let parts = [
            (PlaceKind::Page(1), "front"),
            (PlaceKind::Label("i".to_owned()), ""),
            (PlaceKind::Page(2), ""),
            (PlaceKind::Page(3), ""),
            (PlaceKind::Chapter("Loomings".to_owned()), "one"),
            (PlaceKind::heading("Sea", 1), "two"),
            (PlaceKind::heading("Deep sea", 2), "three"),
            (PlaceKind::Chapter("The Sea again".to_owned()), "four"),
            (PlaceKind::Page(4), ""),
        ];
        for (kind, text) in parts {
            builder.end_line(1);
            builder.mark(kind);
            builder.flow(text);
        }
        let (text, places) = builder.finish();
        Document {
            name: "book.pdf".to_owned(),
            kind: DocumentKind::Pdf,
            text,
            places,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn pages_are_chosen_by_number_and_by_label() {
        let book = book();
        let text = |range: Result<Range<usize>, PlaceError>| book.text[range.unwrap()].to_owned();
        assert_eq!(text(book.pages_range(1, 2)), "front\n");
        assert_eq!(text(book.pages_range(3, 4)), "one\ntwo\nthree\nfour\n");
        assert_eq!(text(book.labelled_pages_range("i", "2")), "front\n");
        assert_eq!(
            book.pages_range(3, 9).unwrap_err().to_string(),
            "book.pdf: there is no page 9; it has pages 1 to 4"
        );
        assert_eq!(
            book.labelled_pages_range("x", "2").unwrap_err().to_string(),
            "book.pdf: no page is labelled \"x\"; its labels are \"i\", \"2\", \"3\", \"4\""
        );
        assert!(matches!(book.pages_range(2, 2), Err(PlaceError::NoText { .. })));
        assert!(matches!(book.pages_range(3, 1), Err(PlaceError::Backwards { .. })));
    }

    #[test]
    fn chapters_are_chosen_by_their_titles_with_the_parts_below_them() {
        let book = book();
        let text = |title: &str| book.text[book.chapter_range(title).unwrap()].to_owned();
        assert_eq!(text("loomings"), "one\ntwo\nthree\n");
        assert_eq!(text("SEA"), "two\nthree\n");
        assert_eq!(text("deep"), "three\n");
        assert_eq!(text("sea again"), "four\n");
        assert_eq!(
            book.chapter_range("whale").unwrap_err().to_string(),
            "book.pdf: no chapter is called \"whale\"; its chapters are \"Loomings\", \"The Sea again\""
        );
        assert!(matches!(
            book.chapter_range("in"),
            Err(PlaceError::SeveralChapters { .. })
        ));
    }
}
