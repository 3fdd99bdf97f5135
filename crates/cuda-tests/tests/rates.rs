//! The device measurement on an emulated device: results must be right, whatever their time.
#![cfg(unix)]

use std::ops::ControlFlow;

use riffle_attention::Format;
use riffle_cuda::{EmulatedOptions, Gpu, KernelCache};
use riffle_cuda_rates::{DeviceCeilings, measure_device};
use riffle_eval::{AttentionCase, DeviceReport, Journal};

#[test]
fn cases_on_an_emulated_device_are_right_whatever_their_time() {
    let options = EmulatedOptions {
        capability: (9, 0),
        ..EmulatedOptions::default()
    };
    // Uses a GPU if RIFFLE_TEST_GPU gives its number.
    let gpu = match std::env::var("RIFFLE_TEST_GPU") {
        Ok(number) => Gpu::open(number.parse().expect("a number"), KernelCache::of_user()).expect("a GPU"),
        Err(_) => Gpu::emulated(options, KernelCache::of_user()).expect("g++ compiles the kernels"),
    };
    let case = AttentionCase {
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        rows: 20,
        tokens: 300,
        format: Format::F16,
        density: 0.5,
        precision: riffle_engine::AttentionPrecision::Exact,
    };
    let decode = AttentionCase {
        rows: 1,
        density: 1.0,
        ..case
    };
    let sizes = DeviceCeilings {
        matrix: 64,
        copy_bytes: 4096,
        repeats: 1,
        offload_tokens: 1100,
        chunk_rows: 20,
    };
    let dense = AttentionCase { density: 1.0, ..case };
    let report = measure_device(&gpu, &[case, dense, decode], &sizes, &mut Journal::none(), &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap();
    check_cases(&report, gpu.info().capability == (9, 0));
    assert_eq!(report.offload.iter().map(|rate| rate.rows).collect::<Vec<_>>(), [1, 20]);
    assert!(report.offload.iter().all(|rate| rate.same_bits));
    assert_eq!(report.ahead.iter().map(|rate| rate.rows).collect::<Vec<_>>(), [1, 20]);
    for rate in &report.ahead {
        assert!(
            rate.same_bits && rate.ahead_share > 0.0 && rate.ahead_share <= 1.0,
            "{rate:?}"
        );
    }
    assert_eq!(report.policies.len(), 3);
    for rate in &report.policies {
        assert!(rate.same_bits && rate.density > 0.0 && rate.density <= 1.0, "{rate:?}");
    }
}

/// Checks two prefills, one of them sparse, and a decode.
fn check_cases(report: &DeviceReport, has_both_instructions: bool) {
    for rate in &report.rates {
        assert!(rate.relative_error < 2e-3, "{rate:?}");
        let chosen: Vec<f64> = rate
            .instructions
            .iter()
            .filter(|by| by.is_chosen)
            .map(|by| by.median_ms)
            .collect();
        assert!(chosen.is_empty() || chosen == [rate.median_ms], "{rate:?}");
    }
    let count = |case: usize| report.rates[case].instructions.len();
    let prefills = if has_both_instructions { 2 } else { 1 };
    assert_eq!([count(0), count(1), count(2)], [prefills, prefills, 0]);
    assert!(report.rates[0].over_density.is_some() && report.rates[1].over_density.is_none());
}
