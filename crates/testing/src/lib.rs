//! Helpers for the tests of several crates: paths of fixtures, damage to files, and test stores, devices, servers and
//! documents.
//!
//! A helper for the tests of one crate belongs in its `tests/testing`. A helper for two crates moves here, behind a
//! feature for its dependencies.

#[cfg(feature = "chains")]
pub mod chains;
pub mod damage;
#[cfg(feature = "documents")]
pub mod documents;
#[cfg(feature = "hub")]
pub mod hub;
#[cfg(feature = "kv")]
pub mod store;

mod adapter;
#[cfg(feature = "kv")]
mod cache_file;
#[cfg(feature = "kv")]
mod counted;
mod directory;
mod mixture;
#[cfg(feature = "model")]
mod model;
mod numbers;
mod place;
#[cfg(feature = "documents")]
mod read_document;
mod sources;
mod tensors;
#[cfg(feature = "kv")]
mod unhurried;

pub use adapter::{write_adapter, write_adapter_input, write_shipped_adapter};
#[cfg(feature = "kv")]
pub use cache_file::restore;
#[cfg(feature = "kv")]
pub use counted::Counted;
pub use directory::write_directory;
pub use mixture::{write_hybrid_mixture, write_mixture};
#[cfg(feature = "model")]
pub use model::{use_adapter, use_model};
pub use numbers::largest_difference;
pub use place::{book, fixture, fixtures};
#[cfg(feature = "documents")]
pub use read_document::{NAMES, read_document};
pub use sources::source_files;
#[cfg(feature = "kv")]
pub use unhurried::Unhurried;
