//! Scores and summaries compared with `riffle-policy`: selections have the same bits.

use std::ops::Range;

use riffle_attention::{
    Antidiagonals, AttendOptions, Format, KvView, PageView, QueryTile, Scan, Selection, Span, exponentiate,
};
use riffle_cuda::ops::{
    BlockSummaries, Estimate, HeadShape, LineSums, Queries, bound_scores, key_bounds, line_mass,
    line_mass_scratch_bytes, xattention_scores, xattention_scratch_bytes,
};
use riffle_cuda::{Gpu, Region, Stream};
use riffle_policy::{Estimated, Phase, Policy, PolicySpec, SelectContext};

use crate::paged::Cache;
use crate::testing::{noise, on_every_device};

fn policy(spec: &str) -> Policy {
    let spec: PolicySpec = spec.parse().unwrap();
    let phase = if spec.info().supports(Phase::Prefill) {
        Phase::Prefill
    } else {
        Phase::Decode
    };
    riffle_policy::build(&spec, phase).unwrap()
}

fn context<'a>(phase: Phase, start: usize, tokens: usize, scale: f32, pages: &'a [PageView<'a>]) -> SelectContext<'a> {
    SelectContext {
        phase,
        layer: 9,
        layers: 12,
        kv_head: 0,
        chunk_start: start,
        tokens,
        total_tokens: 100_000,
        page_tokens: 64,
        scale,
        soft_cap: None,
        pages,
        signs: None,
    }
}

/// Indices by descending score; ties by index.
fn order(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order
}

/// The forced indices and the best others, ascending, with the ranking of `riffle-policy`.
fn top_count(scores: &[f32], count: usize, forced: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut chosen: Vec<usize> = (0..scores.len()).filter(|at| forced(*at)).collect();
    let more = count.saturating_sub(chosen.len());
    chosen.extend(order(scores).into_iter().filter(|at| !forced(*at)).take(more));
    chosen.sort_unstable();
    chosen
}

fn top_share(scores: &[f32], share: f32, forced: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut chosen: Vec<usize> = (0..scores.len()).filter(|at| forced(*at)).collect();
    let total: f64 = scores.iter().map(|x| f64::from(*x)).sum();
    let mut held: f64 = chosen.iter().map(|at| f64::from(scores[*at])).sum();
    for at in order(scores).into_iter().filter(|at| !forced(*at)) {
        if held >= f64::from(share) * total {
            break;
        }
        held += f64::from(scores[at]);
        chosen.push(at);
    }
    chosen.sort_unstable();
    chosen
}

fn selection_of(blocks: &[usize], block: usize, tokens: usize) -> Selection {
    let span = |number: &usize| Span::new(number * block, ((number + 1) * block).min(tokens));
    Selection::from_spans(blocks.iter().map(span))
}

const FORMATS: [Format; 4] = [Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0];

/// Bounds of 1000 tokens in memory for 70 blocks. Most keys are added first, then the rest; the block between them is
/// computed again.
fn bounds_in_pieces<'d>(
    gpu: &Gpu,
    stream: &Stream,
    cache: &Cache,
    data: Region<'d>,
    block_tokens: usize,
) -> BlockSummaries<'d> {
    let bounds = BlockSummaries {
        data,
        capacity: 70,
        block_tokens,
    };
    for ranges in [[0, 700, 0, 3], [700, 1000, 3, 1000]] {
        let list = gpu.upload::<u32>(&ranges).unwrap();
        key_bounds(stream, &bounds, &cache.pages(), list.all(), 997).unwrap();
        stream.synchronize().unwrap();
    }
    bounds
}

#[test]
fn quest_chooses_the_blocks_the_cpu_chooses() {
    on_every_device(|gpu, stream| {
        for format in FORMATS {
            let (head_dim, kv_heads, group, tokens, block) = (48, 2, 3, 1000, 16);
            let cache = Cache::new(gpu, head_dim, kv_heads, tokens, 80, [format, Format::F16]);
            let blocks = tokens.div_ceil(block);
            let bounds = gpu.allocate(4 * kv_heads * 70 * 2 * head_dim).unwrap();
            let bounds = bounds_in_pieces(gpu, stream, &cache, bounds.all(), block);
            let queries = noise(kv_heads * group * head_dim, 3);
            let device = gpu.upload(&queries).unwrap();
            let source = Queries {
                data: device.all(),
                rows: 1,
                row_stride: queries.len(),
            };
            let scores = gpu.allocate(4 * kv_heads * blocks).unwrap();
            let heads = HeadShape {
                kv_heads,
                group,
                head_dim,
            };
            bound_scores(stream, scores.all(), &bounds, &source, heads, blocks).unwrap();
            let scores: Vec<f32> = gpu.download(scores.all(), stream).unwrap();
            for head in 0..kv_heads {
                let pages = cache.views(head);
                let context = context(Phase::Decode, tokens - 1, tokens, 0.1, &pages);
                let tile = QueryTile {
                    data: &queries[head * group * head_dim..],
                    rows: 1,
                    row_stride: group * head_dim,
                    group,
                    head_dim,
                    start: tokens - 1,
                };
                let mut quest = policy("quest:block=16,topk=20,sinks=1,recent=2");
                quest.prepare(&tile, &context);
                let of_head = &scores[head * blocks..][..blocks];
                assert_eq!(of_head, &bound_sums(&cache, head, &tile, block)[..], "{format:?}");
                let chosen = top_count(of_head, 23, |number| number < 1 || number + 2 >= blocks);
                let expected = selection_of(&chosen, block, tokens);
                assert_eq!(expected, quest.select(&tile, &context), "{format:?}");
            }
        }
    });
}

/// The rows of a tile at these positions.
fn rows_of<'a>(tile: &QueryTile<'a>, positions: Range<usize>) -> QueryTile<'a> {
    QueryTile {
        data: &tile.data[(positions.start - tile.start) * tile.row_stride..],
        rows: positions.len(),
        start: positions.start,
        ..*tile
    }
}

/// XAttention's scores, `[query blocks, blocks]`.
fn scores_on_device(gpu: &Gpu, stream: &Stream, estimate: &Estimate<'_>, stride: usize, block: usize) -> Vec<f32> {
    let (start, rows, tokens) = (estimate.start, estimate.queries.rows, estimate.tokens);
    let blocks = tokens.div_ceil(block);
    let scores = gpu.allocate(4 * (blocks - start / block) * blocks).unwrap();
    let scratch = xattention_scratch_bytes(start, rows, tokens, estimate.group, stride);
    let scratch = gpu.allocate(scratch).unwrap();
    xattention_scores(stream, scores.all(), scratch.all(), estimate, stride, block).unwrap();
    gpu.download(scores.all(), stream).unwrap()
}

#[test]
fn xattention_chooses_the_blocks_the_cpu_chooses() {
    on_every_device(|gpu, stream| {
        for (number, format) in FORMATS.into_iter().enumerate() {
            let (head_dim, kv_heads, group) = (32, 2, 2);
            let (stride, block, rows, tokens) =
                [(8, 32, 100, 517), (4, 16, 37, 300), (16, 64, 128, 384), (1, 16, 20, 90)][number];
            let cache = Cache::new(gpu, head_dim, kv_heads, tokens, 48, [format, Format::F16]);
            let (start, width, scale) = (tokens - rows, kv_heads * group * head_dim, 0.3f32);
            let queries: Vec<f32> = noise(rows * width, 8).iter().map(|x| 3.0 * x).collect();
            let device = gpu.upload(&queries).unwrap();
            for kv_head in 0..kv_heads {
                let estimate = Estimate {
                    queries: Queries {
                        data: device.all(),
                        rows,
                        row_stride: width,
                    },
                    start,
                    kv_head,
                    group,
                    pages: cache.pages(),
                    tokens,
                    scale,
                };
                let (first_row, blocks) = (start / block, tokens.div_ceil(block));
                let scores = scores_on_device(gpu, stream, &estimate, stride, block);
                let views = cache.views(kv_head);
                let context = context(Phase::Prefill, start, tokens, scale, &views);
                let tile = QueryTile {
                    data: &queries[kv_head * group * head_dim..],
                    rows,
                    row_stride: width,
                    group,
                    head_dim,
                    start,
                };
                if is_fused() {
                    let expected = antidiagonal_sums(&tile, &context, stride, block);
                    for (row, (found, expected)) in scores.chunks_exact(blocks).zip(&expected).enumerate() {
                        assert_eq!(&found[..expected.len()], &expected[..], "{format:?} {row}");
                    }
                }
                let name = format!("xattention:stride={stride},block={block},threshold=0.7,tail=0");
                let mut xattention = policy(&name);
                xattention.prepare(&tile, &context);
                for (row, scores) in scores.chunks_exact(blocks).enumerate() {
                    let number = first_row + row;
                    let chosen = top_share(&scores[..number + 1], 0.7, |at| at == 0 || at == number);
                    let first = (number * block).max(start);
                    let part = rows_of(&tile, first..((number + 1) * block).min(tokens));
                    let expected = selection_of(&chosen, block, tokens);
                    assert_eq!(expected, xattention.select(&part, &context), "{format:?} {number}");
                }
            }
        }
    });
}

/// The mass of columns and of distances for the `last` queries of an estimate, in two pieces whose sums continue.
fn lines_on_device(gpu: &Gpu, stream: &Stream, whole: &Estimate<'_>, last: usize) -> [Vec<f32>; 2] {
    let (rows, width, tokens) = (whole.queries.rows, whole.queries.row_stride, whole.tokens);
    let scratch = line_mass_scratch_bytes(last, tokens, whole.group);
    let scratch = gpu.allocate(scratch).unwrap();
    let lines = [(); 2].map(|()| gpu.allocate(4 * tokens).unwrap());
    for (first, end) in [(rows - last, rows - 8), (rows - 8, rows)] {
        let estimate = Estimate {
            queries: Queries {
                data: whole.queries.data.part(4 * first * width..4 * end * width),
                rows: end - first,
                row_stride: width,
            },
            start: whole.start + first,
            ..*whole
        };
        let sums = LineSums {
            columns: lines[0].all(),
            distances: lines[1].all(),
            continues: end == rows,
        };
        line_mass(stream, &sums, scratch.all(), &estimate).unwrap();
    }
    lines.map(|line| gpu.download(line.all(), stream).unwrap())
}

#[test]
fn vertical_slash_chooses_the_lines_the_cpu_chooses() {
    on_every_device(|gpu, stream| {
        for format in FORMATS {
            let (head_dim, group, rows, tokens, last, scale) = (64, 2, 50, 1213, 21, 0.4f32);
            let cache = Cache::new(gpu, head_dim, 1, tokens, 64, [format, Format::F16]);
            let (start, width) = (tokens - rows, group * head_dim);
            let queries: Vec<f32> = noise(rows * width, 8).iter().map(|x| 3.0 * x).collect();
            let device = gpu.upload(&queries).unwrap();
            let whole = Estimate {
                queries: Queries {
                    data: device.all(),
                    rows,
                    row_stride: width,
                },
                start,
                kv_head: 0,
                group,
                pages: cache.pages(),
                tokens,
                scale,
            };
            let [columns, distances] = lines_on_device(gpu, stream, &whole, last);

            let views = cache.views(0);
            let context = context(Phase::Prefill, start, tokens, scale, &views);
            let tile = QueryTile {
                data: &queries,
                rows,
                row_stride: width,
                group,
                head_dim,
                start,
            };
            let name = "vertical-slash:budget=0,vertical=40,slash=160,slash_block=16,sinks=4,recent=10,last=21";
            let (mut on_host, mut given) = (policy(name), policy(name));
            if is_fused() {
                let expected = line_sums(&rows_of(&tile, tokens - last..tokens), &context);
                assert!([&columns, &distances] == expected.each_ref(), "{format:?}");
            }
            on_host.prepare(&tile, &context);
            let asked = given.estimate(&tile, &context);
            assert_eq!(asked, Some(riffle_policy::Estimate::Lines { queries: last }));
            given.prepare_from(&tile, &context, Estimated::Lines { columns, distances });
            assert_eq!(
                given.select(&tile, &context),
                on_host.select(&tile, &context),
                "{format:?}"
            );
        }
    });
}

/// True if this machine's vector kernels use fused multiply-add, like a device.
fn is_fused() -> bool {
    cfg!(target_arch = "x86_64") && riffle_attention::ceiling::instructions() != "scalar"
}

/// Quest's bounds in the order of the CPU's kernels.
fn bound_sums(cache: &Cache, head: usize, tile: &QueryTile<'_>, block: usize) -> Vec<f32> {
    let (head_dim, tokens) = (cache.head_dim, cache.tokens);
    let mut keys = vec![0.0f32; tokens * head_dim];
    for page in cache.views(head) {
        let out = &mut keys[page.start * head_dim..];
        riffle_attention::read_keys(&page.keys, head_dim, 0, page.tokens, out, head_dim).unwrap();
    }
    let of_block = |keys: &[f32]| {
        let over = |fold: fn(f32, f32) -> f32, from: f32, channel: usize| {
            keys.iter()
                .skip(channel)
                .step_by(head_dim)
                .fold(from, |a, b| fold(a, *b))
        };
        let queries = |part: fn(f32, f32) -> f32, channel: usize| -> f32 {
            (0..tile.group)
                .map(|head| part(tile.query(0, head)[channel], 0.0))
                .sum()
        };
        let mut score = 0.0f32;
        for channel in 0..head_dim {
            score = queries(f32::max, channel).mul_add(over(f32::max, f32::NEG_INFINITY, channel), score);
        }
        for channel in 0..head_dim {
            score = queries(f32::min, channel).mul_add(over(f32::min, f32::INFINITY, channel), score);
        }
        score
    };
    keys.chunks(block * head_dim).map(of_block).collect()
}

/// The mass of columns and of distances, from the CPU's kernels.
fn line_sums(tile: &QueryTile<'_>, context: &SelectContext<'_>) -> [Vec<f32>; 2] {
    let kv = KvView {
        head_dim: tile.head_dim,
        pages: context.pages,
    };
    let mut scan = Scan::default();
    let options = AttendOptions::new(context.scale);
    scan.run(tile, &kv, context.tokens, &options).unwrap();
    let (mut by_key, mut falling) = (vec![0.0; context.tokens], vec![0.0; context.tokens]);
    scan.add_lines(&mut by_key, &mut falling);
    falling.reverse();
    [by_key, falling]
}

/// XAttention's scores of each query block, from the CPU's kernels.
fn antidiagonal_sums(tile: &QueryTile<'_>, context: &SelectContext<'_>, stride: usize, block: usize) -> Vec<Vec<f32>> {
    let kv = KvView {
        head_dim: tile.head_dim,
        pages: context.pages,
    };
    let mut sums = Antidiagonals::default();
    sums.run(tile, &kv, context.tokens, stride, context.scale / stride as f32)
        .unwrap();
    let first = tile.start / block;
    let last = (tile.start + tile.rows).div_ceil(block);
    let mut scores: Vec<Vec<f32>> = (first..last).map(|number| vec![0.0; number + 1]).collect();
    for head in 0..tile.group {
        for number in sums.long_queries() {
            let logits = sums.row_mut(head, number);
            let seen = logits.len().min(number + 1);
            let factor = exponentiate(&mut logits[..seen]).recip() as f32;
            let row = &mut scores[number * stride / block - first];
            for (sum, weights) in row.iter_mut().zip(logits[..seen].chunks(block / stride)) {
                *sum += weights.iter().sum::<f32>() * factor;
            }
        }
    }
    scores
}
