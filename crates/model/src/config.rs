//! The sizes of a model, for the engine and the memory plan.

use riffle_linear::WeightFormat;

use crate::fields::Fields;
use crate::{ExpertClass, GatedDeltaNetShape, ModelError, StateShape, recorded};

/// Largest plausible number of layers, heads or dimensions of a head.
pub(crate) const LARGEST_COUNT: usize = 1 << 16;

/// The attention of a layer: its heads, their widths, and the source of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a query and of a key.
    pub key_width: usize,
    /// Elements of a value.
    pub value_width: usize,
    /// The earlier layer whose keys and values this one reads. `None` for a layer with its own.
    pub shares: Option<usize>,
    /// True if each query head has a logit that takes part in its softmax without a value
    /// ([`Attention::sinks`](crate::Attention)).
    pub has_sinks: bool,
    /// True if each value is a prefix of its key (multi-head latent attention, DeepSeek-V2, arXiv:2405.04434). The
    /// layer computes no values, and the rest of a key carries its position.
    pub is_latent: bool,
}

impl AttentionShape {
    /// Query heads of a KV head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The facts that a layer must have in common with the layer whose keys it reads.
    fn widths(&self) -> ([usize; 4], bool) {
        (
            [self.heads, self.kv_heads, self.key_width, self.value_width],
            self.is_latent,
        )
    }

    /// The first rotated dimension of a head.
    pub fn first_rotated(&self) -> usize {
        if self.is_latent { self.value_width } else { 0 }
    }

    /// Elements of all queries of a token.
    pub fn query_width(&self) -> usize {
        self.heads * self.key_width
    }

    /// Elements per token of all keys that the layer computes: none if it reads another layer's.
    pub fn keys_width(&self) -> usize {
        self.shares.map_or(self.kv_heads * self.key_width, |_| 0)
    }

    /// Elements per token of all values that the layer computes: none if it reads another layer's, or prefixes of
    /// keys.
    pub fn values_width(&self) -> usize {
        if self.shares.is_some() || self.is_latent {
            return 0;
        }
        self.kv_heads * self.value_width
    }

    /// Elements per token of attention's result.
    pub fn attended_width(&self) -> usize {
        self.heads * self.value_width
    }
}

/// Token selection of a layer that was trained for sparse reads (DeepSeek sparse attention, arXiv:2512.02556). The
/// score of a token is Σ weight · max(0, query · key) over the heads of an indexer. A query reads the tokens with the
/// highest scores. Qwen4-Exp ranks blocks of consecutive tokens instead of tokens: a query reads the best of the
/// complete blocks, and all tokens behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerShape {
    /// Query heads of the indexer.
    pub heads: usize,
    /// Elements of an indexer's query, and of its one key per token.
    pub width: usize,
    /// The most tokens that a query reads in complete blocks; a multiple of `block`.
    pub tokens: usize,
    /// Tokens of a block; 1 if tokens are ranked one by one.
    pub block: usize,
    /// The layer whose indexer selects: this layer, or an earlier one.
    pub chooser: usize,
}

/// The sizes of a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertShape {
    /// Experts of a layer.
    pub experts: usize,
    /// Experts of a token.
    pub used: usize,
    /// Inner width of an expert.
    pub width: usize,
    /// Inner width of the block that all tokens pass; 0 without one.
    pub shared_width: usize,
}

/// The sizes and settings of a model. Sizes count values unless the name says bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The architecture's name in config.json, such as `LlamaForCausalLM`.
    pub architecture: String,
    /// Rows of the embedding: token ids are lower.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// Key and value heads of a layer; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Inner width of the feed-forward block.
    pub intermediate_size: usize,
    /// The experts of layers with mixtures.
    pub experts: Option<ExpertShape>,
    /// Bytes of all experts, in the files or in memory.
    pub expert_bytes: u64,
    /// Experts that can stay in the model's files, by size. For a loaded model, experts that do stay there: none if
    /// all weights are in memory.
    pub streamable: Vec<ExpertClass>,
    /// Longest context of the model, in tokens.
    pub max_position: usize,
    /// Factor on query · key.
    pub attention_scale: f32,
    /// Attention logits become cap · tanh(logit / cap), if given.
    pub soft_cap: Option<f32>,
    /// For each layer, the length of its window in tokens, including the token itself, or `None` without a window.
    /// Empty if no layer has a window.
    pub windows: Vec<Option<usize>>,
    /// The attention of each layer; empty if all layers follow `heads`, `kv_heads` and `head_dim`. Entries of layers
    /// without attention are unused.
    pub attention: Vec<AttentionShape>,
    /// For each layer, the indexer that selects its queries' tokens, or `None` if they read everything. Empty if no
    /// layer has one.
    pub indexers: Vec<Option<IndexerShape>>,
    /// Leading dimensions of a head that carry position; the largest number if layers differ.
    pub rotary_dim: usize,
    /// Number of different rotations: 1, or 2 if local and global layers differ.
    pub rotary_tables: usize,
    /// The recurrent state of each layer; empty if no layer has one.
    pub states: Vec<Option<StateShape>>,
    /// For each layer, true if it attends, and so holds keys and values. If empty, every layer without a state does.
    pub attends: Vec<bool>,
    /// Values per token of each layer's input beside the residual stream ([`Step::LayerInput`](crate::Step)); 0
    /// without such inputs.
    pub layer_input_width: usize,
    /// Number of parallel residual streams ([`Step::Streams`](crate::Step)).
    pub streams: usize,
    /// Values of the widest gate on an attention result ([`Step::OpenGate`](crate::Step)).
    pub gate_width: usize,
    /// Scratch values per token in the widest attention. They include the values of
    /// [`LatentQuery::scratch_width`](crate::LatentQuery::scratch_width) and of [`Step::ProjectHeads`](crate::Step).
    pub attention_scratch: usize,
    /// A part that only the CPU computes, so that no device runs the model.
    pub host_only: Option<&'static str>,
    /// The quantisation method of safetensors weights, as named in the settings.
    pub quantised: Option<&'static str>,
    /// Layers in the files, after the model's own, that predict further tokens. One can be loaded on request.
    pub predicting_layers: usize,
    /// Bytes of such a layer in memory, as part of `weight_bytes`; 0 if it is not loaded.
    pub predictor_bytes: u64,
    /// True if a token sees later tokens too. Such a model reads whole texts and writes none.
    pub is_bidirectional: bool,
    /// True if the model predicts the next token: it reads in one direction and has a language-model head.
    pub predicts_tokens: bool,
    /// Number added to the variance in norms.
    pub norm_epsilon: f32,
    /// True if the embedding is also the output head.
    pub tied_embeddings: bool,
    /// The format of most weights.
    pub weight_format: WeightFormat,
    /// True if any of the weights are bf16.
    pub has_bf16_weights: bool,
    /// Bytes of the weights in memory. Experts that stay in the files count with all their bytes there.
    pub weight_bytes: u64,
}

impl ModelConfig {
    /// Records the quantisation method of safetensors weights: no device computes with the converted weights.
    pub(crate) fn set_quantised(&mut self, method: &'static str) {
        self.quantised = Some(method);
        self.host_only = self.host_only.or(Some("weights, which other programs quantised"));
    }

    /// The settings that nearly every decoder shares, under their Hugging Face names, checked.
    pub fn from_fields(fields: &Fields, architecture: &str) -> Result<ModelConfig, ModelError> {
        let hidden_size = fields.size("hidden_size")?;
        let heads = fields.size("num_attention_heads")?;
        let kv_heads = fields.optional_size("num_key_value_heads")?.unwrap_or(heads);
        let head_dim = match fields.optional_size("head_dim")? {
            Some(head_dim) => head_dim,
            None if hidden_size % heads == 0 => hidden_size / heads,
            None => {
                let problem = format!("{heads} heads do not divide hidden_size {hidden_size}; give head_dim");
                return Err(fields.error("num_attention_heads", problem));
            }
        };
        let config = ModelConfig {
            architecture: architecture.to_owned(),
            vocab_size: fields.size("vocab_size")?,
            hidden_size,
            layers: fields.size("num_hidden_layers")?,
            heads,
            kv_heads,
            head_dim,
            intermediate_size: fields.size("intermediate_size")?,
            experts: None,
            expert_bytes: 0,
            streamable: Vec::new(),
            max_position: fields.size("max_position_embeddings")?,
            attention_scale: (head_dim as f32).sqrt().recip(),
            soft_cap: None,
            windows: Vec::new(),
            attention: Vec::new(),
            indexers: Vec::new(),
            rotary_dim: head_dim,
            rotary_tables: 1,
            states: Vec::new(),
            attends: Vec::new(),
            layer_input_width: 0,
            streams: 1,
            gate_width: 0,
            attention_scratch: 0,
            host_only: None,
            quantised: None,
            predicting_layers: 0,
            predictor_bytes: 0,
            is_bidirectional: false,
            predicts_tokens: true,
            norm_epsilon: fields.optional_epsilon("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            tied_embeddings: fields.flag("tie_word_embeddings", false)?,
            weight_format: WeightFormat::F32,
            has_bf16_weights: false,
            weight_bytes: 0,
        };
        config.check_heads(fields)?;
        Ok(config)
    }

    fn check_heads(&self, fields: &Fields) -> Result<(), ModelError> {
        let (heads, kv_heads, head_dim) = (self.heads, self.kv_heads, self.head_dim);
        for (name, count) in [
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", heads),
            ("head_dim", head_dim),
        ] {
            if count > LARGEST_COUNT {
                return Err(fields.error(name, format!("{count} is not plausible, {LARGEST_COUNT} is the limit")));
            }
        }
        if heads % kv_heads != 0 {
            return Err(fields.error(
                "num_key_value_heads",
                format!("{kv_heads} key/value heads must divide the {heads} query heads"),
            ));
        }
        if head_dim % 2 != 0 {
            return Err(fields.error("head_dim", format!("{head_dim} is odd, rotation needs pairs")));
        }
        Ok(())
    }

    /// Sets which layers have a window and how long it is: from `layer_types` if config.json has it, otherwise from
    /// `slides`.
    pub fn set_windows(&mut self, fields: &Fields, slides: impl Fn(usize) -> bool) -> Result<(), ModelError> {
        let window = fields.optional_size("sliding_window")?;
        let types = fields.texts("layer_types")?;
        if !types.is_empty() && types.len() != self.layers {
            let problem = format!("lists {} layers, the model has {}", types.len(), self.layers);
            return Err(fields.error("layer_types", problem));
        }
        self.windows = Vec::with_capacity(self.layers);
        for layer in 0..self.layers {
            let slides = match types.get(layer).map(String::as_str) {
                None => slides(layer),
                Some("full_attention") => false,
                Some("sliding_attention") => true,
                Some(other) => {
                    let problem =
                        format!("{other:?} is not supported; supported are full_attention, sliding_attention");
                    return Err(fields.error("layer_types", problem));
                }
            };
            self.windows.push(window.filter(|_| slides));
        }
        Ok(())
    }

    /// Gives all layers the window of `sliding_window`, if there is one, for classes that ignore `layer_types`.
    pub fn set_window(&mut self, fields: &Fields) -> Result<(), ModelError> {
        let window = fields.optional_size("sliding_window")?;
        self.windows = window.map(|window| vec![Some(window); self.layers]).unwrap_or_default();
        Ok(())
    }

    /// The attention of a layer.
    pub fn attention_of(&self, layer: usize) -> AttentionShape {
        let alike = AttentionShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            key_width: self.head_dim,
            value_width: self.head_dim,
            shares: None,
            has_sinks: false,
            is_latent: false,
        };
        self.attention.get(layer).copied().unwrap_or(alike)
    }

    /// True if all layers have the same heads of one width, with their own keys and without sinks: devices support no
    /// others.
    pub fn is_uniform(&self) -> bool {
        self.attention.is_empty()
    }

    /// Number of layers with keys and values.
    pub fn attention_layers(&self) -> usize {
        self.cached_layers().count()
    }

    /// The layers with keys and values, in the order of their caches.
    pub fn cached_layers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.layers).filter(|layer| self.is_attention(*layer) && self.attention_of(*layer).shares.is_none())
    }

    /// Cache index of the layer whose keys a layer reads; `None` for a layer without attention.
    pub fn cache_layer(&self, layer: usize) -> Option<usize> {
        let owner = self.attention_of(layer).shares.unwrap_or(layer);
        self.is_attention(layer)
            .then(|| self.cached_layers().take_while(|cached| *cached < owner).count())
    }

    /// The indexer that selects the tokens for a layer's queries; `None` if they read everything.
    pub fn indexer_of(&self, layer: usize) -> Option<IndexerShape> {
        self.indexers.get(layer).copied().flatten()
    }

    /// The layers with their own indexer, whose keys a cache holds.
    pub fn indexing_layers(&self) -> impl Iterator<Item = usize> + '_ {
        let is_own = |layer: &usize| self.indexer_of(*layer).is_some_and(|indexer| indexer.chooser == *layer);
        (0..self.indexers.len()).filter(is_own)
    }

    /// Cache index of the keys of a layer's own indexer. It follows the indices of all layers.
    pub fn indexer_cache_layer(&self, layer: usize) -> Option<usize> {
        let place = self.indexing_layers().position(|indexing| indexing == layer)?;
        Some(self.attention_layers() + place)
    }

    /// Checks that the attention of layers is consistent.
    ///
    /// # Errors
    /// [`ModelError::Config`] for heads that do not divide. Also for a layer that reads the keys of a layer that has
    /// none of its own, has other widths or has another window.
    pub(crate) fn check_attention(&self, fields: &Fields) -> Result<(), ModelError> {
        let refuse = |layer: usize, problem: &str| Err(fields.error("layers", format!("layer {layer} {problem}")));
        if !self.attention.is_empty() && self.attention.len() != self.layers {
            let problem = format!("{} layers have attention of {}", self.layers, self.attention.len());
            return Err(fields.error("layers", problem));
        }
        for (layer, own) in self
            .attention
            .iter()
            .enumerate()
            .filter(|(layer, _)| self.is_attention(*layer))
        {
            if own.kv_heads == 0 || !own.heads.is_multiple_of(own.kv_heads) {
                return refuse(layer, "has KV heads that do not divide its query heads");
            }
            if own.is_latent && own.value_width >= own.key_width {
                return refuse(layer, "is latent and has no room for positions behind its values");
            }
            if let Some(indexer) = self.indexer_of(layer) {
                let chooser = self.indexer_of(indexer.chooser);
                if chooser.is_none_or(|chooser| chooser.chooser != indexer.chooser) || indexer.chooser > layer {
                    return refuse(layer, "reads what the indexer of a layer without one chooses");
                }
            }
            let Some(shared) = own.shares else { continue };
            let owner = self.attention_of(shared);
            let window = |layer: usize| self.windows.get(layer).copied().flatten();
            let is_owner = shared < layer && self.is_attention(shared);
            if !is_owner || owner.widths() != own.widths() || window(shared) != window(layer) {
                return refuse(layer, "reads the keys of a layer that has no such keys");
            }
        }
        Ok(())
    }

    /// Checks the states of layers.
    ///
    /// # Errors
    /// [`ModelError::Config`] for a list with the wrong length, and for sizes that disagree.
    pub(crate) fn check_states(&self, fields: &Fields) -> Result<(), ModelError> {
        for (length, list) in [(self.states.len(), "states"), (self.attends.len(), "attention")] {
            if length != 0 && length != self.layers {
                let problem = format!("{} layers have {list} of {length}", self.layers);
                return Err(fields.error("layers", problem));
            }
        }
        for (layer, shape) in self.state_layers() {
            if let Some(problem) = shape.problem() {
                return Err(fields.error("layers", format!("layer {layer} {problem}")));
            }
        }
        Ok(())
    }

    /// The recurrent state of a layer.
    pub fn state_of(&self, layer: usize) -> Option<StateShape> {
        self.states.get(layer).copied().flatten()
    }

    /// The layers with a recurrent state, with its shape.
    pub fn state_layers(&self) -> impl Iterator<Item = (usize, StateShape)> + '_ {
        let layers = self.states.iter().enumerate();
        layers.filter_map(|(layer, shape)| Some((layer, (*shape)?)))
    }

    /// True if any layer keeps a state.
    pub fn has_states(&self) -> bool {
        self.state_layers().next().is_some()
    }

    /// The sizes of a model's Gated DeltaNet layers. All its layers with a state must be of this kind and size, and
    /// have no attention. Devices support no other states.
    pub fn gated_delta_net(&self) -> Option<GatedDeltaNetShape> {
        let mut shapes = self.state_layers().map(|(layer, shape)| match shape {
            StateShape::GatedDeltaNet(shape) if !self.is_attention(layer) => Some(shape),
            _ => None,
        });
        let first = shapes.next()??;
        shapes.all(|shape| shape == Some(first)).then_some(first)
    }

    /// Scratch values per token of a row block in the widest mixer, gate or attention.
    pub(crate) fn mixer_width(&self) -> usize {
        let widths = self.state_layers().map(|(_, shape)| shape.scratch_width());
        widths
            .max()
            .unwrap_or(0)
            .max(self.gate_width)
            .max(self.attention_scratch)
    }

    /// Bytes of a [`RecurrentState`](crate::RecurrentState) of this model, for any context; 0 if no layer has a
    /// state.
    pub fn recurrent_bytes(&self) -> u64 {
        self.state_layers().map(|(_, shape)| shape.bytes()).sum()
    }

    /// The most bytes of recorded inputs in a [`RecurrentState`](crate::RecurrentState).
    pub fn recorded_bytes(&self) -> u64 {
        let layers = self.state_layers();
        layers.map(|(_, shape)| recorded::layer_bytes(&shape)).sum()
    }

    /// True if a layer attends.
    pub(crate) fn is_attention(&self, layer: usize) -> bool {
        let attends = self.attends.get(layer).copied();
        attends.unwrap_or_else(|| self.state_of(layer).is_none())
    }

    /// Values of all query heads of a token.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values of all key heads per token; values have the same number.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}
