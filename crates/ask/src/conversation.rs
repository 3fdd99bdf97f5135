//! A conversation about documents.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use riffle_documents::Document;
use riffle_engine::{
    AttentionWatch, Engine, EngineError, EngineOptions, GenerateOptions, KeptText, PrefillProgress, PromptText,
    Session, StopReason,
};
use riffle_policy::PolicyRules;
use serde::Serialize;

use crate::meaning::Meaning;
use crate::opening::{Opened, first_options, text_bytes};
use crate::parts::{PartChooser, named};
use crate::passages::passages;
use crate::prompt::{Prompt, PromptMaker, Turn};
use crate::{Amount, AskError, Choice, FoundBy, Given, KeepOptions, Part, Passage, Scope};

/// First watched layer as a share of the model's depth. The middle layers look up facts; earlier layers attend to
/// near tokens, and the last layers turn facts into words.
const WATCHED_FROM: f64 = 0.3;
const WATCHED_TO: f64 = 0.9;

/// Minimum free tokens for an answer, or the question is refused.
const LEAST_ANSWER_TOKENS: usize = 16;

/// Options of a conversation.
#[derive(Debug, Clone)]
pub struct AskOptions {
    /// Options of the engine. [`Conversation::open`] selects all options except those in [`AskOptions::given`].
    pub engine: EngineOptions,
    /// The options that the caller set.
    pub given: Given,
    /// Instructions that replace the default, if the chat template supports them.
    pub system: Option<String>,
    /// Amount of the documents to read.
    pub amount: Amount,
    /// Pages and chapters to read; empty for the whole text.
    pub scopes: Vec<Scope>,
    /// An embedding model, which finds parts by meaning too; unused if the whole text is read.
    pub embeddings: Option<PathBuf>,
    /// Folder for the pages of documents; `None` writes no pages.
    pub keep: Option<KeepOptions>,
    /// Limit on the tokens of an answer.
    pub answer_tokens: usize,
    /// The first question, for the plan; empty if unknown.
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
            embeddings: None,
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
    /// The embedding model reads the parts of the documents, once for all questions.
    Embedding {
        /// Parts that are done.
        done: usize,
        /// Parts without kept vectors.
        parts: usize,
    },
    /// The parts for the question are selected.
    Begins(Beginning<'a>),
    /// Documents or a question are read.
    Reading(PrefillProgress),
    /// The next piece of the answer.
    Text(&'a str),
}

/// The reading before a question's answer.
#[derive(Debug, Clone, Copy)]
pub struct Beginning<'a> {
    /// The documents.
    pub documents: &'a [Document],
    /// Parts before the question in reading order: the whole text, or the parts for the question.
    pub parts: &'a [Part],
    /// The ranking that selected the parts; `None` for the whole text.
    pub found_by: Option<FoundBy>,
    /// Tokens to read now.
    pub tokens: usize,
    /// Tokens of the prompt that were already read.
    pub known_tokens: usize,
    /// Tokens of the whole readable text.
    pub text_tokens: usize,
}

/// An answer with its source passages.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// The question.
    pub question: String,
    /// The answer's text.
    pub text: String,
    /// Reason for the end of the answer.
    pub stop: StopReason,
    /// The parts of documents with the most attention, best first. Attention is a hint to the source, not a proof.
    pub passages: Vec<Passage>,
    /// Parts of the documents that the question added to the conversation, in reading order. For the first question
    /// over a whole text, this is the whole text.
    pub parts: Vec<Part>,
    /// The ranking that selected the parts; `None` for the whole text.
    pub found_by: Option<FoundBy>,
    /// Tokens of the prompt: documents, earlier turns, the question.
    pub prompt_tokens: usize,
    /// Tokens that this or another process had already read.
    pub reused_tokens: usize,
    /// Reused tokens whose pages came from disk.
    pub found_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Milliseconds from the question to the first token of the answer.
    pub time_to_first_token_ms: f64,
    /// Tokens per second after the first; 0 for fewer than two.
    pub decode_tokens_per_s: f64,
}

/// A conversation about documents: the model, the documents, and the turns so far.
pub struct Conversation {
    engine: Arc<Engine>,
    session: Session,
    documents: Vec<Document>,
    /// The readable text.
    named: Vec<Part>,
    /// Selects parts for each question; `None` if the whole text is read.
    chooser: Option<PartChooser>,
    /// Ranks the parts by meaning too, if an embedding model is named.
    meaning: Option<Meaning>,
    maker: PromptMaker,
    choice: Choice,
    turns: Vec<Turn>,
    /// Attention of the tokens between the documents and a question, as the usual amount of every question.
    usual: AttentionWatch,
    /// The prompt of the first question, if the whole text is read.
    first: Option<(String, Prompt)>,
    kept: KeptText,
    /// The reason why the policies do not allow kept pages.
    unkept: Option<String>,
    /// The watched layers; empty if tokens may be evicted.
    watched: Range<usize>,
}

/// Called while a template renders; may stop it.
type Poll<'a> = dyn FnMut() -> ControlFlow<()> + 'a;

type Observe<'a> = dyn FnMut(AskEvent<'_>) -> ControlFlow<()> + 'a;

impl Conversation {
    /// Loads a model and selects the options for these documents. It reads no document yet.
    ///
    /// # Errors
    /// [`AskError::TooLong`] if the whole text is requested and does not fit; [`AskError::Place`] for missing pages
    /// and chapters; [`AskError::Engine`] for a model that does not load, or if nothing fits in memory;
    /// [`AskError::Option`] for options that drop tokens of documents; [`AskError::NoEmbeddings`] and
    /// [`AskError::NoRoom`] for an embedding model that cannot be used.
    pub fn open(model: impl AsRef<Path>, documents: Vec<Document>, options: AskOptions) -> Result<Self, AskError> {
        let wanted = &options.engine;
        refuse(wanted)?;
        let named = named(&documents, &options.scopes)?;
        let loading = wanted
            .clone()
            // Weights and text must always fit. The cache is planned once the number of tokens is known.
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
            meaning,
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
            meaning,
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

    /// The reason why pages are not kept on disk although the options request it.
    pub fn not_kept(&self) -> Option<&str> {
        self.unkept.as_deref().or(self.kept.problem())
    }

    /// Notices about the folder of kept pages since the last call, one line each.
    pub fn take_notices(&mut self) -> Vec<String> {
        self.kept.take_notices()
    }

    /// The documents.
    pub fn documents(&self) -> &[Document] {
        &self.documents
    }

    /// Answers a question after the earlier ones. Tokens of earlier questions stay read.
    ///
    /// # Errors
    /// [`AskError::EmptyQuestion`], [`AskError::ConversationFull`]; [`EngineError::Interrupted`] if `observe` breaks
    /// before the answer begins; the tokens read so far stay. A later break ends the answer with its [`StopReason`].
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
        let scores = self.scores(question, observe)?;
        let (parts, prompt) = self.prompt(question, scores, &mut || observe(AskEvent::Waiting))?;
        let found_by = self.found_by();
        self.check_room(&prompt)?;
        let found_tokens = self.kept.find(&mut self.session, &prompt.tokens)?;
        let reused_tokens = self.session.keep_shared(&prompt.tokens)?;
        let beginning = AskEvent::Begins(Beginning {
            documents: &self.documents,
            parts: &parts,
            found_by,
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
            found_by,
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

    fn found_by(&self) -> Option<FoundBy> {
        self.chooser.as_ref().map(|_| match self.meaning {
            Some(_) => FoundBy::WordsAndMeaning,
            None => FoundBy::Words,
        })
    }

    /// A score for each part of the documents; empty if the whole text is read.
    fn scores(&mut self, question: &str, observe: &mut Observe<'_>) -> Result<Vec<f64>, AskError> {
        let Some(chooser) = &self.chooser else {
            return Ok(Vec::new());
        };
        let earlier = self.turns.last().map(|turn| turn.question.as_str());
        let words = chooser.word_scores(question, earlier);
        let Some(meaning) = &mut self.meaning else {
            return Ok(words);
        };
        let texts = (&self.documents[..], chooser.parts());
        let mut observe = |done, parts| observe(AskEvent::Embedding { done, parts });
        let likeness = meaning.scores((question, earlier), texts, &mut self.kept, &mut observe)?;
        Ok(chooser.joined(&words, &likeness))
    }

    /// The prompt of a question, and the parts of documents that it adds to the conversation.
    fn prompt(
        &mut self,
        question: &str,
        scores: Vec<f64>,
        poll: &mut Poll<'_>,
    ) -> Result<(Vec<Part>, Prompt), AskError> {
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
        let held: Vec<&Part> = self.turns.iter().flat_map(|turn| &turn.parts).collect();
        if !held.is_empty() {
            let parts = chooser.further(scores.clone(), &held);
            let prompt = self.make_prompt(&parts, question, poll)?;
            if self.has_room(&prompt) {
                return Ok((parts, prompt));
            }
        }
        // The parts of earlier questions are dropped first; their turns are dropped only if space is still missing.
        self.turns.iter_mut().for_each(|turn| turn.parts.clear());
        for share in [1.0, 0.8, 0.6, 0.4, 0.2] {
            let Some(chooser) = &self.chooser else { break };
            let parts = chooser.first(&scores, share);
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

    /// Reads the unread documents and keeps their pages.
    fn read_documents(&mut self, prompt: &Prompt, observe: &mut Observe<'_>) -> Result<(), AskError> {
        let end = prompt.document_tokens.min(prompt.tokens.len().saturating_sub(1));
        if self.session.tokens().len() >= end {
            return Ok(());
        }
        let mut observe = |progress| observe(AskEvent::Reading(progress));
        Ok(self.kept.read(&mut self.session, &prompt.tokens[..end], &mut observe)?)
    }

    /// Reads the rest of the prompt, and returns the attention of the question. The tokens before the question give
    /// the usual attention.
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
            let is_at_documents_end = held == prompt.document_tokens;
            if is_at_documents_end {
                self.session.sequence_mut().observers().watch(self.watched.clone());
            }
            let outcome = read(&mut self.session, held..question);
            if is_at_documents_end {
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

/// Refuses options that drop tokens of documents.
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
