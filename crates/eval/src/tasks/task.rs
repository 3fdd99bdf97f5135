//! Needle and RULER runs, cell by cell.

use std::sync::Arc;

use riffle_engine::{CompressOptions, Engine};

use super::corpus::Corpus;
use super::needle::NeedleTest;
use super::prompt::{QuestionPlace, Reader};
use super::ruler::{RulerTask, RulerTest};
use crate::EvalError;
use crate::cells::{Cell, StepWatch, run_cells};
use crate::journal::Journal;
use crate::record::{AskPlace, MOST_DEPTHS, NeedleKind, NeedleSample, NeedleTable, RulerTable, RunSettings};
use crate::room::check_context;

/// Options of a needle test.
#[derive(Debug, Clone, PartialEq)]
pub struct NeedleOptions {
    /// Tokens of the documents, facts included.
    pub lengths: Vec<usize>,
    /// Depths of the facts: 1/(n+1) … n/(n+1).
    pub depths: usize,
    /// Kinds of facts and questions.
    pub kinds: Vec<NeedleKind>,
    /// Places of the questions. Unsupported pairs of kind and place are skipped.
    pub places: Vec<AskPlace>,
    /// Documents of each kind and length, each with other facts.
    pub documents: u64,
    /// Seed of the first document.
    pub seed: u64,
    /// Compression of each document after reading and before late questions; `None` keeps it whole.
    pub compress: Option<CompressOptions>,
}

/// Options of a RULER test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulerOptions {
    /// Tasks.
    pub tasks: Vec<RulerTask>,
    /// Tokens of the prompts.
    pub lengths: Vec<usize>,
    /// Prompts of each task and length.
    pub samples: u64,
    /// Seed of the first prompt.
    pub seed: u64,
    /// True to read the question token by token after the rest, under the decode policy.
    pub late: bool,
}

/// Asks for needles at every length, depth, kind and place. The journal keeps finished cells.
///
/// # Errors
/// [`EvalError::Option`] for needles that do not fit; [`EvalError::Interrupted`]; any error of a run.
pub fn needle(
    engine: &Arc<Engine>,
    corpus: &Corpus,
    options: &NeedleOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<NeedleTable, EvalError> {
    if !(1..=MOST_DEPTHS).contains(&options.depths) || options.documents == 0 {
        return Err(EvalError::Option(format!(
            "--depths must be 1 to {MOST_DEPTHS} and --samples at least 1"
        )));
    }
    if options.compress.is_some() && options.places.iter().any(|place| *place != AskPlace::Late) {
        return Err(EvalError::Option(
            "--compress needs --ask late: only then is the whole document read before the question".to_owned(),
        ));
    }
    check_lengths(engine, &options.lengths)?;
    let mut cells = Vec::new();
    for &context_tokens in &options.lengths {
        for &kind in &options.kinds {
            for &place in options.places.iter().filter(|place| kind.can_be_asked(**place)) {
                for seed in (options.seed..).take(options.documents as usize) {
                    let depths = options.depths;
                    cells.push(Cell {
                        name: format!("{kind} {place} {context_tokens} tokens, {depths} depths, seed {seed}"),
                        tokens: if kind == NeedleKind::Single {
                            context_tokens.saturating_mul(depths)
                        } else {
                            context_tokens
                        },
                        task: NeedleTest {
                            kind,
                            place,
                            context_tokens,
                            depths,
                            seed,
                        },
                    });
                }
            }
        }
    }
    if cells.is_empty() {
        return Err(EvalError::Option(
            "nothing to ask: in mid-document only single, multi-key and cross-file can be asked for, in a second turn only multi-key"
                .to_owned(),
        ));
    }
    let mut reader = Reader::new(engine, false, options.compress.as_ref())?;
    let samples: Vec<Vec<NeedleSample>> = run_cells(&cells, journal, watch, &mut |test: &NeedleTest, watch| {
        Ok(test.run(corpus, &mut reader, watch)?.0)
    })?;
    Ok(NeedleTable {
        settings: RunSettings::from_engine(engine).compressed_by(options.compress.as_ref()),
        wording: corpus.wording().to_owned(),
        samples: samples.concat(),
    })
}

/// Runs RULER's tasks. The journal keeps finished prompts.
///
/// # Errors
/// The errors of [`needle`].
pub fn ruler(
    engine: &Arc<Engine>,
    corpus: &Corpus,
    options: &RulerOptions,
    journal: &mut Journal,
    watch: &mut StepWatch<'_>,
) -> Result<RulerTable, EvalError> {
    if options.tasks.is_empty() || options.lengths.is_empty() || options.samples == 0 {
        return Err(EvalError::Option(
            "nothing to ask: give at least one of --tasks and --lengths, and --samples of at least 1".to_owned(),
        ));
    }
    check_lengths(engine, &options.lengths)?;
    let asked = if options.late {
        QuestionPlace::Late
    } else {
        QuestionPlace::WithDocument
    };
    let mut cells = Vec::new();
    for &context_tokens in &options.lengths {
        for &task in &options.tasks {
            for seed in (options.seed..).take(options.samples as usize) {
                cells.push(Cell {
                    name: format!("{task} {context_tokens} tokens, seed {seed}"),
                    tokens: context_tokens,
                    task: RulerTest {
                        task,
                        context_tokens,
                        seed,
                        asked,
                    },
                });
            }
        }
    }
    let mut reader = Reader::new(engine, false, None)?;
    let samples = run_cells(&cells, journal, watch, &mut |test: &RulerTest, watch| {
        Ok(test.run(corpus, &mut reader, watch)?.0)
    })?;
    Ok(RulerTable {
        settings: RunSettings::from_engine(engine),
        wording: corpus.wording().to_owned(),
        samples,
    })
}

/// Refuses lengths that exceed the context, before a document is generated.
pub(crate) fn check_lengths(engine: &Engine, lengths: &[usize]) -> Result<(), EvalError> {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    check_context(engine, "the longest of --lengths", longest)
}
