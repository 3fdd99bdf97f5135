//! Estimates over all keys of a layer on the device: only the scores for policies are copied back.

use std::ops::Range;

use riffle_attention::PageView;
use riffle_device::ScannedHead;

use super::call::CallLists;
use super::heads_of;
use super::traffic::{Shown, Traffic};
use crate::ops::{self, Estimate, LineSums, Pages, Queries};
use crate::{CudaError, DeviceBuffer, Gpu, PinnedBuffer, Region, Stream};

/// Queries of a chunk, and all keys of a layer on the device.
pub struct KeyScan<'p> {
    traffic: Traffic<'p>,
    memory: &'p mut EstimateMemory,
    /// Addresses of the keys of all pages, `[kv_heads, pages]`.
    table: Region<'p>,
    queries: Queries<'p>,
    group: usize,
    pages: usize,
}

/// Memory of the largest estimate so far, within [`RoomOptions::estimate_bytes`](riffle_device::RoomOptions).
pub(super) struct EstimateMemory {
    gpu: Gpu,
    most_bytes: u64,
    scratch: DeviceBuffer,
    // f32 [query blocks, blocks] or [2, tokens]
    sums: DeviceBuffer,
    host_sums: PinnedBuffer,
}

impl EstimateMemory {
    pub(super) fn new(gpu: &Gpu, most_bytes: u64) -> Result<Self, CudaError> {
        Ok(Self {
            gpu: gpu.clone(),
            most_bytes,
            scratch: gpu.allocate(0)?,
            sums: gpu.allocate(0)?,
            host_sums: gpu.allocate_host(0)?,
        })
    }

    /// Reserves scratch and sums of an estimate. Returns false if there is no memory.
    fn reserve(&mut self, scratch: usize, sums: usize) -> Result<bool, CudaError> {
        let most = usize::try_from(self.most_bytes).unwrap_or(usize::MAX);
        if scratch + sums > most {
            return Ok(false);
        }
        if scratch.max(self.scratch.bytes()) + sums.max(self.sums.bytes()) > most {
            self.scratch = self.gpu.allocate(0)?;
            self.sums = self.gpu.allocate(0)?;
        }
        if self.scratch.bytes() < scratch {
            self.scratch = self.gpu.allocate(scratch)?;
        }
        if self.sums.bytes() < sums {
            self.host_sums = self.gpu.allocate_host(sums)?;
            self.sums = self.gpu.allocate(sums)?;
        }
        Ok(true)
    }

    /// Downloads f32 sums, once the queued work has run.
    fn download_sums(&mut self, stream: &Stream, count: usize) -> Result<Vec<f32>, CudaError> {
        stream.from_device(&mut self.host_sums, 0, self.sums.region(0..4 * count))?;
        stream.synchronize()?;
        Ok(bytemuck::pod_collect_to_vec(&self.host_sums.bytes()[..4 * count]))
    }
}

impl<'p> KeyScan<'p> {
    /// Loads the pages of a layer into slots; `None` if another page would lose its slot.
    pub(super) fn new(
        mut traffic: Traffic<'p>,
        lists: &'p mut CallLists,
        memory: &'p mut EstimateMemory,
        shown: &[Vec<PageView<'_>>],
        queries: Queries<'p>,
        group: usize,
    ) -> Result<Option<Self>, CudaError> {
        let pages = shown.iter().map(Vec::len).max().unwrap_or(0);
        let shown = traffic.in_order(shown)?;
        let lacking = shown
            .iter()
            .filter(|shown| traffic.residence.find(shown.version).is_none());
        if lacking.count() > traffic.residence.free() || memory.most_bytes == 0 {
            return Ok(None);
        }
        let table = match bring_all(&mut traffic, &shown, pages) {
            Ok(Some(table)) => table,
            Ok(None) => return Ok(None),
            Err(error) => {
                traffic.forget();
                return Err(error);
            }
        };
        Ok(Some(Self {
            table: lists.tables[0].set(traffic.compute, &table)?,
            traffic,
            memory,
            queries,
            group,
            pages,
        }))
    }
}

/// The addresses of the keys of all pages, `[kv_heads, pages]`, each in a slot.
fn bring_all(traffic: &mut Traffic<'_>, shown: &[Shown<'_>], pages: usize) -> Result<Option<Vec<u64>>, CudaError> {
    let mut table = vec![0u64; heads_of(&traffic.staging.shape).kv_heads * pages];
    let mut waiting = Vec::new();
    for shown in shown {
        let Some(place) = traffic.settle(shown, &mut waiting)? else {
            traffic.transfer(&mut waiting)?;
            return Ok(None);
        };
        if let Some(entry) = table.get_mut(shown.kv_head * pages + shown.page) {
            [*entry, _] = traffic.addresses(place);
        }
    }
    traffic.transfer(&mut waiting)?;
    Ok(Some(table))
}

impl KeyScan<'_> {
    /// XAttention's scores of a KV head: for each block of queries, the scores of every block of keys up to it. They
    /// have the CPU's bits. `None` if memory is short.
    ///
    /// # Errors
    /// A stride that does not divide the block, a lost device.
    pub fn blocks(
        &mut self,
        head: &ScannedHead,
        stride: usize,
        block: usize,
    ) -> Result<Option<Vec<Vec<f32>>>, CudaError> {
        let ScannedHead { start, tokens, .. } = *head;
        let (group, compute) = (self.group, self.traffic.compute);
        let blocks = tokens.div_ceil(block);
        let (end, mut from) = (start + self.queries.rows, start);
        let mut scores: Vec<Vec<f32>> = Vec::new();
        while from < end {
            // The scratch limits the number of query blocks at a time.
            let mut until = end;
            let sums = |until: usize| 4 * (until.div_ceil(block) - from / block) * blocks;
            let scratch = |until: usize| ops::xattention_scratch_bytes(from, until - from, tokens, group, stride);
            while !self.memory.reserve(scratch(until), sums(until))? {
                let held = until.div_ceil(block) - from / block;
                if held <= 1 {
                    return Ok(None);
                }
                until = (from / block + held / 2) * block;
            }
            let (sums, scratch) = (sums(until), scratch(until));
            let memory = &*self.memory;
            let (to, scratch) = (memory.sums.region(0..sums), memory.scratch.region(0..scratch));
            let estimate = self.estimate_of(head, from - start..until - start);
            ops::xattention_scores(compute, to, scratch, &estimate, stride, block)?;
            let found = self.memory.download_sums(compute, sums / 4)?;
            let numbered = found.chunks_exact(blocks).zip(from / block..);
            scores.extend(numbered.map(|(row, number)| row[..(number + 1).min(blocks)].to_vec()));
            from = until;
        }
        Ok(Some(scores))
    }

    /// The mass of each column and of each distance, `[tokens]` each. It is the sum over the last `queries` of the
    /// chunk and the heads of the group. Keys of 16 bits give the CPU's bits. `None` if memory is short.
    ///
    /// # Errors
    /// A lost device.
    pub fn lines(&mut self, head: &ScannedHead, queries: usize) -> Result<Option<[Vec<f32>; 2]>, CudaError> {
        let tokens = head.tokens;
        let (group, compute) = (self.group, self.traffic.compute);
        let rows = self.queries.rows;
        let mut from = rows - queries.min(rows);
        let mut continues = false;
        while from < rows {
            let mut until = rows;
            let scratch = |until: usize| ops::line_mass_scratch_bytes(until - from, tokens, group);
            while !self.memory.reserve(scratch(until), 8 * tokens)? {
                if until - from <= 1 {
                    return Ok(None);
                }
                until = from + (until - from) / 2;
            }
            let memory = &*self.memory;
            let sums = LineSums {
                columns: memory.sums.region(0..4 * tokens),
                distances: memory.sums.region(4 * tokens..8 * tokens),
                continues,
            };
            let scratch = memory.scratch.region(0..scratch(until));
            let estimate = self.estimate_of(head, from..until);
            ops::line_mass(compute, &sums, scratch, &estimate)?;
            continues = true;
            from = until;
        }
        if !continues {
            return Ok(None);
        }
        let mut columns = self.memory.download_sums(compute, 2 * tokens)?;
        let distances = columns.split_off(tokens);
        Ok(Some([columns, distances]))
    }

    /// An estimate of rows of the chunk for the keys of a KV head.
    fn estimate_of(&self, head: &ScannedHead, rows: Range<usize>) -> Estimate<'_> {
        let shape = self.traffic.staging.shape;
        let all = &self.queries;
        let at = |row: usize| 4 * row * all.row_stride;
        let end = at(rows.end).min(all.data.bytes());
        Estimate {
            queries: Queries {
                data: all.data.part(at(rows.start)..end),
                rows: rows.len(),
                row_stride: all.row_stride,
            },
            start: head.start + rows.start,
            kv_head: head.kv_head,
            group: self.group,
            pages: Pages {
                keys: self.table,
                // Values are not read.
                values: self.table,
                kv_heads: heads_of(&shape).kv_heads,
                pages_per_head: self.pages,
                page_tokens: shape.page_tokens,
                head_dim: heads_of(&shape).key_width,
                key_format: shape.key_format,
                value_format: shape.value_format,
            },
            tokens: head.tokens,
            scale: head.scale,
        }
    }
}
