//! `riffle quantize`: writes a model as a GGUF file of smaller weights.

use std::collections::BTreeMap;
use std::time::Instant;

use riffle_engine::{EngineOptions, human_bytes, with_threads};
use riffle_eval::{WeightDivergence, WeightDivergenceOptions, weight_divergence};
use riffle_model::WeightFormat;
use riffle_quantize::{ImportanceMatrix, QuantizeOptions, QuantizePlan, Quantized};
use serde::Serialize;

use super::{print, print_json, read_text};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::QuantizeDisplay;
use crate::quantize_args::QuantizeArguments;
use crate::{console, shown};

/// Bytes to read of the shipped text, more than the comparison uses.
const CHECK_BYTES: usize = 1 << 14;
/// Limit on the named tensors.
const NAMED: usize = 3;

pub(crate) fn quantize(arguments: &QuantizeArguments) -> Result<(), Failure> {
    let mut options = QuantizeOptions::new(arguments.mix);
    options.rules = arguments.tensor_type.clone();
    options.output_type = arguments.output_type;
    options.embedding_type = arguments.embedding_type;
    options.importance = arguments.imatrix.as_deref().map(ImportanceMatrix::read).transpose()?;
    options.memory_bytes = arguments.memory;
    options.overwrite = arguments.force;
    let plan = QuantizePlan::new(&arguments.input, options)?;
    if !arguments.dry_run {
        plan.check(&arguments.output)?;
    }
    let text = check_text(arguments)?;
    note_tensors(&plan);
    if !arguments.json {
        print(&plan_text(&plan))?;
    }
    if arguments.dry_run {
        return if arguments.json {
            print_json(&Report::new(&plan, None, None))
        } else {
            Ok(())
        };
    }
    let interrupt = Interrupt::install()?;
    let written = with_threads(arguments.threads, || write(arguments, &plan, &interrupt))??;
    let checked = match text {
        None => None,
        Some(text) => with_threads(arguments.threads, || check(arguments, &text, &interrupt))?,
    };
    if arguments.json {
        return print_json(&Report::new(&plan, Some(written), checked));
    }
    if let Some(checked) = checked {
        print(&check_lines(&checked))?;
    }
    Ok(())
}

fn write(arguments: &QuantizeArguments, plan: &QuantizePlan, interrupt: &Interrupt) -> Result<Quantized, Failure> {
    let mut display = QuantizeDisplay::new();
    let start = Instant::now();
    let written = plan.write(&arguments.output, &mut |progress| {
        display.update(&progress);
        interrupt.flow()
    });
    display.finish();
    let written = written?;
    if written.resumed_tensors > 0 {
        console::note(format!(
            "{} tensors were there from an interrupted run",
            written.resumed_tensors
        ));
    }
    console::note(format!(
        "{}: {} in {:.0} s",
        arguments.output.display(),
        human_bytes(written.file_bytes),
        start.elapsed().as_secs_f64()
    ));
    Ok(written)
}

/// The text for the comparison; `None` without a comparison.
fn check_text(arguments: &QuantizeArguments) -> Result<Option<String>, Failure> {
    if arguments.no_check || arguments.dry_run {
        return Ok(None);
    }
    if let Some(path) = &arguments.text {
        return read_text(path).map(Some);
    }
    let Ok(folder) = riffle_demo::fixtures() else {
        console::note("the shipped text is not here: the result is not compared; --text FILE names another");
        return Ok(None);
    };
    let mut text = read_text(&folder.join("text/prophets.txt"))?;
    text.truncate(text.floor_char_boundary(CHECK_BYTES));
    Ok(Some(text))
}

/// Compares the file with the original. The file stays for any result.
fn check(arguments: &QuantizeArguments, text: &str, interrupt: &Interrupt) -> Option<WeightDivergence> {
    let options = WeightDivergenceOptions {
        window_tokens: arguments
            .check_tokens
            .min(WeightDivergenceOptions::default().window_tokens),
        most_tokens: arguments.check_tokens,
    };
    let engine = EngineOptions::default().with_memory_budget_bytes(arguments.memory);
    let found = weight_divergence(
        [&arguments.input, &arguments.output],
        &engine,
        text,
        &options,
        &mut |_| interrupt.flow(),
    );
    match found {
        Ok(found) => Some(found),
        Err(error) => {
            let failure = Failure::from(error);
            console::note(format!(
                "the file is written, but not compared with the original: {}",
                failure.message()
            ));
            None
        }
    }
}

/// Prints the plan's surprises.
fn note_tensors(plan: &QuantizePlan) {
    let name = |names: Vec<&str>| {
        let shown: Vec<String> = names
            .iter()
            .take(NAMED)
            .map(|name| shown::name(name).to_string())
            .collect();
        let more = names.len().saturating_sub(NAMED);
        if more > 0 {
            format!("{} and {more} more", shown.join(", "))
        } else {
            shown.join(", ")
        }
    };
    let mut fallbacks: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for tensor in plan.tensors() {
        if let Some(wanted) = tensor.in_place_of {
            fallbacks
                .entry((wanted.name(), tensor.to.name()))
                .or_default()
                .push(&tensor.name);
        }
    }
    for ((wanted, found), names) in fallbacks {
        console::note(format!(
            "{found} in place of {wanted}, whose blocks their rows do not fill: {}",
            name(names)
        ));
    }
    let again: Vec<&str> = plan
        .tensors()
        .iter()
        .filter(|tensor| tensor.is_encoded_again())
        .map(|tensor| &*tensor.name)
        .collect();
    if !again.is_empty() {
        console::note(format!(
            "{} tensors are quantised already, and lose more: better begin with f16, bf16 or f32 ({})",
            again.len(),
            name(again)
        ));
    }
    let low =
        |format: WeightFormat| 8 * format.block_bytes() < 4 * format.block_weights() && format.block_weights() > 1;
    if plan.options().importance.is_none() && low(plan.options().mix.format()) {
        console::note("below 4 bits an importance matrix helps much: riffle calibrate --imatrix collects one");
    }
}

/// Tensors by type, and sizes.
fn plan_text(plan: &QuantizePlan) -> String {
    let mut types: BTreeMap<&str, (usize, u64, u64)> = BTreeMap::new();
    let mut important = 0;
    for tensor in plan.tensors() {
        let found = types.entry(tensor.to.name()).or_default();
        found.0 += 1;
        found.1 += tensor.from_bytes;
        found.2 += tensor.to_bytes;
        important += usize::from(tensor.has_importance);
    }
    let mut lines = format!("{:<10}{:>8}{:>12}{:>12}\n", "type", "tensors", "before", "after");
    for (name, (count, before, after)) in types {
        lines += &format!(
            "{name:<10}{count:>8}{:>12}{:>12}\n",
            human_bytes(before),
            human_bytes(after)
        );
    }
    lines += &format!(
        "{:<10}{:>8}{:>12}{:>12}   {:.2} bits a weight\n",
        plan.options().mix.name(),
        plan.tensors().len(),
        human_bytes(plan.source_bytes()),
        human_bytes(plan.file_bytes()),
        plan.bits_per_weight()
    );
    if important > 0 {
        lines += &format!("importance of inputs is known for {important} tensors\n");
    }
    lines
}

fn check_lines(checked: &WeightDivergence) -> String {
    format!(
        "KL divergence from the original {:.4} (median {:.4}, largest {:.2}) over {} tokens; another likeliest token for {:.1}%; perplexity {:.3}, original {:.3}\n",
        checked.kl,
        checked.median_kl,
        checked.largest_kl,
        checked.tokens,
        100.0 * checked.flips,
        checked.perplexity,
        checked.original_perplexity
    )
}

#[derive(Serialize)]
struct Report<'a> {
    mix: &'a str,
    bytes: u64,
    source_bytes: u64,
    bits_per_weight: f64,
    resumed_tensors: usize,
    tensors: Vec<TensorReport<'a>>,
    divergence: Option<WeightDivergence>,
}

#[derive(Serialize)]
struct TensorReport<'a> {
    name: &'a str,
    shape: &'a [usize],
    from: &'a str,
    to: &'a str,
    bytes: u64,
    has_importance: bool,
}

impl<'a> Report<'a> {
    fn new(plan: &'a QuantizePlan, written: Option<Quantized>, divergence: Option<WeightDivergence>) -> Self {
        let tensors = plan.tensors().iter().map(|tensor| TensorReport {
            name: &tensor.name,
            shape: &tensor.shape,
            from: tensor.from.name(),
            to: tensor.to.name(),
            bytes: tensor.to_bytes,
            has_importance: tensor.has_importance,
        });
        Self {
            mix: plan.options().mix.name(),
            bytes: plan.file_bytes(),
            source_bytes: plan.source_bytes(),
            bits_per_weight: plan.bits_per_weight(),
            resumed_tensors: written.map_or(0, |written| written.resumed_tensors),
            tensors: tensors.collect(),
            divergence,
        }
    }
}
