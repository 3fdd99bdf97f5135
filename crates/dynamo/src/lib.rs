//! Riffle as a native worker of NVIDIA Dynamo, in one process: Dynamo's runtime around Riffle's engine.
//!
//! Dynamo's frontend makes tokens of a prompt and chooses a worker. A worker takes tokens and writes tokens:
//! [`RiffleWorker`] hands them to the thread that steps Riffle's scheduler, the same that `riffle serve` has behind its
//! HTTP. Dynamo's router is told which blocks of text the cache holds and in which tier, and how much is under way. A
//! request for anything that Riffle does not do is refused by name.

#![forbid(unsafe_code)]

mod answer;
mod arguments;
mod failure;
mod holdings;
mod load;
mod request;
mod worker;

pub use arguments::Arguments;
pub use worker::RiffleWorker;
