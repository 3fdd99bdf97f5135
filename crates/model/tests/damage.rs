//! Thousands of damaged and hostile files, the same in every run: each loads or is refused in one line, without a panic
//! and without more memory than the file justifies.

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::RefUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use riffle_model::ModelError;
use riffle_testing::damage::{Damage, inputs};
use riffle_testing::{use_adapter, use_model, write_adapter_input, write_directory};

/// Current memory, and its peak since the last query.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on as it came; counting touches no memory that is handed out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, and `memory` came from `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time: the memory of others would be counted too.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads and uses the model at a path.
type Use = dyn Fn(&Path) -> Result<(), ModelError> + RefUnwindSafe;

/// Uses the model at `path`, which takes `bytes` on the disk; true if it loads.
fn survives(path: &Path, bytes: usize) -> bool {
    survives_use(path, bytes, &use_model)
}

fn survives_use(path: &Path, bytes: usize, use_it: &Use) -> bool {
    // A tokenizer's tables, packed weights and a pass's buffers exceed the file's few kilobytes, by a fixed factor and
    // a fixed amount.
    let allowed = (16 << 20) + 256 * bytes;
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let used = use_it(path);
    let taken = PEAK.load(Relaxed).saturating_sub(before);
    assert!(taken <= allowed, "{taken} bytes were taken for a file of {bytes}");
    if let Err(error) = &used {
        let line = error.to_string();
        assert!(!line.is_empty() && line.len() < 1000 && !line.contains('\n'), "{line}");
    }
    used.is_ok()
}

/// Damages the inputs of `target` `count` times. `write` puts a file in its place and returns the model's path.
fn survives_damage(target: &str, count: usize, write: impl Fn(&Path, &[u8]) -> PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    survives_damage_in(folder.path(), target, count, write, &use_model);
}

/// Damages inputs in a folder, for inputs with another use.
fn survives_damage_in(
    folder: &Path,
    target: &str,
    count: usize,
    write: impl Fn(&Path, &[u8]) -> PathBuf,
    use_it: &Use,
) {
    let _alone = alone();
    let inputs = inputs(target);
    for input in &inputs {
        survives_use(&write(folder, input), input.len(), use_it);
    }
    let mut damage = Damage::new(4);
    let mut loaded = 0;
    for number in 0..count {
        let bytes = damage.damaged(&inputs);
        let path = write(folder, &bytes);
        let keep = std::env::temp_dir().join(format!("riffle-{target}-{number}"));
        let run = std::panic::catch_unwind(|| survives_use(&path, bytes.len() + 4096, use_it));
        match run {
            Ok(ok) => loaded += usize::from(ok),
            Err(reason) => {
                std::fs::write(&keep, &bytes).unwrap();
                eprintln!(
                    "the input is kept as {}; it belongs into fuzz/found/{target}",
                    keep.display()
                );
                std::panic::resume_unwind(reason);
            }
        }
    }
    // If damage never or always shows, the test is meaningless.
    assert!(
        loaded > count / 100 && loaded < count * 9 / 10,
        "{loaded} of {count} loaded"
    );
}

#[test]
fn damaged_gguf_files_load_or_are_refused() {
    survives_damage("gguf", 3000, |folder, bytes| {
        let path = folder.join("model.gguf");
        std::fs::write(&path, bytes).unwrap();
        path
    });
}

#[test]
fn damaged_safetensors_load_or_are_refused() {
    survives_damage("safetensors", 3000, |folder, bytes| {
        let valid = &inputs("directory")[0];
        write_directory(folder, valid);
        std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
        folder.to_owned()
    });
}

#[test]
fn damaged_configs_tokenizers_and_templates_load_or_are_refused() {
    let weights = inputs("safetensors").remove(0);
    survives_damage("directory", 3000, |folder, bytes| {
        write_directory(folder, bytes);
        std::fs::write(folder.join("model.safetensors"), &weights).unwrap();
        folder.to_owned()
    });
}

#[test]
fn damaged_adapters_load_or_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    write_directory(&model, &inputs("directory")[0]);
    std::fs::write(model.join("model.safetensors"), &inputs("safetensors")[0]).unwrap();
    survives_damage_in(folder.path(), "adapter", 3000, write_adapter_input, &move |adapter| {
        use_adapter(&model, adapter)
    });
}

/// A file of this many bytes that takes no space on the disk.
fn sparse(path: &Path, begin: &[u8], bytes: u64) {
    std::fs::write(path, begin).unwrap();
    std::fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(bytes)
        .unwrap();
}

#[test]
fn metadata_that_no_one_reads_takes_no_memory() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend([0u64, 2].iter().flat_map(|count| count.to_le_bytes()));
    file.extend(text("general.architecture"));
    file.extend([&8u32.to_le_bytes()[..], &text("llama")].concat());
    file.extend(text("general.notes"));
    file.extend(
        [
            &9u32.to_le_bytes()[..],
            &8u32.to_le_bytes(),
            &1_000_000u64.to_le_bytes(),
        ]
        .concat(),
    );
    file.extend(text("a note").repeat(1_000_000));
    std::fs::write(&path, &file).unwrap();
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let error = riffle_model::inspect(&path).unwrap_err().to_string();
    assert!(error.contains("hidden_size"), "{error}");
    let taken = PEAK.load(Relaxed).saturating_sub(before);
    assert!(taken < 1 << 20, "{taken} bytes were taken for texts that nothing reads");
}

#[test]
fn huge_files_do_not_get_memory_by_their_size() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let head = |tensors: u64, metadata: u64, rest: &[u8]| {
        [
            &b"GGUF\x03\0\0\0"[..],
            &tensors.to_le_bytes(),
            &metadata.to_le_bytes(),
            rest,
        ]
        .concat()
    };
    let key = |kind: u32, value: &[u64]| {
        let value: Vec<u8> = value.iter().flat_map(|number| number.to_le_bytes()).collect();
        [&1u64.to_le_bytes()[..], b"k", &kind.to_le_bytes(), &value].concat()
    };
    for begin in [
        head(1 << 30, 0, &[]),
        head(0, 1 << 32, &[]),
        // A text, and a list of bytes, as long as the file.
        head(0, 1, &key(8, &[30 << 30])),
        head(
            0,
            1,
            &[
                key(9, &[]),
                0u32.to_le_bytes().to_vec(),
                (30u64 << 30).to_le_bytes().to_vec(),
            ]
            .concat(),
        ),
        head(
            0,
            1,
            &[
                key(9, &[]),
                8u32.to_le_bytes().to_vec(),
                (1u64 << 31).to_le_bytes().to_vec(),
            ]
            .concat(),
        ),
    ] {
        sparse(&path, &begin, 32 << 30);
        assert!(!survives(&path, begin.len()));
    }
    std::fs::remove_file(path).unwrap();
    let bytes = &inputs("directory")[0];
    let config = bytes.split(|byte| *byte == 0xff).next().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), &inputs("safetensors")[0]).unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    sparse(
        &folder.path().join("model.safetensors"),
        &99_999_999u64.to_le_bytes(),
        32 << 30,
    );
    // The format allows headers of 100 MB, which are read before they are recognised as invalid.
    assert!(!survives(folder.path(), 100_000_000 / 256));
}
