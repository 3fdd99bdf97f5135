//! Models among one repository's files in another program's folder.

use std::path::PathBuf;

use super::{Found, OtherModel, Program};
use crate::choice::{self, CONFIG, Chosen, Gguf};
use crate::{HubError, ModelName, ModelPart};

/// The models of a repository's files: each GGUF model, and the folder of safetensors. `place` returns a file's path.
pub(super) fn of_files(
    program: Program,
    name: &ModelName,
    files: &[Found],
    place: &dyn Fn(&str) -> PathBuf,
) -> Vec<OtherModel> {
    let models = choice::gguf_models(files.iter().map(|file| file.path.as_str()));
    let is_alone = |model: &Gguf| {
        let same = models.iter().filter(|other| other.quantisation == model.quantisation);
        same.count() == 1
    };
    let names = models.iter().map(|model| match &model.quantisation {
        Some(quantisation) if is_alone(model) => ModelPart::Quantisation(quantisation.clone()),
        _ => ModelPart::File(model.first().to_owned()),
    });
    let parts = names.chain(models.is_empty().then_some(ModelPart::Preferred));
    let found = parts.filter_map(|part| chosen(program, &name.with_part(part), files, place).ok()?);
    found.collect()
}

/// The model of `name` among a repository's files.
pub(super) fn chosen(
    program: Program,
    name: &ModelName,
    files: &[Found],
    place: &dyn Fn(&str) -> PathBuf,
) -> Result<Option<OtherModel>, HubError> {
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let chosen = match choice::choose(name, &paths) {
        Ok(chosen) => chosen,
        Err(error @ HubError::Several { .. }) => return Err(error),
        Err(_) => return Ok(None),
    };
    let (format, path) = match &chosen {
        Chosen::Gguf(model) if model.missing > 0 => {
            let problem = format!(
                "{} of its files are missing; download it again with {program}",
                model.missing
            );
            (model.quantisation.clone(), Err(problem))
        }
        Chosen::Gguf(model) => (model.quantisation.clone(), Ok(place(model.first()))),
        Chosen::Folder { .. } => {
            let config = place(CONFIG);
            let folder = config.parent().unwrap_or(&config).to_owned();
            (Some("safetensors".to_owned()), Ok(folder))
        }
    };
    let there = files.iter().filter(|file| match &chosen {
        Chosen::Gguf(model) => model.files.contains(&file.path),
        Chosen::Folder { .. } => true,
    });
    Ok(Some(OtherModel {
        name: name.to_string(),
        program,
        format,
        bytes: there.clone().map(|file| file.bytes).sum(),
        used: there.filter_map(|file| file.used).max(),
        path,
    }))
}
