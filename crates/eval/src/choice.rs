//! A policy and its phase.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use riffle_engine::{EngineError, EngineOptions, Profile};
use riffle_policy::{Phase, PolicyInfo, PolicyRule, PolicyRules, PolicySpec};
use twox_hash::XxHash3_64;

use crate::EvalError;
use crate::baselines::parse_among;

/// Limit on the bytes of a profile.
const LARGEST_PROFILE_BYTES: u64 = 16 << 20;

/// A policy and its phase, spelled `POLICY`, `prefill=POLICY` or `decode=POLICY`; the other phase is dense. Without a
/// phase the policy acts in prefill, if it supports prefill.
///
/// Instead of a policy, `auto:SHARE` selects automatically in prefill, with that share of the attention mass as the
/// goal. The path of a profile ends in `.toml`; the profile's section for the phase counts.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyChoice {
    /// The phase in which the policy selects.
    pub phase: Phase,
    /// The policy; of a profile, the policy of heads without a rule.
    pub policy: PolicySpec,
    /// Rules of the profile.
    rules: Vec<PolicyRule>,
    /// Share of attention mass that automatic selection must keep.
    auto_target: Option<f64>,
    /// Spelling of the choice; for a profile also a hash of its text.
    spelled: String,
}

impl PolicyChoice {
    /// Dense attention.
    pub fn full() -> Self {
        Self {
            phase: Phase::Prefill,
            policy: PolicySpec::full(),
            rules: Vec::new(),
            auto_target: None,
            spelled: "full".to_owned(),
        }
    }

    /// A policy that this crate does not know by name, such as one from another crate. Reports show `spelled`.
    pub fn named(phase: Phase, policy: PolicySpec, spelled: String) -> Self {
        Self {
            phase,
            policy,
            spelled,
            ..Self::full()
        }
    }

    /// True if everything is read.
    pub fn is_full(&self) -> bool {
        self.auto_target.is_none() && self.rules().is_dense()
    }

    /// True if prompts are read by dense attention, and answers depend only on their keys.
    pub(crate) fn reads_densely(&self) -> bool {
        self.is_full() || (self.phase == Phase::Decode && self.rules().follows_from_keys())
    }

    /// The policies of all layers and heads.
    pub fn rules(&self) -> PolicyRules {
        PolicyRules {
            base: self.policy.clone(),
            rules: self.rules.clone(),
        }
    }

    /// The one policy of all layers and heads; `None` if they differ.
    pub(crate) fn single(&self) -> Option<&PolicySpec> {
        (self.rules.is_empty() && self.auto_target.is_none()).then_some(&self.policy)
    }

    /// The same phase and name with other parameters.
    pub(crate) fn with_policy(&self, policy: PolicySpec) -> Self {
        Self { policy, ..self.clone() }
    }

    /// `options` with this policy in its phase, suitable chunks, and dense attention in the other phase.
    pub fn options(&self, options: &EngineOptions) -> EngineOptions {
        let rules = self.rules();
        let full = PolicyRules::from(PolicySpec::full());
        let chunk_tokens = rules
            .preferred_chunk_tokens()
            .map_or(options.machine.chunk_tokens, |preferred| {
                preferred
                    .max(options.machine.chunk_tokens)
                    .min(options.machine.batch_tokens)
            });
        let (prefill, decode) = match self.phase {
            Phase::Prefill => (rules, full),
            Phase::Decode => (full, rules),
        };
        options
            .clone()
            .with_prefill(prefill)
            .with_decode(decode)
            .with_chunk_tokens(chunk_tokens)
            .with_auto_target(self.auto_target)
    }
}

impl fmt::Display for PolicyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spelled)
    }
}

impl FromStr for PolicyChoice {
    type Err = EvalError;

    /// Parses a choice among the catalogue and the baselines.
    fn from_str(text: &str) -> Result<Self, EvalError> {
        Self::parse_among(text, &[])
    }
}

impl PolicyChoice {
    /// Reads a choice of the catalogue, the [`baselines`](crate::baselines) or `more`, policies from other crates.
    ///
    /// # Errors
    /// Parse errors: an unknown name or parameter, a value out of range, or a phase without support for the policy.
    pub fn parse_among(text: &str, more: &'static [PolicyInfo]) -> Result<Self, EvalError> {
        let text = text.trim();
        let (phase, spec) = if let Some(spec) = text.strip_prefix("prefill=") {
            (Some(Phase::Prefill), spec)
        } else if let Some(spec) = text.strip_prefix("decode=") {
            (Some(Phase::Decode), spec)
        } else {
            (None, text)
        };
        if let Some(target) = spec.strip_prefix("auto:") {
            return Self::auto(phase, target, text);
        }
        if spec.ends_with(".toml") {
            return Self::of_profile(phase, spec, text);
        }
        let wrong = riffle_engine::EngineError::from;
        let mut policy = parse_among(spec, more).map_err(wrong)?;
        // `from` keeps short prompts dense and would hide the policy's quality, so the measurement sets it to 0.
        if policy.from_tokens().is_none() && !policy.info().traits.dense && !spec.contains("from=") {
            policy = policy.with("from", "0").map_err(wrong)?;
        }
        let phase = phase.unwrap_or(if policy.info().supports(Phase::Prefill) {
            Phase::Prefill
        } else {
            Phase::Decode
        });
        riffle_policy::build(&policy, phase).map_err(wrong)?;
        Ok(Self {
            phase,
            policy,
            rules: Vec::new(),
            auto_target: None,
            spelled: text.to_owned(),
        })
    }
}

impl PolicyChoice {
    fn auto(phase: Option<Phase>, target: &str, spelled: &str) -> Result<Self, EvalError> {
        let share = target.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
        let share = share.filter(|_| phase != Some(Phase::Decode)).ok_or_else(|| {
            EvalError::Option(format!(
                "policy {spelled:?}: auto:SHARE is for prefill, with a share of the attention from 0 to 1, e.g. auto:0.95"
            ))
        })?;
        Ok(Self {
            auto_target: Some(share),
            spelled: spelled.to_owned(),
            ..Self::full()
        })
    }

    fn of_profile(phase: Option<Phase>, path: &str, spelled: &str) -> Result<Self, EvalError> {
        let failed = |reason: String| EvalError::File {
            path: path.into(),
            reason,
        };
        let text = riffle_files::read_text(path, LARGEST_PROFILE_BYTES);
        let text = text.map_err(|error| EvalError::file(Path::new(path), &error.into()))?;
        let profile: Profile = text.parse().map_err(|error: EngineError| failed(error.to_string()))?;
        let phase = phase.unwrap_or(Phase::Prefill);
        let rules = match phase {
            Phase::Prefill => profile.prefill,
            Phase::Decode => profile.decode,
        };
        let hash = XxHash3_64::oneshot(format!("{rules:?}").as_bytes()) as u32;
        Ok(Self {
            phase,
            policy: rules.base,
            rules: rules.rules,
            auto_target: None,
            spelled: format!("{spelled} {hash:08x}"),
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
        let auto: PolicyChoice = "auto:0.95".parse().unwrap();
        assert_eq!((auto.phase, auto.is_full()), (Phase::Prefill, false));
        assert_eq!(auto.options(&EngineOptions::default()).sequence.auto_target, Some(0.95));
        for text in ["decode=auto:0.9", "auto:2", "auto:much"] {
            let message = text.parse::<PolicyChoice>().unwrap_err().to_string();
            assert!(message.contains("auto:SHARE is for prefill"), "{message}");
        }
        let message = "prefill=quest".parse::<PolicyChoice>().unwrap_err().to_string();
        assert!(message.contains("does not support prefill"), "{message}");
    }

    #[test]
    fn a_profile_is_compared_in_one_phase_and_told_by_what_it_says() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        let path = path.to_str().unwrap();
        let choice = |rules: &str, text: &str| {
            std::fs::write(path, format!("[decode]\npolicy = \"quest\"\n{rules}")).unwrap();
            text.parse::<PolicyChoice>()
        };
        let decode = format!("decode={path}");
        let rule = "[[decode.rules]]\nlayers = \"3-5\"\npolicy = \"full\"\n";
        let found = choice(rule, &decode).unwrap();
        assert_eq!(
            (found.phase, found.is_full(), found.single()),
            (Phase::Decode, false, None)
        );
        let options = found.options(&EngineOptions::default());
        assert_eq!(options.sequence.decode.policy(4, 0).name(), "full");
        assert_eq!(
            (
                options.sequence.decode.policy(2, 0).name(),
                options.sequence.prefill.base.name()
            ),
            ("quest", "full")
        );
        let other = choice("", &decode).unwrap();
        assert_ne!(
            found.to_string(),
            other.to_string(),
            "cells of another profile have another name"
        );
        assert!(choice("", path).unwrap().is_full(), "it says nothing of prefill");
        let message = choice("[prompt]\n", &decode).unwrap_err().to_string();
        assert!(message.contains("mine.toml"), "{message}");
        let message = "no-such.toml".parse::<PolicyChoice>().unwrap_err().to_string();
        assert!(message.contains("no-such.toml"), "{message}");
    }
}
