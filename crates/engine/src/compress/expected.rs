//! Scores by the expected attention of later queries.
//!
//! For a query `q` of mean `μ` and covariance `Σ` and a key `k`, `E[exp(s·q·k)] = exp(s·μ·k + s²·kᵀΣk / 2)`. A key's
//! score is the softmax of this exponent over its head's keys after the sinks, averaged over the group. It is
//! multiplied by the norm of the key's value. A soft cap on logits is ignored, because it preserves the order of
//! logits.

use std::sync::Arc;

use rayon::prelude::*;
use riffle_attention::{PageView, read_keys, rotate_heads};
use riffle_kv::KvCache;

use crate::attention::{Heads, Observers, rotated_widths};
use crate::compress::moments::{Moments, QueryDistribution};
use crate::compress::{HeadScores, check_room_beside};
use crate::sequence::fork::beside_to_measure;
use crate::{EngineError, Sequence, SequenceOptions};

/// The latest tokens of the text. The distribution of their queries estimates the distribution of later queries.
pub(super) struct Sample {
    /// The latest tokens of the text, until a scratch sequence reads them.
    ahead: Option<Vec<u32>>,
    tokens: usize,
    future_tokens: usize,
    sink_tokens: usize,
    /// Set after the sample has been read.
    moments: Option<Moments>,
}

/// Expectations for a page's keys: the exponent for each query head of the group, `[group, tokens]`, and the norms of
/// the values.
struct PageScores {
    exponents: Vec<f32>,
    norms: Vec<f32>,
}

/// The factors that turn keys into exponents.
struct Expectation<'a> {
    heads: Heads,
    scale: f32,
    /// True if the cache holds rotated keys.
    is_rotated: bool,
    /// `[group]`
    queries: &'a [QueryDistribution],
}

impl Sample {
    pub(super) fn begin(
        sequence: &Sequence,
        sample_tokens: usize,
        future_tokens: usize,
        sink_tokens: usize,
    ) -> Result<Self, EngineError> {
        let first = sequence.tokens().len().saturating_sub(sample_tokens);
        let sample = sequence.tokens()[first..].to_vec();
        check_room_beside(sequence, "the text with what is sampled of it", sample.len())?;
        Ok(Self {
            tokens: sample.len(),
            ahead: Some(sample),
            future_tokens,
            sink_tokens,
            moments: None,
        })
    }

    /// Number of tokens to read.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// An empty sequence and the sample that it must read; `None` after the sample has been read.
    pub(super) fn next_reading(&mut self, sequence: &Sequence) -> Result<Option<(Sequence, Vec<u32>)>, EngineError> {
        let Some(sample) = self.ahead.take() else {
            return Ok(None);
        };
        let mut scratch = beside_to_measure(sequence, SequenceOptions::default())?;
        let moments = Moments::new(&scratch, self.sink_tokens);
        scratch.attention_mut().observers.add(moments);
        Ok(Some((scratch, sample)))
    }

    /// Takes the observer back from the sequence that has read the sample.
    pub(super) fn take_back(&mut self, observers: &mut Observers) {
        self.moments = observers.take();
    }

    /// The expected attention of each pair of a sequence, times the norm of its value.
    pub(super) fn into_scores(self, sequence: &mut Sequence) -> Result<Vec<HeadScores>, EngineError> {
        let Some(moments) = self.moments else {
            return Ok(Vec::new());
        };
        let engine = Arc::clone(sequence.engine());
        let layers = engine.whole_layers();
        let distributions = moments.distributions(sequence.tokens().len(), self.future_tokens);
        let config = engine.model().config();
        let mut scores = Vec::new();
        for ((of_model, layer), distributions) in layers.into_iter().zip(&distributions) {
            let heads = Heads::of_layer(config, of_model);
            let expectations = distributions.chunks_exact(heads.group).map(|queries| Expectation {
                heads,
                scale: config.attention_scale,
                is_rotated: engine.resolved.rotation.keys,
                queries,
            });
            let expectations: Vec<Expectation<'_>> = expectations.collect();
            let pages = page_scores(&mut sequence.attention_mut().cache, layer, &expectations)?;
            for (kv_head, pages) in pages.iter().enumerate() {
                scores.push(HeadScores {
                    layer,
                    kv_head,
                    before: 0,
                    scores: head_scores(pages, heads.group, self.sink_tokens),
                });
            }
        }
        Ok(scores)
    }
}

/// Expectations for the pages of a layer in any tier, by KV head in order.
fn page_scores(
    cache: &mut KvCache,
    layer: usize,
    expectations: &[Expectation<'_>],
) -> Result<Vec<Vec<PageScores>>, EngineError> {
    let mut scores: Vec<Vec<PageScores>> = expectations.iter().map(|_| Vec::new()).collect();
    cache.stream::<EngineError>(layer, None, None, &mut |pages| {
        for ((scores, pages), expectation) in scores.iter_mut().zip(pages).zip(expectations) {
            let shown = pages.par_iter().map(|page| expectation.of_page(page));
            scores.extend(shown.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(())
    })?;
    Ok(scores)
}

impl Expectation<'_> {
    fn of_page(&self, page: &PageView<'_>) -> Result<PageScores, EngineError> {
        let (head_dim, value_width, tokens) = (self.heads.key_width, self.heads.value_width, page.tokens);
        let mut rows = vec![0.0; tokens * value_width];
        page.read_values([head_dim, value_width], 0, tokens, &mut rows)?;
        let norms = rows
            .chunks_exact(value_width)
            .map(|value| dot(value, value).sqrt())
            .collect();
        rows.resize(tokens * head_dim, 0.0);
        read_keys(&page.keys, head_dim, 0, tokens, &mut rows, head_dim)?;
        if self.is_rotated {
            rotate_heads(&mut rows, rotated_widths(&self.heads.cached())[0]);
        }
        let mut product = vec![0.0; head_dim];
        let mut exponents = Vec::with_capacity(self.queries.len() * tokens);
        for query in self.queries {
            for key in rows.chunks_exact(head_dim) {
                product.fill(0.0);
                for (element, row) in key.iter().zip(query.covariance.chunks_exact(head_dim)) {
                    for (product, covariance) in product.iter_mut().zip(row) {
                        *product += element * covariance;
                    }
                }
                let (mean, variance) = (dot(key, &query.mean), dot(key, &product));
                exponents.push(self.scale * mean + 0.5 * self.scale * self.scale * variance);
            }
        }
        Ok(PageScores { exponents, norms })
    }
}

/// Scores of a KV head's pairs, oldest first; zero for the sinks.
fn head_scores(pages: &[PageScores], group: usize, sink_tokens: usize) -> Vec<f32> {
    let norms: Vec<f32> = pages.iter().flat_map(|page| &page.norms).copied().collect();
    let mut scores = vec![0.0; norms.len()];
    let behind = sink_tokens.min(norms.len());
    for head in 0..group {
        let exponents = pages.iter().flat_map(|page| {
            let tokens = page.norms.len();
            &page.exponents[head * tokens..(head + 1) * tokens]
        });
        let exponents: Vec<f32> = exponents.copied().collect();
        let top = exponents[behind..].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |exponent: &f32| f64::from(exponent - top).exp();
        let total: f64 = exponents[behind..].iter().map(weight).sum();
        for (score, exponent) in scores[behind..].iter_mut().zip(&exponents[behind..]) {
            *score += (weight(exponent) / (total * group as f64)) as f32;
        }
    }
    scores.iter().zip(norms).map(|(score, norm)| score * norm).collect()
}

/// Summed in a fixed order, in eight parts.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}
