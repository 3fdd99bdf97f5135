//! A layer as data: the steps on a batch's rows, in order.
//!
//! Families describe their layers and compute nothing. This module runs the description on the CPU, in blocks of
//! rows, and `riffle-cuda` runs it on a device; a family is therefore written once.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::blocks::{
    Attention, Behind, Experts, HeadProjection, Laurel, LayerInput, Mixer, Mlp, Norm, Projection, StreamStep, add,
    scale, sigmoid_gate, sigmoid_gate_heads, softplus_gate_heads,
};
use crate::recurrent::LayerState;
use crate::workspace::{CUT_GRID, ROW_BLOCK, RowBlock, Workspace};
use crate::{Batch, ModelError, SegmentPart, StateShape};

/// Values of a batch's rows, which steps read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// The residual stream, `[rows, hidden_size]`.
    Hidden,
    /// The attention result, `[rows, heads, value_width]`.
    Attended,
    /// Scratch, `[rows, hidden_size]`: usually the input of a block.
    Normed,
    /// Scratch, `[rows, hidden_size]`: usually the output of a block.
    Branch,
}

/// Work on rows. Rows are independent, except in [`Step::Recur`], which has a state for each segment.
pub enum Step {
    /// `to = norm(from)`.
    Normalise {
        /// The norm.
        norm: Arc<Norm>,
        /// Input rows.
        from: Rows,
        /// Output rows.
        to: Rows,
    },
    /// `to = projection(from)`.
    Project {
        /// The linear layer.
        projection: Projection,
        /// Input rows.
        from: Rows,
        /// Output rows.
        to: Rows,
    },
    /// `to = projection(heads(Attended))`: a separate matrix for each head, then a linear layer over all.
    ProjectHeads {
        /// Projection from the value width of the attention, for each head.
        heads: HeadProjection,
        /// The linear layer after the heads' projection.
        projection: Projection,
        /// Output rows: [`Rows::Normed`] or [`Rows::Branch`].
        to: Rows,
    },
    /// `Branch = feed_forward(Normed)`.
    FeedForward(Mlp),
    /// `Branch = experts(Normed)`: a mixture of experts. A router with its own norm reads `Hidden`.
    Experts(Box<Experts>),
    /// `Branch = mixer(Normed)`, which updates the recurrent state of each segment in the order of its rows.
    Recur(Mixer),
    /// `Normed = norm(Hidden)`, then `Attended *= opening(gate(Normed))`.
    OpenGate {
        /// The norm before the gate.
        norm: Arc<Norm>,
        /// Linear layer to the width of attention's result, or to one value per head.
        gate: Projection,
        /// Factors from the values of the gate.
        opening: Opening,
    },
    /// `Hidden += rows`.
    Add(Rows),
    /// `Branch = projection(activation(gate(Hidden)) * input of the layer)`.
    LayerInput(LayerInput),
    /// `Branch = Normed + norm(right(left(Normed)))`.
    Laurel(Laurel),
    /// Work on all residual streams of the rows; `Hidden` is one of them.
    Streams(StreamStep),
    /// `Hidden *= factor`.
    Scale(f32),
}

/// Conversion of a gate's values to factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Opening {
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// ln(1 + e^x). No device computes it.
    Softplus,
}

/// One layer of a decoder.
pub struct Layer {
    /// Attention before the steps; `None` for a layer without. A layer may have both attention and a [`Step::Recur`].
    pub attention: Option<Attention>,
    /// The steps after attention.
    pub steps: Vec<Step>,
}

impl Layer {
    /// Runs some rows of `hidden`, `[batch rows, hidden]`, through the steps on the CPU, up to experts if the layer
    /// has some. `states` are those of a recurrent layer, one for each segment with such rows.
    pub(crate) fn finish(
        &self,
        batch: &Batch,
        rows: Range<usize>,
        hidden: &mut [f32],
        workspace: &mut Workspace,
        states: &mut [Option<&mut LayerState>],
    ) {
        let found = self.experts();
        let end = found.map_or(self.steps.len(), |(at, _)| at);
        for rows in batch.row_blocks(rows, ROW_BLOCK, CUT_GRID) {
            let parts: Vec<SegmentPart> = batch.parts(rows.clone()).collect();
            let first = rows.start;
            let mut block = workspace.row_block(batch, hidden, rows, self.attended_width());
            for step in &self.steps[..end] {
                step.apply(&mut block, &parts, states);
            }
            if let Some((_, experts)) = found {
                experts.route(&mut block, first, &parts);
            }
        }
    }

    /// Begins the experts of a batch whose rows are all finished up to them.
    pub(crate) fn begin_experts(&self, batch: &Batch, workspace: &mut Workspace) {
        if let Some((_, experts)) = self.experts() {
            experts.begin(&mut workspace.experts, batch.rows());
        }
    }

    /// Runs all rows of a batch through the layer's experts and the later steps, one piece per call. The rows are
    /// finished up to the experts. Returns true after the last piece. `behind` is the following layer.
    pub(crate) fn advance_experts(
        &self,
        batch: &Batch,
        hidden: &mut [f32],
        workspace: &mut Workspace,
        behind: Option<&Layer>,
    ) -> Result<bool, ModelError> {
        let Some((at, experts)) = self.experts() else {
            return Ok(true);
        };
        let behind = behind.and_then(Layer::as_behind);
        if !experts.advance(&mut workspace.experts, (hidden, batch.rows()), behind)? {
            return Ok(false);
        }
        for rows in batch.row_blocks(0..batch.rows(), ROW_BLOCK, CUT_GRID) {
            let parts: Vec<SegmentPart> = batch.parts(rows.clone()).collect();
            let first = rows.start;
            let mut block = workspace.row_block(batch, hidden, rows, self.attended_width());
            experts.end(&mut block, first, &parts);
            for step in &self.steps[at + 1..] {
                step.apply(&mut block, &parts, &mut []);
            }
        }
        Ok(true)
    }

    /// The experts of a layer, and their index among the steps.
    pub(crate) fn experts(&self) -> Option<(usize, &Experts)> {
        let mut steps = self.steps.iter().enumerate();
        steps.find_map(|(at, step)| match step {
            Step::Experts(experts) => Some((at, &**experts)),
            _ => None,
        })
    }

    /// The layer as the next one after another: its experts, and the norm of their input.
    fn as_behind(&self) -> Option<Behind<'_>> {
        let (at, experts) = self.experts()?;
        let norm = self.steps[..at].iter().rev().find_map(|step| match step {
            Step::Normalise {
                norm,
                from: Rows::Hidden,
                to: Rows::Normed,
            } => Some(&**norm),
            _ => None,
        })?;
        Some(Behind { norm, experts })
    }

    fn attended_width(&self) -> usize {
        let attention = self.attention.as_ref();
        attention.map_or(0, |attention| attention.shape.attended_width())
    }

    /// The mixer of a layer with a state.
    pub(crate) fn mixer(&self) -> Option<&Mixer> {
        self.steps.iter().find_map(|step| match step {
            Step::Recur(mixer) => Some(mixer),
            _ => None,
        })
    }

    /// Bytes of the layer's weights in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let mut seen = BTreeSet::new();
        // A shared norm is counted once.
        let mut once = |norm: &Arc<Norm>| {
            if seen.insert(Arc::as_ptr(norm)) {
                norm.bytes()
            } else {
                0
            }
        };
        let attention = self.attention.as_ref();
        let attention = attention.map_or(0, |attention| attention.bytes() + once(&attention.norm));
        let steps = self.steps.iter().map(|step| match step {
            Step::Normalise { norm, .. } => once(norm),
            Step::Project { projection, .. } => projection.bytes(),
            Step::ProjectHeads { heads, projection, .. } => heads.bytes() + projection.bytes(),
            Step::FeedForward(mlp) => mlp.bytes(),
            Step::Experts(experts) => experts.bytes(),
            Step::Recur(mixer) => mixer.bytes(),
            Step::OpenGate { norm, gate, .. } => once(norm) + gate.bytes(),
            Step::LayerInput(input) => input.bytes(),
            Step::Laurel(laurel) => laurel.bytes(),
            Step::Streams(streams) => streams.bytes(),
            Step::Add(_) | Step::Scale(_) => 0,
        });
        attention + steps.sum::<u64>()
    }
}

impl Step {
    /// The state that the step updates.
    pub(crate) fn state(&self) -> Option<StateShape> {
        match self {
            Step::Recur(mixer) => Some(mixer.state()),
            _ => None,
        }
    }

    fn apply(&self, rows: &mut RowBlock<'_>, parts: &[SegmentPart], states: &mut [Option<&mut LayerState>]) {
        match self {
            Step::Normalise { norm, from, to } => {
                rows.with(*from, *to, |input, output| norm.apply(input, output));
            }
            Step::Project { projection, from, to } => {
                rows.with(*from, *to, |input, output| projection.apply(input, output, parts));
            }
            Step::ProjectHeads { heads, projection, to } => {
                let count = rows.attended.len() / heads.input_width();
                let (values, scratch) = rows.mixer.split_at_mut(count * heads.output_width());
                heads.apply(
                    (rows.attended, heads.inputs()),
                    (&mut *values, heads.outputs()),
                    scratch,
                );
                let values = &*values;
                let output = match to {
                    Rows::Normed => &mut *rows.normed,
                    _ => &mut *rows.branch,
                };
                projection.apply(values, output, parts);
            }
            Step::FeedForward(mlp) => mlp.apply(rows.normed, rows.inner, rows.inner_gate, rows.branch, parts),
            // Experts run for a whole batch, not here.
            Step::Experts(_) => {}
            Step::Recur(Mixer::Ngrams(table)) => table.apply(rows, parts, states),
            Step::Recur(mixer) => mixer.apply(parts, states, rows.normed, rows.mixer, rows.branch),
            Step::OpenGate {
                norm,
                gate,
                opening: kind,
            } => {
                let count = rows.hidden.len() / norm.width();
                let opening = &mut rows.mixer[..count * gate.weight().out_features()];
                norm.apply(rows.hidden, rows.normed);
                gate.apply(rows.normed, opening, parts);
                let width = rows.attended.len() / opening.len().max(1);
                match (kind, width) {
                    (Opening::Softplus, width) => softplus_gate_heads(rows.attended, opening, width),
                    (Opening::Sigmoid, 1) => sigmoid_gate(rows.attended, opening),
                    (Opening::Sigmoid, width) => sigmoid_gate_heads(rows.attended, opening, width),
                }
            }
            Step::Add(term) => rows.with(*term, Rows::Hidden, |term, hidden| add(hidden, term)),
            Step::LayerInput(input) => input.apply(rows, parts),
            Step::Laurel(laurel) => laurel.apply(rows, parts),
            Step::Streams(streams) => streams.apply(rows, parts),
            Step::Scale(factor) => scale(rows.hidden, *factor),
        }
    }
}

impl RowBlock<'_> {
    /// Calls `work(from, to)`, which must be different rows.
    fn with(&mut self, from: Rows, to: Rows, work: impl FnOnce(&[f32], &mut [f32])) {
        let output = std::mem::take(self.rows_mut(to));
        work(self.rows_mut(from), &mut *output);
        *self.rows_mut(to) = output;
    }
}

/// The steps of a feed-forward block with a norm before it: `Hidden += mlp(norm(Hidden))`.
pub fn feed_forward(norm: Norm, mlp: Mlp) -> [Step; 3] {
    [
        Step::Normalise {
            norm: Arc::new(norm),
            from: Rows::Hidden,
            to: Rows::Normed,
        },
        Step::FeedForward(mlp),
        Step::Add(Rows::Branch),
    ]
}
