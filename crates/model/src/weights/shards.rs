//! The safetensors files of a Hugging Face directory: one, or shards with an index.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use super::checkpoint::Checkpoint;
use super::row_order::RowOrder;
use super::safetensors::read_header;
use crate::ModelError;
use crate::fields::{Fields, read_json};

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Reads the headers of the directory's weight files.
pub(crate) fn open_directory(directory: &Path) -> Result<Checkpoint, ModelError> {
    let mut checkpoint = Checkpoint::default();
    let index_path = directory.join(INDEX_FILE);
    if directory.join(SINGLE_FILE).exists() {
        add(&mut checkpoint, directory.join(SINGLE_FILE))?;
    } else if let Some(index) = read_json(&index_path)? {
        add_shards(&mut checkpoint, directory, &Fields::new(&index_path, index)?)?;
    } else {
        return Err(ModelError::MissingFile {
            directory: directory.to_owned(),
            file: SINGLE_FILE.into(),
            hint: "download it, or the shards and model.safetensors.index.json; .bin and .pth weights must be converted to safetensors",
        });
    }
    Ok(checkpoint)
}

fn add_shards(checkpoint: &mut Checkpoint, directory: &Path, index: &Fields) -> Result<(), ModelError> {
    let Some(serde_json::Value::Object(map)) = index.get("weight_map") else {
        return Err(index.error("weight_map", "must be an object of tensor names and files"));
    };
    let mut shards: BTreeMap<&str, &str> = BTreeMap::new();
    let mut promised: HashMap<&str, &str> = HashMap::new();
    for (tensor, shard) in map {
        let Some(shard) = shard.as_str().filter(|shard| is_plain_file_name(shard)) else {
            return Err(index.error(
                "weight_map",
                format!("tensor {tensor} must name a file of the same directory"),
            ));
        };
        shards.entry(shard).or_insert(tensor);
        promised.insert(tensor, shard);
    }
    for (shard, tensor) in shards {
        let path = directory.join(shard);
        if !path.exists() {
            return Err(ModelError::MissingShard {
                index: index.path().to_owned(),
                shard: shard.to_owned(),
                tensor: tensor.to_owned(),
            });
        }
        add(checkpoint, path)?;
    }
    for (tensor, shard) in promised {
        let path = directory.join(shard);
        if checkpoint.file_of(&text_name(tensor)) != Some(&path) {
            return Err(ModelError::CorruptWeights {
                path,
                problem: format!("tensor {tensor}, which {INDEX_FILE} places here, is not in it"),
            });
        }
    }
    Ok(())
}

fn add(checkpoint: &mut Checkpoint, path: PathBuf) -> Result<(), ModelError> {
    let mut file = riffle_files::open(&path).map_err(|error| ModelError::file(&path, error))?;
    let tensors = read_header(&path, &mut file)?;
    let named = tensors
        .into_iter()
        .map(|stored| (text_name(&stored.info.name), stored, RowOrder::Plain));
    checkpoint.add_file(path, file, named)
}

/// A tensor's name in the text model; multimodal checkpoints add a prefix.
pub(crate) fn text_name(name: &str) -> String {
    let known = crate::families::WRAPPED_NAMES.iter();
    let mut renamed = known.filter_map(|(stored, known)| Some(format!("{known}{}", name.strip_prefix(stored)?)));
    renamed.next().unwrap_or_else(|| name.to_owned())
}

/// A shard must be beside its index; another path could read other files of the user.
fn is_plain_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(
        (components.next(), components.next()),
        (Some(std::path::Component::Normal(_)), None)
    )
}
