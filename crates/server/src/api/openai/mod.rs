//! The shapes of OpenAI.

pub(crate) mod chat;
mod chunks;
pub(crate) mod completions;
mod input;
mod items;
mod messages;
pub(crate) mod models;
mod probabilities;
pub(crate) mod responses;
mod tools;

pub(crate) use messages::read as read_messages;
pub(crate) use tools::{Choice, Tools, finish as finish_tools, take as take_tools};
