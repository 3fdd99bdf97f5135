//! The parts of a model that are known without its weights.

use std::sync::Arc;

use crate::ModelConfig;
use crate::blocks::{Rotary, for_rows};
use crate::layer::Layer;

/// A model's sizes and how its keys carry positions: what an engine needs wherever the weights are.
#[derive(Debug, Clone)]
pub struct ModelOutline {
    config: ModelConfig,
    // by layer; `None` where there are no keys
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

    /// Tokens layer `layer` looks back, counting the token itself; `None` where it sees everything.
    pub fn window(&self, layer: usize) -> Option<usize> {
        *self.config.windows.get(layer)?
    }

    /// A logit of each query head of a layer that takes part in its softmax and has no value, where the layer has such.
    pub fn sinks(&self, layer: usize) -> Option<&Arc<[f32]>> {
        self.sinks.get(layer)?.as_ref()
    }

    /// The length of a sequence beyond which its keys turn otherwise than below (LongRoPE): keys of the two kinds do not go
    /// together. `None` for models whose keys do not depend on the length.
    pub fn rotation_changes_at(&self) -> Option<usize> {
        self.rotation_changes_at
    }

    /// Turns keys of a layer, `[tokens, kv_heads, key_width]`, that stand at positions from `from` on as if they stood at
    /// positions from `to` on, in a sequence of `length` tokens. As exact as the turn by a position is itself.
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
