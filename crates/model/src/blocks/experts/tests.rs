use riffle_linear::{PackedMatrix, WeightFormat};

use super::*;
use crate::ExpertShape;

const HIDDEN: usize = 64;
const WIDTH: usize = 32;
const EXPERTS: usize = 7;

fn values(seed: usize, count: usize) -> Vec<f32> {
    let mut state = (seed as u32).wrapping_mul(747_796_405).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 9) as f32 / (1 << 22) as f32 - 1.0
        })
        .collect()
}

fn projection(seed: usize, rows: usize, columns: usize, format: WeightFormat, biased: bool) -> Projection {
    let bytes: Vec<u8> = match format {
        WeightFormat::Q8_0 => {
            let mut bytes = Vec::new();
            for block in values(seed, rows * columns).chunks(32) {
                bytes.extend([0x00, 0x20]);
                bytes.extend(block.iter().map(|value| (value * 100.0) as i8 as u8));
            }
            bytes
        }
        _ => values(seed, rows * columns)
            .iter()
            .flat_map(|value| (value * 0.2).to_le_bytes())
            .collect(),
    };
    let matrix = PackedMatrix::pack(format, rows, columns, &bytes).unwrap();
    Projection::of_parts(matrix, biased.then(|| values(seed + 1, rows)))
}

/// Experts of `format` with biases and a shared block, all of which affect the result.
fn experts(format: WeightFormat, used: usize, gated: bool) -> Experts {
    let inner = |seed| projection(seed, WIDTH, HIDDEN, format, true);
    Experts {
        router: Router {
            norm: None,
            projection: projection(1, EXPERTS, HIDDEN, WeightFormat::F32, false),
            choice_bias: None,
            expert_scales: None,
            rules: RouterRules {
                used,
                scoring: Scoring::Softmax,
                groups: None,
                sum: Some(WeightSum::PLAIN),
                scale: 1.5,
            },
        },
        experts: ExpertWeights::Resident(
            (0..EXPERTS)
                .map(|expert| Expert {
                    gate: gated.then(|| inner(10 * expert + 100)),
                    up: inner(10 * expert + 103),
                    down: projection(10 * expert + 106, HIDDEN, WIDTH, format, true),
                })
                .collect(),
        ),
        activation: if gated {
            Activation::Silu
        } else {
            Activation::ReluSquared
        },
        weighs_input: false,
        after: None,
        shared: Some(SharedExpert::plain(
            Mlp::Plain {
                up: projection(3, WIDTH, HIDDEN, format, false),
                down: projection(5, HIDDEN, WIDTH, format, false),
                activation: Activation::Silu,
            },
            Some(projection(7, 1, HIDDEN, WeightFormat::F32, false)),
        )),
    }
}

/// The results of rows that are routed in blocks and computed together, with scratch for `scratch_rows` rows.
fn apply(experts: &Experts, input: &[f32], [scratch_rows, block]: [usize; 2]) -> Vec<f32> {
    let shape = ExpertShape {
        experts: EXPERTS,
        used: experts.router.rules.used,
        width: WIDTH,
        shared_width: WIDTH,
    };
    let mut scratch = ExpertScratch::new(Some(&shape), HIDDEN, [scratch_rows, block]);
    assert_eq!(
        scratch.bytes(),
        scratch_bytes(Some(&shape), HIDDEN, [scratch_rows, block])
    );
    let mut hidden = values(9, input.len());
    let mut blocks: Vec<_> = hidden
        .chunks_mut(block * HIDDEN)
        .zip(input.chunks(block * HIDDEN))
        .collect();
    let mut in_blocks = |scratch: &mut ExpertScratch, step: &dyn Fn(&mut RowBlock<'_>, usize)| -> Vec<f32> {
        let mut branches = Vec::new();
        for (number, (hidden, input)) in blocks.iter_mut().enumerate() {
            let rows = input.len() / HIDDEN;
            let (mut normed, mut branch) = (input.to_vec(), vec![f32::NAN; input.len()]);
            let mut rows = RowBlock {
                tokens: &[],
                hidden,
                attended: &mut [],
                normed: &mut normed,
                branch: &mut branch,
                inner: &mut vec![0.0; rows * WIDTH],
                inner_gate: &mut vec![0.0; rows * WIDTH],
                mixer: &mut [],
                experts: scratch,
                layer_inputs: &[],
                streams: &mut [],
            };
            step(&mut rows, number * block);
            branches.extend(branch);
        }
        branches
    };
    let rows = input.len() / HIDDEN;
    in_blocks(&mut scratch, &|rows, first| experts.route(rows, first, &[]));
    experts.begin(&mut scratch, rows);
    while !experts.advance(&mut scratch, (&[], rows), None).unwrap() {}
    in_blocks(&mut scratch, &|rows, first| experts.end(rows, first, &[]))
}

#[test]
fn a_token_has_the_same_bits_alone_and_in_any_batch() {
    for format in [WeightFormat::F32, WeightFormat::Q8_0] {
        for (used, gated) in [(1, true), (3, true), (7, false)] {
            let experts = experts(format, used, gated);
            let input = values(77, 300 * HIDDEN);
            let together = apply(&experts, &input, [300, 300]);
            for cut in [1, 2, 9, 64] {
                let cut: Vec<f32> = input
                    .chunks(cut * HIDDEN)
                    .flat_map(|rows| apply(&experts, rows, [cut, cut]))
                    .collect();
                assert!(cut == together, "{format} {used}");
            }
            assert!(apply(&experts, &input, [300, 64]) == together, "{format} {used}");
            // More scratch than rows, and another order of rows.
            let turned: Vec<f32> = input.chunks(HIDDEN).rev().flatten().copied().collect();
            let turned = apply(&experts, &turned, [512, 256]);
            let back: Vec<f32> = turned.chunks(HIDDEN).rev().flatten().copied().collect();
            assert!(back == together, "{format} {used}");
        }
    }
}

#[test]
fn results_are_the_weighed_sum_of_the_chosen_experts() {
    let experts = experts(WeightFormat::F32, 3, true);
    let input = values(78, 20 * HIDDEN);
    let found = apply(&experts, &input, [20, 20]);
    let ExpertWeights::Resident(all) = &experts.experts else {
        unreachable!()
    };
    let product = |projection: &Projection, input: &[f64]| -> Vec<f64> {
        let weight = projection.weight();
        let mut row = vec![0.0; weight.in_features()];
        let bias = projection.bias();
        (0..weight.out_features())
            .map(|output| {
                weight.row_into(output, &mut row);
                let sum: f64 = row
                    .iter()
                    .zip(input)
                    .map(|(weight, input)| f64::from(*weight) * input)
                    .sum();
                sum + bias.map_or(0.0, |bias| f64::from(bias[output]))
            })
            .collect()
    };
    let silu = |value: f64| value / (1.0 + (-value).exp());
    for (row, found) in input.chunks(HIDDEN).zip(found.chunks(HIDDEN)) {
        let row: Vec<f64> = row.iter().map(|value| f64::from(*value)).collect();
        let logits = product(&experts.router.projection, &row);
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let sum: f64 = order[..3].iter().map(|expert| logits[*expert].exp()).sum();
        let mut wanted = vec![0.0; HIDDEN];
        for expert in &order[..3] {
            let Expert { gate, up, down } = &all[*expert];
            let gate = product(gate.as_ref().unwrap(), &row);
            let inner: Vec<f64> = gate
                .iter()
                .zip(product(up, &row))
                .map(|(gate, up)| silu(*gate) * up)
                .collect();
            let weight = 1.5 * logits[*expert].exp() / sum;
            wanted
                .iter_mut()
                .zip(product(down, &inner))
                .for_each(|(sum, value)| *sum += weight * value);
        }
        let shared = experts.shared.as_ref().unwrap();
        let Mlp::Plain { up, down, .. } = &shared.mlp else {
            unreachable!()
        };
        let inner: Vec<f64> = product(up, &row).into_iter().map(silu).collect();
        let opening = product(shared.gate.as_ref().unwrap(), &row)[0];
        let opening = 1.0 / (1.0 + (-opening).exp());
        for ((wanted, shared), found) in wanted.iter().zip(product(down, &inner)).zip(found) {
            let wanted = wanted + opening * shared;
            assert!((f64::from(*found) - wanted).abs() < 1e-5 * wanted.abs().max(1.0));
        }
    }
}
