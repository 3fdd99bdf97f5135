//! Keys out of pages.

use riffle_attention::{AttendOptions, KvView, PageView, QueryTile, Scan, Scorer, Span, read_keys};

use crate::SelectContext;

/// What the crate asks of its callers: pages of the queries' head_dim that hold the tokens they say.
const SOUND: &str = "pages hold the tokens they say, of the queries' head_dim";

/// Keys `first..first + out.len() / head_dim` as f32, `[tokens, head_dim]`; zeros where no page holds the token.
pub(crate) fn read_tokens(pages: &[PageView<'_>], head_dim: usize, first: usize, out: &mut [f32]) {
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

/// Weighs every token for the tile's queries.
pub(crate) fn scan_keys(scan: &mut Scan, queries: &QueryTile<'_>, context: &SelectContext<'_>) {
    let (kv, options) = keys_of(queries, context);
    scan.run(queries, &kv, context.tokens, &options).expect(SOUND);
}

/// As [`scan_keys`], with weights that are the same on every machine and on a device.
pub(crate) fn scan_keys_in_floats(scan: &mut Scan, queries: &QueryTile<'_>, context: &SelectContext<'_>) {
    let (kv, options) = keys_of(queries, context);
    scan.run_in_floats(queries, &kv, context.tokens, &options).expect(SOUND);
}

fn keys_of<'c>(queries: &QueryTile<'_>, context: &SelectContext<'c>) -> (KvView<'c>, AttendOptions<'static>) {
    let kv = KvView {
        head_dim: queries.head_dim,
        pages: context.pages,
    };
    (kv, AttendOptions::new(context.scale).with_soft_cap(context.soft_cap))
}

/// Lets `weigh` scan the tile's rows a few at a time, so that their weights stay in the processor's caches.
pub(crate) fn scan_in_parts(
    scan: &mut Scan,
    queries: &QueryTile<'_>,
    context: &SelectContext<'_>,
    weigh: fn(&mut Scan, &QueryTile<'_>, &SelectContext<'_>),
    mut each: impl FnMut(&mut Scan),
) {
    /// Queries that are multiplied with keys together.
    const TOGETHER: usize = 12;
    let step = (TOGETHER / queries.group.max(1)).max(1);
    for first in (0..queries.rows).step_by(step) {
        let rows = step.min(queries.rows - first);
        weigh(scan, &rows_of(queries, first, rows), context);
        each(scan);
    }
}

/// Rows `first..first + rows` of a tile.
pub(crate) fn rows_of<'q>(queries: &QueryTile<'q>, first: usize, rows: usize) -> QueryTile<'q> {
    QueryTile {
        data: queries.data.get(first * queries.row_stride..).unwrap_or_default(),
        rows,
        start: queries.start + first,
        ..*queries
    }
}

/// Logits of vectors of `head_dim` with the keys of `0..tokens`, `[vectors, tokens]`; zero where no page holds the token.
pub(crate) fn score_keys(vectors: &[f32], head_dim: usize, context: &SelectContext<'_>) -> Vec<f32> {
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
