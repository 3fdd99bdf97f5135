//! `/set`: changes the sampling of answers.

use riffle_engine::GenerateOptions;

use crate::failure::Failure;
use crate::numbers;

/// Names of the settings.
const NAMES: [&str; 10] = [
    "temperature",
    "top-k",
    "top-p",
    "min-p",
    "repeat-penalty",
    "presence-penalty",
    "frequency-penalty",
    "seed",
    "tokens",
    "stop",
];

/// The options with one change. The code that uses the options checks every range.
pub(crate) fn with(options: &GenerateOptions, name: &str, value: &str) -> Result<GenerateOptions, Failure> {
    let mut options = options.clone();
    let sampling = &mut options.sampling;
    let plain = name.replace('_', "-");
    let refused = |problem: String| Failure::new(format!("{plain} is {value:?}, but {problem}"));
    let number = || {
        let number = value.parse::<f32>();
        number.map_err(|_| refused("it must be a number".to_owned()))
    };
    match &*plain {
        "temperature" => sampling.temperature = numbers::temperature(value).map_err(refused)?,
        "top-k" => sampling.top_k = numbers::tokens_or_none(value).map_err(refused)?,
        "top-p" => sampling.top_p = numbers::top_p(value).map_err(refused)?,
        "min-p" => sampling.min_p = numbers::min_p(value).map_err(refused)?,
        "repeat-penalty" => sampling.repeat_penalty = numbers::repeat_penalty(value).map_err(refused)?,
        "presence-penalty" => sampling.presence_penalty = number()?,
        "frequency-penalty" => sampling.frequency_penalty = number()?,
        "seed" => sampling.seed = numbers::seed(value).map_err(refused)?,
        "tokens" => options.max_tokens = numbers::answer_tokens(value).map_err(refused)?,
        "stop" => {
            options.stops = match value {
                "-" => Vec::new(),
                text => vec![text.replace("\\n", "\n")],
            }
        }
        _ => {
            return Err(Failure::new(format!(
                "there is no setting {name:?}; there are {}",
                NAMES.join(", ")
            )));
        }
    }
    Ok(options)
}

/// All settings, one per line.
pub(crate) fn shown(options: &GenerateOptions) -> String {
    let sampling = &options.sampling;
    let tokens = match options.max_tokens {
        usize::MAX => "-1 (until the answer or the context ends)".to_owned(),
        tokens => tokens.to_string(),
    };
    let stops = options.stops.iter().map(|stop| format!("{stop:?}"));
    let stops = if options.stops.is_empty() {
        "- (none)".to_owned()
    } else {
        stops.collect::<Vec<_>>().join(" ")
    };
    let values = [
        sampling.temperature.to_string(),
        sampling.top_k.to_string(),
        sampling.top_p.to_string(),
        sampling.min_p.to_string(),
        sampling.repeat_penalty.to_string(),
        sampling.presence_penalty.to_string(),
        sampling.frequency_penalty.to_string(),
        sampling.seed.to_string(),
        tokens,
        stops,
    ];
    let lines = NAMES
        .iter()
        .zip(values)
        .map(|(name, value)| format!("{name:<18} {value}"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_can_be_set_and_is_shown() {
        let mut options = GenerateOptions::default();
        for name in NAMES {
            options = with(&options, name, "1").unwrap_or_else(|failure| panic!("{name}: {failure}"));
        }
        assert_eq!(options.sampling.top_k, 1);
        assert_eq!(options.stops, ["1"]);
        assert_eq!(shown(&options).lines().count(), NAMES.len());
        assert!(with(&options, "stop", "-").expect("none").stops.is_empty());
        for (name, value) in [("temperature", "hot"), ("top-p", "2"), ("warmth", "1")] {
            assert!(with(&options, name, value).is_err(), "{name} {value}");
        }
    }
}
