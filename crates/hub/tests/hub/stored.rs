//! Tests of a cache's contents, before and after a model is removed.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use riffle_hub::{HubError, StoredModel, find, list, mark_used, remove};

use crate::{name, pull_named};
use riffle_testing::hub::{COMMIT, Hub, bytes, sum};

const OTHER_COMMIT: &str = "fedcba9876543210fedcba9876543210fedcba98";

fn line(model: &StoredModel) -> String {
    let state = model.missing.as_deref().unwrap_or("complete");
    format!(
        "{} {} {} {state}",
        model.name,
        model.format.as_deref().unwrap_or("-"),
        model.bytes
    )
}

fn lines(cache: &Path) -> Vec<String> {
    list(cache).expect("a list").iter().map(line).collect()
}

fn pulled(cache: &Path) -> Hub {
    let hub = Hub::start(&[
        ("m-Q4_0.gguf", bytes(4000, 1)),
        ("m-Q8_0-00001-of-00002.gguf", bytes(3000, 2)),
        ("m-Q8_0-00002-of-00002.gguf", bytes(2000, 3)),
    ]);
    for part in ["", ":Q8_0"] {
        pull_named(&hub, cache, &format!("owner/model{part}")).expect("pulled");
    }
    hub
}

#[test]
fn models_are_listed_with_size_and_state() {
    let cache = tempfile::tempdir().expect("a folder");
    assert_eq!(lines(cache.path()), [""; 0]);
    pulled(cache.path());
    assert_eq!(
        lines(cache.path()),
        [
            "owner/model:Q4_0 Q4_0 4000 complete",
            "owner/model:Q8_0 Q8_0 5000 complete"
        ]
    );
    let snapshot = cache.path().join("models--owner--model/snapshots").join(COMMIT);
    let shard = fs::canonicalize(snapshot.join("m-Q8_0-00002-of-00002.gguf"));
    fs::remove_file(shard.expect("a file")).expect("removed");
    assert_eq!(
        lines(cache.path())[1],
        "owner/model:Q8_0 Q8_0 3000 1 of its 2 files are missing"
    );
    let missing = find(cache.path(), &name("owner/model:Q8_0")).expect_err("not whole");
    assert!(matches!(missing, HubError::Incomplete { .. }), "{missing}");
    assert!(
        find(cache.path(), &name("owner/model")).is_ok(),
        "the other file is whole"
    );
    let partial = cache.path().join("models--owner--model/blobs/aa.incomplete");
    fs::write(partial, [0; 7]).expect("a file");
    assert!(lines(cache.path())[1].contains(" 3007 "), "{:?}", lines(cache.path()));
}

#[test]
fn folders_of_safetensors_are_listed_and_other_repositories_are_not() {
    let cache = tempfile::tempdir().expect("a folder");
    let hub = Hub::start(&[("config.json", b"{}".to_vec()), ("model.safetensors", bytes(3000, 1))]);
    pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    for folder in [
        "datasets--a--b/snapshots/x",
        "models--a--tokenizer/snapshots/x",
        "models--bert/snapshots/x",
        "blobs/ab",
    ] {
        fs::create_dir_all(cache.path().join(folder)).expect("a folder");
    }
    fs::write(
        cache.path().join("models--a--tokenizer/snapshots/x/tokenizer.json"),
        "{}",
    )
    .expect("a file");
    fs::write(cache.path().join("version.txt"), "1").expect("a file");
    assert_eq!(lines(cache.path()), ["owner/model safetensors 3002 complete"]);
}

#[test]
fn the_last_use_is_the_latest_of_a_model_s_files() {
    let cache = tempfile::tempdir().expect("a folder");
    pulled(cache.path());
    let before = SystemTime::now();
    mark_used(&find(cache.path(), &name("owner/model:Q8_0")).expect("found"));
    let models = list(cache.path()).expect("a list");
    let used = models
        .iter()
        .map(|model| model.used.is_some_and(|used| used >= before))
        .collect::<Vec<_>>();
    assert_eq!(used, [false, true]);
}

#[test]
fn removing_a_file_frees_its_bytes_alone() {
    let cache = tempfile::tempdir().expect("a folder");
    pulled(cache.path());
    let removed = remove(cache.path(), &name("owner/model:q8_0")).expect("removed");
    assert_eq!((removed.bytes, removed.files), (5000, 2));
    assert_eq!(lines(cache.path()), ["owner/model:Q4_0 Q4_0 4000 complete"]);
    let again = remove(cache.path(), &name("owner/model:q8_0")).expect_err("gone");
    assert!(matches!(again, HubError::NotStored { .. }), "{again}");
    let removed = remove(cache.path(), &name("owner/model/m-Q4_0.gguf")).expect("removed");
    assert_eq!((removed.bytes, removed.files), (4000, 1));
    assert!(
        !cache.path().join("models--owner--model").exists(),
        "nothing is left of it"
    );
    assert!(!cache.path().join(".locks/models--owner--model").exists());
}

#[test]
fn removing_a_repository_removes_all_of_it() {
    let cache = tempfile::tempdir().expect("a folder");
    pulled(cache.path());
    let removed = remove(cache.path(), &name("owner/model")).expect("removed");
    assert_eq!((removed.bytes, removed.files), (9000, 3));
    assert_eq!(lines(cache.path()), [""; 0]);
}

#[cfg(unix)]
#[test]
fn bytes_that_another_snapshot_uses_stay() {
    let cache = tempfile::tempdir().expect("a folder");
    let hub = pulled(cache.path());
    let folder = cache.path().join("models--owner--model");
    let older = folder.join("snapshots").join(OTHER_COMMIT);
    fs::create_dir_all(&older).expect("a folder");
    let blob = format!("../../blobs/{}", sum(&bytes(4000, 1)));
    std::os::unix::fs::symlink(&blob, older.join("renamed.gguf")).expect("a link");
    let removed = remove(cache.path(), &name("owner/model:Q4_0")).expect("removed");
    assert_eq!((removed.bytes, removed.files), (0, 0), "renamed.gguf is the same file");
    assert_eq!(fs::read(older.join("renamed.gguf")).expect("a file"), bytes(4000, 1));
    drop(hub);
}

#[test]
fn a_model_of_an_older_commit_is_found_where_the_newer_has_it_not() {
    let cache = tempfile::tempdir().expect("a folder");
    pulled(cache.path());
    let folder = cache.path().join("models--owner--model");
    let newer = folder.join("snapshots").join(OTHER_COMMIT);
    fs::create_dir_all(&newer).expect("a folder");
    fs::write(newer.join("config.json"), "{}").expect("a file");
    fs::write(folder.join("refs/main"), OTHER_COMMIT).expect("a file");
    let found = find(cache.path(), &name("owner/model:Q4_0")).expect("found");
    assert!(found.to_string_lossy().contains(COMMIT));
}

#[test]
fn what_is_being_downloaded_is_not_removed() {
    let cache = tempfile::tempdir().expect("a folder");
    pulled(cache.path());
    let lock = cache
        .path()
        .join(format!(".locks/models--owner--model/{}.lock", sum(&bytes(4000, 1))));
    let held = fs::File::open(&lock).expect("a lock");
    held.lock().expect("locked");
    let refused = remove(cache.path(), &name("owner/model")).expect_err("in use");
    assert!(matches!(refused, HubError::InUse { .. }), "{refused}");
    drop(held);
    remove(cache.path(), &name("owner/model")).expect("removed");
}

#[cfg(unix)]
#[test]
fn shared_bytes_go_with_the_last_link_to_them() {
    let cache = tempfile::tempdir().expect("a folder");
    let hash = "ab".repeat(32);
    let store = cache.path().join("blobs/ab");
    fs::create_dir_all(&store).expect("a folder");
    fs::write(store.join(&hash), bytes(5000, 1)).expect("a file");
    let mut links = String::new();
    for owner in ["one", "two"] {
        let folder = cache.path().join(format!("models--{owner}--model"));
        let snapshot = folder.join("snapshots").join(COMMIT);
        fs::create_dir_all(folder.join("blobs")).expect("a folder");
        fs::create_dir_all(&snapshot).expect("a folder");
        std::os::unix::fs::symlink(format!("../../blobs/ab/{hash}"), folder.join("blobs/sum")).expect("a link");
        std::os::unix::fs::symlink("../../blobs/sum", snapshot.join("m-Q4_0.gguf")).expect("a link");
        links += &format!("models--{owner}--model/blobs/sum\n");
    }
    fs::write(store.join(format!("{hash}.refs")), links).expect("a file");
    assert_eq!(lines(cache.path()).len(), 2);
    assert_eq!(remove(cache.path(), &name("one/model")).expect("removed").bytes, 0);
    assert!(find(cache.path(), &name("two/model")).is_ok());
    assert_eq!(
        remove(cache.path(), &name("two/model:Q4_0")).expect("removed").bytes,
        5000
    );
    assert!(!store.join(&hash).exists());
}

#[test]
fn damage_in_a_cache_is_a_line_or_another_pull_and_never_leads_out_of_it() {
    let index = r#"{"weight_map":{"a":"model-00001-of-00001.safetensors"}}"#;
    let hub = Hub::start(&[
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.into()),
        ("model-00001-of-00001.safetensors", bytes(5000, 3)),
    ]);
    let outer = tempfile::tempdir().expect("a folder");
    let secret = outer.path().join("secret.safetensors");
    fs::write(&secret, "of somebody else").expect("a file");
    let deep = "[".repeat(100_000);
    let contents = [
        "",
        "{",
        "\0\0\0",
        "[]",
        deep.as_str(),
        r#"{"weight_map":{"a":"../../../../secret.safetensors"}}"#,
        r#"{"weight_map":{"a":7}}"#,
        "../../../secret.safetensors",
        "/etc/passwd",
    ];
    for damaged in [
        "refs/main",
        "snapshots/COMMIT/model.safetensors.index.json",
        "snapshots",
        "blobs",
    ] {
        for content in contents {
            let cache = outer.path().join("cache");
            pull_named(&hub, &cache, "owner/model").expect("pulled");
            let path = cache
                .join("models--owner--model")
                .join(damaged.replace("COMMIT", COMMIT));
            if path.is_dir() {
                fs::remove_dir_all(&path).expect("removed")
            } else {
                fs::remove_file(&path).expect("removed")
            }
            fs::write(&path, content).expect("a file");
            let told = [
                find(&cache, &name("owner/model")).map(|found| found.display().to_string()),
                list(&cache).map(|models| models.iter().map(line).collect()),
                pull_named(&hub, &cache, "owner/model").map(|pulled| pulled.path.display().to_string()),
            ];
            for told in told {
                let told = told.unwrap_or_else(|error| error.to_string());
                assert!(
                    !told.contains('\n') && !told.contains("secret"),
                    "{damaged} {content:.40}: {told}"
                );
            }
            // The removal may also fail, and changes nothing else.
            drop(remove(&cache, &name("owner/model")));
            assert!(secret.exists(), "{damaged} {content:.40}");
            fs::remove_dir_all(&cache).expect("removed");
        }
    }
}
