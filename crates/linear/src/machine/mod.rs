//! What depends on the machine: its instruction sets and its pages of memory. All `unsafe` of the crate is here.

mod buffer;
mod isa;

pub(crate) use buffer::Buffer;
pub(crate) use isa::Isa;
