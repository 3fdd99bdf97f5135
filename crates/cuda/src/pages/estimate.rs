//! Estimates over all keys of a layer, where they lie on the device: what policies choose by comes back, keys do not.

use std::ops::Range;

use riffle_attention::PageView;

use super::pool::PagePool;
use crate::ops::{self, Estimate, LineSums, Pages, Queries};
use crate::{CudaError, DeviceBuffer, Gpu, PinnedBuffer};

/// Queries of a chunk beside the keys of a layer that all lie on the device.
pub struct KeyScan<'p> {
    pool: &'p mut PagePool,
    queries: Queries<'p>,
    pages: usize,
}

/// Memory of estimates: as much as they needed so far, within [`PagePoolOptions::estimate_bytes`](super::PagePoolOptions).
pub(super) struct EstimateMemory {
    scratch: DeviceBuffer,
    // f32 [query blocks, blocks] or [2, tokens]
    sums: DeviceBuffer,
    host_sums: PinnedBuffer,
}

impl EstimateMemory {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self {
            scratch: gpu.allocate(0)?,
            sums: gpu.allocate(0)?,
            host_sums: gpu.allocate_host(0)?,
        })
    }
}

impl PagePool {
    /// Brings a layer's pages, shown by KV head, to the device, where each has a free slot to stay in, to lie beside
    /// `queries`, rows of all query heads. `None` where pages would have to leave, or estimates have no memory: then keys are
    /// looked at where they are.
    ///
    /// # Errors
    /// A lost device, too little memory: the pool has forgotten every page then.
    pub fn scan_keys<'p>(
        &'p mut self,
        layer: usize,
        shown: &[Vec<PageView<'_>>],
        queries: Queries<'p>,
    ) -> Result<Option<KeyScan<'p>>, CudaError> {
        let shape = self.options.shape;
        let pages = shown.iter().map(Vec::len).max().unwrap_or(0);
        let lacking = shown.iter().enumerate().flat_map(|(kv_head, shown)| {
            let of_head = shown.iter().map(move |page| (kv_head, page.start / shape.page_tokens));
            of_head.filter(|(kv_head, page)| self.residence.find(layer, *kv_head, *page).is_none())
        });
        if lacking.count() > self.residence.free() || self.options.estimate_bytes == 0 {
            return Ok(None);
        }
        match self.bring_all(layer, shown, pages) {
            Ok(true) => Ok(Some(KeyScan {
                pool: self,
                queries,
                pages,
            })),
            Ok(false) => Ok(None),
            Err(error) => {
                self.clear();
                Err(error)
            }
        }
    }

    fn bring_all(&mut self, layer: usize, shown: &[Vec<PageView<'_>>], pages: usize) -> Result<bool, CudaError> {
        let page_tokens = self.options.shape.page_tokens;
        // [kv_heads, pages]
        let mut table = vec![0u64; shown.len() * pages];
        let mut waiting = Vec::new();
        for (kv_head, shown) in shown.iter().enumerate() {
            for view in shown {
                let page = view.start / page_tokens;
                let Some(place) = self.settle(layer, page, kv_head, view, &mut waiting)? else {
                    self.transfer(&mut waiting)?;
                    return Ok(false);
                };
                if let Some(entry) = table.get_mut(kv_head * pages + page) {
                    *entry = self.store.at(place).address();
                }
            }
        }
        self.transfer(&mut waiting)?;
        self.tables[0].set(&self.compute, &table)?;
        Ok(true)
    }

    /// Memory for scratch and sums of an estimate; false where there is none.
    fn reserve_estimate(&mut self, scratch: usize, sums: usize) -> Result<bool, CudaError> {
        let memory = &mut self.estimates;
        let most = self.options.estimate_bytes as usize;
        if scratch + sums > most {
            return Ok(false);
        }
        if scratch.max(memory.scratch.bytes()) + sums.max(memory.sums.bytes()) > most {
            memory.scratch = self.gpu.allocate(0)?;
            memory.sums = self.gpu.allocate(0)?;
        }
        if memory.scratch.bytes() < scratch {
            memory.scratch = self.gpu.allocate(scratch)?;
        }
        if memory.sums.bytes() < sums {
            memory.host_sums = self.gpu.allocate_host(sums)?;
            memory.sums = self.gpu.allocate(sums)?;
        }
        Ok(true)
    }

    /// f32 of the sums, when what was queued has run.
    fn download_sums(&mut self, count: usize) -> Result<Vec<f32>, CudaError> {
        let memory = &mut self.estimates;
        self.compute
            .from_device(&mut memory.host_sums, 0, memory.sums.region(0..4 * count))?;
        self.compute.synchronize()?;
        Ok(bytemuck::pod_collect_to_vec(&memory.host_sums.bytes()[..4 * count]))
    }
}

impl KeyScan<'_> {
    /// XAttention's scores of a KV head whose keys are `tokens` and whose first query stands at `start`: for each block of
    /// queries those of every block of keys up to it, equal to the CPU's to the bit. `None` where memory is short.
    ///
    /// # Errors
    /// A stride that does not divide the block, a lost device.
    pub fn blocks(
        &mut self,
        kv_head: usize,
        start: usize,
        tokens: usize,
        scale: f32,
        stride: usize,
        block: usize,
    ) -> Result<Option<Vec<Vec<f32>>>, CudaError> {
        let group = self.pool.options.heads / self.pool.options.shape.kv_heads;
        let blocks = tokens.div_ceil(block);
        let (end, mut from) = (start + self.queries.rows, start);
        let mut scores: Vec<Vec<f32>> = Vec::new();
        while from < end {
            // As many blocks of queries at a time as scratch has room for.
            let mut until = end;
            let sums = |until: usize| 4 * (until.div_ceil(block) - from / block) * blocks;
            let scratch = |until: usize| ops::xattention_scratch_bytes(from, until - from, tokens, group, stride);
            while !self.pool.reserve_estimate(scratch(until), sums(until))? {
                let held = until.div_ceil(block) - from / block;
                if held <= 1 {
                    return Ok(None);
                }
                until = (from / block + held / 2) * block;
            }
            let (sums, scratch) = (sums(until), scratch(until));
            let memory = &self.pool.estimates;
            let (to, scratch) = (memory.sums.region(0..sums), memory.scratch.region(0..scratch));
            let estimate = self.of(kv_head, start, from - start..until - start, tokens, scale);
            ops::xattention_scores(&self.pool.compute, to, scratch, &estimate, stride, block)?;
            let found = self.pool.download_sums(sums / 4)?;
            let numbered = found.chunks_exact(blocks).zip(from / block..);
            scores.extend(numbered.map(|(row, number)| row[..(number + 1).min(blocks)].to_vec()));
            from = until;
        }
        Ok(Some(scores))
    }

    /// The mass that the last `queries` of the chunk give each column and each distance, `[tokens]` each, summed over them
    /// and the heads of the group; equal to the CPU's to the bit for keys of 16 bits. `None` where memory is short.
    ///
    /// # Errors
    /// A lost device.
    pub fn lines(
        &mut self,
        kv_head: usize,
        start: usize,
        tokens: usize,
        scale: f32,
        queries: usize,
    ) -> Result<Option<[Vec<f32>; 2]>, CudaError> {
        let group = self.pool.options.heads / self.pool.options.shape.kv_heads;
        let rows = self.queries.rows;
        let mut from = rows - queries.min(rows);
        let mut continues = false;
        while from < rows {
            let mut until = rows;
            let scratch = |until: usize| ops::line_mass_scratch_bytes(until - from, tokens, group);
            while !self.pool.reserve_estimate(scratch(until), 8 * tokens)? {
                if until - from <= 1 {
                    return Ok(None);
                }
                until = from + (until - from) / 2;
            }
            let memory = &self.pool.estimates;
            let sums = LineSums {
                columns: memory.sums.region(0..4 * tokens),
                distances: memory.sums.region(4 * tokens..8 * tokens),
                continues,
            };
            let scratch = memory.scratch.region(0..scratch(until));
            let estimate = self.of(kv_head, start, from..until, tokens, scale);
            ops::line_mass(&self.pool.compute, &sums, scratch, &estimate)?;
            continues = true;
            from = until;
        }
        if !continues {
            return Ok(None);
        }
        let mut columns = self.pool.download_sums(2 * tokens)?;
        let distances = columns.split_off(tokens);
        Ok(Some([columns, distances]))
    }

    /// Rows of the chunk, which begins at position `start`, beside the keys of a KV head.
    fn of(&self, kv_head: usize, start: usize, rows: Range<usize>, tokens: usize, scale: f32) -> Estimate<'_> {
        let (shape, heads) = (self.pool.options.shape, self.pool.options.heads);
        let all = &self.queries;
        let at = |row: usize| 4 * row * all.row_stride;
        let end = at(rows.end).min(all.data.bytes());
        let table = self.pool.tables[0].region(8 * shape.kv_heads * self.pages);
        Estimate {
            queries: Queries {
                data: all.data.part(at(rows.start)..end),
                rows: rows.len(),
                row_stride: all.row_stride,
            },
            start: start + rows.start,
            kv_head,
            group: heads / shape.kv_heads,
            pages: Pages {
                keys: table,
                // Values are not read.
                values: table,
                kv_heads: shape.kv_heads,
                pages_per_head: self.pages,
                page_tokens: shape.page_tokens,
                head_dim: shape.head_dim,
                key_format: shape.key_format,
                value_format: shape.value_format,
            },
            tokens,
            scale,
        }
    }
}
