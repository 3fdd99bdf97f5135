//! Models of Ollama.
//!
//! ```text
//! manifests/registry.ollama.ai/library/llama3.2/1b     JSON: layers with a type, a sum and a size
//! blobs/sha256-SUM                                      a layer: the GGUF file, a template, an adapter
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{OtherModel, Program, files_below};

/// Limit on the bytes of a manifest, and of the settings in it.
const LARGEST_JSON: u64 = 1 << 20;
/// Hexadecimal digits of a sum.
const SUM_DIGITS: usize = 64;
/// Types of layers.
const MODEL: &str = "application/vnd.ollama.image.model";
const ADAPTER: &str = "application/vnd.ollama.image.adapter";
/// The default registry and model folder.
const REGISTRY: &str = "registry.ollama.ai";
const LIBRARY: &str = "library";
/// The default tag.
const LATEST: &str = "latest";

/// The models with manifests in `folder`.
pub(super) fn list(folder: &Path) -> Vec<OtherModel> {
    let manifests = folder.join("manifests");
    let files = files_below(&manifests).into_iter();
    files
        .filter_map(|file| {
            let name = name_of(&file.path)?;
            Some(described(folder, &manifests.join(file.path), name))
        })
        .collect()
}

/// The model of `name`, in any case; without a tag, the latest.
pub(super) fn find(folder: &Path, name: &str) -> Option<OtherModel> {
    let of_registry = |name: &str| {
        let name = name.strip_prefix("https://").unwrap_or(name);
        let name = name.strip_prefix("registry.ollama.ai/").unwrap_or(name);
        name.strip_prefix("library/").unwrap_or(name).to_ascii_lowercase()
    };
    let wanted = of_registry(name);
    let latest = format!("{wanted}:{LATEST}");
    list(folder).into_iter().find(|model| {
        let found = model.name.to_ascii_lowercase();
        found == wanted || found == latest
    })
}

/// The model name for a manifest's path; `None` for another path.
fn name_of(path: &str) -> Option<String> {
    let (rest, tag) = path.rsplit_once('/')?;
    let (host, model) = rest.split_once('/')?;
    let shown = match host {
        REGISTRY => model
            .strip_prefix(LIBRARY)
            .and_then(|model| model.strip_prefix('/'))
            .unwrap_or(model),
        _ => rest,
    };
    let is_hidden = path.split('/').any(|part| part.starts_with('.'));
    (!is_hidden && !model.is_empty()).then(|| format!("{shown}:{tag}"))
}

/// The blob of a manifest's layer, if the layer's type is `kind`.
fn blob(folder: &Path, layer: &Value) -> Result<PathBuf, String> {
    let digest = layer.get("digest").and_then(Value::as_str).unwrap_or_default();
    let digits = digest.strip_prefix("sha256:").unwrap_or_default();
    let is_sum = digits.len() == SUM_DIGITS && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_sum {
        Ok(folder.join("blobs").join(format!("sha256-{digits}")))
    } else {
        Err("its manifest names a layer without a sum; pull it again with ollama pull".to_owned())
    }
}

fn described(folder: &Path, manifest: &Path, name: String) -> OtherModel {
    let mut model = OtherModel {
        name,
        program: Program::Ollama,
        format: None,
        bytes: 0,
        used: None,
        path: Err(String::new()),
    };
    model.path = read(folder, manifest, &mut model);
    model
}

/// Reads a manifest into `model`; returns the GGUF file, or the reason why there is none.
fn read(folder: &Path, manifest: &Path, model: &mut OtherModel) -> Result<PathBuf, String> {
    let damaged = |problem: &dyn std::fmt::Display| {
        format!(
            "its manifest {} is damaged ({problem}); pull it again with ollama pull",
            manifest.display()
        )
    };
    let text = riffle_files::read(manifest, LARGEST_JSON).map_err(|error| damaged(&error))?;
    let value: Value = serde_json::from_slice(&text).map_err(|error| damaged(&error))?;
    let layers = value.get("layers").and_then(Value::as_array);
    let layers = layers.ok_or_else(|| damaged(&"it lists no layers"))?;
    let of = |kind: &str| {
        let is_kind = |layer: &&Value| layer.get("mediaType").and_then(Value::as_str) == Some(kind);
        layers.iter().filter(is_kind).collect::<Vec<_>>()
    };
    model.format = value
        .get("config")
        .and_then(|config| format(&blob(folder, config).ok()?));
    let models = of(MODEL);
    let [layer] = models[..] else {
        return Err(match models.len() {
            0 => "it has no GGUF file: it runs elsewhere, or its weights are of another kind".to_owned(),
            several => format!("it consists of {several} GGUF files, which riffle does not put together"),
        });
    };
    let path = blob(folder, layer)?;
    let missing = || {
        let size = layer.get("size").and_then(Value::as_u64).unwrap_or(0);
        let size = riffle_files::human_bytes(size);
        format!(
            "its file of {size}, {}, is missing; pull it again with ollama pull",
            path.display()
        )
    };
    let metadata = fs::metadata(&path).map_err(|_| missing())?;
    model.bytes = metadata.len();
    model.used = metadata.accessed().ok();
    let stated = layer.get("size").and_then(Value::as_u64);
    if stated.is_some_and(|stated| stated != metadata.len()) {
        return Err(format!(
            "its file {} has {} bytes and its manifest says {}; pull it again with ollama pull",
            path.display(),
            metadata.len(),
            stated.unwrap_or(0)
        ));
    }
    match of(ADAPTER).first() {
        None => Ok(path),
        Some(adapter) => Err(format!(
            "it has an adapter beside its weights; to run it give both: --model {} --lora {}",
            path.display(),
            blob(folder, adapter)?.display()
        )),
    }
}

/// The quantisation in a model's settings.
fn format(settings: &Path) -> Option<String> {
    let text = riffle_files::read(settings, LARGEST_JSON).ok()?;
    let value: Value = serde_json::from_slice(&text).ok()?;
    Some(value.get("file_type")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_manifest_tells_the_name() {
        for (path, name) in [
            ("registry.ollama.ai/library/llama3.2/1b", Some("llama3.2:1b")),
            (
                "registry.ollama.ai/somebody/tuned/latest",
                Some("somebody/tuned:latest"),
            ),
            ("hf.co/owner/model-GGUF/Q4_K_M", Some("hf.co/owner/model-GGUF:Q4_K_M")),
            ("registry.ollama.ai/library/llama3.2/.DS_Store", None),
            ("stray", None),
            ("registry.ollama.ai/stray", None),
        ] {
            assert_eq!(name_of(path).as_deref(), name, "{path}");
        }
    }
}
