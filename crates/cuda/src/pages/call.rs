//! One attention call over the pages of a layer, whether they lie on the device or come while others are read.
//!
//! Pages come in ascending order. Those that have a place on the device are brought there to stay; the others take the place
//! of a visitor. When there is none left, what has come is attended to, and the visitors' places are taken by the next.
//! The result does not depend on where that happens: prefill goes on from its state, and a decode's parts are fixed by
//! what the whole call reads.

use riffle_attention::{AttendOptions, PageView, Partial, Span};

use super::pool::{PagePool, PagedTile, Place, tile_reads};
use super::staging::PageKey;
use super::transfer::{Waiting, in_order};
use crate::ops::{self, AttentionOptions, Outputs, Pages, PrefillState, Queries};
use crate::{CudaError, DeviceBuffer, Gpu, PinnedBuffer, Region};

/// Packed rows (queries times heads of a group) up to which a call is split over its keys.
const FEW_PACKED_ROWS: usize = 16;

/// Where the rows of a call lie, those of all query heads side by side.
#[derive(Debug, Clone, Copy)]
pub struct CallRows<'a> {
    /// The queries.
    pub queries: Queries<'a>,
    /// Where what they read goes, f32, as the queries lie.
    pub attended: Region<'a>,
    /// Where ln Σ exp(logit) of each row and head goes, f32 `[rows, heads]`.
    pub log_sum_exp: Region<'a>,
}

/// A call under way.
pub struct PagedCall<'p> {
    pool: &'p mut PagePool,
    layer: usize,
    tiles: &'p [PagedTile<'p>],
    rows: CallRows<'p>,
    options: AttentionOptions<'static>,
    // pages of a head in the tables
    pages: usize,
    // [kv_heads, pages]: addresses of keys and of values
    table: Vec<[u64; 2]>,
    free_visitors: Vec<usize>,
    visiting: Vec<Visiting>,
    work: Work,
    reads_means: bool,
}

/// How the call is computed.
enum Work {
    /// Many rows: keys in order, from which position on.
    Rows { read_until: usize, resume: bool },
    /// Few rows: for each tile its parts that have not been launched.
    Parts { left: Vec<std::ops::Range<usize>> },
}

struct Visiting {
    kv_head: usize,
    page: usize,
    visitor: usize,
}

/// Memory of a call, as long as the longest so far.
pub(super) struct CallMemory {
    // state of a prefill, or partials of a decode
    sums: DeviceBuffer,
    outputs: DeviceBuffer,
    workspace: DeviceBuffer,
    // what returns to main memory
    host_attended: PinnedBuffer,
    host_log_sum_exp: PinnedBuffer,
}

impl CallMemory {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self {
            sums: gpu.allocate(0)?,
            outputs: gpu.allocate(0)?,
            workspace: gpu.allocate(0)?,
            host_attended: gpu.allocate_host(0)?,
            host_log_sum_exp: gpu.allocate_host(0)?,
        })
    }

    fn reserve(&mut self, gpu: &Gpu, rows: usize, heads: usize, head_dim: usize) -> Result<(), CudaError> {
        let (sums, outputs) = PrefillState::bytes(rows, heads, head_dim);
        if self.outputs.bytes() < outputs {
            self.sums = gpu.allocate(sums)?;
            // Last: by its size both are judged, also after a failure half way.
            self.outputs = gpu.allocate(outputs)?;
        }
        Ok(())
    }

    fn reserve_host(&mut self, gpu: &Gpu, attended: usize, sums: usize) -> Result<(), CudaError> {
        if self.host_attended.bytes().len() < attended {
            self.host_log_sum_exp = gpu.allocate_host(sums)?;
            self.host_attended = gpu.allocate_host(attended)?;
        }
        Ok(())
    }
}

/// Bytes of device memory that calls of up to `rows` rows take beside their lists.
pub(super) fn call_bytes(rows: usize, heads: usize, head_dim: usize) -> u64 {
    let (sums, outputs) = PrefillState::bytes(rows, heads, head_dim);
    (sums + outputs) as u64
}

impl<'p> PagedCall<'p> {
    pub(super) fn new(
        pool: &'p mut PagePool,
        layer: usize,
        tiles: &'p [PagedTile<'p>],
        rows: CallRows<'p>,
        end: usize,
        options: &AttendOptions<'_>,
    ) -> Result<Self, CudaError> {
        let (shape, heads) = (pool.options.shape, pool.options.heads);
        let count = rows.queries.rows;
        pool.memory.reserve(&pool.gpu, count, heads, shape.head_dim)?;
        let work = match count * heads / shape.kv_heads <= FEW_PACKED_ROWS {
            true => {
                let reads: Vec<_> = tiles.iter().map(tile_reads).collect();
                pool.reads.set(&pool.compute, &reads, None)?;
                let bytes = ops::decode_workspace_bytes(&pool.reads);
                if pool.memory.workspace.bytes() < bytes {
                    pool.memory.workspace = pool.gpu.allocate(bytes.next_power_of_two())?;
                }
                Work::Parts {
                    left: pool.reads.tile_parts().to_vec(),
                }
            }
            false => Work::Rows {
                read_until: 0,
                resume: false,
            },
        };
        pool.visited[layer].clear();
        let pages = end.div_ceil(shape.page_tokens);
        Ok(Self {
            layer,
            tiles,
            rows,
            options: AttentionOptions {
                scale: options.scale,
                soft_cap: options.soft_cap,
                sinks: None,
            },
            pages,
            table: vec![[0; 2]; shape.kv_heads * pages],
            free_visitors: (0..pool.options.visitors()).rev().collect(),
            visiting: Vec::new(),
            work,
            reads_means: false,
            pool,
        })
    }

    /// The call that also reads the block means which selections name; the pool knows those of the layer's tokens
    /// ([`PagePool::extend_summaries`]).
    pub fn with_means(mut self) -> Self {
        self.reads_means = true;
        self
    }

    /// Takes pages in, by KV head, after those of earlier calls in the order of (page, KV head). They are read before this
    /// returns, or have been copied.
    ///
    /// # Errors
    /// A lost device, too little memory: the pool has forgotten every page then, whether it came or not.
    pub fn attend(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), CudaError> {
        let taken = self.take_in(shown);
        self.pool.reading = None;
        if taken.is_err() {
            self.pool.clear();
        }
        taken
    }

    fn take_in(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), CudaError> {
        let page_tokens = self.pool.options.shape.page_tokens;
        let mut waiting = Vec::new();
        for (page, kv_head, view) in in_order(shown, page_tokens) {
            let layer = self.layer;
            self.pool.reading = Some(PageKey { layer, page, kv_head });
            let place = self.place(page, kv_head, &view, &mut waiting)?;
            let keys = self.pool.store.at(place).address();
            self.table[kv_head * self.pages + page] = [keys, keys + self.pool.layout.values_at as u64];
        }
        self.pool.transfer(&mut waiting)
    }

    /// Where a page is read from: a place it stays in, or a visitor's. What it lacks there joins `waiting`.
    fn place<'a>(
        &mut self,
        page: usize,
        kv_head: usize,
        view: &PageView<'a>,
        waiting: &mut Vec<Waiting<'a>>,
    ) -> Result<Place, CudaError> {
        match self.pool.settle(self.layer, page, kv_head, view, waiting)? {
            Some(place) => Ok(place),
            None => {
                let place = Place::Visitor(self.visitor(page, kv_head, waiting)?);
                let layer = self.layer;
                let visited = &mut self.pool.visited[layer];
                if visited.len() < self.pool.staging.pages() {
                    visited.push((kv_head, page));
                }
                let key = PageKey { layer, page, kv_head };
                self.pool.bring(key, place, 0, view, waiting)?;
                Ok(place)
            }
        }
    }

    /// A place for a page that does not stay.
    fn visitor(&mut self, page: usize, kv_head: usize, waiting: &mut Vec<Waiting<'_>>) -> Result<usize, CudaError> {
        if self.free_visitors.is_empty() {
            self.pool.transfer(waiting)?;
            self.read(Some(page))?;
        }
        let visitor = self.free_visitors.pop();
        let visitor = visitor.expect("a call holds fewer visitors than there are places once it has read what it can");
        self.visiting.push(Visiting { kv_head, page, visitor });
        Ok(visitor)
    }

    /// Queues what can be read now: everything before page `until`, or all of it; visitors that are done with leave.
    fn read(&mut self, until: Option<usize>) -> Result<(), CudaError> {
        let pool = &mut *self.pool;
        let shape = pool.options.shape;
        let addresses = |which: usize| self.table.iter().map(move |planes| planes[which]).collect::<Vec<u64>>();
        let (keys, values) = (addresses(0), addresses(1));
        let [key_table, value_table] = &mut pool.tables;
        let pages = Pages {
            keys: key_table.set(&pool.compute, &keys)?,
            values: value_table.set(&pool.compute, &values)?,
            kv_heads: shape.kv_heads,
            pages_per_head: self.pages,
            page_tokens: shape.page_tokens,
            head_dim: shape.head_dim,
            key_format: shape.key_format,
            value_format: shape.value_format,
        };
        let memory = &pool.memory;
        let queries = self.rows.queries;
        let outputs = Outputs {
            data: self.rows.attended,
            row_stride: queries.row_stride,
            log_sum_exp: Some(self.rows.log_sum_exp),
        };
        // The first position that a later launch reads, by KV head.
        let mut read_until = vec![usize::MAX; shape.kv_heads];
        match &mut self.work {
            Work::Rows {
                read_until: before,
                resume,
            } => {
                let end = until.map(|page| page * shape.page_tokens);
                let within = Span::new(*before, end.unwrap_or(self.pages * shape.page_tokens));
                let reads: Vec<_> = self.tiles.iter().map(tile_reads).collect();
                pool.reads.set(&pool.compute, &reads, Some(within))?;
                let state = PrefillState {
                    sums: memory.sums.all(),
                    outputs: memory.outputs.all(),
                    resume: *resume,
                    finish: until.is_none(),
                };
                let (reads, options) = (&pool.reads, &self.options);
                ops::prefill(&pool.compute, &outputs, &queries, &pages, reads, options, Some(&state))?;
                *resume = true;
                *before = within.end;
                read_until.fill(within.end);
            }
            Work::Parts { left } => {
                let workspace = memory.workspace.all();
                let (reads, options) = (&pool.reads, &self.options);
                for (tile, left) in self.tiles.iter().zip(left.iter_mut()) {
                    let ready = left.clone().take_while(|part| {
                        until.is_none_or(|page| reads.part_keys(*part).end <= page * shape.page_tokens)
                    });
                    let parts = left.start..left.start + ready.count();
                    left.start = parts.end;
                    if left.start < left.end {
                        let first = reads.part_keys(left.start).start;
                        read_until[tile.kv_head] = read_until[tile.kv_head].min(first);
                    }
                    if !parts.is_empty() {
                        ops::decode_parts(&pool.compute, workspace, &queries, &pages, reads, parts, options)?;
                    }
                }
                if until.is_none() {
                    ops::decode_merge(&pool.compute, &outputs, workspace, &queries, &pages, reads, options)?;
                }
            }
        }
        let free = &mut self.free_visitors;
        self.visiting.retain(|visiting| {
            let stays = (visiting.page + 1) * shape.page_tokens > read_until[visiting.kv_head];
            if !stays {
                free.push(visiting.visitor);
            }
            stays
        });
        Ok(())
    }

    /// Adds means of blocks to what has been read, when that is everything.
    fn read_means(&mut self) -> Result<(), CudaError> {
        let pool = &mut *self.pool;
        let (shape, heads) = (pool.options.shape, pool.options.heads);
        let CallRows {
            queries,
            attended,
            log_sum_exp,
        } = self.rows;
        let parts = match self.work {
            Work::Rows { .. } => 1,
            Work::Parts { .. } => pool.means.parts(self.layer, self.tiles),
        };
        let (sums, outputs) = ops::means_workspace_bytes(queries.rows, heads, shape.head_dim, parts);
        let sums = sums.next_multiple_of(16);
        if parts > 1 && pool.memory.workspace.bytes() < sums + outputs {
            pool.memory.workspace = pool.gpu.allocate((sums + outputs).next_power_of_two())?;
        }
        let memory = &pool.memory;
        // What a prefill has finished with is as long as one part's.
        let workspace = match parts {
            1 => [memory.sums.all(), memory.outputs.all()],
            _ => [0..sums, sums..sums + outputs].map(|part| memory.workspace.region(part)),
        };
        let read = Outputs {
            data: attended,
            row_stride: queries.row_stride,
            log_sum_exp: Some(log_sum_exp),
        };
        let (stream, reads) = (&pool.compute, &pool.reads);
        let (layer, tiles, options) = (self.layer, self.tiles, &self.options);
        pool.means.attend(
            stream, layer, tiles, &read, workspace, &queries, reads, &shape, parts, options,
        )
    }

    /// Queues the reading of the rest: what the call returns lies in its rows when that has run.
    ///
    /// # Errors
    /// A lost device.
    pub fn finish(mut self) -> Result<(), CudaError> {
        if self.tiles.is_empty() {
            return Ok(());
        }
        self.read(None)?;
        match self.reads_means {
            true => self.read_means(),
            false => Ok(()),
        }
    }
}

impl PagePool {
    /// Brings what a finished call left in its rows to main memory and adds it to `partials`, one for each tile.
    ///
    /// # Errors
    /// A lost device; the partials are as they were.
    pub fn bring_partials(
        &mut self,
        tiles: &[PagedTile<'_>],
        rows: &CallRows<'_>,
        partials: &mut [Partial],
    ) -> Result<(), CudaError> {
        let (shape, heads) = (self.options.shape, self.options.heads);
        let (stream, memory) = (&self.compute, &mut self.memory);
        let count = rows.queries.rows;
        let (values, sums) = (4 * count * heads * shape.head_dim, 4 * count * heads);
        memory.reserve_host(&self.gpu, values, sums)?;
        stream.from_device(&mut memory.host_attended, 0, rows.attended.part(0..values))?;
        stream.from_device(&mut memory.host_log_sum_exp, 0, rows.log_sum_exp.part(0..sums))?;
        stream.synchronize()?;
        self.transferred.returned_bytes += (values + sums) as u64;
        // [rows, heads, head_dim] and [rows, heads]
        let attended: &[f32] = bytemuck::cast_slice(&memory.host_attended.bytes()[..values]);
        let log_sum_exp: &[f32] = bytemuck::cast_slice(&memory.host_log_sum_exp.bytes()[..sums]);
        for (tile, partial) in tiles.iter().zip(partials) {
            let (rows, group) = (tile.rows, heads / shape.kv_heads);
            let mut read = Partial::new(rows, group, shape.head_dim);
            for row in 0..rows {
                let first_head = (tile.first_row + row) * heads + tile.kv_head * group;
                for head in 0..group {
                    // Normalised: one key of this logit and this value reads as much.
                    let (at, from) = (row * group + head, first_head + head);
                    read.m[at] = log_sum_exp[from];
                    read.l[at] = if log_sum_exp[from] == f32::NEG_INFINITY {
                        0.0
                    } else {
                        1.0
                    };
                }
                let width = group * shape.head_dim;
                read.o[row * width..][..width].copy_from_slice(&attended[first_head * shape.head_dim..][..width]);
            }
            match partial.l.iter().all(|sum| *sum == 0.0) {
                true => *partial = read,
                false => partial
                    .merge(&read)
                    .map_err(|error| CudaError::driver("merging", error))?,
            }
        }
        Ok(())
    }
}
