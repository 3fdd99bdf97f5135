//! Splits an output matrix into pieces that threads fill independently.

use rayon::prelude::*;

/// Multiply-adds below which waking threads costs more than it saves: some 40 µs of one thread.
const SERIAL_WORK: usize = 6 << 20;
/// Reading a weight from memory takes about as long as multiplying it with this many tokens.
const READ_TOKENS: usize = 8;
/// Pieces per thread, so that a delayed thread does not delay the rest.
const PIECES_PER_THREAD: usize = 4;
/// Fewest tokens of a piece.
const LEAST_TOKENS: usize = 96;

/// A packed matrix and its output.
pub(crate) struct Product<'a> {
    pub(crate) packed: &'a [u8],
    pub(crate) outputs: usize,
    /// Input row of the product's first token.
    pub(crate) first_token: usize,
    /// `[tokens, outputs]`
    pub(crate) output: &'a mut [f32],
}

impl Product<'_> {
    /// Number of input rows.
    pub(crate) fn tokens(&self) -> usize {
        self.output.len() / self.outputs
    }
}

/// Some tokens and outputs of a product.
pub(crate) struct RowsPiece<'a> {
    pub(crate) packed: &'a [u8],
    /// Outputs of the whole product.
    pub(crate) outputs: usize,
    pub(crate) first_token: usize,
    pub(crate) first_output: usize,
    /// Output rows of the piece's tokens, limited to the piece's outputs.
    pub(crate) rows: Vec<&'a mut [f32]>,
}

/// Calls `work` for pieces that cover `products`. Pieces start at multiples of `granule` outputs.
pub(crate) fn for_pieces<'a>(
    mut products: Vec<Product<'a>>,
    inputs: usize,
    granule: usize,
    work: impl Fn(RowsPiece<'a>) + Sync,
) {
    products.retain(|product| !product.output.is_empty());
    if products.is_empty() {
        return;
    }
    let outputs: usize = products.iter().map(|product| product.outputs).sum();
    let threads = rayon::current_num_threads();
    let mut pieces = Vec::new();
    let amounts = products
        .iter()
        .map(|product| (product.outputs * inputs).saturating_mul(product.tokens() + READ_TOKENS));
    if threads == 1 || amounts.fold(0, usize::saturating_add) < SERIAL_WORK {
        for product in products {
            cut(product, usize::MAX, usize::MAX, &mut pieces);
        }
        return pieces.into_iter().for_each(&work);
    }
    let wanted = threads * PIECES_PER_THREAD;
    let width = outputs.div_ceil(wanted).next_multiple_of(granule);
    let columns: usize = products.iter().map(|product| product.outputs.div_ceil(width)).sum();
    for product in products {
        let height = product.tokens().div_ceil(wanted.div_ceil(columns)).max(LEAST_TOKENS);
        cut(product, height, width, &mut pieces);
    }
    pieces.into_par_iter().for_each(&work);
}

/// Pieces of at most `height` tokens and `width` outputs.
fn cut<'a>(product: Product<'a>, height: usize, width: usize, pieces: &mut Vec<RowsPiece<'a>>) {
    let Product {
        packed,
        outputs,
        first_token,
        output,
    } = product;
    let height = height.min(output.len() / outputs);
    for (band, rows) in output.chunks_mut(height * outputs).enumerate() {
        let first = pieces.len();
        pieces.extend((0..outputs).step_by(width.min(outputs)).map(|first_output| RowsPiece {
            packed,
            outputs,
            first_token: first_token + band * height,
            first_output,
            rows: Vec::with_capacity(height),
        }));
        for row in rows.chunks_exact_mut(outputs) {
            for (piece, part) in pieces[first..].iter_mut().zip(row.chunks_mut(width)) {
                piece.rows.push(part);
            }
        }
    }
}
