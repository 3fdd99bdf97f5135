//! Finds the targets of a schema's references.

use std::collections::HashMap;

use serde_json::Value;

/// Maximum number of parts of a schema with an `$id`; each is a document that references may be relative to.
const DOCUMENTS: usize = 100;

/// Possible targets of a schema's references.
pub(in crate::forms) struct References<'a> {
    /// The schema, and its parts with an `$id`.
    documents: Vec<&'a Value>,
    anchors: HashMap<&'a str, Vec<&'a Value>>,
}

impl<'a> References<'a> {
    /// # Errors
    /// For more parts with an `$id` than allowed.
    pub(in crate::forms) fn new(schema: &'a Value) -> Result<Self, String> {
        let mut references = Self {
            documents: vec![schema],
            anchors: HashMap::new(),
        };
        references.collect(schema);
        match references.documents.len() - 1 {
            found if found > DOCUMENTS => Err(format!("{found} of its parts have an $id, {DOCUMENTS} are the limit")),
            _ => Ok(references),
        }
    }

    fn collect(&mut self, value: &'a Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.collect(item)),
            Value::Object(fields) => {
                if ["$id", "id"]
                    .into_iter()
                    .any(|name| fields.get(name).is_some_and(Value::is_string))
                {
                    self.documents.push(value);
                }
                for name in ["$anchor", "$dynamicAnchor"] {
                    if let Some(anchor) = fields.get(name).and_then(Value::as_str) {
                        self.anchors.entry(anchor).or_default().push(value);
                    }
                }
                fields.values().for_each(|value| self.collect(value));
            }
            _ => {}
        }
    }

    /// True if a part of the schema has an `$id`.
    pub(in crate::forms) fn has_inner_documents(&self) -> bool {
        let (schema, parts) = self.documents.split_first().unzip();
        let is_part = |part: &&'a Value| schema.is_none_or(|schema| !std::ptr::eq(*schema, *part));
        parts.into_iter().flatten().any(is_part)
    }

    /// True if a reference names a document that is neither the schema nor one of its parts. llguidance includes the
    /// schemas of JSON Schema.
    pub(in crate::forms) fn names_other_document(&self, reference: &str) -> bool {
        let address = |text: &'_ str| text.split('#').next().unwrap_or_default().to_owned();
        let named = address(reference);
        let named = named.trim_start_matches("./");
        let is_named = |document: &&Value| {
            let ids = ["$id", "id"].into_iter().filter_map(|name| document[name].as_str());
            let mut ids = ids.map(address).filter(|id| !id.is_empty());
            // The id or the name may be relative to the address of an enclosing part.
            ids.any(|id| id.ends_with(named) || named.ends_with(&id))
        };
        !named.is_empty() && !named.contains("://json-schema.org/") && !self.documents.iter().any(is_named)
    }

    /// All possible targets of a reference: the fragment is looked up in every document.
    pub(in crate::forms) fn targets(&self, reference: &str) -> Vec<&'a Value> {
        let fragment = decoded(reference.split_once('#').map_or("", |(_, fragment)| fragment));
        if fragment.is_empty() || fragment.starts_with('/') {
            let named = self.documents.iter().filter_map(|document| document.pointer(&fragment));
            named.collect()
        } else {
            // Before draft 2019-09, an `$id` of a fragment is an anchor.
            let id = format!("#{fragment}");
            let is_named = |document: &&&'a Value| document["$id"] == id || document["id"] == id;
            let named = self.documents.iter().filter(is_named).copied();
            self.anchors
                .get(fragment.as_str())
                .into_iter()
                .flatten()
                .copied()
                .chain(named)
                .collect()
        }
    }
}

/// A fragment with its percent escapes decoded.
fn decoded(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
