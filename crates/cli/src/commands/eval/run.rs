//! Common steps of measurements with a record: load, continue a journal, show progress, print and save.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use riffle_engine::{Engine, EngineOptions, with_threads};
use riffle_eval::{
    Corpus, EvalError, GivenQuestion, Header, Journal, MachineInfo, Record, Results, RunSettings, StepWatch,
    TextSummary, Wording,
};
use serde_json::{Value, json};

use crate::args::EngineArguments;
use crate::commands::{engine_options, print, print_json, read_text};
use crate::console;
use crate::eval_args::{OutputArguments, SubjectArguments};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::StepDisplay;

/// The given path, or a shipped one.
fn shipped(given: Option<&PathBuf>, name: &str) -> Result<PathBuf, Failure> {
    match given {
        Some(path) => Ok(path.clone()),
        None => Ok(riffle_demo::fixtures()?.join(name)),
    }
}

/// Engine options whose policies may also be baselines.
pub(crate) fn options(arguments: &EngineArguments) -> Result<EngineOptions, Failure> {
    let baseline = |text: &str| {
        let name = text.split(':').next().unwrap_or_default().trim().to_ascii_lowercase();
        riffle_eval::baselines().iter().any(|info| info.name == name)
    };
    let (prefill, decode) = (&arguments.prefill, &arguments.decode);
    let mut known = arguments.clone();
    for (text, place) in [(prefill, &mut known.prefill), (decode, &mut known.decode)] {
        if baseline(text) {
            "full".clone_into(place);
        }
    }
    let mut options = engine_options(&known)?;
    let parse = |text: &str| riffle_eval::parse_policy(text).map_err(riffle_engine::EngineError::from);
    if baseline(prefill) {
        options.sequence.prefill = parse(prefill)?;
    }
    if baseline(decode) {
        options.sequence.decode = parse(decode)?;
    }
    Ok(options)
}

/// A measurement with its name, its seed and its output.
pub(crate) struct Measured<'a> {
    /// Such as `needle`.
    name: &'static str,
    /// Such as `needle-xattention-quest`.
    record_name: String,
    seed: u64,
    threads: Option<usize>,
    /// The measured text, if any.
    text: Option<TextSummary>,
    output: &'a OutputArguments,
}

/// Results of a measurement, and their engine.
pub(crate) type Found = (Results, Option<Arc<Engine>>);

impl<'a> Measured<'a> {
    /// A measurement of a model under `options`, or of the machine.
    pub(crate) fn new(
        (name, seed): (&'static str, u64),
        options: Option<&EngineOptions>,
        threads: Option<usize>,
        output: &'a OutputArguments,
    ) -> Self {
        let rules = options
            .into_iter()
            .flat_map(|options| [&options.sequence.prefill, &options.sequence.decode]);
        let policies = rules.map(|rules| rules.base.name()).filter(|policy| *policy != "full");
        let default_name = std::iter::once(name).chain(policies).collect::<Vec<_>>().join("-");
        Self {
            name,
            record_name: output.name.clone().unwrap_or(default_name),
            seed,
            threads,
            text: None,
            output,
        }
    }

    /// Adds the measured text with its file name.
    pub(crate) fn of_text(mut self, path: &Path, text: &str) -> Self {
        self.text = Some(TextSummary::new(&file_name(path), text));
        self
    }

    /// Checks that the record can be saved, measures on the requested threads, then prints and saves the record.
    pub(crate) fn keep(
        &self,
        measure: impl FnOnce(&mut StepWatch<'_>) -> Result<Found, Failure> + Send,
    ) -> Result<(), Failure> {
        let output = self.output;
        if let Some(folder) = &output.out {
            Record::check_write(folder, &self.record_name)?;
        }
        let interrupt = Interrupt::install()?;
        let mut display = StepDisplay::new();
        let start = Instant::now();
        let record = with_threads(self.threads, || {
            let found = measure(&mut |step| {
                display.update(step);
                interrupt.flow()
            });
            display.finish();
            let (results, engine) = found.map_err(|failure| match &output.resume {
                Some(path) => failure.with_hint(&format!(
                    "what is finished is in {}: the same command goes on from there",
                    path.display()
                )),
                None => failure.with_hint("with --resume FILE such a run can go on"),
            })?;
            let engine = engine.as_deref();
            let seconds = start.elapsed().as_secs_f64();
            let command = std::iter::once("riffle".to_owned()).chain(std::env::args().skip(1));
            let header = Header::new(&self.record_name, command.collect(), self.seed, engine, seconds)?;
            let header = header.with_text(self.text.clone());
            Ok::<_, Failure>(Record { header, results })
        })??;
        // The results are shown even if the record cannot be written.
        let kept = output.out.as_ref().map(|folder| write(&record, folder)).transpose();
        show(&record, output)?;
        kept.map(|_| ())
    }

    /// The journal of --resume. `about` adds further settings that must match: the model and its options, or the
    /// machine.
    pub(crate) fn journal(&self, engine: Option<&Engine>, about: Value) -> Result<Journal, Failure> {
        let Some(path) = self.output.resume.as_deref() else {
            return Ok(Journal::none());
        };
        let mut head = json!({ "measurement": self.name, "about": about });
        match engine {
            Some(engine) => {
                let mut settings = serde_json::to_value(RunSettings::from_engine(engine)).map_err(Failure::new)?;
                if let Some(settings) = settings.as_object_mut() {
                    // The possible context depends on the free memory, but the measured context does not.
                    settings.remove("context_tokens");
                }
                head["model"] = format!("{:032x}", engine.fingerprint()?).into();
                head["settings"] = settings;
            }
            None => head["machine"] = serde_json::to_value(MachineInfo::here()).map_err(Failure::new)?,
        }
        Ok(Journal::open(path, &head)?)
    }
}

/// The model and the text of a measurement.
pub(crate) struct Subject {
    pub(crate) model: PathBuf,
    pub(crate) text: PathBuf,
    /// The small model for drafts.
    pub(crate) draft_model: Option<PathBuf>,
    /// True if the model's own layer for further tokens drafts.
    pub(crate) draft_predictor: bool,
}

impl Subject {
    /// Takes the given model and text, or the shipped model and the shipped text of this name.
    pub(crate) fn new(arguments: &SubjectArguments, text: &str) -> Result<Self, Failure> {
        Ok(Self {
            model: shipped(arguments.model.as_ref(), "model")?,
            text: shipped(arguments.text.as_ref(), text)?,
            draft_model: None,
            draft_predictor: false,
        })
    }

    /// Loads the model, opens the journal, measures, prints and saves the record. `measure` receives the text and a
    /// way to open the journal.
    pub(crate) fn measure(
        &self,
        (name, seed): (&'static str, u64),
        engine: &EngineArguments,
        output: &OutputArguments,
        measure: impl FnOnce(
            &Arc<Engine>,
            &str,
            &dyn Fn(Value) -> Result<Journal, Failure>,
            &mut StepWatch<'_>,
        ) -> Result<Results, Failure>
        + Send,
    ) -> Result<(), Failure> {
        let options = options(engine)?
            .with_draft_model(self.draft_model.clone())
            .with_draft_predictor(self.draft_predictor);
        let text = read_text(&self.text)?;
        let measured = Measured::new((name, seed), Some(&options), engine.threads, output).of_text(&self.text, &text);
        measured.keep(|watch| {
            let engine = Engine::load(&self.model, options)?;
            let journal = |about: Value| measured.journal(Some(&engine), about);
            let results = measure(&engine, &text, &journal, watch)?;
            Ok((results, Some(engine)))
        })
    }
}

/// A file's name without the folders above.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// The corpus of a text, and its description in journals.
pub(crate) fn corpus(
    engine: &Arc<Engine>,
    text: &str,
    wording: &str,
    given: Vec<GivenQuestion>,
) -> Result<(Corpus, Value), EvalError> {
    let corpus = Corpus::new(engine, text, Wording::find(wording, engine)?, given)?;
    let about = corpus.about();
    Ok((corpus, about))
}

/// Writes the record and its pictures, and prints their paths.
fn write(record: &Record, folder: &Path) -> Result<(), Failure> {
    let mut paths = vec![record.write(folder)?];
    paths.extend(record.write_pictures(folder)?);
    paths.iter().for_each(|path| console::note(path.display()));
    Ok(())
}

fn show(record: &Record, output: &OutputArguments) -> Result<(), Failure> {
    if output.json {
        return print_json(record);
    }
    let text = if output.csv { record.csv()? } else { record.text() };
    print(&text)
}
