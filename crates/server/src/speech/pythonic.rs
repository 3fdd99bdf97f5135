//! Calls in Python's syntax: `[name(key="text", other=[1, True])]` (LFM2).

use serde_json::{Map, Value};

/// Deepest nesting of lists and dictionaries.
const LARGEST_DEPTH: usize = 64;

/// The name of a call and its arguments: as a map, and as JSON with every digit.
pub(super) type PythonCall = (String, Map<String, Value>, String);

/// The calls of a list, or a single call; `None` for anything else.
pub(super) fn calls(text: &str) -> Option<Vec<PythonCall>> {
    let text = text.trim();
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let mut literal = Literal {
        rest: inner.unwrap_or(text).trim_start(),
    };
    let mut calls = vec![literal.call()?];
    while literal.take(",") {
        if literal.rest.is_empty() {
            break;
        }
        calls.push(literal.call()?);
    }
    literal.rest.is_empty().then_some(calls)
}

/// True if a prefix of Python source ends inside a text.
pub(super) fn is_in_text(source: &str) -> bool {
    let (mut quote, mut is_escaped) = (None, false);
    for byte in source.bytes() {
        match quote {
            _ if is_escaped => is_escaped = false,
            Some(_) if byte == b'\\' => is_escaped = true,
            Some(open) if byte == open => quote = None,
            None if byte == b'"' || byte == b'\'' => quote = Some(byte),
            _ => {}
        }
    }
    quote.is_some()
}

/// The remaining source, without leading white space.
struct Literal<'a> {
    rest: &'a str,
}

impl Literal<'_> {
    /// True if the source continues with a sign, which is then skipped.
    fn take(&mut self, sign: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(sign) else {
            return false;
        };
        self.rest = rest.trim_start();
        true
    }

    fn name(&mut self) -> Option<String> {
        let is_of_name = |letter: char| letter.is_alphanumeric() || "_-.".contains(letter);
        let end = self.rest.find(|letter| !is_of_name(letter)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        (!name.is_empty()).then(|| name.to_owned())
    }

    fn call(&mut self) -> Option<PythonCall> {
        let name = self.name()?;
        if !self.take("(") {
            return None;
        }
        let mut members = Vec::new();
        while !self.take(")") {
            let key = Value::String(self.name()?);
            if !self.take("=") {
                return None;
            }
            members.push(format!("{key}: {}", self.value(0)?));
            if !self.take(",") && !self.rest.starts_with(')') {
                return None;
            }
        }
        let json = format!("{{{}}}", members.join(", "));
        Some((name, serde_json::from_str(&json).ok()?, json))
    }

    /// The JSON of a value.
    fn value(&mut self, depth: usize) -> Option<String> {
        if depth > LARGEST_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            '[' => {
                self.take("[");
                self.items("]", depth).map(|items| format!("[{}]", items.join(", ")))
            }
            '(' => {
                self.take("(");
                self.items(")", depth).map(|items| format!("[{}]", items.join(", ")))
            }
            '{' => {
                self.take("{");
                let mut members = Vec::new();
                while !self.take("}") {
                    let key = Value::String(self.text()?);
                    if !self.take(":") {
                        return None;
                    }
                    members.push(format!("{key}: {}", self.value(depth + 1)?));
                    if !self.take(",") && !self.rest.starts_with('}') {
                        return None;
                    }
                }
                Some(format!("{{{}}}", members.join(", ")))
            }
            '"' | '\'' => Some(Value::String(self.text()?).to_string()),
            _ => self.word(),
        }
    }

    fn items(&mut self, end: &str, depth: usize) -> Option<Vec<String>> {
        let mut items = Vec::new();
        while !self.take(end) {
            items.push(self.value(depth + 1)?);
            if !self.take(",") && !self.rest.starts_with(end) {
                return None;
            }
        }
        Some(items)
    }

    /// A number, or a constant in Python's or JSON's spelling.
    fn word(&mut self) -> Option<String> {
        let end = self
            .rest
            .find([',', ')', ']', '}', ' ', '\n'])
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        Some(match word {
            "True" | "true" => "true".to_owned(),
            "False" | "false" => "false".to_owned(),
            "None" | "null" => "null".to_owned(),
            number => {
                let value: Value = serde_json::from_str(number).ok()?;
                value.is_number().then(|| number.to_owned())?
            }
        })
    }

    /// A text in either quotes.
    fn text(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
        let mut text = String::new();
        let mut letters = self.rest[1..].char_indices();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => match letters.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    other @ ('\\' | '\'' | '"') => text.push(other),
                    // Python keeps a backslash before any other letter.
                    other => text.extend(['\\', other]),
                },
                letter if letter == quote => {
                    self.rest = self.rest[1 + at + 1..].trim_start();
                    return Some(text);
                }
                letter => text.push(letter),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_of_python_have_the_arguments_that_they_spell() {
        let text = r#"[look(query="a \"b\", 'c'", days=2, exact=True), stop(), put(at=[1, -2.5], of={'x': None, "y": ('z',)})]"#;
        let found = calls(text).unwrap();
        let names: Vec<&str> = found.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["look", "stop", "put"]);
        let arguments: Vec<Value> = found.iter().map(|(_, map, _)| Value::Object(map.clone())).collect();
        assert_eq!(
            arguments,
            [
                json!({"query": "a \"b\", 'c'", "days": 2, "exact": true}),
                json!({}),
                json!({"at": [1, -2.5], "of": {"x": null, "y": ["z"]}}),
            ]
        );
        assert_eq!(
            calls("f(n=12345678901234567890123)").unwrap()[0].2,
            r#"{"n": 12345678901234567890123}"#
        );
    }

    #[test]
    fn other_texts_are_no_calls() {
        let deep = format!("f(a={}1{})", "[".repeat(100), "]".repeat(100));
        for text in [
            "",
            "[]",
            "f",
            "f(",
            "f(1)",
            "f(a)",
            "f(a=)",
            "f(a=b)",
            "f(a='x)",
            "f(a=1) g(b=2)",
            "[f(a=1)",
            &deep,
        ] {
            assert_eq!(calls(text), None, "{text}");
        }
    }

    #[test]
    fn a_mark_inside_a_text_is_found_out() {
        assert!(is_in_text(r#"f(a="it's "#) && is_in_text(r"f(a='\'"));
        assert!(!is_in_text(r#"f(a="it's", b='"')"#));
    }
}
