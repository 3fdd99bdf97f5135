//! LoRA adapters against `peft`, from its folders and from GGUF files, alone and beside others in a batch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_model::{AdapterScales, AdapterSpec, Decoder, HostForward, LoadOptions, ModelError, OpenedModel, inspect};
use serde_json::{Value, json};

use crate::testing::{Expected, Reader, Sequence, read_together, vectors};

/// Largest difference from the reference, as a share of the largest logit.
const TOLERANCE: f32 = 1e-5;

fn folder(case: &str) -> PathBuf {
    vectors().join("adapters").join(case)
}

fn base(case: &str) -> PathBuf {
    vectors().join(std::fs::read_to_string(folder(case).join("base.txt")).unwrap())
}

fn opened(model: &Path, adapters: &[PathBuf]) -> Result<OpenedModel, ModelError> {
    let adapters: Vec<AdapterSpec> = adapters
        .iter()
        .map(|path| AdapterSpec {
            path: path.clone(),
            scale: 1.0,
        })
        .collect();
    OpenedModel::open(model, &LoadOptions::default())?.with_adapters(&adapters)
}

fn loaded(model: &Path, adapters: &[PathBuf]) -> Arc<Decoder> {
    let loaded = opened(model, adapters).and_then(OpenedModel::load);
    Arc::new(
        loaded
            .unwrap_or_else(|error| panic!("{}: {error}", model.display()))
            .model,
    )
}

fn logits(model: &Arc<Decoder>, tokens: &[u32], scales: &[f32]) -> Vec<f32> {
    let mut reader = Reader::new(model, tokens.len(), tokens.len());
    reader.sequence.adapters = AdapterScales::new(scales);
    reader.read(tokens)
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let difference = differences.fold(0.0, f32::max) / largest;
    println!("{what}: {difference:e} of the largest logit");
    assert!(difference <= TOLERANCE, "{what}: {difference:e} of the largest logit");
}

const CASES: [&str; 5] = [
    "llama-all",
    "llama-rs",
    "qwen3-patterns",
    "phi3-fused",
    "qwen3_5-states",
];

#[test]
fn logits_under_an_adapter_equal_those_of_peft() {
    for case in CASES {
        let expected = Expected::read(&folder(case).join("expected.safetensors"));
        let model = loaded(&base(case), &[folder(case)]);
        assert_near(
            &logits(&model, &expected.tokens, &[1.0]),
            &expected.floats("logits"),
            case,
        );
        let without = logits(&model, &expected.tokens, &[]);
        assert_near(&without, &expected.floats("without"), case);
        let plain = loaded(&base(case), &[]);
        assert!(
            without == logits(&plain, &expected.tokens, &[1.0]),
            "{case}: bits without the adapter"
        );
    }
}

#[test]
fn adapters_of_gguf_files_equal_those_of_peft_beside_models_of_either_format() {
    for case in ["llama-all", "phi3-fused"] {
        let expected = Expected::read(&folder(case).join("expected.safetensors"));
        let of_folder = base(case);
        let name = of_folder.file_name().unwrap().to_str().unwrap();
        let of_file = vectors().join(format!("gguf/{name}.gguf"));
        for model in [&of_folder, &of_file] {
            for adapter in [folder(case), folder(case).join("adapter.gguf")] {
                let what = format!("{} beside {}", adapter.display(), model.display());
                let found = logits(&loaded(model, &[adapter]), &expected.tokens, &[1.0]);
                assert_near(&found, &expected.floats("logits"), &what);
            }
        }
    }
}

#[test]
fn a_quantised_adapter_has_the_bits_of_its_weights_in_f32() {
    let (base, tokens) = (riffle_testing::fixture("model"), [5, 80, 7, 300]);
    let of = |name: &str| {
        let model = loaded(&base, &[folder("shipped-q8_0").join(name)]);
        [logits(&model, &tokens, &[1.0]), logits(&model, &tokens, &[])]
    };
    let [packed, without] = of("adapter.gguf");
    assert!(packed == of("plain.gguf")[0]);
    assert!(packed != without);
}

#[test]
fn several_adapters_add_up_each_with_its_scale() {
    let expected = Expected::read(&folder("llama-all").join("expected.safetensors"));
    let model = loaded(&base("llama-all"), &[folder("llama-all"), folder("llama-second")]);
    let found = logits(&model, &expected.tokens, &[1.0, 0.5]);
    assert_near(&found, &expected.floats("both"), "both");
    let first = logits(&model, &expected.tokens, &[1.0, 0.0]);
    assert_near(&first, &expected.floats("logits"), "the first alone");
}

#[test]
fn sequences_under_other_adapters_have_the_bits_that_they_have_alone() {
    for case in CASES {
        let adapters = [folder(case)];
        let model = loaded(&base(case), &adapters);
        let tokens = Expected::read(&folder(case).join("expected.safetensors")).tokens;
        let scales = [&[][..], &[1.0], &[-0.5], &[1.0]];
        let lengths = [40, 17, 33, 1];
        let alone = |at: usize| logits(&model, &tokens[..lengths[at]], scales[at]);
        let mut sequences: Vec<Sequence> = scales
            .iter()
            .zip(lengths)
            .map(|(scales, length)| {
                let mut sequence = Sequence::of_length(&model.config, length);
                sequence.adapters = AdapterScales::new(scales);
                sequence
            })
            .collect();
        let mut work: Vec<(&mut Sequence, &[u32])> = sequences
            .iter_mut()
            .zip(lengths)
            .map(|(sequence, length)| (sequence, &tokens[..length]))
            .collect();
        let mut forward = HostForward::new(&model, 128);
        let joined = read_together(&mut forward, &model.config, &mut work);
        let mut first = 0;
        for (at, length) in lengths.iter().enumerate() {
            let rows = &joined[first..][..length * model.config.vocab_size];
            assert!(rows == alone(at), "{case}: sequence {at}");
            first += rows.len();
        }
    }
}

#[test]
fn a_plan_knows_what_adapters_take_and_loading_takes_it() {
    for case in CASES {
        let info = opened(&base(case), &[folder(case)]).unwrap().info();
        let [adapter] = &info.adapters[..] else {
            panic!("one adapter")
        };
        let plain = inspect(base(case)).unwrap();
        assert_eq!(info.config.weight_bytes, plain.config.weight_bytes + adapter.bytes);
        assert!(adapter.modules > 0 && adapter.rank > 0);
        let difference = |model: &Path, adapters: &[PathBuf]| {
            let loaded = opened(model, adapters).unwrap().load().unwrap();
            assert_eq!(loaded.info.adapters.len(), adapters.len());
            loaded.info.config.weight_bytes
        };
        let taken = difference(&base(case), &[folder(case)]) - difference(&base(case), &[]);
        assert!(
            taken <= adapter.bytes && 2 * taken > adapter.bytes,
            "{case}: {taken} of {}",
            adapter.bytes
        );
        assert!(info.config.host_only.is_some(), "a device refuses it by name");
    }
}

/// A copy of an adapter with changed settings.
fn bent(case: &str, bend: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let weights = "adapter_model.safetensors";
    std::fs::copy(folder(case).join(weights), place.path().join(weights)).unwrap();
    let settings = std::fs::read(folder(case).join("adapter_config.json")).unwrap();
    let mut settings: Value = serde_json::from_slice(&settings).unwrap();
    bend(&mut settings);
    std::fs::write(place.path().join("adapter_config.json"), settings.to_string()).unwrap();
    place
}

#[track_caller]
fn refused(model: &Path, adapter: &Path, words: &[&str]) {
    let Err(error) = opened(model, &[adapter.to_owned()]) else {
        panic!("{} must be refused", adapter.display());
    };
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() < 500, "{line}");
    for word in words {
        assert!(line.contains(word), "{word:?} is not in: {line}");
    }
}

#[test]
fn adapters_that_are_not_computed_are_refused_by_name() {
    let model = base("llama-all");
    for (name, value, word) in [
        ("use_dora", json!(true), "DoRA"),
        ("lora_bias", json!(true), "lora_bias"),
        ("fan_in_fan_out", json!(true), "fan_in_fan_out"),
        ("modules_to_save", json!(["lm_head"]), "modules_to_save"),
        ("trainable_token_indices", json!([1]), "trainable_token_indices"),
        ("bias", json!("all"), "bias is \"all\""),
        ("peft_type", json!("IA3"), "only LORA"),
        ("init_lora_weights", json!("pissa_niter_4"), "pissa_niter_4"),
        ("alpha_pattern", json!({"(": 1}), "is no pattern"),
    ] {
        let place = bent("llama-all", |settings| settings[name] = value);
        refused(&model, place.path(), &[word]);
    }
    let untouched = bent("llama-all", |_| ());
    assert!(opened(&model, &[untouched.path().to_owned()]).is_ok());
}

#[test]
fn adapters_of_another_model_and_other_files_are_told_as_what_they_are() {
    refused(&base("phi3-fused"), &folder("llama-all"), &["belongs to another model"]);
    refused(
        &base("llama-all"),
        &folder("qwen3_5-states"),
        &["linear_attn", "does not have"],
    );
    refused(
        &vectors().join("llama-2"),
        &folder("llama-all"),
        &["belongs to another model"],
    );
    let model = vectors().join("gguf/llama-0.gguf");
    refused(&base("llama-all"), &model, &["a model and no adapter"]);
    refused(&base("llama-all"), &base("llama-all"), &["no adapter_config.json"]);
    let empty = bent("llama-all", |_| ());
    std::fs::remove_file(empty.path().join("adapter_model.safetensors")).unwrap();
    refused(&base("llama-all"), empty.path(), &["no adapter_model.safetensors"]);
    let of_states = vectors().join("gguf/qwen3_5-0.gguf");
    refused(&of_states, &folder("qwen3_5-states"), &["linear_attn", "in one format"]);
    let adapter = riffle_model::inspect(folder("llama-all").join("adapter.gguf"))
        .unwrap_err()
        .to_string();
    assert!(adapter.contains("holds an adapter and no model"), "{adapter}");
    let many = vec![folder("llama-all"); 9];
    let many = opened(&base("llama-all"), &many).err().unwrap().to_string();
    assert!(many.contains("at most 8 adapters"), "{many}");
}
