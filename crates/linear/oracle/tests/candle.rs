//! Compares candle's formats with this crate's: the same bytes give the same weights, and products agree within
//! rounding.

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Tensor};
use riffle_linear::{PackedMatrix, WeightFormat};

const OUTPUTS: usize = 37;
const INPUTS: usize = 768;
const TOKENS: usize = 5;

/// A format's name in candle, and the number of activations that share a scale there; `None` for f32 activations.
fn formats() -> Vec<(WeightFormat, GgmlDType, Option<usize>)> {
    vec![
        (WeightFormat::F32, GgmlDType::F32, None),
        (WeightFormat::F16, GgmlDType::F16, None),
        (WeightFormat::Bf16, GgmlDType::BF16, None),
        (WeightFormat::Q4_0, GgmlDType::Q4_0, Some(32)),
        (WeightFormat::Q4_1, GgmlDType::Q4_1, Some(32)),
        (WeightFormat::Q5_0, GgmlDType::Q5_0, Some(32)),
        (WeightFormat::Q5_1, GgmlDType::Q5_1, Some(32)),
        (WeightFormat::Q8_0, GgmlDType::Q8_0, Some(32)),
        (WeightFormat::Q2K, GgmlDType::Q2K, Some(256)),
        (WeightFormat::Q3K, GgmlDType::Q3K, Some(256)),
        (WeightFormat::Q4K, GgmlDType::Q4K, Some(256)),
        (WeightFormat::Q5K, GgmlDType::Q5K, Some(256)),
        (WeightFormat::Q6K, GgmlDType::Q6K, Some(256)),
    ]
}

/// Reproducible values in about ±1, a few of them large.
fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count)
        .map(|_| if next() > 0.98 { 4.0 * next() } else { next() })
        .collect()
}

/// The matrix in candle, and in this crate, from the same bytes.
fn both(format: WeightFormat, dtype: GgmlDType) -> (QTensor, PackedMatrix) {
    let plain = Tensor::from_vec(values(OUTPUTS * INPUTS, 3), (OUTPUTS, INPUTS), &Device::Cpu).unwrap();
    let theirs = QTensor::quantize(&plain, dtype).unwrap();
    let ours = PackedMatrix::pack(format, OUTPUTS, INPUTS, &theirs.data().unwrap()).unwrap();
    (theirs, ours)
}

/// Candle has the formats up to Q6_K. The crate's own tests compare the others with the gguf package.
#[test]
fn every_format_that_candle_has_is_compared() {
    let compared: Vec<WeightFormat> = formats().into_iter().map(|(format, ..)| format).collect();
    let shared = WeightFormat::ALL.split_inclusive(|format| *format == WeightFormat::Q6K);
    assert_eq!(shared.map(<[_]>::to_vec).next(), Some(compared));
}

#[test]
fn weights_equal_candles() {
    for (format, dtype, _) in formats() {
        let (theirs, ours) = both(format, dtype);
        let expected: Vec<Vec<f32>> = theirs.dequantize(&Device::Cpu).unwrap().to_vec2().unwrap();
        for (row, expected) in expected.iter().enumerate() {
            let mut found = vec![0.0; INPUTS];
            ours.row_into(row, &mut found);
            for (column, (found, expected)) in found.iter().zip(expected).enumerate() {
                // The products of a scale and a minimum may be rounded in another order.
                let allowed = 4.0 * f32::EPSILON * expected.abs().max(0.1);
                assert!(
                    (found - expected).abs() <= allowed,
                    "{format} row {row} column {column}: {found} instead of {expected}"
                );
            }
        }
    }
}

/// Both round an activation by at most half a step. A step is 1/127 of the largest activation with the same scale.
#[test]
fn products_equal_candles_within_what_rounding_the_activations_allows() {
    for (format, dtype, shared) in formats() {
        let (theirs, ours) = both(format, dtype);
        let weights: Vec<Vec<f32>> = theirs.dequantize(&Device::Cpu).unwrap().to_vec2().unwrap();
        let input = values(TOKENS * INPUTS, 5);
        let mut found = vec![0.0; TOKENS * OUTPUTS];
        ours.matmul(&input, &mut found);
        let tensor = Tensor::from_vec(input.clone(), (TOKENS, INPUTS), &Device::Cpu).unwrap();
        let product = QMatMul::from_qtensor(theirs).unwrap().forward(&tensor).unwrap();
        let expected: Vec<Vec<f32>> = product.to_vec2().unwrap();
        let (mut differences, mut products) = (0.0, 0.0);
        for token in 0..TOKENS {
            let values = &input[token * INPUTS..][..INPUTS];
            for output in 0..OUTPUTS {
                let weights = &weights[output];
                let own = if format.block_weights() == 1 { None } else { Some(32) };
                let allowed = rounding(weights, values, own) + rounding(weights, values, shared);
                let (found, expected) = (found[token * OUTPUTS + output], expected[token][output]);
                let difference = f64::from((found - expected).abs());
                assert!(
                    difference <= allowed,
                    "{format} token {token} output {output}: {found} and {expected} differ by {difference:.2e}, allowed are {allowed:.2e}"
                );
                differences += difference * difference;
                products += f64::from(expected * expected);
            }
        }
        // The bound above is for the worst case.
        let typical = (differences / products).sqrt();
        assert!(
            typical < 0.02,
            "{format}: products differ by {typical:.3} of their size"
        );
    }
}

/// The largest effect of rounding the activations, in groups of `shared`, and of summing in f32.
fn rounding(weights: &[f32], values: &[f32], shared: Option<usize>) -> f64 {
    let magnitude: f64 = weights.iter().zip(values).map(|(w, x)| f64::from((w * x).abs())).sum();
    let sums = 64.0 * f64::from(f32::EPSILON) * magnitude;
    let Some(shared) = shared else { return sums };
    let steps: f64 = weights
        .chunks(shared)
        .zip(values.chunks(shared))
        .map(|(weights, values)| {
            let largest = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            // Half a step for rounding, and the rounding of the scale, which candle stores as a half for groups of 32.
            let step = f64::from(largest) / 127.0 * (0.5 + 127.0 / 2048.0);
            step * weights.iter().map(|weight| f64::from(weight.abs())).sum::<f64>()
        })
        .sum();
    sums + steps
}
