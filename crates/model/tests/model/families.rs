//! Every dense family against `transformers`, text models inside other classes, and the list of families in the book.

use std::path::{Path, PathBuf};

use riffle_model::LoadOptions;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::logits::{check, check_against};
use crate::testing::{Tensor, bent, cases, load_model, logits_of, vectors};

#[test]
fn logits_of_every_dense_family_equal_the_reference_for_every_batch_size() {
    let cases = cases(&vectors().join("dense"), "");
    assert!(cases.len() >= 50, "only {} families were compared", cases.len());
    cases.iter().for_each(|case| check(case));
}

#[test]
fn logits_of_every_family_with_experts_equal_the_reference_for_every_batch_size() {
    let cases = cases(&vectors().join("experts"), "");
    assert!(cases.len() >= 25, "only {} families were compared", cases.len());
    cases.iter().for_each(|case| check(case));
}

/// transformers defines no MiniCPM. Granite has the same factors under other names.
#[test]
fn a_folder_of_minicpm_has_the_logits_of_granite_with_its_factors() {
    let case = vectors().join("dense/granite");
    let changed = |changes: Value| {
        let directory = tempfile::tempdir().unwrap();
        std::fs::copy(
            case.join("model.safetensors"),
            directory.path().join("model.safetensors"),
        )
        .unwrap();
        let mut settings = settings_of(&case);
        let fields = settings.as_object_mut().unwrap();
        fields.retain(|name, _| !name.contains("multiplier") && name != "logits_scaling");
        fields.extend(changes.as_object().unwrap().clone());
        std::fs::write(directory.path().join("config.json"), settings.to_string()).unwrap();
        directory
    };
    // Hidden size 32, four layers, heads of 8.
    let granite = changed(json!({
        "embedding_multiplier": 12, "residual_multiplier": 0.7, "logits_scaling": 4,
        "attention_multiplier": 8f64.sqrt().recip(),
    }));
    let own = json!({
        "architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4,
        "dim_model_base": 8, "sparse_config": null,
    });
    let minicpm = changed(own.clone());
    let tokens: Vec<u32> = (0..31).rev().collect();
    let [granite, minicpm] =
        [granite, minicpm].map(|directory| logits_of(&load_model(directory.path()), &tokens, tokens.len()));
    assert_eq!(granite, minicpm);

    let mut sparse = own;
    sparse["sparse_config"] = json!({"topk": 64});
    let refused = riffle_model::load(changed(sparse).path())
        .err()
        .expect("InfLLM-v2 is refused");
    let message = refused.to_string();
    assert!(
        message.contains("sparse_config") && message.contains("InfLLM-v2"),
        "{message}"
    );
}

/// A model directory of `class` around the text model of `case`, whose tensor names begin with `beginning`.
fn wrap(case: &Path, class: &str, text_type: &str, beginning: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut text = settings_of(case);
    text["model_type"] = json!(text_type);
    let tied = text["tie_word_embeddings"].clone();
    let whole = json!({
        "architectures": [class], "model_type": "something", "text_config": text, "tie_word_embeddings": tied,
        "vision_config": {"hidden_size": 8, "num_hidden_layers": 1},
    });
    std::fs::write(directory.path().join("config.json"), whole.to_string()).unwrap();
    let bytes = std::fs::read(case.join("model.safetensors")).unwrap();
    let weights = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<(String, TensorView<'_>)> = weights.tensors();
    for (name, _) in &mut tensors {
        *name = name.replacen("model.", beginning, 1);
    }
    let pixels = Tensor::f32("patches", &[4]);
    for name in [
        "model.vision_tower.layers.0.weight",
        "multi_modal_projector.weight",
        "image_newline",
    ] {
        let view = TensorView::new(safetensors::Dtype::F32, vec![4], &pixels.data).unwrap();
        tensors.push((name.to_owned(), view));
    }
    let file = safetensors::serialize(tensors, None).unwrap();
    std::fs::write(directory.path().join("model.safetensors"), file).unwrap();
    directory
}

/// Vector, class around its model, type of the text model, and the prefix of its tensor names there.
const WRAPPED: &[(&str, &str, &str, &str)] = &[
    (
        "qwen3_5-0",
        "Qwen3_5ForConditionalGeneration",
        "qwen3_5_text",
        "model.language_model.",
    ),
    (
        "gemma3-0",
        "Gemma3ForConditionalGeneration",
        "gemma3_text",
        "language_model.model.",
    ),
    (
        "llama-0",
        "LlavaForConditionalGeneration",
        "llama",
        "language_model.model.",
    ),
    (
        "llama-0",
        "Idefics3ForConditionalGeneration",
        "llama",
        "model.text_model.",
    ),
    (
        "mistral-1",
        "Mistral3ForConditionalGeneration",
        "mistral",
        "model.language_model.",
    ),
    (
        "qwen2-1",
        "InternVLForConditionalGeneration",
        "qwen2",
        "language_model.model.",
    ),
    (
        "qwen2-1",
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl_text",
        "model.",
    ),
    (
        "qwen3-1",
        "Qwen3VLForConditionalGeneration",
        "qwen3_vl_text",
        "model.language_model.",
    ),
    (
        "experts/llama4_text",
        "Llama4ForConditionalGeneration",
        "llama4_text",
        "language_model.model.",
    ),
    (
        "experts/qwen4_exp_text",
        "Qwen4ExpForConditionalGeneration",
        "qwen4_exp_text",
        "model.language_model.",
    ),
    (
        "experts/deepseek_v3",
        "KimiK25ForConditionalGeneration",
        "deepseek_v3",
        "language_model.model.",
    ),
    // The settings name the number of experts otherwise than the class does.
    (
        "experts/qwen3_moe",
        "Qwen3VLMoeForConditionalGeneration",
        "qwen3_vl_moe_text",
        "model.language_model.",
    ),
    (
        "dense/gemma4_text",
        "Gemma4ForConditionalGeneration",
        "gemma4_text",
        "model.language_model.",
    ),
];

#[test]
fn a_class_around_a_text_model_gives_the_logits_of_the_text_model() {
    for &(case, class, text_type, beginning) in WRAPPED {
        let case = vectors().join(case);
        let directory = wrap(&case, class, text_type, beginning);
        check_against(directory.path(), &case);
    }
}

#[test]
fn settings_that_belong_to_a_class_are_not_those_of_its_text_model() {
    let case = vectors().join("llama-0");
    let directory = wrap(
        &case,
        "MusicFlamingoForConditionalGeneration",
        "llama",
        "language_model.model.",
    );
    let path = directory.path().join("config.json");
    let mut settings = settings_of(directory.path());
    // A tensor of the audio encoder.
    settings["head_dim"] = json!(1280);
    settings["max_position_embeddings"] = json!(1200.0);
    std::fs::write(&path, settings.to_string()).unwrap();
    check_against(directory.path(), &case);
}

/// Checks that each change of one setting of a case is refused in words.
fn assert_refused(case: &Path, refusals: &[(&str, Value, &str)]) {
    let settings = settings_of(case);
    for (name, value, words) in refusals {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        let mut bent = settings.clone();
        bent[*name] = value.clone();
        std::fs::write(&path, bent.to_string()).unwrap();
        let error = riffle_model::configure(&path, &LoadOptions::default()).unwrap_err();
        assert!(error.to_string().contains(words), "{name}: {error}");
    }
}

#[test]
fn layers_of_gemma_4_that_do_not_fit_together_are_refused_by_name() {
    let case = vectors().join("dense/gemma4_text");
    let settings = settings_of(&case);
    let layers = settings["num_hidden_layers"].as_u64().unwrap();
    let refusals = [
        ("num_kv_shared_layers", json!(layers), "num_kv_shared_layers"),
        ("num_kv_shared_layers", json!(layers - 1), "no layer of its type"),
        ("enable_moe_block", json!(true), "num_experts"),
        (
            "use_bidirectional_attention",
            json!("all"),
            "use_bidirectional_attention",
        ),
        ("vocab_size_per_layer_input", json!(7), "vocab_size_per_layer_input"),
        ("per_layer_config", json!({"2": {"hidden_size": 8}}), "hidden_size"),
        ("rope_parameters", json!({"full_attention": {}}), "sliding_attention"),
    ];
    assert_refused(&case, &refusals);
}

#[test]
fn settings_of_encoders_that_are_not_computed_are_refused_by_name() {
    let refusals = [
        ("position_embedding_type", json!("relative_key"), "\"absolute\""),
        ("is_decoder", json!(true), "must be false"),
        ("hidden_act", json!("tanh"), "hidden_act"),
        ("max_position_embeddings", Value::Null, "max_position_embeddings"),
    ];
    assert_refused(&riffle_testing::fixture("vectors/embedding/bert"), &refusals);
    let refusals = [("max_position_embeddings", json!(2), "the first 2 rows hold no position")];
    assert_refused(&riffle_testing::fixture("vectors/embedding/xlm-roberta"), &refusals);
}

#[test]
fn settings_of_qwen_4_that_do_not_fit_together_are_refused_by_name() {
    let factors = json!({
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8],
        "original_max_position_embeddings": 64,
    });
    let refusals = [
        ("hc_count", json!(1), "hc_count"),
        ("hidden_act", json!("gelu"), "hidden_act"),
        ("output_gate_type", json!("tanh"), "output_gate_type"),
        ("indexer_n_heads", Value::Null, "indexer_n_heads"),
        ("indexer_kv_heads", json!(2), "indexer_kv_heads"),
        ("indexer_budget", json!(25), "indexer_budget"),
        ("indexer_head_dim", json!(4), "indexer_head_dim"),
        ("rope_parameters", factors, "rope_type"),
        (
            "layer_types",
            json!(["linear_attention", "sliding_attention"]),
            "layer_types",
        ),
        (
            "layer_types",
            json!(["linear_attention", "linear_attention"]),
            "layer_types",
        ),
        ("ple_layer_ids", json!([2]), "ple_layer_ids"),
        ("ple_layer_ids", json!([3]), "ple_layer_ids"),
        ("ple_embed_dim", json!(30), "ple_embed_dim"),
        ("ple_conv_kernel_size", json!(1), "ple_conv_kernel_size"),
        ("eos_token_id", Value::Null, "eos_token_id"),
        ("vocab_size", json!(1 << 24), "vocab_size"),
    ];
    assert_refused(&vectors().join("experts/qwen4_exp_text"), &refusals);
}

#[test]
fn the_settings_of_a_class_suffice_before_its_weights_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.json");
    // As in Gemma 3 4B: everything else follows from its class.
    let settings = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024
        },
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
    });
    std::fs::write(&path, settings.to_string()).unwrap();
    let config = riffle_model::configure(&path, &LoadOptions::default()).unwrap();
    assert_eq!(
        (config.layers, config.heads, config.kv_heads, config.head_dim),
        (34, 8, 4, 256)
    );
}

#[test]
fn a_known_class_around_an_unknown_text_model_is_refused_by_both_names() {
    bent(
        |model| {
            model.config["architectures"] = json!(["LlavaForConditionalGeneration"]);
            model.config["text_config"] = json!({"model_type": "mamba"});
        },
        &["LlavaForConditionalGeneration", "mamba"],
    );
}

#[test]
fn settings_that_transformers_does_not_read_are_refused() {
    bent(
        |model| model.config["partial_rotary_factor"] = json!(0.5),
        &["partial_rotary_factor", "0.5", "LlamaForCausalLM"],
    );
    bent(
        |model| {
            model.config["architectures"] = json!(["Gemma3ForCausalLM"]);
            model.config["attn_logit_softcapping"] = json!(50.0);
        },
        &["attn_logit_softcapping", "50", "Gemma3ForCausalLM"],
    );
    bent(
        |model| {
            model.config["architectures"] = json!(["Gemma3ForCausalLM"]);
            model.config["rope_parameters"] = json!({"rope_type": "linear", "factor": 8.0});
        },
        &["rope_parameters", "full_attention"],
    );
    bent(
        |model| {
            let rotation = json!({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5});
            model.config["architectures"] = json!(["Gemma3ForCausalLM"]);
            model.config["rope_parameters"] = json!({"full_attention": rotation});
        },
        &["full_attention.partial_rotary_factor", "0.5", "Gemma3ForCausalLM"],
    );
    bent(
        |model| {
            model.config["architectures"] = json!(["Mamba2ForCausalLM"]);
            model.config["hidden_act"] = json!("relu");
        },
        &["hidden_act", "relu", "silu"],
    );
    // Every layer of this class has the window.
    bent(
        |model| {
            let layers = model.config["num_hidden_layers"].as_u64().unwrap() as usize;
            model.config["architectures"] = json!(["MistralForCausalLM"]);
            model.config["sliding_window"] = json!(4);
            model.config["layer_types"] = json!(vec!["full_attention"; layers]);
        },
        &["layer_types", "sliding_attention"],
    );
}

/// A model directory with the weights of `case` and these settings.
fn with_settings(case: &Path, config: &Value) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let weights = directory.path().join("model.safetensors");
    std::fs::copy(case.join("model.safetensors"), weights).unwrap();
    directory
}

fn check_with_settings(case: &Path, config: &Value) {
    check_against(with_settings(case, config).path(), case);
}

/// The logits of a short text.
fn logits_with_settings(case: &Path, config: &Value) -> Vec<f32> {
    let directory = with_settings(case, config);
    logits_of(&load_model(directory.path()), &[3, 4, 5, 6, 7, 8, 9], 7)
}

fn settings_of(case: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(case.join("config.json")).unwrap()).unwrap()
}

#[test]
fn gpt_oss_without_settings_of_its_rotation_stretches_the_base_that_the_file_names() {
    let case = vectors().join("experts/gpt_oss");
    let mut config = settings_of(&case);
    config.as_object_mut().unwrap().remove("rope_parameters");
    config["rope_theta"] = json!(100.0);
    let named = logits_with_settings(&case, &config);
    config["rope_parameters"] = json!({
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": false, "original_max_position_embeddings": 4096,
    });
    assert_eq!(named, logits_with_settings(&case, &config));
}

#[test]
fn a_scaling_that_cohere_2_with_experts_does_not_read_is_refused() {
    let scaling = json!({"rope_type": "linear", "factor": 3.0});
    assert_refused(
        &vectors().join("experts/cohere2_moe"),
        &[("rope_scaling", scaling, "rope_parameters")],
    );
}

#[test]
fn bamba_reads_the_rotated_share_from_the_settings_of_its_rotation_alone() {
    let case = vectors().join("dense/bamba");
    let mut config = settings_of(&case);
    config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 1e4});
    config["partial_rotary_factor"] = json!(0.25);
    check_with_settings(&case, &config);
}

#[test]
fn the_base_of_a_rotation_that_a_file_leaves_out_is_that_of_its_class() {
    let case = vectors().join("experts/mixtral");
    let logits = |rotation: Value| {
        let mut config = settings_of(&case);
        config["rope_parameters"] = rotation;
        logits_with_settings(&case, &config)
    };
    let left_out = logits(json!({"rope_type": "default"}));
    assert_eq!(left_out, logits(json!({"rope_type": "default", "rope_theta": 1e6})));
    assert_ne!(left_out, logits(json!({"rope_type": "default", "rope_theta": 1e4})));
}

#[test]
fn settings_that_a_file_leaves_out_are_those_of_its_class() {
    let defaults: Value = serde_json::from_str(include_str!("../../src/families/text_defaults.json")).unwrap();
    let mut left_out = 0;
    let folders = ["dense", "experts"].map(|folder| cases(&vectors().join(folder), ""));
    for case in folders.into_iter().flatten() {
        let mut config = settings_of(&case);
        let Some(defaults) = config["model_type"].as_str().and_then(|name| defaults.get(name)) else {
            continue;
        };
        let settings = config.as_object_mut().unwrap();
        let before = settings.len();
        // Sizes are required.
        settings.retain(|name, value| {
            name.starts_with("num_hidden") || name.contains("size") || defaults.get(name) != Some(&*value)
        });
        left_out += before - settings.len();
        check_with_settings(&case, &config);
    }
    assert!(left_out >= 100, "only {left_out} settings were left out");
}

/// Compares logits under other settings with the case's logits.
#[test]
fn a_head_with_weights_of_its_own_is_used_where_embeddings_are_said_to_be_tied() {
    let case = vectors().join("dense/arcee");
    let mut config = settings_of(&case);
    config["tie_word_embeddings"] = json!(true);
    check_with_settings(&case, &config);
}

/// The table of the book.
fn table() -> String {
    let mut lines = vec!["| `model_type` | class |".to_owned(), "|---|---|".to_owned()];
    let mut families: Vec<_> = riffle_model::families().iter().collect();
    families.sort_by_key(|family| family.model_type);
    for family in families {
        lines.push(format!(
            "| `{}` | `{}` |",
            family.model_type,
            family.architectures.join("`, `")
        ));
    }
    lines.push(String::new());
    lines.push("| class around a text model | text model |".to_owned());
    lines.push("|---|---|".to_owned());
    lines.extend(riffle_model::wrapper_classes().map(|(class, text_type)| format!("| `{class}` | `{text_type}` |")));
    lines.join("\n")
}

#[test]
fn the_book_lists_the_families_of_the_registry() {
    let book = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
    let text = std::fs::read_to_string(book).unwrap();
    let (_, behind) = text.split_once("<!-- families -->\n").unwrap();
    let (listed, _) = behind.split_once("\n<!-- end of families -->").unwrap();
    assert!(
        listed == table(),
        "docs/models.md should have between its marks:\n{}",
        table()
    );
}
