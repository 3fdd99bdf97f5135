//! Makes room for new planes: the oldest move to farther tiers.

use std::sync::Arc;

use super::order::SizedKind;
use super::page::{PageCounts, PageId, PlaneKind, PlanePlace};
use super::planes::{PlaneStore, RamPlanes};
use super::store::PageStore;
use crate::KvError;

impl PageStore {
    /// True if the tiers have room for this many pages of each size.
    pub(crate) fn fits(&self, pages: PageCounts) -> bool {
        let of_size = self.planes.iter().zip(pages);
        let on_disk =
            of_size.flat_map(|(both, pages)| both.iter().map(move |planes| (planes, planes.on_disk_of(pages))));
        let on_disk: Vec<(&PlaneStore, usize)> = on_disk.filter(|(_, count)| *count > 0).collect();
        let bytes = on_disk
            .iter()
            .map(|(planes, count)| *count as u128 * planes.plane_bytes as u128);
        on_disk.iter().all(|(planes, _)| planes.disk.is_some())
            && bytes.sum::<u128>() <= u128::from(self.disk_budget_bytes)
    }

    /// True if the tiers have room for this many additional pages of a size.
    pub(crate) fn fits_more(&self, size: usize, pages: usize) -> bool {
        let mut counts = self.counts();
        counts[size] = counts[size].saturating_add(pages);
        self.fits(counts)
    }

    /// Makes room for this many more planes of keys and of values of a size, or returns the reason why not. Planes
    /// moved before the failure stay in the farther tier.
    pub(crate) fn make_room(&mut self, size: usize, planes: [usize; 2]) -> Result<(), KvError> {
        let room = PlaneKind::BOTH
            .into_iter()
            .try_for_each(|kind| self.make_room_for((size, kind), planes[kind as usize]));
        room.inspect_err(|_| self.planes.iter_mut().flatten().for_each(|planes| planes.near.trim()))
    }

    fn make_room_for(&mut self, kind: SizedKind, count: usize) -> Result<(), KvError> {
        loop {
            let planes = &mut self.planes[kind.0][kind.1 as usize];
            let used = planes.near.used_slots();
            let is_free = planes.near_slots.saturating_sub(used) >= count;
            if count == 0 || is_free && planes.near.reserve(count, planes.near_slots)? {
                return Ok(());
            }
            let oldest = self.order.as_ref().and_then(|order| order.oldest_near(kind));
            let page = oldest.ok_or_else(|| self.too_little(kind, used + count))?;
            self.send_away(kind.1, page)?;
        }
    }

    /// Moves a near plane one tier farther.
    fn send_away(&mut self, kind: PlaneKind, page: PageId) -> Result<(), KvError> {
        if self.planes(page, kind).ram.is_some() {
            self.send_to_ram(kind, page)
        } else {
            self.send_to_disk(kind, page)
        }
    }

    /// Moves a near plane to the separate RAM tier. If that is full, its oldest planes move to the disk.
    fn send_to_ram(&mut self, kind: PlaneKind, page: PageId) -> Result<(), KvError> {
        loop {
            let (planes, sized) = (self.planes(page, kind), (self.size(page), kind));
            let (PlanePlace::Near(slot), Some(RamPlanes { arena, slots })) = (self.place(page, kind), &planes.ram)
            else {
                return Ok(());
            };
            let (arena, slots) = (Arc::clone(arena), *slots);
            let mut arena = arena.write().expect("no thread panics while it holds the planes");
            let used = arena.used_slots();
            if used < slots && arena.reserve(1, slots)? {
                let target = arena.take();
                arena.bytes_mut(target).copy_from_slice(planes.near.bytes(slot));
                self.move_plane(page, kind, PlanePlace::Ram(target));
                return Ok(());
            }
            drop(arena);
            let oldest = self.order.as_ref().and_then(|order| order.oldest_in_ram(sized));
            let oldest = oldest.filter(|_| planes.disk.is_some());
            let oldest = oldest.ok_or_else(|| self.too_little(sized, used + 1))?;
            self.send_to_disk(kind, oldest)?;
        }
    }

    /// Moves a plane to the disk, if it is not there already.
    pub(super) fn send_to_disk(&mut self, kind: PlaneKind, page: PageId) -> Result<(), KvError> {
        let place = self.place(page, kind);
        let planes = self.planes(page, kind);
        let (Some(order), Some(disk)) = (&self.order, &planes.disk) else {
            return Err(self.too_little((self.size(page), kind), planes.near.used_slots() + 1));
        };
        let (layer, _) = self.shape.place_of(order.table(page));
        let file = self
            .shape
            .layers_of_size(self.size(page))
            .take_while(|of_size| *of_size < layer)
            .count();
        let number = match place {
            PlanePlace::Near(slot) => disk.write(file, planes.near.bytes(slot))?,
            PlanePlace::Ram(slot) => {
                let arena = &planes.ram.as_ref().expect("planes lie in tiers that there are").arena;
                let arena = arena.read().expect("no thread panics while it holds the planes");
                disk.write(file, arena.bytes(slot))?
            }
            PlanePlace::Disk(_) => return Ok(()),
        };
        self.move_plane(page, kind, PlanePlace::Disk(number));
        Ok(())
    }

    /// Moves the planes of a page to the farthest tier with room. Returns the bytes that left the nearest tier.
    ///
    /// # Errors
    /// [`KvError::Disk`] and [`KvError::Memory`]; each plane is in its old tier or its new one.
    pub(crate) fn send_far(&mut self, page: PageId) -> Result<u64, KvError> {
        let mut bytes = 0;
        for kind in PlaneKind::BOTH {
            if self.planes(page, kind).plane_bytes == 0 {
                continue;
            }
            let was_near = self.place(page, kind).is_near();
            let sent = match self.send_to_disk(kind, page) {
                Err(KvError::DiskBudget { .. } | KvError::NearBudget { .. }) => self.send_to_free_ram(kind, page),
                sent => sent,
            };
            sent?;
            if was_near && !self.place(page, kind).is_near() {
                bytes += self.planes(page, kind).plane_bytes as u64;
            }
        }
        Ok(bytes)
    }

    /// Moves a near plane to the separate RAM tier if that has room.
    fn send_to_free_ram(&mut self, kind: PlaneKind, page: PageId) -> Result<(), KvError> {
        let Some(RamPlanes { arena, slots }) = &self.planes(page, kind).ram else {
            return Ok(());
        };
        let used = arena
            .read()
            .expect("no thread panics while it holds the planes")
            .used_slots();
        if used < *slots {
            self.send_to_ram(kind, page)
        } else {
            Ok(())
        }
    }

    fn too_little(&self, (size, kind): SizedKind, planes: usize) -> KvError {
        let store = &self.planes[size][kind as usize];
        let near_bytes = (store.near_slots as u64).saturating_mul(store.plane_bytes as u64);
        KvError::NearBudget {
            what: store.what,
            needed_bytes: planes as u64 * store.plane_bytes as u64,
            near_bytes: near_bytes.min(self.near_budget_bytes),
            sequences: self.sequences,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use riffle_attention::Format;

    use super::*;
    use crate::disk::PlaneFiles;
    use crate::{CacheShape, DiskTier, KvCache, KvTiers, LayerShape, LayerShapes, Outlook, PagePool};

    const SHAPE: CacheShape = CacheShape {
        layers: LayerShapes::alike(1, LayerShape::new(2, 16)),
        page_tokens: 16,
        key_format: Format::F32,
        value_format: Format::F32,
    };

    fn append(cache: &mut KvCache, tokens: usize) -> Result<(), KvError> {
        let elements: Vec<f32> = (0..tokens * 32).map(|at| (at + cache.tokens(0)) as f32).collect();
        cache.append(0, &elements, &elements)
    }

    /// Replaces the pool's files; none may hold a plane.
    fn change_disk(pool: &PagePool, files: impl Fn(usize) -> PlaneFiles) {
        for planes in pool.0.write().planes.iter_mut().flatten() {
            planes.disk = Some(files(planes.plane_bytes));
        }
    }

    #[test]
    fn a_full_disk_leaves_every_sequence_and_every_count_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let mut tiers = KvTiers {
            disk: Some(DiskTier {
                folder: folder.path().to_owned(),
                budget_bytes: None,
            }),
            slots: 1,
            outlook: Outlook {
                context_tokens: 1000,
                append_tokens: 16,
                ..Outlook::default()
            },
            ..KvTiers::memory(None)
        };
        tiers.ram_budget_bytes = Some(tiers.least_near_bytes(&SHAPE) + 8 * SHAPE.page_bytes(0));
        let pool = PagePool::new(SHAPE, tiers).unwrap();
        change_disk(&pool, |bytes| PlaneFiles::on_full_disk(folder.path(), bytes).unwrap());
        let mut book = pool.cache();
        let full = loop {
            if let Err(error) = append(&mut book, 16) {
                break error;
            }
        };
        assert!(matches!(full, KvError::Disk { .. }), "{full}");
        let mut fork = book.fork();
        let (tokens, pages) = (book.tokens(0), pool.pages());
        let before = book.read_keys(0, 0, tokens).unwrap();
        assert!(append(&mut fork, 40).is_err());
        assert!(book.park().is_ok(), "nobody else's pages are sent");
        drop(fork);
        assert!(book.park().is_err());
        assert!(append(&mut book, 40).is_err());
        assert_eq!((book.tokens(0), pool.pages()), (tokens, pages));
        assert!(book.read_keys(0, 0, tokens).unwrap() == before && book.is_near(0));

        let space = crate::ledger::Ledger::new(None);
        change_disk(&pool, |bytes| {
            PlaneFiles::create(folder.path(), 1, bytes, &space).unwrap()
        });
        append(&mut book, 40).unwrap();
        assert!(book.read_keys(0, 0, tokens).unwrap() == before && !book.is_near(0));
        drop(book);
        assert_eq!((pool.pages(), pool.near_bytes(), space.used_bytes()), (0, 0, 0));
    }
}
