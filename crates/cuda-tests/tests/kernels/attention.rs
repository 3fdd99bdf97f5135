//! Prefill and decode over pages, compared with the reference in f64.

use riffle_attention::{AttendOptions, Format, KvView, QueryTile, Selection, Span, reference};
use riffle_cuda::ops::{
    AttentionCall, AttentionOptions, Outputs, PlaneKind, PrefillChoice, PrefillInstructions, PrefillState, Queries,
    Reads, TileReads, decode, decode_merge, decode_parts, decode_workspace_bytes, plane_to_cpu, plane_to_device,
    prefill, prefill_by,
};
use riffle_cuda::{DeviceBuffer, EmulatedOptions, Gpu, Stream};

use crate::paged::Cache;
use crate::testing::{assert_near, emulated, noise, on_every_device};

/// A chunk of queries at the end of the cache, with the selection of each tile.
struct Case<'a> {
    cache: &'a Cache,
    group: usize,
    rows: usize,
    tile_rows: usize,
    selections: Vec<Selection>,
    soft_cap: Option<f32>,
    sinks: bool,
}

impl Case<'_> {
    fn start(&self) -> usize {
        self.cache.tokens - self.rows
    }

    fn tiles(&self) -> Vec<TileReads<'_>> {
        let mut tiles = Vec::new();
        for kv_head in 0..self.cache.kv_heads {
            for (number, row) in (0..self.rows).step_by(self.tile_rows).enumerate() {
                let selection = &self.selections[(kv_head + number) % self.selections.len()];
                let rows = self.tile_rows.min(self.rows - row);
                tiles.push(TileReads {
                    kv_head,
                    start: self.start() + row,
                    row,
                    rows,
                    selection,
                });
            }
        }
        tiles
    }

    fn heads(&self) -> usize {
        self.cache.kv_heads * self.group
    }

    fn width(&self) -> usize {
        self.heads() * self.cache.head_dim
    }

    fn queries(&self) -> Vec<f32> {
        noise(self.rows * self.width(), 77)
            .into_iter()
            .map(|x| 2.0 * x)
            .collect()
    }

    fn scale(&self) -> f32 {
        1.0 / (self.cache.head_dim as f32).sqrt()
    }

    fn sink_logits(&self) -> Vec<f32> {
        noise(self.heads(), 5)
    }

    /// Outputs `[rows, heads, head_dim]` and log-sum-exp `[rows, heads]`.
    fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let (queries, sinks, d) = (self.queries(), self.sink_logits(), self.cache.head_dim);
        let mut outputs = vec![0.0; queries.len()];
        let mut sums = vec![0.0; self.rows * self.heads()];
        for tile in self.tiles() {
            let pages = self.cache.views(tile.kv_head);
            let kv = KvView {
                head_dim: d,
                pages: &pages,
            };
            let first_head = tile.kv_head * self.group;
            let data = &queries[tile.row * self.width() + first_head * d..];
            let view = QueryTile {
                data,
                rows: tile.rows,
                row_stride: self.width(),
                group: self.group,
                head_dim: d,
                start: tile.start,
            };
            let options = AttendOptions::new(self.scale()).with_soft_cap(self.soft_cap);
            let sinks = self.sinks.then(|| &sinks[first_head..first_head + self.group]);
            let found = reference::attend(&view, &kv, tile.selection, &options, sinks).unwrap();
            for row in 0..tile.rows {
                let at = (tile.row + row) * self.heads() + first_head;
                let width = self.group * d;
                outputs[at * d..][..width].copy_from_slice(&found.output[row * width..][..width]);
                sums[at..at + self.group].copy_from_slice(&found.log_sum_exp[row * self.group..][..self.group]);
            }
        }
        (outputs, sums)
    }

    /// A call with queries and the selected keys of the cache.
    fn call<'c>(
        &'c self,
        queries: &Queries<'c>,
        reads: &'c Reads,
        options: &AttentionOptions<'c>,
    ) -> AttentionCall<'c> {
        AttentionCall {
            queries: *queries,
            pages: self.cache.pages(),
            reads,
            options: *options,
        }
    }

    /// Compares `run` with the reference.
    fn check(
        &self,
        gpu: &Gpu,
        stream: &Stream,
        what: &str,
        run: impl Fn(&Outputs<'_>, &Queries<'_>, &mut Reads, &AttentionOptions<'_>),
    ) -> Vec<f32> {
        let (outputs, sums) = self.expected();
        let queries = gpu.upload(&self.queries()).unwrap();
        let sinks = gpu.upload(&self.sink_logits()).unwrap();
        let (out, lse) = (
            gpu.allocate(4 * outputs.len()).unwrap(),
            gpu.allocate(4 * sums.len()).unwrap(),
        );
        let mut reads = Reads::new(gpu, self.cache.head_dim, self.group).unwrap();
        let options = AttentionOptions {
            scale: self.scale(),
            soft_cap: self.soft_cap,
            sinks: self.sinks.then(|| sinks.all()),
        };
        let row_stride = self.width();
        let target = Outputs {
            data: out.all(),
            row_stride,
            log_sum_exp: Some(lse.all()),
        };
        let source = Queries {
            data: queries.all(),
            rows: self.rows,
            row_stride,
        };
        run(&target, &source, &mut reads, &options);
        let found: Vec<f32> = gpu.download(out.all(), stream).unwrap();
        // Products use 16-bit queries, keys and weights.
        let bf16 = self.cache.formats.contains(&Format::Bf16);
        assert_near(&found, &outputs, if bf16 { 2e-2 } else { 3e-3 }, what);
        let found_sums: Vec<f32> = gpu.download(lse.all(), stream).unwrap();
        for (found, expected) in found_sums.iter().zip(sums) {
            let same =
                f64::from(*found) == expected || (f64::from(*found) - expected).abs() < if bf16 { 4e-2 } else { 5e-3 };
            assert!(same, "{what}: log-sum-exp {found}, expected {expected}");
        }
        found
    }

    /// All instructions for a prefill of this width.
    fn instructions(&self, gpu: &Gpu) -> Vec<PrefillInstructions> {
        let mut all = PrefillInstructions::ALL.to_vec();
        all.retain(|instructions| instructions.are_on(gpu, self.cache.head_dim));
        all
    }

    fn check_prefill(&self, gpu: &Gpu, stream: &Stream, instructions: PrefillInstructions, what: &str) -> Vec<f32> {
        let what = format!("{what} by {instructions}");
        self.check(gpu, stream, &what, |outputs, queries, reads, options| {
            reads.set(stream, &self.tiles(), None).unwrap();
            let call = self.call(queries, reads, options);
            prefill_by(stream, instructions, outputs, &call, None).unwrap();
        })
    }

    fn check_every_prefill(&self, gpu: &Gpu, stream: &Stream, what: &str) {
        for instructions in self.instructions(gpu) {
            self.check_prefill(gpu, stream, instructions, what);
        }
    }

    fn check_decode(&self, gpu: &Gpu, stream: &Stream, what: &str) -> Vec<f32> {
        self.check(gpu, stream, what, |outputs, queries, reads, options| {
            reads.set(stream, &self.tiles(), None).unwrap();
            let workspace = gpu.allocate(decode_workspace_bytes(reads)).unwrap();
            decode(stream, outputs, workspace.all(), &self.call(queries, reads, options)).unwrap();
        })
    }
}

/// Selections of every kind, for a tile that begins at `start`.
fn selections(tokens: usize, start: usize) -> Vec<Selection> {
    let rows = (0..9).map(|row| vec![3, row * 5, start + row, start.saturating_sub(20)]);
    vec![
        Selection::full(tokens),
        Selection::from_spans([Span::new(0, 5), Span::new(64, 128), Span::new(130, 131)]).with_row_window(20),
        Selection::none()
            .with_row_window(3)
            .with_diagonals([0, 1, 2, 4, 8, 16, 32, 64, 70, 128]),
        Selection::from_spans([Span::new(7, 9)]).with_row_extras(start, rows),
        Selection::none(),
    ]
}

const FORMATS: [[Format; 2]; 6] = [
    [Format::F16, Format::F16],
    [Format::Bf16, Format::Bf16],
    [Format::Q8_0, Format::Q8_0],
    [Format::Q8_0, Format::Q4_0],
    [Format::Q4_0, Format::F16],
    [Format::Bf16, Format::Q8_0],
];

#[test]
fn planes_go_to_the_device_and_back_unchanged() {
    for format in [Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0] {
        for kind in [PlaneKind::Keys, PlaneKind::Values] {
            for head_dim in [16, 48, 128] {
                let bytes = format.plane_bytes(48, head_dim);
                let cpu: Vec<u8> = noise(bytes, 3).iter().map(|x| (x.to_bits() >> 5) as u8).collect();
                let (mut device, mut back) = (vec![0; bytes], vec![0; bytes]);
                plane_to_device(kind, format, head_dim, &cpu, &mut device).unwrap();
                plane_to_cpu(kind, format, head_dim, &device, &mut back).unwrap();
                assert!(cpu == back, "{format:?} {kind:?} {head_dim}");
            }
        }
    }
    let error = plane_to_device(PlaneKind::Keys, Format::F32, 16, &[], &mut []).unwrap_err();
    assert!(error.to_string().contains("f16, bf16, q8_0 or q4_0"), "{error}");
}

#[test]
fn prefill_equals_the_reference_in_every_format_and_under_every_kind_of_selection() {
    on_every_device(|gpu, stream| {
        for (number, formats) in FORMATS.into_iter().enumerate() {
            // Page boundaries of 48 tokens fall anywhere within blocks of 64.
            let cache = Cache::new(gpu, 64, 2, 190, [48, 64, 16, 256, 80, 32][number], formats);
            let (rows, tile_rows) = ([70, 1, 33, 90, 45, 64][number], [32, 1, 33, 40, 9, 64][number]);
            let group = [3, 4, 1, 2, 2, 5][number];
            let selections = selections(190, 190 - rows);
            let case = Case {
                cache: &cache,
                group,
                rows,
                tile_rows,
                selections,
                soft_cap: None,
                sinks: number % 2 == 0,
            };
            case.check_every_prefill(gpu, stream, &format!("{formats:?}"));
        }
    });
}

#[test]
fn prefill_equals_the_reference_at_every_width() {
    on_every_device(|gpu, stream| {
        for (head_dim, soft_cap) in [(96, None), (128, Some(0.7)), (256, None)] {
            let cache = Cache::new(gpu, head_dim, 1, 150, 64, [Format::F16; 2]);
            let selections = selections(150, 110);
            let case = Case {
                cache: &cache,
                group: 2,
                rows: 40,
                tile_rows: 20,
                selections,
                soft_cap,
                sinks: true,
            };
            case.check_every_prefill(gpu, stream, &format!("head_dim {head_dim}"));
        }
    });
}

#[test]
fn a_device_takes_the_instructions_that_are_there_and_agree() {
    on_every_device(|gpu, stream| {
        let cache = Cache::new(gpu, 128, 1, 100, 64, [Format::Bf16; 2]);
        let choice = PrefillChoice::choose(gpu, 128, Format::Bf16, Format::Bf16).unwrap();
        let is_there = PrefillInstructions::Wgmma.are_on(gpu, 128);
        if std::env::var_os("RIFFLE_PREFILL").is_none() {
            assert_eq!(choice.instructions == PrefillInstructions::Wgmma, is_there, "{choice}");
            let other = PrefillChoice::choose(gpu, 96, Format::Bf16, Format::Bf16).unwrap();
            assert_eq!(other.instructions, PrefillInstructions::Mma, "{other}");
        }
        let selections = vec![Selection::full(100)];
        let case = Case {
            cache: &cache,
            group: 2,
            rows: 30,
            tile_rows: 30,
            selections,
            soft_cap: None,
            sinks: false,
        };
        let chosen = case.check(gpu, stream, "chosen", |outputs, queries, reads, options| {
            reads.set(stream, &case.tiles(), None).unwrap();
            prefill(stream, outputs, &case.call(queries, reads, options), None).unwrap();
        });
        assert!(chosen == case.check_prefill(gpu, stream, choice.instructions, "named"));
    });
}

#[test]
fn wgmma_is_refused_where_it_is_not() {
    let Some(gpu) = emulated(EmulatedOptions::default()) else {
        return;
    };
    let stream = gpu.stream().unwrap();
    let choice = PrefillChoice::choose(&gpu, 128, Format::F16, Format::F16);
    assert!(choice.is_err() || choice.unwrap().instructions == PrefillInstructions::Mma);
    let cache = Cache::new(&gpu, 128, 1, 20, 32, [Format::F16; 2]);
    let data = gpu.allocate(512).unwrap();
    let (outputs, queries) = one_row(&data, 128);
    let mut reads = Reads::new(&gpu, 128, 1).unwrap();
    reads.set(&stream, &[one_tile(19, &Selection::full(20))], None).unwrap();
    let call = AttentionCall {
        queries,
        pages: cache.pages(),
        reads: &reads,
        options: PLAIN,
    };
    let refused = prefill_by(&stream, PrefillInstructions::Wgmma, &outputs, &call, None);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("compute capability 9.0"), "{error}");
}

#[test]
fn decode_equals_the_reference() {
    on_every_device(|gpu, stream| {
        for (number, formats) in FORMATS.into_iter().enumerate() {
            let tokens = [700, 513, 64, 65, 1100, 30][number];
            let cache = Cache::new(gpu, 64, 2, tokens, [256, 48, 64, 16, 128, 32][number], formats);
            let (rows, group) = ([1, 3, 1, 9, 1, 2][number], [4, 8, 1, 2, 7, 3][number]);
            let mut selections = selections(tokens, tokens - rows);
            selections.rotate_left(number % 5);
            let sinks = number % 2 == 1;
            let case = Case {
                cache: &cache,
                group,
                rows,
                tile_rows: rows,
                selections,
                soft_cap: None,
                sinks,
            };
            case.check_decode(gpu, stream, &format!("{formats:?}"));
        }
        for (head_dim, soft_cap) in [(96, None), (128, Some(0.7)), (256, None)] {
            let cache = Cache::new(gpu, head_dim, 1, 300, 64, [Format::F16; 2]);
            let selections = vec![Selection::full(300)];
            let case = Case {
                cache: &cache,
                group: 4,
                rows: 1,
                tile_rows: 1,
                selections,
                soft_cap,
                sinks: true,
            };
            case.check_decode(gpu, stream, &format!("head_dim {head_dim}"));
        }
    });
}

#[test]
fn pages_that_come_a_group_at_a_time_give_the_bits_of_all_at_once() {
    on_every_device(|gpu, stream| {
        let cache = Cache::new(gpu, 64, 2, 700, 64, [Format::Q8_0, Format::F16]);
        let selections = selections(700, 660);
        let case = Case {
            cache: &cache,
            group: 2,
            rows: 40,
            tile_rows: 20,
            selections,
            soft_cap: None,
            sinks: true,
        };
        for instructions in case.instructions(gpu) {
            let whole = case.check_prefill(gpu, stream, instructions, "at once");
            let streamed = case.check(gpu, stream, "in groups", |outputs, queries, reads, options| {
                let (sums, of_outputs) = PrefillState::bytes(case.rows, case.heads(), 64);
                let (sums, of_outputs) = (gpu.allocate(sums).unwrap(), gpu.allocate(of_outputs).unwrap());
                for (first, end) in [(0, 128), (128, 192), (192, 640), (640, 704)] {
                    reads.set(stream, &case.tiles(), Some(Span::new(first, end))).unwrap();
                    let state = PrefillState {
                        sums: sums.all(),
                        outputs: of_outputs.all(),
                        resume: first > 0,
                        finish: end == 704,
                    };
                    let call = case.call(queries, reads, options);
                    prefill_by(stream, instructions, outputs, &call, Some(&state)).unwrap();
                }
            });
            assert!(whole == streamed, "{instructions}");
        }
    });
}

#[test]
fn parts_that_are_decoded_in_any_order_give_the_bits_of_all_at_once() {
    on_every_device(|gpu, stream| {
        let cache = Cache::new(gpu, 64, 2, 700, 64, [Format::Q8_0, Format::F16]);
        let case = Case {
            cache: &cache,
            group: 2,
            rows: 2,
            tile_rows: 2,
            selections: selections(700, 660),
            soft_cap: None,
            sinks: true,
        };
        let whole = case.check_decode(gpu, stream, "decoded at once");
        let streamed = case.check(gpu, stream, "decoded in parts", |outputs, queries, reads, options| {
            reads.set(stream, &case.tiles(), None).unwrap();
            let workspace = gpu.allocate(decode_workspace_bytes(reads)).unwrap();
            let call = case.call(queries, reads, options);
            for part in (0..reads.parts()).rev() {
                assert!(reads.part_keys(part).end > reads.part_keys(part).start);
                decode_parts(stream, workspace.all(), &call, part..part + 1).unwrap();
            }
            decode_merge(stream, outputs, workspace.all(), &call).unwrap();
        });
        assert!(whole == streamed);
    });
}

const PLAIN: AttentionOptions<'static> = AttentionOptions {
    scale: 1.0,
    soft_cap: None,
    sinks: None,
};

/// A row of queries, and a row of outputs in the same memory.
fn one_row(data: &DeviceBuffer, head_dim: usize) -> (Outputs<'_>, Queries<'_>) {
    let (data, row_stride) = (data.all(), head_dim);
    let outputs = Outputs {
        data,
        row_stride,
        log_sum_exp: None,
    };
    let rows = 1;
    (outputs, Queries { data, rows, row_stride })
}

fn one_tile(start: usize, selection: &Selection) -> TileReads<'_> {
    TileReads {
        kv_head: 0,
        start,
        row: 0,
        rows: 1,
        selection,
    }
}

#[test]
fn shapes_that_disagree_are_refused() {
    on_every_device(|gpu, stream| {
        let cache = Cache::new(gpu, 64, 1, 20, 32, [Format::F16; 2]);
        let mut reads = Reads::new(gpu, 64, 1).unwrap();
        let selection = Selection::full(100);
        reads.set(stream, &[one_tile(90, &selection)], None).unwrap();
        let data = gpu.allocate(256).unwrap();
        let (outputs, queries) = one_row(&data, 64);
        let call = AttentionCall {
            queries,
            pages: cache.pages(),
            reads: &reads,
            options: PLAIN,
        };
        let error = prefill(stream, &outputs, &call, None).unwrap_err();
        assert_eq!(error.to_string(), "pages of a head: expected 3, found 1");
        assert!(
            Reads::new(gpu, 100, 1)
                .unwrap_err()
                .to_string()
                .contains("multiple of 16")
        );
    });
}
