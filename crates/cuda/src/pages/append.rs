//! New tokens go from where the decoder left them into pages on the device, and to main memory as pages keep them there.

use std::ops::Range;

use riffle_attention::{Format, LANES, PageView, Plane};

use super::list::DeviceList;
use super::pool::{PagePool, Place};
use crate::ops::{self, AppendTargets, NewTokens};
use crate::{CudaError, DeviceBuffer, DeviceRows, Gpu, PinnedBuffer};

/// Memory of new tokens on their way to main memory.
pub(super) struct AppendMemory {
    targets: DeviceList,
    stripes: DeviceBuffer,
    host: PinnedBuffer,
}

impl AppendMemory {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self {
            targets: DeviceList::new(gpu)?,
            stripes: gpu.allocate(0)?,
            host: gpu.allocate_host(0)?,
        })
    }
}

impl PagePool {
    /// Appends tokens `tokens` of a batch to a layer whose KV heads hold `held` tokens: to pages that lie here with all
    /// tokens before them, and to pages that they begin and that find a place. Returns them by KV head as main memory keeps them,
    /// as [`riffle_kv::KvCache::append_encoded`] takes them. `rotated` says whether keys and values are rotated on the way.
    ///
    /// # Errors
    /// A lost device, too little memory: the pool has forgotten every page then.
    pub fn append(
        &mut self,
        layer: usize,
        rows: &DeviceRows,
        tokens: Range<usize>,
        held: &[usize],
        rotated: [bool; 2],
    ) -> Result<Vec<PageView<'_>>, CudaError> {
        let stripes = held.iter().map(|held| (held % LANES + tokens.len()).div_ceil(LANES));
        let stripes = stripes.max().unwrap_or(0);
        if let Err(error) = self.append_stripes(layer, rows, tokens.clone(), held, rotated, stripes) {
            self.clear();
            return Err(error);
        }
        let shape = &self.options.shape;
        let plane_bytes = |format: Format| format.plane_bytes(LANES * stripes, shape.head_dim);
        let (key_bytes, value_bytes) = (plane_bytes(shape.key_format), plane_bytes(shape.value_format));
        let bytes = self.append.host.bytes();
        let (keys, values) = bytes.split_at(shape.kv_heads * key_bytes);
        let of_head = |(kv_head, held): (usize, &usize)| PageView {
            start: held / LANES * LANES,
            tokens: held % LANES + tokens.len(),
            keys: plane(shape.key_format, &keys[kv_head * key_bytes..][..key_bytes]),
            values: plane(shape.value_format, &values[kv_head * value_bytes..][..value_bytes]),
        };
        Ok(held.iter().enumerate().map(of_head).collect())
    }

    fn append_stripes(
        &mut self,
        layer: usize,
        rows: &DeviceRows,
        tokens: Range<usize>,
        held: &[usize],
        rotated: [bool; 2],
        stripes: usize,
    ) -> Result<(), CudaError> {
        let (shape, added) = (self.options.shape, tokens.len());
        let pages_of = |held: &usize| held / shape.page_tokens..(held + added).div_ceil(shape.page_tokens);
        let pages = held.iter().map(|held| pages_of(held).len()).max().unwrap_or(0);
        let width = 1 + 2 * pages;
        let mut list = vec![0u64; held.len() * width];
        for ((kv_head, held), target) in held.iter().enumerate().zip(list.chunks_exact_mut(width)) {
            target[0] = *held as u64;
            for (number, page) in pages_of(held).enumerate() {
                let start = page * shape.page_tokens;
                let (before, end) = (held.saturating_sub(start), held + added - start);
                let Some(slot) = self.slot_behind(layer, kv_head, page, before)? else {
                    continue;
                };
                let address = self.store.at(Place::Slot(slot)).address();
                (target[1 + number], target[1 + pages + number]) = (address, address + self.layout.values_at as u64);
                self.residence.extend(layer, kv_head, page, end.min(shape.page_tokens));
            }
        }
        let [keys, values] = rows.keys_and_values(tokens);
        let new = NewTokens {
            keys,
            values,
            formats: [shape.key_format, shape.value_format],
            rotated,
        };
        let (bytes, memory) = (new.stripe_bytes(stripes), &mut self.append);
        if memory.stripes.bytes() < bytes {
            memory.host = self.gpu.allocate_host(bytes)?;
            memory.stripes = self.gpu.allocate(bytes)?;
        }
        let targets = AppendTargets {
            list: memory.targets.set(&self.compute, &list)?,
            pages,
            page_tokens: shape.page_tokens,
            stripes,
        };
        let to = memory.stripes.region(0..bytes);
        ops::append(&self.compute, to, &targets, &new)?;
        self.compute.from_device(&mut memory.host, 0, to)?;
        self.compute.synchronize()
    }

    /// The slot of a page that holds its first `before` tokens here and no more, where there is or can be one.
    fn slot_behind(
        &mut self,
        layer: usize,
        kv_head: usize,
        page: usize,
        before: usize,
    ) -> Result<Option<usize>, CudaError> {
        if let Some(resident) = self.residence.find(layer, kv_head, page) {
            return Ok((resident.tokens == before).then_some(resident.slot));
        }
        if before > 0 {
            return Ok(None);
        }
        let slot = self.residence.place(layer, kv_head, page, |other, _, _| other == layer);
        if let Some(slot) = slot {
            self.store.make(&self.gpu, slot)?;
        }
        Ok(slot)
    }
}

/// Bytes of device memory that appending up to `added` tokens takes.
pub(super) fn append_bytes(added: usize, shape: &riffle_kv::CacheShape) -> u64 {
    let tokens = added.next_multiple_of(LANES) + LANES;
    let plane = |format: Format| format.plane_bytes(tokens, shape.head_dim);
    (shape.kv_heads * (plane(shape.key_format) + plane(shape.value_format))) as u64
}

fn plane(format: Format, bytes: &[u8]) -> Plane<'_> {
    match format {
        Format::F32 => Plane::F32(bytemuck::cast_slice(bytes)),
        Format::F16 => Plane::F16(bytemuck::cast_slice(bytes)),
        Format::Bf16 => Plane::Bf16(bytemuck::cast_slice(bytes)),
        Format::Q8_0 => Plane::Q8_0(bytes),
        Format::Q4_0 => Plane::Q4_0(bytes),
    }
}
