//! Where the shipped model and text lie.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The `fixtures` folder of the checkout: below the working directory, or where this program was built.
pub(crate) fn fixtures() -> Result<PathBuf, Failure> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    [PathBuf::from("fixtures"), built]
        .into_iter()
        .find(|folder| folder.join("model/config.json").is_file())
        .ok_or_else(|| {
            Failure::new(
                "the shipped model is not here (no fixtures/model): run riffle in its checkout, or give a model: riffle run --model PATH --prompt TEXT",
            )
        })
}
