//! The softmax mass that keys receive, over the pages of a layer in any location.

use riffle_attention::{AttendOptions, PageView};
use riffle_device::PagedTile;

use super::call::{CallLists, CallRows};
use super::heads_of;
use super::room::tile_reads;
use super::traffic::Traffic;
use crate::ops::{self, AttentionCall, AttentionOptions, KeyMass, Pages};
use crate::{CudaError, DeviceBuffer, Gpu, PinnedBuffer, Stream};

/// State and memory of a pass.
pub(super) struct MassParts<'p> {
    pub(super) traffic: Traffic<'p>,
    pub(super) lists: &'p mut CallLists,
    pub(super) memory: &'p mut MassMemory,
}

/// A running pass over pages. The mass of a key does not depend on other keys, so the order of pages does not matter.
pub struct PagedMass<'p> {
    parts: MassParts<'p>,
    rows: CallRows<'p>,
    options: AttentionOptions<'static>,
    /// Number of keys.
    end: usize,
    /// Finished keys, a whole number of pages.
    done: usize,
    // [kv_heads, pages]: addresses of keys
    table: Vec<u64>,
    visitors: usize,
    /// The latest page.
    last_page: usize,
}

/// Memory for the longest masses so far.
pub(super) struct MassMemory {
    gpu: Gpu,
    // f32 [kv_heads, keys]
    mass: DeviceBuffer,
    host_log_sum_exp: PinnedBuffer,
    host_mass: PinnedBuffer,
}

impl MassMemory {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self {
            gpu: gpu.clone(),
            mass: gpu.allocate(0)?,
            host_log_sum_exp: gpu.allocate_host(0)?,
            host_mass: gpu.allocate_host(0)?,
        })
    }

    fn reserve(&mut self, masses: usize) -> Result<(), CudaError> {
        if self.mass.bytes() < masses {
            // Some spare memory avoids an allocation for every appended token.
            let masses = masses + masses / 8;
            self.host_mass = self.gpu.allocate_host(masses)?;
            self.mass = self.gpu.allocate(masses)?;
        }
        Ok(())
    }
}

/// Bytes of device memory of the masses of `tokens` keys.
pub(super) fn mass_bytes(kv_heads: usize, tokens: usize) -> u64 {
    let masses = 4 * kv_heads * tokens;
    (masses + masses / 8) as u64
}

impl MassMemory {
    /// Copies the log-sum-exp of rows and heads to a call's rows.
    pub(super) fn set_log_sum_exp(
        &mut self,
        stream: &Stream,
        rows: &CallRows<'_>,
        log_sum_exp: &[f32],
    ) -> Result<(), CudaError> {
        let sums: &[u8] = bytemuck::cast_slice(log_sum_exp);
        if sums.len() > rows.log_sum_exp.bytes() {
            return Err(CudaError::Mismatch {
                what: "bytes of log-sum-exp",
                expected: rows.log_sum_exp.bytes(),
                found: sums.len(),
            });
        }
        let host = &mut self.host_log_sum_exp;
        if host.bytes().len() < sums.len() {
            *host = self.gpu.allocate_host(sums.len())?;
        }
        // The previous copy has run, because its masses were waited for.
        host.bytes_mut()[..sums.len()].copy_from_slice(sums);
        stream.to_device(rows.log_sum_exp.part(0..sums.len()), host, 0)
    }
}

impl<'p> PagedMass<'p> {
    /// A pass over pages that the residence [knows](super::residence::Residence::enter).
    pub(super) fn new(
        parts: MassParts<'p>,
        tiles: &[PagedTile<'_>],
        rows: CallRows<'p>,
        end: usize,
        options: &AttendOptions<'_>,
    ) -> Result<Self, CudaError> {
        let shape = parts.traffic.staging.shape;
        parts.memory.reserve(4 * heads_of(&shape).kv_heads * end)?;
        let reads: Vec<_> = tiles.iter().map(tile_reads).collect();
        parts.lists.reads.set(parts.traffic.compute, &reads, None)?;
        Ok(Self {
            rows,
            options: AttentionOptions {
                scale: options.scale,
                soft_cap: options.soft_cap,
                sinks: None,
            },
            end,
            done: 0,
            table: vec![0; heads_of(&shape).kv_heads * end.div_ceil(shape.page_tokens)],
            visitors: 0,
            last_page: 0,
            parts,
        })
    }

    /// Adds pages, by KV head, after the pages of earlier calls in the order of (page, KV head).
    ///
    /// # Errors
    /// A lost device, too little memory, a page without a version: all pages are then forgotten.
    pub fn add(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), CudaError> {
        let taken = self.take_in(shown);
        if taken.is_err() {
            self.parts.traffic.forget();
        }
        taken
    }

    fn take_in(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), CudaError> {
        let shape = self.parts.traffic.staging.shape;
        let pages = self.end.div_ceil(shape.page_tokens);
        let mut waiting = Vec::new();
        for shown in self.parts.traffic.in_order(shown)? {
            let page = shown.page;
            // Temporary places are freed only between pages, so each page needs a place for every head.
            let full = self.visitors + heads_of(&shape).kv_heads > self.parts.traffic.residence.visitors();
            if page > self.last_page && full {
                self.parts.traffic.transfer(&mut waiting)?;
                self.sum(page * shape.page_tokens)?;
            }
            self.last_page = page;
            let place = match self.parts.traffic.settle(&shown, &mut waiting)? {
                Some(place) => place,
                None => {
                    self.visitors += 1;
                    self.parts.traffic.visit(&shown, self.visitors - 1, &mut waiting)?
                }
            };
            let [keys, _] = self.parts.traffic.addresses(place);
            self.table[shown.kv_head * pages + page] = keys;
        }
        self.parts.traffic.transfer(&mut waiting)
    }

    /// Queues the masses of keys before `until`. Earlier pages are not read again, so temporary places are freed.
    fn sum(&mut self, until: usize) -> Result<(), CudaError> {
        let (shape, compute) = (self.parts.traffic.staging.shape, self.parts.traffic.compute);
        let keys = self.done..until;
        if keys.is_empty() {
            return Ok(());
        }
        let table = self.parts.lists.tables[0].set(compute, &self.table)?;
        let pages = Pages {
            keys: table,
            // Values are not read.
            values: table,
            kv_heads: heads_of(&shape).kv_heads,
            pages_per_head: self.end.div_ceil(shape.page_tokens),
            page_tokens: shape.page_tokens,
            head_dim: heads_of(&shape).key_width,
            key_format: shape.key_format,
            value_format: shape.value_format,
        };
        let mass = &self.parts.memory.mass;
        let mass = KeyMass {
            data: mass.region(4 * keys.start..mass.bytes()),
            stride: self.end,
            keys,
        };
        let call = AttentionCall {
            queries: self.rows.queries,
            pages,
            reads: &self.parts.lists.reads,
            options: self.options,
        };
        ops::column_mass(compute, &mass, self.rows.log_sum_exp, &call)?;
        (self.done, self.visitors) = (until, 0);
        Ok(())
    }

    /// The masses by KV head, `[keys]` each.
    ///
    /// # Errors
    /// A lost device.
    pub fn finish(mut self) -> Result<Vec<Vec<f32>>, CudaError> {
        self.sum(self.end)?;
        let (compute, end) = (self.parts.traffic.compute, self.end);
        let bytes = 4 * heads_of(&self.parts.traffic.staging.shape).kv_heads * end;
        let memory = self.parts.memory;
        compute.from_device(&mut memory.host_mass, 0, memory.mass.region(0..bytes))?;
        compute.synchronize()?;
        let masses: &[f32] = bytemuck::cast_slice(&memory.host_mass.bytes()[..bytes]);
        Ok(masses.chunks_exact(end.max(1)).map(<[f32]>::to_vec).collect())
    }
}
