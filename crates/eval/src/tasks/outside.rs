//! Tasks of other crates.

use std::fmt;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::corpus::Corpus;
use super::filler::{Fact, Filler, room};
use super::prompt::{Cost, Prompt, QuestionPlace, Reader, Watch};
use super::score::match_all;
use super::wording::Ask;
use crate::EvalError;

/// A task from another crate, for [`CompareTask::outside`](crate::CompareTask::outside).
///
/// ```
/// use riffle_eval::{Ask, Corpus, EvalError, HiddenFact, Task, TaskPrompt};
///
/// /// Who keeps the lamp?
/// struct Lamp;
///
/// impl Task for Lamp {
///     fn name(&self) -> &str {
///         "lamp"
///     }
///
///     fn prompt(&self, corpus: &Corpus, context_tokens: usize, seed: u64) -> Result<TaskPrompt, EvalError> {
///         let keeper = &corpus.words()[seed as usize % corpus.words().len()];
///         let facts = [HiddenFact::new(0.5, format!("The lamp is kept by {keeper}."))];
///         let ask = Ask {
///             question: "Who keeps the lamp?".to_owned(),
///             lead: " The lamp is kept by".to_owned(),
///         };
///         corpus.hide("", &facts, &ask, vec![keeper.clone()], (context_tokens, seed))
///     }
/// }
/// ```
pub trait Task: Send + Sync {
    /// Name of the task in tables and records: unique, in lower case, without spaces.
    fn name(&self) -> &str;

    /// A prompt of at most `context_tokens` tokens, determined by the corpus and the seed. Most tasks use
    /// [`Corpus::hide`].
    ///
    /// # Errors
    /// [`EvalError::Option`] for a length that is too short for the task.
    fn prompt(&self, corpus: &Corpus, context_tokens: usize, seed: u64) -> Result<TaskPrompt, EvalError>;

    /// The score of an answer, from 0 to 1. The default is the share of the expected texts in the answer, ignoring
    /// case.
    fn score(&self, answer: &str, expected: &[String]) -> f64 {
        match_all(answer, expected)
    }
}

/// A document, a question about it, and the expected answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskPrompt {
    /// Tokens of everything before the question.
    pub document: Vec<u32>,
    /// Tokens of the question and of the answer's beginning.
    pub question: Vec<u32>,
    /// Texts that the answer must contain.
    pub expected: Vec<String>,
    /// Maximum number of tokens of the answer.
    pub max_tokens: usize,
    /// Texts that end the answer, besides the model's end tokens.
    pub stops: Vec<String>,
}

impl TaskPrompt {
    /// A prompt with an answer of at most 32 tokens.
    pub fn new(document: Vec<u32>, question: Vec<u32>, expected: Vec<String>) -> Self {
        Self {
            document,
            question,
            expected,
            max_tokens: 32,
            stops: Vec::new(),
        }
    }

    /// Sets the limit on the answer's tokens.
    pub fn with_max_tokens(mut self, max_tokens: usize) -> Self {
        self.max_tokens = max_tokens;
        self
    }

    /// Sets the texts that end the answer.
    pub fn with_stops(mut self, stops: Vec<String>) -> Self {
        self.stops = stops;
        self
    }
}

/// A line that [`Corpus::hide`] inserts into the text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HiddenFact {
    /// Depth of the line: 0 is the start of the document, 1 its end.
    pub depth: f64,
    /// Text of the line.
    pub text: String,
}

impl HiddenFact {
    /// A line at a depth from 0 to 1.
    pub fn new(depth: f64, text: impl Into<String>) -> Self {
        Self {
            depth,
            text: text.into(),
        }
    }
}

impl Corpus {
    /// Plain words of the text, at least 32, of one token each if the text has enough of them.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// A prompt of exactly `context_tokens` tokens: `before`, a section of the text with the facts, and the question.
    /// The seed chooses the section. The prompt has the model's chat template if the wording requests it.
    ///
    /// # Errors
    /// [`EvalError::Option`] if facts and question leave no space for a text.
    pub fn hide(
        &self,
        before: &str,
        facts: &[HiddenFact],
        ask: &Ask,
        expected: Vec<String>,
        (context_tokens, seed): (usize, u64),
    ) -> Result<TaskPrompt, EvalError> {
        let mut lines = Vec::with_capacity(facts.len());
        for fact in facts {
            lines.push(Fact {
                depth: fact.depth.clamp(0.0, 1.0),
                tokens: self.encode(&format!("\n{}\n", fact.text))?,
            });
        }
        let frame = self.frame(before, ask, &mut |_| std::ops::ControlFlow::Continue(()))?;
        let stated: usize = lines.iter().map(|line| line.tokens.len()).sum();
        let taken = frame.head.len() + frame.tail.len() + stated;
        let room = room(context_tokens, taken, "the task")?;
        let start = ChaCha8Rng::seed_from_u64(seed).random_range(0..self.hay.len());
        let (document, _) = Filler::text(&self.hay, start, room).assemble(&frame.head, &lines);
        Ok(TaskPrompt::new(document, frame.tail, expected).with_stops(self.wording.stops.clone()))
    }
}

/// A task of another crate, identified by its name.
#[derive(Clone, Copy)]
pub struct OutsideTask {
    task: &'static dyn Task,
}

impl OutsideTask {
    pub(crate) fn new(task: &'static dyn Task) -> Self {
        Self { task }
    }

    /// Reads the prompt and scores the answer.
    pub(crate) fn run(
        self,
        corpus: &Corpus,
        reader: &mut Reader,
        (context_tokens, seed, asked): (usize, u64, QuestionPlace),
        watch: &mut Watch<'_>,
    ) -> Result<(f64, Cost), EvalError> {
        let prompt = self.task.prompt(corpus, context_tokens, seed)?;
        let prompt = Prompt {
            document: prompt.document,
            questions: vec![prompt.question],
            expected: prompt.expected,
            max_tokens: prompt.max_tokens,
            stops: prompt.stops,
        };
        let reply = reader.reply(&prompt, asked, watch)?;
        let score = self.task.score(&reply.answers.join("\n"), &prompt.expected);
        if (0.0..=1.0).contains(&score) {
            Ok((score, reply.cost))
        } else {
            Err(EvalError::Option(format!(
                "task {self} gave a score of {score}: scores are from 0 to 1"
            )))
        }
    }
}

impl PartialEq for OutsideTask {
    fn eq(&self, other: &Self) -> bool {
        self.task.name() == other.task.name()
    }
}

impl Eq for OutsideTask {}

impl fmt::Display for OutsideTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.task.name())
    }
}

impl fmt::Debug for OutsideTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutsideTask({self})")
    }
}
