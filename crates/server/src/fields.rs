//! The fields of a request, taken one by one; unused fields are refused by name.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};

use crate::failure::Failure;

/// Maximum number of warnings of one request; further ones are dropped.
const MOST_WARNINGS: usize = 32;

/// An object of a request while its fields are read.
#[derive(Debug)]
pub(crate) struct Fields {
    fields: Map<String, Value>,
    /// Path of the object within the request, with a dot at the end; empty for the request itself.
    place: String,
    warnings: Warnings,
}

/// Parts of a request that were ignored or cut, one line each, for the client and the log. Copies share one list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Adds a warning about a field.
    pub(crate) fn add(&self, field: &str, warning: &str) {
        let line = format!("{field}: {warning}");
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < MOST_WARNINGS && !lines.contains(&line) {
            lines.push(line);
        }
    }

    /// The warnings in the order of their fields.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Fields {
    /// The fields of a request's body, which must be an object.
    pub(crate) fn of_body(body: &[u8]) -> Result<Self, Failure> {
        let value =
            crate::json::parse(body).map_err(|error| Failure::bad(format!("the body is not valid JSON: {error}")))?;
        match value {
            Value::Object(fields) => Ok(Self {
                fields,
                place: String::new(),
                warnings: Warnings::default(),
            }),
            other => Err(Failure::bad(format!(
                "the body must be a JSON object, found {}",
                kind_of(&other)
            ))),
        }
    }

    /// Takes the fields of the object at `place`.
    pub(crate) fn from_value(value: Value, place: &str, warnings: &Warnings) -> Result<Self, Failure> {
        match value {
            Value::Object(fields) => Ok(Self {
                fields,
                place: format!("{place}."),
                warnings: warnings.clone(),
            }),
            other => Err(unexpected(place, "an object", &other)),
        }
    }

    /// The warnings of the whole request.
    pub(crate) fn warnings(&self) -> &Warnings {
        &self.warnings
    }

    /// Takes a field without effect, with a warning; `harmless` are its values without a warning.
    pub(crate) fn ignore(&mut self, field: &str, harmless: &[Value], reason: &str) {
        if let Some(value) = self.value(field)
            && !harmless.contains(&value)
        {
            self.warnings.add(&self.name(field), reason);
        }
    }

    /// Takes all remaining fields without effect, with warnings.
    pub(crate) fn ignore_rest(mut self) {
        for (field, value) in std::mem::take(&mut self.fields) {
            if !value.is_null() {
                self.warnings
                    .add(&self.name(&field), "it is not known here and was left out");
            }
        }
    }

    /// As [`ignore_rest`](Self::ignore_rest); fields of these names get no warning.
    pub(crate) fn ignore_rest_but(mut self, known: &[&str]) {
        self.pass_over(known);
        self.ignore_rest();
    }

    /// The full name of a field.
    pub(crate) fn name(&self, field: &str) -> String {
        format!("{}{field}", self.place)
    }

    /// A field's value; null counts as absent.
    pub(crate) fn value(&mut self, field: &str) -> Option<Value> {
        self.fields.remove(field).filter(|value| !value.is_null())
    }

    /// A field's value, without taking it.
    pub(crate) fn peek(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// The text of the field `type`, without taking it; empty if there is none.
    pub(crate) fn kind(&self) -> String {
        let kind = self.fields.get("type").and_then(Value::as_str);
        kind.unwrap_or("").to_owned()
    }

    /// Gives a field its other name, which must be free.
    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<(), Failure> {
        let Some(value) = self.value(from) else {
            return Ok(());
        };
        match self.fields.insert(to.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err(Failure::field(
                self.name(to),
                format!("it means the same as {from}: leave it out"),
            )),
        }
    }

    pub(crate) fn required(&mut self, field: &str) -> Result<Value, Failure> {
        let name = self.name(field);
        self.value(field)
            .ok_or_else(|| Failure::field(name, "this field is required"))
    }

    pub(crate) fn text(&mut self, field: &str) -> Result<Option<String>, Failure> {
        let name = self.name(field);
        self.value(field).map(|value| text_of(value, &name)).transpose()
    }

    pub(crate) fn required_text(&mut self, field: &str) -> Result<String, Failure> {
        let name = self.name(field);
        text_of(self.required(field)?, &name)
    }

    /// A text, or a list of texts.
    pub(crate) fn texts(&mut self, field: &str) -> Result<Vec<String>, Failure> {
        let name = self.name(field);
        match self.value(field) {
            None => Ok(Vec::new()),
            Some(Value::Array(texts)) => {
                let texts = texts.into_iter().enumerate();
                texts
                    .map(|(at, text)| text_of(text, &format!("{name}[{at}]")))
                    .collect()
            }
            Some(text) => Ok(vec![text_of(text, &name)?]),
        }
    }

    pub(crate) fn flag(&mut self, field: &str) -> Result<Option<bool>, Failure> {
        let name = self.name(field);
        match self.value(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(unexpected(&name, "true or false", &other)),
        }
    }

    /// A number within a range.
    pub(crate) fn number(&mut self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, Failure> {
        let name = self.name(field);
        let Some(value) = self.value(field) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if range.contains(&number) => Ok(Some(number as f32)),
            Some(number) => Err(Failure::field(
                name,
                format!("it must be from {} to {}, found {number}", range.start(), range.end()),
            )),
            None => Err(unexpected(&name, "a number", &value)),
        }
    }

    /// A whole number within a range.
    pub(crate) fn integer(&mut self, field: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, Failure> {
        let name = self.name(field);
        self.value(field)
            .map(|value| integer_of(&value, &name, range))
            .transpose()
    }

    /// A count of at most `most`.
    pub(crate) fn count(&mut self, field: &str, range: RangeInclusive<i64>) -> Result<Option<usize>, Failure> {
        let count = self.integer(field, range)?;
        Ok(count.map(|count| usize::try_from(count).unwrap_or(0)))
    }

    pub(crate) fn list(&mut self, field: &str) -> Result<Option<Vec<Value>>, Failure> {
        let name = self.name(field);
        match self.value(field) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(unexpected(&name, "a list", &other)),
        }
    }

    pub(crate) fn object(&mut self, field: &str) -> Result<Option<Fields>, Failure> {
        let name = self.name(field);
        let warnings = self.warnings.clone();
        self.value(field)
            .map(|value| Fields::from_value(value, &name, &warnings))
            .transpose()
    }

    /// Adds the fields of another object. A field that exists already keeps its value.
    pub(crate) fn add_missing(&mut self, others: Map<String, Value>) {
        for (field, value) in others {
            if self.peek(&field).is_none() {
                self.fields.insert(field, value);
            }
        }
    }

    /// The remaining fields, unchanged.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.fields
    }

    /// Takes fields without effect on an answer, such as a client's own notes.
    pub(crate) fn pass_over(&mut self, fields: &[&str]) {
        for field in fields {
            self.fields.remove(*field);
        }
    }

    /// Refuses an unsupported field; `harmless` are its values without effect.
    pub(crate) fn refuse(&mut self, field: &str, harmless: &[Value], reason: &str) -> Result<(), Failure> {
        match self.value(field) {
            Some(value) if !harmless.contains(&value) => {
                Err(Failure::field(self.name(field), reason).with_code("unsupported_parameter"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a remaining field.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        self.check_finished()
    }

    /// Checks as [`finish`](Self::finish) does.
    pub(crate) fn check_finished(&self) -> Result<(), Failure> {
        match self.fields.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((field, _)) => {
                let name = format!("{}{field}", self.place);
                Err(
                    Failure::field(name, "this server does not know this field: leave it out")
                        .with_code("unknown_parameter"),
                )
            }
        }
    }
}

/// The value as a text.
pub(crate) fn text_of(value: Value, place: &str) -> Result<String, Failure> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(unexpected(place, "a text", &other)),
    }
}

/// The value as a whole number.
pub(crate) fn integer_of(value: &Value, place: &str, range: RangeInclusive<i64>) -> Result<i64, Failure> {
    // 5.0 is a whole number too.
    let whole = value
        .as_f64()
        .filter(|number| number.fract() == 0.0 && number.abs() < 1e15)
        .map(|number| number as i64);
    match value.as_i64().or(whole) {
        Some(number) if range.contains(&number) => Ok(number),
        Some(number) => Err(Failure::field(
            place,
            format!("it must be from {} to {}, found {number}", range.start(), range.end()),
        )),
        None => Err(unexpected(place, "a whole number", value)),
    }
}

pub(crate) fn unexpected(place: &str, wanted: &str, found: &Value) -> Failure {
    Failure::field(place, format!("it must be {wanted}, found {}", kind_of(found)))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::of_body(text.as_bytes()).unwrap()
    }

    fn message<T: std::fmt::Debug>(outcome: Result<T, Failure>) -> String {
        outcome.unwrap_err().message
    }

    #[test]
    fn what_nobody_takes_is_refused_by_its_whole_name() {
        let mut request = fields(r#"{"riffle": {"auditt": true}, "empty": null}"#);
        let mut inner = request.object("riffle").unwrap().unwrap();
        assert_eq!(inner.flag("audit").unwrap(), None);
        assert!(message(inner.finish()).starts_with("riffle.auditt: "));
        assert_eq!(request.finish(), Ok(()));
    }

    #[test]
    fn values_of_another_kind_or_out_of_range_are_refused_with_what_was_found() {
        let mut request = fields(r#"{"a": "7", "b": 3, "c": 1.5, "d": [1, "x"], "e": 2.0, "f": 1e300}"#);
        assert_eq!(
            message(request.number("a", 0.0..=1.0)),
            "a: it must be a number, found a text"
        );
        assert_eq!(
            message(request.number("b", 0.0..=1.0)),
            "b: it must be from 0 to 1, found 3"
        );
        assert_eq!(
            message(request.integer("c", 0..=9)),
            "c: it must be a whole number, found a number"
        );
        assert_eq!(message(request.texts("d")), "d[0]: it must be a text, found a number");
        assert_eq!(request.count("e", 0..=9), Ok(Some(2)));
        assert!(message(request.integer("f", 0..=9)).starts_with("f: it must be a whole number"));
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        assert!(message(Fields::of_body(b"{\"a\":")).starts_with("the body is not valid JSON: "));
        assert_eq!(
            message(Fields::of_body(b"[]")),
            "the body must be a JSON object, found a list"
        );
        let deep = "[".repeat(100_000);
        assert!(message(Fields::of_body(deep.as_bytes())).contains("recursion"));
    }
}
