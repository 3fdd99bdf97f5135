//! The laboratory's tasks and records, as JSON and CSV for pandas.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use riffle_engine::Engine;
use riffle_eval::{
    AskPlace, CellStep, CompareOptions, CompareTask, Corpus, EvalError, Journal, NeedleKind, NeedleOptions,
    PolicyChoice, Record, RulerOptions, RulerTask, StepWatch, Wording, compare, needle, ruler, to_csv,
};
use riffle_policy::Phase;
use serde::Serialize;

use crate::engine::PyEngine;
use crate::failure::{Class, Failure};
use crate::items::Items;
use crate::options::policy;
use crate::watch::{Watch, run};

/// Options of an evaluation, and the text it reads.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct GivenTasks {
    text: String,
    wording: String,
    lengths: Items<usize>,
    /// Number of prompts, or of documents with needles.
    samples: u64,
    depths: usize,
    seed: u64,
    tasks: Items<String>,
    kinds: Items<String>,
    places: Items<String>,
    late: bool,
    compress: Option<String>,
    /// Policies, each with its phase if one was given.
    policies: Items<(Option<bool>, String)>,
    budget: Option<f64>,
    shares: bool,
}

/// A table of the laboratory: its cells as CSV.
type Table = String;

impl GivenTasks {
    fn corpus(&self, engine: &Arc<Engine>) -> Result<Corpus, Failure> {
        Ok(Corpus::new(
            engine,
            &self.text,
            Wording::find(&self.wording, engine)?,
            Vec::new(),
        )?)
    }

    fn needle(&self) -> Result<NeedleOptions, Failure> {
        Ok(NeedleOptions {
            lengths: self.lengths.copied("lengths")?,
            depths: self.depths,
            kinds: parsed::<NeedleKind>(&self.kinds.copied("kinds")?)?,
            places: parsed::<AskPlace>(&self.places.copied("places")?)?,
            documents: self.samples,
            seed: self.seed,
            compress: self.compress.as_deref().map(str::parse).transpose()?,
        })
    }

    fn ruler(&self) -> Result<RulerOptions, Failure> {
        Ok(RulerOptions {
            tasks: parsed::<RulerTask>(&self.tasks.copied("tasks")?)?,
            lengths: self.lengths.copied("lengths")?,
            samples: self.samples,
            seed: self.seed,
            late: self.late,
        })
    }

    fn comparison(&self) -> Result<CompareOptions, Failure> {
        let policies = self.policies.copied("policies")?;
        let choices = policies.iter().map(|(is_prefill, text)| choice(*is_prefill, text));
        Ok(CompareOptions {
            policies: choices.collect::<Result<_, _>>()?,
            tasks: parsed::<CompareTask>(&self.tasks.copied("tasks")?)?,
            lengths: self.lengths.copied("lengths")?,
            samples: self.samples,
            depths: self.depths,
            seed: self.seed,
            budgets: self.budget.into_iter().collect(),
            shares: self.shares,
        })
    }
}

fn parsed<T: std::str::FromStr>(texts: &[String]) -> Result<Vec<T>, Failure>
where
    Failure: From<T::Err>,
{
    texts.iter().map(|text| Ok(text.parse::<T>()?)).collect()
}

/// A policy in its phase: of the catalogue, of the laboratory, or written in Python.
fn choice(is_prefill: Option<bool>, text: &str) -> Result<PolicyChoice, Failure> {
    let phase = match is_prefill {
        None => "",
        Some(true) => "prefill=",
        Some(false) => "decode=",
    };
    let spelled = format!("{phase}{text}");
    let known = spelled.parse::<PolicyChoice>();
    let Ok(spec) = policy(text) else {
        // The laboratory's own message lists all known names.
        return Ok(known?);
    };
    if spec.info().source != crate::python_policy::SOURCE {
        return Ok(known?);
    }
    let phase = match is_prefill {
        Some(false) => Phase::Decode,
        None if !spec.info().traits.prefill => Phase::Decode,
        _ => Phase::Prefill,
    };
    Ok(PolicyChoice::named(phase, spec, spelled))
}

/// Records the progress of a measurement.
fn note(watch: &Watch, step: &CellStep<'_>) -> std::ops::ControlFlow<()> {
    // Work in thousandths: the measurement's own unit has no meaning for callers.
    watch.note(1000.0 * step.done / step.total.max(f64::MIN_POSITIVE), 1000)
}

/// Measures with a loaded engine on its own threads; `measure` returns the rows.
fn measured<T: Serialize>(
    py: Python<'_>,
    (engine, tasks, progress): (&PyEngine, &GivenTasks, Option<Py<PyAny>>),
    measure: impl FnOnce(&Arc<Engine>, &Corpus, &mut StepWatch<'_>) -> Result<Vec<T>, EvalError> + Send,
) -> Result<Table, Failure> {
    let loaded = engine.loaded()?;
    let engine = loaded.engine()?;
    run(py, &loaded.threads, progress.as_ref(), |watch| {
        let corpus = tasks.corpus(engine)?;
        let rows = measure(engine, &corpus, &mut |step| note(watch, step))?;
        Ok(to_csv(&rows)?)
    })
}

/// Measures needles: the questions as CSV.
#[pyfunction]
#[pyo3(signature = (engine, tasks, progress=None))]
pub(crate) fn run_needle(
    py: Python<'_>,
    engine: &PyEngine,
    tasks: GivenTasks,
    progress: Option<Py<PyAny>>,
) -> Result<Table, Failure> {
    let options = tasks.needle()?;
    measured(py, (engine, &tasks, progress), |engine, corpus, watch| {
        Ok(needle(engine, corpus, &options, &mut Journal::none(), watch)?.samples)
    })
}

/// Measures RULER: the prompts as CSV.
#[pyfunction]
#[pyo3(signature = (engine, tasks, progress=None))]
pub(crate) fn run_ruler(
    py: Python<'_>,
    engine: &PyEngine,
    tasks: GivenTasks,
    progress: Option<Py<PyAny>>,
) -> Result<Table, Failure> {
    let options = tasks.ruler()?;
    measured(py, (engine, &tasks, progress), |engine, corpus, watch| {
        Ok(ruler(engine, corpus, &options, &mut Journal::none(), watch)?.samples)
    })
}

/// Compares policies on the same tasks: policies and tasks as CSV.
#[pyfunction]
#[pyo3(signature = (engine, tasks, progress=None))]
pub(crate) fn run_compare(
    py: Python<'_>,
    engine: &PyEngine,
    tasks: GivenTasks,
    progress: Option<Py<PyAny>>,
) -> Result<Table, Failure> {
    let options = tasks.comparison()?;
    measured(py, (engine, &tasks, progress), |engine, corpus, watch| {
        Ok(compare(engine, corpus, &options, &mut Journal::none(), watch)?.rows)
    })
}

/// Makes a prompt of a RULER task, and the expected answers.
#[pyfunction]
pub(crate) fn ruler_prompt(
    engine: &PyEngine,
    tasks: GivenTasks,
    task: &str,
    context_tokens: usize,
) -> Result<(String, Vec<String>), Failure> {
    let loaded = engine.loaded()?;
    let corpus = tasks.corpus(loaded.engine()?)?;
    Ok(corpus.ruler_prompt(task.parse()?, context_tokens, tasks.seed)?)
}

/// The names of RULER's tasks, kinds of needles, and places to ask for them.
#[pyfunction]
pub(crate) fn task_names() -> (Vec<String>, Vec<String>, Vec<String>) {
    (
        RulerTask::ALL.iter().map(ToString::to_string).collect(),
        NeedleKind::ALL.iter().map(ToString::to_string).collect(),
        AskPlace::ALL.iter().map(ToString::to_string).collect(),
    )
}

/// A record: its header and kind as JSON, its rows as CSV.
#[pyfunction]
pub(crate) fn read_record(path: PathBuf) -> Result<(String, Table), Failure> {
    let record = Record::read(&path)?;
    let mut header = serde_json::to_value(&record).map_err(|error| Failure::new(Class::Internal, error.to_string()))?;
    if let Some(fields) = header.as_object_mut() {
        fields.remove("results");
    }
    Ok((header.to_string(), record.csv()?))
}
