//! `riffle ask`: questions about documents.

use std::borrow::Cow;
use std::io::{self, BufRead, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use riffle_ask::{Amount, Answer, AskError, AskEvent, AskOptions, Choice, Conversation, Passage, Scope};
use riffle_documents::{Collection, Document, LeftOut};
use riffle_engine::{GenerateOptions, StopReason, with_threads};
use serde::Serialize;

use super::documents::{note_documents, read_documents};
use super::run::generate_options;
use super::{engine_options, grouped, note_activations, note_template, print, print_json};
use crate::ask_args::AskArguments;
use crate::failure::Failure;
use crate::interrupt::StopAnswer;
use crate::progress::{EmbeddingDisplay, PrefillDisplay};
use crate::reading_line::ReadingLine;
use crate::{console, flags, model, shown, unused};

pub(crate) fn ask(arguments: &AskArguments) -> Result<(), Failure> {
    unused::refuse_audit("riffle ask", &arguments.engine)?;
    let (files, questions) = words(arguments)?;
    if questions.iter().any(|question| question.trim().is_empty()) {
        return Err(AskError::EmptyQuestion.into());
    }
    let model = arguments.model.path()?;
    let follows = arguments.follow || questions.is_empty();
    let collection = read_documents(&files, arguments.engine.memory)?;
    let options = AskOptions {
        engine: engine_options(&arguments.engine)?
            .with_draft_model(arguments.generate.draft.model().map(Path::to_owned))
            .with_draft_predictor(arguments.generate.draft.uses_predictor()),
        given: arguments.given,
        system: arguments.system.clone(),
        amount: match (arguments.whole, arguments.parts) {
            (true, _) => Amount::Whole,
            (_, true) => Amount::Parts,
            _ => Amount::Fitting,
        },
        scopes: scopes(arguments)?,
        embeddings: model::embeddings(arguments.embeddings.as_deref())?,
        keep: arguments.keep.options()?,
        answer_tokens: arguments.generate.tokens,
        first_question: questions.first().cloned().unwrap_or_default(),
    };
    with_threads(arguments.engine.threads, || {
        let Collection { documents, left_out } = collection;
        let mut conversation = Conversation::open(model, documents, options)?;
        arguments.model.remember();
        let engine = conversation.engine();
        let on_device = engine.options().machine.device.is_some();
        note_activations(&arguments.engine, engine.model().config(), on_device);
        note_template(engine);
        introduce(&conversation, &left_out, arguments.verbose);
        let mut asker = Asker {
            generate: generate_options(engine, &arguments.generate),
            conversation: &mut conversation,
            arguments,
            stop: StopAnswer::install()?,
            answers: Vec::new(),
        };
        let asked = asker.ask_all(&questions, follows);
        let answers = asker.answers;
        if arguments.json && !answers.is_empty() {
            print_json(&Report::new(&conversation, &left_out, &answers))?;
        }
        asked
    })?
}

/// Splits the words into documents and questions.
fn words(arguments: &AskArguments) -> Result<(Vec<String>, Vec<String>), Failure> {
    let (files, mut questions) = (arguments.words.clone(), arguments.question.clone());
    let (last, before) = match files.split_last() {
        Some((last, before)) if questions.is_empty() && !before.is_empty() && !Path::new(last).exists() => {
            (last.clone(), before.to_vec())
        }
        _ => {
            if let [only] = &files[..]
                && !Path::new(only).exists()
            {
                return Err(Failure::new(if looks_like_a_file(only) {
                    format!("{only}: no such file; check the path")
                } else {
                    format!("no document: name a file or a folder before the question {only:?}")
                }));
            }
            if questions.is_empty() && !arguments.follow && !io::stdin().is_terminal() {
                return Err(Failure::new(
                    "no question: write it in quotes after the documents, or with --question; --follow reads questions from standard input",
                ));
            }
            return Ok((files, questions));
        }
    };
    let is_word = |word: &&String| !Path::new(word).exists() && !looks_like_a_file(word);
    if let Some(word) = before.iter().find(is_word) {
        return Err(Failure::new(format!(
            "{word:?} is no file: write the whole question in quotes, after the documents"
        )));
    }
    if looks_like_a_file(&last) {
        return Err(Failure::new(format!(
            "{last}: no such file; check the path. If it is the question, give it with --question"
        )));
    }
    questions.push(last);
    Ok((before, questions))
}

/// True if a word is a path rather than a question.
fn looks_like_a_file(word: &str) -> bool {
    let ending = Path::new(word).extension().and_then(|ending| ending.to_str());
    let has_ending = ending
        .is_some_and(|ending| (1..=5).contains(&ending.len()) && ending.chars().all(|c| c.is_ascii_alphanumeric()));
    !word.contains(char::is_whitespace) && (has_ending || word.contains('/'))
}

/// Pages and chapters on the command line.
fn scopes(arguments: &AskArguments) -> Result<Vec<Scope>, Failure> {
    let pages = arguments.pages.iter().map(|pages| {
        let pages = pages.trim();
        let (first, last) = pages.split_once(['-', '–']).unwrap_or((pages, pages));
        let (first, last) = (first.trim(), last.trim());
        if first.is_empty() || last.is_empty() {
            return Err(Failure::new(format!(
                "--pages {pages}: give the first and the last page, such as 10-60, or one page"
            )));
        }
        Ok(Scope::Pages(first.to_owned(), last.to_owned()))
    });
    let chapters = arguments.chapter.iter().map(|title| Ok(Scope::Chapter(title.clone())));
    pages.chain(chapters).collect()
}

/// Prints the documents' skipped parts and, if requested, the selected options.
fn introduce(conversation: &Conversation, left_out: &LeftOut, is_verbose: bool) {
    note_documents(conversation.documents(), left_out);
    if is_verbose {
        console::note(conversation.choice());
    }
    if let Some(why) = conversation.not_kept() {
        console::note(flags::typed(&format!("nothing is kept for later: {why}")));
    }
}

/// Asks questions and prints answers with their passages.
struct Asker<'a> {
    conversation: &'a mut Conversation,
    generate: GenerateOptions,
    arguments: &'a AskArguments,
    stop: StopAnswer,
    answers: Vec<Answer>,
}

impl Asker<'_> {
    fn ask_all(&mut self, questions: &[String], follows: bool) -> Result<(), Failure> {
        for question in questions {
            if questions.len() > 1 && !self.arguments.json {
                print(&format!(
                    "{}{question}\n",
                    if self.answers.is_empty() { "" } else { "\n" }
                ))?;
            }
            self.ask(question)?;
        }
        if !follows {
            return Ok(());
        }
        while let Some(question) = self.next_question()? {
            match self.ask(&question) {
                // At a terminal, a full conversation or a long question must not end the program.
                Err(failure) if io::stdin().is_terminal() && !failure.is_interrupted() => console::note(failure),
                asked => asked?,
            }
        }
        Ok(())
    }

    /// The next question from the terminal or a pipe; `None` at its end.
    fn next_question(&mut self) -> Result<Option<String>, Failure> {
        let is_terminal = io::stdin().is_terminal();
        loop {
            if is_terminal {
                console::end_line()?;
                // A failed write of the prompt does not matter.
                let _ = write!(io::stderr().lock(), "\nquestion> ").and_then(|()| io::stderr().flush());
            }
            let mut line = String::new();
            let read = io::stdin().lock().read_line(&mut line);
            let read = read.map_err(|error| Failure::new(format!("standard input: {error}")))?;
            if read == 0 {
                return Ok(None);
            }
            if !line.trim().is_empty() {
                return Ok(Some(line.trim().to_owned()));
            }
        }
    }

    fn ask(&mut self, question: &str) -> Result<(), Failure> {
        let engine = Arc::clone(self.conversation.engine());
        let mut display = PrefillDisplay::new(&engine);
        let mut embedding = EmbeddingDisplay::new();
        let mut reading = ReadingLine::default();
        let mut output = Ok(());
        let (json, stop) = (self.arguments.json, &self.stop);
        let mut observe = |event: AskEvent<'_>| {
            match event {
                AskEvent::Waiting => {}
                AskEvent::Embedding { done, parts } => embedding.update(done, parts),
                AskEvent::Begins(beginning) => {
                    embedding.finish();
                    // The display's clock measures the reading alone.
                    display = PrefillDisplay::new(&engine);
                    reading.begin(&beginning);
                }
                AskEvent::Reading(progress) => {
                    display.update(progress);
                    reading.say_when_known(&display);
                }
                AskEvent::Text(text) => {
                    display.finish();
                    reading.say(None);
                    if !json {
                        output = console::print_reply(text);
                    }
                }
            }
            if output.is_err() {
                ControlFlow::Break(())
            } else {
                stop.flow()
            }
        };
        let answer = stop.during(|| self.conversation.ask(question, &self.generate, &mut observe));
        display.finish();
        let notices = self.conversation.take_notices();
        output?;
        let mut answer = answer?;
        if self.arguments.no_passages {
            answer.passages.clear();
        }
        if !json {
            print("\n")?;
            console::print_wrapped(&passages_text(&answer.passages))?;
            if self.arguments.verbose {
                console::note(summary(&answer));
            }
        }
        notices.iter().for_each(|notice| console::note(flags::typed(notice)));
        let (is_interrupted, tokens) = (answer.stop == StopReason::Interrupted, answer.generated_tokens);
        self.answers.push(answer);
        if is_interrupted {
            Err(Failure::interrupted(format!(
                "interrupted after {tokens} generated tokens"
            )))
        } else {
            Ok(())
        }
    }
}

/// Passages as a list. The label says that attention is not proof of a source.
fn passages_text(passages: &[Passage]) -> String {
    if passages.is_empty() {
        return String::new();
    }
    let lines = passages.iter().map(|passage| {
        let place = match passage.place.as_str() {
            "" => String::new(),
            place => format!(", {}", shown::name(place)),
        };
        format!(
            "  {}{place} ({:.0}%): {}\n",
            shown::name(&passage.document),
            100.0 * passage.share,
            shown::name(&passage.quotation)
        )
    });
    format!("\nattention went most to\n{}", lines.collect::<String>())
}

fn summary(answer: &Answer) -> String {
    let kept = match answer.found_tokens {
        0 => String::new(),
        found => format!(", {} of them from disk", grouped(found)),
    };
    format!(
        "\nfirst token after {:.2} s ({} of {} tokens were read before{kept}), then {} tokens at {:.1} a second, ended by {}",
        answer.time_to_first_token_ms / 1e3,
        grouped(answer.reused_tokens),
        grouped(answer.prompt_tokens),
        grouped(answer.generated_tokens),
        answer.decode_tokens_per_s,
        flags::typed(&answer.stop.to_string())
    )
}

/// The whole result as one JSON object.
#[derive(Serialize)]
struct Report<'a> {
    model: String,
    choice: &'a Choice,
    documents: Vec<DocumentReport<'a>>,
    left_out: &'a LeftOut,
    /// The reason why pages are not kept on disk although the options request it.
    not_kept: Option<Cow<'a, str>>,
    answers: &'a [Answer],
}

#[derive(Serialize)]
struct DocumentReport<'a> {
    name: &'a str,
    kind: String,
    bytes: usize,
    warnings: &'a [String],
}

impl<'a> Report<'a> {
    fn new(conversation: &'a Conversation, left_out: &'a LeftOut, answers: &'a [Answer]) -> Self {
        let document = |document: &'a Document| DocumentReport {
            name: &document.name,
            kind: document.kind.to_string(),
            bytes: document.text.len(),
            warnings: &document.warnings,
        };
        Self {
            model: conversation.engine().path().display().to_string(),
            choice: conversation.choice(),
            documents: conversation.documents().iter().map(document).collect(),
            left_out,
            not_kept: conversation.not_kept().map(flags::typed),
            answers,
        }
    }
}
