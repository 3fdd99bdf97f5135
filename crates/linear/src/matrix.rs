use core::fmt;

use crate::float::{self, Bf16, F16, F32};
use crate::machine::Buffer;
use crate::machine::Isa;
use crate::quant::{self, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::tasks::Product;
use crate::{Activations, LANES, LinearError, WeightFormat};

/// The weights of a linear layer, `[out_features, in_features]`, held once.
pub struct PackedMatrix {
    format: WeightFormat,
    out_features: usize,
    in_features: usize,
    activations: Activations,
    buffer: Buffer,
}

impl PackedMatrix {
    /// Packs the row-major little-endian bytes of a file, whose elements are of `format`. The bytes can be dropped
    /// afterwards: the matrix holds its own and only copy.
    pub fn pack(
        format: WeightFormat,
        out_features: usize,
        in_features: usize,
        row_major_bytes: &[u8],
    ) -> Result<PackedMatrix, LinearError> {
        let row_bytes = row_bytes(format, out_features, in_features, row_major_bytes.len())?;
        let too_large = || LinearError::TooLarge {
            out_features,
            in_features,
        };
        let padded = out_features.checked_next_multiple_of(LANES).ok_or_else(too_large)?;
        // bfloat16 lies in pairs of inputs.
        let padded_row_bytes = match format {
            WeightFormat::Bf16 => row_bytes.checked_next_multiple_of(4).ok_or_else(too_large)?,
            _ => row_bytes,
        };
        let mut buffer = Buffer::zeroed(padded_row_bytes.checked_mul(padded).ok_or_else(too_large)?)?;
        let packed = buffer.bytes_mut();
        match format {
            WeightFormat::F32 => float::pack::<F32>(row_major_bytes, out_features, in_features, packed),
            WeightFormat::F16 => float::pack::<F16>(row_major_bytes, out_features, in_features, packed),
            WeightFormat::Bf16 => float::pack::<Bf16>(row_major_bytes, out_features, in_features, packed),
            WeightFormat::Q4_0 => quant::pack::<Q4_0>(row_major_bytes, out_features, in_features, packed),
            WeightFormat::Q4_1 => quant::pack::<Q4_1>(row_major_bytes, out_features, in_features, packed),
            WeightFormat::Q5_0 => quant::pack::<Q5_0>(row_major_bytes, out_features, in_features, packed),
            WeightFormat::Q5_1 => quant::pack::<Q5_1>(row_major_bytes, out_features, in_features, packed),
            WeightFormat::Q8_0 => quant::pack::<Q8_0>(row_major_bytes, out_features, in_features, packed),
            WeightFormat::Q2K => quant::pack::<Q2K>(row_major_bytes, out_features, in_features, packed),
            WeightFormat::Q3K => quant::pack::<Q3K>(row_major_bytes, out_features, in_features, packed),
            WeightFormat::Q4K => quant::pack::<Q4K>(row_major_bytes, out_features, in_features, packed),
            WeightFormat::Q5K => quant::pack::<Q5K>(row_major_bytes, out_features, in_features, packed),
            WeightFormat::Q6K => quant::pack::<Q6K>(row_major_bytes, out_features, in_features, packed),
        }
        Ok(PackedMatrix {
            format,
            out_features,
            in_features,
            activations: Activations::Exact,
            buffer,
        })
    }

    /// The same matrix, whose products take activations so.
    #[must_use]
    pub fn with_activations(self, activations: Activations) -> PackedMatrix {
        PackedMatrix { activations, ..self }
    }

    /// `output[token, out] = Σ input[token, in] · weight[out, in]` for `input` `[tokens, in_features]` and `output`
    /// `[tokens, out_features]`, on the threads of the current rayon pool. Infinities and NaN propagate as in IEEE
    /// arithmetic.
    ///
    /// # Panics
    ///
    /// If `input` is not a whole number of rows, or `output` is not as many.
    pub fn matmul(&self, input: &[f32], output: &mut [f32]) {
        self.matmul_with(Isa::best(), input, output);
    }

    /// Several products of one input, `outputs` `[matrix][tokens, out_features]`, each with the bits of
    /// [`matmul`](Self::matmul). Neighbours of one format share the rounding of the activations and are handed out to threads
    /// together, which small matrices gain by.
    ///
    /// # Panics
    ///
    /// As [`matmul`](Self::matmul), or if the matrices have not as many inputs.
    pub fn matmul_all<const COUNT: usize>(
        matrices: [&PackedMatrix; COUNT],
        input: &[f32],
        outputs: [&mut [f32]; COUNT],
    ) {
        let mut products = matrices.into_iter().zip(outputs).peekable();
        while let Some((first, output)) = products.next() {
            let mut same = vec![first.product(input, output)];
            let kind = |matrix: &PackedMatrix| (matrix.format, matrix.activations, matrix.in_features);
            while let Some((matrix, output)) = products.next_if(|(matrix, _)| kind(matrix) == kind(first)) {
                same.push(matrix.product(input, output));
            }
            first.multiply(Isa::best(), same, input);
        }
    }

    pub(crate) fn matmul_with(&self, isa: Isa, input: &[f32], output: &mut [f32]) {
        self.multiply(isa, vec![self.product(input, output)], input);
    }

    /// The product of this matrix, its sizes checked.
    fn product<'a>(&'a self, input: &[f32], output: &'a mut [f32]) -> Product<'a> {
        let (outputs, inputs) = (self.out_features, self.in_features);
        let tokens = input.len() / inputs;
        assert_eq!(input.len(), tokens * inputs, "input must be [tokens, {inputs}]");
        assert_eq!(output.len(), tokens * outputs, "output must be [{tokens}, {outputs}]");
        Product {
            packed: self.buffer.bytes(),
            outputs,
            output,
        }
    }

    /// `products` are of matrices of this one's kind.
    fn multiply(&self, isa: Isa, products: Vec<Product<'_>>, input: &[f32]) {
        let inputs = self.in_features;
        match self.format {
            WeightFormat::F32 => float::multiply::<F32>(isa, products, inputs, input),
            WeightFormat::F16 => float::multiply::<F16>(isa, products, inputs, input),
            WeightFormat::Bf16 => match self.activations {
                Activations::Exact => float::multiply_pairs::<Bf16>(isa, products, inputs, input),
                Activations::Rounded => float::multiply_rounded(isa, products, inputs, input),
            },
            WeightFormat::Q4_0 => quant::multiply::<Q4_0>(isa, products, inputs, input),
            WeightFormat::Q4_1 => quant::multiply::<Q4_1>(isa, products, inputs, input),
            WeightFormat::Q5_0 => quant::multiply::<Q5_0>(isa, products, inputs, input),
            WeightFormat::Q5_1 => quant::multiply::<Q5_1>(isa, products, inputs, input),
            WeightFormat::Q8_0 => quant::multiply::<Q8_0>(isa, products, inputs, input),
            WeightFormat::Q2K => quant::multiply::<Q2K>(isa, products, inputs, input),
            WeightFormat::Q3K => quant::multiply::<Q3K>(isa, products, inputs, input),
            WeightFormat::Q4K => quant::multiply::<Q4K>(isa, products, inputs, input),
            WeightFormat::Q5K => quant::multiply::<Q5K>(isa, products, inputs, input),
            WeightFormat::Q6K => quant::multiply::<Q6K>(isa, products, inputs, input),
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
        let packed = self.buffer.bytes();
        match self.format {
            WeightFormat::F32 => float::row_into::<F32>(packed, self.out_features, row, output),
            WeightFormat::F16 => float::row_into::<F16>(packed, self.out_features, row, output),
            WeightFormat::Bf16 => float::row_into::<Bf16>(packed, self.out_features, row, output),
            WeightFormat::Q4_0 => quant::row_into::<Q4_0>(packed, row, output),
            WeightFormat::Q4_1 => quant::row_into::<Q4_1>(packed, row, output),
            WeightFormat::Q5_0 => quant::row_into::<Q5_0>(packed, row, output),
            WeightFormat::Q5_1 => quant::row_into::<Q5_1>(packed, row, output),
            WeightFormat::Q8_0 => quant::row_into::<Q8_0>(packed, row, output),
            WeightFormat::Q2K => quant::row_into::<Q2K>(packed, row, output),
            WeightFormat::Q3K => quant::row_into::<Q3K>(packed, row, output),
            WeightFormat::Q4K => quant::row_into::<Q4K>(packed, row, output),
            WeightFormat::Q5K => quant::row_into::<Q5K>(packed, row, output),
            WeightFormat::Q6K => quant::row_into::<Q6K>(packed, row, output),
        }
    }

    /// The bytes that were [packed](Self::pack): to bring the weights to a device with a layout of its own.
    pub fn unpack(&self) -> Vec<u8> {
        let (outputs, inputs) = (self.out_features, self.in_features);
        let row_bytes = inputs / self.format.block_weights() * self.format.block_bytes();
        let mut rows = vec![0; outputs * row_bytes];
        let packed = self.buffer.bytes();
        match self.format {
            WeightFormat::F32 => float::unpack::<F32>(packed, outputs, inputs, &mut rows),
            WeightFormat::F16 => float::unpack::<F16>(packed, outputs, inputs, &mut rows),
            WeightFormat::Bf16 => float::unpack::<Bf16>(packed, outputs, inputs, &mut rows),
            WeightFormat::Q4_0 => quant::unpack::<Q4_0>(packed, inputs, &mut rows),
            WeightFormat::Q4_1 => quant::unpack::<Q4_1>(packed, inputs, &mut rows),
            WeightFormat::Q5_0 => quant::unpack::<Q5_0>(packed, inputs, &mut rows),
            WeightFormat::Q5_1 => quant::unpack::<Q5_1>(packed, inputs, &mut rows),
            WeightFormat::Q8_0 => quant::unpack::<Q8_0>(packed, inputs, &mut rows),
            WeightFormat::Q2K => quant::unpack::<Q2K>(packed, inputs, &mut rows),
            WeightFormat::Q3K => quant::unpack::<Q3K>(packed, inputs, &mut rows),
            WeightFormat::Q4K => quant::unpack::<Q4K>(packed, inputs, &mut rows),
            WeightFormat::Q5K => quant::unpack::<Q5K>(packed, inputs, &mut rows),
            WeightFormat::Q6K => quant::unpack::<Q6K>(packed, inputs, &mut rows),
        }
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

    /// The format the weights are held in.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Bytes the weights take in memory, padding of the last 16 rows and of an odd row of bf16 included.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes().len()
    }
}

/// Bytes of a row of a file that holds `found` bytes for the matrix; an error where these are not what its sizes say.
fn row_bytes(
    format: WeightFormat,
    out_features: usize,
    in_features: usize,
    found: usize,
) -> Result<usize, LinearError> {
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
    let too_large = || LinearError::TooLarge {
        out_features,
        in_features,
    };
    let row_bytes = (in_features / block)
        .checked_mul(format.block_bytes())
        .ok_or_else(too_large)?;
    let expected = row_bytes.checked_mul(out_features).ok_or_else(too_large)?;
    if found != expected {
        return Err(LinearError::ByteLength {
            format,
            out_features,
            in_features,
            expected,
            found,
        });
    }
    Ok(row_bytes)
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
