//! A causal convolution of each channel over its last few tokens.

use crate::ModelError;
use crate::blocks::activation::silu;
use crate::blocks::rows::for_rows;
use crate::weights::Checkpoint;

pub(crate) struct Convolution {
    // [kernel, channels], the oldest token first
    taps: Vec<f32>,
    // [channels]
    bias: Option<Vec<f32>>,
    channels: usize,
    /// Tokens between two taps.
    dilation: usize,
    /// True if SiLU follows.
    has_silu: bool,
}

impl Convolution {
    /// Loads `{name}.weight`, `[channels, 1, kernel]` or, in GGUF files, `[channels, kernel]`, and, if requested,
    /// `{name}.bias`.
    pub(crate) fn load(
        weights: &mut Checkpoint,
        name: &str,
        channels: usize,
        kernel: usize,
        biased: bool,
    ) -> Result<Convolution, ModelError> {
        let weight = format!("{name}.weight");
        let flat = weights.info(&weight).is_some_and(|info| info.shape.len() == 2);
        let values = if flat {
            weights.array(&weight, &[channels, kernel])?
        } else {
            weights.array(&weight, &[channels, 1, kernel])?
        };
        let bias = biased.then(|| weights.vector(&format!("{name}.bias"), channels));
        Ok(Convolution::new(&values, bias.transpose()?, channels))
    }

    /// Creates a convolution from `values`, `[channels, kernel]`.
    pub(crate) fn new(values: &[f32], bias: Option<Vec<f32>>, channels: usize) -> Convolution {
        let kernel = values.len() / channels;
        let taps = (0..values.len()).map(|at| values[at % channels * kernel + at / channels]);
        Convolution {
            taps: taps.collect(),
            bias,
            channels,
            dilation: 1,
            has_silu: false,
        }
    }

    /// Reads every `dilation`-th token.
    pub(crate) fn with_dilation(self, dilation: usize) -> Convolution {
        Convolution { dilation, ..self }
    }

    /// Adds SiLU after the convolution.
    pub(crate) fn with_silu(self) -> Convolution {
        Convolution { has_silu: true, ..self }
    }

    /// Multiplies the weights of some channels.
    pub(crate) fn scale(&mut self, channels: std::ops::Range<usize>, factor: f32) {
        for taps in self.taps.chunks_exact_mut(self.channels) {
            taps[channels.clone()].iter_mut().for_each(|tap| *tap *= factor);
        }
    }

    pub(crate) fn taps(&self) -> &[f32] {
        &self.taps
    }

    pub(crate) fn channels(&self) -> usize {
        self.channels
    }

    /// `output[row, c] = bias[c] + Σ taps[tap, c] · input[row + (tap - (kernel - 1)) · dilation, c]`, both
    /// `[rows, channels]`. `before`, at least `[(kernel - 1) · dilation, channels]`, has the rows before the first, and
    /// receives the last rows of `input`.
    pub(crate) fn apply(&self, before: &mut [f32], input: &[f32], output: &mut [f32]) {
        let channels = self.channels;
        let earlier = before.len() / channels;
        let unread = earlier - (self.taps.len() / channels - 1) * self.dilation;
        for_rows(output, channels, |row, output| {
            match &self.bias {
                Some(bias) => output.copy_from_slice(bias),
                None => output.fill(0.0),
            }
            for (tap, taps) in self.taps.chunks_exact(channels).enumerate() {
                let at = row + unread + tap * self.dilation;
                let source = match at.checked_sub(earlier) {
                    None => &before[at * channels..][..channels],
                    Some(row) => &input[row * channels..][..channels],
                };
                for ((output, tap), source) in output.iter_mut().zip(taps).zip(source) {
                    *output += tap * source;
                }
            }
            if self.has_silu {
                output.iter_mut().for_each(|value| *value = silu(*value));
            }
        });
        Self::keep_last(before, input);
    }

    /// Stores the last rows of `input` in `before`, for the next rows.
    pub(crate) fn keep_last(before: &mut [f32], input: &[f32]) {
        if input.len() >= before.len() {
            before.copy_from_slice(&input[input.len() - before.len()..]);
        } else {
            before.copy_within(input.len().., 0);
            let kept = before.len() - input.len();
            before[kept..].copy_from_slice(input);
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        4 * (self.taps.len() + self.bias.as_ref().map_or(0, Vec::len)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 900.0 - 1.1)
            .collect()
    }

    #[test]
    fn every_split_of_the_rows_gives_the_bits_of_the_formula() {
        let (channels, kernel, rows) = (5, 4, 40);
        let (weights, input) = (values(channels * kernel, 1), values(rows * channels, 2));
        let bias = values(channels, 3);
        let convolution = Convolution::new(&weights, Some(bias.clone()), channels).with_silu();
        let exact = |row: usize, channel: usize| {
            let sum: f64 = (0..kernel)
                .filter(|tap| row + tap + 1 >= kernel)
                .map(|tap| {
                    let source = input[(row + tap + 1 - kernel) * channels + channel];
                    f64::from(weights[channel * kernel + tap]) * f64::from(source)
                })
                .sum();
            let sum = sum + f64::from(bias[channel]);
            sum / (1.0 + (-sum).exp())
        };
        let mut whole = Vec::new();
        for split in [rows, 1, 2, 3, 7] {
            let mut before = vec![0.0; (kernel - 1) * channels];
            let mut output = vec![0.0; input.len()];
            for (input, output) in input.chunks(split * channels).zip(output.chunks_mut(split * channels)) {
                convolution.apply(&mut before, input, output);
            }
            for (at, output) in output.iter().enumerate() {
                assert!((f64::from(*output) - exact(at / channels, at % channels)).abs() < 1e-5);
            }
            assert_eq!(before, input[input.len() - before.len()..]);
            if whole.is_empty() {
                whole = output;
            } else {
                assert!(output == whole, "pieces of {split} rows");
            }
        }
    }
}
