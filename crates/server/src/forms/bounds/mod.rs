//! Bounds of what clients send as forms, counted before llguidance compiles it by recursion.
//!
//! The stack of a compilation is known ([`STACK_BYTES`]); these bounds keep every form below a quarter of it.

mod lark;
mod schema;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub(super) use lark::prepared as prepared_grammar;
pub(super) use schema::check as check_schema;

/// Stack of each thread that compiles forms or computes masks, in bytes. Only used pages take memory.
pub(crate) const STACK_BYTES: usize = 128 << 20;

/// Maximum number of levels of a schema, including the targets of its references. A level takes at most 5 KiB of stack.
pub(super) const SCHEMA_LEVELS: usize = 5000;

/// Maximum number of property names in a schema. A name takes at most 3 KiB of stack.
pub(super) const PROPERTY_NAMES: usize = 10_000;

/// Maximum number of values of a schema whose references are expanded because other keywords stand beside them.
pub(super) const SCHEMA_VALUES: u64 = 200_000;

/// Maximum number of entries of `patternProperties`: every pair of an object is compared.
pub(super) const NAME_PATTERNS: usize = 100;

/// Maximum number of levels of a grammar: its rules and terminals, and the nesting of each. A level takes at most 3.5
/// KiB of stack.
pub(super) const GRAMMAR_LEVELS: usize = 8000;

/// Maximum number of characters of a regular expression. Each takes at most 1 KiB of stack.
pub(super) const PATTERN_CHARACTERS: usize = 20_000;

/// Refuses a pattern that is too long.
///
/// # Errors
/// The number of its characters, and the limit.
pub(super) fn check_pattern(pattern: &str) -> Result<(), String> {
    check_count("characters", pattern.len(), PATTERN_CHARACTERS)
}

/// Refuses a number beyond its bound.
fn check_count(counted: &str, found: usize, most: usize) -> Result<(), String> {
    if found <= most {
        Ok(())
    } else {
        Err(format!("it has {found} {counted}, {most} are the limit"))
    }
}

/// Nesting depth of arrays and objects.
pub(super) fn nesting(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(nesting).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(nesting).max().unwrap_or(0),
        _ => 0,
    }
}
