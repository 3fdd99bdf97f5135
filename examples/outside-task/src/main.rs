//! A task of a crate of its own: policies are compared on it, question by question, and the record goes into a report.
//!
//! `cargo run --release` in this folder, or with the path of a model.

use std::error::Error;
use std::ops::ControlFlow;

use riffle_engine::{Engine, EngineOptions};
use riffle_eval::{
    Ask, CompareOptions, CompareTask, Corpus, EvalError, Header, HiddenFact, Journal, PolicyChoice, Record, Results,
    Task, TaskPrompt, TextSummary, Wording, compare, write_report,
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

// ANCHOR: task
/// Two lines of one form say different things; the later one counts.
struct LatestNumber;

impl Task for LatestNumber {
    fn name(&self) -> &str {
        "latest-number"
    }

    fn prompt(&self, corpus: &Corpus, context_tokens: usize, seed: u64) -> Result<TaskPrompt, EvalError> {
        let words = corpus.words();
        let word = |step: u64| &*words[(seed.wrapping_mul(step) % words.len() as u64) as usize];
        let key = format!("{} {}", word(7), word(13));
        // The form that the shipped model was trained on; the first number is no longer true.
        let number = |step: u64| format!("{:05}", 10_000 + seed.wrapping_mul(step) % 90_000);
        let line = |number: &str| format!("The pass key for {key} is {number}.");
        let facts = [
            HiddenFact::new(0.2, line(&number(7_919))),
            HiddenFact::new(0.7, line(&number(104_729))),
        ];
        let ask = Ask {
            question: format!("What is the pass key for {key}?"),
            lead: format!(" The pass key for {key} is"),
        };
        corpus.hide("", &facts, &ask, vec![number(104_729)], (context_tokens, seed))
    }
}
// ANCHOR_END: task

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).unwrap_or(format!("{ROOT}/fixtures/model"));
    let text = std::fs::read_to_string(format!("{ROOT}/fixtures/text/prophets.txt"))?;
    let engine = Engine::load(model, EngineOptions::default())?;
    let corpus = Corpus::new(&engine, &text, Wording::plain(), Vec::new())?;
    let policies: Result<Vec<PolicyChoice>, _> = ["streaming", "xattention", "decode=quest"]
        .iter()
        .map(|policy| policy.parse())
        .collect();
    let options = CompareOptions {
        policies: policies?,
        tasks: vec![CompareTask::outside(&LatestNumber), "niah_single_2".parse()?],
        lengths: vec![1024],
        samples: 8,
        depths: 1,
        seed: 1,
        budgets: Vec::new(),
        shares: true,
    };
    let table = compare(&engine, &corpus, &options, &mut Journal::none(), &mut |_| {
        ControlFlow::Continue(())
    })?;
    let header = Header::new(
        "latest-number",
        std::env::args().collect(),
        options.seed,
        Some(&engine),
        0.0,
    )?;
    let record = Record {
        header: header.with_text(Some(TextSummary::new("prophets.txt", &text))),
        results: Results::Comparison(table),
    };
    print!("{}", record.text());
    let folder = std::env::temp_dir().join(format!("outside-task-{}", std::process::id()));
    record.write(&folder)?;
    let page = write_report(&[Record::read(&folder.join("latest-number.json"))?], &folder)?;
    println!("a page of {} bytes", page.metadata()?.len());
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
