//! Reads pages of a layer from any tier, with the same bits as reading them all at once.

use rayon::prelude::*;
use riffle_attention::{
    Arithmetic, AttendJob, BatchStream, PageView, Partial, QueryTile, Scan, Selection, Span, add_column_mass,
    attend_scanned,
};
use riffle_kv::{KvCache, LayerRead, stream_together};
use riffle_policy::{ColumnMass, KeyUse, Policy, PolicySet, SelectContext};

use crate::EngineError;
use crate::attention::{Chosen, Chunk, Tile};

/// The selections of a chunk's tiles, and the key scores from policies: if a scan covers a tile, its keys are not
/// scored again.
pub(crate) struct Reads<'r> {
    chunk: &'r Chunk<'r>,
    /// Selections by tile.
    selections: &'r [Selection],
    /// Scans by tile.
    scans: Vec<Option<&'r Scan>>,
    /// An empty selection, for scanned tiles, which read no keys.
    nothing: Selection,
}

impl<'r> Reads<'r> {
    pub(crate) fn new(chosen: &'r Chosen<'r>) -> Self {
        let scan = |tile: &Tile<'_>| {
            let scan = chosen.scans.get(tile.kv_head)?.as_deref();
            scan.filter(|scan| scan.covers(&tile.queries))
        };
        Self {
            scans: chosen.chunk.tiles.iter().map(scan).collect(),
            chunk: &chosen.chunk,
            selections: &chosen.selections,
            nothing: Selection::none(),
        }
    }

    /// The pages to read, by KV head; `None` for all.
    fn wanted(&self, cache: &KvCache) -> Option<Vec<Vec<Span>>> {
        wanted_pages(cache, self.chunk, tile_reads(self.chunk, self.selections))
    }

    /// Jobs over the keys of some pages; empty selections for scanned tiles.
    fn jobs<'j>(&'j self, pages: &'j [Vec<PageView<'j>>]) -> impl Iterator<Item = AttendJob<'j>> {
        let tiles = self.chunk.tiles.iter().zip(self.selections).zip(&self.scans);
        tiles.map(|((tile, selection), scan)| AttendJob {
            queries: tile.queries,
            kv: self.chunk.kv(tile.kv_head, pages),
            selection: if scan.is_some() { &self.nothing } else { selection },
        })
    }

    /// Adds the reads of scanned tiles from some pages.
    fn attend_scanned(&self, pages: &[Vec<PageView<'_>>], partials: &mut [Partial]) -> Result<(), EngineError> {
        let scanned = partials.par_iter_mut().enumerate();
        scanned.try_for_each(|(place, partial)| match self.scans[place] {
            Some(scan) => {
                let kv = self.chunk.kv(self.chunk.tiles[place].kv_head, pages);
                attend_scanned(scan, &self.selections[place], &kv, partial)
            }
            None => Ok(()),
        })?;
        Ok(())
    }
}

/// Attends each tile of some chunks to its selection. With several sequences of one pool, shared pages are loaded and
/// read once. A chunk comes with its sequence's number. `next` is the layer to load ahead; `partials` has all tiles,
/// chunk by chunk.
pub(crate) fn attend(
    caches: &mut [&mut KvCache],
    chunks: &[(usize, Reads<'_>)],
    next: Option<usize>,
    partials: &mut [Partial],
) -> Result<(), EngineError> {
    let Some((_, first)) = chunks.first() else {
        return Ok(());
    };
    let options = &first.chunk.options;
    let wanted = chunks.iter().map(|(sequence, reads)| reads.wanted(caches[*sequence]));
    let wanted: Vec<Option<Vec<Vec<Span>>>> = wanted.collect();
    let reads = chunks.iter().zip(&wanted).map(|((sequence, _), wanted)| LayerRead {
        sequence: *sequence,
        wanted: wanted.as_deref(),
    });
    let reads: Vec<LayerRead<'_>> = reads.collect();
    let tiles = chunks.iter().flat_map(|(_, reads)| &reads.chunk.tiles);
    let mut stream = BatchStream::new(tiles.map(|tile| &tile.queries), options);
    stream_together::<EngineError>(caches, &reads, first.chunk.layer, next, &mut |pages| {
        let chunks = chunks.iter().map(|(_, reads)| reads);
        let shown = pages.iter().zip(chunks.clone());
        let shown: Vec<_> = shown.map(|(pages, reads)| cut(pages, reads.chunk)).collect();
        let jobs = chunks.clone().zip(&shown).flat_map(|(reads, pages)| reads.jobs(pages));
        stream.attend(&jobs.collect::<Vec<_>>(), options, partials)?;
        let mut rest = &mut *partials;
        for (reads, pages) in chunks.zip(&shown) {
            let (here, later) = rest.split_at_mut(reads.chunk.tiles.len());
            reads.attend_scanned(pages, here)?;
            rest = later;
        }
        Ok(())
    })?;
    Ok(stream.finish(partials)?)
}

/// Computes exact attention of some queries of a chunk to everything before them.
pub(crate) fn attend_everything(
    cache: &mut KvCache,
    chunk: &Chunk<'_>,
    queries: &[(usize, QueryTile<'_>)],
) -> Result<Vec<Partial>, EngineError> {
    let everything = Selection::full(chunk.end());
    let options = &match chunk.options.arithmetic {
        Arithmetic::Rounded => chunk.options.with_arithmetic(Arithmetic::Expanded),
        _ => chunk.options,
    };
    let partial = |(_, tile): &(usize, QueryTile<'_>)| Partial::new(tile.rows, tile.group, chunk.heads.value_width);
    let mut partials: Vec<Partial> = queries.iter().map(partial).collect();
    let mut stream = BatchStream::new(queries.iter().map(|(_, queries)| queries), options);
    cache.stream::<EngineError>(chunk.layer, None, None, &mut |pages| {
        let pages = cut(pages, chunk);
        let jobs = queries.iter().map(|(kv_head, queries)| AttendJob {
            queries: *queries,
            kv: chunk.kv(*kv_head, &pages),
            selection: &everything,
        });
        Ok(stream.attend(&jobs.collect::<Vec<_>>(), options, &mut partials)?)
    })?;
    stream.finish(&mut partials)?;
    Ok(partials)
}

/// The exact softmax mass of each row and head of a KV head's queries, `[rows × group]` of `[position + 1]`, from the
/// partials of [`attend_everything`].
pub(crate) fn mass_of_everything(
    cache: &mut KvCache,
    chunk: &Chunk<'_>,
    kv_head: usize,
    queries: &QueryTile<'_>,
    exact: &Partial,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let everything = Selection::full(chunk.end());
    let places = 0..queries.rows * queries.group;
    let mut masses: Vec<Vec<f32>> = places
        .map(|at| vec![0.0; queries.start + at / queries.group + 1])
        .collect();
    let mut wanted = vec![Vec::new(); chunk.heads.kv_heads];
    wanted[kv_head].push(Span::new(0, usize::MAX));
    cache.stream::<EngineError>(chunk.layer, Some(&wanted), None, &mut |pages| {
        let pages = cut(pages, chunk);
        masses.par_iter_mut().enumerate().try_for_each(|(at, mass)| {
            let (row, head) = (at / queries.group, at % queries.group);
            let one = QueryTile {
                data: &queries.data[row * queries.row_stride + head * queries.head_dim..],
                rows: 1,
                group: 1,
                start: queries.start + row,
                ..*queries
            };
            let job = AttendJob {
                queries: one,
                kv: chunk.kv(kv_head, &pages),
                selection: &everything,
            };
            let log_sum_exp = [exact.log_sum_exp(row, head)];
            Ok(add_column_mass(&job, &chunk.options, &log_sum_exp, 0, mass)?)
        })
    })?;
    Ok(masses)
}

/// The mass that all queries of a chunk give each token under full attention, by KV head: summed over rows and heads
/// of its group.
pub(crate) fn exact_masses(cache: &mut KvCache, chunk: &Chunk<'_>) -> Result<Vec<Vec<f32>>, EngineError> {
    let queries: Vec<(usize, QueryTile<'_>)> = chunk.tiles.iter().map(|tile| (tile.kv_head, tile.queries)).collect();
    let partials = attend_everything(cache, chunk, &queries)?;
    let everything = vec![Selection::full(chunk.end()); queries.len()];
    read_masses(cache, chunk, [&[], &everything], &partials)
}

/// The mass that all queries of a chunk give each token under their selections, by KV head: summed over rows and
/// heads of its group. `partials` are the results of these reads.
pub(crate) fn read_masses(
    cache: &mut KvCache,
    chunk: &Chunk<'_>,
    selections: [&[Selection]; 2],
    partials: &[Partial],
) -> Result<Vec<Vec<f32>>, EngineError> {
    let heads = chunk.contexts.iter().filter_map(|context| {
        let first = context.tokens - chunk.tokens.len();
        Observed::new(chunk, context, first, Some(partials))
    });
    let mut heads: Vec<Observed<'_>> = heads.collect();
    add_masses(cache, chunk, &mut heads, selections)?;
    Ok(heads.into_iter().map(|head| head.mass).collect())
}

/// Adds the mass of observed queries, under their selections, to [`Observed::mass`].
pub(crate) fn add_masses(
    cache: &mut KvCache,
    chunk: &Chunk<'_>,
    heads: &mut [Observed<'_>],
    selections: [&[Selection]; 2],
) -> Result<(), EngineError> {
    let wanted = wanted_pages(cache, chunk, observed_reads(heads, selections));
    cache.stream::<EngineError>(chunk.layer, wanted.as_deref(), None, &mut |pages| {
        let pages = cut(pages, chunk);
        heads.par_iter_mut().try_for_each(|head| {
            for rows in &head.rows {
                for selection in named(selections, rows.place) {
                    let job = AttendJob {
                        queries: rows.queries,
                        kv: chunk.kv(head.kv_head, &pages),
                        selection,
                    };
                    add_column_mass(&job, &chunk.options, &rows.log_sum_exp, 0, &mut head.mass)?;
                }
            }
            Ok(())
        })
    })
}

/// The observations that policies of a chunk's layer need; without `partials`, the log-sum-exp is on a device.
pub(crate) fn observed<'c>(
    policies: &mut PolicySet,
    chunk: &Chunk<'c>,
    partials: Option<&[Partial]>,
) -> Vec<Observed<'c>> {
    let heads = chunk.contexts.iter().zip(policies.layer_mut(chunk.layer));
    heads
        .filter_map(|(context, policy)| Observed::new(chunk, context, policy.observes_from(context), partials))
        .collect()
}

/// A KV head, its queries and their selection.
pub(crate) type QueriesRead<'a> = (usize, QueryTile<'a>, &'a Selection);

/// The reads of a chunk's tiles.
pub(crate) fn tile_reads<'a>(
    chunk: &'a Chunk<'_>,
    selections: &'a [Selection],
) -> impl Iterator<Item = QueriesRead<'a>> + Clone {
    let tiles = chunk.tiles.iter().zip(selections);
    tiles.map(|(tile, selection)| (tile.kv_head, tile.queries, selection))
}

/// The reads of observed queries.
pub(crate) fn observed_reads<'a>(
    heads: &'a [Observed<'_>],
    selections: [&'a [Selection]; 2],
) -> impl Iterator<Item = QueriesRead<'a>> + Clone {
    heads.iter().flat_map(move |head| {
        let rows = head.rows.iter();
        rows.flat_map(move |rows| {
            named(selections, rows.place).map(|selection| (head.kv_head, rows.queries, selection))
        })
    })
}

/// The selections of tile `place`, one for each phase.
pub(crate) fn named(selections: [&[Selection]; 2], place: usize) -> impl Iterator<Item = &Selection> + Clone {
    selections
        .into_iter()
        .filter_map(move |selections| selections.get(place))
}

/// Passes observations to policies.
pub(crate) fn show_policies(policies: &mut PolicySet, chunk: &Chunk<'_>, heads: &[Observed<'_>]) {
    let policies = policies.layer_mut(chunk.layer);
    for head in heads {
        policies[head.kv_head].observe(&ColumnMass {
            queries: Span::new(head.from, head.mass.len()),
            group: chunk.heads.group,
            mass: &head.mass,
        });
    }
}

/// Runs a policy's selection with the keys that it reads loaded.
pub(crate) fn with_keys<T>(
    cache: &mut KvCache,
    policy: &mut Policy,
    context: &SelectContext<'_>,
    head_dim: usize,
    choose: impl FnOnce(&mut Policy, &SelectContext<'_>) -> T,
) -> Result<T, EngineError> {
    if policy.traits().keys != KeyUse::Scanned {
        // A policy with summaries needs only pages that it has not summarized; these are loaded one by one.
        let behind = Span::new(policy.keys_from(context), context.tokens);
        show(cache, context, behind, |pages| {
            for page in pages.iter().filter(|page| page.start + page.tokens < context.tokens) {
                policy.summarize(page, head_dim);
            }
            Ok(())
        })?;
    }
    let from = policy.keys_from(context).min(context.tokens);
    Ok(cache.with_keys(context.layer, context.kv_head, from, |pages| {
        let pages = &cut_head(pages.iter().copied(), context.tokens);
        choose(policy, &SelectContext { pages, ..*context })
    })?)
}

/// Passes the pages of one KV head that overlap `tokens`, in order.
pub(crate) fn show(
    cache: &mut KvCache,
    context: &SelectContext<'_>,
    tokens: Span,
    mut each: impl FnMut(&[PageView<'_>]) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    if tokens.is_empty() {
        return Ok(());
    }
    let kv_heads = cache.shape().layer(context.layer).kv_heads;
    let mut wanted = vec![Vec::new(); kv_heads];
    wanted[context.kv_head].push(pages_of(&tokens, context.page_tokens));
    cache.stream::<EngineError>(context.layer, Some(&wanted), None, &mut |pages| {
        each(&cut_head(pages[context.kv_head].iter().copied(), context.tokens))
    })
}

/// The observations of a chunk that one policy needs.
pub(crate) struct Observed<'c> {
    pub(crate) kv_head: usize,
    from: usize,
    pub(crate) rows: Vec<Rows<'c>>,
    /// Mass by key.
    pub(crate) mass: Vec<f32>,
}

pub(crate) struct Rows<'c> {
    /// The tile's number.
    pub(crate) place: usize,
    pub(crate) queries: QueryTile<'c>,
    /// `[rows, group]`; empty if the values are on a device.
    pub(crate) log_sum_exp: Vec<f32>,
}

impl<'c> Observed<'c> {
    fn new(chunk: &Chunk<'c>, context: &SelectContext<'_>, from: usize, partials: Option<&[Partial]>) -> Option<Self> {
        if from >= context.tokens {
            return None;
        }
        let rows = |(place, tile): (usize, &Tile<'c>)| {
            let all = tile.queries.rows;
            let first_row = from.saturating_sub(tile.queries.start);
            let log_sum_exp = partials.map(|partials| {
                let sums = |row| (0..tile.queries.group).map(move |head| partials[place].log_sum_exp(row, head));
                (first_row..all).flat_map(sums).collect()
            });
            (first_row < all).then(|| Rows {
                place,
                queries: tile.rows(first_row, all - first_row),
                log_sum_exp: log_sum_exp.unwrap_or_default(),
            })
        };
        let tiles = chunk.tiles.iter().enumerate();
        let tiles = tiles.filter(|(_, tile)| tile.kv_head == context.kv_head);
        Some(Self {
            kv_head: context.kv_head,
            from,
            rows: tiles.filter_map(rows).collect(),
            mass: vec![0.0; context.tokens],
        })
    }
}

/// The pages that queries read, by KV head; `None` for all, if none must be loaded and there are fewer pages than
/// spans.
fn wanted_pages<'a>(
    cache: &KvCache,
    chunk: &Chunk<'_>,
    reads: impl Iterator<Item = QueriesRead<'a>> + Clone,
) -> Option<Vec<Vec<Span>>> {
    let pages = chunk.end().div_ceil(cache.shape().page_tokens);
    let spans = reads
        .clone()
        .map(|(_, _, selection)| selection.spans().len() + selection.diagonals().len());
    let is_all = cache.is_near(chunk.layer) && spans.sum::<usize>() >= pages;
    (!is_all).then(|| pages_read(cache, chunk, reads))
}

/// The pages that queries read, by KV head.
pub(crate) fn pages_read<'a>(
    cache: &KvCache,
    chunk: &Chunk<'_>,
    reads: impl Iterator<Item = QueriesRead<'a>>,
) -> Vec<Vec<Span>> {
    let mut pages = vec![Vec::new(); chunk.heads.kv_heads];
    for (kv_head, queries, selection) in reads {
        let spans = selection.reads(queries.start, queries.rows);
        pages[kv_head].extend(spans.iter().map(|span| pages_of(span, cache.shape().page_tokens)));
    }
    for spans in &mut pages {
        *spans = Selection::from_spans(spans.drain(..)).spans().to_vec();
    }
    pages
}

pub(crate) fn pages_of(tokens: &Span, page_tokens: usize) -> Span {
    Span::new(tokens.start / page_tokens, tokens.end.div_ceil(page_tokens))
}

/// Pages up to the chunk's end in each KV head, because later chunks' keys may already be appended.
pub(crate) fn cut<'p>(pages: &[Vec<PageView<'p>>], chunk: &Chunk<'_>) -> Vec<Vec<PageView<'p>>> {
    let heads = pages.iter().zip(&chunk.contexts);
    heads
        .map(|(pages, context)| cut_head(pages.iter().copied(), context.tokens))
        .collect()
}

/// Pages of a KV head up to its token `end`.
pub(crate) fn cut_head<'p>(pages: impl IntoIterator<Item = PageView<'p>>, end: usize) -> Vec<PageView<'p>> {
    let before = pages.into_iter().take_while(|page| page.start < end);
    let cut = before.map(|page| PageView {
        tokens: page.tokens.min(end - page.start),
        ..page
    });
    cut.collect()
}
