//! A conversation about documents.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use riffle_documents::Document;
use riffle_engine::{
    AttentionWatch, Engine, EngineError, EngineOptions, GenerateOptions, PrefillProgress, PromptText, Session,
    StopReason, fill_prefix, largest_text_bytes, prefix_cuts, store_prefix,
};
use riffle_kv::PrefixCache;
use riffle_policy::PolicyRules;
use serde::Serialize;

use crate::choice::{Need, choose};
use crate::passages::passages;
use crate::prompt::{Prompt, PromptMaker, Turn};
use crate::{AskError, Choice, Given, KeepOptions, Passage};

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
    /// Documents or a question are read.
    Reading(PrefillProgress),
    /// The answer's next piece of text.
    Text(&'a str),
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
    maker: PromptMaker,
    choice: Choice,
    turns: Vec<Turn>,
    /// The prompt of the first question, which the choice was made with.
    first: Option<(String, Prompt)>,
    keep: Option<PrefixCache>,
    not_kept: Option<String>,
    /// Notices for the user about the folder, not yet told.
    notices: Vec<String>,
    /// The model's layers whose attention is watched; none where tokens may be evicted.
    watched: Range<usize>,
}

type Observe<'a> = dyn FnMut(AskEvent<'_>) -> ControlFlow<()> + 'a;

impl Conversation {
    /// Loads a model and chooses how to run it for these documents. Nothing is read yet.
    ///
    /// # Errors
    /// [`AskError::TooLong`] where the documents do not fit; [`AskError::Engine`] for a model that cannot be loaded, and for what no choice
    /// makes fit in memory; [`AskError::Option`] for options that forget documents.
    pub fn open(model: impl AsRef<Path>, documents: Vec<Document>, options: AskOptions) -> Result<Self, AskError> {
        let wanted = &options.engine;
        refuse(wanted)?;
        let text_bytes = text_bytes(&documents, wanted)?;
        let loading = wanted
            .clone()
            // Weights and text have to fit in any case. The cache is planned when the tokens are known.
            .with_prompt(Some(PromptText {
                bytes: text_bytes,
                prompts: 1,
            }))
            .with_keeps_beginnings(options.keep.is_some());
        let engine = Engine::load(model, first_options(&loading))?;
        let maker = PromptMaker::new(&engine, &documents, options.system.clone())?;
        let question = match options.first_question.trim() {
            "" => "?".to_owned(),
            question => question.to_owned(),
        };
        let prompt = maker.prompt(&engine, &[], &question, &mut || ControlFlow::Continue(()))?;
        let need = Need {
            documents: documents.len(),
            document_tokens: prompt.document_tokens,
            prompt_tokens: prompt.tokens.len(),
            answer_tokens: options.answer_tokens,
        };
        let (engine, choice) = choose(&engine, &loading, options.given, need)?;
        let (keep, not_kept) = match &options.keep {
            Some(_) if !follows_from_keys(&engine) => (
                None,
                Some(format!(
                    "{} has to see the documents each time",
                    engine.options().sequence.decode
                )),
            ),
            Some(keep) => keep.open()?,
            None => (None, None),
        };
        Ok(Self {
            session: Session::new(&engine)?,
            watched: watched(&engine),
            engine,
            documents,
            maker,
            choice,
            turns: Vec::new(),
            first: Some((question, prompt)),
            keep,
            not_kept,
            notices: Vec::new(),
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
        self.not_kept.as_deref()
    }

    /// Notices for the user about the folder of kept text since the last call, a line each.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
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
        let prompt = match self.first.take() {
            Some((first, prompt)) if first == question => prompt,
            _ => {
                let poll = &mut || observe(AskEvent::Waiting);
                self.maker.prompt(&self.engine, &self.turns, question, poll)?
            }
        };
        self.check_room(&prompt)?;
        let found_tokens = self.find(&prompt)?;
        let reused_tokens = self.session.keep_shared(&prompt.tokens)?;
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
            question: question.to_owned(),
            answer: generation.text.clone(),
        });
        Ok(Answer {
            question: question.to_owned(),
            passages: passages(&self.documents, &prompt, &[&asked, &answered]),
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

    fn check_room(&self, prompt: &Prompt) -> Result<(), AskError> {
        let context = self.engine.plan().context_tokens;
        if prompt.tokens.len() + LEAST_ANSWER_TOKENS.min(context / 4) <= context {
            return Ok(());
        }
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

    /// Fills an empty session with the documents' pages from the cache.
    fn find(&mut self, prompt: &Prompt) -> Result<usize, AskError> {
        let Some(keep) = self.keep.as_ref().filter(|_| self.session.tokens().is_empty()) else {
            return Ok(0);
        };
        let filled = fill_prefix(self.session.sequence_mut(), keep, &prompt.tokens);
        self.notices.extend(keep.take_notice());
        match filled {
            Ok(_) => Ok(self.session.tokens().len()),
            Err(EngineError::Kv(error)) => {
                self.lose_keep(error.to_string());
                Ok(0)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the documents as far as they are not known, and keeps them.
    fn read_documents(&mut self, prompt: &Prompt, observe: &mut Observe<'_>) -> Result<(), AskError> {
        let first = self.session.tokens().len();
        let end = prompt.document_tokens.min(prompt.tokens.len().saturating_sub(1));
        if first >= end {
            return Ok(());
        }
        let cuts = match self.keep {
            Some(_) => prefix_cuts(self.session.sequence(), end),
            None => Vec::new(),
        };
        for cut in cuts.into_iter().filter(|cut| *cut < end).chain([end]) {
            let start = self.session.tokens().len();
            if cut <= start {
                continue;
            }
            let read = self.session.prefill(&prompt.tokens[start..cut], &mut |progress| {
                observe(AskEvent::Reading(PrefillProgress {
                    tokens_done: (start - first) as f64 + progress.tokens_done,
                    tokens: end - first,
                }))
            });
            self.store();
            read?;
        }
        Ok(())
    }

    /// Reads the rest of the prompt; what stands before the question is not watched.
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
                }))
            })
        };
        if question > held {
            read(&mut self.session, held..question)?;
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

    /// Writes the session's pages to the cache. A cache that cannot be written is not tried again.
    fn store(&mut self) {
        if let Some(keep) = &self.keep
            && let Err(error) = store_prefix(self.session.sequence(), keep)
        {
            self.lose_keep(error.to_string());
        }
    }

    fn lose_keep(&mut self, why: String) {
        self.keep = None;
        self.notices.push(format!("what was read could not be kept: {why}"));
        self.not_kept = Some(why);
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

/// Bytes of the text of documents, which has to fit in memory while it becomes tokens.
fn text_bytes(documents: &[Document], options: &EngineOptions) -> Result<u64, AskError> {
    // Names and the words around them take a little.
    let bytes = documents
        .iter()
        .map(|document| document.text.len() + document.name.len() + 16);
    let (bytes, limit_bytes) = (bytes.sum::<usize>() as u64, largest_text_bytes(options));
    if bytes > limit_bytes {
        Err(AskError::TooMuchText { bytes, limit_bytes })
    } else {
        Ok(bytes)
    }
}

/// Options for loading the model: with the least context, since the tokenizer must be loaded before the need is known.
fn first_options(options: &EngineOptions) -> EngineOptions {
    const LEAST_CONTEXT_TOKENS: usize = 64;
    options
        .clone()
        .with_context_tokens(Some(LEAST_CONTEXT_TOKENS))
        .with_prompt(None)
}

/// True if the policies can use pages that another process computed.
fn follows_from_keys(engine: &Engine) -> bool {
    let options = engine.options();
    options.sequence.prefill.follows_from_keys() && options.sequence.decode.follows_from_keys()
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
