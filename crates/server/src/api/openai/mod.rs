//! The shapes of OpenAI.

pub(crate) mod chat;
mod chunks;
pub(crate) mod completions;
mod input;
mod items;
mod kept;
mod messages;
pub(crate) mod models;
pub(crate) mod probabilities;
pub(crate) mod responses;
mod tools;

pub(crate) use kept::KeptItems;
pub(crate) use messages::{arguments_of, called, read as read_messages};
pub(crate) use tools::{Choice, Tools, finish as finish_tools, take as take_tools};
