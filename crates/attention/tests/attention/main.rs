//! Attention against definitions in f64.

mod attend;
mod laws;
mod rounded;
mod rows;
mod shared_pages;
#[path = "../testing/mod.rs"]
mod testing;
mod widths;
