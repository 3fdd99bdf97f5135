//! Mixtures of experts: a router sends each token to a few of many feed-forward blocks.
//!
//! Tokens are grouped by expert, so that each expert's weights are read once for all of its tokens, and the products of several experts are
//! handed out to threads together. A row's arithmetic does not depend on the rows beside it, and a token's experts are added in the order of
//! their numbers: a token has the same bits alone and in any batch.

mod load;
mod router;
mod scratch;
mod settings;

use std::ops::Range;

use riffle_linear::{PackedMatrix, RowsProduct};

pub use router::{ExpertGroups, Router, RouterRules, Scoring, WeightSum};
pub(crate) use scratch::{ExpertScratch, scratch_bytes};
pub use settings::{ExpertSettings, FusedLayout};

use super::activation::sigmoid;
use super::rows::{add, for_rows};
use super::{Activation, Mlp, Norm, Projection};
use crate::SegmentPart;
use crate::workspace::RowBlock;

/// The feed-forward part of a layer that is a mixture of experts.
pub struct Experts {
    /// The choice of experts.
    pub router: Router,
    /// The experts by number.
    pub experts: Vec<Expert>,
    /// The non-linearity of every expert.
    pub activation: Activation,
    /// True if weights multiply the input of experts instead of their results.
    pub weighs_input: bool,
    /// Norm of the sum of a token's experts, where a family has one.
    pub after: Option<Norm>,
    /// A block that every token passes.
    pub shared: Option<SharedExpert>,
}

/// The weights of one expert.
pub struct Expert {
    /// To the inner width; `None` for experts without a gate.
    pub gate: Option<Projection>,
    /// To the inner width.
    pub up: Projection,
    /// From the inner width.
    pub down: Projection,
}

/// A feed-forward block beside the experts.
pub struct SharedExpert {
    /// Its own norm of the residual stream; `None` where it reads what the experts read.
    pub before: Option<Norm>,
    /// The block.
    pub mlp: Mlp,
    /// To one value, whose sigmoid multiplies the result of the block.
    pub gate: Option<Projection>,
    /// Norm of its result, where a family has one.
    pub after: Option<Norm>,
}

/// Choices that are computed together: experts that follow each other, and their places in the order of experts.
struct Group {
    experts: Range<usize>,
    places: Range<usize>,
}

impl Experts {
    /// `Branch = experts(Normed)`; a router with a norm of its own reads `Hidden`.
    pub(crate) fn apply(&self, rows: &mut RowBlock<'_>, parts: &[SegmentPart]) {
        let hidden = self.hidden_width();
        let count = rows.normed.len() / hidden;
        self.route(rows, count, parts);
        rows.branch.fill(0.0);
        let starts = rows.experts.starts.clone();
        for group in self.groups(&starts, rows.experts.results.len() / hidden) {
            self.apply_group(rows, &starts, &group, count);
            let ExpertScratch {
                places,
                choices,
                results,
                ..
            } = &*rows.experts;
            let used = self.router.rules.used;
            for_rows(rows.branch, hidden, |row, sum| {
                let own = row * used..(row + 1) * used;
                for (place, choice) in places[own.clone()].iter().zip(&choices[own]) {
                    let place = *place as usize;
                    if group.places.contains(&place) {
                        let result = &results[(place - group.places.start) * hidden..][..hidden];
                        let weight = if self.weighs_input { 1.0 } else { choice.weight };
                        sum.iter_mut()
                            .zip(result)
                            .for_each(|(sum, value)| *sum += weight * value);
                    }
                }
            });
        }
        if let Some(norm) = &self.after {
            for_rows(rows.branch, hidden, |_, row| norm.apply_in_place(row));
        }
        if let Some(shared) = &self.shared {
            shared.add(rows, count, parts);
        }
    }

    fn hidden_width(&self) -> usize {
        self.router.projection.weight().in_features()
    }

    /// Chooses experts and puts the choices in the order of experts, rows of one in their order.
    fn route(&self, rows: &mut RowBlock<'_>, count: usize, parts: &[SegmentPart]) {
        let (experts, used) = (self.experts.len(), self.router.rules.used);
        let ExpertScratch {
            logits,
            choices,
            places,
            order,
            starts,
            gathered,
            ..
        } = &mut *rows.experts;
        let logits = &mut logits[..count * experts];
        let choices = &mut choices[..count * used];
        let input = match &self.router.norm {
            None => &*rows.normed,
            Some(norm) => {
                let normed = &mut gathered[..rows.hidden.len()];
                norm.apply(rows.hidden, normed);
                &*normed
            }
        };
        self.router.projection.apply(input, logits, parts);
        self.router.choose(logits, choices);
        starts.fill(0);
        for choice in &*choices {
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
    }

    /// Experts in groups of at most `most` choices, of one expert at least.
    fn groups(&self, starts: &[u32], most: usize) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for expert in 0..self.experts.len() {
            let places = starts[expert] as usize..starts[expert + 1] as usize;
            match groups.last_mut() {
                Some(group) if places.end - group.places.start <= most => {
                    group.experts.end = expert + 1;
                    group.places.end = places.end;
                }
                _ => groups.push(Group {
                    experts: expert..expert + 1,
                    places,
                }),
            }
        }
        groups
    }

    /// Computes the results of a group.
    fn apply_group(&self, rows: &mut RowBlock<'_>, starts: &[u32], group: &Group, count: usize) {
        let hidden = self.hidden_width();
        let scratch = &mut *rows.experts;
        let chosen = group.places.len();
        // All experts of a single token read the same row.
        let shares_row = count == 1 && !self.weighs_input;
        let input = if shares_row {
            &*rows.normed
        } else {
            let gathered = &mut scratch.gathered[..chosen * hidden];
            let order = &scratch.order[group.places.clone()];
            let normed = &*rows.normed;
            for_rows(gathered, hidden, |at, to| {
                to.copy_from_slice(&normed[order[at] as usize * hidden..][..hidden]);
            });
            if self.weighs_input {
                let places = scratch
                    .places
                    .iter()
                    .zip(&scratch.choices)
                    .take(count * self.router.rules.used);
                for (place, choice) in places {
                    if let Some(at) = (*place as usize)
                        .checked_sub(group.places.start)
                        .filter(|at| *at < chosen)
                    {
                        let row = &mut gathered[at * hidden..][..hidden];
                        row.iter_mut().for_each(|value| *value *= choice.weight);
                    }
                }
            }
            &*gathered
        };
        let width = self.experts[0].up.weight().out_features();
        let inner = &mut scratch.inner[..chosen * width];
        let inner_gate = &mut scratch.inner_gate[..chosen * width];
        let active = self.active(starts, group);
        let rows_of = |places: &Range<usize>| if shares_row { 0..1 } else { places.clone() };
        let mut products = Vec::with_capacity(2 * active.len());
        products.extend(parts(&active, inner, width, rows_of, |expert| Some(&expert.up)));
        products.extend(parts(&active, inner_gate, width, rows_of, |expert| {
            expert.gate.as_ref()
        }));
        PackedMatrix::matmul_rows(products, input);
        add_biases(&active, inner, width, |expert| Some(&expert.up));
        add_biases(&active, inner_gate, width, |expert| expert.gate.as_ref());
        let inner = match self.experts[0].gate {
            Some(_) => {
                self.activation.gate(inner_gate, inner);
                &*inner_gate
            }
            None => {
                self.activation.apply(inner);
                &*inner
            }
        };
        let results = &mut scratch.results[..chosen * hidden];
        let products = parts(&active, results, hidden, Range::clone, |expert| Some(&expert.down));
        PackedMatrix::matmul_rows(products, inner);
        add_biases(&active, results, hidden, |expert| Some(&expert.down));
    }

    /// The experts of a group that have tokens, with their places in it.
    fn active(&self, starts: &[u32], group: &Group) -> Vec<(&Expert, Range<usize>)> {
        let of = |expert: usize| {
            let place = |at: usize| starts[at] as usize - group.places.start;
            (&self.experts[expert], place(expert)..place(expert + 1))
        };
        let active = group.experts.clone().map(of);
        active.filter(|(_, places)| !places.is_empty()).collect()
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let experts: u64 = self.experts.iter().map(Expert::bytes).sum();
        let after = self.after.as_ref().map_or(0, Norm::bytes);
        self.router.bytes() + experts + after + self.shared.as_ref().map_or(0, SharedExpert::bytes)
    }
}

impl Expert {
    fn bytes(&self) -> u64 {
        let projections = [self.gate.as_ref(), Some(&self.up), Some(&self.down)];
        projections.into_iter().flatten().map(Projection::bytes).sum()
    }
}

/// A product of each expert, whose outputs, `[places, width]`, lie one after the other.
fn parts<'a>(
    active: &[(&'a Expert, Range<usize>)],
    outputs: &'a mut [f32],
    width: usize,
    rows: impl Fn(&Range<usize>) -> Range<usize>,
    projection: impl Fn(&'a Expert) -> Option<&'a Projection>,
) -> Vec<RowsProduct<'a>> {
    let mut left = outputs;
    let mut products = Vec::with_capacity(active.len());
    for &(expert, ref places) in active {
        let (output, behind) = left.split_at_mut(places.len() * width);
        left = behind;
        if let Some(projection) = projection(expert) {
            products.push(RowsProduct {
                matrix: projection.weight(),
                rows: rows(places),
                output,
            });
        }
    }
    products
}

/// Adds the bias of each expert to its outputs.
fn add_biases<'a>(
    active: &[(&'a Expert, Range<usize>)],
    outputs: &mut [f32],
    width: usize,
    projection: impl Fn(&'a Expert) -> Option<&'a Projection>,
) {
    for &(expert, ref places) in active {
        if let Some(projection) = projection(expert) {
            projection.add_bias(&mut outputs[places.start * width..places.end * width]);
        }
    }
}

impl SharedExpert {
    /// A block without norms of its own.
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

    /// Adds its result to `Branch`.
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
