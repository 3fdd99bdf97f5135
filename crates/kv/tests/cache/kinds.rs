//! Pipes and devices in place of the cache's files are refused at once.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::testing::{append_all, shape};
use riffle_attention::Format;
use riffle_kv::{KvCache, KvError, PathLock, PrefixCache};

fn pipe(path: &Path) {
    fs::remove_file(path).ok();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_cache_file_and_its_lock_must_be_regular_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    pipe(&path);
    let shape = shape(32, Format::F16);
    let error = KvCache::restore(&path, &shape, b"id", None).err().unwrap().to_string();
    assert!(error.contains("session") && error.contains("a pipe"), "{error}");
    let error = KvCache::restore(Path::new("/dev/zero"), &shape, b"id", None)
        .err()
        .unwrap();
    assert!(error.to_string().contains("a device"), "{error}");
    pipe(&folder.path().join(".session.lock"));
    let error = PathLock::take(&path).unwrap_err();
    assert!(matches!(error, KvError::File { action: "lock", .. }));
    assert!(error.to_string().contains("a pipe"), "{error}");
    // A pipe with the name of a partial file does not block a new file.
    pipe(&folder.path().join(".session.1-0.partial"));
    fs::remove_file(&path).unwrap();
    let mut cache = KvCache::new(shape, None).unwrap();
    append_all(&mut cache, 0, 3);
    cache.save(&path, b"id", b"").unwrap();
    assert!(fs::metadata(&path).unwrap().is_file());
}

#[test]
fn pipes_in_a_prefix_cache_are_no_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(32, Format::F16);
    let tokens: Vec<u32> = (0..70).collect();
    let mut cache = KvCache::new(shape, None).unwrap();
    append_all(&mut cache, 0, 70);
    let store = PrefixCache::open(folder.path(), u64::MAX).unwrap();
    assert_eq!(store.store(&cache, b"model", &tokens).unwrap().new_blocks, 2);
    let entries = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let (blocks, others): (Vec<_>, Vec<_>) = entries.partition(|path| path.extension().is_some_and(|e| e == "block"));
    blocks.iter().for_each(|path| pipe(path));
    let mut filled = KvCache::new(shape, None).unwrap();
    let found = store.fill(&mut filled, b"model", &tokens).unwrap();
    assert_eq!(found.tokens, 0);
    assert!(found.damaged_blocks > 0);
    for path in others.iter().filter(|path| fs::metadata(path).unwrap().len() > 0) {
        pipe(path);
    }
    let error = store.fill(&mut filled, b"model", &tokens).unwrap_err().to_string();
    assert!(error.contains("a pipe"), "{error}");
}
