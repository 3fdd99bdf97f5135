//! Kernels against references in f64 and against the CPU's crates, on every device there is.

mod driver;
mod rows;
mod testing;
