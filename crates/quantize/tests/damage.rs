//! Damaged importance matrices, the same in every run: each is read or refused in one line, without a panic.

use riffle_quantize::ImportanceMatrix;
use riffle_testing::damage::{Damage, inputs};

#[test]
fn damaged_importance_matrices_are_read_or_refused() {
    const COUNT: usize = 5000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("imatrix");
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        match ImportanceMatrix::read(&path) {
            Ok(matrix) => {
                assert!(
                    matrix
                        .tensors
                        .values()
                        .all(|squares| squares.means().len() == squares.sums.len())
                );
                true
            }
            Err(error) => {
                let line = error.to_string();
                assert!(!line.is_empty() && line.len() < 1000 && !line.contains('\n'), "{line}");
                false
            }
        }
    };
    let inputs = inputs("imatrix");
    assert!(inputs.iter().all(|input| read(input)));
    let mut damage = Damage::new(4);
    let intact = (0..COUNT).filter(|_| read(&damage.damaged(&inputs))).count();
    assert!(
        intact > COUNT / 100 && intact < COUNT * 9 / 10,
        "{intact} of {COUNT} were read"
    );
}
