//! Folders with weights that other programs quantised: logits, and refusals.

use std::path::{Path, PathBuf};

use riffle_model::{inspect, load};
use safetensors::SafeTensors;
use serde_json::json;

use crate::testing::{Expected, Tensor, TinyModel, load_model, logits_of, vectors};

fn folder(case: &str) -> PathBuf {
    vectors().join("folders").join(case)
}

/// Case and method. In these texts no activation lies between two steps of 8 bits.
const CASES: [(&str, &str); 13] = [
    ("fp8-block", "fp8"),
    ("fp8-channel", "compressed-tensors"),
    ("fp8-tensor", "modelopt"),
    ("gptq-v2", "gptq"),
    ("packed", "compressed-tensors"),
    ("packed-order", "compressed-tensors"),
    ("int8", "compressed-tensors"),
    ("gptq", "gptq"),
    ("awq", "awq"),
    ("nvfp4", "compressed-tensors"),
    ("nvfp4-modelopt", "modelopt"),
    ("mxfp4", "compressed-tensors"),
    ("mlx", "mlx"),
];

#[test]
fn logits_are_those_of_the_weights_that_the_files_stand_for() {
    for (case, _) in CASES {
        let model = load_model(folder(case));
        let expected = Expected::read(&folder(case).join("expected.safetensors"));
        let whole = logits_of(&model, &expected.tokens, expected.tokens.len());
        let rows = expected.row_differences(&whole);
        let near = rows.iter().filter(|difference| **difference <= 1e-5).count();
        println!(
            "{case}: {near} of {} rows, at most {:e}",
            rows.len(),
            rows.iter().fold(0.0, |a, b| f64::max(a, *b))
        );
        assert_eq!(near, rows.len(), "{case}: {rows:?}");
        for batch_tokens in [1, 7] {
            assert!(
                logits_of(&model, &expected.tokens, batch_tokens) == whole,
                "{case}: batches of {batch_tokens}"
            );
        }
    }
}

#[test]
fn memory_is_planned_as_it_is_taken_and_the_method_is_named() {
    for (case, method) in CASES {
        let info = inspect(folder(case)).unwrap();
        assert_eq!(info.config.quantised, Some(method), "{case}");
        assert!(info.config.host_only.is_some(), "{case}");
        let planned = info.config.weight_bytes;
        let loaded = load(folder(case)).unwrap();
        let taken = loaded.info.config.weight_bytes;
        // Rows are padded to 16, and vectors are held as f32.
        assert!(
            taken >= planned && taken <= planned * 5 / 4,
            "{case}: {planned} planned, {taken} taken"
        );
        assert!(
            loaded.info.unused_tensors.is_empty(),
            "{case}: {:?}",
            loaded.info.unused_tensors
        );
    }
}

/// A copy of a folder with a changed config.json.
fn bent(case: &str, bend: impl FnOnce(&mut serde_json::Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder(case)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = copy.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    bend(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
    copy
}

fn refusal(path: &Path) -> String {
    match inspect(path).and_then(|_| load(path).map(|_| ())) {
        Err(error) => error.to_string(),
        Ok(()) => panic!("{} loads", path.display()),
    }
}

#[test]
fn what_is_not_computed_is_refused_by_name_in_one_line() {
    let settings = |value: serde_json::Value| bent("awq", |config| config["quantization_config"] = value);
    for (value, words) in [
        (
            json!({"quant_method": "bitsandbytes", "load_in_4bit": true}),
            ["bitsandbytes", "GGUF file"],
        ),
        (json!({"quant_method": "hqq"}), ["hqq", "GGUF file"]),
        (json!({"quant_method": "torchao"}), ["torchao", "GGUF file"]),
        (
            json!({"quant_method": "awq", "bits": 4, "version": "gemv"}),
            ["version", "gemv"],
        ),
        (json!({"quant_method": "awq", "bits": 3}), ["bits", "AWQ with 3 bits"]),
        (
            json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}),
            ["checkpoint_format", "marlin"],
        ),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), ["fmt", "e5m2"]),
        (
            json!({"quant_method": "compressed-tensors", "format": "marlin-24"}),
            ["format", "marlin-24"],
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "dense", "sparsity_config": {"format": "sparse-24-bitmask"}}),
            ["sparsity_config", "sparse-24-bitmask"],
        ),
        (
            json!({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": {}}}}),
            ["transform_config", "rotation"],
        ),
        (
            json!({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}),
            ["quant_algo", "W4A8_AWQ"],
        ),
        (json!({"bits": 4, "group_size": 32, "mode": "mxfp8"}), ["mode", "mxfp8"]),
        (
            json!({"load_in_8bit": true}),
            ["quantization_config", "names no quant_method"],
        ),
    ] {
        let copy = settings(value);
        let message = refusal(copy.path());
        assert!(
            words.iter().all(|word| message.contains(word)) && !message.contains('\n'),
            "{message}"
        );
    }
}

/// A safetensors file with a changed header.
fn bend_header(folder: &Path, bend: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) {
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    bend(header.as_object_mut().unwrap());
    let header = header.to_string();
    let bent = [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &bytes[8 + length..],
    ]
    .concat();
    std::fs::write(path, bent).unwrap();
}

#[test]
fn parts_that_are_missing_or_of_another_shape_are_named() {
    const Q: &str = "model.layers.0.self_attn.q_proj";
    // Case, tensor, its new name or shape, and the names in the message.
    let renamed = |case: &str, part: &str, words: &[&str]| {
        let copy = bent(case, |_| ());
        bend_header(copy.path(), |header| {
            let tensor = header.remove(&format!("{Q}.{part}")).unwrap();
            header.insert("elsewhere".to_owned(), tensor);
        });
        let message = refusal(copy.path());
        assert!(
            words.iter().all(|word| message.contains(word)) && !message.contains('\n'),
            "{case} {part}: {message}"
        );
    };
    let missing = |case: &str, part: &str| renamed(case, part, &[&format!("{Q}.{part}"), "is missing"]);
    missing("fp8-tensor", "weight_scale");
    missing("packed-order", "weight_scale");
    missing("packed-order", "weight_shape");
    missing("nvfp4", "weight_global_scale");
    missing("gptq", "qzeros");
    missing("gptq", "scales");
    missing("awq", "qzeros");
    missing("mlx", "scales");
    missing("mlx", "biases");
    // A renamed tensor is unused if the settings do not need it.
    renamed("gptq", "g_idx", &["elsewhere", "not used"]);
    renamed("packed-order", "weight_zero_point", &["elsewhere", "not used"]);

    for (case, part) in [
        ("fp8-channel", "weight_scale"),
        ("packed-order", "weight_scale"),
        ("packed-order", "weight_zero_point"),
        ("packed-order", "weight_g_idx"),
        ("int8", "weight_scale"),
        ("gptq", "scales"),
        ("gptq", "qzeros"),
        ("gptq", "g_idx"),
        ("awq", "scales"),
        ("awq", "qzeros"),
        ("nvfp4", "weight_scale"),
        ("mxfp4", "weight_scale"),
        ("mlx", "scales"),
        ("mlx", "biases"),
    ] {
        let copy = bent(case, |_| ());
        bend_header(copy.path(), |header| {
            let shape = header[&format!("{Q}.{part}")]["shape"].as_array_mut().unwrap();
            let count: u64 = shape.iter().map(|size| size.as_u64().unwrap()).product();
            *shape = vec![json!(count), json!(1), json!(1)];
        });
        let message = refusal(copy.path());
        let words = [&format!("{Q}.{part}")[..], "has shape"];
        assert!(
            words.iter().all(|word| message.contains(word)) && !message.contains('\n'),
            "{case} {part}: {message}"
        );
    }
}

#[test]
fn scales_and_floats_that_are_no_numbers_are_refused() {
    const Q: &str = "model.layers.0.self_attn.q_proj";
    for (case, part, bytes) in [
        ("fp8-tensor", "weight", &[0x7f][..]),
        ("fp8-tensor", "weight_scale", &[0, 0, 0xc0, 0x7f]),
        ("gptq", "scales", &[0, 0x7c]),
        ("nvfp4", "weight_scale", &[0x7f]),
        ("nvfp4", "weight_scale", &[0x90]),
        ("nvfp4", "weight_global_scale", &[0, 0, 0, 0]),
        ("mxfp4", "weight_scale", &[0xff]),
    ] {
        let copy = bent(case, |_| ());
        let path = copy.path().join("model.safetensors");
        let mut file = std::fs::read(&path).unwrap();
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
        let start = header[&format!("{Q}.{part}")]["data_offsets"][0].as_u64().unwrap() as usize;
        file[8 + length + start..][..bytes.len()].copy_from_slice(bytes);
        std::fs::write(&path, file).unwrap();
        let message = refusal(copy.path());
        assert!(
            message.contains(&format!("{Q}.{part} holds")) && !message.contains('\n'),
            "{case} {part}: {message}"
        );
    }
}

/// The three tensors of a matrix as MLX quantises it, in groups of 32 columns with 4 bits.
fn mlx_parts(name: &str, rows: usize, columns: usize) -> [Tensor; 3] {
    let halves = |part: &str, first: u16| Tensor {
        name: format!("{name}.{part}"),
        dtype: "F16",
        shape: vec![rows, columns / 32],
        data: (0..rows * columns / 32)
            .flat_map(|at| (first + 7 * at as u16).to_le_bytes())
            .collect(),
    };
    let words = (0..rows * columns / 8).map(|at| (at + name.len()).wrapping_mul(0x9E37_79B9) as u32);
    [
        Tensor {
            name: format!("{name}.weight"),
            dtype: "U32",
            shape: vec![rows, columns / 8],
            data: words.flat_map(u32::to_le_bytes).collect(),
        },
        halves("scales", 0x2400),
        halves("biases", 0xA800),
    ]
}

/// Tensors of experts, in order, joined into one.
fn stacked(name: &str, tensors: &[&Tensor]) -> Tensor {
    Tensor {
        name: name.to_owned(),
        dtype: tensors[0].dtype,
        shape: [&[tensors.len()], &tensors[0].shape[..]].concat(),
        data: tensors.iter().flat_map(|tensor| tensor.data.clone()).collect(),
    }
}

/// The two tensors of a matrix in 8-bit floats with scales for blocks of 4 rows and 16 columns.
fn float8_parts(name: &str, rows: usize, columns: usize) -> [Tensor; 2] {
    let codes = (0..rows * columns).map(|at| ((at * 37 + name.len() * rows) % 251) as u8 & 0xb7);
    let scales = (0..rows / 4 * columns.div_ceil(16)).map(|at| (1 + at % 5) as f32 / 64.0);
    [
        Tensor {
            name: format!("{name}.weight"),
            dtype: "F8_E4M3",
            shape: vec![rows, columns],
            data: codes.collect(),
        },
        Tensor {
            name: format!("{name}.weight_scale_inv"),
            dtype: "F32",
            shape: vec![rows / 4, columns.div_ceil(16)],
            data: scales.flat_map(f32::to_le_bytes).collect(),
        },
    ]
}

/// A mixture with separate tensors for each expert, and its tokens.
fn mixture(quantised: impl Fn(&str, [usize; 2]) -> Vec<Tensor>) -> (serde_json::Value, Vec<Tensor>, Vec<u32>) {
    let case = vectors().join("experts/qwen3_moe");
    let config = serde_json::from_slice(&std::fs::read(case.join("config.json")).unwrap()).unwrap();
    let bytes = std::fs::read(case.join("model.safetensors")).unwrap();
    let mut tensors = Vec::new();
    for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        match name.strip_suffix(".weight").filter(|name| name.contains(".experts.")) {
            Some(module) => tensors.extend(quantised(module, [view.shape()[0], view.shape()[1]])),
            None => tensors.push(Tensor::stored(&name, &view)),
        }
    }
    (
        config,
        tensors,
        Expected::read(&case.join("expected.safetensors")).tokens,
    )
}

/// The layer, the part, and this part of all experts in order.
type OfExperts<'a> = (String, String, Vec<&'a Tensor>);

/// The tensors of each expert part by layer and part, in order, and all other tensors.
fn by_part(tensors: &[Tensor]) -> (Vec<OfExperts<'_>>, Vec<Tensor>) {
    let (mut experts, mut others): (std::collections::BTreeMap<_, Vec<_>>, _) = Default::default();
    for tensor in tensors {
        let Some((layer, rest)) = tensor.name.split_once(".experts.") else {
            Vec::push(&mut others, tensor.clone());
            continue;
        };
        let (number, part) = rest.split_once('.').unwrap();
        let own = experts.entry((layer.to_owned(), part.to_owned())).or_default();
        own.push((number.parse::<usize>().unwrap(), tensor));
    }
    let in_order = experts.into_iter().map(|((layer, part), mut own)| {
        own.sort_by_key(|(number, _)| *number);
        (layer, part, own.into_iter().map(|(_, tensor)| tensor).collect())
    });
    (in_order.collect(), others)
}

fn logits(config: &serde_json::Value, tensors: Vec<Tensor>, tokens: &[u32]) -> Vec<f32> {
    let directory = tempfile::tempdir().unwrap();
    let config = config.clone();
    TinyModel { config, tensors }.write(directory.path());
    logits_of(&load_model(directory.path()), tokens, tokens.len())
}

#[test]
fn experts_that_mlx_keeps_in_one_tensor_compute_as_those_with_tensors_of_their_own() {
    let (mut config, single, tokens) = mixture(|name, [rows, columns]| {
        if name.ends_with("down_proj") {
            // Rows of this part are too short for a group.
            vec![Tensor::f32(&format!("{name}.weight"), &[rows, columns])]
        } else {
            mlx_parts(name, rows, columns).to_vec()
        }
    });
    config["quantization"] = json!({"group_size": 32, "bits": 4});
    let (experts, mut together) = by_part(&single);
    for (layer, part, own) in experts {
        together.push(stacked(&format!("{layer}.switch_mlp.{part}"), &own));
    }
    let expected = logits(&config, single, &tokens);
    assert!(logits(&config, together, &tokens) == expected && expected.iter().all(|logit| logit.is_finite()));
}

#[test]
fn floats_of_eight_bits_in_one_tensor_compute_as_those_of_single_experts() {
    let parts = |name: &str, [rows, columns]: [usize; 2]| float8_parts(name, rows, columns).to_vec();
    let (mut config, single, tokens) = mixture(parts);
    config["quantization_config"] =
        json!({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [4, 16]});
    let (experts, mut together) = by_part(&single);
    let find = |layer: &str, part: &str| {
        let found = experts.iter().find(|(of, name, _)| of == layer && name == part);
        found.unwrap().2.clone()
    };
    for (layer, part, own) in &experts {
        let base = format!("{layer}.experts");
        let Some(end) = part.strip_prefix("down_proj.weight") else {
            continue;
        };
        together.push(stacked(&format!("{base}.down_proj{end}"), own));
        let both = [
            find(layer, &format!("gate_proj.weight{end}")),
            find(layer, &format!("up_proj.weight{end}")),
        ];
        let joined = both[0].iter().zip(&both[1]).map(|(gate, up)| Tensor {
            shape: vec![2 * gate.shape[0], gate.shape[1]],
            data: [&gate.data[..], &up.data].concat(),
            ..(*gate).clone()
        });
        let joined: Vec<Tensor> = joined.collect();
        together.push(stacked(
            &format!("{base}.gate_up_proj{end}"),
            &joined.iter().collect::<Vec<_>>(),
        ));
    }
    let expected = logits(&config, single, &tokens);
    assert!(logits(&config, together.clone(), &tokens) == expected && expected.iter().all(|logit| logit.is_finite()));

    // A block of scales that would cover rows of two experts.
    config["quantization_config"]["weight_block_size"] = json!([16, 16]);
    let directory = tempfile::tempdir().unwrap();
    let tensors = together;
    TinyModel { config, tensors }.write(directory.path());
    let line = refusal(directory.path());
    assert!(
        line.contains("experts.") && line.contains("shape") && !line.contains('\n'),
        "{line}"
    );
}
