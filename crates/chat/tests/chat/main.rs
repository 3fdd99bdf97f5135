//! Conversations on the shipped models: what each turn reads, and what going back, branching and saving keep.

mod documents;
mod refusals;
mod saved;
mod testing;
mod turns;
