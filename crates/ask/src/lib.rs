//! Questions about documents.
//!
//! A [`Conversation`] reads documents once, answers one question after the other, and shows the [`Passage`]s that each answer's
//! attention went to. The documents stand first in the prompt, so that a second question, in this process or a later one, finds them
//! read: their pages are kept on disk and found by content ([`KeepOptions`]).
//!
//! Of documents that are longer than the context, each question reads the parts that share words with it ([`Amount`]). The caller can choose
//! pages and chapters instead ([`Scope`]).
//!
//! Options that the caller left open follow from the free memory and from the lengths at which policies pay
//! ([`Choice`]). One line names them.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use riffle_ask::{AskOptions, Conversation};
//! use riffle_documents::{Limits, read};
//! use riffle_engine::GenerateOptions;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let documents = read(&["book.epub"], &Limits::default())?.documents;
//! let mut conversation = Conversation::open("model.gguf", documents, AskOptions::default())?;
//! eprintln!("{}", conversation.choice());
//! let generate = GenerateOptions::default();
//! let answer = conversation.ask("Who sails?", &generate, &mut |_| ControlFlow::Continue(()))?;
//! println!("{}", answer.text);
//! for passage in &answer.passages {
//!     println!("{}, {}: {}", passage.document, passage.place, passage.quotation);
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod choice;
mod conversation;
mod error;
mod keep;
mod offsets;
mod opening;
mod parts;
mod passages;
mod prompt;

pub use choice::{Choice, Given, reading_options};
pub use conversation::{Answer, AskEvent, AskOptions, Beginning, Conversation};
pub use error::AskError;
pub use keep::{KeepOptions, default_cache_folder};
pub use parts::{Amount, Part, Scope};
pub use passages::Passage;
