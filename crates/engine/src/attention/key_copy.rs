//! Copies of a few keys of each KV head, for scores outside attention.

use rayon::prelude::*;
use riffle_attention::{AttendError, LANES, Plane, PlaneMut, Scorer, Selection, Span, read_keys, write_keys};
use riffle_kv::KvCache;
use riffle_policy::SelectContext;

use crate::EngineError;
use crate::attention::reading;

/// Keys of some spans of one KV head, one span after the other.
pub(crate) struct KeyCopy {
    key_width: usize,
    /// Stripes of f32 keys, in the layout of a page.
    plane: Vec<f32>,
    pub(crate) tokens: usize,
}

impl KeyCopy {
    /// The keys in `spans` of each KV head of a layer, from any tier. Spans are in slots of the head, and ascend.
    pub(crate) fn of_heads<const N: usize>(
        cache: &mut KvCache,
        layer: usize,
        spans: &[[Span; N]],
    ) -> Result<Vec<Self>, EngineError> {
        let (page_tokens, key_width) = (cache.shape().page_tokens, cache.shape().layer(layer).key_width);
        let pages_of = |spans: &[Span; N]| {
            let pages = spans.iter().filter(|span| !span.is_empty());
            let pages = pages.map(|span| reading::pages_of(span, page_tokens));
            Selection::from_spans(pages).spans().to_vec()
        };
        let wanted: Vec<Vec<Span>> = spans.iter().map(pages_of).collect();
        let tokens: Vec<usize> = spans.iter().map(|spans| spans.iter().map(Span::len).sum()).collect();
        // [tokens, key_width]
        let mut rows: Vec<Vec<f32>> = tokens.iter().map(|tokens| vec![0.0; tokens * key_width]).collect();
        cache.stream::<EngineError>(layer, Some(&wanted), None, &mut |pages| {
            rows.par_iter_mut()
                .zip(spans)
                .zip(pages)
                .try_for_each(|((rows, spans), pages)| {
                    for page in pages {
                        let mut at = 0;
                        for span in spans {
                            let part = span.intersect(&Span::new(page.start, page.start + page.tokens));
                            if !part.is_empty() {
                                let out = &mut rows[(at + part.start - span.start) * key_width..];
                                let slot = part.start - page.start;
                                read_keys(&page.keys, key_width, slot, part.len(), out, key_width)?;
                            }
                            at += span.len();
                        }
                    }
                    Ok::<(), EngineError>(())
                })
        })?;
        let copies = rows.par_iter().zip(tokens).map(|(rows, tokens)| {
            let mut plane = vec![0.0; tokens.next_multiple_of(LANES) * key_width];
            write_keys(&mut PlaneMut::F32(&mut plane), key_width, 0, tokens, rows, key_width)?;
            Ok(Self {
                key_width,
                plane,
                tokens,
            })
        });
        copies.collect()
    }

    /// The logits of queries with all keys, `[queries, tokens]`, after the scale and the soft cap of `context`.
    pub(crate) fn logits(&self, queries: &[&[f32]], context: &SelectContext<'_>) -> Result<Vec<f32>, AttendError> {
        let mut scorer = Scorer::default();
        scorer.set(queries.iter().copied(), self.key_width, context.scale)?;
        let mut logits = vec![0.0; queries.len() * self.tokens];
        let keys = Plane::F32(&self.plane);
        scorer.score(&keys, Span::new(0, self.tokens), None, &mut logits, self.tokens)?;
        if let Some(cap) = context.soft_cap {
            logits.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        Ok(logits)
    }
}
