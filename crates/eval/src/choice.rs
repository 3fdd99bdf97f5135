//! A policy in the phase it chooses in.

use std::fmt;
use std::str::FromStr;

use riffle_engine::EngineOptions;
use riffle_policy::{Phase, PolicyRules, PolicySpec};

use crate::EvalError;
use crate::baselines::parse_policy;

/// A policy and its phase, spelled `POLICY`, `prefill=POLICY` or `decode=POLICY`; the other phase is dense. Without a phase
/// it is the prefill, where the policy chooses there.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyChoice {
    /// The phase it chooses in.
    pub phase: Phase,
    /// The policy.
    pub policy: PolicySpec,
    /// As it was spelled.
    spelled: String,
}

impl PolicyChoice {
    /// Dense attention.
    pub fn full() -> Self {
        Self {
            phase: Phase::Prefill,
            policy: PolicySpec::full(),
            spelled: "full".to_owned(),
        }
    }

    /// Whether everything is read.
    pub fn is_full(&self) -> bool {
        self.policy.info().traits.dense
    }

    /// The same phase and name with other parameters.
    pub(crate) fn with_policy(&self, policy: PolicySpec) -> Self {
        Self { policy, ..self.clone() }
    }

    /// `options` with this policy in its phase, in chunks that suit it, and dense attention in the other.
    pub fn options(&self, options: &EngineOptions) -> EngineOptions {
        let rules = PolicyRules::from(self.policy.clone());
        let full = PolicyRules::from(PolicySpec::full());
        let chunk_tokens = rules
            .preferred_chunk_tokens()
            .map_or(options.chunk_tokens, |preferred| {
                preferred.max(options.chunk_tokens).min(options.batch_tokens)
            });
        let (prefill, decode) = match self.phase {
            Phase::Prefill => (rules, full),
            Phase::Decode => (full, rules),
        };
        EngineOptions {
            prefill,
            decode,
            chunk_tokens,
            ..options.clone()
        }
    }
}

impl fmt::Display for PolicyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spelled)
    }
}

impl FromStr for PolicyChoice {
    type Err = EvalError;

    fn from_str(text: &str) -> Result<Self, EvalError> {
        let text = text.trim();
        let (phase, spec) = if let Some(spec) = text.strip_prefix("prefill=") {
            (Some(Phase::Prefill), spec)
        } else if let Some(spec) = text.strip_prefix("decode=") {
            (Some(Phase::Decode), spec)
        } else {
            (None, text)
        };
        let wrong = riffle_engine::EngineError::from;
        let mut policy = parse_policy(spec).map_err(wrong)?.base;
        // Quality is asked for where the policy acts, not where its guard lets it.
        if policy.from_tokens().is_none() && !policy.info().traits.dense && !spec.contains("from=") {
            policy = policy.with("from", "0").map_err(wrong)?;
        }
        let phase = phase.unwrap_or(match policy.info().supports(Phase::Prefill) {
            true => Phase::Prefill,
            false => Phase::Decode,
        });
        riffle_policy::build(&policy, phase).map_err(wrong)?;
        Ok(Self {
            phase,
            policy,
            spelled: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phase_is_the_one_named_or_the_first_that_the_policy_has() {
        for (text, phase) in [
            ("streaming", Phase::Prefill),
            ("decode=streaming:window=64", Phase::Decode),
            ("quest", Phase::Decode),
            ("oracle-top-k:share=0.2", Phase::Prefill),
        ] {
            let choice: PolicyChoice = text.parse().unwrap();
            assert_eq!((choice.phase, choice.to_string()), (phase, text.to_owned()));
            assert_eq!(choice.policy.from_tokens(), Some(0), "no guard");
        }
        let guarded: PolicyChoice = "xattention:from=auto".parse().unwrap();
        assert_eq!(guarded.policy.from_tokens(), None);
        let message = "prefill=quest".parse::<PolicyChoice>().unwrap_err().to_string();
        assert!(message.contains("does not support prefill"), "{message}");
    }
}
