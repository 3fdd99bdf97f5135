//! A server for long contexts over HTTP, on the engine's scheduler.
//!
//! It speaks the shapes of OpenAI (`/v1/completions`, `/v1/chat/completions`, `/v1/responses`), of Anthropic
//! (`/v1/messages`) and of Ollama (`/api/chat`, `/api/generate`). It does no scheduling of its own: one thread steps a
//! [`Scheduler`](riffle_engine::Scheduler), and requests reach it as messages.
//!
//! Guarantees:
//!
//! - The server refuses an unsupported field by name with status 400, and never ignores it.
//! - The server notices a client that goes away, without a message from it. The request's work ends within one piece.
//!   The pages of its prompt stay for a later request with the same beginning.
//! - An answer has the bytes that it has alone, whatever else runs.
//! - A client that reads slowly holds up nobody.
//!
//! ```no_run
//! use riffle_engine::{Engine, EngineOptions};
//! use riffle_server::{Server, ServerOptions};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let engine = Engine::load("fixtures/model", EngineOptions::default().with_sequences(4))?;
//!     let server = Server::bind(&engine, ServerOptions::default())?;
//!     println!("http://{}", server.address());
//!     server.run()?;
//!     Ok(())
//! }
//! ```

#![forbid(unsafe_code)]

mod api;
mod app;
mod asking;
mod base_path;
mod connections;
mod driver;
mod error;
mod failure;
mod fields;
mod forms;
mod json;
mod keys;
mod listening;
mod log;
mod metrics;
mod models;
mod options;
mod request_notes;
mod room;
mod router;
mod serve;
mod site;
mod speech;
mod tls;
mod tokenising;
mod worker;

pub use driver::{EventSink, KvEventAddresses, event_of};
pub use error::ServerError;
pub use failure::Failure;
pub use forms::Form;
pub use keys::{ApiKey, Keys};
pub use listening::ListenAddress;
pub use log::{Log, LogFormat};
pub use models::{ModelSource, ModelsPlan, PlannedModel};
pub use options::{Limits, ServerOptions};
pub use riffle_events::{Encoding, PublisherOptions};
pub use room::{RequestsBytes, engine_options, requests_bytes};
pub use router::JSON_PATHS;
pub use serve::{Server, Stopper};
pub use tls::{Tls, TlsError, TlsIdentity};
pub use worker::{Answer, AnswerEvent, Worker};
