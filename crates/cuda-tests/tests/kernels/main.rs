//! Kernels compared with references in f64 and with the CPU's crates, on every available device.
#![cfg(unix)]

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
