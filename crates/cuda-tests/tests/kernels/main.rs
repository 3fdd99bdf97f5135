//! Kernels against references in f64 and against the CPU's crates, on every device there is.

mod ahead;
mod attention;
mod cache;
mod delta;
mod driver;
mod estimates;
mod linear;
mod means;
mod paged;
mod room;
mod rows;
mod scoring;
mod sparse;
mod testing;
