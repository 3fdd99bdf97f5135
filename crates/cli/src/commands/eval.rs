//! `riffle eval`: measurements.

use std::path::PathBuf;

use riffle_engine::{Engine, with_threads};
use riffle_eval::{NeedleAnswer, NeedleOptions};
use serde_json::json;

use super::{engine_options, print, print_json, read_text};
use crate::args::{EvalArguments, LogitsArguments, Measurement, NeedleArguments};
use crate::failure::Failure;
use crate::shipped::fixtures;

pub(crate) fn eval(arguments: &EvalArguments) -> Result<(), Failure> {
    match &arguments.measurement {
        Measurement::Logits(arguments) => logits(arguments),
        Measurement::Needle(arguments) => needle(arguments),
    }
}

fn logits(arguments: &LogitsArguments) -> Result<(), Failure> {
    let options = engine_options(&arguments.engine)?;
    let tokens = riffle_eval::read_tokens(&arguments.tokens)?;
    let report = with_threads(arguments.engine.threads, || {
        let engine = Engine::load(&arguments.model.model, options)?;
        riffle_eval::write_logits(&engine, &tokens, &arguments.out)
    })??;
    if arguments.json {
        return print_json(&report);
    }
    print(&format!(
        "{}: logits of {} positions, {} each\n",
        report.path.display(),
        report.tokens,
        report.vocab_size
    ))
}

fn needle(arguments: &NeedleArguments) -> Result<(), Failure> {
    let options = engine_options(&arguments.engine)?;
    let shipped = |given: &Option<PathBuf>, name: &str| match given {
        Some(path) => Ok(path.clone()),
        None => fixtures().map(|folder| folder.join(name)),
    };
    let model = shipped(&arguments.model, "model")?;
    let text = read_text(&shipped(&arguments.file, "text/prophets.txt")?)?;
    if arguments.depths == 0 || arguments.documents == 0 {
        return Err(Failure::new("--depths and --documents must be at least 1"));
    }
    let answers = with_threads(arguments.engine.threads, || {
        let engine = Engine::load(&model, options)?;
        let mut answers = Vec::new();
        for &context_tokens in &arguments.lengths {
            for document in 0..arguments.documents {
                let options = NeedleOptions {
                    context_tokens,
                    depths: arguments.depths,
                    seed: arguments.seed + document,
                };
                answers.extend(riffle_eval::needle(&engine, &text, &options)?);
                eprintln!(
                    "{context_tokens} tokens: document {} of {}",
                    document + 1,
                    arguments.documents
                );
            }
        }
        Ok::<_, Failure>(answers)
    })??;
    if let Some(path) = &arguments.svg {
        let title = format!(
            "prefill {}, decode {}",
            arguments.engine.prefill, arguments.engine.decode
        );
        riffle_eval::draw_needle_map(&answers, arguments.depths, &title, path)?;
    }
    if arguments.json {
        return print_json(&json!({
            "model": model,
            "prefill": arguments.engine.prefill,
            "decode": arguments.engine.decode,
            "answers": answers,
        }));
    }
    print(&table(&answers, arguments))
}

/// A row for each length: exact matches at each depth and in all.
fn table(answers: &[NeedleAnswer], arguments: &NeedleArguments) -> String {
    let per_document = arguments.depths;
    let mut text = String::from("context  exact      at depth");
    for depth in 0..per_document {
        text += &format!(" {:4.0}%", 100.0 * (depth + 1) as f64 / (per_document + 1) as f64);
    }
    text.push('\n');
    for &length in &arguments.lengths {
        let row: Vec<&NeedleAnswer> = answers
            .iter()
            .filter(|answer| answer.context_tokens == length)
            .collect();
        let correct = row.iter().filter(|answer| answer.correct).count();
        text += &format!("{length:>7}  {correct:>3}/{:<3}            ", row.len());
        for depth in 0..per_document {
            let here = row.iter().skip(depth).step_by(per_document);
            let correct = here.clone().filter(|answer| answer.correct).count();
            text += &format!("  {correct}/{}", here.count());
        }
        text.push('\n');
    }
    text
}
