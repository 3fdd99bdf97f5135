//! One layer's attention: append to the cache, let the policy select, attend, write out.

use std::ops::{ControlFlow, Range};
use std::time::Instant;

use rayon::prelude::*;
use riffle_attention::{
    AttendError, AttendJob, AttendOptions, Partial, Selection, Span, attend_batch, attend_summaries,
};
use riffle_kv::KvCache;
use riffle_policy::{LentScan, Phase, Policy, PolicySet};

use serde::{Deserialize, Serialize};

use crate::pass::attention_time::add_since;
use crate::pass::audit::Audit;
use crate::pass::auto::Auto;
use crate::pass::choice::bounds_block;
use crate::pass::chunk::{Chunk, Step, pages};
use crate::pass::compute::NewKeys;
use crate::pass::device::{self, DevicePages};
use crate::pass::layer_rows::LayerRows;
use crate::pass::reading;
use crate::pass::rotation::{Rotation, rotate};
use crate::pass::tiles::Tile;
use crate::sequence::block_means::BlockMeans;
use crate::{AttentionTime, EngineError};

/// Pairs of query position and key, over all layers and KV heads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairCount {
    /// Pairs that were read.
    pub read: u64,
    /// Pairs that dense attention would have read.
    pub causal: u64,
}

/// The attention of one sequence in a batch: the order of append, select, attend and observe. It never knows which policy is on.
pub(crate) struct LayerAttention<'a> {
    pub(crate) cache: &'a mut KvCache,
    /// Pages on a device that attends, in place of the CPU.
    pub(crate) device: Option<&'a mut DevicePages>,
    pub(crate) rotation: Rotation,
    pub(crate) policies: &'a mut PolicySet,
    /// Policies of the other phase, which may learn from the masses of this one.
    pub(crate) observers: Option<&'a mut PolicySet>,
    pub(crate) means: &'a mut BlockMeans,
    pub(crate) step: Step<'a>,
    /// Tokens each layer of the model looks back at most; such a layer is sparse by design and no policy acts on it.
    pub(crate) window: &'a dyn Fn(usize) -> Option<usize>,
    pub(crate) chunk_tokens: usize,
    pub(crate) options: AttendOptions<'a>,
    pub(crate) partials: &'a mut Vec<Partial>,
    pub(crate) pairs: &'a mut PairCount,
    pub(crate) time: &'a mut AttentionTime,
    pub(crate) audit: Option<&'a mut Audit>,
    pub(crate) auto: Option<&'a mut Auto>,
    /// Called after each chunk with (layer, tokens of the batch attended); may ask to stop.
    pub(crate) after_chunk: &'a mut dyn FnMut(usize, usize) -> ControlFlow<()>,
}

/// Where the attention result of a layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttendedIn {
    /// In the output it was given.
    Output,
    /// On the device that attended, in the rows it was given; the output says nothing.
    Device,
}

impl LayerAttention<'_> {
    /// Attends all chunks of a layer; says where the result, `[tokens, heads, head_dim]`, is unless it was asked to stop.
    pub(crate) fn layer(
        &mut self,
        input: &LayerRows<'_>,
        output: &mut [f32],
    ) -> Result<ControlFlow<(), AttendedIn>, EngineError> {
        let window = (self.window)(input.layer);
        let two_phases = window.is_none()
            && self
                .policies
                .layer(input.cache_layer)
                .iter()
                .any(|policy| policy.traits().two_phases);
        let device_means = self.block_means_on_device(input, window);
        let output_on_device = input
            .on_device()
            .filter(|_| self.leaves_output(input, window, two_phases, &device_means));
        let chunks: Vec<Range<usize>> = (0..input.tokens)
            .step_by(self.chunk_tokens)
            .map(|first| first..(first + self.chunk_tokens).min(input.tokens))
            .collect();
        let mut partials = std::mem::take(self.partials);
        let mut first_partial = 0;
        if two_phases {
            // Every chunk's own keys are there before any chunk is attended to.
            self.append(input, 0..input.tokens)?;
            let began = Instant::now();
            self.attend_own(input, &chunks, &mut partials)?;
            add_since(&mut self.time.attend_ms, began);
        }
        let mut flow = ControlFlow::Continue(());
        for tokens in chunks {
            if !two_phases {
                self.append(input, tokens.clone())?;
                first_partial = 0;
            }
            let end = tokens.end;
            let count = self.step.heads.kv_heads * self.step.heads.tiles_of(tokens.len());
            if !two_phases {
                partials.resize_with(partials.len().max(count), || Partial::new(0, 0, 0));
            }
            let own = &mut partials[first_partial..first_partial + count];
            let next = match self.step.phase {
                Phase::Prefill if end < input.tokens => input.cache_layer,
                _ => (input.cache_layer + 1) % self.cache.shape().layers,
            };
            self.chunk(
                input,
                tokens,
                window,
                two_phases,
                next,
                &device_means,
                own,
                output_on_device.is_none().then_some(&mut *output),
            )?;
            if let (Some(pages), Some(_)) = (&mut self.device, input.on_device()) {
                device::read_ahead(pages, self.cache, next)?;
            }
            first_partial += count;
            flow = (self.after_chunk)(input.layer, end);
            if flow.is_break() {
                break;
            }
        }
        *self.partials = partials;
        if flow.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        // What was read of rotated values is rotated back.
        match (output_on_device, self.rotation.values) {
            (Some(rows), true) => rows.rotate_attended(0..input.tokens)?,
            (None, true) => rotate(output, self.step.heads.head_dim),
            (_, false) => {}
        }
        Ok(ControlFlow::Continue(match output_on_device {
            Some(_) => AttendedIn::Device,
            None => AttendedIn::Output,
        }))
    }

    /// Whether what a device attends to in a layer stays there: nothing on the CPU adds to it or looks at it.
    /// `device_means` is what [`Self::block_means_on_device`] says of the layer.
    fn leaves_output(
        &self,
        input: &LayerRows<'_>,
        window: Option<usize>,
        two_phases: bool,
        device_means: &[Option<usize>],
    ) -> bool {
        let mut policies = self.policies.layer(input.cache_layer).iter();
        let reads_means = policies.any(|policy| policy.summary_tokens().is_some());
        let needed = two_phases || self.audit.is_some() || (reads_means && device_means.is_empty());
        // No policy acts on a layer that has a window of its own, no audit looks at it.
        self.device.is_some() && (window.is_some() || !needed)
    }

    /// Tokens in the blocks whose means policies of a layer read, by KV head, where the device keeps and reads these; nothing where
    /// there are none or the CPU does.
    fn block_means_on_device(&mut self, input: &LayerRows<'_>, window: Option<usize>) -> Vec<Option<usize>> {
        let (Some(pages), Some(_), None) = (&mut self.device, input.on_device(), window) else {
            return Vec::new();
        };
        let policies = self.policies.layer(input.cache_layer).iter();
        let blocks: Vec<_> = policies.map(|policy| policy.summary_tokens()).collect();
        let tokens = input.slot + input.tokens;
        // An audit compares what is read without means.
        match self.audit.is_none() && device::keeps_means(pages, input.cache_layer, &blocks, tokens) {
            true => blocks,
            false => Vec::new(),
        }
    }

    fn append(&mut self, input: &LayerRows<'_>, tokens: Range<usize>) -> Result<(), EngineError> {
        match (input.new_keys, &mut self.device) {
            (NewKeys::Device(rows), Some(pages)) => {
                let range = tokens.clone();
                device::append(pages, self.cache, input.cache_layer, rows, range, self.rotation)?;
                // The chunk before has been waited for.
                self.time.attend_ms += pages.attended_ms()?;
            }
            (NewKeys::Device(_), None) => unreachable!("a session of a device has room for pages there"),
            (NewKeys::Host { keys, values }, _) => {
                let width = self.step.heads.kv_heads * self.step.heads.head_dim;
                let range = tokens.start * width..tokens.end * width;
                self.cache
                    .append(input.cache_layer, &keys[range.clone()], &values[range])?;
            }
        }
        if (self.window)(input.layer).is_some() {
            return Ok(());
        }
        if self.extend_watched_bounds(input, &tokens)? {
            return Ok(());
        }
        if let Some(observers) = self.observers.as_mut().filter(|_| self.cache.tiers().has_farther()) {
            summarize_new_pages(self.cache, observers, input, tokens, &self.step);
        }
        Ok(())
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

    /// The first phase: all chunks of the batch read what they name of themselves, at once.
    fn attend_own(
        &mut self,
        input: &LayerRows<'_>,
        chunks: &[Range<usize>],
        partials: &mut Vec<Partial>,
    ) -> Result<(), EngineError> {
        let reader = self.cache.read();
        let pages: Vec<_> = chunks
            .iter()
            .map(|tokens| pages(&reader, input, &self.step, tokens, |_| 0))
            .collect();
        let chunks: Vec<Chunk<'_>> = chunks
            .iter()
            .zip(&pages)
            .map(|(tokens, pages)| Chunk::new(&self.step, input, tokens.clone(), pages))
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
        partials.resize_with(partials.len().max(jobs.len()), || Partial::new(0, 0, 0));
        reset(partials, &jobs);
        attend_batch(&jobs, &self.options, &mut partials[..jobs.len()])?;
        Ok(())
    }

    /// Attends a chunk into `partials`, one for each of its tiles, and writes the output; without one the result stays on the
    /// device that attends. In the second of two phases the partials hold the first already. `next` is the layer that is
    /// attended to after this chunk, `device_means` what [`Self::block_means_on_device`] says of this one.
    fn chunk(
        &mut self,
        input: &LayerRows<'_>,
        tokens: Range<usize>,
        window: Option<usize>,
        two_phases: bool,
        next: usize,
        device_means: &[Option<usize>],
        partials: &mut [Partial],
        output: Option<&mut [f32]>,
    ) -> Result<(), EngineError> {
        let step = self.step;
        let began = Instant::now();
        let (selections, own) = match window {
            Some(window) => {
                let tiles = step.heads.tiles(input, tokens.clone());
                let selection = Selection::none().with_row_window(window);
                (vec![selection; tiles.len()], Vec::new())
            }
            None => self.select(input, tokens.clone(), two_phases)?,
        };
        let began = add_since(&mut self.time.select_ms, began);
        // Pages come and go while they are read, so none is in these contexts.
        let no_pages = vec![Vec::new(); step.heads.kv_heads];
        let chunk = Chunk::new(&step, input, tokens, &no_pages);
        let mut counts = vec![PairCount::default(); step.heads.kv_heads];
        for (place, tile) in chunk.tiles.iter().enumerate() {
            let evicted = step.evicted_tokens(input.cache_layer, tile.kv_head);
            let (rows, before) = (tile.queries.rows, (tile.queries.start + evicted) as u64);
            let named = [Some(&selections[place]), own.get(place)].into_iter().flatten();
            let read: usize = named
                .map(|selection| selection.pair_count(tile.queries.start, rows))
                .sum();
            let count = &mut counts[tile.kv_head];
            count.read += read as u64;
            count.causal += rows as u64 * before + rows as u64 * (rows as u64 + 1) / 2;
        }
        for count in &counts {
            self.pairs.read += count.read;
            self.pairs.causal += count.causal;
        }

        if !two_phases {
            for (partial, tile) in partials.iter_mut().zip(&chunk.tiles) {
                partial.reset(tile.queries.rows, tile.queries.group, tile.queries.head_dim);
            }
        }
        let policies = self.policies.layer_mut(input.cache_layer).iter_mut();
        let scans: Vec<Option<LentScan>> = policies.map(Policy::take_scan).collect();
        match (&mut self.device, input.on_device()) {
            // Keys lie where the kernels read them: scans of policies in main memory are not used again.
            (Some(pages), Some(rows)) => {
                let (options, partials) = (&self.options, output.is_some().then_some(&mut *partials));
                device::attend(
                    pages,
                    self.cache,
                    rows,
                    &chunk,
                    &selections,
                    next,
                    device_means,
                    options,
                    partials,
                )?;
            }
            _ => {
                let options = &self.options;
                reading::attend(self.cache, &chunk, &selections, &scans, Some(next), options, partials)?;
            }
        }
        drop(scans);
        let Some(output) = output else {
            // Its time is taken by the device's clock, when it has run.
            let began = Instant::now();
            if window.is_none() {
                self.observe(input, &chunk, [&own, &selections], None)?;
            }
            add_since(&mut self.time.select_ms, began);
            return Ok(());
        };
        let sampled_reads = self
            .audit
            .as_ref()
            .filter(|_| window.is_none())
            .map(|audit| audit.sample(&chunk.tiles, partials));
        if window.is_none() && device_means.is_empty() {
            let policies = self.policies.layer(input.cache_layer);
            extend_means(self.cache, self.means, policies, &chunk)?;
            attend_means(self.means, policies, &chunk, &selections, &self.options, partials)?;
        }
        let width = step.heads.width();
        for (tile, partial) in chunk.tiles.iter().zip(partials.iter()) {
            let at =
                (chunk.tokens.start + tile.first_row) * width + tile.kv_head * step.heads.group * step.heads.head_dim;
            partial.finish_into(&mut output[at..], width, None)?;
        }
        let began = add_since(&mut self.time.attend_ms, began);
        if window.is_none() {
            self.observe(input, &chunk, [&own, &selections], Some(partials))?;
        }
        add_since(&mut self.time.select_ms, began);
        if let (Some(audit), Some(sampled_reads)) = (&mut self.audit, sampled_reads) {
            let output = &output[chunk.tokens.start * width..];
            let read = [&own[..], &selections[..]];
            let samples = audit.compare(self.cache, &chunk, &sampled_reads, &counts, read, &self.options, output)?;
            for (kv_head, (seen, missed)) in samples.into_iter().enumerate() {
                let auto = self.auto.as_mut().filter(|_| step.phase == Phase::Prefill);
                if let Some(spec) = auto.and_then(|auto| auto.learn(chunk.layer, kv_head, seen, missed)) {
                    self.policies.replace(chunk.layer, kv_head, spec)?;
                }
            }
        }
        Ok(())
    }

    /// Tells the policies of both phases where the mass of the queries went that they ask for.
    fn observe(
        &mut self,
        input: &LayerRows<'_>,
        chunk: &Chunk<'_>,
        read: [&[Selection]; 2],
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError> {
        let options = &self.options;
        for policies in std::iter::once(&mut *self.policies).chain(self.observers.as_deref_mut()) {
            match (&mut self.device, input.on_device(), partials) {
                (Some(pages), Some(rows), _) => {
                    device::observe(pages, self.cache, rows, policies, chunk, read, partials, options)?;
                }
                (.., Some(partials)) => reading::observe(self.cache, policies, chunk, read, partials, options)?,
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
        let start = input.slot + tokens.start - step.evicted_tokens(input.cache_layer, kv_head);
        let first = start / page_tokens * page_tokens;
        for page in reader.pages_from(input.cache_layer, kv_head, first) {
            if page.tokens == page_tokens {
                policy.summarize(&page, step.heads.head_dim);
            }
        }
    }
}

/// Takes in the blocks that have filled, of heads whose policies read block means.
fn extend_means(
    cache: &mut KvCache,
    means: &mut BlockMeans,
    policies: &[Policy],
    chunk: &Chunk<'_>,
) -> Result<(), EngineError> {
    for (context, policy) in chunk.contexts.iter().zip(policies) {
        let Some(block) = policy.summary_tokens() else { continue };
        let head = means.of(chunk.layer, context.kv_head, block, chunk.head_dim);
        let wanted = Span::new(head.tokens(), context.tokens);
        reading::show(cache, context, wanted, |pages| Ok(head.extend(pages, context.tokens)?))?;
    }
    Ok(())
}

/// Reads the block means that selections name.
fn attend_means(
    means: &BlockMeans,
    policies: &[Policy],
    chunk: &Chunk<'_>,
    selections: &[Selection],
    options: &AttendOptions<'_>,
    partials: &mut [Partial],
) -> Result<(), AttendError> {
    let tiles = chunk.tiles.par_iter().zip(selections).zip(partials);
    tiles.try_for_each(|((tile, selection), partial)| {
        let block = policies[tile.kv_head].summary_tokens();
        match block.and_then(|block| means.get(chunk.layer, tile.kv_head, block)) {
            Some(means) => attend_summaries(&tile.queries, &means.view(), selection, options, partial),
            None => Ok(()),
        }
    })
}

fn reset(partials: &mut [Partial], jobs: &[AttendJob<'_>]) {
    for (partial, job) in partials.iter_mut().zip(jobs) {
        partial.reset(job.queries.rows, job.queries.group, job.queries.head_dim);
    }
}
