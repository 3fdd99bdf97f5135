//! What the tiles of a chunk read: policies choose, from keys where they lie.

use std::ops::Range;

use rayon::prelude::*;
use riffle_attention::Selection;
use riffle_device::BatchRows;
use riffle_policy::{Estimate, Policy, SelectContext};

use crate::EngineError;
use crate::pass::attention_step::SequenceAttention;
use crate::pass::chunk::{Chunk, Step, pages};
use crate::pass::layer_rows::LayerRows;
use crate::pass::tiles::Tile;
use crate::pass::{device, reading};

impl SequenceAttention<'_> {
    /// What each tile of a chunk reads, and for the second of two phases what it read in the first.
    pub(crate) fn select(
        &mut self,
        input: &LayerRows<'_>,
        tokens: Range<usize>,
        two_phases: bool,
    ) -> Result<(Vec<Selection>, Vec<Selection>), EngineError> {
        let selections = match self.select_by_bounds(input, &tokens)? {
            Some(selections) => selections,
            None if self.cache.is_near(input.cache_layer) => self.select_near(input, tokens.clone())?,
            None => self.select_far(input, tokens.clone())?,
        };
        if !two_phases {
            return Ok((selections, Vec::new()));
        }
        let chunk = Chunk::new(&self.step, input, tokens);
        let policies = self.policies.layer(input.cache_layer);
        let own = |tile: &Tile<'_>| policies[tile.kv_head].select_own(&chunk.contexts[tile.kv_head]);
        Ok((selections, chunk.tiles.par_iter().map(own).collect()))
    }

    /// Selects where all policies of the layer rank blocks by bounds that the device keeps: no key is looked at here.
    fn select_by_bounds(
        &mut self,
        input: &LayerRows<'_>,
        tokens: &Range<usize>,
    ) -> Result<Option<Vec<Selection>>, EngineError> {
        let (Some(pages), Some(rows)) = (&mut self.device, input.on_device()) else {
            return Ok(None);
        };
        // Scores are of all queries of a tile together.
        let Some(block) = bounds_block(self.policies.layer(input.cache_layer), &self.step, input, tokens)
            .filter(|_| self.step.heads.tiles_of(tokens.len()) == 1)
        else {
            return Ok(None);
        };
        let queries = BatchRows::new(rows, input.first_row + tokens.start..input.first_row + tokens.end);
        let Some(scores) = device::bound_scores(pages, self.cache, input.cache_layer, &queries, block)? else {
            return Ok(None);
        };
        let chunk = Chunk::new(&self.step, input, tokens.clone());
        let policies = self.policies.layer_mut(input.cache_layer);
        let selections = chunk.tiles.iter().zip(scores).map(|(tile, scores)| {
            let (policy, context) = (&mut policies[tile.kv_head], &chunk.contexts[tile.kv_head]);
            policy.prepare_from(&tile.queries, context, scores);
            policy.select(&tile.queries, context)
        });
        Ok(Some(selections.collect()))
    }

    /// Selects where every page can be shown as it lies.
    fn select_near(&mut self, input: &LayerRows<'_>, tokens: Range<usize>) -> Result<Vec<Selection>, EngineError> {
        let unread = Chunk::new(&self.step, input, tokens.clone());
        let policies = self.policies.layer_mut(input.cache_layer).iter_mut();
        let from: Vec<usize> = policies
            .zip(&unread.contexts)
            .map(|(policy, context)| policy.keys_from(context))
            .collect();
        let reader = self.cache.read();
        let pages = pages(&reader, input, &self.step, &tokens, |kv_head| from[kv_head]);
        let chunk = Chunk::with_pages(&self.step, input, tokens.clone(), &pages);
        let queries = |context: &SelectContext<'_>| self.step.tile(input, tokens.clone(), context.kv_head);
        let policies = self.policies.layer_mut(input.cache_layer);
        let estimated = match (&mut self.device, input.on_device()) {
            (Some(device), Some(rows)) => {
                let asked = policies.iter().zip(&chunk.contexts);
                let asked: Vec<_> = asked
                    .map(|(policy, context)| policy.estimate(&queries(context), context))
                    .collect();
                let rows = BatchRows::new(rows, chunk.batch_rows.clone());
                let keys = device::ShownKeys {
                    layer: input.cache_layer,
                    pages: &pages,
                    versions: &reader.page_versions(input.cache_layer),
                };
                device::estimate(device, &keys, &rows, &chunk.contexts, &asked)?
            }
            _ => policies.iter().map(|_| None).collect(),
        };
        let estimated = chunk.contexts.par_iter().zip(estimated);
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
        let policies = self.policies.layer(input.cache_layer);
        let select = |tile: &Tile<'_>| policies[tile.kv_head].select(&tile.queries, &chunk.contexts[tile.kv_head]);
        Ok(chunk.tiles.par_iter().map(select).collect())
    }

    /// Selects KV head by KV head, with the keys that its policy looks at brought near.
    fn select_far(&mut self, input: &LayerRows<'_>, tokens: Range<usize>) -> Result<Vec<Selection>, EngineError> {
        let heads = self.step.heads;
        let chunk = Chunk::new(&self.step, input, tokens.clone());
        let mut selections = Vec::with_capacity(chunk.tiles.len());
        let policies = self.policies.layer_mut(input.cache_layer);
        for (policy, context) in policies.iter_mut().zip(&chunk.contexts) {
            let queries = self.step.tile(input, tokens.clone(), context.kv_head);
            let tiles = chunk.tiles.iter().filter(|tile| tile.kv_head == context.kv_head);
            let tiles: Vec<&Tile<'_>> = tiles.collect();
            let choose = |policy: &mut Policy, context: &SelectContext<'_>| {
                policy.prepare(&queries, context);
                let policy = &*policy;
                let selections = tiles.par_iter().map(|tile| policy.select(&tile.queries, context));
                selections.collect::<Vec<_>>()
            };
            selections.extend(reading::with_keys(self.cache, policy, context, heads.head_dim, choose)?);
        }
        Ok(selections)
    }
}

/// Tokens in the blocks that every one of a layer's policies ranks by bounds of their keys; `None` where one does not.
pub(crate) fn bounds_block(
    policies: &[Policy],
    step: &Step<'_>,
    input: &LayerRows<'_>,
    tokens: &Range<usize>,
) -> Option<usize> {
    let chunk = Chunk::new(step, input, tokens.clone());
    let mut blocks = policies.iter().zip(&chunk.contexts).map(|(policy, context)| {
        let queries = step.tile(input, tokens.clone(), context.kv_head);
        match policy.estimate(&queries, context) {
            Some(Estimate::Bounds { block }) => Some(block),
            _ => None,
        }
    });
    let first = blocks.next()??;
    blocks.all(|block| block == Some(first)).then_some(first)
}
