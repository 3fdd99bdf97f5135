//! Settings of config.json and generation_config.json and names of tensors are used or refused, never skipped.

use std::path::Path;

use crate::testing::{Tensor, TinyModel, bent, refused};
use riffle_model::{ModelError, inspect, load};
use serde_json::{Value, json};

#[test]
fn fewer_layers_than_the_weights_hold_are_refused() {
    let two_layers = |model: &mut TinyModel| {
        let mut second = model.tensors.clone();
        second.retain(|tensor| tensor.name.contains("layers.0"));
        for tensor in &mut second {
            tensor.name = tensor.name.replace("layers.0", "layers.1");
        }
        model.tensors.extend(second);
    };
    let words = ["config.json", "num_hidden_layers", "is 1", "model.layers.1."];
    let error = bent(two_layers, &words);
    assert!(matches!(error, ModelError::Config { .. }));
    let directory = tempfile::tempdir().unwrap();
    let mut model = TinyModel::default();
    two_layers(&mut model);
    model.write(directory.path());
    assert!(inspect(directory.path()).is_err());
    // The second layer may predict further tokens.
    model.config["num_nextn_predict_layers"] = json!(1);
    model.write(directory.path());
    assert_eq!(load(directory.path()).unwrap().model.layers.len(), 1);
    model.config["num_nextn_predict_layers"] = json!(0);
    model.config["num_hidden_layers"] = json!(2);
    model.write(directory.path());
    load(directory.path()).unwrap();
}

#[test]
fn tensors_without_a_use_are_refused_by_name() {
    for name in [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.sinks",
        "model.layers.0.self_attn.q_norm.weight",
        "score.weight",
    ] {
        let error = bent(
            |model| model.tensors.push(Tensor::f32(name, &[4])),
            &["config.json", name, "not used"],
        );
        assert!(matches!(error, ModelError::UnusedTensors { count: 1, .. }), "{error:?}");
    }
    let error = bent(
        |model| {
            let many = (0..9).map(|number| Tensor::f32(&format!("extra.{number}"), &[4]));
            model.tensors.extend(many);
        },
        &["extra.0, extra.1, extra.2", "9 such tensors"],
    );
    assert!(matches!(error, ModelError::UnusedTensors { count: 9, .. }));
}

#[test]
fn tensors_that_are_known_to_be_of_no_use_are_listed() {
    let names = [
        "lm_head.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.visual.patch_embed.weight",
        "mtp.fc.weight",
    ];
    let directory = tempfile::tempdir().unwrap();
    let mut model = TinyModel::default();
    // The head is a copy of the embedding; a head with its own weights is used.
    let embedding = model
        .tensors
        .iter()
        .find(|tensor| tensor.name == "model.embed_tokens.weight");
    let head = Tensor {
        name: names[0].to_owned(),
        ..embedding.unwrap().clone()
    };
    model.tensors.push(head);
    for name in &names[1..] {
        model.tensors.push(Tensor::f32(name, &[4]));
    }
    model.write(directory.path());
    let mut unused = load(directory.path()).unwrap().info.unused_tensors;
    unused.sort_by_key(|name| names.iter().position(|known| known == name));
    assert_eq!(unused, names);
}

#[test]
fn settings_that_change_the_computation_are_refused_by_name_and_value() {
    for (setting, value, words) in [
        ("num_local_experts", json!(8), vec!["8"]),
        ("num_experts", json!("many"), vec!["many"]),
        ("is_causal", json!(false), vec!["false"]),
        ("use_bidirectional_attention", json!(true), vec!["true"]),
        ("attention_chunk_size", json!(64), vec!["64"]),
        ("attn_logit_softcapping", json!(50.0), vec!["50"]),
        ("final_logit_softcapping", json!(30.0), vec!["30"]),
        ("embedding_multiplier", json!(12.0), vec!["12"]),
        ("logit_scale", json!(0.0625), vec!["0.0625"]),
        (
            "layer_types",
            json!(["sliding_attention"]),
            vec!["layer 0", "sliding_attention"],
        ),
        (
            "layer_types",
            json!(["full_attention", "full_attention"]),
            vec!["2", "1"],
        ),
        ("layer_types", json!("full_attention"), vec!["list"]),
        ("compression_config", json!({"quant_method": "x"}), vec!["quantised"]),
        ("num_nextn_predict_layers", json!(-1), vec!["-1"]),
    ] {
        let words = [&["config.json", setting], words.as_slice()].concat();
        let error = bent(|model| model.config[setting] = value, &words);
        assert!(matches!(error, ModelError::Config { .. }), "{error:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    for (setting, value) in [
        ("num_local_experts", Value::Null),
        ("num_experts", json!(0)),
        ("is_causal", json!(true)),
        ("attn_logit_softcapping", Value::Null),
        ("layer_types", json!(["full_attention"])),
        ("use_bidirectional_attention", json!(false)),
        ("pretraining_tp", json!(1)),
        ("hidden_act", Value::Null),
    ] {
        let mut model = TinyModel::default();
        model.config[setting] = value;
        model.write(directory.path());
        load(directory.path()).unwrap();
    }
}

#[test]
fn two_rotations_that_differ_are_refused() {
    let linear = json!({"rope_type": "linear", "factor": 2.0});
    let twice = |model: &mut TinyModel, older: Value| {
        model.config["rope_parameters"] = linear.clone();
        model.config["rope_scaling"] = older;
    };
    bent(
        |model| twice(model, json!({"rope_type": "linear", "factor": 4.0})),
        &["rope_scaling", "factor", "rope_parameters"],
    );
    bent(
        |model| {
            model.config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 500.0});
            model.config["rope_theta"] = json!(10_000.0);
        },
        &["rope_theta", "10000", "500"],
    );
    bent(
        |model| model.config["rope_scaling"] = json!({"rope_type": "default", "type": "linear", "factor": 2.0}),
        &["rope_scaling.type", "linear", "default"],
    );
    let directory = tempfile::tempdir().unwrap();
    let mut model = TinyModel::default();
    twice(&mut model, json!({"type": "linear", "factor": 2.0}));
    model.write(directory.path());
    load(directory.path()).unwrap();
}

/// A directory of the vectors with another config.json.
fn reconfigured(case: &str, bend: impl FnOnce(&mut Value)) -> riffle_model::ModelConfig {
    let (case, directory) = (crate::testing::vectors().join(case), tempfile::tempdir().unwrap());
    let mut config = serde_json::from_slice(&std::fs::read(case.join("config.json")).unwrap()).unwrap();
    bend(&mut config);
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(
        case.join("model.safetensors"),
        directory.path().join("model.safetensors"),
    )
    .unwrap();
    inspect(directory.path()).unwrap().config
}

#[test]
fn what_config_json_leaves_out_has_the_values_of_the_reference() {
    let without = |config: &mut Value, name: &str| _ = config.as_object_mut().unwrap().remove(name);
    let gemma = reconfigured("gemma2-0", |config| without(config, "attn_logit_softcapping"));
    assert_eq!(gemma.soft_cap, Some(50.0));
    let gemma = reconfigured("gemma2-0", |config| config["attn_logit_softcapping"] = Value::Null);
    assert_eq!(gemma.soft_cap, None);
    let mistral = reconfigured("mistral-0", |config| without(config, "sliding_window"));
    assert_eq!(mistral.windows, [Some(4096); 2]);
    let mistral = reconfigured("mistral-0", |config| config["sliding_window"] = Value::Null);
    assert!(mistral.windows.is_empty());
    // A null activation is the family's own, not another family's.
    reconfigured("gemma2-0", |config| config["hidden_activation"] = Value::Null);
}

#[test]
fn chunks_limit_the_context_and_experts_between_narrower_projections_are_refused() {
    let chunked = reconfigured("experts/llama4_text", |config| {
        config["attention_chunk_size"] = json!(48)
    });
    assert_eq!(chunked.max_position, 48);
    let case = crate::testing::vectors().join("experts/nemotron_h");
    let mut config: Value = serde_json::from_slice(&std::fs::read(case.join("config.json")).unwrap()).unwrap();
    config["moe_latent_size"] = json!(16);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let weights = directory.path().join("model.safetensors");
    std::fs::copy(case.join("model.safetensors"), weights).unwrap();
    crate::testing::refused(directory.path(), &["config.json", "moe_latent_size", "16"]);
}

#[test]
fn sampling_defaults_that_cannot_be_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("generation_config.json");
    TinyModel::default().write(directory.path());
    for (setting, value) in [
        ("temperature", json!(-0.5)),
        ("temperature", json!("hot")),
        ("temperature", json!(1e300)),
        ("top_p", json!(1.5)),
        ("min_p", json!(-0.1)),
        ("top_k", json!(-1)),
        ("top_k", json!(2.5)),
        ("top_k", json!("ten")),
        ("repetition_penalty", json!(0)),
        ("do_sample", json!("no")),
        ("bos_token_id", json!([1, 2])),
        ("bos_token_id", json!(-1)),
        ("eos_token_id", json!([1.5])),
    ] {
        std::fs::write(&path, json!({setting: value}).to_string()).unwrap();
        let error = refused(directory.path(), &["generation_config.json", setting]);
        assert!(matches!(error, ModelError::Config { .. }), "{error:?}");
    }
    let usual = json!({"temperature": 0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.1, "bos_token_id": [1],
        "min_p": null});
    std::fs::write(&path, usual.to_string()).unwrap();
    let defaults = load(directory.path()).unwrap().generation;
    assert_eq!((defaults.temperature, defaults.top_k), (Some(0.0), None));
    assert_eq!((defaults.bos, defaults.min_p), (Some(1), None));
}

/// Every file of a model directory.
#[cfg(unix)]
const FILES: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "model.safetensors",
    "model.safetensors.index.json",
];

/// Replaces `file` of a small model, so that the model is refused.
#[track_caller]
fn replaced(file: &str, words: &[&str], replace: impl FnOnce(&Path)) -> ModelError {
    let directory = tempfile::tempdir().unwrap();
    crate::testing::write_tokenizer(directory.path(), &crate::testing::byte_fallback_tokenizer(), "{}");
    if file.contains("index") {
        std::fs::remove_file(directory.path().join("model.safetensors")).unwrap();
    }
    let path = directory.path().join(file);
    if path.exists() {
        std::fs::remove_file(&path).unwrap();
    }
    replace(&path);
    refused(directory.path(), &[&[file], words].concat())
}

#[cfg(unix)]
#[test]
fn pipes_devices_and_folders_in_place_of_a_models_files_are_refused_at_once() {
    let pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    };
    let device = |path: &Path| std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    let folder = |path: &Path| std::fs::create_dir(path).unwrap();
    for file in FILES {
        for error in [
            replaced(file, &["a pipe"], pipe),
            replaced(file, &["a device"], device),
            replaced(file, &["a folder"], folder),
        ] {
            assert!(matches!(error, ModelError::NotRegular { .. }), "{error:?}");
        }
    }
    // A model in a single file.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    pipe(&path);
    assert!(matches!(
        refused(&path, &["model.gguf", "a pipe"]),
        ModelError::NotRegular { .. }
    ));
    refused(Path::new("/dev/zero"), &["/dev/zero", "a device"]);
}

#[test]
fn text_files_beyond_their_limit_are_refused_with_the_limit() {
    for (file, limit_bytes) in [
        ("config.json", 1 << 20),
        ("generation_config.json", 1 << 20),
        ("tokenizer_config.json", 8 << 20),
        ("tokenizer.json", 128 << 20),
        ("chat_template.jinja", 4 << 20),
        ("model.safetensors.index.json", 16 << 20),
    ] {
        let limit: u64 = limit_bytes;
        let error = replaced(file, &[&limit.to_string(), "limit"], |path| {
            // A file that takes no space on the disk.
            std::fs::File::create(path).unwrap().set_len(limit + 1).unwrap();
        });
        assert!(matches!(error, ModelError::FileTooLarge { .. }), "{error:?}");
    }
}

#[test]
fn numbers_that_no_model_has_are_refused() {
    let rotation = |name: &'static str, value: Value| {
        let mut rotation = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
        rotation[name] = value;
        ("rope_parameters", rotation, name)
    };
    let mut cases = vec![
        rotation("factor", json!(1e30)),
        rotation("factor", json!(1e-30)),
        rotation("attention_factor", json!(1e9)),
        rotation("rope_theta", json!(1e300)),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 1e30}), "factor"),
        (
            "rope_scaling",
            json!({"rope_type": "longrope", "short_factor": [1.0, 1e30], "long_factor": [1.0, 1.0]}),
            "short_factor",
        ),
    ];
    for value in [0.02, 1.0, 7.0, 2_147_483_648.0, 1e300] {
        cases.push(("rms_norm_eps", json!(value), "rms_norm_eps"));
    }
    for value in [0.5, 1.0, 2.0, 1e13, 1e300] {
        cases.push(("rope_theta", json!(value), "rope_theta"));
    }
    for (setting, value, word) in cases {
        let error = bent(|model| model.config[setting] = value.clone(), &["config.json", word]);
        assert!(matches!(error, ModelError::Config { .. }), "{error:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    for (setting, value) in [
        ("rms_norm_eps", json!(1e-12)),
        ("rms_norm_eps", json!(1e-2)),
        ("rope_theta", json!(1e9)),
    ] {
        let mut model = TinyModel::default();
        model.config[setting] = value;
        model.write(directory.path());
        load(directory.path()).unwrap();
    }
}

#[test]
fn json_nested_without_end_is_refused() {
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
    for file in [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
    ] {
        for text in [
            deep("[", "]"),
            deep("{\"a\":", "}"),
            format!("{{\"chat_template\": {}}}", deep("[", "]")),
        ] {
            replaced(file, &[], |path| std::fs::write(path, text).unwrap());
        }
    }
}
