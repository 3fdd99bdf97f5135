//! Appends the decoder's new tokens to pages on the device, and copies them to main memory in its page format.

use std::ops::Range;

use riffle_attention::{Format, LANES, PageView, Plane};
use riffle_device::AppendedTokens;
use riffle_kv::{CacheShape, HeadGrowth};

use super::heads_of;
use super::list::DeviceList;
use super::memory::{PageLayout, PagePlace};
use super::residence::Residence;
use crate::ops::{self, AppendTargets, NewTokens};
use crate::{CudaError, DeviceBuffer, DeviceRows, Gpu, PinnedBuffer, Stream};

/// Staging memory of new tokens for main memory.
pub(super) struct AppendMemory {
    gpu: Gpu,
    shape: CacheShape,
    targets: DeviceList,
    stripes: DeviceBuffer,
    host: PinnedBuffer,
}

/// Pages that take the new tokens of all KV heads.
struct Targets {
    /// For each KV head its number of tokens, then the targets of each page's keys, then of its values; 0 for pages
    /// that are not on the device.
    list: Vec<u64>,
    pages: usize,
    stripes: usize,
}

impl AppendMemory {
    pub(super) fn new(gpu: &Gpu, shape: &CacheShape) -> Result<Self, CudaError> {
        Ok(Self {
            gpu: gpu.clone(),
            shape: *shape,
            targets: DeviceList::new(gpu)?,
            stripes: gpu.allocate(0)?,
            host: gpu.allocate_host(0)?,
        })
    }

    /// Appends tokens `tokens` of a batch, as in [`DeviceRoom::append`](super::DeviceRoom::append).
    pub(super) fn append(
        &mut self,
        residence: &mut Residence,
        stream: &Stream,
        new: &AppendedTokens<'_>,
        tokens: Range<usize>,
        heads: &[HeadGrowth],
    ) -> Result<Vec<PageView<'_>>, CudaError> {
        let added = tokens.len();
        let targets = self.targets_of(residence, new, added, heads)?;
        let stripes = targets.stripes;
        self.encode(stream, new, tokens, &targets)?;
        let shape = &self.shape;
        let plane_bytes = |format: Format| format.plane_bytes(LANES * stripes, heads_of(shape).key_width);
        let (key_bytes, value_bytes) = (plane_bytes(shape.key_format), plane_bytes(shape.value_format));
        let (keys, values) = self.host.bytes().split_at(heads_of(shape).kv_heads * key_bytes);
        let of_head = |(kv_head, head): (usize, &HeadGrowth)| PageView {
            start: head.held / LANES * LANES,
            tokens: head.held % LANES + added,
            keys: Plane::from_bytes(shape.key_format, &keys[kv_head * key_bytes..][..key_bytes]),
            values: Plane::from_bytes(shape.value_format, &values[kv_head * value_bytes..][..value_bytes]),
        };
        Ok(heads.iter().enumerate().map(of_head).collect())
    }

    /// Target pages of `added` tokens on the device: pages with all earlier tokens, and new pages that get a slot.
    fn targets_of(
        &self,
        residence: &mut Residence,
        new: &AppendedTokens<'_>,
        added: usize,
        heads: &[HeadGrowth],
    ) -> Result<Targets, CudaError> {
        let page_tokens = self.shape.page_tokens;
        let values_at = PageLayout::new(&self.shape).values_at as u64;
        let pages = heads.iter().map(|head| head.pages.len()).max().unwrap_or(0);
        let width = 1 + 2 * pages;
        let mut list = vec![0u64; heads.len() * width];
        for ((kv_head, head), target) in heads.iter().enumerate().zip(list.chunks_exact_mut(width)) {
            let first = head.held / page_tokens;
            residence.enter_head(new.sequence, new.layer, kv_head, first, &head.pages);
            target[0] = head.held as u64;
            for (number, version) in head.pages.iter().enumerate() {
                let start = (first + number) * page_tokens;
                let (before, end) = (head.held.saturating_sub(start), head.held + added - start);
                let slot = match residence.find(*version) {
                    Some(held) => (held.tokens == before).then_some(held.slot),
                    None if before > 0 => None,
                    None => residence.place(new.sequence, new.layer, kv_head, first + number, *version)?,
                };
                let Some(slot) = slot else { continue };
                let address = residence.at(PagePlace::Slot(slot)).address();
                (target[1 + number], target[1 + pages + number]) = (address, address + values_at);
                residence.extend(*version, end.min(page_tokens));
            }
        }
        let stripes = heads.iter().map(|head| (head.held % LANES + added).div_ceil(LANES));
        Ok(Targets {
            list,
            pages,
            stripes: stripes.max().unwrap_or(0),
        })
    }

    /// Encodes tokens into pages on the device and into main memory, and waits for the result.
    fn encode(
        &mut self,
        stream: &Stream,
        new: &AppendedTokens<'_>,
        tokens: Range<usize>,
        targets: &Targets,
    ) -> Result<(), CudaError> {
        let [keys, values] = DeviceRows::downcast(new.rows)?.keys_and_values(tokens);
        let new = NewTokens {
            keys,
            values,
            formats: [self.shape.key_format, self.shape.value_format],
            rotated: new.rotated,
        };
        let bytes = new.stripe_bytes(targets.stripes);
        if self.stripes.bytes() < bytes {
            self.host = self.gpu.allocate_host(bytes)?;
            self.stripes = self.gpu.allocate(bytes)?;
        }
        let targets = AppendTargets {
            list: self.targets.set(stream, &targets.list)?,
            pages: targets.pages,
            page_tokens: self.shape.page_tokens,
            stripes: targets.stripes,
        };
        let to = self.stripes.region(0..bytes);
        ops::append(stream, to, &targets, &new)?;
        stream.from_device(&mut self.host, 0, to)?;
        stream.synchronize()
    }
}

/// Bytes of device memory for appending up to `added` tokens.
pub(super) fn append_bytes(added: usize, shape: &riffle_kv::CacheShape) -> u64 {
    let tokens = added.next_multiple_of(LANES) + LANES;
    let plane = |format: Format| format.plane_bytes(tokens, heads_of(shape).key_width);
    (heads_of(shape).kv_heads * (plane(shape.key_format) + plane(shape.value_format))) as u64
}
