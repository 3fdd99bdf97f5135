//! One case on a device: its pages and rows, the kernels that read them, and their reference.

use riffle_attention::{AttendOptions, KvView, PageView, QueryTile, Selection, reference};
use riffle_cuda::ops::{
    AttentionCall, AttentionOptions, Outputs, Pages, PlaneKind, PrefillInstructions, Queries, Reads, TileReads, decode,
    decode_workspace_bytes, plane_to_device, prefill_by,
};
use riffle_cuda::{CudaError, DeviceBuffer, Gpu, Region, Stream};
use riffle_eval::AttentionCase;
use riffle_eval::measuring::{CaseTiles, noise};
use riffle_kv::KvCache;

use super::time;

/// A case on the device, with all inputs and outputs of its kernels.
pub(super) struct DeviceCase<'a> {
    stream: &'a Stream,
    case: &'a AttentionCase,
    cache: &'a KvCache,
    pub(super) tiles: CaseTiles<'a>,
    pages: DevicePages,
    /// The tiles' selections, flattened for kernels.
    reads: Reads,
    // [rows, heads, head_dim]
    queries: Vec<f32>,
    input: DeviceBuffer,
    output: DeviceBuffer,
}

/// Median time of the kernels, and the error of their result against the reference.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) median_ms: f64,
    pub(super) relative_error: f64,
}

impl<'a> DeviceCase<'a> {
    pub(super) fn new(
        gpu: &Gpu,
        stream: &'a Stream,
        case: &'a AttentionCase,
        cache: &'a KvCache,
    ) -> Result<Self, CudaError> {
        let width = case.heads * case.head_dim;
        let tiles = CaseTiles::new(case);
        let read = tiles.iter().map(|tile| TileReads {
            kv_head: tile.kv_head,
            start: tile.start,
            row: tile.first_row,
            rows: tile.rows,
            selection: tile.selection,
        });
        let mut reads = Reads::new(gpu, case.head_dim, case.heads / case.kv_heads)?;
        reads.set(stream, &read.collect::<Vec<_>>(), None)?;
        let queries = noise(case.rows * width, 7);
        Ok(Self {
            stream,
            case,
            cache,
            pages: DevicePages::new(gpu, case, cache)?,
            tiles,
            reads,
            input: gpu.upload(&queries)?,
            output: gpu.allocate(4 * case.rows * width)?,
            queries,
        })
    }

    pub(super) fn decode(&self, gpu: &Gpu, repeats: usize) -> Result<Found, CudaError> {
        let workspace = gpu.allocate(decode_workspace_bytes(&self.reads))?;
        let (outputs, call) = (self.outputs(), self.call());
        let median_ms = time(self.stream, repeats, || {
            decode(self.stream, &outputs, workspace.all(), &call)
        })?;
        self.found(median_ms)
    }

    pub(super) fn prefill(&self, instructions: PrefillInstructions, repeats: usize) -> Result<Found, CudaError> {
        let (outputs, call) = (self.outputs(), self.call());
        let median_ms = time(self.stream, repeats, || {
            prefill_by(self.stream, instructions, &outputs, &call, None)
        })?;
        self.found(median_ms)
    }

    fn found(&self, median_ms: f64) -> Result<Found, CudaError> {
        let (case, width) = (self.case, self.case.heads * self.case.head_dim);
        let last = Last {
            queries: &self.queries[(case.rows - 1) * width..],
            output: self
                .stream
                .gpu()
                .download(last_row(&self.output, case.rows, width), self.stream)?,
        };
        Ok(Found {
            median_ms,
            relative_error: last.error(case, self.cache, self.tiles.last_selection(), self.options().scale),
        })
    }

    fn call(&self) -> AttentionCall<'_> {
        AttentionCall {
            queries: self.queries(),
            pages: self.pages(),
            reads: &self.reads,
            options: self.options(),
        }
    }

    fn queries(&self) -> Queries<'_> {
        Queries {
            data: self.input.all(),
            rows: self.case.rows,
            row_stride: self.case.heads * self.case.head_dim,
        }
    }

    /// Bytes of all pages.
    pub(super) fn page_bytes(&self) -> usize {
        self.pages.bytes
    }

    fn outputs(&self) -> Outputs<'_> {
        Outputs {
            data: self.output.all(),
            row_stride: self.case.heads * self.case.head_dim,
            log_sum_exp: None,
        }
    }

    fn pages(&self) -> Pages<'_> {
        self.pages.pages(self.case, self.cache.shape().page_tokens)
    }

    fn options(&self) -> AttentionOptions<'_> {
        AttentionOptions {
            scale: 1.0 / (self.case.head_dim as f32).sqrt(),
            soft_cap: None,
            sinks: None,
        }
    }
}

fn last_row(output: &DeviceBuffer, rows: usize, width: usize) -> Region<'_> {
    output.region(4 * (rows - 1) * width..4 * rows * width)
}

/// The last query of all heads and its output on the device.
struct Last<'a> {
    queries: &'a [f32],
    output: Vec<f32>,
}

impl Last<'_> {
    fn error(&self, case: &AttentionCase, cache: &KvCache, selection: Option<&Selection>, scale: f32) -> f64 {
        let (group, width) = (case.heads / case.kv_heads, case.heads / case.kv_heads * case.head_dim);
        let everything = Selection::full(case.tokens);
        let (mut difference, mut norm) = (0.0, 0.0);
        let reader = cache.read();
        for kv_head in 0..case.kv_heads {
            let pages: Vec<PageView<'_>> = reader.pages(0, kv_head).collect();
            let query = QueryTile {
                data: &self.queries[kv_head * width..],
                rows: 1,
                row_stride: width,
                group,
                head_dim: case.head_dim,
                start: case.tokens - 1,
            };
            let kv = KvView {
                head_dim: case.head_dim,
                pages: &pages,
            };
            let options = AttendOptions::new(scale);
            let expected = reference::attend(&query, &kv, selection.unwrap_or(&everything), &options, None);
            let Ok(expected) = expected else { return f64::NAN };
            for (found, expected) in self.output[kv_head * width..].iter().zip(&expected.output) {
                difference += (f64::from(*found) - expected).powi(2);
                norm += expected.powi(2);
            }
        }
        (difference / norm).sqrt()
    }
}

/// The pages of a cache on a device, and the kernels' page tables.
struct DevicePages {
    _planes: DeviceBuffer,
    keys: DeviceBuffer,
    values: DeviceBuffer,
    per_head: usize,
    bytes: usize,
}

impl DevicePages {
    fn new(gpu: &Gpu, case: &AttentionCase, cache: &KvCache) -> Result<Self, CudaError> {
        let plane = case.format.plane_bytes(cache.shape().page_tokens, case.head_dim);
        let stride = plane.next_multiple_of(256);
        let reader = cache.read();
        let per_head = reader.pages(0, 0).len();
        let mut planes = vec![0; 2 * case.kv_heads * per_head * stride];
        let mut places = planes.chunks_exact_mut(stride);
        for kv_head in 0..case.kv_heads {
            for page in reader.pages(0, kv_head) {
                for (kind, from) in [(PlaneKind::Keys, &page.keys), (PlaneKind::Values, &page.values)] {
                    let to = places.next().expect("room for every plane");
                    plane_to_device(kind, case.format, case.head_dim, from.bytes(), &mut to[..plane])?;
                }
            }
        }
        let planes = gpu.upload(&planes)?;
        let table = |which: usize| -> Vec<u64> {
            let numbers = 0..case.kv_heads * per_head;
            let address = |number: usize| planes.all().address() + ((2 * number + which) * stride) as u64;
            numbers.map(address).collect()
        };
        Ok(Self {
            keys: gpu.upload(&table(0))?,
            values: gpu.upload(&table(1))?,
            per_head,
            bytes: 2 * case.kv_heads * per_head * plane,
            _planes: planes,
        })
    }

    fn pages(&self, case: &AttentionCase, page_tokens: usize) -> Pages<'_> {
        Pages {
            keys: self.keys.all(),
            values: self.values.all(),
            kv_heads: case.kv_heads,
            pages_per_head: self.per_head,
            page_tokens,
            head_dim: case.head_dim,
            key_format: case.format,
            value_format: case.format,
        }
    }
}
