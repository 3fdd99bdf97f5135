//! Code that depends on the machine: its instruction sets and its pages of memory. All `unsafe` of the crate is here.

mod buffer;
mod isa;
mod pages;

pub(crate) use buffer::Buffer;
pub(crate) use isa::Isa;
pub use pages::gather_pages;
