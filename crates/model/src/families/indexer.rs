//! The settings and tensors of DeepSeek's indexer (arXiv:2512.02556), which selects the tokens that latent attention
//! reads.

use crate::blocks::{Indexer, IndexerKeys, Norm, Projection};
use crate::config::{IndexerShape, LARGEST_COUNT};
use crate::fields::Fields;
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError};

/// Epsilon of key norms, independent of the settings for other norms.
const EPSILON: f32 = 1e-6;

/// The indexers of a family, layer by layer.
#[derive(Debug, Clone)]
pub(super) struct IndexerPlan {
    layers: Vec<IndexerShape>,
    /// True if the two dimensions of a rotated pair are adjacent.
    interleaved: bool,
    /// Elements of queries and keys with positions (`qk_rope_head_dim`).
    rotated: usize,
    /// Width of the narrow queries (`q_lora_rank`).
    rank: usize,
}

impl IndexerPlan {
    /// Reads the settings, which have DeepSeek's names. A layer with `indexer_types` = `shared` uses the previous
    /// layer's selection.
    pub(super) fn read(fields: &Fields, interleaved: bool) -> Result<IndexerPlan, ModelError> {
        let size = |name: &str| match fields.size(name)? {
            size if size > LARGEST_COUNT => {
                Err(fields.error(name, format!("{size} is not plausible, {LARGEST_COUNT} is the limit")))
            }
            size => Ok(size),
        };
        let (heads, width, rotated) = (
            size("index_n_heads")?,
            size("index_head_dim")?,
            size("qk_rope_head_dim")?,
        );
        if rotated > width {
            let problem = format!("{width} is less than the {rotated} elements that carry positions");
            return Err(fields.error("index_head_dim", problem));
        }
        let (count, kinds) = (size("num_hidden_layers")?, fields.texts("indexer_types")?);
        if !kinds.is_empty() && kinds.len() != count {
            let problem = format!("lists {} layers, the model has {count}", kinds.len());
            return Err(fields.error("indexer_types", problem));
        }
        let tokens = fields.size("index_topk")?;
        let (mut layers, mut chooser) = (Vec::with_capacity(count), None);
        for layer in 0..count {
            match kinds.get(layer).map_or("full", String::as_str) {
                "full" => chooser = Some(layer),
                "shared" => {}
                other => {
                    let problem = format!("{other:?} is not supported; supported are full, shared");
                    return Err(fields.error("indexer_types", problem));
                }
            }
            let Some(chooser) = chooser else {
                return Err(fields.error("indexer_types", "the first layer must be full: it shares with none"));
            };
            layers.push(IndexerShape {
                heads,
                width,
                tokens,
                block: 1,
                chooser,
            });
        }
        Ok(IndexerPlan {
            layers,
            interleaved,
            rotated,
            rank: size("q_lora_rank")?,
        })
    }

    /// Sets which layers have an indexer.
    pub(super) fn configure(&self, config: &mut ModelConfig) {
        config.indexers = self.layers.iter().copied().map(Some).collect();
    }

    /// Loads the tensors below `name` of a layer with its own indexer.
    pub(super) fn build(
        &self,
        weights: &mut Checkpoint,
        name: &str,
        hidden: usize,
        layer: usize,
    ) -> Result<Option<Box<Indexer>>, ModelError> {
        let shape = self.layers[layer];
        if shape.chooser != layer {
            return Ok(None);
        }
        let part = |part: &str| format!("{name}.{part}");
        let width = shape.width;
        if self.interleaved {
            weights.interleave(&part("wq_b.weight"), shape.heads, self.rotated);
            weights.interleave(&part("wk.weight"), 1, self.rotated);
        }
        let mut of_keys = |kind: &str| -> Result<Vec<f32>, ModelError> {
            let mut values = weights.vector(&part(&format!("k_norm.{kind}")), width)?;
            if self.interleaved {
                let stored = values[..self.rotated].to_vec();
                let (first, second) = values[..self.rotated].split_at_mut(self.rotated / 2);
                for (pair, stored) in stored.chunks_exact(2).enumerate() {
                    (first[pair], second[pair]) = (stored[0], stored[1]);
                }
            }
            Ok(values)
        };
        let key_norm = Norm::Layer {
            weight: of_keys("weight")?,
            bias: of_keys("bias")?,
            epsilon: EPSILON,
        };
        Ok(Some(Box::new(Indexer {
            shape,
            query: Projection::load(weights, &part("wq_b"), shape.heads * width, self.rank, false)?,
            key: Projection::load(weights, &part("wk"), width, hidden, false)?,
            query_norm: None,
            keys: IndexerKeys::Tokens(key_norm),
            weights: Some(Projection::load(
                weights,
                &part("weights_proj"),
                shape.heads,
                hidden,
                false,
            )?),
        })))
    }
}
