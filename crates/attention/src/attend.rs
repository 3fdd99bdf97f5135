use crate::layout::{key_at, value_at};
use crate::{AttendError, KvView, Partial, QueryTile, Selection, math};

/// What all tiles of a call share.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct AttendOptions<'a> {
    /// Factor on q·k, usually 1/√head_dim.
    pub scale: f32,
    /// Logits become cap·tanh(logit / cap).
    pub soft_cap: Option<f32>,
    /// Whether a query sees only keys at or before its own position.
    pub causal: bool,
    marker: core::marker::PhantomData<&'a ()>,
}

impl AttendOptions<'_> {
    /// Causal attention with this factor on q·k and no soft cap.
    pub fn new(scale: f32) -> Self {
        Self {
            scale,
            soft_cap: None,
            causal: true,
            marker: core::marker::PhantomData,
        }
    }

    /// With logits capped softly at ±`cap`.
    pub fn with_soft_cap(mut self, cap: Option<f32>) -> Self {
        self.soft_cap = cap;
        self
    }

    /// With or without causality.
    pub fn with_causal(mut self, causal: bool) -> Self {
        self.causal = causal;
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
    /// Their keys and values.
    pub kv: KvView<'a>,
    /// Which of them they read.
    pub selection: &'a Selection,
}

/// Adds to `partial` what `queries` read of `kv` under `selection`.
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
    for row in 0..queries.rows {
        for page in kv.pages {
            for slot in 0..page.tokens {
                let (position, key_position) = (queries.start + row, page.start + slot);
                if !selection.contains_with(position, key_position, options.causal) {
                    continue;
                }
                let key = key_at(&page.keys, kv.head_dim, slot);
                let value = value_at(&page.values, kv.head_dim, slot);
                for head in 0..queries.group {
                    let query = queries.query(row, head);
                    let mut logit = 0.0;
                    for (a, b) in query.iter().zip(&key) {
                        logit += a * b;
                    }
                    logit *= options.scale;
                    if let Some(cap) = options.soft_cap {
                        logit = (f64::from(cap) * math::tanh64(f64::from(logit / cap))) as f32;
                    }
                    let at = row * queries.group + head;
                    let m = partial.m[at].max(logit);
                    let keep = if partial.m[at] == m {
                        1.0
                    } else {
                        math::exp(partial.m[at] - m)
                    };
                    let weight = math::exp(logit - m);
                    partial.m[at] = m;
                    partial.l[at] = partial.l[at] * keep + weight;
                    let o = &mut partial.o[at * kv.head_dim..][..kv.head_dim];
                    for (o, v) in o.iter_mut().zip(&value) {
                        *o = *o * keep + weight * v;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Runs every job, adding job `n` to `partials[n]`.
///
/// # Errors
/// As [`attend`]; also when the numbers of jobs and partials differ.
pub fn attend_batch(jobs: &[AttendJob], options: &AttendOptions, partials: &mut [Partial]) -> Result<(), AttendError> {
    if jobs.len() != partials.len() {
        return Err(AttendError::Mismatch {
            what: "numbers of jobs and partials",
            expected: jobs.len(),
            found: partials.len(),
        });
    }
    for (job, partial) in jobs.iter().zip(partials.iter()) {
        check(&job.queries, &job.kv, options, partial)?;
    }
    for (job, partial) in jobs.iter().zip(partials) {
        attend(&job.queries, &job.kv, job.selection, options, partial)?;
    }
    Ok(())
}

fn check(queries: &QueryTile, kv: &KvView, options: &AttendOptions, partial: &Partial) -> Result<(), AttendError> {
    options.check()?;
    queries.check()?;
    kv.check()?;
    if queries.head_dim != kv.head_dim {
        return Err(AttendError::Mismatch {
            what: "head_dim of queries and of K/V",
            expected: kv.head_dim,
            found: queries.head_dim,
        });
    }
    partial.check_shape(queries.rows, queries.group, queries.head_dim)
}
