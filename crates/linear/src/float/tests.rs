use crate::machine::Isa;
use crate::testing::{bits, exact, float_bytes, on_threads, rounded, values};
use crate::{Activations, LinearError, PackedMatrix, WeightFormat};

const FORMATS: [WeightFormat; 3] = [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16];

fn matrix(format: WeightFormat, outputs: usize, inputs: usize) -> (PackedMatrix, Vec<f32>) {
    let weights = values(outputs * inputs, (outputs * 31 + inputs) as u64);
    let packed = PackedMatrix::pack(format, outputs, inputs, &float_bytes(format, &weights)).expect("packs");
    (packed, weights.iter().map(|&w| rounded(format, w)).collect())
}

/// Every way of multiplying a float format.
const WAYS: [(WeightFormat, Activations); 4] = [
    (WeightFormat::F32, Activations::Exact),
    (WeightFormat::F16, Activations::Exact),
    (WeightFormat::Bf16, Activations::Exact),
    (WeightFormat::Bf16, Activations::Rounded),
];

fn matrix_of((format, activations): (WeightFormat, Activations), outputs: usize, inputs: usize) -> PackedMatrix {
    matrix(format, outputs, inputs).0.with_activations(activations)
}

fn product(isa: Isa, matrix: &PackedMatrix, input: &[f32]) -> Vec<f32> {
    let mut output = vec![f32::NAN; input.len() / matrix.in_features() * matrix.out_features()];
    matrix.matmul_with(isa, input, &mut output);
    output
}

#[test]
fn products_equal_f64_within_rounding_on_odd_shapes() {
    let shapes = [
        (1, 1, 1),
        (17, 3, 2),
        (16, 129, 1),
        (63, 127, 7),
        (65, 300, 5),
        (80, 128, 13),
        (130, 257, 97),
        (33, 70, 513),
    ];
    for isa in Isa::available() {
        for way @ (format, activations) in WAYS {
            for (outputs, inputs, tokens) in shapes {
                let (_, weights) = matrix(format, outputs, inputs);
                let packed = matrix_of(way, outputs, inputs);
                let mut input = values(tokens * inputs, 7);
                let output = product(isa, &packed, &input);
                if activations == Activations::Rounded {
                    input.iter_mut().for_each(|value| *value = rounded(format, *value));
                }
                let panel = match format {
                    WeightFormat::Bf16 => 2 * super::PANEL,
                    _ => super::PANEL,
                };
                // Each term is rounded by at most a panel's additions, and one addition per panel.
                let roundings = (panel.min(inputs) + inputs.div_ceil(panel)) as f64;
                for (index, &found) in output.iter().enumerate() {
                    let (token, out) = (index / outputs, index % outputs);
                    let (sum, magnitude) =
                        exact(&weights[out * inputs..][..inputs], &input[token * inputs..][..inputs]);
                    let bound = roundings * magnitude * f64::from(f32::EPSILON) / 2.0;
                    assert!(
                        (f64::from(found) - sum).abs() <= bound * 1.001,
                        "{isa:?} {way:?} {outputs}×{inputs}, token {token}, output {out}: {found} instead of {sum}"
                    );
                }
            }
        }
    }
}

#[test]
fn rounded_activations_of_bf16_weights_move_by_at_most_half_a_step_of_bf16() {
    let (outputs, inputs, tokens) = (70, 513, 3);
    let (packed, weights) = matrix(WeightFormat::Bf16, outputs, inputs);
    let packed = packed.with_activations(Activations::Rounded);
    let input = values(tokens * inputs, 7);
    for (index, found) in product(Isa::best(), &packed, &input).into_iter().enumerate() {
        let (token, out) = (index / outputs, index % outputs);
        let (sum, magnitude) = exact(&weights[out * inputs..][..inputs], &input[token * inputs..][..inputs]);
        let distance = (f64::from(found) - sum).abs();
        assert!(
            distance <= magnitude * 1.01 / 512.0,
            "token {token}, output {out}: {found} instead of {sum}"
        );
    }
}

#[test]
fn rounding_is_for_bf16_alone() {
    let input = values(2 * 100, 7);
    for format in [WeightFormat::F32, WeightFormat::F16] {
        let exact = product(Isa::best(), &matrix_of((format, Activations::Exact), 40, 100), &input);
        let rounded = product(Isa::best(), &matrix_of((format, Activations::Rounded), 40, 100), &input);
        assert_eq!(bits(&exact), bits(&rounded), "{format}");
    }
}

#[test]
fn every_instruction_set_computes_the_same_bits() {
    for way in WAYS {
        for (outputs, inputs, tokens) in [(100, 300, 1), (64, 128, 6), (113, 401, 11), (48, 140, 200)] {
            let packed = matrix_of(way, outputs, inputs);
            let input = values(tokens * inputs, 3);
            let plain = bits(&product(Isa::SCALAR, &packed, &input));
            for isa in Isa::available() {
                assert_eq!(bits(&product(isa, &packed, &input)), plain, "{isa:?} {way:?}");
            }
        }
    }
}

#[test]
fn a_token_gets_the_same_bits_among_any_few_tokens_in_every_format() {
    for isa in Isa::available() {
        for way in WAYS {
            let (outputs, inputs, most) = (75, 261, 33);
            let packed = matrix_of(way, outputs, inputs);
            let input = values(most * inputs, 5);
            let alone: Vec<u32> = input
                .chunks(inputs)
                .flat_map(|row| bits(&product(isa, &packed, row)))
                .collect();
            for tokens in 2..=most {
                let together = bits(&product(isa, &packed, &input[..tokens * inputs]));
                assert!(
                    together == alone[..tokens * outputs],
                    "{isa:?} {way:?}: {tokens} tokens"
                );
            }
        }
    }
}

#[test]
fn a_token_gets_the_same_bits_alone_as_among_512_and_on_any_thread_count() {
    for way in WAYS {
        let (outputs, inputs, tokens) = (144, 261, 512);
        let packed = matrix_of(way, outputs, inputs);
        let input = values(tokens * inputs, 5);
        let alone: Vec<u32> = input
            .chunks(inputs)
            .flat_map(|row| bits(&product(Isa::best(), &packed, row)))
            .collect();
        for threads in [1, 2, 3, 8] {
            let together = on_threads(threads, || product(Isa::best(), &packed, &input));
            assert!(bits(&together) == alone, "{way:?} on {threads} threads");
        }
    }
}

#[test]
fn a_large_matrix_gives_one_token_the_same_bits_on_any_thread_count() {
    let (packed, _) = matrix(WeightFormat::Bf16, 1100, 700);
    let input = values(700, 5);
    let serial = bits(&on_threads(1, || product(Isa::best(), &packed, &input)));
    for threads in [2, 3, 8] {
        assert_eq!(
            bits(&on_threads(threads, || product(Isa::best(), &packed, &input))),
            serial,
            "{threads} threads"
        );
    }
}

#[test]
fn infinities_and_nan_reach_exactly_the_outputs_they_belong_to() {
    for isa in Isa::available() {
        for (tokens, (format, activations)) in [1, 4, 40].into_iter().flat_map(|tokens| WAYS.map(|way| (tokens, way))) {
            let (outputs, inputs) = (70, 150);
            let mut weights = vec![1.0f32; outputs * inputs];
            weights[69 * inputs + 149] = f32::INFINITY;
            weights[3 * inputs + 5] = f32::NAN;
            let packed = PackedMatrix::pack(format, outputs, inputs, &float_bytes(format, &weights));
            let packed = packed.expect("packs").with_activations(activations);
            let mut input = vec![1.0f32; tokens * inputs];
            let last = (tokens - 1) * inputs;
            input[last + 149] = 0.0;
            let output = product(isa, &packed, &input);
            for (index, &value) in output.iter().enumerate() {
                let (token, out) = (index / outputs, index % outputs);
                match out {
                    3 => assert!(value.is_nan(), "{isa:?} token {token}"),
                    // 0 × ∞ is NaN.
                    69 if token == tokens - 1 => assert!(value.is_nan(), "{isa:?} token {token}"),
                    69 => assert_eq!(value, f32::INFINITY, "{isa:?} token {token}"),
                    _ => assert_eq!(
                        value,
                        if token == tokens - 1 { 149.0 } else { 150.0 },
                        "{isa:?} output {out}"
                    ),
                }
            }
        }
    }
}

#[test]
fn rows_come_back_exactly() {
    for format in FORMATS {
        let (packed, weights) = matrix(format, 99, 37);
        for row in 0..99 {
            let mut output = vec![0.0; 37];
            packed.row_into(row, &mut output);
            assert_eq!(output, weights[row * 37..][..37], "{format} row {row}");
        }
    }
}

#[test]
fn unpacked_rows_are_those_of_the_file() {
    for format in FORMATS {
        for (outputs, inputs) in [(1, 1), (17, 5), (48, 32), (131, 33)] {
            let source = float_bytes(format, &values(outputs * inputs, 3));
            let packed = PackedMatrix::pack(format, outputs, inputs, &source).expect("packs");
            assert!(packed.unpack() == source, "{format} {outputs}x{inputs}");
        }
    }
}

#[test]
fn no_tokens_give_no_output() {
    let (packed, _) = matrix(WeightFormat::F32, 5, 4);
    packed.matmul(&[], &mut []);
}

#[test]
fn bytes_of_another_shape_are_refused_with_both_lengths() {
    let error = PackedMatrix::pack(WeightFormat::Bf16, 3, 5, &[0; 29]).expect_err("29 bytes");
    assert_eq!(
        error,
        LinearError::ByteLength {
            format: WeightFormat::Bf16,
            out_features: 3,
            in_features: 5,
            expected: 30,
            found: 29
        }
    );
    assert_eq!(
        error.to_string(),
        "3 × 5 weights in bf16 take 30 bytes, but 29 were given: the file is truncated, or its shape or type is wrong"
    );
}

#[test]
fn empty_and_absurd_shapes_are_refused() {
    for (outputs, inputs) in [(0, 4), (4, 0), (0, 0)] {
        let error = PackedMatrix::pack(WeightFormat::F32, outputs, inputs, &[]).expect_err("empty");
        assert_eq!(
            error,
            LinearError::Empty {
                out_features: outputs,
                in_features: inputs
            }
        );
    }
    let error = PackedMatrix::pack(WeightFormat::F32, usize::MAX, 2, &[]).expect_err("too large");
    assert_eq!(
        error,
        LinearError::TooLarge {
            out_features: usize::MAX,
            in_features: 2
        }
    );
}

#[test]
fn weights_are_held_once_with_at_most_fifteen_rows_of_padding() {
    let (packed, _) = matrix(WeightFormat::F16, 100, 50);
    assert_eq!(packed.bytes(), 112 * 50 * 2);
    let (packed, _) = matrix(WeightFormat::Bf16, 100, 51);
    assert_eq!(packed.bytes(), 112 * 52 * 2, "whole pairs");
    let (packed, _) = matrix(WeightFormat::F32, 1024, 1024);
    assert_eq!(packed.bytes(), 1024 * 1024 * 4);
}

/// Random codes without NaN, with a scale for each 128 of a row, and their weights.
fn scaled(outputs: usize, inputs: usize) -> (Vec<u8>, Vec<f32>) {
    let (mut bytes, mut weights) = (Vec::new(), Vec::new());
    let mut state = 7u32;
    for _ in 0..outputs {
        let start = bytes.len();
        let mut scales = Vec::new();
        for input in 0..inputs {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let code = (state >> 24) as u8;
            let code = if code & 0x7f == 0x7f { code ^ 1 } else { code };
            if input % super::PANEL == 0 {
                scales.push((state >> 8 & 0xff) as f32 / 4096.0 + 0.01);
            }
            bytes.push(code);
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
            let magnitude = match exponent {
                0 => mantissa * 2f64.powi(-6),
                _ => (1.0 + mantissa) * 2f64.powi(exponent - 7),
            };
            let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
            weights.push((sign * magnitude) as f32 * scales[scales.len() - 1]);
        }
        assert_eq!(bytes.len() - start, inputs);
        bytes.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
    }
    (bytes, weights)
}

#[test]
fn floats_of_eight_bits_are_multiplied_and_read_back_with_their_scales() {
    let shapes = [
        (1, 1, 1),
        (17, 3, 2),
        (16, 129, 1),
        (65, 300, 5),
        (80, 128, 13),
        (130, 257, 97),
    ];
    for (outputs, inputs, tokens) in shapes {
        let (bytes, weights) = scaled(outputs, inputs);
        let packed = PackedMatrix::pack(WeightFormat::F8E4m3, outputs, inputs, &bytes).expect("packs");
        assert!(packed.unpack() == bytes, "{outputs}x{inputs}");
        let padded = outputs.next_multiple_of(16);
        assert_eq!(packed.bytes(), padded * (inputs + 4 * inputs.div_ceil(super::PANEL)));
        let mut row = vec![0.0; inputs];
        packed.row_into(outputs - 1, &mut row);
        assert_eq!(
            bits(&row),
            bits(&weights[(outputs - 1) * inputs..]),
            "{outputs}x{inputs}"
        );
        let input = values(tokens * inputs, 7);
        let plain = product(Isa::SCALAR, &packed, &input);
        for isa in Isa::available() {
            let output = product(isa, &packed, &input);
            assert_eq!(bits(&output), bits(&plain), "{isa:?} {outputs}x{inputs}x{tokens}");
            let alone: Vec<u32> = input
                .chunks(inputs)
                .flat_map(|row| bits(&product(isa, &packed, row)))
                .collect();
            assert!(
                alone == bits(&output),
                "{isa:?} {outputs}x{inputs}x{tokens}: a token alone"
            );
        }
        // The number of roundings: additions within a panel, additions of panels, a scale, and the expected weight.
        let roundings = (super::PANEL.min(inputs) + 2 * inputs.div_ceil(super::PANEL) + 2) as f64;
        for (index, &found) in plain.iter().enumerate() {
            let (token, out) = (index / outputs, index % outputs);
            let (sum, magnitude) = exact(&weights[out * inputs..][..inputs], &input[token * inputs..][..inputs]);
            let bound = roundings * magnitude * f64::from(f32::EPSILON) / 2.0;
            assert!(
                (f64::from(found) - sum).abs() <= bound * 1.001,
                "token {token}, output {out}: {found} for {sum}"
            );
        }
    }
}

#[test]
fn a_factor_and_an_order_of_inputs_belong_to_products_and_rows() {
    let (outputs, inputs) = (20, 33);
    let (plain, _) = matrix(WeightFormat::F32, outputs, inputs);
    let order: std::sync::Arc<[u32]> = (0..inputs as u32).map(|column| column * 5 % inputs as u32).collect();
    let turned = matrix(WeightFormat::F32, outputs, inputs)
        .0
        .with_input_order(order.clone())
        .with_factor(0.5);
    assert!(plain.is_plain() && !turned.is_plain());
    let input = values(3 * inputs, 5);
    // Column i of the reordered matrix is the column of input order[i].
    let moved: Vec<f32> = input
        .chunks(inputs)
        .flat_map(|row| order.iter().map(|at| row[*at as usize]))
        .collect();
    let expected: Vec<f32> = product(Isa::best(), &plain, &moved)
        .iter()
        .map(|value| 0.5 * value)
        .collect();
    assert_eq!(bits(&product(Isa::best(), &turned, &input)), bits(&expected));
    let mut outputs_together = [vec![0.0; 3 * outputs], vec![0.0; 3 * outputs]];
    let slices = outputs_together.each_mut().map(Vec::as_mut_slice);
    PackedMatrix::matmul_all([&plain, &turned], &input, slices);
    assert_eq!(bits(&outputs_together[0]), bits(&product(Isa::best(), &plain, &input)));
    assert_eq!(bits(&outputs_together[1]), bits(&expected));
    let (mut row, mut turned_row) = (vec![0.0; inputs], vec![0.0; inputs]);
    plain.row_into(7, &mut row);
    turned.row_into(7, &mut turned_row);
    for (column, at) in order.iter().enumerate() {
        assert_eq!(turned_row[*at as usize], 0.5 * row[column]);
    }
}
