use core::fmt;
use core::ops::Range;
use std::borrow::Cow;
use std::sync::Arc;

use crate::machine::{Buffer, Isa};
use crate::tasks::Product;
use crate::{Activations, LANES, LinearError, WeightFormat};

/// The weights of a linear layer, `[out_features, in_features]`, stored once.
pub struct PackedMatrix {
    format: WeightFormat,
    out_features: usize,
    in_features: usize,
    activations: Activations,
    /// Factor of outputs, and of rows read back.
    factor: f32,
    /// Input number of each column, if it differs from the column's number.
    order: Option<Arc<[u32]>>,
    buffer: Buffer,
}

/// A matrix, the input rows it multiplies, and its output: see [`PackedMatrix::matmul_rows`].
pub struct RowsProduct<'a> {
    /// The matrix.
    pub matrix: &'a PackedMatrix,
    /// Rows of the input.
    pub rows: Range<usize>,
    /// `[rows, out_features]`
    pub output: &'a mut [f32],
}

impl<'a> RowsProduct<'a> {
    /// The product of all rows of an input.
    fn whole(matrix: &'a PackedMatrix, input: &[f32], output: &'a mut [f32]) -> RowsProduct<'a> {
        let inputs = matrix.in_features;
        let tokens = input.len() / inputs;
        assert_eq!(input.len(), tokens * inputs, "input must be [tokens, {inputs}]");
        RowsProduct {
            matrix,
            rows: 0..tokens,
            output,
        }
    }

    /// The product as a task with checked sizes; the task's input begins at row `start`.
    fn part(&mut self, start: usize) -> Product<'_> {
        let (outputs, tokens) = (self.matrix.out_features, self.rows.len());
        assert_eq!(
            self.output.len(),
            tokens * outputs,
            "output must be [{tokens}, {outputs}]"
        );
        Product {
            packed: self.matrix.buffer.bytes(),
            outputs,
            first_token: self.rows.start - start,
            output: &mut *self.output,
        }
    }
}

impl PackedMatrix {
    /// Packs the row-major little-endian bytes of a file with elements of `format`. The matrix holds its own copy, so
    /// the bytes can be dropped afterwards.
    pub fn pack(
        format: WeightFormat,
        out_features: usize,
        in_features: usize,
        row_major_bytes: &[u8],
    ) -> Result<PackedMatrix, LinearError> {
        check_bytes(format, out_features, in_features, row_major_bytes.len())?;
        let mut buffer = Buffer::zeroed(PackedMatrix::packed_bytes(format, out_features, in_features)?)?;
        (format.row().pack)(row_major_bytes, out_features, in_features, buffer.bytes_mut());
        Ok(PackedMatrix {
            format,
            out_features,
            in_features,
            activations: Activations::Exact,
            factor: 1.0,
            order: None,
            buffer,
        })
    }

    /// Bytes of a packed matrix of these sizes.
    ///
    /// # Errors
    /// [`LinearError`] for sizes that the format does not allow.
    pub fn packed_bytes(format: WeightFormat, out_features: usize, in_features: usize) -> Result<usize, LinearError> {
        let row_bytes = row_bytes(format, out_features, in_features)?;
        // bfloat16 is stored in pairs of inputs.
        let padded = row_bytes.checked_next_multiple_of(format.row().row_multiple);
        let rows = out_features.checked_next_multiple_of(LANES);
        let bytes = padded.zip(rows).and_then(|(row, rows)| row.checked_mul(rows));
        bytes.ok_or(LinearError::TooLarge {
            out_features,
            in_features,
        })
    }

    /// Replaces the weights and the factor by others of the same sizes and format, without allocation.
    ///
    /// # Errors
    /// [`LinearError::ByteLength`]; the matrix is then unchanged.
    pub fn repack(&mut self, row_major_bytes: &[u8], factor: f32) -> Result<(), LinearError> {
        let (outputs, inputs) = (self.out_features, self.in_features);
        check_bytes(self.format, outputs, inputs, row_major_bytes.len())?;
        // Padding of rows and columns stays zero.
        (self.format.row().pack)(row_major_bytes, outputs, inputs, self.buffer.bytes_mut());
        self.factor = factor;
        Ok(())
    }

    /// The same matrix with another rounding of activations.
    #[must_use]
    pub fn with_activations(self, activations: Activations) -> PackedMatrix {
        PackedMatrix { activations, ..self }
    }

    /// The same matrix times `factor`, a scale that all weights of a tensor share.
    #[must_use]
    pub fn with_factor(self, factor: f32) -> PackedMatrix {
        PackedMatrix {
            factor: self.factor * factor,
            ..self
        }
    }

    /// The same weights for inputs in another order: column `i` belongs to input `order[i]`. Products and rows use
    /// the original order of inputs.
    ///
    /// # Panics
    ///
    /// If `order` does not name every input once.
    #[must_use]
    pub fn with_input_order(self, order: Arc<[u32]>) -> PackedMatrix {
        let mut named = vec![false; self.in_features];
        for input in order.iter() {
            let named = named.get_mut(*input as usize);
            assert!(
                named.is_some_and(|named| !std::mem::replace(named, true)),
                "input {input}"
            );
        }
        assert_eq!(order.len(), self.in_features, "an order names every input");
        PackedMatrix {
            order: Some(order),
            ..self
        }
    }

    /// True if the matrix has no factor and no other order of inputs.
    pub fn is_plain(&self) -> bool {
        self.factor == 1.0 && self.order.is_none()
    }

    /// `output[token, out] = Σ input[token, in] · weight[out, in]` for `input` `[tokens, in_features]` and `output`
    /// `[tokens, out_features]`, on the threads of the current rayon pool. Infinities and NaN propagate as in IEEE
    /// arithmetic.
    ///
    /// # Panics
    ///
    /// If `input` is not a whole number of rows, or `output` has another number of rows.
    pub fn matmul(&self, input: &[f32], output: &mut [f32]) {
        self.matmul_with(Isa::best(), input, output);
    }

    /// Several products of one input into `outputs`, `[matrix][tokens, out_features]`, each with the bits of
    /// [`matmul`](Self::matmul). Matrices of one format share rounded activations and are distributed to threads
    /// together, which speeds up small matrices.
    ///
    /// # Panics
    ///
    /// As [`matmul`](Self::matmul), or if the matrices differ in their number of inputs.
    pub fn matmul_all<const COUNT: usize>(
        matrices: [&PackedMatrix; COUNT],
        input: &[f32],
        outputs: [&mut [f32]; COUNT],
    ) {
        let products = matrices.into_iter().zip(outputs);
        let products = products.map(|(matrix, output)| RowsProduct::whole(matrix, input, output));
        PackedMatrix::matmul_rows(products.collect(), input);
    }

    /// Products of parts of one `input`, `[tokens, in_features]`, each with the bits of [`matmul`](Self::matmul) of
    /// its own rows. Matrices of one format share rounded activations and are distributed to threads together.
    /// Experts of a mixture, with a few tokens each, thereby keep all threads busy.
    ///
    /// # Panics
    ///
    /// If the matrices differ in their number of inputs, or an output has another size than its rows need.
    pub fn matmul_rows(products: Vec<RowsProduct<'_>>, input: &[f32]) {
        let mut left = products;
        while let Some(RowsProduct { matrix: first, .. }) = left.first() {
            let first = *first;
            let (same, others) = left.into_iter().partition(|product| product.matrix.shares_input(first));
            PackedMatrix::multiply(Isa::best(), same, input);
            left = others;
        }
    }

    pub(crate) fn matmul_with(&self, isa: Isa, input: &[f32], output: &mut [f32]) {
        PackedMatrix::multiply(isa, vec![RowsProduct::whole(self, input, output)], input);
    }

    /// True if both round and order the input in the same way.
    fn shares_input(&self, other: &PackedMatrix) -> bool {
        let kind = |matrix: &PackedMatrix| (matrix.format, matrix.activations, matrix.in_features);
        let order = |matrix: &PackedMatrix| matrix.order.as_ref().map(Arc::as_ptr);
        kind(self) == kind(other) && order(self) == order(other)
    }

    /// Multiplies one or more matrices that share their input.
    fn multiply(isa: Isa, mut products: Vec<RowsProduct<'_>>, input: &[f32]) {
        let first = products[0].matrix;
        let inputs = first.in_features;
        // Only rows that a product uses are rounded and ordered.
        let start = products.iter().map(|product| product.rows.start).min().unwrap_or(0);
        let end = products.iter().map(|product| product.rows.end).max().unwrap_or(0);
        assert!(end * inputs <= input.len(), "input must be [{end}, {inputs}] at least");
        let input = &input[start * inputs..end * inputs];
        let parts = products.iter_mut().map(|product| product.part(start)).collect();
        let row = first.format.row();
        let multiply = match first.activations {
            Activations::Exact => row.multiply,
            Activations::Rounded => row.multiply_rounded,
        };
        multiply(isa, parts, inputs, &first.ordered(input));
        for RowsProduct { matrix, output, .. } in products {
            if matrix.factor != 1.0 {
                output.iter_mut().for_each(|value| *value *= matrix.factor);
            }
        }
    }

    /// Rows of inputs in the order of the columns.
    fn ordered<'a>(&self, input: &'a [f32]) -> Cow<'a, [f32]> {
        match &self.order {
            None => Cow::Borrowed(input),
            Some(order) => {
                let rows = input.chunks_exact(self.in_features);
                Cow::Owned(rows.flat_map(|row| order.iter().map(|at| row[*at as usize])).collect())
            }
        }
    }

    /// Writes row `row` as f32, exactly as stored: the embedding of a token.
    ///
    /// # Panics
    ///
    /// If `row` is not below `out_features`, or `output` is not `in_features` long.
    pub fn row_into(&self, row: usize, output: &mut [f32]) {
        assert!(
            row < self.out_features,
            "row {row} of a matrix with {} rows",
            self.out_features
        );
        assert_eq!(output.len(), self.in_features, "output must hold a row");
        (self.format.row().row_into)(self.buffer.bytes(), self.out_features, row, output);
        if let Some(order) = &self.order {
            let stored = output.to_vec();
            for (at, value) in order.iter().zip(stored) {
                output[*at as usize] = value;
            }
        }
        if self.factor != 1.0 {
            output.iter_mut().for_each(|value| *value *= self.factor);
        }
    }

    /// The bytes given to [`pack`](Self::pack), for a device with its own layout. They are the whole matrix if it [is
    /// plain](Self::is_plain).
    pub fn unpack(&self) -> Vec<u8> {
        let (outputs, inputs) = (self.out_features, self.in_features);
        let row_bytes = self.format.row_bytes(inputs).unwrap_or_default();
        let mut rows = vec![0; outputs * row_bytes];
        (self.format.row().unpack)(self.buffer.bytes(), outputs, inputs, &mut rows);
        rows
    }

    /// Rows of the matrix: values of an output row.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Columns of the matrix: values of an input row.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// The rounding of activations in products.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// The format of the weights.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Bytes of the weights in memory, including the padding of the last 16 rows and of an odd row of bf16.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes().len()
    }
}

/// Bytes of a row in a file, for valid sizes.
fn row_bytes(format: WeightFormat, out_features: usize, in_features: usize) -> Result<usize, LinearError> {
    if out_features == 0 || in_features == 0 {
        return Err(LinearError::Empty {
            out_features,
            in_features,
        });
    }
    let block = format.block_weights();
    if !in_features.is_multiple_of(block) {
        return Err(LinearError::Block {
            format,
            in_features,
            block,
        });
    }
    format.row_bytes(in_features).ok_or(LinearError::TooLarge {
        out_features,
        in_features,
    })
}

/// Checks that a file's bytes match the size of the matrix.
fn check_bytes(format: WeightFormat, out_features: usize, in_features: usize, found: usize) -> Result<(), LinearError> {
    let row_bytes = row_bytes(format, out_features, in_features)?;
    let expected = row_bytes.checked_mul(out_features).ok_or(LinearError::TooLarge {
        out_features,
        in_features,
    })?;
    if found == expected {
        return Ok(());
    }
    Err(LinearError::ByteLength {
        format,
        out_features,
        in_features,
        expected,
        found,
    })
}

impl fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedMatrix")
            .field("format", &self.format)
            .field("out_features", &self.out_features)
            .field("in_features", &self.in_features)
            .finish_non_exhaustive()
    }
}
