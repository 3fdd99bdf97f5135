//! Policies that weigh every key and then say what is read, and so know what they leave out.

use riffle_attention::{QueryTile, Scan, Selection, Span};

use crate::pool::{Lent, SCANS};
use crate::prepared::Prepared;
use crate::{SelectContext, SparsePolicy};

/// What a policy reads of keys it has weighed.
pub(crate) trait Choose: Send + Sync {
    /// What the tile reads, chosen with a scan of its queries.
    fn choose(&self, scan: &mut Scan, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Choice;
}

/// What some queries read.
#[derive(Clone)]
pub(crate) struct Choice {
    /// For consecutive queries, from the first position to the one after the last, the tokens they read.
    pub(crate) parts: Vec<(Span, Vec<Span>)>,
    /// The largest share of a query's mass that is not read.
    pub(crate) dropped: f32,
}

/// A policy that scans.
pub(crate) struct Scanned<C> {
    choose: C,
    prepared: Prepared<Choice>,
    /// The scan of the chunk that was prepared last, until it has been attended to.
    scan: Option<Lent<Scan>>,
}

impl<C: Choose> Scanned<C> {
    pub(crate) fn new(choose: C) -> Self {
        Self {
            choose,
            prepared: Prepared::new(),
            scan: None,
        }
    }
}

impl<C: Choose> SparsePolicy for Scanned<C> {
    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) {
        let mut scan = self.scan.take().unwrap_or_else(|| SCANS.lend());
        let choice = self.choose.choose(&mut scan, chunk, context);
        self.prepared.store(chunk, context, choice);
        self.scan = Some(scan);
    }

    fn select(&self, queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let choice = self.prepared.find_or(queries, context, || {
            self.choose.choose(&mut SCANS.lend(), queries, context)
        });
        let rows = Span::new(queries.start, queries.start + queries.rows);
        let parts = choice
            .parts
            .iter()
            .filter(|(part, _)| !part.intersect(&rows).is_empty());
        Selection::from_spans(parts.flat_map(|(_, spans)| spans).copied())
    }

    fn scan(&self, queries: &QueryTile<'_>) -> Option<&Scan> {
        self.scan.as_deref().filter(|scan| scan.covers(queries))
    }

    fn end_chunk(&mut self) {
        self.scan = None;
    }

    fn dropped_mass(&self) -> Option<f32> {
        self.prepared.latest().map(|choice| choice.dropped)
    }

    fn truncate(&mut self, _tokens: usize) {
        self.prepared.clear();
        self.scan = None;
    }
}
