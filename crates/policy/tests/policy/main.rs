//! Compares each policy's selections with brute-force definitions.

mod blocks;
mod estimates;
mod evicting;
mod h2o_chunk;
mod lines;
mod policies;
mod scans;
mod signs;
mod state;
#[path = "../testing/mod.rs"]
mod testing;
