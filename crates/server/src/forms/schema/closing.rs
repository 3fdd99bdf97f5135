//! Closes objects that declare properties and do not say whether they allow others.
//!
//! llguidance takes declared names in their order and then any other name. A model that writes a declared name later
//! than its place in the schema would have to change the name, such as to `"city "`.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::order::Patterns;
use super::{References, is_conjunction};

/// The schema with `additionalProperties: false` in objects with properties, unless they state it. Objects within a
/// conjunction, directly or through a reference, stay open: each part would exclude the properties of the others.
/// Optional names of objects that allow others may stand in any order, unless a reference leads to one of them.
///
/// # Errors
/// For references beyond a bound.
pub(super) fn closed(schema: &Value) -> Result<Value, String> {
    let references = References::new(schema)?;
    let mut conjunctions = Conjunctions {
        references: &references,
        parts: HashSet::new(),
        names_properties: false,
        patterns: Patterns::new(),
    };
    conjunctions.search(schema, false);
    Ok(conjunctions.close(schema, false))
}

/// Schemas that conjunctions refer to.
struct Conjunctions<'a> {
    references: &'a References<'a>,
    /// Addresses of the schemas.
    parts: HashSet<*const Value>,
    /// True if a reference leads to a declared property, which then must stay in its place.
    names_properties: bool,
    patterns: Patterns,
}

impl<'a> Conjunctions<'a> {
    fn search(&mut self, value: &'a Value, is_part: bool) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.search(item, is_part)),
            Value::Object(fields) => {
                let is_part = is_part || is_conjunction(fields);
                for (name, value) in fields {
                    if let ("$ref", Value::String(reference)) = (name.as_str(), value) {
                        self.names_properties |= reference.contains("/properties/");
                    }
                    match (name.as_str(), value) {
                        ("$ref", Value::String(reference)) if is_part => {
                            for target in self.references.targets(reference) {
                                if self.parts.insert(target) {
                                    self.search(target, true);
                                }
                            }
                        }
                        _ => self.search(value, is_part),
                    }
                }
            }
            _ => {}
        }
    }

    /// A copy of a schema; `is_part` is true inside a conjunction.
    fn close(&self, schema: &Value, is_part: bool) -> Value {
        let Value::Object(fields) = schema else {
            return schema.clone();
        };
        let is_part = is_part || self.parts.contains(&std::ptr::from_ref(schema)) || is_conjunction(fields);
        let close = |(name, value): (&String, &Value)| (name.clone(), self.close_keyword(name, value, is_part));
        let mut closed: Map<String, Value> = fields.iter().map(close).collect();
        if !is_part {
            close_object(&mut closed);
        }
        if is_part || self.names_properties {
            Value::Object(closed)
        } else {
            self.patterns.reorder(closed)
        }
    }

    fn close_keyword(&self, keyword: &str, value: &Value, is_part: bool) -> Value {
        match (keyword, value) {
            ("const" | "default" | "enum" | "examples" | "required", _) => value.clone(),
            ("$defs" | "definitions" | "patternProperties" | "properties", Value::Object(named)) => {
                let close = |(name, schema): (&String, &Value)| (name.clone(), self.close(schema, is_part));
                Value::Object(named.iter().map(close).collect())
            }
            (_, Value::Array(list)) => list.iter().map(|schema| self.close(schema, is_part)).collect(),
            (_, value) => self.close(value, is_part),
        }
    }
}

/// Closes an object that declares properties, unless it allows others or requires undeclared ones.
fn close_object(fields: &mut Map<String, Value>) {
    let says_it = ["additionalProperties", "unevaluatedProperties"]
        .into_iter()
        .any(|keyword| fields.contains_key(keyword));
    let needed = fields.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    let required = fields
        .get("required")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let Some(Value::Object(properties)) = fields.get_mut("properties") else {
        return;
    };
    if says_it || properties.is_empty() || needed > properties.len() as u64 {
        return;
    }
    for name in required.iter().filter_map(Value::as_str) {
        if !properties.contains_key(name) {
            properties.insert(name.to_owned(), json!(true));
        }
    }
    fields.insert("additionalProperties".to_owned(), json!(false));
}
