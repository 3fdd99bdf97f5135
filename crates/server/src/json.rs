//! JSON in which no object names a field twice, because a second value would have no clear meaning.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The value that a text spells.
///
/// # Errors
/// The fault of the text, and its line and column.
pub(crate) fn parse(text: &[u8]) -> Result<Value, serde_json::Error> {
    let OnceNamed(value) = serde_json::from_slice(text)?;
    check_integers(text).map_err(serde_json::Error::custom)?;
    Ok(value)
}

/// Refuses integers of more than 64 bits in valid JSON, which would be rounded to doubles.
///
/// # Errors
/// The integer and what to do.
pub(crate) fn check_integers(text: &[u8]) -> Result<(), String> {
    const SHORTEST: usize = 19;
    let mut at = 0;
    while let Some(first) = text.get(at) {
        match first {
            b'"' => {
                at += 1;
                while text.get(at).is_some_and(|byte| *byte != b'"') {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                let end = text[at..]
                    .iter()
                    .position(|byte| !is_part(byte))
                    .unwrap_or(text.len() - at);
                let number = str::from_utf8(&text[at..at + end]).unwrap_or_default();
                let is_integer = !number.contains(['.', 'e', 'E']);
                if number.len() >= SHORTEST
                    && is_integer
                    && number.parse::<i64>().is_err()
                    && number.parse::<u64>().is_err()
                {
                    let shown = if number.len() > 60 { &number[..60] } else { number };
                    return Err(format!(
                        "the integer {shown} has more than 64 bits: send it as a string"
                    ));
                }
                at += end;
            }
            _ => at += 1,
        }
    }
    Ok(())
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
    fn a_field_that_stands_twice_is_refused_at_any_depth() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"{"b": [{"a": 1, "a": 2}]}"#] {
            let problem = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(problem.starts_with("the field \"a\" stands twice"), "{problem}");
        }
        assert!(parse(br#"{"a": {"a": 1}}"#).is_ok());
    }
}
