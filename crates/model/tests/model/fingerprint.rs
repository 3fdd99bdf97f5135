//! A fingerprint distinguishes models by their computation, not by their place.

use std::fs;
use std::path::Path;

use riffle_model::fingerprint;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn one_changed_weight_or_setting_changes_the_fingerprint_and_the_place_does_not() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/model");
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("copy");
    copy(&source, &model);
    let original = fingerprint(&source).unwrap();
    assert_eq!(fingerprint(&model).unwrap(), original);

    let weights = model.join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, &bytes).unwrap();
    let changed = fingerprint(&model).unwrap();
    assert_ne!(changed, original);

    let settings = fs::read_to_string(model.join("config.json")).unwrap();
    fs::write(model.join("config.json"), settings.replace("1e-05", "1e-06")).unwrap();
    let other = fingerprint(&model).unwrap();
    assert!(other != original && other != changed);

    fs::remove_file(&weights).unwrap();
    assert!(fingerprint(&model).is_err());
}
