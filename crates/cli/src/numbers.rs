//! Parses numbers of the command line and checks their ranges.

use std::ops::RangeInclusive;

use riffle_engine::EngineError;

/// Limit on every count of tokens; policies have the same limit.
const MAX_TOKENS: u64 = u32::MAX as u64;

/// A number of tokens, at least one.
pub(crate) fn tokens(text: &str) -> Result<usize, String> {
    whole(text, 1..=MAX_TOKENS)
}

/// A number of tokens, or zero.
pub(crate) fn tokens_or_none(text: &str) -> Result<usize, String> {
    whole(text, 0..=MAX_TOKENS)
}

/// Tokens of an answer; -1 and llama.cpp's -2 set no limit.
pub(crate) fn answer_tokens(text: &str) -> Result<usize, String> {
    match text {
        "-1" | "-2" => Ok(usize::MAX),
        _ => whole(text, 0..=MAX_TOKENS)
            .map_err(|range| format!("{range}, or -1 for until the answer or the context ends")),
    }
}

/// Number of pages in transit.
pub(crate) fn slots(text: &str) -> Result<usize, String> {
    whole(text, 1..=1 << 16)
}

/// Documents, prompts or depths of a measurement.
pub(crate) fn samples(text: &str) -> Result<usize, String> {
    whole(text, 1..=10_000)
}

/// The same range as [`samples`].
pub(crate) fn documents(text: &str) -> Result<u64, String> {
    samples(text).map(|count| count as u64)
}

/// Number of runs; the fastest counts.
pub(crate) fn repeats(text: &str) -> Result<usize, String> {
    whole(text, 1..=1000)
}

/// Number of sequences that answer together.
pub(crate) fn sequences(text: &str) -> Result<usize, String> {
    whole(text, 1..=1024)
}

/// Layers of a model, for policies without a model.
pub(crate) fn layers(text: &str) -> Result<usize, String> {
    whole(text, 1..=1024)
}

/// A number of heads, or a head's width; 0 is refused together with the whole shape.
pub(crate) fn head_count(text: &str) -> Result<usize, String> {
    whole(text, 0..=1 << 14)
}

/// Number of threads.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    whole(text, 1..=riffle_engine::max_threads() as u64)
}

/// The seed of a generator of random numbers.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("it must be a whole number from 0 to {}", u64::MAX))
}

/// Bytes with an optional unit.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    riffle_engine::parse_bytes("", text.trim()).map_err(requirement)
}

/// Only the allowed values, because clap adds the option and the value.
pub(crate) fn requirement(error: EngineError) -> String {
    match error {
        EngineError::Option { requirement, .. } => requirement,
        error => error.to_string(),
    }
}

/// Memory for a model. Less than a mebibyte is probably a number without its unit.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        few if few < 1 << 20 => Err("it must be at least 1M: give it with a unit, e.g. 900M or 12G".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A share from 0 to 1.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let share = text.trim().parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "it must be a share from 0 to 1".to_owned())
}

/// A share above 0 and at most 1.
pub(crate) fn share_above_zero(text: &str) -> Result<f64, String> {
    let share = share(text).ok().filter(|share| *share > 0.0);
    share.ok_or_else(|| "it must be a share above 0 and at most 1".to_owned())
}

/// The temperature of sampling.
pub(crate) fn temperature(text: &str) -> Result<f32, String> {
    number(text, |value| value >= 0.0, "0 (the most likely token) or more")
}

/// The probability mass of top-p sampling.
pub(crate) fn top_p(text: &str) -> Result<f32, String> {
    number(text, |value| value > 0.0 && value <= 1.0, "above 0 and at most 1")
}

/// The minimum probability relative to the most likely token.
pub(crate) fn min_p(text: &str) -> Result<f32, String> {
    number(text, |value| (0.0..=1.0).contains(&value), "from 0 to 1")
}

/// The penalty factor of recent tokens.
pub(crate) fn repeat_penalty(text: &str) -> Result<f32, String> {
    number(text, |value| value > 0.0, "a number above 0 (1 is off)")
}

/// Parses `on` or `off`.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match &*text.to_ascii_lowercase() {
        "on" | "true" | "yes" | "1" => Ok(true),
        "off" | "false" | "no" | "0" => Ok(false),
        _ => Err("it must be on or off".to_owned()),
    }
}

fn number(text: &str, allowed: impl Fn(f32) -> bool, requirement: &str) -> Result<f32, String> {
    let value: Option<f32> = text.trim().parse().ok();
    let value = value.filter(|value| value.is_finite() && allowed(*value));
    value.ok_or_else(|| format!("it must be {requirement}"))
}

fn whole(text: &str, range: RangeInclusive<u64>) -> Result<usize, String> {
    let value: Option<u64> = text.trim().parse().ok();
    let value = value.filter(|value| range.contains(value));
    let value = value.and_then(|value| usize::try_from(value).ok());
    value.ok_or_else(|| format!("it must be a whole number from {} to {}", range.start(), range.end()))
}
