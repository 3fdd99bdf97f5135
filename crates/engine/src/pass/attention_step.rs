//! The attention of one sequence in one layer: append to the cache, let the policies select, attend, observe.

use std::ops::Range;
use std::time::Instant;

use rayon::prelude::*;
use riffle_attention::{AttendJob, AttendOptions, Partial, Selection, attend_batch};
use riffle_kv::KvCache;
use riffle_policy::{Phase, Policy, PolicySet};

use crate::pass::attention_time::add_since;
use crate::pass::audit::SampledReads;
use crate::pass::choice::bounds_block;
use crate::pass::chunk::{Chosen, Chunk, Step, pages};
use crate::pass::compute::NewKeys;
use crate::pass::delta::{correct, dense_rows};
use crate::pass::device::{self, DevicePages, OnDevice};
use crate::pass::layer_rows::LayerRows;
use crate::pass::means::{attend_means, extend_means};
use crate::pass::reading;
use crate::pass::rotation::{Rotation, rotate};
use crate::pass::tiles::{Heads, Tile};
use crate::sequence::block_means::BlockMeans;
use crate::sequence::placement::Slot;
use crate::sequence::statistics::{PairCount, Statistics};
use crate::{EngineError, Sequence};

/// The attention of one sequence in one layer. It never knows which policy is on.
pub(crate) struct SequenceAttention<'a> {
    pub(crate) cache: &'a mut KvCache,
    /// Pages on a device that attends, in place of the CPU.
    pub(crate) device: Option<&'a mut DevicePages>,
    pub(crate) policies: &'a mut PolicySet,
    /// Policies of the other phase, which may learn from the masses of this one.
    pub(crate) observers: Option<&'a mut PolicySet>,
    pub(crate) means: &'a mut BlockMeans,
    pub(crate) statistics: &'a mut Statistics,
    pub(crate) step: Step<'a>,
    /// Tokens that the layer looks back at most; such a layer is sparse by design and no policy acts on it.
    pub(crate) window: Option<usize>,
    pub(crate) rotation: Rotation,
    /// Whether the pages that the next layer is expected to read are brought to the device behind this one.
    pub(crate) reads_ahead: bool,
    pub(crate) options: AttendOptions<'a>,
}

/// What decides how a layer's attention is cut into pieces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerTraits {
    /// Whether a prompt's chunks attend in two phases.
    pub(crate) two_phases: bool,
    /// Whether what is selected for a row does not depend on what rows before it read.
    pub(crate) follow_from_keys: bool,
}

impl<'a> SequenceAttention<'a> {
    /// The attention of a sequence in a layer of the model that holds keys. `goal` is the length of its prompt.
    pub(crate) fn new(sequence: &'a mut Sequence, layer: usize, phase: Phase, goal: usize) -> Self {
        let (model, options) = (sequence.engine.model(), sequence.engine.options());
        let config = model.config();
        let (policies, observers) = match phase {
            Phase::Prefill => (&mut sequence.prefill, Some(&mut sequence.decode)),
            Phase::Decode => (&mut sequence.decode, sequence.watchers.as_mut()),
        };
        Self {
            cache: &mut sequence.cache,
            device: sequence.device.as_mut(),
            policies,
            observers,
            means: &mut sequence.means,
            statistics: &mut sequence.statistics,
            step: Step {
                phase,
                layers: config.attention_layers(),
                heads: Heads::of(config),
                total_tokens: goal,
                page_tokens: options.page_tokens,
                scale: config.attention_scale,
                soft_cap: config.soft_cap,
                evicted: &sequence.placement.evicted,
            },
            window: match (model.window(layer), sequence.options.window) {
                (Some(own), Some(kept)) => Some(own.min(kept.window_tokens)),
                (own, _) => own,
            },
            rotation: sequence.engine.resolved().rotation,
            reads_ahead: true,
            options: AttendOptions::new(config.attention_scale)
                .with_soft_cap(config.soft_cap)
                .with_arithmetic(options.attention.arithmetic(phase)),
        }
    }

    /// What decides how the attention of a sequence in a layer of the model is cut.
    pub(crate) fn traits(sequence: &Sequence, layer: usize, phase: Phase) -> LayerTraits {
        let model = sequence.engine.model();
        let policies = match (model.window(layer), model.config().cache_layer(layer)) {
            (None, Some(cache_layer)) => match phase {
                Phase::Prefill => sequence.prefill.layer(cache_layer),
                Phase::Decode => sequence.decode.layer(cache_layer),
            },
            // No policy acts there.
            _ => &[],
        };
        LayerTraits {
            two_phases: policies.iter().any(|policy| policy.traits().two_phases),
            follow_from_keys: policies.iter().all(|policy| policy.traits().follows_from_keys),
        }
    }

    /// Whether chunks of a layer attend in two phases.
    pub(crate) fn two_phases(&self, cache_layer: usize) -> bool {
        let mut policies = self.policies.layer(cache_layer).iter();
        self.window.is_none() && policies.any(|policy| policy.traits().two_phases)
    }

    /// Adds keys and values of some rows to the cache.
    pub(crate) fn append(&mut self, input: &LayerRows<'_>, tokens: Range<usize>) -> Result<(), EngineError> {
        match (input.new_keys, &mut self.device) {
            (NewKeys::Device(rows), Some(pages)) => {
                let range = input.first_row + tokens.start..input.first_row + tokens.end;
                device::append(pages, self.cache, input.cache_layer, rows, range, self.rotation)?;
                // The chunk before has been waited for.
                self.statistics.attention_time_mut(self.step.phase).attend_ms += pages.attended_ms()?;
            }
            (NewKeys::Device(_), None) => unreachable!("a sequence of a device has room for pages there"),
            (NewKeys::Host { keys, values }, _) => {
                let width = self.step.heads.kv_heads * self.step.heads.head_dim;
                let range = tokens.start * width..tokens.end * width;
                self.cache
                    .append(input.cache_layer, &keys[range.clone()], &values[range])?;
            }
        }
        if self.window.is_some() || self.extend_watched_bounds(input, &tokens)? {
            return Ok(());
        }
        if let Some(observers) = self.observers.as_mut().filter(|_| self.cache.tiers().has_farther()) {
            summarize_new_pages(self.cache, observers, input, tokens, &self.step);
        }
        Ok(())
    }

    /// Lets the policies select for a chunk that has been appended.
    pub(crate) fn choose<'q>(
        &mut self,
        input: &LayerRows<'q>,
        tokens: Range<usize>,
    ) -> Result<Chosen<'q>, EngineError> {
        let began = Instant::now();
        let two_phases = self.two_phases(input.cache_layer);
        let (selections, own) = match self.window {
            Some(window) => {
                let tiles = self.step.heads.kv_heads * self.step.heads.tiles_of(tokens.len());
                let selection = Selection::none().with_row_window(window);
                (vec![selection; tiles], Vec::new())
            }
            None => self.select(input, tokens.clone(), two_phases)?,
        };
        let device_means = self.block_means_on_device(input);
        let next = match self.step.phase {
            Phase::Prefill if tokens.end < input.tokens => input.cache_layer,
            _ => (input.cache_layer + 1) % self.cache.shape().layers,
        };
        let chunk = Chunk::new(&self.step, input, tokens);
        let (dense_rows, more) = match self.window {
            Some(_) => Default::default(),
            None => dense_rows(&chunk, self.policies.layer(input.cache_layer), [&own, &selections]),
        };
        let counts = self.count_pairs(&chunk, [&own, &selections], &more);
        if self.step.phase == Phase::Decode {
            let Slot(slot) = input.slot.after(chunk.tokens.start);
            counts.iter().for_each(|count| self.statistics.count_row(slot, *count));
        }
        let policies = self.policies.layer_mut(input.cache_layer).iter_mut();
        let scans = policies.map(Policy::take_scan).collect();
        add_since(
            &mut self.statistics.attention_time_mut(self.step.phase).select_ms,
            began,
        );
        Ok(Chosen {
            stays_on_device: input.on_device().is_some()
                && dense_rows.is_empty()
                && self.leaves_output(input.cache_layer, two_phases, &device_means),
            chunk,
            selections,
            own,
            dense_rows,
            scans,
            counts,
            next,
            device_means,
        })
    }

    /// Counts the query-key pairs that a chunk reads in one or two phases of attention, by KV head. `more` counts the pairs that
    /// dense rows read in addition to the selections.
    fn count_pairs(&mut self, chunk: &Chunk<'_>, phases: [&[Selection]; 2], more: &[PairCount]) -> Vec<PairCount> {
        let mut counts = vec![PairCount::default(); self.step.heads.kv_heads];
        counts.iter_mut().zip(more).for_each(|(count, more)| count.add(*more));
        for (place, tile) in chunk.tiles.iter().enumerate() {
            let evicted = self.step.evicted_tokens(chunk.layer, tile.kv_head);
            let (rows, before) = (tile.queries.rows, (tile.queries.start + evicted) as u64);
            let read: usize = reading::named(phases, place)
                .map(|selection| selection.pair_count(tile.queries.start, rows))
                .sum();
            counts[tile.kv_head].add(PairCount {
                read: read as u64,
                causal: rows as u64 * before + rows as u64 * (rows as u64 + 1) / 2,
            });
        }
        counts.iter().for_each(|count| self.statistics.pairs.add(*count));
        counts
    }

    /// The mass that queries which have been appended give each token of the layer, `[tokens]`, summed over rows and heads.
    pub(crate) fn token_mass(&mut self, input: &LayerRows<'_>) -> Result<Vec<f32>, EngineError> {
        let chunk = Chunk::new(&self.step, input, 0..input.tokens);
        reading::token_mass(self.cache, &chunk, &self.options)
    }

    /// The first of two phases: the rows are appended, and all chunks read what they name of themselves, at once.
    pub(crate) fn attend_own(
        &mut self,
        input: &LayerRows<'_>,
        chunk_tokens: usize,
        partials: &mut Vec<Partial>,
    ) -> Result<(), EngineError> {
        self.append(input, 0..input.tokens)?;
        let began = Instant::now();
        let chunks = (0..input.tokens).step_by(chunk_tokens);
        let chunks: Vec<_> = chunks
            .map(|first| first..(first + chunk_tokens).min(input.tokens))
            .collect();
        let reader = self.cache.read();
        let pages: Vec<_> = chunks
            .iter()
            .map(|tokens| pages(&reader, input, &self.step, tokens, |_| 0))
            .collect();
        let chunks = chunks.into_iter().zip(&pages);
        let chunks: Vec<Chunk<'_>> = chunks
            .map(|(tokens, pages)| Chunk::with_pages(&self.step, input, tokens, pages))
            .collect();
        let policies = self.policies.layer(input.cache_layer);
        let tiles: Vec<(&Chunk<'_>, &Tile<'_>)> = chunks
            .iter()
            .flat_map(|chunk| chunk.tiles.iter().map(move |tile| (chunk, tile)))
            .collect();
        let selections: Vec<Selection> = tiles
            .par_iter()
            .map(|(chunk, tile)| policies[tile.kv_head].select_own(&chunk.contexts[tile.kv_head]))
            .collect();
        let jobs: Vec<AttendJob<'_>> = tiles
            .iter()
            .zip(&selections)
            .map(|((chunk, tile), selection)| chunk.job(tile, selection))
            .collect();
        partials.resize_with(jobs.len(), || Partial::new(0, 0, 0));
        for (partial, job) in partials.iter_mut().zip(&jobs) {
            partial.reset(job.queries.rows, job.queries.group, job.queries.head_dim);
        }
        attend_batch(&jobs, &self.options, partials)?;
        add_since(
            &mut self.statistics.attention_time_mut(self.step.phase).attend_ms,
            began,
        );
        Ok(())
    }

    /// Attends a chunk by itself into `partials`, one for each of its tiles; what they hold is added to.
    pub(crate) fn attend(
        &mut self,
        input: &LayerRows<'_>,
        chosen: &Chosen<'_>,
        partials: &mut [Partial],
    ) -> Result<(), EngineError> {
        match (&mut self.device, input.on_device()) {
            // Keys lie where the kernels read them: scans of policies in main memory are not used again.
            (Some(pages), Some(rows)) => {
                let partials = (!chosen.stays_on_device).then_some(partials);
                let mut there = OnDevice {
                    pages,
                    cache: self.cache,
                    rows,
                };
                there.attend(chosen, &self.options, partials)
            }
            _ => {
                let reads = [(0, chosen.reads())];
                reading::attend(&mut [self.cache], &reads, Some(chosen.next), &self.options, partials)
            }
        }
    }

    /// Adds the time since `began`, which this chunk shared with others: `chunks` in all.
    pub(crate) fn add_attend_time(&mut self, began: Instant, chunks: usize) {
        let mut elapsed_ms = 0.0;
        add_since(&mut elapsed_ms, began);
        self.statistics.attention_time_mut(self.step.phase).attend_ms += elapsed_ms / chunks as f64;
    }

    /// Writes the result of a chunk to `output`, the rows of the sequence `[tokens, heads, head_dim]`, and lets policies and audit
    /// look at it. A result that stays on the device is completed there.
    pub(crate) fn complete(
        &mut self,
        input: &LayerRows<'_>,
        chosen: &Chosen<'_>,
        partials: &mut [Partial],
        output: &mut [f32],
    ) -> Result<(), EngineError> {
        let phase = self.step.phase;
        if let Some(observer) = self.statistics.observer.as_mut().filter(|_| self.window.is_none()) {
            let read = (!chosen.stays_on_device).then_some(&*partials);
            observer.observe(self.cache, chosen, read, &self.options)?;
        }
        if chosen.stays_on_device {
            // Its time is taken by the device's clock, when it has run.
            let began = Instant::now();
            self.observe(input, chosen, None)?;
            add_since(&mut self.statistics.attention_time_mut(phase).select_ms, began);
            if let (Some(rows), true) = (input.on_device(), self.rotation.values) {
                rows.rotate_attended(chosen.chunk.batch_rows.clone())?;
            }
            return self.read_ahead(input, chosen.next);
        }
        let began = Instant::now();
        let chunk = &chosen.chunk;
        let audit = self.statistics.audit.as_ref().filter(|_| self.window.is_none());
        let sampled_reads = audit.map(|audit| audit.sample(&chunk.tiles, partials));
        if self.window.is_none() && chosen.device_means.is_empty() {
            let policies = self.policies.layer(input.cache_layer);
            extend_means(self.cache, self.means, policies, chunk)?;
            attend_means(self.means, policies, chunk, &chosen.selections, &self.options, partials)?;
        }
        let Heads { group, head_dim, .. } = self.step.heads;
        let width = self.step.heads.width();
        for (tile, partial) in chunk.tiles.iter().zip(partials.iter()) {
            let at = (chunk.tokens.start + tile.first_row) * width + tile.kv_head * group * head_dim;
            partial.finish_into(&mut output[at..], width, None)?;
        }
        if !chosen.dense_rows.is_empty() {
            let output = &mut output[chunk.tokens.start * width..];
            correct(self.cache, chunk, &chosen.dense_rows, &self.options, output)?;
        }
        let began = add_since(&mut self.statistics.attention_time_mut(phase).attend_ms, began);
        self.observe(input, chosen, Some(partials))?;
        add_since(&mut self.statistics.attention_time_mut(phase).select_ms, began);
        if let Some(sampled_reads) = sampled_reads {
            self.compare(chosen, &sampled_reads, &output[chunk.tokens.start * width..])?;
        }
        if self.rotation.values {
            // What was read of rotated values is rotated back.
            rotate(
                &mut output[chunk.tokens.start * width..chunk.tokens.end * width],
                head_dim,
            );
        }
        self.read_ahead(input, chosen.next)
    }

    /// Compares sampled queries of a chunk with exact attention, and moves heads where that decides their policies. `output` begins
    /// at the chunk.
    fn compare(
        &mut self,
        chosen: &Chosen<'_>,
        sampled_reads: &SampledReads,
        output: &[f32],
    ) -> Result<(), EngineError> {
        let Statistics { audit, auto, .. } = &mut *self.statistics;
        let Some(audit) = audit else { return Ok(()) };
        let samples = audit.compare(self.cache, chosen, sampled_reads, &self.options, output)?;
        for (kv_head, (seen, missed)) in samples.into_iter().enumerate() {
            let auto = auto.as_mut().filter(|_| self.step.phase == Phase::Prefill);
            if let Some(spec) = auto.and_then(|auto| auto.learn(chosen.chunk.layer, kv_head, seen, missed)) {
                self.policies.replace(chosen.chunk.layer, kv_head, spec)?;
            }
        }
        Ok(())
    }

    /// Begins to bring the pages that the next layer is expected to read to the device.
    fn read_ahead(&mut self, input: &LayerRows<'_>, next: usize) -> Result<(), EngineError> {
        match (&mut self.device, input.on_device()) {
            (Some(pages), Some(_)) if self.reads_ahead => device::read_ahead(pages, self.cache, next),
            _ => Ok(()),
        }
    }

    /// Whether what a device attends to in a layer stays there: nothing on the CPU adds to it or looks at it.
    fn leaves_output(&self, cache_layer: usize, two_phases: bool, device_means: &[Option<usize>]) -> bool {
        let mut policies = self.policies.layer(cache_layer).iter();
        let reads_means = policies.any(|policy| policy.summary_tokens().is_some());
        let needed = two_phases || self.statistics.audit.is_some() || (reads_means && device_means.is_empty());
        // No policy acts on a layer that has a window of its own, no audit looks at it.
        self.device.is_some() && (self.window.is_some() || !needed)
    }

    /// Tokens in the blocks whose means policies of a layer read, by KV head, where the device keeps and reads these; nothing where
    /// there are none or the CPU does.
    fn block_means_on_device(&mut self, input: &LayerRows<'_>) -> Vec<Option<usize>> {
        let (Some(pages), Some(_), None) = (&mut self.device, input.on_device(), self.window) else {
            return Vec::new();
        };
        let policies = self.policies.layer(input.cache_layer).iter();
        let blocks: Vec<_> = policies.map(|policy| policy.summary_tokens()).collect();
        let Slot(tokens) = input.slot.after(input.tokens);
        // An audit compares what is read without means.
        match self.statistics.audit.is_none() && device::keeps_means(pages, &blocks, tokens) {
            true => blocks,
            false => Vec::new(),
        }
    }

    /// Where the policies of the other phase will rank blocks by bounds that the device keeps, takes new keys into these while
    /// their pages are there.
    fn extend_watched_bounds(&mut self, input: &LayerRows<'_>, tokens: &Range<usize>) -> Result<bool, EngineError> {
        let (Some(pages), Some(observers), Some(_)) = (&mut self.device, &self.observers, input.on_device()) else {
            return Ok(false);
        };
        let policies = observers.layer(input.cache_layer);
        match bounds_block(policies, &self.step, input, tokens) {
            Some(block) => device::extend_bounds(pages, self.cache, input.cache_layer, block),
            None => Ok(false),
        }
    }

    /// Tells the policies of both phases where the mass of the queries went that they ask for.
    fn observe(
        &mut self,
        input: &LayerRows<'_>,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError> {
        if self.window.is_some() {
            return Ok(());
        }
        let options = &self.options;
        for policies in std::iter::once(&mut *self.policies).chain(self.observers.as_deref_mut()) {
            match (&mut self.device, input.on_device(), partials) {
                (Some(pages), Some(rows), _) => {
                    let mut there = OnDevice {
                        pages,
                        cache: self.cache,
                        rows,
                    };
                    there.observe(policies, chosen, partials, options)?;
                }
                (.., Some(partials)) => {
                    reading::observe(self.cache, policies, &chosen.chunk, chosen.phases(), partials, options)?
                }
                (.., None) => unreachable!("results stay on devices alone"),
            }
        }
        Ok(())
    }
}

/// Shows the pages that an append has filled to the policies of the other phase: the pages may leave before that
/// phase begins.
fn summarize_new_pages(
    cache: &KvCache,
    policies: &mut PolicySet,
    input: &LayerRows<'_>,
    tokens: Range<usize>,
    step: &Step<'_>,
) {
    let (page_tokens, reader) = (cache.shape().page_tokens, cache.read());
    for (kv_head, policy) in policies.layer_mut(input.cache_layer).iter_mut().enumerate() {
        let first = step.head_slot(input, tokens.start, kv_head) / page_tokens * page_tokens;
        for page in reader.pages_from(input.cache_layer, kv_head, first) {
            if page.tokens == page_tokens {
                policy.summarize(&page, step.heads.head_dim);
            }
        }
    }
}
