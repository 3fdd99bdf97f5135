//! Arguments of the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use riffle_engine::DraftSpec;

use crate::ask_args::AskArguments;
use crate::bench_args::BenchArguments;
use crate::chat_args::ChatArguments;
pub(crate) use crate::engine_args::EngineArguments;
use crate::eval_args::EvalArguments;
use crate::hub_args::{self, CompletionsArguments, ListArguments, ManArguments, PullArguments, RmArguments};
use crate::launch_args::LaunchArguments;
pub(crate) use crate::model::ModelArguments;
use crate::model::NamedModel;
use crate::numbers;
use crate::prefix_cache::PrefixCacheArguments;
use crate::quantize_args::QuantizeArguments;
use crate::serve_args::ServeArguments;

/// Riffle runs language models over very long texts, on your machine.
///
/// Without a command it demonstrates itself: the shipped model reads the shipped book and answers a question about
/// it.
#[derive(Debug, Parser)]
#[command(
    name = "riffle",
    bin_name = "riffle",
    version,
    args_conflicts_with_subcommands = true,
    override_usage = "riffle [OPTIONS] [COMMAND]"
)]
pub(crate) struct Arguments {
    /// Without a command: compare with full attention
    #[arg(long)]
    pub(crate) dense: bool,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ask questions about documents, with the source passages
    #[command(
        mut_arg("temperature", |argument| argument.hide_short_help(true)),
        mut_arg("prefill", |argument| argument.hide_short_help(true)),
        mut_arg("decode", |argument| argument.hide_short_help(true)),
        after_help = "Examples:\n  riffle ask --model model.gguf book.epub \"Who is Queequeg?\"\n  riffle ask --model model.gguf report.pdf notes/ --question \"What was decided?\"\n  riffle ask --model model.gguf src/ --follow"
    )]
    Ask(Box<AskArguments>),
    /// Talk with a model, also about documents
    #[command(
        mut_arg("tokens", |argument| argument.default_value("2048")),
        after_help = "Example:\n  riffle chat --model model.gguf notes.txt\nType /help in the conversation to see its commands."
    )]
    Chat(Box<ChatArguments>),
    /// Read one text and write one answer
    #[command(after_help = "Example:\n  riffle run --model model.gguf --file book.txt --question \"Who?\"")]
    Run(Box<RunArguments>),
    /// Serve models to programs and browsers, over HTTP
    #[command(mut_arg("model", hub_args::of_a_server))]
    Serve(Box<ServeArguments>),
    /// Start a coding agent on a model
    Launch(LaunchArguments),
    /// Download a model from the Hugging Face hub
    Pull(PullArguments),
    /// List the downloaded models
    List(ListArguments),
    /// Remove a downloaded model
    Rm(RmArguments),
    /// Show a model's architecture, formats and tokenizer
    Inspect(InspectArguments),
    /// Show how much memory a run would take
    ///
    /// Nothing is allocated. The exit status is 1 if the run does not fit.
    Plan(PlanArguments),
    /// Turn text into token ids, or ids back into text
    #[command(
        after_help = "Examples:\n  riffle tokenize --model model.gguf --prompt \"In the beginning\" --pieces\n  riffle tokenize --model model.gguf --decode 1 415 8"
    )]
    Tokenize(TokenizeArguments),
    /// Write a model as a GGUF file of smaller weights
    #[command(
        after_help = "Examples:\n  riffle quantize my-model small.gguf\n  riffle calibrate --model my-model --imatrix my.imatrix notes/\n  riffle quantize my-model small.gguf --type IQ3_S --imatrix my.imatrix"
    )]
    Quantize(QuantizeArguments),
    /// List the attention policies and their parameters
    Policies(PoliciesArguments),
    /// Find the cheapest policy for each head, or an importance matrix
    #[command(
        after_help = "Examples:\n  riffle calibrate --model model.gguf --file book.txt --out model.toml\n  riffle calibrate --model my-model --imatrix my.imatrix notes/ book.epub"
    )]
    Calibrate(CalibrateArguments),
    /// Make a saved session smaller
    Session(SessionArguments),
    /// Measure how well a model finds and predicts under a policy
    Eval(EvalArguments),
    /// Measure speed and memory
    Bench(BenchArguments),
    /// Write a shell's completions of commands and options
    Completions(CompletionsArguments),
    /// Write manual pages
    #[command(hide = true)]
    Man(ManArguments),
}

/// The text for a command.
#[derive(Debug, Args)]
pub(crate) struct PromptArguments {
    /// Text to read [default: standard input]
    #[arg(
        short = 'p',
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "file"
    )]
    pub(crate) prompt: Option<String>,
    /// Read the text from this UTF-8 file
    #[arg(short = 'f', long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) input: PromptArguments,
    /// Question about the text; may be repeated
    ///
    /// It follows the text. The text is read once, and all questions are answered together.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "session")]
    pub(crate) question: Vec<String>,
    /// Instructions for the model
    ///
    /// The model needs a chat template that supports them.
    #[arg(
        long,
        alias = "system-prompt",
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "raw",
        hide_short_help = true
    )]
    pub(crate) system: Option<String>,
    /// Read the text unchanged, without the chat template
    #[arg(long, hide_short_help = true)]
    pub(crate) raw: bool,
    /// Print one JSON object instead of text and summary
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) generate: GenerateArguments,
    /// Continue the session of this file, then save it there
    ///
    /// If the file exists, the session is restored from it. Text in common with the session's beginning is not read
    /// again.
    #[arg(long, value_name = "FILE", help_heading = "Sessions and caches")]
    pub(crate) session: Option<PathBuf>,
    /// Continue the session's answer, without a prompt
    #[arg(long = "continue", requires = "session", conflicts_with_all = ["prompt", "file", "system", "raw"], help_heading = "Sessions and caches", hide_short_help = true)]
    pub(crate) continues: bool,
    #[command(flatten)]
    pub(crate) prefix: PrefixCacheArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArguments {
    /// Maximum tokens of an answer
    ///
    /// -1 sets no limit: the answer continues until its own end or the end of the context.
    #[arg(short = 'n', long = "tokens", aliases = ["predict", "n-predict"], value_name = "N", value_parser = numbers::answer_tokens, default_value = "256")]
    pub(crate) tokens: usize,
    /// End the answer before this text; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, hide_short_help = true)]
    pub(crate) stop: Vec<String>,
    /// Let an answer continue that repeats the same tokens
    ///
    /// Without this option an answer ends when it repeats up to 256 tokens at least four times in a row, with 128
    /// repeated tokens. Answers with a repetition penalty and answers of a given form are never ended this way.
    #[arg(long, hide_short_help = true)]
    pub(crate) allow_loops: bool,
    /// Randomness; 0 takes the most likely token
    ///
    /// [default: the model's own, else 0]
    #[arg(long, alias = "temp", value_name = "T", value_parser = numbers::temperature, help_heading = "Sampling")]
    pub(crate) temperature: Option<f32>,
    /// Draw from the K most likely tokens; 0 is off [default: the model's own, else 0]
    #[arg(long, value_name = "K", value_parser = numbers::tokens_or_none, help_heading = "Sampling", hide_short_help = true)]
    pub(crate) top_k: Option<usize>,
    /// Draw from the most likely tokens with this total probability [default: the model's own, else 1]
    #[arg(long, value_name = "P", value_parser = numbers::top_p, help_heading = "Sampling", hide_short_help = true)]
    pub(crate) top_p: Option<f32>,
    /// Drop tokens below this share of the highest probability [default: the model's own, else 0]
    #[arg(long, value_name = "P", value_parser = numbers::min_p, help_heading = "Sampling", hide_short_help = true)]
    pub(crate) min_p: Option<f32>,
    /// Make recent tokens less likely by this factor; 1 is off [default: the model's own, else 1]
    #[arg(long, value_name = "X", value_parser = numbers::repeat_penalty, help_heading = "Sampling", hide_short_help = true)]
    pub(crate) repeat_penalty: Option<f32>,
    /// Seed of the random draws
    #[arg(short = 's', long, value_name = "N", value_parser = numbers::seed, default_value = "0", help_heading = "Sampling", hide_short_help = true)]
    pub(crate) seed: u64,
    /// Guess tokens and verify several in one pass: auto, none, ngram, sparse, mtp or model:PATH
    ///
    /// The answer is the same to the byte. ngram guesses the tokens that followed the same text earlier. sparse lets
    /// the model guess with attention to its first and latest tokens; sparse:POLICY uses another policy, such as
    /// quest. mtp is the layer for further tokens in files of Qwen3.5. model:PATH is a small model with the same
    /// vocabulary, by file, folder or name. ngram+ before one of these uses both. @N after it drafts N tokens at a
    /// time; otherwise the number adapts. auto is ngram+sparse if that is faster, and none with --audit, an endless
    /// window or a device.
    #[arg(long, value_name = "SPEC", value_parser = hub_args::draft, default_value = "auto", help_heading = "Speculative decoding", hide_short_help = true)]
    pub(crate) draft: DraftSpec,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Plan for this text [default: one that fills the context]
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Plan for a question about the text; questions share its pages; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) question: Vec<String>,
    /// Plan for riffle serve --parallel N
    ///
    /// This is the memory of N running requests, of N idle ones, and of the bodies of all.
    #[arg(long, value_name = "N", value_parser = numbers::sequences, conflicts_with_all = ["file", "question"])]
    pub(crate) parallel: Option<usize>,
    /// Plan for a run with --prefix-cache
    ///
    /// Keys and values of a beginning are then kept whole.
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
    /// Model: file, folder or name [default: last used]
    #[arg(value_name = "MODEL", value_parser = hub_args::model())]
    pub(crate) model: Option<NamedModel>,
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
    /// Turn these token ids into text
    ///
    /// Ids are separated by spaces or commas. Without ids here, they are read like a text.
    #[arg(long, value_name = "ID", num_args = 0.., conflicts_with_all = ["prompt", "pieces"])]
    pub(crate) decode: Option<Vec<String>>,
    /// Leave out special tokens
    ///
    /// Otherwise a text gets the model's special tokens around it, and ids of special tokens become text.
    #[arg(long)]
    pub(crate) no_special: bool,
    /// Print one line for each token: its id and its text
    #[arg(long)]
    pub(crate) pieces: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The heads of a model, for policies without a model.
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
    /// UTF-8 text to measure on
    #[arg(short = 'f', long, value_name = "FILE", required_unless_present = "imatrix")]
    pub(crate) file: Option<PathBuf>,
    /// Write an importance matrix of the documents
    ///
    /// It contains the mean squares of the inputs of each layer, so that riffle quantize --imatrix encodes important
    /// weights more precisely. llama.cpp reads and writes the same files.
    #[arg(long, value_name = "FILE", requires = "documents", conflicts_with_all = ["file", "out", "target", "mean", "candidate", "json"])]
    pub(crate) imatrix: Option<PathBuf>,
    /// With --imatrix: files and folders to read
    #[arg(value_name = "DOCUMENTS", requires = "imatrix")]
    pub(crate) documents: Vec<PathBuf>,
    /// With --imatrix: tokens of a chunk; each chunk starts with an empty cache
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "512", requires = "imatrix", hide_short_help = true)]
    pub(crate) chunk_size: usize,
    /// Tokens of the text to read
    ///
    /// [default: as many as fit in the context; with --imatrix all]
    #[arg(long, alias = "lengths", value_name = "N", value_parser = numbers::tokens)]
    pub(crate) length: Option<usize>,
    /// Share of the exact attention that each head must keep
    ///
    /// All but one in a hundred sampled queries of the head must keep it.
    #[arg(long, value_name = "P", value_parser = numbers::share, default_value = "0.9")]
    pub(crate) target: f64,
    /// Mean share that all heads must keep, instead of --target
    #[arg(long, value_name = "P", value_parser = numbers::share, conflicts_with = "target", hide_short_help = true)]
    pub(crate) mean: Option<f64>,
    /// Policy to choose from; may be repeated
    ///
    /// Full attention is always a candidate.
    #[arg(long, value_name = "POLICY", default_values = ["streaming", "vertical-slash", "xattention"])]
    pub(crate) candidate: Vec<String>,
    /// File to write the profile to
    #[arg(long, value_name = "FILE", required_unless_present = "imatrix")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Print JSON
    #[arg(long, hide_short_help = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SessionArguments {
    #[command(subcommand)]
    pub(crate) command: SessionCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// Shrink a session to a share of its memory
    ///
    /// Later questions of any kind are still answered. A session that has read more since can be compressed again:
    /// echo and kvzip then keep a share of the new text, and all that was kept before.
    #[command(
        after_help = "Example:\n  riffle run --model model.gguf --file book.txt -n 0 --session book.session --score-pairs\n  riffle session compress --model model.gguf --session book.session --keep 0.3"
    )]
    Compress(Box<CompressArguments>),
}

#[derive(Debug, Args)]
pub(crate) struct CompressArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The session's file, which is replaced
    ///
    /// riffle run --session writes such a file.
    #[arg(long, value_name = "FILE")]
    pub(crate) session: PathBuf,
    /// Share of keys and values to keep, above 0 and at most 1
    #[arg(long, value_name = "SHARE", value_parser = numbers::share_above_zero)]
    pub(crate) keep: f64,
    /// Method of choosing the share
    ///
    /// echo keeps the pairs to which the text itself pays attention. A session of riffle run --score-pairs is
    /// compressed at once; any other text is read once more. kvzip lets the model repeat the text, which takes longer
    /// than reading. expected computes the expected attention of keys from a sample of the text: fast, but it loses
    /// facts.
    #[arg(long, value_name = "echo|kvzip|expected", default_value = "echo")]
    pub(crate) method: String,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
