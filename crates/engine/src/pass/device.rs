//! Attention on a device: the cache lies in main memory whole, the device keeps the pages it has room for.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use riffle_attention::{AttendOptions, PageView, Partial, Span};
use riffle_device::{
    AppendedTokens, BatchRows, DeviceQueue, DeviceRows, LayerPages, PageRoom, PagedTile, QueueTimer, RoomOptions,
    ScannedHead, SequenceId, SummaryKind, TransferCount,
};
use riffle_kv::{KvCache, PageVersion};
use riffle_policy::{Estimate, Estimated, PolicySet, SelectContext};

use crate::pass::chunk::Chosen;
use crate::pass::compute::Compute;
use crate::pass::reading::{cut, named, observed, tell, wanted_by, wanted_pages};
use crate::pass::rotation::Rotation;
use crate::{Engine, EngineError};

/// The room on an engine's device that all its sequences share, while there are any.
#[derive(Default)]
pub(crate) struct SharedRoom(Mutex<Weak<Room>>);

type Room = Mutex<Box<dyn PageRoom>>;

/// One sequence in the room on the device, whose pages leave it when this is dropped.
pub(crate) struct DevicePages {
    room: Arc<Room>,
    sequence: SequenceId,
    queue: Arc<dyn DeviceQueue>,
    /// Around the latest call whose result stays on the device, until its time is [taken](Self::attended_ms).
    call: Option<Box<dyn QueueTimer>>,
}

impl SharedRoom {
    /// The engine's room; the first who asks makes it.
    fn open(&self, engine: &Engine, queue: &Arc<dyn DeviceQueue>) -> Result<Arc<Room>, EngineError> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = shared.upgrade() {
            return Ok(room);
        }
        let Some(room) = engine.resolved().room else {
            unreachable!("the engine computes on a device")
        };
        let room = Arc::new(Mutex::new(Arc::clone(queue).room(room)?));
        *shared = Arc::downgrade(&room);
        Ok(room)
    }
}

impl DevicePages {
    /// A new sequence on the engine's device, if it computes on one.
    pub(crate) fn new(engine: &Engine) -> Result<Option<Self>, EngineError> {
        let Compute::Device(device) = engine.compute() else {
            return Ok(None);
        };
        let room = engine.device_room().open(engine, &device.queue)?;
        let sequence = lock(&room).begin_sequence();
        Ok(Some(Self::of(&room, sequence, &device.queue)))
    }

    /// A sequence in a room of its own.
    pub(crate) fn alone(queue: &Arc<dyn DeviceQueue>, options: RoomOptions) -> Result<Self, EngineError> {
        let room = Arc::new(Mutex::new(Arc::clone(queue).room(options)?));
        let sequence = lock(&room).begin_sequence();
        Ok(Self::of(&room, sequence, queue))
    }

    /// Another sequence in the same room, none of whose pages lie there.
    pub(crate) fn beside(&self) -> Self {
        let sequence = lock(&self.room).begin_sequence();
        Self::of(&self.room, sequence, &self.queue)
    }

    /// Another sequence that goes on from where this one is: both hold what lies there.
    pub(crate) fn fork(&mut self) -> Self {
        let sequence = lock(&self.room).fork(self.sequence);
        Self::of(&self.room, sequence, &self.queue)
    }

    fn of(room: &Arc<Room>, sequence: SequenceId, queue: &Arc<dyn DeviceQueue>) -> Self {
        Self {
            room: Arc::clone(room),
            sequence,
            queue: Arc::clone(queue),
            call: None,
        }
    }

    /// What has travelled between main memory and the device for all sequences of the room.
    pub(crate) fn transferred(&self) -> TransferCount {
        lock(&self.room).transferred()
    }

    /// Milliseconds on the device of a call whose result stayed there, when it has run; 0 without one since this was asked
    /// last.
    pub(crate) fn attended_ms(&mut self) -> Result<f64, EngineError> {
        match self.call.take() {
            Some(timer) => Ok(timer.elapsed_ms()?),
            None => Ok(0.0),
        }
    }

    /// Forgets what lies behind the first `tokens` tokens.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        lock(&self.room).truncate(self.sequence, tokens);
    }

    /// Forgets what lies behind the first `tokens` tokens of a (layer, KV head).
    pub(crate) fn truncate_head(&mut self, layer: usize, kv_head: usize, tokens: usize) {
        lock(&self.room).truncate_head(self.sequence, layer, kv_head, tokens);
    }

    /// Bytes of the sequence's pages that lie on the device, those that it shares included.
    pub(crate) fn resident_bytes(&self) -> u64 {
        lock(&self.room).resident_bytes_of(self.sequence)
    }

    fn layer<'a>(&self, layer: usize, versions: &'a [Vec<PageVersion>]) -> LayerPages<'a> {
        LayerPages {
            sequence: self.sequence,
            layer,
            versions,
        }
    }
}

impl Drop for DevicePages {
    fn drop(&mut self) {
        lock(&self.room).end_sequence(self.sequence);
    }
}

/// After a panic within nobody knows what lies there.
fn lock(room: &Room) -> MutexGuard<'_, Box<dyn PageRoom>> {
    room.lock().unwrap_or_else(|poisoned| {
        let mut locked = poisoned.into_inner();
        locked.clear();
        room.clear_poison();
        locked
    })
}

/// Appends tokens of a batch on the device, and to the cache what has become of them there.
pub(crate) fn append(
    pages: &mut DevicePages,
    cache: &mut KvCache,
    layer: usize,
    rows: &dyn DeviceRows,
    tokens: Range<usize>,
    rotation: Rotation,
) -> Result<(), EngineError> {
    let new = AppendedTokens {
        sequence: pages.sequence,
        layer,
        rows,
        rotated: [rotation.keys, rotation.values],
    };
    let mut room = lock(&pages.room);
    cache.append_encoded(layer, tokens.len(), |heads| Ok(room.append(&new, tokens, heads)?))
}

/// A sequence on its device: its pages there, the cache that holds them all, and the rows that attend to them.
pub(crate) struct OnDevice<'a> {
    pub(crate) pages: &'a mut DevicePages,
    pub(crate) cache: &'a mut KvCache,
    pub(crate) rows: &'a dyn DeviceRows,
}

impl OnDevice<'_> {
    /// [`reading::attend`](crate::pass::reading::attend) on a device; `partials` that hold something are added to. Without partials the
    /// result stays in the rows on the device.
    pub(crate) fn attend(
        &mut self,
        chosen: &Chosen<'_>,
        options: &AttendOptions<'_>,
        partials: Option<&mut [Partial]>,
    ) -> Result<(), EngineError> {
        let Self { pages, cache, rows } = self;
        let Chosen { chunk, selections, .. } = chosen;
        let end = chunk.end();
        let wanted = wanted_pages(cache, chunk, || {
            let tiles = chunk.tiles.iter().zip(selections);
            tiles.map(|(tile, selection)| (tile.kv_head, tile.queries, selection))
        });
        let tiles = chunk.tiles.iter().zip(selections).map(|(tile, selection)| PagedTile {
            kv_head: tile.kv_head,
            first_row: tile.first_row,
            rows: tile.queries.rows,
            start: tile.queries.start,
            selection,
        });
        let tiles: Vec<PagedTile<'_>> = tiles.collect();
        let timer = match partials {
            Some(_) => None,
            None => Some(Arc::clone(&pages.queue).timer()?),
        };
        let versions = cache.page_versions(chunk.layer);
        let of = pages.layer(chunk.layer, &versions);
        let mut room = lock(&pages.room);
        let means = same_block(&chosen.device_means);
        if let Some(block) = means {
            let reads = |kv_head: usize| chosen.device_means[kv_head].is_some();
            extend_summaries(&mut **room, cache, SummaryKind::Means, of, block, reads)?;
        }
        let rows = BatchRows::new(*rows, chunk.batch_rows.clone());
        if let Some(timer) = &timer {
            timer.start()?;
        }
        let mut call = room.begin(of, &tiles, &rows, end, options)?;
        if means.is_some() {
            call.include_means();
        }
        cache.stream::<EngineError>(chunk.layer, wanted.as_deref(), Some(chosen.next), &mut |pages| {
            Ok(call.attend(&cut(pages, chunk))?)
        })?;
        call.finish()?;
        if let Some(timer) = &timer {
            timer.stop()?;
        }
        if let Some(partials) = partials {
            room.bring_partials(&tiles, &rows, partials)?;
        }
        drop(room);
        pages.call = timer;
        Ok(())
    }

    /// [`reading::observe`](crate::pass::reading::observe) where a device attended: the mass of keys of 16 bits on either side, as its
    /// attention weighs them. Without `partials` the log-sum-exp of what was read lies in the rows.
    pub(crate) fn observe(
        &mut self,
        policies: &mut PolicySet,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
        options: &AttendOptions<'_>,
    ) -> Result<(), EngineError> {
        let Self { pages, cache, rows } = self;
        let (chunk, selections) = (&chosen.chunk, chosen.phases());
        let mut heads = observed(policies, chunk, partials);
        if heads.is_empty() {
            return Ok(());
        }
        let wanted = wanted_by(cache, chunk, &heads, selections);
        let query_heads = chunk.group * cache.shape().kv_heads;
        // [rows, heads]
        let mut log_sum_exp = vec![0.0; chunk.tokens.len() * query_heads];
        let mut tiles = Vec::new();
        for head in &heads {
            for rows in &head.rows {
                let first_row = rows.queries.start - chunk.contexts[head.kv_head].chunk_start;
                for (row, sums) in rows.log_sum_exp.chunks_exact(chunk.group).enumerate() {
                    let at = (first_row + row) * query_heads + head.kv_head * chunk.group;
                    log_sum_exp[at..at + chunk.group].copy_from_slice(sums);
                }
                tiles.extend(named(selections, rows.place).map(|selection| PagedTile {
                    kv_head: head.kv_head,
                    first_row,
                    rows: rows.queries.rows,
                    start: rows.queries.start,
                    selection,
                }));
            }
        }
        let versions = cache.page_versions(chunk.layer);
        let of = pages.layer(chunk.layer, &versions);
        let (mut room, rows) = (lock(&pages.room), BatchRows::new(*rows, chunk.batch_rows.clone()));
        if partials.is_some() {
            room.set_log_sum_exp(&rows, &log_sum_exp)?;
        }
        let mut pass = room.begin_mass(of, &tiles, &rows, chunk.end(), options)?;
        cache.stream::<EngineError>(chunk.layer, wanted.as_deref(), None, &mut |pages| {
            Ok(pass.add(&cut(pages, chunk))?)
        })?;
        let masses = pass.finish()?;
        for head in &mut heads {
            let tokens = head.mass.len();
            head.mass.copy_from_slice(&masses[head.kv_head][..tokens]);
        }
        tell(policies, chunk, &heads);
        Ok(())
    }
}

/// Begins to bring the pages that the layer `next` is expected to read and that lie in main memory, up to the first that does not:
/// for the sequence whose call is the next one.
pub(crate) fn read_ahead(pages: &mut DevicePages, cache: &KvCache, next: usize) -> Result<(), EngineError> {
    let mut room = lock(&pages.room);
    let reader = cache.read();
    let versions = reader.page_versions(next);
    let of = pages.layer(next, &versions);
    let expected = room.expected(of).into_iter();
    let shown = expected.map_while(|(kv_head, page)| Some((kv_head, reader.near_page(next, kv_head, page)?)));
    let shown: Vec<(usize, PageView<'_>)> = shown.collect();
    Ok(room.read_ahead(of, &shown)?)
}

/// The keys of a layer as they lie in main memory.
pub(crate) struct ShownKeys<'a> {
    pub(crate) layer: usize,
    /// Up to the end of the chunk that looks at them, by KV head.
    pub(crate) pages: &'a [Vec<PageView<'a>>],
    /// Of all pages, by KV head.
    pub(crate) versions: &'a [Vec<PageVersion>],
}

/// What policies ask for of a layer, by KV head, computed where the keys lie; `None` where that cannot be, so that the policy
/// looks at keys in main memory. `queries` are those of the chunk.
pub(crate) fn estimate(
    pages: &mut DevicePages,
    keys: &ShownKeys<'_>,
    queries: &BatchRows<'_>,
    contexts: &[SelectContext<'_>],
    asked: &[Option<Estimate>],
) -> Result<Vec<Option<Estimated>>, EngineError> {
    let mut room = lock(&pages.room);
    let nothing = || asked.iter().map(|_| None).collect();
    let scans = |asked: &Option<Estimate>| matches!(asked, Some(Estimate::Blocks { .. } | Estimate::Lines { .. }));
    if !asked.iter().any(scans) {
        return Ok(nothing());
    }
    let Some(mut scan) = room.scan_keys(pages.layer(keys.layer, keys.versions), keys.pages, queries)? else {
        return Ok(nothing());
    };
    let of_head = |(context, asked): (&SelectContext<'_>, &Option<Estimate>)| {
        let head = ScannedHead {
            kv_head: context.kv_head,
            start: context.chunk_start,
            tokens: context.tokens,
            scale: context.scale,
        };
        Ok(match *asked {
            Some(Estimate::Blocks { stride, block }) => scan.blocks(&head, stride, block)?.map(Estimated::Blocks),
            Some(Estimate::Lines { queries }) => scan
                .lines(&head, queries)?
                .map(|[columns, distances]| Estimated::Lines { columns, distances }),
            Some(Estimate::Bounds { .. }) | None => None,
        })
    };
    contexts.iter().zip(asked).map(of_head).collect()
}

/// Whether the device keeps the means of a layer's blocks, of which each KV head reads some of so many tokens or none: where there is
/// room for those of `tokens` tokens, and KV heads agree.
pub(crate) fn keeps_means(pages: &mut DevicePages, blocks: &[Option<usize>], tokens: usize) -> bool {
    let room = lock(&pages.room);
    same_block(blocks).is_some_and(|block| room.have_summaries_room(SummaryKind::Means, block, tokens))
}

/// The tokens in the blocks of all KV heads that read any.
fn same_block(blocks: &[Option<usize>]) -> Option<usize> {
    let mut lengths = blocks.iter().flatten().copied();
    let first = lengths.next()?;
    lengths.all(|block| block == first).then_some(first)
}

/// Takes the keys of a layer that its bounds of blocks on the device lack into them; false where there is no room.
pub(crate) fn extend_bounds(
    pages: &mut DevicePages,
    cache: &mut KvCache,
    layer: usize,
    block: usize,
) -> Result<bool, EngineError> {
    let versions = cache.page_versions(layer);
    let of = pages.layer(layer, &versions);
    extend_summaries(&mut **lock(&pages.room), cache, SummaryKind::Bounds, of, block, |_| {
        true
    })
}

/// Takes the tokens that the summaries of some KV heads of a layer lack into them; false where there is no room.
fn extend_summaries(
    room: &mut dyn PageRoom,
    cache: &mut KvCache,
    kind: SummaryKind,
    of: LayerPages<'_>,
    block: usize,
    of_head: impl Fn(usize) -> bool,
) -> Result<bool, EngineError> {
    let layer = of.layer;
    let Some(known) = room.summaries_known(kind, of, block, cache.tokens(layer))? else {
        return Ok(false);
    };
    let page_tokens = cache.shape().page_tokens;
    let lacking = known.iter().enumerate().map(|(kv_head, known)| {
        let held = cache.head_tokens(layer, kv_head);
        match *known < held && of_head(kv_head) {
            true => vec![Span::new(known / page_tokens, held.div_ceil(page_tokens))],
            false => Vec::new(),
        }
    });
    let lacking: Vec<Vec<Span>> = lacking.collect();
    if lacking.iter().any(|pages| !pages.is_empty()) {
        cache.stream::<EngineError>(layer, Some(&lacking), None, &mut |shown| {
            Ok(room.extend_summaries(kind, of, shown)?)
        })?;
    }
    Ok(true)
}

/// The scores of the blocks of every KV head by their bounds, for all `queries` at once; `None` where there is no room for
/// bounds, so that the policy keeps its own.
pub(crate) fn bound_scores(
    pages: &mut DevicePages,
    cache: &mut KvCache,
    layer: usize,
    queries: &BatchRows<'_>,
    block: usize,
) -> Result<Option<Vec<Estimated>>, EngineError> {
    let versions = cache.page_versions(layer);
    let of = pages.layer(layer, &versions);
    let mut room = lock(&pages.room);
    if !extend_summaries(&mut **room, cache, SummaryKind::Bounds, of, block, |_| true)? {
        return Ok(None);
    }
    let heads = 0..cache.shape().kv_heads;
    let tokens: Vec<usize> = heads.map(|kv_head| cache.head_tokens(layer, kv_head)).collect();
    let scores = room.bound_scores(of, queries, &tokens)?;
    Ok(Some(scores.into_iter().map(Estimated::Bounds).collect()))
}
