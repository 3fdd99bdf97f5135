//! Prints values as Python does, as models saw them in training: `str`, `repr` and `json.dumps`.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// The arguments of `json.dumps`.
pub(super) struct Style {
    pub(super) ensure_ascii: bool,
    pub(super) indent: Option<usize>,
    pub(super) sort_keys: bool,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    /// A character that is never escaped.
    pub(super) sentinel: Option<char>,
}

impl Default for Style {
    fn default() -> Style {
        Style {
            ensure_ascii: false,
            indent: None,
            sort_keys: false,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            sentinel: None,
        }
    }
}

/// `str(value)` for numbers, lists and maps; `None` if the template engine already prints the value as Python does.
pub(super) fn printed(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => f64::try_from(value.clone()).ok().map(float),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            let mut out = String::new();
            write_repr(&mut out, value);
            Some(out)
        }
        _ => None,
    }
}

fn write_repr(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float))
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Map => {
            out.push('{');
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
            for (number, (key, value)) in pairs.into_iter().flatten().enumerate() {
                out.push_str(if number > 0 { ", " } else { "" });
                write_repr(out, &key);
                out.push_str(": ");
                write_repr(out, &value);
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let brackets = if value.is_tuple() { ['(', ')'] } else { ['[', ']'] };
            out.push(brackets[0]);
            let items = value.as_object().and_then(|object| object.try_iter());
            let mut count = 0;
            for item in items.into_iter().flatten() {
                out.push_str(if count > 0 { ", " } else { "" });
                write_repr(out, &item);
                count += 1;
            }
            out.push_str(if count == 1 && value.is_tuple() { "," } else { "" });
            out.push(brackets[1]);
        }
        _ => {
            let _ = write!(out, "{value:?}");
        }
    }
}

/// `repr` of a float: the shortest digits that give this number, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let shortest = format!("{number:e}");
    let Some((digits, exponent)) = shortest.split_once('e') else {
        return shortest;
    };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ if number.fract() == 0.0 => format!("{number:.1}"),
        _ => number.to_string(),
    }
}

/// `json.dumps(value)`. The caller must have checked the value's depth.
pub(super) fn json(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    write_json(&mut out, value, style, 0)?;
    Ok(out)
}

fn write_json(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&json_number(value)),
        ValueKind::String => write_json_text(out, value.as_str().unwrap_or_default(), style),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_json_items(out, ['[', ']'], &items, style, depth, |out, item, depth| {
                write_json(out, item, style, depth)
            })?;
        }
        ValueKind::Map => {
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
            let mut entries: Vec<(Value, Value)> = pairs.into_iter().flatten().collect();
            if style.sort_keys {
                entries.sort_by(|(left, _), (right, _)| left.cmp(right));
            }
            write_json_items(out, ['{', '}'], &entries, style, depth, |out, (key, value), depth| {
                write_json_key(out, key, style)?;
                out.push_str(&style.key_separator);
                write_json(out, value, style, depth)
            })?;
        }
        other => {
            let other = if other == ValueKind::Undefined {
                "Undefined".to_owned()
            } else {
                other.to_string()
            };
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("Object of type {other} is not JSON serializable"),
            ));
        }
    }
    Ok(())
}

fn json_number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => match float(number).as_str() {
            "nan" => "NaN".to_owned(),
            "inf" => "Infinity".to_owned(),
            "-inf" => "-Infinity".to_owned(),
            text => text.to_owned(),
        },
        _ => value.to_string(),
    }
}

fn write_json_key(out: &mut String, key: &Value, style: &Style) -> Result<(), Error> {
    match key.kind() {
        ValueKind::String => write_json_text(out, key.as_str().unwrap_or_default(), style),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            out.push('"');
            write_json(out, key, style, 0)?;
            out.push('"');
        }
        other => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("keys must be str, int, float, bool or None, not {other}"),
            ));
        }
    }
    Ok(())
}

fn write_json_items<T>(
    out: &mut String,
    brackets: [char; 2],
    items: &[T],
    style: &Style,
    depth: usize,
    mut write: impl FnMut(&mut String, &T, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(brackets[0]);
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, depth + 1);
        write(out, item, depth + 1)?;
    }
    if !items.is_empty() {
        new_line(out, depth);
    }
    out.push(brackets[1]);
    Ok(())
}

fn write_json_text(out: &mut String, text: &str, style: &Style) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if Some(c) == style.sentinel => out.push(c),
            c if (c as u32) < 0x20 || (style.ensure_ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use minijinja::value::Serde;
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_spaced_and_escaped_like_python() {
        let dumps =
            |value: &serde_json::Value, style: &Style| super::json(&Value::from(Serde(value.clone())), style).unwrap();
        let value = json!({"b": [1, 2.5, null, true], "a": {"x<y>&'": "\u{e9}\u{1}\n\u{1f600}"}, "e": [], "o": {}});
        // Each expected text is the output of json.dumps with the same arguments.
        assert_eq!(
            dumps(&value, &Style::default()),
            r#"{"b": [1, 2.5, null, true], "a": {"x<y>&'": "é\u0001\n😀"}, "e": [], "o": {}}"#
        );
        let ascii = Style {
            ensure_ascii: true,
            sort_keys: true,
            ..Style::default()
        };
        assert_eq!(
            dumps(&value, &ascii),
            r#"{"a": {"x<y>&'": "\u00e9\u0001\n\ud83d\ude00"}, "b": [1, 2.5, null, true], "e": [], "o": {}}"#
        );
        let indented = Style {
            indent: Some(2),
            item_separator: ",".into(),
            ..Style::default()
        };
        assert_eq!(
            dumps(&json!({"a": [1, {}], "b": 2}), &indented),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": 2\n}"
        );
    }

    #[test]
    fn floats_are_written_like_python() {
        // Each expected text is Python's repr of the same number.
        for (number, expected) in [
            (1e-7, "1e-07"),
            (1.5e-5, "1.5e-05"),
            (1e-4, "0.0001"),
            (0.00012345, "0.00012345"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (123456789012345.6, "123456789012345.6"),
            (1e15, "1000000000000000.0"),
            (9007199254740993.0, "9007199254740992.0"),
            (1e16, "1e+16"),
            (1.2345e22, "1.2345e+22"),
            (-1.7976931348623157e308, "-1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(float(number), expected);
        }
    }
}
