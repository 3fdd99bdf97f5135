//! Delta correction of sparse attention to prompts: Delta Attention, Willette et al. 2025, arXiv:2505.11254.
//!
//! In each KV head the queries at multiples of `delta` also read everything. The difference between such a query's
//! dense and sparse outputs is added to the outputs of the queries after it, up to the next such query. Each query head
//! has its own difference. A chunk that begins between two multiples also uses its first query, so chunks are
//! independent. All splits of a prompt at multiples of `delta` give the same outputs.

use std::ops::Range;

use riffle_attention::{QueryTile, Selection};
use riffle_kv::KvCache;
use riffle_policy::Policy;

use crate::attention::{Chunk, reading};
use crate::{EngineError, PairCount};

/// A chunk's query that also reads everything, in one KV head.
pub(crate) struct DenseRow {
    /// Index of the query's tile.
    tile: usize,
    /// Row of the query in the chunk.
    row: usize,
    /// Rows of the chunk that the row's difference corrects, including the row itself: up to the next such query,
    /// except rows that already read everything.
    corrected: Vec<usize>,
}

/// The correcting queries of a chunk, and the number of additional pairs that they read, by KV head. `phases` are the
/// selections of its tiles, in one phase or two.
pub(crate) fn dense_rows(
    chunk: &Chunk<'_>,
    policies: &[Policy],
    phases: [&[Selection]; 2],
) -> (Vec<DenseRow>, Vec<PairCount>) {
    let (mut rows, mut counts) = (Vec::new(), vec![PairCount::default(); policies.len()]);
    for (kv_head, (policy, context)) in policies.iter().zip(&chunk.contexts).enumerate() {
        let Some(delta) = policy.delta(context) else { continue };
        let tiles = chunk.tiles.iter().enumerate();
        let tiles = tiles.filter(|(_, tile)| tile.kv_head == kv_head);
        let mut latest: Option<(DenseRow, u64)> = None;
        let mut close = |latest: Option<(DenseRow, u64)>| {
            if let Some((row, missing)) = latest.filter(|(_, missing)| *missing > 0) {
                counts[kv_head].add(PairCount {
                    read: missing,
                    causal: 0,
                });
                rows.push(row);
            }
        };
        for (number, tile) in tiles {
            for row in 0..tile.queries.rows {
                let position = tile.queries.start + row;
                let read: usize = reading::named(phases, number)
                    .map(|selection| selection.pair_count(position, 1))
                    .sum();
                let missing = (position + 1).saturating_sub(read) as u64;
                let at = tile.first_row + row;
                if at == 0 || position.is_multiple_of(delta) {
                    let dense = DenseRow {
                        tile: number,
                        row: at,
                        corrected: Vec::new(),
                    };
                    close(latest.replace((dense, missing)));
                }
                if let Some((dense, _)) = latest.as_mut().filter(|_| missing > 0) {
                    dense.corrected.push(at);
                }
            }
        }
        close(latest);
    }
    (rows, counts)
}

/// Computes dense attention for the rows and corrects the outputs after them. `output` is the chunk's,
/// `[tokens, heads, value_width]`.
pub(crate) fn correct(
    cache: &mut KvCache,
    chunk: &Chunk<'_>,
    rows: &[DenseRow],
    output: &mut [f32],
) -> Result<(), EngineError> {
    let queries = rows.iter().map(|row| {
        let tile = &chunk.tiles[row.tile];
        (tile.kv_head, tile.rows(row.row - tile.first_row, 1))
    });
    let queries: Vec<(usize, QueryTile<'_>)> = queries.collect();
    let dense = reading::attend_everything(cache, chunk, &queries)?;
    let (of_group, width) = (chunk.heads.group * chunk.heads.value_width, chunk.heads.result_width());
    let mut difference = vec![0.0; of_group];
    for ((row, dense), (kv_head, _)) in rows.iter().zip(&dense).zip(&queries) {
        let elements = |row: usize| -> Range<usize> {
            let first = row * width + kv_head * of_group;
            first..first + of_group
        };
        dense.finish_into(&mut difference, of_group, chunk.sinks_of(*kv_head))?;
        for (dense, sparse) in difference.iter_mut().zip(&output[elements(row.row)]) {
            *dense -= sparse;
        }
        for corrected in &row.corrected {
            let sparse = output[elements(*corrected)].iter_mut();
            sparse.zip(&difference).for_each(|(sum, difference)| *sum += difference);
        }
    }
    Ok(())
}
