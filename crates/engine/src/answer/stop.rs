//! Finds stop strings across token boundaries.

/// Passes text on until a stop string appears. Text that may be the start of one is held back.
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

    /// Adds text and returns the part that can be shown now. After a match, everything is dropped.
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

    /// The stop string that was found, if any.
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
