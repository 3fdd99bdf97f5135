//! Models pulled by other programs.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use riffle_hub::{HubError, OtherModel, OtherPrograms, Program, locate};
use riffle_testing::hub::{Hub, bytes, other_home};

use crate::settings;

fn programs(home: &Path) -> OtherPrograms {
    OtherPrograms::from_variables(&|name| match name {
        "HOME" => Some(home.as_os_str().to_owned()),
        "XDG_CACHE_HOME" => Some(home.join(".cache").into_os_string()),
        "OLLAMA_MODELS" => Some(home.join(".ollama/models").into_os_string()),
        _ => None,
    })
}

fn path_of(found: Option<OtherModel>) -> Result<PathBuf, String> {
    found.expect("a model").path
}

#[test]
fn models_of_ollama_are_found_by_their_names() {
    let home = other_home(&bytes(3000, 1));
    let programs = programs(home.path());
    for name in [
        "llama3.2:1b",
        "LLAMA3.2:1b",
        "library/llama3.2:1b",
        "registry.ollama.ai/library/llama3.2:1b",
    ] {
        let found = programs.find(name).expect("readable").expect(name);
        assert_eq!((found.name.as_str(), found.program), ("llama3.2:1b", Program::Ollama));
        assert_eq!((found.bytes, found.format.as_deref()), (3000, Some("Q4_K_M")));
        assert_eq!(fs::read(found.path.expect("a path")).expect("a file"), bytes(3000, 1));
    }
    assert!(
        path_of(programs.find("somebody/tuned").expect("readable")).is_ok(),
        "the latest"
    );
    assert!(
        programs.find("llama3.2").expect("readable").is_none(),
        "there is no latest"
    );
    let adapter = path_of(programs.find("adapted:latest").expect("readable")).expect_err("an adapter");
    assert!(adapter.contains("--lora") && adapter.contains("sha256-"), "{adapter}");
    for (name, part) in [
        ("missing:latest", "is missing"),
        ("damaged:latest", "is damaged"),
        ("cut:latest", "3001"),
        ("elsewhere:latest", "no GGUF file"),
        ("hostile:latest", "without a sum"),
    ] {
        let problem = path_of(programs.find(name).expect("readable")).expect_err(name);
        assert!(problem.contains(part) && !problem.contains('\n'), "{name}: {problem}");
    }
}

#[test]
fn models_of_lm_studio_and_llama_cpp_are_found_by_their_repositories() {
    let home = other_home(&bytes(3000, 1));
    let programs = programs(home.path());
    let found = |name: &str| programs.find(name).expect("readable");
    for name in [
        "publisher/model-GGUF",
        "publisher/model-GGUF:Q4_K_M",
        "publisher/model-GGUF/model-Q4_K_M.gguf",
    ] {
        let model = found(name).expect(name);
        assert_eq!((model.program, model.bytes), (Program::LmStudio, 3000), "{name}");
        assert!(
            model
                .path
                .expect("a path")
                .ends_with("publisher/model-GGUF/model-Q4_K_M.gguf")
        );
    }
    assert!(
        path_of(found("publisher/split"))
            .expect_err("a shard is missing")
            .contains("1 of its files")
    );
    assert!(
        path_of(found("publisher/folder"))
            .expect("a folder")
            .ends_with("publisher/folder")
    );
    assert!(found("publisher/none").is_none() && found("publisher/model-GGUF:Q8_0").is_none());
    let cached = found("owner/cached-GGUF:Q8_0").expect("a model of llama.cpp");
    assert_eq!(
        (cached.program, cached.name.as_str()),
        (Program::LlamaCpp, "owner/cached-GGUF:Q8_0")
    );
}

#[test]
fn the_settings_of_lm_studio_name_another_folder() {
    let home = tempfile::tempdir().expect("a folder");
    let models = home.path().join("elsewhere");
    let studio = home.path().join("studio");
    fs::create_dir_all(models.join("p/m")).expect("a folder");
    fs::create_dir_all(&studio).expect("a folder");
    fs::write(models.join("p/m/m-Q8_0.gguf"), "").expect("a file");
    fs::write(
        home.path().join(".lmstudio-home-pointer"),
        format!("{}\n", studio.display()),
    )
    .expect("a file");
    let text = format!("{{\"downloadsFolder\": {:?}}}", models.to_str().expect("UTF-8"));
    fs::write(studio.join("settings.json"), text).expect("a file");
    let found = programs(home.path()).list();
    assert_eq!(
        found.iter().map(|model| model.name.as_str()).collect::<Vec<_>>(),
        ["p/m:Q8_0"]
    );
}

#[test]
fn all_are_listed_and_one_program_s_damage_hides_no_other_model() {
    let home = other_home(&bytes(3000, 1));
    let listed = programs(home.path()).list();
    let names = |program: Program| {
        let of = listed.iter().filter(|model| model.program == program);
        of.map(|model| model.name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(
        names(Program::Ollama),
        [
            "adapted:latest",
            "cut:latest",
            "damaged:latest",
            "elsewhere:latest",
            "hostile:latest",
            "llama3.2:1b",
            "missing:latest",
            "somebody/tuned:latest"
        ]
    );
    assert_eq!(
        names(Program::LmStudio),
        [
            "publisher/folder",
            "publisher/model-GGUF:Q4_K_M",
            "publisher/split:Q8_0"
        ]
    );
    assert_eq!(names(Program::LlamaCpp), ["owner/cached-GGUF:Q8_0"]);
    let nowhere = OtherPrograms::from_variables(&|_| None::<OsString>);
    assert!(nowhere.lm_studio.is_empty() && nowhere.llama_cpp.is_empty());
}

#[test]
fn a_name_is_looked_up_in_the_hub_s_cache_first_and_then_elsewhere() {
    let home = other_home(&bytes(3000, 1));
    let hub = Hub::start(&[("m-Q4_K_M.gguf", bytes(2000, 2))]);
    let cache = tempfile::tempdir().expect("a folder");
    let (settings, programs) = (settings(&hub, cache.path()), programs(home.path()));
    let located = |name: &str| locate(&settings, &programs, name);
    assert!(located("publisher/model-GGUF").expect("found").is_some());
    assert!(located("llama3.2:1b").expect("found").is_some());
    assert!(matches!(located("owner/model"), Err(HubError::NotStored { .. })));
    assert!(matches!(located("qwen3-4b"), Err(HubError::NotStored { name }) if name == "qwen3:4b"));
    assert!(matches!(located("qwen3"), Err(HubError::Unknown { near, .. }) if near.contains("qwen3:4b")));
    assert!(located("no such thing").expect("a path").is_none());
    let problem = located("damaged").expect_err("damaged").to_string();
    assert!(
        problem.starts_with("damaged:latest is a model of Ollama, and its manifest"),
        "{problem}"
    );
    crate::pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert!(located("owner/model").expect("found").is_some());
}
