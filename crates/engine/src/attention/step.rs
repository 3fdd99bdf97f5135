//! The attention of one sequence in one layer: append to the cache, let the policies select, attend, observe.

use std::ops::Range;
use std::time::Instant;

use rayon::prelude::*;
use riffle_attention::{AttendJob, Partial, Selection, attend_batch};
use riffle_kv::KvCache;
use riffle_policy::{Phase, Policy, PolicySet};

use crate::attention::{
    AttentionState, Chosen, Chunk, LayerRows, LayerStep, Rotation, SampledRun, Slot, attend_means, bounds_block,
    correct, dense_rows, extend_means, pages, reading, rotate, rotated_widths,
};
use crate::{EngineError, PairCount};

impl AttentionState {
    /// Adds keys and values of some rows to the cache.
    pub(crate) fn append(&mut self, input: &LayerRows<'_>, tokens: Range<usize>) -> Result<(), EngineError> {
        let step = &input.step;
        if !step.appends {
            return Ok(());
        }
        self.reader.append(&mut self.cache, input, &tokens)?;
        if let Some(index) = &input.index {
            self.append_index(index, &tokens)?;
        }
        // The previous chunk has already been waited for.
        self.take_attended_time(step.phase)?;
        if step.window.is_some() {
            return Ok(());
        }
        if input.index.is_none() {
            let began = Instant::now();
            self.extend_signs(input.cache_layer)?;
            self.counters.add_select_time(step.phase, began);
        }
        if self.extend_watched_bounds(input, &tokens)? {
            return Ok(());
        }
        if let Some(policies) = self.policies.beside_mut(step.phase)
            && self.cache.tiers().has_farther()
        {
            summarize_new_pages(&self.cache, policies, input, tokens);
        }
        Ok(())
    }

    /// Lets the policies select for an appended chunk.
    pub(crate) fn select<'q>(
        &mut self,
        input: &LayerRows<'q>,
        tokens: Range<usize>,
    ) -> Result<Chosen<'q>, EngineError> {
        let (began, step) = (Instant::now(), &input.step);
        let two_phases = step.window.is_none() && self.layer_traits(input.cache_layer, step.phase).two_phases;
        let chunk = Chunk::new(input, tokens);
        let (selections, own) = match (step.window, &input.index) {
            (Some(window), _) => {
                let selection = Selection::none().with_row_window(window);
                (vec![selection; chunk.tiles.len()], Vec::new())
            }
            (None, Some(index)) => (self.select_by_index(index, &chunk)?, Vec::new()),
            (None, None) => self.choose(input, &chunk, two_phases)?,
        };
        let device_means = self.block_means_on_device(input);
        let next = match step.phase {
            Phase::Prefill if chunk.tokens.end < input.tokens => input.cache_layer,
            _ => (input.cache_layer + 1) % step.layers,
        };
        let policies = self.policies.of_mut(step.phase).layer_mut(input.cache_layer);
        let (dense_rows, more) = match step.window {
            Some(_) => Default::default(),
            None => dense_rows(&chunk, policies, [&own, &selections]),
        };
        let scans = policies.iter_mut().map(Policy::take_scan).collect();
        let counts = match step.window {
            // Policies do not act on this layer, so its pairs are not counted.
            Some(_) => vec![PairCount::default(); step.heads.kv_heads],
            None => self.count_pairs(step, &chunk, [&own, &selections], &more),
        };
        if step.phase == Phase::Decode {
            let Slot(slot) = input.slot.after(chunk.tokens.start);
            counts.iter().for_each(|count| self.counters.count_row(slot, *count));
        }
        let stays_on_device = self.reader.may_keep_results()
            && dense_rows.is_empty()
            && self.leaves_output(input, two_phases, &device_means);
        self.counters.add_select_time(step.phase, began);
        Ok(Chosen {
            stays_on_device,
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

    /// Counts the query-key pairs that a chunk reads in one or two phases, by KV head. `more` counts the additional
    /// pairs of dense rows.
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

    /// The mass that already appended queries give each token of the layer, `[tokens]`, summed over rows and heads in
    /// order.
    pub(crate) fn token_mass(&mut self, input: &LayerRows<'_>) -> Result<Vec<f32>, EngineError> {
        let chunk = Chunk::new(input, 0..input.tokens);
        let mut total = vec![0.0; chunk.end()];
        for mass in reading::exact_masses(&mut self.cache, &chunk)? {
            total.iter_mut().zip(&mass).for_each(|(total, mass)| *total += mass);
        }
        Ok(total)
    }

    /// The first of two phases: appends the rows and attends all chunks to their own tokens together.
    pub(crate) fn attend_own(
        &mut self,
        input: &LayerRows<'_>,
        chunk_tokens: usize,
        partials: &mut Vec<Partial>,
    ) -> Result<(), EngineError> {
        self.append(input, 0..input.tokens)?;
        let (began, step) = (Instant::now(), &input.step);
        let firsts = (0..input.tokens).step_by(chunk_tokens);
        let chunks = firsts.map(|first| Chunk::new(input, first..(first + chunk_tokens).min(input.tokens)));
        let chunks: Vec<Chunk<'_>> = chunks.collect();
        let reader = self.cache.read();
        let shown: Vec<_> = chunks.iter().map(|chunk| pages(&reader, chunk, |_| 0)).collect();
        let policies = self.policies.in_phase(step.phase).layer(input.cache_layer);
        let tiles = chunks.iter().zip(&shown).flat_map(|(chunk, pages)| {
            let contexts = chunk.showing(pages, &self.signs);
            let tiles = chunk.tiles.iter();
            tiles.map(move |tile| (tile, chunk.kv(tile.kv_head, pages), contexts[tile.kv_head]))
        });
        let tiles: Vec<_> = tiles.collect();
        let selections: Vec<Selection> = tiles
            .par_iter()
            .map(|(tile, _, context)| policies[tile.kv_head].select_own(context))
            .collect();
        let jobs = tiles.iter().zip(&selections);
        let jobs = jobs.map(|((tile, kv, _), selection)| AttendJob {
            queries: tile.queries,
            kv: *kv,
            selection,
        });
        let jobs: Vec<AttendJob<'_>> = jobs.collect();
        partials.resize_with(jobs.len(), || Partial::new(0, 0, 0));
        for (partial, job) in partials.iter_mut().zip(&jobs) {
            partial.reset(job.queries.rows, job.queries.group, step.heads.value_width);
        }
        attend_batch(&jobs, &step.options, partials)?;
        self.counters.add_attend_time(step.phase, began, 1);
        Ok(())
    }

    /// Writes the result of a chunk to `output`, the rows of the sequence `[tokens, heads, value_width]`. Passes it to
    /// policies, observers and the audit. A result that stays on the device is completed there.
    pub(crate) fn complete(
        &mut self,
        step: &LayerStep,
        chosen: &Chosen<'_>,
        partials: &mut [Partial],
        output: &mut [f32],
    ) -> Result<(), EngineError> {
        if step.window.is_none() {
            let read = (!chosen.stays_on_device).then_some(&*partials);
            self.observers.observe(&mut self.cache, chosen, read)?;
            if let Some(scorer) = self.scorer.as_mut().filter(|_| step.appends) {
                scorer.score(&mut self.cache, &mut self.pair_scores, chosen)?;
            }
        }
        if chosen.stays_on_device {
            // The device's clock measures the time of the call after it has run.
            self.observe(step, chosen, None)?;
            self.reader.complete(chosen, step.rotation)?;
        } else {
            self.finish(step, chosen, partials, output)?;
        }
        if step.reads_ahead {
            self.reader.read_ahead(&self.cache, chosen.next)?;
        }
        Ok(())
    }

    /// Writes a chunk's result in main memory to `output`.
    fn finish(
        &mut self,
        step: &LayerStep,
        chosen: &Chosen<'_>,
        partials: &mut [Partial],
        output: &mut [f32],
    ) -> Result<(), EngineError> {
        let began = Instant::now();
        let chunk = &chosen.chunk;
        let audit = self.audit.as_ref().filter(|_| step.window.is_none());
        let sampled_runs = audit.map(|audit| audit.sample(&chunk.tiles, partials));
        if step.window.is_none() && chosen.device_means.is_empty() {
            let policies = self.policies.in_phase(step.phase).layer(chunk.layer);
            extend_means(&mut self.cache, &mut self.means, policies, chunk)?;
            attend_means(&self.means, policies, chosen, partials)?;
        }
        let width = chunk.heads.result_width();
        let output = &mut output[chunk.tokens.start * width..chunk.tokens.end * width];
        for (tile, partial) in chunk.tiles.iter().zip(partials.iter()) {
            let at = tile.first_row * width + tile.kv_head * chunk.heads.group * chunk.heads.value_width;
            partial.finish_into(&mut output[at..], width, chunk.sinks_of(tile.kv_head))?;
        }
        if !chosen.dense_rows.is_empty() {
            correct(&mut self.cache, chunk, &chosen.dense_rows, output)?;
        }
        self.counters.add_attend_time(step.phase, began, 1);
        self.observe(step, chosen, Some(partials))?;
        if let Some(sampled_runs) = sampled_runs {
            self.compare(step.phase, chosen, &sampled_runs, output)?;
        }
        let Rotation { keys, values } = step.rotation;
        // Results are sums of values, so they are rotated if the values are. Latent values are prefixes of keys.
        let is_rotated = if step.heads.is_latent { keys } else { values };
        if is_rotated {
            rotate(output, rotated_widths(&step.heads.cached())[1]);
        }
        Ok(())
    }

    /// Compares sampled queries of a chunk with exact attention, and adapts the policies of heads if they are
    /// automatic. `output` is the chunk's.
    fn compare(
        &mut self,
        phase: Phase,
        chosen: &Chosen<'_>,
        sampled_runs: &[SampledRun],
        output: &[f32],
    ) -> Result<(), EngineError> {
        let Some(audit) = &mut self.audit else { return Ok(()) };
        let samples = audit.compare(&mut self.cache, chosen, sampled_runs, output)?;
        let Some(auto) = self.auto.as_mut().filter(|_| phase == Phase::Prefill) else {
            return Ok(());
        };
        for (kv_head, (seen, missed)) in samples.into_iter().enumerate() {
            if let Some(spec) = auto.learn(chosen.chunk.layer, kv_head, seen, missed) {
                self.policies.prefill.replace(chosen.chunk.layer, kv_head, spec)?;
            }
        }
        Ok(())
    }

    /// True if the result of a layer may stay on a device: nothing in main memory adds to it or reads it.
    fn leaves_output(&self, input: &LayerRows<'_>, two_phases: bool, device_means: &[Option<usize>]) -> bool {
        let mut policies = self.policies.in_phase(input.step.phase).layer(input.cache_layer).iter();
        let reads_means = policies.any(|policy| policy.summary_tokens().is_some());
        let needed = two_phases || self.audit.is_some() || (reads_means && device_means.is_empty());
        // Layers with a window have no policies and no audit.
        input.step.window.is_some() || !needed
    }

    /// Tokens per block mean for each KV head, if the layer's policies read block means on a device; otherwise empty.
    fn block_means_on_device(&mut self, input: &LayerRows<'_>) -> Vec<Option<usize>> {
        let policies = self.policies.in_phase(input.step.phase).layer(input.cache_layer).iter();
        // An audit compares reads without means. Kernels on devices read the means of whole blocks alone.
        let of_parts = policies.clone().any(Policy::summarizes_parts);
        if input.step.window.is_some() || self.audit.is_some() || of_parts {
            return Vec::new();
        }
        let blocks: Vec<_> = policies.map(|policy| policy.summary_tokens()).collect();
        let Slot(tokens) = input.slot.after(input.tokens);
        let mut estimates = self.reader.estimates().into_iter();
        if estimates.any(|estimates| estimates.keeps_means(&blocks, tokens)) {
            blocks
        } else {
            Vec::new()
        }
    }

    /// Adds new keys to bounds on a device while their pages are there. Policies of the other phase will rank blocks by
    /// these bounds.
    fn extend_watched_bounds(&mut self, input: &LayerRows<'_>, tokens: &Range<usize>) -> Result<bool, EngineError> {
        let policies = self.policies.beside_mut(input.step.phase);
        let (Some(estimates), Some(policies)) = (self.reader.estimates(), policies) else {
            return Ok(false);
        };
        let chunk = Chunk::new(input, tokens.clone());
        match bounds_block(policies.layer(input.cache_layer), input, &chunk) {
            Some(block) => estimates.extend_bounds(&mut self.cache, input.cache_layer, block),
            None => Ok(false),
        }
    }

    /// Passes the mass of the requested queries to the policies of both phases.
    fn observe(
        &mut self,
        step: &LayerStep,
        chosen: &Chosen<'_>,
        partials: Option<&[Partial]>,
    ) -> Result<(), EngineError> {
        if step.window.is_some() {
            return Ok(());
        }
        let began = Instant::now();
        for policies in self.policies.learning_mut(step.phase) {
            self.reader.observe(&mut self.cache, policies, chosen, partials)?;
        }
        self.counters.add_select_time(step.phase, began);
        Ok(())
    }
}

/// Passes newly filled pages to the policies of the other phase, because the pages may move away before that phase
/// begins.
fn summarize_new_pages(cache: &KvCache, policies: &mut PolicySet, input: &LayerRows<'_>, tokens: Range<usize>) {
    let (page_tokens, reader) = (cache.shape().page_tokens, cache.read());
    for (kv_head, policy) in policies.layer_mut(input.cache_layer).iter_mut().enumerate() {
        let first = input.head_slot(tokens.start, kv_head) / page_tokens * page_tokens;
        for page in reader.pages_from(input.cache_layer, kv_head, first) {
            if page.tokens == page_tokens {
                policy.summarize(&page, input.step.heads.key_width);
            }
        }
    }
}
