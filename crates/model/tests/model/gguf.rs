//! GGUF files that are damaged, hostile, or of an unsupported kind.

use crate::testing::gguf::{Pair, Tensor, metadata, number, refused, refused_file, tensors, text, write};
use crate::testing::{gguf_file, logits_of};
use std::sync::Arc;

use riffle_model::{ModelError, inspect, load};

#[test]
fn the_unbent_file_loads() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, gguf_file(3, &metadata(), &tensors())).unwrap();
    let info = inspect(&path).unwrap();
    assert_eq!(
        (info.format, info.config.head_dim, info.config.vocab_size),
        ("gguf", 4, 320)
    );
    assert!(load(&path).unwrap().info.unused_tensors.is_empty());
    std::fs::write(&path, gguf_file(2, &metadata(), &tensors())).unwrap();
    load(&path).unwrap();
}

#[test]
fn the_scale_of_a_whole_tensor_multiplies_its_weights() {
    let halved = |scaled: bool| {
        let mut all = tensors();
        for part in ["attn_q", "attn_output", "ffn_down"] {
            let name = format!("blk.0.{part}.weight");
            let weights = all.iter_mut().find(|(found, ..)| *found == name).unwrap();
            if scaled {
                all.push((format!("blk.0.{part}.scale"), vec![1], 0, 0.5f32.to_le_bytes().to_vec()));
                all.push((
                    format!("blk.0.{part}.input_scale"),
                    vec![1],
                    0,
                    3f32.to_le_bytes().to_vec(),
                ));
            } else {
                let halves = weights
                    .3
                    .as_chunks()
                    .0
                    .iter()
                    .flat_map(|weight| (0.5 * f32::from_le_bytes(*weight)).to_le_bytes());
                weights.3 = halves.collect();
            }
        }
        let (_folder, path) = write(&gguf_file(3, &metadata(), &all));
        let loaded = load(&path).unwrap();
        assert_eq!(loaded.info.config.host_only.is_some(), scaled);
        assert!(loaded.info.unused_tensors.is_empty());
        logits_of(&Arc::new(loaded.model), &[1, 7, 300, 5], 4)
    };
    assert_eq!(halved(true), halved(false));
}

#[test]
fn truncated_files_are_refused_wherever_they_end() {
    let valid = gguf_file(3, &metadata(), &tensors());
    for length in [0, 1, 3] {
        assert!(matches!(
            refused(&valid[..length], &["not a GGUF"]),
            ModelError::NotAModel { .. }
        ));
    }
    let header_ends = 900;
    for length in (4..header_ends).step_by(13).chain([valid.len() - 1]) {
        assert!(matches!(
            refused(&valid[..length], &["model.gguf"]),
            ModelError::CorruptWeights { .. }
        ));
    }
}

#[test]
fn hostile_headers_are_refused_without_taking_their_word() {
    let valid = gguf_file(3, &metadata(), &tensors());
    let bent = |at: usize, bytes: &[u8]| {
        let mut file = valid.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    refused(&bent(4, &1u32.to_le_bytes()), &["version 1", "2 and 3"]);
    refused(&bent(4, &3u32.to_be_bytes()), &["version", "little endian"]);
    refused(
        &bent(8, &u64::MAX.to_le_bytes()),
        &["18446744073709551615", "bytes follow"],
    );
    refused(
        &bent(16, &(1u64 << 40).to_le_bytes()),
        &["1099511627776", "bytes follow"],
    );
    // The first key's length.
    refused(
        &bent(24, &(1u64 << 50).to_le_bytes()),
        &["1125899906842624", "bytes follow"],
    );
    refused(&bent(32, &[0xff]), &["UTF-8"]);
}

#[test]
fn metadata_that_contradicts_itself_is_refused() {
    let list = |kind: u32, count: u64, items: &[u8]| [&kind.to_le_bytes()[..], &count.to_le_bytes(), items].concat();
    let with = |pair: Pair| gguf_file(3, &[metadata(), vec![pair]].concat(), &tensors());
    refused(
        &with(("x".into(), 9, list(4, 1 << 33, &[]))),
        &["metadata x", "bytes follow"],
    );
    refused(
        &with(("x".into(), 9, list(9, 1, &list(9, 1, &list(4, 0, &[]))))),
        &["metadata x", "nested"],
    );
    refused(&with(("x".into(), 99, vec![])), &["metadata x", "99"]);
    refused(&with(number("llama.block_count", 1)), &["llama.block_count", "twice"]);
    refused(&with(("x".into(), 7, vec![2])), &["metadata x", "neither true"]);
    refused(&with(number("general.alignment", 3)), &["general.alignment"]);
    refused(&with(number("general.alignment", 0)), &["general.alignment"]);
}

#[test]
fn tensors_whose_shapes_or_types_contradict_the_file_are_refused() {
    let with = |bend: fn(&mut Vec<Tensor>)| {
        let mut tensors = tensors();
        bend(&mut tensors);
        gguf_file(3, &metadata(), &tensors)
    };
    refused(
        &with(|tensors| tensors[2].1 = vec![0, 16]),
        &["blk.0.attn_q.weight", "zero"],
    );
    refused(
        &with(|tensors| tensors[2].1 = vec![1 << 40, 1 << 40]),
        &["blk.0.attn_q.weight", "impossible"],
    );
    refused(
        &with(|tensors| tensors[2].1 = vec![1 << 30, 1 << 10]),
        &["blk.0.attn_q.weight", "beyond the end"],
    );
    refused(
        &with(|tensors| tensors[2].1 = vec![2; 5]),
        &["blk.0.attn_q.weight", "5 dimensions"],
    );
    refused(
        &with(|tensors| tensors[2].1 = vec![]),
        &["blk.0.attn_q.weight", "0 dimensions"],
    );
    refused(&with(|tensors| tensors[2].2 = 77), &["blk.0.attn_q.weight", "77"]);
    refused(
        &with(|tensors| tensors[2].2 = 2),
        &["blk.0.attn_q.weight", "impossible", "q4_0"],
    );
    refused(
        &with(|tensors| tensors[2].1 = vec![16, 24]),
        &["blk.0.attn_q.weight", "overlap"],
    );
    let error = refused(
        &with(|tensors| tensors[3].0 = "blk.0.attn_q.weight".into()),
        &["self_attn.q_proj", "twice"],
    );
    assert!(matches!(error, ModelError::DuplicateTensor { .. }));
}

#[test]
fn what_cannot_be_computed_is_named() {
    let with = |pair: Pair| {
        let mut metadata = metadata();
        metadata.retain(|(key, ..)| *key != pair.0);
        metadata.push(pair);
        gguf_file(3, &metadata, &tensors())
    };
    let error = refused(&with(text("general.architecture", "mamba")), &["mamba", "qwen3"]);
    assert!(matches!(error, ModelError::UnknownArchitecture { .. }));
    refused(&with(number("general.architecture", 1)), &["general.architecture"]);
    refused(&with(number("llama.attention.head_count", 0)), &["head_count"]);
    refused(
        &with(number("llama.attention.head_count", 5)),
        &["head_count", "5 heads"],
    );
    refused(
        &with(text("llama.embedding_length", "wide")),
        &["llama.embedding_length", "wide"],
    );
    refused(&with(number("llama.attention.value_length", 8)), &["value_length"]);
    refused(&with(text("llama.rope.scaling.type", "spiral")), &["spiral"]);
    let mut missing = metadata();
    missing.retain(|(key, ..)| key != "llama.block_count");
    refused(&gguf_file(3, &missing, &tensors()), &["num_hidden_layers", "missing"]);

    let mut quantised = tensors();
    quantised[8] = ("blk.0.ffn_up.weight".into(), vec![32, 12], 2, vec![0; 12 * 18]);
    let error = refused(&gguf_file(3, &metadata(), &quantised), &["up_proj"]);
    assert!(matches!(error, ModelError::WrongShape { .. }));
    // A type that headers may have but that has no kernel.
    let mut codebook = tensors();
    let floats = |count: usize| vec![0; 4 * count];
    codebook[7] = ("blk.0.ffn_gate.weight".into(), vec![16, 32], 0, floats(512));
    codebook[8] = ("blk.0.ffn_up.weight".into(), vec![16, 32], 0, floats(512));
    codebook[9] = ("blk.0.ffn_down.weight".into(), vec![32, 16], 9, vec![0; 16 * 36]);
    let mut metadata_of_32 = metadata();
    metadata_of_32[3] = number("llama.feed_forward_length", 32);
    let error = refused(
        &gguf_file(3, &metadata_of_32, &codebook),
        &["down_proj", "Q8_1", "bf16"],
    );
    assert!(matches!(error, ModelError::WrongType { .. }));

    // Types that GGUF no longer has, and one that does not exist yet.
    for (number, words) in [(4, "Q4_2"), (33, "Q4_0_8_8"), (36, "IQ4_NL_4_4"), (97, "97")] {
        let mut other = tensors();
        other[8].2 = number;
        let error = refused(&gguf_file(3, &metadata(), &other), &["blk.0.ffn_up.weight", words]);
        assert!(matches!(error, ModelError::UnknownType { .. }));
    }

    let mut not_a_number = tensors();
    not_a_number[2].3[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = refused(&gguf_file(3, &metadata(), &not_a_number), &["q_proj", "NaN"]);
    assert!(matches!(error, ModelError::NotFinite { .. }));
}

#[test]
fn missing_shards_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let split = |count: u16| ("split.count".to_owned(), 2, count.to_le_bytes().to_vec());
    let first = directory.path().join("m-00001-of-00002.gguf");
    let second = directory.path().join("m-00002-of-00002.gguf");
    let tensors = tensors();
    std::fs::write(
        &first,
        gguf_file(3, &[metadata(), vec![split(2)]].concat(), &tensors[..4]),
    )
    .unwrap();
    assert!(matches!(
        refused_file(&first, &["m-00002-of-00002.gguf", "missing"]),
        ModelError::MissingFile { .. }
    ));
    std::fs::write(&second, gguf_file(3, &[split(2)], &tensors[4..])).unwrap();
    load(&first).unwrap();
    let renamed = directory.path().join("renamed.gguf");
    std::fs::copy(&first, &renamed).unwrap();
    refused_file(&renamed, &["00001-of-00002", "first shard"]);
}

#[test]
fn tensors_that_leave_bytes_unclaimed_are_refused() {
    let bent = |bend: fn(&mut Vec<Tensor>)| {
        let mut tensors = tensors();
        bend(&mut tensors);
        gguf_file(3, &metadata(), &tensors)
    };
    // 16-bit floats in place of 32-bit floats: half of the bytes, read as other numbers.
    refused(
        &bent(|tensors| tensors[2].2 = 1),
        &["512 unclaimed bytes", "blk.0.attn_q.weight", "blk.0.attn_k.weight"],
    );
    refused(
        &bent(|tensors| tensors[10].2 = 1),
        &["32 unclaimed bytes follow", "output_norm.weight"],
    );
    refused(
        &bent(|tensors| tensors[4].1 = vec![16, 4]),
        &["256 unclaimed bytes", "blk.0.attn_v.weight"],
    );
    let valid = gguf_file(3, &metadata(), &tensors());
    refused(&[&valid[..], &[0; 33]].concat(), &["33 unclaimed bytes follow"]);
}

#[test]
fn padding_between_and_behind_tensors_is_no_gap() {
    let mut aligned = metadata();
    aligned.push(number("general.alignment", 64));
    let mut tensors = tensors();
    for tensor in &mut tensors {
        tensor.3.resize(tensor.3.len().next_multiple_of(64), 0);
    }
    let mut file = gguf_file(3, &aligned, &tensors);
    // The data begins at the next multiple of 64.
    let data_bytes: usize = tensors.iter().map(|tensor| tensor.3.len()).sum();
    let start = file.len() - data_bytes;
    file.splice(start..start, vec![0; start.next_multiple_of(64) - start]);
    let (_folder, path) = write(&file);
    load(&path).unwrap();
    // The file may end with its last tensor, with 4 of the 32 padded bytes.
    let mut last = crate::testing::gguf::tensors();
    last.push(("v.last".into(), vec![1], 0, vec![0; 4]));
    let mut unpadded = gguf_file(3, &metadata(), &last);
    unpadded.truncate(unpadded.len() - 28);
    let (_folder, path) = write(&unpadded);
    load(&path).unwrap();
}

#[test]
fn a_header_of_countless_keys_is_refused() {
    let keys: Vec<Pair> = (0..20_000).map(|key| (format!("k{key}"), 0, vec![0])).collect();
    refused(
        &gguf_file(3, &[metadata(), keys].concat(), &tensors()),
        &["20007 metadata keys", "16384"],
    );
}

#[test]
fn shards_in_the_wrong_place_or_number_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let short = |key: &str, value: u16| (key.to_owned(), 2, value.to_le_bytes().to_vec());
    let [first, second] = [1, 2].map(|shard| directory.path().join(format!("m-0000{shard}-of-00002.gguf")));
    let tensors = tensors();
    let write = |number: u16, count: u16, promised: i32| {
        let total = ("split.tensors.count".to_owned(), 5, promised.to_le_bytes().to_vec());
        let head = [metadata(), vec![short("split.no", 0), short("split.count", 2), total]].concat();
        std::fs::write(&first, gguf_file(3, &head, &tensors[..4])).unwrap();
        let head = [short("split.no", number), short("split.count", count)];
        std::fs::write(&second, gguf_file(3, &head, &tensors[4..])).unwrap();
    };
    write(1, 2, 11);
    load(&first).unwrap();
    write(0, 2, 11);
    refused_file(&first, &["m-00002-of-00002.gguf", "split.no", "is 0"]);
    write(1, 3, 11);
    refused_file(&first, &["m-00002-of-00002.gguf", "split.count", "is 3"]);
    write(1, 2, 12);
    refused_file(&first, &["split.tensors.count", "12", "11"]);
}
