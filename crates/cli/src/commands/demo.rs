//! The demonstration: the shipped model reads the shipped book and answers a question. One screen shows the result.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use riffle_engine::{
    AuditReport, Engine, EngineError, EngineOptions, GenerateOptions, RunEvent, RunReport, RunRequest, StopReason,
    human_bytes, with_threads,
};
use riffle_system::terminal::LINE_CONTINUES;

use super::{grouped, print, read_text};
use crate::console;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::PrefillDisplay;
use crate::shipped::fixtures;

/// This policy reads a ninth of full attention's query-key pairs and finds the same facts (docs/results/policies.md).
const POLICY: &str = "xattention:stride=16";
/// Policy of the run for comparison.
const DENSE: &str = "full";
/// The audit samples 64 queries of each chunk; longer chunks reduce its cost to a fifth of the time.
const CHUNK_TOKENS: usize = 2048;

/// With `dense`, full attention reads the book too, for comparison.
pub(crate) fn demo(dense: bool) -> Result<(), Failure> {
    with_threads(None, || read_and_answer(dense))?
}

fn read_and_answer(dense: bool) -> Result<(), Failure> {
    let start = Instant::now();
    let subject = Subject::shipped()?;
    let interrupt = Interrupt::install()?;
    print(&subject.introduction())?;
    let report = subject.answer(POLICY, &interrupt)?;
    let line = subject.stated_by(&report.text)?;
    let audit = audit(&report)?;
    print(&format!(
        "answer    {}\ncheck     right: line {line} of the book says so\n\n{}",
        report.text.trim(),
        findings(&report, audit),
    ))?;
    if dense {
        console::note("now with full attention; this takes longer");
        let full = subject.answer(DENSE, &interrupt)?;
        print(&comparison(&report, &full))?;
    }
    print(&format!(
        "time      {:.1} s in all\n\n{}",
        start.elapsed().as_secs_f64(),
        subject.next_steps(dense)
    ))
}

/// Model, text and question of the demonstration.
struct Subject {
    model: PathBuf,
    book: PathBuf,
    text: String,
    question: String,
}

impl Subject {
    fn shipped() -> Result<Self, Failure> {
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

    fn introduction(&self) -> String {
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
    fn answer(&self, policy: &str, interrupt: &Interrupt) -> Result<RunReport, Failure> {
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
        run_quietly(&engine, &request, interrupt)
    }

    /// The line of the book that states this answer.
    fn stated_by(&self, answer: &str) -> Result<usize, Failure> {
        let asked = self.question.rsplit_once("? ");
        let asked = asked.map_or(self.question.as_str(), |(_, begun)| begun);
        let stated = self.text.lines().enumerate().find_map(|(line, text)| {
            let value = text.strip_prefix(asked)?.trim().trim_end_matches('.');
            Some((line + 1, value))
        });
        match stated {
            Some((line, value)) if value == answer.trim() => Ok(line),
            Some((line, value)) => Err(Failure::new(format!(
                "the answer is {}, and it is wrong: line {line} of the book says {value}",
                answer.trim()
            ))),
            None => Err(Failure::new(format!(
                "the book does not say what follows on \"{asked}\""
            ))),
        }
    }

    /// Example commands for the user.
    fn next_steps(&self, compared: bool) -> String {
        let riffle = std::env::args().next().unwrap_or_else(|| "riffle".to_owned());
        let (model, book) = (self.model.display(), self.book.display());
        let dense = if compared {
            String::new()
        } else {
            format!("  {riffle} --dense      # compare with full attention: takes five times as long\n")
        };
        format!(
            "Try next:\n{dense}  {riffle} ask --model {model} {book} {LINE_CONTINUES}\n    \"The pass key for field house is\"    # shows the passage behind the answer\n  {riffle} pull qwen2.5:1.5b          # a model for real questions, 1 GB\n  {riffle} chat --model qwen2.5:1.5b  # talk with it\n"
        )
    }
}

/// Runs a request and shows only its progress.
fn run_quietly(engine: &Arc<Engine>, request: &RunRequest, interrupt: &Interrupt) -> Result<RunReport, Failure> {
    let mut display = PrefillDisplay::new(engine);
    let report = riffle_engine::run(engine, request, &mut |event| {
        if let RunEvent::Prefill(progress) = event {
            display.update(progress);
        }
        interrupt.flow()
    });
    display.finish();
    let report = report?;
    match report.stop {
        StopReason::Interrupted => Err(Failure::interrupted("interrupted while the answer was written")),
        _ => Ok(report),
    }
}

fn audit(report: &RunReport) -> Result<&AuditReport, Failure> {
    let audit = report.audit.as_ref();
    audit.ok_or_else(|| Failure::new("the run was not audited, though it was to be: please report this"))
}

/// Describes the pairs that the policy read, and their share of the attention mass.
fn findings(report: &RunReport, audit: &AuditReport) -> String {
    let worst = audit.worst_head.map_or(audit.mean_mass, |head| head.mean_mass);
    format!(
        "read      {prompt} tokens in {first:.1} s under {POLICY}:\n          {density:.1}% of the pairs of tokens that full attention reads\nkept      {mean:.1}% of the true attention on average, by an audit of this run:\n          {samples} samples, each a token in one of {heads} heads, compared with full attention;\n          one sample in 100 kept less than {first_percentile:.0}%; the worst head kept {worst:.0}% on average\nmemory    {kv} for keys and values, {weights} for the model, {scratch} to compute; {threads} threads\n",
        prompt = grouped(report.prompt_tokens),
        first = report.time_to_first_token_ms / 1e3,
        density = report.density * 100.0,
        mean = audit.mean_mass * 100.0,
        samples = grouped(audit.samples as usize),
        heads = audit.heads.len(),
        first_percentile = audit.first_percentile_mass * 100.0,
        worst = worst * 100.0,
        kv = human_bytes(report.kv.device_bytes + report.kv.ram_bytes + report.kv.disk_bytes),
        weights = human_bytes(report.plan.weights_bytes),
        scratch = human_bytes(report.plan.scratch_bytes),
        threads = report.threads,
    )
}

/// Compares both audited runs in columns.
fn comparison(sparse: &RunReport, dense: &RunReport) -> String {
    let row =
        |name: &str, cell: &dyn Fn(&RunReport) -> String| format!("{name:<26}{:<26}{}\n", cell(sparse), cell(dense));
    let percent = |share: f64| format!("{:.1}%", share * 100.0);
    [
        format!("\n{:<26}{POLICY:<26}{DENSE} attention\n", "compared"),
        row("answer", &|report| report.text.trim().to_owned()),
        row("seconds to first token", &|report| {
            format!("{:.1}", report.time_to_first_token_ms / 1e3)
        }),
        row("pairs of tokens read", &|report| percent(report.density)),
        row("attention kept", &|report| {
            let audit = report.audit.as_ref();
            audit.map_or_else(|| "not audited".to_owned(), |audit| percent(audit.mean_mass))
        }),
        "\n".to_owned(),
    ]
    .concat()
}
