//! The shapes of Anthropic.

mod blocks;
mod conversation;
pub(crate) mod messages;
