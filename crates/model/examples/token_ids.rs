//! Prints token ids of texts, for comparison with other tokenizers. Standard input has one JSON string per line,
//! standard output one JSON list of ids per line. Special tokens in a text are recognised; none are added.

use std::error::Error;
use std::io::{BufRead, BufWriter, Write, stdin, stdout};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("give the path of a model")?;
    let tokenizer = riffle_model::load_tokenizer(&path)?.ok_or("the model has no tokenizer")?;
    let mut output = BufWriter::new(stdout().lock());
    for line in stdin().lock().lines() {
        let text: String = serde_json::from_str(&line?)?;
        serde_json::to_writer(&mut output, &tokenizer.encode(&text, false)?)?;
        output.write_all(b"\n")?;
    }
    Ok(output.flush()?)
}
