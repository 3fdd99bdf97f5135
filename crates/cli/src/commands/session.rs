//! `riffle session`: works on saved sessions.

use riffle_engine::{
    CompressMethod, CompressOptions, CompressReport, Engine, compress_session, human_bytes, with_threads,
};

use super::{engine_options, grouped, note_activations, print, print_json};
use crate::args::{CompressArguments, SessionArguments, SessionCommand};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::PrefillDisplay;

pub(crate) fn session(arguments: &SessionArguments) -> Result<(), Failure> {
    match &arguments.command {
        SessionCommand::Compress(arguments) => compress(arguments),
    }
}

fn compress(arguments: &CompressArguments) -> Result<(), Failure> {
    let method: CompressMethod = arguments.method.parse()?;
    let compress = CompressOptions::new(method, arguments.keep);
    let mut options = engine_options(&arguments.engine)?;
    if !arguments.session.exists() {
        return Err(Failure::new(format!(
            "cannot read {}: no such file; riffle run --session FILE saves a session",
            arguments.session.display()
        )));
    }
    // The measurement reads tokens in a second sequence.
    options.machine.sequences = 2;
    with_threads(arguments.engine.threads, || {
        let engine = Engine::load(arguments.model.path()?, options)?;
        note_activations(
            &arguments.engine,
            engine.model().config(),
            engine.options().machine.device.is_some(),
        );
        let interrupt = Interrupt::install()?;
        let mut display = PrefillDisplay::new(&engine);
        let report = compress_session(&engine, &arguments.session, &compress, &mut |progress| {
            display.update(progress);
            interrupt.flow()
        });
        display.finish();
        let report = report.map_err(Failure::from)?;
        if arguments.json {
            print_json(&report)
        } else {
            print(&summary(&report))
        }
    })?
}

/// One line about the kept pairs and the freed bytes.
fn summary(report: &CompressReport) -> String {
    let compressed = &report.compressed;
    let share = 100.0 * compressed.pairs as f64 / compressed.pairs_before.max(1) as f64;
    format!(
        "kept {} of {} pairs of keys and values ({share:.1}%) of {} tokens; freed {} of {} of pages; the file has {}, had {}\n",
        grouped(compressed.pairs),
        grouped(compressed.pairs_before),
        grouped(compressed.tokens),
        human_bytes(compressed.bytes_before.saturating_sub(compressed.bytes)),
        human_bytes(compressed.bytes_before),
        human_bytes(report.session.file_bytes),
        human_bytes(report.file_bytes_before),
    )
}
