//! Attention for a model that computes elsewhere: the caller projects queries, keys and values; this module stores
//! their pages, selects and attends.

use riffle_attention::{AttendOptions, Partial};
use riffle_kv::{KvCache, KvError, KvUsage, LayerShape};
use riffle_policy::{CostModel, Phase, PolicyRules, PolicyShape};

use crate::attention::{
    AttentionState, Audit, Evicted, Heads, HostReader, LayerRows, LayerStep, NewKeys, Policies, Rotation, RoundRows,
    SlidingLayer, Slot, attend_round, rotate, rotated_widths,
};
use crate::error::require;
use crate::{AttentionPrecision, AuditReport, AuditedQuery, EngineError, PairCount};

/// Options of a [`CachedAttention`].
#[derive(Debug, Clone)]
pub struct CachedAttentionOptions {
    /// Query heads of a layer; a multiple of the cache's KV heads.
    pub heads: usize,
    /// Policies that select for prompt tokens.
    pub prefill: PolicyRules,
    /// Policies that select for generated tokens.
    pub decode: PolicyRules,
    /// Prompt tokens whose attention is computed together.
    pub chunk_tokens: usize,
    /// Precision of products in prompts.
    pub attention: AttentionPrecision,
    /// Costs, for the guards of short prompts.
    pub cost: CostModel,
    /// Compare sampled queries with exact attention ([`CachedAttention::audit`]).
    pub audit: bool,
}

/// The work of a layer on its rows.
#[derive(Debug, Clone, Copy)]
pub struct LayerCall {
    /// The layer's index among layers with keys and values.
    pub layer: usize,
    /// [`Phase::Decode`] for generated tokens, [`Phase::Prefill`] for prompt tokens.
    pub phase: Phase,
    /// Factor on q·k.
    pub scale: f32,
    /// Logits become cap·tanh(logit / cap).
    pub soft_cap: Option<f32>,
    /// Window of the layer in tokens, including the token itself. Policies do not act on such a layer. The window
    /// must be the same in every call.
    pub window: Option<usize>,
}

/// Projected rows, with positions already in keys and queries.
#[derive(Debug, Clone, Copy)]
pub struct ProjectedRows<'a> {
    /// Number of tokens, at least one.
    pub tokens: usize,
    /// `[tokens, heads, key_width]`
    pub queries: &'a [f32],
    /// `[tokens, kv_heads, head_dim]`
    pub keys: &'a [f32],
    /// `[tokens, kv_heads, head_dim]`
    pub values: &'a [f32],
}

/// Keys and values of one sequence in pages, with the policies that select for its queries.
pub struct CachedAttention {
    state: AttentionState,
    /// Heads by layer of the cache.
    layers: Vec<Heads>,
    options: CachedAttentionOptions,
    rotation: Rotation,
    /// Tokens that each layer has read.
    tokens: Vec<usize>,
    partials: Vec<Partial>,
    /// Partials of the first of two phases.
    own: Vec<Partial>,
}

impl CachedAttention {
    /// Attention over an empty cache.
    ///
    /// # Errors
    /// [`EngineError::Option`] for heads that do not fit the cache and empty chunks; [`EngineError::Policy`].
    pub fn new(cache: KvCache, options: CachedAttentionOptions) -> Result<Self, EngineError> {
        let shape = *cache.shape();
        let fits = |layer: &LayerShape| options.heads > 0 && options.heads.is_multiple_of(layer.kv_heads);
        if let Some(layer) = shape.layers.iter().find(|layer| !fits(layer)) {
            let requirement = format!("it must be a multiple of the {} KV heads", layer.kv_heads);
            return Err(EngineError::option("heads", options.heads, requirement));
        }
        let chunk = options.chunk_tokens;
        require(chunk > 0, "chunk_tokens", 0, "it must be at least 1 token")?;
        let layers = shape.layers.iter().map(|layer| Heads::over_cache(options.heads, layer));
        let layers: Vec<Heads> = layers.collect();
        let of_layers = layers.iter().map(|heads| heads.for_policies(options.chunk_tokens));
        let of_layers: Vec<PolicyShape> = of_layers.collect();
        let policies = Policies::new([&options.prefill, &options.decode], &of_layers, &options.cost)?;
        let mut state = AttentionState::new(cache, Box::new(HostReader), policies);
        state.audit = options.audit.then(|| Audit::new(layers.clone(), 0.0));
        Ok(Self {
            state,
            tokens: vec![0; layers.len()],
            layers,
            rotation: Rotation {
                keys: shape.key_format.gains_by_rotation(),
                values: shape.value_format.gains_by_rotation(),
            },
            partials: Vec::new(),
            own: Vec::new(),
            options,
        })
    }

    /// Tokens that a layer has read; 0 for one that does not exist.
    pub fn tokens(&self, layer: usize) -> usize {
        self.tokens.get(layer).copied().unwrap_or(0)
    }

    /// Pages and bytes of the cache, by tier.
    pub fn usage(&self) -> KvUsage {
        self.state.cache.usage()
    }

    /// The options of the attention.
    pub fn options(&self) -> &CachedAttentionOptions {
        &self.options
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        &self.state.cache
    }

    /// Pairs of query and key that were read, over all layers and KV heads.
    pub fn pairs(&self) -> PairCount {
        self.state.counters.pairs
    }

    /// The kept share of exact attention so far, if [`CachedAttentionOptions::audit`] is on.
    pub fn audit(&self) -> Option<AuditReport> {
        self.state.audit.as_ref().map(Audit::report)
    }

    /// Passes every query audited from now on to `observer`, as
    /// [`SequenceObservers::audit`](crate::SequenceObservers::audit) does.
    ///
    /// # Errors
    /// [`EngineError::Option`] if [`CachedAttentionOptions::audit`] is off.
    pub fn observe_audit(
        &mut self,
        observer: impl FnMut(&AuditedQuery<'_>) + Send + Sync + 'static,
    ) -> Result<(), EngineError> {
        self.state.observe_audit(Box::new(observer))
    }

    /// Appends the rows to a layer, lets its policies select, attends, and lets them observe. `output` is
    /// `[tokens, heads, key_width]`.
    ///
    /// # Errors
    /// [`EngineError::Kv`] for a layer that does not exist, for slices of other lengths, and if there is no room for
    /// pages. The layer is then unchanged, except for evictions by policies.
    pub fn attend(
        &mut self,
        call: &LayerCall,
        rows: &ProjectedRows<'_>,
        output: &mut [f32],
    ) -> Result<(), EngineError> {
        self.take(call, rows, Some(output))
    }

    /// Appends keys and values to a layer without attention, for example from another cache. Policies that learn from
    /// attention learn nothing from them.
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    pub fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), EngineError> {
        let call = LayerCall {
            layer,
            phase: Phase::Prefill,
            scale: 1.0,
            soft_cap: None,
            window: None,
        };
        let rows = ProjectedRows {
            tokens: self
                .layers
                .get(layer)
                .map_or(0, |heads| keys.len() / (heads.kv_heads * heads.key_width)),
            queries: &[],
            keys,
            values,
        };
        self.take(&call, &rows, None)
    }

    /// Appends the rows, and attends if there is an output buffer.
    fn take(
        &mut self,
        call: &LayerCall,
        rows: &ProjectedRows<'_>,
        output: Option<&mut [f32]>,
    ) -> Result<(), EngineError> {
        self.check(call, rows, output.as_deref())?;
        match call.window {
            Some(window) => self.slide(call.layer, window)?,
            None => self.state.evict(call.layer, self.tokens[call.layer])?,
        }
        let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let [key_width, value_width] = rotated_widths(&self.layers[call.layer].cached());
        let rows = ProjectedRows {
            queries: rotated(rows.queries, &mut queries, self.rotation.keys, key_width),
            keys: rotated(rows.keys, &mut keys, self.rotation.keys, key_width),
            values: rotated(rows.values, &mut values, self.rotation.values, value_width),
            ..*rows
        };
        let attended = self.attend_rows(call, &rows, output);
        match attended {
            Ok(()) => self.tokens[call.layer] += rows.tokens,
            Err(_) => self.cut(call.layer, self.tokens[call.layer]),
        }
        attended
    }

    /// Truncates every layer to the first `tokens` tokens. Returns false, without changes, if earlier tokens were
    /// evicted.
    pub fn truncate(&mut self, tokens: usize) -> bool {
        if tokens == 0 {
            self.state.evicted = Evicted::default();
        }
        if !self.state.evicted.reaches(tokens) {
            return false;
        }
        for layer in 0..self.tokens.len() {
            self.cut(layer, tokens.min(self.tokens[layer]));
        }
        true
    }

    /// Truncates a layer to the first `tokens` tokens.
    fn cut(&mut self, layer: usize, tokens: usize) {
        self.tokens[layer] = tokens;
        self.state.truncate_layer(layer, tokens);
    }

    fn check(&self, call: &LayerCall, rows: &ProjectedRows<'_>, output: Option<&[f32]>) -> Result<(), EngineError> {
        let layers = self.tokens.len();
        let layer = call.layer;
        if layer >= layers {
            return Err(KvError::Layer { layer, layers }.into());
        }
        let heads = self.layers[layer];
        let of_rows = |width: usize| rows.tokens.saturating_mul(width);
        let widths = [heads.key_width, heads.cached().held_value_width()];
        let [keys, values] = widths.map(|width| of_rows(heads.kv_heads * width));
        let [queries, results] = [heads.query_width(), heads.result_width()].map(of_rows);
        let are_right = rows.tokens > 0
            && [rows.keys.len(), rows.values.len()] == [keys, values]
            && output.is_none_or(|output| [rows.queries.len(), output.len()] == [queries, results]);
        if are_right {
            return Ok(());
        }
        let requirement = format!(
            "queries need {queries} elements, output {results}, keys {keys} and values {values}, of at least 1 token"
        );
        Err(EngineError::option("tokens", rows.tokens, requirement))
    }

    fn attend_rows(
        &mut self,
        call: &LayerCall,
        rows: &ProjectedRows<'_>,
        output: Option<&mut [f32]>,
    ) -> Result<(), EngineError> {
        let held = self.tokens[call.layer];
        let traits = self.state.layer_traits(call.layer, call.phase);
        let chunk_tokens = match call.phase {
            Phase::Prefill => self.options.chunk_tokens,
            Phase::Decode if !traits.follow_from_keys => 1,
            Phase::Decode => rows.tokens,
        };
        let shape = *self.state.cache.shape();
        let step = LayerStep {
            phase: call.phase,
            layers: self.tokens.len(),
            heads: self.layers[call.layer],
            total_tokens: held + rows.tokens,
            page_tokens: shape.page_tokens,
            evicted_tokens: self.state.evicted.of_layer(&shape, call.layer),
            window: call.window,
            rotation: self.rotation,
            sinks: None,
            appends: true,
            reads_ahead: true,
            options: AttendOptions::new(call.scale)
                .with_soft_cap(call.soft_cap)
                .with_arithmetic(self.options.attention.arithmetic(call.phase)),
        };
        let input = LayerRows {
            step,
            cache_layer: call.layer,
            slot: Slot(held),
            first_row: 0,
            tokens: rows.tokens,
            queries: rows.queries,
            new_keys: NewKeys::Host {
                keys: rows.keys,
                values: rows.values,
            },
            index: None,
        };
        let Some(output) = output else {
            return self.state.append(&input, 0..rows.tokens);
        };
        self.own.clear();
        if call.phase == Phase::Prefill && call.window.is_none() && traits.two_phases {
            self.state.attend_own(&input, chunk_tokens, &mut self.own)?;
        }
        for first in (0..rows.tokens).step_by(chunk_tokens) {
            let mut failure = None;
            let part = RoundRows {
                attention: &mut self.state,
                input: input.clone(),
                chunk_tokens,
                rows: first..(first + chunk_tokens).min(rows.tokens),
                own: &mut self.own,
                failure: &mut failure,
            };
            attend_round(&mut [part], &mut self.partials, output);
            failure.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Frees the pages before a layer's window.
    fn slide(&mut self, layer: usize, window: usize) -> Result<(), EngineError> {
        let sliding = SlidingLayer::new(layer, window, self.state.cache.shape().page_tokens);
        if let Some(left) = self.state.slide_layer(&sliding, self.tokens[layer])? {
            self.state.evicted.forbid_below(left + window - 1);
        }
        Ok(())
    }
}

/// The rows in the cache's form, rotated if necessary.
fn rotated<'a>(rows: &'a [f32], room: &'a mut Vec<f32>, is_rotated: bool, head_dim: usize) -> &'a [f32] {
    if !is_rotated {
        return rows;
    }
    room.extend_from_slice(rows);
    rotate(room, head_dim);
    room
}
