//! Attention on a device: main memory has the whole cache, and the device caches pages as far as it has room.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use riffle_attention::{PageView, Partial, Span};
use riffle_device::{
    AppendedTokens, BatchRows, DeviceQueue, DeviceRows, LayerPages, PageRoom, PagedTile, QueueTimer, RoomOptions,
    ScannedHead, SequenceId, SummaryKind, TransferCount,
};
use riffle_kv::{KvCache, PageVersion};
use riffle_policy::{Estimate, Estimated, PolicySet, SelectContext};

use crate::EngineError;
use crate::attention::{
    Chosen, Chunk, KeyEstimates, LayerRows, NewKeys, Reader, Rotation, cut, named, observed, observed_reads,
    pages_read, show_policies, tile_reads,
};

/// The device page cache of an engine, shared by all its sequences while there are any.
#[derive(Default)]
pub(crate) struct SharedRoom(Mutex<Weak<Room>>);

type Room = Mutex<Box<dyn PageRoom>>;

/// One sequence's pages in the device page cache; dropping it frees them.
pub(crate) struct DevicePages {
    room: Arc<Room>,
    sequence: SequenceId,
    queue: Arc<dyn DeviceQueue>,
    /// Timer of the latest call whose result stays on the device, until its time is [taken](Self::attended_ms).
    call: Option<Box<dyn QueueTimer>>,
}

impl DevicePages {
    /// Adds a sequence to the engine's shared page cache; the first one creates it under `options`.
    pub(crate) fn shared(
        shared: &SharedRoom,
        queue: &Arc<dyn DeviceQueue>,
        options: RoomOptions,
    ) -> Result<Self, EngineError> {
        let mut shared = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = match shared.upgrade() {
            Some(room) => room,
            None => Arc::new(Mutex::new(Arc::clone(queue).room(options)?)),
        };
        *shared = Arc::downgrade(&room);
        drop(shared);
        let sequence = lock(&room).begin_sequence();
        Ok(Self::in_room(&room, sequence, queue))
    }

    fn in_room(room: &Arc<Room>, sequence: SequenceId, queue: &Arc<dyn DeviceQueue>) -> Self {
        Self {
            room: Arc::clone(room),
            sequence,
            queue: Arc::clone(queue),
            call: None,
        }
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

/// After a panic, the contents are unknown.
fn lock(room: &Room) -> MutexGuard<'_, Box<dyn PageRoom>> {
    room.lock().unwrap_or_else(|poisoned| {
        let mut locked = poisoned.into_inner();
        locked.clear();
        room.clear_poison();
        locked
    })
}

impl Reader for DevicePages {
    fn beside(&self) -> Box<dyn Reader> {
        let sequence = lock(&self.room).begin_sequence();
        Box::new(Self::in_room(&self.room, sequence, &self.queue))
    }

    fn fork(&mut self) -> Box<dyn Reader> {
        let sequence = lock(&self.room).fork(self.sequence);
        Box::new(Self::in_room(&self.room, sequence, &self.queue))
    }

    fn append(&mut self, cache: &mut KvCache, input: &LayerRows<'_>, tokens: &Range<usize>) -> Result<(), EngineError> {
        let new = AppendedTokens {
            sequence: self.sequence,
            layer: input.cache_layer,
            rows: device_rows(input.new_keys),
            rotated: [input.step.rotation.keys, input.step.rotation.values],
        };
        let mut room = lock(&self.room);
        cache.append_encoded(input.cache_layer, tokens.len(), |heads| {
            Ok(room.append(&new, input.batch_rows(tokens), heads)?)
        })
    }

    fn attend(
        &mut self,
        cache: &mut KvCache,
        chosen: &Chosen<'_>,
        partials: &mut [Partial],
    ) -> Result<(), EngineError> {
        // Keys are on the device: scans that policies did in main memory are not reused.
        let Chosen { chunk, selections, .. } = chosen;
        let end = chunk.end();
        // Never requests all pages to shorten the list, because each page takes room on the device.
        let wanted = pages_read(cache, chunk, tile_reads(chunk, selections));
        let tiles = chunk.tiles.iter().zip(selections).map(|(tile, selection)| PagedTile {
            kv_head: tile.kv_head,
            first_row: tile.first_row,
            rows: tile.queries.rows,
            start: tile.queries.start,
            selection,
        });
        let tiles: Vec<PagedTile<'_>> = tiles.collect();
        let timer = chosen.stays_on_device.then(|| Arc::clone(&self.queue).timer());
        let timer = timer.transpose()?;
        let versions = cache.page_versions(chunk.layer);
        let of = self.layer(chunk.layer, &versions);
        let mut room = lock(&self.room);
        let means = same_block(&chosen.device_means);
        if let Some(block) = means {
            let reads = |kv_head: usize| chosen.device_means[kv_head].is_some();
            extend_summaries(&mut **room, cache, SummaryKind::Means, of, block, reads)?;
        }
        let rows = batch_rows(chunk);
        if let Some(timer) = &timer {
            timer.start()?;
        }
        let mut attend = room.begin(of, &tiles, &rows, end, &chunk.options)?;
        if means.is_some() {
            attend.include_means();
        }
        cache.stream::<EngineError>(chunk.layer, Some(&wanted), Some(chosen.next), &mut |pages| {
            Ok(attend.attend(&cut(pages, chunk))?)
        })?;
        attend.finish()?;
        match &timer {
            Some(timer) => timer.stop()?,
            None => room.bring_partials(&tiles, &rows, partials)?,
        }
        drop(room);
        self.call = timer;
        Ok(())
    }

    /// Computes the mass from 16-bit keys, as the device's attention does. Without `partials`, the rows on the device
    /// have the log-sum-exp.
    fn observe(
        &mut self,
        cache: &mut KvCache,
        policies: &mut PolicySet,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError> {
        let (chunk, selections) = (&chosen.chunk, chosen.phases());
        let mut heads = observed(policies, chunk, partials);
        if heads.is_empty() {
            return Ok(());
        }
        let wanted = pages_read(cache, chunk, observed_reads(&heads, selections));
        let (group, query_heads) = (chunk.heads.group, chunk.heads.queries());
        // [rows, heads]
        let mut log_sum_exp = vec![0.0; chunk.tokens.len() * query_heads];
        let mut tiles = Vec::new();
        for head in &heads {
            for rows in &head.rows {
                let first_row = rows.queries.start - chunk.contexts[head.kv_head].chunk_start;
                for (row, sums) in rows.log_sum_exp.chunks_exact(group).enumerate() {
                    let at = (first_row + row) * query_heads + head.kv_head * group;
                    log_sum_exp[at..at + group].copy_from_slice(sums);
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
        let of = self.layer(chunk.layer, &versions);
        let rows = batch_rows(chunk);
        let mut room = lock(&self.room);
        if partials.is_some() {
            room.set_log_sum_exp(&rows, &log_sum_exp)?;
        }
        let mut pass = room.begin_mass(of, &tiles, &rows, chunk.end(), &chunk.options)?;
        cache.stream::<EngineError>(chunk.layer, Some(&wanted), None, &mut |pages| {
            Ok(pass.add(&cut(pages, chunk))?)
        })?;
        let masses = pass.finish()?;
        for head in &mut heads {
            let tokens = head.mass.len();
            head.mass.copy_from_slice(&masses[head.kv_head][..tokens]);
        }
        show_policies(policies, chunk, &heads);
        Ok(())
    }

    fn complete(&mut self, chosen: &Chosen<'_>, rotation: Rotation) -> Result<(), EngineError> {
        if rotation.values {
            device_rows(chosen.chunk.new_keys).rotate_attended(chosen.chunk.batch_rows.clone())?;
        }
        Ok(())
    }

    /// Loads the pages that are in main memory, up to the first that is not.
    fn read_ahead(&mut self, cache: &KvCache, next: usize) -> Result<(), EngineError> {
        let mut room = lock(&self.room);
        let reader = cache.read();
        let versions = reader.page_versions(next);
        let of = self.layer(next, &versions);
        let expected = room.expected(of).into_iter();
        let shown = expected.map_while(|(kv_head, page)| Some((kv_head, reader.near_page(next, kv_head, page)?)));
        let shown: Vec<(usize, PageView<'_>)> = shown.collect();
        Ok(room.read_ahead(of, &shown)?)
    }

    fn truncate(&mut self, tokens: usize) {
        lock(&self.room).truncate(self.sequence, tokens);
    }

    fn truncate_head(&mut self, layer: usize, kv_head: usize, tokens: usize) {
        lock(&self.room).truncate_head(self.sequence, layer, kv_head, tokens);
    }

    fn may_keep_results(&self) -> bool {
        true
    }

    fn estimates(&mut self) -> Option<&mut dyn KeyEstimates> {
        Some(self)
    }

    fn attended_ms(&mut self) -> Result<f64, EngineError> {
        Ok(self.call.take().map_or(Ok(0.0), |timer| timer.elapsed_ms())?)
    }

    fn resident_bytes(&self) -> u64 {
        lock(&self.room).resident_bytes_of(self.sequence)
    }

    fn transferred(&self) -> TransferCount {
        lock(&self.room).transferred()
    }
}

impl KeyEstimates for DevicePages {
    fn bound_scores(
        &mut self,
        cache: &mut KvCache,
        chunk: &Chunk<'_>,
        block: usize,
    ) -> Result<Option<Vec<Estimated>>, EngineError> {
        let versions = cache.page_versions(chunk.layer);
        let of = self.layer(chunk.layer, &versions);
        let mut room = lock(&self.room);
        if !extend_summaries(&mut **room, cache, SummaryKind::Bounds, of, block, |_| true)? {
            return Ok(None);
        }
        let heads = 0..chunk.heads.kv_heads;
        let tokens: Vec<usize> = heads.map(|kv_head| cache.head_tokens(chunk.layer, kv_head)).collect();
        let queries = batch_rows(chunk);
        let scores = room.bound_scores(of, &queries, &tokens)?;
        Ok(Some(scores.into_iter().map(Estimated::Bounds).collect()))
    }

    fn extend_bounds(&mut self, cache: &mut KvCache, layer: usize, block: usize) -> Result<bool, EngineError> {
        let versions = cache.page_versions(layer);
        let of = self.layer(layer, &versions);
        let mut room = lock(&self.room);
        extend_summaries(&mut **room, cache, SummaryKind::Bounds, of, block, |_| true)
    }

    fn estimate(
        &mut self,
        keys: &ShownKeys<'_>,
        chunk: &Chunk<'_>,
        asked: &[Option<Estimate>],
    ) -> Result<Vec<Option<Estimated>>, EngineError> {
        let mut room = lock(&self.room);
        let nothing = || asked.iter().map(|_| None).collect();
        let scans = |asked: &Option<Estimate>| matches!(asked, Some(Estimate::Blocks { .. } | Estimate::Lines { .. }));
        if !asked.iter().any(scans) {
            return Ok(nothing());
        }
        let queries = batch_rows(chunk);
        let Some(mut scan) = room.scan_keys(self.layer(chunk.layer, keys.versions), keys.pages, &queries)? else {
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
        chunk.contexts.iter().zip(asked).map(of_head).collect()
    }

    fn keeps_means(&mut self, blocks: &[Option<usize>], tokens: usize) -> bool {
        let room = lock(&self.room);
        same_block(blocks).is_some_and(|block| room.have_summaries_room(SummaryKind::Means, block, tokens))
    }
}

/// The rows of a chunk on the attending device.
fn batch_rows<'a>(chunk: &Chunk<'a>) -> BatchRows<'a> {
    BatchRows::new(device_rows(chunk.new_keys), chunk.batch_rows.clone())
}

/// The rows of a batch on the attending device.
fn device_rows(new_keys: NewKeys<'_>) -> &dyn DeviceRows {
    match new_keys {
        NewKeys::Device(rows) => rows,
        NewKeys::Host { .. } => unreachable!("a sequence of a device gets rows there"),
    }
}

/// The keys of a layer in main memory.
pub(crate) struct ShownKeys<'a> {
    /// Pages up to the chunk's end, by KV head.
    pub(crate) pages: &'a [Vec<PageView<'a>>],
    /// Versions of all pages, by KV head.
    pub(crate) versions: &'a [Vec<PageVersion>],
}

/// The common number of tokens per block, over all KV heads that read blocks.
fn same_block(blocks: &[Option<usize>]) -> Option<usize> {
    let mut lengths = blocks.iter().flatten().copied();
    let first = lengths.next()?;
    lengths.all(|block| block == first).then_some(first)
}

/// Adds missing tokens to the summaries of some KV heads of a layer; returns false if there is no room.
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
        if *known < held && of_head(kv_head) {
            vec![Span::new(known / page_tokens, held.div_ceil(page_tokens))]
        } else {
            Vec::new()
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
