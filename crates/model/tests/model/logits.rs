//! Logits against `transformers`, and their independence of batch size.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_model::{
    Activations, Batch, Forward, HostForward, LoadOptions, ModelError, RecurrentState, SegmentTokens, load, load_with,
};

use crate::testing::{
    Cuts, Expected, Reader, Sequence, WHOLE, cases, fixtures, largest_difference, load_model, logits_of,
    read_in_blocks, read_together, vectors,
};

/// Largest difference from the reference, over all positions and stored columns.
const TOLERANCE: f32 = 2e-4;

/// Largest difference between splits of recurrent layers' chunks, relative to the logits' size.
const ROUNDING: f32 = 1e-5;

/// The largest logit.
fn scale(logits: &[f32]) -> f32 {
    logits.iter().fold(0.0, |largest, logit| largest.max(logit.abs()))
}

pub(crate) fn check(case: &Path) {
    check_against(case, case);
}

pub(crate) fn check_against(model: &Path, case: &Path) {
    let model = load_model(model);
    let expected = Expected::read(&case.join("expected.safetensors"));
    let whole = logits_of(&model, &expected.tokens, expected.tokens.len());
    let difference = expected.largest_difference(&whole, model.config.vocab_size);
    println!("{}: largest difference {difference:e}", case.display());
    assert!(
        difference <= TOLERANCE,
        "{}: largest difference {difference:e}",
        case.display()
    );
    for batch_tokens in [1, 7, 64] {
        let split = logits_of(&model, &expected.tokens, batch_tokens);
        let difference = largest_difference(split, whole.iter().copied());
        // Recurrent layers compute chunks of 64 tokens; parts of a chunk round differently.
        let rounding = if model.config.has_states() && !batch_tokens.is_multiple_of(64) {
            ROUNDING * scale(&whole)
        } else {
            0.0
        };
        println!("{}: batches of {batch_tokens} differ by {difference:e}", case.display());
        assert!(
            difference <= rounding,
            "{}: batches of {batch_tokens} differ by {difference:e}",
            case.display()
        );
    }
}

fn check_all(prefix: &str) {
    let cases = cases(&vectors(), prefix);
    assert!(!cases.is_empty(), "no vectors of {prefix}");
    cases.iter().for_each(|case| check(case));
}

#[test]
fn llama_logits_equal_the_reference_for_every_batch_size() {
    check_all("llama-");
}

#[test]
fn mistral_logits_equal_the_reference_for_every_batch_size() {
    check_all("mistral-");
}

#[test]
fn qwen2_logits_equal_the_reference_for_every_batch_size() {
    check_all("qwen2-");
}

#[test]
fn qwen3_logits_equal_the_reference_for_every_batch_size() {
    check_all("qwen3-");
}

#[test]
fn qwen3_5_logits_equal_the_reference_for_every_batch_size() {
    check_all("qwen3_5-");
}

#[test]
fn a_restored_recurrent_state_continues_with_the_same_bits() {
    for case in cases(&vectors(), "qwen3_5-") {
        let model = load_model(&case);
        let config = &model.config;
        let tokens = Expected::read(&case.join("expected.safetensors")).tokens;
        let mut reader = Reader::new(&model, 128, tokens.len());
        reader.read(&tokens[..100]);
        let snapshot = reader.sequence.recurrent.clone();
        let stored = snapshot.to_bytes();
        assert_eq!(snapshot.tokens(), Some(100));
        assert_eq!(stored.len() as u64, config.recurrent_bytes());
        let first = [reader.read(&tokens[100..200]), reader.read(&tokens[200..201])];
        assert_ne!(reader.sequence.recurrent, snapshot);
        // Reads other tokens in between.
        reader.read(&tokens[..7]);
        reader
            .sequence
            .go_back(100, &RecurrentState::from_bytes(config, &stored).unwrap());
        assert_eq!(reader.sequence.recurrent.to_bytes(), stored);
        let again = [reader.read(&tokens[100..200]), reader.read(&tokens[200..201])];
        assert!(first == again, "{}", case.display());
        reader.sequence.recurrent.reset();
        assert_eq!(reader.sequence.recurrent, RecurrentState::new(config));

        for length in [0, stored.len() - 1, stored.len() + 4] {
            let error = RecurrentState::from_bytes(config, &vec![0; length]).unwrap_err();
            assert!(error.to_string().contains(&stored.len().to_string()), "{error}");
        }
    }
}

#[test]
fn a_recurrent_state_goes_back_to_any_recorded_token_with_the_bits_it_had_there() {
    // The recorded tokens cross the end of a chunk.
    const PROMPT: usize = 60;
    const MOST: usize = 16;
    for case in cases(&vectors(), "qwen3_5-") {
        let model = load_model(&case);
        let tokens = Expected::read(&case.join("expected.safetensors")).tokens;
        let (prompt, generated) = tokens.split_at(PROMPT);
        let mut reader = Reader::new(&model, 128, tokens.len());
        reader.read(prompt);
        let start = reader.sequence.recurrent.clone();
        reader.sequence.generates = true;
        let mut steps = vec![start.clone()];
        for token in &generated[..MOST] {
            reader.read(&[*token]);
            steps.push(reader.sequence.recurrent.clone());
        }
        let begin = |reader: &mut Reader| {
            reader.sequence.go_back(PROMPT, &start);
            reader.sequence.recurrent.record();
        };
        for read in [1, 2, 5, MOST] {
            for kept in 0..=read {
                begin(&mut reader);
                let (first, rest) = generated[..read].split_at(read / 2);
                for tokens in [first, rest] {
                    if !tokens.is_empty() {
                        reader.read(tokens);
                    }
                }
                let state = &mut reader.sequence.recurrent;
                state.replay(&model, &start, kept).unwrap();
                assert!(*state == steps[kept], "{}: {kept} of {read}", case.display());
                assert_eq!(state.recorded(), Some(kept));
            }
        }
        begin(&mut reader);
        reader.read(&generated[..3]);
        let state = &mut reader.sequence.recurrent;
        for (from, kept) in [(&start, 4), (&steps[1], 2)] {
            assert!(matches!(
                state.replay(&model, from, kept),
                Err(ModelError::WrongRecurrentState)
            ));
            assert!(*state == steps[3]);
        }
        for (generates, read) in [(true, MOST + 1), (false, 3)] {
            begin(&mut reader);
            reader.sequence.generates = generates;
            reader.read(&generated[..read]);
            assert_eq!(reader.sequence.recurrent.recorded(), None);
        }
    }
}

#[test]
fn phi3_logits_equal_the_reference_for_every_batch_size() {
    check_all("phi3-");
}

#[test]
fn phi2_logits_equal_the_reference_for_every_batch_size() {
    check_all("phi-");
}

#[test]
fn gemma2_logits_equal_the_reference_for_every_batch_size() {
    check_all("gemma2-");
}

#[test]
fn gemma3_logits_equal_the_reference_for_every_batch_size() {
    check_all("gemma3-");
}

#[test]
fn random_llama_logits_equal_the_reference_for_every_batch_size() {
    let cases = cases(&fixtures().join("vectors"), "");
    assert!(!cases.is_empty(), "no vectors among the fixtures");
    cases.iter().for_each(|case| check(case));
}

#[test]
fn shipped_model_logits_equal_the_reference_for_every_batch_size() {
    check_against(&fixtures().join("model"), &fixtures().join("vectors/shipped"));
}

#[test]
fn logits_are_the_same_bits_for_every_number_of_threads() {
    let model = load_model(fixtures().join("model"));
    let expected = Expected::read(&fixtures().join("vectors/shipped/expected.safetensors"));
    let logits_with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| logits_of(&model, &expected.tokens, 512))
    };
    let alone = logits_with(1);
    for threads in [2, 5] {
        assert!(logits_with(threads) == alone, "{threads} threads");
    }
}

/// Rounding to bfloat16 changes an activation by at most 1/512.
#[test]
fn rounded_activations_move_logits_of_bf16_weights_a_little_whatever_the_batch() {
    for case in ["group8-dim128-bf16", "group2-dim64-linear-bf16"] {
        let case = fixtures().join("vectors").join(case);
        let options = LoadOptions::default().with_activations(Activations::Rounded);
        let model = Arc::new(load_with(&case, &options).unwrap().model);
        let expected = Expected::read(&case.join("expected.safetensors"));
        let whole = logits_of(&model, &expected.tokens, expected.tokens.len());
        let difference = expected.largest_difference(&whole, model.config.vocab_size);
        let relative = difference / scale(&whole);
        println!(
            "{}: rounding moves logits by {difference:e}, {relative:e} of the largest",
            case.display()
        );
        assert!(
            difference > TOLERANCE && relative < 2e-2,
            "{}: {relative:e}",
            case.display()
        );
        for batch_tokens in [1, 7, 64] {
            assert!(
                logits_of(&model, &expected.tokens, batch_tokens) == whole,
                "batches of {batch_tokens}"
            );
        }
    }
}

#[test]
fn gguf_logits_equal_those_of_the_directory_the_file_was_made_from() {
    let directory = vectors().join("gguf");
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 20, "one file for each family and each kind of weights");
    for file in files {
        let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
        // A family with and without experts has two cases of one name.
        let places = match stem.strip_suffix("-experts") {
            Some(stem) => vec![vectors().join("experts").join(stem)],
            None => ["", "dense", "experts"]
                .map(|place| vectors().join(place).join(&stem))
                .to_vec(),
        };
        let case = places.iter().find(|case| case.exists()).unwrap();
        check_against(&file, case);
        let loaded = load(&file).unwrap();
        assert!(
            loaded.info.unused_tensors.is_empty(),
            "{}: {:?}",
            file.display(),
            loaded.info.unused_tensors
        );
    }
}

#[test]
fn queries_keys_and_values_stacked_in_one_tensor_of_phi2_give_the_same_logits() {
    let file = vectors().join("fused/phi-0.gguf");
    check_against(&file, &vectors().join("phi-0"));
    assert!(load(&file).unwrap().info.unused_tensors.is_empty());
}

#[test]
fn quantised_logits_are_those_of_the_dequantised_weights_and_activations_of_8_bits() {
    for case in ["plain", "k", "ud", "grids", "small", "hybrid", "hybrid-k"] {
        let directory = vectors().join("quantised");
        let model = load_model(directory.join(format!("{case}.gguf")));
        let expected = Expected::read(&directory.join(format!("{case}.safetensors")));
        let whole = logits_of(&model, &expected.tokens, expected.tokens.len());
        let recurrent = model.config.has_states();
        let check = |logits: &[f32], batch: &str| {
            let rows = expected.row_differences(logits);
            // An activation between two steps may round to either, which changes it by 0.4%. The change appears at its
            // own position, and a recurrent layer remembers it.
            let exact = rows.iter().filter(|&&difference| difference <= 1e-5).count();
            assert!(
                rows[..8].iter().all(|&difference| difference <= 1e-5),
                "{case}, {batch}: {rows:?}"
            );
            assert!(recurrent || exact * 100 >= rows.len() * 95, "{case}, {batch}: {rows:?}");
            assert!(
                rows.iter().all(|&difference| difference <= 3e-2),
                "{case}, {batch}: {rows:?}"
            );
        };
        check(&whole, "whole");
        for batch_tokens in [1, 7, 64] {
            let split = logits_of(&model, &expected.tokens, batch_tokens);
            // Parts of a recurrent layer's chunk round differently, and so may a later activation.
            if recurrent && !batch_tokens.is_multiple_of(64) {
                check(&split, &format!("batches of {batch_tokens}"));
            } else {
                assert!(split == whole, "{case}: batches of {batch_tokens} differ");
            }
        }
    }
}

#[test]
fn logits_of_a_row_are_the_same_whichever_rows_are_asked_for() {
    let model = load_model(vectors().join("llama-0"));
    let (config, tokens) = (&model.config, vec![3; 300]);
    let mut forward = HostForward::new(&model, 300);
    let all = read_together(&mut forward, config, &mut [(&mut Sequence::new(config), &tokens)]);
    let rows: Vec<usize> = [299, 0, 1, 2, 17].into_iter().chain(40..298).collect();
    let mut some = vec![0.0; rows.len() * config.vocab_size];
    forward.logits(&rows, &mut some).unwrap();
    for (row, some) in rows.iter().zip(some.chunks(config.vocab_size)) {
        assert!(
            some == &all[row * config.vocab_size..][..config.vocab_size],
            "row {row}"
        );
    }
}

/// Ways to cut layers by rows: not at all, as often as possible, at the ends of linear blocks, and in between.
const CUTS: [Cuts; 6] = [
    WHOLE,
    cuts(1, false),
    cuts(1, true),
    cuts(100, true),
    cuts(256, false),
    cuts(270, true),
];

const fn cuts(most: usize, in_turn: bool) -> Cuts {
    Cuts { most, in_turn }
}

/// Reads sequences in passes that each take some tokens of some of them, and each sequence alone in the same pieces.
fn check_joined(path: &Path) {
    // For each pass the tokens of each sequence: long beside single rows, odd numbers, sequences that join late or
    // leave.
    const PASSES: [[usize; 4]; 5] = [
        [70, 0, 1, 0],
        [1, 33, 1, 130],
        [1, 1, 1, 1],
        [0, 64, 5, 1],
        [9, 1, 260, 3],
    ];
    let model = load_model(path);
    let config = &model.config;
    let text = |sequence: usize, from: usize, tokens: usize| -> Vec<u32> {
        let token = |at: usize| ((at * 31 + sequence * 57 + at * at % 7) % config.vocab_size) as u32;
        (from..from + tokens).map(token).collect()
    };
    let mut forward = HostForward::new(&model, 300);
    let mut alone = [0; 4].map(|_| Reader::new(&model, 300, 1024));
    let mut joined = CUTS.map(|_| [0; 4].map(|_| Sequence::of_length(config, 1024).with_sinks(&model)));
    let mut read = [0; 4];
    for (pass, lengths) in PASSES.iter().enumerate() {
        let texts: Vec<Vec<u32>> = (0..4).map(|at| text(at, read[at], lengths[at])).collect();
        let mut expected = Vec::new();
        for (reader, tokens) in alone.iter_mut().zip(&texts).filter(|(_, tokens)| !tokens.is_empty()) {
            expected.extend(reader.read(tokens));
        }
        for (cuts, joined) in CUTS.into_iter().zip(&mut joined) {
            let texts = texts.iter().map(Vec::as_slice);
            let mut work: Vec<(&mut Sequence, &[u32])> = joined.iter_mut().zip(texts).collect();
            work.retain(|(_, tokens)| !tokens.is_empty());
            let found = read_in_blocks(&mut forward, config, &mut work, cuts);
            assert!(found == expected, "{}: pass {pass}, {cuts:?}", path.display());
            for (joined, alone) in joined.iter().zip(&alone) {
                assert!(
                    joined.recurrent == alone.sequence.recurrent,
                    "{}: pass {pass}, {cuts:?}",
                    path.display()
                );
            }
        }
        for (read, length) in read.iter_mut().zip(lengths) {
            *read += length;
        }
    }
}

#[test]
fn blocks_of_rows_are_about_as_long_as_is_asked_and_few_rows_are_one() {
    let model = load_model(vectors().join("llama-0"));
    let mut forward = HostForward::new(&model, 300);
    let mut blocks = |lengths: &[usize], most| {
        let tokens = [1; 300];
        let batch = Batch::new(
            lengths
                .iter()
                .map(|&length| SegmentTokens::prompt(&tokens[..length], 0)),
        )
        .unwrap();
        forward.embed(&batch).unwrap();
        forward.row_blocks(most)
    };
    assert_eq!(blocks(&[300], 1), [0..64, 64..128, 128..192, 192..256, 256..300]);
    assert_eq!(blocks(&[300], 200), [0..192, 192..300]);
    assert_eq!(blocks(&[300], 300).len(), 1);
    assert_eq!(blocks(&[1; 32], 32).len(), 1);
    assert_eq!(blocks(&[1; 32], 1).len(), 1);
}

#[test]
fn joined_sequences_have_the_bits_of_each_alone_in_every_family_wherever_layers_are_cut() {
    let cases = cases(&vectors(), "");
    assert!(cases.len() >= 15, "only {} models were compared", cases.len());
    cases.iter().for_each(|case| check_joined(case));
}

#[test]
fn joined_sequences_have_the_bits_of_each_alone_with_every_kind_of_weights_wherever_layers_are_cut() {
    weights_of_every_kind().iter().for_each(|case| check_joined(case));
}

/// Models in f32, bf16 and the formats of GGUF files, including the shipped ones.
fn weights_of_every_kind() -> Vec<PathBuf> {
    let floats = ["group8-dim128-bf16", "group2-dim64-linear-bf16"].map(|case| fixtures().join("vectors").join(case));
    let blocks = ["plain", "k", "ud", "grids", "small", "hybrid", "hybrid-k"];
    let blocks = blocks.map(|case| vectors().join("quantised").join(format!("{case}.gguf")));
    let shipped = ["model", "model-hybrid"].map(|name| fixtures().join(name));
    floats.into_iter().chain(blocks).chain(shipped).collect()
}

/// Verifies 1 to 9 tokens after a prompt at once, alone and beside other sequences, and reads them in steps of one.
fn check_verified(path: &Path) {
    // The verified tokens cross the end of a recurrent layer's chunk.
    const PROMPT: usize = 60;
    const MOST: usize = 9;
    let model = load_model(path);
    let config = &model.config;
    let text: Vec<u32> = (0..PROMPT + MOST)
        .map(|at| ((at * 31 + at * at % 7) % config.vocab_size) as u32)
        .collect();
    let (prompt, draft) = text.split_at(PROMPT);
    let mut forward = HostForward::new(&model, 200);
    let mut steps = Reader::new(&model, 200, 1024);
    steps.read(prompt);
    let before = steps.sequence.recurrent.clone();
    let mut expected = Vec::new();
    let mut verified = Reader::new(&model, 200, 1024);
    verified.read(prompt);
    verified.sequence.generates = true;
    let mut beside = Reader::new(&model, 200, 1024);
    let of_prompt = beside.read(prompt);
    for count in 1..=MOST {
        expected.extend(steps.read(&draft[count - 1..count]));
        let what = format!("{}: {count} tokens", path.display());
        let check = |found: &[f32], sequence: &Sequence, how: &str| {
            assert!(found == expected, "{what} {how}");
            assert!(sequence.recurrent == steps.sequence.recurrent, "{what} {how}: states");
        };
        let found = verified.read(&draft[..count]);
        check(&found, &verified.sequence, "alone");
        verified.sequence.go_back(PROMPT, &before);
        for cuts in CUTS {
            // A prompt, the draft, another draft; layers are cut within the first draft.
            let mut other = Sequence::of_length(config, 1024).with_sinks(&model);
            let mut third = Sequence::new(config).with_sinks(&model);
            third.generates = true;
            let mut work = [
                (&mut other, prompt),
                (&mut verified.sequence, &draft[..count]),
                (&mut third, &draft[..3]),
            ];
            let found = read_in_blocks(&mut forward, config, &mut work, cuts);
            let (first, rest) = found.split_at(of_prompt.len());
            assert!(first == of_prompt, "{what}: the prompt beside, {cuts:?}");
            check(
                &rest[..expected.len()],
                &verified.sequence,
                &format!("beside others, {cuts:?}"),
            );
            verified.sequence.go_back(PROMPT, &before);
        }
    }
}

#[test]
fn tokens_verified_at_once_have_the_bits_of_single_steps_in_every_family() {
    let cases = cases(&vectors(), "");
    assert!(cases.len() >= 15, "only {} models were compared", cases.len());
    cases.iter().for_each(|case| check_verified(case));
}

#[test]
fn tokens_verified_at_once_have_the_bits_of_single_steps_with_every_kind_of_weights() {
    weights_of_every_kind().iter().for_each(|case| check_verified(case));
}

#[test]
fn tokens_verified_at_once_have_the_bits_of_single_steps_with_experts() {
    cases(&vectors().join("experts"), "")
        .iter()
        .for_each(|case| check_verified(case));
}

#[test]
fn joined_segments_have_the_bits_of_each_alone_with_experts() {
    cases(&vectors().join("experts"), "")
        .iter()
        .for_each(|case| check_joined(case));
}
