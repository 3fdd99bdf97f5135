//! Riffle as a native worker of NVIDIA Dynamo, in one process: Dynamo's runtime around Riffle's engine.
//!
//! Dynamo's frontend tokenises a prompt and chooses a worker. A worker takes and returns tokens: [`RiffleWorker`]
//! passes them to the thread that steps Riffle's scheduler, the same as in `riffle serve`. Dynamo's router is told the
//! held blocks with their tiers, and the current load. A request for an unsupported feature is refused by name.

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
