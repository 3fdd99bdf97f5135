//! `riffle calibrate`: the cheapest policies that keep the attention of each head.

use riffle_engine::{EngineError, Profile, with_threads};
use riffle_eval::{CalibrateOptions, Keep};
use riffle_policy::{CostModel, PolicySpec};

use super::run::audit_text;
use super::{engine_options, print, print_json, read_text};
use crate::args::CalibrateArguments;
use crate::console;
use crate::failure::Failure;
use crate::unused;

pub(crate) fn calibrate(arguments: &CalibrateArguments) -> Result<(), Failure> {
    unused::refuse_in_calibrate(&arguments.engine)?;
    Profile::check_write(&arguments.out)?;
    let text = read_text(&arguments.file)?;
    let folder = arguments.out.parent().filter(|folder| !folder.as_os_str().is_empty());
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
    let report = with_threads(arguments.engine.threads, || {
        riffle_eval::calibrate(&arguments.model.model, &options, &text, &calibration, &mut |line| {
            console::note(line);
        })
    })??;
    report.profile.write(&arguments.out)?;
    if arguments.json {
        return print_json(&report.audit);
    }
    print(&format!(
        "{}\nprofile   {}\n",
        audit_text(&report.audit),
        arguments.out.display()
    ))
}
