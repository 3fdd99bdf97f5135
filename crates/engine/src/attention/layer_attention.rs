//! Attention without a model, for measurements: the engine's own step on queries, keys and values from the caller.

use std::sync::Arc;

use riffle_attention::{AttendOptions, Partial};
use riffle_device::{DeviceQueue, DeviceRows, RoomOptions, TransferCount};
use riffle_kv::KvCache;
use riffle_policy::{CostModel, Phase, PolicyShape, PolicySpec};

use crate::attention::{
    AttentionState, DevicePages, Heads, HostReader, LayerRows, LayerStep, NewKeys, Policies, Rotation, RoundRows,
    SharedRoom, Slot, attend_round,
};
use crate::{AttentionTime, EngineError, PairCount};

/// A prompt chunk or a generated token as input of a layer.
pub struct ChunkRows {
    tokens: usize,
    // [tokens, heads, key_width]
    queries: Vec<f32>,
    // [tokens, kv_heads, key_width]
    keys: Vec<f32>,
    values: Vec<f32>,
    on_device: Option<Box<dyn DeviceRows>>,
}

/// The attention of a sequence under one policy, layer by layer. Each chunk is appended, selected for, attended and
/// observed as in a [pass](crate::Runner::pass).
pub struct LayerAttention {
    phase: Phase,
    /// Heads by layer of the cache.
    layers: Vec<Heads>,
    /// Tokens of the whole prompt. With `None`, the prompt ends with each chunk.
    prompt_tokens: Option<usize>,
    state: AttentionState,
    /// A device that attends, with a separate page cache.
    queue: Option<Arc<dyn DeviceQueue>>,
    /// True if the pages expected by the next layer are loaded to the device after each chunk.
    reads_ahead: bool,
    partials: Vec<Partial>,
    // [tokens, heads, value_width]
    output: Vec<f32>,
    /// True if the latest chunk's output is on the device.
    has_output_on_device: bool,
}

impl LayerAttention {
    /// Continues from a cache, with `heads` query heads per layer. The policy also selects in short contexts;
    /// `chunk_tokens` is the length of a prompt's chunks.
    ///
    /// # Errors
    /// [`EngineError::Policy`] for a policy that does not support the phase, or chunks this short.
    pub fn new(
        cache: KvCache,
        heads: usize,
        policy: &PolicySpec,
        phase: Phase,
        chunk_tokens: usize,
    ) -> Result<Self, EngineError> {
        let shape = *cache.shape();
        let layers: Vec<Heads> = shape
            .layers
            .iter()
            .map(|layer| Heads::over_cache(heads, layer))
            .collect();
        let of_layers: Vec<PolicyShape> = layers.iter().map(|heads| heads.for_policies(chunk_tokens)).collect();
        let (unguarded, everything) = (&policy.with("from", "0")?.into(), &PolicySpec::full().into());
        let rules = match phase {
            Phase::Prefill => [unguarded, everything],
            Phase::Decode => [everything, unguarded],
        };
        let policies = Policies::new(rules, &of_layers, &CostModel::default())?;
        Ok(Self {
            phase,
            layers,
            prompt_tokens: None,
            state: AttentionState::new(cache, Box::new(HostReader), policies),
            queue: None,
            reads_ahead: true,
            partials: Vec::new(),
            output: Vec::new(),
            has_output_on_device: false,
        })
    }

    /// Moves attention to a device, with a separate page cache.
    ///
    /// # Errors
    /// [`EngineError::Device`] if the device refuses the page cache.
    pub fn on_device(mut self, queue: &Arc<dyn DeviceQueue>, room: RoomOptions) -> Result<Self, EngineError> {
        self.state.reader = Box::new(DevicePages::shared(&SharedRoom::default(), queue, room)?);
        self.queue = Some(Arc::clone(queue));
        Ok(self)
    }

    /// Sets the length of the whole prompt: some policies read its last tokens densely.
    pub fn within_prompt(self, tokens: usize) -> Self {
        Self {
            prompt_tokens: Some(tokens),
            ..self
        }
    }

    /// Disables loading pages to the device ahead of time.
    pub fn without_reading_ahead(self) -> Self {
        Self {
            reads_ahead: false,
            ..self
        }
    }

    /// Copies a chunk of `tokens` tokens to the attending device, or keeps it in main memory: queries
    /// `[tokens, heads, head_dim]`, keys and values `[tokens, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// A device that fails.
    pub fn chunk(
        &self,
        tokens: usize,
        queries: Vec<f32>,
        keys: Vec<f32>,
        values: Vec<f32>,
    ) -> Result<ChunkRows, EngineError> {
        let upload = |queue: &Arc<dyn DeviceQueue>| {
            Arc::clone(queue).rows(tokens, self.layers[0].key_width, [&queries, &keys, &values])
        };
        Ok(ChunkRows {
            on_device: self.queue.as_ref().map(upload).transpose()?,
            tokens,
            queries,
            keys,
            values,
        })
    }

    /// Appends a chunk to a layer, lets the policy select, attends, and lets the policy observe. A device may still
    /// be working when it returns.
    ///
    /// # Errors
    /// Failures of memory or the device.
    pub fn attend(&mut self, layer: usize, chunk: &ChunkRows) -> Result<(), EngineError> {
        let (shape, held) = (*self.state.cache.shape(), self.state.cache.tokens(layer));
        let mut failure = None;
        let step = LayerStep {
            phase: self.phase,
            layers: self.layers.len(),
            heads: self.layers[layer],
            total_tokens: self.prompt_tokens.unwrap_or(held + chunk.tokens),
            page_tokens: shape.page_tokens,
            evicted_tokens: vec![0; self.layers[layer].kv_heads],
            window: None,
            rotation: Rotation::default(),
            sinks: None,
            appends: true,
            reads_ahead: self.reads_ahead,
            options: AttendOptions::for_head_dim(self.layers[layer].key_width).with_arithmetic(self.phase.arithmetic()),
        };
        let part = RoundRows {
            attention: &mut self.state,
            input: LayerRows {
                step,
                cache_layer: layer,
                slot: Slot(held),
                first_row: 0,
                tokens: chunk.tokens,
                queries: &chunk.queries,
                new_keys: match &chunk.on_device {
                    Some(rows) => NewKeys::Device(&**rows),
                    None => NewKeys::Host {
                        keys: &chunk.keys,
                        values: &chunk.values,
                    },
                },
                index: None,
            },
            chunk_tokens: chunk.tokens,
            rows: 0..chunk.tokens,
            own: &mut Vec::new(),
            failure: &mut failure,
        };
        self.output
            .resize(chunk.tokens * self.layers[layer].result_width(), 0.0);
        let in_memory = attend_round(&mut [part], &mut self.partials, &mut self.output);
        self.has_output_on_device = chunk.on_device.is_some() && in_memory.is_empty();
        failure.map_or(Ok(()), Err)
    }

    /// The result of the latest chunk, `[tokens, heads, value_width]`.
    ///
    /// # Errors
    /// A device that fails.
    pub fn output(&self, chunk: &ChunkRows) -> Result<Vec<f32>, EngineError> {
        match (&self.queue, &chunk.on_device) {
            (Some(queue), Some(rows)) if self.has_output_on_device => Ok(queue.attended(&**rows, 0..chunk.tokens)?),
            _ => Ok(self.output.clone()),
        }
    }

    /// Truncates all layers to the first `tokens` tokens.
    pub fn truncate(&mut self, tokens: usize) {
        self.state.truncate(tokens);
    }

    /// The time of all chunks so far, by part. Waits for the device.
    ///
    /// # Errors
    /// A device that fails.
    pub fn time(&mut self) -> Result<AttentionTime, EngineError> {
        self.state.take_attended_time(self.phase)?;
        Ok(self.state.counters.time(self.phase))
    }

    /// The pairs of query position and key read by all chunks so far.
    pub fn pairs(&self) -> PairCount {
        self.state.counters.pairs
    }

    /// Bytes and pages copied to the device and back so far.
    pub fn transferred(&self) -> TransferCount {
        self.state.reader.transferred()
    }
}
