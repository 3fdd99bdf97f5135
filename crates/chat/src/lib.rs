//! A conversation of many turns with a model. Each turn reads only new tokens.
//!
//! A [`Conversation`] has the turns as text, and the keys and values of their tokens. For each message it renders the
//! whole conversation with the model's template. It finds the part that was already read, and reads the rest. Answers
//! keep the model's own tokens, so they need no second reading.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use riffle_chat::{Conversation, ChatOptions};
//! use riffle_engine::{Engine, EngineOptions, RunEvent};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let options = EngineOptions::default().with_sequences(riffle_chat::MOST_BRANCHES);
//!     let engine = Engine::load("model.gguf", options)?;
//!     let mut conversation = Conversation::new(engine, ChatOptions::default())?;
//!     for message in ["Who wrote Emma?", "When?"] {
//!         conversation.ask(message, &mut |event| {
//!             if let RunEvent::Text(text) = event {
//!                 print!("{text}");
//!             }
//!             ControlFlow::Continue(())
//!         })?;
//!     }
//!     Ok(())
//! }
//! ```

#![forbid(unsafe_code)]

mod branch;
mod conversation;
mod error;
mod prompt;
mod report;
mod saved;
mod transcript;
mod turns;

pub use branch::{Document, Turn};
pub use conversation::{Attached, ChatOptions, Conversation, MOST_BRANCHES, Observe, PolicyChange};
pub use error::ChatError;
pub use report::{BranchReport, ChatReport, TurnReport};
pub use saved::Loaded;
pub use turns::Undone;
