use crate::pass::{Pass, Pattern};
use crate::{SparseAttentionConfig, SubquadraticError, Tensor3};

/// An algorithm that computes outputs from Q, K and V.
pub trait AttentionBackend {
    /// `q` is `[seq, q_heads, dim]`, `k` and `v` `[seq, kv_heads, dim]`; the result has the shape of `q`.
    ///
    /// # Errors
    /// Shapes that do not match.
    fn forward(&self, q: &Tensor3, k: &Tensor3, v: &Tensor3) -> Result<Tensor3, SubquadraticError>;
}

/// Attention over four edge families: O(log n) keys per query instead of n.
///
/// ```
/// use riffle_subquadratic::{SparseAttentionConfig, SubquadraticSparseAttention, Tensor3};
///
/// let attn = SubquadraticSparseAttention::new(SparseAttentionConfig {
///     window: 128,
///     block_size: 64,
///     global_tokens: vec![0],
///     causal: true,
///     use_log_stride: true,
///     use_landmarks: true,
///     sort_candidates: false,
/// })
/// .unwrap();
///
/// let q = Tensor3::zeros(512, 32, 128);
/// let k = Tensor3::zeros(512, 32, 128);
/// let v = Tensor3::zeros(512, 32, 128);
///
/// let out = attn.forward(&q, &k, &v).unwrap();
/// let out = attn.forward_flash(&q, &k, &v).unwrap(); // the same numbers in less memory
/// # let _ = out;
/// ```
///
/// Grouped queries (32 query heads on 8 KV heads):
///
/// ```
/// # use riffle_subquadratic::{SparseAttentionConfig, SubquadraticSparseAttention, Tensor3};
/// # let attn = SubquadraticSparseAttention::new(SparseAttentionConfig::default()).unwrap();
/// let q = Tensor3::zeros(1024, 32, 128);
/// let k = Tensor3::zeros(1024, 8, 128);
/// let v = Tensor3::zeros(1024, 8, 128);
///
/// let out = attn.forward_auto(&q, &k, &v).unwrap();
/// # assert_eq!(out.shape(), (1024, 32, 128));
/// ```
#[derive(Debug, Clone)]
pub struct SubquadraticSparseAttention {
    config: SparseAttentionConfig,
}

impl SubquadraticSparseAttention {
    /// Makes attention with this pattern.
    ///
    /// # Errors
    /// [`SubquadraticError::Setting`] when `block_size` is zero.
    pub fn new(config: SparseAttentionConfig) -> Result<Self, SubquadraticError> {
        config.check()?;
        Ok(Self { config })
    }

    /// The pattern.
    pub fn config(&self) -> &SparseAttentionConfig {
        &self.config
    }

    /// Candidate edges of one head over `seq` queries: distinct tokens plus landmark blocks, per query.
    ///
    /// Attention skips a landmark if the query reads a token of its block in full, so it visits slightly fewer edges.
    pub fn estimate_sparse_edges(&self, seq: usize) -> usize {
        self.config.edges(seq)
    }

    /// Attends with all heads at once, for as many KV heads as query heads. K and V of every head are copied into the
    /// kernels' layout first. This takes about twice the memory of K and V.
    ///
    /// # Errors
    /// [`SubquadraticError::Mismatch`] when shapes do not match.
    pub fn forward(&self, q: &Tensor3, k: &Tensor3, v: &Tensor3) -> Result<Tensor3, SubquadraticError> {
        check_same_heads(q, k)?;
        self.forward_gqa(q, k, v)
    }

    /// As [`forward`](Self::forward), with the same bits, head by head and tile by tile. It needs the memory of one
    /// head besides the result.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_flash(&self, q: &Tensor3, k: &Tensor3, v: &Tensor3) -> Result<Tensor3, SubquadraticError> {
        check_same_heads(q, k)?;
        self.forward_gqa_flash(q, k, v)
    }

    /// As [`forward`](Self::forward), with several query heads per KV head.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); query heads must be a multiple of KV heads.
    pub fn forward_gqa(&self, q: &Tensor3, k: &Tensor3, v: &Tensor3) -> Result<Tensor3, SubquadraticError> {
        Pass::new(q, k, v, Pattern::Sparse(&self.config))?.all_heads()
    }

    /// As [`forward_flash`](Self::forward_flash), with several query heads per KV head.
    ///
    /// # Errors
    /// As [`forward_gqa`](Self::forward_gqa).
    pub fn forward_gqa_flash(&self, q: &Tensor3, k: &Tensor3, v: &Tensor3) -> Result<Tensor3, SubquadraticError> {
        Pass::new(q, k, v, Pattern::Sparse(&self.config))?.head_by_head()
    }

    /// Attends for any shapes in little memory: [`forward_gqa_flash`](Self::forward_gqa_flash).
    ///
    /// # Errors
    /// As [`forward_gqa`](Self::forward_gqa).
    pub fn forward_auto(&self, q: &Tensor3, k: &Tensor3, v: &Tensor3) -> Result<Tensor3, SubquadraticError> {
        self.forward_gqa_flash(q, k, v)
    }
}

impl AttentionBackend for SubquadraticSparseAttention {
    fn forward(&self, q: &Tensor3, k: &Tensor3, v: &Tensor3) -> Result<Tensor3, SubquadraticError> {
        self.forward_auto(q, k, v)
    }
}

/// Exact dense attention over the same tensors.
///
/// # Errors
/// As [`SubquadraticSparseAttention::forward_gqa`].
pub fn dense_attention(q: &Tensor3, k: &Tensor3, v: &Tensor3, causal: bool) -> Result<Tensor3, SubquadraticError> {
    Pass::new(q, k, v, Pattern::Dense { causal })?.head_by_head()
}

fn check_same_heads(q: &Tensor3, k: &Tensor3) -> Result<(), SubquadraticError> {
    if q.heads() != k.heads() {
        let (expected, found) = (q.heads(), k.heads());
        return Err(SubquadraticError::Mismatch {
            what: "heads of q and k (forward_gqa takes groups)",
            expected,
            found,
        });
    }
    Ok(())
}
