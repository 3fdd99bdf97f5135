//! Mixtures of experts: a router sends each token to a few of many feed-forward blocks.
//!
//! Experts compute for all rows of a batch, one group of experts at a time. Each expert's weights are therefore read
//! once for all its tokens, from main memory or from the model's files. Threads share the products of several experts.
//! A row's arithmetic does not depend on other rows, and a token's experts are added in the order of their numbers. A
//! token therefore has the same bits alone and in any batch, with experts in memory or in files.

mod group;
mod load;
mod router;
mod scratch;
mod settings;
mod stream;

use std::sync::Arc;

use riffle_linear::PackedMatrix;

pub use router::{ExpertGroups, Router, RouterRules, Scoring, WeightSum};
pub(crate) use scratch::{ExpertScratch, scratch_bytes};
pub(crate) use settings::EXPERT_COUNTS;
pub use settings::{ExpertSettings, FusedLayout};
use stream::Held;
pub use stream::{
    ExpertBudget, ExpertCache, ExpertClass, ExpertStatistics, StreamedExperts, expert_cache_bytes, expert_slots,
    least_expert_cache_bytes,
};
pub(crate) use stream::{ExpertForm, expert_classes, expert_forms, names_experts, read_rate};

use super::activation::sigmoid;
use super::rows::{add, for_rows};
use super::{Activation, Mlp, Norm, Projection};
use crate::SegmentPart;
use crate::workspace::RowBlock;

/// The most rows of a batch for which the next layer's router is evaluated early: few, as in an answer.
const EARLY_ROWS: usize = 16;

/// The feed-forward part of a layer with a mixture of experts.
pub struct Experts {
    /// The choice of experts.
    pub router: Router,
    /// The experts by number.
    pub experts: ExpertWeights,
    /// The non-linearity of every expert.
    pub activation: Activation,
    /// True if weights multiply the inputs of experts instead of their results.
    pub weighs_input: bool,
    /// Norm of the sum of a token's experts, if the family has one.
    pub after: Option<Norm>,
    /// A block that all tokens pass.
    pub shared: Option<SharedExpert>,
}

/// The owner of a layer's experts.
pub enum ExpertWeights {
    /// All experts are in memory.
    Resident(Vec<Expert>),
    /// The experts are in the model's files. A cache holds the experts in use.
    Streamed(StreamedExperts),
}

/// The weights of one expert.
pub struct Expert {
    /// Projection to the inner width; `None` for experts without a gate.
    pub gate: Option<Projection>,
    /// Projection to the inner width.
    pub up: Projection,
    /// Projection from the inner width.
    pub down: Projection,
}

/// A feed-forward block beside the experts.
pub struct SharedExpert {
    /// Norm of the residual stream for this block alone; `None` if it reads the experts' input.
    pub before: Option<Norm>,
    /// The block.
    pub mlp: Mlp,
    /// Projection to one value, whose sigmoid scales the block's result.
    pub gate: Option<Projection>,
    /// Norm of the block's result, if the family has one.
    pub after: Option<Norm>,
}

/// The experts of a model's layers that are loaded on demand.
pub(crate) struct ExpertStreams {
    pub(crate) cache: Arc<ExpertCache>,
    /// Streamed layers by their number in the cache.
    pub(crate) layers: Vec<StreamedLayer>,
}

#[derive(Clone)]
pub(crate) struct StreamedLayer {
    base: String,
    tensors: Vec<String>,
    /// Gate, up and down: the tensor of all experts, and the half to use if it holds two matrices per expert.
    parts: [Option<(String, Option<usize>)>; 3],
}

/// Weights of an expert that is in memory now.
#[derive(Clone, Copy)]
enum Present<'a> {
    Resident(&'a Expert),
    Streamed(&'a Held, &'a [Option<Box<[f32]>>; 3]),
}

/// The next layer, whose router may be evaluated early.
#[derive(Clone, Copy)]
pub(crate) struct Behind<'a> {
    /// The norm of the residual stream before the experts.
    pub(crate) norm: &'a Norm,
    pub(crate) experts: &'a Experts,
}

impl Experts {
    /// First step: chooses the experts of a block of rows, the batch's rows from `first` on, and stores `Normed` for
    /// them. A router with its own norm reads `Hidden`.
    pub(crate) fn route(&self, rows: &mut RowBlock<'_>, first: usize, parts: &[SegmentPart]) {
        let hidden = self.hidden_width();
        let (count, experts, used) = (rows.normed.len() / hidden, self.experts.count(), self.router.rules.used);
        let scratch = &mut *rows.experts;
        scratch.inputs[first * hidden..][..count * hidden].copy_from_slice(rows.normed);
        let logits = &mut scratch.logits[..count * experts];
        let choices = &mut scratch.choices[first * used..][..count * used];
        let input = match &self.router.norm {
            None => &*rows.normed,
            Some(norm) => {
                let normed = &mut scratch.gathered[..rows.hidden.len()];
                norm.apply(rows.hidden, normed);
                &*normed
            }
        };
        self.router.projection.apply(input, logits, parts);
        self.router.choose(logits, choices);
    }

    /// Second step, after `rows` rows are routed: sorts their choices by expert, then by row.
    pub(crate) fn begin(&self, scratch: &mut ExpertScratch, rows: usize) {
        let (experts, used) = (self.experts.count(), self.router.rules.used);
        let ExpertScratch {
            choices,
            places,
            order,
            starts,
            sums,
            done,
            ..
        } = scratch;
        let choices = &choices[..rows * used];
        starts.fill(0);
        for choice in choices {
            starts[choice.expert as usize + 1] += 1;
        }
        for expert in 0..experts {
            starts[expert + 1] += starts[expert];
        }
        let mut next = starts.clone();
        for (at, choice) in choices.iter().enumerate() {
            let place = &mut next[choice.expert as usize];
            places[at] = *place;
            order[*place as usize] = (at / used) as u32;
            *place += 1;
        }
        *done = 0;
        sums[..rows * self.hidden_width()].fill(0.0);
        if let ExpertWeights::Streamed(streamed) = &self.experts {
            let starts = &*starts;
            let tokens = |expert: usize| (starts[expert + 1] - starts[expert]) as usize;
            let chosen = (0..experts).map(|expert| (expert, tokens(expert)));
            let chosen = chosen.filter(|(_, tokens)| *tokens > 0);
            streamed.cache.choose(streamed.layer, rows, chosen);
        }
    }

    /// Last step, for a block of rows from the batch's row `first` on: `Branch` becomes the normalised sum of their
    /// experts plus the shared block. `Normed` is as during routing.
    pub(crate) fn end(&self, rows: &mut RowBlock<'_>, first: usize, parts: &[SegmentPart]) {
        let hidden = self.hidden_width();
        let count = rows.normed.len() / hidden;
        let own = first * hidden..(first + count) * hidden;
        rows.normed.copy_from_slice(&rows.experts.inputs[own.clone()]);
        rows.branch.copy_from_slice(&rows.experts.sums[own]);
        if let Some(norm) = &self.after {
            for_rows(rows.branch, hidden, |_, row| norm.apply_in_place(row));
        }
        if let Some(shared) = &self.shared {
            shared.add(rows, count, parts);
        }
    }

    /// Guesses the layer's experts from the residual stream before the previous layer, `[rows, hidden]`. In trained
    /// models it changes little from layer to layer.
    fn guess(&self, norm: &Norm, hidden: &[f32], scratch: &mut ExpertScratch) {
        let ExpertWeights::Streamed(streamed) = &self.experts else {
            return;
        };
        let rows = hidden.len() / self.hidden_width();
        let (experts, used) = (self.experts.count(), self.router.rules.used);
        let normed = &mut scratch.gathered[..hidden.len()];
        self.router.norm.as_ref().unwrap_or(norm).apply(hidden, normed);
        let logits = &mut scratch.logits[..rows * experts];
        let mut choices = vec![router::Choice::default(); rows * used];
        self.router.projection.apply(normed, logits, &[]);
        self.router.choose(logits, &mut choices);
        let mut chosen: Vec<usize> = choices.iter().map(|choice| choice.expert as usize).collect();
        chosen.sort_unstable();
        chosen.dedup();
        streamed.cache.guess(streamed.layer, chosen);
    }

    fn hidden_width(&self) -> usize {
        self.router.projection.weight().in_features()
    }

    /// Bytes in memory, without a cache.
    pub(crate) fn bytes(&self) -> u64 {
        let after = self.after.as_ref().map_or(0, Norm::bytes);
        let shared = self.shared.as_ref().map_or(0, SharedExpert::bytes);
        self.router.bytes() + self.experts.bytes() + after + shared
    }
}

impl ExpertWeights {
    /// Experts of the layer.
    pub fn count(&self) -> usize {
        match self {
            ExpertWeights::Resident(experts) => experts.len(),
            ExpertWeights::Streamed(streamed) => streamed.count,
        }
    }

    /// Inner width of an expert.
    pub fn width(&self) -> usize {
        match self {
            ExpertWeights::Resident(experts) => experts[0].up.weight().out_features(),
            ExpertWeights::Streamed(streamed) => streamed.width,
        }
    }

    /// True if experts have gates.
    pub fn is_gated(&self) -> bool {
        match self {
            ExpertWeights::Resident(experts) => experts[0].gate.is_some(),
            ExpertWeights::Streamed(streamed) => streamed.is_gated,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            ExpertWeights::Resident(experts) => experts.iter().map(Expert::bytes).sum(),
            ExpertWeights::Streamed(streamed) => streamed.bytes(),
        }
    }
}

impl Expert {
    fn bytes(&self) -> u64 {
        let projections = [self.gate.as_ref(), Some(&self.up), Some(&self.down)];
        projections.into_iter().flatten().map(Projection::bytes).sum()
    }
}

impl<'a> Present<'a> {
    /// Gate, up or down, and its bias.
    fn part(self, part: usize) -> Option<(&'a PackedMatrix, Option<&'a [f32]>)> {
        match self {
            Present::Resident(Expert { gate, up, down }) => {
                let projection = [gate.as_ref(), Some(up), Some(down)][part]?;
                Some((projection.weight(), projection.bias()))
            }
            Present::Streamed(held, biases) => Some((held.matrix(part)?, biases[part].as_deref())),
        }
    }
}

impl ExpertStreams {
    /// The layers of `forms`, in a cache started with them.
    pub(crate) fn new(cache: Arc<ExpertCache>, layers: Vec<StreamedLayer>) -> ExpertStreams {
        ExpertStreams { cache, layers }
    }
}

impl From<&ExpertForm> for StreamedLayer {
    fn from(form: &ExpertForm) -> StreamedLayer {
        let tensors = form.parts.iter().flatten().flat_map(|part| part.tensors());
        StreamedLayer {
            base: form.base.clone(),
            tensors: tensors.collect(),
            parts: form
                .parts
                .each_ref()
                .map(|part| part.as_ref().map(|part| (part.name.clone(), part.half))),
        }
    }
}

impl SharedExpert {
    /// A block without norms.
    pub fn plain(mlp: Mlp, gate: Option<Projection>) -> SharedExpert {
        SharedExpert {
            before: None,
            mlp,
            gate,
            after: None,
        }
    }

    fn bytes(&self) -> u64 {
        let norms = self.before.iter().chain(&self.after).map(Norm::bytes).sum::<u64>();
        norms + self.mlp.bytes() + self.gate.as_ref().map_or(0, Projection::bytes)
    }

    /// Adds the expert's result to `Branch`.
    fn add(&self, rows: &mut RowBlock<'_>, count: usize, parts: &[SegmentPart]) {
        let width = rows.branch.len() / count.max(1);
        let results = &mut rows.experts.results[..rows.branch.len()];
        if let Some(norm) = &self.before {
            norm.apply(rows.hidden, rows.normed);
        }
        self.mlp.apply(rows.normed, rows.inner, rows.inner_gate, results, parts);
        if let Some(gate) = &self.gate {
            let opening = &mut rows.experts.logits[..count];
            gate.apply(rows.normed, opening, parts);
            for_rows(results, width, |row, values| {
                let opening = sigmoid(opening[row]);
                values.iter_mut().for_each(|value| *value *= opening);
            });
        }
        if let Some(norm) = &self.after {
            for_rows(results, width, |_, row| norm.apply_in_place(row));
        }
        add(rows.branch, results);
    }
}

#[cfg(test)]
mod tests;
