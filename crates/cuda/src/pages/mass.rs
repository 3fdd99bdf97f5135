//! The softmax mass that keys receive, over the pages of a layer wherever they lie.

use riffle_attention::{AttendOptions, PageView};

use super::call::CallRows;
use super::pool::{PagePool, PagedTile, Place, tile_reads};
use super::staging::PageKey;
use super::transfer::in_order;
use crate::ops::{self, AttentionOptions, Pages};
use crate::{CudaError, DeviceBuffer, Gpu, PinnedBuffer};

/// A pass over pages under way. A key's mass does not depend on the others', so neither does it on how pages come.
pub struct PagedMass<'p> {
    pool: &'p mut PagePool,
    layer: usize,
    rows: CallRows<'p>,
    options: AttentionOptions<'static>,
    /// Keys there are.
    end: usize,
    /// Keys that are done with, a whole number of pages.
    done: usize,
    // [kv_heads, pages]: addresses of keys
    table: Vec<u64>,
    visitors: usize,
    /// The page that came last.
    last_page: usize,
}

/// Memory of masses, as long as the longest so far.
pub(super) struct MassMemory {
    // f32 [kv_heads, keys]
    mass: DeviceBuffer,
    host_log_sum_exp: PinnedBuffer,
    host_mass: PinnedBuffer,
}

impl MassMemory {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self {
            mass: gpu.allocate(0)?,
            host_log_sum_exp: gpu.allocate_host(0)?,
            host_mass: gpu.allocate_host(0)?,
        })
    }

    fn reserve(&mut self, gpu: &Gpu, masses: usize) -> Result<(), CudaError> {
        if self.mass.bytes() < masses {
            // A little more, lest every token that is appended takes new memory.
            let masses = masses + masses / 8;
            self.host_mass = gpu.allocate_host(masses)?;
            self.mass = gpu.allocate(masses)?;
        }
        Ok(())
    }
}

/// Bytes of device memory that masses of `tokens` keys take.
pub(super) fn mass_bytes(kv_heads: usize, tokens: usize) -> u64 {
    let masses = 4 * kv_heads * tokens;
    (masses + masses / 8) as u64
}

impl PagePool {
    /// Puts the log-sum-exp of all that each row and head of a call read, `[rows, heads]`, in its rows: for calls whose partials
    /// were [brought](Self::bring_partials) and merged with others.
    ///
    /// # Errors
    /// A lost device, too little memory, more sums than rows and heads.
    pub fn set_log_sum_exp(&mut self, rows: &CallRows<'_>, log_sum_exp: &[f32]) -> Result<(), CudaError> {
        let sums: &[u8] = bytemuck::cast_slice(log_sum_exp);
        if sums.len() > rows.log_sum_exp.bytes() {
            return Err(CudaError::Mismatch {
                what: "bytes of log-sum-exp",
                expected: rows.log_sum_exp.bytes(),
                found: sums.len(),
            });
        }
        let host = &mut self.masses.host_log_sum_exp;
        if host.bytes().len() < sums.len() {
            *host = self.gpu.allocate_host(sums.len())?;
        }
        // The copy before this one has run: the masses under it were waited for.
        host.bytes_mut()[..sums.len()].copy_from_slice(sums);
        self.compute.to_device(rows.log_sum_exp.part(0..sums.len()), host, 0)
    }

    /// Begins to sum the mass that keys before `end` receive from tiles of a layer's rows, whose log-sum-exp lies with them. The
    /// pages come to the call in order.
    ///
    /// # Errors
    /// A lost device, too little memory.
    pub fn begin_mass<'p>(
        &'p mut self,
        layer: usize,
        tiles: &[PagedTile<'_>],
        rows: CallRows<'p>,
        end: usize,
        options: &AttendOptions<'_>,
    ) -> Result<PagedMass<'p>, CudaError> {
        let shape = self.options.shape;
        self.masses.reserve(&self.gpu, 4 * shape.kv_heads * end)?;
        let reads: Vec<_> = tiles.iter().map(tile_reads).collect();
        self.reads.set(&self.compute, &reads, None)?;
        Ok(PagedMass {
            layer,
            rows,
            options: AttentionOptions {
                scale: options.scale,
                soft_cap: options.soft_cap,
                sinks: None,
            },
            end,
            done: 0,
            table: vec![0; shape.kv_heads * end.div_ceil(shape.page_tokens)],
            visitors: 0,
            last_page: 0,
            pool: self,
        })
    }
}

impl PagedMass<'_> {
    /// Takes pages in, by KV head, after those of earlier calls in the order of (page, KV head).
    ///
    /// # Errors
    /// A lost device, too little memory: the pool has forgotten every page then.
    pub fn add(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), CudaError> {
        let taken = self.take_in(shown);
        if taken.is_err() {
            self.pool.clear();
        }
        taken
    }

    fn take_in(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), CudaError> {
        let page_tokens = self.pool.options.shape.page_tokens;
        let pages = self.end.div_ceil(page_tokens);
        let mut waiting = Vec::new();
        for (page, kv_head, view) in in_order(shown, page_tokens) {
            // A page of every head visits at a time: none leaves before all of them have been read.
            let full = self.visitors + self.pool.options.shape.kv_heads > self.pool.options.visitors();
            if page > self.last_page && full {
                self.pool.transfer(&mut waiting)?;
                self.sum(page * page_tokens)?;
            }
            self.last_page = page;
            let place = match self.pool.settle(self.layer, page, kv_head, &view, &mut waiting)? {
                Some(place) => place,
                None => {
                    let place = Place::Visitor(self.visitors);
                    self.visitors += 1;
                    let key = PageKey {
                        layer: self.layer,
                        page,
                        kv_head,
                    };
                    self.pool.bring(key, place, 0, &view, &mut waiting)?;
                    place
                }
            };
            self.table[kv_head * pages + page] = self.pool.store.at(place).address();
        }
        self.pool.transfer(&mut waiting)
    }

    /// Queues the masses of keys before `until`; no page before it is read again, so visitors leave.
    fn sum(&mut self, until: usize) -> Result<(), CudaError> {
        let (shape, pool) = (self.pool.options.shape, &mut *self.pool);
        let keys = self.done..until;
        if keys.is_empty() {
            return Ok(());
        }
        let table = pool.tables[0].set(&pool.compute, &self.table)?;
        let pages = Pages {
            keys: table,
            // Values are not read.
            values: table,
            kv_heads: shape.kv_heads,
            pages_per_head: self.end.div_ceil(shape.page_tokens),
            page_tokens: shape.page_tokens,
            head_dim: shape.head_dim,
            key_format: shape.key_format,
            value_format: shape.value_format,
        };
        let mass = pool.masses.mass.region(4 * keys.start..pool.masses.mass.bytes());
        let (sums, queries, options) = (self.rows.log_sum_exp, &self.rows.queries, &self.options);
        ops::column_mass(
            &pool.compute,
            mass,
            self.end,
            keys,
            sums,
            queries,
            &pages,
            &pool.reads,
            options,
        )?;
        (self.done, self.visitors) = (until, 0);
        Ok(())
    }

    /// The masses by KV head, `[keys]` each.
    ///
    /// # Errors
    /// A lost device.
    pub fn finish(mut self) -> Result<Vec<Vec<f32>>, CudaError> {
        self.sum(self.end)?;
        let (pool, end) = (self.pool, self.end);
        let bytes = 4 * pool.options.shape.kv_heads * end;
        let memory = &mut pool.masses;
        pool.compute
            .from_device(&mut memory.host_mass, 0, memory.mass.region(0..bytes))?;
        pool.compute.synchronize()?;
        let masses: &[f32] = bytemuck::cast_slice(&memory.host_mass.bytes()[..bytes]);
        Ok(masses.chunks_exact(end.max(1)).map(<[f32]>::to_vec).collect())
    }
}
