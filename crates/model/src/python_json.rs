//! JSON as Python's `json.dumps` writes it, which is what models saw in training.

use std::fmt::Write;

use serde_json::Value;

/// The arguments of `json.dumps`.
pub(crate) struct Style {
    pub(crate) ensure_ascii: bool,
    pub(crate) indent: Option<usize>,
    pub(crate) sort_keys: bool,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
}

impl Default for Style {
    fn default() -> Style {
        Style {
            ensure_ascii: false,
            indent: None,
            sort_keys: false,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
        }
    }
}

/// The text of `value`.
pub(crate) fn to_python_json(value: &Value, style: &Style) -> String {
    let mut out = String::new();
    write_value(&mut out, value, style, 0);
    out
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::String(text) => write_text(out, text, style),
        Value::Array(items) => write_items(out, ['[', ']'], items, style, depth, |out, item, depth| {
            write_value(out, item, style, depth);
        }),
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            if style.sort_keys {
                entries.sort_by_key(|(key, _)| *key);
            }
            write_items(out, ['{', '}'], &entries, style, depth, |out, (key, value), depth| {
                write_text(out, key, style);
                out.push_str(&style.key_separator);
                write_value(out, value, style, depth);
            });
        }
    }
}

fn write_items<T>(
    out: &mut String,
    brackets: [char; 2],
    items: &[T],
    style: &Style,
    depth: usize,
    mut write: impl FnMut(&mut String, &T, usize),
) {
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
        write(out, item, depth + 1);
    }
    if !items.is_empty() {
        new_line(out, depth);
    }
    out.push(brackets[1]);
}

fn write_text(out: &mut String, text: &str, style: &Style) {
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
    use super::*;
    use serde_json::json;

    #[test]
    fn json_is_spaced_and_escaped_like_python() {
        let value = json!({"b": [1, 2.5, null, true], "a": {"x<y>&'": "\u{e9}\u{1}\n\u{1f600}"}, "e": [], "o": {}});
        // Each expected text is the output of json.dumps with the same arguments.
        assert_eq!(
            to_python_json(&value, &Style::default()),
            r#"{"b": [1, 2.5, null, true], "a": {"x<y>&'": "é\u0001\n😀"}, "e": [], "o": {}}"#
        );
        let ascii = Style {
            ensure_ascii: true,
            sort_keys: true,
            ..Style::default()
        };
        assert_eq!(
            to_python_json(&value, &ascii),
            r#"{"a": {"x<y>&'": "\u00e9\u0001\n\ud83d\ude00"}, "b": [1, 2.5, null, true], "e": [], "o": {}}"#
        );
        let indented = Style {
            indent: Some(2),
            item_separator: ",".into(),
            ..Style::default()
        };
        assert_eq!(
            to_python_json(&json!({"a": [1, {}], "b": 2}), &indented),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": 2\n}"
        );
    }
}
