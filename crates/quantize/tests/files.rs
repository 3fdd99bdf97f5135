//! Files of quantised models: contents, continued runs, and refusals.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use riffle_linear::WeightFormat;
use riffle_model::{GgufEntry, GgufTensor, WeightSource, gguf_header};
use riffle_quantize::{ImportanceMatrix, InputSquares, QuantizeError, QuantizeOptions, QuantizePlan, Quantized};

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/model")
}

fn options(mix: &str) -> QuantizeOptions {
    QuantizeOptions::new(mix.parse().unwrap())
}

fn write(input: &Path, output: &Path, options: QuantizeOptions) -> Result<Quantized, QuantizeError> {
    QuantizePlan::new(input, options)?.write(output, &mut |_| ControlFlow::Continue(()))
}

/// All values of a tensor.
fn values(source: &WeightSource, name: &str) -> Vec<f32> {
    let tensor = source.tensors.iter().find(|tensor| tensor.info.name == name).unwrap();
    let mut values = vec![0.0; tensor.info.shape.iter().product()];
    source.rows(tensor).unwrap().read(0, &mut values).unwrap();
    values
}

/// A generated GGUF model: matrices of two layers with rows of 256 weights.
fn made(path: &Path, bend: impl Fn(&mut Vec<f32>)) {
    let mut tensors = vec![("token_embd.weight".to_owned(), vec![64, 256])];
    for layer in 0..2 {
        for part in ["attn_q", "attn_v", "ffn_down"] {
            tensors.push((format!("blk.{layer}.{part}.weight"), vec![32, 256]));
        }
        tensors.push((format!("blk.{layer}.attn_norm.weight"), vec![256]));
    }
    let entries = [
        GgufEntry::text("general.architecture", "llama"),
        GgufEntry::count("llama.block_count", 2),
        GgufEntry::count("llama.attention.head_count", 4),
        GgufEntry::count("llama.attention.head_count_kv", 2),
        GgufEntry::texts("made.texts", ["a", "", "ü"].into_iter()),
        GgufEntry::count("general.file_type", 0),
    ];
    let tensors: Vec<GgufTensor> = tensors
        .into_iter()
        .map(|(name, shape)| GgufTensor {
            name,
            shape,
            format: WeightFormat::F32,
        })
        .collect();
    let (mut file, offsets) = gguf_header(&entries, &tensors).unwrap();
    let mut state = 7u32;
    for (tensor, offset) in tensors.iter().zip(offsets) {
        file.resize(offset as usize, 0);
        let count: usize = tensor.shape.iter().product();
        let mut values: Vec<f32> = (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect();
        bend(&mut values);
        file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    fs::write(path, file).unwrap();
}

#[test]
fn a_folder_becomes_a_file_with_its_weights_settings_and_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.gguf");
    write(&shipped(), &output, options("F32")).unwrap();
    let file = WeightSource::open(&output).unwrap();
    let text = |key: &str| file.value(key).and_then(GgufEntry::as_text).map(str::to_owned);
    let count = |key: &str| file.value(key).and_then(GgufEntry::as_count);
    assert_eq!(text("general.architecture").as_deref(), Some("llama"));
    assert_eq!(count("llama.block_count"), Some(5));
    assert_eq!(count("llama.attention.head_count_kv"), Some(2));
    assert_eq!(count("general.file_type"), Some(0));
    assert_eq!(count("general.quantization_version"), Some(2));
    assert_eq!(text("tokenizer.ggml.model").as_deref(), Some("gpt2"));
    // The file loads as the same model: every tensor is used, and the tokens are the same.
    let (folder_model, file_model) = (
        riffle_model::load(shipped()).unwrap(),
        riffle_model::load(&output).unwrap(),
    );
    let (a, b) = (&folder_model.info.config, &file_model.info.config);
    assert_eq!(
        (a.layers, a.vocab_size, a.hidden_size),
        (b.layers, b.vocab_size, b.hidden_size)
    );
    let (a, b) = (folder_model.tokenizer.unwrap(), file_model.tokenizer.unwrap());
    let probe = "In 1870 the prophets' words\n\n  were 12,345 — “read” again.";
    assert_eq!(a.encode(probe, true).unwrap(), b.encode(probe, true).unwrap());
    for layer in 0..5 {
        let [a, b] = [&folder_model.model, &file_model.model]
            .map(|model| model.layers[layer].attention.as_ref().unwrap().query.weight().unpack());
        // The folder's weights are bfloat16, the file's binary32.
        let widened: Vec<u8> = a
            .as_chunks()
            .0
            .iter()
            .flat_map(|[low, high]| [0, 0, *low, *high])
            .collect();
        assert!(widened == b, "queries of layer {layer}");
    }
}

#[test]
fn every_mix_can_be_written_and_read_back_near_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("made.gguf");
    made(&input, |_| {});
    let original = WeightSource::open(&input).unwrap();
    for mix in riffle_quantize::Mix::all() {
        let output = folder.path().join(format!("{}.gguf", mix.name()));
        let plan = QuantizePlan::new(&input, QuantizeOptions::new(mix)).unwrap();
        let written = plan.write(&output, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(
            written.file_bytes,
            fs::metadata(&output).unwrap().len(),
            "{}",
            mix.name()
        );
        assert_eq!(plan.file_bytes(), written.file_bytes);
        let file = WeightSource::open(&output).unwrap();
        assert_eq!(file.value("made.texts"), original.value("made.texts"));
        assert_eq!(
            file.value("general.file_type").and_then(GgufEntry::as_count),
            Some(u64::from(mix.file_type()))
        );
        for tensor in &original.tensors {
            let name = &tensor.info.name;
            let (a, b) = (values(&original, name), values(&file, name));
            let squares =
                |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>();
            let error = squares(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / squares(&mut a.iter().copied());
            assert!(error < 0.3, "{} {name}: {error}", mix.name());
        }
    }
}

#[test]
fn types_follow_the_mix_and_own_rules_come_first() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("made.gguf");
    made(&input, |_| {});
    let mut options = options("Q4_K_S");
    options.rules = vec!["blk.1.*attn_q=q8_0".parse().unwrap(), "attn_q=f16".parse().unwrap()];
    options.embedding_type = Some(WeightFormat::Q5K);
    let plan = QuantizePlan::new(&input, options).unwrap();
    let type_of = |name: &str| plan.tensors().iter().find(|tensor| tensor.name == name).unwrap().to;
    assert_eq!(type_of("token_embd.weight"), WeightFormat::Q5K);
    assert_eq!(type_of("blk.0.attn_q.weight"), WeightFormat::F16);
    assert_eq!(type_of("blk.1.attn_q.weight"), WeightFormat::Q8_0);
    assert_eq!(type_of("blk.0.attn_v.weight"), WeightFormat::Q5K);
    assert_eq!(type_of("blk.0.ffn_down.weight"), WeightFormat::Q4K);
    assert_eq!(type_of("blk.0.attn_norm.weight"), WeightFormat::F32);
}

#[test]
fn rows_that_a_type_cannot_hold_get_another_and_it_is_told() {
    let plan = QuantizePlan::new(&shipped(), options("Q4_K_M")).unwrap();
    let down = plan
        .tensors()
        .iter()
        .find(|tensor| tensor.name == "blk.1.ffn_gate.weight")
        .unwrap();
    assert_eq!(
        (down.to, down.in_place_of),
        (WeightFormat::Q5_0, Some(WeightFormat::Q4K))
    );
}

#[test]
fn an_interrupted_run_goes_on_where_it_stopped_and_leaves_no_half_file() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.gguf");
    let whole = folder.path().join("whole.gguf");
    write(&shipped(), &whole, options("Q8_0")).unwrap();
    let plan = QuantizePlan::new(&shipped(), options("Q8_0")).unwrap();
    let stop_at = |tensor: usize| {
        plan.write(&output, &mut |progress| {
            if progress.done_tensors < tensor {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
    };
    assert!(matches!(stop_at(9), Err(QuantizeError::Interrupted)));
    assert!(!output.exists());
    // Tensors with damaged bytes are written again, and so are all later ones.
    let mut files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let partial = files.find(|path| path.to_string_lossy().ends_with(".partial")).unwrap();
    let mut bytes = fs::read(&partial).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&partial, &bytes).unwrap();
    assert!(matches!(stop_at(20), Err(QuantizeError::Interrupted)));
    let written = plan.write(&output, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(written.resumed_tensors, 20);
    assert!(fs::read(&output).unwrap() == fs::read(&whole).unwrap());
    let left: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn other_options_begin_anew_and_remove_what_the_first_run_left() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.gguf");
    let plan = QuantizePlan::new(&shipped(), options("Q8_0")).unwrap();
    assert!(plan.write(&output, &mut |_| ControlFlow::Break(())).is_err());
    let written = write(&shipped(), &output, options("Q4_0")).unwrap();
    assert_eq!(written.resumed_tensors, 0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_file_that_exists_is_replaced_only_when_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.gguf");
    write(&shipped(), &output, options("Q8_0")).unwrap();
    let message = write(&shipped(), &output, options("Q4_0")).unwrap_err().to_string();
    assert!(message.contains("model.gguf exists"), "{message}");
    let mut overwriting = options("Q4_0");
    overwriting.overwrite = true;
    write(&shipped(), &output, overwriting.clone()).unwrap();
    let message = write(&output, &output, overwriting.clone()).unwrap_err().to_string();
    assert!(message.contains("is the input itself"), "{message}");
    let other = folder.path().join("notes.txt");
    fs::write(&other, "not a model").unwrap();
    let message = write(&shipped(), &other, overwriting).unwrap_err().to_string();
    assert!(message.contains("is not a GGUF file"), "{message}");
    assert_eq!(fs::read(&other).unwrap(), b"not a model");
}

#[test]
fn weights_that_are_no_numbers_are_named_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("made.gguf"), folder.path().join("out.gguf"));
    for bad in [f32::NAN, f32::INFINITY] {
        made(&input, |values| {
            if values.len() == 32 * 256 {
                values[700] = bad;
            }
        });
        let message = write(&input, &output, options("Q4_K_M")).unwrap_err().to_string();
        assert!(
            message.contains("blk.0.attn_q.weight") && message.contains("700"),
            "{message}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn an_importance_matrix_comes_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.imatrix.gguf");
    let mut matrix = ImportanceMatrix {
        datasets: vec!["notes.txt".to_owned()],
        chunk_count: 3,
        chunk_tokens: 512,
        ..ImportanceMatrix::default()
    };
    for (name, inputs, matrices) in [("blk.0.attn_q.weight", 256, 1), ("blk.0.ffn_down_exps.weight", 64, 4)] {
        let squares = InputSquares {
            sums: (0..inputs * matrices).map(|index| index as f32).collect(),
            counts: vec![1536.0; matrices],
        };
        matrix.tensors.insert(name.to_owned(), squares);
    }
    matrix.write(&path).unwrap();
    assert_eq!(ImportanceMatrix::read(&path).unwrap(), matrix);
    let model = folder.path().join("made.gguf");
    made(&model, |_| {});
    assert!(
        matrix
            .write(&model)
            .unwrap_err()
            .to_string()
            .contains("is not an importance matrix")
    );
    let message = ImportanceMatrix::read(&model).unwrap_err().to_string();
    assert!(message.contains("a GGUF file of another kind"), "{message}");
}

#[test]
fn the_older_format_of_importance_matrices_is_read_and_its_damage_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.dat");
    let mut bytes = Vec::new();
    let number = |bytes: &mut Vec<u8>, number: i32| bytes.extend(number.to_le_bytes());
    number(&mut bytes, 1);
    number(&mut bytes, 19);
    bytes.extend(b"blk.0.attn_q.weight");
    number(&mut bytes, 2);
    number(&mut bytes, 3);
    [2.0f32, 4.0, 6.0]
        .iter()
        .for_each(|value| bytes.extend(value.to_le_bytes()));
    number(&mut bytes, 9);
    number(&mut bytes, 4);
    bytes.extend(b"text");
    fs::write(&path, &bytes).unwrap();
    let matrix = ImportanceMatrix::read(&path).unwrap();
    assert_eq!(matrix.tensors["blk.0.attn_q.weight"].means(), [1.0, 2.0, 3.0]);
    assert_eq!((matrix.chunk_count, &matrix.datasets[0][..]), (9, "text"));
    for (at, damage) in [(4, 0xff), (27, 0xff), (31, 0xff)] {
        let mut damaged = bytes.clone();
        damaged[at + 3] = damage;
        fs::write(&path, &damaged).unwrap();
        let message = ImportanceMatrix::read(&path).unwrap_err().to_string();
        assert!(
            message.contains("importance matrix ") && !message.contains('\n'),
            "{message}"
        );
    }
    fs::write(&path, &bytes[..30]).unwrap();
    let message = ImportanceMatrix::read(&path).unwrap_err().to_string();
    assert!(
        message.contains("it ends too early") && message.contains("riffle calibrate --imatrix"),
        "{message}"
    );
}

#[test]
fn importance_lowers_the_errors_that_it_weighs_and_must_fit_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("made.gguf");
    made(&input, |_| {});
    let name = "blk.0.attn_q.weight";
    let sums: Vec<f32> = (0..256)
        .map(|column| if column % 8 == 0 { 100.0 } else { 1.0 })
        .collect();
    let mut matrix = ImportanceMatrix::default();
    let squares = InputSquares {
        sums: sums.clone(),
        counts: vec![1.0],
    };
    matrix.tensors.insert(name.to_owned(), squares);
    let original = values(&WeightSource::open(&input).unwrap(), name);
    let error = |importance: Option<ImportanceMatrix>| {
        let output = folder.path().join("out.gguf");
        let mut options = options("IQ3_S");
        options.importance = importance;
        options.overwrite = true;
        write(&input, &output, options).unwrap();
        let found = values(&WeightSource::open(&output).unwrap(), name);
        let pairs = original.iter().zip(found).enumerate();
        pairs
            .map(|(index, (a, b))| sums[index % 256] * (a - b) * (a - b))
            .sum::<f32>()
    };
    assert!(error(Some(matrix.clone())) < 0.8 * error(None));
    matrix.tensors.get_mut(name).unwrap().sums.truncate(128);
    let mut wrong = options("IQ3_S");
    wrong.importance = Some(matrix);
    let message = QuantizePlan::new(&input, wrong).err().unwrap().to_string();
    assert!(
        message.contains("128 inputs for blk.0.attn_q.weight, the model has 256"),
        "{message}"
    );
}

#[test]
fn wrong_names_and_rules_are_one_line_with_what_there_is() {
    let message = "Q9_K".parse::<riffle_quantize::Mix>().unwrap_err().to_string();
    assert!(
        message.contains("Q9_K") && message.contains("Q4_K_M") && !message.contains('\n'),
        "{message}"
    );
    for (rule, problem) in [
        ("attn_v", "it has no ="),
        ("(=q6_k", "rule"),
        ("=q6_k", "no pattern"),
        ("a=q9", "there is no type q9"),
    ] {
        let message = rule.parse::<riffle_quantize::TypeRule>().unwrap_err().to_string();
        assert!(
            message.contains(problem) && !message.contains('\n'),
            "{rule}: {message}"
        );
    }
}

#[test]
fn memory_that_holds_no_row_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.gguf");
    let mut small = options("Q8_0");
    small.memory_bytes = Some(100);
    let message = write(&shipped(), &output, small).unwrap_err().to_string();
    assert!(message.contains("100 are allowed"), "{message}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let mut few = options("Q8_0");
    few.memory_bytes = Some(10_000);
    write(&shipped(), &output, few).unwrap();
}
