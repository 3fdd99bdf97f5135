//! Reads the XML of archives' parts, event by event.

use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use crate::encoding::decode_markup;
use crate::guard;

/// Events between two checks of the clock.
const CLOCK: u32 = 1 << 12;

/// Contents of an XML part, in order.
pub(crate) enum XmlEvent<'a> {
    /// An element begins: its name without a prefix.
    Start(&'a str, &'a BytesStart<'a>),
    /// An element ends.
    End(&'a str),
    /// Text between elements.
    Text(&'a str),
}

/// Passes the events of a part; an empty element begins and ends.
///
/// # Errors
/// The parser's message for a part that is not XML.
pub(crate) fn each(bytes: Vec<u8>, take: &mut dyn FnMut(XmlEvent<'_>)) -> Result<(), String> {
    let text = decode_markup(bytes);
    let mut reader = Reader::from_str(&text);
    reader.config_mut().check_end_names = false;
    for events in 0u32.. {
        if events % CLOCK == 0 {
            guard::check();
        }
        match reader.read_event().map_err(|error| error.to_string())? {
            Event::Start(start) => take(XmlEvent::Start(start.local_name().into_inner(), &start)),
            Event::Empty(start) => {
                take(XmlEvent::Start(start.local_name().into_inner(), &start));
                take(XmlEvent::End(start.local_name().into_inner()));
            }
            Event::End(end) => take(XmlEvent::End(end.local_name().into_inner())),
            Event::Text(text) => take(XmlEvent::Text(&text)),
            Event::CData(text) => take(XmlEvent::Text(&text)),
            Event::GeneralRef(reference) => {
                let character = match reference.resolve_char_ref() {
                    Ok(Some(character)) => Some(character),
                    _ => match &*reference {
                        "amp" => Some('&'),
                        "lt" => Some('<'),
                        "gt" => Some('>'),
                        "quot" => Some('"'),
                        "apos" => Some('\''),
                        // A part's own entities are not expanded: XML bombs are built from them.
                        _ => None,
                    },
                };
                if let Some(character) = character {
                    take(XmlEvent::Text(character.encode_utf8(&mut [0; 4])));
                }
            }
            Event::Eof => break,
            _ => {}
        }
    }
    Ok(())
}

/// The value of an attribute, by its name without a prefix.
pub(crate) fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let mut attributes = element.attributes();
    let found = attributes
        .with_checks(false)
        .flatten()
        .find(|attribute| attribute.key.local_name().into_inner() == name)?;
    let value = found.normalized_value(quick_xml::XmlVersion::Implicit1_0).ok()?;
    Some(value.into_owned())
}
