use std::fmt;

use riffle_attention::Span;

use crate::PolicyError;

/// One parameter of a policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterInfo {
    /// The name in a [`PolicySpec`](crate::PolicySpec).
    pub name: &'static str,
    /// The default value.
    pub default: &'static str,
    /// Meaning of the parameter.
    pub meaning: &'static str,
    /// Kind and limits of the value.
    pub kind: ParameterKind,
}

/// The values of a parameter. Limits are included.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ParameterKind {
    /// An integer.
    Count {
        /// The smallest.
        min: usize,
        /// The largest.
        max: usize,
    },
    /// An integer that is a power of two.
    PowerOfTwo {
        /// The smallest.
        min: usize,
        /// The largest.
        max: usize,
    },
    /// A number.
    Number {
        /// The smallest.
        min: f32,
        /// The largest.
        max: f32,
    },
    /// Token positions joined by `+`, or `none`.
    Positions,
    /// Token ranges, first and last included, joined by `+`, or `none`.
    Spans,
}

/// The largest number of tokens a parameter can name.
pub(crate) const MAX_TOKENS: usize = u32::MAX as usize;

impl ParameterInfo {
    // Blocks and layers that policies with blocks always read.
    pub(crate) const DENSE_LAYERS: Self =
        Self::count("dense_layers", "2", "first layers that read everything", 0, 1 << 16);
    pub(crate) const SINK_BLOCKS: Self = Self::count("sinks", "1", "first blocks, always read", 0, 1 << 24);
    pub(crate) const RECENT_BLOCKS: Self = Self::count(
        "recent",
        "2",
        "latest blocks, always read, the current one included",
        1,
        1 << 24,
    );

    /// A number of tokens, from 0 on.
    pub const fn tokens(name: &'static str, default: &'static str, meaning: &'static str) -> Self {
        Self::count(name, default, meaning, 0, MAX_TOKENS)
    }

    /// A number from `min` to `max`.
    pub const fn number(name: &'static str, default: &'static str, meaning: &'static str, min: f32, max: f32) -> Self {
        Self {
            name,
            default,
            meaning,
            kind: ParameterKind::Number { min, max },
        }
    }

    /// An integer from `min` to `max`.
    pub const fn count(
        name: &'static str,
        default: &'static str,
        meaning: &'static str,
        min: usize,
        max: usize,
    ) -> Self {
        Self {
            name,
            default,
            meaning,
            kind: ParameterKind::Count { min, max },
        }
    }
}

impl ParameterKind {
    fn requirement(self) -> String {
        match self {
            Self::Count { min, max: MAX_TOKENS } => format!("a whole number from {min} on (at most {MAX_TOKENS})"),
            Self::Count { min, max } => format!("a whole number from {min} to {max}"),
            Self::PowerOfTwo { min, max } => format!("a power of two from {min} to {max}"),
            Self::Number { min, max } => format!("a number from {min} to {max}"),
            Self::Positions => "positions joined by +, like 0+17, or none".to_owned(),
            Self::Spans => "ranges joined by +, like 0-99+512-600, or none".to_owned(),
        }
    }

    fn parse(self, text: &str) -> Option<Value> {
        match self {
            Self::Count { min, max } => {
                let value = parse_count(text)?;
                (min..=max).contains(&value).then_some(Value::Count(value))
            }
            Self::PowerOfTwo { min, max } => {
                let value = parse_count(text)?;
                ((min..=max).contains(&value) && value.is_power_of_two()).then_some(Value::Count(value))
            }
            Self::Number { min, max } => {
                let value = text.parse::<f32>().ok()?;
                (min..=max).contains(&value).then_some(Value::Number(value))
            }
            Self::Positions if text == "none" => Some(Value::Positions(Vec::new())),
            Self::Positions => {
                let positions = text
                    .split('+')
                    .map(|part| parse_count(part).filter(|value| *value <= MAX_TOKENS));
                positions.collect::<Option<_>>().map(Value::Positions)
            }
            Self::Spans if text == "none" => Some(Value::Spans(Vec::new())),
            Self::Spans => {
                let spans = text.split('+').map(|part| {
                    let (first, last) = part.split_once('-')?;
                    let (first, last) = (parse_count(first)?, parse_count(last)?);
                    (first <= last && last < MAX_TOKENS).then(|| Span::new(first, last + 1))
                });
                spans.collect::<Option<_>>().map(Value::Spans)
            }
        }
    }
}

/// Digits only: `+5` is not a count.
fn parse_count(text: &str) -> Option<usize> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Count(usize),
    Number(f32),
    Positions(Vec<usize>),
    Spans(Vec<Span>),
}

/// The values of all parameters of one policy, given or default, within their limits.
///
/// A policy may read only the parameters that it declares, with the accessor of their kind; others panic.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    values: Vec<(&'static str, Value)>,
}

impl Parameters {
    pub(crate) fn new(
        policy: &'static str,
        known: &'static [ParameterInfo],
        given: &[(&str, &str)],
    ) -> Result<Self, PolicyError> {
        for (name, _) in given {
            if !known.iter().any(|parameter| parameter.name == *name) {
                let names: Vec<&str> = known.iter().map(|parameter| parameter.name).collect();
                return Err(PolicyError::UnknownParameter {
                    policy,
                    parameter: (*name).to_owned(),
                    known: if names.is_empty() {
                        "none".to_owned()
                    } else {
                        names.join(", ")
                    },
                });
            }
        }
        let values = known.iter().map(|parameter| {
            let found = given.iter().find(|(name, _)| *name == parameter.name);
            let text = found.map_or(parameter.default, |(_, text)| *text);
            let value = parameter.kind.parse(text).ok_or_else(|| PolicyError::BadValue {
                policy,
                parameter: parameter.name,
                value: text.to_owned(),
                requirement: parameter.kind.requirement(),
            })?;
            Ok((parameter.name, value))
        });
        Ok(Self {
            values: values.collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values.iter().map(|(name, value)| (*name, value))
    }

    /// The value of a parameter declared as an integer or a power of two.
    pub fn count(&self, name: &str) -> usize {
        match self.value(name) {
            Value::Count(value) => *value,
            _ => unreachable!("{name} is declared as a count"),
        }
    }

    /// The value of a parameter declared as a number.
    pub fn number(&self, name: &str) -> f32 {
        match self.value(name) {
            Value::Number(value) => *value,
            _ => unreachable!("{name} is declared as a number"),
        }
    }

    /// The value of a parameter declared as positions.
    pub fn positions(&self, name: &str) -> Vec<usize> {
        match self.value(name) {
            Value::Positions(value) => value.clone(),
            _ => unreachable!("{name} is declared as positions"),
        }
    }

    /// The value of a parameter declared as ranges.
    pub fn spans(&self, name: &str) -> Vec<Span> {
        match self.value(name) {
            Value::Spans(value) => value.clone(),
            _ => unreachable!("{name} is declared as spans"),
        }
    }

    fn value(&self, name: &str) -> &Value {
        let found = self.values.iter().find(|(known, _)| *known == name);
        &found.expect("policies read the parameters they declare").1
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::Positions(values) if values.is_empty() => f.write_str("none"),
            Self::Spans(values) if values.is_empty() => f.write_str("none"),
            Self::Positions(values) => {
                let texts: Vec<String> = values.iter().map(usize::to_string).collect();
                f.write_str(&texts.join("+"))
            }
            Self::Spans(values) => {
                let texts: Vec<String> = values
                    .iter()
                    .map(|span| format!("{}-{}", span.start, span.end - 1))
                    .collect();
                f.write_str(&texts.join("+"))
            }
        }
    }
}
