//! Measurements: what a model and a policy keep, cost and lose.
//!
//! - [`write_logits`]: the logits of every position, to compare with another implementation;
//! - [`needle`]: facts hidden in a long text, exact match, and [`draw_needle_map`], a picture of it;
//! - [`measure_attention`]: kernel rates beside the machine's ceilings;
//! - [`measure_kv`]: bytes and rates of the KV tiers beside the machine's;
//! - [`measure_model`]: prompt and answer rates at several depths of context;
//! - [`calibrate`]: the cheapest policy that keeps the attention of each head;
//! - [`Record`]: a measurement with its command, model and machine, as a file that reports are made of.
//!
//! ```no_run
//! use riffle_engine::{Engine, EngineOptions};
//! use riffle_eval::{NeedleOptions, needle};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::load("fixtures/model", EngineOptions::default())?;
//! let text = std::fs::read_to_string("fixtures/text/prophets.txt")?;
//! let options = NeedleOptions { context_tokens: 4096, depths: 10, seed: 1 };
//! for answer in needle(&engine, &text, &options)? {
//!     println!("{:.2} {} {}", answer.depth, answer.expected, answer.answered);
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod attention_rates;
mod baselines;
mod calibrate;
mod cells;
mod choice;
mod compare;
mod csv;
mod error;
mod kv_rates;
mod logits;
mod model_rates;

mod noise;
mod perplexity;
mod read_ceiling;
mod record;
mod statistics;
mod tasks;

pub use attention_rates::{AttentionCase, AttentionRate, AttentionReport, attention_cases, measure_attention};
pub use baselines::{baselines, parse_policy};
pub use calibrate::{CalibrateOptions, Calibration, calibrate};
pub use cells::{Journal, Step, StepWatch};
pub use choice::PolicyChoice;
pub use compare::{CompareOptions, CompareTask, compare};
pub use csv::to_csv;
pub use error::EvalError;
pub use kv_rates::{DecodeRate, KvBytes, KvRateOptions, KvRates, KvRow, StreamRate, measure_kv};
pub use logits::{LogitsReport, read_tokens, write_logits};
pub use model_rates::{ModelRate, ModelRateOptions, measure_model};

pub use perplexity::{PerplexityOptions, perplexity};
pub use record::{
    AskPlace, ComparisonRow, ComparisonTable, Header, MachineInfo, ModelSummary, NeedleCell, NeedleKind, NeedleSample,
    NeedleTable, PerplexityBucket, PerplexityPosition, PerplexityRow, PerplexityTable, Record, Results, RulerCell,
    RulerSample, RulerTable, RunSettings, now_utc,
};
pub use statistics::Interval;
pub use tasks::{
    Ask, ChainAnswer, Corpus, DocumentsWording, GivenQuestion, ListWording, NeedleOptions, NiahWording, RulerOptions,
    RulerTask, VariablesWording, Wording, digest, needle, read_questions, ruler,
};
