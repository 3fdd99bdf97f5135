use crate::call::{Call, Output};
use crate::simd::Level;
use crate::visible::Tokens;
use crate::workspace::Workspace;
use crate::{AttendError, KvView, Partial, QueryTile, Selection, Span};

/// Method of multiplying keys and values, and of splitting a long cache.
///
/// A row's result depends on the method, the formats, the pages and the tokens that the row sees. It never depends on
/// the number of rows or threads that compute beside it.
///
/// A generated token therefore has the same bits alone, beside other sequences, and as a token of a verified draft. A
/// prompt token has the same bits however the prompt is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Arithmetic {
    /// For prompts: quantised planes are expanded to f32, once for all rows of a tile.
    #[default]
    Expanded,
    /// For prompts, faster and not exact. Queries, keys, weights and values are rounded to integers of up to 16 bits.
    /// AVX-512 VNNI and AVX2 add products of such integers two at a time. Sums of integers are exact. The method
    /// follows SageAttention (arXiv 2410.02367, 2411.10958), which rounds to 8 bits.
    ///
    /// With L = √(2³¹ / key width), 4095 at width 128, and k a key less the first key of its block of 128:
    /// - a logit is off by at most scale · (‖q‖∞·‖k‖₁ + ‖k‖∞·‖q‖₁) / 2L, beside the rounding of f32;
    /// - an element of a value is off by at most 1/2046 of the largest in the value;
    /// - a weight is off by at most 1/8192 of the heaviest that its row has in the block, both times the size of
    ///   their values.
    ///
    /// The error of a logit grows with the length of queries and keys. Outputs are off by 3 to 5·10⁻⁴ of their length
    /// where logits of a row spread by 1. Where they spread by 2, outputs are off by 6·10⁻⁴ (head_dim 64) to 10⁻³
    /// (256).
    ///
    /// Diagonals and block means are computed as in [`Expanded`](Self::Expanded). So are rows that read a few scattered
    /// tokens of a block, all column masses and all scans. A row's bits do not depend on its tile, the split of the
    /// prompt, the order of pages, the number of threads or later tokens. Between instruction sets it may differ by the
    /// last bit of a weight. Keys and values must be finite.
    Rounded,
    /// For generated or verified tokens: a few rows over many keys. Quantised planes are multiplied without widening,
    /// by integers where the machine supports it. [`attend_batch`](crate::attend_batch) and
    /// [`BatchStream`](crate::BatchStream) attend to each 4096 positions separately and merge these parts in order, so
    /// that threads share a long cache.
    Fused,
}

/// Options that all tiles of a call share.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct AttendOptions<'a> {
    /// Factor on q·k, usually 1/√(key width).
    pub scale: f32,
    /// Logits become cap·tanh(logit / cap).
    pub soft_cap: Option<f32>,
    /// True if a query sees only keys at or before its own position.
    pub causal: bool,
    /// How keys and values are multiplied.
    pub arithmetic: Arithmetic,
    marker: core::marker::PhantomData<&'a ()>,
}

impl AttendOptions<'_> {
    /// Causal attention with this factor on q·k, no soft cap, in [`Arithmetic::Expanded`].
    pub fn new(scale: f32) -> Self {
        Self {
            scale,
            soft_cap: None,
            causal: true,
            arithmetic: Arithmetic::Expanded,
            marker: core::marker::PhantomData,
        }
    }

    /// [`new`](Self::new) with the usual factor for keys of `head_dim` elements, 1/√`head_dim`.
    pub fn for_head_dim(head_dim: usize) -> Self {
        Self::new(1.0 / crate::math::sqrt(head_dim as f32))
    }

    /// Caps logits softly at ±`cap`.
    pub fn with_soft_cap(mut self, cap: Option<f32>) -> Self {
        self.soft_cap = cap;
        self
    }

    /// Sets whether a query sees only keys up to its own position.
    pub fn with_causal(mut self, causal: bool) -> Self {
        self.causal = causal;
        self
    }

    /// Sets the arithmetic.
    pub fn with_arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.arithmetic = arithmetic;
        self
    }

    pub(crate) fn check(&self) -> Result<(), AttendError> {
        if !self.scale.is_finite() {
            return Err(AttendError::NotFinite { what: "scale" });
        }
        if self.soft_cap.is_some_and(|cap| !(cap.is_finite() && cap > 0.0)) {
            return Err(AttendError::NotFinite { what: "soft cap" });
        }
        Ok(())
    }
}

/// One tile of queries over one KV head.
#[derive(Debug, Clone, Copy)]
pub struct AttendJob<'a> {
    /// The queries.
    pub queries: QueryTile<'a>,
    /// Keys and values of the tile.
    pub kv: KvView<'a>,
    /// Tokens that the tile reads.
    pub selection: &'a Selection,
}

/// Adds the attention of `queries` over `kv` under `selection` to `partial`.
///
/// Keys are taken in ascending order, in blocks cut from each page's start. Attending page by page therefore gives the
/// same bits as one call over all pages. A row's result does not depend on the other rows of the tile. Values a row
/// does not see must be finite: they enter with weight zero.
///
/// Queries and keys have the key width, `head_dim` of `queries` and `kv`. Values have the value width, which is
/// [`Partial::head_dim`]; a plane with room for wider values is accepted.
///
/// Summaries that the selection names are read by [`attend_summaries`](crate::attend_summaries).
///
/// # Errors
/// Shapes that disagree, slices that are too short, pages out of order.
pub fn attend(
    queries: &QueryTile,
    kv: &KvView,
    selection: &Selection,
    options: &AttendOptions,
    partial: &mut Partial,
) -> Result<(), AttendError> {
    check(queries, kv, options, partial)?;
    attend_at(Level::best(), queries, kv, selection, options, partial);
    Ok(())
}

/// [`attend`] with checked arguments and chosen instructions.
fn attend_at(
    level: Level,
    queries: &QueryTile,
    kv: &KvView,
    selection: &Selection,
    options: &AttendOptions,
    partial: &mut Partial,
) {
    let visible = Tokens {
        selection,
        causal: options.causal,
    };
    let range = Span::new(0, usize::MAX);
    let call = Call {
        level,
        queries: *queries,
        kv: *kv,
        value_dim: partial.head_dim(),
        quantised: kv.is_quantised(),
        visible: &visible,
        options,
        range,
        only_part: None,
    };
    with_workspace(|workspace| call.run(workspace, Output::Partial(partial.sums())));
}

/// Adds to `mass[i]` the softmax weight that the key at position `origin + i` receives, summed over rows and heads.
/// Keys outside `mass` are skipped.
///
/// `log_sum_exp` covers the whole attention, `[rows, group]` (see [`Partial::log_sum_exp`]), so parts of a cache may
/// be visited in any order: each part's weights are exp(lse_part − lse_total) times its own softmax. For a head with
/// a sink, pass ln(exp(log_sum_exp) + exp(sink)). Values are not read. Used by eviction policies (H2O, SnapKV).
///
/// # Errors
/// As [`attend`].
pub fn add_column_mass(
    job: &AttendJob,
    options: &AttendOptions,
    log_sum_exp: &[f32],
    origin: usize,
    mass: &mut [f32],
) -> Result<(), AttendError> {
    let AttendJob { queries, kv, selection } = job;
    check_keys(queries, kv, options)?;
    if log_sum_exp.len() != queries.rows * queries.group {
        return Err(AttendError::Mismatch {
            what: "log_sum_exp and rows × group",
            expected: queries.rows * queries.group,
            found: log_sum_exp.len(),
        });
    }
    let visible = Tokens {
        selection,
        causal: options.causal,
    };
    let range = Span::new(origin, origin.saturating_add(mass.len()));
    let call = Call {
        level: Level::best(),
        queries: *queries,
        kv: *kv,
        value_dim: 0,
        quantised: kv.is_quantised(),
        visible: &visible,
        options,
        range,
        only_part: None,
    };
    with_workspace(|workspace| {
        call.run(
            workspace,
            Output::Mass {
                log_sum_exp,
                origin,
                mass,
            },
        )
    });
    Ok(())
}

/// Runs `work` with this thread's scratch, which is allocated once and reused.
pub(crate) fn with_workspace<T>(work: impl FnOnce(&mut Workspace) -> T) -> T {
    #[cfg(feature = "std")]
    {
        std::thread_local! {
            static WORKSPACE: core::cell::RefCell<Workspace> = core::cell::RefCell::new(Workspace::default());
        }
        WORKSPACE.with(|workspace| match workspace.try_borrow_mut() {
            Ok(mut workspace) => work(&mut workspace),
            Err(_) => work(&mut Workspace::default()),
        })
    }
    #[cfg(not(feature = "std"))]
    {
        work(&mut Workspace::default())
    }
}

pub(crate) fn check(
    queries: &QueryTile,
    kv: &KvView,
    options: &AttendOptions,
    partial: &Partial,
) -> Result<(), AttendError> {
    kv.check(partial.head_dim())?;
    check_keys(queries, kv, options)?;
    partial.check_shape(queries.rows, queries.group)
}

/// Like [`check`], for calls that read no values.
pub(crate) fn check_keys(queries: &QueryTile, kv: &KvView, options: &AttendOptions) -> Result<(), AttendError> {
    check_options(queries, options)?;
    kv.check_keys()?;
    if queries.head_dim != kv.head_dim {
        return Err(AttendError::Mismatch {
            what: "head_dim of queries and of K/V",
            expected: kv.head_dim,
            found: queries.head_dim,
        });
    }
    Ok(())
}

/// Like [`check`], for calls over keys without pages.
pub(crate) fn check_options(queries: &QueryTile, options: &AttendOptions) -> Result<(), AttendError> {
    options.check()?;
    queries.check()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    use crate::testing::{Problem, close, tolerance_of};

    /// Problems in every arithmetic.
    fn problems() -> impl Iterator<Item = Problem> {
        let kinds = [Arithmetic::Expanded, Arithmetic::Rounded, Arithmetic::Fused];
        kinds.into_iter().flat_map(|arithmetic| {
            Problem::assorted().into_iter().map(move |mut problem| {
                problem.options.arithmetic = arithmetic;
                problem
            })
        })
    }

    #[test]
    fn every_instruction_set_agrees_with_plain_code() {
        for problem in problems() {
            let views: Vec<_> = problem.pages.iter().map(|page| page.view()).collect();
            let kv = KvView {
                head_dim: problem.head_dim,
                pages: &views,
            };
            let mut expected = problem.partial();
            let tile = problem.tile();
            attend_at(
                Level::SCALAR,
                &tile,
                &kv,
                &problem.selection,
                &problem.options,
                &mut expected,
            );
            for level in Level::all() {
                let mut partial = problem.partial();
                attend_at(level, &tile, &kv, &problem.selection, &problem.options, &mut partial);
                close(&partial, &expected, tolerance_of(&problem), level.name());
            }
        }
    }
}
