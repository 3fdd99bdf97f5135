//! Policies that first compute the weight of every key and then select by the weights.

use riffle_attention::{QueryTile, Scan, Selection, Span};

use crate::prepared::Prepared;
use crate::{Estimated, LentScan, SelectContext, SparsePolicy};

/// Selection by the weights of all keys.
pub(crate) trait SelectByScan: Send + Sync {
    /// Tokens that the tile's queries read: for consecutive ranges of query positions, the tokens of each range.
    /// Fills the scan.
    fn select_by_scan(&self, scan: &mut Scan, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Vec<RangeReads>;
}

/// Tokens that the queries of a range read.
#[derive(Clone)]
pub(crate) struct RangeReads {
    /// Positions of the queries.
    pub(crate) queries: Span,
    /// Tokens that the queries read, ascending.
    pub(crate) tokens: Vec<Span>,
}

/// A policy that selects by a scan, and lends the scan to the attention of the same chunk.
pub(crate) struct ScanPolicy<S> {
    method: S,
    prepared: Prepared<Vec<RangeReads>>,
    /// The scan of the chunk prepared last, until it is taken.
    scan: Option<LentScan>,
}

impl<S: SelectByScan> ScanPolicy<S> {
    pub(crate) fn new(method: S) -> Self {
        Self {
            method,
            prepared: Prepared::new(),
            scan: None,
        }
    }
}

impl<S: SelectByScan> SparsePolicy for ScanPolicy<S> {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, _: Option<Estimated>) {
        let mut scan = self.scan.take().unwrap_or_default();
        let reads = self.method.select_by_scan(&mut scan, chunk, context);
        self.prepared.store(chunk, context, reads);
        self.scan = Some(scan);
    }

    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let reads = self.prepared.find_or(tile, context, || {
            self.method.select_by_scan(&mut LentScan::default(), tile, context)
        });
        let queries = Span::new(tile.start, tile.start + tile.rows);
        let reads = reads
            .iter()
            .filter(|range| !range.queries.intersect(&queries).is_empty());
        Selection::from_spans(reads.flat_map(|range| &range.tokens).copied())
    }

    fn take_scan(&mut self) -> Option<LentScan> {
        self.scan.take()
    }

    fn truncate(&mut self, _tokens: usize) {
        self.prepared.clear();
        self.scan = None;
    }
}
