//! The command line as it is typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use riffle_engine::AttentionPrecision;
use riffle_model::Activations;

use crate::ask_args::AskArguments;
use crate::bench_args::BenchArguments;
use crate::chat_args::ChatArguments;
use crate::eval_args::EvalArguments;
use crate::hub_args::{self, CompletionsArguments, ListArguments, ManArguments, PullArguments, RmArguments};
use crate::numbers;
use crate::serve_args::ServeArguments;

/// Runs language models over very long inputs on the machine you have.
///
/// Without a command, riffle reads the shipped book with the shipped model and answers a question about it.
#[derive(Debug, Parser)]
#[command(name = "riffle", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ask questions about documents; shows the passages that answers rest on
    #[command(
        after_help = "Examples:\n  riffle ask --model model.gguf book.epub \"Who is Queequeg?\"\n  riffle ask --model model.gguf report.pdf notes/ --question \"What was decided?\" --question \"By whom?\"\n  riffle ask --model model.gguf src/ --follow"
    )]
    Ask(Box<AskArguments>),
    /// Read a prompt and write the answer
    Run(RunArguments),
    /// Talk with a model in many turns, each of which reads only what is new
    #[command(
        mut_arg("tokens", |argument| argument.default_value("2048")),
        after_help = "Example:\n  riffle chat --model model.gguf notes.txt"
    )]
    Chat(Box<ChatArguments>),
    /// Serve the model to programs and in the browser, over HTTP
    Serve(Box<ServeArguments>),
    /// Print the memory plan before anything is allocated; exits with 1 if it does not fit
    Plan(PlanArguments),
    /// Print a model's architecture, shapes, formats and tokenizer
    Inspect(InspectArguments),
    /// Turn text into token ids, or ids back into text
    #[command(
        after_help = "Examples:\n  riffle tokenize --model model.gguf --prompt \"In the beginning\" --pieces\n  riffle tokenize --model model.gguf --decode 1 415 8"
    )]
    Tokenize(TokenizeArguments),
    /// List the attention policies with their parameters
    Policies(PoliciesArguments),
    /// Find the cheapest policy that keeps the attention of each head, and write a profile
    Calibrate(CalibrateArguments),
    /// Work on sessions in files
    Session(SessionArguments),
    /// Measure what a model and a policy get right
    Eval(EvalArguments),
    /// Measure speed
    Bench(BenchArguments),
    /// Download a model from the Hugging Face hub, or go on with a download
    Pull(PullArguments),
    /// List the models in the hub's cache, with sizes and when they were used
    List(ListArguments),
    /// Remove a model from the hub's cache
    Rm(RmArguments),
    /// Write what a shell needs to complete commands and options
    Completions(CompletionsArguments),
    /// Write manual pages
    #[command(hide = true)]
    Man(ManArguments),
}

#[derive(Debug, Args)]
pub(crate) struct ModelArguments {
    /// Model: a Hugging Face folder (config.json, safetensors, tokenizer.json), a GGUF file, or the name of a model that was
    /// pulled, such as owner/name:Q4_K_M
    #[arg(short = 'm', long, value_name = "PATH", value_parser = hub_args::model())]
    pub(crate) model: PathBuf,
}

/// The text that a command reads.
#[derive(Debug, Args)]
pub(crate) struct PromptArguments {
    /// The prompt; without it or --file, standard input is read
    #[arg(
        short = 'p',
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "file"
    )]
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a UTF-8 text file
    #[arg(short = 'f', long, value_name = "F")]
    pub(crate) file: Option<PathBuf>,
}

/// Options of every command that runs or plans a model.
#[derive(Debug, Clone, Args)]
pub(crate) struct EngineArguments {
    /// What computes: cpu, cuda or cuda:N [default: a CUDA device where there is one that computes the model, else the CPU]
    #[arg(long, value_name = "DEVICE", help_heading = "Machine")]
    pub(crate) device: Option<String>,
    /// Memory the run may use, e.g. 900M or 12G [default: what the machine has available]
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, help_heading = "Machine")]
    pub(crate) memory: Option<u64>,
    /// Threads that compute [default: every core]
    #[arg(short = 't', long, value_name = "N", value_parser = numbers::threads, help_heading = "Machine")]
    pub(crate) threads: Option<usize>,
    /// Logical batch: tokens that pass one layer before the next
    #[arg(short = 'b', long = "batch", alias = "batch-size", value_name = "N", value_parser = numbers::tokens, default_value = "4096", help_heading = "Machine", hide_short_help = true)]
    pub(crate) batch: usize,
    /// Chunk of a logical batch whose attention is computed together (also spelled -ub) [default: 512, at most -b]
    #[arg(long = "ub", alias = "ubatch-size", value_name = "N", value_parser = numbers::tokens, help_heading = "Machine", hide_short_help = true)]
    pub(crate) chunk: Option<usize>,
    /// What linear layers of bf16 weights do with their input on the CPU: exact keeps it in f32; rounded makes it bfloat16
    /// as llama.cpp does, reads prompts at twice the speed where the processor has AVX512-BF16, and moves logits by about
    /// 1e-2. Weights of other formats are not concerned: quantised weights round their input to 8 bits in any case
    /// [default: exact]
    #[arg(long, value_name = "exact|rounded", value_parser = activations, help_heading = "Machine", hide_short_help = true)]
    pub(crate) activations: Option<Activations>,
    /// How prompts attend on the CPU: exact multiplies in f32; rounded multiplies integers of 11 to 16 bits, faster, and moves
    /// outputs by about 10⁻³ of their length. Answers attend exactly
    #[arg(long, value_name = "exact|rounded", value_parser = attention, default_value = "exact", help_heading = "Machine", hide_short_help = true)]
    pub(crate) attention: AttentionPrecision,
    /// Context: tokens the prompt and the answer may take together [default: what the model was made for, or what fits in memory if that is less]
    #[arg(short = 'c', long, alias = "ctx-size", value_name = "N", value_parser = numbers::tokens, help_heading = "Context")]
    pub(crate) ctx: Option<usize>,
    /// Go beyond the context the model was made for: yarn:factor=F, linear:factor=F, or own:factor=F for the model's own
    /// angles, each with original=TOKENS where the training was shorter than the model says [default: as the model says]
    #[arg(
        long,
        value_name = "METHOD:factor=F",
        help_heading = "Context",
        hide_short_help = true
    )]
    pub(crate) rope_scaling: Option<String>,
    /// Keep only the latest N tokens and the sinks: text without end in constant memory
    #[arg(long, value_name = "N", value_parser = numbers::tokens, conflicts_with_all = ["ctx", "prefill", "decode", "batch", "auto", "profile"], help_heading = "Context", hide_short_help = true)]
    pub(crate) window_size: Option<usize>,
    /// First tokens that --window-size keeps
    #[arg(long, value_name = "M", value_parser = numbers::tokens_or_none, default_value = "64", requires = "window_size", help_heading = "Context", hide_short_help = true)]
    pub(crate) sink_tokens: usize,
    /// Element format of cached keys and values, one for both or KEYS:VALUES
    #[arg(
        long,
        value_name = "f32|f16|bf16|q8_0|q4_0",
        default_value = "f16",
        help_heading = "KV cache"
    )]
    pub(crate) kv_type: String,
    /// llama.cpp's spelling of the first part of --kv-type
    #[arg(long, value_name = "FORMAT", hide = true, conflicts_with = "kv_type")]
    pub(crate) cache_type_k: Option<String>,
    /// llama.cpp's spelling of the second part of --kv-type
    #[arg(long, value_name = "FORMAT", hide = true, conflicts_with = "kv_type")]
    pub(crate) cache_type_v: Option<String>,
    /// Rotate heads (Hadamard) before they are cached, which spares 4-bit formats most of their loss [default: on for
    /// planes in q4_0]
    #[arg(long, value_name = "on|off", value_parser = numbers::switch, help_heading = "KV cache", hide_short_help = true)]
    pub(crate) kv_rotate: Option<bool>,
    /// Tokens in a page of the KV cache, a multiple of 16
    #[arg(long, value_name = "N", value_parser = numbers::tokens, help_heading = "KV cache", hide_short_help = true)]
    pub(crate) page_tokens: Option<usize>,
    /// KV pages in the device tier, e.g. 4G: the newest. On a CPU a part of memory [default: none]; with --device cuda what
    /// they may take of the device's memory [default: what weights and scratch leave]
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, help_heading = "KV cache", hide_short_help = true)]
    pub(crate) kv_device_budget: Option<u64>,
    /// KV pages in RAM, e.g. 500M [default: all, or what the machine has where --kv-disk is given]
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, help_heading = "KV cache")]
    pub(crate) kv_ram_budget: Option<u64>,
    /// Folder of the files that hold the oldest KV pages; they are gone when the run ends
    #[arg(long, value_name = "DIR", help_heading = "KV cache")]
    pub(crate) kv_disk: Option<PathBuf>,
    /// KV pages on disk, e.g. 20G [default: as many as there are]
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, requires = "kv_disk", help_heading = "KV cache", hide_short_help = true)]
    pub(crate) kv_disk_budget: Option<u64>,
    /// KV pages that may be on their way from a farther tier at a time
    #[arg(long, value_name = "N", value_parser = numbers::slots, default_value_t = riffle_kv::DEFAULT_SLOTS, help_heading = "KV cache", hide_short_help = true)]
    pub(crate) kv_slots: usize,
    /// Policy for reading the prompt, e.g. streaming:sinks=64,window=1024 (see riffle policies)
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "full",
        help_heading = "Attention policies"
    )]
    pub(crate) prefill: String,
    /// Policy for writing the answer
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "full",
        help_heading = "Attention policies"
    )]
    pub(crate) decode: String,
    /// Read only this share of the prompt's tokens in the upper half of the layers: the tokens to which the end of the prompt
    /// attends (FastKV). The answer may change. Use it for one question at the end of a text: the other tokens are lost to later
    /// questions. With layers=N the first N layers read every token
    #[arg(long, value_name = "SHARE[,layers=N]", conflicts_with_all = ["auto", "audit", "window_size"], help_heading = "Attention policies", hide_short_help = true)]
    pub(crate) select_tokens: Option<String>,
    /// Policies of layers and heads from a TOML file, as riffle calibrate writes it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prefill", "decode"], help_heading = "Attention policies", hide_short_help = true)]
    pub(crate) profile: Option<PathBuf>,
    /// Move each head, while the prompt is read, to the cheapest policy with which all but one in a hundred sampled queries keep this share of the true attention [default when given without a value: 0.9]
    #[arg(long, value_name = "P", num_args = 0..=1, default_missing_value = "0.9", value_parser = numbers::share, conflicts_with_all = ["prefill", "profile", "h2o_local", "h2o_heavy"], help_heading = "Attention policies", hide_short_help = true)]
    pub(crate) auto: Option<f64>,
    /// Tokens before a chunk that it reads: h2o-chunk's local, and that policy for the prompt
    #[arg(long, value_name = "N", value_parser = numbers::tokens_or_none, conflicts_with = "profile", help_heading = "Attention policies", hide_short_help = true)]
    pub(crate) h2o_local: Option<usize>,
    /// Older tokens, by votes, that a chunk reads: h2o-chunk's heavy, and that policy for the prompt
    #[arg(long, value_name = "N", value_parser = numbers::tokens_or_none, conflicts_with = "profile", help_heading = "Attention policies", hide_short_help = true)]
    pub(crate) h2o_heavy: Option<usize>,
    /// Compare sampled queries with exact attention and report what the policies keep
    #[arg(long, help_heading = "Attention policies", hide_short_help = true)]
    pub(crate) audit: bool,
}

impl EngineArguments {
    /// The formats of keys and values, one for both or KEYS:VALUES.
    pub(crate) fn kv_formats(&self) -> String {
        let given = |format: &Option<String>| format.clone().unwrap_or_else(|| "f16".to_owned());
        match (&self.cache_type_k, &self.cache_type_v) {
            (None, None) => self.kv_type.clone(),
            (keys, values) => format!("{}:{}", given(keys), given(values)),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) input: PromptArguments,
    /// A question about the prompt's text, which is put before it; may be given several times: the text is read once, and
    /// the questions are answered together
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "session")]
    pub(crate) question: Vec<String>,
    /// Instructions for the model, where its chat template takes them
    #[arg(
        long,
        alias = "system-prompt",
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "raw"
    )]
    pub(crate) system: Option<String>,
    /// Do not wrap the prompt in the model's chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print one JSON object at the end in place of text and summary
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) generate: GenerateArguments,
    /// Restore the session from this file if it is there, and save it there afterwards: what the prompt and the session
    /// begin with alike is not read again
    #[arg(long, value_name = "F", help_heading = "What is kept")]
    pub(crate) session: Option<PathBuf>,
    /// Go on with the session's answer where it ended, without a prompt
    #[arg(long = "continue", requires = "session", conflicts_with_all = ["prompt", "file", "system", "raw"], help_heading = "What is kept")]
    pub(crate) continues: bool,
    /// Keep beginnings of prompts in this folder and do not read them again: not in another process either
    #[arg(long, value_name = "DIR", help_heading = "What is kept")]
    pub(crate) prefix_cache: Option<PathBuf>,
    /// Bytes of pages in --prefix-cache at most; those used longest ago go first [default: 8G]
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, requires = "prefix_cache", help_heading = "What is kept", hide_short_help = true)]
    pub(crate) prefix_cache_budget: Option<u64>,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArguments {
    /// Tokens to generate at most; -1 for until the answer or the context ends
    #[arg(short = 'n', long = "tokens", aliases = ["predict", "n-predict"], value_name = "N", value_parser = numbers::answer_tokens, default_value = "256")]
    pub(crate) tokens: usize,
    /// End the answer at this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// 0 takes the most likely token [default: the model's own, else 0]
    #[arg(long, alias = "temp", value_name = "T", value_parser = numbers::temperature, help_heading = "Sampling")]
    pub(crate) temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 is off [default: the model's own, else 0]
    #[arg(long, value_name = "K", value_parser = numbers::tokens_or_none, help_heading = "Sampling", hide_short_help = true)]
    pub(crate) top_k: Option<usize>,
    /// Keep the most likely tokens that hold this probability [default: the model's own, else 1]
    #[arg(long, value_name = "P", value_parser = numbers::top_p, help_heading = "Sampling", hide_short_help = true)]
    pub(crate) top_p: Option<f32>,
    /// Drop tokens less likely than this share of the most likely one [default: the model's own, else 0]
    #[arg(long, value_name = "P", value_parser = numbers::min_p, help_heading = "Sampling", hide_short_help = true)]
    pub(crate) min_p: Option<f32>,
    /// Make recent tokens less likely; 1 is off [default: the model's own, else 1]
    #[arg(long, value_name = "X", value_parser = numbers::repeat_penalty, help_heading = "Sampling", hide_short_help = true)]
    pub(crate) repeat_penalty: Option<f32>,
    /// Seed of the draws
    #[arg(short = 's', long, value_name = "N", value_parser = numbers::seed, default_value = "0", help_heading = "Sampling")]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Plan for this text [default: one that fills the context]
    #[arg(long, value_name = "F")]
    pub(crate) file: Option<PathBuf>,
    /// Plan for a question about the text, which shares its pages
    #[arg(long, value_name = "TEXT")]
    pub(crate) question: Vec<String>,
    /// Plan for a prefix cache, which keeps beginnings whole
    #[arg(long)]
    pub(crate) prefix_cache: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// Model: a Hugging Face folder, a GGUF file, or the name of a model that was pulled
    #[arg(value_parser = hub_args::model())]
    pub(crate) path: PathBuf,
    /// List every tensor with its format and shape
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TokenizeArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) input: PromptArguments,
    /// Token ids to turn into text, separated by spaces or commas; without an id they are read as the text would be
    #[arg(long, value_name = "ID", num_args = 0.., conflicts_with_all = ["prompt", "pieces"])]
    pub(crate) decode: Option<Vec<String>>,
    /// Leave out special tokens, which a text is put between and which are spelled out when ids are turned into text
    #[arg(long)]
    pub(crate) no_special: bool,
    /// Print a line for each token: its id and its text
    #[arg(long)]
    pub(crate) pieces: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The heads of a model that is not there.
#[derive(Debug, Args)]
pub(crate) struct HeadsArguments {
    /// Query heads, KV heads and the width of a head
    #[arg(
        long,
        value_name = "HEADS,KV,WIDTH",
        value_delimiter = ',',
        value_parser = numbers::head_count,
        default_value = "16,8,128"
    )]
    pub(crate) shape: Vec<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct PoliciesArguments {
    #[command(flatten)]
    pub(crate) heads: HeadsArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CalibrateArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// UTF-8 text to audit on
    #[arg(short = 'f', long, value_name = "F")]
    pub(crate) file: PathBuf,
    /// Tokens of the text to read [default: all that the context holds]
    #[arg(long, value_name = "N", value_parser = numbers::tokens)]
    pub(crate) length: Option<usize>,
    /// Share of the true attention that all but one in a hundred queries of each head must keep
    #[arg(long, value_name = "P", value_parser = numbers::share, default_value = "0.9")]
    pub(crate) target: f64,
    /// Share of the true attention that all heads must keep on average, in place of --target
    #[arg(long, value_name = "P", value_parser = numbers::share, conflicts_with = "target")]
    pub(crate) mean: Option<f64>,
    /// Policies to choose from; full attention is always among them. May be given several times
    #[arg(long, value_name = "POLICY", default_values = ["streaming", "vertical-slash", "xattention"])]
    pub(crate) candidate: Vec<String>,
    /// The profile to write
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionArguments {
    #[command(subcommand)]
    pub(crate) command: SessionCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// Keep a share of a session's keys and values, so that later questions of any kind are still answered
    #[command(
        after_help = "Example:\n  riffle run --model model.gguf --file book.txt -n 0 --session book.session\n  riffle session compress --model model.gguf --session book.session --keep 0.3"
    )]
    Compress(Box<CompressArguments>),
}

#[derive(Debug, Args)]
pub(crate) struct CompressArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The session's file, as riffle run --session saved it; it is replaced
    #[arg(long, value_name = "F")]
    pub(crate) session: PathBuf,
    /// Share of the pairs of keys and values to keep, above 0 and at most 1
    #[arg(long, value_name = "SHARE", value_parser = numbers::share_above_zero)]
    pub(crate) keep: f64,
    /// kvzip has the model repeat the text and keeps what it looks at: the better one, and as slow as reading was. expected
    /// computes from a sample of the text what attention keys can expect
    #[arg(long, value_name = "kvzip|expected", default_value = "kvzip")]
    pub(crate) method: String,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn attention(text: &str) -> Result<AttentionPrecision, String> {
    let mut all = AttentionPrecision::ALL.iter();
    let named = all.find(|precision| precision.name().eq_ignore_ascii_case(text));
    named.copied().ok_or_else(|| "it must be exact or rounded".to_owned())
}

fn activations(text: &str) -> Result<Activations, String> {
    let mut all = Activations::ALL.iter();
    let named = all.find(|activations| activations.name().eq_ignore_ascii_case(text));
    named.copied().ok_or_else(|| "it must be exact or rounded".to_owned())
}
