//! The sizes of a model, as the engine and the memory plan need them.

use riffle_linear::WeightFormat;

use crate::fields::Fields;
use crate::{ExpertClass, GatedDeltaNetShape, ModelError, StateShape, recorded};

/// Largest number of layers, heads or dimensions of a head that is taken seriously.
pub(crate) const LARGEST_COUNT: usize = 1 << 16;

/// The attention of a layer: its heads, their widths, and whose keys it reads.
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
    /// The layer whose keys and values this one reads: one before it that has its own. `None` for a layer with keys of its own.
    pub shares: Option<usize>,
    /// True if each query head has a logit that takes part in its softmax and has no value ([`Attention::sinks`](crate::Attention)).
    pub has_sinks: bool,
    /// True if each value is the beginning of its key (multi-head latent attention, DeepSeek-V2, arXiv:2405.04434): the layer computes
    /// no values, and what lies behind the value in a head carries its position.
    pub is_latent: bool,
}

impl AttentionShape {
    /// Query heads of a KV head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Everything that a layer has in common with the one whose keys it reads.
    fn widths(&self) -> ([usize; 4], bool) {
        (
            [self.heads, self.kv_heads, self.key_width, self.value_width],
            self.is_latent,
        )
    }

    /// The first dimension of a head that the rotation to its position turns.
    pub fn first_rotated(&self) -> usize {
        if self.is_latent { self.value_width } else { 0 }
    }

    /// Elements of all queries of a token.
    pub fn query_width(&self) -> usize {
        self.heads * self.key_width
    }

    /// Elements of all keys of a token that the layer computes: none where it reads those of another.
    pub fn keys_width(&self) -> usize {
        self.shares.map_or(self.kv_heads * self.key_width, |_| 0)
    }

    /// Elements of all values of a token that the layer computes: none where it reads those of another, or in keys.
    pub fn values_width(&self) -> usize {
        if self.shares.is_some() || self.is_latent {
            return 0;
        }
        self.kv_heads * self.value_width
    }

    /// Elements that attention returns for a token.
    pub fn attended_width(&self) -> usize {
        self.heads * self.value_width
    }
}

/// How a layer that was trained to read few tokens chooses them (DeepSeek sparse attention, arXiv:2512.02556): the score of a token
/// is Σ weight · max(0, query · key) over the heads of an indexer, and a query reads the tokens of the highest scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerShape {
    /// Query heads of the indexer.
    pub heads: usize,
    /// Elements of a query of the indexer, and of the one key that a token has in it.
    pub width: usize,
    /// Tokens that a query reads at most.
    pub tokens: usize,
    /// The layer whose indexer chooses: the layer itself, or one before it.
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
    /// Inner width of the block that every token passes; 0 where there is none.
    pub shared_width: usize,
}

/// The sizes and settings of a model. Sizes are counts of values unless the name says bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The architecture's name in config.json, such as `LlamaForCausalLM`.
    pub architecture: String,
    /// Rows of the embedding: every token id lies below.
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
    /// The experts of layers that are mixtures of them.
    pub experts: Option<ExpertShape>,
    /// Bytes of all experts, in the files or in memory.
    pub expert_bytes: u64,
    /// Experts that can stay in the model's files, by size. Of a loaded model, experts that do stay there: none where all weights are in memory.
    pub streamable: Vec<ExpertClass>,
    /// Tokens the model was made for.
    pub max_position: usize,
    /// Factor on query · key.
    pub attention_scale: f32,
    /// Attention logits are bent to cap · tanh(logit / cap), when given.
    pub soft_cap: Option<f32>,
    /// For each layer the tokens it looks back, counting the token itself, or `None` where it sees everything; empty
    /// where no layer slides.
    pub windows: Vec<Option<usize>>,
    /// The attention of each layer; empty where all layers are as `heads`, `kv_heads` and `head_dim` say. Entries of layers
    /// without attention are not read.
    pub attention: Vec<AttentionShape>,
    /// For each layer the indexer that chooses what its queries read, or `None` where they read everything; empty where no layer has
    /// one.
    pub indexers: Vec<Option<IndexerShape>>,
    /// Leading dimensions of a head that carry position; the most of them where layers differ.
    pub rotary_dim: usize,
    /// Different rotations in the model: 1, or 2 where local and global layers differ.
    pub rotary_tables: usize,
    /// The state that each layer keeps besides keys and values; empty where no layer keeps one.
    pub states: Vec<Option<StateShape>>,
    /// For each layer true if it attends, and so holds keys and values. Where it is empty, every layer without a state does.
    pub attends: Vec<bool>,
    /// Values of the input that each layer gets from a token beside the residual stream ([`Step::LayerInput`](crate::Step)); 0 where
    /// there are none.
    pub layer_input_width: usize,
    /// Residual streams of a token beside each other ([`Step::Streams`](crate::Step)).
    pub streams: usize,
    /// Values of the widest gate on an attention result ([`Step::OpenGate`](crate::Step)).
    pub gate_width: usize,
    /// Values of scratch that a token takes in the widest attention: beside the others, those of
    /// [`LatentQuery::scratch_width`](crate::LatentQuery::scratch_width) and of [`Step::ProjectHeads`](crate::Step).
    pub attention_scratch: usize,
    /// A part that is computed in main memory alone: no device computes the model.
    pub host_only: Option<&'static str>,
    /// The method that weights of safetensors were quantised by, as settings name it.
    pub quantised: Option<&'static str>,
    /// Layers behind the model's own that predict further tokens, in the files. One can be loaded where it is asked for.
    pub predicting_layers: usize,
    /// Bytes that such a layer takes in memory, as part of `weight_bytes`; 0 where it is not loaded.
    pub predictor_bytes: u64,
    /// True if a token sees those behind it as well as those before it. Such a model reads whole texts and writes none.
    pub is_bidirectional: bool,
    /// True if the model predicts the next token: it reads in one direction and has a head for words.
    pub predicts_tokens: bool,
    /// Added to the variance in norms.
    pub norm_epsilon: f32,
    /// True if the embedding serves as output head too.
    pub tied_embeddings: bool,
    /// The format that holds most of the weights.
    pub weight_format: WeightFormat,
    /// True if any of the weights are bf16.
    pub has_bf16_weights: bool,
    /// Bytes the weights take in memory. Experts that stay in the files count with their bytes there, all of them.
    pub weight_bytes: u64,
}

impl ModelConfig {
    /// Notes the method that weights of safetensors were quantised by: no device computes with what they become.
    pub(crate) fn set_quantised(&mut self, method: &'static str) {
        self.quantised = Some(method);
        self.host_only = self.host_only.or(Some("weights, which other programs quantised"));
    }

    /// The settings nearly every decoder shares, under their Hugging Face names, checked.
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

    /// Which layers slide and how far they see: `layer_types` where config.json lists them, else as `slides` says.
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

    /// Gives all layers the window of `sliding_window`, where there is one: for classes that read no `layer_types`.
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

    /// True if all layers have the same heads of one width, with keys of their own and without sinks: devices compute no others.
    pub fn is_uniform(&self) -> bool {
        self.attention.is_empty()
    }

    /// Layers that hold keys and values.
    pub fn attention_layers(&self) -> usize {
        self.cached_layers().count()
    }

    /// The layers that hold keys and values, in the order of their caches.
    pub fn cached_layers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.layers).filter(|layer| self.is_attention(*layer) && self.attention_of(*layer).shares.is_none())
    }

    /// The place among the layers that hold keys and values of the one whose keys a layer reads; `None` for a layer without attention.
    pub fn cache_layer(&self, layer: usize) -> Option<usize> {
        let owner = self.attention_of(layer).shares.unwrap_or(layer);
        self.is_attention(layer)
            .then(|| self.cached_layers().take_while(|cached| *cached < owner).count())
    }

    /// The indexer that chooses what the queries of a layer read; `None` where they read everything.
    pub fn indexer_of(&self, layer: usize) -> Option<IndexerShape> {
        self.indexers.get(layer).copied().flatten()
    }

    /// The layers that have an indexer of their own, whose keys a cache holds.
    pub fn indexing_layers(&self) -> impl Iterator<Item = usize> + '_ {
        let is_own = |layer: &usize| self.indexer_of(*layer).is_some_and(|indexer| indexer.chooser == *layer);
        (0..self.indexers.len()).filter(is_own)
    }

    /// The place of the keys of a layer's own indexer in a cache: behind those of all layers.
    pub fn indexer_cache_layer(&self, layer: usize) -> Option<usize> {
        let place = self.indexing_layers().position(|indexing| indexing == layer)?;
        Some(self.attention_layers() + place)
    }

    /// Checks what the attention of layers says of each other.
    ///
    /// # Errors
    /// [`ModelError::Config`] for heads that do not divide, and for a layer that shares the keys of one that has none of its own, of
    /// other widths or of another window.
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
    /// [`ModelError::Config`] for a list of another length than the model's, and for sizes that disagree.
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

    /// The state that a layer keeps besides keys and values.
    pub fn state_of(&self, layer: usize) -> Option<StateShape> {
        self.states.get(layer).copied().flatten()
    }

    /// The layers that keep a state, with its shape.
    pub fn state_layers(&self) -> impl Iterator<Item = (usize, StateShape)> + '_ {
        let layers = self.states.iter().enumerate();
        layers.filter_map(|(layer, shape)| Some((layer, (*shape)?)))
    }

    /// True if any layer keeps a state.
    pub fn has_states(&self) -> bool {
        self.state_layers().next().is_some()
    }

    /// The sizes of a model's Gated DeltaNet layers: of a model in which all layers with a state are such, of one size, and have no
    /// attention. Devices compute no other states.
    pub fn gated_delta_net(&self) -> Option<GatedDeltaNetShape> {
        let mut shapes = self.state_layers().map(|(layer, shape)| match shape {
            StateShape::GatedDeltaNet(shape) if !self.is_attention(layer) => Some(shape),
            _ => None,
        });
        let first = shapes.next()??;
        shapes.all(|shape| shape == Some(first)).then_some(first)
    }

    /// Values of scratch that a token of a row block takes in the widest mixer, gate or attention.
    pub(crate) fn mixer_width(&self) -> usize {
        let widths = self.state_layers().map(|(_, shape)| shape.scratch_width());
        widths
            .max()
            .unwrap_or(0)
            .max(self.gate_width)
            .max(self.attention_scratch)
    }

    /// Bytes of a [`RecurrentState`](crate::RecurrentState) of this model, whatever the context; 0 where no layer keeps a state.
    pub fn recurrent_bytes(&self) -> u64 {
        self.state_layers().map(|(_, shape)| shape.bytes()).sum()
    }

    /// Bytes of the inputs that a [`RecurrentState`](crate::RecurrentState) records at most.
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

    /// Values of all key heads of a token, the same for values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}
