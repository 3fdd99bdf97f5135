//! Rows of one or more sequences that attend together.

use std::ops::Range;
use std::time::Instant;

use riffle_attention::Partial;
use riffle_kv::KvCache;
use riffle_policy::Phase;

use crate::EngineError;
use crate::attention::{AttentionState, Chosen, LayerRows, Reads, reading};

/// The rows of one sequence in a round.
pub(crate) struct RoundRows<'a> {
    pub(crate) attention: &'a mut AttentionState,
    /// All rows of the sequence in the pass.
    pub(crate) input: LayerRows<'a>,
    /// Rows of a chunk of a prompt.
    pub(crate) chunk_tokens: usize,
    /// Rows of the sequence: a chunk of a prompt, or generated rows, each of which selects separately.
    pub(crate) rows: Range<usize>,
    /// Partials of the first of two phases, chunk by chunk.
    pub(crate) own: &'a mut Vec<Partial>,
    pub(crate) failure: &'a mut Option<EngineError>,
}

/// A chunk of the rows of one sequence, and the location of its partials.
struct PlacedChunk<'q> {
    part: usize,
    /// The first part with pages from the same pool.
    pool: Option<usize>,
    chosen: Chosen<'q>,
    /// Index range into the partials of the round, or into [`RoundRows::own`] if `goes_on`.
    partials: Range<usize>,
    goes_on: bool,
}

/// Appends, selects, attends and observes. `output` is the batch's, `[rows, heads, value_width]`. Returns the rows
/// whose result is in `output` although the model computes on a device. A sequence's failure is recorded in its part.
pub(crate) fn attend_round(
    parts: &mut [RoundRows<'_>],
    partials: &mut Vec<Partial>,
    output: &mut [f32],
) -> Vec<Range<usize>> {
    let mut chosen = Vec::new();
    for (number, part) in parts.iter_mut().enumerate() {
        match part.choose() {
            Ok(chunks) => chosen.extend(chunks.into_iter().map(|chunk| (number, chunk))),
            Err(error) => *part.failure = Some(error),
        }
    }
    let pieces = placed(parts, chosen);
    let ends = pieces
        .iter()
        .filter(|piece| !piece.goes_on)
        .map(|piece| piece.partials.end);
    let count = ends.max().unwrap_or(0);
    partials.resize_with(partials.len().max(count), || Partial::new(0, 0, 0));
    for together in pieces.chunk_by(|a, b| a.pool == b.pool) {
        if attend_together(parts, together, partials) {
            continue;
        }
        for piece in together {
            piece.begin(partials);
            piece.attend(&mut parts[piece.part], partials);
        }
    }
    let mut in_output = Vec::new();
    for piece in &pieces {
        let part = &mut parts[piece.part];
        if part.failure.is_some() {
            continue;
        }
        match piece.complete(part, partials, output) {
            Ok(()) if part.attention.reader.may_keep_results() && !piece.chosen.stays_on_device => {
                in_output.push(piece.chosen.chunk.batch_rows.clone());
            }
            Ok(()) => {}
            Err(error) => *part.failure = Some(error),
        }
    }
    in_output
}

/// Attends chunks of sequences of one pool in one call, so that shared pages are loaded and read once. Returns true
/// if this succeeded. If a page fails to load, the chunks attend separately, which shows the affected sequence.
fn attend_together(parts: &mut [RoundRows<'_>], pieces: &[PlacedChunk<'_>], partials: &mut [Partial]) -> bool {
    let by_itself = |piece: &PlacedChunk<'_>| parts[piece.part].attention.reader.may_keep_results();
    if pieces.len() < 2 || pieces.iter().any(|piece| piece.goes_on || by_itself(piece)) {
        return false;
    }
    let began = Instant::now();
    pieces.iter().for_each(|piece| piece.begin(partials));
    let (first, last) = (&pieces[0], &pieces[pieces.len() - 1]);
    let mut numbers: Vec<usize> = pieces.iter().map(|piece| piece.part).collect();
    numbers.dedup();
    let caches = parts.iter_mut().enumerate().filter(|(part, _)| numbers.contains(part));
    let mut caches: Vec<&mut KvCache> = caches.map(|(_, part)| &mut part.attention.cache).collect();
    let chunks = pieces.iter().map(|piece| {
        let sequence = numbers.partition_point(|part| *part < piece.part);
        (sequence, Reads::new(&piece.chosen))
    });
    let chunks: Vec<_> = chunks.collect();
    let partials = &mut partials[first.partials.start..last.partials.end];
    let attended = reading::attend(&mut caches, &chunks, Some(first.chosen.next), partials);
    for piece in pieces.iter().filter(|_| attended.is_ok()) {
        let part = &mut parts[piece.part];
        let counters = &mut part.attention.counters;
        counters.add_attend_time(part.input.step.phase, began, pieces.len());
    }
    attended.is_ok()
}

/// Assigns partials to every chunk; chunks of sequences of one pool are adjacent.
fn placed<'q>(parts: &[RoundRows<'_>], mut chosen: Vec<(usize, Chosen<'q>)>) -> Vec<PlacedChunk<'q>> {
    let first_beside = |part: &RoundRows<'_>| {
        let cache = &part.attention.cache;
        parts.iter().position(|other| other.attention.cache.is_beside(cache))
    };
    let pools: Vec<Option<usize>> = parts.iter().map(first_beside).collect();
    chosen.sort_by_key(|(part, _)| pools[*part]);
    let mut next = 0;
    let mut pieces: Vec<PlacedChunk<'q>> = Vec::with_capacity(chosen.len());
    for (part, chosen) in chosen {
        let tiles = chosen.chunk.tiles.len();
        let goes_on = !parts[part].own.is_empty();
        let partials = if goes_on {
            let before = parts[part].own_tiles_before(chosen.chunk.tokens.start);
            before..before + tiles
        } else {
            next..next + tiles
        };
        next = if goes_on { next } else { partials.end };
        pieces.push(PlacedChunk {
            part,
            pool: pools[part],
            chosen,
            partials,
            goes_on,
        });
    }
    pieces
}

impl<'a> RoundRows<'a> {
    /// Number of tiles of the chunks before a row.
    fn own_tiles_before(&self, row: usize) -> usize {
        let heads = self.input.step.heads;
        let chunks = row / self.chunk_tokens;
        chunks * heads.kv_heads * heads.tiles_of(self.chunk_tokens)
    }

    /// Appends the rows, unless the first of two phases already did, and lets policies select for its chunks in
    /// order.
    fn choose(&mut self) -> Result<Vec<Chosen<'a>>, EngineError> {
        let (input, rows) = (&self.input, self.rows.clone());
        if self.own.is_empty() {
            self.attention.append(input, rows.clone())?;
        }
        match input.step.phase {
            Phase::Prefill => Ok(vec![self.attention.select(input, rows)?]),
            Phase::Decode => rows.map(|row| self.attention.select(input, row..row + 1)).collect(),
        }
    }
}

impl PlacedChunk<'_> {
    /// Resets the chunk's partials, unless they continue from earlier reads.
    fn begin(&self, partials: &mut [Partial]) {
        if self.goes_on {
            return;
        }
        for (partial, tile) in partials[self.partials.clone()].iter_mut().zip(&self.chosen.chunk.tiles) {
            partial.reset(
                tile.queries.rows,
                tile.queries.group,
                self.chosen.chunk.heads.value_width,
            );
        }
    }

    fn attend(&self, part: &mut RoundRows<'_>, partials: &mut [Partial]) {
        if part.failure.is_some() {
            return;
        }
        let (began, attention) = (Instant::now(), &mut *part.attention);
        let partials = self.partials_of(part.own, partials);
        match attention.reader.attend(&mut attention.cache, &self.chosen, partials) {
            Ok(()) if self.chosen.stays_on_device => {}
            Ok(()) => attention.counters.add_attend_time(part.input.step.phase, began, 1),
            Err(error) => *part.failure = Some(error),
        }
    }

    fn complete(
        &self,
        part: &mut RoundRows<'_>,
        partials: &mut [Partial],
        output: &mut [f32],
    ) -> Result<(), EngineError> {
        let (step, partials) = (&part.input.step, self.partials_of(part.own, partials));
        let width = step.heads.result_width();
        let first = part.input.first_row * width;
        let output = &mut output[first..first + part.input.tokens * width];
        part.attention.complete(step, &self.chosen, partials, output)
    }

    /// The chunk's partials: part of the sequence's `own` if the chunk continues, otherwise part of `of_round`.
    fn partials_of<'p>(&self, own: &'p mut [Partial], of_round: &'p mut [Partial]) -> &'p mut [Partial] {
        let all = if self.goes_on { own } else { of_round };
        &mut all[self.partials.clone()]
    }
}
