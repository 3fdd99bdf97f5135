//! A conversation about documents.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use riffle_documents::Document;
use riffle_engine::{
    AttentionWatch, Engine, EngineError, EngineOptions, GenerateOptions, KeptText, PrefillProgress, PromptText,
    Session, StopReason,
};
use riffle_policy::PolicyRules;
use serde::Serialize;

use crate::opening::{Opened, first_options, text_bytes};
use crate::parts::{PartChooser, named};
use crate::passages::passages;
use crate::prompt::{Prompt, PromptMaker, Turn};
use crate::{Amount, AskError, Choice, Given, KeepOptions, Part, Passage, Scope};

/// Layers whose attention is watched, as shares of the model's depth: the middle layers. The first layers look at near
/// tokens, and the last ones make words of the facts found.
const WATCHED_FROM: f64 = 0.3;
const WATCHED_TO: f64 = 0.9;

/// The least tokens of an answer for which a question is begun.
const LEAST_ANSWER_TOKENS: usize = 16;

/// How a conversation is opened.
#[derive(Debug, Clone)]
pub struct AskOptions {
    /// Options of the engine. [`Conversation::open`] chooses the ones that [`AskOptions::given`] does not name.
    pub engine: EngineOptions,
    /// The options that the caller chose.
    pub given: Given,
    /// Instructions for the model in place of the usual ones, where its chat template takes them.
    pub system: Option<String>,
    /// How much of the documents is read.
    pub amount: Amount,
    /// Pages and chapters that are read alone; empty for all of the text.
    pub scopes: Vec<Scope>,
    /// Folder for the pages of documents; `None` keeps nothing.
    pub keep: Option<KeepOptions>,
    /// Tokens that an answer may take.
    pub answer_tokens: usize,
    /// The first question, for the plan; empty where it is not known yet.
    pub first_question: String,
}

impl Default for AskOptions {
    fn default() -> Self {
        Self {
            engine: EngineOptions::default(),
            given: Given::default(),
            system: None,
            amount: Amount::default(),
            scopes: Vec::new(),
            keep: None,
            answer_tokens: 256,
            first_question: String::new(),
        }
    }
}

/// Progress of a question's answer. Breaking ends the answer.
#[derive(Debug, Clone, Copy)]
pub enum AskEvent<'a> {
    /// The chat template is rendered.
    Waiting,
    /// The parts that the question reads are known.
    Begins(Beginning<'a>),
    /// Documents or a question are read.
    Reading(PrefillProgress),
    /// The answer's next piece of text.
    Text(&'a str),
}

/// The reading that a question needs before its answer.
#[derive(Debug, Clone, Copy)]
pub struct Beginning<'a> {
    /// The documents.
    pub documents: &'a [Document],
    /// Parts of them that stand before the question, in reading order: all of the text, or what the question needs.
    pub parts: &'a [Part],
    /// True if the parts were chosen because they share words with the question.
    pub is_chosen: bool,
    /// Tokens that are read now.
    pub tokens: usize,
    /// Tokens of the prompt that were read before.
    pub known_tokens: usize,
    /// Tokens of all the text that may be read.
    pub text_tokens: usize,
}

/// An answer, and the passages that it rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// The question.
    pub question: String,
    /// The answer's text.
    pub text: String,
    /// Why it ended.
    pub stop: StopReason,
    /// The parts of documents to which attention went most, the best first. Attention is a hint to the source, no
    /// proof.
    pub passages: Vec<Passage>,
    /// Parts of the documents that the question added to the conversation, in reading order; all of the text for the first question where
    /// nothing is left out.
    pub parts: Vec<Part>,
    /// Tokens of the prompt: documents, earlier turns, the question.
    pub prompt_tokens: usize,
    /// How many of them were read before, in this process or another.
    pub reused_tokens: usize,
    /// How many of these came from disk.
    pub found_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Milliseconds from the question to the first token of the answer.
    pub time_to_first_token_ms: f64,
    /// Tokens a second after the first; 0 for fewer than two.
    pub decode_tokens_per_s: f64,
}

/// A conversation about documents: the model, the documents, and the turns so far.
pub struct Conversation {
    engine: Arc<Engine>,
    session: Session,
    documents: Vec<Document>,
    /// The text that may be read.
    named: Vec<Part>,
    /// Chooses parts for each question; `None` if all of the text is read.
    chooser: Option<PartChooser>,
    maker: PromptMaker,
    choice: Choice,
    turns: Vec<Turn>,
    /// Attention of the words between the documents and a question: each question draws as much of it.
    usual: AttentionWatch,
    /// The prompt of the first question, where all of the text is read.
    first: Option<(String, Prompt)>,
    kept: KeptText,
    /// Why the policies of this conversation let nothing be kept.
    unkept: Option<String>,
    /// The model's layers whose attention is watched; none where tokens may be evicted.
    watched: Range<usize>,
}

/// Asked, while a template is rendered, whether to go on.
type Poll<'a> = dyn FnMut() -> ControlFlow<()> + 'a;

type Observe<'a> = dyn FnMut(AskEvent<'_>) -> ControlFlow<()> + 'a;

impl Conversation {
    /// Loads a model and chooses how to run it for these documents. Nothing is read yet.
    ///
    /// # Errors
    /// [`AskError::TooLong`] where all of the documents was asked for and does not fit; [`AskError::Place`] for pages and chapters that they
    /// do not have; [`AskError::Engine`] for a model that cannot be loaded, and for what no choice
    /// makes fit in memory; [`AskError::Option`] for options that forget documents.
    pub fn open(model: impl AsRef<Path>, documents: Vec<Document>, options: AskOptions) -> Result<Self, AskError> {
        let wanted = &options.engine;
        refuse(wanted)?;
        let named = named(&documents, &options.scopes)?;
        let loading = wanted
            .clone()
            // Weights and text have to fit in any case. The cache is planned when the tokens are known.
            .with_prompt(Some(PromptText {
                bytes: text_bytes(&documents, wanted)?,
                prompts: 1,
            }))
            .with_keeps_beginnings(options.keep.is_some());
        let engine = Engine::load(&model, first_options(&loading))?;
        let maker = PromptMaker::new(&engine, options.system.clone())?;
        let question = match options.first_question.trim() {
            "" => "?".to_owned(),
            question => question.to_owned(),
        };
        let asked = (&named[..], &*question);
        let prompt = maker.prompt(&engine, &documents, &[], asked, &mut || ControlFlow::Continue(()))?;
        let Opened {
            engine,
            choice,
            chooser,
        } = Opened::new((model.as_ref(), &engine), &loading, &options, &documents, &prompt)?;
        let kept = KeptText::open(options.keep.as_ref())?;
        let is_useless = options.keep.is_some() && kept.problem().is_none() && !kept.serves(engine.options());
        let unkept = is_useless.then(|| {
            format!(
                "{} has to see the documents each time",
                engine.options().sequence.decode
            )
        });
        Ok(Self {
            session: Session::new(&engine)?,
            watched: watched(&engine),
            engine,
            documents,
            named,
            first: chooser.is_none().then_some((question, prompt)),
            chooser,
            maker,
            choice,
            turns: Vec::new(),
            usual: AttentionWatch::default(),
            kept,
            unkept,
        })
    }

    /// The chosen options.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// The engine under the chosen options.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Why nothing is kept on disk, where that was asked for and is not possible.
    pub fn not_kept(&self) -> Option<&str> {
        self.unkept.as_deref().or(self.kept.problem())
    }

    /// Notices for the user about the folder of kept text since the last call, a line each.
    pub fn take_notices(&mut self) -> Vec<String> {
        self.kept.take_notices()
    }

    /// The documents.
    pub fn documents(&self) -> &[Document] {
        &self.documents
    }

    /// Answers a question behind the earlier ones. Tokens of earlier questions are not read again.
    ///
    /// # Errors
    /// [`AskError::EmptyQuestion`], [`AskError::ConversationFull`]; [`EngineError::Interrupted`] where `observe` breaks before the answer
    /// begins: what was read by then is kept. A break later ends the answer, and is its [`StopReason`].
    pub fn ask(
        &mut self,
        question: &str,
        generate: &GenerateOptions,
        observe: &mut Observe<'_>,
    ) -> Result<Answer, AskError> {
        let question = question.trim();
        if question.is_empty() {
            return Err(AskError::EmptyQuestion);
        }
        generate.sampling.validate()?;
        let start = Instant::now();
        let (parts, prompt) = self.prompt(question, &mut || observe(AskEvent::Waiting))?;
        self.check_room(&prompt)?;
        let found_tokens = self.kept.find(&mut self.session, &prompt.tokens)?;
        let reused_tokens = self.session.keep_shared(&prompt.tokens)?;
        let beginning = AskEvent::Begins(Beginning {
            documents: &self.documents,
            parts: &parts,
            is_chosen: self.chooser.is_some(),
            tokens: prompt.tokens.len() - reused_tokens,
            known_tokens: reused_tokens,
            text_tokens: self.choice.document_tokens,
        });
        if observe(beginning).is_break() {
            return Err(AskError::Engine(EngineError::Interrupted {
                tokens: 0,
                total: prompt.tokens.len(),
            }));
        }
        self.read_documents(&prompt, observe)?;
        let asked = self.read_question(&prompt, observe)?;
        let first_s = start.elapsed().as_secs_f64();
        self.session.sequence_mut().observers().watch(self.watched.clone());
        let generation = self
            .session
            .generate(generate, &mut |text| observe(AskEvent::Text(text)));
        let answered = self.session.sequence_mut().observers().take_watch().unwrap_or_default();
        let generation = generation?;
        let decode_s = start.elapsed().as_secs_f64() - first_s;
        let decoded = self.session.tokens().len() - prompt.tokens.len();
        self.turns.push(Turn {
            parts: parts.clone(),
            question: question.to_owned(),
            answer: generation.text.clone(),
        });
        Ok(Answer {
            question: question.to_owned(),
            passages: passages(&self.documents, &prompt, &self.usual, &[&asked, &answered]),
            parts,
            text: generation.text,
            stop: generation.stop,
            prompt_tokens: prompt.tokens.len(),
            reused_tokens,
            found_tokens,
            generated_tokens: generation.tokens.len(),
            time_to_first_token_ms: first_s * 1e3,
            decode_tokens_per_s: match decoded {
                0 => 0.0,
                decoded => decoded as f64 / decode_s,
            },
        })
    }

    /// The prompt of a question, and the parts of documents that the question adds to the conversation.
    fn prompt(&mut self, question: &str, poll: &mut Poll<'_>) -> Result<(Vec<Part>, Prompt), AskError> {
        if let Some((first, prompt)) = self.first.take()
            && first == question
        {
            return Ok((self.named.clone(), prompt));
        }
        let Some(chooser) = &self.chooser else {
            let parts = if self.turns.is_empty() {
                self.named.clone()
            } else {
                Vec::new()
            };
            let prompt = self.make_prompt(&parts, question, poll)?;
            return Ok((parts, prompt));
        };
        let earlier = self.turns.last().map(|turn| turn.question.clone());
        let held: Vec<&Part> = self.turns.iter().flat_map(|turn| &turn.parts).collect();
        if !held.is_empty() {
            let parts = chooser.further(question, earlier.as_deref(), &held);
            let prompt = self.make_prompt(&parts, question, poll)?;
            if self.has_room(&prompt) {
                return Ok((parts, prompt));
            }
        }
        // The parts of earlier questions leave, the turns themselves only where there is no room for them.
        self.turns.iter_mut().for_each(|turn| turn.parts.clear());
        for share in [1.0, 0.8, 0.6, 0.4, 0.2] {
            let Some(chooser) = &self.chooser else { break };
            let parts = chooser.first(question, earlier.as_deref(), share);
            let prompt = self.make_prompt(&parts, question, poll)?;
            if self.has_room(&prompt) {
                return Ok((parts, prompt));
            }
            let half = self.turns.len().div_ceil(2);
            self.turns.drain(..half);
        }
        let prompt = self.make_prompt(&[], question, poll)?;
        Ok((Vec::new(), prompt))
    }

    fn make_prompt(&self, parts: &[Part], question: &str, poll: &mut Poll<'_>) -> Result<Prompt, AskError> {
        let asked = (parts, question);
        self.maker
            .prompt(&self.engine, &self.documents, &self.turns, asked, poll)
    }

    fn has_room(&self, prompt: &Prompt) -> bool {
        let context = self.engine.plan().context_tokens;
        prompt.tokens.len() + LEAST_ANSWER_TOKENS.min(context / 4) <= context
    }

    fn check_room(&self, prompt: &Prompt) -> Result<(), AskError> {
        if self.has_room(prompt) {
            return Ok(());
        }
        let context = self.engine.plan().context_tokens;
        let held = self.session.tokens().len();
        Err(if self.turns.is_empty() {
            self.engine
                .check_context(
                    "the documents with the question",
                    prompt.tokens.len() + LEAST_ANSWER_TOKENS,
                )
                .err()
                .map_or(AskError::EmptyQuestion, AskError::Engine)
        } else {
            AskError::ConversationFull {
                held,
                needed: prompt.tokens.len() + LEAST_ANSWER_TOKENS - held.min(prompt.tokens.len()),
                context,
            }
        })
    }

    /// Reads the documents as far as they are not known, and keeps them.
    fn read_documents(&mut self, prompt: &Prompt, observe: &mut Observe<'_>) -> Result<(), AskError> {
        let end = prompt.document_tokens.min(prompt.tokens.len().saturating_sub(1));
        if self.session.tokens().len() >= end {
            return Ok(());
        }
        let mut observe = |progress| observe(AskEvent::Reading(progress));
        Ok(self.kept.read(&mut self.session, &prompt.tokens[..end], &mut observe)?)
    }

    /// Reads the rest of the prompt, and returns the attention of the question. The words before it show what every question looks at.
    fn read_question(&mut self, prompt: &Prompt, observe: &mut Observe<'_>) -> Result<AttentionWatch, AskError> {
        let held = self.session.tokens().len();
        let total = prompt.tokens.len() - held;
        let question = prompt.tokens_before_question.clamp(held, prompt.tokens.len());
        let mut read = |session: &mut Session, range: Range<usize>| {
            let before = range.start - held;
            session.prefill(&prompt.tokens[range], &mut |progress| {
                observe(AskEvent::Reading(PrefillProgress {
                    tokens_done: before as f64 + progress.tokens_done,
                    tokens: total,
                    ..progress
                }))
            })
        };
        if question > held {
            let behind_documents = held == prompt.document_tokens;
            if behind_documents {
                self.session.sequence_mut().observers().watch(self.watched.clone());
            }
            let outcome = read(&mut self.session, held..question);
            if behind_documents {
                self.usual = self.session.sequence_mut().observers().take_watch().unwrap_or_default();
            }
            outcome?;
        }
        if question == prompt.tokens.len() {
            return Ok(AttentionWatch::default());
        }
        self.session.sequence_mut().observers().watch(self.watched.clone());
        let outcome = read(&mut self.session, question..prompt.tokens.len());
        let watch = self.session.sequence_mut().observers().take_watch().unwrap_or_default();
        outcome?;
        Ok(watch)
    }
}

/// Refuses what forgets documents.
fn refuse(options: &EngineOptions) -> Result<(), AskError> {
    let refusals = [
        (options.sequence.window.is_some(), "window", "a window forgets them"),
        (
            options.model.token_selection.is_some(),
            "token_selection",
            "what one question leaves out the next may need",
        ),
    ];
    match refusals.into_iter().find(|(is_set, ..)| *is_set) {
        Some((_, option, why)) => Err(AskError::Option { option, why }),
        None => Ok(()),
    }
}

fn watched(engine: &Engine) -> Range<usize> {
    let evicts = |rules: &PolicyRules| rules.specs().any(|spec| spec.info().traits.evicts);
    if evicts(&engine.options().sequence.decode) || evicts(&engine.options().sequence.prefill) {
        return 0..0;
    }
    let layers = engine.model().config().layers;
    let first = (layers as f64 * WATCHED_FROM) as usize;
    first..((layers as f64 * WATCHED_TO).ceil() as usize).clamp(first + 1, layers.max(first + 1))
}
