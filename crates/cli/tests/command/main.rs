//! Tests of the command's output, files and refusals.

mod adapters;
mod ask;
mod bad_input;
mod bad_model;
mod book;
mod chat;
mod chunks;
mod commands;
mod default_model;
#[cfg(feature = "pull")]
mod experts;
#[cfg(unix)]
mod file_limits;
mod help;
mod hub;
mod laboratory;
mod main_job;
mod measure;
mod mistakes;
mod nested;
mod numbers;
mod output;
mod policies;
mod quantize;
mod serve;
mod sessions;
mod shared_documents;
mod strangers;
#[path = "../testing/mod.rs"]
mod testing;
mod tokenize;
mod unused;
