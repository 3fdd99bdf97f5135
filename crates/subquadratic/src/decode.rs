use alloc::vec;
use alloc::vec::Vec;

use riffle_attention::{
    AttendJob, AttendOptions, KvView, LANES, Partial, QueryTile, Selection, Span, add_column_mass, attend,
    attend_summaries,
};

use crate::cache::{Head, Store};
use crate::pass::check_heads;
use crate::summaries::Summaries;
use crate::{
    IncrementalLandmarks, KvCache, KvCacheF16, SparseAttentionConfig, SubquadraticError, SubquadraticSparseAttention,
    Tensor3,
};

impl SubquadraticSparseAttention {
    /// One new token against the cache: `q` is `[1, q_heads, dim]`; append its K and V first.
    ///
    /// Costs O(window + log n), and adds the token's attention to the cache's scores for eviction.
    ///
    /// ```
    /// use riffle_subquadratic::{KvCache, SparseAttentionConfig, SubquadraticSparseAttention, Tensor3};
    ///
    /// # let attn = SubquadraticSparseAttention::new(SparseAttentionConfig::default()).unwrap();
    /// # let max_new_tokens = 3;
    /// // capacity, KV heads, head dimension, tokens per landmark block
    /// let mut cache = KvCache::new(4096, 8, 128, 64);
    ///
    /// for _ in 0..max_new_tokens {
    ///     let new_k = Tensor3::zeros(1, 8, 128);
    ///     let new_v = Tensor3::zeros(1, 8, 128);
    ///
    ///     // An error when full: generation continues by dropping the least attended token.
    ///     if cache.try_append(&new_k, &new_v).is_err() {
    ///         cache.evict_and_append(&new_k, &new_v).unwrap();
    ///     }
    ///
    ///     let q_new = Tensor3::zeros(1, 32, 128);
    ///     let out = attn.decode_step(&q_new, &cache).unwrap();
    /// #   assert_eq!(out.shape(), (1, 32, 128));
    /// }
    /// ```
    ///
    /// The other calls of the cache:
    ///
    /// ```
    /// # use riffle_subquadratic::{KvCache, Tensor3};
    /// # let (k, v) = (Tensor3::zeros(1, 8, 128), Tensor3::zeros(1, 8, 128));
    /// let mut cache = KvCache::new(4096, 8, 128, 64);
    ///
    /// cache.try_append(&k, &v)?; // an error if full
    /// cache.append_all(&k, &v)?; // many tokens at once, after prefill
    /// cache.is_full(); // true when len == capacity
    /// cache.evict_and_append(&k, &v)?; // drops the least attended token when full
    /// cache.reset(); // for a new conversation
    /// # Ok::<(), riffle_subquadratic::SubquadraticError>(())
    /// ```
    ///
    /// # Errors
    /// Shapes that do not fit the cache, an empty cache, a pattern that is not causal.
    pub fn decode_step(&self, q: &Tensor3, cache: &KvCache) -> Result<Tensor3, SubquadraticError> {
        step(self.config(), q, &cache.0)
    }

    /// As [`decode_step`](Self::decode_step) over a half-precision cache.
    ///
    /// ```
    /// use riffle_subquadratic::KvCacheF16;
    /// # use riffle_subquadratic::{SparseAttentionConfig, SubquadraticSparseAttention, Tensor3};
    /// # let attn = SubquadraticSparseAttention::new(SparseAttentionConfig::default()).unwrap();
    /// # let (k_f32, v_f32, q) = (Tensor3::zeros(1, 8, 128), Tensor3::zeros(1, 8, 128), Tensor3::zeros(1, 32, 128));
    ///
    /// let mut cache = KvCacheF16::new(8192, 8, 128, 64);
    /// cache.try_append(&k_f32, &v_f32).unwrap(); // stored as f16
    /// let out = attn.decode_step_f16(&q, &cache).unwrap();
    /// # assert_eq!(out.shape(), (1, 32, 128));
    /// ```
    ///
    /// # Errors
    /// As [`decode_step`](Self::decode_step).
    pub fn decode_step_f16(&self, q: &Tensor3, cache: &KvCacheF16) -> Result<Tensor3, SubquadraticError> {
        step(self.config(), q, &cache.0)
    }

    /// Appends each token of a draft and attends it: `q` is `[n, q_heads, dim]`, `new_k` and `new_v`
    /// `[n, kv_heads, dim]`. The same bits as `n` single steps.
    ///
    /// # Errors
    /// As [`decode_step`](Self::decode_step); [`SubquadraticError::Full`] when the draft does not fit, before
    /// anything is appended.
    pub fn decode_batch(
        &self,
        q: &Tensor3,
        new_k: &Tensor3,
        new_v: &Tensor3,
        cache: &mut KvCache,
    ) -> Result<Tensor3, SubquadraticError> {
        for (what, found) in [("seq of q and k", new_k.seq()), ("seq of q and v", new_v.seq())] {
            if found != q.seq() {
                return Err(SubquadraticError::Mismatch {
                    what,
                    expected: q.seq(),
                    found,
                });
            }
        }
        check(self.config(), q, &cache.0)?;
        let wanted = cache.len().saturating_add(q.seq());
        if wanted > cache.capacity() {
            return Err(SubquadraticError::Full {
                capacity: cache.capacity(),
                wanted,
            });
        }
        let mut out = Vec::with_capacity(q.data().len());
        for token in 0..q.seq() {
            cache.try_append(&token_of(new_k, token)?, &token_of(new_v, token)?)?;
            out.extend_from_slice(self.decode_step(&token_of(q, token)?, cache)?.data());
        }
        Tensor3::from_vec(out, q.seq(), q.heads(), q.dim())
    }
}

fn token_of(tensor: &Tensor3, token: usize) -> Result<Tensor3, SubquadraticError> {
    let (_, heads, dim) = tensor.shape();
    let data = tensor.data()[token * heads * dim..(token + 1) * heads * dim].to_vec();
    Tensor3::from_vec(data, 1, heads, dim)
}

fn check(config: &SparseAttentionConfig, q: &Tensor3, store: &Store) -> Result<(), SubquadraticError> {
    check_heads(q, store.heads.len(), store.dim)?;
    if !config.causal {
        return Err(SubquadraticError::Setting {
            what: "decoding needs a causal pattern",
        });
    }
    if config.use_landmarks && config.block_size != store.block_size {
        let (expected, found) = (config.block_size, store.block_size);
        return Err(SubquadraticError::Mismatch {
            what: "block_size of pattern and cache",
            expected,
            found,
        });
    }
    Ok(())
}

/// Position of the newest token, whose query is `q`.
fn newest(config: &SparseAttentionConfig, q: &Tensor3, store: &Store) -> Result<usize, SubquadraticError> {
    check(config, q, store)?;
    if q.seq() != 1 {
        return Err(SubquadraticError::Mismatch {
            what: "seq of q and one token",
            expected: 1,
            found: q.seq(),
        });
    }
    store.next_position.checked_sub(1).ok_or(SubquadraticError::Setting {
        what: "append the token's K and V before decoding it",
    })
}

fn step(config: &SparseAttentionConfig, q: &Tensor3, store: &Store) -> Result<Tensor3, SubquadraticError> {
    let position = newest(config, q, store)?;
    let (dim, group) = (store.dim, q.heads() / store.heads.len());
    let head_dim = dim.next_multiple_of(LANES);
    let mut out = Tensor3::try_zeros(1, q.heads(), dim)?;
    let mut rows = vec![0.0; group * head_dim];
    let mut summaries = Summaries::default();
    let mut partial = Partial::new(0, 0, 0);
    for (index, head) in store.heads.iter().enumerate() {
        for (g, row) in rows.chunks_exact_mut(head_dim).enumerate() {
            row[..dim].copy_from_slice(q.row(0, index * group + g));
            row[dim..].fill(0.0);
        }
        let edges = Edges::new(config, head, position);
        // All cached tokens are at or before this token, in slots of any order.
        let options = AttendOptions::for_head_dim(dim).with_causal(false);
        let queries = QueryTile {
            data: &rows,
            rows: 1,
            row_stride: rows.len(),
            group,
            head_dim,
            start: store.len() - 1,
        };
        let pages = [head.page()];
        let kv = KvView {
            head_dim,
            pages: &pages,
        };
        partial.reset(1, group, head_dim);
        attend(&queries, &kv, &edges.tokens, &options, &mut partial)?;
        if let Some(landmarks) = &head.landmarks
            && !edges.blocks.is_empty()
        {
            edges.attend_blocks(landmarks, &queries, &mut summaries, &options, &mut partial)?;
        }
        let totals: Vec<f32> = (0..group).map(|g| partial.log_sum_exp(0, g)).collect();
        let read = AttendJob {
            queries,
            kv,
            selection: &edges.tokens,
        };
        add_column_mass(&read, &options, &totals, 0, &mut head.mass.borrow_mut())?;
        partial.finish_into(&mut rows, group * head_dim, None)?;
        for (g, row) in rows.chunks_exact(head_dim).enumerate() {
            out.row_mut(0, index * group + g).copy_from_slice(&row[..dim]);
        }
    }
    store.votes.set(store.votes.get() + 1);
    Ok(out)
}

fn pad(row: &[f32], head_dim: usize) -> Vec<f32> {
    let mut padded = row.to_vec();
    padded.resize(head_dim, 0.0);
    padded
}

/// Keys of a head that the token at one position reads.
struct Edges {
    /// Slots.
    tokens: Selection,
    /// Landmark blocks of which no token is read in full.
    blocks: Vec<usize>,
}

impl Edges {
    /// Adds the means of the blocks to `partial`.
    fn attend_blocks(
        &self,
        landmarks: &IncrementalLandmarks,
        queries: &QueryTile,
        summaries: &mut Summaries,
        options: &AttendOptions,
        partial: &mut Partial,
    ) -> Result<(), SubquadraticError> {
        let head_dim = queries.head_dim;
        let means: Vec<_> = self.blocks.iter().filter_map(|block| landmarks.mean(*block)).collect();
        let padded: Vec<_> = means
            .iter()
            .map(|(key, value)| (pad(key, head_dim), pad(value, head_dim)))
            .collect();
        summaries.gather(head_dim, padded.iter().map(|(key, value)| (&key[..], &value[..])))?;
        // A block that lost tokens weighs its remaining tokens: consecutive spans of these lengths.
        let mut end = 0;
        let spans = self.blocks.iter().map(|block| {
            let span = Span::new(end, end + landmarks.count(*block));
            end = span.end;
            span
        });
        let spans: Vec<Span> = spans.collect();
        let named = Selection::none().with_summaries(spans.iter().copied());
        let after = QueryTile { start: end, ..*queries };
        let view = summaries.view(head_dim, &spans);
        attend_summaries(&after, &view, &named, &options.with_causal(true), partial)?;
        Ok(())
    }

    fn new(config: &SparseAttentionConfig, head: &Head, position: usize) -> Self {
        let window = position.saturating_sub(config.window)..=position;
        let strides = (0..usize::BITS)
            .map(|k| 1usize << k)
            .take_while(|stride| *stride <= position);
        let strides = strides
            .filter(|_| config.use_log_stride)
            .map(|stride| position - stride);
        let globals = config.global_tokens.iter().copied().filter(|token| *token <= position);
        let far = globals.chain(strides).filter(|token| !window.contains(token));
        let far: Vec<(usize, usize)> = far.filter_map(|token| Some((token, head.slot(token)?))).collect();
        let slots = head.slots_in(window.clone()).chain(far.iter().map(|(_, slot)| *slot));
        let tokens = Selection::from_spans(slots.map(|slot| Span::new(slot, slot + 1)));
        let mut blocks = Vec::new();
        if let Some(landmarks) = head.landmarks.as_ref().filter(|_| config.use_landmarks) {
            blocks = config.landmark_blocks(position, position + 1);
            blocks.retain(|block| {
                let span = config.block_span(*block, position + 1);
                let read = |token: usize| span.range().contains(&token);
                span.end <= *window.start() && landmarks.count(*block) > 0 && !far.iter().any(|(token, _)| read(*token))
            });
        }
        Self { tokens, blocks }
    }
}
