//! Safetensors weights quantised by other programs: finds the tensors of a matrix and converts them to a format of
//! `riffle-linear`.
//!
//! [`Quantisation`] is read from config.json. [`bind`] finds the tensors of each matrix by name, type and shape. It
//! replaces them by one tensor of a packed format, so families, plans and loading see no difference. A [`Recipe`]
//! computes its bytes when it is taken.

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
