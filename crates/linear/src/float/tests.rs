use crate::machine::Isa;
use crate::testing::{bits, exact, float_bytes, on_threads, rounded, values};
use crate::{Activations, LinearError, PackedMatrix, WeightFormat};

const FORMATS: [WeightFormat; 3] = [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16];

fn matrix(format: WeightFormat, outputs: usize, inputs: usize) -> (PackedMatrix, Vec<f32>) {
    let weights = values(outputs * inputs, (outputs * 31 + inputs) as u64);
    let packed = PackedMatrix::pack(format, outputs, inputs, &float_bytes(format, &weights)).expect("packs");
    (packed, weights.iter().map(|&w| rounded(format, w)).collect())
}

/// Every way a float format is multiplied.
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
                // Each term passes through at most a panel's additions and one for each panel.
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
