//! Weight files: what they hold, checked, and tensors taken from them one by one.

mod checkpoint;
mod mapping;
mod safetensors;
mod tensor;

pub(crate) use checkpoint::Checkpoint;
pub(crate) use tensor::to_f32;
pub use tensor::{TensorInfo, TensorType};
