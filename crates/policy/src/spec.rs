use std::fmt;
use std::str::FromStr;

use crate::catalogue::{check_phase, find};
use crate::parameter::{MAX_TOKENS, Parameters};
use crate::{EstimateKind, Phase, PolicyError, PolicyInfo};

/// The parameter that every policy has.
const FROM: &str = "from";

/// The parameter of every sparse policy for prompts.
const DELTA: &str = "delta";

/// The parameter of every policy that selects by reading, rather than evicting, in one phase.
const MEANS: &str = "means";

/// A policy with the values of all its parameters, spelled `name` or `name:key=value,key=value`, in lower or upper
/// case.
///
/// Every policy also takes `from`: sequences with fewer tokens are read densely. Without it, or with `from=auto`,
/// this length is the policy's break-even ([`CostModel`](crate::CostModel)).
///
/// Every sparse policy for prompts also takes `delta`, which corrects its outputs. Every `delta`-th query of a prompt
/// also reads everything. The difference of its two outputs is added to the outputs of the queries after it, up to
/// the next such query (Delta Attention, Willette et al. 2025, arXiv:2505.11254). Without it, or with `delta=off`,
/// nothing is corrected; the paper uses 64.
///
/// Every policy that leaves tokens out in one phase, and evicts none, also takes `means`, the number of tokens in a
/// block. A query then reads one mean for each block. The mean replaces the tokens of the block that the query does not
/// read, as in the residual summaries of CEDAR (arXiv:2609.07237) and CompKV (arXiv:2609.26300). Without `means`, or
/// with `means=off`, a query reads nothing in place of these tokens.
///
/// Parsing checks names and values and fills in the defaults. Every spec can therefore be built in all phases of its
/// policy. It prints with all its parameters.
#[derive(Clone, PartialEq)]
pub struct PolicySpec {
    info: &'static PolicyInfo,
    parameters: Parameters,
    /// Sequences with fewer tokens are read densely; `None` for the break-even length.
    from: Option<usize>,
    /// The distance between the prompt's queries that correct the queries after them; `None` without correction.
    delta: Option<usize>,
    /// Number of tokens in a block. The mean of a block replaces its unread tokens. `None` without means.
    means: Option<usize>,
}

impl PolicySpec {
    /// Dense attention.
    pub fn full() -> Self {
        "full"
            .parse()
            .expect("the catalogue has full, which needs no parameters")
    }

    /// Parses a spec of the catalogue or of `more`, policies from other crates.
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

    /// The spec with one parameter changed.
    ///
    /// # Errors
    /// As parsing.
    pub fn with(&self, parameter: &str, value: &str) -> Result<Self, PolicyError> {
        let mut given: Vec<(String, String)> = self
            .parameters
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_string()))
            .collect();
        given.extend(self.common().map(|(name, value)| (name.to_owned(), value.to_string())));
        given.retain(|(name, _)| name != parameter);
        given.push((parameter.to_owned(), value.to_owned()));
        Self::new(
            self.info,
            given.iter().map(|(name, value)| (&**name, &**value)).collect(),
        )
    }

    /// The length below which sequences are read densely, if it was given.
    pub fn from_tokens(&self) -> Option<usize> {
        self.from
    }

    /// The distance between the prompt's queries that also read every token. The difference between their two results
    /// corrects the queries after them. `None` without correction.
    pub fn delta(&self) -> Option<usize> {
        self.delta
    }

    /// True if callers can compute an [`Estimate`](crate::Estimate) for the policy.
    pub fn has_estimate(&self) -> bool {
        self.info.traits.estimate.is_some()
    }

    /// True if the estimate uses bounds. A caller that computes it stores bounds of the whole sequence.
    pub fn has_bounds(&self) -> bool {
        self.info.traits.estimate == Some(EstimateKind::Bounds)
    }

    /// Tokens per block, if the policy reads means of blocks; otherwise `None`.
    pub fn summary_tokens(&self) -> Option<usize> {
        self.means.or((self.info.traits.summary_tokens)(&self.parameters))
    }

    /// True if the mean of a block also replaces its unread tokens where a query reads some of the block. This holds
    /// for `means`, not for the policy's own means.
    pub fn summarizes_parts(&self) -> bool {
        self.means.is_some()
    }

    /// Refuses a phase that the policy does not support, alone or with these parameters.
    pub(crate) fn check_phase(&self, phase: Phase) -> Result<(), PolicyError> {
        check_phase(self.info, phase)?;
        match self.delta {
            Some(_) if phase == Phase::Decode => Err(PolicyError::DeltaInDecode { policy: self.info.name }),
            _ => Ok(()),
        }
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
        let mut take = |name: &str| {
            let place = given.iter().position(|(known, _)| *known == name);
            place.map(|place| given.remove(place).1)
        };
        let refused = |parameter, value: &str, requirement: &str| PolicyError::BadValue {
            policy: info.name,
            parameter,
            value: value.to_owned(),
            requirement: requirement.to_owned(),
        };
        let from = match take(FROM) {
            None | Some("auto") => None,
            Some(text) => Some(
                text.parse()
                    .map_err(|_| refused(FROM, text, "a whole number of tokens, or auto"))?,
            ),
        };
        let is_sparse = info.traits.prefill && !info.traits.dense;
        let tokens_or_off = |parameter, text: Option<&str>, refusal: Option<&str>| match (text, refusal) {
            (None | Some("off"), _) => Ok(None),
            (Some(text), Some(refusal)) => Err(refused(parameter, text, refusal)),
            (Some(text), None) => {
                let value = text.parse().ok().filter(|value| (1..=MAX_TOKENS).contains(value));
                let problem = || refused(parameter, text, "a whole number of tokens from 1 on, or off");
                value.map(Some).ok_or_else(problem)
            }
        };
        let refusal = (!is_sparse).then_some("off: it corrects sparse attention to prompts");
        let delta = tokens_or_off(DELTA, take(DELTA), refusal)?;
        let means = take(MEANS);
        let parameters = Parameters::new(info.name, info.parameters, &given)?;
        let leaves_out = !info.traits.dense && !info.traits.evicts && !info.traits.two_phases;
        let refusal = match (info.traits.summary_tokens)(&parameters) {
            Some(_) => Some("off: the policy already reads means"),
            None => (!leaves_out).then_some("off: it stands for tokens that a policy leaves out and keeps"),
        };
        let means = tokens_or_off(MEANS, means, refusal)?;
        Ok(Self {
            info,
            parameters,
            from,
            delta,
            means,
        })
    }

    /// The given common parameters.
    fn common(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let delta = self.delta.map(|delta| (DELTA, delta));
        let means = self.means.map(|means| (MEANS, means));
        let from = self.from.map(|from| (FROM, from));
        delta.into_iter().chain(means).chain(from)
    }

    pub(crate) fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl FromStr for PolicySpec {
    type Err = PolicyError;

    /// Parses a policy of the catalogue.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Self::parse_among(text, &[])
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info.name)?;
        let own = self.parameters.iter().map(|(name, value)| format!("{name}={value}"));
        let common = self.common().map(|(name, value)| format!("{name}={value}"));
        for (n, parameter) in own.chain(common).enumerate() {
            write!(f, "{}{parameter}", if n == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PolicySpec({self})")
    }
}
