//! Kernels on arrays: attention under a selection, the reference in f64, and the selections of policies.

use numpy::{IntoPyArray, PyArray2, PyArray3, PyArrayMethods};
use pyo3::prelude::*;
use riffle_attention::reference::{ReferenceSummary, attend_with_summaries};
use riffle_attention::{
    AttendJob, AttendOptions, Format, KvView, PageView, Partial, Plane, PlaneMut, QueryTile, Selection, Span,
    SummaryView, attend_batch, attend_summaries, write_keys, write_values,
};
use riffle_kv::{CacheShape, DEFAULT_PAGE_TOKENS, KvCache, LayerShape, LayerShapes};
use riffle_policy::{Phase, SelectContext, build};

use crate::arrays::{HeadsArray, by_heads};
use crate::failure::Failure;
use crate::items::Items;
use crate::options::policy;
use crate::process::Threads;
use crate::selection::PySelection;
use crate::watch::run;

/// Limit on the pairs of the reference, which computes one pair at a time.
const MOST_REFERENCE_PAIRS: usize = 1 << 32;

/// Options of attention for some queries.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct GivenCall {
    start: Option<usize>,
    scale: Option<f32>,
    soft_cap: Option<f32>,
    causal: bool,
    /// Selections: one for each KV head, or one for all; `None` for full attention.
    selections: Option<Items<Py<PySelection>>>,
}

/// Queries over keys and values, checked and gathered.
struct Problem {
    group: usize,
    kv_heads: usize,
    rows: usize,
    /// Position of the first query.
    start: usize,
    tokens: usize,
    /// Elements of a head with padding, and without.
    padded: usize,
    width: usize,
    // [rows, heads, padded]
    queries: Vec<f32>,
    // [tokens, kv_heads, padded]
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Selections by KV head.
    selections: Vec<Selection>,
    options: AttendOptions<'static>,
}

/// Result of attention: outputs `[heads, rows, width]` and log-sum-exps `[heads, rows]`.
type Attended<'py> = (Bound<'py, PyArray3<f32>>, Bound<'py, PyArray2<f32>>);

/// Result of the reference: outputs, log-sum-exps, and the mass of each key `[kv_heads, tokens]`.
type Referred<'py> = (
    Bound<'py, PyArray3<f64>>,
    Bound<'py, PyArray2<f64>>,
    Bound<'py, PyArray2<f64>>,
);

/// The three arrays of a call.
struct Arrays<'py>([HeadsArray<'py>; 3]);

impl<'py> Arrays<'py> {
    fn new(queries: &Bound<'py, PyAny>, keys: &Bound<'py, PyAny>, values: &Bound<'py, PyAny>) -> Result<Self, Failure> {
        let (q, k, v) = (
            HeadsArray::new("queries", queries)?,
            HeadsArray::new("keys", keys)?,
            HeadsArray::new("values", values)?,
        );
        if [k.heads, k.tokens, k.width] != [v.heads, v.tokens, v.width] {
            return Err(Failure::array(format!(
                "keys are ({}, {}, {}) and values ({}, {}, {}): their shapes must be equal",
                k.heads, k.tokens, k.width, v.heads, v.tokens, v.width
            )));
        }
        if q.width != k.width {
            return Err(Failure::array(format!(
                "queries have heads of {} elements and keys of {}: they must be equal",
                q.width, k.width
            )));
        }
        if !q.heads.is_multiple_of(k.heads) {
            return Err(Failure::array(format!(
                "{} query heads do not share {} KV heads evenly: the first must be a multiple of the second",
                q.heads, k.heads
            )));
        }
        Ok(Self([q, k, v]))
    }

    fn problem(&self, call: GivenCall) -> Result<Problem, Failure> {
        let Self([q, k, v]) = self;
        let start = match call.start {
            Some(start) => start,
            None => k.tokens.checked_sub(q.tokens).ok_or_else(|| {
                let message = format!(
                    "{} queries stand behind {} keys: say at which position they start",
                    q.tokens, k.tokens
                );
                Failure::array(message)
            })?,
        };
        crate::selection::check_rows(start, q.tokens)?;
        let selections: Vec<Selection> = match call.selections.map(|given| given.list("selections")).transpose()? {
            None => vec![Selection::full(k.tokens); k.heads],
            Some(given) if given.len() == 1 => vec![given[0].get().selection().clone(); k.heads],
            Some(given) if given.len() == k.heads => given.iter().map(|one| one.get().selection().clone()).collect(),
            Some(given) => {
                return Err(Failure::array(format!(
                    "{} selections for {} KV heads: give one for each, or one for all",
                    given.len(),
                    k.heads
                )));
            }
        };
        let padded = k.padded_width();
        let scale = call.scale.unwrap_or_else(|| 1.0 / (k.width as f32).sqrt());
        if !scale.is_finite() {
            return Err(Failure::option(format!("scale is {scale}, but it must be a number")));
        }
        if let Some(cap) = call.soft_cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
            return Err(Failure::option(format!("soft_cap is {cap}, but it must be above 0")));
        }
        Ok(Problem {
            group: q.heads / k.heads,
            kv_heads: k.heads,
            rows: q.tokens,
            start,
            tokens: k.tokens,
            padded,
            width: k.width,
            queries: q.view()?.rows(0..q.tokens, padded),
            keys: k.view()?.rows(0..k.tokens, padded),
            values: v.view()?.rows(0..v.tokens, padded),
            selections,
            options: AttendOptions::new(scale)
                .with_soft_cap(call.soft_cap)
                .with_causal(call.causal),
        })
    }
}

impl Problem {
    /// Keys and values in pages of f32.
    fn cache(&self) -> Result<KvCache, Failure> {
        let shape = CacheShape {
            layers: LayerShapes::alike(1, LayerShape::new(self.kv_heads, self.padded)),
            page_tokens: DEFAULT_PAGE_TOKENS,
            key_format: Format::F32,
            value_format: Format::F32,
        };
        let mut cache = KvCache::new(shape, None)?;
        cache.append(0, &self.keys, &self.values)?;
        Ok(cache)
    }

    /// The queries of a KV head's group.
    fn tile(&self, kv_head: usize) -> QueryTile<'_> {
        QueryTile {
            data: &self.queries[kv_head * self.group * self.padded..],
            rows: self.rows,
            row_stride: self.kv_heads * self.group * self.padded,
            group: self.group,
            head_dim: self.padded,
            start: self.start,
        }
    }

    /// Outputs `[rows, heads, padded]` and log-sum-exps `[heads, rows]`.
    fn attend(&self) -> Result<(Vec<f32>, Vec<f32>), Failure> {
        let cache = self.cache()?;
        let reader = cache.read();
        let pages: Vec<Vec<_>> = (0..self.kv_heads).map(|head| reader.pages(0, head).collect()).collect();
        let jobs: Vec<AttendJob<'_>> = (0..self.kv_heads)
            .map(|head| AttendJob {
                queries: self.tile(head),
                kv: KvView {
                    head_dim: self.padded,
                    pages: &pages[head],
                },
                selection: &self.selections[head],
            })
            .collect();
        let mut partials: Vec<Partial> = jobs
            .iter()
            .map(|_| Partial::new(self.rows, self.group, self.padded))
            .collect();
        attend_batch(&jobs, &self.options, &mut partials)?;
        let heads = self.kv_heads * self.group;
        let (mut output, mut sums) = (vec![0.0; self.rows * heads * self.padded], vec![0.0; heads * self.rows]);
        for (kv_head, partial) in partials.iter_mut().enumerate() {
            self.attend_means(kv_head, partial)?;
            partial.finish_into(
                &mut output[kv_head * self.group * self.padded..],
                heads * self.padded,
                None,
            )?;
            for head in 0..self.group {
                for row in 0..self.rows {
                    sums[(kv_head * self.group + head) * self.rows + row] = partial.log_sum_exp(row, head);
                }
            }
        }
        Ok((output, sums))
    }

    /// Adds the block means in the selection.
    fn attend_means(&self, kv_head: usize, partial: &mut Partial) -> Result<(), Failure> {
        let blocks = self.blocks(kv_head);
        if blocks.is_empty() {
            return Ok(());
        }
        let len = blocks.len().next_multiple_of(riffle_attention::LANES) * self.padded;
        let (mut keys, mut values) = (vec![0.0; len], vec![0.0; len]);
        let means: Vec<f32> = blocks
            .iter()
            .flat_map(|block| self.mean(&self.keys, kv_head, *block))
            .collect();
        write_keys(
            &mut PlaneMut::F32(&mut keys),
            self.padded,
            0,
            blocks.len(),
            &means,
            self.padded,
        )?;
        let means: Vec<f32> = blocks
            .iter()
            .flat_map(|block| self.mean(&self.values, kv_head, *block))
            .collect();
        write_values(
            &mut PlaneMut::F32(&mut values),
            self.padded,
            0,
            blocks.len(),
            &means,
            self.padded,
        )?;
        let view = SummaryView {
            head_dim: self.padded,
            blocks: &blocks,
            keys: Plane::F32(&keys),
            values: Plane::F32(&values),
        };
        Ok(attend_summaries(
            &self.tile(kv_head),
            &view,
            &self.selections[kv_head],
            &self.options,
            partial,
        )?)
    }

    /// Blocks of the existing tokens.
    fn blocks(&self, kv_head: usize) -> Vec<Span> {
        let named = self.selections[kv_head].summaries().iter();
        named.filter(|block| block.end <= self.tokens).copied().collect()
    }

    fn mean(&self, rows: &[f32], kv_head: usize, block: Span) -> Vec<f32> {
        let mut sum = vec![0.0f64; self.padded];
        for token in block.range() {
            let row = &rows[(token * self.kv_heads + kv_head) * self.padded..][..self.padded];
            sum.iter_mut()
                .zip(row)
                .for_each(|(sum, value)| *sum += f64::from(*value));
        }
        sum.iter().map(|sum| (sum / block.len() as f64) as f32).collect()
    }

    /// Computes the reference in f64, pair by pair: outputs, log-sum-exps and masses.
    fn refer(&self) -> Result<[Vec<f64>; 3], Failure> {
        let cache = self.cache()?;
        let (reader, heads) = (cache.read(), self.kv_heads * self.group);
        let mut output = vec![0.0; heads * self.rows * self.width];
        let (mut sums, mut masses) = (vec![0.0; heads * self.rows], Vec::new());
        for kv_head in 0..self.kv_heads {
            let pages: Vec<_> = reader.pages(0, kv_head).collect();
            let kv = KvView {
                head_dim: self.padded,
                pages: &pages,
            };
            let summary = |block: &Span| ReferenceSummary {
                block: *block,
                key: self.mean(&self.keys, kv_head, *block),
                value: self.mean(&self.values, kv_head, *block),
            };
            let summaries: Vec<_> = self.blocks(kv_head).iter().map(summary).collect();
            let selection = &self.selections[kv_head];
            let found = attend_with_summaries(&self.tile(kv_head), &kv, selection, &summaries, &self.options, None)?;
            masses.extend(found.column_mass);
            for head in 0..self.group {
                for row in 0..self.rows {
                    let (from, to) = (row * self.group + head, (kv_head * self.group + head) * self.rows + row);
                    sums[to] = found.log_sum_exp[from];
                    output[to * self.width..][..self.width]
                        .copy_from_slice(&found.output[from * self.padded..][..self.width]);
                }
            }
        }
        Ok([output, sums, masses])
    }
}

/// Attends to keys and values `[kv_heads, tokens, width]` with queries `[heads, rows, width]`.
#[pyfunction]
pub(crate) fn attend<'py>(
    py: Python<'py>,
    queries: &Bound<'py, PyAny>,
    keys: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    call: GivenCall,
) -> Result<Attended<'py>, Failure> {
    let arrays = Arrays::new(queries, keys, values)?;
    let problem = arrays.problem(call)?;
    let (output, sums) = run(py, &*Threads::shared()?, None, |_| {
        let (output, sums) = problem.attend()?;
        let heads = problem.kv_heads * problem.group;
        Ok((by_heads(&output, heads, problem.padded, problem.width), sums))
    })?;
    let heads = problem.kv_heads * problem.group;
    Ok((
        output.into_pyarray(py).reshape([heads, problem.rows, problem.width])?,
        sums.into_pyarray(py).reshape([heads, problem.rows])?,
    ))
}

/// Like [`attend`], in f64 and pair by pair, with the softmax mass that each key receives.
#[pyfunction]
pub(crate) fn reference<'py>(
    py: Python<'py>,
    queries: &Bound<'py, PyAny>,
    keys: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    call: GivenCall,
) -> Result<Referred<'py>, Failure> {
    let arrays = Arrays::new(queries, keys, values)?;
    let problem = arrays.problem(call)?;
    let heads = problem.kv_heads * problem.group;
    if heads.saturating_mul(problem.rows).saturating_mul(problem.tokens) > MOST_REFERENCE_PAIRS {
        return Err(Failure::array(format!(
            "the reference scores pairs one by one, and {heads} heads of {} queries and {} keys are too many: use attend",
            problem.rows, problem.tokens
        )));
    }
    let [output, sums, masses] = run(py, &*Threads::shared()?, None, |_| problem.refer())?;
    Ok((
        output.into_pyarray(py).reshape([heads, problem.rows, problem.width])?,
        sums.into_pyarray(py).reshape([heads, problem.rows])?,
        masses.into_pyarray(py).reshape([problem.kv_heads, problem.tokens])?,
    ))
}

/// Selections of a policy for the queries as one tile, by KV head.
#[pyfunction]
pub(crate) fn select<'py>(
    py: Python<'py>,
    queries: &Bound<'py, PyAny>,
    keys: &Bound<'py, PyAny>,
    call: GivenCall,
    policy_text: &str,
    place: (bool, usize, usize),
) -> Result<Vec<PySelection>, Failure> {
    let (is_prefill, layer, layers) = place;
    let spec = policy(policy_text)?;
    let phase = if is_prefill { Phase::Prefill } else { Phase::Decode };
    let arrays = Arrays::new(queries, keys, keys)?;
    let problem = arrays.problem(call)?;
    let end = problem.start.saturating_add(problem.rows);
    if end > problem.tokens {
        return Err(Failure::array(format!(
            "queries stand at positions up to {end} and there are {} keys: policies need the keys of all positions",
            problem.tokens
        )));
    }
    let (problem, spec) = (&problem, &spec);
    run(py, &*Threads::shared()?, None, move |_| {
        let cache = problem.cache()?;
        let reader = cache.read();
        let selections = (0..problem.kv_heads).map(|kv_head| {
            let pages = reader.pages(0, kv_head).take_while(|page| page.start < end);
            let pages: Vec<_> = pages
                .map(|page| PageView {
                    tokens: page.tokens.min(end - page.start),
                    ..page
                })
                .collect();
            let mut policy = build(spec, phase)?;
            let context = SelectContext {
                phase,
                layer,
                layers,
                kv_head,
                chunk_start: problem.start,
                tokens: end,
                total_tokens: problem.tokens,
                page_tokens: DEFAULT_PAGE_TOKENS,
                scale: problem.options.scale,
                soft_cap: problem.options.soft_cap,
                pages: &pages,
                signs: None,
            };
            let tile = problem.tile(kv_head);
            policy.prepare(&tile, &context);
            Ok(PySelection::from(policy.select(&tile, &context)))
        });
        selections.collect()
    })
}
