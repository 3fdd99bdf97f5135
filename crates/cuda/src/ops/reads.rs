//! Selections flattened for kernels: `kernels/reads.cuh`.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use riffle_attention::{Selection, Span};

use super::positive;
use crate::{Argument, CudaError, DeviceBuffer, Event, Gpu, PinnedBuffer, Region, Stream};

/// Keys whose visibility is one word of bits.
pub const KEY_BLOCK: usize = 64;
/// Blocks of keys in one part of a decode.
const PART_BLOCKS: usize = 8;
const PER_ROW: u32 = 1;

/// Keys of one KV head that one tile of queries reads.
#[derive(Debug, Clone, Copy)]
pub struct TileReads<'a> {
    /// KV head of the tile.
    pub kv_head: usize,
    /// Position of the tile's first query.
    pub start: usize,
    /// Row of the tile's first query among the queries.
    pub row: usize,
    /// Number of queries in the tile.
    pub rows: usize,
    /// Keys that the queries read, without summaries.
    pub selection: &'a Selection,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub(super) struct Run {
    bits: u64,
    first: u32,
    blocks: u32,
    flags: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Tile {
    start: u32,
    row: u32,
    rows: u32,
    kv_head: u32,
    runs: [u32; 2],
    row_window: u32,
    diagonals: [u32; 2],
    extras_row: u32,
    extras_rows: u32,
    ends: u32,
    extras: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct DecodePart {
    tile: u32,
    runs: [u32; 2],
    slot: u32,
}

/// Reads of many tiles, on the device. They are set once per layer and chunk (or token) for the attention kernels.
/// Their memory is reused.
#[derive(Debug)]
pub struct Reads {
    gpu: Gpu,
    device: DeviceBuffer,
    host: PinnedBuffer,
    uploaded: Event,
    /// Bytes of each [`Section`].
    sections: [Range<usize>; SECTIONS],
    group: usize,
    head_dim: usize,
    shapes: Vec<TileShape>,
    part_spans: Vec<Span>,
    tile_parts: Vec<Range<usize>>,
    work_items: usize,
}

/// The arrays of the flattened form.
#[derive(Debug, Clone, Copy)]
pub(super) enum Section {
    Tiles,
    Runs,
    Diagonals,
    ExtraEnds,
    Extras,
    Parts,
    Slots,
    Work,
}
const SECTIONS: usize = 8;

/// Sizes of a tile that its launch needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileShape {
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) kv_head: usize,
    pub(super) start: usize,
    blocks: usize,
}

impl Reads {
    /// No reads, for heads of this width in groups of `group` query heads.
    ///
    /// # Errors
    /// A width without a kernel, too little memory.
    pub fn new(gpu: &Gpu, head_dim: usize, group: usize) -> Result<Self, CudaError> {
        check_head_dim(head_dim)?;
        positive("group of query heads", group)?;
        Ok(Self {
            gpu: gpu.clone(),
            device: gpu.allocate(0)?,
            host: gpu.allocate_host(0)?,
            uploaded: gpu.event()?,
            sections: Default::default(),
            group,
            head_dim,
            shapes: Vec::new(),
            part_spans: Vec::new(),
            tile_parts: Vec::new(),
            work_items: 0,
        })
    }

    /// Flattens the tiles' selections, causally, and queues the upload on the kernels' stream. `within` limits the
    /// reads to these keys, between two multiples of [`KEY_BLOCK`], for pages that arrive in groups.
    ///
    /// # Errors
    /// Positions above 2^31, bounds of `within` that are not multiples, too little memory.
    pub fn set(&mut self, stream: &Stream, tiles: &[TileReads<'_>], within: Option<Span>) -> Result<(), CudaError> {
        let within = within.unwrap_or(Span::new(0, i32::MAX as usize + 1));
        for bound in [within.start, within.end] {
            if !bound.is_multiple_of(KEY_BLOCK) {
                return Err(CudaError::Unsupported {
                    what: "bound of the keys that are near",
                    value: bound,
                    requirement: "a multiple of 64",
                });
            }
        }
        let mut flat = Flat::default();
        for tile in tiles {
            let end = tile.start.saturating_add(tile.rows);
            if end > i32::MAX as usize || tile.row > i32::MAX as usize || tile.rows == 0 {
                return Err(CudaError::Unsupported {
                    what: "last position of a tile",
                    value: end,
                    requirement: "below 2^31, with at least one row",
                });
            }
            flat.push(tile, within);
        }
        let (slots, work) = (flat.slots(), flat.work(self.group, prefill_rows(self.head_dim)));
        let arrays: [&[u8]; SECTIONS] = [
            bytemuck::cast_slice(&flat.tiles),
            bytemuck::cast_slice(&flat.runs),
            bytemuck::cast_slice(&flat.diagonals),
            bytemuck::cast_slice(&flat.extra_ends),
            bytemuck::cast_slice(&flat.extras),
            bytemuck::cast_slice(&flat.parts),
            bytemuck::cast_slice(&slots),
            bytemuck::cast_slice(&work),
        ];
        let bytes: usize = arrays.iter().map(|array| array.len().next_multiple_of(16)).sum();
        if self.host.bytes().len() < bytes {
            let room = bytes.next_power_of_two();
            self.device = self.gpu.allocate(room)?;
            self.host = self.gpu.allocate_host(room)?;
        } else {
            // The previous copy may still read the host's buffer.
            self.uploaded.synchronize()?;
        }
        let mut at = 0;
        for (section, array) in self.sections.iter_mut().zip(arrays) {
            *section = at..at + array.len();
            self.host.bytes_mut()[section.clone()].copy_from_slice(array);
            at += array.len().next_multiple_of(16);
        }
        stream.to_device(self.device.region(0..bytes), &self.host, 0)?;
        stream.record(&self.uploaded)?;
        self.work_items = work.len() / 2;
        self.tile_parts = slots
            .windows(2)
            .map(|ends| ends[0] as usize..ends[1] as usize)
            .collect();
        (self.shapes, self.part_spans) = (flat.shapes, flat.part_spans);
        Ok(())
    }

    /// Query heads of a KV head.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Elements of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Parts of a decode over these reads.
    pub fn parts(&self) -> usize {
        self.part_spans.len()
    }

    /// The parts of each tile, in its order of keys.
    pub fn tile_parts(&self) -> &[Range<usize>] {
        &self.tile_parts
    }

    /// The span of a part's keys, rounded outward to whole blocks. Their pages must be on the device when it runs.
    pub fn part_keys(&self, part: usize) -> Span {
        self.part_spans[part]
    }

    /// (Query, key) pairs that kernels compute for each query head, including masked ones: rows times the keys of the
    /// read blocks.
    pub fn computed_pairs(&self) -> usize {
        self.shapes.iter().map(|tile| tile.rows * tile.blocks * KEY_BLOCK).sum()
    }

    /// Kernel arguments for the tiles: the arrays of `kernels/reads.cuh`.
    pub(super) fn arguments(&self) -> [Argument; 5] {
        use Section::{Diagonals, ExtraEnds, Extras, Runs, Tiles};
        [Tiles, Runs, Diagonals, ExtraEnds, Extras].map(|section| self.section(section).into())
    }

    pub(super) fn section(&self, section: Section) -> Region<'_> {
        self.device.region(self.sections[section as usize].clone())
    }

    pub(super) fn tiles(&self) -> &[TileShape] {
        &self.shapes
    }

    pub(super) fn work_items(&self) -> usize {
        self.work_items
    }

    /// Packed rows (queries × group) of the largest tile.
    pub(super) fn packed_rows(&self) -> usize {
        self.shapes.iter().map(|tile| tile.rows * self.group).max().unwrap_or(0)
    }
}

/// Packed rows of one block of the prefill kernel.
pub(super) fn prefill_rows(head_dim: usize) -> usize {
    if head_dim <= 128 { 128 } else { 64 }
}

pub(super) fn check_head_dim(head_dim: usize) -> Result<(), CudaError> {
    if !(head_dim.is_multiple_of(16) && (16..=256).contains(&head_dim)) {
        return Err(CudaError::Unsupported {
            what: "head_dim",
            value: head_dim,
            requirement: "a multiple of 16 from 16 to 256",
        });
    }
    Ok(())
}

#[derive(Default)]
struct Flat {
    tiles: Vec<Tile>,
    runs: Vec<Run>,
    diagonals: Vec<u32>,
    extra_ends: Vec<u32>,
    extras: Vec<u32>,
    parts: Vec<DecodePart>,
    part_spans: Vec<Span>,
    shapes: Vec<TileShape>,
}

impl Flat {
    fn push(&mut self, tile: &TileReads<'_>, within: Span) {
        let selection = tile.selection;
        let (diagonals, extras, ends) = (self.diagonals.len(), self.extras.len(), self.extra_ends.len());
        self.diagonals
            .extend(selection.diagonals().iter().filter_map(|d| u32::try_from(*d).ok()));
        if selection.has_row_extras() {
            for query in tile.start..tile.start + tile.rows {
                let row = selection.row_extras(query).iter().filter(|key| **key <= query);
                self.extras.extend(row.map(|key| *key as u32));
                self.extra_ends.push(self.extras.len() as u32);
            }
        }
        let begin = self.runs.len();
        let blocks = self.push_runs(tile, within);
        self.shapes.push(TileShape {
            row: tile.row,
            rows: tile.rows,
            kv_head: tile.kv_head,
            start: tile.start,
            blocks,
        });
        let number = self.tiles.len() as u32;
        self.push_parts(number, begin);
        self.tiles.push(Tile {
            start: tile.start as u32,
            row: tile.row as u32,
            rows: tile.rows as u32,
            kv_head: tile.kv_head as u32,
            runs: [begin as u32, self.runs.len() as u32],
            row_window: u32::try_from(selection.row_window()).unwrap_or(i32::MAX as u32),
            diagonals: [diagonals as u32, self.diagonals.len() as u32],
            extras_row: tile.start as u32,
            extras_rows: (self.extra_ends.len() - ends) as u32,
            ends: ends as u32,
            extras: extras as u32,
            unused: 0,
        });
    }

    /// Adds the tile's runs of equal blocks. Returns the number of blocks.
    fn push_runs(&mut self, tile: &TileReads<'_>, within: Span) -> usize {
        let selection = tile.selection;
        let begin = self.runs.len();
        let (mut next, mut count) = (0, 0);
        for need in selection.reads(tile.start, tile.rows) {
            let need = need.intersect(&within);
            if need.is_empty() {
                continue;
            }
            let mut at = (need.start / KEY_BLOCK * KEY_BLOCK).max(next);
            while at < need.end {
                // Whole blocks that every row sees are added as one run.
                let spans = selection.spans();
                let covering = spans.partition_point(|span| span.end <= at);
                let seen_by_all = spans.get(covering).filter(|span| span.start <= at).map_or(0, |span| {
                    span.end.min(tile.start + 1).min(need.end).saturating_sub(at) / KEY_BLOCK
                });
                let (bits, flags, blocks) = match seen_by_all {
                    0 => {
                        let block = Span::new(at, at + KEY_BLOCK);
                        let flags = if per_row(tile, block) { PER_ROW } else { 0 };
                        (span_bits(spans, covering, block), flags, 1)
                    }
                    blocks => (u64::MAX, 0, blocks),
                };
                let new = Run {
                    bits,
                    first: at as u32,
                    blocks: blocks as u32,
                    flags,
                    unused: 0,
                };
                match self.runs[begin..].last_mut() {
                    Some(run)
                        if run.bits == bits
                            && run.flags == flags
                            && run.first as usize + run.blocks as usize * KEY_BLOCK == at =>
                    {
                        run.blocks += new.blocks;
                    }
                    _ => self.runs.push(new),
                }
                at += blocks * KEY_BLOCK;
                count += blocks;
            }
            next = next.max(at);
        }
        count
    }

    /// Cuts the tile's runs, from index `begin`, into parts of a few blocks each.
    fn push_parts(&mut self, tile: u32, begin: usize) {
        let mut cut = Vec::new();
        let mut room = 0;
        for run in self.runs.drain(begin..) {
            let (mut first, mut left) = (run.first, run.blocks as usize);
            while left > 0 {
                let here = begin + cut.len();
                if room == 0 {
                    room = PART_BLOCKS;
                    self.parts.push(DecodePart {
                        tile,
                        runs: [here as u32, here as u32],
                        slot: self.parts.len() as u32,
                    });
                    self.part_spans.push(Span::new(first as usize, first as usize));
                }
                let blocks = left.min(room);
                cut.push(Run {
                    first,
                    blocks: blocks as u32,
                    ..run
                });
                first += (blocks * KEY_BLOCK) as u32;
                left -= blocks;
                room -= blocks;
                let (part, span) = (self.parts.last_mut(), self.part_spans.last_mut());
                if let (Some(part), Some(span)) = (part, span) {
                    part.runs[1] = here as u32 + 1;
                    span.end = first as usize;
                }
            }
        }
        self.runs.extend(cut);
    }

    /// Tile and first packed row of each block of the prefill kernel. Blocks with more keys come first, because long
    /// blocks must start first.
    fn work(&self, group: usize, rows: usize) -> Vec<u32> {
        let mut order: Vec<usize> = (0..self.shapes.len()).collect();
        order.sort_by_key(|tile| std::cmp::Reverse(self.shapes[*tile].blocks));
        let firsts = |tile: usize| (0..self.shapes[tile].rows * group).step_by(rows);
        order
            .into_iter()
            .flat_map(|tile| firsts(tile).flat_map(move |first| [tile as u32, first as u32]))
            .collect()
    }

    /// First part of each tile, and the end of the last.
    fn slots(&self) -> Vec<u32> {
        let first = |tile: usize| self.parts.partition_point(|part| (part.tile as usize) < tile) as u32;
        (0..=self.tiles.len()).map(first).collect()
    }
}

/// True if rows of the tile may see different keys of the block.
fn per_row(tile: &TileReads<'_>, block: Span) -> bool {
    let selection = tile.selection;
    let (first, last) = (tile.start, tile.start + tile.rows - 1);
    let window_begins = (first + 1).saturating_sub(selection.row_window());
    block.end > first + 1
        || selection.row_window() > 0 && block.end > window_begins
        || selection.has_row_extras()
        || selection.diagonals().iter().any(|distance| {
            last >= *distance && last - distance >= block.start && first.saturating_sub(*distance) < block.end
        })
}

/// Bits of the block's keys within spans, from span `from` on.
fn span_bits(spans: &[Span], from: usize, block: Span) -> u64 {
    let inside = spans[from..].iter().take_while(|span| span.start < block.end);
    inside.fold(0, |bits, span| {
        let common = span.intersect(&block);
        let low = |count: usize| if count >= 64 { u64::MAX } else { (1 << count) - 1 };
        bits | low(common.end - block.start) & !low(common.start - block.start)
    })
}
