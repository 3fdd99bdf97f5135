//! The worker as Dynamo drives it, on the shipped model.

mod answers;
mod command_line;
mod conformance;
mod refusals;
mod testing;
