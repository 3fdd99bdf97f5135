//! `riffle chat`: conversations of many turns.

mod entry;
mod input;
mod settings;
mod stats;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use riffle_chat::{Attached, ChatError, ChatOptions, Conversation, Document, MOST_BRANCHES, TurnReport, Undone};
use riffle_documents::{Collection, framed};
use riffle_engine::{Engine, EngineOptions, RunEvent, StopReason, human_bytes, with_threads};
use riffle_policy::PolicyRules;

use super::documents::{note_documents, read_documents};
use super::run::{audit_text, generate_options};
use super::{engine_options, grouped, note_activations, note_template};
use crate::chat_args::ChatArguments;
use crate::failure::Failure;
use crate::interrupt::StopAnswer;
use crate::progress::PrefillDisplay;
use crate::{console, flags};
use entry::{COMMANDS, Command, Entry, entry};
use input::{Input, Typed};

/// Number of tokens from which the progress of reading is shown.
const SHOWN_FROM_TOKENS: usize = 512;

pub(crate) fn chat(arguments: &ChatArguments) -> Result<(), Failure> {
    let model = arguments.model.path()?;
    let mut options = engine_options(&arguments.engine)?;
    options.machine.sequences = MOST_BRANCHES;
    options.model.draft_model = arguments.generate.draft.model().map(Path::to_owned);
    options.model.draft_predictor = arguments.generate.draft.uses_predictor();
    let keep = arguments.keep.options()?;
    let documents = match &arguments.files[..] {
        [] => Vec::new(),
        files => documents_of(files, arguments.engine.memory)?,
    };
    options.cache.keeps_beginnings = keep.is_some() && !documents.is_empty();
    with_threads(arguments.engine.threads, || {
        let mut engine = Engine::load(model, options.clone())?;
        arguments.model.remember();
        if !documents.is_empty() && !arguments.given.prefill && options.sequence.window.is_none() {
            engine = for_documents(engine, &options, &documents)?;
        }
        let on_device = engine.options().machine.device.is_some();
        note_activations(&arguments.engine, engine.model().config(), on_device);
        let options = ChatOptions {
            system: arguments.system.clone(),
            generate: Some(generate_options(&engine, &arguments.generate)),
            keep,
        };
        let conversation = Conversation::new(Arc::clone(&engine), options).map_err(Failure::from)?;
        note_template(&engine);
        let input = Input::open(!arguments.no_history)?;
        let mut talk = Talk {
            conversation,
            stop: StopAnswer::install()?,
            output: Ok(()),
        };
        if input.is_terminal() {
            talk.introduce(model);
        }
        if let Some(why) = talk.conversation.not_kept() {
            console::note(flags::typed(&format!("nothing is kept for later: {why}")));
        }
        talk.attach_all(documents)?;
        let taken = talk.take_turns(input);
        if let Some(audit) = &talk.conversation.report().audit {
            console::note(audit_text(audit));
        }
        taken
    })?
}

/// The engine with the policy that `riffle ask` selects for documents of this length, so that both commands can share
/// pages.
fn for_documents(engine: Arc<Engine>, options: &EngineOptions, documents: &[Document]) -> Result<Arc<Engine>, Failure> {
    let has_template = engine.chat_template().is_some();
    let text = documents.iter();
    let text = text.map(|document| framed(&document.name, &document.text, has_template));
    let tokens = engine.tokenizer()?.encode(&text.collect::<String>(), false)?.len();
    let reading = riffle_ask::reading_options(&engine, options, tokens)?;
    if reading.sequence.prefill == options.sequence.prefill {
        return Ok(engine);
    }
    let policy = reading.sequence.prefill.base.name();
    console::note(format!(
        "documents of {} tokens are read by {policy}; --prefill full reads them by full attention",
        grouped(tokens)
    ));
    Ok(engine.with_options(reading)?)
}

/// Reads documents, and the documents of folders.
fn documents_of(paths: &[impl AsRef<Path>], memory_bytes: Option<u64>) -> Result<Vec<Document>, Failure> {
    let Collection { documents, left_out } = read_documents(paths, memory_bytes)?;
    note_documents(&documents, &left_out);
    let documents = documents.into_iter().map(|document| Document {
        name: document.name,
        text: document.text,
    });
    Ok(documents.collect())
}

/// A conversation with its display.
struct Talk {
    conversation: Conversation,
    stop: StopAnswer,
    /// The first failure of standard output; further output is dropped.
    output: Result<(), Failure>,
}

impl Talk {
    fn introduce(&self, model: &Path) {
        let context = self.conversation.report().context_tokens;
        let context = context.map_or(String::new(), |tokens| {
            format!(", {} tokens of context", grouped(tokens))
        });
        console::aside(format!("{}{context}; /help lists what you can type", model.display()));
    }

    fn take_turns(&mut self, mut input: Input) -> Result<(), Failure> {
        let mut failed: usize = 0;
        loop {
            let text = match input.next(&self.prompt())? {
                Typed::Text(text) => text,
                Typed::Interrupted => {
                    console::aside("Ctrl-D or /quit leaves");
                    continue;
                }
                Typed::End => break,
            };
            let carried_out = match entry(&text) {
                Ok(Entry::Nothing) => Ok(()),
                Ok(Entry::Message(message)) => self.answer(|talk, observe| talk.ask(&message, observe)),
                Ok(Entry::Command(Command::Quit)) => break,
                Ok(Entry::Command(command)) => self.carry_out(command),
                Err(problem) => Err(Failure::new(problem)),
            };
            std::mem::replace(&mut self.output, Ok(()))?;
            if let Err(failure) = carried_out {
                failed += 1;
                console::note(failure);
            }
        }
        match failed {
            0 => Ok(()),
            _ if input.is_terminal() => Ok(()),
            1 => Err(Failure::new("one of the lines failed, see above")),
            failed => Err(Failure::new(format!("{failed} of the lines failed, see above"))),
        }
    }

    fn prompt(&self) -> String {
        let report = self.conversation.report();
        let branch = report.branches.iter().find(|branch| branch.is_current);
        let branch = branch.filter(|_| report.branches.len() > 1);
        let mut before: Vec<String> = branch.map(|branch| branch.name.clone()).into_iter().collect();
        before.extend(
            self.conversation
                .attached()
                .iter()
                .map(|document| document.name.clone()),
        );
        if before.is_empty() {
            "> ".to_owned()
        } else {
            format!("[{}] > ", crate::shown::name(&before.join(", ")))
        }
    }

    /// Memory for reading documents.
    fn memory_bytes(&self) -> Option<u64> {
        self.conversation.engine().options().machine.memory_budget_bytes
    }

    fn carry_out(&mut self, command: Command) -> Result<(), Failure> {
        match command {
            Command::Help => console::aside(help()),
            Command::File(path) => return self.attach_all(documents_of(&[path], self.memory_bytes())?),
            Command::Undo => console::aside(undone(&self.conversation.undo()?)),
            Command::Retry => {
                if self.conversation.generate_options().sampling.temperature == 0.0 {
                    console::aside(
                        "the temperature is 0, so the answer will be the same: /set temperature 0.7 changes that",
                    );
                }
                return self.answer(|talk, observe| talk.retry(observe));
            }
            Command::Fork(name) => {
                let from = self.current_branch();
                let name = self.conversation.fork(name.as_deref())?;
                console::aside(format!("you are in {name:?} now; /switch {from} goes back"));
            }
            Command::Switch(Some(name)) => {
                self.conversation.switch(&name)?;
                let turns = self.conversation.turns();
                let last = turns.last().map_or(String::new(), |turn| {
                    format!("; the last message was: {}", crate::shown::name(&turn.message))
                });
                console::aside(format!("you are in {name:?} now, {}{last}", turns_text(turns.len())));
            }
            Command::Switch(None) => console::aside(stats::branches(&self.conversation.report())),
            Command::Drop(name) => {
                self.conversation.drop_branch(&name)?;
                console::aside(format!("{name:?} is gone"));
            }
            Command::Save(path) => {
                let bytes = self.conversation.save(&path)?;
                console::aside(format!(
                    "saved {} in {} and {1}.pages, {}",
                    turns_text(self.conversation.turns().len()),
                    path.display(),
                    human_bytes(bytes)
                ));
            }
            Command::Load(path) => {
                let loaded = self.conversation.load(&path)?;
                console::aside(stats::loaded(&loaded));
            }
            Command::System(text) => self.set_system(text)?,
            Command::Policy(choices) => self.set_policies(&choices)?,
            Command::Set(None) => console::aside(settings::shown(self.conversation.generate_options())),
            Command::Set(Some((name, value))) => {
                let options = settings::with(self.conversation.generate_options(), &name, &value)?;
                self.conversation.set_generate_options(options)?;
            }
            Command::Stats => console::aside(stats::stats(&self.conversation.report())),
            Command::Clear => {
                self.conversation.clear();
                console::aside("the conversation is forgotten; instructions and settings stay");
            }
            Command::Quit => {}
        }
        Ok(())
    }

    fn current_branch(&self) -> String {
        let branches = self.conversation.report().branches;
        let current = branches.into_iter().find(|branch| branch.is_current);
        current.map_or(String::new(), |branch| branch.name)
    }

    fn set_system(&mut self, text: Option<String>) -> Result<(), Failure> {
        match text {
            None => {
                let system = self.conversation.system();
                console::aside(system.map_or(
                    "there are no instructions: /system TEXT gives some".to_owned(),
                    str::to_owned,
                ));
            }
            Some(text) => {
                self.conversation.set_system((text != "-").then_some(text))?;
                if !self.conversation.turns().is_empty() {
                    console::aside("instructions stand at the beginning: your next message reads everything again");
                }
            }
        }
        Ok(())
    }

    fn set_policies(&mut self, choices: &[(String, String)]) -> Result<(), Failure> {
        if !choices.is_empty() {
            let chosen = |phase: &str| -> Result<Option<PolicyRules>, ChatError> {
                let choice = choices.iter().rev().find(|(name, _)| name == phase);
                Ok(choice.map(|(_, policy)| policy.parse()).transpose()?)
            };
            let (prefill, decode) = (chosen("prefill")?, chosen("decode")?);
            let change = self.conversation.set_policies(prefill, decode)?;
            if change.again_tokens > 0 {
                console::aside(format!(
                    "your next message reads {} tokens again: they were read under another policy",
                    grouped(change.again_tokens)
                ));
            }
        }
        let report = self.conversation.report();
        console::aside(format!(
            "prefill={} decode={}",
            report.prefill_policy, report.decode_policy
        ));
        Ok(())
    }

    fn attach_all(&mut self, documents: impl IntoIterator<Item = Document>) -> Result<(), Failure> {
        documents.into_iter().try_for_each(|document| self.attach(document))
    }

    fn attach(&mut self, document: Document) -> Result<(), Failure> {
        let name = document.name.clone();
        let (mut display, stop) = (PrefillDisplay::new(self.conversation.engine()), &self.stop);
        let mut observe = |event: RunEvent<'_>| {
            if let RunEvent::Prefill(progress) = event {
                display.update(progress);
            }
            stop.flow()
        };
        let read = stop.during(|| self.conversation.attach(document, &mut observe));
        display.finish();
        self.note_keeping();
        match read {
            Ok(attached) => console::aside(attached_text(&name, attached)),
            Err(error) if error.is_interrupted() => {
                console::aside(format!(
                    "stopped; the rest of {name} is read with your next message, /undo removes it"
                ));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Shows an answer while the model writes it.
    fn answer(
        &mut self,
        ask: impl FnOnce(&mut Conversation, &mut riffle_chat::Observe<'_>) -> Result<TurnReport, ChatError>,
    ) -> Result<(), Failure> {
        let (mut display, stop) = (PrefillDisplay::new(self.conversation.engine()), &self.stop);
        let output = &mut self.output;
        let mut observe = |event: RunEvent<'_>| {
            match event {
                RunEvent::Waiting => {}
                RunEvent::Prefill(progress) if progress.tokens < SHOWN_FROM_TOKENS => {}
                RunEvent::Prefill(progress) => display.update(progress),
                RunEvent::Text(text) => {
                    display.finish();
                    *output = console::print_reply(text);
                }
            }
            match output {
                Ok(()) => stop.flow(),
                Err(_) => ControlFlow::Break(()),
            }
        };
        let answered = stop.during(|| ask(&mut self.conversation, &mut observe));
        display.finish();
        if self.output.is_ok() {
            self.output = console::end_line();
        }
        self.note_keeping();
        match answered {
            Ok(report) => self.note_end(&report),
            Err(error) if error.is_interrupted() => {
                console::aside("stopped before the answer; what was read is kept, and /retry goes on");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Prints notices about the folder of kept pages.
    fn note_keeping(&mut self) {
        let notices = self.conversation.take_notices();
        notices.iter().for_each(|notice| console::note(flags::typed(notice)));
    }

    /// Prints the reason why an answer is incomplete.
    fn note_end(&self, report: &TurnReport) {
        match &report.stop {
            StopReason::EndOfText | StopReason::StopString(_) => {}
            StopReason::MaxTokens => console::aside(format!(
                "cut after {} tokens: /set tokens N allows more, /retry answers again",
                grouped(report.generated_tokens)
            )),
            StopReason::ContextFull => console::aside(format!(
                "the context of {} tokens is full, and the answer ends here: /undo takes back turns, /clear begins anew, or /save and start \
                 riffle chat with a larger --ctx",
                grouped(self.conversation.report().context_tokens.unwrap_or(0))
            )),
            StopReason::Interrupted => console::aside("stopped; what was said is kept"),
            StopReason::Loop { .. } => console::aside(format!(
                "ended, since it repeats itself ({}): /set repeat-penalty 1.1 and /retry write another answer",
                flags::typed(&report.stop.to_string())
            )),
        }
    }
}

fn help() -> String {
    let lines = COMMANDS.iter().map(|(usage, about)| format!("{usage:<30}  {about}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn attached_text(name: &str, attached: Attached) -> String {
    let name = crate::shown::name(name);
    match (attached.read_tokens, attached.found_tokens) {
        (0, 0) => format!("{name} is read with your next message"),
        (read, 0) => format!("{name}: {} tokens read; ask about it", grouped(read)),
        (read, found) => format!(
            "{name}: {} tokens found on disk, {} read; ask about it",
            grouped(found),
            grouped(read)
        ),
    }
}

fn undone(undone: &Undone) -> String {
    match undone {
        Undone::Document { name } => format!("{name} is taken back"),
        Undone::Turn { message, again_tokens } => {
            let message = crate::shown::name(message);
            match again_tokens {
                0 => format!("taken back: {message}"),
                again => format!(
                    "taken back: {message}; your next message reads {} tokens again, since this model cannot go back to that point",
                    grouped(*again)
                ),
            }
        }
    }
}

fn turns_text(turns: usize) -> String {
    match turns {
        1 => "one turn".to_owned(),
        turns => format!("{} turns", grouped(turns)),
    }
}
