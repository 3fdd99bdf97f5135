//! JSON without repeated field names, because a second value has no clear meaning.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses JSON. Integers of more than 64 bits in arguments of earlier calls become texts of their digits: a model wrote
/// them, and its client sends them back.
///
/// # Errors
/// The fault of the text, and its line and column.
pub(crate) fn parse(text: &[u8]) -> Result<Value, serde_json::Error> {
    let OnceNamed(value) = serde_json::from_slice(text)?;
    let long = long_integers(text);
    if let Some(integer) = long.iter().find(|integer| !integer.is_argument) {
        return Err(serde_json::Error::custom(integer.problem(text)));
    }
    if long.is_empty() {
        return Ok(value);
    }
    let OnceNamed(value) = serde_json::from_slice(&quoted(text, &long))?;
    Ok(value)
}

/// The value of a model's arguments. Integers of more than 64 bits become texts of their digits.
///
/// # Errors
/// The fault of the text, and its position.
pub(crate) fn parse_arguments(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(&quoted(text.as_bytes(), &long_integers(text.as_bytes())))
}

/// Refuses integers of more than 64 bits in valid JSON, which would be rounded to doubles.
///
/// # Errors
/// The integer and the remedy.
pub(crate) fn check_integers(text: &[u8]) -> Result<(), String> {
    match long_integers(text).first() {
        Some(integer) => Err(integer.problem(text)),
        None => Ok(()),
    }
}

/// An integer of more than 64 bits.
struct LongInteger {
    place: Range<usize>,
    /// True if the integer is in the `input` of a call in `messages`.
    is_argument: bool,
}

impl LongInteger {
    fn problem(&self, text: &[u8]) -> String {
        let shown: String = self.digits(text).chars().take(60).collect();
        format!("the integer {shown} has more than 64 bits: send it as a string")
    }

    fn digits<'t>(&self, text: &'t [u8]) -> &'t str {
        str::from_utf8(&text[self.place.clone()]).unwrap_or_default()
    }
}

/// Integers of more than 64 bits in valid JSON.
fn long_integers(text: &[u8]) -> Vec<LongInteger> {
    let mut found = Vec::new();
    // Quoted names of the objects and lists around a position; empty for a list.
    let (mut names, mut name): (Vec<&[u8]>, &[u8]) = (Vec::new(), &[]);
    let mut at = 0;
    while let Some(first) = text.get(at) {
        let mut end = at + 1;
        match first {
            b'"' => {
                end = end_of_string(text, at);
                let mut after = text[end..].iter().filter(|byte| !byte.is_ascii_whitespace());
                if after.next() == Some(&b':') {
                    name = &text[at..end];
                }
            }
            b'{' | b'[' => names.push(std::mem::take(&mut name)),
            b'}' | b']' => {
                names.pop();
                name = &[];
            }
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                end = at + text[at..].iter().take_while(|byte| is_part(byte)).count();
                if is_long(&text[at..end]) {
                    let in_messages = names.get(1) == Some(&b"\"messages\"".as_slice());
                    found.push(LongInteger {
                        place: at..end,
                        is_argument: in_messages && names.contains(&b"\"input\"".as_slice()),
                    });
                }
            }
            _ => {}
        }
        at = end;
    }
    found
}

fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while text.get(at).is_some_and(|byte| *byte != b'"') {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

fn is_long(number: &[u8]) -> bool {
    const SHORTEST: usize = 19;
    let number = str::from_utf8(number).unwrap_or_default();
    let is_integer = !number.contains(['.', 'e', 'E']);
    number.len() >= SHORTEST && is_integer && number.parse::<i64>().is_err() && number.parse::<u64>().is_err()
}

/// JSON with quoted integers.
fn quoted(text: &[u8], integers: &[LongInteger]) -> Vec<u8> {
    let (mut quoted, mut at) = (Vec::with_capacity(text.len()), 0);
    for integer in integers {
        quoted.extend_from_slice(&text[at..integer.place.start]);
        quoted.extend(format!("\"{}\"", integer.digits(text)).bytes());
        at = integer.place.end;
    }
    quoted.extend_from_slice(&text[at..]);
    quoted
}

struct OnceNamed(Value);

impl<'de> Deserialize<'de> for OnceNamed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value);
        number
            .map(Value::Number)
            .ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(OnceNamed(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = object.next_key::<String>()? {
            if fields.contains_key(&name) {
                return Err(A::Error::custom(format!("the field {name:?} stands twice")));
            }
            let OnceNamed(value) = object.next_value()?;
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_stand() {
        for text in [
            r#"{"a":[1,-2,18446744073709551615,0.1,1e300,true,null,"\u00e9\n"],"b":{"a":{}}}"#,
            "[]",
            "5",
            "\"a\"",
        ] {
            let expected: Value = serde_json::from_str(text).unwrap();
            assert_eq!(parse(text.as_bytes()).unwrap(), expected);
        }
        assert!(parse(b"1e999").is_err());
    }

    #[test]
    fn an_integer_that_would_be_rounded_is_refused() {
        for text in [
            "[18446744073709551616]",
            "{\"a\": -9223372036854775809}",
            "123456789012345678901234567890",
        ] {
            let problem = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(
                problem.contains("has more than 64 bits: send it as a string"),
                "{problem}"
            );
        }
        for text in [
            "[18446744073709551615,-9223372036854775808]",
            "\"\\\"18446744073709551616\"",
            "18446744073709551616.5",
            "1e30",
        ] {
            assert!(parse(text.as_bytes()).is_ok(), "{text}");
        }
    }

    #[test]
    fn long_integers_that_a_model_wrote_keep_their_digits() {
        let body = |input: &str| format!(r#"{{"messages": [{{"content": ["input", {{"input": {input}}}]}}]}}"#);
        let parsed = parse(body(r#"{"a": [-123456789012345678901, 5]}"#).as_bytes()).unwrap();
        let expected = r#"{"a": ["-123456789012345678901", 5]}"#;
        assert_eq!(parsed, serde_json::from_str::<Value>(&body(expected)).unwrap());
        let arguments = parse_arguments(r#"{"a": 18446744073709551616, "b": "18446744073709551616"}"#).unwrap();
        assert_eq!(arguments["a"], arguments["b"]);
        for text in [
            r#"{"input": {"messages": 18446744073709551616}}"#,
            r#"{"messages": ["input", {"a": 18446744073709551616}]}"#,
            r#"{"messages": [{"x": {"input": 1}}, {"a": 18446744073709551616}]}"#,
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_field_that_stands_twice_is_refused_at_any_depth() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"{"b": [{"a": 1, "a": 2}]}"#] {
            let problem = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(problem.starts_with("the field \"a\" stands twice"), "{problem}");
        }
        assert!(parse(br#"{"a": {"a": 1}}"#).is_ok());
    }
}
