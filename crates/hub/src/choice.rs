//! Selects the files of a repository that form one model for Riffle.

use std::collections::BTreeMap;

use riffle_files::{TOKENIZER_FILES, gguf_shard, gguf_stem};

use crate::paths::file_name;
use crate::quantisation::{self, PREFERENCE};
use crate::{HubError, ModelName, ModelPart};

/// A GGUF model: one file, or shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gguf {
    /// Paths in the repository, the first shard first.
    pub(crate) files: Vec<String>,
    pub(crate) quantisation: Option<String>,
    /// Shards that the names announce but the repository lacks.
    pub(crate) missing: u32,
}

/// The files of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// The first file is the one to open.
    Gguf(Gguf),
    /// A folder of safetensors: the files besides the shards, and the index that names the shards, if there is one.
    Folder { files: Vec<String>, index: Option<String> },
}

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Files that a pull of safetensors downloads besides the weights: never a program and never a pickle.
const OTHER_MODEL_FILES: [&str; 9] = [
    CONFIG,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
    "additional_chat_templates/rag.jinja",
];
/// Limit on the choices in a message.
const MOST_CHOICES: usize = 24;

impl Gguf {
    /// The file to open.
    pub(crate) fn first(&self) -> &str {
        self.files.first().map_or("", String::as_str)
    }
}

/// The GGUF models among a repository's files, ordered by name. Image projectors and importance tables are not
/// models.
pub(crate) fn gguf_models<'a>(paths: impl IntoIterator<Item = &'a str>) -> Vec<Gguf> {
    let mut groups: BTreeMap<String, (Vec<String>, u32)> = BTreeMap::new();
    for path in paths {
        let Some(stem) = gguf_stem(path) else {
            continue;
        };
        let (key, count) = match gguf_shard(stem) {
            Some(shard) => (format!("{} of {}", shard.stem, shard.count), shard.count),
            None => (stem.to_owned(), 1),
        };
        let group = groups.entry(key).or_insert_with(|| (Vec::new(), count));
        group.0.push(path.to_owned());
    }
    let models = groups.into_values().map(|(mut files, count)| {
        files.sort();
        Gguf {
            quantisation: files.first().and_then(|file| quantisation::of_file(file)),
            missing: count.saturating_sub(files.len() as u32),
            files,
        }
    });
    models.collect()
}

/// Selects the files for `name` in its repository.
///
/// # Errors
/// [`HubError::NoModel`], [`HubError::NoSuchPart`], [`HubError::Several`].
pub(crate) fn choose(name: &ModelName, paths: &[&str]) -> Result<Chosen, HubError> {
    let models = gguf_models(paths.iter().copied());
    let matching = |wanted: &dyn Fn(&Gguf) -> bool| models.iter().filter(|model| wanted(model)).collect::<Vec<_>>();
    let missing = |wanted: &str| HubError::NoSuchPart {
        repository: name.repository(),
        wanted: wanted.to_owned(),
        choices: choices(&models, paths),
    };
    match &name.part {
        ModelPart::File(file) => {
            if let [model] = matching(&|model| model.files.contains(file))[..] {
                return Ok(Chosen::Gguf(model.clone()));
            }
            // A name of weights in a folder means the folder.
            if paths.contains(&file.as_str()) && file_name(file) == SINGLE && !file.contains('/') {
                folder(name, paths)
            } else {
                Err(missing(file))
            }
        }
        ModelPart::Quantisation(wanted) => {
            let found = of_quantisation(&models, wanted);
            if found.is_empty() {
                Err(missing(wanted))
            } else {
                one(name, &found)
            }
        }
        ModelPart::Preferred if models.is_empty() => folder(name, paths),
        ModelPart::Preferred => {
            let preferred = PREFERENCE
                .iter()
                .map(|wanted| of_quantisation(&models, wanted))
                .find(|found| !found.is_empty());
            one(name, &preferred.unwrap_or_else(|| models.iter().collect()))
        }
    }
}

/// The models of a quantisation: exact matches, or else mixes.
fn of_quantisation<'a>(models: &'a [Gguf], wanted: &str) -> Vec<&'a Gguf> {
    let of = |is_it: &dyn Fn(&str) -> bool| -> Vec<&'a Gguf> {
        let found = models
            .iter()
            .filter(|model| model.quantisation.as_deref().is_some_and(is_it));
        found.collect()
    };
    let exact = of(&|found| found == wanted);
    if exact.is_empty() {
        of(&|found| quantisation::names(wanted, found))
    } else {
        exact
    }
}

fn one(name: &ModelName, found: &[&Gguf]) -> Result<Chosen, HubError> {
    if let [model] = found {
        return Ok(Chosen::Gguf((*model).clone()));
    }
    let names = found
        .iter()
        .map(|model| format!("{}/{}", name.repository(), model.first()));
    Err(HubError::Several {
        repository: name.repository(),
        choices: listed(names.collect()),
    })
}

fn folder(name: &ModelName, paths: &[&str]) -> Result<Chosen, HubError> {
    let has = |path: &str| paths.contains(&path);
    let no_model = |problem: &str| HubError::NoModel {
        repository: name.repository(),
        problem: problem.to_owned(),
    };
    let weights = match (has(SINGLE), has(INDEX)) {
        (true, _) => SINGLE,
        (false, true) => INDEX,
        (false, false) => {
            let is_pickle = |path: &&str| {
                [".bin", ".pt", ".pth", ".ckpt", ".pkl"]
                    .iter()
                    .any(|end| path.ends_with(end))
            };
            return Err(match paths.iter().find(|path| is_pickle(path)) {
                Some(pickle) => no_model(&format!(
                    "its weights are pickles ({pickle}), which can run code; look for a repository with safetensors or GGUF files"
                )),
                None => no_model("it holds neither GGUF files nor model.safetensors"),
            });
        }
    };
    if !has(CONFIG) {
        return Err(no_model("config.json is missing beside its weights"));
    }
    let beside = OTHER_MODEL_FILES.iter().filter(|file| has(file));
    let tokenizer = TOKENIZER_FILES.iter().find(|file| has(file));
    Ok(Chosen::Folder {
        files: beside
            .chain(tokenizer)
            .chain([&weights])
            .map(|file| (*file).to_owned())
            .collect(),
        index: (weights == INDEX).then(|| INDEX.to_owned()),
    })
}

/// Lists the available models, for a message.
fn choices(models: &[Gguf], paths: &[&str]) -> String {
    let mut names: Vec<String> = models
        .iter()
        .map(|model| model.quantisation.clone().unwrap_or_else(|| model.first().to_owned()))
        .collect();
    names.dedup();
    if paths.contains(&SINGLE) || paths.contains(&INDEX) {
        names.push("safetensors (the name alone)".to_owned());
    }
    if names.is_empty() {
        "no GGUF files and no safetensors".to_owned()
    } else {
        listed(names)
    }
}

pub(crate) fn listed(names: Vec<String>) -> String {
    match names.len().checked_sub(MOST_CHOICES) {
        Some(more @ 1..) => format!("{} and {more} more", names[..MOST_CHOICES].join(", ")),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(name: &str, paths: &[&str]) -> Result<Chosen, String> {
        let name: ModelName = name.parse().expect("a name");
        choose(&name, paths).map_err(|error| error.to_string())
    }

    fn first(name: &str, paths: &[&str]) -> String {
        match chosen(name, paths) {
            Ok(Chosen::Gguf(model)) => model.first().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    const MANY: [&str; 7] = [
        "README.md",
        "imatrix.gguf",
        "m-F16.gguf",
        "m-Q2_K.gguf",
        "m-Q4_K_M.gguf",
        "m-Q8_0.gguf",
        "mmproj-F16.gguf",
    ];

    #[test]
    fn a_gguf_file_is_chosen_by_preference_or_by_name() {
        assert_eq!(first("a/b", &MANY), "m-Q4_K_M.gguf");
        assert_eq!(
            first("a/b", &["m-F16.gguf", "m-Q2_K.gguf", "m-Q8_0.gguf"]),
            "m-Q8_0.gguf"
        );
        assert_eq!(first("a/b:f16", &MANY), "m-F16.gguf");
        assert_eq!(first("a/b/m-Q2_K.gguf", &MANY), "m-Q2_K.gguf");
        assert_eq!(first("a/b", &["only.gguf"]), "only.gguf");
        assert_eq!(first("a/b", &["m-IQ2_XS.gguf"]), "m-IQ2_XS.gguf");
        let mixes = ["m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf"];
        assert_eq!(first("a/b", &mixes), "m-Q4_K_M.gguf");
        assert_eq!(first("a/b:ud-q4_k_m", &mixes), "m-UD-Q4_K_M.gguf");
        assert_eq!(first("a/b:Q4_K_XL", &mixes), "m-UD-Q4_K_XL.gguf");
        assert_eq!(
            first("a/b", &["m-UD-Q4_K_XL.gguf", "m-UD-Q2_K_XL.gguf"]),
            "m-UD-Q4_K_XL.gguf"
        );
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        let refused = chosen("a/b:Q5_K_M", &MANY).expect_err("no such file");
        assert_eq!(refused, "a/b has no Q5_K_M; it has F16, Q2_K, Q4_K_M, Q8_0");
        let refused = chosen("a/b/x.gguf", &["config.json", "model.safetensors"]).expect_err("no such file");
        assert_eq!(refused, "a/b has no x.gguf; it has safetensors (the name alone)");
        let many: Vec<String> = (0..100).map(|number| format!("m{number:03}-IQ1_S.gguf")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let refused = chosen("a/b", &many).expect_err("several");
        assert!(
            refused.ends_with("and 76 more") && refused.contains("a/b/m000-IQ1_S.gguf, "),
            "{refused}"
        );
    }

    #[test]
    fn several_models_of_one_quantisation_are_listed() {
        let refused = chosen("a/b:Q8_0", &["big-Q8_0.gguf", "small-Q8_0.gguf"]).expect_err("several");
        assert!(
            refused.ends_with("give one of a/b/big-Q8_0.gguf, a/b/small-Q8_0.gguf"),
            "{refused}"
        );
    }

    #[test]
    fn shards_belong_together() {
        let paths = [
            "Q8_0/m-Q8_0-00002-of-00002.gguf",
            "Q8_0/m-Q8_0-00001-of-00002.gguf",
            "m-Q4_0-00002-of-00003.gguf",
        ];
        let Ok(Chosen::Gguf(model)) = chosen("a/b:Q8_0", &paths) else {
            panic!("a model");
        };
        assert_eq!(
            model.files,
            ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"]
        );
        assert_eq!(model.missing, 0);
        let Ok(Chosen::Gguf(model)) = chosen("a/b:Q4_0", &paths) else {
            panic!("a model");
        };
        assert_eq!(model.missing, 2);
        let named = first("a/b/Q8_0/m-Q8_0-00002-of-00002.gguf", &paths);
        assert_eq!(named, "Q8_0/m-Q8_0-00001-of-00002.gguf", "any shard names the model");
    }

    #[test]
    fn of_a_folder_only_what_is_needed_is_taken() {
        let paths = [
            "config.json",
            "evil.py",
            "model.safetensors",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        let Ok(Chosen::Folder { files, index: None }) = chosen("a/b", &paths) else {
            panic!("a folder");
        };
        assert_eq!(
            files,
            [
                "config.json",
                "tokenizer_config.json",
                "tokenizer.json",
                "model.safetensors"
            ]
        );
        let of = |tokenizers: &[&'static str]| {
            let Ok(Chosen::Folder { files, .. }) = chosen("a/b", &[&["config.json", SINGLE], tokenizers].concat())
            else {
                panic!("a folder");
            };
            files[1].clone()
        };
        assert_eq!(of(&["tekken.json", "tokenizer.model"]), "tokenizer.model");
        assert_eq!(of(&["tekken.json"]), "tekken.json");
        assert_eq!(
            of(&["tekken.json", "tokenizer.json", "tokenizer.model"]),
            "tokenizer.json"
        );
        let sharded = ["config.json", INDEX, "model-00001-of-00002.safetensors"];
        let Ok(Chosen::Folder { files, index }) = chosen("a/b", &sharded) else {
            panic!("a folder");
        };
        assert_eq!(
            (files.as_slice(), index.as_deref()),
            (&["config.json".to_owned(), INDEX.to_owned()][..], Some(INDEX))
        );
    }

    #[test]
    fn pickles_are_never_taken() {
        let refused = chosen("a/b", &["config.json", "pytorch_model.bin"]).expect_err("pickles");
        assert!(refused.contains("pickles (pytorch_model.bin)"), "{refused}");
        assert!(
            chosen("a/b", &["README.md"])
                .expect_err("nothing")
                .contains("neither GGUF")
        );
        assert!(
            chosen("a/b", &["model.safetensors"])
                .expect_err("no config")
                .contains("config.json")
        );
    }
}
