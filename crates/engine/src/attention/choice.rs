//! Selections for a chunk's tiles: policies select using keys in any tier.

use rayon::prelude::*;
use riffle_attention::Selection;
use riffle_policy::{Estimate, Policy, SelectContext};

use crate::EngineError;
use crate::attention::{AttentionState, Chunk, LayerRows, ShownKeys, Tile, pages, reading};

impl AttentionState {
    /// Returns the selection of each tile of a chunk. With `two_phases` it also returns the selections of the first
    /// phase, else an empty list.
    pub(super) fn choose(
        &mut self,
        input: &LayerRows<'_>,
        chunk: &Chunk<'_>,
        two_phases: bool,
    ) -> Result<(Vec<Selection>, Vec<Selection>), EngineError> {
        let selections = match self.select_by_bounds(input, chunk)? {
            Some(selections) => selections,
            None if self.cache.is_near(chunk.layer) => self.select_near(input, chunk)?,
            None => self.select_far(input, chunk)?,
        };
        if !two_phases {
            return Ok((selections, Vec::new()));
        }
        let policies = self.policies.in_phase(input.step.phase).layer(chunk.layer);
        let own = |tile: &Tile<'_>| policies[tile.kv_head].select_own(&chunk.contexts[tile.kv_head]);
        Ok((selections, chunk.tiles.par_iter().map(own).collect()))
    }

    /// Selects if all policies of the layer rank blocks by bounds on a device: no key is read here.
    fn select_by_bounds(
        &mut self,
        input: &LayerRows<'_>,
        chunk: &Chunk<'_>,
    ) -> Result<Option<Vec<Selection>>, EngineError> {
        let Some(estimates) = self.reader.estimates() else {
            return Ok(None);
        };
        let policies = self.policies.of_mut(input.step.phase).layer_mut(chunk.layer);
        // Scores are sums over all queries of a tile.
        let is_one_tile = chunk.heads.tiles_of(chunk.tokens.len()) == 1;
        let Some(block) = bounds_block(policies, input, chunk).filter(|_| is_one_tile) else {
            return Ok(None);
        };
        let Some(scores) = estimates.bound_scores(&mut self.cache, chunk, block)? else {
            return Ok(None);
        };
        let selections = chunk.tiles.iter().zip(scores).map(|(tile, scores)| {
            let (policy, context) = (&mut policies[tile.kv_head], &chunk.contexts[tile.kv_head]);
            policy.prepare_from(&tile.queries, context, scores);
            policy.select(&tile.queries, context)
        });
        Ok(Some(selections.collect()))
    }

    /// Selects if every page is near.
    fn select_near(&mut self, input: &LayerRows<'_>, chunk: &Chunk<'_>) -> Result<Vec<Selection>, EngineError> {
        let policies = self.policies.of_mut(input.step.phase).layer_mut(chunk.layer);
        let both = policies.iter_mut().zip(&chunk.contexts);
        let from = both.map(|(policy, context)| policy.keys_from(&self.signs.shown_in(context)));
        let from: Vec<usize> = from.collect();
        let reader = self.cache.read();
        let pages = pages(&reader, chunk, |kv_head| from[kv_head]);
        let contexts = chunk.showing(&pages, &self.signs);
        let queries = |context: &SelectContext<'_>| input.tile(chunk.tokens.clone(), context.kv_head);
        let estimated = match self.reader.estimates() {
            Some(estimates) => {
                let asked = policies.iter().zip(&contexts);
                let asked: Vec<_> = asked
                    .map(|(policy, context)| policy.estimate(&queries(context), context))
                    .collect();
                let keys = ShownKeys {
                    pages: &pages,
                    versions: &reader.page_versions(chunk.layer),
                };
                estimates.estimate(&keys, chunk, &asked)?
            }
            None => policies.iter().map(|_| None).collect(),
        };
        let estimated = contexts.par_iter().zip(estimated);
        policies
            .par_iter_mut()
            .zip(estimated)
            .for_each(|(policy, (context, estimated))| {
                let queries = queries(context);
                match estimated {
                    Some(estimated) => policy.prepare_from(&queries, context, estimated),
                    None => policy.prepare(&queries, context),
                }
            });
        let policies = &*policies;
        let select = |tile: &Tile<'_>| policies[tile.kv_head].select(&tile.queries, &contexts[tile.kv_head]);
        Ok(chunk.tiles.par_iter().map(select).collect())
    }

    /// Selects one KV head at a time, and loads the keys that its policy reads.
    fn select_far(&mut self, input: &LayerRows<'_>, chunk: &Chunk<'_>) -> Result<Vec<Selection>, EngineError> {
        let mut selections = Vec::with_capacity(chunk.tiles.len());
        let policies = self.policies.of_mut(input.step.phase).layer_mut(chunk.layer);
        for (policy, context) in policies.iter_mut().zip(&chunk.contexts) {
            let queries = input.tile(chunk.tokens.clone(), context.kv_head);
            let tiles = chunk.tiles.iter().filter(|tile| tile.kv_head == context.kv_head);
            let tiles: Vec<&Tile<'_>> = tiles.collect();
            let choose = |policy: &mut Policy, context: &SelectContext<'_>| {
                policy.prepare(&queries, context);
                let policy = &*policy;
                let selections = tiles.par_iter().map(|tile| policy.select(&tile.queries, context));
                selections.collect::<Vec<_>>()
            };
            let head_dim = chunk.heads.key_width;
            let context = self.signs.shown_in(context);
            selections.extend(reading::with_keys(&mut self.cache, policy, &context, head_dim, choose)?);
        }
        Ok(selections)
    }
}

/// Tokens per block, if every policy of the layer ranks blocks by bounds of their keys; otherwise `None`.
pub(super) fn bounds_block(policies: &[Policy], input: &LayerRows<'_>, chunk: &Chunk<'_>) -> Option<usize> {
    let mut blocks = policies.iter().zip(&chunk.contexts).map(|(policy, context)| {
        let queries = input.tile(chunk.tokens.clone(), context.kv_head);
        match policy.estimate(&queries, context) {
            Some(Estimate::Bounds { block }) => Some(block),
            _ => None,
        }
    });
    let first = blocks.next()??;
    blocks.all(|block| block == Some(first)).then_some(first)
}
