//! A policy of a crate of its own: the engine runs it, the laboratory compares it with others at an equal budget.
//!
//! `cargo run --release` in this folder, or with the path of a model.

mod means;

use std::error::Error;
use std::ops::ControlFlow;

use riffle_engine::{Engine, EngineOptions, Session};
use riffle_eval::{CompareOptions, Corpus, Journal, PolicyChoice, Results, Wording, compare};
use riffle_policy::PolicySpec;

use means::POLICIES;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).unwrap_or(format!("{ROOT}/fixtures/model"));
    let text = std::fs::read_to_string(format!("{ROOT}/fixtures/text/prophets.txt"))?;
    in_the_engine(&model, &text)?;
    in_the_laboratory(&model, &text)
}

/// Reads a text under the policy, and compares what it reads with true attention.
fn in_the_engine(model: &str, text: &str) -> Result<(), Box<dyn Error>> {
    let policy = PolicySpec::parse_among("means:share=0.2", &POLICIES)?;
    let options = EngineOptions::default()
        .with_context_tokens(Some(4096))
        .with_prefill(policy.clone().into())
        .with_decode(policy.into())
        .with_audit(true);
    let engine = Engine::load(model, options)?;
    let tokens = engine.tokenizer()?.encode(text, true)?;
    let mut session = Session::new(&engine)?;
    session.prefill(&tokens[..2048], &mut |_| ControlFlow::Continue(()))?;
    let audit = session.sequence().audit().ok_or("the engine was asked for an audit")?;
    println!(
        "{:.1}% of the pairs read, {:.1}% of the attention kept",
        100.0 * session.sequence().counts().pairs.density(),
        100.0 * audit.mean_mass
    );
    Ok(())
}

/// Compares it with the baselines where all read a fifth of the pairs.
fn in_the_laboratory(model: &str, text: &str) -> Result<(), Box<dyn Error>> {
    let engine = Engine::load(model, EngineOptions::default())?;
    let corpus = Corpus::new(&engine, text, Wording::plain(), Vec::new())?;
    let policies = ["means", "decode=means", "random", "oracle-top-k"];
    let policies: Result<Vec<_>, _> = policies
        .iter()
        .map(|text| PolicyChoice::parse_among(text, &POLICIES))
        .collect();
    let options = CompareOptions {
        policies: policies?,
        tasks: vec!["needle:multi-key:late".parse()?, "qa_1".parse()?],
        lengths: vec![1024],
        samples: 2,
        depths: 5,
        seed: 1,
        budgets: vec![0.2],
        shares: true,
    };
    let table = compare(&engine, &corpus, &options, &mut Journal::none(), &mut |_| {
        ControlFlow::Continue(())
    })?;
    for table in Results::Comparison(table).tables() {
        print!("{}", table.to_text());
    }
    Ok(())
}
