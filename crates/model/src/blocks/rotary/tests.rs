use super::*;
use crate::ModelError;
use crate::fields::Fields;
use serde_json::json;
use std::path::Path;

fn settings(value: serde_json::Value, head_dim: usize) -> Result<RotarySettings, ModelError> {
    RotarySettings::from_fields(&Fields::new(Path::new("config.json"), value).unwrap(), head_dim, 2048)
}

#[test]
fn heads_turn_as_the_formula_says() {
    for head_dim in [2usize, 6, 32, 80, 128] {
        let rotary = Rotary::new(&settings(json!({"rope_theta": 5e5}), head_dim).unwrap());
        for position in [0usize, 1, 17, 511, 4095] {
            let mut table = RotaryTable::with_capacity(3, head_dim);
            table.prepare(&rotary, &Batch::of_one(&[0; 3], position).unwrap());
            for row in 0..3 {
                let head: Vec<f32> = (0..head_dim).map(|i| (i as f32 * 0.7).sin()).collect();
                let mut turned = head.clone();
                let (cosines, sines) = table.angles()[row * head_dim..][..head_dim].split_at(head_dim / 2);
                Rotary::turn(&mut turned, cosines, sines);
                for pair in 0..head_dim / 2 {
                    let angle = (position + row) as f64 / 5e5f64.powf(2.0 * pair as f64 / head_dim as f64);
                    let (a, b) = (f64::from(head[pair]), f64::from(head[pair + head_dim / 2]));
                    // Frequency and product are rounded to f32 once each. So is the exponent of theta, which
                    // multiplies ln theta. A head of ones has the length √2.
                    let unit = f64::from(f32::EPSILON) / 2.0;
                    let tolerance = 4.0 * unit + 2f64.sqrt() * angle * unit * (2.0 + 5e5f64.ln());
                    assert!((f64::from(turned[pair]) - (a * angle.cos() - b * angle.sin())).abs() < tolerance);
                    assert!(
                        (f64::from(turned[pair + head_dim / 2]) - (b * angle.cos() + a * angle.sin())).abs()
                            < tolerance
                    );
                }
            }
        }
    }
}

#[test]
fn moved_heads_are_those_turned_to_the_other_position() {
    let settings = settings(
        json!({"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "yarn", "factor": 4.0}}),
        64,
    );
    let rotary = Rotary::new(&settings.unwrap());
    let at = |position: usize| -> Vec<f32> {
        let mut table = RotaryTable::with_capacity(1, 32);
        table.prepare(&rotary, &Batch::of_one(&[0; 1], position).unwrap());
        let mut heads: Vec<f32> = (0..128).map(|i| (i as f32 * 0.7).sin()).collect();
        for head in heads.chunks_exact_mut(64) {
            Rotary::turn(head, &table.angles()[..16], &table.angles()[16..]);
        }
        heads
    };
    for (from, to) in [(0, 5), (70_001, 64), (3, 3), (12, 130_000)] {
        let mut heads = at(from);
        rotary.move_heads(&mut heads, (64, 0), (from, to), 8192);
        for (moved, turned) in heads.iter().zip(at(to)) {
            assert!((moved - turned).abs() < 1e-6, "{from} to {to}: {moved} {turned}");
        }
    }
}

#[test]
fn a_partial_rotation_leaves_the_rest_of_the_head_alone() {
    let rotary = Rotary::new(&settings(json!({"partial_rotary_factor": 0.4}), 80).unwrap());
    assert_eq!(rotary.dim(), 32);
    let mut table = RotaryTable::with_capacity(1, 32);
    table.prepare(&rotary, &Batch::of_one(&[0; 1], 9).unwrap());
    let mut head = vec![1.0f32; 80];
    Rotary::turn(&mut head, &table.angles()[..16], &table.angles()[16..]);
    assert!(head[..32].iter().all(|x| *x != 1.0));
    assert!(head[32..].iter().all(|x| *x == 1.0));
}

#[test]
fn linear_and_llama3_stretch_low_frequencies() {
    let plain = Rotary::new(&settings(json!({}), 64).unwrap());
    let linear = Rotary::new(&settings(json!({"rope_scaling": {"type": "linear", "factor": 4.0}}), 64).unwrap());
    let llama3 = Rotary::new(
        &settings(
            json!({"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 512}}),
            64,
        )
        .unwrap(),
    );
    for pair in 0..32 {
        assert_eq!(linear.frequencies[pair], plain.frequencies[pair] / 4.0);
    }
    assert_eq!(llama3.frequencies[0], plain.frequencies[0]);
    assert_eq!(llama3.frequencies[31], plain.frequencies[31] / 8.0);
}

#[test]
fn impossible_rotations_are_refused() {
    for (value, word) in [
        (json!({"partial_rotary_factor": 0.0001}), "partial_rotary_factor"),
        (json!({"partial_rotary_factor": 1.5}), "partial_rotary_factor"),
        (json!({"rope_theta": 0}), "rope_theta"),
        (json!({"rope_theta": "x"}), "rope_theta"),
        (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling.factor"),
        (
            json!({"rope_scaling": {"type": "linear", "factor": -1}}),
            "rope_scaling.factor",
        ),
        (json!({"rope_scaling": {"type": "spiral"}}), "spiral"),
        (json!({"rope_scaling": {"type": "dynamic", "factor": 2}}), "yarn"),
        (json!({"rope_scaling": 3}), "rope_scaling"),
    ] {
        let error = settings(value, 64).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}
