//! A model used as far as it loads: shared by the fuzz targets and by `crates/model/tests/damage.rs`.

use std::error::Error;
use std::path::Path;

use riffle_model::{
    Attended, AttentionInput, AttentionStep, ChatMessage, LanguageModel, LoadedModel, ModelError, RecurrentState,
    Workspace, inspect, load,
};

/// A recurrent state may be larger than the weights it belongs to.
const MOST_STATE_BYTES: u64 = 64 << 20;

const TEXTS: [&str; 3] = ["", " a Word's 1234\r\n\t{é}\u{301}🙂  \u{0} <|im_end|>", "\u{fdfa}ﷺ ①"];

/// Inspects and loads what lies at `path`; if it loads, encodes texts, renders a chat and runs three tokens.
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
            let mut stream = tokenizer.stream();
            for id in ids {
                let _ = stream.push(id);
            }
            let _ = stream.finish();
        }
    }
    if let Some(template) = chat_template {
        let _ = template.render(&[ChatMessage::new("user", "Who?")], true);
    }
    let config = model.config();
    let tokens = [0, config.vocab_size as u32 - 1, config.vocab_size as u32 / 2];
    let mut hidden = vec![0.0; tokens.len() * config.hidden_size];
    let mut workspace = Workspace::new(config, tokens.len()).for_context(tokens.len());
    // As an engine would, which plans the memory before.
    if config.recurrent_bytes() > MOST_STATE_BYTES {
        return Ok(());
    }
    let mut recurrent = RecurrentState::new(config);
    model.embed(&tokens, &mut hidden)?;
    for layer in 0..config.layers {
        model.layer(layer, 0, &mut hidden, &mut Nothing, &mut recurrent, &mut workspace)?;
    }
    let mut logits = vec![0.0; config.vocab_size];
    model.logits(&hidden[..config.hidden_size], &mut logits, &mut workspace);
    Ok(())
}

/// Attention whose result is zero.
struct Nothing;

impl AttentionStep for Nothing {
    fn attend(&mut self, _: AttentionInput<'_>, output: &mut [f32]) -> Result<Attended, Box<dyn Error + Send + Sync>> {
        output.fill(0.0);
        Ok(Attended::InOutput)
    }
}
