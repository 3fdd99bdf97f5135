//! The oracle: dense masked softmax in f64, one pair at a time. Deliberately slow and simple.

use alloc::vec;
use alloc::vec::Vec;

use crate::layout::{key_at, value_at};
use crate::math::{exp64, ln64, tanh64};
use crate::{AttendError, AttendJob, AttendOptions, KvView, QueryTile, Selection, Span};

/// A block mean that replaces the tokens of its block.
#[derive(Debug, Clone)]
pub struct ReferenceSummary {
    /// The block's tokens.
    pub block: Span,
    /// Mean key, `[key width]`.
    pub key: Vec<f32>,
    /// Mean value, `[value width]`.
    pub value: Vec<f32>,
}

/// The results of the reference.
#[derive(Debug, Clone)]
pub struct ReferenceOutput {
    /// Normalised outputs, `[rows, group, value width]`; zero for a row that reads nothing.
    pub output: Vec<f64>,
    /// ln Σ exp(logit) without the sink, `[rows, group]`.
    pub log_sum_exp: Vec<f64>,
    /// Softmax weight each key receives, summed over rows and heads: pages' tokens in order.
    pub column_mass: Vec<f64>,
}

/// The input of the reference.
#[derive(Debug, Clone, Copy)]
pub struct ReferenceJob<'a> {
    /// Queries, pages and their selection.
    pub job: AttendJob<'a>,
    /// Value width: elements of one value. The pages give the key width.
    pub value_dim: usize,
    /// Block means. A row reads the means that the selection shows it. Their mass is not part of the column mass.
    pub summaries: &'a [ReferenceSummary],
    /// One logit per head of the group that takes part in the softmax without a value.
    pub sinks: Option<&'a [f32]>,
}

/// Attends densely under the boolean mask of `selection`, to values as wide as keys.
///
/// # Errors
/// The same shapes are refused as by [`attend`](crate::attend).
pub fn attend(
    queries: &QueryTile,
    kv: &KvView,
    selection: &Selection,
    options: &AttendOptions,
    sinks: Option<&[f32]>,
) -> Result<ReferenceOutput, AttendError> {
    attend_with_summaries(queries, kv, selection, &[], options, sinks)
}

/// As [`attend`], with the block means of [`ReferenceJob::summaries`].
///
/// # Errors
/// As [`attend`].
pub fn attend_with_summaries(
    queries: &QueryTile,
    kv: &KvView,
    selection: &Selection,
    summaries: &[ReferenceSummary],
    options: &AttendOptions,
    sinks: Option<&[f32]>,
) -> Result<ReferenceOutput, AttendError> {
    let job = AttendJob {
        queries: *queries,
        kv: *kv,
        selection,
    };
    let job = ReferenceJob {
        job,
        value_dim: kv.head_dim,
        summaries,
        sinks,
    };
    job.attend(options)
}

impl ReferenceJob<'_> {
    /// Attends densely under the boolean mask of the selection.
    ///
    /// # Errors
    /// As [`attend`].
    pub fn attend(&self, options: &AttendOptions) -> Result<ReferenceOutput, AttendError> {
        let Self {
            job,
            value_dim,
            summaries,
            sinks,
        } = *self;
        let AttendJob { queries, kv, selection } = job;
        options.check()?;
        queries.check()?;
        kv.check(value_dim)?;
        let mut tokens = Vec::new();
        for page in kv.pages {
            for slot in 0..page.tokens {
                let key = key_at(&page.keys, kv.head_dim, slot);
                let value = if page.is_latent() {
                    key[..value_dim].to_vec()
                } else {
                    value_at(&page.values, value_dim, slot)
                };
                tokens.push((page.start + slot, key, value));
            }
        }
        let mut result = ReferenceOutput {
            output: vec![0.0; queries.rows * queries.group * value_dim],
            log_sum_exp: vec![f64::NEG_INFINITY; queries.rows * queries.group],
            column_mass: vec![0.0; tokens.len()],
        };
        for row in 0..queries.rows {
            let position = queries.start + row;
            for head in 0..queries.group {
                let query = queries.query(row, head);
                let mut read: Vec<Read> = Vec::new();
                for (column, (key_position, key, value)) in tokens.iter().enumerate() {
                    if selection.contains_with(position, *key_position, options.causal) {
                        read.push(Read {
                            logit: logit(query, key, options),
                            value,
                            column: Some(column),
                        });
                    }
                }
                for summary in summaries {
                    let tokens = selection.summarized(position, summary.block, options.causal);
                    if selection.summaries().contains(&summary.block) && tokens > 0 {
                        let weight = ln64(tokens as f64);
                        read.push(Read {
                            logit: logit(query, &summary.key, options) + weight,
                            value: &summary.value,
                            column: None,
                        });
                    }
                }
                let sink = sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
                result.add(row * queries.group + head, &read, sink, value_dim);
            }
        }
        Ok(result)
    }
}

/// A key that a query reads.
struct Read<'a> {
    logit: f64,
    value: &'a [f32],
    /// Index of the key among the column masses.
    column: Option<usize>,
}

impl ReferenceOutput {
    /// Adds the keys that query `at` reads, with the logit of a sink.
    fn add(&mut self, at: usize, read: &[Read], sink: f64, value_dim: usize) {
        let top = read.iter().fold(f64::NEG_INFINITY, |m, r| m.max(r.logit));
        let total: f64 = read.iter().map(|r| exp64(r.logit - top)).sum();
        if read.is_empty() {
            return;
        }
        self.log_sum_exp[at] = top + ln64(total);
        let shift = top.max(sink);
        // The difference of two equal infinite logits would be NaN.
        let of_sink = if sink == shift { 1.0 } else { exp64(sink - shift) };
        let denominator = total * exp64(top - shift) + of_sink;
        for Read { logit, value, column } in read {
            let weight = exp64(logit - shift) / denominator;
            for (o, v) in self.output[at * value_dim..][..value_dim].iter_mut().zip(*value) {
                *o += weight * f64::from(*v);
            }
            if let Some(column) = column {
                self.column_mass[*column] += weight;
            }
        }
    }
}

fn logit(query: &[f32], key: &[f32], options: &AttendOptions) -> f64 {
    let dot: f64 = query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    let logit = dot * f64::from(options.scale);
    match options.soft_cap {
        Some(cap) => f64::from(cap) * tanh64(logit / f64::from(cap)),
        None => logit,
    }
}
