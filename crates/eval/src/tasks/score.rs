//! Scores of answers against expected texts.

/// RULER's `string_match_all`: the share of the expected strings in the answer, ignoring case.
pub(crate) fn match_all(answer: &str, expected: &[String]) -> f64 {
    let answer = answer.to_lowercase();
    let found = expected.iter().filter(|text| answer.contains(&text.to_lowercase()));
    found.count() as f64 / expected.len().max(1) as f64
}

/// RULER's `string_match_part`: 1 when any expected string occurs in the answer, case aside.
pub(crate) fn match_any(answer: &str, expected: &[String]) -> f64 {
    let answer = answer.to_lowercase();
    f64::from(u8::from(
        expected.iter().any(|text| answer.contains(&text.to_lowercase())),
    ))
}

/// Counts the expected values that the answer has among its first values. It looks at as many values as are expected.
/// Values match whole. A value is a run of letters, digits and dashes with at least one digit.
pub(crate) fn exact_values(answer: &str, expected: &[String]) -> usize {
    let found: Vec<&str> = answer
        .split(|c: char| !c.is_alphanumeric() && c != '-')
        .filter(|word| word.contains(|c: char| c.is_ascii_digit()))
        .take(expected.len())
        .collect();
    expected.iter().filter(|value| found.contains(&value.as_str())).count()
}

/// True if the first name in an answer of code (a run of letters, digits and underscores) is the expected name.
pub(crate) fn is_name(answer: &str, expected: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let begins = answer.trim_start_matches(|c| !is_part(c));
    let end = begins.find(|c| !is_part(c)).unwrap_or(begins.len());
    begins[..end] == *expected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn string_matches_are_rulers() {
        let expected = texts(&["Alpha", "beta", "gamma", "delta"]);
        assert_eq!(match_all("ALPHA, delta and betas", &expected), 0.75);
        assert_eq!(match_any("no gamma here", &expected), 1.0);
        assert_eq!(match_any("none", &expected), 0.0);
    }

    #[test]
    fn a_name_counts_whole_and_only_as_the_first_of_the_answer() {
        for answer in ["river_stone", " river_stone(3);", "::river_stone(river_bank"] {
            assert!(is_name(answer, "river_stone"), "{answer}");
        }
        for answer in ["", "river_stones(3)", "river", "river_bank(river_stone", "_river_stone"] {
            assert!(!is_name(answer, "river_stone"), "{answer}");
        }
    }

    #[test]
    fn values_count_only_whole_and_only_as_many_as_were_asked_for() {
        let one = texts(&["12345"]);
        assert_eq!(exact_values(" 12345.", &one), 1);
        assert_eq!(exact_values(" 123456.", &one), 0);
        assert_eq!(
            exact_values(" 99999 or 12345", &one),
            0,
            "the second guess does not count"
        );
        let three = texts(&["111", "222", "333"]);
        assert_eq!(exact_values("222, 444 and 111, 333", &three), 2);
        assert_eq!(exact_values("0a1b-22 is it", &texts(&["0a1b-22"])), 1);
    }
}
