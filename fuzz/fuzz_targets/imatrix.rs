//! An importance matrix of any bytes, in either format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use riffle_quantize::ImportanceMatrix;

fuzz_target!(|bytes: &[u8]| {
    let path = riffle_fuzz::folder().join("imatrix");
    std::fs::write(&path, bytes).expect("the input is written");
    riffle_fuzz::without_panic(|| {
        if let Ok(matrix) = ImportanceMatrix::read(&path) {
            for squares in matrix.tensors.values() {
                assert_eq!(squares.means().len(), squares.sums.len());
            }
        }
    });
});
