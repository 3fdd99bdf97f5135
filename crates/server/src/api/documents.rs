//! Reads files as texts, for the page and for programs, with the command line's reader.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use riffle_documents::{Document, DocumentError, DocumentKind, Limits, PlaceKind};
use serde::Serialize;

use super::{BodyKind, body_of_kind, respond};
use crate::app::aside;
use crate::failure::{Failure, Shape};
use crate::models::choice::value_of_query;
use crate::site::{BODY_STEP, Site};

/// Time limit for reading a file.
const LONGEST: Duration = Duration::from_secs(60);

/// Time limit for a file that waits for memory.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// A document in the form for clients.
#[derive(Debug, PartialEq, Serialize)]
struct Read {
    name: String,
    kind: String,
    /// True if lines of the text are lines of the file.
    has_lines: bool,
    text: String,
    /// Pages, chapters and headings of the text. Offsets count UTF-16 code units, as in JavaScript.
    places: Vec<Place>,
    warnings: Vec<String>,
}

/// A range of the text, and its page, label, chapter or heading.
#[derive(Debug, PartialEq, Serialize)]
struct Place {
    start: usize,
    end: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chapter: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heading: Option<String>,
}

/// Reads the file in the request's body. Its name is in the query.
pub(crate) async fn read(State(site): State<Arc<Site>>, request: Request) -> Response {
    respond(Shape::OpenAi, text_of(&site, request).await)
}

async fn text_of(site: &Arc<Site>, request: Request) -> Result<Response, Failure> {
    let name = value_of_query(request.uri().query(), "name").filter(|name| !name.trim().is_empty());
    let name =
        name.ok_or_else(|| Failure::field("name", "the address needs the file's name, as in ?name=report.pdf"))?;
    let body = body_of_kind(request, BodyKind::Bytes).await?;
    let read = aside_with_room(site, name, body).await?;
    Ok(Json(read).into_response())
}

/// Reads a file within half of the memory for all bodies. Files are read one after the other.
async fn aside_with_room(site: &Arc<Site>, name: String, body: Bytes) -> Result<Read, Failure> {
    let memory_bytes = site.options.limits.bodies_bytes / 2;
    let limits = Limits {
        time: LONGEST,
        memory_bytes: Some(memory_bytes as u64),
        ..Limits::default()
    };
    let room = async {
        let turn = Arc::clone(&site.reader).acquire_owned().await;
        let steps = u32::try_from(memory_bytes / BODY_STEP).unwrap_or(u32::MAX);
        (turn, Arc::clone(&site.bodies).acquire_many_owned(steps).await)
    };
    let room = tokio::time::timeout(LONGEST_WAIT, room).await;
    let room =
        room.map_err(|_| Failure::busy("other files and requests have the memory for reading now: try again"))?;
    aside(move || {
        let document = riffle_documents::read_bytes(&name, body.into(), &limits);
        drop(room);
        document.map(Read::of).map_err(failure_of)
    })
    .await
}

fn failure_of(error: DocumentError) -> Failure {
    Failure::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()).with_code("unreadable_document")
}

impl Read {
    fn of(document: Document) -> Self {
        let units = utf16_offsets(&document);
        let unit_of = |byte: usize| units[units.partition_point(|(at, _)| *at < byte)].1;
        let places = document
            .places
            .iter()
            .map(|place| Place::new(unit_of(place.range.start), unit_of(place.range.end), &place.kind));
        Self {
            places: places.collect(),
            kind: match document.kind {
                DocumentKind::Text => "Text".to_owned(),
                kind => kind.to_string(),
            },
            has_lines: document.kind.has_lines(),
            name: document.name,
            warnings: document.warnings,
            text: document.text,
        }
    }
}

impl Place {
    fn new(start: usize, end: usize, kind: &PlaceKind) -> Self {
        let mut place = Self {
            start,
            end,
            page: None,
            label: None,
            chapter: None,
            heading: None,
        };
        match kind {
            PlaceKind::Page(page) => place.page = Some(*page),
            PlaceKind::Label(label) => place.label = Some(label.clone()),
            PlaceKind::Chapter(title) => place.chapter = Some(title.clone()),
            PlaceKind::Heading { title, .. } => place.heading = Some(title.clone()),
        }
        place
    }
}

/// Byte offsets of the starts and ends of places, in order, each with its offset in UTF-16 code units.
fn utf16_offsets(document: &Document) -> Vec<(usize, usize)> {
    let mut bytes: Vec<usize> = document
        .places
        .iter()
        .flat_map(|place| [place.range.start, place.range.end])
        .collect();
    bytes.sort_unstable();
    bytes.dedup();
    let (mut from, mut units) = (0, 0);
    let offsets = bytes.into_iter().map(|byte| {
        let part = document.text.get(from..byte).unwrap_or_default();
        units += part.encode_utf16().count();
        from = byte;
        (byte, units)
    });
    offsets.collect()
}

#[cfg(test)]
mod tests {
    use riffle_documents::DocumentPlace;

    use super::*;

    #[test]
    fn places_are_counted_as_javascript_counts() {
        let text = "aé𝄞b\nc".to_owned();
        let (first, second) = (0..3, 3..text.len());
        let document = Document {
            name: "n".to_owned(),
            kind: DocumentKind::Pdf,
            places: vec![
                DocumentPlace {
                    range: first,
                    kind: PlaceKind::Page(1),
                },
                DocumentPlace {
                    range: second,
                    kind: PlaceKind::Chapter("Two".to_owned()),
                },
            ],
            warnings: Vec::new(),
            text,
        };
        let read = Read::of(document);
        let ranges: Vec<_> = read.places.iter().map(|place| (place.start, place.end)).collect();
        assert_eq!(ranges, [(0, 2), (2, 7)]);
        assert_eq!(
            (read.places[0].page, read.places[1].chapter.as_deref()),
            (Some(1), Some("Two"))
        );
    }
}
