//! GFLOP/s beside the multiply-add peak, and GB/s beside the read ceiling, of the same run.
//!
//! `cargo bench -p riffle-attention -- [FILTER]`

use criterion::{Criterion, Throughput};
use riffle_attention::ceiling::{
    best_of, best_of_thread_time, instructions, multiply_add_gflops, read_gigabytes_per_second,
};
use riffle_attention::*;

enum Buffer {
    F32(Vec<f32>),
    Half(Format, Vec<u16>),
    Bytes(Format, Vec<u8>),
}

impl Buffer {
    fn new(format: Format, tokens: usize, head_dim: usize) -> Self {
        let len = format.plane_len(tokens, head_dim);
        match format {
            Format::F32 => Self::F32(vec![0.0; len]),
            Format::F16 | Format::Bf16 => Self::Half(format, vec![0; len]),
            Format::Q8_0 | Format::Q4_0 => Self::Bytes(format, vec![0; len]),
        }
    }

    fn plane(&self) -> Plane<'_> {
        match self {
            Self::F32(data) => Plane::F32(data),
            Self::Half(Format::F16, data) => Plane::F16(data),
            Self::Half(_, data) => Plane::Bf16(data),
            Self::Bytes(Format::Q8_0, data) => Plane::Q8_0(data),
            Self::Bytes(_, data) => Plane::Q4_0(data),
        }
    }

    fn plane_mut(&mut self) -> PlaneMut<'_> {
        match self {
            Self::F32(data) => PlaneMut::F32(data),
            Self::Half(Format::F16, data) => PlaneMut::F16(data),
            Self::Half(_, data) => PlaneMut::Bf16(data),
            Self::Bytes(Format::Q8_0, data) => PlaneMut::Q8_0(data),
            Self::Bytes(_, data) => PlaneMut::Q4_0(data),
        }
    }
}

const PAGE: usize = 256;

/// K and V of several heads in pages of 256 tokens, filled with noise.
struct Cache {
    head_dim: usize,
    format: Format,
    tokens: usize,
    heads: Vec<Vec<(Buffer, Buffer)>>,
}

impl Cache {
    fn new(heads: usize, tokens: usize, head_dim: usize, format: Format) -> Self {
        let source = noise(PAGE * head_dim + 64);
        let heads = (0..heads)
            .map(|head| {
                (0..tokens.div_ceil(PAGE))
                    .map(|page| {
                        let mut keys = Buffer::new(format, PAGE, head_dim);
                        let mut values = Buffer::new(format, PAGE, head_dim);
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
            format,
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

    fn bytes(&self) -> usize {
        2 * self.heads.len() * self.format.plane_bytes(self.tokens, self.head_dim)
    }
}

fn noise(len: usize) -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// A batch of tiles over every KV head, and how many (query head, key) pairs it reads.
struct Work<'a> {
    jobs: Vec<AttendJob<'a>>,
    partials: Vec<Partial>,
    options: AttendOptions<'static>,
}

impl<'a> Work<'a> {
    fn new(
        pages: &'a [Vec<PageView<'a>>],
        queries: &'a [f32],
        group: usize,
        head_dim: usize,
        rows: usize,
        start: usize,
        selections: &'a [Selection],
    ) -> Self {
        let mut jobs = Vec::new();
        for pages in pages {
            let tile_rows = rows.div_ceil(selections.len());
            for (tile, selection) in selections.iter().enumerate() {
                let first = tile * tile_rows;
                let stride = group * head_dim;
                jobs.push(AttendJob {
                    queries: QueryTile {
                        data: &queries[first * stride..],
                        rows: tile_rows.min(rows - first),
                        row_stride: stride,
                        group,
                        head_dim,
                        start: start + first,
                    },
                    kv: KvView { head_dim, pages },
                    selection,
                });
            }
        }
        let partials = jobs
            .iter()
            .map(|job| Partial::new(job.queries.rows, group, head_dim))
            .collect();
        Self {
            jobs,
            partials,
            options: AttendOptions::new(1.0 / (head_dim as f32).sqrt()),
        }
    }

    fn run(&mut self) {
        for (partial, job) in self.partials.iter_mut().zip(&self.jobs) {
            partial.reset(job.queries.rows, job.queries.group, job.queries.head_dim);
        }
        attend_batch(&self.jobs, &self.options, &mut self.partials).unwrap();
    }

    fn flops(&self) -> f64 {
        let pairs = self.jobs.iter().map(|job| {
            let pairs = job.selection.pair_count(job.queries.start, job.queries.rows);
            (pairs * job.queries.group * job.queries.head_dim * 4) as f64
        });
        pairs.sum()
    }
}

/// Threads that take part: one without the feature `parallel`.
fn threads() -> usize {
    if cfg!(feature = "parallel") {
        std::thread::available_parallelism().map_or(1, |n| n.get())
    } else {
        1
    }
}

/// Sum of a rate measured on every thread at the same time.
fn on_all_threads(rate: &(dyn Fn() -> f64 + Sync)) -> f64 {
    if threads() == 1 {
        return rate();
    }
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads()).map(|_| scope.spawn(rate)).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).sum()
    })
}

fn read_ceiling(memory: &[f32]) -> f64 {
    on_all_threads(&|| read_gigabytes_per_second(memory))
}

const FORMATS: [Format; 5] = Format::ALL;

fn wanted(name: &str) -> bool {
    let filters: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
}

fn measure(
    criterion: &mut Criterion,
    name: &str,
    cache: &Cache,
    peak: f64,
    ceiling: f64,
    memory: &[f32],
    work: &mut Work,
) {
    let (flops, bytes) = (work.flops(), cache.bytes() as f64);
    work.run();
    let once = best_of(1, || work.run()).as_secs_f64();
    let tries = ((0.5 / once) as usize).clamp(3, 200);
    let seconds = if cfg!(feature = "parallel") {
        best_of(tries, || work.run())
    } else {
        best_of_thread_time(tries, || work.run())
    };
    let seconds = seconds.as_secs_f64();
    // Other work on the machine comes and goes: the ceilings are measured again beside each case.
    let peak = peak.max(on_all_threads(&multiply_add_gflops));
    let ceiling = if name.starts_with("decode") {
        read_ceiling(memory)
    } else {
        ceiling
    };
    let (rate, bandwidth) = (flops / seconds / 1e9, bytes / seconds / 1e9);
    println!(
        "{name:<44} {:>9.3} ms {rate:>7.1} GFLOP/s {:>5.1}% of peak {bandwidth:>6.1} GB/s {:>5.1}% of read",
        seconds * 1e3,
        100.0 * rate / peak,
        100.0 * bandwidth / ceiling,
    );
    if std::env::args().any(|arg| arg == "--bench") && std::env::var_os("CRITERION").is_some() {
        let mut group = criterion.benchmark_group("attention");
        group.throughput(Throughput::Elements(flops as u64)).sample_size(10);
        group.bench_function(name, |bencher| bencher.iter(|| work.run()));
        group.finish();
    }
}

/// The fixed pattern of window, globals, log-stride and landmarks: 8 heads × 64, window 128, block 64.
fn pattern() {
    let attention = SubquadraticSparseAttention::new(SparseAttentionConfig::default()).unwrap();
    for seq in [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 131_072] {
        let name = format!("pattern/{seq}");
        let dense = format!("pattern-dense/{seq}");
        if !wanted(&name) && !wanted(&dense) {
            continue;
        }
        let data = noise(seq * 512);
        let q = Tensor3::from_vec(data, seq, 8, 64).unwrap();
        let time = |work: &mut dyn FnMut()| {
            let once = best_of(1, &mut *work).as_secs_f64();
            let tries = ((0.5 / once) as usize).clamp(2, 100);
            best_of_thread_time(tries, work).as_secs_f64()
        };
        if wanted(&name) {
            let plain = time(&mut || drop(attention.forward(&q, &q, &q).unwrap()));
            let flash = time(&mut || drop(attention.forward_flash(&q, &q, &q).unwrap()));
            println!(
                "{name:<20} forward {:>9.3} ms, forward_flash {:>9.3} ms, {:>6.3} µs per token",
                plain * 1e3,
                flash * 1e3,
                flash * 1e6 / seq as f64
            );
        }
        if wanted(&dense) && seq <= 8192 {
            let seconds = time(&mut || drop(dense_attention(&q, &q, &q, true).unwrap()));
            println!("{dense:<20} {:>9.3} ms", seconds * 1e3);
        }
        if wanted("pattern-decode") && seq == 8192 {
            let mut cache = KvCache::new(seq, 8, 64, 64);
            cache.append_all(&q, &q).unwrap();
            let one = Tensor3::from_vec(noise(512), 1, 8, 64).unwrap();
            let seconds = time(&mut || drop(attention.decode_step(&one, &cache).unwrap()));
            println!("pattern-decode/8192  {:>9.3} µs", seconds * 1e6);
        }
    }
}

fn main() {
    let mut criterion = Criterion::default();
    let memory = noise(64 << 20);
    let threads = threads();
    let peak = on_all_threads(&multiply_add_gflops);
    let ceiling = read_ceiling(&memory);
    println!(
        "instructions {}, {threads} threads: multiply-add peak {peak:.1} GFLOP/s, read ceiling {ceiling:.1} GB/s",
        instructions()
    );

    for head_dim in [128, 64] {
        for (rows, tokens) in [(512, 4096), (4096, 4096)] {
            for format in FORMATS {
                let name = format!("prefill/{}/{rows}x{tokens}/d{head_dim}", format.name());
                if !wanted(&name) {
                    continue;
                }
                let cache = Cache::new(8, tokens, head_dim, format);
                let pages: Vec<_> = (0..8).map(|head| cache.pages(head)).collect();
                let queries = noise(rows * 4 * head_dim);
                let selections = vec![Selection::full(tokens); rows.div_ceil(256)];
                let mut work = Work::new(&pages, &queries, 4, head_dim, rows, tokens - rows, &selections);
                measure(&mut criterion, &name, &cache, peak, ceiling, &memory, &mut work);
            }
        }
    }
    for density in [5, 10, 25, 50, 100] {
        let name = format!("sparse/f16/2048x8192/d128/{density}%");
        if !wanted(&name) {
            continue;
        }
        let cache = Cache::new(1, 8192, 128, Format::F16);
        let pages = [cache.pages(0)];
        let queries = noise(2048 * 512);
        let selections: Vec<_> = (0..16)
            .map(|tile| {
                let pages = (0..64).filter(|page| (page * 37 + tile * 11) % 100 < density || *page == 48 + tile);
                Selection::from_spans(pages.map(|page| Span::new(page * 128, page * 128 + 128)))
            })
            .collect();
        let mut work = Work::new(&pages, &queries, 4, 128, 2048, 6144, &selections);
        measure(&mut criterion, &name, &cache, peak, ceiling, &memory, &mut work);
    }
    for (heads, group, head_dim) in [(8, 4, 128), (8, 4, 64), (2, 2, 32)] {
        for tokens in [512, 16384, 131_072] {
            for format in FORMATS {
                let name = format!("decode/{}/1x{tokens}/d{head_dim}", format.name());
                if !wanted(&name) {
                    continue;
                }
                let cache = Cache::new(heads, tokens, head_dim, format);
                let pages: Vec<_> = (0..heads).map(|head| cache.pages(head)).collect();
                let queries = noise(group * head_dim);
                let selections = [Selection::full(tokens)];
                let mut work = Work::new(&pages, &queries, group, head_dim, 1, tokens - 1, &selections);
                measure(&mut criterion, &name, &cache, peak, ceiling, &memory, &mut work);
            }
        }
    }
    pattern();
    criterion.final_summary();
}
