//! Computes experts: one group of choices at a time, starting with experts whose weights are in memory.

use std::ops::Range;

use riffle_linear::{PackedMatrix, RowsProduct};

use super::stream::{StreamedExperts, Urgency};
use super::{Behind, EARLY_ROWS, ExpertScratch, ExpertWeights, Experts, Present};
use crate::ModelError;
use crate::blocks::for_rows;
use crate::blocks::projection::add_bias;

const GATE: usize = 0;
const UP: usize = 1;
const DOWN: usize = 2;

/// An expert and its choices within a group.
struct Active {
    expert: usize,
    places: Range<usize>,
}

impl Experts {
    /// Computes the next group of choices of a batch of `rows` rows with the residual stream `hidden`. Returns true
    /// after the last group.
    ///
    /// # Errors
    /// The reason experts could not be read.
    pub(crate) fn advance(
        &self,
        scratch: &mut ExpertScratch,
        (hidden, rows): (&[f32], usize),
        behind: Option<Behind<'_>>,
    ) -> Result<bool, ModelError> {
        let width = self.hidden_width();
        let most = scratch.results.len() / width;
        let group = group(&scratch.starts, scratch.done, most);
        let active = active(&scratch.starts, &group);
        // All experts of a single token read the same row.
        let shares_row = rows == 1 && !self.weighs_input;
        match &self.experts {
            ExpertWeights::Resident(experts) => {
                self.gather(scratch, &group, rows, shares_row);
                let present = active.iter().map(|active| Present::Resident(&experts[active.expert]));
                let active: Vec<_> = active.iter().zip(present).collect();
                self.compute(scratch, &active, shares_row);
            }
            ExpertWeights::Streamed(streamed) => {
                let experts = active.iter().map(|active| active.expert);
                streamed.cache.ask(streamed.layer, experts, Urgency::Now);
                if let Some(behind) = behind.filter(|_| rows <= EARLY_ROWS) {
                    behind.experts.guess(behind.norm, hidden, scratch);
                }
                self.gather(scratch, &group, rows, shares_row);
                self.compute_streamed(scratch, (streamed, &active), (group.end, shares_row), behind)?;
            }
        }
        self.add_results(scratch, &group, rows);
        scratch.done = group.end;
        Ok(group.end == rows * self.router.rules.used)
    }

    /// Computes experts in the order in which they are loaded.
    fn compute_streamed(
        &self,
        scratch: &mut ExpertScratch,
        (streamed, active): (&StreamedExperts, &[Active]),
        (end, shares_row): (usize, bool),
        behind: Option<Behind<'_>>,
    ) -> Result<(), ModelError> {
        let mut wanted: Vec<usize> = active.iter().map(|active| active.expert).collect();
        while !wanted.is_empty() {
            let held = streamed.cache.wait(streamed.layer, &mut wanted)?;
            if wanted.is_empty() {
                read_ahead(streamed, &scratch.starts, end, behind);
            }
            let here = active.iter().filter_map(|active| {
                let (_, held) = held.iter().find(|(expert, _)| *expert == active.expert)?;
                Some((active, Present::Streamed(held, &streamed.biases[active.expert])))
            });
            self.compute(scratch, &here.collect::<Vec<_>>(), shares_row);
        }
        Ok(())
    }

    /// Gathers the inputs of a group's choices.
    fn gather(&self, scratch: &mut ExpertScratch, group: &Range<usize>, rows: usize, shares_row: bool) {
        let width = self.hidden_width();
        let count = if shares_row { 1 } else { group.len() };
        let gathered = &mut scratch.gathered[..count * width];
        let order = &scratch.order[group.clone()];
        let inputs = &scratch.inputs;
        for_rows(gathered, width, |at, to| {
            to.copy_from_slice(&inputs[order[at] as usize * width..][..width]);
        });
        if !self.weighs_input {
            return;
        }
        let choices = scratch.places.iter().zip(&scratch.choices);
        for (place, choice) in choices.take(rows * self.router.rules.used) {
            let place = *place as usize;
            if group.contains(&place) {
                let row = &mut gathered[(place - group.start) * width..][..width];
                row.iter_mut().for_each(|value| *value *= choice.weight);
            }
        }
    }

    /// Computes the results of some experts of a group.
    fn compute(&self, scratch: &mut ExpertScratch, active: &[(&Active, Present<'_>)], shares_row: bool) {
        let (hidden, width) = (self.hidden_width(), self.experts.width());
        let ExpertScratch {
            gathered,
            results,
            inner,
            inner_gate,
            ..
        } = scratch;
        let rows_of = |places: &Range<usize>| if shares_row { 0..1 } else { places.clone() };
        let mut products = Vec::with_capacity(2 * active.len());
        products.extend(parts(active, inner, width, rows_of, UP));
        products.extend(parts(active, inner_gate, width, rows_of, GATE));
        // A shared row is read alone.
        PackedMatrix::matmul_rows(products, gathered);
        add_biases(active, inner, width, UP);
        add_biases(active, inner_gate, width, GATE);
        for places in runs(active) {
            let values = places.start * width..places.end * width;
            if self.experts.is_gated() {
                self.activation.gate(&mut inner_gate[values.clone()], &inner[values]);
            } else {
                self.activation.apply(&mut inner[values]);
            }
        }
        let inner = if self.experts.is_gated() { inner_gate } else { inner };
        let products = parts(active, results, hidden, Range::clone, DOWN);
        PackedMatrix::matmul_rows(products, inner);
        add_biases(active, results, hidden, DOWN);
    }

    /// Adds the results of a group to the sums of their rows, for each row in the order of experts.
    fn add_results(&self, scratch: &mut ExpertScratch, group: &Range<usize>, rows: usize) {
        let (width, used) = (self.hidden_width(), self.router.rules.used);
        let ExpertScratch {
            places,
            choices,
            results,
            sums,
            ..
        } = scratch;
        for_rows(&mut sums[..rows * width], width, |row, sum| {
            let own = row * used..(row + 1) * used;
            for (place, choice) in places[own.clone()].iter().zip(&choices[own]) {
                let place = *place as usize;
                if group.contains(&place) {
                    let result = &results[(place - group.start) * width..][..width];
                    let weight = if self.weighs_input { 1.0 } else { choice.weight };
                    sum.iter_mut()
                        .zip(result)
                        .for_each(|(sum, value)| *sum += weight * value);
                }
            }
        });
    }
}

/// The next choices, at most `most`; the group ends with an expert if one fits.
fn group(starts: &[u32], from: usize, most: usize) -> Range<usize> {
    let end = from + most;
    let last = starts.partition_point(|start| *start as usize <= end);
    match starts[..last].last().map(|start| *start as usize) {
        Some(start) if start > from => from..start,
        _ => from..end.min(starts.last().map_or(end, |all| *all as usize)),
    }
}

/// The experts of a group's choices, with their choices.
fn active(starts: &[u32], group: &Range<usize>) -> Vec<Active> {
    let first = starts.partition_point(|start| (*start as usize) <= group.start);
    let mut active = Vec::new();
    for (expert, bounds) in starts.windows(2).enumerate().skip(first.saturating_sub(1)) {
        let (begin, end) = (bounds[0] as usize, bounds[1] as usize);
        if begin >= group.end {
            break;
        }
        let places = begin.max(group.start) - group.start..end.min(group.end) - group.start;
        if !places.is_empty() {
            active.push(Active { expert, places });
        }
    }
    active
}

/// Requests the experts of the next groups. After the last group of a long batch, requests the first experts of the
/// next layer.
fn read_ahead(streamed: &StreamedExperts, starts: &[u32], end: usize, behind: Option<Behind<'_>>) {
    let most = streamed.cache.most_ahead(streamed.layer);
    let next = starts.windows(2).enumerate();
    let next = next.filter(|(_, bounds)| bounds[1] > bounds[0] && bounds[1] as usize > end);
    let next: Vec<usize> = next.map(|(expert, _)| expert).take(most).collect();
    let left = most - next.len();
    streamed.cache.ask(streamed.layer, next.into_iter(), Urgency::Early);
    let choices = starts.last().map_or(0, |all| *all as usize);
    // With more choices than experts, nearly every expert has a token in the next layer too.
    if let Some(Behind { experts, .. }) = behind
        && let ExpertWeights::Streamed(behind) = &experts.experts
        && choices > 2 * behind.count
    {
        behind
            .cache
            .ask(behind.layer, 0..behind.count.min(left), Urgency::Early);
    }
}

/// Ranges of choices that follow each other.
fn runs(active: &[(&Active, Present<'_>)]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (Active { places, .. }, _) in active {
        match runs.last_mut() {
            Some(run) if run.end == places.start => run.end = places.end,
            _ => runs.push(places.clone()),
        }
    }
    runs
}

/// The product of each expert. Its outputs are at its choices of `[choices, width]`.
fn parts<'a>(
    active: &[(&Active, Present<'a>)],
    outputs: &'a mut [f32],
    width: usize,
    rows: impl Fn(&Range<usize>) -> Range<usize>,
    part: usize,
) -> Vec<RowsProduct<'a>> {
    let (mut left, mut first) = (outputs, 0);
    let mut products = Vec::with_capacity(active.len());
    for (Active { places, .. }, present) in active {
        let (_, own) = left.split_at_mut((places.start - first) * width);
        let (output, behind) = own.split_at_mut(places.len() * width);
        (left, first) = (behind, places.end);
        if let Some((matrix, _)) = present.part(part) {
            products.push(RowsProduct {
                matrix,
                rows: rows(places),
                output,
            });
        }
    }
    products
}

/// Adds the bias of each expert to its outputs.
fn add_biases(active: &[(&Active, Present<'_>)], outputs: &mut [f32], width: usize, part: usize) {
    for (Active { places, .. }, present) in active {
        if let Some((_, Some(bias))) = present.part(part) {
            add_bias(&mut outputs[places.start * width..places.end * width], bias);
        }
    }
}
