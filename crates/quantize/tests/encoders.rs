//! Encoders against ggml's own: the errors of `scripts/make_ggml_errors.py`.

use std::collections::BTreeMap;
use std::path::Path;

use riffle_linear::WeightFormat;
use riffle_quantize::{encodable_formats, encode_rows};

const COLUMNS: usize = 1024;

fn floats() -> Vec<f32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/ggml.bin");
    let bytes = std::fs::read(path).unwrap();
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect()
}

/// By format, `plain` and `important`: the error of each row.
fn errors_of_ggml() -> BTreeMap<String, BTreeMap<String, Vec<f64>>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/ggml.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn encoded(format: WeightFormat, rows: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let mut bytes = vec![0xaa; rows.len() / COLUMNS * format.row_bytes(COLUMNS).unwrap()];
    encode_rows(format, COLUMNS, rows, importance, &mut bytes).unwrap();
    bytes
}

fn decoded(format: WeightFormat, bytes: &[u8]) -> Vec<f32> {
    let row_bytes = format.row_bytes(COLUMNS).unwrap();
    let mut values = vec![0.0; bytes.len() / row_bytes * COLUMNS];
    for (row, values) in bytes.chunks_exact(row_bytes).zip(values.chunks_exact_mut(COLUMNS)) {
        format.decode_row(row, values);
    }
    values
}

/// Squared errors, each times its factor, by row.
fn errors(rows: &[f32], decoded: &[f32], factors: Option<&[f32]>) -> Vec<f64> {
    let pairs = rows.chunks_exact(COLUMNS).zip(decoded.chunks_exact(COLUMNS));
    let of_row = pairs.map(|(row, decoded)| {
        let squares = row.iter().zip(decoded).enumerate().map(|(column, (a, b))| {
            let difference = f64::from(*a) - f64::from(*b);
            difference * difference * factors.map_or(1.0, |factors| f64::from(factors[column]))
        });
        squares.sum()
    });
    of_row.collect()
}

#[test]
fn no_encoder_is_worse_than_that_of_ggml() {
    let floats = floats();
    let (rows, importance) = floats.split_at(floats.len() - COLUMNS);
    let theirs = errors_of_ggml();
    let mut worse = Vec::new();
    for format in encodable_formats().filter(|format| format.block_weights() > 1) {
        for (kind, factors) in [("plain", None), ("important", Some(importance))] {
            let Some(theirs) = theirs[format.name()].get(kind) else {
                continue;
            };
            let ours = errors(rows, &decoded(format, &encoded(format, rows, factors)), factors);
            let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
            let shown: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
            println!("{:<8} {kind:<10} {}", format.name(), shown.join(" "));
            let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64;
            // Errors are also weighted by the size of weights, so a row of another kind may lose a little.
            if mean > 1e-3 || ratios.iter().any(|ratio| *ratio > 1.05) {
                worse.push(format!("{} {kind}: {}", format.name(), shown.join(" ")));
            }
        }
    }
    assert!(worse.is_empty(), "errors by ggml's:\n{}", worse.join("\n"));
}

#[test]
fn rows_of_few_values_are_nearly_as_long_as_their_weights() {
    let floats = floats();
    let (rows, importance) = floats.split_at(floats.len() - COLUMNS);
    // Without the correction IQ2_XXS, for one, has 0.94.
    let formats = [
        ("iq1_s", 0.95),
        ("iq2_xxs", 0.975),
        ("iq2_xs", 0.98),
        ("iq2_s", 0.98),
        ("iq3_xxs", 0.99),
        ("iq3_s", 0.99),
    ];
    for (name, least) in formats {
        let format = encodable_formats().find(|format| format.name() == name).unwrap();
        for factors in [None, Some(importance)] {
            let values = decoded(format, &encoded(format, rows, factors));
            let product = |other: &[f32]| -> f64 {
                let pairs = rows.iter().zip(other).enumerate();
                let factor = |place: usize| factors.map_or(1.0, |factors| f64::from(factors[place % COLUMNS]));
                pairs
                    .map(|(place, (x, y))| factor(place) * f64::from(*x) * f64::from(*y))
                    .sum()
            };
            let ratio = product(&values) / product(rows);
            println!("{name} {ratio:.4}");
            assert!((least..1.002).contains(&ratio), "{name}: {ratio}");
        }
    }
}

#[test]
fn what_a_format_can_hold_stays_as_it_is() {
    let floats = floats();
    let rows = &floats[..2 * COLUMNS];
    for format in encodable_formats() {
        let once = decoded(format, &encoded(format, rows, None));
        let twice = decoded(format, &encoded(format, &once, None));
        let loss = errors(&once, &twice, None).iter().sum::<f64>();
        let first = errors(rows, &once, None).iter().sum::<f64>();
        assert!(loss <= 0.02 * first, "{format}: {loss} after {first}");
    }
}

#[test]
fn rows_of_zeros_and_of_extremes_are_finite_in_every_format() {
    let mut rows = vec![0.0; 6 * COLUMNS];
    rows[COLUMNS..2 * COLUMNS].fill(1e-38);
    rows[2 * COLUMNS..3 * COLUMNS].fill(-3e38);
    rows[3 * COLUMNS] = 3e38;
    for (index, value) in rows[4 * COLUMNS..5 * COLUMNS].iter_mut().enumerate() {
        *value = if index % 2 == 0 { 6e4 } else { -6e4 };
    }
    rows[5 * COLUMNS..].fill(f32::MIN_POSITIVE / 8.0);
    let importance = vec![0.0; COLUMNS];
    for format in encodable_formats().filter(|format| *format != WeightFormat::F16) {
        for importance in [None, Some(&importance[..])] {
            let values = decoded(format, &encoded(format, &rows, importance));
            let bad = values.iter().position(|value| !value.is_finite());
            assert_eq!(bad, None, "{format}");
            assert!(values[..COLUMNS].iter().all(|value| *value == 0.0), "{format}: zeros");
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let floats = floats();
    let (rows, importance) = floats.split_at(floats.len() - COLUMNS);
    let on = |threads: usize, format| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| encoded(format, rows, Some(importance)))
    };
    for format in [WeightFormat::Q4K, WeightFormat::Iq3S] {
        assert!(on(1, format) == on(3, format), "{format}");
    }
}

#[test]
fn rows_that_are_no_blocks_are_refused() {
    let mut output = [0; 144];
    let message = encode_rows(WeightFormat::Q4K, 100, &[0.0; 100], None, &mut output)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("rows of 100 weights are no whole blocks of q4_k"),
        "{message}"
    );
    let short = encode_rows(WeightFormat::Q4K, 256, &[0.0; 256], Some(&[1.0]), &mut output);
    assert!(short.is_err());
}
