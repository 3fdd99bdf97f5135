//! A conversation: its messages, answers and kept pages.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use riffle_engine::{
    Engine, EngineError, GenerateOptions, KeepOptions, KeptText, PrefillProgress, RunEvent, SamplingOptions, Sequence,
    Session, StopReason,
};
use riffle_policy::PolicyRules;

use crate::branch::{Branch, Document, Turn};
use crate::error::ChatError;
use crate::prompt::{prompt_text, text_before_message, with_documents};
use crate::report::{BranchReport, ChatReport, TurnReport};
use crate::transcript::Mark;

/// Limit on the branches of a conversation, for
/// [`MachineOptions::sequences`](riffle_engine::MachineOptions::sequences).
pub const MOST_BRANCHES: usize = 4;

/// Receives progress and text; may break to stop.
pub type Observe<'a> = dyn FnMut(RunEvent<'_>) -> ControlFlow<()> + 'a;

/// Options of a conversation.
#[derive(Debug, Clone, Default)]
pub struct ChatOptions {
    /// Instructions for the model.
    pub system: Option<String>,
    /// Sampling and end of the answers; `None` uses the model's recommendation.
    pub generate: Option<GenerateOptions>,
    /// Folder for the pages of documents; `None` writes no pages.
    pub keep: Option<KeepOptions>,
}

/// A text attached to the next message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attached {
    /// Newly read tokens; zero if the text is read together with the message.
    pub read_tokens: usize,
    /// Tokens whose pages came from disk.
    pub found_tokens: usize,
}

/// Effect of a change of policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyChange {
    /// Tokens of the current branch that the next message must read again.
    pub again_tokens: usize,
}

/// A conversation with a model; each turn reads only new tokens.
pub struct Conversation {
    pub(crate) engine: Arc<Engine>,
    pub(crate) generate: GenerateOptions,
    pub(crate) system: Option<String>,
    pub(crate) branch: Branch,
    /// The other branches.
    pub(crate) others: Vec<Branch>,
    /// Number of branches created so far.
    pub(crate) branches_made: usize,
    kept: KeptText,
}

/// Token counts of a message's reading.
struct Reading {
    prompt_tokens: usize,
    kept_tokens: usize,
    /// Reused tokens whose pages came from disk.
    found_tokens: usize,
    again_tokens: usize,
    /// Tokens of earlier turns that were already read.
    held_tokens: usize,
    seconds: f64,
}

impl Conversation {
    /// Creates an empty conversation.
    ///
    /// # Errors
    /// [`ChatError::Option`] if the engine's options drop tokens that later turns need; [`ChatError::Engine`] for
    /// instructions without a chat template, for a model without a tokenizer, or for sampling options out of range;
    /// [`ChatError::Keep`] if the folder of kept pages is required and unusable.
    pub fn new(engine: Arc<Engine>, options: ChatOptions) -> Result<Self, ChatError> {
        if engine.options().model.token_selection.is_some() {
            return Err(ChatError::Option(
                "`token_selection` serves one question at the end of a text, and a conversation has several: leave it out",
            ));
        }
        engine.tokenizer()?;
        let recommended = || GenerateOptions {
            sampling: SamplingOptions::recommended(engine.generation_defaults()),
            ..GenerateOptions::default()
        };
        let generate = options.generate.unwrap_or_else(recommended);
        generate.sampling.validate()?;
        let mut conversation = Self {
            engine,
            generate,
            system: None,
            branch: Branch::named("1"),
            others: Vec::new(),
            branches_made: 1,
            kept: KeptText::open(options.keep.as_ref()).map_err(ChatError::Keep)?,
        };
        conversation.set_system(options.system)?;
        Ok(conversation)
    }

    /// The engine of the conversation.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Sampling and end of the answers.
    pub fn generate_options(&self) -> &GenerateOptions {
        &self.generate
    }

    /// Changes the sampling of further answers.
    ///
    /// # Errors
    /// [`ChatError::Engine`] for sampling options out of range; the old options stay.
    pub fn set_generate_options(&mut self, options: GenerateOptions) -> Result<(), ChatError> {
        options.sampling.validate()?;
        self.generate = options;
        Ok(())
    }

    /// Instructions for the model.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Changes the instructions. They are at the beginning, so the next message reads everything again.
    ///
    /// # Errors
    /// [`ChatError::Engine`] if the model has no chat template or its template takes no instructions; the old ones
    /// stay.
    pub fn set_system(&mut self, system: Option<String>) -> Result<(), ChatError> {
        // A template only reports unsupported instructions when it is rendered.
        prompt_text(&self.engine, system.as_deref(), &[], "?", &mut || {
            ControlFlow::Continue(())
        })?;
        if self.system != system {
            self.branch.prompt_end = None;
            self.system = system;
        }
        Ok(())
    }

    /// The reason why documents are not kept on disk although the options request it.
    pub fn not_kept(&self) -> Option<&str> {
        self.kept.problem()
    }

    /// Notices about the folder of kept pages since the last call, one line each.
    pub fn take_notices(&mut self) -> Vec<String> {
        self.kept.take_notices()
    }

    /// The turns of the current branch.
    pub fn turns(&self) -> &[Turn] {
        &self.branch.turns
    }

    /// Documents for the next message.
    pub fn attached(&self) -> &[Document] {
        &self.branch.attached
    }

    /// Attaches a text to the next message, and reads it at once if the policies do not need the message. At the
    /// beginning of a conversation, pages of the text are loaded from and saved to the folder of kept pages.
    ///
    /// # Errors
    /// [`ChatError::ContextFull`] and errors of reading; the text is then not attached. If `observe` breaks, the text
    /// stays attached, and its rest is read with the message.
    pub fn attach(&mut self, document: Document, observe: &mut Observe<'_>) -> Result<Attached, ChatError> {
        self.branch.attached.push(document);
        let read = self.read_attached(observe);
        if read.as_ref().is_err_and(|error| !error.is_interrupted()) {
            self.branch.attached.pop();
        }
        read
    }

    /// Reads a message and writes the answer; `observe` receives it.
    ///
    /// # Errors
    /// [`ChatError::EmptyMessage`]; [`ChatError::ContextFull`] before any reading; errors of reading and writing. The
    /// conversation is then unchanged, and [`Self::retry`] asks again. If `observe` breaks in an answer, the text so
    /// far is the answer.
    pub fn ask(&mut self, message: &str, observe: &mut Observe<'_>) -> Result<TurnReport, ChatError> {
        if message.trim().is_empty() {
            return Err(ChatError::EmptyMessage);
        }
        self.answer(message.to_owned(), 0, observe)
    }

    /// Changes the policies. Tokens stay read if only the decode policy changes and both decode policies depend only
    /// on keys.
    ///
    /// # Errors
    /// [`ChatError::Engine`] for policies that the model, the memory or the phase does not allow; the old policies
    /// stay.
    pub fn set_policies(
        &mut self,
        prefill: Option<PolicyRules>,
        decode: Option<PolicyRules>,
    ) -> Result<PolicyChange, ChatError> {
        let now = self.engine.options();
        if now.sequence.window.is_some() {
            return Err(ChatError::Option(
                "with `window` the window decides what is read: start without it to choose policies",
            ));
        }
        let prefill_stays = prefill.as_ref().is_none_or(|prefill| *prefill == now.sequence.prefill);
        let options = now
            .clone()
            .with_auto_target(now.sequence.auto_target.filter(|_| prefill_stays))
            .with_prefill(prefill.unwrap_or_else(|| now.sequence.prefill.clone()))
            .with_decode(decode.unwrap_or_else(|| now.sequence.decode.clone()))
            // The engine was planned before it had pages.
            .with_context_tokens(Some(self.engine.plan().context_tokens))
            .with_memory_budget_bytes(Some(self.engine.plan().available_bytes));
        options.validate()?;
        let decode = options.sequence.decode.clone();
        self.engine = self.engine.with_options(options)?;
        let mut again_tokens = self.branch.held_tokens();
        let branches = self.others.iter_mut().chain([&mut self.branch]);
        for branch in branches {
            let fork = match &mut branch.session {
                Some(session) if prefill_stays => session.fork_under(decode.clone()).ok(),
                _ => None,
            };
            branch.prompt_end = None;
            branch.session = fork;
        }
        again_tokens -= self.branch.held_tokens();
        Ok(PolicyChange { again_tokens })
    }

    /// Report of the conversation's branches, tokens, memory and policies.
    pub fn report(&self) -> ChatReport {
        let session = self.branch.session.as_ref();
        let usage = session.map(|session| session.sequence().usage()).unwrap_or_default();
        let options = self.engine.options();
        let branches = self.others.iter().chain([&self.branch]);
        let mut branches: Vec<BranchReport> = branches
            .map(|branch| BranchReport {
                name: branch.name.clone(),
                turns: branch.turns.len(),
                is_current: branch.name == self.branch.name,
            })
            .collect();
        branches.sort_by(|left, right| left.name.cmp(&right.name));
        ChatReport {
            branches,
            turns: self.branch.turns.len(),
            tokens: self.branch.held_tokens(),
            context_tokens: options
                .sequence
                .window
                .is_none()
                .then_some(self.engine.plan().context_tokens),
            last: self.branch.last.clone(),
            device_bytes: usage.bytes_by_tier.device
                + session.map_or(0, |session| session.sequence().counts().device.page_bytes),
            ram_bytes: usage.bytes_by_tier.ram,
            disk_bytes: usage.bytes_by_tier.disk,
            shared_bytes: usage.shared_bytes,
            pairs: session
                .map(|session| session.sequence().counts().pairs)
                .unwrap_or_default(),
            audit: session.and_then(|session| session.sequence().audit()),
            prefill_policy: match options.sequence.auto_target {
                Some(target) => format!("auto to {target}"),
                None => options.sequence.prefill.to_string(),
            },
            decode_policy: options.sequence.decode.to_string(),
            plan: self.engine.plan().clone(),
        }
    }

    /// Reads the message and writes its answer number `retries + 1`.
    pub(crate) fn answer(
        &mut self,
        message: String,
        retries: u64,
        observe: &mut Observe<'_>,
    ) -> Result<TurnReport, ChatError> {
        let begin = self.branch.transcript.end();
        self.branch.unanswered = Some(message.clone());
        let has_template = self.engine.chat_template().is_some();
        let content = with_documents(&self.branch.attached, &message, has_template);
        let text = prompt_text(
            &self.engine,
            self.system.as_deref(),
            &self.branch.turns,
            &content,
            &mut || observe(RunEvent::Waiting),
        )?;
        let start = Instant::now();
        let add_special = !has_template;
        let tokens = self
            .branch
            .transcript
            .tokens_of(self.engine.tokenizer()?, &text, add_special)?;
        // The answer needs at least one token.
        let room = self
            .engine
            .check_context("the conversation with this message", tokens.len() + 1);
        if room.is_err() {
            self.branch.unanswered = None;
        }
        room?;
        let reading = self.read(&tokens, begin, start, observe)?;
        self.branch.transcript.become_prompt(text.into_text(), tokens);
        let session = self.session()?;
        let checkpoint = session.sequence_mut().checkpoint()?;
        self.branch.prompt_end = Some(checkpoint);
        let turn = Turn {
            documents: self.branch.attached.clone(),
            message,
            answer: String::new(),
            begin,
            held_tokens: reading.held_tokens,
            prompt: self.branch.transcript.end(),
            retries,
        };
        let report = self.write(turn, &reading, observe)?;
        self.branch.attached.clear();
        Ok(report)
    }

    /// Writes the answer to a turn whose prompt is already read, and adds the turn.
    pub(crate) fn write_again(&mut self, turn: Turn, observe: &mut Observe<'_>) -> Result<TurnReport, ChatError> {
        let reading = Reading {
            prompt_tokens: turn.prompt.tokens,
            kept_tokens: turn.prompt.tokens,
            found_tokens: 0,
            again_tokens: 0,
            held_tokens: turn.held_tokens,
            seconds: 0.0,
        };
        self.write(turn, &reading, observe)
    }

    fn write(&mut self, mut turn: Turn, reading: &Reading, observe: &mut Observe<'_>) -> Result<TurnReport, ChatError> {
        let mut options = self.generate.clone();
        options.sampling.seed = options.sampling.seed.wrapping_add(turn.retries);
        let start = Instant::now();
        let session = self.session()?;
        let mut generation = session.generate(&options, &mut |text| observe(RunEvent::Text(text)))?;
        let seconds = start.elapsed().as_secs_f64();
        let decoded = session.tokens().len().saturating_sub(reading.prompt_tokens);
        let generated_tokens = generation.tokens.len();
        if generation.stop == StopReason::EndOfText {
            generation.tokens.pop();
        }
        let (branch, tokenizer) = (&mut self.branch, self.engine.tokenizer()?);
        branch
            .transcript
            .add_answer(tokenizer, &generation.text, &generation.tokens)?;
        turn.answer = generation.text;
        branch.turns.push(turn);
        branch.unanswered = None;
        let read_tokens = reading.prompt_tokens - reading.kept_tokens;
        let report = TurnReport {
            prompt_tokens: reading.prompt_tokens,
            reused_tokens: reading.kept_tokens,
            found_tokens: reading.found_tokens,
            read_tokens,
            again_tokens: reading.again_tokens,
            generated_tokens,
            stop: generation.stop,
            time_to_first_token_ms: reading.seconds * 1e3,
            prefill_tokens_per_s: per_second(read_tokens, reading.seconds),
            decode_tokens_per_s: per_second(decoded, seconds),
        };
        branch.last = Some(report.clone());
        Ok(report)
    }

    /// Brings the session to exactly `tokens`. The tokens before `begin` belong to earlier turns.
    fn read(
        &mut self,
        tokens: &[u32],
        begin: Mark,
        start: Instant,
        observe: &mut Observe<'_>,
    ) -> Result<Reading, ChatError> {
        self.branch.prompt_end = None;
        self.session()?;
        let is_about_documents = !self.branch.attached.is_empty();
        let session = self
            .branch
            .session
            .as_mut()
            .ok_or(ChatError::Engine(EngineError::EmptyPrompt))?;
        let held_tokens = session.tokens().len().min(begin.tokens);
        let found_tokens = if is_about_documents {
            self.kept.find(session, tokens)?
        } else {
            0
        };
        let kept_tokens = keep(session, tokens)?;
        let mut read = |progress: PrefillProgress| observe(RunEvent::Prefill(progress));
        // A message after already read documents is too short to keep on disk.
        let page_tokens = self.engine.options().cache.page_tokens;
        if is_about_documents && tokens.len() - kept_tokens >= page_tokens {
            self.kept.read(session, tokens, &mut read)?;
        } else if kept_tokens < tokens.len() {
            session.prefill(&tokens[kept_tokens..], &mut read)?;
        }
        Ok(Reading {
            prompt_tokens: tokens.len(),
            kept_tokens,
            found_tokens,
            again_tokens: held_tokens.saturating_sub(kept_tokens),
            held_tokens,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// Reads the text before the next message, up to tokens that a message could change.
    fn read_attached(&mut self, observe: &mut Observe<'_>) -> Result<Attached, ChatError> {
        let options = self.engine.options();
        if !options.sequence.decode.follows_from_keys() || !options.sequence.prefill.follows_from_keys() {
            return Ok(Attached::default());
        }
        let (branch, system) = (&self.branch, self.system.as_deref());
        let begin = branch.transcript.end();
        let text = text_before_message(&self.engine, system, &branch.turns, &branch.attached, &mut || {
            observe(RunEvent::Waiting)
        })?;
        let Some(text) = text else {
            return Ok(Attached::default());
        };
        // The last word of the text may become another token when the message follows.
        let tokenizer = self.engine.tokenizer()?;
        let add_special = self.engine.chat_template().is_none();
        let with = |message: &str| {
            let mut text = text.clone();
            text.push_content(message);
            branch.transcript.tokens_of(tokenizer, &text, add_special)
        };
        let (mut tokens, other) = (with("What")?, with(" 1\n")?);
        let same = tokens.iter().zip(&other).take_while(|(a, b)| a == b).count();
        tokens.truncate(same);
        if tokens.is_empty() || branch.held_tokens() >= same {
            return Ok(Attached::default());
        }
        self.engine
            .check_context("the conversation with this text", tokens.len() + 1)?;
        let reading = self.read(&tokens, begin, Instant::now(), observe)?;
        Ok(Attached {
            read_tokens: reading.prompt_tokens - reading.kept_tokens,
            found_tokens: reading.found_tokens,
        })
    }

    /// The session of the current branch; an empty session if everything must be read again.
    pub(crate) fn session(&mut self) -> Result<&mut Session, ChatError> {
        if self.branch.session.is_none() {
            let other = self.others.iter_mut().find_map(|branch| branch.session.as_mut());
            let session = match other {
                // One common pool of pages keeps all branches within the plan.
                Some(other) => {
                    let mut session = other.beside()?;
                    session.take_scratch(other);
                    session
                }
                None => Session::new(&self.engine)?,
            };
            self.branch.session = Some(session);
        }
        self.branch
            .session
            .as_mut()
            .ok_or(ChatError::Engine(EngineError::EmptyPrompt))
    }
}

/// Keeps the common beginning of the session and `tokens`, so that reading the rest gives exactly `tokens`. Returns
/// its length.
fn keep(session: &mut Session, tokens: &[u32]) -> Result<usize, ChatError> {
    let (held, shared) = (session.tokens().len(), session.sequence().shared_with(tokens));
    if shared == held && shared < tokens.len() {
        return Ok(shared);
    }
    if shared == held && !session.logits().is_empty() {
        return Ok(session.keep_shared(tokens)?);
    }
    // Logits belong to the last read token. Removed tokens are read again with the rest, so that progress counts
    // them.
    let _again = Sequence::truncate(session.sequence_mut(), shared.min(tokens.len() - 1))?;
    Ok(session.tokens().len())
}

fn per_second(tokens: usize, seconds: f64) -> f64 {
    match tokens {
        0 => 0.0,
        tokens => tokens as f64 / seconds.max(1e-9),
    }
}
