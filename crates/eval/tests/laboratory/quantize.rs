//! Quantised files run and stay near the original; importance comes from the engine's own forward pass.

use std::ops::ControlFlow;
use std::path::Path;

use riffle_engine::{Engine, EngineOptions};
use riffle_eval::{
    ImportanceOptions, WeightDivergence, WeightDivergenceOptions, collect_importance, observing, weight_divergence,
};
use riffle_quantize::{ImportanceMatrix, QuantizeOptions, QuantizePlan};
use riffle_testing::fixtures;

fn text() -> String {
    let mut text = std::fs::read_to_string(fixtures().join("text/prophets.txt")).unwrap();
    text.truncate(text.floor_char_boundary(6000));
    text
}

fn divergence(output: &Path) -> WeightDivergence {
    let options = WeightDivergenceOptions {
        window_tokens: 256,
        most_tokens: 512,
    };
    let model = fixtures().join("model");
    weight_divergence(
        [&model, output],
        &EngineOptions::default(),
        &text(),
        &options,
        &mut |_| ControlFlow::Continue(()),
    )
    .unwrap()
}

fn importance() -> ImportanceMatrix {
    let engine = Engine::load(fixtures().join("model"), observing(EngineOptions::default())).unwrap();
    let tokens = engine.tokenizer().unwrap().encode(&text(), false).unwrap();
    let options = ImportanceOptions {
        chunk_tokens: 128,
        most_chunks: Some(4),
        datasets: vec!["prophets.txt".to_owned()],
    };
    collect_importance(&engine, &tokens, &options, &mut |_, _| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_quantised_folder_predicts_near_the_original_and_nearer_with_more_bits() {
    let folder = tempfile::tempdir().unwrap();
    let importance = importance();
    let found = |mix: &str, importance: Option<ImportanceMatrix>| {
        let output = folder.path().join(format!("{mix}.gguf"));
        let mut options = QuantizeOptions::new(mix.parse().unwrap());
        options.importance = importance;
        options.overwrite = true;
        let plan = QuantizePlan::new(&fixtures().join("model"), options).unwrap();
        plan.write(&output, &mut |_| ControlFlow::Continue(())).unwrap();
        divergence(&output)
    };
    assert!(found("F32", None).kl < 1e-6);
    let [eight, five, four] = ["Q8_0", "Q5_0", "Q4_0"].map(|mix| found(mix, None).kl);
    assert!(
        eight < 0.01 && eight < five && five < four && four < 0.5,
        "{eight} {five} {four}"
    );
    let with = found("Q4_0", Some(importance)).kl;
    assert!(with < four, "{with} with importance, {four} without");
}

#[test]
fn importance_sums_the_inputs_of_every_layer_under_the_names_of_gguf() {
    let matrix = importance();
    assert_eq!((matrix.chunk_count, matrix.chunk_tokens), (4, 128));
    assert_eq!(matrix.tensors.len(), 5 * 7);
    let inputs = |name: &str| &matrix.tensors[name];
    for (name, width) in [
        ("blk.0.attn_q.weight", 128),
        ("blk.4.attn_output.weight", 256),
        ("blk.2.ffn_down.weight", 384),
    ] {
        assert_eq!(
            (inputs(name).sums.len(), &inputs(name).counts[..]),
            (width, &[512.0][..]),
            "{name}"
        );
        assert!(inputs(name).sums.iter().all(|sum| *sum >= 0.0) && inputs(name).sums.iter().any(|sum| *sum > 0.0));
    }
    // Queries, keys and values have one input.
    assert_eq!(inputs("blk.1.attn_q.weight").sums, inputs("blk.1.attn_v.weight").sums);
}
