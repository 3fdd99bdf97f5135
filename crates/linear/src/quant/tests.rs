use super::{Q8_0, Quant, STRETCH};
use crate::machine::Isa;
use crate::testing::{bits, exact, on_threads, values};
use crate::{LinearError, PackedMatrix, WeightFormat};

/// Raw blocks of two rows of 512 weights, and their weights as little-endian f32. The gguf package made the weights, or
/// their definition in numpy.
fn vector(format: WeightFormat) -> (&'static [u8], Vec<f32>) {
    let file: &'static [u8] = match format {
        WeightFormat::Q4_0 => include_bytes!("../../vectors/q4_0.bin"),
        WeightFormat::Q4_1 => include_bytes!("../../vectors/q4_1.bin"),
        WeightFormat::Q5_0 => include_bytes!("../../vectors/q5_0.bin"),
        WeightFormat::Q5_1 => include_bytes!("../../vectors/q5_1.bin"),
        WeightFormat::Q8_0 => include_bytes!("../../vectors/q8_0.bin"),
        WeightFormat::Q2K => include_bytes!("../../vectors/q2_k.bin"),
        WeightFormat::Q3K => include_bytes!("../../vectors/q3_k.bin"),
        WeightFormat::Q4K => include_bytes!("../../vectors/q4_k.bin"),
        WeightFormat::Q5K => include_bytes!("../../vectors/q5_k.bin"),
        WeightFormat::Q6K => include_bytes!("../../vectors/q6_k.bin"),
        WeightFormat::Iq4Nl => include_bytes!("../../vectors/iq4_nl.bin"),
        WeightFormat::Iq4Xs => include_bytes!("../../vectors/iq4_xs.bin"),
        WeightFormat::Mxfp4 => include_bytes!("../../vectors/mxfp4.bin"),
        WeightFormat::Iq3S => include_bytes!("../../vectors/iq3_s.bin"),
        WeightFormat::Iq3Xxs => include_bytes!("../../vectors/iq3_xxs.bin"),
        WeightFormat::Iq2Xxs => include_bytes!("../../vectors/iq2_xxs.bin"),
        WeightFormat::Iq2Xs => include_bytes!("../../vectors/iq2_xs.bin"),
        WeightFormat::Iq2S => include_bytes!("../../vectors/iq2_s.bin"),
        WeightFormat::Nvfp4 => include_bytes!("../../vectors/nvfp4.bin"),
        WeightFormat::Tq1_0 => include_bytes!("../../vectors/tq1_0.bin"),
        WeightFormat::Tq2_0 => include_bytes!("../../vectors/tq2_0.bin"),
        WeightFormat::Iq1S => include_bytes!("../../vectors/iq1_s.bin"),
        WeightFormat::Iq1M => include_bytes!("../../vectors/iq1_m.bin"),
        WeightFormat::Q1_0 => include_bytes!("../../vectors/q1_0.bin"),
        WeightFormat::Q2_0 => include_bytes!("../../vectors/q2_0.bin"),
        WeightFormat::Q4G32 => include_bytes!("../../vectors/q4_g32.bin"),
        WeightFormat::Q4G64 => include_bytes!("../../vectors/q4_g64.bin"),
        WeightFormat::Q4G128 => include_bytes!("../../vectors/q4_g128.bin"),
        WeightFormat::Q8G32 => include_bytes!("../../vectors/q8_g32.bin"),
        WeightFormat::Q8G64 => include_bytes!("../../vectors/q8_g64.bin"),
        _ => panic!("{format} has no blocks"),
    };
    let (blocks, weights) = file.split_at(2 * 512 / format.block_weights() * format.block_bytes());
    (
        blocks,
        weights
            .chunks_exact(4)
            .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]))
            .collect(),
    )
}

fn formats() -> impl Iterator<Item = WeightFormat> {
    WeightFormat::ALL
        .iter()
        .copied()
        .filter(|format| format.block_weights() > 1)
}

/// A matrix of blocks drawn from the vector, and its weights.
fn matrix(format: WeightFormat, outputs: usize, inputs: usize) -> (PackedMatrix, Vec<f32>) {
    let (blocks, known) = vector(format);
    let (weights, bytes) = (format.block_weights(), format.block_bytes());
    let mut packed = Vec::new();
    let mut plain = Vec::new();
    for index in 0..outputs * inputs / weights {
        let block = (index * 7 + index / 3) % (blocks.len() / bytes);
        packed.extend_from_slice(&blocks[block * bytes..][..bytes]);
        plain.extend_from_slice(&known[block * weights..][..weights]);
    }
    (
        PackedMatrix::pack(format, outputs, inputs, &packed).expect("packs"),
        plain,
    )
}

fn product(isa: Isa, matrix: &PackedMatrix, input: &[f32]) -> Vec<f32> {
    let mut output = vec![f32::NAN; input.len() / matrix.in_features() * matrix.out_features()];
    matrix.matmul_with(isa, input, &mut output);
    output
}

/// Odd numbers of outputs; rows of one block, and of several whole or partial panels.
fn shapes(format: WeightFormat) -> [(usize, usize, usize); 7] {
    let block = format.block_weights();
    [
        (1, block, 1),
        (17, 3 * block, 2),
        (16, 5 * block, 7),
        (35, 2 * block, 13),
        (5, 2560, 3),
        (33, block, 513),
        (67, 11 * block, 103),
    ]
}

#[test]
fn unpacked_blocks_are_those_of_the_file() {
    for format in formats() {
        let (blocks, known) = vector(format);
        let (weights, bytes) = (format.block_weights(), format.block_bytes());
        for (outputs, inputs) in [(1, weights), (17, 3 * weights), (48, 2 * weights)] {
            let count = outputs * inputs / weights;
            let chosen = (0..count).map(|index| (index * 7 + index / 3) % (blocks.len() / bytes));
            let source: Vec<u8> = chosen
                .flat_map(|block| &blocks[block * bytes..][..bytes])
                .copied()
                .collect();
            let packed = PackedMatrix::pack(format, outputs, inputs, &source).expect("packs");
            let unpacked = packed.unpack();
            assert!(unpacked == source, "{format} {outputs}x{inputs}");
            let mut row = vec![0.0; inputs];
            packed.row_into(outputs - 1, &mut row);
            let last = &unpacked[unpacked.len() - inputs / weights * bytes..];
            for (block, row) in last.chunks_exact(bytes).zip(row.chunks_exact(weights)) {
                let at = blocks.chunks_exact(bytes).position(|other| other == block);
                let at = at.expect("a block of the vector") * weights;
                assert_eq!(bits(row), bits(&known[at..at + weights]), "{format} {outputs}x{inputs}");
            }
        }
    }
}

#[test]
fn rows_equal_what_others_make_of_them() {
    for format in formats() {
        let (blocks, weights) = vector(format);
        let packed = PackedMatrix::pack(format, 2, 512, blocks).expect("packs");
        for row in 0..2 {
            let mut output = vec![0.0; 512];
            packed.row_into(row, &mut output);
            assert_eq!(bits(&output), bits(&weights[row * 512..][..512]), "{format} row {row}");
        }
    }
}

#[test]
fn rows_beyond_the_first_sixteen_come_back_too() {
    for format in formats() {
        let inputs = 2 * format.block_weights();
        let (packed, weights) = matrix(format, 45, inputs);
        for row in 0..45 {
            let mut output = vec![0.0; inputs];
            packed.row_into(row, &mut output);
            assert_eq!(output, weights[row * inputs..][..inputs], "{format} row {row}");
        }
    }
}

/// Integers up to 127 in magnitude, with 127 in every stretch, survive rounding to 8 bits: only the rounding of f32
/// sums remains.
#[test]
fn products_with_exact_activations_equal_f64_within_f32_rounding() {
    for isa in Isa::available() {
        for format in formats() {
            for (outputs, inputs, tokens) in shapes(format) {
                let (packed, weights) = matrix(format, outputs, inputs);
                let mut input: Vec<f32> = values(tokens * inputs, 9).iter().map(|v| (v * 15.0).round()).collect();
                input.iter_mut().step_by(STRETCH).for_each(|value| *value = -127.0);
                let output = product(isa, &packed, &input);
                // A stretch adds at most four terms: two scaled sums, two minimums.
                let roundings = (4 * inputs / STRETCH + 4) as f64;
                for (index, &found) in output.iter().enumerate() {
                    let (token, out) = (index / outputs, index % outputs);
                    let row = &weights[out * inputs..][..inputs];
                    let values = &input[token * inputs..][..inputs];
                    let (sum, _) = exact(row, values);
                    // A scaled sum and its minimum can each be larger than their difference. Four times the largest
                    // weight of their block bounds both, because the quants of the vectors span their range.
                    let magnitude: f64 = row
                        .chunks(STRETCH)
                        .zip(values.chunks(STRETCH))
                        .map(|(weights, values)| {
                            let largest = weights.iter().fold(0.0f32, |most, w| most.max(w.abs()));
                            4.0 * f64::from(largest) * values.iter().map(|v| f64::from(v.abs())).sum::<f64>()
                        })
                        .sum();
                    let bound = roundings * magnitude * f64::from(f32::EPSILON) / 2.0;
                    assert!(
                        (f64::from(found) - sum).abs() <= bound,
                        "{isa:?} {format} {outputs}×{inputs}, token {token}, output {out}: {found} instead of {sum}"
                    );
                }
            }
        }
    }
}

/// Rounding to 8 bits moves an activation by at most half a step, 1/254 of the largest of its 32.
#[test]
fn products_differ_from_f64_by_no_more_than_rounding_the_activations_allows() {
    for format in formats() {
        for (outputs, inputs, tokens) in shapes(format) {
            let (packed, weights) = matrix(format, outputs, inputs);
            let input = values(tokens * inputs, 11);
            let output = product(Isa::best(), &packed, &input);
            for (index, &found) in output.iter().enumerate() {
                let (token, out) = (index / outputs, index % outputs);
                let row = &weights[out * inputs..][..inputs];
                let values = &input[token * inputs..][..inputs];
                let (sum, magnitude) = exact(row, values);
                let bound: f64 = row
                    .chunks(STRETCH)
                    .zip(values.chunks(STRETCH))
                    .map(|(weights, values)| {
                        let largest = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                        f64::from(largest) / 254.0 * weights.iter().map(|w| f64::from(w.abs())).sum::<f64>()
                    })
                    .sum();
                assert!(
                    (f64::from(found) - sum).abs() <= bound + 1e-4 * magnitude,
                    "{format} {outputs}×{inputs}, token {token}, output {out}: {found} instead of {sum} ± {bound}"
                );
            }
        }
    }
}

#[test]
fn every_instruction_set_computes_the_same_bits() {
    for format in formats() {
        for (outputs, inputs, tokens) in shapes(format) {
            let (packed, _) = matrix(format, outputs, inputs);
            let input = values(tokens * inputs, 3);
            let plain = bits(&product(Isa::SCALAR, &packed, &input));
            for isa in Isa::available() {
                assert!(
                    bits(&product(isa, &packed, &input)) == plain,
                    "{isa:?} {format} {outputs}×{inputs}×{tokens}"
                );
            }
        }
    }
}

#[test]
fn several_products_of_one_input_have_the_bits_of_each_alone() {
    let inputs = 1024;
    let matrices = [
        (WeightFormat::Q4K, 300),
        (WeightFormat::Q4K, 17),
        (WeightFormat::Q6K, 40),
        (WeightFormat::Q4K, 900),
    ]
    .map(|(format, outputs)| matrix(format, outputs, inputs).0);
    for tokens in [1, 5, 200] {
        let input = values(tokens * inputs, 3);
        let alone = matrices
            .each_ref()
            .map(|matrix| bits(&product(Isa::best(), matrix, &input)));
        for threads in [1, 2, 5] {
            let mut outputs = matrices
                .each_ref()
                .map(|matrix| vec![f32::NAN; tokens * matrix.out_features()]);
            let slices = outputs.each_mut().map(Vec::as_mut_slice);
            on_threads(threads, || {
                PackedMatrix::matmul_all(matrices.each_ref(), &input, slices)
            });
            assert!(
                outputs.map(|output| bits(&output)) == alone,
                "{tokens} tokens, {threads} threads"
            );
        }
    }
}

/// ggml's own quantiser never writes −128, but a file may contain it.
#[test]
fn extreme_bytes_of_q8_0_do_not_overflow() {
    let mut block = vec![0x80u8; Q8_0::BYTES];
    block[..2].copy_from_slice(&half::f16::ONE.to_le_bytes());
    let packed = PackedMatrix::pack(WeightFormat::Q8_0, 1, 32, &block).expect("packs");
    for isa in Isa::available() {
        assert_eq!(product(isa, &packed, &[1.0; 32]), [-4096.0], "{isa:?}");
        assert_eq!(product(isa, &packed, &[-1.0; 32]), [4096.0], "{isa:?}");
    }
}

#[test]
fn a_token_gets_the_same_bits_among_any_few_tokens_in_every_format() {
    for isa in Isa::available() {
        for format in formats() {
            let (outputs, inputs, most) = (75, 512, 17);
            let (packed, _) = matrix(format, outputs, inputs);
            let input = values(most * inputs, 5);
            let alone: Vec<u32> = input
                .chunks(inputs)
                .flat_map(|row| bits(&product(isa, &packed, row)))
                .collect();
            for tokens in 2..=most {
                let together = bits(&product(isa, &packed, &input[..tokens * inputs]));
                assert!(
                    together == alone[..tokens * outputs],
                    "{isa:?} {format}: {tokens} tokens"
                );
            }
        }
    }
}

#[test]
fn a_token_gets_the_same_bits_alone_as_among_512_and_on_any_thread_count() {
    for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::SCALAR) {
        for format in [WeightFormat::Q8_0, WeightFormat::Q4K, WeightFormat::Q6K] {
            let (outputs, inputs, tokens) = (75, 1536, 512);
            let (packed, _) = matrix(format, outputs, inputs);
            let input = values(tokens * inputs, 5);
            let alone: Vec<u32> = input
                .chunks(inputs)
                .flat_map(|row| bits(&product(isa, &packed, row)))
                .collect();
            for threads in [1, 2, 3, 8] {
                let together = on_threads(threads, || product(isa, &packed, &input));
                assert!(bits(&together) == alone, "{isa:?} {format} on {threads} threads");
            }
        }
    }
}

/// The bytes of a block's inner scales, and a byte value that makes none of them zero.
fn inner_scales(format: WeightFormat) -> (core::ops::Range<usize>, u8) {
    match format {
        WeightFormat::Q2K => (0..16, 0x11),
        WeightFormat::Q3K => (96..108, 0x55),
        WeightFormat::Q4K | WeightFormat::Q5K => (4..16, 0x55),
        WeightFormat::Q6K => (192..208, 1),
        WeightFormat::Mxfp4 => (0..1, 128),
        WeightFormat::Nvfp4 => (0..4, 64),
        // These bytes also hold the outer scale.
        WeightFormat::Iq1M => (48..56, 0x33),
        _ => (0..0, 0),
    }
}

/// The places of a block's binary16 numbers.
fn halves(format: WeightFormat) -> &'static [usize] {
    match format {
        WeightFormat::Q4_1 | WeightFormat::Q5_1 | WeightFormat::Q4K | WeightFormat::Q5K => &[0, 2],
        WeightFormat::Q2K => &[80, 82],
        WeightFormat::Q3K => &[108],
        WeightFormat::Q6K => &[208],
        WeightFormat::Tq1_0 => &[52],
        WeightFormat::Tq2_0 => &[64],
        WeightFormat::Mxfp4 | WeightFormat::Nvfp4 | WeightFormat::Iq1M => &[],
        format if format.ggml_type().is_none() => &[],
        _ => &[0],
    }
}

/// Kernels that add products in 16 bits must stop before the largest sum would overflow.
#[test]
fn the_largest_sums_of_products_do_not_overflow() {
    for format in formats() {
        let (weights, bytes) = (format.block_weights(), format.block_bytes());
        for quants in [0x00, 0xff] {
            let mut block = vec![quants; bytes];
            let (range, scale) = inner_scales(format);
            block[range].fill(scale);
            if format.ggml_type().is_none() {
                block[..8].copy_from_slice(bytemuck::bytes_of(&[1.0f32, 1.0].map(f32::to_bits).map(u32::to_le)));
            }
            for &at in halves(format) {
                block[at..at + 2].copy_from_slice(&half::f16::ONE.to_le_bytes());
            }
            let source = block.repeat(17 * 2);
            let packed = PackedMatrix::pack(format, 17, 2 * weights, &source).expect("packs");
            for tokens in [1, 3, 20] {
                for period in [1 << 20, 1, 2, 4, 16] {
                    let sign = |index: usize| 127.0 * f32::powi(-1.0, (index / period) as i32);
                    for start in [0, period] {
                        let input: Vec<f32> = (0..tokens * 2 * weights)
                            .map(|index| sign(index % weights + start))
                            .collect();
                        let plain = bits(&product(Isa::SCALAR, &packed, &input));
                        for isa in Isa::available() {
                            assert!(
                                bits(&product(isa, &packed, &input)) == plain,
                                "{isa:?} {format}, quants {quants:x}, signs change every {period}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn an_activation_that_is_not_finite_makes_every_output_of_its_token_nan() {
    for isa in Isa::available() {
        for format in formats() {
            let inputs = 2 * format.block_weights();
            let (packed, _) = matrix(format, 20, inputs);
            for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut input = values(3 * inputs, 1);
                input[2 * inputs - 1] = poison;
                let output = product(isa, &packed, &input);
                for (token, row) in output.chunks(20).enumerate() {
                    assert!(
                        row.iter().all(|value| value.is_nan() == (token == 1)),
                        "{isa:?} {format} token {token}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_scale_that_is_not_finite_reaches_its_output() {
    let mut blocks = vec![1u8; 3 * Q8_0::BYTES];
    for (block, scale) in blocks.chunks_mut(Q8_0::BYTES).zip([1.0, f32::INFINITY, f32::NAN]) {
        block[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
    }
    let packed = PackedMatrix::pack(WeightFormat::Q8_0, 3, 32, &blocks).expect("packs");
    for isa in Isa::available() {
        let output = product(isa, &packed, &[1.0; 32]);
        assert_eq!(output[0], 32.0, "{isa:?}");
        assert_eq!(output[1], f32::INFINITY, "{isa:?}");
        assert!(output[2].is_nan(), "{isa:?}");
    }
}

#[test]
fn zeros_and_vanishing_activations_give_zero() {
    for format in formats() {
        let inputs = format.block_weights();
        let (packed, _) = matrix(format, 4, inputs);
        for value in [0.0, 1e-40, -1e-38] {
            let output = product(Isa::best(), &packed, &vec![value; inputs]);
            assert!(
                output.iter().all(|&value| value == 0.0),
                "{format} {value:e}: {output:?}"
            );
        }
    }
}

#[test]
fn quantised_weights_take_the_bytes_of_the_file() {
    for format in formats() {
        let (packed, _) = matrix(format, 64, 512);
        assert_eq!(
            packed.bytes(),
            64 * 512 / format.block_weights() * format.block_bytes(),
            "{format}"
        );
    }
}

#[test]
fn no_tokens_give_no_output() {
    for isa in Isa::available() {
        for format in formats() {
            let (packed, _) = matrix(format, 5, format.block_weights());
            assert!(product(isa, &packed, &[]).is_empty(), "{isa:?} {format}");
        }
    }
}

#[test]
fn rows_that_are_not_whole_blocks_are_refused() {
    let error = PackedMatrix::pack(WeightFormat::Q4K, 2, 128, &[]).expect_err("half a block");
    assert_eq!(
        error,
        LinearError::Block {
            format: WeightFormat::Q4K,
            in_features: 128,
            block: 256
        }
    );
    assert_eq!(
        error.to_string(),
        "rows of 128 weights cannot be q4_k: the length must be a multiple of 256"
    );
}
