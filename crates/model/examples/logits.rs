//! Prints the logits of a text, for comparison with other implementations. Standard input is a JSON list of token ids.
//! Standard output is the logits of all positions as little-endian f32, once for each batch size: `cargo run --release
//! -p riffle-model --example logits -- PATH_OF_MODEL 200 7 < tokens.json`

use std::error::Error;
use std::io::{BufWriter, Write, stdin, stdout};
use std::sync::Arc;

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/testing/sequence.rs"]
mod sequence;

fn main() {
    if let Err(error) = print_logits() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn print_logits() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("give the path of a model")?;
    let tokens: Vec<u32> = serde_json::from_reader(stdin().lock())?;
    let model = Arc::new(riffle_model::load(&path)?.model);
    let most = model.config.max_position;
    if tokens.len() > most {
        return Err(format!("{} tokens are more than the {most} that the model reads", tokens.len()).into());
    }
    let mut output = BufWriter::new(stdout().lock());
    for batch_tokens in arguments {
        for logit in sequence::logits_of(&model, &tokens, batch_tokens.parse()?) {
            output.write_all(&logit.to_le_bytes())?;
        }
    }
    Ok(output.flush()?)
}
