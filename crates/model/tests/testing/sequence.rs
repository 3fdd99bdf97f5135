//! A model that reads texts, with a dense attention step.

use std::sync::Arc;

use riffle_model::{
    AdapterScales, AttentionShape, Batch, Decoder, Forward, HostForward, IndexerShape, Layer, ModelConfig, Projected,
    RecurrentState, SegmentTokens,
};
use riffle_policy::choose_as_torch;

/// Plain causal attention over all earlier tokens of a sequence, within each layer's window, summed in f64.
pub(crate) struct DenseAttention {
    /// Attention shape of each layer.
    shapes: Vec<AttentionShape>,
    scale: f64,
    soft_cap: Option<f64>,
    windows: Vec<Option<usize>>,
    /// Sink logits of the heads, for layers that have them.
    sinks: Vec<Option<Arc<[f32]>>>,
    // For each layer with its own keys: `[tokens, kv_heads, key_width]`.
    keys: Vec<Vec<f32>>,
    // [tokens, kv_heads, value_width]
    values: Vec<Vec<f32>>,
    /// Indexer of each layer.
    indexers: Vec<Option<IndexerShape>>,
    // For each layer with its own indexer: `[tokens, width]`.
    index_keys: Vec<Vec<f32>>,
    /// Positions selected by the indexer of each layer, `[layers][tokens]`, ascending.
    chosen: Vec<Vec<Vec<usize>>>,
}

impl DenseAttention {
    pub(crate) fn new(config: &ModelConfig) -> DenseAttention {
        DenseAttention {
            shapes: (0..config.layers).map(|layer| config.attention_of(layer)).collect(),
            scale: f64::from(config.attention_scale),
            soft_cap: config.soft_cap.map(f64::from),
            windows: (0..config.layers)
                .map(|layer| config.windows.get(layer).copied().flatten())
                .collect(),
            sinks: vec![None; config.layers],
            keys: vec![Vec::new(); config.layers],
            values: vec![Vec::new(); config.layers],
            indexers: (0..config.layers).map(|layer| config.indexer_of(layer)).collect(),
            index_keys: vec![Vec::new(); config.layers],
            chosen: vec![Vec::new(); config.layers],
        }
    }

    /// Forgets everything after the first `tokens` tokens.
    fn truncate(&mut self, tokens: usize) {
        for (layer, shape) in self.shapes.iter().enumerate() {
            self.keys[layer].truncate(tokens * shape.keys_width());
            self.values[layer].truncate(tokens * shape.values_width());
            self.index_keys[layer].truncate(tokens * self.indexers[layer].map_or(0, |indexer| indexer.width));
            self.chosen[layer].truncate(tokens);
        }
    }

    /// Attends some rows of a batch: the sequence's tokens from `position` on.
    pub(crate) fn attend(
        &mut self,
        layer: usize,
        position: usize,
        rows: std::ops::Range<usize>,
        projected: &mut Projected<'_>,
    ) {
        let shape = self.shapes[layer];
        let of_rows = |width: usize| rows.start * width..rows.end * width;
        assert_eq!(
            self.keys[layer].len(),
            position * shape.keys_width(),
            "tokens seen by layer {layer}"
        );
        self.keys[layer].extend_from_slice(&projected.keys[of_rows(shape.keys_width())]);
        self.values[layer].extend_from_slice(&projected.values[of_rows(shape.values_width())]);
        self.choose(layer, position, &rows, projected);
        let queries = projected.queries[of_rows(shape.query_width())].chunks_exact(shape.key_width);
        let outputs = projected.attended[of_rows(shape.attended_width())].chunks_exact_mut(shape.value_width);
        for (index, (query, output)) in queries.zip(outputs).enumerate() {
            self.attend_head(
                layer,
                position + index / shape.heads,
                index % shape.heads,
                query,
                output,
            );
        }
    }

    /// A layer's own indexer selects the tokens of some rows. Ties between tokens go to the earlier token, ties between
    /// blocks to torch's choice.
    fn choose(&mut self, layer: usize, position: usize, rows: &std::ops::Range<usize>, projected: &Projected<'_>) {
        let (Some(shape), Some(index)) = (self.indexers[layer], projected.index) else {
            return;
        };
        let keys = &mut self.index_keys[layer];
        keys.extend_from_slice(&index.keys[rows.start * shape.width..rows.end * shape.width]);
        let blocks = index.block_keys.map(|rule| {
            let mut joined = vec![0.0; keys.len() / shape.width / shape.block * shape.width];
            let blocks = joined.chunks_exact_mut(shape.width).enumerate();
            let stored = keys.chunks_exact(shape.block * shape.width);
            blocks
                .zip(stored)
                .for_each(|((number, key), stored)| rule.write(stored, number * shape.block, key));
            joined
        });
        let keys = blocks.as_ref().unwrap_or(keys);
        for row in rows.clone() {
            let seen = position + row - rows.start + 1;
            let complete = seen / shape.block;
            let queries = index.queries[row * shape.heads * shape.width..].chunks_exact(shape.width);
            let weights = &index.weights[row * shape.heads..][..shape.heads];
            let score = |key: &[f32]| -> f64 {
                let products = queries.clone().zip(weights).map(|(query, weight)| {
                    let product = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k));
                    f64::from(*weight) * product.sum::<f64>().max(0.0)
                });
                products.sum()
            };
            let scores: Vec<f64> = keys.chunks_exact(shape.width).take(complete).map(score).collect();
            let most = shape.tokens / shape.block;
            let chosen = if shape.block > 1 {
                let scores: Vec<f32> = scores.iter().map(|score| *score as f32).collect();
                choose_as_torch(&scores, most)
            } else {
                let mut order: Vec<usize> = (0..complete).collect();
                order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
                order.truncate(most);
                order.sort_unstable();
                order
            };
            let read = chosen.into_iter();
            let read = read.flat_map(|number| number * shape.block..(number + 1) * shape.block);
            self.chosen[layer].push(read.chain(complete * shape.block..seen).collect());
        }
    }

    fn attend_head(&self, layer: usize, position: usize, head: usize, query: &[f32], output: &mut [f32]) {
        let shape = self.shapes[layer];
        let owner = shape.shares.unwrap_or(layer);
        let kv_head = head / shape.group();
        let (keys, values) = (&self.keys[owner], &self.values[owner]);
        let key_of = |token: usize| &keys[(token * shape.kv_heads + kv_head) * shape.key_width..][..shape.key_width];
        let value_of = |token: usize| {
            if shape.is_latent {
                &key_of(token)[..shape.value_width]
            } else {
                &values[(token * shape.kv_heads + kv_head) * shape.value_width..][..shape.value_width]
            }
        };
        let first = self.windows[layer].map_or(0, |window| (position + 1).saturating_sub(window));
        let tokens: Vec<usize> = match self.indexers[layer] {
            Some(indexer) => self.chosen[indexer.chooser][position].clone(),
            None => (first..=position).collect(),
        };
        let logits: Vec<f64> = tokens
            .iter()
            .map(|&token| {
                let products = query.iter().zip(key_of(token));
                let dot: f64 = products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let logit = dot * self.scale;
                self.soft_cap.map_or(logit, |cap| cap * (logit / cap).tanh())
            })
            .collect();
        let sink = self.sinks[layer]
            .as_ref()
            .map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
        let largest = logits.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
        let sum: f64 = weights.iter().sum::<f64>() + (sink - largest).exp();
        let mut result = vec![0.0f64; shape.value_width];
        for (weight, &token) in weights.iter().zip(&tokens) {
            for (result, value) in result.iter_mut().zip(value_of(token)) {
                *result += weight / sum * f64::from(*value);
            }
        }
        for (output, result) in output.iter_mut().zip(result) {
            *output = result as f32;
        }
    }
}

/// A sequence that is being read, with its state of attention and recurrent layers.
pub(crate) struct Sequence {
    attention: DenseAttention,
    pub(crate) recurrent: RecurrentState,
    tokens: usize,
    /// Final number of tokens; 0 if the batches determine the number.
    pub(crate) length: usize,
    /// True if the next tokens are generated, false if they belong to a prompt.
    pub(crate) generates: bool,
    /// The adapters that the sequence computes with.
    pub(crate) adapters: AdapterScales,
}

impl Sequence {
    pub(crate) fn new(config: &ModelConfig) -> Sequence {
        Sequence {
            attention: DenseAttention::new(config),
            recurrent: RecurrentState::new(config),
            tokens: 0,
            length: 0,
            generates: false,
            adapters: AdapterScales::default(),
        }
    }

    /// A sequence that will have `length` tokens.
    pub(crate) fn of_length(config: &ModelConfig, length: usize) -> Sequence {
        Sequence {
            length,
            ..Sequence::new(config)
        }
    }

    /// The same with the sinks of a model.
    pub(crate) fn with_sinks(mut self, model: &Decoder) -> Sequence {
        let sinks = |layer: &Layer| layer.attention.as_ref()?.sinks.clone();
        self.attention.sinks = model.layers.iter().map(sinks).collect();
        self
    }

    /// Forgets everything after the first `tokens` tokens; `state` was copied there.
    pub(crate) fn go_back(&mut self, tokens: usize, state: &RecurrentState) {
        self.tokens = tokens;
        self.recurrent.copy_from(state).unwrap();
        self.attention.truncate(tokens);
    }
}

/// The cutting of a layer by rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cuts {
    /// Approximate rows of a block.
    pub(crate) most: usize,
    /// True if a block is finished before the next is projected.
    pub(crate) in_turn: bool,
}

/// All rows at once.
pub(crate) const WHOLE: Cuts = Cuts {
    most: usize::MAX,
    in_turn: false,
};

/// Reads tokens of one or more sequences in one pass; returns the logits of all rows, `[rows, vocab_size]`.
pub(crate) fn read_together(
    forward: &mut dyn Forward,
    config: &ModelConfig,
    work: &mut [(&mut Sequence, &[u32])],
) -> Vec<f32> {
    read_in_blocks(forward, config, work, WHOLE)
}

/// Like [`read_together`], with every layer cut by rows.
pub(crate) fn read_in_blocks(
    forward: &mut dyn Forward,
    config: &ModelConfig,
    work: &mut [(&mut Sequence, &[u32])],
    cuts: Cuts,
) -> Vec<f32> {
    let segments = work.iter().map(|(sequence, tokens)| {
        let segment = if sequence.generates {
            SegmentTokens::generated(tokens, sequence.tokens)
        } else {
            SegmentTokens::prompt(tokens, sequence.tokens)
        };
        let segment = segment.in_length(sequence.length.max(segment.length));
        segment.with_adapters(sequence.adapters)
    });
    let batch = Batch::new(segments).unwrap();
    forward.embed(&batch).unwrap();
    let blocks = forward.row_blocks(cuts.most);
    let groups = if cuts.in_turn {
        blocks.chunks(1)
    } else {
        blocks.chunks(blocks.len())
    };
    for layer in 0..config.layers {
        for blocks in groups.clone() {
            for block in blocks {
                forward.project(layer, block.clone()).unwrap();
            }
            for part in blocks.iter().flat_map(|block| batch.parts(block.clone())) {
                if let Some(mut projected) = forward.projected() {
                    let attention = &mut work[part.segment].0.attention;
                    attention.attend(layer, part.position, part.rows, &mut projected);
                }
            }
            let mut states: Vec<_> = work.iter_mut().map(|(sequence, _)| &mut sequence.recurrent).collect();
            for block in blocks {
                forward.finish(layer, block.clone(), &mut states).unwrap();
            }
        }
    }
    for (sequence, tokens) in work {
        sequence.tokens += tokens.len();
    }
    let rows: Vec<usize> = (0..batch.rows()).collect();
    let mut logits = vec![0.0; rows.len() * config.vocab_size];
    forward.logits(&rows, &mut logits).unwrap();
    logits
}

/// A sequence with the memory for reading it alone.
pub(crate) struct Reader {
    config: ModelConfig,
    forward: HostForward,
    pub(crate) sequence: Sequence,
}

impl Reader {
    /// A reader for a text of `length` tokens.
    pub(crate) fn new(model: &Arc<Decoder>, batch_tokens: usize, length: usize) -> Reader {
        Reader {
            config: model.config.clone(),
            forward: HostForward::new(model, batch_tokens),
            sequence: Sequence::of_length(&model.config, length).with_sinks(model),
        }
    }

    /// Reads a batch and returns its logits, `[tokens, vocab_size]`.
    pub(crate) fn read(&mut self, tokens: &[u32]) -> Vec<f32> {
        read_together(&mut self.forward, &self.config, &mut [(&mut self.sequence, tokens)])
    }
}

/// Logits of every position, `[tokens, vocab_size]`; the text is read in batches of `batch_tokens`.
pub(crate) fn logits_of(model: &Arc<Decoder>, tokens: &[u32], batch_tokens: usize) -> Vec<f32> {
    let mut reader = Reader::new(model, batch_tokens, tokens.len());
    tokens
        .chunks(batch_tokens)
        .flat_map(|tokens| reader.read(tokens))
        .collect()
}
