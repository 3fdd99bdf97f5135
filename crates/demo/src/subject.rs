//! The shipped model, its book and the question.

use std::path::{Path, PathBuf};

use riffle_engine::{Engine, EngineError, EngineOptions, GenerateOptions, RunReport, RunRequest, StopReason};
use riffle_files::grouped;
use riffle_system::terminal::LINE_CONTINUES;

use crate::{Advice, DemoError, Host};

/// The audit samples 64 queries of each chunk; longer chunks reduce its cost to a fifth of the time.
const CHUNK_TOKENS: usize = 2048;

/// No shipped text is longer.
const LARGEST_TEXT_BYTES: u64 = 1 << 20;

/// The `fixtures` folder: in the working directory, next to this program (as in a release), or in the checkout of the
/// build.
///
/// # Errors
/// [`DemoError::NoFixtures`].
pub fn fixtures() -> Result<PathBuf, DemoError> {
    let program = std::env::current_exe().ok();
    // The link's target comes second, because Windows writes resolved paths in a form that few programs take.
    let target = program.as_deref().and_then(|path| path.canonicalize().ok());
    let beside = |program: Option<PathBuf>| Some(program?.parent()?.join("fixtures"));
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let built = built.map(|checkout| checkout.join("fixtures"));
    let mut folders = [Some(PathBuf::from("fixtures")), beside(program), beside(target), built]
        .into_iter()
        .flatten();
    folders
        .find(|folder| folder.join("model/config.json").is_file())
        .ok_or(DemoError::NoFixtures)
}

/// Model, text and question of the demonstration.
pub(crate) struct Subject {
    model: PathBuf,
    book: PathBuf,
    text: String,
    question: String,
}

impl Subject {
    pub(crate) fn shipped() -> Result<Self, DemoError> {
        let fixtures = fixtures()?;
        let texts = fixtures.join("text");
        let book = texts.join("prophets.txt");
        Ok(Self {
            model: fixtures.join("model"),
            text: read_text(&book)?,
            book,
            question: read_text(&texts.join("question.txt"))?.trim_end().to_owned(),
        })
    }

    pub(crate) fn introduction(&self) -> String {
        format!(
            "Riffle reads a book with a small model and answers a question about it.\n\nmodel     {}\nbook      {}: {} lines, {} characters\nquestion  {}\n",
            self.model.display(),
            self.book.display(),
            grouped(self.text.lines().count()),
            grouped(self.text.chars().count()),
            self.question.replace('\n', " "),
        )
    }

    /// Reads the book under a policy with an audit, and answers the question.
    pub(crate) fn answer(&self, policy: &str, host: &mut impl Host) -> Result<RunReport, DemoError> {
        let options = EngineOptions::default()
            .with_prefill(policy.parse().map_err(EngineError::from)?)
            .with_audit(true)
            .with_chunk_tokens(CHUNK_TOKENS);
        let engine = Engine::load(&self.model, options)?;
        let request = RunRequest {
            prompt: Some(format!("{}\n{}", self.text.trim_end(), self.question)),
            system: None,
            chat: false,
            is_document: true,
            generate: GenerateOptions {
                max_tokens: 16,
                stops: vec![".".to_owned(), "\n".to_owned()],
                ..GenerateOptions::default()
            },
            session: None,
            prefix_cache: None,
            shared_store: None,
        };
        let report = host.run(&engine, &request)?;
        match report.stop {
            StopReason::Interrupted => Err(DemoError::Interrupted),
            _ => Ok(report),
        }
    }

    /// The line of the book that states this answer.
    pub(crate) fn stated_by(&self, answer: &str) -> Result<usize, DemoError> {
        let asked = self.question.rsplit_once("? ");
        let asked = asked.map_or(self.question.as_str(), |(_, begun)| begun);
        let stated = self.text.lines().enumerate().find_map(|(line, text)| {
            let value = text.strip_prefix(asked)?.trim().trim_end_matches('.');
            Some((line + 1, value))
        });
        match stated {
            Some((line, value)) if value == answer.trim() => Ok(line),
            Some((line, value)) => Err(DemoError::Wrong {
                answer: answer.trim().to_owned(),
                line,
                stated: value.to_owned(),
            }),
            None => Err(DemoError::NotStated {
                asked: asked.to_owned(),
            }),
        }
    }

    /// Example commands for the user.
    pub(crate) fn next_steps(&self, compared: bool, advice: &Advice) -> String {
        let Advice {
            program,
            compare,
            first,
        } = advice;
        let (model, book) = (self.model.display(), self.book.display());
        let dense = if compared {
            String::new()
        } else {
            format!("  {compare}      # compare with full attention: takes five times as long\n")
        };
        format!(
            "Try next:\n{dense}{first}  {program} ask --model {model} {book} {LINE_CONTINUES}\n    \"The pass key for field house is\"    # shows the passage behind the answer\n  {program} pull qwen2.5:1.5b          # a model for real questions, 1 GB\n  {program} chat --model qwen2.5:1.5b  # talk with it\n"
        )
    }
}

fn read_text(path: &Path) -> Result<String, DemoError> {
    riffle_files::read_text(path, LARGEST_TEXT_BYTES).map_err(|source| DemoError::Text {
        path: path.to_owned(),
        source,
    })
}
