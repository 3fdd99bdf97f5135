//! Loads and runs a model or an adapter, for the fuzz targets and the tests of riffle-model.

use std::path::Path;
use std::sync::Arc;

use riffle_model::{
    AdapterScales, AdapterSpec, Batch, ChatMessage, Decoder, Forward, HostForward, LoadOptions, LoadedModel,
    ModelError, OpenedModel, RecurrentState, SegmentTokens, StreamDecoder, inspect, load,
};

/// Limit on the recurrent state, which may be larger than its weights.
const MOST_STATE_BYTES: u64 = 64 << 20;

const TEXTS: [&str; 3] = ["", " a Word's 1234\r\n\t{é}\u{301}🙂  \u{0} <|im_end|>", "\u{fdfa}ﷺ ①"];

/// Inspects and loads the model at `path`. A loaded model encodes texts, renders a chat and runs three tokens of two
/// sequences.
///
/// # Errors
/// Errors of loading.
pub fn use_model(path: &Path) -> Result<(), ModelError> {
    let inspected = inspect(path);
    let LoadedModel {
        model,
        tokenizer,
        chat_template,
        ..
    } = load(path)?;
    inspected.expect("a model that loads can be inspected");
    if let Some(tokenizer) = &tokenizer {
        for text in TEXTS {
            let Ok(ids) = tokenizer.encode(text, true) else {
                continue;
            };
            let _ = tokenizer.decode(&ids);
            let mut stream = StreamDecoder::default();
            for id in ids {
                let _ = stream.push(tokenizer, id);
            }
            let _ = stream.finish(tokenizer);
        }
    }
    if let Some(template) = chat_template {
        let _ = template.render(&[ChatMessage::new("user", "Who?")], true);
    }
    run(model, AdapterScales::default())
}

/// Loads the model at `path` with an adapter and runs three tokens of two sequences, one of them with the adapter.
///
/// # Errors
/// Errors of loading.
pub fn use_adapter(path: &Path, adapter: &Path) -> Result<(), ModelError> {
    let adapter = AdapterSpec {
        path: adapter.to_owned(),
        scale: 1.0,
    };
    let opened = OpenedModel::open(path, &LoadOptions::default())?.with_adapters(&[adapter])?;
    run(opened.load()?.model, AdapterScales::new(&[1.0]))
}

fn run(model: Decoder, adapters: AdapterScales) -> Result<(), ModelError> {
    let config = &model.config;
    // An engine would plan this memory first.
    if config.recurrent_bytes() > MOST_STATE_BYTES {
        return Ok(());
    }
    // Two sequences side by side.
    let tokens = [0, config.vocab_size as u32 - 1, config.vocab_size as u32 / 2];
    let batch = Batch::new([
        SegmentTokens::prompt(&tokens[..2], 0).with_adapters(adapters),
        SegmentTokens::generated(&tokens[2..], 0),
    ])?;
    let mut states = [0; 2].map(|_| RecurrentState::new(config));
    let (layers, vocab_size) = (config.layers, config.vocab_size);
    let mut forward = HostForward::new(&Arc::new(model), batch.rows());
    forward.embed(&batch)?;
    for layer in 0..layers {
        // Attention with zero output.
        forward.project(layer, 0..tokens.len())?;
        if let Some(projected) = forward.projected() {
            projected.attended.fill(0.0);
        }
        forward.finish(layer, 0..tokens.len(), &mut states.each_mut())?;
    }
    forward.logits(&[0], &mut vec![0.0; vocab_size])
}
