use std::path::{Path, PathBuf};

use super::{Quantisation, bind};
use crate::fields::{Fields, read_json};
use crate::weights::{Checkpoint, open_directory};

fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/folders");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.sort();
    folders
}

fn open(folder: &Path) -> Checkpoint {
    let path = folder.join("config.json");
    let fields = Fields::new(&path, read_json(&path).unwrap().unwrap()).unwrap();
    let quantisation = Quantisation::read(&fields).unwrap().unwrap();
    let mut checkpoint = open_directory(folder).unwrap();
    assert!(bind(&quantisation, &mut checkpoint).unwrap() > 0);
    checkpoint
}

#[test]
fn weights_are_those_that_the_formats_define() {
    let mut compared = 0;
    for folder in folders() {
        let mut checkpoint = open(&folder);
        let expected = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let expected = safetensors::SafeTensors::deserialize(&expected).unwrap();
        for (name, view) in expected.iter().filter(|(name, _)| name.ends_with(".weight")) {
            let [rows, columns] = view.shape() else {
                panic!("{name} is no matrix")
            };
            let matrix = checkpoint.matrix(name, *rows, *columns).unwrap();
            // A tensor-wide factor adds one rounding, and its reciprocal another.
            let has_factor = folder.file_name().unwrap().to_string_lossy().starts_with("nvfp4");
            let error = if has_factor { 2.0 * f32::EPSILON } else { 0.0 };
            let stored = view.data().as_chunks().0.chunks(*columns);
            let mut found = vec![0.0; *columns];
            for (row, stored) in stored.enumerate() {
                matrix.row_into(row, &mut found);
                for (column, (found, stored)) in found.iter().zip(stored).enumerate() {
                    let stored = f32::from_le_bytes(*stored);
                    assert!(
                        (found - stored).abs() <= error * stored.abs(),
                        "{} {name} [{row}, {column}]: {found} instead of {stored}",
                        folder.display()
                    );
                }
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 2 * folders().len());
}

#[test]
fn a_matrix_takes_the_bytes_that_are_planned_for_it() {
    for folder in folders() {
        let mut checkpoint = open(&folder);
        for info in checkpoint.list().into_iter().filter(|info| info.shape.len() == 2) {
            let [rows, columns] = info.shape[..] else { continue };
            let matrix = checkpoint.matrix(&info.name, rows, columns).unwrap();
            assert_eq!(info.element_type.to_string(), matrix.format().name());
            let padded = info.bytes as usize / rows * rows.next_multiple_of(16);
            assert_eq!(matrix.bytes(), padded, "{} {}", folder.display(), info.name);
        }
    }
}
