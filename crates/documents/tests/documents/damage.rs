//! Damaged files give a text or an error, within the time limit and without a panic of the process.

use riffle_testing::damage::{Damage, inputs};
use riffle_testing::{NAMES, read_document};

/// Number of damaged files of each kind.
const MUTANTS: usize = 400;

#[test]
fn files_that_once_broke_something_end_with_a_text_or_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    for input in inputs("documents") {
        read_document(folder.path(), &input);
    }
}

#[test]
fn damaged_files_of_every_kind_end_with_a_text_or_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = inputs("documents");
    for (number, name) in NAMES.iter().enumerate() {
        let of_kind = whole.iter().filter_map(|input| {
            let (first, file) = input.split_first()?;
            (usize::from(*first) == number).then(|| file.to_vec())
        });
        let of_kind: Vec<Vec<u8>> = of_kind.collect();
        let mut damage = Damage::new(17 + number as u64);
        let mut counts = [0, 0];
        for _ in 0..MUTANTS {
            let mut input = damage.damaged(&of_kind);
            input.insert(0, number as u8);
            if let Some((_, is_text)) = read_document(folder.path(), &input) {
                counts[usize::from(is_text)] += 1;
            }
        }
        let [errors, texts] = counts;
        // Nearly every text is valid Markdown or HTML.
        assert!(
            texts > 0 && (errors > 0 || number > 2),
            "{name}: {texts} texts, {errors} errors"
        );
    }
}
