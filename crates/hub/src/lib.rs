//! Models of the Hugging Face hub, in the cache that Python's `huggingface_hub` uses.
//!
//! A [`ModelName`] is what people type: `owner/name`, `owner/name:Q4_K_M`, `owner/name/file.gguf`. [`pull`] downloads it,
//! [`find`] tells where it lies, [`list`] tells what there is, [`remove`] frees the space. [`locate`] also takes short names of [`TRIED`] and
//! the names of models that [`OtherPrograms`] have pulled: Ollama, LM Studio and llama.cpp. [`Machine::best`] chooses a quantisation. [`Settings`] come from the
//! variables that `huggingface_hub` reads: `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE`.
//!
//! ```
//! use riffle_hub::{HubError, ModelName, find, list};
//!
//! # let cache = std::env::temp_dir().join("riffle-hub-empty");
//! let name: ModelName = "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M".parse()?;
//! let error = find(&cache, &name).unwrap_err();
//! assert!(error.to_string().ends_with("get it: riffle pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"));
//! assert!(list(&cache)?.is_empty());
//! # Ok::<(), HubError>(())
//! ```
//!
//! # What a pull promises
//!
//! - A file gets its name when all its bytes are on the disk and their sum is the one that the hub states: SHA-256 for large
//!   files, Git's SHA-1 for small ones. A file with another sum is removed.
//! - A download continues by `Range` after a cut connection, Ctrl-C or a kill, also in the next process. Connections
//!   are tried again with growing waits, and a server's `Retry-After` is kept to.
//! - The token goes to the hub's own scheme, host and port alone, never with a redirect to another.
//! - Paths that could lie outside of the model's folder, pickles and programs are never written.
//! - Two processes that pull the same file, of which one may be Python's, write it once: both respect the same lock.
//! - The beginning of a model is shown before its bulk comes ([`pull_with`]), so that a caller can refuse what it cannot run.
//!
//! # Why a client of our own
//!
//! The crate `hf-hub` 1.0 keeps the same cache, but a file that is cut begins again from its first byte, no sum is compared,
//! and it brings some 280 crates with it, an asynchronous runtime and a C compiler's work among them. Here `ureq` does HTTP
//! and `rustls` encrypts with `graviola`, which needs no C compiler; the roots of trust are the system's. It
//! asks for a processor with AES and AVX2, ADX and BMI2 (x86-64 since about 2015), or with AES and SHA2 (aarch64); on others
//! [`pull`] says so, and everything else works.
//!
//! Without the default feature `download` only what the cache holds is found, listed and removed, and nothing of HTTP is built.

mod cache;
mod choice;
#[cfg(feature = "download")]
mod download;
mod error;
mod locate;
mod name;
mod offer;
mod other_programs;
mod paths;
#[cfg(feature = "download")]
mod progress;
mod quantisation;
mod remove;
mod settings;
mod shared_blobs;
mod stored;
mod tried;

#[cfg(feature = "download")]
pub use download::{Beginning, PullSteps, Pulled, pull, pull_with};
pub use error::HubError;
pub use locate::locate;
pub use name::{ModelName, ModelPart};
pub use offer::{Machine, Offer};
pub use other_programs::{OtherModel, OtherPrograms, Program};
#[cfg(feature = "download")]
pub use progress::{Activity, Progress};
pub use quantisation::PREFERENCE;
pub use remove::{Removed, remove};
pub use settings::{Settings, Token, Waits};
pub use stored::{StoredModel, find, list, mark_used};
pub use tried::{CacheShape, Evidence, TRIED, TriedModel, gigabytes, nearest, tried};
