//! Conversations on the shipped models: the tokens that each turn reads, and the state after undo, branches and saving.

mod documents;
mod refusals;
mod saved;
mod testing;
mod turns;
