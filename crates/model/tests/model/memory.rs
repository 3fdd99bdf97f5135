//! The memory of a model, planned and real.

use crate::testing::{fixtures, load_model, vectors};
use riffle_model::{HostForward, inspect, load, scratch_bytes};

#[test]
fn memory_for_batches_takes_what_the_plan_says() {
    for case in [
        fixtures().join("model"),
        vectors().join("llama-0"),
        vectors().join("llama-1"),
    ] {
        let model = load_model(case);
        for batch_tokens in [0, 1, 255, 256, 257, 2048] {
            assert_eq!(
                HostForward::new(&model, batch_tokens).scratch_bytes(),
                scratch_bytes(&model.config, batch_tokens)
            );
        }
    }
}

#[test]
fn scratch_grows_with_the_batch_only_by_what_attention_needs() {
    let config = inspect(fixtures().join("model")).unwrap().config;
    // Queries, keys, values, results and the batch's angles.
    let per_token = 4 * (2 * config.heads + 2 * config.kv_heads + 1) * config.head_dim;
    assert_eq!(
        scratch_bytes(&config, 20_000) - scratch_bytes(&config, 10_000),
        10_000 * per_token as u64
    );
}

#[test]
fn inspection_lists_tensors_and_agrees_with_loading() {
    let path = fixtures().join("model");
    let info = inspect(&path).unwrap();
    assert_eq!(info.config.architecture, "LlamaForCausalLM");
    assert_eq!(
        info.tensor_bytes,
        info.tensors.iter().map(|tensor| tensor.bytes).sum::<u64>()
    );
    assert!(
        info.tensors
            .iter()
            .any(|tensor| tensor.name == "model.norm.weight" && tensor.shape == [info.config.hidden_size])
    );
    let tokenizer = info.tokenizer.as_ref().unwrap();
    assert_eq!(
        (tokenizer.kind.as_str(), tokenizer.vocab_size),
        ("BPE", info.config.vocab_size)
    );

    let loaded = load(&path).unwrap();
    assert_eq!(loaded.info.tensors, info.tensors);
    assert_eq!(loaded.info.generation, info.generation);
    // Packing may pad and norms become f32, but there is no second copy.
    let (held, stored) = (loaded.info.config.weight_bytes as f64, info.tensor_bytes as f64);
    assert!(
        held >= stored && held < 1.1 * stored,
        "{held} bytes in memory, {stored} in the file"
    );
}
