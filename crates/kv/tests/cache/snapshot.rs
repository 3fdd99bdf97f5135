//! Cache files: a restore is exact, and a wrong file is never restored.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::testing::{all_contents, append_all, shape, tokens};
use riffle_attention::Format;
use riffle_kv::{CacheShape, KvCache, KvError, LayerShape, LayerShapes};

fn file_names(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap())
}

fn partial_files(folder: &Path) -> usize {
    file_names(folder).filter(|name| name.ends_with(".partial")).count()
}

#[test]
fn a_restored_cache_equals_the_saved_one_and_goes_on_like_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.kv");
    for key_format in Format::ALL {
        for (value_format, length) in [
            (Format::F32, 0),
            (Format::F16, 31),
            (Format::Q8_0, 32),
            (Format::Q4_0, 101),
        ] {
            let shape = CacheShape {
                key_format,
                value_format,
                ..shape(32, Format::F32)
            };
            let mut cache = KvCache::new(shape, None).unwrap();
            append_all(&mut cache, 5, length + 40);
            cache.truncate(length);
            // Layers may hold different numbers of tokens.
            let more = tokens(&shape, 1, 0, 9);
            cache.append(1, &more, &more).unwrap();
            cache.save(&path, b"model", b"what belongs to it").unwrap();
            assert_eq!(partial_files(folder.path()), 0);

            let budget = cache.usage().bytes_by_tier.total();
            let (mut restored, attachment) = KvCache::restore(&path, &shape, b"model", None).unwrap();
            assert!(KvCache::restore(&path, &shape, b"model", Some(budget)).is_ok());
            assert_eq!(attachment, b"what belongs to it");
            assert_eq!(all_contents(&restored), all_contents(&cache));
            assert_eq!(restored.usage().pages, cache.usage().pages);
            assert!(matches!(
                KvCache::restore(&path, &shape, b"model", Some(budget - 1)),
                Err(KvError::Budget { .. })
            ));

            cache.truncate(length);
            restored.truncate(length);
            append_all(&mut cache, 6, 3);
            append_all(&mut restored, 6, 3);
            assert_eq!(all_contents(&restored), all_contents(&cache));
        }
    }
}

#[test]
fn equal_pages_have_equal_hashes_whatever_their_memory_held_before() {
    for format in Format::ALL {
        let shape = shape(32, format);
        let mut used = KvCache::new(shape, None).unwrap();
        append_all(&mut used, 90, 60);
        used.truncate(40);
        used.truncate(0);
        append_all(&mut used, 91, 64);
        used.truncate(0);
        append_all(&mut used, 3, 50);
        used.truncate(37);
        let mut fresh = KvCache::new(shape, None).unwrap();
        append_all(&mut fresh, 3, 37);
        let mut hashes = Vec::new();
        for layer in 0..shape.layers.count() {
            for kv_head in 0..shape.layer(0).kv_heads {
                for page in 0..2 {
                    let hash = fresh.page_hash(layer, kv_head, page).unwrap();
                    assert_eq!(used.page_hash(layer, kv_head, page), Some(hash), "{}", format.name());
                    hashes.push(hash);
                }
                assert_eq!(fresh.page_hash(layer, kv_head, 2), None);
            }
        }
        assert_eq!(fresh.page_hash(0, shape.layer(0).kv_heads, 0), None);
        // Different pages have different hashes, also a page with one token less.
        append_all(&mut fresh, 3, 1);
        hashes.push(fresh.page_hash(0, 0, 1).unwrap());
        let count = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }
}

#[test]
fn a_file_of_another_model_or_shape_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.kv");
    let shape = shape(32, Format::F16);
    let mut cache = KvCache::new(shape, None).unwrap();
    append_all(&mut cache, 0, 40);
    cache.save(&path, b"model a", b"").unwrap();
    let of_layers = |count, layer| CacheShape {
        layers: LayerShapes::alike(count, layer),
        ..shape
    };
    let refused = |shape: &CacheShape, identity: &[u8]| match KvCache::restore(&path, shape, identity, None) {
        Err(error @ KvError::Foreign { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a foreign file was accepted"),
    };
    assert!(refused(&shape, b"model b").contains("the model"));
    for (other, what) in [
        (of_layers(3, shape.layer(0)), "layers"),
        (of_layers(2, LayerShape::new(1, 32)), "KV heads"),
        (of_layers(2, LayerShape::new(3, 16)), "head_dim"),
        (
            CacheShape {
                page_tokens: 64,
                ..shape
            },
            "page_tokens",
        ),
        (
            CacheShape {
                key_format: Format::Bf16,
                ..shape
            },
            "the format of keys",
        ),
        (
            CacheShape {
                value_format: Format::F32,
                ..shape
            },
            "the format of values",
        ),
    ] {
        assert!(refused(&other, b"model a").contains(what));
    }
}

/// Changes every byte of a small file.
#[test]
fn a_changed_missing_or_added_byte_is_always_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.kv");
    let shape = CacheShape {
        layers: LayerShapes::alike(1, LayerShape::new(2, 16)),
        page_tokens: 16,
        key_format: Format::Q8_0,
        value_format: Format::F16,
    };
    let mut cache = KvCache::new(shape, None).unwrap();
    append_all(&mut cache, 0, 21);
    cache.save(&path, b"id", b"note").unwrap();
    // A tight budget keeps the mappings small, which makes thousands of restores fast.
    let budget = Some(shape.bytes_for(21));
    let good = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = KvCache::restore(&path, &shape, b"id", budget)
            .err()
            .expect("a damaged file was accepted");
        assert!(
            matches!(
                error,
                KvError::Damaged { .. } | KvError::NotReadable { .. } | KvError::OtherVersion { .. }
            ),
            "{error}"
        );
        let message = error.to_string();
        assert!(message.contains("cache.kv") && !message.contains('\n'), "{message}");
        // The message does not advise deleting a file that another program may own.
        assert_eq!(
            message.contains("delete it"),
            bytes.starts_with(b"RIFFLEKV"),
            "{message}"
        );
    };
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        refused(&bad);
        refused(&good[..at]);
    }
    refused(&[&good[..], &[0]].concat());
    // Two swapped pages are each valid, but in the wrong place.
    let page = shape.page_bytes(0) as usize + 16;
    let first = good.len() - 16 - 4 * page;
    let mut swapped = good.clone();
    swapped[first..first + page].copy_from_slice(&good[first + 2 * page..first + 3 * page]);
    swapped[first + 2 * page..first + 3 * page].copy_from_slice(&good[first..first + page]);
    refused(&swapped);
    fs::write(&path, &good).unwrap();
    assert!(KvCache::restore(&path, &shape, b"id", budget).is_ok());
}

#[test]
fn a_save_that_fails_keeps_what_was_there_and_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let shape = shape(16, Format::F16);
    let mut cache = KvCache::new(shape, None).unwrap();
    append_all(&mut cache, 0, 5);
    let missing = folder.path().join("no such folder").join("cache.kv");
    let message = cache.save(&missing, b"", b"").unwrap_err().to_string();
    assert!(
        message.contains("no such folder") && message.contains("write"),
        "{message}"
    );
    let message = KvCache::restore(&missing, &shape, b"", None).err().unwrap().to_string();
    assert!(
        message.contains("no such folder") && message.contains("read"),
        "{message}"
    );

    // The path of the file is a folder.
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("inside"), "kept").unwrap();
    assert!(matches!(cache.save(&taken, b"", b""), Err(KvError::Output(_))));
    assert_eq!(fs::read_to_string(taken.join("inside")).unwrap(), "kept");
    assert_eq!(partial_files(folder.path()), 0);
}

const CHILD_PATH: &str = "RIFFLE_KV_TEST_SAVE_PATH";

fn crash_shape() -> CacheShape {
    CacheShape {
        layers: LayerShapes::alike(2, LayerShape::new(3, 64)),
        ..shape(64, Format::F16)
    }
}

/// The child process of the next test, which starts and kills it repeatedly. It saves forever.
#[test]
fn saver_process() {
    let Some(path) = std::env::var_os(CHILD_PATH) else {
        return;
    };
    let mut caches: Vec<KvCache> = (0..2).map(|_| KvCache::new(crash_shape(), None).unwrap()).collect();
    for (number, cache) in caches.iter_mut().enumerate() {
        append_all(cache, 10 * number as u64, 800 + number);
    }
    loop {
        for (number, cache) in caches.iter().enumerate() {
            cache.save(&path, b"model", &[number as u8]).unwrap();
        }
    }
}

#[test]
fn a_process_killed_while_it_saves_leaves_one_whole_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.kv");
    let expected: Vec<_> = (0..2u64)
        .map(|number| {
            let mut cache = KvCache::new(crash_shape(), None).unwrap();
            append_all(&mut cache, 10 * number, 800 + number as usize);
            all_contents(&cache)
        })
        .collect();
    let mut abandoned = 0;
    for round in 0..20u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "snapshot::saver_process", "--nocapture"])
            .env(CHILD_PATH, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let started = format!(".cache.kv.{}-", child.id());
        while !file_names(folder.path()).any(|name| name.starts_with(&started)) {
            assert!(
                child.try_wait().unwrap().is_none(),
                "the saving process ended by itself"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        // The first round waits for a complete file; the others stop at any moment.
        while !path.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(round * 7 % 31));
        child.kill().unwrap();
        child.wait().unwrap();
        abandoned += partial_files(folder.path());
        let (cache, attachment) = KvCache::restore(&path, &crash_shape(), b"model", None).unwrap();
        assert_eq!(all_contents(&cache), expected[usize::from(attachment[0])]);
    }
    // At least one process was killed during a save. The next save removes its leftovers.
    assert!(abandoned > 0);
    KvCache::new(crash_shape(), None)
        .unwrap()
        .save(&path, b"model", b"")
        .unwrap();
    assert_eq!(partial_files(folder.path()), 0);
}
