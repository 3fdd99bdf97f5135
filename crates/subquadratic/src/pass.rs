use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use riffle_attention::{
    AttendOptions, Format, KvView, LANES, PageView, Partial, Plane, PlaneMut, QueryTile, Selection, attend,
    attend_summaries, prefetch_rows, write_keys, write_values,
};

use crate::summaries::Summaries;
use crate::{SparseAttentionConfig, SubquadraticError, Tensor3};

/// Queries per tile if the pattern sets no other size.
const DENSE_TILE: usize = 240;

/// The keys that a query reads.
pub(crate) enum Pattern<'a> {
    Dense { causal: bool },
    Sparse(&'a SparseAttentionConfig),
}

impl Pattern<'_> {
    fn causal(&self) -> bool {
        match self {
            Self::Dense { causal } => *causal,
            Self::Sparse(config) => config.causal,
        }
    }

    fn tiles(&self, seq: usize) -> Vec<Range<usize>> {
        match self {
            Self::Dense { .. } => (0..seq)
                .step_by(DENSE_TILE)
                .map(|first| first..(first + DENSE_TILE).min(seq))
                .collect(),
            Self::Sparse(config) => config.tiles(seq).collect(),
        }
    }

    fn selection(&self, tile: Range<usize>, seq: usize) -> Selection {
        match self {
            Self::Dense { .. } => Selection::full(seq),
            Self::Sparse(config) => config.selection(tile, seq),
        }
    }
}

/// K and V of one head as one page, and the means of its blocks.
#[derive(Default)]
struct Head {
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[blocks, head_dim]`.
    mean_keys: Vec<f32>,
    mean_values: Vec<f32>,
}

/// One pass over whole tensors of matching shapes.
pub(crate) struct Pass<'a> {
    q: &'a Tensor3,
    k: &'a Tensor3,
    v: &'a Tensor3,
    pattern: Pattern<'a>,
    seq: usize,
    group: usize,
    /// `dim` rounded up to whole vectors. The padding is zero and changes no dot product.
    head_dim: usize,
}

impl<'a> Pass<'a> {
    /// # Errors
    /// [`SubquadraticError::Mismatch`] when shapes do not belong together.
    pub(crate) fn new(
        q: &'a Tensor3,
        k: &'a Tensor3,
        v: &'a Tensor3,
        pattern: Pattern<'a>,
    ) -> Result<Self, SubquadraticError> {
        let seq = q.seq();
        for (what, tensor) in [("seq of q and k", k), ("seq of q and v", v)] {
            if tensor.seq() != seq {
                return Err(SubquadraticError::Mismatch {
                    what,
                    expected: seq,
                    found: tensor.seq(),
                });
            }
        }
        if v.heads() != k.heads() {
            return Err(SubquadraticError::Mismatch {
                what: "heads of k and v",
                expected: k.heads(),
                found: v.heads(),
            });
        }
        if v.dim() != k.dim() {
            return Err(SubquadraticError::Mismatch {
                what: "dim of k and v",
                expected: k.dim(),
                found: v.dim(),
            });
        }
        check_heads(q, k.heads(), k.dim())?;
        let group = q.heads() / k.heads();
        Ok(Self {
            q,
            k,
            v,
            pattern,
            seq,
            group,
            head_dim: k.dim().next_multiple_of(LANES),
        })
    }

    fn options(&self) -> AttendOptions<'static> {
        AttendOptions::for_head_dim(self.q.dim()).with_causal(self.pattern.causal())
    }

    /// Lays out every head first, with a partial per tile; then writes the outputs.
    pub(crate) fn all_heads(&self) -> Result<Tensor3, SubquadraticError> {
        let mut out = Tensor3::try_zeros(self.seq, self.q.heads(), self.q.dim())?;
        let tiles = self.pattern.tiles(self.seq);
        let mut heads: Vec<Head> = (0..self.k.heads()).map(|_| Head::default()).collect();
        for (index, head) in heads.iter_mut().enumerate() {
            self.lay_out(index, head)?;
        }
        let units: Vec<(usize, Range<usize>)> = (0..heads.len())
            .flat_map(|head| tiles.iter().map(move |tile| (head, tile.clone())))
            .collect();
        let run = |(head, tile): &(usize, Range<usize>)| {
            let mut partial = Partial::new(0, 0, 0);
            self.tile(
                *head,
                &heads[*head],
                tile.clone(),
                &mut TileScratch::default(),
                &mut partial,
            )?;
            Ok(partial)
        };
        #[cfg(feature = "parallel")]
        let partials: Result<Vec<Partial>, SubquadraticError> = {
            use rayon::prelude::*;
            units.par_iter().map(run).collect()
        };
        #[cfg(not(feature = "parallel"))]
        let partials: Result<Vec<Partial>, SubquadraticError> = units.iter().map(run).collect();
        let mut padded = Vec::new();
        let width = self.q.heads() * self.q.dim();
        for ((head, tile), partial) in units.iter().zip(&partials?) {
            let out = &mut out.data_mut()[tile.start * width..tile.end * width];
            self.finish(*head, partial, out, &mut padded)?;
        }
        Ok(out)
    }

    /// Lays out one head at a time, with one partial per thread.
    pub(crate) fn head_by_head(&self) -> Result<Tensor3, SubquadraticError> {
        let mut out = Tensor3::try_zeros(self.seq, self.q.heads(), self.q.dim())?;
        let width = self.q.heads() * self.q.dim();
        let mut head = Head::default();
        for index in 0..self.k.heads() {
            self.lay_out(index, &mut head)?;
            let mut rest = out.data_mut();
            let mut slices = Vec::new();
            for tile in self.pattern.tiles(self.seq) {
                let (here, later) = rest.split_at_mut(tile.len() * width);
                rest = later;
                slices.push((tile, here));
            }
            let run = |scratch: &mut (TileScratch, Partial, Vec<f32>), (tile, out): (Range<usize>, &mut [f32])| {
                let (tile_scratch, partial, padded) = scratch;
                self.tile(index, &head, tile, tile_scratch, partial)?;
                self.finish(index, partial, out, padded)
            };
            let scratch = || (TileScratch::default(), Partial::new(0, 0, 0), Vec::new());
            #[cfg(feature = "parallel")]
            {
                use rayon::prelude::*;
                slices
                    .into_par_iter()
                    .map_init(scratch, run)
                    .collect::<Result<(), SubquadraticError>>()?;
            }
            #[cfg(not(feature = "parallel"))]
            {
                let mut scratch = scratch();
                slices.into_iter().try_for_each(|slice| run(&mut scratch, slice))?;
            }
        }
        Ok(out)
    }

    fn lay_out(&self, index: usize, head: &mut Head) -> Result<(), SubquadraticError> {
        let (dim, head_dim) = (self.k.dim(), self.head_dim);
        let len = Format::F32.plane_len(self.seq.next_multiple_of(LANES), head_dim);
        let stride = self.k.heads() * dim;
        for plane in [&mut head.keys, &mut head.values] {
            plane.resize(len, 0.0);
        }
        let config = match &self.pattern {
            Pattern::Sparse(config) if config.use_landmarks => Some(config),
            _ => None,
        };
        let mut row = vec![0.0; head_dim];
        // Rows are written block by block, so that means are computed while the rows are in cache.
        let block_size = config.map_or(DENSE_TILE, |config| config.block_size);
        for means in [&mut head.mean_keys, &mut head.mean_values] {
            means.clear();
            if config.is_some() {
                means.resize(self.seq.div_ceil(block_size) * head_dim, 0.0);
            }
        }
        for first in (0..self.seq).step_by(block_size) {
            let tokens = block_size.min(self.seq - first);
            let planes = [
                (&mut head.keys, &mut head.mean_keys, self.k, true),
                (&mut head.values, &mut head.mean_values, self.v, false),
            ];
            for (plane, means, tensor, keys) in planes {
                let mut plane = PlaneMut::F32(plane);
                let mut write = |first, tokens, source: &[f32], stride| {
                    if keys {
                        write_keys(&mut plane, head_dim, first, tokens, source, stride)
                    } else {
                        write_values(&mut plane, head_dim, first, tokens, source, stride)
                    }
                };
                if dim == head_dim {
                    let source = &tensor.data()[first * stride + index * dim..];
                    write(first, tokens, source, stride)?;
                } else {
                    for token in first..first + tokens {
                        row[..dim].copy_from_slice(tensor.row(token, index));
                        write(token, 1, &row, head_dim)?;
                    }
                }
                if config.is_some() {
                    let mean = &mut means[first / block_size * head_dim..][..head_dim];
                    for token in first..first + tokens {
                        for (mean, x) in mean.iter_mut().zip(tensor.row(token, index)) {
                            *mean += x;
                        }
                    }
                    for mean in mean {
                        *mean /= tokens as f32;
                    }
                }
            }
        }
        Ok(())
    }

    /// The queries of one KV head's group in a tile: in place, or padded in scratch. Prefetches the next tile's
    /// queries.
    fn queries<'s>(&'s self, index: usize, tile: &Range<usize>, scratch: &'s mut Vec<f32>) -> QueryTile<'s> {
        let (dim, head_dim) = (self.q.dim(), self.head_dim);
        let width = self.q.heads() * dim;
        let first_head = index * self.group;
        let later = self.q.data().get(tile.end * width + first_head * dim..);
        prefetch_rows(later.unwrap_or_default(), tile.len(), width, self.group * dim);
        let (data, row_stride) = if dim == head_dim {
            (&self.q.data()[tile.start * width + first_head * dim..], width)
        } else {
            scratch.clear();
            scratch.resize(tile.len() * self.group * head_dim, 0.0);
            for (at, out) in scratch.chunks_exact_mut(head_dim).enumerate() {
                let row = self.q.row(tile.start + at / self.group, first_head + at % self.group);
                out[..dim].copy_from_slice(row);
            }
            (&scratch[..], self.group * head_dim)
        };
        QueryTile {
            data,
            rows: tile.len(),
            row_stride,
            group: self.group,
            head_dim,
            start: tile.start,
        }
    }

    /// Attends one tile of one KV head's group into `partial`.
    fn tile(
        &self,
        index: usize,
        head: &Head,
        tile: Range<usize>,
        scratch: &mut TileScratch,
        partial: &mut Partial,
    ) -> Result<(), SubquadraticError> {
        let head_dim = self.head_dim;
        partial.reset(tile.len(), self.group, head_dim);
        let queries = self.queries(index, &tile, &mut scratch.queries);
        let pages = [PageView {
            start: 0,
            tokens: self.seq,
            keys: Plane::F32(&head.keys),
            values: Plane::F32(&head.values),
        }];
        let kv = KvView {
            head_dim,
            pages: &pages,
        };
        let selection = self.pattern.selection(tile, self.seq);
        let options = self.options();
        attend(&queries, &kv, &selection, &options, partial)?;
        if selection.summaries().is_empty() {
            return Ok(());
        }
        let Pattern::Sparse(config) = &self.pattern else {
            return Ok(());
        };
        // A few blocks of many are gathered into separate stripes, so that no lane is wasted.
        let rows = selection.summaries().iter().map(|span| {
            let at = span.start / config.block_size * head_dim;
            (&head.mean_keys[at..at + head_dim], &head.mean_values[at..at + head_dim])
        });
        scratch.summaries.gather(head_dim, rows)?;
        attend_summaries(
            &queries,
            &scratch.summaries.view(head_dim, selection.summaries()),
            &selection,
            &options,
            partial,
        )?;
        Ok(())
    }

    /// Writes a tile's outputs into its rows of the result, `[rows, q_heads, dim]`.
    fn finish(
        &self,
        index: usize,
        partial: &Partial,
        out: &mut [f32],
        padded: &mut Vec<f32>,
    ) -> Result<(), SubquadraticError> {
        let (dim, head_dim) = (self.q.dim(), self.head_dim);
        let width = self.q.heads() * dim;
        let first_head = index * self.group;
        if dim == head_dim {
            return Ok(partial.finish_into(&mut out[first_head * dim..], width, None)?);
        }
        padded.resize(partial.rows() * self.group * head_dim, 0.0);
        partial.finish_into(padded, self.group * head_dim, None)?;
        for (at, row) in padded.chunks_exact(head_dim).enumerate() {
            let target = at / self.group * width + (first_head + at % self.group) * dim;
            out[target..target + dim].copy_from_slice(&row[..dim]);
        }
        Ok(())
    }
}

/// Buffers that a thread reuses for each tile.
#[derive(Default)]
struct TileScratch {
    queries: Vec<f32>,
    summaries: Summaries,
}

pub(crate) fn check_heads(q: &Tensor3, kv_heads: usize, dim: usize) -> Result<(), SubquadraticError> {
    if q.dim() != dim || dim == 0 {
        return Err(SubquadraticError::Mismatch {
            what: "dim of q and of K/V",
            expected: dim.max(1),
            found: q.dim(),
        });
    }
    if kv_heads == 0 || !q.heads().is_multiple_of(kv_heads) {
        return Err(SubquadraticError::Mismatch {
            what: "query heads and a multiple of KV heads",
            expected: kv_heads,
            found: q.heads(),
        });
    }
    Ok(())
}
