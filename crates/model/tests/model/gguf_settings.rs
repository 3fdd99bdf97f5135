//! The metadata of a GGUF file is used or refused, never skipped.

use crate::testing::gguf::{Pair, file_with, flag, float, metadata, number, refused, tensors, text, write};
use crate::testing::{gguf_file, gguf_string, load_model, logits_of, vectors};
use riffle_model::{ModelError, inspect, load};

#[track_caller]
fn loads(pair: Pair) {
    let (_folder, path) = write(&file_with(std::slice::from_ref(&pair)));
    if let Err(error) = load(&path) {
        panic!("{}: {error}", pair.0);
    }
}

#[test]
fn metadata_of_the_wrong_type_or_value_is_refused_by_file_key_and_value() {
    for (pair, found) in [
        (float("llama.rope.freq_base", f32::NAN), "NaN"),
        (float("llama.rope.freq_base", f32::INFINITY), "inf"),
        (float("llama.rope.freq_base", -10_000.0), "-10000"),
        (float("llama.rope.freq_base", 0.0), "found 0"),
        (float("llama.attention.layer_norm_rms_epsilon", f32::NAN), "NaN"),
        (float("llama.attention.layer_norm_rms_epsilon", -1.0), "-1"),
        (text("llama.attention.layer_norm_rms_epsilon", "small"), "small"),
        (text("llama.rope.dimension_count", "four"), "four"),
        (number("llama.rope.dimension_count", 0), "found 0"),
        (number("llama.rope.scaling.type", 3), "3"),
        (flag("llama.rope.scaling.factor", true), "true"),
        (float("llama.rope.scaling.factor", f32::NAN), "NaN"),
        (float("llama.block_count", 1.5), "1.5"),
        (text("llama.attention.sliding_window", "wide"), "wide"),
        (text("split.count", "two"), "two"),
        (text("tokenizer.ggml.eos_token_id", "</s>"), "</s>"),
        (float("tokenizer.ggml.bos_token_id", 1.5), "1.5"),
    ] {
        let error = refused(&file_with(std::slice::from_ref(&pair)), &["model.gguf", &pair.0, found]);
        assert!(matches!(error, ModelError::Config { .. }), "{error:?}");
    }
    for (pair, found) in [
        (float("llama.rope.freq_base", 1.0), "to 1000000000000, found 1"),
        (float("llama.rope.freq_base", 1e30), "to 1000000000000, found 1"),
        (
            float("llama.attention.layer_norm_rms_epsilon", 1.0),
            "at most 0.01, found 1",
        ),
    ] {
        refused(&file_with(std::slice::from_ref(&pair)), &["model.gguf", found]);
    }
    for (key, value) in [
        ("llama.embedding_length", f64::NAN),
        ("llama.attention.head_count_kv", -2.0),
        ("llama.context_length", 0.0),
        ("llama.feed_forward_length", f64::INFINITY),
    ] {
        refused(&file_with(&[(key.into(), 12, value.to_le_bytes().to_vec())]), &[key]);
    }
}

#[test]
fn errors_about_sizes_name_the_keys_of_the_file() {
    refused(
        &file_with(&[number("llama.attention.head_count_kv", 3)]),
        &["llama.attention.head_count_kv", "3 heads"],
    );
    refused(
        &file_with(&[number("llama.attention.key_length", 5)]),
        &["llama.attention.key_length", "5"],
    );
}

#[test]
fn metadata_that_changes_the_computation_is_used_or_refused() {
    for pair in [
        number("llama.expert_count", 8),
        float("llama.attn_logit_softcapping", 30.0),
        float("llama.final_logit_softcapping", 30.0),
        float("llama.attention.scale", 0.3),
        float("llama.attention.clamp_kqv", 8.0),
        float("llama.attention.temperature_scale", 0.1),
        flag("llama.attention.causal", false),
        number("llama.attention.sliding_window", 16),
        number("llama.attention.key_length_swa", 2),
        float("llama.logit_scale", 0.5),
        text("llama.hidden_activation", "mish"),
        float("llama.rope.scaling.attn_factor", 2.0),
        float("llama.rope.scaling.yarn_ext_factor", 0.5),
        float("llama.rope.scaling.yarn_log_multiplier", 0.1),
        float("llama.rope.global.freq_base", 1e6),
        number("llama.full_attention_interval", 4),
        number("llama.nextn_predict_layers", 1),
    ] {
        // An activation is named by its setting in config.json.
        let name = match pair.0.as_str() {
            "llama.hidden_activation" => "hidden_act",
            key => key,
        };
        refused(&file_with(std::slice::from_ref(&pair)), &["model.gguf", name]);
    }
    refused(
        &file_with(&[text("general.type", "mmproj")]),
        &["general.type", "mmproj"],
    );
    for pair in [
        number("llama.expert_count", 0),
        float("llama.attention.scale", 0.5),
        float("llama.attention.scale", 0.0),
        flag("llama.attention.causal", true),
        number("llama.attention.sliding_window", 0),
        number("llama.attention.sliding_window", 128),
        text("llama.hidden_activation", "silu"),
        text("llama.tensor_data_layout", "Meta AI original pth"),
        number("llama.vision.block_count", 24),
        number("llama.rope.dimension_count", 4),
        text("llama.rope.scaling.type", "none"),
        text("general.type", "model"),
        (
            "general.anything".into(),
            9,
            [&8u32.to_le_bytes()[..], &1u64.to_le_bytes(), &gguf_string("x")].concat(),
        ),
    ] {
        loads(pair);
    }
}

#[test]
fn another_limit_of_the_activation_of_gpt_oss_is_refused_by_its_key() {
    // Files of this architecture omit the limit, which is 7.
    let pairs = [
        text("general.architecture", "gpt-oss"),
        float("gpt-oss.swiglu_clamp_exp", 5.0),
    ];
    refused(&gguf_file(3, &pairs, &[]), &["gpt-oss.swiglu_clamp_exp", "5"]);
}

#[test]
fn a_factor_of_positions_without_a_type_divides_every_angle() {
    let logits = |pairs: &[Pair]| {
        let (_folder, path) = write(&file_with(pairs));
        logits_of(&load_model(&path), &[1, 2, 3, 4, 5], 5)
    };
    let plain = logits(&[]);
    let factor = float("llama.rope.scaling.factor", 4.0);
    let linear = logits(&[factor.clone(), text("llama.rope.scaling.type", "linear")]);
    assert_ne!(plain, linear);
    assert_eq!(logits(std::slice::from_ref(&factor)), linear);
    assert_eq!(logits(&[float("llama.rope.scale_linear", 4.0)]), linear);
    assert_eq!(logits(&[factor, text("llama.rope.scaling.type", "none")]), plain);
    assert_eq!(logits(&[float("llama.rope.scaling.factor", 0.0)]), plain);
    assert_ne!(logits(&[number("llama.rope.dimension_count", 2)]), plain);
}

#[test]
fn one_of_two_sets_of_rotation_factors_is_refused() {
    let mut tensors = tensors();
    tensors.push(("rope_factors_long.weight".into(), vec![2], 0, vec![0x3f; 8]));
    refused(
        &gguf_file(3, &metadata(), &tensors),
        &["rope.scaling.type", "rope_factors_long"],
    );
}

#[test]
fn more_layers_than_the_settings_name_are_refused() {
    let mut tensors = tensors();
    let second: Vec<_> = tensors
        .iter()
        .filter(|(name, ..)| name.starts_with("blk.0."))
        .map(|(name, dimensions, kind, bytes)| {
            (
                name.replace("blk.0.", "blk.1."),
                dimensions.clone(),
                *kind,
                bytes.clone(),
            )
        })
        .collect();
    tensors.extend(second);
    let file = gguf_file(3, &metadata(), &tensors);
    refused(&file, &["llama.block_count", "is 1", "model.layers.1."]);
    let (_folder, path) = write(&file);
    assert!(inspect(&path).is_err());
    let mut both = metadata();
    both[2] = number("llama.block_count", 2);
    let (_folder, path) = write(&gguf_file(3, &both, &tensors));
    load(&path).unwrap();
}

#[test]
fn tensors_without_a_use_are_refused_by_name_but_for_those_of_pictures_and_buffers() {
    let with = |name: &str| {
        let mut tensors = tensors();
        tensors.push((name.into(), vec![8], 0, vec![0; 32]));
        gguf_file(3, &metadata(), &tensors)
    };
    for name in [
        "blk.0.attn_sinks.weight",
        "blk.0.attn_k.bias",
        "blk.0.attn_q.scale",
        "cls.output.weight",
    ] {
        let error = refused(&with(name), &["model.gguf", "not used"]);
        assert!(matches!(error, ModelError::UnusedTensors { count: 1, .. }), "{error:?}");
    }
    for name in [
        "v.blk.0.attn_q.weight",
        "mm.input_projection.weight",
        "blk.0.attn_rot_embd.weight",
    ] {
        let (_folder, path) = write(&with(name));
        assert_eq!(load(&path).unwrap().info.unused_tensors, [name]);
    }
}

#[test]
fn a_window_of_zero_means_none() {
    let file = crate::testing::vectors().join("gguf/gemma2-0.gguf");
    let bytes = std::fs::read(&file).unwrap();
    let key = b"gemma2.attention.sliding_window\x04\0\0\0";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    let mut bent = bytes.clone();
    bent[at..at + 4].copy_from_slice(&0u32.to_le_bytes());
    let (_folder, path) = write(&bent);
    assert_eq!(inspect(&path).unwrap().config.windows, [None, None]);
    assert_eq!(inspect(&file).unwrap().config.windows, [Some(33), None]);
}

#[test]
fn a_rotation_whose_factors_are_missing_names_their_tensors() {
    let pair = text("llama.rope.scaling.type", "longrope");
    refused(
        &file_with(std::slice::from_ref(&pair)),
        &["model.gguf", "rope_factors_short and rope_factors_long are missing"],
    );
}

#[test]
fn a_missing_key_that_no_tensor_replaces_is_refused_by_name() {
    for (file, key) in [
        ("gemma3n_text", "gemma3n.activation_sparsity_scale"),
        ("gemma3n_text", "gemma3n.attention.shared_kv_layers"),
        ("kimi_linear-experts", "kimi-linear.kda.head_dim"),
        ("qwen4_exp_text", "qwen4exp.hyper_connection.count"),
        ("qwen4_exp_text", "qwen4exp.attention.compress_ratios"),
        ("qwen4_exp_text", "qwen4exp.ple.head_offsets"),
    ] {
        let mut bytes = std::fs::read(vectors().join("gguf").join(format!("{file}.gguf"))).unwrap();
        let at = bytes
            .windows(key.len())
            .position(|found| found == key.as_bytes())
            .unwrap();
        // A key of another architecture has no effect.
        bytes[at] = b'_';
        refused(&bytes, &[key, "is missing"]);
    }
}

#[test]
fn a_file_of_minicpm_has_the_logits_of_granite_with_its_factors() {
    let logits = |architecture: &str, factors: &[(&str, f32)]| {
        let own = metadata().into_iter().map(|(key, kind, value)| match key.as_str() {
            "general.architecture" => text(&key, architecture),
            _ => (key.replace("llama.", &format!("{architecture}.")), kind, value),
        });
        let factors = factors
            .iter()
            .map(|(key, factor)| float(&format!("{architecture}.{key}"), *factor));
        let (_folder, path) = write(&gguf_file(3, &own.chain(factors).collect::<Vec<_>>(), &tensors()));
        logits_of(&load_model(path), &[1, 2, 3, 4], 4)
    };
    // One layer of hidden size 16, and heads of 4.
    let attention = ("attention.scale", 0.5);
    let given = [("embedding_scale", 5.0), ("residual_scale", 0.25), ("logit_scale", 4.0)];
    assert_eq!(
        logits("minicpm", &given),
        logits("granite", &[&given[..], &[attention]].concat())
    );
    // The first models' files name no factors.
    let first = [
        ("embedding_scale", 12.0),
        ("residual_scale", 1.4),
        ("logit_scale", 0.0625),
    ];
    let [first, granite] = [
        logits("minicpm", &[]),
        logits("granite", &[&first[..], &[attention]].concat()),
    ];
    assert!(
        first
            .iter()
            .zip(&granite)
            .all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1.0)),
        "{first:?} {granite:?}"
    );
}
