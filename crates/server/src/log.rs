//! Lines on standard error: a time, an event and its fields, as text or as JSON.

use std::io::Write;
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use crate::ServerOptions;

/// Format of the log's lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `TIME EVENT NAME=VALUE…`; texts of several words are quoted.
    #[default]
    Text,
    /// A JSON object with `time`, `event` and the fields.
    Json,
}

/// Maximum number of characters of a field, because messages quote words of requests.
const LONGEST_FIELD: usize = 300;

/// The log of a server: lines on standard error.
#[derive(Debug, Clone, Copy, Default)]
pub struct Log {
    pub(crate) format: LogFormat,
    /// True if requests have lines; notes about the server always have one.
    pub(crate) tells_requests: bool,
}

/// A line under construction.
#[derive(Debug)]
pub(crate) struct Line {
    event: &'static str,
    fields: Vec<(&'static str, Value)>,
}

impl Log {
    pub(crate) fn of(options: &ServerOptions) -> Self {
        Self {
            format: options.log_format,
            tells_requests: options.logs_requests,
        }
    }

    /// Writes a note about the server.
    pub fn note(self, message: &str) {
        self.write(&Line::new("note").with("message", message));
    }

    /// Writes a line about a loaded or unloaded model.
    pub(crate) fn model(self, event: &'static str, name: &str, seconds: f64) {
        self.write(&Line::new(event).with("model", name).with_seconds("total_s", seconds));
    }

    /// Writes a line about a request, unless the log is quiet.
    pub(crate) fn request(self, line: &Line) {
        if self.tells_requests {
            self.write(line);
        }
    }

    /// Writes a line to stderr. Errors are ignored: a full disk or a closed pipe must not end an answer.
    fn write(self, line: &Line) {
        let text = line.text(self.format, SystemTime::now());
        drop(writeln!(std::io::stderr().lock(), "{text}"));
    }
}

impl Line {
    pub(crate) fn new(event: &'static str) -> Self {
        Self {
            event,
            fields: Vec::new(),
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Adds a field if it has a value.
    pub(crate) fn with_some(self, name: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds a field with seconds, to a thousandth.
    pub(crate) fn with_seconds(self, name: &'static str, seconds: f64) -> Self {
        self.with(name, (seconds * 1e3).round() / 1e3)
    }

    fn text(&self, format: LogFormat, time: SystemTime) -> String {
        let time = humantime::format_rfc3339_millis(time).to_string();
        match format {
            LogFormat::Text => {
                let mut text = format!("{time} {}", self.event);
                for (name, value) in &self.fields {
                    text += &format!(" {name}={}", bare(&shown(value)));
                }
                text
            }
            LogFormat::Json => {
                let mut fields = Map::new();
                fields.insert("time".to_owned(), json!(time));
                fields.insert("event".to_owned(), json!(self.event));
                let own = self
                    .fields
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), shown(value)));
                fields.extend(own);
                Value::Object(fields).to_string()
            }
        }
    }
}

/// A value without control characters, cut to a bound.
fn shown(value: &Value) -> Value {
    let Value::String(text) = value else {
        return value.clone();
    };
    let letters = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter });
    Value::String(letters.take(LONGEST_FIELD).collect())
}

/// A value in a line of text: quoted if it has spaces or signs.
fn bare(value: &Value) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "._:/@[]-".contains(letter);
    match value {
        Value::String(text) if !text.is_empty() && text.chars().all(is_plain) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_is_the_same_event_as_text_and_as_json() {
        let line = Line::new("answer")
            .with("client", "127.0.0.1:9")
            .with("key", "anna's laptop")
            .with_some("model", None::<&str>)
            .with("tokens", 3)
            .with_seconds("total_s", 0.123_456);
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        assert_eq!(
            line.text(LogFormat::Text, time),
            "1970-01-01T00:00:01.500Z answer client=127.0.0.1:9 key=\"anna's laptop\" tokens=3 total_s=0.123"
        );
        let json: Value = serde_json::from_str(&line.text(LogFormat::Json, time)).unwrap();
        assert_eq!((&json["event"], &json["tokens"]), (&json!("answer"), &json!(3)));
    }

    #[test]
    fn texts_of_strangers_stay_on_their_line_and_short() {
        let line = Line::new("refused").with("message", format!("a\n\u{9b}31m{}", "b".repeat(1000)));
        for format in [LogFormat::Text, LogFormat::Json] {
            let text = line.text(format, SystemTime::UNIX_EPOCH);
            assert!(text.len() < 400 && !text.chars().any(char::is_control), "{text}");
        }
    }
}
