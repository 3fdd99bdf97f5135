//! Times of the kernels, sampled by criterion; operations per second are multiplications and additions.
//!
//! `cargo bench -p riffle-attention -- [FILTER]`, with `--features parallel` for all threads. `riffle bench attention`
//! shows the same kernels beside the machine's arithmetic peak and read bandwidth.

#[path = "../examples/noise/mod.rs"]
mod noise;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use riffle_attention::*;

use noise::noise;

const KV_HEADS: usize = 8;
const GROUP: usize = 4;
const PAGE: usize = 256;

/// K and V of several heads in pages of 256 tokens, filled with noise.
struct Cache {
    head_dim: usize,
    tokens: usize,
    heads: Vec<Vec<(PlaneBuf, PlaneBuf)>>,
}

impl Cache {
    fn new(heads: usize, tokens: usize, head_dim: usize, format: Format) -> Self {
        let source = noise(PAGE * head_dim + 64);
        let heads = (0..heads)
            .map(|head| {
                (0..tokens.div_ceil(PAGE))
                    .map(|page| {
                        let mut keys = PlaneBuf::new(format, PAGE, head_dim);
                        let mut values = PlaneBuf::new(format, PAGE, head_dim);
                        let source = &source[(head * 7 + page * 3) % 64..];
                        write_keys(&mut keys.plane_mut(), head_dim, 0, PAGE, source, head_dim).unwrap();
                        write_values(&mut values.plane_mut(), head_dim, 0, PAGE, source, head_dim).unwrap();
                        (keys, values)
                    })
                    .collect()
            })
            .collect();
        Self {
            head_dim,
            tokens,
            heads,
        }
    }

    fn pages(&self, head: usize) -> Vec<PageView<'_>> {
        let pages = self.heads[head].iter().enumerate();
        pages
            .map(|(index, (keys, values))| PageView {
                start: index * PAGE,
                tokens: PAGE.min(self.tokens - index * PAGE),
                keys: keys.plane(),
                values: values.plane(),
            })
            .collect()
    }
}

/// Times `rows` queries at the end of `tokens` keys, 32 query heads on 8 KV heads, 64 rows per tile. More than eight
/// rows use the arithmetic of a prompt.
fn attend_case(criterion: &mut Criterion, name: &str, cache: &Cache, rows: usize, choose: impl Fn(usize) -> Selection) {
    let (head_dim, tokens) = (cache.head_dim, cache.tokens);
    let pages: Vec<_> = (0..KV_HEADS).map(|head| cache.pages(head)).collect();
    let queries = noise(rows * GROUP * head_dim);
    let selections: Vec<_> = (0..rows.div_ceil(64)).map(choose).collect();
    let mut jobs = Vec::new();
    for pages in &pages {
        for (tile, selection) in selections.iter().enumerate() {
            let first = tile * 64;
            jobs.push(AttendJob {
                queries: QueryTile {
                    data: &queries[first * GROUP * head_dim..],
                    rows: (rows - first).min(64),
                    row_stride: GROUP * head_dim,
                    group: GROUP,
                    head_dim,
                    start: tokens - rows + first,
                },
                kv: KvView { head_dim, pages },
                selection,
            });
        }
    }
    let pairs = jobs
        .iter()
        .map(|job| job.selection.pair_count(job.queries.start, job.queries.rows));
    let operations = pairs.sum::<usize>() * GROUP * head_dim * 4;
    let arithmetic = if rows > 8 {
        Arithmetic::Expanded
    } else {
        Arithmetic::Fused
    };
    let options = AttendOptions::for_head_dim(head_dim).with_arithmetic(arithmetic);
    let partials: Vec<_> = jobs
        .iter()
        .map(|job| Partial::new(job.queries.rows, GROUP, head_dim))
        .collect();
    let mut group = criterion.benchmark_group("attend");
    group
        .sample_size(10)
        .throughput(Throughput::Elements(operations as u64));
    group.bench_function(name, |bencher| {
        let run = |partials: &mut Vec<Partial>| attend_batch(&jobs, &options, partials).unwrap();
        bencher.iter_batched_ref(|| partials.clone(), run, BatchSize::LargeInput);
    });
    group.finish();
}

fn prefill(criterion: &mut Criterion) {
    for head_dim in [128, 64] {
        for format in Format::ALL {
            let cache = Cache::new(KV_HEADS, 4096, head_dim, format);
            let name = format!("prefill/{}/512x4096/d{head_dim}", format.name());
            attend_case(criterion, &name, &cache, 512, |_| Selection::full(4096));
        }
    }
}

fn block_sparse(criterion: &mut Criterion) {
    let cache = Cache::new(KV_HEADS, 8192, 128, Format::F16);
    for density in [5, 25] {
        attend_case(
            criterion,
            &format!("sparse/f16/512x8192/d128/{density}%"),
            &cache,
            512,
            |tile| {
                let blocks = (0..64).filter(|block| (block * 37 + tile * 11) % 100 < density);
                Selection::from_spans(blocks.map(|block| Span::new(block * 128, block * 128 + 128)))
                    .with_row_window(128)
            },
        );
    }
}

fn decode(criterion: &mut Criterion) {
    for format in Format::ALL {
        let cache = Cache::new(KV_HEADS, 16_384, 128, format);
        let name = format!("decode/{}/1x16384/d128", format.name());
        attend_case(criterion, &name, &cache, 1, |_| Selection::full(16_384));
    }
}

/// Drafts of several tokens, verified at once.
fn verification(criterion: &mut Criterion) {
    for format in Format::ALL {
        let cache = Cache::new(KV_HEADS, 4096, 128, format);
        for rows in [2, 4, 8] {
            let name = format!("verify/{}/{rows}x4096/d128", format.name());
            attend_case(criterion, &name, &cache, rows, |_| Selection::full(4096));
        }
    }
}

/// Another engine's cache of f16, with rows in scattered blocks of 16 tokens. Beside it, the same tokens in Riffle's
/// pages of 256.
fn foreign(criterion: &mut Criterion) {
    const HEAD_DIM: usize = 128;
    const BLOCK: usize = 16;
    for (rows, tokens, arithmetic, phase) in [
        (1, 16_384, Arithmetic::Fused, "decode"),
        (512, 4096, Arithmetic::Expanded, "prefill"),
    ] {
        let own = Cache::new(KV_HEADS, tokens, HEAD_DIM, Format::F16);
        let name = format!("foreign/{phase}/own/{rows}x{tokens}/d{HEAD_DIM}");
        attend_case(criterion, &name, &own, rows, |_| Selection::full(tokens));
        let blocks = tokens / BLOCK;
        let source = noise(tokens * KV_HEADS * HEAD_DIM);
        let halves: Vec<u16> = source.iter().map(|value| f32_to_f16(*value)).collect();
        let data = (Rows::F16(&halves), Rows::F16(&halves));
        // An odd step visits every block once, far from the previous one.
        let table = (0..blocks).map(|block| block * 37 % blocks);
        for (layout, cache) in [
            (
                "tokens-first",
                BlockCache::tokens_first(data.0, data.1, BLOCK, KV_HEADS, HEAD_DIM),
            ),
            (
                "heads-first",
                BlockCache::heads_first(data.0, data.1, BLOCK, KV_HEADS, HEAD_DIM),
            ),
        ] {
            let pages = |head| cache.pages(head, table.clone(), tokens).unwrap();
            let pages: Vec<_> = (0..KV_HEADS).map(pages).collect();
            let name = format!("foreign/{phase}/{layout}/{rows}x{tokens}/d{HEAD_DIM}");
            foreign_case(criterion, &name, &pages, (rows, tokens), arithmetic);
        }
    }
}

/// Like [`attend_case`], over pages of rows.
fn foreign_case(
    criterion: &mut Criterion,
    name: &str,
    pages: &[Vec<RowPage>],
    (rows, tokens): (usize, usize),
    arithmetic: Arithmetic,
) {
    const HEAD_DIM: usize = 128;
    let queries = noise(rows * GROUP * HEAD_DIM);
    let selection = Selection::full(tokens);
    let mut jobs = Vec::new();
    for pages in pages {
        for first in (0..rows).step_by(64) {
            jobs.push(RowJob {
                queries: QueryTile {
                    data: &queries[first * GROUP * HEAD_DIM..],
                    rows: (rows - first).min(64),
                    row_stride: GROUP * HEAD_DIM,
                    group: GROUP,
                    head_dim: HEAD_DIM,
                    start: tokens - rows + first,
                },
                kv: RowView {
                    head_dim: HEAD_DIM,
                    pages,
                },
                selection: &selection,
            });
        }
    }
    let pairs = jobs
        .iter()
        .map(|job| job.selection.pair_count(job.queries.start, job.queries.rows));
    let operations = pairs.sum::<usize>() * GROUP * HEAD_DIM * 4;
    let options = AttendOptions::for_head_dim(HEAD_DIM).with_arithmetic(arithmetic);
    let partials: Vec<_> = jobs
        .iter()
        .map(|job| Partial::new(job.queries.rows, GROUP, HEAD_DIM))
        .collect();
    let mut group = criterion.benchmark_group("attend");
    group
        .sample_size(10)
        .throughput(Throughput::Elements(operations as u64));
    group.bench_function(name, |bencher| {
        let run = |partials: &mut Vec<Partial>| attend_rows_batch(&jobs, &options, partials).unwrap();
        bencher.iter_batched_ref(|| partials.clone(), run, BatchSize::LargeInput);
    });
    group.finish();
}

/// Estimates from signs of keys, beside the rate of look-ups alone. An element is a product with a sign.
fn signs(criterion: &mut Criterion) {
    const HEAD_DIM: usize = 128;
    const TOKENS: usize = 32_768;
    let mut index = SignIndex::default();
    let keys = noise(TOKENS * HEAD_DIM);
    for segment in keys.chunks_exact(SignIndex::SEGMENT * HEAD_DIM) {
        index.push(&mut segment.to_vec(), HEAD_DIM).unwrap();
    }
    let ceiling = ceiling::sign_gproducts();
    println!("signs: look-ups alone make {ceiling:.0} billion products a second");
    let mut scorer = SignScorer::default();
    let mut group = criterion.benchmark_group("signs");
    group.sample_size(10);
    for rows in [1, 64] {
        let queries = noise(rows * GROUP * HEAD_DIM);
        let tile = QueryTile {
            data: &queries,
            rows,
            row_stride: GROUP * HEAD_DIM,
            group: GROUP,
            head_dim: HEAD_DIM,
            start: TOKENS,
        };
        group.throughput(Throughput::Elements((rows * GROUP * TOKENS * HEAD_DIM) as u64));
        group.bench_function(format!("{rows}x{TOKENS}/d{HEAD_DIM}"), |bencher| {
            bencher.iter(|| {
                scorer
                    .run(&tile, &index, &AttendOptions::for_head_dim(HEAD_DIM))
                    .unwrap()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, prefill, block_sparse, decode, verification, foreign, signs);
criterion_main!(benches);
