//! Machine-dependent code: instruction sets and memory pages. All `unsafe` of the crate is here.

mod buffer;
mod isa;
mod pages;

pub(crate) use buffer::Buffer;
pub(crate) use isa::Isa;
pub use pages::gather_pages;
