//! The state of recurrent layers: of fixed size whatever the context, copied to roll back to, stored as bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use riffle_linear::Columns;

use crate::recorded::{self, Recorded};
use crate::{Decoder, ModelConfig, ModelError};

/// The sizes of a model's recurrent layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecurrentShape {
    /// For each layer of the model whether it is recurrent.
    pub layers: Vec<bool>,
    /// Query and key heads of a recurrent layer.
    pub key_heads: usize,
    /// Value heads of a recurrent layer, a multiple of the key heads; each has a memory of its own.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Tokens the causal convolution before the recurrence sees, the token itself included.
    pub kernel: usize,
}

impl RecurrentShape {
    pub(crate) fn is_recurrent(&self, layer: usize) -> bool {
        self.layers.get(layer) == Some(&true)
    }

    /// Values of all value heads of a token.
    pub(crate) fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Values of a token that pass the convolution: queries, keys, values.
    pub(crate) fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_width()
    }

    /// Pieces of 64 columns that hold the values of a head.
    pub(crate) fn column_pieces(&self) -> usize {
        self.value_dim.div_ceil(Columns::COUNT)
    }

    /// Pieces of the memory of one value head, `[column piece, key_dim]`.
    pub(crate) fn head_pieces(&self) -> usize {
        self.column_pieces() * self.key_dim
    }

    fn convolution_values(&self) -> usize {
        (self.kernel - 1) * self.channels()
    }

    /// Bytes of one layer's state, its position included.
    fn layer_bytes(&self) -> u64 {
        let values = self.convolution_values() + self.value_heads * self.head_pieces() * Columns::COUNT;
        size_of::<u64>() as u64 + (values * size_of::<f32>()) as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.count() * self.layer_bytes()
    }

    /// Bytes of the rows that are recorded to be replayed, at most.
    pub(crate) fn recorded_bytes(&self) -> u64 {
        self.count() * recorded::layer_bytes(self)
    }

    /// Recurrent layers.
    fn count(&self) -> u64 {
        self.layers.iter().filter(|recurrent| **recurrent).count() as u64
    }
}

/// What recurrent layers keep of the tokens they have read, in f32: for each layer the memories of its heads and the
/// last inputs of its convolution. Empty for a model without such layers.
///
/// A copy is a snapshot: [`copy_from`](Self::copy_from) restores it to the bit.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurrentState {
    shape: Option<RecurrentShape>,
    // by layer of the model; `None` for those that hold keys and values
    layers: Vec<Option<LayerState>>,
}

/// One layer's part.
#[derive(Debug, Clone)]
pub(crate) struct LayerState {
    /// [`RecurrentLayer::version`].
    version: u64,
    /// Tokens read.
    pub(crate) tokens: usize,
    /// `[kernel - 1, channels]`, the oldest token first; zeros before the first token.
    pub(crate) convolution: Vec<f32>,
    /// `[value_head, column piece, key_dim]`.
    pub(crate) memory: Vec<Columns>,
    /// Inputs since [`RecurrentState::record`], which copies do not have.
    pub(crate) recorded: Recorded,
}

impl PartialEq for LayerState {
    fn eq(&self, other: &Self) -> bool {
        // Not the version: what is held may be equal wherever it came from.
        self.tokens == other.tokens && self.convolution == other.convolution && self.memory == other.memory
    }
}

/// One layer's part of a [`RecurrentState`], for who computes the layer elsewhere than in main memory.
pub struct RecurrentLayer<'a> {
    state: &'a mut LayerState,
    value_dim: usize,
    pieces: usize,
    key_dim: usize,
}

/// Before the first token.
const EMPTY: u64 = 0;

fn next_version() -> u64 {
    static LATEST: AtomicU64 = AtomicU64::new(EMPTY);
    LATEST.fetch_add(1, Ordering::Relaxed) + 1
}

impl RecurrentLayer<'_> {
    /// A number that what the layer holds has alone: while it stays, so does the rest. Copies have the number of what they
    /// were copied from.
    pub fn version(&self) -> u64 {
        self.state.version
    }

    /// The last inputs of the convolution, `[kernel - 1, channels]`, the oldest token first.
    pub fn convolution(&self) -> &[f32] {
        &self.state.convolution
    }

    /// Copies the memories of the heads to `out`, `[value_heads, key_dim, value_dim]`.
    ///
    /// # Panics
    /// When `out` holds another number of values.
    pub fn copy_memory(&self, out: &mut [f32]) {
        let heads = self.state.memory.chunks_exact(self.pieces * self.key_dim);
        let outs = out.chunks_exact_mut(self.key_dim * self.value_dim);
        assert_eq!(heads.len(), outs.len(), "memories of {} heads", heads.len());
        for (pieces, out) in heads.zip(outs) {
            for (row, out) in out.chunks_exact_mut(self.value_dim).enumerate() {
                for (piece, out) in out.chunks_mut(Columns::COUNT).enumerate() {
                    out.copy_from_slice(&pieces[piece * self.key_dim + row].0[..out.len()]);
                }
            }
        }
    }

    /// Takes over what reading `tokens` more tokens left: the convolution's inputs and the memories in the shapes of
    /// [`convolution`](Self::convolution) and [`copy_memory`](Self::copy_memory). Returns the version.
    ///
    /// # Panics
    /// When either holds another number of values.
    pub fn renew(&mut self, tokens: usize, convolution: &[f32], memory: &[f32]) -> u64 {
        self.state.convolution.copy_from_slice(convolution);
        let heads = self.state.memory.chunks_exact_mut(self.pieces * self.key_dim);
        let from = memory.chunks_exact(self.key_dim * self.value_dim);
        assert_eq!(heads.len(), from.len(), "memories of {} heads", heads.len());
        for (pieces, from) in heads.zip(from) {
            for (row, from) in from.chunks_exact(self.value_dim).enumerate() {
                for (piece, from) in from.chunks(Columns::COUNT).enumerate() {
                    pieces[piece * self.key_dim + row].0[..from.len()].copy_from_slice(from);
                }
            }
        }
        self.state.tokens += tokens;
        self.state.recorded.end();
        self.state.version = next_version();
        self.state.version
    }
}

impl RecurrentState {
    /// The state before the first token.
    pub fn new(config: &ModelConfig) -> RecurrentState {
        let Some(shape) = &config.recurrent else {
            return RecurrentState {
                shape: None,
                layers: Vec::new(),
            };
        };
        let empty = LayerState {
            version: EMPTY,
            tokens: 0,
            convolution: vec![0.0; shape.convolution_values()],
            memory: vec![Columns::ZERO; shape.value_heads * shape.head_pieces()],
            recorded: Recorded::default(),
        };
        let layers = shape.layers.iter().map(|recurrent| recurrent.then(|| empty.clone()));
        RecurrentState {
            layers: layers.collect(),
            shape: Some(shape.clone()),
        }
    }

    /// True if the model has no recurrent layers, so that there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.shape.is_none()
    }

    /// Tokens every layer has read; `None` where layers disagree, as after a batch that failed half way, or where the
    /// state is empty.
    pub fn tokens(&self) -> Option<usize> {
        let mut tokens = self.layers.iter().flatten().map(|layer| layer.tokens);
        let first = tokens.next()?;
        tokens.all(|other| other == first).then_some(first)
    }

    /// Bytes of the state in memory and as [`to_bytes`](Self::to_bytes) stores it: [`ModelConfig::recurrent_bytes`].
    pub fn bytes(&self) -> u64 {
        self.shape.as_ref().map_or(0, RecurrentShape::bytes)
    }

    /// Goes back to the state before the first token.
    pub fn reset(&mut self) {
        for layer in self.layers.iter_mut().flatten() {
            (layer.version, layer.tokens) = (EMPTY, 0);
            layer.convolution.fill(0.0);
            layer.memory.fill(Columns::ZERO);
            layer.recorded.end();
        }
    }

    /// Becomes a copy of another state of the same model, in the memory it has.
    ///
    /// # Errors
    ///
    /// [`ModelError::WrongRecurrentState`] for a state of another model.
    pub fn copy_from(&mut self, other: &RecurrentState) -> Result<(), ModelError> {
        if self.shape != other.shape {
            return Err(ModelError::WrongRecurrentState);
        }
        let layers = self.layers.iter_mut().flatten();
        for (layer, other) in layers.zip(other.layers.iter().flatten()) {
            (layer.version, layer.tokens) = (other.version, other.tokens);
            layer.convolution.copy_from_slice(&other.convolution);
            layer.memory.copy_from_slice(&other.memory);
            layer.recorded.end();
        }
        Ok(())
    }

    /// Records the inputs of the generated tokens that are read from here on, so that [`replay`](Self::replay) can go back to any of them.
    pub fn record(&mut self) {
        self.layers
            .iter_mut()
            .flatten()
            .for_each(|layer| layer.recorded.begin());
    }

    /// Tokens that have been recorded; `None` where the state is empty, or where not all tokens could be.
    pub fn recorded(&self) -> Option<usize> {
        let mut rows = self.layers.iter().flatten().map(|layer| layer.recorded.rows());
        let first = rows.next()??;
        rows.all(|other| other == Some(first)).then_some(first)
    }

    /// Goes back to the state behind the first `tokens` recorded tokens: `start`, which is the state where recording began, reads them again.
    /// The state has the bits that it had there, and the tokens behind are forgotten.
    ///
    /// # Errors
    /// [`ModelError::WrongRecurrentState`] for a state of another model or another place, and where fewer tokens have been recorded; it is as
    /// it was then.
    pub fn replay(&mut self, model: &Decoder, start: &RecurrentState, tokens: usize) -> Result<(), ModelError> {
        let begins = |recorded: usize| self.tokens() == start.tokens().map(|start| start + recorded);
        let reaches = self
            .recorded()
            .is_some_and(|recorded| tokens <= recorded && begins(recorded));
        if self.shape != start.shape || self.shape != model.config.recurrent || !reaches {
            return Err(ModelError::WrongRecurrentState);
        }
        let layers = self.layers.iter_mut().zip(&start.layers).zip(&model.layers);
        for ((layer, start), weights) in layers {
            let (Some(layer), Some(start), Some(mixer)) = (layer, start, weights.mixer()) else {
                continue;
            };
            layer.convolution.copy_from_slice(&start.convolution);
            layer.memory.copy_from_slice(&start.memory);
            layer.tokens = start.tokens;
            layer.version = next_version();
            mixer.replay(layer, tokens);
        }
        Ok(())
    }

    /// The state as little-endian bytes: for each recurrent layer the tokens it has read as u64, the convolution's
    /// inputs and the memories as f32.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes() as usize);
        for layer in self.layers.iter().flatten() {
            bytes.extend_from_slice(&(layer.tokens as u64).to_le_bytes());
            for value in layer.convolution.iter().chain(Columns::values(&layer.memory)) {
                bytes.extend_from_slice(&value.to_le_bytes());
            }
        }
        bytes
    }

    /// The state that [`to_bytes`](Self::to_bytes) stored, equal to the bit.
    ///
    /// # Errors
    ///
    /// [`ModelError::RecurrentBytes`] when there are not exactly as many bytes as a state of this model takes; nothing
    /// is allocated then.
    pub fn from_bytes(config: &ModelConfig, bytes: &[u8]) -> Result<RecurrentState, ModelError> {
        if bytes.len() as u64 != config.recurrent_bytes() {
            return Err(ModelError::RecurrentBytes {
                expected: config.recurrent_bytes(),
                found: bytes.len() as u64,
            });
        }
        let mut state = RecurrentState::new(config);
        let mut words = bytes.as_chunks::<4>().0.iter().copied();
        let mut next = || words.next().unwrap_or_default();
        for layer in state.layers.iter_mut().flatten() {
            let (low, high) = (u32::from_le_bytes(next()), u32::from_le_bytes(next()));
            layer.version = next_version();
            layer.tokens = (u64::from(high) << 32 | u64::from(low)) as usize;
            let memory = layer.memory.iter_mut().flat_map(|piece| &mut piece.0);
            for value in layer.convolution.iter_mut().chain(memory) {
                *value = f32::from_le_bytes(next());
            }
        }
        Ok(state)
    }

    /// The part of a layer that is to read from `start_position` on; `None` for one that holds keys and values.
    ///
    /// # Errors
    ///
    /// [`ModelError::WrongRecurrentState`] for a state of another model, [`ModelError::RecurrentPosition`] where the layer
    /// has read other tokens than those before.
    pub fn layer(
        &mut self,
        config: &ModelConfig,
        layer: usize,
        start_position: usize,
    ) -> Result<Option<RecurrentLayer<'_>>, ModelError> {
        let sizes = self
            .shape
            .as_ref()
            .map(|shape| (shape.value_dim, shape.column_pieces(), shape.key_dim));
        let state = self.find(config, layer, start_position)?;
        Ok(state
            .zip(sizes)
            .map(|(state, (value_dim, pieces, key_dim))| RecurrentLayer {
                state,
                value_dim,
                pieces,
                key_dim,
            }))
    }

    /// As [`layer`](Self::layer), to be written to.
    pub(crate) fn layer_mut(
        &mut self,
        config: &ModelConfig,
        layer: usize,
        start_position: usize,
    ) -> Result<Option<&mut LayerState>, ModelError> {
        let mut found = self.find(config, layer, start_position)?;
        if let Some(state) = &mut found {
            state.version = next_version();
        }
        Ok(found)
    }

    fn find(
        &mut self,
        config: &ModelConfig,
        layer: usize,
        start_position: usize,
    ) -> Result<Option<&mut LayerState>, ModelError> {
        if self.shape != config.recurrent {
            return Err(ModelError::WrongRecurrentState);
        }
        let Some(Some(state)) = self.layers.get_mut(layer) else {
            return Ok(None);
        };
        if state.tokens != start_position {
            return Err(ModelError::RecurrentPosition {
                layer,
                tokens: state.tokens,
                start_position,
            });
        }
        Ok(Some(state))
    }
}
