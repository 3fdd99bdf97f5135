//! A server with several models, each loaded on request.

use std::path::{Path, PathBuf};

use riffle_engine::{EngineError, human_bytes};
use riffle_files::gguf_shard;
use riffle_server::{ListenAddress, ModelSource, ModelsPlan, Server};

use super::{Bound, bodies_bytes, place, server_options};
use crate::commands::{check_folder, grouped};
use crate::failure::Failure;
use crate::serve_args::ServeArguments;
use crate::serving_args::name_of_path;
use crate::shown;

/// A model that may be served.
struct Served {
    name: String,
    path: PathBuf,
    /// True if the user typed the model's name; a typed model must exist.
    is_typed: bool,
}

pub(super) fn bound(arguments: &ServeArguments) -> Result<Bound, Failure> {
    refuse_options_of_one(arguments)?;
    let options = server_options(arguments, arguments.serving.unnamed_options()?)?;
    let (plan, left_out) = planned(arguments)?;
    let server = Server::bind_models(&plan, options)?;
    Ok(Bound {
        introduction: left_out + &introduction(arguments, &plan, server.address()),
        page_tokens: 0,
        server,
    })
}

/// Refuses options that belong to one model.
fn refuse_options_of_one(arguments: &ServeArguments) -> Result<(), Failure> {
    let serving = &arguments.serving;
    let draft = &serving.draft;
    let options = [
        ("--alias", !serving.alias.is_empty(), "name each as --model NAME=PATH"),
        (
            "--lora",
            !serving.engine.lora.is_empty(),
            "serve the one it was made for",
        ),
        (
            "--lora-modules",
            !arguments.lora_modules.is_empty(),
            "serve the one they were made for",
        ),
        ("--kv-events", arguments.kv_events.is_some(), "a router expects one"),
        (
            "--draft",
            draft.model().is_some() || draft.uses_predictor(),
            "auto, none, ngram and sparse draft for every model",
        ),
    ];
    match options.iter().find(|(_, is_given, _)| *is_given) {
        Some((option, _, instead)) => Err(Failure::new(format!(
            "{option} belongs to one model, and several are served: {instead}"
        ))),
        None => Ok(()),
    }
}

/// The plan of all models, and a line for each omitted one. A typed model that cannot be served is refused; a folder's
/// model is omitted.
fn planned(arguments: &ServeArguments) -> Result<(ModelsPlan, String), Failure> {
    let served = served(arguments)?;
    let options = arguments.serving.engine_options()?;
    let typed: Vec<&str> = served
        .iter()
        .filter(|model| model.is_typed)
        .map(|model| model.name.as_str())
        .collect();
    let sources = served.iter().map(|model| ModelSource {
        name: model.name.clone(),
        path: model.path.clone(),
        options: options.clone(),
    });
    let (mut refusal, mut left_out) = (None, String::new());
    let mut refused = |name: &str, error: EngineError| {
        let problem = Failure::from(error);
        let line = format!("{}: {}", shown::name(name), problem.message());
        if typed.contains(&name) {
            refusal.get_or_insert(Failure::new(line));
        } else {
            left_out += &format!("left out: {line}\n");
        }
    };
    let plan = ModelsPlan::new(
        sources.collect(),
        arguments.serving.engine.memory,
        arguments.serving.parallel(),
        bodies_bytes(arguments),
        &mut refused,
    );
    match (refusal, &arguments.models_dir) {
        (Some(refusal), _) => Err(refusal),
        (None, Some(folder)) if plan.models().is_empty() => Err(Failure::new(format!(
            "--models-dir {}: no model there can be served; put GGUF files there, or folders with config.json",
            folder.display()
        ))),
        (None, _) => Ok((plan, left_out)),
    }
}

/// The typed models and the folder's models, each once.
fn served(arguments: &ServeArguments) -> Result<Vec<Served>, Failure> {
    let mut served: Vec<Served> = Vec::new();
    for model in &arguments.models {
        served.push(Served {
            name: model.served_as.clone().unwrap_or_else(|| name_of_path(&model.path)),
            path: model.path.clone(),
            is_typed: true,
        });
    }
    let Some(folder) = &arguments.models_dir else {
        return Ok(served);
    };
    check_folder("--models-dir", Some(folder))?;
    for path in models_in(folder)? {
        let is_same = |other: &Served| other.path.canonicalize().ok() == path.canonicalize().ok();
        if !served.iter().any(is_same) {
            served.push(Served {
                name: without_part(name_of_path(&path)),
                path,
                is_typed: false,
            });
        }
    }
    Ok(served)
}

/// The GGUF files of a folder and its model folders, in the order of their names. A split file is named by its first
/// part.
fn models_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unread = |error: std::io::Error| Failure::new(format!("--models-dir {}: {error}", folder.display()));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        let stem = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default();
        let is_file = path
            .extension()
            .is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"))
            && path.is_file();
        let is_later_part = gguf_shard(&stem).is_some_and(|shard| shard.number != 1);
        if (is_file && !is_later_part) || path.join("config.json").is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn without_part(name: String) -> String {
    gguf_shard(&name).map_or_else(|| name.clone(), |shard| shard.stem.to_owned())
}

fn introduction(arguments: &ServeArguments, plan: &ModelsPlan, address: &ListenAddress) -> String {
    let mut text = format!(
        "serving {} models at {}, each loaded when it is asked for",
        plan.models().len(),
        place(arguments, address)
    );
    for model in plan.models() {
        text += &format!(
            "\n  {}: {} with a context of {} tokens",
            shown::name(model.name()),
            human_bytes(model.plan().total_bytes),
            grouped(model.plan().context_tokens),
        );
    }
    let room = human_bytes(plan.room_bytes());
    text += &if plan.fits_all() {
        format!("\nthey fit in memory together ({room})")
    } else {
        format!("\nthey have {room} together: the one used longest ago leaves when another needs its room")
    };
    if !plan.fits_all() && arguments.serving.prefix.prefix_cache.is_empty() {
        text += "\nprompts of a model that leaves are read again when it is back; --prefix-cache DIR keeps them";
    }
    text + "\nCtrl-C ends it; a second Ctrl-C ends it at once"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_its_files_and_folders_of_models_in_order_and_one_name_for_a_file_in_parts() {
        let folder = tempfile::tempdir().expect("a folder");
        for file in ["b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "notes.txt"] {
            std::fs::write(folder.path().join(file), "").expect("a file");
        }
        for name in ["c", "empty"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        std::fs::write(folder.path().join("c/config.json"), "{}").expect("a file");
        let found = models_in(folder.path()).expect("models");
        let names: Vec<String> = found.iter().map(|path| without_part(name_of_path(path))).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn only_names_of_parts_lose_their_numbers() {
        for (name, whole) in [
            ("qwen-00001-of-00003", "qwen"),
            ("best-of-5", "best-of-5"),
            ("one-of-us", "one-of-us"),
        ] {
            assert_eq!(without_part(name.to_owned()), whole);
        }
    }
}
