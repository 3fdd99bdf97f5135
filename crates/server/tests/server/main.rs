//! Guarantees of the server to its clients.

mod access;
mod adapters;
mod answers;
mod captured;
mod clients;
mod embeddings;
mod events;
mod experts;
mod hostile;
mod infill;
mod mutants;
mod ollama;
mod operation;
mod reading;
mod sessions;
mod several;
mod shapes;
mod stopping;
mod structured;
mod testing;
mod worker;
