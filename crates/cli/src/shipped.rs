//! Finds the shipped model and text.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The `fixtures` folder: in the working directory, next to this program (as in a release), or in the checkout of the
/// build.
pub(crate) fn fixtures() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().ok();
    // The link's target comes second, because Windows writes resolved paths in a form that few programs take.
    let target = program.as_deref().and_then(|path| path.canonicalize().ok());
    let beside = |program: Option<PathBuf>| Some(program?.parent()?.join("fixtures"));
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let built = built.map(|checkout| checkout.join("fixtures"));
    let mut folders = [Some(PathBuf::from("fixtures")), beside(program), beside(target), built]
        .into_iter()
        .flatten();
    folders
        .find(|folder| folder.join("model/config.json").is_file())
        .ok_or_else(|| {
            Failure::new(
                "the shipped model is not here (no fixtures/model in this folder or beside the program): run riffle in its checkout or in an unpacked release, or give a model: riffle run --model PATH --prompt TEXT",
            )
        })
}
