//! Models of the Hugging Face hub, in the cache that Python's `huggingface_hub` uses.
//!
//! A [`ModelName`] is a name such as `owner/name`, `owner/name:Q4_K_M`, `owner/name/file.gguf`. [`pull`] downloads
//! it, [`find`] returns its path, [`list`] returns all stored models, [`remove`] frees the space. [`locate`] also
//! takes short names of [`TRIED`] and names of models of [`OtherPrograms`]: Ollama, LM Studio and llama.cpp.
//! [`Machine::best`] chooses a quantisation. [`Settings`] reads the variables of `huggingface_hub`: `HF_ENDPOINT`,
//! `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE`.
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
//! # Guarantees of a pull
//!
//! - A file gets its name when all its bytes are on the disk and their checksum equals the hub's: SHA-256 for large
//!   files, Git's SHA-1 for small ones. A file with another checksum is removed.
//! - A download continues by `Range` after a cut connection, Ctrl-C or a kill, also in the next process. Connections
//!   are retried with growing delays, and the client obeys a server's `Retry-After`.
//! - Only the hub's own scheme, host and port receive the token; redirects to other servers do not.
//! - The crate never writes pickles, programs, or paths outside of the model's folder.
//! - Two processes that pull the same file write it once, even if one is Python's, because both use the same lock.
//! - The caller can inspect the beginning of a model before its weights are downloaded ([`pull_with`]) and refuse the
//!   rest.
//!
//! # Reasons for this client
//!
//! The crate `hf-hub` 1.0 uses the same cache, but it restarts interrupted files and compares no checksum. It depends
//! on some 280 crates, including an asynchronous runtime and C code. Here `ureq` does HTTP and `rustls` encrypts with
//! `graviola`, which needs no C compiler; the root certificates are the system's. It needs a processor with AES and
//! AVX2, ADX and BMI2 (x86-64 since about 2015), or with AES and SHA2 (aarch64); on others [`pull`] returns an error,
//! and everything else works.
//!
//! Without the default feature `download`, the crate only finds, lists and removes models in the cache, and builds no
//! HTTP code.

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
