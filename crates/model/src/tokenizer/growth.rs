//! Limits the growth of texts.

/// Steps a normalizer or a decoder may have.
pub(crate) const MOST_STEPS: usize = 64;

/// Largest ratio of output to input length of all steps together, by the steps' settings. The longest chains of known
/// tokenizers stay below 200: a one-byte space becomes a three-byte `▁`, a compatibility character of three bytes
/// becomes 33, an upper-case letter of two becomes three.
const LARGEST_GROWTH: f64 = 1024.0;

/// Largest actual ratio of output to input length, and additional bytes for short texts.
const LARGEST_FACTOR: usize = 64;
const SPARE_BYTES: usize = 1 << 20;

/// Checks the number of steps and their total growth.
pub(crate) fn check(what: &str, growths: impl ExactSizeIterator<Item = f64>) -> Result<(), String> {
    if growths.len() > MOST_STEPS {
        return Err(format!(
            "its {what} has {} steps, {MOST_STEPS} is the limit",
            growths.len()
        ));
    }
    let growth: f64 = growths.map(|growth| growth.max(1.0)).product();
    if growth > LARGEST_GROWTH {
        return Err(format!(
            "its {what} may make a text {growth:.0} times as long, {LARGEST_GROWTH} times is the limit"
        ));
    }
    Ok(())
}

/// A text buffer that never grows beyond the limit for its input.
pub(crate) struct Bounded {
    text: String,
    limit: usize,
}

impl Bounded {
    /// An empty text for an input of this many bytes.
    pub(crate) fn new(input_bytes: usize) -> Bounded {
        Bounded {
            text: String::with_capacity(input_bytes),
            limit: limit(input_bytes),
        }
    }

    pub(crate) fn push(&mut self, text: &str) -> Result<(), String> {
        if text.len() > self.limit - self.text.len() {
            return Err(format!(
                "the tokenizer's settings make it longer than {} bytes, more than {LARGEST_FACTOR} times its length",
                self.limit
            ));
        }
        self.text.push_str(text);
        Ok(())
    }

    /// Removes every trailing `end`.
    pub(crate) fn trim_end(&mut self, end: &str) {
        let kept = self.text.trim_end_matches(end).len();
        self.text.truncate(kept);
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}

fn limit(input_bytes: usize) -> usize {
    input_bytes.saturating_mul(LARGEST_FACTOR).saturating_add(SPARE_BYTES)
}
