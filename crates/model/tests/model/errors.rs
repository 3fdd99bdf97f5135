//! Every bad input gives one line that names the fault and the remedy.

use std::path::Path;

use crate::testing::gguf::tiny_gguf;
use crate::testing::{TinyModel, bent, byte_fallback_tokenizer, load_model, refused, write_tokenizer};
use riffle_model::{Batch, Forward, HostForward, ModelError, RecurrentState, load};
use serde_json::{Value, json};

#[test]
fn the_unbent_model_loads() {
    let directory = tempfile::tempdir().unwrap();
    TinyModel::default().write(directory.path());
    let loaded = load(directory.path()).unwrap();
    assert!(loaded.tokenizer.is_none() && loaded.chat_template.is_none());
    assert!(loaded.info.unused_tensors.is_empty());
}

#[test]
fn missing_paths_and_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(
        refused(Path::new("/no/such/model"), &["/no/such/model", "no such"]),
        ModelError::NotFound { .. }
    ));
    let file = directory.path().join("model.bin");
    std::fs::write(&file, "x").unwrap();
    assert!(matches!(
        refused(&file, &["model.bin", "directory"]),
        ModelError::NotAModel { .. }
    ));
    assert!(matches!(
        refused(directory.path(), &["config.json is missing"]),
        ModelError::MissingFile { .. }
    ));
    std::fs::write(
        directory.path().join("config.json"),
        TinyModel::default().config.to_string(),
    )
    .unwrap();
    assert!(matches!(
        refused(directory.path(), &["model.safetensors is missing"]),
        ModelError::MissingFile { .. }
    ));
}

#[test]
fn a_folder_that_holds_one_gguf_model_stands_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str| std::fs::write(folder.path().join(name), tiny_gguf(&[])).unwrap();
    write("model-Q4_K_M.gguf");
    // Neither is a model: a picture projector, and the second part of a model.
    write("mmproj-model-f16.gguf");
    write("other-00002-of-00002.gguf");
    let found = riffle_model::inspect(folder.path()).unwrap();
    assert_eq!(found.path, folder.path().join("model-Q4_K_M.gguf"));
    assert_eq!(
        riffle_model::fingerprint(folder.path()).unwrap(),
        riffle_model::fingerprint(&found.path).unwrap()
    );
    write("model-Q8_0.gguf");
    refused(
        folder.path(),
        &["several models", "model-Q4_K_M.gguf, model-Q8_0.gguf", "name one"],
    );
}

#[test]
fn adapters_are_told_as_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = json!({"peft_type": "LORA", "base_model_name_or_path": "org/base"});
    std::fs::write(folder.path().join("adapter_config.json"), adapter.to_string()).unwrap();
    refused(folder.path(), &["adapter for org/base", "give a model"]);
}

#[test]
fn layers_under_the_names_of_another_architecture_are_told_as_what_they_are() {
    bent(
        |model| {
            for tensor in &mut model.tensors {
                tensor.name = tensor.name.replace("model.layers.", "transformer.h.");
            }
        },
        &[
            "architectures",
            "LlamaForCausalLM",
            "names of another architecture (transformer.h.0.",
        ],
    );
}

#[test]
fn unknown_architectures_are_refused_with_the_known_ones() {
    for (architectures, found) in [
        (json!(["FooForCausalLM"]), "FooForCausalLM"),
        (json!([]), "foo"),
        (Value::Null, "foo"),
    ] {
        let error = bent(
            |model| {
                model.config["architectures"] = architectures;
                model.config["model_type"] = json!("foo");
            },
            &[found, "Llama, Mistral, ", "Olmo2"],
        );
        assert!(matches!(error, ModelError::UnknownArchitecture { .. }));
    }
    bent(
        |model| model.config["architectures"] = json!("LlamaForCausalLM"),
        &["architectures", "list"],
    );
}

#[test]
fn weights_quantised_otherwise_are_refused() {
    let quantised = json!({"quant_method": "hqq", "bits": 4});
    let words = ["quantization_config", "hqq", "GGUF"];
    bent(|model| model.config["quantization_config"] = quantised, &words);
}

#[test]
fn bad_settings_are_named_with_what_would_be_right() {
    for (setting, value, words) in [
        ("num_attention_heads", json!(0), vec!["from 1"]),
        ("num_attention_heads", json!("four"), vec!["four"]),
        ("num_attention_heads", json!(-4), vec!["-4"]),
        ("num_attention_heads", json!(3), vec!["hidden_size 16", "head_dim"]),
        ("num_attention_heads", Value::Null, vec!["missing"]),
        ("num_key_value_heads", json!(3), vec!["divide", "4"]),
        ("head_dim", json!(5), vec!["odd"]),
        ("head_dim", json!(1_000_000), vec!["plausible"]),
        ("num_hidden_layers", json!(1_000_000), vec!["plausible"]),
        ("num_hidden_layers", json!(1.5), vec!["1.5"]),
        ("hidden_size", json!(1e30), vec!["1e+30"]),
        ("vocab_size", json!(u64::MAX), vec!["18446744073709551615"]),
        ("intermediate_size", json!([1]), vec!["[1]"]),
        ("rms_norm_eps", json!(0.0), vec!["above 0"]),
        ("rms_norm_eps", json!("small"), vec!["small"]),
        ("tie_word_embeddings", json!("yes"), vec!["true or false"]),
        ("hidden_act", json!("cosine"), vec!["cosine", "silu"]),
        ("rope_scaling", json!({"rope_type": "spiral"}), vec!["spiral", "llama3"]),
        (
            "rope_parameters",
            json!({"rope_type": "linear"}),
            vec!["factor", "missing"],
        ),
        ("eos_token_id", json!("</s>"), vec!["token id"]),
    ] {
        let error = bent(
            |model| model.config[setting] = value,
            &[&["config.json", setting], words.as_slice()].concat(),
        );
        assert!(matches!(error, ModelError::Config { .. }), "{error:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    TinyModel::default().write(directory.path());
    for broken in ["", "{", "[]", "\"x\"", "{\"a\":}", &"[".repeat(10_000)] {
        std::fs::write(directory.path().join("config.json"), broken).unwrap();
        assert!(matches!(
            refused(directory.path(), &["config.json"]),
            ModelError::Json { .. }
        ));
    }
}

#[test]
fn broken_tokenizers_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let write = |tokenizer: &str, config: &str| write_tokenizer(directory.path(), tokenizer, config);
    let valid = byte_fallback_tokenizer();
    for broken in [
        "",
        "{",
        "{}",
        "[]",
        &valid[..valid.len() / 2],
        &valid.replace("\"BPE\"", "\"Magic\""),
    ] {
        write(broken, "{}");
        assert!(matches!(
            refused(directory.path(), &["tokenizer.json"]),
            ModelError::Tokenizer { .. }
        ));
    }
    write(&valid, r#"{"bos_token": "<start>"}"#);
    let error = refused(directory.path(), &["tokenizer_config.json", "bos_token", "<start>"]);
    assert!(matches!(error, ModelError::MissingToken { .. }));
    write(&valid, r#"{"eos_token": {"content": "<end>"}}"#);
    let error = refused(directory.path(), &["eos_token", "<end>"]);
    assert!(matches!(error, ModelError::MissingToken { .. }));
    write(&valid, r#"{"bos_token": 7}"#);
    refused(directory.path(), &["tokenizer_config.json", "bos_token", "7"]);
    write(&valid, "nonsense");
    assert!(matches!(
        refused(directory.path(), &["tokenizer_config.json"]),
        ModelError::Json { .. }
    ));
}

#[test]
fn a_vocabulary_larger_than_the_embedding_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    write_tokenizer(directory.path(), &byte_fallback_tokenizer(), "{}");
    let mut model = TinyModel::default();
    model.config["vocab_size"] = json!(260);
    model.tensors[0] = crate::testing::Tensor::f32("model.embed_tokens.weight", &[260, 16]);
    model.write(directory.path());
    let error = refused(directory.path(), &["tokenizer.json", "270", "260"]);
    assert!(matches!(error, ModelError::VocabularyTooLarge { .. }));
}

/// Released Gemma 3 models without pictures have an added token whose id is the number of embeddings.
#[test]
fn added_tokens_without_an_embedding_stay_text() {
    let directory = tempfile::tempdir().unwrap();
    let mut description: Value = serde_json::from_str(&byte_fallback_tokenizer()).unwrap();
    let token = |id: u32, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    };
    let added = description["added_tokens"].as_array_mut().unwrap();
    added.extend([token(319, "<|kept|>"), token(320, "<|image|>")]);
    write_tokenizer(directory.path(), &description.to_string(), "{}");
    let tokenizer = load(directory.path()).unwrap().tokenizer.unwrap();
    assert_eq!(tokenizer.vocab_size(), 320);
    assert_eq!(tokenizer.token_id("<|kept|>"), Some(319));
    assert_eq!(tokenizer.token_id("<|image|>"), None);
    let ids = tokenizer.encode("<|kept|><|image|>", false).unwrap();
    assert!(
        ids.len() > 5 && ids[0] == 319 && ids.iter().all(|id| *id < 320),
        "{ids:?}"
    );
    // A token that begins or ends texts cannot be left out.
    write_tokenizer(
        directory.path(),
        &description.to_string(),
        r#"{"eos_token": "<|image|>"}"#,
    );
    let error = refused(directory.path(), &["tokenizer.json", "321", "320"]);
    assert!(matches!(error, ModelError::VocabularyTooLarge { .. }));
}

#[test]
fn stop_tokens_outside_the_vocabulary_are_refused() {
    let error = bent(
        |model| model.config["eos_token_id"] = json!([3, 320]),
        &["eos_token_id", "320"],
    );
    assert!(matches!(error, ModelError::MissingToken { .. }));
}

#[test]
fn broken_chat_templates_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    TinyModel::default().write(directory.path());
    std::fs::write(directory.path().join("chat_template.jinja"), "{% for x in %}").unwrap();
    assert!(matches!(
        refused(directory.path(), &["chat template", "line 1"]),
        ModelError::Template { .. }
    ));
}

#[test]
fn bad_calls_are_typed_errors() {
    let directory = tempfile::tempdir().unwrap();
    TinyModel::default().write(directory.path());
    let model = load_model(directory.path());
    let mut forward = HostForward::new(&model, 2);
    let [mut state, mut other] = [0; 2].map(|_| RecurrentState::new(&model.config));
    let mut embed = |tokens: &[u32]| forward.embed(&Batch::of_one(tokens, 0).unwrap());

    assert!(matches!(
        embed(&[1, 320]).unwrap_err(),
        ModelError::TokenOutOfRange {
            token: 320,
            vocab_size: 320
        }
    ));
    assert!(matches!(
        embed(&[1, 2, 3]).unwrap_err(),
        ModelError::BatchTooLarge {
            tokens: 3,
            batch_tokens: 2
        }
    ));
    embed(&[1, 2]).unwrap();
    let error = forward.project(1, 0..2).unwrap_err();
    assert!(matches!(error, ModelError::NoSuchLayer { layer: 1, layers: 1 }));
    let error = forward.finish(1, 0..2, &mut [&mut state]).unwrap_err();
    assert!(matches!(error, ModelError::NoSuchLayer { layer: 1, layers: 1 }));
    let error = forward.finish(0, 0..2, &mut [&mut state, &mut other]).unwrap_err();
    assert!(matches!(error, ModelError::WrongStates { segments: 1, states: 2 }));
    let error = forward.finish(0, 0..2, &mut [&mut state]).unwrap_err();
    assert!(error.to_string().contains("rows 0..2"), "{error}");
    assert!(forward.projected().is_none());
    let error = forward.project(0, 0..3).unwrap_err();
    assert!(matches!(error, ModelError::RowsOutOfOrder { layer: 0, .. }), "{error}");
    let error = forward.logits(&[0, 1], &mut [0.0; 320]).unwrap_err();
    assert!(matches!(
        error,
        ModelError::BufferLength {
            expected: 640,
            found: 320,
            ..
        }
    ));
}

#[test]
fn impossible_hybrid_models_are_refused() {
    let hybrid = |setting: &'static str, value: Value, words: &[&str]| {
        bent(
            |model| {
                model.config["architectures"] = json!(["Qwen3_5ForCausalLM"]);
                model.config["num_hidden_layers"] = json!(4);
                model.config[setting] = value;
            },
            words,
        );
    };
    hybrid("linear_num_value_heads", json!(17), &["linear_num_value_heads", "16"]);
    hybrid("linear_key_head_dim", json!(1 << 20), &["linear_key_head_dim", "4096"]);
    hybrid("linear_conv_kernel_dim", json!(0), &["linear_conv_kernel_dim"]);
    hybrid("full_attention_interval", json!(0), &["full_attention_interval"]);
    hybrid("full_attention_interval", json!(5), &["full_attention"]);
    hybrid("layer_types", json!(["full_attention"]), &["layer_types", "1", "4"]);
    hybrid(
        "layer_types",
        json!(["mamba", "mamba", "mamba", "mamba"]),
        &["layer_types", "mamba"],
    );
    hybrid("hidden_act", json!("gelu_new"), &["hidden_act", "silu"]);
    hybrid("text_config", json!(7), &["text_config"]);
    // Only the weights are wrong.
    hybrid("hidden_act", json!("silu"), &["model.layers.0"]);
}

#[test]
fn a_recurrent_state_that_does_not_fit_is_refused() {
    let vectors = crate::testing::vectors();
    let [hybrid, other] = ["qwen3_5-0", "qwen3_5-1"].map(|case| load_model(vectors.join(case)));
    let config = &hybrid.config;
    let mut forward = HostForward::new(&hybrid, 2);
    let mut layer = |start, state: &mut RecurrentState| {
        forward.embed(&Batch::of_one(&[1, 2], start).unwrap()).unwrap();
        assert!(!forward.project(0, 0..2).unwrap());
        assert!(forward.projected().is_none());
        let result = forward.finish(0, 0..2, &mut [state]);
        result.map_err(|error| error.to_string())
    };
    let mut foreign = RecurrentState::new(&other.config);
    assert!(layer(0, &mut foreign).unwrap_err().contains("another model"));
    let mut state = RecurrentState::new(config);
    assert!(layer(3, &mut state).unwrap_err().contains("from token 3 on"));
    layer(0, &mut state).unwrap();
    assert!(layer(0, &mut state).unwrap_err().contains("has read 2"));
    assert_eq!(state.tokens(), None);
    assert!(matches!(
        state.copy_from(&foreign),
        Err(ModelError::WrongRecurrentState)
    ));
}
