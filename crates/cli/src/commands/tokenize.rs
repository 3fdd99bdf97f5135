//! `riffle tokenize`: converts text to token ids and back.

use std::path::Path;

use riffle_engine::EngineError;
use riffle_model::Tokenizer;
use serde_json::{Value, json};

use super::{LARGEST_TEXT_BYTES, print, print_json, read_input};
use crate::args::TokenizeArguments;
use crate::console;
use crate::failure::Failure;

pub(crate) fn tokenize(arguments: &TokenizeArguments) -> Result<(), Failure> {
    let model = arguments.model.path()?;
    let tokenizer =
        riffle_model::load_tokenizer(model)?.ok_or_else(|| EngineError::NoTokenizer(model.display().to_string()))?;
    match &arguments.decode {
        Some(ids) => decode(&tokenizer, ids, arguments),
        None => encode(&tokenizer, arguments),
    }
}

fn encode(tokenizer: &Tokenizer, arguments: &TokenizeArguments) -> Result<(), Failure> {
    let text = read_input(&arguments.input, LARGEST_TEXT_BYTES)?;
    let ids = tokenizer.encode(&text, !arguments.no_special)?;
    let piece = |id: &u32| tokenizer.decode_with_special(&[*id]);
    if arguments.json {
        let mut value = json!({ "count": ids.len(), "ids": ids });
        if arguments.pieces {
            let pieces = ids.iter().map(|id| Ok(json!({ "id": id, "text": piece(id)? })));
            value["pieces"] = pieces.collect::<Result<Value, Failure>>()?;
        }
        return print_json(&value);
    }
    if arguments.pieces {
        let lines = ids.iter().map(|id| Ok(format!("{id:7}  {:?}\n", piece(id)?)));
        return print(&lines.collect::<Result<String, Failure>>()?);
    }
    let words: Vec<String> = ids.iter().map(u32::to_string).collect();
    print(&(words.join(" ") + "\n"))
}

fn decode(tokenizer: &Tokenizer, given: &[String], arguments: &TokenizeArguments) -> Result<(), Failure> {
    let input = &arguments.input;
    let (text, source) = match (given, &input.file) {
        ([], file) => {
            let source = file.as_deref().unwrap_or(Path::new("standard input"));
            (read_input(input, LARGEST_TEXT_BYTES)?, source)
        }
        (_, Some(_)) => {
            return Err(Failure::new(
                "--decode takes its ids from --file or behind it, not from both: leave one of them out",
            ));
        }
        (ids, None) => (ids.join(" "), Path::new("--decode")),
    };
    let ids = riffle_eval::parse_tokens(&text, source)?;
    let vocab_size = tokenizer.vocab_size();
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab_size) {
        return Err(Failure::new(format!(
            "{}: {id} is not a token id: the vocabulary has {vocab_size} tokens, from 0 on",
            source.display()
        )));
    }
    let text = if arguments.no_special {
        tokenizer.decode(&ids)?
    } else {
        tokenizer.decode_with_special(&ids)?
    };
    if arguments.json {
        print_json(&json!({ "count": ids.len(), "text": text }))
    } else {
        console::print_answer(&(text + "\n"))
    }
}
