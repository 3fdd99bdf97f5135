//! Plans which pages of a layer the rows of one or more sequences read, and in which order.
//!
//! A row reads the pages of a KV head in ascending order, independent of other rows. Far pages are loaded in the order
//! of page numbers. This order is the same for all sequences, so a shared page is loaded once.

use riffle_attention::{PageView, Plane, Span};

use super::loader::LoadPlane;
use super::ring::{Planes, Ring};
use crate::pool::{PageId, PlaneKind};
use crate::reader::{SequencePages, plane_id};
use crate::tiers::SlotLayout;

/// All pages.
pub(super) const ALL: Span = Span {
    start: 0,
    end: usize::MAX,
};

/// The pages that all rows read.
pub(super) struct Plan<'a> {
    layer: usize,
    reads: Vec<PlannedRead<'a>>,
    /// The pages to load, in order.
    pub(super) far: Vec<FarPage<'a>>,
}

/// The pages that some rows of a sequence read, in order.
struct PlannedRead<'a> {
    pages: SequencePages<'a>,
    items: Vec<Item>,
    /// Number of items passed so far.
    shown: usize,
}

/// A page to read.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Item {
    turn: Turn,
    number: usize,
    /// Planes to load.
    far: Planes,
}

/// When a page is read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    row: usize,
    kv_head: usize,
    id: PageId,
}

/// A page that is not near, as named by one of the sequences that read it.
pub(super) struct FarPage<'a> {
    turn: Turn,
    pub(super) planes: Planes,
    pages: SequencePages<'a>,
    table: usize,
    number: usize,
}

impl<'a> Plan<'a> {
    /// `wanted` names the pages of each KV head, as spans of page numbers; `None` means all.
    pub(super) fn new<'w>(
        layer: usize,
        reads: impl Iterator<Item = (SequencePages<'a>, Option<&'w [Vec<Span>]>)>,
    ) -> Self {
        let reads = reads.map(|(pages, wanted)| PlannedRead {
            pages,
            items: items(pages, layer, wanted),
            shown: 0,
        });
        let reads: Vec<PlannedRead<'a>> = reads.collect();
        let far = reads.iter().flat_map(|read| {
            let items = read.items.iter().filter(|item| item.far.any());
            items.map(|item| FarPage {
                turn: item.turn,
                planes: item.far,
                pages: read.pages,
                table: read.pages.shape().tables_of(layer).start + item.turn.kv_head,
                number: item.number,
            })
        });
        let mut far: Vec<FarPage<'a>> = far.collect();
        far.sort_unstable_by_key(|page| page.turn);
        far.dedup_by_key(|page| page.turn);
        Self { layer, reads, far }
    }

    /// True if a read has pages to load.
    pub(super) fn is_far(&self, read: usize) -> bool {
        self.reads[read].items.iter().any(|item| item.far.any())
    }

    /// For each read and KV head, the next pages: those after the pages passed before, and before far page number
    /// `end`. `ring` holds the far pages among them.
    pub(super) fn next_views<'r>(&mut self, end: usize, ring: Option<&'r Ring>) -> Vec<Vec<Vec<PageView<'r>>>>
    where
        'a: 'r,
    {
        let end = self.far.get(end).map(|page| page.turn);
        let views = self.reads.iter_mut().map(|read| {
            let rest = &read.items[read.shown..];
            let is_later = |item: &Item| item.far.any() && end.is_some_and(|end| item.turn >= end);
            let count = rest.iter().position(is_later).unwrap_or(rest.len());
            read.shown += count;
            views(read.pages, self.layer, &rest[..count], ring)
        });
        views.collect()
    }
}

impl FarPage<'_> {
    pub(super) fn id(&self) -> PageId {
        self.turn.id
    }

    /// The sources of the page's planes.
    pub(super) fn load(&self, slots: SlotLayout) -> [Option<LoadPlane>; 2] {
        let SequencePages { store, .. } = self.pages;
        PlaneKind::BOTH.map(|kind| {
            let planes = store.planes(self.turn.id, kind);
            Some(LoadPlane {
                id: plane_id(self.pages.shape(), kind, self.table, self.number),
                source: store.source(self.turn.id, kind)?,
                at: match kind {
                    PlaneKind::Keys => 0,
                    PlaneKind::Values => slots.values_at,
                },
                bytes: planes.plane_bytes,
            })
        })
    }
}

/// The wanted pages that exist, in reading order.
fn items(pages: SequencePages<'_>, layer: usize, wanted: Option<&[Vec<Span>]>) -> Vec<Item> {
    let mut items = Vec::new();
    for (kv_head, table) in pages.shape().tables_of(layer).enumerate() {
        let ids = pages.page_ids(table);
        let spans = wanted.map_or(&[ALL][..], |wanted| &wanted[kv_head]);
        for span in spans {
            let numbers = span.start.min(ids.len())..span.end.min(ids.len());
            items.extend(numbers.map(|number| Item {
                turn: Turn {
                    row: pages.tables[table].row(number),
                    kv_head,
                    id: ids[number],
                },
                number,
                far: far_planes(pages, ids[number]),
            }));
        }
    }
    items.sort_unstable_by_key(|item| item.turn);
    items.dedup();
    items
}

fn far_planes(pages: SequencePages<'_>, page: PageId) -> Planes {
    let is_far = |kind| !pages.store.place(page, kind).is_near();
    Planes {
        keys: is_far(PlaneKind::Keys),
        values: is_far(PlaneKind::Values),
    }
}

/// Pages of a layer that are near or in the ring, by KV head.
fn views<'r>(pages: SequencePages<'r>, layer: usize, items: &[Item], ring: Option<&'r Ring>) -> Vec<Vec<PageView<'r>>> {
    let shape = pages.shape();
    let (tables, size) = (shape.tables_of(layer), shape.size_of(layer));
    let bytes = PlaneKind::BOTH.map(|kind| shape.plane_bytes(size, kind) as usize);
    let mut views: Vec<Vec<PageView<'r>>> = vec![Vec::new(); tables.len()];
    for item in items {
        let id = item.turn.id;
        let slot: &'r [u8] = ring.filter(|_| item.far.any()).map_or(&[], |ring| ring.bytes(id));
        let near = |kind| pages.store.near_plane(id, kind);
        let keys = near(PlaneKind::Keys).unwrap_or_else(|| Plane::from_bytes(shape.key_format, &slot[..bytes[0]]));
        let values = near(PlaneKind::Values).unwrap_or_else(|| {
            let values = &slot[SlotLayout::new(shape).values_at..];
            Plane::from_bytes(shape.value_format, &values[..bytes[1]])
        });
        let table = tables.start + item.turn.kv_head;
        views[item.turn.kv_head].push(pages.page_view((layer, table), item.number, keys, values));
    }
    views
}
