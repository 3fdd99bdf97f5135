//! KV events as vLLM publishes them: which blocks of text a server's KV cache holds, for routers.
//!
//! A router that knows what each server has read sends a request to the server that can go on from the longest
//! beginning of its prompt. Servers tell it by events: a block was [stored](Event::Stored), was
//! [removed](Event::Removed), all were [cleared](Event::Cleared). A *block* is a page of tokens under a hash of all
//! tokens up to its end. Its [`Medium`] names the memory that holds it.
//!
//! The [`Publisher`] sends batches of events over ZeroMQ, in the format of vLLM's `ZmqEventPublisher`: MessagePack as
//! `msgspec` writes it, numbered batches, a second socket that sends missed batches again. A reader of vLLM's events
//! also reads these.
//!
//! A [`Picture`] is the set of blocks held, according to the events so far:
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
