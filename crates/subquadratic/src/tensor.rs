use alloc::vec;
use alloc::vec::Vec;

use crate::SubquadraticError;

/// A dense f32 tensor `[seq, heads, dim]`, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor3 {
    data: Vec<f32>,
    seq: usize,
    heads: usize,
    dim: usize,
}

impl Tensor3 {
    /// A tensor of zeros.
    ///
    /// # Panics
    /// When the shape has more elements than memory can address. [`try_zeros`](Self::try_zeros) returns an error
    /// instead.
    pub fn zeros(seq: usize, heads: usize, dim: usize) -> Self {
        Self::try_zeros(seq, heads, dim).expect("tensor shape overflows")
    }

    /// A tensor of zeros, for shapes from untrusted input.
    ///
    /// # Errors
    /// [`SubquadraticError::TooLarge`] when the shape has more elements than memory can address.
    pub fn try_zeros(seq: usize, heads: usize, dim: usize) -> Result<Self, SubquadraticError> {
        let len = element_count(seq, heads, dim)?;
        Ok(Self {
            data: vec![0.0; len],
            seq,
            heads,
            dim,
        })
    }

    /// A tensor over existing data.
    ///
    /// # Errors
    /// [`SubquadraticError::Mismatch`] when `data` does not have seq × heads × dim elements.
    pub fn from_vec(data: Vec<f32>, seq: usize, heads: usize, dim: usize) -> Result<Self, SubquadraticError> {
        let expected = element_count(seq, heads, dim)?;
        if data.len() != expected {
            return Err(SubquadraticError::Mismatch {
                what: "data and tensor shape",
                expected,
                found: data.len(),
            });
        }
        Ok(Self { data, seq, heads, dim })
    }

    /// (seq, heads, dim).
    pub fn shape(&self) -> (usize, usize, usize) {
        (self.seq, self.heads, self.dim)
    }

    /// Tokens.
    pub fn seq(&self) -> usize {
        self.seq
    }

    /// Heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Elements of one head.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// All elements, `[seq, heads, dim]`.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// All elements, writable.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// The elements of one token's head, `[dim]`.
    ///
    /// # Panics
    /// The token or the head is outside the shape.
    pub fn row(&self, token: usize, head: usize) -> &[f32] {
        let start = self.row_start(token, head);
        &self.data[start..start + self.dim]
    }

    /// The elements of one token's head, writable.
    ///
    /// # Panics
    /// As [`row`](Self::row).
    pub fn row_mut(&mut self, token: usize, head: usize) -> &mut [f32] {
        let start = self.row_start(token, head);
        &mut self.data[start..start + self.dim]
    }

    /// One element; `None` outside the shape.
    pub fn get(&self, token: usize, head: usize, index: usize) -> Option<f32> {
        let inside = token < self.seq && head < self.heads && index < self.dim;
        inside.then(|| self.data[(token * self.heads + head) * self.dim + index])
    }

    fn row_start(&self, token: usize, head: usize) -> usize {
        assert!(
            token < self.seq && head < self.heads,
            "row ({token}, {head}) of {:?}",
            self.shape()
        );
        (token * self.heads + head) * self.dim
    }
}

fn element_count(seq: usize, heads: usize, dim: usize) -> Result<usize, SubquadraticError> {
    let count = seq.checked_mul(heads).and_then(|n| n.checked_mul(dim));
    // An allocation may not exceed isize::MAX bytes.
    count
        .filter(|n| *n <= isize::MAX as usize / 4)
        .ok_or(SubquadraticError::TooLarge { what: "tensor shape" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_checked() {
        assert!(Tensor3::try_zeros(usize::MAX, 2, 1).is_err());
        assert!(Tensor3::try_zeros(1 << 40, 1 << 20, 1 << 3).is_err());
        assert!(Tensor3::from_vec(vec![0.0; 5], 1, 2, 3).is_err());
        let tensor = Tensor3::from_vec((0..6).map(|x| x as f32).collect(), 1, 2, 3).unwrap();
        assert_eq!(tensor.row(0, 1), [3.0, 4.0, 5.0]);
        assert_eq!(tensor.get(0, 1, 2), Some(5.0));
        assert_eq!(tensor.get(0, 2, 0), None);
        assert_eq!(Tensor3::zeros(0, 4, 8).data().len(), 0);
    }
}
