use riffle_attention::{QueryTile, Selection, Span};

use crate::cost::{ChunkSize, ChunkWork};
use crate::keys::{rows_of, scan_in_parts, scan_keys_in_floats};
use crate::parameter::{MAX_TOKENS, Parameters};
use crate::prepared::Prepared;
use crate::ranking::top_count;
use crate::spans::runs;
use crate::{
    BudgetParameter, ChunkNeed, Estimate, EstimateKind, Estimated, KeyUse, LentScan, ParameterInfo, ParameterKind,
    PolicyInfo, Recall, SelectContext, SparsePolicy, Traits,
};

/// Reads the columns and diagonals of the attention map with most mass for the last queries of the chunk.
///
/// Mass is the softmax over all keys, summed over the last `last` queries and the heads of the group. Diagonals are
/// chosen in blocks of neighbours, because scattered diagonals would add up to everything. A tile reads such a block
/// as one run of keys, wide enough for all its queries. The latest diagonals are exact for each query.
struct VerticalSlash {
    budget: f32,
    vertical: usize,
    slash: usize,
    slash_block: usize,
    sinks: usize,
    recent: usize,
    last: usize,
    prepared: Prepared<Lines>,
}

/// Chosen lines of the attention map.
#[derive(Clone)]
struct Lines {
    /// Columns, ascending.
    columns: Vec<usize>,
    /// Diagonals as runs of distances query − key, ascending.
    distances: Vec<Span>,
}

/// Mass of each line of the attention map.
pub(super) struct LineMass {
    /// `[tokens]`, by key.
    pub(super) columns: Vec<f32>,
    /// `[tokens]`, by distance query − key, the largest first: a query's weights are added in this order without
    /// reordering.
    falling: Vec<f32>,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "vertical-slash",
    source: "MInference 1.0, Jiang et al. 2024, arXiv:2407.02490",
    saves: "compute",
    traits: Traits {
        depends_on_chunks: true,
        recall: Recall::AtTheEnd,
        keys: KeyUse::Scanned,
        estimate: Some(EstimateKind::Lines),
        automatic: true,
        chunk: Some(ChunkNeed::LONG),
        work: Some(work),
        stored_bytes: |_, _| 8.0,
        budget: Some(BudgetParameter::share("budget")),
        ..Traits::PREFILL
    },
    parameters: &[
        ParameterInfo {
            name: "budget",
            default: "0.3",
            meaning: "share of the length chosen, a fifth as columns and the rest as diagonals; 0 takes the fixed sizes",
            kind: ParameterKind::Number { min: 0.0, max: 1.0 },
        },
        ParameterInfo::tokens("vertical", "1000", "columns when budget is 0"),
        ParameterInfo::tokens("slash", "6096", "diagonals when budget is 0"),
        ParameterInfo::count(
            "slash_block",
            "64",
            "neighbouring diagonals that are chosen together",
            1,
            4096,
        ),
        ParameterInfo::tokens("sinks", "30", "first columns, always chosen"),
        ParameterInfo::count("recent", "100", "latest diagonals, always chosen", 1, MAX_TOKENS),
        ParameterInfo::count(
            "last",
            "64",
            "last queries of a chunk that the estimate looks at",
            1,
            4096,
        ),
    ],
    build: |parameters| {
        Box::new(VerticalSlash {
            budget: parameters.number("budget"),
            vertical: parameters.count("vertical"),
            slash: parameters.count("slash"),
            slash_block: parameters.count("slash_block"),
            sinks: parameters.count("sinks"),
            recent: parameters.count("recent"),
            last: parameters.count("last"),
            prepared: Prepared::new(),
        })
    },
};

impl SparsePolicy for VerticalSlash {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, estimated: Option<Estimated>) {
        let lines = match estimated {
            Some(Estimated::Lines { columns, distances }) => self.choose(&columns, &distances, context.tokens),
            _ => self.lines(chunk, context),
        };
        self.prepared.store(chunk, context, lines);
    }

    fn estimate(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Option<Estimate> {
        let queries = self.last.min(chunk.rows);
        context.soft_cap.is_none().then_some(Estimate::Lines { queries })
    }

    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let lines = self.prepared.find_or(tile, context, || self.lines(tile, context));
        line_spans(tile, &lines.columns, &lines.distances).with_row_window(self.recent)
    }

    fn truncate(&mut self, _tokens: usize) {
        self.prepared.clear();
    }
}

impl VerticalSlash {
    fn lines(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Lines {
        let mass = LineMass::of_last(chunk, context, self.last);
        self.choose(&mass.columns, &mass.distances(), context.tokens)
    }

    /// Chooses lines by the mass of each column and of each distance.
    fn choose(&self, columns: &[f32], distances: &[f32], tokens: usize) -> Lines {
        let (vertical, slash) = if self.budget > 0.0 {
            let budget = (f64::from(self.budget) * tokens as f64) as usize;
            (budget / 5, budget - budget / 5)
        } else {
            (self.vertical, self.slash)
        };
        let width = self.slash_block;
        let blocks: Vec<f32> = distances.chunks(width).map(|block| block.iter().sum()).collect();
        let blocks = top_count(&blocks, slash / width, |block| block * width < self.recent);
        let distances = blocks.into_iter().flat_map(|block| block * width..(block + 1) * width);
        Lines {
            columns: top_count(columns, vertical, |column| column < self.sinks),
            // The latest diagonals are the row window.
            distances: runs(distances.filter(|distance| (self.recent..tokens).contains(distance))),
        }
    }
}

impl LineMass {
    /// The mass from the chunk's last `last` queries, summed over them and the heads of the group.
    pub(super) fn of_last(chunk: &QueryTile<'_>, context: &SelectContext<'_>, last: usize) -> Self {
        let mut mass = Self {
            columns: vec![0.0; context.tokens],
            falling: vec![0.0; context.tokens],
        };
        let rows = last.min(chunk.rows);
        let queries = rows_of(chunk, chunk.rows - rows, rows);
        scan_in_parts(
            &mut LentScan::default(),
            &queries,
            context,
            scan_keys_in_floats,
            |scan| {
                scan.add_lines(&mut mass.columns, &mut mass.falling);
            },
        );
        mass
    }

    /// `[tokens]`, by distance query − key.
    pub(super) fn distances(&self) -> Vec<f32> {
        self.falling.iter().rev().copied().collect()
    }
}

/// Reads the columns, and for each run of diagonals the keys that it has for any query of the tile.
pub(super) fn line_spans(tile: &QueryTile<'_>, columns: &[usize], distances: &[Span]) -> Selection {
    let last = tile.start + tile.rows;
    let diagonals = distances.iter().filter(|run| run.start < last);
    let diagonals = diagonals.map(|run| Span::new((tile.start + 1).saturating_sub(run.end), last - run.start));
    let columns = columns.iter().map(|column| Span::new(*column, column + 1));
    Selection::from_spans(columns.chain(diagonals))
}

fn work(parameters: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    let tokens = chunk.tokens as f64;
    let chosen = match f64::from(parameters.number("budget")) {
        0.0 => ((parameters.count("vertical") + parameters.count("slash")) as f64 / tokens).min(1.0),
        budget => budget,
    };
    let logits = (chunk.rows.min(parameters.count("last")) * chunk.group) as f64 * tokens;
    // Sinks, and the latest diagonals with those of a tile.
    let always = (parameters.count("sinks") + parameters.count("recent") + 64) as f64;
    let context = tokens - chunk.rows.min(chunk.tokens) as f64 / 2.0;
    ChunkWork {
        // Blocks of diagonals are widened to whole tiles, so more is read than was chosen.
        share: (1.4 * chosen + always / context.max(1.0)).min(1.0),
        scored: logits,
        weighed: logits,
        ranked: 2.0 * tokens,
    }
}
