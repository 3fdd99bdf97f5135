//! Reads and scores the keys of pages.

use std::ops::Range;

use riffle_attention::{Arithmetic, AttendOptions, KvView, PageView, QueryTile, Scan, Scorer, Span, read_keys};

use crate::SelectContext;

/// Panic message if a caller breaks the contract of pages.
const SOUND: &str = "pages hold the tokens they say, of the queries' head_dim";

/// Writes keys `first..first + out.len() / head_dim` as f32, `[tokens, head_dim]`, with zeros for tokens that no page
/// holds. The pages come from a [`SelectContext`].
pub fn read_tokens(pages: &[PageView<'_>], head_dim: usize, first: usize, out: &mut [f32]) {
    let end = first + out.len() / head_dim;
    out.fill(0.0);
    let after = pages.partition_point(|page| page.start + page.tokens <= first);
    for page in pages[after..].iter().take_while(|page| page.start < end) {
        let from = page.start.max(first);
        let count = (page.start + page.tokens).min(end) - from;
        let out = &mut out[(from - first) * head_dim..];
        read_keys(&page.keys, head_dim, from - page.start, count, out, head_dim).expect(SOUND);
    }
}

/// Passes keys `tokens` to `take` in order, with the position of the first: `[count, head_dim]` as f32, at most up to
/// the next multiple of `step`.
pub(crate) fn for_each_rows(
    pages: &[PageView<'_>],
    head_dim: usize,
    tokens: Range<usize>,
    step: usize,
    mut take: impl FnMut(usize, &mut [f32]),
) {
    let (mut rows, mut first) = (Vec::new(), tokens.start);
    while first < tokens.end {
        let count = ((first / step + 1) * step).min(tokens.end) - first;
        rows.resize(count * head_dim, 0.0);
        read_tokens(pages, head_dim, first, &mut rows);
        take(first, &mut rows);
        first += count;
    }
}

/// The end of the page if it continues `known` keys with new ones. A page farther ahead must wait for the pages
/// between.
pub(crate) fn continued_by(known: usize, page: &PageView<'_>) -> Option<usize> {
    let end = page.start + page.tokens;
    (page.start <= known && end > known).then_some(end)
}

/// Fills the scan with the weight of every key for the tile's queries, in the arithmetic of the phase: the exact
/// softmax, for the price of dense attention without its values. [`LentScan`](crate::LentScan) lends a scan.
pub fn scan_keys(scan: &mut Scan, tile: &QueryTile<'_>, context: &SelectContext<'_>) {
    scan_in(context.phase.arithmetic(), scan, tile, context);
}

/// As [`scan_keys`], with weights that are the same on every machine and on a device.
pub(crate) fn scan_keys_in_floats(scan: &mut Scan, tile: &QueryTile<'_>, context: &SelectContext<'_>) {
    scan_in(Arithmetic::Expanded, scan, tile, context);
}

fn scan_in(arithmetic: Arithmetic, scan: &mut Scan, tile: &QueryTile<'_>, context: &SelectContext<'_>) {
    let kv = KvView {
        head_dim: tile.head_dim,
        pages: context.pages,
    };
    let options = AttendOptions::new(context.scale)
        .with_soft_cap(context.soft_cap)
        .with_arithmetic(arithmetic);
    scan.run(tile, &kv, context.tokens, &options).expect(SOUND);
}

/// Scans the tile's rows a few at a time with `run`, and passes each part to `each`. The weights of a few rows stay in
/// the processor's caches.
pub(crate) fn scan_in_parts(
    scan: &mut Scan,
    tile: &QueryTile<'_>,
    context: &SelectContext<'_>,
    run: fn(&mut Scan, &QueryTile<'_>, &SelectContext<'_>),
    mut each: impl FnMut(&mut Scan),
) {
    /// Number of queries, over all heads, that are multiplied with keys together.
    const TOGETHER: usize = 12;
    let step = (TOGETHER / tile.group.max(1)).max(1);
    for first in (0..tile.rows).step_by(step) {
        let rows = step.min(tile.rows - first);
        run(scan, &rows_of(tile, first, rows), context);
        each(scan);
    }
}

/// Rows `first..first + rows` of a tile.
pub fn rows_of<'q>(tile: &QueryTile<'q>, first: usize, rows: usize) -> QueryTile<'q> {
    QueryTile {
        data: tile.data.get(first * tile.row_stride..).unwrap_or_default(),
        rows,
        start: tile.start + first,
        ..*tile
    }
}

/// Logits of vectors of `head_dim` elements with keys `0..tokens`, `[vectors, tokens]`; zero for tokens that no page
/// holds.
pub fn score_keys(vectors: &[f32], head_dim: usize, context: &SelectContext<'_>) -> Vec<f32> {
    let mut scorer = Scorer::default();
    scorer
        .set(vectors.chunks_exact(head_dim), head_dim, context.scale)
        .expect(SOUND);
    let mut logits = vec![0.0; vectors.len() / head_dim * context.tokens];
    for page in context.pages.iter().take_while(|page| page.start < context.tokens) {
        let slots = Span::new(0, page.tokens.min(context.tokens - page.start));
        scorer
            .score(&page.keys, slots, None, &mut logits[page.start..], context.tokens)
            .expect(SOUND);
    }
    logits
}
