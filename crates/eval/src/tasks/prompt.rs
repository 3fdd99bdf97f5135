//! A prompt and its answer.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Instant;

use riffle_engine::{CompressOptions, Engine, EngineError, GenerateOptions, PairCount, Session, StopReason};
use riffle_policy::PolicyRules;

use super::corpus::Corpus;
use crate::EvalError;

/// A document, the questions about it, and the expected answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// Everything before the first question.
    pub(crate) document: Vec<u32>,
    /// Questions, each following the previous answer.
    pub(crate) questions: Vec<Vec<u32>>,
    /// Texts that the answers must contain.
    pub(crate) expected: Vec<String>,
    /// Limit on the tokens of each answer.
    pub(crate) max_tokens: usize,
    /// Texts that end an answer.
    pub(crate) stops: Vec<String>,
}

impl Prompt {
    /// Tokens of the document, the questions and the longest answers.
    pub(crate) fn most_tokens(&self) -> usize {
        let questions = self.questions.iter().map(|question| question.len() + self.max_tokens);
        self.document.len() + questions.sum::<usize>()
    }
}

/// The answers and their cost.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Reply {
    /// Answers, one for each question.
    pub(crate) answers: Vec<String>,
    pub(crate) cost: Cost,
}

/// Time and pairs of reading and writing.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Cost {
    /// Prompts read from their beginning.
    pub(crate) prompts: usize,
    /// Seconds to read these prompts.
    pub(crate) prompt_s: f64,
    /// Pairs of all prompt tokens.
    pub(crate) prompt_pairs: PairCount,
    /// Tokens read or written one by one.
    pub(crate) steps: usize,
    /// Seconds of these steps.
    pub(crate) steps_s: f64,
    /// Pairs of these steps.
    pub(crate) step_pairs: PairCount,
}

/// How a question is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuestionPlace {
    /// In one prompt with the document. Whole batches in common with the previous prompt are not read again.
    WithDocument,
    /// Token by token, after the document.
    Late,
}

/// Receives the finished share of a reply; may request a stop.
pub(crate) type Watch<'a> = dyn FnMut(f64) -> ControlFlow<()> + 'a;

impl Corpus {
    pub(crate) fn prompt(
        &self,
        document: Vec<u32>,
        questions: Vec<Vec<u32>>,
        expected: Vec<String>,
        max_tokens: usize,
    ) -> Prompt {
        Prompt {
            document,
            questions,
            expected,
            max_tokens,
            stops: self.wording.stops.clone(),
        }
    }
}

impl Prompt {
    /// Tokens of the document and the first question.
    pub(crate) fn tokens(&self) -> usize {
        self.document.len() + self.questions[0].len()
    }
}

/// A session that reads one prompt after another.
pub(crate) struct Reader {
    session: Session,
    /// True if prompts share whole batches of a common beginning.
    shares: bool,
    /// True if policies learn from queries or drop tokens, so that forgetting a question does not undo it.
    learns: bool,
    /// Compression of the document before late questions; `None` keeps it whole.
    compress: Option<CompressOptions>,
    /// Policies for late questions; `None` uses the document's policies.
    answers_under: Option<PolicyRules>,
}

impl Reader {
    /// A reader with the engine's options. With `fresh` it reads every prompt from its beginning, so that times are
    /// complete.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        fresh: bool,
        compress: Option<&CompressOptions>,
    ) -> Result<Self, EvalError> {
        let options = engine.options();
        let mut specs = options.sequence.prefill.specs().chain(options.sequence.decode.specs());
        let learns = specs.any(|spec| !spec.info().traits.follows_from_keys);
        Ok(Self {
            session: Session::new(engine)?,
            // A selection of tokens follows from the end of a prompt.
            shares: !fresh
                && !learns
                && options.sequence.auto_target.is_none()
                && options.model.token_selection.is_none(),
            learns,
            compress: compress.cloned(),
            answers_under: None,
        })
    }

    /// Sets the decode policies for late questions; `None` uses the engine's.
    pub(crate) fn answer_under(&mut self, decode: Option<PolicyRules>) {
        self.answers_under = decode;
    }

    /// Reads a prompt and writes the answers.
    pub(crate) fn reply(
        &mut self,
        prompt: &Prompt,
        asked: QuestionPlace,
        watch: &mut Watch<'_>,
    ) -> Result<Reply, EvalError> {
        let engine = Arc::clone(self.session.engine());
        engine.check_context("a document with its questions and answers", prompt.most_tokens())?;
        let mut reply = Reply::default();
        let mut fork;
        let mut session = &mut self.session;
        match asked {
            QuestionPlace::WithDocument => {
                let mut whole = prompt.document.clone();
                whole.extend(&prompt.questions[0]);
                let batch = session.engine().options().machine.batch_tokens;
                // At least one page is read together with the question, so that policies for the prompt's end see it.
                let shared = session
                    .sequence()
                    .shared_with(&whole)
                    .min(whole.len().saturating_sub(256));
                let kept = if self.shares { shared / batch * batch } else { 0 };
                session.truncate(kept)?;
                read(session, &whole[kept..], kept == 0, &mut reply.cost, watch)?;
            }
            QuestionPlace::Late => {
                let document = &prompt.document;
                // A session that learns cannot forget tokens after the document, so it keeps none.
                let keeps_only_document = self.learns || self.compress.is_some();
                let forks = keeps_only_document || self.answers_under.is_some();
                let behind = session.tokens().len() > document.len();
                let shared = session.sequence().shared_with(document);
                if shared < document.len() || (keeps_only_document && behind) {
                    let batch = session.engine().options().machine.batch_tokens;
                    let kept = if self.shares && self.compress.is_none() {
                        shared.min(document.len().saturating_sub(256)) / batch * batch
                    } else {
                        0
                    };
                    session.truncate(kept)?;
                    read(session, &document[kept..], kept == 0, &mut reply.cost, watch)?;
                    if let Some(compress) = &self.compress {
                        session.compress(compress, &mut |progress| {
                            watch(progress.tokens_done / progress.tokens as f64)
                        })?;
                    }
                }
                if !keeps_only_document {
                    session.truncate(document.len())?;
                }
                if forks {
                    fork = match &self.answers_under {
                        Some(decode) => session.fork_under(decode.clone())?,
                        None => session.fork()?,
                    };
                    session = &mut fork;
                }
            }
        }
        for (number, question) in prompt.questions.iter().enumerate() {
            match asked {
                QuestionPlace::Late => step(session, question, &mut reply.cost, watch)?,
                QuestionPlace::WithDocument if number == 0 => {}
                QuestionPlace::WithDocument => read(session, question, false, &mut reply.cost, watch)?,
            }
            reply.answers.push(write(session, prompt, &mut reply.cost, watch)?);
        }
        Ok(reply)
    }

    /// Reads `tokens` as one prompt, except whole batches in common with the previous prompt. Returns the most likely
    /// next token at each of the `wanted` positions.
    pub(crate) fn likeliest(
        &mut self,
        tokens: &[u32],
        wanted: &[Range<usize>],
        watch: &mut Watch<'_>,
    ) -> Result<(Vec<u32>, Cost), EvalError> {
        let session = &mut self.session;
        let batch = session.engine().options().machine.batch_tokens;
        let first_wanted = wanted.first().map_or(0, |range| range.start);
        let kept = if self.shares {
            session.sequence().shared_with(tokens).min(first_wanted) / batch * batch
        } else {
            0
        };
        session.truncate(kept)?;
        let vocab = session.engine().model().config().vocab_size;
        let (start, before) = (Instant::now(), session.sequence().counts().pairs);
        let mut found = Vec::new();
        session.prefill_with_logits_at(
            &tokens[kept..],
            wanted,
            &mut |progress| watch(progress.tokens_done / progress.tokens as f64),
            &mut |_, logits| {
                found.extend(logits.chunks_exact(vocab).map(most_likely));
                ControlFlow::Continue(())
            },
        )?;
        let mut cost = Cost::default();
        if kept == 0 {
            cost.prompts = 1;
            cost.prompt_s = start.elapsed().as_secs_f64();
        }
        add_since(&mut cost.prompt_pairs, before, session.sequence().counts().pairs);
        Ok((found, cost))
    }
}

/// The token with the largest logit; ties go to the first.
pub(crate) fn most_likely(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

fn read(
    session: &mut Session,
    tokens: &[u32],
    whole: bool,
    cost: &mut Cost,
    watch: &mut Watch<'_>,
) -> Result<(), EvalError> {
    let (start, before) = (Instant::now(), session.sequence().counts().pairs);
    session.prefill(tokens, &mut |progress| {
        watch(progress.tokens_done / progress.tokens as f64)
    })?;
    if whole {
        cost.prompts += 1;
        cost.prompt_s += start.elapsed().as_secs_f64();
    }
    add_since(&mut cost.prompt_pairs, before, session.sequence().counts().pairs);
    Ok(())
}

/// Reads tokens one by one, under the decode policy.
fn step(session: &mut Session, tokens: &[u32], cost: &mut Cost, watch: &mut Watch<'_>) -> Result<(), EvalError> {
    let (start, before) = (Instant::now(), session.sequence().counts().pairs);
    for token in tokens {
        session.advance(*token)?;
        go_on(session, watch)?;
    }
    cost.steps += tokens.len();
    cost.steps_s += start.elapsed().as_secs_f64();
    add_since(&mut cost.step_pairs, before, session.sequence().counts().pairs);
    Ok(())
}

fn write(session: &mut Session, prompt: &Prompt, cost: &mut Cost, watch: &mut Watch<'_>) -> Result<String, EvalError> {
    let options = GenerateOptions {
        max_tokens: prompt.max_tokens,
        stops: prompt.stops.clone(),
        ..GenerateOptions::default()
    };
    let (start, before, tokens) = (
        Instant::now(),
        session.sequence().counts().pairs,
        session.tokens().len(),
    );
    let generation = session.generate(&options, &mut |_| watch(1.0))?;
    if generation.stop == StopReason::Interrupted {
        return Err(interrupted(session));
    }
    cost.steps += session.tokens().len() - tokens;
    cost.steps_s += start.elapsed().as_secs_f64();
    add_since(&mut cost.step_pairs, before, session.sequence().counts().pairs);
    Ok(generation.text.trim().to_owned())
}

pub(crate) fn go_on(session: &Session, watch: &mut Watch<'_>) -> Result<(), EvalError> {
    match watch(1.0) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(interrupted(session)),
    }
}

/// The error of a measurement that stopped at the session's position.
pub(crate) fn interrupted(session: &Session) -> EvalError {
    let tokens = session.tokens().len();
    EngineError::Interrupted { tokens, total: tokens }.into()
}

fn add_since(sum: &mut PairCount, before: PairCount, after: PairCount) {
    sum.read += after.read - before.read;
    sum.causal += after.causal - before.causal;
}

impl Cost {
    pub(crate) fn add(&mut self, other: &Self) {
        self.prompts += other.prompts;
        self.prompt_s += other.prompt_s;
        self.steps += other.steps;
        self.steps_s += other.steps_s;
        for (sum, more) in [
            (&mut self.prompt_pairs, other.prompt_pairs),
            (&mut self.step_pairs, other.step_pairs),
        ] {
            sum.read += more.read;
            sum.causal += more.causal;
        }
    }
}
