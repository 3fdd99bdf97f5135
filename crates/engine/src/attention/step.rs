//! The attention of one sequence in one layer: append to the cache, let the policies select, attend, observe.

use std::ops::Range;
use std::time::Instant;

use rayon::prelude::*;
use riffle_attention::{AttendJob, PageView, Partial, Selection, attend_batch};
use riffle_kv::KvCache;
use riffle_policy::{Phase, Policy, PolicySet, SelectContext};

use crate::EngineError;
use crate::attention::audit::SampledReads;
use crate::attention::choice::bounds_block;
use crate::attention::chunk::{Chosen, Chunk, LayerStep, pages};
use crate::attention::counters::PairCount;
use crate::attention::delta::{correct, dense_rows};
use crate::attention::layer_rows::LayerRows;
use crate::attention::means::{attend_means, extend_means};
use crate::attention::reader::ReadCall;
use crate::attention::reading;
use crate::attention::rotation::{rotate, rotated_widths};
use crate::attention::slots::Slot;
use crate::attention::state::AttentionState;
use crate::attention::tiles::{Heads, Tile};
use crate::attention::time::add_since;

impl AttentionState {
    /// Adds keys and values of some rows to the cache.
    pub(crate) fn append(
        &mut self,
        step: &LayerStep,
        input: &LayerRows<'_>,
        tokens: Range<usize>,
    ) -> Result<(), EngineError> {
        if !step.appends {
            return Ok(());
        }
        self.reader.append(&mut self.cache, input, &tokens, step.rotation)?;
        // The chunk before has been waited for.
        self.take_attended_time(step.phase)?;
        if step.window.is_some() || self.extend_watched_bounds(step, input, &tokens)? {
            return Ok(());
        }
        if let Some(policies) = self.policies.beside_mut(step.phase)
            && self.cache.tiers().has_farther()
        {
            summarize_new_pages(&self.cache, policies, step, input, tokens);
        }
        Ok(())
    }

    /// Lets the policies select for a chunk that has been appended.
    pub(crate) fn select<'q>(
        &mut self,
        step: &LayerStep,
        input: &LayerRows<'q>,
        tokens: Range<usize>,
    ) -> Result<Chosen<'q>, EngineError> {
        let began = Instant::now();
        let two_phases = step.window.is_none() && self.layer_traits(input.cache_layer, step.phase).two_phases;
        let chunk = Chunk::new(step, input, tokens);
        let (selections, own) = match step.window {
            Some(window) => {
                let selection = Selection::none().with_row_window(window);
                (vec![selection; chunk.tiles.len()], Vec::new())
            }
            None => self.choose(step, input, &chunk, two_phases)?,
        };
        let device_means = self.block_means_on_device(step, input);
        let next = match step.phase {
            Phase::Prefill if chunk.tokens.end < input.tokens => input.cache_layer,
            _ => (input.cache_layer + 1) % self.cache.shape().layers.count(),
        };
        let (dense_rows, more) = match step.window {
            Some(_) => Default::default(),
            None => {
                let policies = self.policies.in_phase(step.phase).layer(input.cache_layer);
                dense_rows(&chunk, policies, [&own, &selections])
            }
        };
        let counts = self.count_pairs(step, &chunk, [&own, &selections], &more);
        if step.phase == Phase::Decode {
            let Slot(slot) = input.slot.after(chunk.tokens.start);
            counts.iter().for_each(|count| self.counters.count_row(slot, *count));
        }
        let policies = self.policies.of_mut(step.phase).layer_mut(input.cache_layer);
        let scans = policies.iter_mut().map(Policy::take_scan).collect();
        add_since(&mut self.counters.time_mut(step.phase).select_ms, began);
        let stays = self.reader.may_keep_results()
            && dense_rows.is_empty()
            && self.leaves_output(step, input.cache_layer, two_phases, &device_means);
        Ok(Chosen {
            stays_on_device: stays,
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
    fn count_pairs(
        &mut self,
        step: &LayerStep,
        chunk: &Chunk<'_>,
        phases: [&[Selection]; 2],
        more: &[PairCount],
    ) -> Vec<PairCount> {
        let mut counts = vec![PairCount::default(); step.heads.kv_heads];
        counts.iter_mut().zip(more).for_each(|(count, more)| count.add(*more));
        for (place, tile) in chunk.tiles.iter().enumerate() {
            let evicted = step.evicted_tokens[tile.kv_head];
            let (rows, before) = (tile.queries.rows, (tile.queries.start + evicted) as u64);
            let read: usize = reading::named(phases, place)
                .map(|selection| selection.pair_count(tile.queries.start, rows))
                .sum();
            counts[tile.kv_head].add(PairCount {
                read: read as u64,
                causal: rows as u64 * before + rows as u64 * (rows as u64 + 1) / 2,
            });
        }
        counts.iter().for_each(|count| self.counters.pairs.add(*count));
        counts
    }

    /// The mass that queries which have been appended give each token of the layer, `[tokens]`, summed over rows and heads.
    pub(crate) fn token_mass(&mut self, step: &LayerStep, input: &LayerRows<'_>) -> Result<Vec<f32>, EngineError> {
        let chunk = Chunk::new(step, input, 0..input.tokens);
        reading::token_mass(&mut self.cache, &chunk, &step.options)
    }

    /// The first of two phases: the rows are appended, and all chunks read what they name of themselves, at once.
    pub(crate) fn attend_own(
        &mut self,
        step: &LayerStep,
        input: &LayerRows<'_>,
        chunk_tokens: usize,
        partials: &mut Vec<Partial>,
    ) -> Result<(), EngineError> {
        self.append(step, input, 0..input.tokens)?;
        let began = Instant::now();
        let firsts = (0..input.tokens).step_by(chunk_tokens);
        let chunks = firsts.map(|first| Chunk::new(step, input, first..(first + chunk_tokens).min(input.tokens)));
        let chunks: Vec<Chunk<'_>> = chunks.collect();
        let reader = self.cache.read();
        let shown = chunks.iter().map(|chunk| pages(&reader, chunk, |_| 0));
        let shown: Vec<_> = shown.collect();
        let policies = self.policies.in_phase(step.phase).layer(input.cache_layer);
        let tiles = chunks.iter().zip(&shown).flat_map(|(chunk, pages)| {
            let contexts = chunk.showing(pages);
            let tile = |tile| (chunk, pages, tile);
            let tiles: Vec<(&Chunk<'_>, &Vec<Vec<PageView<'_>>>, &Tile<'_>)> = chunk.tiles.iter().map(tile).collect();
            let contexts: Vec<SelectContext<'_>> = chunk.tiles.iter().map(|tile| contexts[tile.kv_head]).collect();
            tiles.into_iter().zip(contexts)
        });
        let tiles: Vec<_> = tiles.collect();
        let selections: Vec<Selection> = tiles
            .par_iter()
            .map(|((_, _, tile), context)| policies[tile.kv_head].select_own(context))
            .collect();
        let jobs = tiles.iter().zip(&selections);
        let jobs: Vec<AttendJob<'_>> = jobs
            .map(|(((chunk, pages, tile), _), selection)| AttendJob {
                queries: tile.queries,
                kv: chunk.kv(tile, pages),
                selection,
            })
            .collect();
        partials.resize_with(jobs.len(), || Partial::new(0, 0, 0));
        for (partial, job) in partials.iter_mut().zip(&jobs) {
            partial.reset(job.queries.rows, job.queries.group, step.heads.value_width);
        }
        attend_batch(&jobs, &step.options, partials)?;
        add_since(&mut self.counters.time_mut(step.phase).attend_ms, began);
        Ok(())
    }

    /// Attends a chunk by itself into `partials`, one for each of its tiles; what they hold is added to.
    pub(crate) fn attend(
        &mut self,
        step: &LayerStep,
        input: &LayerRows<'_>,
        chosen: &Chosen<'_>,
        partials: &mut [Partial],
    ) -> Result<(), EngineError> {
        let call = ReadCall {
            input,
            chosen,
            options: &step.options,
        };
        self.reader.attend(&mut self.cache, &call, partials)
    }

    /// Adds the time since `began`, which a chunk shared with others: `chunks` in all.
    pub(crate) fn add_attend_time(&mut self, phase: Phase, began: Instant, chunks: usize) {
        let mut elapsed_ms = 0.0;
        add_since(&mut elapsed_ms, began);
        self.counters.time_mut(phase).attend_ms += elapsed_ms / chunks as f64;
    }

    /// Writes the result of a chunk to `output`, the rows of the sequence `[tokens, heads, value_width]`, and lets policies, observers and
    /// the audit look at it. A result that stays on the device is completed there.
    pub(crate) fn complete(
        &mut self,
        step: &LayerStep,
        input: &LayerRows<'_>,
        chosen: &Chosen<'_>,
        (partials, output): (&mut [Partial], &mut [f32]),
    ) -> Result<(), EngineError> {
        if step.window.is_none() {
            let read = (!chosen.stays_on_device).then_some(&*partials);
            self.observers.observe(&mut self.cache, chosen, read, &step.options)?;
        }
        if chosen.stays_on_device {
            // Its time is taken by the device's clock, when it has run.
            self.observe(step, input, chosen, None)?;
            self.reader.complete(chosen, input, step.rotation)?;
        } else {
            self.finish(step, input, chosen, partials, output)?;
        }
        if step.reads_ahead {
            self.reader.read_ahead(&self.cache, chosen.next)
        } else {
            Ok(())
        }
    }

    /// Writes the result of a chunk that came to main memory to `output`.
    fn finish(
        &mut self,
        step: &LayerStep,
        input: &LayerRows<'_>,
        chosen: &Chosen<'_>,
        partials: &mut [Partial],
        output: &mut [f32],
    ) -> Result<(), EngineError> {
        let began = Instant::now();
        let chunk = &chosen.chunk;
        let audit = self.audit.as_ref().filter(|_| step.window.is_none());
        let sampled_reads = audit.map(|audit| audit.sample(&chunk.tiles, partials));
        if step.window.is_none() && chosen.device_means.is_empty() {
            let policies = self.policies.in_phase(step.phase).layer(input.cache_layer);
            extend_means(&mut self.cache, &mut self.means, policies, chunk)?;
            attend_means(
                &self.means,
                policies,
                chunk,
                &chosen.selections,
                &step.options,
                partials,
            )?;
        }
        let Heads { group, value_width, .. } = step.heads;
        let width = step.heads.result_width();
        let output = &mut output[chunk.tokens.start * width..chunk.tokens.end * width];
        for (tile, partial) in chunk.tiles.iter().zip(partials.iter()) {
            let at = tile.first_row * width + tile.kv_head * group * value_width;
            partial.finish_into(&mut output[at..], width, step.sinks_of(tile.kv_head))?;
        }
        if !chosen.dense_rows.is_empty() {
            correct(&mut self.cache, step, chunk, &chosen.dense_rows, output)?;
        }
        add_since(&mut self.counters.time_mut(step.phase).attend_ms, began);
        self.observe(step, input, chosen, Some(partials))?;
        if let Some(sampled_reads) = sampled_reads {
            self.compare(step, chosen, &sampled_reads, output)?;
        }
        if step.rotation.of_results(step.heads.is_latent) {
            // Rotated values give rotated results.
            rotate(output, rotated_widths(&step.heads.cached())[1]);
        }
        Ok(())
    }

    /// Compares sampled queries of a chunk with exact attention, and moves heads where that decides their policies. `output` is the
    /// chunk's.
    fn compare(
        &mut self,
        step: &LayerStep,
        chosen: &Chosen<'_>,
        sampled_reads: &SampledReads,
        output: &[f32],
    ) -> Result<(), EngineError> {
        let Some(audit) = &mut self.audit else { return Ok(()) };
        let samples = audit.compare(&mut self.cache, step, chosen, sampled_reads, output)?;
        let Some(auto) = self.auto.as_mut().filter(|_| step.phase == Phase::Prefill) else {
            return Ok(());
        };
        for (kv_head, (seen, missed)) in samples.into_iter().enumerate() {
            if let Some(spec) = auto.learn(chosen.chunk.layer, kv_head, seen, missed) {
                self.policies.prefill.replace(chosen.chunk.layer, kv_head, spec)?;
            }
        }
        Ok(())
    }

    /// True if the result of a layer may stay on a device: nothing in main memory adds to it or looks at it.
    fn leaves_output(
        &self,
        step: &LayerStep,
        cache_layer: usize,
        two_phases: bool,
        device_means: &[Option<usize>],
    ) -> bool {
        let mut policies = self.policies.in_phase(step.phase).layer(cache_layer).iter();
        let reads_means = policies.any(|policy| policy.summary_tokens().is_some());
        let needed = two_phases || self.audit.is_some() || (reads_means && device_means.is_empty());
        // No policy acts on a layer that has a window of its own, no audit looks at it.
        step.window.is_some() || !needed
    }

    /// Tokens in the blocks whose means policies of a layer read, by KV head, where a device keeps and reads these; nothing where
    /// there are none or main memory does.
    fn block_means_on_device(&mut self, step: &LayerStep, input: &LayerRows<'_>) -> Vec<Option<usize>> {
        // An audit compares what is read without means.
        if step.window.is_some() || self.audit.is_some() {
            return Vec::new();
        }
        let Some(estimates) = self.reader.estimates() else {
            return Vec::new();
        };
        let policies = self.policies.in_phase(step.phase).layer(input.cache_layer).iter();
        let blocks: Vec<_> = policies.map(|policy| policy.summary_tokens()).collect();
        let Slot(tokens) = input.slot.after(input.tokens);
        if estimates.keeps_means(&blocks, tokens) {
            blocks
        } else {
            Vec::new()
        }
    }

    /// Takes new keys into the bounds that a device keeps, where policies of the other phase will rank blocks by them, while
    /// their pages are there.
    fn extend_watched_bounds(
        &mut self,
        step: &LayerStep,
        input: &LayerRows<'_>,
        tokens: &Range<usize>,
    ) -> Result<bool, EngineError> {
        let (Some(estimates), Some(policies)) = (self.reader.estimates(), self.policies.beside(step.phase)) else {
            return Ok(false);
        };
        let chunk = Chunk::new(step, input, tokens.clone());
        match bounds_block(policies.layer(input.cache_layer), step, input, &chunk) {
            Some(block) => estimates.extend_bounds(&mut self.cache, input.cache_layer, block),
            None => Ok(false),
        }
    }

    /// Tells the policies of both phases the mass of the queries that they ask for.
    fn observe(
        &mut self,
        step: &LayerStep,
        input: &LayerRows<'_>,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError> {
        if step.window.is_some() {
            return Ok(());
        }
        let began = Instant::now();
        let call = ReadCall {
            input,
            chosen,
            options: &step.options,
        };
        for policies in self.policies.learning_mut(step.phase) {
            self.reader.observe(&mut self.cache, policies, &call, partials)?;
        }
        add_since(&mut self.counters.time_mut(step.phase).select_ms, began);
        Ok(())
    }
}

/// Shows the pages that an append has filled to the policies of the other phase: the pages may leave before that
/// phase begins.
fn summarize_new_pages(
    cache: &KvCache,
    policies: &mut PolicySet,
    step: &LayerStep,
    input: &LayerRows<'_>,
    tokens: Range<usize>,
) {
    let (page_tokens, reader) = (cache.shape().page_tokens, cache.read());
    for (kv_head, policy) in policies.layer_mut(input.cache_layer).iter_mut().enumerate() {
        let first = step.head_slot(input, tokens.start, kv_head) / page_tokens * page_tokens;
        for page in reader.pages_from(input.cache_layer, kv_head, first) {
            if page.tokens == page_tokens {
                policy.summarize(&page, step.heads.key_width);
            }
        }
    }
}
