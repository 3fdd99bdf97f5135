//! Products of weights and activations: linear layers, and rows of an embedding.

use riffle_linear::WeightFormat;

use super::weights::{arrange, blocks, device_bytes, is_known, number};
use super::{MAP_THREADS, check_aligned, check_bytes, map_blocks, small};
use crate::driver::Product16;
use crate::{CudaError, DeviceBuffer, Gpu, Grid, Kernel, ModuleSource, Region, Stream};

/// Maximum number of rows for sums without tensor cores.
pub const FEW_ROWS: usize = 8;
const TILE_ROWS: usize = 128;
const TILE_OUTPUTS: usize = 64;
/// Dynamic shared memory of `multiply_many`: `sizeof(Tile)` in the two sources.
const QUANTISED_TILE_BYTES: usize = 4 * (4 * 12 * (TILE_ROWS + TILE_OUTPUTS) + 8 * TILE_ROWS + 16 * TILE_OUTPUTS);
const FLOAT_TILE_BYTES: usize = 2 * 2 * 40 * (TILE_ROWS + TILE_OUTPUTS);

/// A matrix of weights on the device, `[outputs, inputs]`, in the format of its file.
///
/// Products with block formats round activations to 8 bits, with a scale for each 32, like `riffle-linear` on the CPU.
/// Products with f16 and bf16 round activations to that type if there are more than eight rows, and are exact to f32
/// otherwise. Products of f16 and bf16 with many rows use a library if the device has one ([`Gpu::products`]).
#[derive(Debug)]
pub struct DeviceMatrix {
    format: WeightFormat,
    outputs: usize,
    inputs: usize,
    data: DeviceBuffer,
}

impl DeviceMatrix {
    /// Uploads weights: `bytes` are `[outputs, inputs]` in the form of safetensors or GGUF files.
    ///
    /// # Errors
    /// Bytes of another size than the matrix, a format without a kernel, too little memory.
    pub fn upload(
        gpu: &Gpu,
        format: WeightFormat,
        outputs: usize,
        inputs: usize,
        bytes: &[u8],
    ) -> Result<Self, CudaError> {
        let blocks = blocks(format, outputs, inputs, bytes.len())?;
        small("outputs", outputs)?;
        small("inputs", inputs)?;
        let mut arranged = vec![0; device_bytes(format, blocks)];
        arrange(format, bytes, &mut arranged);
        let data = gpu.upload(&arranged)?;
        Ok(Self {
            format,
            outputs,
            inputs,
            data,
        })
    }

    /// True if devices have a kernel for the format. [`upload`](Self::upload) refuses others.
    pub fn supports(format: WeightFormat) -> bool {
        is_known(format)
    }

    /// Bytes of a matrix of this shape on the device.
    pub fn bytes_for(format: WeightFormat, outputs: usize, inputs: usize) -> usize {
        device_bytes(format, outputs * (inputs / format.block_weights()))
    }

    /// The format of the weights.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Elements of an output row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Elements of an input row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        self.data.bytes()
    }

    /// Bytes of scratch of [`multiply`](Self::multiply) for `rows` rows.
    pub fn scratch_bytes(&self, rows: usize) -> usize {
        if self.is_quantised() {
            rows * (self.inputs + self.inputs / 32 * 8)
        } else if self.goes_to_library(rows) {
            2 * rows * self.inputs
        } else {
            0
        }
    }

    /// `output = input · weightsᵀ`: `[rows, outputs]` from `[rows, inputs]`.
    ///
    /// # Errors
    /// Regions that are too short.
    pub fn multiply(
        &self,
        stream: &Stream,
        output: Region<'_>,
        input: Region<'_>,
        rows: usize,
        scratch: Region<'_>,
    ) -> Result<(), CudaError> {
        check_bytes("outputs", output, rows.saturating_mul(self.outputs), 4)?;
        check_bytes("inputs", input, rows.saturating_mul(self.inputs), 4)?;
        check_bytes("scratch of a product", scratch, self.scratch_bytes(rows), 1)?;
        check_aligned("inputs", input, 16)?;
        check_aligned("scratch of a product", scratch, 16)?;
        let (row_count, outputs, inputs) = (small("rows", rows)?, self.outputs as u32, self.inputs as u32);
        let shape = [row_count.into(), outputs.into(), inputs.into()];
        if self.goes_to_library(rows) {
            let input_16 = scratch.part(0..2 * rows * self.inputs);
            let count = rows * self.inputs;
            let arguments = [input_16.into(), input.into(), (count as u64).into()];
            let grid = Grid::line(map_blocks(count), MAP_THREADS);
            stream.launch(&self.kernel(stream, "narrow_rows")?, grid, &arguments)?;
            let product = Product16 {
                is_bf16: self.format == WeightFormat::Bf16,
                rows,
                outputs: self.outputs,
                inputs: self.inputs,
            };
            if stream.multiply_16_bit(&product, output, self.data.all(), input_16)? {
                return Ok(());
            }
        }
        if !self.is_quantised() {
            let (name, grid) = match rows {
                0 | 1 => ("multiply_1", self.few(rows, 1)),
                _ if rows <= FEW_ROWS || self.format == WeightFormat::F32 => ("multiply_8", self.few(rows, 8)),
                _ => ("multiply_many", self.many(rows, FLOAT_TILE_BYTES)),
            };
            let [a, b, c] = shape;
            let arguments = [output.into(), self.data.all().into(), input.into(), a, b, c];
            return stream.launch(&self.kernel(stream, name)?, grid, &arguments);
        }
        let stretches = rows * (self.inputs / 32);
        let quants = scratch.part(0..rows * self.inputs);
        let scales = scratch.part(rows * self.inputs..rows * self.inputs + 4 * stretches);
        let sums = scratch.part(rows * self.inputs + 4 * stretches..rows * self.inputs + 8 * stretches);
        let count = stretches as u64;
        let arguments = [quants.into(), scales.into(), sums.into(), input.into(), count.into()];
        let grid = Grid::line(stretches.div_ceil(128), 128);
        stream.launch(&self.kernel(stream, "quantise_rows")?, grid, &arguments)?;
        let (name, grid) = match rows {
            0 | 1 => ("multiply_1", self.few(rows, 1)),
            _ if rows <= FEW_ROWS => ("multiply_4", self.few(rows, 4)),
            _ => ("multiply_many", self.many(rows, QUANTISED_TILE_BYTES)),
        };
        let [a, b, c] = shape;
        let data = self.data.all().into();
        let arguments = [output.into(), data, quants.into(), scales.into(), sums.into(), a, b, c];
        stream.launch(&self.kernel(stream, name)?, grid, &arguments)
    }

    /// Writes the weights of output `ids[row]` (u32, all below `outputs`) to `output[row]`, `[inputs]`, with the file's
    /// precision.
    ///
    /// # Errors
    /// Regions that are too short.
    pub fn gather(&self, stream: &Stream, output: Region<'_>, ids: Region<'_>, rows: usize) -> Result<(), CudaError> {
        check_bytes("embeddings", output, rows.saturating_mul(self.inputs), 4)?;
        check_bytes("token ids", ids, rows, 4)?;
        let kernel = self.kernel(stream, "gather")?;
        let (outputs, inputs) = (self.outputs as u32, self.inputs as u32);
        let arguments = [
            output.into(),
            self.data.all().into(),
            ids.into(),
            outputs.into(),
            inputs.into(),
        ];
        stream.launch(&kernel, Grid::line(rows, 128), &arguments)
    }

    /// True if a library computes the product.
    fn goes_to_library(&self, rows: usize) -> bool {
        let is_16_bit = matches!(self.format, WeightFormat::F16 | WeightFormat::Bf16);
        is_16_bit && rows > FEW_ROWS && self.data.gpu().has_blas()
    }

    fn is_quantised(&self) -> bool {
        self.format.block_weights() > 1
    }

    fn kernel(&self, stream: &Stream, name: &'static str) -> Result<Kernel, CudaError> {
        let file = if self.is_quantised() {
            "quantised_linear.cu"
        } else {
            "float_linear.cu"
        };
        stream
            .gpu()
            .kernel(&ModuleSource::new(file, &[("FORMAT", number(self.format))]), name)
    }

    fn few(&self, rows: usize, together: usize) -> Grid {
        Grid::new([self.outputs.div_ceil(4), rows.div_ceil(together), 1], 128)
    }

    fn many(&self, rows: usize, shared_bytes: usize) -> Grid {
        let blocks = [self.outputs.div_ceil(TILE_OUTPUTS), rows.div_ceil(TILE_ROWS), 1];
        Grid::new(blocks, 256).with_shared(shared_bytes)
    }
}
