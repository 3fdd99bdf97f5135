//! Thousands of damaged cache files, the same in every run: a restored cache is complete, and all other files are
//! refused.

use riffle_testing::damage::{Damage, inputs};
use riffle_testing::restore;

const CASES: usize = 5000;

#[test]
fn damaged_cache_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.kv");
    let inputs = inputs("cache_file");
    for input in &inputs {
        restore(&path, input).unwrap();
    }
    let mut damage = Damage::new(5);
    let mut restored = 0;
    for _ in 0..CASES {
        let bytes = damage.damaged(&inputs);
        match restore(&path, &bytes) {
            // A restored file has right hashes, so its contents are the saved ones.
            Ok(()) => restored += 1,
            Err(error) => {
                let line = error.to_string();
                assert!(line.contains("cache.kv") && !line.contains('\n'), "{line}");
            }
        }
    }
    assert!(restored < CASES / 50, "{restored} damaged files were accepted");
}
