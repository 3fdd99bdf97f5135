//! The main job: the shipped model reads the shipped book and answers a question about it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use riffle_engine::{Engine, EngineError, EngineOptions, GenerateOptions, RunRequest, with_threads};

use super::{grouped, print, read_text, run::answer};
use crate::console;
use crate::failure::Failure;
use crate::shipped::fixtures;

/// Reads a ninth of the query-key pairs of full attention and finds what it finds, see docs/results/quality.md.
const PREFILL: &str = "xattention:stride=16";

pub(crate) fn demo() -> Result<(), Failure> {
    with_threads(None, read_and_answer)?
}

fn read_and_answer() -> Result<(), Failure> {
    let start = Instant::now();
    let fixtures = fixtures()?;
    let (book_path, model_path) = (fixtures.join("text/prophets.txt"), fixtures.join("model"));
    let question_path = fixtures.join("text/question.txt");
    let (book, question) = (read_text(&book_path)?, read_text(&question_path)?);
    let question = question.trim_end();
    let options = EngineOptions {
        prefill: PREFILL.parse().map_err(EngineError::from)?,
        ..EngineOptions::default()
    };
    let engine = Engine::load(&model_path, options)?;
    introduce(&engine, &model_path, &book_path, &book);
    print(&format!("question  {}\n", question.replace('\n', " ")))?;
    let request = RunRequest {
        prompt: Some(format!("{}\n{question}", book.trim_end())),
        system: None,
        chat: false,
        generate: GenerateOptions {
            max_tokens: 16,
            stops: vec![".".to_owned(), "\n".to_owned()],
            ..GenerateOptions::default()
        },
        session: None,
        prefix_cache: None,
    };
    let report = answer(&engine, &request, "answer   ", false)?;
    check(&report.text, &book, question)?;
    console::note(format!("time      {:.1} s in all", start.elapsed().as_secs_f64()));
    console::note(format!(
        "longer    the same with full attention: cat {} {} | {} run --model {} --raw -n 16 --stop .",
        book_path.display(),
        question_path.display(),
        std::env::args().next().unwrap_or_else(|| "riffle".to_owned()),
        model_path.display(),
    ));
    Ok(())
}

fn introduce(engine: &Arc<Engine>, model_path: &Path, book_path: &Path, book: &str) {
    let config = engine.model().config();
    console::note(format!(
        "model     {}: {}, {} layers, {} heads, {} KV heads of {}",
        model_path.display(),
        config.architecture,
        config.layers,
        config.heads,
        config.kv_heads,
        config.head_dim,
    ));
    console::note(format!(
        "book      {}: {} characters",
        book_path.display(),
        grouped(book.chars().count())
    ));
}

/// Holds the answer against the line of the book that completes the question.
fn check(answer: &str, book: &str, question: &str) -> Result<(), Failure> {
    let asked = question.rsplit_once("? ").map_or(question, |(_, begun)| begun);
    let stated = book.lines().enumerate().find_map(|(line, text)| {
        let value = text.strip_prefix(asked)?.trim().trim_end_matches('.');
        Some((line + 1, value))
    });
    match stated {
        Some((line, value)) if value == answer.trim() => {
            console::note(format!(
                "check     right: line {line} of {} says so",
                grouped(book.lines().count())
            ));
            Ok(())
        }
        Some((line, value)) => Err(Failure::new(format!(
            "the answer is wrong: line {line} of the book says {value}"
        ))),
        None => Err(Failure::new(format!(
            "the book does not say what follows on \"{asked}\""
        ))),
    }
}
