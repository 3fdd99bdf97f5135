//! A cache on a device and in main memory.

use riffle_attention::{Format, PageView, Plane, PlaneMut, write_keys, write_values};
use riffle_cuda::ops::{Pages, PlaneKind, plane_to_device};
use riffle_cuda::{DeviceBuffer, Gpu, LayerPages, RoomOptions, SequenceId};
use riffle_kv::{CacheShape, LayerShape, LayerShapes, PageVersion};

use crate::testing::noise;

/// A cache of some tokens for every KV head, on the CPU and on the device.
pub(crate) struct Cache {
    pub(crate) head_dim: usize,
    pub(crate) kv_heads: usize,
    pub(crate) tokens: usize,
    pub(crate) page_tokens: usize,
    pub(crate) formats: [Format; 2],
    /// The CPU's planes, bytes by [kind, head, page].
    pub(crate) planes: Vec<Vec<u16>>,
    versions: Vec<Vec<PageVersion>>,
    buffers: Vec<DeviceBuffer>,
    tables: [DeviceBuffer; 2],
}

impl Cache {
    pub(crate) fn new(
        gpu: &Gpu,
        head_dim: usize,
        kv_heads: usize,
        tokens: usize,
        page_tokens: usize,
        formats: [Format; 2],
    ) -> Self {
        let pages = tokens.div_ceil(page_tokens);
        let (mut planes, mut buffers, mut addresses) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        for (kind, format) in formats.into_iter().enumerate() {
            for head in 0..kv_heads {
                let source = noise(tokens * head_dim, 10 * head + kind + 1);
                for page in 0..pages {
                    let (first, bytes) = (page * page_tokens, format.plane_bytes(page_tokens, head_dim));
                    let count = page_tokens.min(tokens - first);
                    // Bits after the last token are NaN, which reveals a kernel that reads them.
                    let mut data = vec![0xffffu16; bytes.div_ceil(2)];
                    let rows = &source[first * head_dim..];
                    let mut target = PlaneMut::from_bytes(format, bytemuck::cast_slice_mut(&mut data));
                    match kind {
                        0 => write_keys(&mut target, head_dim, 0, count, rows, head_dim).unwrap(),
                        _ => write_values(&mut target, head_dim, 0, count, rows, head_dim).unwrap(),
                    }
                    let mut device = vec![0u8; bytes];
                    let plane_kind = [PlaneKind::Keys, PlaneKind::Values][kind];
                    plane_to_device(
                        plane_kind,
                        format,
                        head_dim,
                        &bytemuck::cast_slice(&data)[..bytes],
                        &mut device,
                    )
                    .unwrap();
                    let buffer = gpu.upload(&device).unwrap();
                    addresses[kind].push(buffer.all().address());
                    buffers.push(buffer);
                    planes.push(data);
                }
            }
        }
        let tables = addresses.map(|addresses| gpu.upload(&addresses).unwrap());
        Self {
            head_dim,
            kv_heads,
            tokens,
            page_tokens,
            formats,
            planes,
            versions: (0..kv_heads)
                .map(|_| (0..pages).map(|_| PageVersion::unused()).collect())
                .collect(),
            buffers,
            tables,
        }
    }

    /// A plane of the CPU.
    fn bytes(&self, plane: usize) -> &[u8] {
        bytemuck::cast_slice(&self.planes[plane])
    }

    /// The cache as the only layer of a sequence.
    pub(crate) fn layer(&self, sequence: SequenceId) -> LayerPages<'_> {
        LayerPages {
            sequence,
            layer: 0,
            versions: &self.versions,
        }
    }

    /// Options of a page cache for its layer with `group` query heads per KV head, without memory.
    pub(crate) fn room_options(&self, group: usize) -> RoomOptions {
        RoomOptions {
            shape: CacheShape {
                layers: LayerShapes::alike(1, LayerShape::new(self.kv_heads, self.head_dim)),
                page_tokens: self.page_tokens,
                key_format: self.formats[0],
                value_format: self.formats[1],
            },
            heads: self.kv_heads * group,
            budget_bytes: 0,
            slots: 4,
            estimate_bytes: 0,
            bound_bytes: 0,
            mean_bytes: 0,
        }
    }

    pub(crate) fn pages(&self) -> Pages<'_> {
        assert!(!self.buffers.is_empty());
        Pages {
            keys: self.tables[0].all(),
            values: self.tables[1].all(),
            kv_heads: self.kv_heads,
            pages_per_head: self.tokens.div_ceil(self.page_tokens),
            page_tokens: self.page_tokens,
            head_dim: self.head_dim,
            key_format: self.formats[0],
            value_format: self.formats[1],
        }
    }

    pub(crate) fn views(&self, head: usize) -> Vec<PageView<'_>> {
        let pages = self.tokens.div_ceil(self.page_tokens);
        (0..pages)
            .map(|page| PageView {
                start: page * self.page_tokens,
                tokens: self.page_tokens.min(self.tokens - page * self.page_tokens),
                keys: Plane::from_bytes(self.formats[0], self.bytes(head * pages + page)),
                values: Plane::from_bytes(self.formats[1], self.bytes((self.kv_heads + head) * pages + page)),
            })
            .collect()
    }
}
