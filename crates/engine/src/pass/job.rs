//! A pass in pieces, which can wait between two pieces.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Instant;

use riffle_attention::Partial;
use riffle_model::{Batch, Forward, RecurrentState, SegmentTokens};
use riffle_policy::Phase;

use crate::Failure;
use crate::attention::{AttentionState, LayerRows, RoundRows, Slot, attend_round};
use crate::compute::{ModelForward, ProjectedLayer};
use crate::pass::awake::keep_threads_awake;
use crate::pass::layer::{layer_index, layer_step, layer_traits};
use crate::pass::selected::SelectedRows;
use crate::pass::{BatchProgress, FinishedRows, PassProgress, Runner, Work};
use crate::{EngineError, Sequence};

/// Tokens of several sequences during their pass through the layers.
pub(crate) struct Pass {
    segments: Vec<Segment>,
    /// Blocks of rows for one piece of linear work.
    blocks: Vec<Range<usize>>,
    /// The rows among these that the last layer finishes.
    last_blocks: Vec<Range<usize>>,
    layer: usize,
    /// The layer before which the pass ends.
    pub(super) layers: usize,
    /// States for segments that have no sequence of their own, in models without recurrent layers.
    empty_states: Vec<RecurrentState>,
    stage: Stage,
    /// Rounds of the current layer.
    rounds: Vec<Round>,
    /// Seconds spent in attention.
    attention_s: f64,
}

/// The rows of one sequence.
struct Segment {
    rows: Range<usize>,
    /// Tokens of the sequence before these rows.
    start: usize,
    slot: Slot,
    phase: Phase,
    goal: usize,
    finished_rows: FinishedRows,
    /// Partials of the rows over their own chunks, in layers with two-phase policies.
    own: Vec<Partial>,
    failure: Option<EngineError>,
    /// Tokens that the sequence lost when room was made in it.
    lost: Vec<u32>,
}

/// The next piece of a layer.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Work on a block of rows, by number.
    Project(usize),
    /// A round of attention, by number.
    Attend(usize),
    /// Work on a block of rows, by number.
    Finish(usize),
}

/// A piece of attention.
#[derive(Debug, Clone)]
enum Round {
    /// All chunks of a segment are appended and attend to themselves: the first of two phases.
    Own(usize),
    /// Some rows of some segments.
    Rows(Vec<(usize, Range<usize>)>),
}

impl Pass {
    /// A new pass through `layers`.
    fn new(segments: Vec<Segment>, blocks: Vec<Range<usize>>, layers: Range<usize>) -> Self {
        Self {
            last_blocks: blocks.iter().flat_map(|block| finished_of(&segments, block)).collect(),
            segments,
            blocks,
            layer: layers.start,
            layers: layers.end,
            empty_states: Vec::new(),
            stage: Stage::Project(0),
            rounds: Vec::new(),
            attention_s: 0.0,
        }
    }

    /// Progress of the pass.
    pub(crate) fn progress(&self) -> PassProgress {
        PassProgress {
            share: self.share_done(),
            attention_s: self.attention_s,
        }
    }

    /// Completed share of the pass.
    pub(crate) fn share_done(&self) -> f64 {
        let (done, of) = match self.stage {
            Stage::Project(_) => (0, 1),
            Stage::Attend(round) => (round, self.rounds.len()),
            Stage::Finish(_) => (1, 1),
        };
        (self.layer as f64 + done as f64 / of.max(1) as f64) / self.layers as f64
    }

    /// The model layer in which the pass attends next, if attention is the next piece.
    pub(crate) fn attends_next(&self) -> Option<usize> {
        matches!(self.stage, Stage::Attend(_)).then_some(self.layer)
    }

    /// The failure of the pass's first sequence, if any.
    pub(crate) fn take_failure(&mut self) -> Option<EngineError> {
        self.segments.first_mut()?.failure.take()
    }

    /// Stops the work of one sequence; the others continue.
    pub(crate) fn give_up(&mut self, work: usize, error: EngineError) {
        self.segments[work].failure.get_or_insert(error);
    }
}

impl PassProgress {
    /// The progress of the pass's only batch: `tokens` tokens after the first `first` of their sequence.
    pub(crate) fn of_batch(self, first: usize, tokens: usize) -> BatchProgress {
        BatchProgress {
            first,
            tokens,
            share: self.share,
            attention_s: self.attention_s,
        }
    }
}

impl Runner {
    /// Begins a pass through all layers; the calls that advance it get the same work.
    pub(crate) fn begin(&mut self, work: &mut [Work<'_>]) -> Result<Pass, EngineError> {
        if work.iter().all(|work| work.phase == Phase::Decode) {
            keep_threads_awake();
        }
        let mut segments = Vec::with_capacity(work.len());
        let mut rows = 0;
        for work in work.iter_mut() {
            let (failure, lost) = match get_ready(work) {
                Ok(()) => (None, Vec::new()),
                Err(failure) => (Some(failure.error), failure.again),
            };
            let start = work.sequence.tokens().len();
            segments.push(Segment {
                rows: rows..rows + work.tokens.len(),
                start,
                slot: work.sequence.attention().rolling.slot(start),
                phase: work.phase,
                goal: work.goal,
                // The layer that predicts further tokens reads all hidden states.
                finished_rows: match self.engine.predictor_room {
                    Some(_) => FinishedRows::All,
                    None => work.finished_rows,
                },
                own: Vec::new(),
                failure,
                lost,
            });
            rows += work.tokens.len();
        }
        let parts = work.iter().map(|work| SegmentTokens {
            tokens: work.tokens,
            position: work
                .sequence
                .attention()
                .rolling
                .position(work.sequence.tokens().len())
                .0,
            one_by_one: work.phase == Phase::Decode,
            length: work.sequence.turn().length(),
            adapters: work.sequence.options().adapters,
        });
        let batch = Batch::new(parts)?;
        let chunk_tokens = self.engine.options().machine.chunk_tokens;
        let forward = self.forward_for(rows)?.as_dyn();
        forward.embed(&batch)?;
        let blocks = forward.row_blocks(chunk_tokens);
        self.rows = rows;
        Ok(Pass::new(segments, blocks, 0..self.engine.model().config().layers))
    }

    /// Begins a pass of selected tokens of one prompt through the layers from `layer` on.
    pub(crate) fn begin_selected(&mut self, rows: &SelectedRows<'_>, layer: usize) -> Result<Pass, EngineError> {
        let engine = Arc::clone(&self.engine);
        let (config, chunk_tokens) = (engine.model().config(), engine.options().machine.chunk_tokens);
        let batch = rows.batch()?;
        let Some(forward) = self.forward_for(batch.rows())?.host() else {
            unreachable!("options refuse a device beside a selection of tokens")
        };
        forward.resume(&batch, rows.hidden)?;
        let blocks = forward.row_blocks(chunk_tokens);
        self.rows = batch.rows();
        let segment = Segment {
            rows: 0..batch.rows(),
            start: 0,
            slot: Slot(rows.first),
            phase: Phase::Prefill,
            goal: rows.goal,
            finished_rows: FinishedRows::Last,
            own: Vec::new(),
            failure: None,
            lost: Vec::new(),
        };
        Ok(Pass {
            empty_states: vec![RecurrentState::new(config); batch.segments().len()],
            ..Pass::new(vec![segment], blocks, layer..config.layers)
        })
    }

    /// Queries of the last `count` rows of the batch, `[count, heads, key_width]`, before the attention of layer
    /// `layer`.
    pub(crate) fn last_queries(&mut self, pass: &Pass, layer: usize, count: usize) -> Option<Vec<f32>> {
        if pass.layer != layer || !matches!(pass.stage, Stage::Attend(0)) {
            return None;
        }
        let rows = self.rows;
        let queries = self.forward.as_mut()?.projected()?.queries;
        let width = queries.len() / rows;
        Some(queries[(rows - count) * width..].to_vec())
    }

    /// Does the next piece of a pass; breaks after the last one.
    pub(crate) fn advance(&mut self, pass: &mut Pass, work: &mut [Work<'_>]) -> Result<ControlFlow<()>, EngineError> {
        if pass.layer == pass.layers {
            return Ok(ControlFlow::Break(()));
        }
        match pass.stage {
            Stage::Project(block) => self.project(pass, work, block)?,
            Stage::Attend(round) => {
                let began = Instant::now();
                self.attend(pass, work, round)?;
                pass.attention_s += began.elapsed().as_secs_f64();
                pass.stage = if round + 1 < pass.rounds.len() {
                    Stage::Attend(round + 1)
                } else {
                    Stage::Finish(0)
                };
            }
            Stage::Finish(block) => self.finish(pass, work, block)?,
        }
        Ok(if pass.layer == pass.layers {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    }

    /// Ends a pass through all layers.
    pub(crate) fn complete(&mut self, pass: Pass, work: &mut [Work<'_>]) -> Vec<Option<Failure>> {
        let is_whole = pass.layers == self.engine.model().config().layers;
        let rows: Vec<Range<usize>> = pass.segments.iter().map(|segment| segment.rows.clone()).collect();
        let ended = work.iter_mut().zip(pass.segments);
        let outcomes: Vec<Option<Failure>> = ended
            .map(|(work, segment)| match segment.failure {
                Some(error) => {
                    let again = work.sequence.go_back(segment.start).unwrap_or_default();
                    Some(Failure {
                        error,
                        again: [segment.lost, again].concat(),
                    })
                }
                None => work.sequence.take_in(work.tokens, work.phase).err().map(Failure::from),
            })
            .collect();
        if is_whole {
            self.show_predictor(&rows, work, &outcomes);
        }
        outcomes
    }

    /// Gives the hidden states of newly read tokens to the predicting layer.
    fn show_predictor(&mut self, rows: &[Range<usize>], work: &mut [Work<'_>], outcomes: &[Option<Failure>]) {
        let Some(mut predictor) = self.take_predictor() else {
            return;
        };
        if let Some(pass) = self.forward.as_mut().and_then(|forward| forward.host()) {
            let ended = work.iter_mut().zip(rows).zip(outcomes);
            for ((work, rows), _) in ended.filter(|(_, outcome)| outcome.is_none()) {
                let (sequence, is_prompt) = (&mut *work.sequence, work.phase == Phase::Prefill);
                let read = (&*pass, rows.clone());
                let (tokens, kept) = sequence.predicted();
                let Some(kept) = kept else { continue };
                // A failure here costs drafts but no answer.
                if kept.take_in(&mut predictor, read, tokens, is_prompt).is_err() {
                    kept.forget();
                }
            }
        }
        self.predictor = Some(predictor);
    }

    /// Ends a pass early: sequences return to their earlier contents.
    pub(crate) fn abandon(&mut self, pass: Pass, work: &mut [Work<'_>]) {
        for (work, segment) in work.iter_mut().zip(pass.segments) {
            drop(work.sequence.go_back(segment.start));
        }
    }

    fn project(&mut self, pass: &mut Pass, work: &mut [Work<'_>], block: usize) -> Result<(), EngineError> {
        let shape = self.engine.model().config().attention_of(pass.layer);
        let rotation = self.engine.options().cache.rotation();
        let forward = begun(&mut self.forward);
        let attends = forward.project(pass.layer, pass.blocks[block].clone(), &shape, rotation)?;
        let is_last = block + 1 == pass.blocks.len();
        // A recurrent layer does all of its work in `finish`.
        pass.stage = match (is_last, attends) {
            (false, _) => Stage::Project(block + 1),
            (true, true) => {
                pass.segments.iter_mut().for_each(|segment| segment.own.clear());
                pass.rounds = self.rounds(pass, work);
                Stage::Attend(0)
            }
            (true, false) => Stage::Finish(0),
        };
        Ok(())
    }

    /// Cuts a layer's attention into pieces: generated rows of all sequences together, prompts chunk by chunk.
    fn rounds(&self, pass: &Pass, work: &[Work<'_>]) -> Vec<Round> {
        let chunk_tokens = self.engine.options().machine.chunk_tokens;
        let (mut generated, mut chunks) = (Vec::<Vec<(usize, Range<usize>)>>::new(), Vec::new());
        for (number, (segment, work)) in pass.segments.iter().zip(work).enumerate() {
            let rows = segment.rows.len();
            let traits = layer_traits(work.sequence, pass.layer, segment.phase);
            match segment.phase {
                Phase::Decode => {
                    // A policy that learns must do so for a row before it selects for the next.
                    let step = if traits.follow_from_keys { rows } else { 1 };
                    for (round, first) in (0..rows).step_by(step).enumerate() {
                        generated.resize_with(generated.len().max(round + 1), Vec::new);
                        generated[round].push((number, first..first + step));
                    }
                }
                Phase::Prefill => {
                    if traits.two_phases {
                        chunks.push(Round::Own(number));
                    }
                    let firsts = (0..rows).step_by(chunk_tokens);
                    chunks.extend(
                        firsts.map(|first| Round::Rows(vec![(number, first..(first + chunk_tokens).min(rows))])),
                    );
                }
            }
        }
        generated.into_iter().map(Round::Rows).chain(chunks).collect()
    }

    fn attend(&mut self, pass: &mut Pass, work: &mut [Work<'_>], round: usize) -> Result<(), EngineError> {
        let engine = &self.engine;
        let config = engine.model().config();
        let forward = begun(&mut self.forward);
        let layer = pass.layer;
        let (Some(cache_layer), Some(projected)) = (config.cache_layer(layer), forward.projected()) else {
            return Ok(());
        };
        let chunk_tokens = engine.options().machine.chunk_tokens;
        let taken = match pass.rounds[round].clone() {
            Round::Own(number) => {
                let segment = &mut pass.segments[number];
                if segment.failure.is_none() {
                    let sequence = &mut *work[number].sequence;
                    let input = segment.layer_rows(sequence, &projected, layer);
                    let attention = sequence.attention_mut();
                    segment.failure = attention.attend_own(&input, chunk_tokens, &mut segment.own).err();
                }
                Vec::new()
            }
            Round::Rows(named) => {
                let live = parts_of(&mut pass.segments, work, named.clone());
                let parts = live.map(|(segment, sequence, rows)| RoundRows {
                    input: segment.layer_rows(sequence, &projected, layer),
                    attention: sequence.attention_mut(),
                    chunk_tokens,
                    rows,
                    own: &mut segment.own,
                    failure: &mut segment.failure,
                });
                let taken = attend_round(&mut parts.collect::<Vec<_>>(), &mut self.partials, projected.output);
                for (segment, sequence, rows) in parts_of(&mut pass.segments, work, named) {
                    if segment.phase == Phase::Decode {
                        let AttentionState {
                            learned_rows,
                            policies,
                            cache,
                            ..
                        } = sequence.attention_mut();
                        let learned = learned_rows.take(&mut policies.decode, cache, cache_layer, rows.end);
                        segment.failure = learned.err();
                    }
                }
                taken
            }
        };
        for rows in taken {
            forward.take_output(rows)?;
        }
        Ok(())
    }

    fn finish(&mut self, pass: &mut Pass, work: &mut [Work<'_>], block: usize) -> Result<(), EngineError> {
        let forward = begun(&mut self.forward);
        let states = work.iter_mut().map(|work| &mut work.sequence.recurrence_mut().state);
        let mut states: Vec<&mut RecurrentState> = match &mut *pass.empty_states {
            [] => states.collect(),
            empty => empty.iter_mut().collect(),
        };
        let forward = forward.as_dyn();
        let blocks = if forward.may_leave_out_rows(pass.layer) {
            &pass.last_blocks
        } else {
            &pass.blocks
        };
        if !forward.finish_piece(pass.layer, blocks[block].clone(), &mut states)? {
            return Ok(());
        }
        if block + 1 < blocks.len() {
            pass.stage = Stage::Finish(block + 1);
        } else {
            pass.layer += 1;
            pass.stage = Stage::Project(0);
        }
        Ok(())
    }
}

/// The rows of a block that the last layer finishes, as runs of adjacent rows.
fn finished_of(segments: &[Segment], block: &Range<usize>) -> Vec<Range<usize>> {
    let mut runs = Vec::<Range<usize>>::new();
    for segment in segments {
        let all = segment.phase == Phase::Decode || segment.finished_rows == FinishedRows::All;
        let first = if all { segment.rows.start } else { segment.rows.end - 1 };
        let run = first.max(block.start)..segment.rows.end.min(block.end);
        match runs.last_mut() {
            _ if run.is_empty() => {}
            Some(before) if before.end == run.start => before.end = run.end,
            _ => runs.push(run),
        }
    }
    runs
}

impl Segment {
    /// The segment's rows in a model layer. The layer has keys of its own or reads another layer's.
    fn layer_rows<'a>(&self, sequence: &Sequence, projected: &ProjectedLayer<'a>, layer: usize) -> LayerRows<'a> {
        let config = sequence.engine().model().config();
        let shape = config.attention_of(layer);
        let query_width = shape.query_width();
        let strides = [shape.keys_width(), shape.values_width()];
        LayerRows {
            step: layer_step(sequence, layer, self.phase, self.goal),
            cache_layer: config.cache_layer(layer).unwrap_or(0),
            slot: self.slot,
            first_row: self.rows.start,
            tokens: self.rows.len(),
            queries: &projected.queries[self.rows.start * query_width..self.rows.end * query_width],
            new_keys: projected.new_keys.rows(&self.rows, strides),
            index: layer_index(config, projected, layer, &self.rows),
        }
    }
}

/// Each segment of `named` without a failure, with its sequence and its rows, in the order of `named`.
fn parts_of<'a>(
    segments: &'a mut [Segment],
    work: &'a mut [Work<'_>],
    named: Vec<(usize, Range<usize>)>,
) -> impl Iterator<Item = (&'a mut Segment, &'a mut Sequence, Range<usize>)> {
    let mut named = named.into_iter().peekable();
    let all = segments.iter_mut().zip(work).enumerate();
    all.filter_map(move |(number, (segment, work))| {
        let (_, rows) = named.next_if(|(name, _)| *name == number)?;
        segment
            .failure
            .is_none()
            .then_some((segment, &mut *work.sequence, rows))
    })
}

/// The scratch of a pass that has begun.
pub(super) fn begun(forward: &mut Option<Box<dyn ModelForward>>) -> &mut dyn ModelForward {
    &mut **forward.as_mut().expect("a pass that goes on has begun")
}

/// Makes room in a sequence for the tokens that it will read.
fn get_ready(work: &mut Work<'_>) -> Result<(), Box<Failure>> {
    let sequence = &mut *work.sequence;
    if work.phase == Phase::Decode {
        sequence.evict()?;
        let tokens = sequence.tokens().len();
        let AttentionState {
            learned_rows, policies, ..
        } = sequence.attention_mut();
        learned_rows.begin(&policies.decode, tokens, work.tokens.len());
    }
    sequence.roll(work.tokens.len())
}
