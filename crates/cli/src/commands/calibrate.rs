//! `riffle calibrate`: finds the cheapest policies that keep the attention of each head, or an importance matrix.

use std::path::Path;

use riffle_engine::{Engine, EngineError, Profile, with_threads};
use riffle_eval::{CalibrateOptions, ImportanceOptions, Keep, collect_importance, observing};
use riffle_policy::{CostModel, PolicySpec};
use riffle_quantize::ImportanceMatrix;

use super::documents::{note_documents, read_documents};
use super::run::audit_text;
use super::{engine_options, print, print_json, read_text};
use crate::args::CalibrateArguments;
use crate::console;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::QuantizeDisplay;
use crate::unused;

pub(crate) fn calibrate(arguments: &CalibrateArguments) -> Result<(), Failure> {
    unused::refuse_in_calibrate(&arguments.engine)?;
    if let Some(out) = &arguments.imatrix {
        return importance(arguments, out);
    }
    let (Some(out), Some(file)) = (&arguments.out, &arguments.file) else {
        return Err(Failure::new(
            "give --file with a text and --out with a file to write, or --imatrix with documents",
        ));
    };
    Profile::check_write(out)?;
    let text = read_text(file)?;
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        let folder = folder.display();
        return Err(Failure::new(format!(
            "--out: there is no folder {folder}: create it, or choose another"
        )));
    }
    let options = engine_options(&arguments.engine)?;
    let candidates = arguments.candidate.iter().map(|text| text.parse::<PolicySpec>());
    let calibration = CalibrateOptions {
        candidates: candidates.collect::<Result<_, _>>().map_err(EngineError::from)?,
        keep: arguments
            .mean
            .map_or(Keep::FirstPercentile(arguments.target), Keep::Mean),
        length: arguments.length,
        cost: CostModel::measure(),
    };
    let model = arguments.model.path()?;
    let report = with_threads(arguments.engine.threads, || {
        riffle_eval::calibrate(model, &options, &text, &calibration, &mut |line| {
            console::note(line);
        })
    })??;
    report.profile.write(out)?;
    if arguments.json {
        return print_json(&report.audit);
    }
    print(&format!("{}\nprofile   {}\n", audit_text(&report.audit), out.display()))
}

/// Collects an importance matrix from documents.
fn importance(arguments: &CalibrateArguments, out: &Path) -> Result<(), Failure> {
    ImportanceMatrix::check_write(out)?;
    let collection = read_documents(&arguments.documents, None)?;
    note_documents(&collection.documents, &collection.left_out);
    let width = arguments.chunk_size;
    let options = observing(engine_options(&arguments.engine)?.with_context_tokens(Some(width)));
    let collecting = ImportanceOptions {
        chunk_tokens: width,
        most_chunks: arguments.length.map(|tokens| tokens / width),
        datasets: collection
            .documents
            .iter()
            .map(|document| document.name.clone())
            .collect(),
    };
    let interrupt = Interrupt::install()?;
    let matrix = with_threads(arguments.engine.threads, || -> Result<ImportanceMatrix, Failure> {
        let engine = Engine::load(arguments.model.path()?, options)?;
        let tokenizer = engine.tokenizer()?;
        let mut tokens = Vec::new();
        for document in &collection.documents {
            tokens.extend(tokenizer.encode(&document.text, false)?);
        }
        let mut display = QuantizeDisplay::new();
        let matrix = collect_importance(&engine, &tokens, &collecting, &mut |done, all| {
            display.update_chunks(done, all);
            interrupt.flow()
        });
        display.finish();
        Ok(matrix?)
    })??;
    matrix.write(out)?;
    print(&format!(
        "importance of the inputs of {} tensors, from {} tokens\nmatrix    {}\n",
        matrix.tensors.len(),
        matrix.chunk_count as usize * matrix.chunk_tokens as usize,
        out.display()
    ))
}
