//! One attention call over the pages of a layer, which are on the device or loaded during the call.
//!
//! Pages come in ascending order. Some get a slot on the device and stay; the others get a temporary place. When no
//! temporary place is left, the call attends to the pages so far, and the next pages take their places. The result
//! does not depend on when that happens: prefill continues from its state, and the whole call determines a decode's
//! parts.

use riffle_attention::{AttendOptions, PageView, Partial, Span};
use riffle_device::PagedTile;
use riffle_kv::CacheShape;

use super::heads_of;
use super::list::DeviceList;
use super::means::{BlockMeans, MeansCall};
use super::memory::PagePlace;
use super::room::tile_reads;
use super::traffic::{Shown, Traffic};
use super::transfer::Waiting;
use crate::ops::{self, AttentionCall, AttentionOptions, Outputs, Pages, PrefillState, Queries, Reads};
use crate::{CudaError, DeviceBuffer, Gpu, PinnedBuffer, Region, Stream};

/// Maximum number of packed rows (queries times heads of a group) of a call that is split over its keys.
const FEW_PACKED_ROWS: usize = 16;

/// Rows of a call on the device, with all query heads.
#[derive(Debug, Clone, Copy)]
pub struct CallRows<'a> {
    /// The queries.
    pub queries: Queries<'a>,
    /// Target of the attention output, f32, in the layout of the queries.
    pub attended: Region<'a>,
    /// Target of ln Σ exp(logit) of each row and head, f32 `[rows, heads]`.
    pub log_sum_exp: Region<'a>,
}

impl<'a> CallRows<'a> {
    fn outputs(&self) -> Outputs<'a> {
        Outputs {
            data: self.attended,
            row_stride: self.queries.row_stride,
            log_sum_exp: Some(self.log_sum_exp),
        }
    }
}

/// State and memory of a call.
pub(super) struct CallParts<'p> {
    pub(super) traffic: Traffic<'p>,
    pub(super) memory: &'p mut CallMemory,
    pub(super) lists: &'p mut CallLists,
    pub(super) means: &'p mut BlockMeans,
}

/// A running call.
pub struct PagedCall<'p> {
    parts: CallParts<'p>,
    tiles: &'p [PagedTile<'p>],
    rows: CallRows<'p>,
    options: AttentionOptions<'static>,
    // pages per head in the tables
    pages: usize,
    // [kv_heads, pages]: addresses of keys and of values
    table: Vec<[u64; 2]>,
    free_visitors: Vec<usize>,
    visiting: Vec<Visiting>,
    work: Work,
    reads_means: bool,
}

/// Kind of a call's computation.
enum Work {
    /// Many rows: keys in order.
    Prefill(PrefillWork),
    /// Few rows: keys in parts.
    Decode(DecodeWork),
}

struct PrefillWork {
    /// The position up to which everything has been read.
    read_until: usize,
    resume: bool,
}

struct DecodeWork {
    /// For each tile, the parts that are not yet launched.
    left: Vec<std::ops::Range<usize>>,
}

struct Visiting {
    kv_head: usize,
    page: usize,
    visitor: usize,
}

/// Reads and page tables of a call, set again for each.
pub(super) struct CallLists {
    pub(super) reads: Reads,
    /// Addresses of keys and of values.
    pub(super) tables: [DeviceList; 2],
}

/// Memory of the largest call so far.
pub(super) struct CallMemory {
    gpu: Gpu,
    heads: usize,
    // The state of a prefill, or the partials of a decode.
    sums: DeviceBuffer,
    outputs: DeviceBuffer,
    workspace: DeviceBuffer,
    // Results in main memory.
    host_attended: PinnedBuffer,
    host_log_sum_exp: PinnedBuffer,
}

impl CallMemory {
    pub(super) fn new(gpu: &Gpu, heads: usize) -> Result<Self, CudaError> {
        Ok(Self {
            gpu: gpu.clone(),
            heads,
            sums: gpu.allocate(0)?,
            outputs: gpu.allocate(0)?,
            workspace: gpu.allocate(0)?,
            host_attended: gpu.allocate_host(0)?,
            host_log_sum_exp: gpu.allocate_host(0)?,
        })
    }

    fn reserve(&mut self, rows: usize, head_dim: usize) -> Result<(), CudaError> {
        let (sums, outputs) = PrefillState::bytes(rows, self.heads, head_dim);
        if self.outputs.bytes() < outputs {
            self.sums = self.gpu.allocate(sums)?;
            // The outputs are allocated last, because their size tells if both buffers exist, also after a failure in
            // between.
            self.outputs = self.gpu.allocate(outputs)?;
        }
        Ok(())
    }

    fn reserve_host(&mut self, attended: usize, sums: usize) -> Result<(), CudaError> {
        if self.host_attended.bytes().len() < attended {
            self.host_log_sum_exp = self.gpu.allocate_host(sums)?;
            self.host_attended = self.gpu.allocate_host(attended)?;
        }
        Ok(())
    }

    fn reserve_workspace(&mut self, bytes: usize) -> Result<(), CudaError> {
        if self.workspace.bytes() < bytes {
            self.workspace = self.gpu.allocate(bytes.next_power_of_two())?;
        }
        Ok(())
    }
}

/// Bytes of device memory of calls of up to `rows` rows, without their lists.
pub(super) fn call_bytes(rows: usize, heads: usize, head_dim: usize) -> u64 {
    let (sums, outputs) = PrefillState::bytes(rows, heads, head_dim);
    (sums + outputs) as u64
}

/// Page tables from the addresses of keys and of values, `[kv_heads, pages]` each.
pub(super) fn page_tables<'a>(
    tables: &'a mut [DeviceList; 2],
    compute: &Stream,
    addresses: &[[u64; 2]],
    shape: &CacheShape,
) -> Result<Pages<'a>, CudaError> {
    let of = |which: usize| addresses.iter().map(move |planes| planes[which]).collect::<Vec<u64>>();
    let [keys, values] = tables;
    Ok(Pages {
        keys: keys.set(compute, &of(0))?,
        values: values.set(compute, &of(1))?,
        kv_heads: heads_of(shape).kv_heads,
        pages_per_head: addresses.len() / heads_of(shape).kv_heads,
        page_tokens: shape.page_tokens,
        head_dim: heads_of(shape).key_width,
        key_format: shape.key_format,
        value_format: shape.value_format,
    })
}

impl PrefillWork {
    /// Queues the call's reads, up to position `end` unless it is the last. Returns the first position of a later
    /// launch, by KV head.
    fn read(
        &mut self,
        compute: &Stream,
        memory: &CallMemory,
        outputs: &Outputs<'_>,
        call: &AttentionCall<'_>,
        end: Option<usize>,
    ) -> Result<Vec<usize>, CudaError> {
        let state = PrefillState {
            sums: memory.sums.all(),
            outputs: memory.outputs.all(),
            resume: self.resume,
            finish: end.is_none(),
        };
        ops::prefill(compute, outputs, call, Some(&state))?;
        self.resume = true;
        self.read_until = end.unwrap_or(call.pages.pages_per_head * call.pages.page_tokens);
        Ok(vec![self.read_until; call.pages.kv_heads])
    }
}

impl DecodeWork {
    /// Queues all parts, or those whose keys end at or before position `end`. Returns the first position of a later
    /// launch, by KV head.
    fn read(
        &mut self,
        compute: &Stream,
        workspace: Region<'_>,
        call: &AttentionCall<'_>,
        tiles: &[PagedTile<'_>],
        end: Option<usize>,
    ) -> Result<Vec<usize>, CudaError> {
        let reads = call.reads;
        let mut read_until = vec![usize::MAX; call.pages.kv_heads];
        for (tile, left) in tiles.iter().zip(&mut self.left) {
            let is_there = |part: &usize| end.is_none_or(|end| reads.part_keys(*part).end <= end);
            let ready = left.clone().take_while(is_there).count();
            let parts = left.start..left.start + ready;
            left.start = parts.end;
            if left.start < left.end {
                let first = reads.part_keys(left.start).start;
                read_until[tile.kv_head] = read_until[tile.kv_head].min(first);
            }
            if !parts.is_empty() {
                ops::decode_parts(compute, workspace, call, parts)?;
            }
        }
        Ok(read_until)
    }
}

impl<'p> PagedCall<'p> {
    /// A call over pages that the residence [knows](super::residence::Residence::enter).
    pub(super) fn new(
        parts: CallParts<'p>,
        tiles: &'p [PagedTile<'p>],
        rows: CallRows<'p>,
        end: usize,
        options: &AttendOptions<'_>,
    ) -> Result<Self, CudaError> {
        let mut parts = parts;
        let CallParts {
            traffic, memory, lists, ..
        } = &mut parts;
        let shape = traffic.staging.shape;
        let count = rows.queries.rows;
        memory.reserve(count, heads_of(&shape).key_width)?;
        let work = if count * memory.heads / heads_of(&shape).kv_heads <= FEW_PACKED_ROWS {
            let reads: Vec<_> = tiles.iter().map(tile_reads).collect();
            lists.reads.set(traffic.compute, &reads, None)?;
            memory.reserve_workspace(ops::decode_workspace_bytes(&lists.reads))?;
            Work::Decode(DecodeWork {
                left: lists.reads.tile_parts().to_vec(),
            })
        } else {
            Work::Prefill(PrefillWork {
                read_until: 0,
                resume: false,
            })
        };
        let of = traffic.of;
        traffic.staging.visited.remove(&(of.sequence, of.layer));
        let pages = end.div_ceil(shape.page_tokens);
        Ok(Self {
            tiles,
            rows,
            options: AttentionOptions {
                scale: options.scale,
                soft_cap: options.soft_cap,
                sinks: None,
            },
            pages,
            table: vec![[0; 2]; heads_of(&shape).kv_heads * pages],
            free_visitors: (0..traffic.residence.visitors()).rev().collect(),
            visiting: Vec::new(),
            work,
            reads_means: false,
            parts,
        })
    }

    /// Makes the call read the block means in the selections too. Means of the layer's tokens must be known
    /// ([`DeviceRoom::extend_summaries`](super::DeviceRoom::extend_summaries)).
    pub fn include_means(&mut self) {
        self.reads_means = true;
    }

    /// Takes exactly the pages that the tiles read, by KV head. The pages of all calls come in the order of (page, KV
    /// head). Before this returns, each page has been read or copied.
    ///
    /// # Errors
    /// A lost device, too little memory, a page without a version: all pages are then forgotten.
    pub fn attend(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), CudaError> {
        let taken = self.take_in(shown);
        self.parts.traffic.reading = None;
        if taken.is_err() {
            self.parts.traffic.forget();
        }
        taken
    }

    fn take_in(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), CudaError> {
        let mut waiting = Vec::new();
        for shown in self.parts.traffic.in_order(shown)? {
            self.parts.traffic.reading = Some(self.parts.traffic.key(&shown));
            let place = self.place(&shown, &mut waiting)?;
            self.table[shown.kv_head * self.pages + shown.page] = self.parts.traffic.addresses(place);
        }
        self.parts.traffic.transfer(&mut waiting)
    }

    /// Finds a place for a page: a slot if the page stays, else a temporary place. Missing planes are added to
    /// `waiting`.
    fn place<'a>(&mut self, shown: &Shown<'a>, waiting: &mut Vec<Waiting<'a>>) -> Result<PagePlace, CudaError> {
        if let Some(place) = self.parts.traffic.settle(shown, waiting)? {
            return Ok(place);
        }
        let visitor = self.visitor(shown.page, shown.kv_head, waiting)?;
        let traffic = &mut self.parts.traffic;
        traffic.staging.note_visit(&traffic.of, shown.kv_head, shown.page);
        traffic.visit(shown, visitor, waiting)
    }

    /// A temporary place for a page without a slot.
    fn visitor(&mut self, page: usize, kv_head: usize, waiting: &mut Vec<Waiting<'_>>) -> Result<usize, CudaError> {
        if self.free_visitors.is_empty() {
            self.parts.traffic.transfer(waiting)?;
            self.read(Some(page))?;
        }
        let visitor = self.free_visitors.pop();
        let visitor = visitor.expect("a call holds fewer visitors than there are places once it has read what it can");
        self.visiting.push(Visiting { kv_head, page, visitor });
        Ok(visitor)
    }

    /// Queues all reads before page `until`, or all of them, and frees finished temporary places.
    fn read(&mut self, until: Option<usize>) -> Result<(), CudaError> {
        let CallParts {
            traffic, memory, lists, ..
        } = &mut self.parts;
        let (shape, compute) = (traffic.staging.shape, traffic.compute);
        let pages = page_tables(&mut lists.tables, compute, &self.table, &shape)?;
        let end = until.map(|page| page * shape.page_tokens);
        if let Work::Prefill(prefill) = &self.work {
            let within = Span::new(prefill.read_until, end.unwrap_or(self.pages * shape.page_tokens));
            let reads: Vec<_> = self.tiles.iter().map(tile_reads).collect();
            lists.reads.set(compute, &reads, Some(within))?;
        }
        let call = AttentionCall {
            queries: self.rows.queries,
            pages,
            reads: &lists.reads,
            options: self.options,
        };
        let outputs = self.rows.outputs();
        // The first position of a later launch, by KV head.
        let read_until = match &mut self.work {
            Work::Prefill(prefill) => prefill.read(compute, memory, &outputs, &call, end)?,
            Work::Decode(decode) => {
                let workspace = memory.workspace.all();
                let read_until = decode.read(compute, workspace, &call, self.tiles, end)?;
                if end.is_none() {
                    ops::decode_merge(compute, &outputs, workspace, &call)?;
                }
                read_until
            }
        };
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

    /// Adds block means to the output, after all keys were read.
    fn read_means(&mut self) -> Result<(), CudaError> {
        let CallParts {
            traffic,
            memory,
            lists,
            means,
        } = &mut self.parts;
        let shape = traffic.staging.shape;
        let queries = self.rows.queries;
        let parts = match self.work {
            Work::Prefill(_) => 1,
            Work::Decode(_) => means.parts(&traffic.of, self.tiles),
        };
        let (sums, outputs) = ops::means_workspace_bytes(queries.rows, memory.heads, heads_of(&shape).key_width, parts);
        let sums = sums.next_multiple_of(16);
        if parts > 1 {
            memory.reserve_workspace(sums + outputs)?;
        }
        // The state of a finished prefill is large enough for the workspace of one part.
        let workspace = match parts {
            1 => [memory.sums.all(), memory.outputs.all()],
            _ => [0..sums, sums..sums + outputs].map(|part| memory.workspace.region(part)),
        };
        let read = MeansCall {
            tiles: self.tiles,
            outputs: self.rows.outputs(),
            queries,
            reads: &lists.reads,
            workspace,
            parts,
        };
        means.attend(traffic.compute, &traffic.of, &read, &self.options)
    }

    /// Queues the remaining reads. After they have run, the call's rows hold the output.
    ///
    /// # Errors
    /// A lost device.
    pub fn finish(mut self) -> Result<(), CudaError> {
        if self.tiles.is_empty() {
            return Ok(());
        }
        self.read(None)?;
        if self.reads_means { self.read_means() } else { Ok(()) }
    }
}

impl CallMemory {
    /// Copies a finished call's output to main memory and adds it to `partials`, one for each tile. Returns the
    /// copied bytes.
    pub(super) fn bring_partials(
        &mut self,
        stream: &Stream,
        shape: &CacheShape,
        tiles: &[PagedTile<'_>],
        rows: &CallRows<'_>,
        partials: &mut [Partial],
    ) -> Result<u64, CudaError> {
        let (heads, count) = (self.heads, rows.queries.rows);
        let (values, sums) = (4 * count * heads * heads_of(shape).key_width, 4 * count * heads);
        self.reserve_host(values, sums)?;
        stream.from_device(&mut self.host_attended, 0, rows.attended.part(0..values))?;
        stream.from_device(&mut self.host_log_sum_exp, 0, rows.log_sum_exp.part(0..sums))?;
        stream.synchronize()?;
        // [rows, heads, head_dim] and [rows, heads]
        let attended: &[f32] = bytemuck::cast_slice(&self.host_attended.bytes()[..values]);
        let log_sum_exp: &[f32] = bytemuck::cast_slice(&self.host_log_sum_exp.bytes()[..sums]);
        for (tile, partial) in tiles.iter().zip(partials) {
            let (rows, group) = (tile.rows, heads / heads_of(shape).kv_heads);
            let mut read = Partial::new(rows, group, heads_of(shape).key_width);
            for row in 0..rows {
                let first_head = (tile.first_row + row) * heads + tile.kv_head * group;
                for head in 0..group {
                    // The output is normalised, so it equals one key with this logit and this value.
                    let (at, from) = (row * group + head, first_head + head);
                    read.m[at] = log_sum_exp[from];
                    read.l[at] = if log_sum_exp[from] == f32::NEG_INFINITY {
                        0.0
                    } else {
                        1.0
                    };
                }
                let width = group * heads_of(shape).key_width;
                read.o[row * width..][..width]
                    .copy_from_slice(&attended[first_head * heads_of(shape).key_width..][..width]);
            }
            if partial.l.iter().all(|sum| *sum == 0.0) {
                *partial = read
            } else {
                partial
                    .merge(&read)
                    .map_err(|error| CudaError::driver("merging", error))?
            }
        }
        Ok((values + sums) as u64)
    }
}
