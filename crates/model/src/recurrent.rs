//! The state of recurrent layers: of fixed size whatever the context, copied to roll back to, stored as bytes.

use riffle_linear::Columns;

use crate::{ModelConfig, ModelError};

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
        let layers = self.layers.iter().filter(|recurrent| **recurrent).count();
        layers as u64 * self.layer_bytes()
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
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerState {
    /// Tokens read.
    pub(crate) tokens: usize,
    /// `[kernel - 1, channels]`, the oldest token first; zeros before the first token.
    pub(crate) convolution: Vec<f32>,
    /// `[value_head, column piece, key_dim]`.
    pub(crate) memory: Vec<Columns>,
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
            tokens: 0,
            convolution: vec![0.0; shape.convolution_values()],
            memory: vec![Columns::ZERO; shape.value_heads * shape.head_pieces()],
        };
        let layers = shape.layers.iter().map(|recurrent| recurrent.then(|| empty.clone()));
        RecurrentState {
            layers: layers.collect(),
            shape: Some(shape.clone()),
        }
    }

    /// Whether the model has no recurrent layers, so that there is nothing to keep.
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
            layer.tokens = 0;
            layer.convolution.fill(0.0);
            layer.memory.fill(Columns::ZERO);
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
            layer.tokens = other.tokens;
            layer.convolution.copy_from_slice(&other.convolution);
            layer.memory.copy_from_slice(&other.memory);
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
            layer.tokens = (u64::from(high) << 32 | u64::from(low)) as usize;
            let memory = layer.memory.iter_mut().flat_map(|piece| &mut piece.0);
            for value in layer.convolution.iter_mut().chain(memory) {
                *value = f32::from_le_bytes(next());
            }
        }
        Ok(state)
    }

    /// The part of a layer that is to read from `start_position` on; `None` for one that holds keys and values.
    pub(crate) fn layer_mut(
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
