//! Attention against definitions in f64.

mod attend;
mod rows;
#[path = "../testing/mod.rs"]
mod testing;
