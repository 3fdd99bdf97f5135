//! Converts positions to spans.

use riffle_attention::Span;

/// Runs of consecutive numbers, from ascending numbers.
pub fn runs(numbers: impl IntoIterator<Item = usize>) -> Vec<Span> {
    let mut runs: Vec<Span> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(Span::new(number, number + 1)),
        }
    }
    runs
}
