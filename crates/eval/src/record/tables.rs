//! Rows of each measurement, and their sums for tables and pictures.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BudgetFit, RunSettings, TextSummary};
use crate::EvalError;
use crate::statistics::{Interval, Paired};

/// Number of facts in the text and in a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NeedleKind {
    /// One fact.
    Single,
    /// A fact of the same form at every depth, so each distracts from the others; the question asks for one.
    MultiKey,
    /// Several values of one name; the question asks for all.
    MultiValue,
    /// Several names; one prompt asks for all.
    MultiQuery,
    /// Source files of a generated package instead of a text. Each file defines a type with a constructor. The answer
    /// completes a line of another file with one of these constructors.
    CrossFile,
}

/// Position of the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AskPlace {
    /// At the end of one prompt with the document.
    End,
    /// In the document: the question stands halfway between the fact and the end. Text continues after question and
    /// answer. The answer counts if each of its tokens is the most likely one at its position.
    Middle,
    /// After the document: the question is read token by token under the decode policy.
    Late,
    /// In a second turn, after the answer to a first question.
    SecondTurn,
}

/// `riffle eval needle`: one row for each question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NeedleTable {
    /// How the model was run.
    pub settings: RunSettings,
    /// The wording of facts and questions.
    pub wording: String,
    /// Every question.
    pub samples: Vec<NeedleSample>,
}

/// A question and its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NeedleSample {
    /// Number of facts.
    pub kind: NeedleKind,
    /// Position of the question.
    pub place: AskPlace,
    /// Tokens of the document.
    pub context_tokens: usize,
    /// Number of the depth, from 0.
    pub depth_index: usize,
    /// Depth of the first fact: 0 is the start of the document, 1 its end.
    pub depth: f64,
    /// Tokens between the fact's first token and the answer.
    pub distance_tokens: usize,
    /// Seed of the document.
    pub seed: u64,
    /// Keys in the question.
    pub names: Vec<String>,
    /// The values in the document.
    pub expected: Vec<String>,
    /// The model's answer.
    pub answered: String,
    /// Expected values that the answer contains exactly.
    pub correct: usize,
}

/// All questions of one cell of the map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NeedleCell {
    /// Number of facts.
    pub kind: NeedleKind,
    /// Position of the questions.
    pub place: AskPlace,
    /// Tokens of the documents.
    pub context_tokens: usize,
    /// Number of the depth, from 0.
    pub depth_index: usize,
    /// Mean depth, from 0 to 1.
    pub depth: f64,
    /// Share of the expected values in the answers.
    pub score: Interval,
}

/// `riffle eval ruler`: one row for each prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RulerTable {
    /// How the model was run.
    pub settings: RunSettings,
    /// The wording of the prompts.
    pub wording: String,
    /// Every prompt.
    pub samples: Vec<RulerSample>,
}

/// One prompt of a RULER task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RulerSample {
    /// RULER's name of the task, such as `niah_single_1`.
    pub task: String,
    /// Requested tokens.
    pub context_tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Seed of the prompt.
    pub seed: u64,
    /// The expected strings.
    pub expected: Vec<String>,
    /// The model's answer.
    pub answered: String,
    /// RULER's string match: the share of the expected strings in the answer; for `qa`, 1 if the answer contains any.
    pub score: f64,
}

/// All prompts of one task and length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RulerCell {
    /// The task.
    pub task: String,
    /// Requested tokens.
    pub context_tokens: usize,
    /// Mean score.
    pub score: Interval,
}

/// `riffle eval perplexity`: one row for each policy, dense attention first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PerplexityTable {
    /// The text, by its file name.
    pub text: String,
    /// Scored tokens of the text.
    pub tokens: usize,
    /// Tokens of a window.
    pub window_tokens: usize,
    /// Tokens from one window to the next. A window scores the tokens that the previous one did not.
    pub stride_tokens: usize,
    /// The policies.
    pub rows: Vec<PerplexityRow>,
}

/// Prediction of the text under one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PerplexityRow {
    /// How the model was run.
    pub settings: RunSettings,
    /// Share of the causal query-key pairs read, over the layers in which a policy may select.
    pub density: f64,
    /// Share of the pairs for the fit, if budgets are equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<f64>,
    /// True if `density` differs from the budget by at most a tenth of it; `None` without a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_kept: Option<bool>,
    /// The fit to the budget; `None` without a budget, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<BudgetFit>,
    /// Over all scored tokens.
    pub all: PerplexityBucket,
    /// Results by position in the window.
    pub buckets: Vec<PerplexityBucket>,
}

/// Predictions at some positions of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PerplexityBucket {
    /// First position, from 0.
    pub from_position: usize,
    /// End of the range: the position after its last token.
    pub to_position: usize,
    /// Tokens scored.
    pub tokens: usize,
    /// Mean negative log-likelihood of a token, in nats.
    pub nll: f64,
    /// exp(`nll`).
    pub perplexity: f64,
    /// Mean Kullback-Leibler divergence of the predictions from dense attention's, in nats; 0 for dense attention.
    pub kl: f64,
    /// The largest divergence at one token.
    pub largest_kl: f64,
    /// Share of the tokens whose most likely next token differs from dense attention's.
    pub flips: f64,
}

/// A policy at some positions.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PerplexityPosition {
    /// Policy for reading the prompt.
    pub prefill: String,
    /// Policy for writing the answer.
    pub decode: String,
    /// Share of the causal query-key pairs read, at all positions.
    pub density: f64,
    /// Share of the pairs for the fit, if budgets are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<f64>,
    /// True if the share is within the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_kept: Option<bool>,
    /// The predictions.
    #[serde(flatten)]
    pub bucket: PerplexityBucket,
}

/// `riffle eval compare`: one row for each policy, task and length.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ComparisonTable {
    /// The rows, dense attention first.
    pub rows: Vec<ComparisonRow>,
    /// The files of the tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<TextSummary>,
}

/// One policy at one task and length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ComparisonRow {
    /// The requested policy, before its fit.
    pub policy: String,
    /// `prefill` or `decode`: the phase in which the policy selects. The other phase is dense.
    pub phase: String,
    /// The task: `needle:multi-key:end`, or a RULER task.
    pub task: String,
    /// Tokens of the document.
    pub context_tokens: usize,
    /// Share of the pairs for the fit, if budgets are equal.
    pub budget: Option<f64>,
    /// True if `density` differs from the budget by at most a tenth of it; `None` without a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_kept: Option<bool>,
    /// The fit to the budget; `None` without a budget, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<BudgetFit>,
    /// How the model was run.
    pub settings: RunSettings,
    /// Mean score of the task, from 0 to 1.
    pub score: Interval,
    /// Score of every question, in the same order for every policy: by seed, then by depth. Empty in records of
    /// schema 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<f64>,
    /// Share of the causal pairs read in the policy's phase, over the layers in which a policy may select.
    pub density: f64,
    /// Mean milliseconds to read a prompt from its beginning; `None` if no prompt was.
    pub prefill_ms: Option<f64>,
    /// Milliseconds to read or write one token after the prompt.
    pub decode_ms: f64,
    /// Bytes of keys and values that a token after the prompt reads, including estimates that scan all keys.
    pub decode_bytes: f64,
}

impl ComparisonTable {
    /// Compares a row's questions with the same questions under dense attention; `None` for dense attention itself,
    /// and for records without scores of single questions.
    pub fn against_full(&self, row: &ComparisonRow) -> Option<Paired> {
        let same = |other: &&ComparisonRow| {
            other.policy == "full" && (&other.task, other.context_tokens) == (&row.task, row.context_tokens)
        };
        let full = self.rows.iter().find(same).filter(|_| row.policy != "full")?;
        Paired::of_scores(&row.scores, &full.scores)
    }
}

impl NeedleTable {
    /// Sums by kind, place, length and depth, in this order.
    pub fn cells(&self) -> Vec<NeedleCell> {
        let mut cells: BTreeMap<_, Vec<&NeedleSample>> = BTreeMap::new();
        for sample in &self.samples {
            let key = (sample.kind, sample.place, sample.context_tokens, sample.depth_index);
            cells.entry(key).or_default().push(sample);
        }
        let cell = |((kind, place, context_tokens, depth_index), samples): (_, Vec<&NeedleSample>)| NeedleCell {
            kind,
            place,
            context_tokens,
            depth_index,
            depth: samples.iter().map(|sample| sample.depth).sum::<f64>() / samples.len() as f64,
            score: Interval::of_scores(&samples.iter().map(|sample| sample.score()).collect::<Vec<_>>()),
        };
        cells.into_iter().map(cell).collect()
    }
}

impl NeedleSample {
    /// Share of the expected values in the answer.
    pub fn score(&self) -> f64 {
        self.correct as f64 / self.expected.len().max(1) as f64
    }
}

impl PerplexityTable {
    /// A row for each policy and position, and a first row for each policy over all positions.
    pub fn by_position(&self) -> Vec<PerplexityPosition> {
        let of_row = |row: &PerplexityRow| {
            let all = std::iter::once(&row.all).chain(&row.buckets);
            let positions = all.map(|bucket| PerplexityPosition {
                prefill: row.settings.prefill.clone(),
                decode: row.settings.decode.clone(),
                density: row.density,
                budget: row.budget,
                budget_kept: row.budget_kept,
                bucket: *bucket,
            });
            positions.collect::<Vec<_>>()
        };
        self.rows.iter().flat_map(of_row).collect()
    }
}

impl RulerTable {
    /// Sums by task and length; tasks in run order.
    pub fn cells(&self) -> Vec<RulerCell> {
        let mut tasks: Vec<&str> = Vec::new();
        for sample in &self.samples {
            if !tasks.contains(&sample.task.as_str()) {
                tasks.push(&sample.task);
            }
        }
        let mut cells = Vec::new();
        for task in tasks {
            let mut lengths: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
            for sample in self.samples.iter().filter(|sample| sample.task == task) {
                lengths.entry(sample.context_tokens).or_default().push(sample.score);
            }
            cells.extend(lengths.into_iter().map(|(context_tokens, scores)| RulerCell {
                task: task.to_owned(),
                context_tokens,
                score: Interval::of_scores(&scores),
            }));
        }
        cells
    }
}

impl NeedleKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::Single,
        Self::MultiKey,
        Self::MultiValue,
        Self::MultiQuery,
        Self::CrossFile,
    ];
}

impl AskPlace {
    /// Every place.
    pub const ALL: [Self; 4] = [Self::End, Self::Middle, Self::Late, Self::SecondTurn];
}

impl fmt::Display for NeedleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "single",
            Self::MultiKey => "multi-key",
            Self::MultiValue => "multi-value",
            Self::MultiQuery => "multi-query",
            Self::CrossFile => "cross-file",
        })
    }
}

impl fmt::Display for AskPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::End => "end",
            Self::Middle => "middle",
            Self::Late => "late",
            Self::SecondTurn => "second-turn",
        })
    }
}

impl FromStr for NeedleKind {
    type Err = EvalError;

    fn from_str(text: &str) -> Result<Self, EvalError> {
        Self::ALL
            .into_iter()
            .find(|known| known.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| {
                let known = Self::ALL.map(|known| known.to_string());
                EvalError::Option(format!("unknown kind of needle {text:?}; known: {}", known.join(", ")))
            })
    }
}

impl FromStr for AskPlace {
    type Err = EvalError;

    fn from_str(text: &str) -> Result<Self, EvalError> {
        Self::ALL
            .into_iter()
            .find(|known| known.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| {
                let known = Self::ALL.map(|known| known.to_string());
                EvalError::Option(format!("unknown place to ask {text:?}; known: {}", known.join(", ")))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(task: &str, context_tokens: usize, score: f64) -> RulerSample {
        RulerSample {
            task: task.to_owned(),
            context_tokens,
            prompt_tokens: context_tokens,
            seed: 1,
            expected: vec![String::new()],
            answered: String::new(),
            score,
        }
    }

    #[test]
    fn ruler_cells_are_means_by_task_and_length_in_the_order_of_tasks() {
        let settings: RunSettings = serde_json::from_value(serde_json::json!({
            "prefill": "full", "decode": "full", "key_format": "f16", "value_format": "f16", "page_tokens": 256,
            "batch_tokens": 4096, "chunk_tokens": 512, "context_tokens": 8192, "tiers": "ram",
        }))
        .unwrap();
        let samples = vec![
            sample("vt", 4096, 0.5),
            sample("vt", 2048, 1.0),
            sample("vt", 4096, 1.0),
            sample("cwe", 4096, 0.0),
        ];
        let wording = "plain".to_owned();
        let cells = RulerTable {
            settings,
            wording,
            samples,
        }
        .cells();
        let found: Vec<_> = cells
            .iter()
            .map(|cell| {
                (
                    cell.task.as_str(),
                    cell.context_tokens,
                    cell.score.mean,
                    cell.score.samples,
                )
            })
            .collect();
        assert_eq!(
            found,
            [("vt", 2048, 1.0, 1), ("vt", 4096, 0.75, 2), ("cwe", 4096, 0.0, 1)]
        );
    }
}
