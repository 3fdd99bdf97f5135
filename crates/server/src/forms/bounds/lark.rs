//! Counts the depth of a grammar and prepares its schemas, reading the text like llguidance's lexer.

use serde_json::Value;

use super::{GRAMMAR_LEVELS, PATTERN_CHARACTERS, check_count, schema};
use crate::forms::NameOrder;
use crate::json;

/// A grammar with its schemas prepared for llguidance.
///
/// # Errors
/// A grammar with too many rules and terminals, or with too deep nesting, and errors of its schemas.
pub(in crate::forms) fn prepared(grammar: &str, order: NameOrder) -> Result<String, String> {
    let mut reader = Reader {
        rest: grammar,
        order,
        prepared: String::with_capacity(grammar.len()),
        levels: 0,
        open: 0,
        deepest: 0,
        pattern_characters: 0,
    };
    while !reader.rest.is_empty() {
        reader.step()?;
    }
    reader.end_definition();
    check_count("rules and levels of nesting", reader.levels, GRAMMAR_LEVELS)?;
    check_count(
        "characters of regular expressions",
        reader.pattern_characters,
        PATTERN_CHARACTERS,
    )?;
    Ok(reader.prepared)
}

struct Reader<'a> {
    rest: &'a str,
    /// The order of names in schemas of the grammar.
    order: NameOrder,
    /// The prepared text before `rest`, for llguidance.
    prepared: String,
    /// Definitions so far, plus the deepest nesting of each.
    levels: usize,
    /// Open brackets now; `deepest` is the most in this definition.
    open: usize,
    deepest: usize,
    pattern_characters: usize,
}

impl<'a> Reader<'a> {
    /// Skips one part of the text. Parts that no grammar may contain are skipped, because llguidance's lexer refuses
    /// them.
    fn step(&mut self) -> Result<(), String> {
        let rest = self.rest;
        if rest.starts_with("//") || rest.starts_with('#') {
            self.pass(rest.find('\n').unwrap_or(rest.len()));
            return Ok(());
        }
        for keyword in ["%json", "%llguidance", "%regex"] {
            if rest.starts_with(keyword) {
                return self.pass_json(keyword);
            }
        }
        match rest.as_bytes()[0] {
            b'"' => self.pass(quoted(rest, '"').len()),
            b'/' => {
                let pattern = quoted(rest, '/');
                self.pattern_characters += pattern.len();
                self.pass(pattern.len());
            }
            b'<' => {
                let end = rest[1..].find(['<', '>', ' ', '\t', '\r', '\n']);
                let is_token = end.is_some_and(|end| end > 0 && rest[1 + end..].starts_with('>'));
                self.pass(if is_token { end.unwrap_or(0) + 2 } else { 1 });
            }
            b'(' | b'[' | b'{' => {
                self.open += 1;
                self.deepest = self.deepest.max(self.open);
                self.pass(1);
            }
            b')' | b']' | b'}' => {
                self.open = self.open.saturating_sub(1);
                self.pass(1);
            }
            b':' => {
                self.end_definition();
                self.pass(1);
            }
            _ => self.pass(rest.chars().next().map_or(1, char::len_utf8)),
        }
        Ok(())
    }

    fn pass(&mut self, bytes: usize) {
        let (passed, rest) = self.rest.split_at(bytes);
        self.prepared.push_str(passed);
        self.rest = rest;
    }

    /// Counts a definition, which always has a colon.
    fn end_definition(&mut self) {
        self.levels += 1 + self.deepest;
        self.deepest = self.open;
    }

    /// Skips a keyword and its JSON, which may be a schema.
    fn pass_json(&mut self, keyword: &str) -> Result<(), String> {
        let after = &self.rest[keyword.len()..];
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        let value = values.next();
        let text = &after[..values.byte_offset()];
        let passed = keyword.len() + text.len();
        match value {
            Some(Ok(schema)) if keyword == "%json" => {
                json::check_integers(text.as_bytes())?;
                let prepared = self.prepared_schema(schema)?;
                self.prepared.push_str(&prepared);
                self.rest = &self.rest[passed..];
            }
            Some(Ok(_)) => self.pass(passed),
            // The lexer refuses text that is not JSON.
            _ => self.pass(self.rest.len()),
        }
        Ok(())
    }

    /// A schema in a grammar, in the grammar's spelling.
    fn prepared_schema(&self, mut schema: Value) -> Result<String, String> {
        schema::check(&schema)?;
        crate::forms::schema::prepare(&mut schema)?;
        // A grammar may set the options of its own schemas.
        if schema.get(crate::forms::OPTIONS).is_none() {
            schema = crate::forms::with_options(schema)?;
            let any = match self.order {
                NameOrder::Any => crate::forms::schema::any_order(&schema),
                NameOrder::Declared => None,
            };
            if let Some(rules) = any {
                return Ok(format!("%lark {{\n{rules}}}"));
            }
        }
        Ok(format!("%json {schema}"))
    }
}

/// The text up to the next mark without a backslash before it; all of it if there is none.
fn quoted(text: &str, mark: char) -> &str {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if character == mark => return &text[..at + 1],
            _ => {}
        }
    }
    text
}
