//! Stop strings, found wherever token boundaries fall.

/// Passes text on until a stop string appears; text that may yet turn out to be the start of one is held back.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    matched: Option<String>,
}

impl StopMatcher {
    /// A matcher for these strings; empty ones are ignored.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        Self {
            stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(),
            held: String::new(),
            matched: None,
        }
    }

    /// Takes the next piece of text and returns what can be shown now.
    /// After a match everything is swallowed.
    pub fn push(&mut self, text: &str) -> String {
        if self.matched.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        let first = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|at| (at, stop)))
            .min_by_key(|&(at, stop)| (at, std::cmp::Reverse(stop.len())));
        if let Some((at, stop)) = first {
            self.matched = Some(stop.clone());
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| open_suffix(&self.held, stop))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// The stop string that appeared, if one did.
    pub fn matched(&self) -> Option<&str> {
        self.matched.as_deref()
    }

    /// The text still held back when generation ends without a match.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that are a proper prefix of `stop`.
fn open_suffix(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest)
        .rev()
        .find(|&length| {
            text.is_char_boundary(text.len() - length) && text.as_bytes().ends_with(&stop.as_bytes()[..length])
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(stops.iter().map(|s| (*s).to_owned()))
    }

    #[test]
    fn a_stop_string_is_found_across_pieces_and_not_shown() {
        let mut m = matcher(&["END"]);
        assert_eq!(m.push("the E"), "the ");
        assert_eq!(m.push("N"), "");
        assert_eq!(m.push("D of it"), "");
        assert_eq!(m.matched(), Some("END"));
        assert_eq!(m.push("more"), "");
    }

    #[test]
    fn text_that_only_looked_like_a_stop_string_is_shown_in_full() {
        let mut m = matcher(&["\n\n"]);
        assert_eq!(m.push("a\n"), "a");
        assert_eq!(m.push("b"), "\nb");
        assert_eq!(m.push("\n"), "");
        assert_eq!(m.finish(), "\n");
    }

    #[test]
    fn the_earliest_stop_string_wins() {
        let mut m = matcher(&["later", "now"]);
        assert_eq!(m.push("not now but later"), "not ");
        assert_eq!(m.matched(), Some("now"));
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_where_pieces_are_cut(
            text in "[abé]{0,40}",
            stop in "[abé]{1,4}",
            cuts in proptest::collection::vec(0usize..41, 0..8),
        ) {
            let whole: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(whole.len())).collect();
            cuts.sort_unstable();
            cuts.push(whole.len());
            let mut m = matcher(&[&stop]);
            let mut shown = String::new();
            let mut start = 0;
            for end in cuts {
                shown += &m.push(&whole[start..end].iter().collect::<String>());
                start = end;
            }
            shown += &m.finish();
            let expected = text.find(&stop).map_or(text.as_str(), |at| &text[..at]);
            prop_assert_eq!(shown, expected);
            prop_assert_eq!(m.matched().is_some(), text.contains(&stop));
        }
    }
}
