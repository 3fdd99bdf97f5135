//! KV events in vLLM's form: they tell routers which blocks of text a server's KV cache holds.
//!
//! A router sends a request to the server that can continue from the longest beginning of its prompt. Servers send it
//! events: a block was [stored](Event::Stored), was [removed](Event::Removed), all were [cleared](Event::Cleared). A
//! *block* is a page of tokens under a hash of all tokens up to its end. Its [`Medium`] names the memory that holds
//! it.
//!
//! The [`Publisher`] sends batches of events over ZeroMQ, in the format of vLLM's `ZmqEventPublisher`: MessagePack in
//! `msgspec`'s form, numbered batches, and a second socket that resends missed batches. Readers of vLLM's events can
//! also read these.
//!
//! A [`Picture`] is the set of held blocks, according to the events so far:
//!
//! ```
//! use riffle_events::{Block, Encoding, Event, Group, Medium, Picture, encode_batch};
//!
//! let block = Block { hash: 7, parent: None, tokens: [1, 2, 3, 4].into() };
//! let stored = Event::Stored { block, medium: Medium::Gpu, group: Group::Attention };
//! let mut picture = Picture::default();
//! picture.apply(&stored);
//! assert!(picture.holds(7, Medium::Gpu, Group::Attention));
//! let bytes = encode_batch(&[stored], 1.5, Encoding::Map);
//! assert!(bytes.windows(11).any(|text| text == b"BlockStored"));
//! ```

#![forbid(unsafe_code)]

mod encode;
mod error;
mod event;
mod options;
mod picture;
mod publisher;
mod replay;

pub use encode::{Encoding, encode_batch};
pub use error::EventsError;
pub use event::{Block, Event, Group, Medium};
pub use options::PublisherOptions;
pub use picture::Picture;
pub use publisher::{Publisher, PublisherCounts};
