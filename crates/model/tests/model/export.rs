//! Folders as GGUF files: the same tensors and settings as from llama.cpp's converter, which made the vectors.

use std::path::{Path, PathBuf};

use riffle_model::{ModelError, WeightSource};

/// Keys that do not affect the computation, or that the converter leaves at their defaults.
const NOT_COMPARED: [&str; 7] = [
    "general.name",
    "general.version",
    "general.basename",
    "general.size_label",
    "general.file_type",
    "general.quantization_version",
    "general.type",
];

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

fn values(source: &WeightSource, index: usize) -> Vec<f32> {
    let tensor = &source.tensors[index];
    let mut values = vec![0.0; tensor.info.shape.iter().product()];
    source.rows(tensor).unwrap().read(0, &mut values).unwrap();
    values
}

fn check(case: &str) {
    let ours = WeightSource::open(vectors().join(case)).unwrap();
    let theirs = WeightSource::open(vectors().join(format!("gguf/{case}.gguf"))).unwrap();
    for entry in &theirs.metadata {
        if !NOT_COMPARED.contains(&entry.key()) {
            assert_eq!(ours.value(entry.key()), Some(entry), "{case}: {}", entry.key());
        }
    }
    let names = |source: &WeightSource| {
        let mut names: Vec<String> = source.tensors.iter().map(|tensor| tensor.info.name.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&ours), names(&theirs), "{case}");
    for (index, tensor) in ours.tensors.iter().enumerate() {
        let name = &tensor.info.name;
        let other = theirs
            .tensors
            .iter()
            .position(|other| other.info.name == *name)
            .unwrap();
        assert_eq!(tensor.info.shape, theirs.tensors[other].info.shape, "{case}: {name}");
        let pairs = values(&ours, index).into_iter().zip(values(&theirs, other));
        let largest = pairs.map(|(a, b)| (a - b).abs() / a.abs().max(0.1)).fold(0.0, f32::max);
        // The files of some cases round to 16 bits.
        let rounds = largest < 5e-3 && theirs.tensors[other].info.element_type != tensor.info.element_type;
        assert!(rounds || largest < 1e-6, "{case}: {name} differs by {largest}");
    }
}

#[test]
fn llama_and_its_relatives_become_the_files_of_the_converter() {
    for case in [
        "llama-0",
        "llama-1",
        "llama-2",
        "mistral-1",
        "qwen2-0",
        "qwen3-1",
        "phi3-0",
    ] {
        check(case);
    }
}

#[test]
fn norms_and_windows_of_gemma_become_those_of_the_converter() {
    for case in ["gemma2-0", "gemma3-1"] {
        check(case);
    }
}

#[test]
fn an_architecture_whose_file_is_not_known_is_refused_by_its_name() {
    let error = WeightSource::open(vectors().join("qwen3_5-0")).err().unwrap();
    assert!(matches!(error, ModelError::UnknownArchitecture { .. }));
    assert!(error.to_string().contains("Qwen3_5"), "{error}");
}
