use alloc::vec::Vec;

use crate::{AttendError, RowPage, Rows};

/// A paged cache in the layout of vLLM and similar engines. One tensor holds the keys and one the values, in blocks
/// of a few tokens of all KV heads. Each sequence has a table of its blocks.
///
/// ```text
/// tokens_first   [blocks, block_tokens, kv_heads, head_dim]      vLLM's NHD: FlashAttention, FlashInfer
/// heads_first    [blocks, kv_heads, block_tokens, head_dim]      HND
///
/// table of a sequence of 40 tokens, 16 to a block: [7, 2, 9]
///
///   position   0 .. 15     16 .. 31     32 .. 39
///   block         7            2            9
/// ```
///
/// ```
/// use riffle_attention::*;
///
/// let (block_tokens, kv_heads, head_dim) = (16, 2, 32);
/// let tensor = vec![0x3c00u16; 10 * block_tokens * kv_heads * head_dim];
/// let cache = BlockCache::tokens_first(Rows::F16(&tensor), Rows::F16(&tensor), block_tokens, kv_heads, head_dim);
/// let pages = cache.pages(1, [7, 2, 9], 40)?;
///
/// let queries = QueryTile { data: &[0.5; 64], rows: 1, row_stride: 64, group: 2, head_dim, start: 39 };
/// let options = AttendOptions::for_head_dim(head_dim).with_arithmetic(Arithmetic::Fused);
/// let mut partial = Partial::new(1, 2, head_dim);
/// attend_rows(&queries, &RowView { head_dim, pages: &pages }, &Selection::full(40), &options, &mut partial)?;
/// let mut out = [0.0; 64];
/// partial.finish_into(&mut out, 64, None)?;
/// assert!((out[0] - 1.0).abs() < 1e-6);
/// # Ok::<(), AttendError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct BlockCache<'a> {
    keys: Rows<'a>,
    values: Rows<'a>,
    block_tokens: usize,
    kv_heads: usize,
    heads_first: bool,
    key_tensor: Tensor,
    value_tensor: Tensor,
}

/// Row width, and strides between blocks, tokens and heads, in elements.
#[derive(Debug, Clone, Copy)]
struct Tensor {
    head_dim: usize,
    block_stride: usize,
    token_stride: usize,
    head_stride: usize,
}

impl<'a> BlockCache<'a> {
    /// Blocks of `[block_tokens, kv_heads, head_dim]`.
    pub fn tokens_first(
        keys: Rows<'a>,
        values: Rows<'a>,
        block_tokens: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> Self {
        let tensor = Tensor::tokens_first(block_tokens, kv_heads, head_dim);
        Self {
            keys,
            values,
            block_tokens,
            kv_heads,
            heads_first: false,
            key_tensor: tensor,
            value_tensor: tensor,
        }
    }

    /// Blocks of `[kv_heads, block_tokens, head_dim]`.
    pub fn heads_first(
        keys: Rows<'a>,
        values: Rows<'a>,
        block_tokens: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> Self {
        let tensor = Tensor::heads_first(block_tokens, kv_heads, head_dim);
        Self {
            heads_first: true,
            key_tensor: tensor,
            value_tensor: tensor,
            ..Self::tokens_first(keys, values, block_tokens, kv_heads, head_dim)
        }
    }

    /// Sets the value width. Values then have a separate tensor with the same order of dimensions.
    pub fn with_value_dim(mut self, value_dim: usize) -> Self {
        let tensor = if self.heads_first {
            Tensor::heads_first
        } else {
            Tensor::tokens_first
        };
        self.value_tensor = tensor(self.block_tokens, self.kv_heads, value_dim);
        self
    }

    /// Sets the stride between blocks, for keys and values of a block side by side in one tensor. Call it after
    /// [`with_value_dim`](Self::with_value_dim).
    pub fn with_block_stride(mut self, elements: usize) -> Self {
        self.key_tensor.block_stride = elements;
        self.value_tensor.block_stride = elements;
        self
    }

    /// The pages of one KV head of a sequence with `tokens` tokens in the blocks of its table.
    ///
    /// # Errors
    /// A KV head that does not exist, a table with too few blocks, a block beyond the end of a tensor.
    pub fn pages(
        &self,
        kv_head: usize,
        table: impl IntoIterator<Item = usize>,
        tokens: usize,
    ) -> Result<Vec<RowPage<'a>>, AttendError> {
        if kv_head >= self.kv_heads || self.block_tokens == 0 {
            return Err(AttendError::Setting {
                what: "a block cache has tokens in its blocks and the KV head that is asked for",
            });
        }
        let mut table = table.into_iter();
        let starts = (0..tokens).step_by(self.block_tokens);
        starts
            .enumerate()
            .map(|(held, start)| {
                let block = table.next().ok_or(AttendError::Short {
                    what: "block table",
                    needed: tokens.div_ceil(self.block_tokens),
                    found: held,
                })?;
                let tokens = self.block_tokens.min(tokens - start);
                let (keys, values) = (&self.key_tensor, &self.value_tensor);
                Ok(RowPage {
                    start,
                    tokens,
                    keys: keys.rows("keys of a block cache", self.keys, (block, kv_head), tokens)?,
                    values: values.rows("values of a block cache", self.values, (block, kv_head), tokens)?,
                    stride: keys.token_stride,
                    value_stride: values.token_stride,
                })
            })
            .collect()
    }
}

impl Tensor {
    fn tokens_first(block_tokens: usize, kv_heads: usize, head_dim: usize) -> Self {
        let token_stride = kv_heads.saturating_mul(head_dim);
        Self {
            head_dim,
            block_stride: block_tokens.saturating_mul(token_stride),
            token_stride,
            head_stride: head_dim,
        }
    }

    fn heads_first(block_tokens: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            token_stride: head_dim,
            head_stride: block_tokens.saturating_mul(head_dim),
            ..Self::tokens_first(block_tokens, kv_heads, head_dim)
        }
    }

    /// The rows of one KV head in one block, from the first of `tokens` on.
    fn rows<'a>(
        &self,
        what: &'static str,
        data: Rows<'a>,
        (block, kv_head): (usize, usize),
        tokens: usize,
    ) -> Result<Rows<'a>, AttendError> {
        let too_large = AttendError::TooLarge { what: "block cache" };
        let first = block.checked_mul(self.block_stride).ok_or(too_large.clone())?;
        let first = first.checked_add(kv_head * self.head_stride).ok_or(too_large.clone())?;
        let len = (tokens - 1) * self.token_stride + self.head_dim;
        let needed = first.checked_add(len).ok_or(too_large)?;
        let found = data.len();
        if found < needed {
            return Err(AttendError::Short { what, needed, found });
        }
        Ok(data.skip(first))
    }
}
