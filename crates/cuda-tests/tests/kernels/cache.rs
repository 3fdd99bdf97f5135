//! Appending to pages and the mass their keys receive.

use std::ops::Range;

use riffle_attention::{
    AttendOptions, Format, KvView, Plane, PlaneMut, QueryTile, Selection, Span, reference, rotate_heads, write_keys,
    write_values,
};
use riffle_cuda::ops::{
    AppendTargets, AttentionCall, AttentionOptions, HeadRows, KeyMass, NewTokens, PlaneKind, Queries, Reads, TileReads,
    append, column_mass, plane_to_cpu,
};
use riffle_cuda::{DeviceBuffer, Gpu, Stream, ops};

use crate::paged::Cache;
use crate::testing::{noise, on_every_device};

#[test]
fn appended_tokens_are_written_as_the_cpu_writes_them_to_the_bit() {
    on_every_device(|gpu, stream| {
        for format in [Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0] {
            for (head_dim, rotated) in [(64, false), (48, true), (128, true), (80, false), (256, true)] {
                append_in_pieces(gpu, stream, [format, Format::F16], head_dim, [rotated, !rotated]);
                append_in_pieces(gpu, stream, [Format::Bf16, format], head_dim, [rotated, rotated]);
            }
        }
    });
}

/// Tokens for two KV heads. The second head already has some, and its second page is absent.
struct Appended {
    formats: [Format; 2],
    head_dim: usize,
    rotated: [bool; 2],
    /// Keys and values, `[tokens, kv_heads, head_dim]` with `stride` from token to token.
    sources: [Vec<f32>; 2],
    stride: usize,
    /// The planes of keys and values of each page, `[kv_heads, pages]`.
    planes: Vec<[DeviceBuffer; 2]>,
}

const KV_HEADS: usize = 2;
const PAGE_TOKENS: usize = 32;
const PAGES: usize = 3;
const TOKENS: usize = 70;
/// Tokens of each head before the append.
const BEFORE: [usize; KV_HEADS] = [0, 21];

fn is_away(head: usize, page: usize) -> bool {
    head == 1 && page == 1
}

impl Appended {
    fn new(gpu: &Gpu, formats: [Format; 2], head_dim: usize, rotated: [bool; 2]) -> Self {
        let stride = KV_HEADS * head_dim + 6;
        let plane = |format: Format| {
            let bytes = format.plane_bytes(PAGE_TOKENS, head_dim);
            gpu.upload(&vec![0u8; bytes]).unwrap()
        };
        let source = |seed| {
            let mut source = noise(TOKENS * stride, seed);
            // A block of zeros, and one with a tie between magnitudes.
            source[..16].fill(0.0);
            (source[stride + 3], source[stride + 5]) = (1.5, -1.5);
            source
        };
        Self {
            formats,
            head_dim,
            rotated,
            sources: [4, 5].map(source),
            stride,
            planes: (0..KV_HEADS * PAGES).map(|_| formats.map(plane)).collect(),
        }
    }

    /// Keys or values written by the CPU, from slot 0 of the head. Slots before the first token are zero.
    fn expected(&self, kind: usize, head: usize) -> Vec<u16> {
        let (head_dim, before) = (self.head_dim, BEFORE[head]);
        let mut rows = vec![0.0; TOKENS * head_dim];
        for (token, row) in rows.chunks_exact_mut(head_dim).enumerate() {
            row.copy_from_slice(&self.sources[kind][token * self.stride + head * head_dim..][..head_dim]);
            if self.rotated[kind] {
                rotate_heads(row, head_dim);
            }
        }
        let mut bytes = vec![0u16; self.formats[kind].plane_bytes(128, head_dim) / 2];
        let mut target = PlaneMut::from_bytes(self.formats[kind], bytemuck::cast_slice_mut(&mut bytes));
        match kind {
            0 => write_keys(&mut target, head_dim, before, TOKENS, &rows, head_dim),
            _ => write_values(&mut target, head_dim, before, TOKENS, &rows, head_dim),
        }
        .unwrap();
        bytes
    }

    /// For each head, the slot of its token `first` and the addresses of the planes from that page.
    fn targets(&self, first: usize) -> Vec<u64> {
        let mut list = Vec::new();
        for (head, before) in BEFORE.into_iter().enumerate() {
            let start = before + first;
            list.push(start as u64);
            for kind in 0..2 {
                for page in start / PAGE_TOKENS..start / PAGE_TOKENS + 3 {
                    let planes = self.planes[head * PAGES..][..PAGES].get(page);
                    let planes = planes.filter(|_| !is_away(head, page));
                    list.push(planes.map_or(0, |planes| planes[kind].all().address()));
                }
            }
        }
        list
    }

    /// Appends tokens `first..first + rows`. Returns the stripes that the device writes for the CPU.
    fn append(&self, gpu: &Gpu, stream: &Stream, first: usize, rows: usize) -> Vec<u8> {
        let sources = self.sources.each_ref().map(|source| gpu.upload(source).unwrap());
        let [keys, values] = sources.each_ref().map(|source| HeadRows {
            data: source.region(4 * first * self.stride..4 * TOKENS * self.stride),
            rows,
            heads: KV_HEADS,
            head_dim: self.head_dim,
            stride: self.stride,
        });
        let new = NewTokens {
            keys,
            values,
            formats: self.formats,
            rotated: self.rotated,
        };
        let list = gpu.upload(&self.targets(first)).unwrap();
        let targets = AppendTargets {
            list: list.all(),
            pages: 3,
            page_tokens: PAGE_TOKENS,
            stripes: 4,
        };
        let stripes = gpu.allocate(new.stripe_bytes(4)).unwrap();
        append(stream, stripes.all(), &targets, &new).unwrap();
        gpu.download(stripes.all(), stream).unwrap()
    }

    fn check_stripes(&self, mut stripes: &[u8], first: usize, rows: usize) {
        let (formats, head_dim) = (self.formats, self.head_dim);
        for kind in 0..2 {
            for (head, before) in BEFORE.into_iter().enumerate() {
                let (found, rest) = stripes.split_at(formats[kind].plane_bytes(64, head_dim));
                stripes = rest;
                let start = before + first;
                let read = |plane: &[u16], from: usize| read(formats[kind], kind, head_dim, plane, from..from + rows);
                assert!(
                    read(&self.expected(kind, head), start) == read(&aligned(found), start % 16),
                    "{formats:?} {kind} {head_dim} head {head} from {first}"
                );
            }
        }
    }

    fn check_planes(&self, gpu: &Gpu, stream: &Stream) {
        for (number, planes) in self.planes.iter().enumerate() {
            let (head, page) = (number / PAGES, number % PAGES);
            for (kind, plane) in planes.iter().enumerate() {
                let found: Vec<u8> = gpu.download(plane.all(), stream).unwrap();
                if is_away(head, page) {
                    assert!(found.iter().all(|byte| *byte == 0));
                    continue;
                }
                let (format, head_dim) = (self.formats[kind], self.head_dim);
                let mut back = vec![0u8; found.len()];
                let plane_kind = [PlaneKind::Keys, PlaneKind::Values][kind];
                plane_to_cpu(plane_kind, format, head_dim, &found, &mut back).unwrap();
                let first = page * PAGE_TOKENS;
                let written = BEFORE[head].max(first)..(BEFORE[head] + TOKENS).min(first + PAGE_TOKENS);
                let here = written.start - first..written.end - first;
                assert!(
                    read(format, kind, head_dim, &aligned(&back), here)
                        == read(format, kind, head_dim, &self.expected(kind, head), written),
                    "{:?} {kind} {head_dim} page {page}",
                    self.formats
                );
            }
        }
    }
}

fn append_in_pieces(gpu: &Gpu, stream: &Stream, formats: [Format; 2], head_dim: usize, rotated: [bool; 2]) {
    let appended = Appended::new(gpu, formats, head_dim, rotated);
    // The appends begin and continue pages, stripes and planes. Nothing is written after the last token.
    for (first, rows) in [(0, 37), (37, 1), (38, 32)] {
        let stripes = appended.append(gpu, stream, first, rows);
        appended.check_stripes(&stripes, first, rows);
    }
    appended.check_planes(gpu, stream);
}

/// Bits of some tokens in a plane of the CPU.
fn read(format: Format, kind: usize, head_dim: usize, plane: &[u16], tokens: Range<usize>) -> Vec<u32> {
    let (plane, mut out) = (
        Plane::from_bytes(format, bytemuck::cast_slice(plane)),
        vec![0.0; tokens.len() * head_dim],
    );
    match kind {
        0 => riffle_attention::read_keys(&plane, head_dim, tokens.start, tokens.len(), &mut out, head_dim),
        _ => riffle_attention::read_values(&plane, head_dim, tokens.start, tokens.len(), &mut out, head_dim),
    }
    .unwrap();
    out.iter().map(|x| x.to_bits()).collect()
}

fn aligned(bytes: &[u8]) -> Vec<u16> {
    bytes
        .chunks(2)
        .map(|pair| u16::from_ne_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))
        .collect()
}

#[test]
fn heads_rotate_as_on_the_cpu_to_the_bit() {
    on_every_device(|gpu, stream| {
        for head_dim in [16, 48, 64, 96, 128, 256] {
            let mut values = noise(7 * 2 * head_dim, 2);
            let device = gpu.upload(&values).unwrap();
            let rows = HeadRows {
                data: device.all(),
                rows: 7,
                heads: 2,
                head_dim,
                stride: 2 * head_dim,
            };
            ops::rotate_heads(stream, &rows).unwrap();
            rotate_heads(&mut values, head_dim);
            assert_eq!(gpu.download::<f32>(device.all(), stream).unwrap(), values, "{head_dim}");
        }
    });
}

/// Queries at the end of a cache, in tiles.
struct MassCase<'a> {
    cache: &'a Cache,
    group: usize,
    rows: usize,
    options: AttendOptions<'static>,
    /// f32 `[rows, heads, head_dim]`.
    queries: Vec<f32>,
    tiles: Vec<TileReads<'a>>,
}

impl<'a> MassCase<'a> {
    fn new(cache: &'a Cache, group: usize, soft_cap: Option<f32>, selections: &'a [Selection; 2]) -> Self {
        let (rows, tile_rows) = (60, 25);
        let start = cache.tokens - rows;
        let tiles = (0..cache.kv_heads).flat_map(|kv_head| {
            let firsts = (0..rows).step_by(tile_rows).enumerate();
            firsts.map(move |(number, row)| TileReads {
                kv_head,
                start: start + row,
                row,
                rows: tile_rows.min(rows - row),
                selection: &selections[(number + kv_head) % 2],
            })
        });
        Self {
            cache,
            group,
            rows,
            options: AttendOptions::new(0.5).with_soft_cap(soft_cap),
            queries: noise(rows * cache.kv_heads * group * cache.head_dim, 6),
            tiles: tiles.collect(),
        }
    }

    fn heads(&self) -> usize {
        self.cache.kv_heads * self.group
    }

    fn width(&self) -> usize {
        self.heads() * self.cache.head_dim
    }

    /// The reference's log-sum-exp, `[rows, heads]`, and mass, `[kv_heads, tokens]`.
    fn expected(&self) -> (Vec<f32>, Vec<f64>) {
        let (cache, heads, group) = (self.cache, self.heads(), self.group);
        let mut sums = vec![0.0f32; self.rows * heads];
        let mut mass = vec![0.0f64; cache.kv_heads * cache.tokens];
        for tile in &self.tiles {
            let views = cache.views(tile.kv_head);
            let kv = KvView {
                head_dim: cache.head_dim,
                pages: &views,
            };
            let queries = QueryTile {
                data: &self.queries[tile.row * self.width() + tile.kv_head * group * cache.head_dim..],
                rows: tile.rows,
                row_stride: self.width(),
                group,
                head_dim: cache.head_dim,
                start: tile.start,
            };
            let found = reference::attend(&queries, &kv, tile.selection, &self.options, None).unwrap();
            for (at, sum) in found.log_sum_exp.iter().enumerate() {
                sums[(tile.row + at / group) * heads + tile.kv_head * group + at % group] = *sum as f32;
            }
            for (total, mass) in mass[tile.kv_head * cache.tokens..].iter_mut().zip(&found.column_mass) {
                *total += mass;
            }
        }
        (sums, mass)
    }
}

#[test]
fn column_mass_equals_the_reference() {
    on_every_device(|gpu, stream| {
        for (format, group, soft_cap) in [
            (Format::F16, 3, None),
            (Format::Bf16, 1, Some(0.5)),
            (Format::Q8_0, 2, None),
        ] {
            let (tokens, kv_heads) = (200, 2);
            let cache = Cache::new(gpu, 64, kv_heads, tokens, 80, [format, Format::F16]);
            let selections = [
                Selection::full(tokens),
                Selection::from_spans([Span::new(0, 30), Span::new(70, 90)])
                    .with_row_window(9)
                    .with_diagonals([40, 64]),
            ];
            let case = MassCase::new(&cache, group, soft_cap, &selections);
            let (sums, mass) = case.expected();
            let mut reads = Reads::new(gpu, cache.head_dim, group).unwrap();
            reads.set(stream, &case.tiles, None).unwrap();
            let (queries, sums) = (gpu.upload(&case.queries).unwrap(), gpu.upload(&sums).unwrap());
            let call = AttentionCall {
                queries: Queries {
                    data: queries.all(),
                    rows: case.rows,
                    row_stride: case.width(),
                },
                pages: cache.pages(),
                reads: &reads,
                options: AttentionOptions {
                    scale: case.options.scale,
                    soft_cap,
                    sinks: None,
                },
            };
            for keys in [0..tokens, 64..150] {
                let out = gpu.allocate(4 * kv_heads * keys.len()).unwrap();
                let place = KeyMass {
                    data: out.all(),
                    stride: keys.len(),
                    keys: keys.clone(),
                };
                column_mass(stream, &place, sums.all(), &call).unwrap();
                let found: Vec<f32> = gpu.download(out.all(), stream).unwrap();
                for (at, found) in found.iter().enumerate() {
                    let expected = mass[at / keys.len() * tokens + keys.start + at % keys.len()];
                    let tolerance = if format == Format::Bf16 { 3e-2 } else { 4e-3 };
                    assert!(
                        (f64::from(*found) - expected).abs() <= tolerance * expected.max(0.1),
                        "{at}: {found} {expected}"
                    );
                }
            }
        }
    });
}
