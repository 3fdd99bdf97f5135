//! The parts of a model that are independent of its weights.

use std::sync::Arc;

use crate::ModelConfig;
use crate::blocks::{Rotary, for_rows};
use crate::layer::Layer;

/// A model's sizes and the position encoding of its keys: the facts that an engine needs on any device.
#[derive(Debug, Clone)]
pub struct ModelOutline {
    config: ModelConfig,
    // by layer; `None` for layers without keys
    rotations: Vec<Option<Arc<Rotary>>>,
    // by layer
    sinks: Vec<Option<Arc<[f32]>>>,
    rotation_changes_at: Option<usize>,
}

impl ModelOutline {
    pub(crate) fn new(config: &ModelConfig, layers: &[Layer]) -> ModelOutline {
        let rotation = |layer: &Layer| Some(Arc::clone(&layer.attention.as_ref()?.rotary));
        let rotations: Vec<Option<Arc<Rotary>>> = layers.iter().map(rotation).collect();
        ModelOutline {
            config: config.clone(),
            rotation_changes_at: rotations.iter().flatten().find_map(|rotary| rotary.changes_at()),
            rotations,
            sinks: layers
                .iter()
                .map(|layer| layer.attention.as_ref()?.sinks.clone())
                .collect(),
        }
    }

    /// Sizes and settings.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The window of layer `layer` in tokens, including the token itself; `None` without a window.
    pub fn window(&self, layer: usize) -> Option<usize> {
        *self.config.windows.get(layer)?
    }

    /// The attention sinks of a layer, one logit per query head, if it has them.
    pub fn sinks(&self, layer: usize) -> Option<&Arc<[f32]>> {
        self.sinks.get(layer)?.as_ref()
    }

    /// The sequence length beyond which its keys rotate differently (LongRoPE); keys of the two kinds do not mix.
    /// `None` if keys do not depend on the length.
    pub fn rotation_changes_at(&self) -> Option<usize> {
        self.rotation_changes_at
    }

    /// Rotates keys of a layer, `[tokens, kv_heads, key_width]`, in a sequence of `length` tokens. Their positions
    /// begin at `from`, and at `to` afterwards. It is as exact as the rotation to a position.
    pub fn move_keys(&self, layer: usize, keys: &mut [f32], from: usize, to: usize, length: usize) {
        let rotary = self.rotations.get(layer).and_then(Option::as_ref);
        if let Some(rotary) = rotary.filter(|_| from != to) {
            let shape = self.config.attention_of(layer);
            for_rows(keys, shape.keys_width(), |row, keys| {
                rotary.move_heads(
                    keys,
                    (shape.key_width, shape.first_rotated()),
                    (from + row, to + row),
                    length,
                );
            });
        }
    }
}
