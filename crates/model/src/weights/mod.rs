//! Weight files: their contents, checks, and taking tensors one by one.

mod checkpoint;
mod matrices;
pub(crate) mod quantised;
mod row_order;
mod rows;
mod safetensors;
mod shards;
mod stack;
mod tensor;
mod weight_file;

pub use checkpoint::Checkpoint;
pub(crate) use quantised::Quantisation;
pub(crate) use row_order::RowOrder;
pub(crate) use rows::TensorRows;
pub(crate) use safetensors::read_header;
pub(crate) use shards::{open_directory, text_name};
pub(crate) use stack::{Stack, StackParts};
pub(crate) use tensor::{NoSuchType, StoredTensor, check_name, first_not_finite, to_f32};
pub use tensor::{TensorInfo, TensorType};
