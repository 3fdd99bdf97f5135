//! The attention of a sequence in a layer of its model.

use std::ops::Range;

use riffle_attention::AttendOptions;
use riffle_model::ModelConfig;
use riffle_policy::Phase;

use crate::Sequence;
use crate::attention::{Heads, IndexRows, LayerIndex, LayerStep, LayerTraits};
use crate::compute::ProjectedLayer;

/// The attention of a model layer with keys, for tokens up to the length `goal`.
pub(super) fn layer_step(sequence: &Sequence, layer: usize, phase: Phase, goal: usize) -> LayerStep {
    let engine = sequence.engine();
    let (model, options) = (engine.model(), engine.options());
    let config = model.config();
    let cache_layer = config.cache_layer(layer).unwrap_or(0);
    let appends = config.attention_of(layer).shares.is_none();
    LayerStep {
        phase,
        layers: config.attention_layers(),
        heads: Heads::of_layer(config, layer),
        total_tokens: goal,
        page_tokens: options.cache.page_tokens,
        evicted_tokens: sequence
            .attention()
            .evicted
            .of_layer(&engine.resolved.cache, cache_layer),
        window: match (model.window(layer), sequence.options().window) {
            (Some(own), Some(kept)) => Some(own.min(kept.window_tokens)),
            (None, _) if !appends => Some(usize::MAX),
            (own, _) => own,
        },
        sinks: model.sinks(layer).cloned(),
        appends,
        rotation: engine.resolved.rotation,
        reads_ahead: true,
        options: AttendOptions::new(config.attention_scale)
            .with_soft_cap(config.soft_cap)
            .with_arithmetic(options.model.attention.arithmetic(phase)),
    }
}

/// The properties that decide how the attention of a model layer is split.
pub(super) fn layer_traits(sequence: &Sequence, layer: usize, phase: Phase) -> LayerTraits {
    let model = sequence.engine().model();
    let config = model.config();
    let is_chosen = config.attention_of(layer).shares.is_none() && model.window(layer).is_none();
    match config.cache_layer(layer).filter(|_| is_chosen) {
        Some(cache_layer) => sequence.attention().layer_traits(cache_layer, phase),
        None => LayerTraits {
            two_phases: false,
            follow_from_keys: true,
        },
    }
}

/// The indexer's selections for some rows of the batch, in a layer that has them.
pub(super) fn layer_index<'a>(
    config: &ModelConfig,
    projected: &ProjectedLayer<'a>,
    layer: usize,
    rows: &Range<usize>,
) -> Option<LayerIndex<'a>> {
    let shape = config.indexer_of(layer)?;
    let (Some(cache_layer), Some(index)) = (config.indexer_cache_layer(layer), projected.index) else {
        return Some(LayerIndex::Shared);
    };
    let behind = config.indexer_of(layer + 1);
    let own = IndexRows {
        shape,
        cache_layer,
        is_shared: behind.is_some_and(|behind| behind.chooser == layer),
        rows: index,
    };
    Some(LayerIndex::Own(own.of_rows(rows)))
}
