//! Arguments of `riffle eval`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use riffle_eval::{EvalError, GivenQuestion};

use crate::args::{EngineArguments, ModelArguments};
use crate::numbers;

#[derive(Debug, Args)]
pub(crate) struct EvalArguments {
    #[command(subcommand)]
    pub(crate) measurement: Measurement,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Measurement {
    /// Write the logits of every position, to verify them elsewhere
    #[command(
        after_help = "Example:\n  riffle eval logits --model fixtures/model --tokens ids.json --out logits.safetensors"
    )]
    Logits(Box<LogitsArguments>),
    /// Ask for facts hidden in a long text, over lengths and depths
    #[command(
        after_help = "Example:\n  riffle eval needle --lengths 4096,16384",
        after_long_help = "Examples:\n  riffle eval needle --lengths 4096,16384\n  riffle eval needle --kinds single,multi-key --ask end,middle,late --prefill xattention --out results --resume needle.journal"
    )]
    Needle(Box<NeedleArguments>),
    /// Run RULER's thirteen tasks, made from a text
    #[command(
        after_help = "Example:\n  riffle eval ruler --lengths 4096,16384 --samples 10",
        after_long_help = "Examples:\n  riffle eval ruler --lengths 4096,16384 --samples 10\n  riffle eval ruler --model qwen.gguf --text book.txt --tasks vt,cwe,qa_1 --questions squad.json\n\nDocuments of qa_1 and qa_2 are paragraphs of the text, each with a stated fact, or those of --questions."
    )]
    Ruler(Box<RulerArguments>),
    /// Measure how well a text is predicted, compared with dense attention
    #[command(
        after_help = "Example:\n  riffle eval perplexity --file book.txt --window 8192 --policy streaming",
        after_long_help = "Examples:\n  riffle eval perplexity --file book.txt --window 8192 --policy streaming --policy decode=quest:dense_layers=0\n  riffle eval perplexity --window 8192 --ablate-local 64,128,256 --ablate-heavy 64,128,256 --out results"
    )]
    Perplexity(Box<PerplexityArguments>),
    /// Compare policies on the same tasks, at equal budgets if asked
    #[command(
        after_help = "Example:\n  riffle eval compare --policy streaming --policy decode=quest --budget 0.1",
        after_long_help = "Examples:\n  riffle eval compare --lengths 4096 --tasks needle:multi-key:late,niah_multiquery\n  riffle eval compare --tasks file:mine.jsonl --policy streaming --budget 0.2 --out results\n  riffle eval compare --policy streaming --policy decode=quest:dense_layers=0,block=64 --policy oracle-top-k --budget 0.1 --out results\n\nA policy is prefill=POLICY or decode=POLICY (see riffle policies); random, oracle-top-k and oracle-top-p are known here\nas well, as are auto:SHARE and profiles (FILE.toml). Prefill policies are asked with the document, decode policies token by token behind it. Policies act at any\nlength here; from=auto gives them back their guard for short prompts."
    )]
    Compare(Box<CompareArguments>),
    /// Measure how much of the exact attention a policy keeps
    ///
    /// By layer, head and position in the text, with attention sinks, and with the overlap of each head's heaviest
    /// keys between chunks.
    #[command(after_help = "Example:\n  riffle eval audit --prefill xattention --lengths 8192 --out results")]
    Audit(Box<AuditArguments>),
    /// Make one HTML page of all records in a folder
    #[command(after_help = "Example:\n  riffle eval needle --out results && riffle eval report results")]
    Report(ReportArguments),
}

#[derive(Debug, Args)]
pub(crate) struct LogitsArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// File of token ids
    ///
    /// A JSON array, or numbers separated by spaces, commas or lines.
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: PathBuf,
    /// Safetensors file to write
    ///
    /// It contains `logits` in f32, [tokens, vocabulary].
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Model and text of a measurement.
#[derive(Debug, Args)]
pub(crate) struct SubjectArguments {
    /// Model to measure [default: the shipped model]
    ///
    /// A GGUF file, a folder or a pulled model's name.
    #[arg(short = 'm', long, value_name = "PATH", value_parser = crate::hub_args::model_path())]
    pub(crate) model: Option<PathBuf>,
    /// UTF-8 text to use [default: a shipped text]
    ///
    /// It is read, predicted, or made into prompts.
    #[arg(short = 'f', long, visible_alias = "file", value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
}

/// Options for making prompts from the text.
#[derive(Debug, Args)]
pub(crate) struct PromptArguments {
    /// Seed of the first document or prompt
    #[arg(short = 's', long, value_name = "N", value_parser = numbers::seed, default_value = "1", hide_short_help = true)]
    pub(crate) seed: u64,
    /// Wording of the prompts: auto, plain, ruler or a JSON file
    ///
    /// plain has the forms of the shipped model's training. auto is ruler if the model has a chat template, else
    /// plain.
    #[arg(long, value_name = "WORDING", default_value = "auto", hide_short_help = true)]
    pub(crate) wording: String,
}

/// Options for the output of results.
#[derive(Debug, Args)]
pub(crate) struct OutputArguments {
    /// Print the record as JSON
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print the rows as CSV
    #[arg(long, hide_short_help = true)]
    pub(crate) csv: bool,
    /// Folder for the record, for riffle eval report
    ///
    /// The record is DIR/NAME.json, and its pictures are SVG files next to it.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// NAME of the record [default: the measurement and its policies]
    #[arg(long, value_name = "NAME", requires = "out", hide_short_help = true)]
    pub(crate) name: Option<String>,
    /// Save finished parts in this file, and continue from it
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) resume: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct NeedleArguments {
    #[command(flatten)]
    pub(crate) subject: SubjectArguments,
    /// Document lengths in tokens
    #[arg(long, alias = "length", value_name = "N,N,…", value_delimiter = ',', value_parser = numbers::tokens, default_value = "4096,16384")]
    pub(crate) lengths: Vec<usize>,
    /// Number of depths at which facts are hidden
    ///
    /// They are spread evenly, from 1/(N+1) to N/(N+1) of the document.
    #[arg(long, value_name = "N", value_parser = numbers::samples, default_value = "10")]
    pub(crate) depths: usize,
    /// Documents of each kind and length
    ///
    /// Each has other facts.
    #[arg(long, alias = "documents", value_name = "N", value_parser = numbers::documents, default_value = "3")]
    pub(crate) samples: u64,
    /// Kinds of tasks: single, multi-key, multi-value, multi-query, cross-file
    ///
    /// single: one in the text. multi-key: one at every depth, one asked for. multi-value: three values of one name.
    /// multi-query: three names asked for. cross-file: source files instead of the text, and a line that needs a name
    /// from another file.
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', default_value = "multi-key")]
    pub(crate) kinds: Vec<String>,
    /// Positions of the question: end, middle, late, second-turn
    ///
    /// end: after the text. middle: the text continues after it. late: token by token, after the text was read.
    /// second-turn: after a first question.
    #[arg(long, value_name = "WHEN,…", value_delimiter = ',', default_value = "late")]
    pub(crate) ask: Vec<String>,
    /// Compress every document before late questions, e.g. echo:0.3
    ///
    /// The compression follows the reading of the document (see riffle session compress).
    #[arg(long, value_name = "METHOD:KEEP", hide_short_help = true)]
    pub(crate) compress: Option<String>,
    #[command(flatten)]
    pub(crate) prompts: PromptArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct RulerArguments {
    #[command(flatten)]
    pub(crate) subject: SubjectArguments,
    /// Tasks [default: all thirteen]
    #[arg(long, value_name = "TASK,…", value_delimiter = ',')]
    pub(crate) tasks: Vec<String>,
    /// Prompt lengths in tokens
    #[arg(long, alias = "length", value_name = "N,N,…", value_delimiter = ',', value_parser = numbers::tokens, default_value = "4096")]
    pub(crate) lengths: Vec<usize>,
    /// Prompts of each task and length
    #[arg(long, value_name = "N", value_parser = numbers::documents, default_value = "10")]
    pub(crate) samples: u64,
    #[command(flatten)]
    pub(crate) questions: QuestionArguments,
    /// Read the question token by token, under the decode policy
    ///
    /// The prefill policy reads the text before it.
    #[arg(long)]
    pub(crate) late: bool,
    #[command(flatten)]
    pub(crate) prompts: PromptArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct QuestionArguments {
    /// Questions for qa_1 and qa_2
    ///
    /// A JSON array of {"question", "answers", "documents"}.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    questions: Option<PathBuf>,
}

impl QuestionArguments {
    pub(crate) fn is_given(&self) -> bool {
        self.questions.is_some()
    }

    /// The questions of the file; empty without a file.
    pub(crate) fn read(&self) -> Result<Vec<GivenQuestion>, EvalError> {
        let questions = self.questions.as_deref().map(riffle_eval::read_questions);
        Ok(questions.transpose()?.unwrap_or_default())
    }
}

#[derive(Debug, Args)]
pub(crate) struct PerplexityArguments {
    #[command(flatten)]
    pub(crate) subject: SubjectArguments,
    /// Tokens of the text, from its start [default: all]
    #[arg(long, value_name = "N", value_parser = numbers::tokens)]
    pub(crate) tokens: Option<usize>,
    /// Tokens of a window
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "4096")]
    pub(crate) window: usize,
    /// Tokens from the start of one window to the start of the next
    ///
    /// Each window scores as many tokens at its end [default: the window, half of it with a decode policy]
    #[arg(long, value_name = "N", value_parser = numbers::tokens)]
    pub(crate) stride: Option<usize>,
    /// Policy to compare with dense attention; may be repeated
    ///
    /// POLICY, prefill=POLICY or decode=POLICY, also auto:SHARE and profiles, FILE.toml.
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Vec<String>,
    /// Share of the query-key pairs that every policy may read
    ///
    /// Policies are fitted to it on the first window [default: unchanged policies]
    #[arg(long, value_name = "SHARE", value_parser = numbers::share_above_zero)]
    pub(crate) budget: Option<f64>,
    /// Local budgets of h2o-chunk to compare, in tokens
    ///
    /// Each is combined with each of --ablate-heavy; a picture shows all.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = numbers::tokens_or_none, requires = "ablate_heavy", hide_short_help = true)]
    pub(crate) ablate_local: Vec<usize>,
    /// Heavy budgets of h2o-chunk to compare, in tokens
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = numbers::tokens_or_none, requires = "ablate_local", hide_short_help = true)]
    pub(crate) ablate_heavy: Vec<usize>,
    /// Maximum bytes of a temporary file with the dense predictions of one window
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, default_value = "8G", hide_short_help = true)]
    pub(crate) predictions_budget: u64,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    #[command(flatten)]
    pub(crate) subject: SubjectArguments,
    /// Policy to compare; may be repeated
    ///
    /// POLICY, prefill=POLICY or decode=POLICY [default: one of each kind and the baselines]
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Vec<String>,
    /// Tasks, such as needle:multi-key:late, vt or file:mine.jsonl
    ///
    /// needle:KIND:WHEN as in riffle eval needle, a task of riffle eval ruler, or a file of your own questions. Each
    /// line of the file is {"context": "…", "question": "…", "answers": ["…"]}; an answer counts if it contains any
    /// of the answers.
    #[arg(
        long,
        value_name = "TASK,…",
        value_delimiter = ',',
        default_value = "needle:multi-key:late,needle:multi-key:middle"
    )]
    pub(crate) tasks: Vec<String>,
    /// Document lengths in tokens [default: 4096]
    ///
    /// Files have their own lengths.
    #[arg(long, alias = "length", value_name = "N,N,…", value_delimiter = ',', value_parser = numbers::tokens)]
    pub(crate) lengths: Vec<usize>,
    /// Prompts or documents of a task [default: 3]
    ///
    /// Every line of a file is asked.
    #[arg(long, alias = "documents", value_name = "N", value_parser = numbers::documents)]
    pub(crate) samples: Option<u64>,
    /// Depths of needle tasks [default: 10]
    #[arg(long, value_name = "N", value_parser = numbers::samples)]
    pub(crate) depths: Option<usize>,
    /// Shares of the query-key pairs that every policy may read
    ///
    /// Policies are fitted to each share at each length [default: unchanged policies]. A policy that misses one by
    /// more than a tenth is marked: ▲ reads more, ▼ less. Shares are counted over the layers with a free choice of
    /// policy.
    #[arg(long, value_name = "SHARE,…", value_delimiter = ',', value_parser = numbers::share_above_zero)]
    pub(crate) budget: Vec<f64>,
    /// Read the common beginning of prompts once
    ///
    /// A policy reads the common beginning of its prompts once. All decode policies that do not learn share one dense
    /// reading of a document. Answers are the same and faster; times and shares of pairs count only new tokens.
    #[arg(long, hide_short_help = true)]
    pub(crate) share: bool,
    #[command(flatten)]
    pub(crate) questions: QuestionArguments,
    #[command(flatten)]
    pub(crate) prompts: PromptArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArguments {
    #[command(flatten)]
    pub(crate) subject: SubjectArguments,
    /// Tokens of the text [default: as many as fit in the context]
    #[arg(long, alias = "length", value_name = "N", value_parser = numbers::tokens)]
    pub(crate) lengths: Option<usize>,
    /// First tokens that count as sinks
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "4")]
    pub(crate) sinks: usize,
    /// Latest tokens that count as local
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "64")]
    pub(crate) local: usize,
    /// Keys of each head that count as heavy hitters
    #[arg(long, value_name = "N", value_parser = numbers::tokens, default_value = "64")]
    pub(crate) heavy: usize,
    /// Head of the attention map, e.g. 2:1
    ///
    /// [default: the head that keeps the least; among equals, the one with the farthest attention]
    #[arg(long, value_name = "LAYER:HEAD", value_parser = layer_and_head)]
    pub(crate) map: Option<(usize, usize)>,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// Folder of records, from --out of riffle eval and riffle bench
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Draw every record's pictures again
    #[arg(long)]
    pub(crate) pictures: bool,
    /// Print every record's tables as Markdown instead
    #[arg(long)]
    pub(crate) markdown: bool,
}

fn layer_and_head(text: &str) -> Result<(usize, usize), String> {
    let pair = text
        .split_once(':')
        .and_then(|(layer, head)| Some((layer.parse().ok()?, head.parse().ok()?)));
    pair.ok_or_else(|| "it must be a layer and a head, both counted from 0, e.g. 2:1".to_owned())
}
