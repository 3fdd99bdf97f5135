//! The demonstration: the shipped model reads the shipped book under a sparse policy and answers a question. One screen
//! shows the result, with an audit of what the policy kept.
//!
//! The command `riffle` without arguments shows it, and so does this crate's own program, which builds in half the
//! time. A [`Host`] prints and runs for them.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use riffle_demo::{Advice, DemoError, Host, demonstrate};
//! use riffle_engine::{Engine, EngineError, RunReport, RunRequest};
//!
//! struct Quiet(String);
//!
//! impl Host for Quiet {
//!     type Error = DemoError;
//!     fn print(&mut self, text: &str) -> Result<(), DemoError> {
//!         self.0 += text;
//!         Ok(())
//!     }
//!     fn note(&mut self, _: &str) {}
//!     fn run(&mut self, engine: &Arc<Engine>, request: &RunRequest) -> Result<RunReport, EngineError> {
//!         riffle_engine::run(engine, request, &mut |_| std::ops::ControlFlow::Continue(()))
//!     }
//! }
//!
//! let mut quiet = Quiet(String::new());
//! let advice = Advice { program: "riffle".to_owned(), compare: "riffle --dense".to_owned(), first: String::new() };
//! demonstrate(false, &advice, &mut quiet)?;
//! assert!(quiet.0.contains("answer"));
//! # Ok::<(), DemoError>(())
//! ```

mod report;
mod subject;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use riffle_engine::{Engine, EngineError, RunReport, RunRequest, with_threads};
use riffle_files::FileError;
use thiserror::Error;

use report::{audit, comparison, findings};
use subject::Subject;
pub use subject::fixtures;

/// This policy reads a ninth of full attention's query-key pairs and finds the same facts (docs/results/policies.md).
const POLICY: &str = "xattention:stride=16";
/// Policy of the run for comparison.
const DENSE: &str = "full";

/// Prints and runs for the demonstration.
pub trait Host {
    /// Failure of the program that demonstrates.
    type Error: From<DemoError> + Send;

    /// Prints lines of the result.
    ///
    /// # Errors
    /// The lines cannot be written.
    fn print(&mut self, text: &str) -> Result<(), Self::Error>;

    /// Tells the user what takes time; this is no result.
    fn note(&mut self, text: &str);

    /// Runs a request, shows its progress, and stops where the user asks for it.
    ///
    /// # Errors
    /// As [`riffle_engine::run`].
    fn run(&mut self, engine: &Arc<Engine>, request: &RunRequest) -> Result<RunReport, EngineError>;
}

/// Commands that the last lines name.
#[derive(Clone, Debug)]
pub struct Advice {
    /// The command `riffle`, as this user starts it.
    pub program: String,
    /// The command that compares with full attention.
    pub compare: String,
    /// A line before the other commands, or nothing.
    pub first: String,
}

/// The demonstration failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DemoError {
    /// Neither this folder nor the program's has the shipped model.
    #[error(
        "the shipped model is not here (no fixtures/model in this folder or beside the program): run riffle in its checkout or in an unpacked release, or give a model: riffle run --model PATH --prompt TEXT"
    )]
    NoFixtures,
    /// A shipped text cannot be read.
    #[error("{}: {source}", path.display())]
    Text {
        /// The text's file.
        path: PathBuf,
        /// The reason.
        source: FileError,
    },
    /// The model cannot be loaded or run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The user stopped the run.
    #[error("interrupted while the answer was written")]
    Interrupted,
    /// The book states another answer.
    #[error("the answer is {answer}, and it is wrong: line {line} of the book says {stated}")]
    Wrong {
        /// The model's answer.
        answer: String,
        /// Line of the book, from 1.
        line: usize,
        /// The right answer.
        stated: String,
    },
    /// The book does not state any answer.
    #[error("the book does not say what follows on \"{asked}\"")]
    NotStated {
        /// The sentence that an answer ends.
        asked: String,
    },
    /// The engine made no audit.
    #[error("the run was not audited, though it was to be: please report this")]
    NotAudited,
    /// The result cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] std::io::Error),
}

/// Shows the demonstration. With `dense`, full attention reads the book too, for comparison.
///
/// # Errors
/// [`DemoError`], and failures of the host.
pub fn demonstrate<H: Host + Send>(dense: bool, advice: &Advice, host: &mut H) -> Result<(), H::Error> {
    with_threads(None, || read_and_answer(dense, advice, host)).map_err(DemoError::from)?
}

fn read_and_answer<H: Host>(dense: bool, advice: &Advice, host: &mut H) -> Result<(), H::Error> {
    let start = Instant::now();
    let subject = Subject::shipped()?;
    host.print(&subject.introduction())?;
    let report = subject.answer(POLICY, host)?;
    let line = subject.stated_by(&report.text)?;
    let audit = audit(&report)?;
    host.print(&format!(
        "answer    {}\ncheck     right: line {line} of the book says so\n\n{}",
        report.text.trim(),
        findings(POLICY, &report, audit),
    ))?;
    if dense {
        host.note("now with full attention; this takes longer");
        let full = subject.answer(DENSE, host)?;
        host.print(&comparison((POLICY, &report), (DENSE, &full)))?;
    }
    host.print(&format!(
        "time      {:.1} s in all\n\n{}",
        start.elapsed().as_secs_f64(),
        subject.next_steps(dense, advice)
    ))
}
