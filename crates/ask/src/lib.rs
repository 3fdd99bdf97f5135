//! Questions about documents.
//!
//! A [`Conversation`] reads documents once and answers questions one by one. With each answer it returns the
//! [`Passage`]s that had the most attention. The documents come first in the prompt. Their pages are kept on disk and
//! found by content ([`KeepOptions`]), so later questions need not read them again, even in another process.
//!
//! If the documents exceed the context, each question reads the parts that share words with it ([`Amount`]). With
//! [`AskOptions::embeddings`] it also reads the parts that are nearest in meaning. The caller can choose pages and
//! chapters instead ([`Scope`]).
//!
//! The crate selects unset options by free memory and by the lengths from which policies are faster ([`Choice`]). One
//! line shows them.
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
mod meaning;
mod offsets;
mod opening;
mod parts;
mod passages;
mod prompt;

pub use choice::{Choice, Given, reading_options};
pub use conversation::{Answer, AskEvent, AskOptions, Beginning, Conversation};
pub use error::AskError;
pub use keep::{KeepOptions, default_cache_folder};
pub use parts::{Amount, FoundBy, Part, Scope};
pub use passages::Passage;
