//! The order of the rows of stored tensors.

use std::borrow::Cow;

/// The order of a stored tensor's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// The model's order.
    Plain,
    /// Within each of `heads` heads, rows i and i + head_dim/2 are adjacent.
    Interleaved { heads: usize },
    /// As `Interleaved`, for the `rotated` rows of each head from its row `first` on.
    PartlyInterleaved { heads: usize, first: usize, rotated: usize },
}

impl RowOrder {
    /// The bytes of `rows` rows in the model's order.
    pub(super) fn ordered(self, bytes: Cow<'_, [u8]>, rows: usize) -> Cow<'_, [u8]> {
        match self {
            RowOrder::Plain => bytes,
            RowOrder::Interleaved { heads } => {
                Cow::Owned(without_interleaving(&bytes, rows, heads, (0, rows / heads.max(1))))
            }
            RowOrder::PartlyInterleaved { heads, first, rotated } => {
                Cow::Owned(without_interleaving(&bytes, rows, heads, (first, rotated)))
            }
        }
    }
}

/// Moves rows 2i and 2i + 1 back to i and i + rotated/2. They count among the `rotated` rows of each head, from its row
/// `first` on.
fn without_interleaving(bytes: &[u8], rows: usize, heads: usize, (first, rotated): (usize, usize)) -> Vec<u8> {
    let row_bytes = bytes.len() / rows;
    let head_dim = rows / heads;
    let mut ordered = Vec::with_capacity(bytes.len());
    for row in 0..rows {
        let (head, within) = (row / head_dim, row % head_dim);
        let stored = match within.checked_sub(first) {
            Some(turned) if turned < rotated => {
                head * head_dim + first + 2 * (turned % (rotated / 2)) + turned / (rotated / 2)
            }
            _ => row,
        };
        ordered.extend_from_slice(&bytes[stored * row_bytes..][..row_bytes]);
    }
    ordered
}
