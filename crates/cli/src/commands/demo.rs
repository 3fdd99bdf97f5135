//! The main job: the shipped model reads the shipped book and answers a question about it.

use riffle_engine::{Engine, EngineOptions, GenerateOptions, RunRequest, with_threads};

use super::{grouped, print, read_text, run::answer};
use crate::console;
use crate::failure::Failure;
use crate::shipped::fixtures;

pub(crate) fn demo() -> Result<(), Failure> {
    with_threads(None, read_and_answer)?
}

fn read_and_answer() -> Result<(), Failure> {
    let fixtures = fixtures()?;
    let (book_path, model_path) = (fixtures.join("text/prophets.txt"), fixtures.join("model"));
    let book = read_text(&book_path)?;
    let question = read_text(&fixtures.join("text/question.txt"))?;
    let question = question.trim_end();
    let engine = Engine::load(&model_path, EngineOptions::default())?;
    console::note(format!(
        "model     {}: {}, {} layers, {} heads, {} KV heads of {}",
        model_path.display(),
        engine.model().config().architecture,
        engine.model().config().layers,
        engine.model().config().heads,
        engine.model().config().kv_heads,
        engine.model().config().head_dim,
    ));
    console::note(format!(
        "book      {}: {} characters",
        book_path.display(),
        grouped(book.chars().count())
    ));
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
    answer(&engine, &request, "answer   ", false)
}
