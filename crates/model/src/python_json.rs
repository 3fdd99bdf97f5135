//! JSON as Python writes it: with `Infinity` and `NaN` for numbers that JSON does not have.

/// Replaces each of these numbers by null; `None` if there is none.
pub(crate) fn without_python_numbers(json: &[u8]) -> Option<Vec<u8>> {
    let mut replaced = Vec::with_capacity(json.len());
    let (mut rest, mut is_text, mut found) = (json, false, false);
    while let [first, after @ ..] = rest {
        let number = [&b"-Infinity"[..], b"Infinity", b"NaN"]
            .into_iter()
            .find(|number| !is_text && rest.starts_with(number));
        if let Some(number) = number {
            replaced.extend_from_slice(b"null");
            rest = &rest[number.len()..];
            found = true;
            continue;
        }
        let taken = match (is_text, first, after) {
            // A backslash escapes the next character.
            (true, b'\\', [_, ..]) => 2,
            _ => 1,
        };
        is_text ^= *first == b'"';
        replaced.extend_from_slice(&rest[..taken]);
        rest = &rest[taken..];
    }
    found.then_some(replaced)
}

#[cfg(test)]
mod tests {
    use super::without_python_numbers;

    #[test]
    fn numbers_of_python_are_null_and_texts_stay() {
        let json = br#"{"a": [0.0, Infinity], "NaN\"Infinity": -Infinity, "b": NaN}"#;
        let expected = br#"{"a": [0.0, null], "NaN\"Infinity": null, "b": null}"#;
        assert_eq!(without_python_numbers(json).as_deref(), Some(&expected[..]));
        assert_eq!(without_python_numbers(br#"{"a": "Infinity"}"#), None);
    }
}
