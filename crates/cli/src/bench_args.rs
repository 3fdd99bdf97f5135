//! Arguments of `riffle bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use riffle_engine::DraftSpec;
use riffle_eval::KeyKind;
use riffle_policy::Phase;

use crate::args::{EngineArguments, HeadsArguments, ModelArguments};
use crate::eval_args::{OutputArguments, SubjectArguments};
use crate::{hub_args, numbers};

#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    pub(crate) subject: BenchSubject,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchSubject {
    /// Attention kernels, compared with the machine's limits
    ///
    /// The limits are the arithmetic peak and the read bandwidth, measured in the same run.
    Attention(BenchAttentionArguments),
    /// Tiers of the KV cache: memory, disk
    ///
    /// Bytes compared with the formula, streaming compared with plain copies and reads, decode from slow tiers.
    Kv(BenchKvArguments),
    /// Tokens a second of a model, at several depths of context
    Model(Box<BenchModelArguments>),
    /// Tokens per second of many answers in one pass
    ///
    /// Also the delay of an answer while a prompt is read.
    Batch(Box<BenchBatchArguments>),
    /// First token, answer speed and memory, over lengths of context
    ///
    /// Peak memory is split into its parts. A short text repeats.
    #[command(after_help = "Example:\n  riffle bench context --lengths 4096,16384 --policy full --policy xattention")]
    Context(Box<BenchContextArguments>),
    /// Answers with drafts, compared with the same answers without
    ///
    /// Greedy answers after the first tokens of a text; they are checked to be equal.
    #[command(after_help = "Example:\n  riffle bench draft --depth 4096,16384 --draft ngram --draft sparse:quest@4")]
    Draft(Box<BenchDraftArguments>),
    /// Selection and attention under policies, compared with dense attention
    ///
    /// In one layer, at the end of a context, from f16.
    Policies(BenchPoliciesArguments),
}

#[derive(Debug, Args)]
pub(crate) struct BenchDraftArguments {
    #[command(flatten)]
    pub(crate) subject: SubjectArguments,
    /// Sources of drafts, like --draft of riffle run; may be repeated
    #[arg(long, value_name = "SPEC", value_parser = hub_args::draft, default_values = ["auto", "ngram", "sparse"])]
    pub(crate) draft: Vec<DraftSpec>,
    /// Tokens of the text before the answer; a short text repeats
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = numbers::tokens, default_value = "512,4096,16384")]
    pub(crate) depth: Vec<usize>,
    /// Add a question or other words after the text; no chat template is used
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) question: Option<String>,
    /// Tokens of each answer
    #[arg(short = 'n', long = "tokens", value_name = "N", value_parser = numbers::tokens, default_value = "128")]
    pub(crate) tokens: usize,
    /// Runs of each, alternating; the fastest counts
    #[arg(long, value_name = "N", value_parser = numbers::repeats, default_value = "3")]
    pub(crate) repeats: usize,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct BenchPoliciesArguments {
    /// Policy to measure; may be repeated [default: all of the phase]
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Vec<String>,
    /// The phase
    #[arg(long, value_name = "prefill|decode", value_parser = phase, default_value = "decode")]
    pub(crate) phase: Phase,
    /// Tokens of the context
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "131072")]
    pub(crate) tokens: usize,
    /// Layers of the model; some policies keep the first layers dense
    #[arg(long, value_name = "N", value_parser = numbers::layers, default_value = "28")]
    pub(crate) layers: usize,
    #[command(flatten)]
    pub(crate) heads: HeadsArguments,
    /// Element formats of keys and values under the policies
    #[arg(long, value_name = "K[:V]", default_value = "f16")]
    pub(crate) kv_type: String,
    /// Kind of keys: a few of them match every query, or none does
    #[arg(long, value_name = "peaked|random", value_parser = keys, default_value = "peaked")]
    pub(crate) keys: KeyKind,
    /// Queries of a chunk in prefill, unless the policy sets its own number
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "512")]
    pub(crate) ub: usize,
    #[command(flatten)]
    pub(crate) machine: MachineArguments,
}

#[derive(Debug, Args)]
pub(crate) struct BenchModelArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Tokens of the timed prompt
    #[arg(short = 'p', long = "prompt-tokens", value_name = "N", value_parser = numbers::tokens, default_value = "512")]
    pub(crate) prompt_tokens: usize,
    /// Tokens to generate
    #[arg(short = 'n', long = "tokens", value_name = "N", value_parser = numbers::tokens, default_value = "64")]
    pub(crate) tokens: usize,
    /// Tokens in the context before the prompt
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = numbers::tokens_or_none, default_value = "0,4096,16384")]
    pub(crate) depth: Vec<usize>,
    /// Runs at each depth; the fastest counts
    #[arg(long, value_name = "N", value_parser = numbers::repeats, default_value = "3")]
    pub(crate) repeats: usize,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct BenchBatchArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Numbers of sequences that answer together
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = numbers::sequences, default_value = "1,2,4,8,16")]
    pub(crate) sequences: Vec<usize>,
    /// Tokens of each prompt
    #[arg(short = 'p', long = "prompt-tokens", value_name = "N", value_parser = numbers::tokens, default_value = "512")]
    pub(crate) prompt_tokens: usize,
    /// Common first tokens of all prompts, read once
    #[arg(long, value_name = "N", value_parser = numbers::tokens_or_none, default_value = "0")]
    pub(crate) shared: usize,
    /// Tokens of each answer
    #[arg(short = 'n', long = "tokens", value_name = "N", value_parser = numbers::tokens, default_value = "64")]
    pub(crate) tokens: usize,
    /// Tokens of a prompt to read while the answers continue; 0 skips this measurement
    #[arg(long, value_name = "N", value_parser = numbers::tokens_or_none, default_value = "0")]
    pub(crate) beside: usize,
    /// Runs of each number of sequences; the fastest counts
    #[arg(long, value_name = "N", value_parser = numbers::repeats, default_value = "3")]
    pub(crate) repeats: usize,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct BenchContextArguments {
    #[command(flatten)]
    pub(crate) subject: SubjectArguments,
    /// Tokens of the prompts
    #[arg(long, alias = "length", value_name = "N,N,…", value_delimiter = ',', value_parser = numbers::tokens, default_value = "1024,4096,16384")]
    pub(crate) lengths: Vec<usize>,
    /// Policy to measure; may be repeated
    ///
    /// POLICY, prefill=POLICY or decode=POLICY [default: those of --prefill and --decode together]. All decode policies
    /// that do not learn answer after one dense reading of each prompt.
    #[arg(long, value_name = "POLICY", conflicts_with_all = ["prefill", "decode", "profile", "auto", "window_size"])]
    pub(crate) policy: Vec<String>,
    /// Tokens of each answer
    #[arg(short = 'n', long = "tokens", value_name = "N", value_parser = numbers::tokens, default_value = "64")]
    pub(crate) tokens: usize,
    /// Runs of each length; the fastest counts
    #[arg(long, value_name = "N", value_parser = numbers::repeats, default_value = "1")]
    pub(crate) repeats: usize,
    /// Also measure with all KV pages in memory, to compare with the given tiers
    #[arg(long)]
    pub(crate) beside_memory: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct BenchKvArguments {
    /// Tokens of the sequences
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "65536")]
    pub(crate) tokens: usize,
    /// Latest tokens, which stay in the device tier during decode
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "16384")]
    pub(crate) hot_tokens: usize,
    /// Tokens in a page, a multiple of 16
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value_t = riffle_kv::DEFAULT_PAGE_TOKENS)]
    pub(crate) page_tokens: usize,
    /// Element format of keys and values
    #[arg(long, value_name = riffle_engine::KV_TYPES, default_value = "f16")]
    pub(crate) kv_type: String,
    /// Folder of the disk tier [default: the system's for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) kv_disk: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) machine: MachineArguments,
}

#[derive(Debug, Args)]
pub(crate) struct BenchAttentionArguments {
    /// Processor to compute on: cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: String,
    /// Measure only cases whose name contains this text, e.g. "decode q8_0"
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    #[command(flatten)]
    pub(crate) machine: MachineArguments,
}

/// Options of measurements without a model.
#[derive(Debug, Args)]
pub(crate) struct MachineArguments {
    /// Number of threads [default: every core]
    #[arg(short = 't', long, value_name = "N", value_parser = numbers::threads)]
    pub(crate) threads: Option<usize>,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

fn phase(text: &str) -> Result<Phase, String> {
    let phase = [Phase::Prefill, Phase::Decode].into_iter();
    let mut named = phase.filter(|phase| phase.to_string().eq_ignore_ascii_case(text));
    named.next().ok_or_else(|| "it must be prefill or decode".to_owned())
}

fn keys(text: &str) -> Result<KeyKind, String> {
    match &*text.to_ascii_lowercase() {
        "peaked" => Ok(KeyKind::Peaked),
        "random" => Ok(KeyKind::Random),
        _ => Err("it must be peaked or random".to_owned()),
    }
}
