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
mod error;
mod kv_rates;
mod logits;
mod model_rates;
mod needle;
mod needle_map;
mod noise;
mod read_ceiling;
mod record;
mod statistics;

pub use attention_rates::{AttentionCase, AttentionRate, AttentionReport, attention_cases, measure_attention};
pub use baselines::{baselines, parse_policy};
pub use calibrate::{CalibrateOptions, Calibration, calibrate};
pub use error::EvalError;
pub use kv_rates::{DecodeRate, KvBytes, KvRateOptions, KvRates, KvRow, StreamRate, measure_kv};
pub use logits::{LogitsReport, read_tokens, write_logits};
pub use model_rates::{ModelRate, ModelRateOptions, measure_model};
pub use needle::{NeedleAnswer, NeedleOptions, needle};
pub use needle_map::draw_needle_map;
pub use record::{
    AskPlace, ComparisonRow, ComparisonTable, Header, MachineInfo, ModelSummary, NeedleCell, NeedleKind, NeedleSample,
    NeedleTable, PerplexityBucket, PerplexityRow, PerplexityTable, Record, Results, RulerCell, RulerSample, RulerTable,
    RunSettings, now_utc,
};
pub use statistics::Interval;
