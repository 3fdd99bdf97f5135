//! The policy of each layer and KV head.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::{KeyUse, Phase, PolicyError, PolicyShape, PolicySpec};

/// The policies of all layers and KV heads in one phase: one for all, and rules for some. If several rules match, the
/// last one decides.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyRules {
    /// The policy if no rule matches.
    pub base: PolicySpec,
    /// Exceptions, in order.
    pub rules: Vec<PolicyRule>,
}

/// A policy for some layers and KV heads.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyRule {
    /// Layers of the rule; empty for all.
    pub layers: Vec<RangeInclusive<usize>>,
    /// KV heads of the rule; empty for all.
    pub kv_heads: Vec<RangeInclusive<usize>>,
    /// Policy of these layers and heads.
    pub policy: PolicySpec,
}

impl PolicyRules {
    /// The policy of a layer and KV head.
    pub fn policy(&self, layer: usize, kv_head: usize) -> &PolicySpec {
        let rule = self.rules.iter().rev().find(|rule| rule.holds_for(layer, kv_head));
        rule.map_or(&self.base, |rule| &rule.policy)
    }

    /// Refuses policies without support for this phase, or for chunks this short.
    ///
    /// # Errors
    /// [`PolicyError::UnsupportedPhase`], [`PolicyError::DeltaInDecode`], [`PolicyError::ChunkTooShort`].
    pub fn check(&self, phase: Phase, chunk_tokens: usize) -> Result<(), PolicyError> {
        self.specs().try_for_each(|spec| {
            spec.check_phase(phase)?;
            spec.check_chunk(chunk_tokens)
        })
    }

    /// Refuses rules with a layer or KV head that the model does not have.
    ///
    /// # Errors
    /// [`PolicyError::NoSuchPlace`].
    pub fn check_places(&self, layers: &[PolicyShape]) -> Result<(), PolicyError> {
        let outside = |ranges: &[RangeInclusive<usize>], count: usize| {
            ranges.iter().map(|range| *range.end()).find(|last| *last >= count)
        };
        for rule in &self.rules {
            let named = layers
                .iter()
                .enumerate()
                .filter(|(layer, _)| holds(&rule.layers, *layer));
            let kv_heads = named.map(|(_, shape)| shape.kv_heads).max();
            for (what, ranges, count) in [
                ("layer", &rule.layers, layers.len()),
                ("KV head", &rule.kv_heads, kv_heads.unwrap_or(0)),
            ] {
                if let Some(number) = outside(ranges, count) {
                    return Err(PolicyError::NoSuchPlace { what, number, count });
                }
            }
        }
        Ok(())
    }

    /// The largest chunk length that a policy prefers; `None` if none has a preference.
    pub fn preferred_chunk_tokens(&self) -> Option<usize> {
        let needs = self.specs().filter_map(|spec| spec.info().traits.chunk);
        needs.map(|need| need.preferred).max()
    }

    /// True if a policy attends in two phases, and so needs a whole logical batch at once.
    pub fn has_two_phases(&self) -> bool {
        self.specs().any(|spec| spec.info().traits.two_phases)
    }

    /// True if every policy reads every token.
    pub fn is_dense(&self) -> bool {
        self.specs().all(|spec| spec.info().traits.dense)
    }

    /// True if all policies select from keys and current queries alone. Keys from another sequence or process can
    /// then be reused.
    pub fn follows_from_keys(&self) -> bool {
        self.specs().all(|spec| spec.info().traits.follows_from_keys)
    }

    /// True if selections of a policy depend on chunk boundaries ([`Traits::depends_on_chunks`](crate::Traits)).
    pub fn depends_on_chunks(&self) -> bool {
        self.specs().any(|spec| spec.info().traits.depends_on_chunks)
    }

    /// True if a policy scans the keys of the whole sequence.
    pub fn scans_keys(&self) -> bool {
        self.specs().any(|spec| spec.info().traits.keys == KeyUse::Scanned)
    }

    /// True if a policy evicts tokens permanently ([`Traits::evicts`](crate::Traits)).
    pub fn evicts(&self) -> bool {
        self.specs().any(|spec| spec.info().traits.evicts)
    }

    /// True if a policy reads the index of signs.
    pub fn reads_signs(&self) -> bool {
        self.specs().any(|spec| spec.info().traits.keys == KeyUse::Indexed)
    }

    /// An upper bound of the bytes that the policies of all layers and KV heads store for `tokens` tokens, with the means
    /// of blocks that they read.
    pub fn stored_bytes(&self, layers: &[PolicyShape], tokens: usize) -> u64 {
        let of_layer = |shape: &PolicyShape| {
            let of_head = self.specs().map(|spec| {
                let own = (spec.info().traits.stored_bytes)(spec.parameters(), shape.head_dim);
                // A key and a value in f32.
                let of_means = |block| 8.0 * shape.head_dim as f64 / block as f64;
                own + spec.summary_tokens().map_or(0.0, of_means)
            });
            of_head.fold(0.0, f64::max) * shape.kv_heads as f64
        };
        let most: f64 = layers.iter().map(of_layer).sum();
        (most * tokens as f64) as u64
    }

    /// Every policy: the base first, then the policies of the rules.
    pub fn specs(&self) -> impl Iterator<Item = &PolicySpec> {
        std::iter::once(&self.base).chain(self.rules.iter().map(|rule| &rule.policy))
    }
}

impl PolicyRule {
    fn holds_for(&self, layer: usize, kv_head: usize) -> bool {
        holds(&self.layers, layer) && holds(&self.kv_heads, kv_head)
    }
}

fn holds(ranges: &[RangeInclusive<usize>], number: usize) -> bool {
    ranges.is_empty() || ranges.iter().any(|range| range.contains(&number))
}

impl From<PolicySpec> for PolicyRules {
    fn from(base: PolicySpec) -> Self {
        Self {
            base,
            rules: Vec::new(),
        }
    }
}

impl FromStr for PolicyRules {
    type Err = PolicyError;

    /// One policy for all layers and heads.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        text.parse::<PolicySpec>().map(Self::from)
    }
}

impl fmt::Display for PolicyRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.base.fmt(f)?;
        match self.rules.len() {
            0 => Ok(()),
            1 => f.write_str(" and 1 rule"),
            count => write!(f, " and {count} rules"),
        }
    }
}
