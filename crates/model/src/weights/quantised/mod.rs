//! Weights that another program quantised, of safetensors: which tensors hold a matrix, and how it becomes a format of `riffle-linear`.
//!
//! [`Quantisation`] is read from config.json. [`bind`] finds the tensors of each matrix by name, type and shape, and puts one tensor of
//! a packed format in their place, so that families, plans and loading see no difference. A [`Recipe`] makes its bytes when it is taken.

mod binding;
mod e2m1;
mod float8;
mod integers;
mod method;
mod recipe;
mod stacks;
#[cfg(test)]
mod tests;

pub(crate) use binding::bind;
pub(crate) use method::Quantisation;
pub(crate) use recipe::{Made, Part, Recipe};
