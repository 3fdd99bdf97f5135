//! Profiles: the policy of each layer and head, as a TOML file.

use std::fmt;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use riffle_kv::{FileKind, KvError, OutputFile};
use riffle_policy::{CostModel, Phase, PolicyRule, PolicyRules, PolicySpec};
use serde::{Deserialize, Serialize};

use crate::EngineError;

/// Policies of both phases, with rules for layers and KV heads, and the machine's attention costs.
///
/// ```
/// let profile: riffle_engine::Profile = r#"
///     [prefill]
///     policy = "xattention"
///     [[prefill.rules]]
///     layers = "0-1"
///     policy = "full"
///     [decode]
///     policy = "quest:topk=16"
///     [[decode.rules]]
///     kv_heads = "0+3-4"
///     policy = "full"
/// "#.parse()?;
/// assert_eq!(profile.prefill.policy(1, 0).name(), "full");
/// assert_eq!(profile.decode.policy(9, 2).name(), "quest");
/// assert_eq!(profile.to_string().parse::<riffle_engine::Profile>()?, profile);
/// # Ok::<(), riffle_engine::EngineError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Policies for reading the prompt.
    pub prefill: PolicyRules,
    /// Policies for writing the answer.
    pub decode: PolicyRules,
    /// Costs, for the guards of short prompts.
    pub cost: CostModel,
}

/// A profile has one of its sections near its start.
const KIND: FileKind = FileKind {
    name: "a profile",
    matches: |begin| {
        let text = String::from_utf8_lossy(begin);
        let mut lines = text.lines().map(str::trim);
        lines.any(|line| ["[prefill]", "[decode]", "[cost]"].contains(&line))
    },
};

impl Profile {
    /// Checks that [`write`](Self::write) can write to `path`, before long work: it is free or a profile, and its
    /// folder is writable.
    ///
    /// # Errors
    /// [`EngineError::Kv`].
    pub fn check_write(path: &Path) -> Result<(), EngineError> {
        OutputFile::check(path, KIND).map_err(KvError::from)?;
        Ok(())
    }

    /// Writes the profile to a file, atomically.
    ///
    /// # Errors
    /// [`EngineError::Kv`].
    pub fn write(&self, path: &Path) -> Result<(), EngineError> {
        let output = OutputFile::new(path, KIND).map_err(KvError::from)?;
        let written = output.write(|file| file.write_all(self.to_string().as_bytes()));
        written.map_err(KvError::from)?;
        Ok(())
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            prefill: PolicySpec::full().into(),
            decode: PolicySpec::full().into(),
            cost: CostModel::default(),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    prefill: Option<RulesFile>,
    decode: Option<RulesFile>,
    cost: Option<CostFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    policy: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rules: Vec<RuleFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_heads: Option<String>,
    policy: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CostFile {
    attend_ns: f64,
    decode_ns: f64,
    score_ns: f64,
    weigh_ns: f64,
    rank_ns: f64,
}

impl FromStr for Profile {
    type Err = EngineError;

    /// Parses a profile; missing parts mean full attention and default costs. A text without any section is an error:
    /// an empty file is more likely a mistake than a wish for full attention.
    ///
    /// # Errors
    /// [`EngineError::Profile`] for invalid profiles, [`EngineError::Policy`] for a policy that is unknown or does
    /// not support its phase.
    fn from_str(text: &str) -> Result<Self, EngineError> {
        let file: ProfileFile = toml::from_str(text).map_err(|error| EngineError::Profile(fault(text, &error)))?;
        if file.prefill.is_none() && file.decode.is_none() && file.cost.is_none() {
            return Err(EngineError::Profile(
                "it is empty: give a file with [prefill] or [decode]".to_owned(),
            ));
        }
        let default = Self::default();
        let rules = |file: Option<RulesFile>, phase| file.map(|file| file.rules(phase)).transpose();
        Ok(Self {
            prefill: rules(file.prefill, Phase::Prefill)?.unwrap_or(default.prefill),
            decode: rules(file.decode, Phase::Decode)?.unwrap_or(default.decode),
            cost: file.cost.map(CostFile::model).transpose()?.unwrap_or(default.cost),
        })
    }
}

/// The fault on one line, with the number of the faulty line.
fn fault(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace('\n', ", ");
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = ProfileFile {
            prefill: Some(RulesFile::new(&self.prefill)),
            decode: Some(RulesFile::new(&self.decode)),
            cost: Some(CostFile::new(&self.cost)),
        };
        f.write_str(&toml::to_string(&file).map_err(|_| fmt::Error)?)
    }
}

impl RulesFile {
    fn new(rules: &PolicyRules) -> Self {
        let rule = |rule: &PolicyRule| RuleFile {
            layers: ranges_text(&rule.layers),
            kv_heads: ranges_text(&rule.kv_heads),
            policy: rule.policy.to_string(),
        };
        Self {
            policy: rules.base.to_string(),
            rules: rules.rules.iter().map(rule).collect(),
        }
    }

    fn rules(self, phase: Phase) -> Result<PolicyRules, EngineError> {
        let rules = self.rules.into_iter().map(|rule| {
            Ok(PolicyRule {
                layers: ranges(rule.layers.as_deref())?,
                kv_heads: ranges(rule.kv_heads.as_deref())?,
                policy: rule.policy.parse()?,
            })
        });
        let rules = PolicyRules {
            base: self.policy.parse()?,
            rules: rules.collect::<Result<_, EngineError>>()?,
        };
        // Chunk lengths are known later.
        rules.check(phase, usize::MAX)?;
        Ok(rules)
    }
}

impl CostFile {
    fn new(model: &CostModel) -> Self {
        let CostModel {
            attend_ns,
            decode_ns,
            score_ns,
            weigh_ns,
            rank_ns,
        } = *model;
        Self {
            attend_ns,
            decode_ns,
            score_ns,
            weigh_ns,
            rank_ns,
        }
    }

    fn model(self) -> Result<CostModel, EngineError> {
        let values = [
            self.attend_ns,
            self.decode_ns,
            self.score_ns,
            self.weigh_ns,
            self.rank_ns,
        ];
        if values.iter().any(|value| !(value.is_finite() && *value >= 0.0)) {
            return Err(EngineError::Profile(
                "costs must be nanoseconds from 0 on; riffle calibrate measures them".to_owned(),
            ));
        }
        Ok(CostModel {
            attend_ns: self.attend_ns,
            decode_ns: self.decode_ns,
            score_ns: self.score_ns,
            weigh_ns: self.weigh_ns,
            rank_ns: self.rank_ns,
        })
    }
}

/// Numbers and ranges joined by `+`, `0+3-5`; nothing means all.
fn ranges(text: Option<&str>) -> Result<Vec<RangeInclusive<usize>>, EngineError> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first.trim().parse().ok()?..=last.trim().parse().ok()?;
        (!range.is_empty()).then_some(range)
    };
    let parts = text.into_iter().flat_map(|text| text.split('+'));
    parts
        .map(|text| {
            part(text).ok_or_else(|| {
                EngineError::Profile(format!(
                    "{text:?} must be a number or a range such as 0-3, several joined by +"
                ))
            })
        })
        .collect()
}

fn ranges_text(ranges: &[RangeInclusive<usize>]) -> Option<String> {
    let texts = ranges.iter().map(|range| {
        if range.start() == range.end() {
            range.start().to_string()
        } else {
            format!("{}-{}", range.start(), range.end())
        }
    });
    (!ranges.is_empty()).then(|| texts.collect::<Vec<_>>().join("+"))
}
