//! Weight files that are damaged, hostile or of another model: one line names the fault.

use std::path::Path;

use crate::testing::{TinyModel, bent, refused, safetensors_bytes};
use riffle_model::{ModelError, inspect, load};
use serde_json::{Value, json};

/// A tiny model with a replaced weight file, which `inspect` refuses too.
#[track_caller]
fn weight_file(bytes: &[u8], words: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    TinyModel::default().write(directory.path());
    std::fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
    let error = refused(directory.path(), words);
    assert!(matches!(error, ModelError::CorruptWeights { .. }), "{error:?}");
    assert!(inspect(directory.path()).is_err());
}

fn valid_file() -> Vec<u8> {
    crate::testing::safetensors_file(&TinyModel::default().tensors)
}

#[test]
fn truncated_weights_are_refused_wherever_they_end() {
    let valid = valid_file();
    for length in [0, 1, 7] {
        weight_file(&valid[..length], &["model.safetensors", "too few"]);
    }
    for length in [8, 9, 100, 500] {
        weight_file(&valid[..length], &["model.safetensors", "claims"]);
    }
    weight_file(
        &valid[..valid.len() - 1],
        &["model.safetensors", "model.norm.weight", "claims"],
    );
}

#[test]
fn hostile_weight_headers_are_refused_without_taking_their_word() {
    let mut huge = valid_file();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    weight_file(&huge, &["18446744073709551615", "limit"]);
    huge[..8].copy_from_slice(&99_999_999u64.to_le_bytes());
    weight_file(&huge, &["99999999", "has only"]);
    weight_file(&safetensors_bytes("[]", &[]), &["header"]);
    weight_file(&safetensors_bytes("{", &[]), &["header"]);
    let deep = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    for nested in ["[".repeat(100_000), format!("{{\"a\":{deep}}}"), deep.clone()] {
        weight_file(&safetensors_bytes(&nested, &[]), &["header"]);
    }
    // Metadata of any depth is skipped.
    let directory = tempfile::tempdir().unwrap();
    TinyModel::default().write(directory.path());
    let bytes = safetensors_bytes(&format!("{{\"__metadata__\":{deep}}}"), &[]);
    std::fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
    refused(directory.path(), &["model.norm.weight is missing"]);
    weight_file(&safetensors_bytes("{\"a\":\u{1}}", &[]), &["header"]);
    weight_file(&[8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 1, 2, 3, 4, 5], &["header"]);
}

#[test]
fn tensors_whose_places_or_shapes_contradict_the_file_are_refused() {
    let entry = |dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let alone = |dtype, shape, begin, end| format!(r#"{{"a":{}}}"#, entry(dtype, shape, begin, end));
    let both = |second: &str, shape, begin, end| {
        let (first, second_entry) = (entry("F32", "[1]", 0, 4), entry("F32", shape, begin, end));
        format!(r#"{{"a":{first},"{second}":{second_entry}}}"#)
    };
    let many = format!("[2{}]", ",1".repeat(16));
    let huge = "[4294967296,4294967296,4294967296]";
    let without_place = r#"{"a":{"dtype":"F32","shape":[2]}}"#.to_owned();
    for (header, words) in [
        (alone("F32", "[2]", 0, 9999), &["tensor a", "9999"][..]),
        (alone("F32", "[2]", 8, 0), &["tensor a", "8 to 0"]),
        (alone("F32", "[3]", 0, 8), &["tensor a", "takes 12 bytes", "claims 8"]),
        (alone("F32", "[0]", 0, 0), &["tensor a", "zero"]),
        (alone("F32", huge, 0, 8), &["tensor a", "impossible shape"]),
        (alone("F32", "[-1]", 0, 8), &["tensor a", "-1"]),
        (alone("F32", &many, 0, 8), &["tensor a", "16 dimensions"]),
        (alone("F33", "[2]", 0, 8), &["tensor a", "F33"]),
        (alone("F4", "[3]", 0, 8), &["tensor a"]),
        (both("b", "[2]", 0, 8), &["tensor b", "overlaps"]),
        (alone("F32", "[1]", 4, 8), &["tensor a", "unclaimed"]),
        (alone("F32", "[1]", 0, 4), &["follow the last tensor"]),
        (both("a", "[1]", 4, 8), &["tensor a", "twice"]),
        (without_place, &["tensor a", "data_offsets"]),
    ] {
        weight_file(&safetensors_bytes(&header, &[0; 8]), words);
    }
}

#[test]
fn a_header_of_countless_tensors_is_refused() {
    let entry = r#":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    let entries: Vec<String> = (0..=1 << 18).map(|number| format!("\"{number}\"{entry}")).collect();
    let header = format!("{{{}}}", entries.join(","));
    weight_file(&safetensors_bytes(&header, &[0]), &["262144 tensors", "plausible"]);
}

#[test]
fn weights_that_do_not_belong_to_the_config_are_named() {
    let error = bent(
        |model| model.tensor("q_proj").shape = vec![8, 32],
        &["q_proj", "[16, 16]", "[8, 32]"],
    );
    assert!(matches!(error, ModelError::WrongShape { .. }));
    let error = bent(|model| model.tensor("q_proj").dtype = "I32", &["q_proj", "I32", "bf16"]);
    assert!(matches!(error, ModelError::WrongType { .. }));
    let error = bent(
        |model| model.tensors.retain(|tensor| !tensor.name.contains("up_proj")),
        &["model.layers.0.mlp.up_proj.weight is missing"],
    );
    assert!(matches!(error, ModelError::MissingTensor { .. }));
    let error = bent(
        |model| model.config["num_hidden_layers"] = json!(2),
        &["model.layers.1", "missing"],
    );
    assert!(matches!(error, ModelError::MissingTensor { .. }));
    let error = bent(
        |model| model.config["tie_word_embeddings"] = json!(false),
        &["lm_head.weight is missing"],
    );
    assert!(matches!(error, ModelError::MissingTensor { .. }));
    // Sizes far beyond the file are a mismatch, never an allocation.
    let error = bent(
        |model| model.config["vocab_size"] = json!(2_000_000_000),
        &["embed_tokens", "2000000000"],
    );
    assert!(matches!(error, ModelError::WrongShape { .. }));
}

#[test]
fn weights_that_are_no_numbers_are_named() {
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        for tensor in ["v_proj", "embed_tokens", "model.norm"] {
            let error = bent(
                |model| model.tensor(tensor).data[20..24].copy_from_slice(&value.to_le_bytes()),
                &[tensor, shown, "element 5"],
            );
            assert!(matches!(error, ModelError::NotFinite { element: 5, .. }));
        }
    }
}

/// Splits the tiny model into two shards with an index; `bend` may alter the index.
fn sharded(directory: &Path, bend: impl FnOnce(&mut Value)) {
    let model = TinyModel::default();
    let (first, second) = model.tensors.split_at(5);
    std::fs::write(directory.join("config.json"), model.config.to_string()).unwrap();
    let mut map = serde_json::Map::new();
    for (name, tensors) in [("a.safetensors", first), ("b.safetensors", second)] {
        std::fs::write(directory.join(name), crate::testing::safetensors_file(tensors)).unwrap();
        map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), name.into())));
    }
    let mut index = json!({"metadata": {}, "weight_map": map});
    bend(&mut index);
    std::fs::write(directory.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn broken_shards_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    sharded(path, |_| ());
    load(path).unwrap();

    sharded(path, |index| {
        index["weight_map"]["model.norm.weight"] = json!("c.safetensors")
    });
    assert!(matches!(
        refused(path, &["c.safetensors", "model.norm.weight"]),
        ModelError::MissingShard { .. }
    ));
    for outside in ["../a.safetensors", "/etc/passwd", "", ".", "x/y"] {
        sharded(path, |index| index["weight_map"]["model.norm.weight"] = json!(outside));
        refused(path, &["weight_map", "model.norm.weight", "same directory"]);
    }
    sharded(path, |index| index["weight_map"]["extra"] = json!("a.safetensors"));
    assert!(matches!(
        refused(path, &["extra", "a.safetensors"]),
        ModelError::CorruptWeights { .. }
    ));
    sharded(path, |index| index["weight_map"] = json!(3));
    refused(path, &["weight_map"]);

    sharded(path, |_| ());
    std::fs::copy(path.join("a.safetensors"), path.join("b.safetensors")).unwrap();
    assert!(matches!(
        refused(path, &["twice", "a.safetensors", "b.safetensors"]),
        ModelError::DuplicateTensor { .. }
    ));
}
