//! Names of models: `owner/name`, `owner/name:Q4_K_M`, `owner/name/file.gguf`.

use std::fmt::{self, Display};
use std::path::Path;
use std::str::FromStr;

use crate::HubError;
use crate::paths::is_plain_path;

/// A model of the hub: a repository and a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelName {
    owner: String,
    repository: String,
    /// The model within the repository.
    pub part: ModelPart,
}

/// The selected model of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ModelPart {
    /// The model that [`PREFERENCE`](crate::PREFERENCE) selects.
    Preferred,
    /// The GGUF files of this quantisation, such as `Q4_K_M` or `UD-Q4_K_XL`, in capitals. `Q4_K_XL` also names
    /// `UD-Q4_K_XL` if there is no plain one.
    Quantisation(String),
    /// This file, by its path in the repository.
    File(String),
}

/// Prefixes that users write before a name.
const PREFIXES: [&str; 5] = [
    "https://huggingface.co/",
    "http://huggingface.co/",
    "huggingface.co/",
    "https://hf.co/",
    "hf.co/",
];
/// Characters of an owner or of a repository's own name.
const LONGEST_PART: usize = 96;

impl ModelName {
    /// The hub's name of the repository, `owner/name`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.repository)
    }

    /// The repository's folder in a cache: `models--owner--name`.
    pub fn folder_name(&self) -> String {
        format!("models--{}--{}", self.owner, self.repository)
    }

    /// The repository of the cache folder `folder`.
    pub fn of_folder(folder: &str) -> Option<Self> {
        let (owner, repository) = folder.strip_prefix("models--")?.split_once("--")?;
        Self::checked(owner, repository, ModelPart::Preferred)
    }

    /// The name of the model at `path` in a cache, in `models--owner--name/snapshots/COMMIT`. `None` for another
    /// path.
    pub fn of_path(path: &Path) -> Option<Self> {
        let folders: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
        let at = folders.iter().rposition(|folder| *folder == "snapshots")?;
        let name = Self::of_folder(folders.get(at.checked_sub(1)?)?)?;
        let file = folders.get(at + 2..).unwrap_or_default().join("/");
        let part = if file.is_empty() {
            ModelPart::Preferred
        } else {
            ModelPart::File(file)
        };
        Some(Self { part, ..name })
    }

    /// The same repository with another part.
    pub fn with_part(&self, part: ModelPart) -> Self {
        Self { part, ..self.clone() }
    }

    fn checked(owner: &str, repository: &str, part: ModelPart) -> Option<Self> {
        let is_name = |text: &str| {
            let end = |c: char| c == '-' || c == '.';
            (1..=LONGEST_PART).contains(&text.len())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
                && !text.starts_with(end)
                && !text.ends_with(end)
                && !text.contains("..")
                && !text.contains("--")
        };
        (is_name(owner) && is_name(repository)).then(|| Self {
            owner: owner.to_owned(),
            repository: repository.to_owned(),
            part,
        })
    }
}

impl ModelPart {
    /// The part for a quantisation's name; `None` for an invalid name.
    pub fn quantisation(text: &str) -> Option<Self> {
        let is_quantisation = text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        is_quantisation.then(|| Self::Quantisation(text.to_ascii_uppercase()))
    }
}

impl FromStr for ModelName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let refused = || HubError::Name { name: text.to_owned() };
        let given = PREFIXES
            .iter()
            .find_map(|prefix| text.strip_prefix(prefix))
            .unwrap_or(text);
        let (owner, rest) = given.trim_end_matches('/').split_once('/').ok_or_else(refused)?;
        let (repository, part) = match (rest.split_once('/'), rest.split_once(':')) {
            (Some((repository, file)), _) => {
                // The hub's pages show files with this prefix.
                let file = file.strip_prefix("blob/main/").unwrap_or(file);
                let file = file.strip_prefix("resolve/main/").unwrap_or(file);
                let ends = |end: &str| file.to_ascii_lowercase().ends_with(end);
                if !is_plain_path(file) || !(ends(".gguf") || ends(".safetensors")) {
                    return Err(refused());
                }
                (repository, ModelPart::File(file.to_owned()))
            }
            (None, Some((repository, quantisation))) => {
                (repository, ModelPart::quantisation(quantisation).ok_or_else(refused)?)
            }
            (None, None) => (rest, ModelPart::Preferred),
        };
        Self::checked(owner, repository, part).ok_or_else(refused)
    }
}

impl Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.repository)?;
        match &self.part {
            ModelPart::Preferred => Ok(()),
            ModelPart::Quantisation(quantisation) => write!(f, ":{quantisation}"),
            ModelPart::File(file) => write!(f, "/{file}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_people_write_them() {
        for (text, part) in [
            ("Qwen/Qwen2.5-0.5B", ModelPart::Preferred),
            ("https://huggingface.co/Qwen/Qwen2.5-0.5B/", ModelPart::Preferred),
            (
                "hf.co/Qwen/Qwen2.5-0.5B:q4_k_m",
                ModelPart::Quantisation("Q4_K_M".into()),
            ),
            (
                "Qwen/Qwen2.5-0.5B:UD-Q4_K_XL",
                ModelPart::Quantisation("UD-Q4_K_XL".into()),
            ),
            ("Qwen/Qwen2.5-0.5B/a/b.gguf", ModelPart::File("a/b.gguf".into())),
            (
                "https://huggingface.co/Qwen/Qwen2.5-0.5B/blob/main/b.gguf",
                ModelPart::File("b.gguf".into()),
            ),
        ] {
            let name: ModelName = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(name.repository(), "Qwen/Qwen2.5-0.5B", "{text}");
            assert_eq!(name.folder_name(), "models--Qwen--Qwen2.5-0.5B", "{text}");
            assert_eq!(name.part, part, "{text}");
            assert_eq!(name.to_string().parse::<ModelName>().ok(), Some(name), "{text}");
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            "gpt2",
            "/",
            "a/",
            "/b",
            "../b",
            "a/..",
            "a/b/../../c.gguf",
            "a/b//c.gguf",
            "a/b/c.bin",
            "a/b:",
            "a/b:Q 4",
            "a b/c",
            "a/b\n",
            "a/b/\u{1b}.gguf",
            "a--b/c",
            "a/-b",
            "./a",
            "a/b:Q4/c.gguf",
            "C:\\a/b",
        ] {
            assert!(text.parse::<ModelName>().is_err(), "{text:?} is taken for a name");
        }
        assert!(format!("a/{}", "b".repeat(97)).parse::<ModelName>().is_err());
    }

    #[test]
    fn a_path_in_a_cache_tells_its_name() {
        let of = |path: &str| ModelName::of_path(Path::new(path)).map(|name| name.to_string());
        assert_eq!(of("/c/models--a--b/snapshots/12"), Some("a/b".into()));
        assert_eq!(of("/c/models--a--b/snapshots/12/x/y.gguf"), Some("a/b/x/y.gguf".into()));
        assert_eq!(of("/c/models/a/b"), None);
        assert_eq!(of("snapshots/12"), None);
    }
}
