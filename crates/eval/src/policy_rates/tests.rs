use std::ops::ControlFlow;

use super::*;
use crate::CellStep;

#[test]
fn sizes_that_cannot_be_are_refused_before_anything_is_allocated() {
    let options = PolicyRateOptions {
        tokens: 256,
        layers: 1,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        formats: (Format::F16, Format::F16),
        keys: KeyKind::Random,
        chunk_tokens: 64,
    };
    for (wrong, part) in [
        (
            PolicyRateOptions {
                chunk_tokens: 0,
                ..options
            },
            "--ub",
        ),
        (
            PolicyRateOptions {
                chunk_tokens: 257,
                ..options
            },
            "--ub",
        ),
        (PolicyRateOptions { kv_heads: 3, ..options }, "do not divide"),
        (
            PolicyRateOptions {
                tokens: 1 << 40,
                ..options
            },
            "fewer --tokens",
        ),
    ] {
        let mut go_on = |_: &CellStep<'_>| ControlFlow::Continue(());
        let full = [PolicySpec::full()];
        let refused = measure_policies(&full, Phase::Prefill, &wrong, &mut Journal::none(), &mut go_on);
        let message = refused.unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn rates_say_what_is_read_and_refuse_what_one_chunk_cannot_show() {
    let options = PolicyRateOptions {
        tokens: 2048,
        layers: 6,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        formats: (Format::Q8_0, Format::F16),
        keys: KeyKind::Peaked,
        chunk_tokens: 128,
    };
    let mut rates = Vec::new();
    let mut measure = |names: &[&str], phase| {
        let specs: Vec<PolicySpec> = names.iter().map(|name| name.parse().unwrap()).collect();
        let mut go_on = |_: &CellStep<'_>| ControlFlow::Continue(());
        let measured = measure_policies(&specs, phase, &options, &mut Journal::none(), &mut go_on)?;
        rates.extend(measured.rates);
        Ok::<_, EvalError>(())
    };
    measure(&["full", "xattention"], Phase::Prefill).unwrap();
    measure(&["certified", "quest:topk=2"], Phase::Decode).unwrap();
    let refused = measure(&["h2o-chunk"], Phase::Prefill).unwrap_err().to_string();
    assert!(refused.contains("two phases"), "{refused}");
    assert!(measure(&["quest"], Phase::Prefill).is_err());
    let density: Vec<f64> = rates.iter().map(|rate| rate.density).collect();
    assert_eq!(density[0], 1.0);
    assert!(density[1..].iter().all(|density| *density < 0.95), "{rates:?}");
    let dense_layers: Vec<usize> = rates.iter().map(|rate| rate.dense_layers).collect();
    assert_eq!(dense_layers, [6, 0, 0, 2]);
    assert!(rates.iter().all(|rate| rate.dense_ms > 0.0 && rate.speed() > 0.0));
}
