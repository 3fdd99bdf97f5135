//! Schemas prepared for llguidance: with exact numbers, and with objects closed to undeclared names.

mod any_order;
mod closing;
mod levels;
mod numbers;
mod order;
mod references;

use serde_json::{Map, Value};

pub(super) use any_order::any_order;
pub(super) use levels::levels;
pub(super) use references::References;

/// Keywords for the same value as their neighbours.
const IN_PLACE: [&str; 6] = ["$ref", "allOf", "anyOf", "const", "enum", "oneOf"];

/// Keywords that constrain a value by themselves.
const CONSTRAINTS: [&str; 21] = [
    "additionalItems",
    "additionalProperties",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "type",
];

/// True if several parts of a schema constrain the same value.
pub(super) fn is_conjunction(fields: &Map<String, Value>) -> bool {
    let in_place = fields.keys().filter(|name| IN_PLACE.contains(&name.as_str())).count();
    let is_constrained = fields.keys().any(|name| CONSTRAINTS.contains(&name.as_str()));
    let all = fields.get("allOf").and_then(Value::as_array);
    in_place + usize::from(is_constrained) > 1 || all.is_some_and(|all| all.len() > 1)
}

/// Prepares a schema for llguidance. Answers of the prepared schema satisfy the original.
///
/// # Errors
/// For a number that cannot be represented exactly.
pub(super) fn prepare(schema: &mut Value) -> Result<(), String> {
    numbers::hold(schema)?;
    *schema = closing::closed(schema)?;
    Ok(())
}

/// Parts of a schema that a keyword holds.
enum Parts<'a> {
    One(&'a mut Value),
    List(&'a mut Vec<Value>),
    Named(&'a mut Map<String, Value>),
    /// Data or an annotation.
    None,
}

/// The schemas under a keyword.
fn parts<'a>(keyword: &str, value: &'a mut Value) -> Parts<'a> {
    match (keyword, value) {
        ("const" | "default" | "enum" | "examples" | "required", _) => Parts::None,
        (
            "$defs" | "definitions" | "dependencies" | "dependentSchemas" | "patternProperties" | "properties",
            Value::Object(named),
        ) => Parts::Named(named),
        (_, Value::Array(list)) => Parts::List(list),
        (_, value @ Value::Object(_)) => Parts::One(value),
        _ => Parts::None,
    }
}
