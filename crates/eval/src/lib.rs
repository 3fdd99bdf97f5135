//! Measurements of models and policies: quality, cost and speed.
//!
//! - [`write_logits`]: the logits of every position, to compare with another implementation;
//! - [`needle()`]: facts hidden in a long text, with questions at the end, inside the document, late and in a second
//!   turn;
//! - [`ruler()`]: RULER's thirteen tasks, generated from a text ([`Corpus`]) in the words of a [`Wording`];
//! - [`perplexity()`]: a text predicted under policies, compared with the predictions of dense attention;
//! - [`compare()`]: policies on the same tasks, at equal budgets, with random and oracle [`baselines`];
//! - [`measure_attention`]: kernel rates and the machine's limits;
//! - [`measure_kv`]: bytes and rates of the KV tiers, and the machine's rates;
//! - [`measure_policies`]: the time to select and attend under policies, compared with dense attention;
//! - [`measure_model`]: prompt and answer rates at several depths of context;
//! - [`calibrate`]: the cheapest policy that keeps the attention of each head;
//! - [`audit()`]: the exact attention mass that a policy keeps, by layer, head and position;
//! - [`measure_context`]: time to the first token, answer speed and memory against length;
//! - [`to_csv`], [`Table`], [`Picture`], [`write_report`]: results as CSV, tables, SVG (and PNG with the feature
//!   `png`), or one HTML page;
//! - [`PolicyChoice::parse_among`] and [`CompareTask::outside`]: policies and tasks of your own crate in a
//!   comparison;
//! - [`Record`]: a measurement with its command, model and machine, as a file that reports are made of. Long
//!   measurements are cut into cells that a [`Journal`] remembers, so that an interrupted run can continue.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use riffle_engine::{Engine, EngineOptions};
//! use riffle_eval::{AskPlace, Corpus, Journal, NeedleKind, NeedleOptions, Wording, needle};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::load("fixtures/model", EngineOptions::default())?;
//! let text = std::fs::read_to_string("fixtures/text/prophets.txt")?;
//! let corpus = Corpus::new(&engine, &text, Wording::plain(), Vec::new())?;
//! let options = NeedleOptions {
//!     lengths: vec![4096],
//!     depths: 10,
//!     kinds: vec![NeedleKind::MultiKey],
//!     places: vec![AskPlace::Late],
//!     documents: 1,
//!     seed: 1,
//!     compress: None,
//! };
//! let table = needle(&engine, &corpus, &options, &mut Journal::none(), &mut |_| ControlFlow::Continue(()))?;
//! for cell in table.cells() {
//!     println!("{:.2} deep: {}", cell.depth, cell.score);
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod attention_rates;
mod audit;
mod baselines;
mod batch_rates;
mod calibrate;
mod cells;
mod choice;
mod compare;
mod context_rates;
mod csv;
mod device_rates;
mod draft_rates;
mod error;
mod escape;
mod files;
mod importance;
mod journal;
mod kv_rates;
mod logits;
pub mod measuring;
mod model_rates;
mod noise;
mod numbers;
mod perplexity;
mod pictures;
mod policy_rates;
mod read_ceiling;
mod record;
mod report;
mod room;
mod statistics;
mod table;
mod tasks;
mod weight_divergence;

pub use attention_rates::{
    AttentionCase, AttentionRate, AttentionReport, attention_cases, device_cases, measure_attention,
};
pub use audit::{AttentionMap, AuditOptions, AuditTable, AuditedHead, AuditedRows, audit};
pub use baselines::{baselines, parse_policy};
pub use batch_rates::{BatchRateOptions, BatchRow, BatchTable, Waiting, measure_batch};
pub use calibrate::{CalibrateOptions, Calibration, Keep, calibrate};
pub use cells::{CellStep, StepWatch};
pub use choice::PolicyChoice;
pub use compare::{CompareOptions, CompareTask, compare};
pub use context_rates::{AnswerAttention, ContextRateOptions, ContextRow, ContextTable, measure_context};
pub use csv::to_csv;
pub use device_rates::{AheadRate, DevicePolicyRate, DeviceRate, DeviceReport, InstructionRate, OffloadRate};
pub use draft_rates::{DraftRate, DraftRateOptions, DraftRates, measure_drafts};
pub use error::EvalError;
pub use importance::{ImportanceOptions, collect_importance, observing};
pub use journal::Journal;
pub use kv_rates::{DecodeRate, KvBytes, KvRateOptions, KvRates, KvRow, StreamRate, measure_kv};
pub use logits::{LogitsReport, check_logits, parse_tokens, read_tokens, write_logits};
pub use model_rates::{ExpertRates, ModelRate, ModelRateOptions, ModelRates, measure_model};
pub use perplexity::{PerplexityOptions, perplexity};
pub use pictures::{Bar, HeatCell, HeatMap, LineChart, Picture, Scale, Series, ShareMap, Stack};
pub use policy_rates::{KeyKind, PolicyRate, PolicyRateOptions, PolicyRates, measure_policies};
pub use read_ceiling::memory_read_rate;
pub use record::{
    AskPlace, BudgetFit, ComparisonRow, ComparisonTable, Header, MachineInfo, ModelSummary, NeedleCell, NeedleKind,
    NeedleSample, NeedleTable, PerplexityBucket, PerplexityPosition, PerplexityRow, PerplexityTable, Record,
    RecordFolder, Results, RulerCell, RulerSample, RulerTable, RunSettings, SCHEMA, TextSummary, now_utc,
};
pub use report::write_report;
pub use statistics::{Interval, Paired};
pub use table::Table;
pub use tasks::{
    Ask, ChainAnswer, Corpus, DocumentsWording, FileTask, GivenQuestion, HiddenFact, ListWording, NeedleOptions,
    NiahWording, OutsideTask, RulerOptions, RulerTask, Task, TaskPrompt, VariablesWording, Wording, digest, needle,
    read_questions, ruler,
};
pub use weight_divergence::{WeightDivergence, WeightDivergenceOptions, weight_divergence};
