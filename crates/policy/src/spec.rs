use std::fmt;
use std::str::FromStr;

use crate::catalogue::find;
use crate::parameter::Parameters;
use crate::{EstimateKind, PolicyError, PolicyInfo};

/// The parameter that every policy has.
const FROM: &str = "from";

/// A policy with the values of all its parameters, spelled `name` or `name:key=value,key=value`, in lower or upper case.
///
/// Every policy also takes `from`: sequences shorter than that many tokens are read densely. Without it, or with
/// `from=auto`, that length is the policy's break-even ([`CostModel`](crate::CostModel)).
///
/// Parsing checks names and values and fills in the defaults, so a spec that exists can be built in every phase that
/// its policy supports. It prints with all its parameters.
#[derive(Clone, PartialEq)]
pub struct PolicySpec {
    info: &'static PolicyInfo,
    parameters: Parameters,
    /// Sequences shorter than this are read densely; `None` for the break-even length.
    from: Option<usize>,
}

impl PolicySpec {
    /// Dense attention.
    pub fn full() -> Self {
        "full"
            .parse()
            .expect("the catalogue has full, which needs no parameters")
    }

    /// Reads a spec of the catalogue or of `more`, policies from other crates.
    ///
    /// # Errors
    /// As parsing: an unknown name or parameter, a value out of range.
    pub fn parse_among(text: &str, more: &'static [PolicyInfo]) -> Result<Self, PolicyError> {
        let text = &*text.to_ascii_lowercase();
        let (name, list) = match text.split_once(':') {
            Some((name, list)) => (name.trim(), Some(list)),
            None => (text.trim(), None),
        };
        let info = find(name, more)?;
        let mut given: Vec<(&str, &str)> = Vec::new();
        for part in list.into_iter().flat_map(|list| list.split(',')) {
            let (key, value) = part
                .split_once('=')
                .map(|(key, value)| (key.trim(), value.trim()))
                .unwrap_or_default();
            if key.is_empty() || value.is_empty() {
                return Err(PolicyError::Syntax { text: text.to_owned() });
            }
            if given.iter().any(|(known, _)| *known == key) {
                return Err(PolicyError::RepeatedParameter {
                    policy: info.name,
                    parameter: key.to_owned(),
                });
            }
            given.push((key, value));
        }
        Self::new(info, given)
    }

    /// The policy's name.
    pub fn name(&self) -> &'static str {
        self.info.name
    }

    /// The policy's entry in the catalogue.
    pub fn info(&self) -> &'static PolicyInfo {
        self.info
    }

    /// The same with one parameter changed.
    ///
    /// # Errors
    /// As parsing.
    pub fn with(&self, parameter: &str, value: &str) -> Result<Self, PolicyError> {
        let mut given: Vec<(String, String)> = self
            .parameters
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_string()))
            .filter(|(name, _)| name != parameter)
            .collect();
        given.extend(self.from.map(|from| (FROM.to_owned(), from.to_string())));
        given.retain(|(name, _)| name != parameter);
        given.push((parameter.to_owned(), value.to_owned()));
        Self::new(
            self.info,
            given.iter().map(|(name, value)| (&**name, &**value)).collect(),
        )
    }

    /// The length below which sequences are read densely, where it was given.
    pub fn from_tokens(&self) -> Option<usize> {
        self.from
    }

    /// Whether callers can compute an [`Estimate`](crate::Estimate) for it.
    pub fn has_estimate(&self) -> bool {
        self.info.traits.estimate.is_some()
    }

    /// Whether that is an estimate from bounds, which whoever computes it keeps of the whole sequence.
    pub fn has_bounds(&self) -> bool {
        self.info.traits.estimate == Some(EstimateKind::Bounds)
    }

    /// Tokens in the blocks whose means it reads; `None` where it reads none.
    pub fn summary_tokens(&self) -> Option<usize> {
        (self.info.traits.summary_tokens)(&self.parameters)
    }

    /// Refuses chunks that are too short for the policy.
    pub(crate) fn check_chunk(&self, chunk_tokens: usize) -> Result<(), PolicyError> {
        let Some(need) = self.info.traits.chunk else {
            return Ok(());
        };
        let above = (need.above)(&self.parameters);
        if chunk_tokens > above {
            return Ok(());
        }
        Err(PolicyError::ChunkTooShort {
            policy: self.info.name,
            above,
            chunk_tokens,
            preferred: need.preferred.max(above + 1),
        })
    }

    fn new(info: &'static PolicyInfo, mut given: Vec<(&str, &str)>) -> Result<Self, PolicyError> {
        let place = given.iter().position(|(name, _)| *name == FROM);
        let from = match place.map(|place| given.remove(place).1) {
            None | Some("auto") => None,
            Some(text) => Some(text.parse().map_err(|_| PolicyError::BadValue {
                policy: info.name,
                parameter: FROM,
                value: text.to_owned(),
                requirement: "a whole number of tokens, or auto".to_owned(),
            })?),
        };
        Ok(Self {
            info,
            parameters: Parameters::new(info.name, info.parameters, &given)?,
            from,
        })
    }

    pub(crate) fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl FromStr for PolicySpec {
    type Err = PolicyError;

    /// Of the catalogue.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Self::parse_among(text, &[])
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info.name)?;
        for (n, (parameter, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{parameter}={value}", if n == 0 { ':' } else { ',' })?;
        }
        match self.from {
            Some(from) => write!(
                f,
                "{}{FROM}={from}",
                if self.info.parameters.is_empty() { ':' } else { ',' }
            ),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PolicySpec({self})")
    }
}
