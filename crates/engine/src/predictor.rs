//! A sequence's rows of the predicting layer: keys and values. There is one row for each position whose hidden state
//! and next token are known. Other hidden states wait for their rows.
//!
//! Rows only serve drafts. A sequence continued from pages or a file without rows starts them there. A sequence that
//! returns to a position without its state leaves this row out.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use riffle_attention::{
    Arithmetic, AttendJob, AttendOptions, Format, KvView, PageView, Partial, Plane, PlaneMut, QueryTile, Selection,
    attend_batch, write_keys, write_values,
};
use riffle_model::{Batch, HostForward, ModelConfig, PredictorForward, Projected};

use crate::{EngineError, EngineOptions};

/// Rows of a block.
const BLOCK_ROWS: usize = 128;
/// Maximum number of waiting hidden states, and of rows computed together.
const MOST_STATES: usize = 128;
/// Hidden states added together: the rows of a verified draft and those before them fit.
const TAKEN_TOGETHER: usize = 64;

/// The memory for the rows of all sequences of an engine.
pub(crate) struct PredictorRoom {
    kv_heads: usize,
    head_dim: usize,
    hidden_size: usize,
    options: AttendOptions<'static>,
    /// Number of free blocks.
    left: AtomicUsize,
}

/// Consecutive rows of a sequence and its forks.
struct Block {
    // both [kv_heads, BLOCK_ROWS, head_dim], f16 in attention's layout
    keys: Vec<u16>,
    values: Vec<u16>,
    room: Arc<PredictorRoom>,
}

/// The rows of a sequence.
#[derive(Clone)]
pub(crate) struct PredictorRows {
    room: Arc<PredictorRoom>,
    blocks: Vec<Arc<Block>>,
    /// The position of each row, ascending.
    positions: Vec<u32>,
    /// Hidden states of neighbouring positions without a row yet, `[states, hidden_size]`.
    states: Vec<f32>,
    /// The position of the first of these states.
    first_state: usize,
}

impl PredictorRoom {
    /// Memory for the rows of all tokens that an engine's sequences may hold.
    pub(crate) fn new(config: &ModelConfig, options: &EngineOptions, context: usize) -> Arc<Self> {
        let attend = AttendOptions::new(config.attention_scale)
            .with_soft_cap(config.soft_cap)
            // Every stored row precedes the row that reads it.
            .with_causal(false)
            .with_arithmetic(Arithmetic::Fused);
        Arc::new(Self {
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            hidden_size: config.hidden_size,
            options: attend,
            left: AtomicUsize::new(blocks(options, context)),
        })
    }

    /// Bytes of the rows of all sequences, and of waiting states.
    pub(crate) fn planned_bytes(config: &ModelConfig, options: &EngineOptions, context: usize) -> u64 {
        let block = 2 * Format::F16.plane_bytes(BLOCK_ROWS, config.head_dim) * config.kv_heads;
        let states = MOST_STATES * config.hidden_size * size_of::<f32>();
        let positions = context.next_multiple_of(BLOCK_ROWS) * size_of::<u32>();
        let of_sequences = (options.machine.sequences as u64).saturating_mul((states + positions) as u64);
        (blocks(options, context) as u64)
            .saturating_mul(block as u64)
            .saturating_add(of_sequences)
    }

    /// Maximum number of rows that the layer computes together.
    pub(crate) fn rows_together(options: &EngineOptions) -> usize {
        MOST_STATES.max(options.machine.sequences)
    }

    /// Takes an empty block, if one is left.
    fn take(self: &Arc<Self>) -> Option<Block> {
        let one_less = |left: usize| left.checked_sub(1);
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        taken.ok()?;
        let plane = vec![0; self.kv_heads * self.plane()];
        Some(Block {
            keys: plane.clone(),
            values: plane,
            room: Arc::clone(self),
        })
    }

    /// Values in a block's plane of one KV head.
    fn plane(&self) -> usize {
        BLOCK_ROWS * self.head_dim
    }
}

/// Blocks for the tokens of all sequences. Each sequence has a partly filled block, and an unshared copy.
fn blocks(options: &EngineOptions, context: usize) -> usize {
    let tokens = options.cache.pool_tokens.unwrap_or(context);
    tokens
        .div_ceil(BLOCK_ROWS)
        .saturating_add(options.machine.sequences.saturating_mul(2))
}

impl Drop for Block {
    fn drop(&mut self) {
        self.room.left.fetch_add(1, Ordering::Relaxed);
    }
}

impl PredictorRows {
    pub(crate) fn new(room: &Arc<PredictorRoom>) -> Self {
        Self {
            room: Arc::clone(room),
            blocks: Vec::new(),
            positions: Vec::new(),
            states: Vec::new(),
            first_state: 0,
        }
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.positions.len()
    }

    /// Removes and returns the hidden state of the last of `tokens` tokens, if it waits for the next token.
    pub(crate) fn take_last(&mut self, tokens: usize) -> Option<Vec<f32>> {
        if self.waiting() == 1 && self.first_state + 1 == tokens {
            Some(std::mem::take(&mut self.states))
        } else {
            None
        }
    }

    /// Adds the hidden states of a pass's rows, which are the last of `tokens`, the sequence's tokens now. For a
    /// prompt, all but the last become rows at once; for an answer they wait, because they may be rolled back.
    pub(crate) fn take_in(
        &mut self,
        forward: &mut PredictorForward,
        (pass, rows): (&HostForward, Range<usize>),
        tokens: &[u32],
        is_prompt: bool,
    ) -> Result<(), EngineError> {
        let start = tokens.len() - rows.len();
        if self.first_state + self.waiting() != start {
            self.states.clear();
        }
        for first in rows.clone().step_by(TAKEN_TOGETHER) {
            let taken = first..(first + TAKEN_TOGETHER).min(rows.end);
            if self.waiting() + taken.len() > MOST_STATES {
                self.read(forward, tokens)?;
            }
            if self.states.is_empty() {
                self.states.reserve_exact(MOST_STATES * self.room.hidden_size);
                self.first_state = start + first - rows.start;
            }
            pass.append_normed(taken, &mut self.states);
        }
        if is_prompt { self.read(forward, tokens) } else { Ok(()) }
    }

    /// Computes rows from the states whose next token is among `tokens`, the sequence's tokens.
    pub(crate) fn read(&mut self, forward: &mut PredictorForward, tokens: &[u32]) -> Result<(), EngineError> {
        let (first, width) = (self.first_state, self.room.hidden_size);
        let known = tokens.len().saturating_sub(first + 1).min(self.waiting());
        if known == 0 {
            return Ok(());
        }
        let batch = Batch::of_one(&tokens[first + 1..][..known], first)?;
        let projected = forward.project(&batch, &self.states[..known * width])?;
        let (keys, values) = (&*projected.keys, &*projected.values);
        self.append(first, known, keys, values)?;
        self.states.drain(..(known * width).min(self.states.len()));
        self.first_state += known;
        Ok(())
    }

    /// Appends rows from `position` on, keys and values `[rows, kv_heads, head_dim]`. Without room, all rows are
    /// dropped, to start again.
    pub(crate) fn append(
        &mut self,
        position: usize,
        rows: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), EngineError> {
        let room = Arc::clone(&self.room);
        let (head_dim, width) = (room.head_dim, room.kv_heads * room.head_dim);
        let mut done = 0;
        while done < rows {
            let (held, within) = (self.positions.len(), self.positions.len() % BLOCK_ROWS);
            let count = (BLOCK_ROWS - within).min(rows - done);
            let Some(block) = self.block_mut(held / BLOCK_ROWS) else {
                self.forget();
                return Ok(());
            };
            for head in 0..room.kv_heads {
                let (source, plane) = (done * width + head * head_dim, head * room.plane()..);
                let (keys, values) = (&keys[source..], &values[source..]);
                let mut to = PlaneMut::F16(&mut block.keys[plane.clone()][..room.plane()]);
                write_keys(&mut to, head_dim, within, count, keys, width)?;
                let mut to = PlaneMut::F16(&mut block.values[plane][..room.plane()]);
                write_values(&mut to, head_dim, within, count, values, width)?;
            }
            if within == 0 {
                self.positions.reserve_exact(BLOCK_ROWS);
            }
            self.positions
                .extend((position + done..position + done + count).map(|position| position as u32));
            done += count;
        }
        Ok(())
    }

    /// A block that only this sequence uses; `None` without room.
    fn block_mut(&mut self, number: usize) -> Option<&mut Block> {
        if number == self.blocks.len() {
            self.blocks.push(Arc::new(self.room.take()?));
        }
        if Arc::get_mut(&mut self.blocks[number]).is_none() {
            let mut copy = self.room.take()?;
            copy.keys.copy_from_slice(&self.blocks[number].keys);
            copy.values.copy_from_slice(&self.blocks[number].values);
            self.blocks[number] = Arc::new(copy);
        }
        Arc::get_mut(&mut self.blocks[number])
    }

    /// Truncates the rows to the first `tokens` tokens of the sequence.
    pub(crate) fn cut(&mut self, tokens: usize) {
        // A row needs the token after it.
        let kept = self
            .positions
            .partition_point(|position| *position as usize + 1 < tokens);
        self.positions.truncate(kept);
        self.blocks.truncate(kept.div_ceil(BLOCK_ROWS));
        let states = tokens.saturating_sub(self.first_state).min(self.waiting());
        self.states.truncate(states * self.room.hidden_size);
    }

    /// Resets the state.
    pub(crate) fn forget(&mut self) {
        self.cut(0);
    }

    fn waiting(&self) -> usize {
        self.states.len() / self.room.hidden_size
    }

    /// The rows of one KV head.
    fn pages(&self, head: usize) -> Vec<PageView<'_>> {
        let plane = self.room.plane();
        let blocks = self.blocks.iter().enumerate();
        blocks
            .map(|(number, block)| {
                let start = number * BLOCK_ROWS;
                PageView {
                    start,
                    tokens: (self.rows() - start).min(BLOCK_ROWS),
                    keys: Plane::F16(&block.keys[head * plane..][..plane]),
                    values: Plane::F16(&block.values[head * plane..][..plane]),
                }
            })
            .collect()
    }
}

/// Attends with each query of `projected`, `[sequences, heads, head_dim]`, to all rows of its sequence.
pub(crate) fn attend(sequences: &[&PredictorRows], projected: &mut Projected<'_>) -> Result<(), EngineError> {
    let Some(room) = sequences.first().map(|rows| &rows.room) else {
        return Ok(());
    };
    let (kv_heads, head_dim) = (room.kv_heads, room.head_dim);
    let width = projected.queries.len() / sequences.len();
    let (group, tile) = (width / head_dim / kv_heads, width / kv_heads);
    let heads = sequences
        .iter()
        .flat_map(|rows| (0..kv_heads).map(|head| (*rows, head)));
    let read: Vec<_> = heads
        .map(|(rows, head)| (rows.pages(head), Selection::full(rows.rows())))
        .collect();
    let tiles = projected.queries.chunks_exact(tile).zip(&read);
    let jobs: Vec<AttendJob<'_>> = tiles
        .map(|(data, (pages, selection))| AttendJob {
            queries: QueryTile {
                data,
                rows: 1,
                row_stride: tile,
                group,
                head_dim,
                start: 0,
            },
            kv: KvView { head_dim, pages },
            selection,
        })
        .collect();
    let mut partials = vec![Partial::new(1, group, head_dim); jobs.len()];
    attend_batch(&jobs, &room.options, &mut partials)?;
    for (partial, out) in partials.iter().zip(projected.attended.chunks_exact_mut(tile)) {
        partial.finish_into(out, tile, None)?;
    }
    Ok(())
}
