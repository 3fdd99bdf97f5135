//! Routers: choose the experts of a token and the weights of their results.

use rayon::prelude::*;

use crate::blocks::activation::{exp, sigmoid};
use crate::blocks::{Norm, Projection};

/// Number of scores below which one thread chooses for all rows.
const SERIAL_SCORES: usize = 1 << 13;

/// Conversion of a router's logits to scores.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Scoring {
    /// Softmax over all experts, then the choice.
    Softmax,
    /// The choice by logits, then softmax over the chosen.
    SoftmaxOfChosen,
    /// Sigmoid of each logit.
    Sigmoid,
    /// Chooses by logits, then takes the sigmoid of each chosen one.
    SigmoidOfChosen,
    /// Sparse mixer (arXiv:2409.12136): each choice is a softmax over the logits near the largest remaining one. At
    /// most two experts.
    SparseMixer {
        /// A logit is near if its distance is within twice this share of the largest.
        jitter: f32,
    },
}

/// Groups of experts: only the best groups take part in the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups of neighbouring experts; it divides the number of experts.
    pub count: usize,
    /// Number of groups that take part in the choice.
    pub used: usize,
    /// A group's score is the sum of this many of its best experts.
    pub best: usize,
}

/// The divisor of the weights of a token: max(their sum + `added`, `least`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightSum {
    /// Number added to the sum.
    pub added: f32,
    /// The smallest divisor.
    pub least: f32,
}

impl WeightSum {
    /// The sum itself.
    pub const PLAIN: WeightSum = WeightSum { added: 0.0, least: 0.0 };
}

/// The rules of a router, without weights. Of equal scores the lower expert is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterRules {
    /// Experts of a token.
    pub used: usize,
    /// Scores from logits.
    pub scoring: Scoring,
    /// Groups of experts, if the model has them.
    pub groups: Option<ExpertGroups>,
    /// The divisor of the weights; `None` if scores are used as weights unchanged.
    pub sum: Option<WeightSum>,
    /// Factor on the weights.
    pub scale: f32,
}

/// A router: a linear layer and the rules for choosing experts.
pub struct Router {
    /// Norm of the residual stream for the router alone; `None` if it reads the experts' input.
    pub norm: Option<Norm>,
    /// Projection to `[experts]`.
    pub projection: Projection,
    /// `[experts]`, added to scores for the choice only.
    pub choice_bias: Option<Vec<f32>>,
    /// `[experts]`, factors on weights.
    pub expert_scales: Option<Vec<f32>>,
    /// The rules.
    pub rules: RouterRules,
}

/// An expert of a token and its weight.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Choice {
    pub(crate) expert: u32,
    pub(crate) weight: f32,
}

impl Router {
    /// Chooses the experts of rows of `logits`, `[rows, experts]`, which are overwritten. `choices` is `[rows, used]`,
    /// for each row in the order of experts.
    pub(crate) fn choose(&self, logits: &mut [f32], choices: &mut [Choice]) {
        let (experts, used) = (self.projection.weight().out_features(), self.rules.used);
        let row = |(logits, choices): (&mut [f32], &mut [Choice])| {
            self.rules.choose(logits, self.choice_bias.as_deref(), choices);
            if let Some(scales) = &self.expert_scales {
                for choice in choices.iter_mut() {
                    choice.weight *= scales[choice.expert as usize];
                }
            }
            choices.sort_unstable_by_key(|choice| choice.expert);
        };
        if logits.len() < SERIAL_SCORES {
            logits
                .chunks_exact_mut(experts)
                .zip(choices.chunks_exact_mut(used))
                .for_each(row);
        } else {
            logits
                .par_chunks_exact_mut(experts)
                .zip(choices.par_chunks_exact_mut(used))
                .for_each(row);
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let vectors = [&self.choice_bias, &self.expert_scales];
        let values: usize = vectors.into_iter().flatten().map(Vec::len).sum();
        self.projection.bytes() + self.norm.as_ref().map_or(0, Norm::bytes) + 4 * values as u64
    }
}

impl RouterRules {
    /// Chooses the experts of a row, best first.
    fn choose(&self, logits: &mut [f32], choice_bias: Option<&[f32]>, choices: &mut [Choice]) {
        if let Scoring::SparseMixer { jitter } = self.scoring {
            return sparse_mixer(logits, jitter, choices);
        }
        match self.scoring {
            Scoring::Softmax => softmax(logits),
            Scoring::Sigmoid => logits.iter_mut().for_each(|logit| *logit = sigmoid(*logit)),
            _ => {}
        }
        let scores = &*logits;
        let mut keys = scores.to_vec();
        if let Some(bias) = choice_bias {
            keys.iter_mut().zip(bias).for_each(|(key, bias)| *key += bias);
        }
        let mut left = match self.groups {
            Some(groups) => groups.members(&keys),
            None => vec![true; keys.len()],
        };
        for choice in choices.iter_mut() {
            let expert = largest(&keys, &left);
            left[expert] = false;
            *choice = Choice {
                expert: expert as u32,
                weight: scores[expert],
            };
        }
        self.weigh(choices);
    }

    /// Makes weights of the scores of the chosen.
    fn weigh(&self, choices: &mut [Choice]) {
        if self.scoring == Scoring::SigmoidOfChosen {
            choices
                .iter_mut()
                .for_each(|choice| choice.weight = sigmoid(choice.weight));
        }
        if self.scoring == Scoring::SoftmaxOfChosen {
            let most = choices.first().map_or(0.0, |choice| choice.weight);
            choices
                .iter_mut()
                .for_each(|choice| choice.weight = exp(choice.weight - most));
        }
        let sum = match self.scoring {
            Scoring::SoftmaxOfChosen => Some(self.sum.unwrap_or(WeightSum::PLAIN)),
            _ => self.sum,
        };
        if let Some(WeightSum { added, least }) = sum {
            let sum = (choices.iter().map(|choice| choice.weight).sum::<f32>() + added).max(least);
            choices.iter_mut().for_each(|choice| choice.weight /= sum);
        }
        choices.iter_mut().for_each(|choice| choice.weight *= self.scale);
    }
}

impl ExpertGroups {
    /// For each expert, true if it belongs to one of the best groups.
    fn members(self, keys: &[f32]) -> Vec<bool> {
        let size = keys.len() / self.count;
        let score = |group: &[f32]| {
            let mut left = vec![true; group.len()];
            let best = (0..self.best.min(group.len())).map(|_| {
                let at = largest(group, &left);
                left[at] = false;
                group[at]
            });
            best.sum::<f32>()
        };
        let scores: Vec<f32> = keys.chunks_exact(size).map(score).collect();
        let mut left = vec![true; self.count];
        let mut members = vec![false; keys.len()];
        for _ in 0..self.used {
            let group = largest(&scores, &left);
            left[group] = false;
            members[group * size..][..size].fill(true);
        }
        members
    }
}

/// The first of the largest remaining keys; the first remaining one if none compares, and 0 if none remains.
fn largest(keys: &[f32], left: &[bool]) -> usize {
    let mut best = None;
    for (at, key) in keys.iter().enumerate().filter(|(at, _)| left[*at]) {
        if best.is_none_or(|best: usize| *key > keys[best]) {
            best = Some(at);
        }
    }
    best.unwrap_or(0)
}

/// Softmax in place, with an ordered sum.
fn softmax(values: &mut [f32]) {
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in values.iter_mut() {
        *value = exp(*value - most);
        sum += *value;
    }
    values.iter_mut().for_each(|value| *value /= sum);
}

fn sparse_mixer(logits: &[f32], jitter: f32, choices: &mut [Choice]) {
    let mut left = vec![true; logits.len()];
    for choice in choices.iter_mut() {
        let expert = largest(logits, &left);
        let most = logits[expert];
        let is_far = |logit: f32| (most - logit) / logit.abs().max(most) > 2.0 * jitter;
        let near = logits
            .iter()
            .zip(&left)
            .filter(|(logit, left)| **left && !is_far(**logit));
        let sum: f32 = near.map(|(logit, _)| exp(logit - most)).sum();
        left[expert] = false;
        *choice = Choice {
            expert: expert as u32,
            weight: sum.recip(),
        };
    }
}

#[cfg(test)]
mod tests;
