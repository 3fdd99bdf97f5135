//! Tests of each policy's selections against definitions by brute force.

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
