//! The layer that predicts further tokens, against `transformers`' own classes, from both kinds of files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use riffle_model::{
    Batch, Decoder, HostForward, LoadOptions, ModelError, ModelInfo, PredictorForward, inspect_with, load, load_with,
};

use crate::testing::{
    DenseAttention, Expected, Sequence, Tensor, TinyModel, largest_difference, logits_of, read_together,
    safetensors_file, vectors,
};

/// Largest difference from the reference.
const TOLERANCE: f32 = 2e-4;

fn directory() -> PathBuf {
    vectors().join("predictor")
}

fn file() -> PathBuf {
    directory().join("model.gguf")
}

fn asked() -> LoadOptions {
    LoadOptions::default().with_predictor(true)
}

fn inspected(path: &Path, options: &LoadOptions) -> ModelInfo {
    inspect_with(path, options).unwrap()
}

fn load_predictor(path: &Path) -> Arc<Decoder> {
    Arc::new(load_with(path, &asked()).unwrap().model)
}

/// A predictor that reads a text, with its keys and values.
struct Prediction {
    forward: PredictorForward,
    attention: DenseAttention,
    vocab_size: usize,
    position: usize,
}

impl Prediction {
    fn new(model: &Arc<Decoder>, rows: usize) -> Self {
        Self {
            forward: PredictorForward::new(model, rows).unwrap(),
            attention: DenseAttention::new(&model.config),
            vocab_size: model.config.vocab_size,
            position: 0,
        }
    }

    /// Joins the next hidden states with the tokens after them; returns the logits.
    fn read(&mut self, next: &[u32], hidden: &[f32]) -> Vec<f32> {
        let batch = Batch::of_one(next, self.position).unwrap();
        let mut projected = self.forward.project(&batch, hidden).unwrap();
        self.attention.attend(0, self.position, 0..next.len(), &mut projected);
        self.position += next.len();
        self.forward.finish().unwrap();
        let mut logits = vec![0.0; next.len() * self.vocab_size];
        self.forward.logits(&mut logits).unwrap();
        logits
    }
}

/// The model's hidden states for a text, in the form that the head receives.
fn hidden_states(model: &Arc<Decoder>, tokens: &[u32]) -> Vec<f32> {
    let mut forward = HostForward::new(model, tokens.len());
    read_together(
        &mut forward,
        &model.config,
        &mut [(&mut Sequence::new(&model.config), tokens)],
    );
    assert_eq!(forward.hidden().len(), tokens.len() * model.config.hidden_size);
    let mut hidden = Vec::new();
    forward.append_normed(0..tokens.len(), &mut hidden);
    hidden
}

#[track_caller]
fn same(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let difference = largest_difference(found.iter().copied(), expected.iter().copied());
    println!("{what}: largest difference {difference:e}");
    assert!(difference <= TOLERANCE, "{what}: largest difference {difference:e}");
}

#[test]
fn predicted_logits_equal_the_reference_for_a_text_and_for_tokens_that_were_drafted() {
    let expected = Expected::read(&directory().join("expected.safetensors"));
    let tokens = &expected.tokens;
    let (logits, drafted) = (expected.floats("logits"), expected.tokens_of("drafted"));
    let draft_logits = expected.floats("draft_logits");
    for path in [directory(), file()] {
        let model = load_predictor(&path);
        let (width, vocab_size) = (model.config.hidden_size, model.config.vocab_size);
        let hidden = hidden_states(&model, tokens);
        let (known, last) = hidden.split_at((tokens.len() - 1) * width);
        let mut whole = Prediction::new(&model, tokens.len());
        let found = whole.read(&tokens[1..], known);
        same("the text", &found, &logits);
        for cut in [1, 7] {
            let mut prediction = Prediction::new(&model, cut);
            let pieces = tokens[1..].chunks(cut).zip(known.chunks(cut * width));
            let rows: Vec<f32> = pieces
                .flat_map(|(next, hidden)| prediction.read(next, hidden))
                .collect();
            assert!(rows == found, "pieces of {cut} rows have other bits");
        }
        let mut state = last.to_vec();
        for (step, expected) in draft_logits.chunks(vocab_size).enumerate() {
            let found = whole.read(&drafted[step..=step], &state);
            same(&format!("drafted token {}", step + 1), &found, expected);
            state = whole.forward.hidden().to_vec();
        }
    }
}

#[test]
fn the_layer_is_loaded_and_counted_only_where_it_is_asked_for() {
    let tokens = Expected::read(&directory().join("expected.safetensors")).tokens;
    for path in [directory(), file()] {
        let [without, with] = [LoadOptions::default(), asked()].map(|options| inspected(&path, &options).config);
        assert_eq!([without.predicting_layers, with.predicting_layers], [1, 1]);
        assert_eq!(without.predictor_bytes, 0);
        assert!(with.predictor_bytes > 0);
        assert_eq!(with.weight_bytes, without.weight_bytes + with.predictor_bytes);

        let (plain, loaded) = (load(&path).unwrap(), load_with(&path, &asked()).unwrap());
        assert!(plain.model.predictor.is_none());
        assert!(plain.info.unused_tensors.len() >= 15, "{:?}", plain.info.unused_tensors);
        assert!(
            loaded.info.unused_tensors.is_empty(),
            "{:?}",
            loaded.info.unused_tensors
        );
        let [plain, loaded] = [plain.model, loaded.model].map(Arc::new);
        assert!(PredictorForward::new(&plain, 1).is_none());
        let bytes = loaded.config.weight_bytes - plain.config.weight_bytes;
        assert_eq!(bytes, loaded.config.predictor_bytes);
        assert!(logits_of(&plain, &tokens, 64) == logits_of(&loaded, &tokens, 64));
    }
}

#[test]
fn a_file_without_the_layer_has_none_however_it_is_loaded() {
    for path in [vectors().join("qwen3_5-0"), vectors().join("gguf/qwen3_5-0.gguf")] {
        assert_eq!(inspected(&path, &asked()).config.predicting_layers, 0);
        assert!(load_with(&path, &asked()).unwrap().model.predictor.is_none());
    }
    // A family without such a layer.
    let folder = tempfile::tempdir().unwrap();
    let mut model = TinyModel::default();
    model.tensors.push(Tensor::f32("mtp.fc.weight", &[16, 32]));
    model.write(folder.path());
    assert_eq!(inspected(folder.path(), &asked()).config.predicting_layers, 0);
    load_with(folder.path(), &asked()).unwrap();
}

/// The directory with added tensors.
fn with_tensors(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let weights = std::fs::read(directory().join("model.safetensors")).unwrap();
    let weights = safetensors::SafeTensors::deserialize(&weights).unwrap();
    let mut tensors: Vec<Tensor> = weights.iter().map(|(name, view)| Tensor::stored(name, &view)).collect();
    tensors.extend(names.iter().map(|name| Tensor::f32(name, &[40])));
    std::fs::write(folder.path().join("model.safetensors"), safetensors_file(&tensors)).unwrap();
    std::fs::copy(directory().join("config.json"), folder.path().join("config.json")).unwrap();
    folder
}

#[test]
fn a_layer_with_parts_that_are_not_known_is_refused_and_one_of_several_is_not_loaded() {
    let folder = with_tensors(&["mtp.embed_tokens.weight"]);
    load(folder.path()).unwrap();
    let error = load_with(folder.path(), &asked()).err().unwrap();
    assert!(matches!(error, ModelError::UnusedTensors { count: 1, .. }), "{error}");
    assert!(error.to_string().contains("mtp.embed_tokens.weight"), "{error}");

    let folder = with_tensors(&["mtp.layers.1.input_layernorm.weight"]);
    assert_eq!(inspected(folder.path(), &asked()).config.predicting_layers, 2);
    assert!(load_with(folder.path(), &asked()).unwrap().model.predictor.is_none());
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    let model = load_predictor(&directory());
    let width = model.config.hidden_size;
    let mut forward = PredictorForward::new(&model, 2).unwrap();
    let mut project = |tokens: &[u32], floats: usize| {
        let batch = Batch::of_one(tokens, 0).unwrap();
        forward.project(&batch, &vec![0.0; floats]).err()
    };
    assert!(matches!(
        project(&[1, 2, 3], 3 * width),
        Some(ModelError::BatchTooLarge { .. })
    ));
    assert!(matches!(
        project(&[1], width + 1),
        Some(ModelError::BufferLength { .. })
    ));
    let unknown = model.config.vocab_size as u32;
    assert!(matches!(
        project(&[unknown], width),
        Some(ModelError::TokenOutOfRange { .. })
    ));
    assert!(project(&[1, 2], 2 * width).is_none());
}
