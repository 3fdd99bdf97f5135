//! `keep_alive` of a request: the time that its model stays loaded, in Ollama's spelling.

use std::time::Duration;

use serde_json::Value;

use crate::failure::Failure;

/// The field's name.
pub(crate) const FIELD: &str = "keep_alive";

/// The longest time; a longer one has no end.
const LONGEST_S: f64 = 1e9;

/// The time that a model stays loaded after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeepAlive {
    For(Duration),
    /// The model stays loaded until its memory is needed.
    Always,
}

impl KeepAlive {
    /// Parses seconds or a text such as `5m`, `1h30m`, `300` or `-1`. A negative time has no end.
    ///
    /// # Errors
    /// For a value that is not a time.
    pub(crate) fn of(value: &Value) -> Result<Self, Failure> {
        let refused = || Failure::field(FIELD, "it must be seconds, or a time such as \"5m\"; -1 has no end");
        match value {
            Value::Number(seconds) => seconds.as_f64().map(Self::seconds).ok_or_else(refused),
            Value::String(text) => Self::of_text(text.trim()).ok_or_else(refused),
            _ => Err(refused()),
        }
    }

    fn of_text(text: &str) -> Option<Self> {
        if let Ok(seconds) = text.parse::<f64>() {
            return seconds.is_finite().then(|| Self::seconds(seconds));
        }
        match text.strip_prefix('-') {
            Some(rest) => humantime::parse_duration(rest).ok().map(|_| Self::Always),
            None => humantime::parse_duration(text).ok().map(Self::For),
        }
    }

    fn seconds(seconds: f64) -> Self {
        if (0.0..=LONGEST_S).contains(&seconds) {
            Self::For(Duration::from_secs_f64(seconds))
        } else {
            Self::Always
        }
    }

    /// The given time of a request, or the server's `default`; `None` has no end.
    pub(super) fn time(given: Option<Self>, default: Option<Duration>) -> Option<Duration> {
        match given {
            None => default,
            Some(Self::For(time)) => Some(time),
            Some(Self::Always) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_read_as_ollama_writes_them() {
        let seconds = |count| KeepAlive::For(Duration::from_secs(count));
        for (value, time) in [
            (json!(0), seconds(0)),
            (json!("0"), seconds(0)),
            (json!(300), seconds(300)),
            (json!("5m"), seconds(300)),
            (json!("1h30m"), seconds(5400)),
            (json!("24h"), seconds(86_400)),
            (json!(-1), KeepAlive::Always),
            (json!("-1"), KeepAlive::Always),
            (json!("-1m"), KeepAlive::Always),
            (json!(1e300), KeepAlive::Always),
        ] {
            assert_eq!(KeepAlive::of(&value), Ok(time), "{value}");
        }
        for value in [json!("soon"), json!(""), json!(true), json!([5]), json!("NaN")] {
            assert!(KeepAlive::of(&value).is_err(), "{value}");
        }
    }
}
