//! Models of other programs on this machine: Ollama, LM Studio and llama.cpp. This code reads them and never changes
//! them.

mod llama_cpp;
mod lm_studio;
mod ollama;
mod repository;

use std::ffi::OsString;
use std::fmt::{self, Display};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use riffle_system::folders;

use crate::HubError;

/// A program with its own models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Program {
    /// Ollama: manifests that list layers; layers are files named by checksum.
    Ollama,
    /// LM Studio: folders `publisher/repository`.
    LmStudio,
    /// llama.cpp: GGUF files in one folder, named after their repositories.
    LlamaCpp,
}

/// A model of another program.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OtherModel {
    /// The name in the program's spelling: `llama3.2:1b`, `publisher/repository:Q4_K_M`.
    pub name: String,
    /// The program that keeps the model.
    pub program: Program,
    /// Quantisation of the model, or `safetensors`; `None` if unknown.
    pub format: Option<String>,
    /// Bytes of the model's existing files.
    pub bytes: u64,
    /// Time of the last read of one of its files, if the file system reports it.
    pub used: Option<SystemTime>,
    /// Path to open, or the reason why the model is unusable.
    pub path: Result<PathBuf, String>,
}

/// Folders of other programs' models.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OtherPrograms {
    /// Ollama's folders with `manifests` and `blobs`.
    pub ollama: Vec<PathBuf>,
    /// LM Studio's folders, with a folder for each publisher.
    pub lm_studio: Vec<PathBuf>,
    /// llama.cpp's cache.
    pub llama_cpp: Vec<PathBuf>,
}

/// Model folder of Ollama's system service.
const OLLAMA_SERVICE: &str = "/usr/share/ollama/.ollama/models";
/// Limit on the entries of a folder, and on the depth of folders.
const MOST_ENTRIES: usize = 20_000;
const DEEPEST: usize = 8;

impl Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ollama => "Ollama",
            Self::LmStudio => "LM Studio",
            Self::LlamaCpp => "llama.cpp",
        })
    }
}

impl OtherPrograms {
    /// The folders from environment variables and the programs' settings: `OLLAMA_MODELS`, `LLAMA_CACHE`, LM Studio's
    /// `settings.json`, and the usual places in the home folder.
    pub fn from_environment() -> Self {
        Self::from_variables(&|name| std::env::var_os(name))
    }

    /// Like [`from_environment`](Self::from_environment), with variables from `variable`.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = folders::home(variable);
        let below_home = |path: &str| home.as_ref().map(|home| home.join(path));
        let ollama = match given("OLLAMA_MODELS") {
            Some(folder) => vec![folder],
            None => below_home(".ollama/models")
                .into_iter()
                .chain([PathBuf::from(OLLAMA_SERVICE)])
                .collect(),
        };
        let caches = || Some(folders::caches_of(variable)?.join("llama.cpp"));
        let llama_cpp = given("LLAMA_CACHE").or_else(caches);
        Self {
            ollama,
            lm_studio: home.as_deref().map(lm_studio::folders).unwrap_or_default(),
            llama_cpp: llama_cpp.into_iter().collect(),
        }
    }

    /// Every model of these programs, by program and name. Missing or unreadable folders are empty.
    pub fn list(&self) -> Vec<OtherModel> {
        let ollama = self.ollama.iter().flat_map(|folder| ollama::list(folder));
        let lm_studio = self.lm_studio.iter().flat_map(|folder| lm_studio::list(folder));
        let llama_cpp = self.llama_cpp.iter().flat_map(|folder| llama_cpp::list(folder));
        ollama.chain(lm_studio).chain(llama_cpp).collect()
    }

    /// The model and program of a name; `None` if no program has it.
    ///
    /// # Errors
    /// [`HubError::Several`] for a name of more than one file.
    pub fn find(&self, name: &str) -> Result<Option<OtherModel>, HubError> {
        if let Some(found) = self.ollama.iter().find_map(|folder| ollama::find(folder, name)) {
            return Ok(Some(found));
        }
        let Ok(name) = name.parse() else { return Ok(None) };
        for folder in &self.lm_studio {
            if let Some(found) = lm_studio::find(folder, &name)? {
                return Ok(Some(found));
            }
        }
        for folder in &self.llama_cpp {
            if let Some(found) = llama_cpp::find(folder, &name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// A file below a folder.
#[derive(Debug, Clone)]
struct Found {
    /// Path below the folder, with slashes.
    path: String,
    bytes: u64,
    used: Option<SystemTime>,
}

/// The readable files of a folder and its subfolders, by their paths. Only links to files are followed.
fn files_below(folder: &Path) -> Vec<Found> {
    let mut found = Vec::new();
    let mut folders = vec![(folder.to_owned(), String::new(), 0)];
    while let Some((folder, prefix, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Some(path) = entry.file_name().to_str().map(|name| format!("{prefix}{name}")) else {
                continue;
            };
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                if depth < DEEPEST {
                    folders.push((entry.path(), format!("{path}/"), depth + 1));
                }
                continue;
            }
            let Ok(metadata) = fs::metadata(entry.path()) else {
                continue;
            };
            if metadata.is_file() && found.len() < MOST_ENTRIES {
                found.push(Found {
                    path,
                    bytes: metadata.len(),
                    used: metadata.accessed().ok(),
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}
