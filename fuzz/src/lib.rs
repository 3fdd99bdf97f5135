//! Helpers of the fuzz targets.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

pub use riffle_testing::{read_document, restore, use_adapter, use_model, write_adapter_input, write_directory};

/// The weights of a small valid model directory.
pub const TINY_WEIGHTS: &[u8] = include_bytes!("../seeds/safetensors/llama");
const TINY_DIRECTORY: &[u8] = include_bytes!("../seeds/directory/bpe");

/// The config.json that belongs to [`TINY_WEIGHTS`].
pub fn tiny_config() -> &'static [u8] {
    TINY_DIRECTORY.split(|byte| *byte == 0xff).next().unwrap_or_default()
}

/// The folder of this process, in memory where the system has one.
pub fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let root = if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    let folder = root.join(format!("riffle-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the input");
    folder
}

/// Runs `work` and ends the process if it panics. The tokenizer library's own panics, which loading turns into errors,
/// do not count; libFuzzer's hook would end the process at them.
pub fn without_panic(work: impl FnOnce()) {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            if std::env::var_os("RIFFLE_FUZZ_TRACE").is_some() {
                eprintln!("{info}");
            }
        }));
    });
    if let Err(reason) = catch_unwind(AssertUnwindSafe(work)) {
        let text = reason.downcast_ref::<String>().map(String::as_str);
        let text = text.or(reason.downcast_ref::<&str>().copied());
        eprintln!(
            "panicked: {}; for the place run with RIFFLE_FUZZ_TRACE=1",
            text.unwrap_or("(no text)")
        );
        std::process::abort();
    }
}
