//! The engine: it drives a model's layers over a paged KV cache.
//!
//! A run involves four components. The *model* projects a logical batch of tokens layer by layer. The *cache* stores
//! their keys and values in pages. A *policy* selects the tokens that each tile of queries reads. The *attention*
//! kernels read exactly this selection. This crate only decides the order of the four; it never depends on a specific
//! policy.
//!
//! Options are structs with a [`Default`], and releases add fields to them. [`EngineOptions`] has a setter for each
//! option; literals of the others end with `..Default::default()`. Reports of the engine are `#[non_exhaustive]`.
//! Pass model families of your crate in [`ModelOptions::families`], and policies in [`SequenceOptions::prefill`] and
//! [`SequenceOptions::decode`].
//!
//! Memory is planned before it is allocated: [`Engine::load`] refuses a run that does not fit and lists options with
//! which it would.
//!
//! Load a model and stream an answer:
//!
//! ```no_run
//! use std::io::Write;
//! use std::ops::ControlFlow;
//!
//! use riffle_engine::{Engine, EngineOptions, GenerateOptions, Session};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let engine = Engine::load("fixtures/model", EngineOptions::default())?;
//!     let prompt = engine.tokenizer()?.encode("In the beginning", true)?;
//!     let mut session = Session::new(&engine)?;
//!     session.prefill(&prompt, &mut |progress| {
//!         eprint!("\r{:.0} of {} tokens", progress.tokens_done, progress.tokens);
//!         ControlFlow::Continue(())
//!     })?;
//!     let options = GenerateOptions { max_tokens: 64, ..GenerateOptions::default() };
//!     session.generate(&options, &mut |text| {
//!         print!("{text}");
//!         let _ = std::io::stdout().flush();
//!         ControlFlow::Continue(())
//!     })?;
//!     Ok(())
//! }
//! ```

#![forbid(unsafe_code)]

mod answer;
mod attention;
mod compress;
mod compute;
mod conversation;
mod draft;
mod draft_spec;
mod encode;
mod engine;
mod error;
mod open_device;
mod options;
mod origin;
mod parse;
mod pass;
mod plan;
mod precision;
mod predictor;
mod profile;
mod rounding;
mod run;
mod sampler;
mod scheduler;
mod sequence;
mod session;
mod sharing;

pub use answer::constraint::{AnswerForm, TokenConstraint};
pub use answer::generate::{GenerateOptions, Generation, StopReason};
pub use answer::probabilities::TokenProbabilities;
pub use answer::stop::StopMatcher;
pub use attention::{
    AttentionTime, AttentionWatch, AuditReport, AuditedQuery, CachedAttention, CachedAttentionOptions, ChunkRows,
    HeadAudit, LayerAttention, LayerCall, PairCount, ProjectedRows, WatchedHead,
};
pub use compress::{CompressMethod, CompressOptions, Compressed, RepeatPrompt, Spread, compress_sequence};
pub use draft_spec::{DraftCount, DraftSpec};
pub use encode::{Encoding, embed};
pub use engine::{Engine, max_threads, plan, with_threads};
pub use error::{EngineError, Failure, stretch_factor};
pub use open_device::{DEVICE_FORMATS, cuda_ordinal};
pub use options::{
    CacheOptions, EngineOptions, MachineOptions, ModelOptions, PromptText, SequenceOptions, StreamWindow,
    TokenSelection, rename_options,
};
pub use parse::{KV_TYPES, parse_bytes, parse_kv_type};
pub use pass::{BatchProgress, FinishedRows, PassProgress, PrefillProgress, Runner, Work};
pub use plan::{
    DevicePlan, ExpertPlan, MemoryPlan, ProcessPlan, TierPlan, available_memory_bytes, largest_text_bytes,
    policy_shapes,
};
pub use precision::AttentionPrecision;
pub use profile::Profile;
pub use riffle_device::{ComputeDevice, DeviceError, TransferCount};
pub use riffle_files::human_bytes;
pub use riffle_kv::{RowTier, SharedCounts, SharedOptions, TextBlock};
pub use rounding::{activations_note, described_activations};
pub use run::compress_session::{CompressReport, compress_session};
pub use run::questions::{plan_questions, run_questions};
pub use run::session_file::SessionReport;
pub use run::time_left::TimeLeft;
pub use run::{KvReport, RunEvent, RunReport, RunRequest, run};
pub use sampler::{DrawContext, Sampler, SamplingOptions};
pub use scheduler::{
    Event, HeldKind, HoldingChange, LoanedSequence, Request, RequestId, RequestReport, RequestTimes, Restoring,
    Scheduler, SchedulerOptions, WrittenToken,
};
pub use sequence::{Checkpoint, DeviceUsage, Sequence, SequenceCounts, SequenceObservers};
pub use session::Session;
pub use sharing::{
    DEFAULT_PREFIX_CACHE_BYTES, KeepOptions, KeptText, PrefixCacheOptions, PrefixReport, SharedReport,
    SharedStoreOptions, adopt_prefix, document_cache_folder, fill_prefix, prefix_cuts, share_prefix, store_prefix,
};
