//! Counts the depth and size of a schema, including the targets of its references.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{NAME_PATTERNS, PATTERN_CHARACTERS, PROPERTY_NAMES, SCHEMA_LEVELS, SCHEMA_VALUES, check_count, nesting};
use crate::forms::schema::{References, is_conjunction};

/// Keywords that hold data.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// Refuses a schema that is nested too deeply, directly or through references, or is too large.
pub(in crate::forms) fn check(schema: &Value) -> Result<(), String> {
    let references = References::new(schema)?;
    let mut counts = Counts::default();
    counts.add(schema);
    check_count("names of properties", counts.names, PROPERTY_NAMES)?;
    check_count("patterns of names", counts.name_patterns, NAME_PATTERNS)?;
    check_count("characters of patterns", counts.pattern_characters, PATTERN_CHARACTERS)?;
    let mut targets = HashSet::new();
    let mut levels = nesting(schema);
    for reference in &counts.references {
        for target in references.targets(reference) {
            if targets.insert(std::ptr::from_ref(target)) {
                levels += nesting(target);
            }
        }
    }
    check_count("levels with those of its references", levels, SCHEMA_LEVELS)?;
    refuse_other_documents(schema, &references)?;
    refuse_empty_cycle(schema, &references, &counts)?;
    let mut sizes = Sizes {
        references: &references,
        known: HashMap::new(),
    };
    match sizes.count_values(schema, false) {
        values if values <= SCHEMA_VALUES => Ok(()),
        values => Err(format!(
            "it has {values} values once the references beside other keywords are written out, {SCHEMA_VALUES} are the limit"
        )),
    }
}

#[derive(Default)]
struct Counts<'a> {
    references: HashSet<&'a str>,
    names: usize,
    name_patterns: usize,
    pattern_characters: usize,
}

impl<'a> Counts<'a> {
    /// Counts every value like a schema, including data.
    fn add(&mut self, value: &'a Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    match (name.as_str(), value) {
                        ("$ref", Value::String(reference)) => {
                            self.references.insert(reference);
                        }
                        ("pattern", Value::String(pattern)) => self.pattern_characters += pattern.len(),
                        ("properties", Value::Object(properties)) => self.names += properties.len(),
                        ("required", Value::Array(names)) => self.names += names.len(),
                        ("patternProperties", Value::Object(patterns)) => {
                            self.name_patterns += patterns.len();
                            self.pattern_characters += patterns.keys().map(String::len).sum::<usize>();
                        }
                        _ => {}
                    }
                    self.add(value);
                }
            }
            _ => {}
        }
    }
}

/// Counts the values of a schema, including expanded references.
struct Sizes<'a> {
    references: &'a References<'a>,
    /// Values of a reference's target; 1 while it is counted, since a cycle is refused or compiled once.
    known: HashMap<*const Value, u64>,
}

impl<'a> Sizes<'a> {
    /// Counts the values of `value`. `is_beside` is true if other keywords apply to the same value, so references are
    /// expanded.
    fn count_values(&mut self, value: &'a Value, is_beside: bool) -> u64 {
        match value {
            Value::Array(items) => items.iter().fold(1, |sum: u64, item| {
                sum.saturating_add(self.count_values(item, is_beside))
            }),
            Value::Object(fields) => {
                let is_beside = is_beside || is_conjunction(fields);
                fields.iter().fold(1, |sum: u64, (name, value)| {
                    let values = match (name.as_str(), value) {
                        ("$ref", Value::String(reference)) if is_beside => self.written_out(reference),
                        _ => self.count_values(value, is_beside),
                    };
                    sum.saturating_add(values)
                })
            }
            _ => 1,
        }
    }

    fn written_out(&mut self, reference: &str) -> u64 {
        let mut most = 1;
        for target in self.references.targets(reference) {
            let values = match self.known.get(&std::ptr::from_ref(target)) {
                Some(values) => *values,
                None => {
                    self.known.insert(target, 1);
                    let values = self.count_values(target, true);
                    self.known.insert(target, values);
                    values
                }
            };
            most = most.max(values);
        }
        most
    }
}

/// Refuses a reference to a document outside the schema.
fn refuse_other_documents(value: &Value, references: &References<'_>) -> Result<(), String> {
    match value {
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| refuse_other_documents(item, references)),
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str)
                && references.names_other_document(reference)
            {
                return Err(format!(
                    "the $ref {reference:?} names another document: only references to parts of the same schema are followed"
                ));
            }
            let schemas = fields.iter().filter(|(name, _)| !DATA.contains(&name.as_str()));
            schemas
                .into_iter()
                .try_for_each(|(_, value)| refuse_other_documents(value, references))
        }
        _ => Ok(()),
    }
}

/// Refuses a reference that leads back to itself without entering a part of the value.
fn refuse_empty_cycle(schema: &Value, references: &References<'_>, counts: &Counts<'_>) -> Result<(), String> {
    let mut open = HashSet::new();
    let mut closed = HashSet::new();
    follow(schema, references, &mut open, &mut closed)?;
    for reference in &counts.references {
        for target in references.targets(reference) {
            follow(target, references, &mut open, &mut closed)?;
        }
    }
    Ok(())
}

fn follow<'a>(
    schema: &'a Value,
    references: &References<'a>,
    open: &mut HashSet<*const Value>,
    closed: &mut HashSet<*const Value>,
) -> Result<(), String> {
    let Value::Object(fields) = schema else { return Ok(()) };
    let at = std::ptr::from_ref(schema);
    if closed.contains(&at) || !open.insert(at) {
        return Ok(());
    }
    if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
        for target in references.targets(reference) {
            if open.contains(&std::ptr::from_ref(target)) {
                return Err(format!(
                    "the $ref {reference:?} leads back to itself: nothing says which value it stands for"
                ));
            }
            follow(target, references, open, closed)?;
        }
    }
    for keyword in ["allOf", "anyOf", "oneOf"] {
        for part in fields.get(keyword).and_then(Value::as_array).into_iter().flatten() {
            follow(part, references, open, closed)?;
        }
    }
    open.remove(&at);
    closed.insert(at);
    Ok(())
}
