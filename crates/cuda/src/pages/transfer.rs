//! Pages on their way from main memory to the device.

use riffle_attention::{Format, LANES, PageView, Plane};

use super::pool::{PagePool, Place};
use crate::CudaError;
use crate::ops::{PlaneKind, PlaneMove, arrange_planes};

/// Pages shown by KV head as (page, KV head, what it holds), in this order.
pub(super) fn in_order<'a>(shown: &[Vec<PageView<'a>>], page_tokens: usize) -> Vec<(usize, usize, PageView<'a>)> {
    let heads = shown.iter().enumerate();
    let pages = heads.flat_map(|(kv_head, pages)| {
        let pages = pages.iter();
        pages.map(move |page| (page.start / page_tokens, kv_head, *page))
    });
    let mut pages: Vec<_> = pages.collect();
    pages.sort_unstable_by_key(|(page, kv_head, _)| (*page, *kv_head));
    pages
}

/// Tokens that have to be brought to a page.
pub(super) struct Waiting<'a> {
    place: Place,
    first_token: usize,
    keys: &'a [u8],
    values: &'a [u8],
}

impl PagePool {
    /// The place that a page stays in, if it has one or one can be made; what it lacks there joins `waiting`.
    pub(super) fn settle<'a>(
        &mut self,
        layer: usize,
        page: usize,
        kv_head: usize,
        view: &PageView<'a>,
        waiting: &mut Vec<Waiting<'a>>,
    ) -> Result<Option<Place>, CudaError> {
        let (slot, has) = match self.residence.find(layer, kv_head, page) {
            Some(resident) => (resident.slot, resident.tokens),
            None => match self.residence.place(layer, kv_head, page, |other, _, _| other == layer) {
                Some(slot) => {
                    self.store.make(&self.gpu, slot)?;
                    (slot, 0)
                }
                None => return Ok(None),
            },
        };
        if has < view.tokens {
            self.residence.extend(layer, kv_head, page, view.tokens);
        }
        self.bring(Place::Slot(slot), has, view, waiting)?;
        Ok(Some(Place::Slot(slot)))
    }

    /// Lets what a page has beyond its first `has` tokens join `waiting`, and sends that off when there is enough of it.
    pub(super) fn bring<'a>(
        &mut self,
        place: Place,
        has: usize,
        view: &PageView<'a>,
        waiting: &mut Vec<Waiting<'a>>,
    ) -> Result<(), CudaError> {
        if has >= view.tokens {
            return Ok(());
        }
        let shape = &self.options.shape;
        let first_token = has / LANES * LANES;
        let until = view.tokens.next_multiple_of(LANES);
        let part = |plane: &Plane<'a>, format: Format| {
            let at = |tokens: usize| format.plane_bytes(tokens, shape.head_dim);
            &plane_bytes(plane)[at(first_token)..at(until)]
        };
        waiting.push(Waiting {
            place,
            first_token,
            keys: part(&view.keys, shape.key_format),
            values: part(&view.values, shape.value_format),
        });
        match waiting.len() == self.staging.half_pages {
            true => self.transfer(waiting),
            false => Ok(()),
        }
    }

    /// Copies what waits to the device and arranges it there. The copies run while kernels queued before read other
    /// pages.
    pub(super) fn transfer(&mut self, waiting: &mut Vec<Waiting<'_>>) -> Result<(), CudaError> {
        if waiting.is_empty() {
            return Ok(());
        }
        let pool = self;
        let (layout, shape, staging) = (pool.layout, pool.options.shape, &mut pool.staging);
        let half = staging.turn;
        staging.turn = (half + 1) % staging.arranged.len();
        if staging.arranged[half].1 {
            pool.copy.wait(&staging.arranged[half].0)?;
        }
        let (mut copies, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (number, page) in waiting.iter().enumerate() {
            let at = (half * staging.half_pages + number) * layout.page_bytes;
            let from = staging.memory.region(at..at + layout.page_bytes);
            let (from_keys, from_values) = (
                from.part(0..page.keys.len()),
                from.part(layout.values_at..layout.values_at + page.values.len()),
            );
            copies.push((from_keys, page.keys));
            copies.push((from_values, page.values));
        }
        pool.copy.upload_all(&copies)?;
        let (mut pages, mut bytes) = (0, 0);
        for (copies, page) in copies.chunks_exact(2).zip(waiting.iter()) {
            let to = pool.store.at(page.place);
            let first_token = page.first_token;
            keys.push(PlaneMove {
                to: to.part(0..layout.key_bytes),
                from: copies[0].0,
                first_token,
            });
            values.push(PlaneMove {
                to: to.part(layout.values_at..layout.values_at + layout.value_bytes),
                from: copies[1].0,
                first_token,
            });
            pages += 1;
            bytes += (page.keys.len() + page.values.len()) as u64;
        }
        pool.transferred.pages += pages;
        pool.transferred.bytes += bytes;
        let (head_dim, page_tokens) = (shape.head_dim, shape.page_tokens);
        let [key_moves, value_moves] = &mut pool.moves;
        let (key_format, value_format) = (shape.key_format, shape.value_format);
        let stream = &pool.compute;
        arrange_planes(
            stream,
            key_moves,
            PlaneKind::Keys,
            key_format,
            head_dim,
            page_tokens,
            &keys,
        )?;
        arrange_planes(
            stream,
            value_moves,
            PlaneKind::Values,
            value_format,
            head_dim,
            page_tokens,
            &values,
        )?;
        let arranged = &mut staging.arranged[half];
        stream.record(&arranged.0)?;
        arranged.1 = true;
        waiting.clear();
        Ok(())
    }
}

fn plane_bytes<'a>(plane: &Plane<'a>) -> &'a [u8] {
    match plane {
        Plane::F32(values) => bytemuck::cast_slice(values),
        Plane::F16(values) | Plane::Bf16(values) => bytemuck::cast_slice(values),
        Plane::Q8_0(bytes) | Plane::Q4_0(bytes) => bytes,
    }
}
